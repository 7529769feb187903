"""Elementwise operations in one pass, against the same ones by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis.extra import numpy as hnp

import actorflow as af
import actorflow.ops.cpu
from actorflow import ops
from actorflow.ops import Fused, Step, find_kernel
from actorflow.ops.cpu.buffers import BLOCK
from actorflow.ops.fused import _REDUCED_KINDS, columns_of, may_fuse, may_reduce
from actorflow.ops.shaping import Reduction
from actorflow.spec import TensorSpec
from tests.operations.elementwise import WITH_PARAMETERS, is_of_the_host, rows
from tests.support.effort import slow

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e300, 5e-324, 0.5])
#: By the number of inputs.
STEPS: dict[int, list[ops.Operation]] = {1: [*WITH_PARAMETERS], 2: [ops.Sum()], 3: [ops.Sum()]}
for _kind in rows():
    # The sign of a NaN that a function of NumPy makes depends on how many elements it takes at once.
    if not is_of_the_host(_kind) and _kind.function_name != "copysign":
        STEPS[len(_kind.arguments)].append(_kind())
STEPS[1] += [ops.Cast(np.dtype(name)) for name in ("float32", "float64", "bool")]
NUMBERS = tuple(ops.Fill(value, TensorSpec.of((), dtype)) for value in (0.5, 2.0) for dtype in ("float32", "float64"))


def one_by_one(operation: Fused, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The steps' own kernels."""
    values = list(inputs)
    for step in operation.steps:
        taken = [values[i] for i in step.inputs]
        (spec,) = step.operation.infer(*[TensorSpec(x.shape, x.dtype) for x in taken]) or ()
        out = np.empty(spec.shape, spec.dtype)
        known = find_kernel(step.operation, "cpu", (taken[0] if taken else out).dtype)
        with np.errstate(all="ignore"):
            known.function(step.operation, taken, [out])
        values.append(out)
    return [values[len(inputs) + i] for i in operation.results]


def at_once(operation: Fused, inputs: list[np.ndarray]) -> list[np.ndarray]:
    specs = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs])
    outputs = [np.empty(spec.shape, spec.dtype) for spec in specs]
    find_kernel(operation, "cpu", inputs[0].dtype).function(operation, inputs, outputs)
    return outputs


@cache
def fits(operation: ops.Operation, inputs: tuple[TensorSpec, ...]) -> bool:
    """Whether an operation of these types can be a step."""
    try:
        (spec,) = operation.infer(*inputs) or ()
    except af.GraphError:
        return False
    return may_fuse(operation, inputs, spec)


@st.composite
def chains(draw: st.DrawFn, specs: tuple[TensorSpec, ...], is_total: bool = True) -> Fused:
    """Steps that fit to each other, on inputs of these types; in the end the sum of the inputs, if asked for."""
    whole = np.broadcast_shapes(*[spec.shape for spec in specs])
    found = list(specs)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 10))):
        possible = [(number, ()) for number in NUMBERS]
        arguments = tuple(draw(st.lists(st.integers(0, len(found) - 1), min_size=3, max_size=3)))
        for count, operations in STEPS.items():
            taken = tuple(found[i] for i in arguments[:count])
            possible += [(operation, arguments[:count]) for operation in operations if fits(operation, taken)]
        operation, taken = draw(st.sampled_from(possible))
        steps.append(Step(operation, taken))
        found.extend(operation.infer(*[found[i] for i in taken]) or ())
    if is_total:  # all inputs together have the shape of the results
        total = [i for i, spec in enumerate(found) if spec.dtype == np.float64 and i < len(specs)]
        steps.append(Step(ops.Sum(), tuple(total)))
        found.extend(ops.Sum().infer(*[found[i] for i in total]))
    results = [i - len(specs) for i, spec in enumerate(found) if i >= len(specs) and spec.shape == whole]
    assume(results)
    return Fused(tuple(steps), tuple(draw(st.sets(st.sampled_from(results), min_size=1).map(sorted))))


