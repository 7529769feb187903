"""Elementwise operations in one CUDA kernel, run on the host, against the kernels of each by itself and the CPU's."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import actorflow.ops.cpu  # noqa: F401  registers the kernels
from actorflow import ops
from actorflow.ops import Fused, FusedStep
from actorflow.ops.fused import _KINDS
from actorflow.spec import TensorSpec
from tests.ops.test_fused import SHAPES, SPECIAL, at_once, chains

# Each chain is compiled: some hundred of them in `make test-full`, which tries all dtypes, too.
IS_FULL = settings.default.max_examples > 150
few = settings(
    deadline=None,
    max_examples=100 if IS_FULL else 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def one_by_one(compute, operation: Fused, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The steps' own kernels of the device."""
    values = list(inputs)
    for step in operation.steps:
        values.append(compute(step.operation, *[values[i] for i in step.arguments])[0])
    return [values[len(inputs) + i] for i in operation.results]


def chain(*steps: tuple[ops.Operation, tuple[int, ...]]) -> Fused:
    return Fused(tuple([FusedStep(*step) for step in steps]), tuple(range(len(steps))))


def number(value: float, dtype: str) -> tuple[ops.Operation, tuple[int, ...]]:
    return ops.Fill(value, TensorSpec.of((), dtype)), ()


#: By dtypes of the inputs: together they have every operation that can be a step.
CHAINS = {
    ("float16", "float32", "float64"): chain(
        *((operation, (0,)) for operation in (ops.Absolute(), ops.Ceil(), ops.Clip(-1.0, 0.5), ops.Clip(high=0.5))),
        *((operation, (0,)) for operation in (ops.Exp(), ops.Floor(), ops.Log(), ops.Negative(), ops.Reciprocal())),
        *((operation, (0,)) for operation in (ops.Relu(), ops.Round(), ops.Scale(0.3), ops.Sigmoid(), ops.Sign())),
        *((operation, (0,)) for operation in (ops.Sqrt(), ops.Square(), ops.Tanh())),
        *((operation, (0, 1)) for operation in (ops.Divide(), ops.Equal(), ops.Greater(), ops.GreaterEqual())),
        *((operation, (0, 1)) for operation in (ops.Less(), ops.LessEqual(), ops.Maximum(), ops.Minimum())),
        *((operation, (0, 1)) for operation in (ops.Multiply(), ops.NotEqual(), ops.Power(), ops.ReluDown())),
        *((operation, (0, 1)) for operation in (ops.SigmoidDown(), ops.Subtract(), ops.Sum(), ops.TanhDown())),
        (ops.Sum(), (0, 1, 0)),
    ),
    ("bool",): chain(
        (ops.LogicalNot(), (0,)),
        *((operation, (0, 1)) for operation in (ops.LogicalAnd(), ops.LogicalOr(), ops.LogicalXor(), ops.Equal())),
        (ops.Where(), (2, 0, 1)),
        (ops.Cast(np.dtype(np.float32)), (0,)),
        (ops.Cast(np.dtype(np.int8)), (3,)),
    ),
    ("int8", "uint64", "uint8", "int32", "int64"): chain(
        *((operation, (0,)) for operation in (ops.Absolute(), ops.Clip(1, 5), ops.Sign(), ops.Square())),
        *((operation, (0, 1)) for operation in (ops.Maximum(), ops.Multiply(), ops.Subtract(), ops.Sum(), ops.Less())),
        (ops.Where(), (10, 0, 1)),
        (ops.Cast(np.dtype(np.float64)), (0,)),
        (ops.Cast(np.dtype(np.int16)), (1,)),
    ),
}
CASES = [(dtype, operation) for dtypes, operation in CHAINS.items() for dtype in dtypes[: None if IS_FULL else 2]]


def test_every_step_is_tried() -> None:
    assert {type(step.operation) for operation in CHAINS.values() for step in operation.steps} | {ops.Fill} == {*_KINDS}


@pytest.mark.parametrize(("dtype", "operation"), CASES, ids=[dtype for dtype, _ in CASES])
def test_steps_are_computed_as_by_themselves_to_the_bit(compute_cuda, dtype, operation) -> None:
    special = SPECIAL if dtype.startswith("f") else np.array([-7, -1, 0, 1, 5, 100])
    if dtype.startswith("u"):
        special = abs(special)
    with np.errstate(over="ignore"):
        a, b = (x.astype(dtype) for x in np.meshgrid(special, special))
    found = compute_cuda(operation, a, b)
    for step, mine, its in zip(operation.steps, found, one_by_one(compute_cuda, operation, [a, b]), strict=True):
        np.testing.assert_array_equal(mine, its, err_msg=str(step), strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_are_those_of_the_cpu(compute_cuda, dtype) -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 5, 300)).astype(dtype)
    operation = next(operation for dtypes, operation in CHAINS.items() if dtype in dtypes)
    smooth = (ops.Exp, ops.Log, ops.Power, ops.Sigmoid, ops.Tanh, ops.SigmoidDown, ops.TanhDown)
    for step, mine, its in zip(operation.steps, compute_cuda(operation, a, b), at_once(operation, [a, b]), strict=True):
        if isinstance(step.operation, smooth):
            np.testing.assert_allclose(mine, its, rtol=8 * np.finfo(dtype).eps, err_msg=str(step))
        else:
            np.testing.assert_array_equal(mine, its, err_msg=str(step), strict=True)


@few
@given(st.data(), st.sampled_from(SHAPES))
def test_chains_are_what_their_steps_are(compute_cuda, data, shapes) -> None:
    types = [TensorSpec(shape, np.dtype(np.float64)) for shape in shapes]
    operation = data.draw(chains((*types, TensorSpec((), np.dtype(np.bool_)))))
    random = np.random.default_rng(0)
    inputs = [*(np.asarray(random.choice(SPECIAL, shape)) for shape in shapes), np.asarray(True)]
    expected = one_by_one(compute_cuda, operation, inputs)
    for mine, its in zip(compute_cuda(operation, *inputs), expected, strict=True):
        np.testing.assert_array_equal(mine, its, strict=True)


def test_other_numbers_need_no_other_kernel(emulated, compute_cuda) -> None:
    x = np.arange(6, dtype=np.float32)
    made = len(emulated.emulator.elementwise)
    for factor in (0.5, 2.0, 3.0):
        operation = Fused(
            (FusedStep(ops.Scale(factor), (0,)), FusedStep(*number(factor, "float32")), FusedStep(ops.Sum(), (1, 2))),
            (2,),
        )
        np.testing.assert_array_equal(compute_cuda(operation, x)[0], x * np.float32(factor) + np.float32(factor))
    assert len(emulated.emulator.elementwise) == made + 1
