"""Compiled kernels beside NumPy's: the same arrays, and the same bits."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from actorflow.devices.cpu import CPU
from actorflow.ops import Operation
from actorflow.ops.registry import Kernel, load_library, lookup
from actorflow.spec import TensorSpec

if find_spec("numba") is None:
    collect_ignore_glob = ["test_*.py"]

Agree = Callable[..., None]


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels are those of the CPU, as everywhere but in tests."""
    monkeypatch.setattr(CPU, "libraries", ("numba", "numpy"))


@pytest.fixture(scope="session")
def agree() -> Agree:
    """``agree(operation, *arrays)``: NumPy's kernel and the compiled one give the same bits, and the latter runs."""
    load_library("cpu", "numpy")
    load_library("cpu", "numba")

    def check(operation: Operation, *arrays: Any, signs_of_zeros: bool = True) -> None:
        inputs = [np.asarray(array) for array in arrays]
        specs = operation.infer(*(TensorSpec(array.shape, array.dtype) for array in inputs))
        with np.errstate(all="ignore"):
            expected = _outputs(specs)
            _kernel(operation, "numpy", specs[0].dtype).function(operation, inputs, expected)
            found, attempt = _outputs(specs), _kernel(operation, "numba", specs[0].dtype).function.__wrapped__
            if not attempt(operation, inputs, found):
                from actorflow.ops.numba import compiled

                compiled()
                found = _outputs(specs)
                assert attempt(operation, inputs, found), "left to NumPy's kernel"
        for one, other in zip(found, expected, strict=True):
            assert_same_bits(one, other, signs_of_zeros)

    return check


def _kernel(operation: Operation, library: str, dtype: np.dtype[Any]) -> Kernel:
    found = lookup(operation, "cpu", library, dtype)
    assert found is not None
    return found


def _outputs(specs: tuple[TensorSpec, ...]) -> list[np.ndarray]:
    """Buffers of which whatever is not written is NaN, or odd."""
    made = [np.empty(spec.shape, spec.dtype) for spec in specs]
    for output in made:
        output.reshape(-1).view(np.uint8)[...] = 0xFF
    return made


def assert_same_bits(found: np.ndarray, expected: np.ndarray, signs_of_zeros: bool = True) -> None:
    """Which of all NaNs one is does not count."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)
    if found.dtype.kind == "f" and signs_of_zeros:
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))
