"""Calls in other processes: what goes there and back, chunks of items, who is to blame, processes that die or hang."""

import asyncio
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow.pipeline import Limiter, source
from actorflow.pipeline.processes.remote import gathered, open_message, pack, reading, scattered
from tests.pipeline.recipes import collect

ITEMS = 300
LARGE = (200, 300)  # of float64: more than what becomes a part of the pickle

# -- messages ---------------------------------------------------------------------------------------------------


def arrive(parts: list[memoryview], piece: int) -> Any:
    """Contents of a message that has come in pieces of ``piece`` bytes."""
    data = b"".join(parts)
    steps = reading()
    memory = next(steps)
    while True:
        count = min(piece, len(memory), len(data))
        assert count, "a message that ends too early"
        memory[:count] = data[:count]
        data, memory = data[count:], memory[count:]
        try:
            while not memory:
                memory = next(steps)
        except StopIteration as end:
            assert not data
            return open_message(end.value)


arrays = hnp.arrays(
    st.sampled_from(["u1", "f4", "c16", "datetime64[s]", "U3"]), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)
)


@given(st.lists(arrays | st.integers() | st.binary(max_size=9), max_size=5), st.integers(1, 500), st.booleans())
def test_messages_arrive_whole_however_they_are_cut(values: list[Any], piece: int, is_alike: bool) -> None:
    if is_alike:
        values = [np.array(values[0])] * 3 if values else []
    came = scattered(arrive(pack(gathered(values)), piece))
    assert [type(value) for value in came] == [type(value) for value in values]
    for value, other in zip(values, came, strict=True):
        np.testing.assert_array_equal(value, other, strict=True)


def test_large_arrays_are_neither_copied_into_a_message_nor_out_of_it() -> None:
    large, small = np.random.default_rng(0).random(LARGE), np.zeros(3)
    parts = pack([large, small])
    assert np.shares_memory(np.frombuffer(parts[-1]), large)
    came = arrive(parts, 1000)
    np.testing.assert_array_equal(came[0], large)
    assert came[0].base is not None
    assert came[0].flags.writeable
    images = [np.full((4, 4), i) for i in range(5)]
    first, *others = scattered(arrive(pack(gathered(images)), 1000))
    assert all(image.base is None for image in (first, *others))  # one that is kept does not keep the others


# -- results ----------------------------------------------------------------------------------------------------


