"""Recurrent networks of the library, beside NumPy's kernels: values, parts of sequences, special numbers, weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from tests.operations.nn.recurrent import shapes_of
from tests.support.kernels import compute_cpu

OPERATIONS = [ops.LSTM(saves=False), ops.GRU(True, saves=False), ops.GRU(False, saves=False), ops.RNN()]
#: Steps, rows, features, width.
SIZES = [(3, 2, 3, 2), (1, 2, 3, 2), (5, 1, 3, 6), (7, 5, 33, 17), (20, 1, 8, 16), (4, 3, 64, 32)]


def _drawn(operation: Any, sizes: tuple[int, ...], scale: float = 0.5) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [np.asarray(scale * random.standard_normal(shape), np.float32) for shape in shapes_of(operation, *sizes)]


def _numpys(operation: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return compute_cpu(operation, *arrays)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_states(compute: Any, left: list[str], operation: Any) -> None:
    for sizes in SIZES:
        arrays = _drawn(operation, sizes)
        turned = [np.asfortranarray(each) for each in arrays]
        for given in (arrays, arrays, turned):  # the second time with weights that it has seen
            for mine, other in zip(compute(operation, *given), _numpys(operation, *arrays), strict=True):
                np.testing.assert_allclose(mine, other, rtol=2e-5, atol=2e-6, err_msg=str(sizes))
    assert left == []


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_long_sequences_are_computed_in_parts(
    compute: Any, left: list[str], operation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorflow.ops.onednn import recurrent

    for sizes in ((9, 2, 5, 8), (8, 1, 5, 8)):
        arrays = _drawn(operation, sizes)
        whole = compute(operation, *arrays)
        monkeypatch.setattr(recurrent, "_MOST_ELEMENTS", 40)  # two steps of the first, and five of the second
        parts = compute(replace(operation), *arrays)
        monkeypatch.undo()
        for mine, other in zip(parts, whole, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    assert left == []


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_special_numbers_are_those_of_numpy(compute: Any, operation: Any) -> None:
    for special in (np.nan, np.inf, -np.inf, 3e38, -0.0):
        for position in range(2 + (operation.kind == "LSTM")):  # inputs and states
            for width in (2, 16):
                arrays = _drawn(operation, (3, 2, 3, width))
                arrays[position][..., 0, 1] = special
                for mine, other in zip(compute(operation, *arrays), _numpys(operation, *arrays), strict=True):
                    np.testing.assert_allclose(mine, other, rtol=2e-5, atol=2e-6, err_msg=f"{special} at {position}")


def test_what_others_compute(compute: Any, left: list[str]) -> None:
    for operation in OPERATIONS:
        for sizes in ((0, 2, 3, 2), (3, 0, 3, 2)):
            arrays = _drawn(operation, sizes)
            for mine, other in zip(compute(operation, *arrays), _numpys(operation, *arrays), strict=True):
                np.testing.assert_array_equal(mine, other)
    assert left == [operation.kind for operation in OPERATIONS for _ in range(2)]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_training_computes_with_the_weights_that_it_has(by_default: None, kind: str) -> None:
    """Runs without gradients take the library's kernel, with weights as they are now."""
    layer: Any = getattr(af.nn, kind)(4, seed=1)
    value = np.random.default_rng(0).standard_normal((6, 2, 5)).astype("f")
    with af.Graph("g") as graph:
        x = graph.blob("x", ("time", 2, 5))
        y, *_ = layer(x)
        train = af.nn.SGD(0.1).minimize(ops.sum(ops.square(y)))
        (step,) = [each for each in graph.compile([y], axes={"time": 6}).ops if each.operation.kind == kind]
        assert step.kernel is not None
        assert step.kernel.key.library == "onednn"
        for _ in range(3):
            found = [graph.run_sync({x: value[:length]}, fetch=[y])[y] for length in (6, 6, 6, 3)]
            weights = [np.asarray(each.value) for each in layer.variables]
            first = [np.zeros((2, 4), "f")] * (1 + (kind == "LSTM"))
            expected, *_ = _numpys(getattr(ops, kind)(), value, *first, *weights)
            for each in found:
                np.testing.assert_allclose(each, expected[: len(each)], rtol=2e-5, atol=2e-6)
            graph.run_sync({x: value}, fetch=[train])
