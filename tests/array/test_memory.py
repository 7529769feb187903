"""The memory budget: run-ahead obeys it, and what cannot fit is an error."""

import contextvars
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import actorflow as af
import actorflow.array as xp
from actorflow.array.record.primitives import Primitive
from actorflow.array.record.record import record

LOOPS = settings(max_examples=max(20, settings.default.max_examples // 5))

#: Bytes of one matrix below.
ONE = 512 * 512 * 8


def test_a_loop_over_minibatches_needs_no_waits() -> None:
    """Minerva's loop: ten batches are loaded and used; the memory holds four of them."""
    budget = 6 * ONE
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((512, 512)) for _ in range(10)]
    with xp.session(memory_budget=budget) as session:
        w = xp.asarray(np.eye(512))
        total = xp.asarray(0.0)
        for batch in batches:
            x = xp.from_numpy(batch)
            y = xp.maximum(x @ w, 0.0)
            total = total + xp.sum(y)
        del x, y
        assert float(total) == pytest.approx(sum(np.maximum(batch, 0).sum() for batch in batches))
        assert session.peak_bytes <= budget


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_a_loop_never_fails_however_threads_take_turns() -> None:
    """Each batch, its square and the product need three places; what runs ahead must leave them."""
    one = 64 * 64 * 8
    rng = np.random.default_rng(0)
    for _ in range(20):
        with xp.session(memory_budget=6 * one) as session:
            session.threshold = 0  # a worker looks at everything
            total = xp.asarray(0.0)
            for _ in range(10):
                batch = xp.from_numpy(rng.random((64, 64)))
                total = total + xp.sum(xp.square(batch) @ batch)
            assert float(total) > 0
            assert session.peak_bytes <= 6 * one


def loop(rng: random.Random, size: int) -> None:
    """Load arrays, change them, keep some, drop others; all is as in NumPy."""
    kept: list[tuple[xp.Array, np.ndarray]] = []
    total, expected = xp.asarray(0.0), 0.0
    for _ in range(rng.randint(2, 8)):
        y = np.full(size, rng.random())
        x = xp.from_numpy(y)
        for _ in range(rng.randint(0, 3)):
            x, y = change(rng.randrange(6), x, y)
        if rng.random() < 0.3:
            kept.append((x, y))
            del kept[:-2]
        if rng.random() < 0.2:
            np.testing.assert_allclose(x.to_numpy(), y)
        if rng.random() < 0.7:
            total, expected = total + xp.sum(x), expected + y.sum()
        if rng.random() < 0.2:
            total.wait()
    for x, y in kept:
        np.testing.assert_allclose(x.to_numpy(), y)
    np.testing.assert_allclose(float(total), expected)


def change(kind: int, x: xp.Array, y: np.ndarray) -> tuple[xp.Array, np.ndarray]:
    if kind == 0:
        return xp.sqrt(x) + 1.0, np.sqrt(y) + 1.0
    if kind == 1:
        return x * 0.5, y * 0.5
    if kind == 2:
        x += 1.0
        return x, y + 1.0
    if kind == 3:
        x[2:5] = 3.0
        y = y.copy()
        y[2:5] = 3.0
        return x, y
    if kind == 4:
        return xp.flip(x), y[::-1]
    return xp.cumulative_sum(x * 1e-3), np.cumsum(y * 1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_switches")
@LOOPS
@given(
    st.integers(0, 2**32),
    st.sampled_from([20, 4_000, 300_000, 600_000]),
    st.sampled_from([1, 1, 2]),
    st.sampled_from(({}, {"run_ahead": False})),
)
def test_what_fits_when_computed_in_order_fits_and_the_peak_stays_within(
    seed: int, size: int, threads: int, modes: dict[str, Any]
) -> None:
    with xp.session(sequential=True, memory_budget=2**40) as session:
        for i in range(threads):
            loop(random.Random(seed + i), size)
        budget = session.peak_bytes * threads
    with xp.session(memory_budget=budget, **modes) as session, ThreadPoolExecutor(threads) as pool:
        contexts = [contextvars.copy_context() for _ in range(threads)]
        work = [pool.submit(each.run, loop, random.Random(seed + i), size) for i, each in enumerate(contexts)]
        for each in work:
            each.result()
    assert session.peak_bytes <= budget


def test_a_running_total_is_not_computed_from_all_of_its_parts_at_once() -> None:
    """What was recorded together is computed in parts that fit, though it could be one chain with ten inputs."""
    with xp.session(memory_budget=5 * ONE, run_ahead=False) as session:
        x = xp.asarray(np.eye(512))
        total = xp.zeros((512, 512))
        for i in range(10):
            total = total + x @ (x * float(i))
        assert float(xp.sum(total)) == 512 * 45
        assert session.peak_bytes <= 5 * ONE


def test_small_values_are_counted() -> None:
    with xp.session(memory_budget=50_000) as session:
        kept = [xp.from_numpy(np.zeros(100)) + 1.0 for _ in range(20)]
        assert float(xp.sum(kept[0])) == 100
        with pytest.raises(af.OutOfMemoryError):
            kept.extend([(xp.from_numpy(np.zeros(100)) + 1.0).wait() for _ in range(200)])
        assert session.peak_bytes <= 50_000
        del kept[1:]
        assert float(xp.sum(xp.from_numpy(np.ones(100)))) == 100


def test_a_failure_keeps_no_memory() -> None:
    with xp.session(memory_budget=3 * ONE, run_ahead=False):
        failed = xp.linalg.inv(xp.zeros((512, 512)))
        with pytest.raises(af.OpError, match="inv"):
            failed.wait()
        assert float(xp.sum(xp.from_numpy(np.ones((2, 512, 512))))) == 2 * 512 * 512


def test_a_chain_whose_result_the_system_has_no_memory_for_fails_and_the_session_goes_on() -> None:
    with xp.session():
        x = xp.asarray(np.ones(1))
        with pytest.raises(af.OpError, match=r"op 'multiply' .* failed with MemoryError") as caught:
            (xp.broadcast_to(x, (1 << 50,)) * 2.0 + 1.0).wait()
        assert isinstance(caught.value.__cause__, MemoryError)
        assert float(xp.sum(x + 1.0)) == 2.0


def test_run_ahead_waits_for_memory() -> None:
    with xp.session(memory_budget=8 * ONE) as session:
        x = xp.asarray(np.ones((512, 512)))
        sums = [xp.sum(xp.matmul(x, x + i)) for i in range(20)]
        assert [float(each) for each in sums] == [512.0**3 * (1 + i) for i in range(20)]
        assert session.peak_bytes <= 8 * ONE


def test_what_cannot_fit_is_an_error_and_the_session_goes_on() -> None:
    with xp.session(memory_budget=3 * ONE, run_ahead=False) as session:
        x = xp.asarray(np.ones((512, 512)))
        y = xp.concat([x, x, x])
        with pytest.raises(af.OutOfMemoryError, match=r"concat needs 6,291,456 bytes, and 2,097,152 of the budget"):
            y.wait()
        assert float(xp.sum(x)) == 512 * 512
        with pytest.raises(af.OutOfMemoryError, match="a new array needs"):
            xp.asarray(np.ones((1024, 1024)))
        assert session.peak_bytes <= 3 * ONE


def test_what_has_no_room_and_is_not_asked_for_is_left() -> None:
    with xp.session(memory_budget=8 * ONE, run_ahead=False):
        x = xp.asarray(np.ones((5, 512, 512)))
        y = x + 1.0
        with pytest.raises(af.OutOfMemoryError, match="a new array needs"):
            xp.asarray(np.ones((4, 512, 512)))
        assert not y._node.done
        total = xp.sum(x)
        del x
        assert float(total) == 5 * 512 * 512
        assert float(xp.sum(y)) == 2 * 5 * 512 * 512  # where there is room for it now


def test_what_another_session_reads_counts_though_no_array_shows_it() -> None:
    """Its values must all be there at once, and do not fit; the budget knows of no array that needs them."""
    size = 100_000
    with xp.session(memory_budget=20 * size, run_ahead=False) as session:
        x = xp.asarray(np.arange(1.0, 5.0))
        with xp.session(run_ahead=False):
            y = xp.zeros((size,))
        for i in range(4):
            y = y + xp.sort(xp.broadcast_to(x[i : i + 1], (size,)) * 2.0)
        session.wait_for_all()  # there is nothing that it knows of
        with pytest.raises(af.OutOfMemoryError):
            y.wait()
        assert session.peak_bytes <= 20 * size


def test_held_records_are_computed_to_let_go_of_their_inputs() -> None:
    with xp.session(memory_budget=4 * ONE, run_ahead=False):
        sums = []
        for i in range(10):
            sums.append(xp.sum(xp.asarray(np.full((512, 512), float(i)))))
        assert [float(each) for each in sums] == [512.0 * 512 * i for i in range(10)]


def test_the_steps_of_a_loop_let_go_of_what_they_have_read_though_they_are_computed_together(lazy: xp.Session) -> None:
    """Each step has two values of 8 MiB, and is a program of the service: sixteen of them would hold 256 MiB."""
    x = y = xp.asarray(np.full((1 << 20,), 0.5))
    for k in range(16):
        for _ in range(4):
            x, y = xp.sqrt(xp.abs(y)) * 0.5 + float(k), xp.exp(x * -0.5) - y
    found = xp.sum(x + y)
    assert np.isfinite(float(found))
    assert lazy.service is not None
    (device,) = lazy.service.devices.values()
    assert device.memory.peak_bytes + lazy.peak_bytes <= 24 * (8 << 20)


def test_what_nothing_else_reads_is_written_over() -> None:
    with xp.session(memory_budget=2 * ONE + 100, run_ahead=False) as session:
        x = xp.asarray(np.ones((512, 512)))
        y = (xp.sqrt(x) + 1.0) * 2.0 - x
        assert float(xp.sum(y)) == 3.0 * 512 * 512
        assert session.peak_bytes <= 2 * ONE + 100


def test_what_is_computed_has_its_room_though_it_has_not_taken_it_yet() -> None:
    entered, leave = threading.Event(), threading.Event()

    def block(value: np.ndarray) -> np.ndarray:
        entered.set()
        assert leave.wait(60)
        return value + 1.0

    with xp.session(memory_budget=2 * ONE) as session:
        x = xp.asarray(np.ones((512, 512)))
        y = record(Primitive("block", block), (x._node,), x.shape, x.dtype)
        other = threading.Thread(target=y.wait)
        other.start()
        assert entered.wait(60)
        found: list[Exception] = []

        def make() -> None:
            try:
                session.buffer((512, 512), np.dtype(np.float64))
            except af.OutOfMemoryError as error:
                found.append(error)

        making = threading.Thread(target=make)
        making.start()
        making.join(0.05)  # until it waits, or has taken it
        leave.set()
        other.join()
        making.join()
        assert len(found) == 1
        assert session.peak_bytes <= 2 * ONE


@pytest.mark.parametrize("budget", [None, 8 * ONE])
def test_others_compute_the_same_while_a_thread_computes_what_another_session_has(
    budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with xp.session(run_ahead=False) as other, xp.session(memory_budget=budget, run_ahead=False) as session:
        force = other.force

        def meanwhile(nodes: Any) -> None:
            force(nodes)
            computing = threading.Thread(target=y.wait)
            computing.start()
            computing.join()

        x = xp.asarray(np.ones(5))
        x = record(Primitive("one more", lambda value: value + 1.0), (x._node,), x.shape, x.dtype, (), other)
        y = record(Primitive("twice", lambda value: value * 2.0), (x._node,), x.shape, x.dtype, (), session)
        monkeypatch.setattr(other, "force", meanwhile)
        asking = threading.Thread(target=y.wait, daemon=True)
        asking.start()
        asking.join(60)
        assert (asking.is_alive(), y.tolist()) == (False, [4.0] * 5)


def test_the_budget_must_be_positive() -> None:
    with pytest.raises(af.GraphError, match="memory_budget must be positive"), xp.session(memory_budget=0):
        pass
