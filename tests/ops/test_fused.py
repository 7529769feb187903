"""Elementwise operations in one pass, against the same ones by themselves."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import actorflow as af
import actorflow.ops.cpu
from actorflow import ops
from actorflow.ops import Fused, FusedStep, find_kernel
from actorflow.ops.fused import may_fuse
from actorflow.spec import TensorSpec

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e300, 5e-324, 0.5])
#: By the number of inputs.
STEPS = {
    1: (
        ops.Absolute(),
        ops.Ceil(),
        ops.Clip(-1.0, 2.0),
        ops.Exp(),
        ops.Floor(),
        ops.Log(),
        ops.Negative(),
        ops.Reciprocal(),
        ops.Relu(),
        ops.Round(),
        ops.Scale(0.3),
        ops.Sigmoid(),
        ops.Sign(),
        ops.Sqrt(),
        ops.Square(),
        ops.Tanh(),
        ops.LogicalNot(),
        *(ops.Cast(np.dtype(name)) for name in ("float32", "float64", "bool")),
    ),
    2: (
        ops.Divide(),
        ops.Equal(),
        ops.Greater(),
        ops.Less(),
        ops.LogicalAnd(),
        ops.LogicalXor(),
        ops.Maximum(),
        ops.Minimum(),
        ops.Multiply(),
        ops.NotEqual(),
        ops.Power(),
        ops.ReluDown(),
        ops.SigmoidDown(),
        ops.Subtract(),
        ops.Sum(),
        ops.TanhDown(),
    ),
    3: (ops.Sum(), ops.Where()),
}
NUMBERS = tuple(ops.Fill(value, TensorSpec.of((), dtype)) for value in (0.5, 2.0) for dtype in ("float32", "float64"))


def one_by_one(operation: Fused, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The steps' own kernels."""
    values = list(inputs)
    for step in operation.steps:
        taken = [values[i] for i in step.arguments]
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


@st.composite
def chains(draw: st.DrawFn, specs: tuple[TensorSpec, ...]) -> Fused:
    """Steps that fit to each other, on inputs of these types."""
    whole = np.broadcast_shapes(*[spec.shape for spec in specs])
    found = list(specs)
    steps: list[FusedStep] = []
    for _ in range(draw(st.integers(1, 10))):
        possible = [(number, ()) for number in NUMBERS]
        arguments = tuple(draw(st.lists(st.integers(0, len(found) - 1), min_size=3, max_size=3)))
        for count, operations in STEPS.items():
            for operation in operations:
                taken = [found[i] for i in arguments[:count]]
                try:
                    (spec,) = operation.infer(*taken) or ()
                except af.GraphError:
                    continue
                if may_fuse(operation, taken, spec):
                    possible.append((operation, arguments[:count]))
        operation, taken = draw(st.sampled_from(possible))
        steps.append(FusedStep(operation, taken))
        found.extend(operation.infer(*[found[i] for i in taken]) or ())
    # All inputs together have the shape of the results.
    total = [i for i, spec in enumerate(found) if spec.dtype == np.float64 and i < len(specs)]
    steps.append(FusedStep(ops.Sum(), tuple(total)))
    found.extend(ops.Sum().infer(*[found[i] for i in total]))
    results = [i - len(specs) for i, spec in enumerate(found) if i >= len(specs) and spec.shape == whole]
    return Fused(tuple(steps), tuple(draw(st.sets(st.sampled_from(results), min_size=1).map(sorted))))


SHAPES = (
    ((10,), (10,), ()),
    ((4, 10), (10,), (4, 1)),
    ((2, 5), (2, 5), (2, 5)),
    ((1, 1), (1,), ()),
    ((0, 3), (3,), ()),
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


@pytest.mark.parametrize("length", [32_767, 32_768, 100_001, 3_000_000])
def test_long_arrays_are_computed_block_by_block(length: int) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, length), np.float32)
    operation = Fused(
        (
            FusedStep(ops.Multiply(), (0, 1)),
            FusedStep(ops.Fill(0.5, TensorSpec.of(())), ()),
            FusedStep(ops.Sum(), (3, 4, 2)),
            FusedStep(ops.Greater(), (5, 0)),
            FusedStep(ops.Where(), (6, 5, 1)),
        ),
        (2, 4),
    )
    inputs = [x, y, np.float32(2.0).reshape(())]
    for found, expected in zip(at_once(operation, inputs), one_by_one(operation, inputs), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


def test_what_cannot_be_a_step_is_refused() -> None:
    graph = af.Graph("g")
    x, half = graph.blob("x", (3, 4)), graph.blob("half", (4,), "float16")
    with pytest.raises(af.GraphError, match=r"step 0, Softmax.* cannot be fused"):
        graph.apply(Fused((FusedStep(ops.Softmax(), (0,)),), (0,)), x)
    with pytest.raises(af.GraphError, match="cannot be fused"):
        graph.apply(Fused((FusedStep(ops.Cast(np.dtype(np.float32)), (0,)),), (0,)), half)
    with pytest.raises(af.ShapeError, match=r"step 0 must have the shape \(3, 4\)"):
        graph.apply(Fused((FusedStep(ops.Relu(), (1,)), FusedStep(ops.Relu(), (0,))), (0,)), x, graph.blob("y", (4,)))
    with pytest.raises(af.DTypeError):
        graph.apply(Fused((FusedStep(ops.LogicalNot(), (0,)),), (0,)), x)


def test_it_runs_in_a_graph_on_the_cpu_and_on_a_device() -> None:
    operation = Fused((FusedStep(ops.Square(), (0,)), FusedStep(ops.Scale(0.5), (1,))), (1,))
    assert str(operation) == "Fused(square(0), scale(1))"
    for place in ("cpu", "sim:0"):
        graph = af.Graph("g")
        with graph.at(place):
            y = graph.apply(operation, graph.blob("x", (2,)))
        assert af.to_numpy(graph.run_sync({"x": [2.0, 4.0]})[y]).tolist() == [2.0, 8.0]