@st.composite
def chains_in_place(draw: st.DrawFn, shapes: Sequence[tuple[int, ...]]) -> tuple[Fused, list[np.ndarray]]:
    """A chain whose first result may be written over its first input, and its inputs."""
    dtypes = [np.dtype(draw(st.sampled_from(("float32", "float64"))))] * len(shapes)
    if draw(st.booleans()):
        dtypes[-1] = np.dtype(np.bool_)
    specs = tuple(map(TensorSpec, shapes, dtypes))
    chain = draw(chains(specs, is_total=False))
    found = chain.specs(specs)
    possible = [i for i, spec in enumerate(found[len(specs) :]) if spec == specs[0]]
    writing = [Fused(chain.steps, (i, *[j for j in chain.results if j != i])) for i in possible]
    writing = [each for each in writing if each.may_write_over(in_place=False)]
    assume(writing)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    with np.errstate(all="ignore"):
        inputs = [np.asarray(random.choice(SPECIAL, spec.shape)).astype(spec.dtype) for spec in specs]
    return draw(st.sampled_from(writing)), inputs


#: The reductions that may end a chain.
REDUCTIONS: dict[type[Reduction], Any] = {
    ops.CountNonzero: np.count_nonzero,
    ops.ReduceAll: np.all,
    ops.ReduceAny: np.any,
    ops.ReduceMax: np.max,
    ops.ReduceMean: np.mean,
    ops.ReduceMin: np.min,
    ops.ReduceProd: np.prod,
    ops.ReduceSum: np.sum,
}
DTYPES = ("float16", "float32", "float64", "int8", "uint32", "int64", "bool")
#: By the kind of the inputs' dtype: values that stay small, two of them of other dtypes.
SMALL_CHAINS = {
    "b": (
        Step(ops.LogicalXor(), (0, 1)),
        Step(ops.Cast(np.dtype(np.int64)), (2,)),
        Step(ops.Cast(np.dtype(np.float32)), (2,)),
    ),
    "n": (
        Step(ops.Multiply(), (0, 1)),
        Step(ops.Sum(), (2, 0)),
        Step(ops.Greater(), (3, 1)),
        Step(ops.Where(), (4, 3, 0)),
    ),
}


def with_reductions(chain: Fused, specs: tuple[TensorSpec, ...], axis: tuple[int, ...] = (0,)) -> Fused:
    """A chain that ends in all possible reductions along an axis, of its first input and of its last two steps."""
    found, steps = chain.specs(specs), [*chain.steps]
    whole = np.broadcast_shapes(*[spec.shape for spec in specs])
    for i, spec in enumerate(found):
        if spec.shape == whole and (i == 0 or i >= len(found) - 2):
            kinds = [kind for kind in REDUCTIONS if spec.size or kind not in (ops.ReduceMax, ops.ReduceMin)]
            steps += [Step(kind(axis), (i,)) for kind in kinds if may_reduce(kind(axis), spec)]
    return Fused(tuple(steps), (*chain.results, *range(len(chain.steps), len(steps))))


