"""Elementwise operations in one CUDA kernel, run on the host, against the kernels of each by itself and the CPU's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import actorflow.ops.cpu  # noqa: F401  registers the kernels
from actorflow import ops
from actorflow.ops import Fused, Step
from actorflow.ops.nn.activation import GeluDown
from actorflow.spec import TensorSpec
from tests.operations.elementwise import WITH_PARAMETERS
from tests.operations.elementwise import rows as own_rows
from tests.ops.test_fused import (
    DTYPES,
    REDUCTIONS,
    SHAPES,
    SPECIAL,
    at_once,
    chains,
    check_reduced,
    reduced_chains,
    with_reductions,
)

# Each chain is compiled: some hundred of them in `make test-exhaustive`, which tries all dtypes, too.
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
        with np.errstate(all="ignore"):  # what the emulator casts
            values.append(compute(step.operation, *[values[i] for i in step.inputs])[0])
    return [values[len(inputs) + i] for i in operation.results]


def chain(*steps: tuple[ops.Operation, tuple[int, ...]]) -> Fused:
    return Fused(tuple([Step(*step) for step in steps]), tuple(range(len(steps))))


def number(value: float, dtype: str) -> tuple[ops.Operation, tuple[int, ...]]:
    return ops.Fill(value, TensorSpec.of((), dtype)), ()


def steps_of(kinds: str) -> list[tuple[ops.Operation, tuple[int, ...]]]:
    """Each row whose formula is right for dtypes of these kinds."""
    own = [kind for kind in own_rows() if set(kinds) <= set(kind.formula_kinds) and not kind.conditions]
    return [(kind(), tuple(range(len(kind.arguments)))) for kind in own if "Shift" not in kind.__name__]


#: By dtypes of the inputs: together they have every operation that can be a step.
CHAINS = {
    ("float16", "float32", "float64"): chain(
        *steps_of("f"),
        *((operation, (0,)) for operation in WITH_PARAMETERS),
        (ops.Sum(), (0, 1)),
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
        *steps_of("iu"),
        (ops.Sum(), (0, 1)),
        (ops.Less(), (0, 1)),
        (ops.Where(), (3 + len(steps_of("iu")), 0, 1)),
        (ops.Cast(np.dtype(np.float64)), (0,)),
        (ops.Cast(np.dtype(np.int16)), (1,)),
    ),
}
CASES = [(dtype, operation) for dtypes, operation in CHAINS.items() for dtype in dtypes[: None if IS_FULL else 2]]


def test_every_step_is_tried() -> None:
    tried = {type(step.operation) for operation in CHAINS.values() for step in operation.steps}
    shifts = {ops.BitwiseLeftShift, ops.BitwiseRightShift}  # by as many bits as there are, they are not defined
    assert tried >= {kind for kind in own_rows() if set(kind.formula_kinds) & set("biuf")} - shifts


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
    exact = (ops.Ceil, ops.Divide, ops.Floor, ops.Reciprocal, ops.Round, ops.Scale, ops.Sqrt, ops.Sum, ops.Trunc)
    for step, mine, its in zip(operation.steps, compute_cuda(operation, a, b), at_once(operation, [a, b]), strict=True):
        if isinstance(step.operation, exact) or "W(" not in step.operation.formula:
            np.testing.assert_array_equal(mine, its, err_msg=str(step), strict=True)
        else:
            eps = np.finfo(dtype).eps
            cancels = isinstance(step.operation, ops.GeluTanh | GeluDown)  # 1 + tanh, or the two terms
            atol = eps if cancels else 0
            np.testing.assert_allclose(mine, its, rtol=8 * eps, atol=atol, err_msg=str(step))


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
            (Step(ops.Scale(factor), (0,)), Step(*number(factor, "float32")), Step(ops.Sum(), (1, 2))),
            (2,),
        )
        np.testing.assert_array_equal(compute_cuda(operation, x)[0], x * np.float32(factor) + np.float32(factor))
    assert len(emulated.emulator.elementwise) == made + 1


# -- reductions of what they compute --------------------------------------------------------------------------------

#: Shapes and axes, and in how many launches they are reduced.
COLUMNS: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
    ((), (), 1),
    ((1, 1), (0,), 1),
    ((7,), (0,), 1),
    ((4100,), (0,), 2),
    ((2, 3), (), 1),
    ((9, 70), (1,), 1),
    ((2, 4100), (1,), 2),
    ((40, 50), (0,), 1),
    ((1030, 3), (0,), 2),
    ((3, 40, 6), (1,), 1),
    ((4, 600, 2), (0, 1), 2),
    ((2, 3, 5), (1, 2), 1),
    ((0, 3), (0,), 1),
    ((3, 0, 2), (1,), 1),
    ((0, 3), (1,), 0),
]


def reduced_case(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> tuple[Fused, list[np.ndarray]]:
    """A chain of three inputs that broadcast, and every reduction of the first one and of what the chain gives."""
    random = np.random.default_rng(0)
    shapes = (shape, shape[-1:], tuple([1 if i % 2 else n for i, n in enumerate(shape)]), ())
    inputs = [np.asarray(random.integers(0, 3, each)).astype(dtype) for each in shapes]
    specs = tuple([TensorSpec(each.shape, each.dtype) for each in inputs])
    steps = (Step(ops.Sum(), (0, 1, 2, 3)), Step(ops.Greater(), (4, 0)), Step(ops.Where(), (5, 4, 1)))
    return with_reductions(Fused(steps, (0, 2)), specs, axes), inputs


@pytest.mark.parametrize("dtype", DTYPES[:-1] if IS_FULL else ("float16", "int8"))
@pytest.mark.parametrize(("shape", "axes", "count"), COLUMNS)
def test_reductions_of_columns(compute_cuda, launches, shape, axes, count, dtype) -> None:
    operation, inputs = reduced_case(shape, axes, dtype)
    check_reduced(operation, inputs, compute_cuda(operation, *inputs))
    assert launches == ["actorflow_fused_reduction"] * count


@pytest.mark.together("axis", [(0, 1), (0,), (1,)])
@pytest.mark.together("dtype", ["float16", "float64"])
def test_what_is_not_a_number_or_infinite_is_reduced_as_by_the_cpu(compute_cuda, axis, dtype) -> None:
    random = np.random.default_rng(0)
    x = random.choice([np.nan, 1.0, -1.0, 2.0, np.inf, -np.inf], (70, 9), p=[0.02, 0.3, 0.2, 0.3, 0.09, 0.09])
    x[:, 3] = -np.inf
    x[:, 4] = np.inf
    x[7] = 2.0
    kinds = [ops.ReduceMax, ops.ReduceMin, ops.ReduceSum, ops.ReduceProd, ops.ReduceMean, ops.CountNonzero]
    steps = [Step(ops.Negative(), (0,)), *[Step(kind(axis), (1,)) for kind in kinds]]
    operation, inputs = Fused(tuple(steps), tuple(range(1, 7))), [x.astype(dtype)]
    check_reduced(operation, inputs, compute_cuda(operation, *inputs))


@few
@given(reduced_chains(DTYPES))
def test_chains_with_reductions_are_numpys(compute_cuda, case) -> None:
    operation, inputs = case
    check_reduced(operation, inputs, compute_cuda(operation, *inputs))


@pytest.mark.parametrize(("shape", "axes", "_count"), COLUMNS[3:10])
def test_blocks_take_several_tiles_where_there_are_many(emulated, compute_cuda, shape, axes, _count) -> None:
    operation, inputs = reduced_case(shape, axes, "float32")
    with mock.patch.object(emulated.modules["fused"], "_MOST_BLOCKS", 3):
        check_reduced(operation, inputs, compute_cuda(operation, *inputs))


@pytest.mark.usefixtures("wide_indices")
@pytest.mark.parametrize(("shape", "axes", "count"), COLUMNS[3:10])
def test_large_arrays_have_wide_indices(emulated, compute_cuda, shape, axes, count) -> None:
    operation, inputs = reduced_case(shape, axes, "float32")
    fused = emulated.modules["fused"]
    with mock.patch.object(fused, "_compiled_reduction", wraps=fused._compiled_reduction) as compiled:
        check_reduced(operation, inputs, compute_cuda(operation, *inputs))
    assert all(is_wide for (_, is_wide), _ in compiled.call_args_list)
    assert len(compiled.call_args_list) == count


def test_an_outer_product_that_is_larger_than_its_factors_has_wide_indices(emulated) -> None:
    fused = emulated.modules["fused"]
    operation = Fused((Step(ops.Multiply(), (0, 1)), Step(ops.ReduceSum((1,)), (2,))), (1,))
    a, b = (np.broadcast_to(np.float32(0), shape) for shape in ((1 << 16, 1), (1, 1 << 15)))
    with mock.patch.object(fused, "_compiled_reduction") as compiled:
        fused.reduce_chain(operation, [a, b], [np.empty(1 << 16, np.float32)])
    (_, is_wide), _ = compiled.call_args
    assert is_wide
    ((grid,), (block,), given), _ = compiled.return_value.call_args
    assert (grid, block) == (1 << 16, 256)
    assert all(type(number) is np.int64 for number in given[-6:])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "axes"), [((9, 70), (1,)), ((40, 50), (0,)), ((3, 40, 6), (1,))])
def test_reductions_in_one_launch_are_those_of_their_own_kernels_to_the_bit(compute_cuda, shape, axes, dtype) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype(dtype)
    kinds = [kind for kind in REDUCTIONS if kind not in (ops.ReduceAll, ops.ReduceAny)]
    steps = [Step(ops.Multiply(), (0, 1)), *[Step(kind(axes), (2,)) for kind in kinds]]
    product, *found = compute_cuda(Fused(tuple(steps), tuple(range(len(steps)))), x, y)
    for kind, mine in zip(kinds, found, strict=True):
        np.testing.assert_array_equal(mine, compute_cuda(kind(axes), product)[0], err_msg=kind.__name__, strict=True)


def test_other_numbers_and_sizes_need_no_other_kernel_for_a_reduction(emulated, compute_cuda) -> None:
    made: Any = emulated.modules["fused"]._compiled_reduction
    misses = []
    for factor, rows in ((0.5, 5), (2.0, 6), (3.0, 40)):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        steps = (
            Step(ops.Scale(factor), (0,)),
            Step(*number(factor, "float32")),
            Step(ops.Sum(), (1, 2)),
            Step(ops.ReduceMean((0,)), (3,)),
        )
        (found,) = compute_cuda(Fused(steps, (3,)), x)
        np.testing.assert_allclose(found, (x * factor + factor).mean(0), rtol=1e-6)
        misses.append(made.cache_info().misses)
    assert misses[0] == misses[-1]
