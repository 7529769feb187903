"""All ranks in one process; and the suite for transports: each planted defect is caught by the requirement for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.errors import PeerLostError, TransportError
from actorflow.testing import ConformanceError, check_transport
from actorflow.transport import Listener, LocalWorld, PeerError
from tests.support.effort import FULL

#: What a broken transport never does is waited for so long.
PATIENCE_S = 3.0


async def check_all(world: LocalWorld, freeze: bool = False) -> list[Any]:
    checks = [
        check_transport(each, chunk_bytes=1 << 12, freeze=partial(world.freeze, each.rank) if freeze else None)
        for each in world.transports
    ]
    return await asyncio.gather(*checks, return_exceptions=True)


@pytest.mark.parametrize("seed", [None, 0, 1] if FULL else [0])
@pytest.mark.parametrize("size", [1, 2, 3, 4] if FULL else [1, 3])
@pytest.mark.parametrize("freeze", [False, True])
async def test_conformance(size: int, seed: int | None, freeze: bool) -> None:
    reports = await check_all(LocalWorld(size, seed, liveness_s=0.1), freeze)
    for rank, report in enumerate(reports):
        if isinstance(report, BaseException):
            raise report
        alone = size == 1
        no_partner = alone or (rank == size - 1 and size % 2 == 1)
        assert ("edges.sizes" in report.skipped) == alone
        assert ("edges.credit" in report.skipped) == no_partner
        assert ("ends.leaves" in report.skipped) == (alone or freeze)
        assert ("ends.frozen" in report.skipped) == (alone or not freeze)
        assert ("ends.close" in report.skipped) == (rank == size - 1 > 0)
        assert str(report).startswith(f"rank {rank} of {size} over local")


class Watch(Listener):
    def __init__(self) -> None:
        self.told: list[tuple[int, bytes | type]] = []

    def heard(self, rank: int, note: bytes) -> None:
        self.told.append((rank, note))

    def ended(self, error: PeerError) -> None:
        self.told.append((error.rank, type(error)))


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def bound(size: int, seed: int | None = None) -> LocalWorld:
    world = LocalWorld(size, seed)
    world.transports[0].bind(asyncio.get_running_loop())
    return world


class TestDeath:
    @pytest.mark.parametrize("seed", [None, 1, 2])
    async def test_what_is_under_way_fails_and_listeners_are_told_after_the_notes(self, seed: int | None) -> None:
        world = bound(3, seed)
        first, dead, third = world.transports
        watch, ends = Watch(), []
        third.listen(watch)
        first.send(1, 1, memoryview(b"abc"), ends.append)
        first.receive(1, 2, memoryview(bytearray(3)), lambda count, error: ends.append((count, error)))
        first.group([0, 1]).all_reduce("sum", np.ones(2), np.zeros(2), ends.append)
        dead.receive(2, 1, memoryview(bytearray(3)), lambda *_: ends.append("the dead hear"))
        for i in range(3):
            dead.post(2, b"%d" % i)
        world.kill(1)
        world.kill(1)
        await turns()
        assert len(ends) == 3
        for end in ends:
            error = end[1] if isinstance(end, tuple) else end
            assert isinstance(error, PeerLostError)
            assert error.rank == 1
        assert watch.told == [(1, b"0"), (1, b"1"), (1, b"2"), (1, PeerLostError)]

    async def test_later_calls_fail_too_and_later_listeners_are_told(self) -> None:
        world = bound(2)
        first, dead = world.transports
        world.kill(1)
        await turns()
        ends: list[Any] = []
        watch = Watch()
        first.listen(watch)
        first.send(1, 1, memoryview(b"abc"), ends.append)
        first.receive(1, 1, memoryview(bytearray(3)), lambda _, error: ends.append(error))
        first.group([0, 1]).all_reduce("sum", np.ones(2), np.zeros(2), ends.append)
        first.post(1, b"unheard")
        dead.send(0, 1, memoryview(b"abc"), lambda _: ends.append("the dead hear"))
        await turns()
        assert [type(end) for end in ends] == [PeerLostError] * 3
        assert watch.told == [(1, PeerLostError)]

    async def test_groups_of_the_living_go_on(self) -> None:
        world = bound(3)
        ends: list[Any] = []
        world.kill(1)
        total = np.zeros(2)
        for rank in (0, 2):
            world.transports[rank].group([0, 2]).all_reduce("sum", np.full(2, rank + 1.0), total, ends.append)
        await turns()
        assert ends == [None, None]
        assert total.tolist() == [4, 4]


class TestLoops:
    def test_what_was_under_way_on_a_closed_loop_is_given_up(self) -> None:
        world = LocalWorld(2)
        first, second = world.transports
        called: list[Any] = []

        async def leave() -> None:
            first.bind(asyncio.get_running_loop())
            first.receive(1, 1, memoryview(bytearray(3)), lambda *got: called.append(got))

        async def go_on() -> bytes:
            first.bind(asyncio.get_running_loop())
            buffer = bytearray(2)
            first.receive(1, 1, memoryview(buffer), lambda *got: called.append(got))
            second.send(0, 1, memoryview(b"ok"), called.append)
            await turns()
            return bytes(buffer)

        asyncio.run(leave())
        assert asyncio.run(go_on()) == b"ok"
        assert called == [(2, None), None]

    def test_without_a_loop(self) -> None:
        with pytest.raises(TransportError, match="no event loop: bind it first"):
            LocalWorld(2).transports[0].send(1, 1, memoryview(b""), lambda _: None)

    async def test_ranks_that_do_not_reduce_the_same_are_told(self) -> None:
        world, ends = bound(2), []
        for transport, operation in zip(world.transports, ("sum", "max"), strict=True):
            transport.group([0, 1]).all_reduce(operation, np.ones(2), np.ones(2), ends.append)
        await turns()
        assert [type(end) for end in ends] == [TransportError] * 2
        assert "the ranks do not reduce the same" in str(ends[0])

    async def test_special_values_are_reduced_whatever_numpy_is_told_to_do_about_them(self) -> None:
        world, ends = bound(2), []
        targets = [np.empty(2), np.empty(2)]
        with np.errstate(all="raise"):
            for transport, value, target in zip(world.transports, (np.inf, -np.inf), targets, strict=True):
                transport.group([0, 1]).all_reduce("sum", np.array([value, 1.0]), target, ends.append)
            await turns()
        assert ends == [None, None]
        np.testing.assert_array_equal(targets, [[np.nan, 2]] * 2)

    async def test_a_reduction_that_fails_tells_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr("actorflow.transport.base.combine", fail)
        world, ends = bound(2), []
        for transport in world.transports:
            transport.group([0, 1]).all_reduce("sum", np.ones(2), np.ones(2), ends.append)
        await turns()
        assert [type(end) for end in ends] == [TransportError] * 2
        assert "sum of float64[2] failed: no room" in str(ends[0])


def orders(seed: int) -> list[tuple[int, int]]:
    """In which order messages of three tags arrive."""

    async def main() -> list[tuple[int, int]]:
        world, told = bound(2, seed), []
        first, second = world.transports
        for i in range(5):
            for tag in range(3):
                first.send(1, tag, memoryview(b"%d" % i), lambda _: None)
                second.receive(0, tag, memoryview(bytearray(1)), lambda *_, at=(tag, i): told.append(at))
        await turns()
        return told

    return asyncio.run(main())


@given(st.integers(0, 1 << 32))
def test_a_seed_gives_one_order_in_which_no_tag_overtakes_itself(seed: int) -> None:
    told = orders(seed)
    assert told == orders(seed)
    for tag in range(3):
        assert [i for its, i in told if its == tag] == list(range(5))


def test_seeds_give_different_orders() -> None:
    assert len({tuple(orders(seed)) for seed in range(10)}) > 5


# -- planted defects -------------------------------------------------------------------------------------------------


Method = Callable[..., Any]


def early_credit(own: Any, send: Method, rank: int, tag: int, data: memoryview, done: Method) -> None:
    send(rank, tag, memoryview(bytes(data)), lambda _: None)
    asyncio.get_running_loop().call_soon(done, None)


def loses_a_byte(own: Any, receive: Method, rank: int, tag: int, buffer: memoryview, done: Method) -> None:
    def told(count: int, error: BaseException | None) -> None:
        if count == 100_000:
            buffer[-1:] = bytes([buffer[-1] ^ 1])
        done(count, error)

    receive(rank, tag, buffer, told)


def one_tag(own: Any, right: Method, rank: int, tag: int, *rest: Any) -> None:
    right(rank, min(tag, 1), *rest)


def empty_is_full(own: Any, receive: Method, rank: int, tag: int, buffer: memoryview, done: Method) -> None:
    receive(rank, tag, buffer, lambda _, error: done(buffer.nbytes, error))


def backwards(own: Any, post: Method, *note: Any) -> None:
    def flush() -> None:
        while own.waiting:
            post(*own.waiting.pop())

    own.waiting = [*vars(own).get("waiting", ()), note]
    if len(own.waiting) == 1:
        asyncio.get_running_loop().call_soon(flush)


def mangles_kept(own: Any, listen: Method, listener: Listener | None) -> None:
    own.inbox._untold = deque((rank, b"?") for rank, _ in own.inbox._untold)
    listen(listener)


def calls_at_once(own: Any, group: Method, ranks: Any) -> Any:
    found = group(ranks)
    if len(found.ranks) == 1:
        found.all_reduce = lambda operation, source, target, done: (np.copyto(target, source), done(None))
    return found


def remembers(own: Any, send: Method, rank: int, tag: int, data: memoryview, done: Method) -> None:
    own.last = done
    send(rank, tag, data, done)


def calls_after_close(own: Any, close: Method) -> None:
    close()
    if "last" in vars(own):
        asyncio.get_running_loop().call_soon(vars(own).pop("last"), None)


def any_rank(own: Any, right: Method, rank: int, *rest: Any) -> None:
    if rank in range(own.size):
        right(rank, *rest)


def other_bits(own: Any, group: Method, ranks: Any) -> Any:
    found = group(ranks)
    reduce = type(found).all_reduce

    def broken(operation: str, source: Any, target: Any, done: Method) -> None:
        def told(error: BaseException | None) -> None:
            if own.rank and target.size > 1_000 and target.dtype == np.float64 and not target.shape[1:]:
                target[-1] = np.nextafter(target[-1], np.inf)
            done(error)

        reduce(found, operation, source, target, told)

    found.all_reduce = broken
    return found


def fails_what_is_done(own: Any, send: Method, rank: int, tag: int, data: memoryview, done: Method) -> None:
    """A message that a rank has taken before it left is told to have failed."""

    def told(error: BaseException | None) -> None:
        asyncio.get_running_loop().call_later(0.02, lambda: done(own.inbox.ends.get(rank, error)))

    send(rank, tag, data, told if len(data) == 10 and own.rank == 0 else done)


def nothing(*_: Any) -> None:
    pass


#: What is in the place of methods of a transport, each given it and the right one; and the requirements that find it.
DEFECTS: list[tuple[dict[str, Method], set[str]]] = [
    ({"send": early_credit}, {"edges.credit"}),
    ({"receive": loses_a_byte}, {"edges.order"}),
    ({"send": one_tag, "receive": one_tag}, {"edges.tags"}),
    ({"receive": empty_is_full}, {"edges.empty"}),
    ({"post": backwards}, {"notes.order"}),
    ({"listen": mangles_kept}, {"notes.kept"}),
    ({"group": calls_at_once}, {"ends.callbacks"}),
    ({"send": remembers, "close": calls_after_close}, {"ends.close", "ends.leaves"}),
    ({"give_up": nothing}, {"ends.leaves"}),
    ({"send": fails_what_is_done}, {"ends.leaves"}),
    ({"give_up": lambda own, right, error: own.inbox.hear_of_end(error)}, {"ends.leaves"}),
    ({"check_address": nothing, "send": any_rank, "receive": any_rank}, {"edges.address"}),
    ({"group": other_bits}, {"groups.same_bits", "groups.shapes"}),
]


@pytest.mark.any_loop
@pytest.mark.parametrize(("faults", "expected"), DEFECTS, ids=lambda given: "-".join(sorted(given)))
async def test_a_defect_is_caught(faults: dict[str, Method], expected: set[str]) -> None:
    assert await first_broken(faults, LocalWorld(2)) in expected


@pytest.mark.any_loop
@pytest.mark.parametrize("method", ["watch", "_liveness.answered"])
async def test_a_defect_that_freezing_shows_is_caught(method: str) -> None:
    assert await first_broken({method: nothing}, LocalWorld(3, liveness_s=0.1), freeze=True) == "ends.frozen"


async def first_broken(faults: dict[str, Method], world: LocalWorld, freeze: bool = False) -> str:
    """The requirement that is found to be broken."""
    for transport in world.transports:
        for name, fault in faults.items():
            *path, last = name.split(".")
            owner = getattr(transport, path[0]) if path else transport
            right = getattr(owner, last)
            setattr(owner, last, update_wrapper(partial(fault, owner, right), right))
    tasks = [
        asyncio.create_task(
            check_transport(
                each,
                chunk_bytes=1 << 12,
                patience_s=PATIENCE_S,
                freeze=partial(world.freeze, each.rank) if freeze else None,
            )
        )
        for each in world.transports
    ]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    found = [task.exception() for task in done if task.exception() is not None]
    assert isinstance(found[0], ConformanceError), found
    world.close()
    return found[0].requirement