@st.composite
def reduced_chains(draw: st.DrawFn, dtypes: Sequence[str], max_side: int = 5) -> tuple[Fused, list[np.ndarray]]:
    """A chain with reductions, and its inputs: small whole numbers, of which some are not a number."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=max_side))
    axes = draw(st.sets(st.integers(0, len(shape) - 1))) if shape else set()
    columns = columns_of(shape, sorted(axes))
    assume(columns is not None)
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    other = tuple([draw(st.sampled_from((n, 1))) for n in shape])[draw(st.integers(0, len(shape))) :]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    inputs = [np.asarray(random.integers(0, 3, each)).astype(dtype) for each in (shape, other)]
    if dtype.kind == "f" and draw(st.booleans()):
        inputs[0] = np.where(random.random(shape) < 0.1, np.nan, inputs[0]).astype(dtype)
    chain = SMALL_CHAINS["b" if dtype.kind == "b" else "n"]
    specs = Fused(chain, ()).specs([TensorSpec(x.shape, x.dtype) for x in inputs])
    possible = [
        Step(kind(tuple(sorted(axes)), keepdims), (i,))
        for i, spec in enumerate(specs)
        for kind in REDUCTIONS
        for keepdims in (False, True)
        if spec.shape == shape and may_reduce(kind(), spec._replace(shape=()))
        if columns.length or kind not in (ops.ReduceMax, ops.ReduceMin)
    ]
    reductions = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=4))
    whole = [i - 2 for i, spec in enumerate(specs) if i > 1 and spec.shape == shape]
    kept = draw(st.sets(st.sampled_from(whole))) if whole else set()
    results = (*sorted(kept), *range(len(chain), len(chain) + len(reductions)))
    return Fused((*chain, *reductions), tuple(draw(st.permutations(results)))), inputs


def check_reduced(operation: Fused, inputs: list[np.ndarray], found: list[np.ndarray]) -> None:
    """Results of a chain with reductions, against NumPy's."""
    first = len(inputs)
    reduced = operation.reductions
    steps = operation.steps[: min(reduced)]
    values = [*inputs, *one_by_one(Fused(steps, tuple(range(len(steps)))), inputs)]
    specs = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs])
    for i, spec, mine in zip(operation.results, specs, found, strict=True):
        each, arguments = operation.steps[i].operation, operation.steps[i].inputs
        assert (mine.shape, mine.dtype) == (spec.shape, spec.dtype)
        if i not in reduced:
            np.testing.assert_array_equal(mine, values[first + i], strict=True)
            continue
        assert isinstance(each, Reduction)
        x = values[arguments[0]]
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of means of nothing
            expected = REDUCTIONS[type(each)](wide, axis=each.axes(x.ndim), keepdims=each.keepdims)
        tolerance = 4 * np.finfo(spec.dtype).eps if spec.dtype.kind == "f" else 0
        with np.errstate(all="ignore"):
            expected = np.asarray(expected).astype(spec.dtype)
        np.testing.assert_allclose(mine, expected, rtol=tolerance, err_msg=str(operation))


SHAPES = (
    ((10,), (10,), ()),
    ((4, 10), (10,), (4, 1)),
    ((2, 5), (2, 5), (2, 5)),
    ((1, 1), (1,), ()),
    ((0, 3), (3,), ()),
    ((0, 3), (0, 3), ()),
)


