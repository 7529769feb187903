"""The library's kernels, by themselves and in graphs. Where it is not found, the tests that compute are skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from actorflow.devices.cpu import CPU
from actorflow.ops import Operation
from actorflow.ops.registry import load_library, lookup
from actorflow.spec import TensorSpec
from tests.support.onednn import why_not

Compute = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="session")
def loaded() -> None:
    """The library is there."""
    problem = why_not()
    if problem:
        pytest.skip(problem)
    load_library("cpu", "numpy")
    load_library("cpu", "onednn")


@pytest.fixture
def by_default(loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are those of the CPU, as everywhere but in tests."""
    monkeypatch.setattr(CPU, "libraries", ("onednn", "numpy"))


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kinds of the operations that were left to other libraries."""
    from actorflow.ops.onednn import steps, weighted

    found: list[str] = []
    others = steps.others

    def noted(operation: Operation, dtype: np.dtype[Any]) -> Any:
        found.append(operation.kind)
        return others(operation, dtype)

    for module in (steps, weighted):
        monkeypatch.setattr(module, "others", noted)
    return found


@pytest.fixture
def compute(by_default: None, monkeypatch: pytest.MonkeyPatch) -> Compute:
    """``compute(operation, *arrays)``: outputs of the library's kernel, in buffers that were full of odd bits.

    It computes what others are faster at, too, and sums in as many parts as there may be.
    """
    from actorflow.ops.onednn import conv

    monkeypatch.setattr(conv, "_LEAST_CHANNELS", 0)
    monkeypatch.setattr(conv, "WORTH_NS", 1)

    def run(operation: Operation, *arrays: Any) -> list[np.ndarray]:
        inputs = [np.asarray(array).view() for array in arrays]
        for array in inputs:
            array.flags.writeable = False
        specs: Sequence[TensorSpec] = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs]) or ()
        found = lookup(operation, "cpu", "onednn", inputs[0].dtype)
        assert found is not None
        outputs = [np.empty(spec.shape, spec.dtype) for spec in specs]
        for output in outputs:
            output.reshape(-1).view(np.uint8)[...] = 0xFF
        found.function(operation, inputs, outputs)
        return outputs

    return run
