"""Kernels in pieces: the same bits however many threads take part, and what NumPy gives for the whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow import ops
from actorflow.devices import team as teams
from actorflow.devices.team import Team
from actorflow.ops import Operation
from actorflow.ops.cpu import buffers, conv, fills, linalg, parallel, pool
from tests.operations import Row, Sample, cases, samples
from tests.operations.shaping import parts
from tests.ops.conftest import Compute
from tests.ops.test_values import agree, wide
from tests.support.effort import FULL
from tests.support.layouts import laid_out

#: What is cut at which size: sizes at which small arrays are cut, too.
SMALL = {
    buffers: {"BLOCK": 16},
    conv: {
        "_PIECE_WINDOWS": 4,
        "_SCATTERED_WINDOWS": 3,
        "_SUMMED_PIECES": 2,
        "_IMAGE_BYTES": 4096,
    },
    fills: {"BLOCK": 16},
    linalg: {"_SUMMED": 24},
    parallel: {
        "_PIECE_ELEMENTS": 40,
        "_PIECE_PRODUCTS": 60,
        "_PIECE_ROWS": 3,
        "_PIECE_DEPTH": 2,
        "_DEEP": 1,
        "_ROWS": 2,
        "BLOCK": 16,
    },
    pool: {"_PIECE_BYTES": 256, "_LEAST_BYTES": 256, "_IMAGE_BYTES": 2048},
    teams: {"WORTH_NS": 0},
}


@contextmanager
def cut_small() -> Iterator[None]:
    with ExitStack() as stack:
        for module, sizes in SMALL.items():
            stack.enter_context(mock.patch.multiple(module, **sizes))
        yield


def with_help(helpers: int, function: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    """Call something on the thread of a lane that so many others help."""
    crew = teams.team
    results: list[list[np.ndarray]] = []
    errors: list[BaseException] = []

    def lane() -> None:
        member = crew.join()
        member.at_work = True
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)
        crew.leave(member)

    judged = mock.patch.multiple(crew, _longest_pause=0, _worths={})
    with judged, mock.patch.object(teams, "cores", return_value=helpers + 1):
        thread = threading.Thread(target=lane)
        thread.start()
        thread.join()
    for error in errors:
        raise error
    return results[0]


def check_bits(compute: Compute, operation: Operation, *inputs: Any) -> list[np.ndarray]:
    """The kernel's results in pieces, which do not depend on who computes them."""
    with cut_small():
        alone = compute(operation, *inputs)
        for helpers in (1, 3) if FULL else (2,):
            for found, expected in zip(with_help(helpers, lambda: compute(operation, *inputs)), alone, strict=True):
                assert found.tobytes() == expected.tobytes()
    return alone


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f")


#: Samples that are cut into no more than a few hundred pieces.
FEW = [(row, each) for row, each in samples() if sum(x.size for x in each.drawn()) <= 3_000]


@pytest.mark.together(("row", "sample"), cases(FEW), at_once=40)
def test_every_kernel(compute: Compute, row: Row, sample: Sample) -> None:
    arrays = sample.inputs()
    for layout in ("C", "F"):
        found = check_bits(compute, sample.operation, *(laid_out(x, layout) for x in arrays))
    if row.numpy is not None:
        with np.errstate(all="ignore"):
            expected = parts(row.numpy(*(map(wide, arrays) if row.widened else arrays), **sample.parameters))
        agree(found, expected, row, str(sample))


def test_small_work_is_not_spread(compute: Compute) -> None:
    """Nobody is woken for less than a thread takes to wake."""
    x = numbers(0, 50, 40)
    with cut_small(), mock.patch.object(teams, "WORTH_NS", 1e9), mock.patch.object(Team, "_work_together") as together:
        np.testing.assert_array_equal(with_help(3, lambda: compute(ops.Relu(), x))[0], np.maximum(x, 0))
    together.assert_not_called()


@given(st.integers(0, 100), st.integers(0, 12), st.integers(1, 9))
def test_even_cuts(count: int, pieces: int, unit: int) -> None:
    found = parallel.even_cuts(count, pieces, unit)
    assert [i for cut in found for i in range(cut.start, cut.stop)] == [*range(count)]
    assert all(cut.start % unit == 0 for cut in found)
    assert len(found) <= max(1, pieces)
    lengths = [cut.stop - cut.start for cut in found[:-1]]
    assert not lengths or max(lengths) - min(lengths) <= unit


@given(st.integers(0, 1 << 20), st.integers(0, 3), st.integers(0, 130), st.sampled_from(["float32", "float64"]))
def test_random_numbers_are_those_of_one_stream(seed: int, frame: int, size: int, dtype: str) -> None:
    def drawn() -> list[np.ndarray]:
        found = np.empty(size, dtype)
        fills.spread_uniform(seed, frame, size, found.dtype, found.__setitem__)
        return [found]

    stream = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, frame, 0]))
    expected = stream.random(size, np.dtype(dtype).type)
    with cut_small():
        np.testing.assert_array_equal(drawn()[0], expected)
        np.testing.assert_array_equal(with_help(2, drawn)[0], expected)