@given(st.data(), st.sampled_from(SHAPES), st.booleans())
def test_it_is_what_the_steps_are(data: st.DataObject, shapes: Any, is_turned: bool) -> None:
    specs = tuple([TensorSpec(shape, np.dtype(np.float64)) for shape in shapes])
    operation = data.draw(chains((*specs, TensorSpec((), np.dtype(np.bool_)))))
    random = np.random.default_rng(0)
    inputs = [np.asarray(random.choice(SPECIAL, shape)) for shape in shapes]
    if is_turned:
        inputs = [np.asarray(x, order="F") for x in inputs]  # asfortranarray gives 0-d arrays an axis
    inputs.append(np.asarray(True))
    for found, expected in zip(at_once(operation, inputs), one_by_one(operation, inputs), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


IN_PLACE = (
    ((10,), (10,), ()),
    ((4, 10), (10,), (4, 10)),
    ((4, 10), (4, 1), (1, 1)),
    ((2, 3, 5), (2, 3, 5), (1,)),
    ((1, 4), (4,), ()),
)


@pytest.mark.parametrize("shapes", IN_PLACE)
@pytest.mark.parametrize("block", [3, *slow([16, BLOCK])])
@given(data=st.data())
def test_it_may_be_written_over_its_first_input(shapes: Any, block: int, data: st.DataObject) -> None:
    """Values of steps are kept in the memory of results, which may be that of an input."""
    operation, inputs = data.draw(chains_in_place(shapes))
    expected = one_by_one(operation, inputs)
    given = [x.copy() for x in inputs]
    outputs = [given[0], *[np.empty_like(y) for y in expected[1:]]]
    with mock.patch("actorflow.ops.cpu.blocks.BLOCK", block):
        find_kernel(operation, "cpu", given[0].dtype).function(operation, given, outputs)
    check_in_place(outputs, expected, given, inputs)


def check_in_place(outputs: Any, expected: Any, given: list[np.ndarray], inputs: list[np.ndarray]) -> None:
    for mine, its in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(mine, its, strict=True)
        is_number = its == its
        np.testing.assert_array_equal(np.signbit(mine[is_number] * 1.0), np.signbit(its[is_number] * 1.0))
    for x, before in zip(given[1:], inputs[1:], strict=True):
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("length", [32_767, 32_768, 100_001, 3_000_000])
def test_long_arrays_are_computed_block_by_block(length: int) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, length), np.float32)
    operation = Fused(
        (
            Step(ops.Multiply(), (0, 1)),
            Step(ops.Fill(0.5, TensorSpec.of(())), ()),
            Step(ops.Sum(), (3, 4, 2)),
            Step(ops.Greater(), (5, 0)),
            Step(ops.Where(), (6, 5, 1)),
        ),
        (2, 4),
    )
    inputs = [x, y, np.float32(2.0).reshape(())]
    for found, expected in zip(at_once(operation, inputs), one_by_one(operation, inputs), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


@given(
    reduced_chains(("float16", "float32", "float64", "int8", "uint32", "int64", "bool")), st.booleans(), st.booleans()
)
def test_reductions_are_numpys(case: tuple[Fused, list[np.ndarray]], is_turned: bool, is_cut: bool) -> None:
    operation, inputs = case
    if is_turned:
        inputs = [np.asarray(x, order="F") for x in inputs]
    with mock.patch("actorflow.ops.cpu.blocks.BLOCK", 7 if is_cut else BLOCK):
        check_reduced(operation, inputs, at_once(operation, inputs))


@pytest.mark.together("shape", [(0,), (0, 0), (0, 3), (3, 0), (2, 0, 0)])
@pytest.mark.together("axis", [None, (0,), (-1,), ()])
def test_what_has_no_elements_is_reduced(shape: tuple[int, ...], axis: tuple[int, ...] | None) -> None:
    x = np.empty(shape, np.float32)
    kinds = (ops.ReduceSum, ops.ReduceProd, ops.ReduceMean, ops.CountNonzero)
    steps = (Step(ops.Square(), (0,)), *[Step(kind(axis), (1,)) for kind in kinds])
    operation = Fused(steps, tuple(range(5)))
    check_reduced(operation, [x], at_once(operation, [x]))


def test_every_reduction_is_tried() -> None:
    assert {*REDUCTIONS} == {*_REDUCED_KINDS}


@pytest.mark.together("axis", [None, (0,), (1,)])
@pytest.mark.together("shape", [(3, 400_000), (400_000, 3), (1100, 1000)])
def test_long_arrays_are_reduced_block_by_block(shape: tuple[int, ...], axis: tuple[int, ...] | None) -> None:
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
    operation = Fused(
        (
            Step(ops.Square(), (0,)),
            Step(ops.ReduceSum(axis), (1,)),
            Step(ops.ReduceMean(axis, keepdims=True), (0,)),
            Step(ops.ReduceMax(axis), (1,)),
            Step(ops.CountNonzero(axis), (0,)),
        ),
        (1, 0, 2, 3, 4),
    )
    total, squares, mean, largest, count = at_once(operation, [x])
    np.testing.assert_array_equal(squares, np.square(x))
    np.testing.assert_array_equal(total, np.square(x).sum(axis, dtype=np.float64))
    np.testing.assert_allclose(mean, x.mean(axis, dtype=np.float64, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(largest, np.square(x).max(axis))
    np.testing.assert_array_equal(count, np.count_nonzero(x, axis))


@pytest.mark.together(
    ("shape", "axes", "columns"),
    [
        ((), (), (1, 1, 1)),
        ((2, 3), (), (6, 1, 1)),
        ((2, 3, 4), (0, 1, 2), (1, 24, 1)),
        ((2, 3, 4), (0,), (1, 2, 12)),
        ((2, 3, 4), (1,), (2, 3, 4)),
        ((2, 3, 4), (1, 2), (2, 12, 1)),
        ((2, 3, 4), (0, 2), None),
        ((2, 1, 4), (0, 2), (1, 8, 1)),
        ((2, 1, 4), (0, 1), (1, 2, 4)),
        ((2, 0, 4), (1,), (2, 0, 4)),
    ],
)
def test_axes_side_by_side_are_columns(shape: Any, axes: Any, columns: Any) -> None:
    assert columns_of(shape, axes) == columns


def test_what_cannot_be_a_step_is_refused() -> None:
    graph = af.Graph("g")
    x, half = graph.blob("x", (3, 4)), graph.blob("half", (4,), "float16")
    with pytest.raises(af.GraphError, match=r"step 0, Softmax.* cannot be fused"):
        graph.apply(Fused((Step(ops.Softmax(), (0,)),), (0,)), x)
    with pytest.raises(af.GraphError, match="cannot be fused"):
        graph.apply(Fused((Step(ops.Cast(np.dtype(np.float32)), (0,)),), (0,)), half)
    with pytest.raises(af.ShapeError, match=r"step 0 must have the shape \(3, 4\)"):
        graph.apply(Fused((Step(ops.Relu(), (1,)), Step(ops.Relu(), (0,))), (0,)), x, graph.blob("y", (4,)))
    with pytest.raises(af.DTypeError):
        graph.apply(Fused((Step(ops.LogicalNot(), (0,)),), (0,)), x)


def test_reductions_that_cannot_end_a_chain_are_refused() -> None:
    graph = af.Graph("g")
    x, y = graph.blob("x", (3, 4, 2)), graph.blob("y", (2,))
    total = Step(ops.ReduceSum((0,)), (0,))
    with pytest.raises(af.GraphError, match=r"step 0, ReduceSum.* cannot be fused"):
        graph.apply(Fused((Step(ops.ReduceSum((0, 2)), (0,)),), (0,)), x)
    with pytest.raises(af.GraphError, match=r"step 0, ArgMax.* cannot be fused"):
        graph.apply(Fused((Step(ops.ArgMax((0,)), (0,)),), (0,)), x)
    with pytest.raises(
        af.ShapeError, match=r"step 1 must reduce \(outer, length, inner\) as .*\(1, 3, 8\), got \(3, 4, 2\)"
    ):
        graph.apply(Fused((total, Step(ops.ReduceSum((1,)), (0,))), (0, 1)), x)
    with pytest.raises(af.ShapeError, match=r"step 0 must reduce the shape \(3, 4, 2\) of all inputs"):
        graph.apply(Fused((Step(ops.ReduceSum((0,)), (1,)), Step(ops.Relu(), (0,))), (0, 1)), x, y)
    with pytest.raises(af.GraphError, match="step 0 is a reduction, which must be one of the results"):
        graph.apply(Fused((total, Step(ops.Relu(), (0,))), (1,)), x)
    with pytest.raises(af.GraphError, match="step 0 is a reduction, which no step may read"):
        graph.apply(Fused((total, Step(ops.Relu(), (1,))), (0,)), x)


def test_it_runs_in_a_graph_on_the_cpu_and_on_a_device() -> None:
    operation = Fused((Step(ops.Square(), (0,)), Step(ops.Scale(0.5), (1,))), (1,))
    assert str(operation) == "Fused(square(0), scale(1))"
    for place in ("cpu", "sim:0"):
        graph = af.Graph("g")
        with graph.at(place):
            y = graph.apply(operation, graph.blob("x", (2,)))
        assert af.to_numpy(graph.run_sync({"x": [2.0, 4.0]})[y]).tolist() == [2.0, 8.0]
