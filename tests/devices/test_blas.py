"""BLAS threads: shared out among the lanes that run, and given back."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import threadpoolctl

import actorflow as af
from actorflow.devices import CPU, team
from actorflow.devices.team import Team
from tests.support.waiting import in_threads

THREADS = 4


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with four cores, whatever this one has."""
    np.ones((2, 2)) @ np.ones((2, 2))  # BLAS is loaded
    monkeypatch.setattr(team, "cores", lambda: THREADS)
    with threadpoolctl.threadpool_limits(THREADS, user_api="blas"):
        if blas_threads() != {THREADS}:
            pytest.skip(f"this NumPy's BLAS has no settable number of threads: {threadpoolctl.threadpool_info()}")
        yield


def test_shares_of_the_cores() -> None:
    limits = Team()
    expected = {1: 4, 2: 2, 3: 1, 4: 1, 5: 1}
    for lanes in (1, 2, 3, 4, 5):
        limits.lane_started()
        assert blas_threads() == {expected[lanes]}
    for lanes in (4, 3, 2, 1):
        limits.lane_stopped()
        assert blas_threads() == {expected[lanes]}
    limits.lane_stopped()
    assert blas_threads() == {THREADS}


def test_a_single_thread_where_lanes_compute_pieces_alone() -> None:
    limits = Team()
    limits.lane_started(in_pieces=True)
    assert blas_threads() == {1}
    limits.lane_started(in_pieces=True)
    assert blas_threads() == {1}
    limits.lane_started()
    assert (blas_threads(), limits.share) == ({1}, 1)
    limits.lane_stopped(in_pieces=True)
    assert blas_threads() == {2}
    limits.lane_stopped()
    assert (blas_threads(), limits.share) == ({1}, THREADS)  # other libraries have all cores
    limits.lane_stopped(in_pieces=True)
    assert blas_threads() == {THREADS}


async def test_functions_have_the_threads_of_blas_and_kernels_need_none() -> None:
    seen: list[set[int]] = []
    for is_function in (False, True):
        graph = af.Graph("products")
        x = graph.blob("x", (64, 64))
        y = af.ops.matmul(x, x)
        fetch = [y]
        if is_function:
            fetch.append(graph.function("svd", lambda y: seen.append(blas_threads()) or y, y.spec)(y))
        await graph.run({x: np.eye(64, dtype="f")}, fetch=fetch)
        seen.append(blas_threads())
        await graph.aclose()
        seen.append(blas_threads())
    assert seen == [{1}, {THREADS}, {THREADS}, {THREADS}, {THREADS}]


def test_a_lower_limit_of_the_user_is_kept() -> None:
    limits = Team()
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        limits.lane_started()
        limits.lane_started()
        assert blas_threads() == {1}
        limits.lane_stopped()
        assert blas_threads() == {1}
    limits.lane_stopped()


def test_lanes_limit_blas_from_their_making_to_their_close() -> None:
    """From the making, not from the first work: what is computed must not depend on how soon a thread has started."""
    device = CPU(af.Place())
    seen = []
    for name in ("a", "b", "c"):
        device.lane(name)
        device.lane(name)
        seen.append(blas_threads())
    assert seen == [{4}, {2}, {1}]
    device.lane("a").close()
    device.lane("a").close()
    assert blas_threads() == {2}
    device.close()
    device.close()
    assert blas_threads() == {THREADS}


def test_a_lane_that_the_garbage_collector_closes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the libraries allocates, so a dropped graph may be collected, and its lanes closed, right then."""
    limits = Team()
    collected: list[None] = []

    class Controller(threadpoolctl.ThreadpoolController):  # type: ignore[misc]
        def __init__(self) -> None:
            if not collected:
                collected.append(None)
                limits.lane_stopped()
            super().__init__()

    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", Controller)
    limits.lane_started()
    limits.lane_started()
    assert collected
    assert blas_threads() == {THREADS}  # one lane is left
    limits.lane_stopped()


def test_threads_start_and_stop_lanes_at_once() -> None:
    limits = Team()
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(5):
            limits.lane_started()
            limits.lane_stopped()

    in_threads(*[work] * 4)
    assert blas_threads() == {THREADS}
    limits.lane_started()
    limits.lane_started()
    assert blas_threads() == {2}
    limits.lane_stopped()
    limits.lane_stopped()
    assert blas_threads() == {THREADS}


def test_a_single_thread_while_it_is_asked_for() -> None:
    limits = Team()
    limits.keep_single()
    limits.lane_started()
    assert blas_threads() == {1}
    limits.release_single()
    assert blas_threads() == {THREADS}
    limits.lane_stopped()


@pytest.mark.parametrize("begun_with", [1, 2, 8])
def test_a_single_thread_while_cores_come_and_go(monkeypatch: pytest.MonkeyPatch, begun_with: int) -> None:
    limits = Team()
    monkeypatch.setattr(team, "cores", lambda: begun_with)
    limits.keep_single()
    assert blas_threads() == {1}
    monkeypatch.setattr(team, "cores", lambda: THREADS)
    limits.lane_started()
    assert (blas_threads(), limits.share, limits.next_share) == ({1}, 1, 1)
    limits.release_single()
    assert (blas_threads(), limits.share, limits.next_share) == ({THREADS}, THREADS, THREADS // 2)
    limits.lane_stopped()


class TestSingle:
    def test_within_the_block_alone(self) -> None:
        limits = Team()
        limits.lane_started()
        with limits.single():
            assert blas_threads() == {1}
            with limits.single():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {THREADS}
        with pytest.raises(ZeroDivisionError), limits.single():
            1 / 0  # noqa: B018
        assert blas_threads() == {THREADS}
        limits.lane_stopped()

    def test_for_pieces_that_multiply(self) -> None:
        limits = Team()
        limits.lane_started()
        seen: list[set[int]] = []

        def spread() -> None:
            for pieces, multiplies in ((2, True), (2, False), (1, True)):
                limits.spread(range(pieces), lambda _: seen.append(blas_threads()), 0, multiplies=multiplies)

        spread()  # on a thread that is no lane's, where BLAS is the caller's
        member = limits.join()
        spread()
        limits.leave(member)
        assert seen == [{THREADS}] * 5 + [{1}, {1}, {THREADS}, {THREADS}, {THREADS}]
        limits.lane_stopped()

    def test_libraries_are_looked_for_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It takes longer than many a product."""
        limits, looks = Team(), []

        class Controller(threadpoolctl.ThreadpoolController):  # type: ignore[misc]
            def __init__(self) -> None:
                looks.append(None)
                super().__init__()

        monkeypatch.setattr(threadpoolctl, "ThreadpoolController", Controller)
        limits.lane_started()
        for _ in range(3):
            limits.lane_started()
            with limits.single():
                pass
            limits.lane_stopped()
        limits.lane_stopped()
        assert len(looks) == 1

    def test_lanes_come_and_go_meanwhile(self) -> None:
        limits = Team()
        limits.lane_started()
        with limits.single():
            limits.lane_started()
            assert blas_threads() == {1}
        assert blas_threads() == {2}
        with limits.single():
            assert blas_threads() == {1}
            limits.lane_stopped()
            assert blas_threads() == {1}
        assert blas_threads() == {THREADS}
        limits.lane_stopped()

    def test_on_many_threads(self) -> None:
        limits = Team()
        limits.lane_started()
        barrier = threading.Barrier(4)
        seen = set()

        def work() -> None:
            barrier.wait()
            for _ in range(20):
                with limits.single():
                    seen.update(blas_threads())

        in_threads(*[work] * 4)
        assert blas_threads() == {THREADS}
        limits.lane_stopped()
