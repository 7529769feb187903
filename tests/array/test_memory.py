"""The memory budget: run-ahead obeys it, and what cannot fit is an error."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp

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
        assert session.memory.pool.peak_bytes <= budget


def test_run_ahead_waits_for_memory() -> None:
    with xp.session(memory_budget=8 * ONE) as session:
        x = xp.asarray(np.ones((512, 512)))
        sums = [xp.sum(xp.matmul(x, x + i)) for i in range(20)]
        assert [float(each) for each in sums] == [512.0**3 * (1 + i) for i in range(20)]
        assert session.memory.pool.peak_bytes <= 8 * ONE


def test_what_cannot_fit_is_an_error_and_the_session_goes_on() -> None:
    with xp.session(memory_budget=3 * ONE, run_ahead=False) as session:
        x = xp.asarray(np.ones((512, 512)))
        y = xp.concat([x, x, x])
        with pytest.raises(af.OutOfMemoryError, match=r"concat needs 6,291,456 bytes, and 2,097,152 of the budget"):
            y.wait()
        assert float(xp.sum(x)) == 512 * 512
        with pytest.raises(af.OutOfMemoryError, match="a new array needs"):
            xp.asarray(np.ones((1024, 1024)))
        assert session.memory.pool.peak_bytes <= 3 * ONE


def test_held_records_are_computed_to_let_go_of_their_inputs() -> None:
    with xp.session(memory_budget=4 * ONE, run_ahead=False):
        sums = []
        for i in range(10):
            sums.append(xp.sum(xp.asarray(np.full((512, 512), float(i)))))
        assert [float(each) for each in sums] == [512.0 * 512 * i for i in range(10)]


def test_freed_buffers_are_used_again() -> None:
    with xp.session(run_ahead=False) as session:
        x = xp.asarray(np.ones((512, 512)))
        for _ in range(20):
            x = x * 1.0 + 0.0
            x = x @ xp.asarray(np.eye(512))
            x.wait()
        # x, the matrix, and the product's.
        assert session.memory.pool.peak_bytes <= 4 * ONE


def test_the_budget_must_be_positive() -> None:
    with pytest.raises(af.GraphError, match="memory_budget must be positive"), xp.session(memory_budget=0):
        pass