def made(x: int) -> Any:
    """Arrays of all kinds, among other things."""
    kinds = [
        np.full((4, 3), x % 256, np.uint8),
        np.asfortranarray(np.arange(2.0 * x + 6).reshape(2, -1)),
        np.array(x),
        np.full(LARGE, x, "float64"),
        np.array([x, None]),
        {"x": x},
        (np.arange(x % 7), x),
    ]
    return kinds[x % 7 if x < ITEMS // 2 else 0]


async def test_results_are_those_of_calls_here() -> None:
    async with source(range(ITEMS)).map(made, executor="process", concurrency=2) as loader:
        for epoch in range(2):
            items = await collect(loader)
            assert len(items) == ITEMS, epoch
            for x, item in enumerate(items):
                assert type(item) is type(made(x))
                np.testing.assert_equal(item, made(x))
    assert not multiprocessing.active_children()


@pytest.mark.any_loop
async def test_arguments_that_a_socket_has_no_room_for_at_once_arrive_whole() -> None:
    large = np.arange(1_200_000.0)  # 9.6 MB
    async with source([large]).map(np.negative, executor="process") as loader:
        (result,) = await collect(loader)
    np.testing.assert_array_equal(result, -large)


def odd(x: int) -> bool:
    if x % 10 == 4:
        raise ValueError(x)
    return x % 2 == 1


def negated(x: int) -> int:
    return -x


async def test_place_in_the_middle_of_chunks_is_exact() -> None:
    def make() -> af.pipeline.Pipeline:
        kept = source(range(ITEMS), shuffle=True, seed=1).filter(odd, executor="process", on_error="skip")
        return kept.map(negated, executor="process", concurrency=2)

    async with make() as loader:
        whole, states = [], []
        async for item in loader:
            whole.append(item)
            states.append(loader.state_dict())
        assert sorted(whole) == [-x for x in range(ITEMS - 1, 0, -2)]
        assert len(loader.skips) == ITEMS / 10
        for at in (1, 70, len(whole) - 1):
            loader.load_state_dict(states[at - 1])
            assert await collect(loader) == whole[at:]
        async for _ in loader:  # a later epoch, left in the middle
            break
        assert len(await collect(loader)) == len(whole) - 1


async def test_branches_have_processes_too() -> None:
    loader = source(range(60)).branch(
        lambda x: x % 3, {0: lambda way: way.map(negated, executor="process"), 1: lambda way: way, 2: lambda way: way}
    )
    async with loader:
        assert await collect(loader) == [-x if x % 3 == 0 else x for x in range(60)]


# -- failures ---------------------------------------------------------------------------------------------------


class Stubborn:
    """Cannot be sent."""

    def __reduce__(self) -> Any:
        raise TypeError("stubborn")


class Arrives:
    """Can be sent, and not be made again."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


def troublesome(x: Any) -> Any:
    match x:
        case 150:
            return Stubborn()
        case 151:
            return Arrives()
        case 1000:
            raise SystemExit(3)
        case 200:
            os._exit(7)
    return x


async def test_one_item_of_a_chunk_is_to_blame() -> None:
    items = [*range(100), Stubborn(), Arrives(), *range(102, ITEMS)]
    loader = source(items).map(troublesome, executor="process", concurrency=2, on_error="skip")
    async with loader:
        blamed = (100, 101, 150, 151, 200)
        assert await collect(loader) == [x for x in range(ITEMS) if x not in blamed]
        assert tuple(skip.number for skip in loader.skips) == blamed
        errors = [skip.error.split(":")[0] for skip in loader.skips]
        assert errors == ["TypeError", "ValueError", "TypeError", "ValueError", "BrokenProcessPool"]
        assert "exit code 7" in loader.skips[-1].error
    assert not multiprocessing.active_children()


def test_what_is_no_exception_is_never_left_out() -> None:
    loader = source([1, 1000]).map(troublesome, executor="process", on_error="skip")

    async def main() -> None:
        async with loader:
            with pytest.raises(af.StageError, match="SystemExit: 3") as raised:
                await collect(loader)
        assert raised.value.number == 1

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    with pytest.raises(SystemExit) as left:
        loop.run_until_complete(task)
    assert left.value.code == 3
    loop.run_until_complete(task)
    loop.close()


def once_more(item: tuple[str, int]) -> int:
    """Fails the first time for each third item."""
    folder, x = item
    if x % 3 == 0:
        mark = Path(folder, str(x))
        if not mark.exists():
            mark.touch()
            raise OSError("not yet")
    return x


async def test_items_are_repeated_one_by_one(tmp_path: Path) -> None:
    items = [(str(tmp_path), x) for x in range(60)]
    loader = source(items).map(once_more, executor="process", concurrency=2, retries=1)
    async with loader:
        assert await collect(loader) == list(range(60))
        assert loader.stats()["once_more"].retried == 20


def hang(x: int) -> int:
    if x == 3:
        threading.Event().wait()
    return x


async def test_process_that_takes_too_long_is_killed() -> None:
    """Nothing waits for the call, not even the end of the loader."""
    loader = source(range(8)).map(hang, executor="process", concurrency=2, timeout=1, on_error="skip")
    async with loader:
        assert await collect(loader) == [0, 1, 2, 4, 5, 6, 7]
        assert loader.stats()["hang"].timed_out == 1
        assert loader.skips[0].error.startswith("StageTimeoutError")
    assert not multiprocessing.active_children()


# -- errors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


def deep(count: int) -> BaseException:
    """An error with a long chain of causes."""
    error: BaseException = ValueError("first")
    for number in range(count):
        later = ValueError(f"later {number}")
        later.__cause__, error = error, later
    return error


def raise_here(error: BaseException) -> Any:
    raise error


def raises(kind: str) -> int:
    """Raises an error of a kind, through `raise_here`."""
    try:
        raise_here(KeyError("first"))
    except KeyError as first:
        match kind:
            case "cause":
                raise ValueError(kind) from first
            case "context":
                raise_here(ValueError(kind))
            case "suppressed":
                raise ValueError(kind) from None
            case "cycle":
                error = ValueError(kind)
                first.__cause__ = error
                raise error from first
            case "deep":
                raise_here(deep(5_000))
            case "frozen":
                raise FrozenError(3) from first
            case "group":
                raise ExceptionGroup(kind, [ValueError("one"), TypeError("two")]) from first
            case "unsendable":
                error = ValueError(kind)
                error.lock = threading.Lock()  # type: ignore[attr-defined]
                error.add_note("a note")
                raise error from first
    return 0


@pytest.mark.together("kind", ["cause", "context", "suppressed", "cycle", "deep", "frozen", "group", "unsendable"])
async def test_errors_keep_their_tracebacks_and_causes(kind: str) -> None:
    loader = source([kind]).map(raises, executor="process")
    async with loader:
        with pytest.raises(af.StageError) as caught:
            await collect(loader)
    error = caught.value.__cause__
    assert error is not None
    text = "".join(traceback.format_exception(error))
    assert f"{__file__}" in text
    if kind not in ("context", "deep"):
        assert "in raises" in text
    if kind == "suppressed":
        assert error.__suppress_context__
        assert error.__cause__ is None
    if kind == "deep":
        assert "in raise_here" in text
        assert "later 4999" in text
    else:
        first = error.__context__ if kind in ("context", "suppressed") else error.__cause__
        assert type(first) is KeyError
        assert "in raise_here" in "".join(first.__notes__)


def drawn(_: int) -> tuple[int, float, float]:
    return os.getpid(), random.random(), float(np.random.random())  # noqa: NPY002  the generator of the process


async def test_global_generators_of_processes_follow_from_the_seed() -> None:
    async def first_of_each(seed: int, stage: int = 1) -> set[tuple[float, float]]:
        loader = source(range(ITEMS), seed=seed)
        for _ in range(stage):
            loader = loader.map(negated)
        calls = loader.map(drawn, executor="process", concurrency=2)
        first: dict[int, tuple[float, float]] = {}
        async with calls:
            while len(first) < 2:
                for process, *numbers in await collect(calls):
                    first.setdefault(process, tuple(numbers))
        return set(first.values())

    numbers = await first_of_each(0)
    assert len({one for one, _ in numbers}) == len({other for _, other in numbers}) == 2  # no two processes are alike
    assert await first_of_each(0) == numbers
    assert not await first_of_each(1) & numbers
    assert not await first_of_each(0, stage=2) & numbers


@pytest.mark.slow
def test_functions_of_a_program_without_a_file_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import actorflow as af\ndef fn(x): return x\naf.pipeline.source([1]).map(fn, executor='process')"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1
    assert "'fn' was made by `python -c`, at a prompt or in a notebook: put it into a file" in capfd.readouterr().err
    program = "import actorflow as af\nprint(list(af.pipeline.source([1]).map(str, executor='process').iter_sync()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert capfd.readouterr().out == "['1']\n"


def test_a_program_without_a_guard_is_told_to_have_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import actorflow as af\n"
        "def fn(x): return x\n"
        "list(af.pipeline.source([1]).map(fn, executor='process').iter_sync())\n"
    )
    assert subprocess.run([sys.executable, program], check=False).returncode == 1
    assert "needs `if __name__ == '__main__':` around what it runs" in capfd.readouterr().err


# -- leaving ----------------------------------------------------------------------------------------------------


def test_processes_are_kept_from_loop_to_loop() -> None:
    loader = source(range(ITEMS)).map(process_and, executor="process", concurrency=2)

    async def some(count: int) -> list[tuple[int, int]]:
        return await collect(loader, count)

    first = asyncio.run(some(50))  # answers to what was sent ahead come when another loop is there
    second = asyncio.run(some(ITEMS))
    assert [x for _, x in first + second] == list(range(ITEMS))
    assert {process for process, _ in second} <= {process for process, _ in first} | {
        child.pid for child in multiprocessing.active_children()
    }
    asyncio.run(loader.aclose())
    assert not multiprocessing.active_children()


def process_and(x: int) -> tuple[int, int]:
    return os.getpid(), x


async def test_leaving_frees_a_limiter_at_once() -> None:
    limiter = Limiter(1)
    loader = source(range(ITEMS)).map(negated, executor="process", concurrency=2, limiter=limiter)
    async with loader:
        async for item in loader:
            assert item == 0
            break
        await loader.stopped()
        assert limiter.running == 0
        assert loader.stats()["negated"].running == 0
        assert await collect(loader) == [-x for x in range(1, ITEMS)]
