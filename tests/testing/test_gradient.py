"""The gradient checker must catch what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.testing import check_gradient


@dataclass(frozen=True)
class Squared(ops.Operation):
    """``y = x * x``, with a gradient that is off by a factor."""

    factor: float

    def infer(self, *inputs):
        return inputs

    def gradient(self, op, grads, wanted):
        return [ops.scale(ops.multiply(grads[0], op.inputs[0]), self.factor)]


@ops.kernel(Squared)
def _square(operation, inputs, outputs) -> None:
    np.multiply(inputs[0], inputs[0], out=outputs[0])


def test_a_right_gradient_passes() -> None:
    check_gradient(Squared(2.0), np.array([1.0, -2.0, 0.0]))


def test_a_wrong_gradient_fails_and_the_worst_element_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"input 0 \(x\) is wrong at 2 of 3 elements; worst at \(1,\): expected"):
        check_gradient(Squared(2.1), np.array([1.0, -2.0, 0.0]))


def test_a_gradient_that_is_not_a_number_fails() -> None:
    with pytest.raises(AssertionError, match="got nan"):
        check_gradient(Squared(float("nan")), np.array([1.0]))


def test_float32_is_checked_as_float64() -> None:
    check_gradient(ops.Tanh(), np.array([0.3], np.float32))


def test_wrt_chooses_the_inputs() -> None:
    check_gradient(ops.Multiply(), np.array([0.3]), np.array([0.5]), wrt=[1])


def test_there_must_be_something_to_differentiate() -> None:
    with pytest.raises(af.GraphError, match="no floating input to differentiate by"):
        check_gradient(ops.Copy(), np.array([1, 2]))
    with pytest.raises(af.GraphError, match="no floating output to differentiate"):
        check_gradient(ops.Copy(), np.array([1, 2]), wrt=[0])
