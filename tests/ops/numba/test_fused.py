"""Chains in compiled loops beside chains of NumPy's functions: the same bits, in whatever memory results are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import actorflow as af
from actorflow import ops
from actorflow.ops import Fused, Operation, Step
from actorflow.ops.cpu import blocks
from actorflow.ops.elementwise import Cast
from actorflow.ops.numba import compiled, fused
from actorflow.ops.registry import load_library, lookup
from actorflow.spec import TensorSpec
from tests.ops.numba.conftest import assert_same_bits
from tests.support.effort import FULL, slow

DTYPES = ("float32", "float64")
SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e30, 1e-40, 0.5, 3.0, -7.25]


class Steps:
    """Collects the steps of a chain on some inputs."""

    def __init__(self, count: int, dtype: str) -> None:
        self.count, self.dtype = count, np.dtype(dtype)
        self.steps: list[Step] = []

    def add(self, operation: Operation, *arguments: int) -> int:
        self.steps.append(Step(operation, arguments))
        return self.count + len(self.steps) - 1

    def number(self, value: float) -> int:
        return self.add(ops.Fill(value, TensorSpec((), self.dtype)))

    def chain(self, *results: int) -> Fused:
        return Fused(tuple(self.steps), tuple([position - self.count for position in results]))


def everything(dtype: str) -> Fused:
    """Each element goes through one of all operations that loops have, which the third input chooses."""
    steps = Steps(3, dtype)
    chosen = steps.add(ops.Sum(), 0, 1, 0)
    kinds = [kind for kind in fused._TEXTS if kind is not ops.Where]
    for number, kind in enumerate(kinds):
        parameters: dict[Any, Any] = {ops.Scale: (0.3,), Cast: (steps.dtype,)}
        operation: Any = kind(*parameters.get(kind, ()))
        taken: Sequence[int] = (0, 1)[: len(operation.arguments)]
        if "logical" in operation.function_name or kind is Cast:  # of truths
            taken = [steps.add(ops.Greater(), position, steps.number(0.5)) for position in taken]
        value = steps.add(operation, *taken)
        spec = steps.chain(value).specs([TensorSpec((), steps.dtype)] * 3)[-1]
        if spec.dtype == np.bool_:
            value = steps.add(ops.Where(), value, 0, 1)
        is_own = steps.add(ops.Equal(), 2, steps.number(float(number)))
        chosen = steps.add(ops.Where(), is_own, value, chosen)
    return steps.chain(chosen)


def compute(operation: Operation, inputs: list[np.ndarray], library: str, in_place: bool = False) -> list[np.ndarray]:
    inputs = [x.copy() for x in inputs] if in_place else inputs
    specs = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs]) or ()
    outputs = [np.empty(*spec) for spec in specs]
    if in_place:
        outputs[0] = inputs[0]
    known = lookup(operation, "cpu", library, inputs[0].dtype)
    assert known is not None
    known.function(operation, inputs, outputs)
    return outputs


def check(operation: Fused, inputs: list[np.ndarray], in_place: bool = False, is_looped: bool = True) -> None:
    for library in ("numpy", "numba"):
        load_library("cpu", library)
    expected = compute(operation, inputs, "numpy", in_place)
    assert_same_bits(compute(operation, inputs, "numba", in_place)[0], expected[0], signs_of_zeros=False)
    compiled()
    if is_looped:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fused._Loop, "_by_numpy", None)
            found = compute(operation, inputs, "numba", in_place)
    else:
        found = compute(operation, inputs, "numba", in_place)
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other, signs_of_zeros=False)


def arrays(dtype: str, shapes: Sequence[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore", under="ignore"):
        palette = np.array(SPECIAL, dtype)
    found = []
    for shape in shapes:
        x = rng.standard_normal(shape).astype(dtype)
        found.append(np.where(rng.random(shape) < 0.3, palette[rng.integers(0, len(palette), shape)], x).astype(dtype))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation(dtype: str) -> None:
    operation = everything(dtype)
    count = len(fused._TEXTS)
    x, y = arrays(dtype, [(64 * count,)] * 2, 0)
    which = np.resize(np.arange(count), x.shape).astype(dtype)
    check(operation, [x, y, which])
    (step,) = operation.prepared["numba", blocks.BLOCK, False, *[(x.shape, x.dtype)] * 3].chain.steps
    assert type(step.compute) is fused._Loop


def block(dtype: str) -> Fused:
    """A batch norm by given statistics, a residual and hard-swish, of ``x, factor, center, shift, residual``."""
    steps = Steps(5, dtype)
    v = steps.add(ops.Sum(), steps.add(ops.Multiply(), steps.add(ops.Subtract(), 0, 2), 1), 3)
    v = steps.add(ops.Sum(), v, 4)
    h = steps.add(ops.AtLeast(), steps.add(ops.Sum(), v, steps.number(3.0)), steps.number(0.0))
    h = steps.add(ops.AtMost(), h, steps.number(6.0))
    return steps.chain(steps.add(ops.Multiply(), v, steps.add(ops.Scale(1 / 6), h)))


@pytest.mark.together("in_place", [False, True])
@pytest.mark.together("whole", [(3, 5, 16), (1, 16), (70_000, 3), (0, 4)])
@pytest.mark.together("dtype", DTYPES if FULL else DTYPES[:1])
def test_blocks(dtype: str, whole: tuple[int, ...], in_place: bool) -> None:
    inputs = arrays(dtype, [whole, whole[-1:], (1,) * (len(whole) - 1) + whole[-1:], (), whole], 1)
    check(block(dtype), inputs, in_place)


@pytest.mark.parametrize("to", [*slow(["float32"]), "float64", "bool", "int32"])
def test_casts_of_numbers_are_numpys(to: str) -> None:
    steps = Steps(2, "float32")
    cast = steps.add(Cast(np.dtype(to)), steps.add(ops.Scale(0.5), steps.add(ops.Sum(), 0, 1)))
    value = steps.add(ops.Scale(3.0), cast) if to.startswith("f") else steps.add(Cast(steps.dtype), cast)
    x, y = np.random.default_rng(4).standard_normal((2, 4_000)).astype("f") * 3
    with np.errstate(all="ignore"):
        check(steps.chain(value), [x, y], is_looped=to == "bool")


def test_steps_that_numpy_computes_are_between_loops() -> None:
    steps = Steps(2, "float32")
    scaled = steps.add(ops.Scale(0.5), steps.add(ops.Sum(), 0, 1))
    e = steps.add(ops.Exp(), scaled)
    y = steps.add(ops.Divide(), scaled, steps.add(ops.Sum(), e, steps.number(1.0)))
    for results in ((y,), (scaled, y), (y, e)):
        check(steps.chain(*results), arrays("float32", [(40, 7), (40, 7)], 2))


@given(st.integers(0, 2**32), st.sampled_from([(6, 4), (500, 3)]))
@settings(max_examples=200 if FULL else 5, deadline=None)
def test_arrays_in_other_orders_are_numpys(seed: int, shape: tuple[int, ...]) -> None:
    inputs = arrays("float32", [shape[::-1], shape[-1:], shape[-1:], (), shape], seed)
    check(block("float32"), [inputs[0].T, *inputs[1:]], is_looped=False)


@pytest.mark.usefixtures("by_default")
async def test_what_follows_a_convolution_is_compiled() -> None:
    def build(**options: Any) -> tuple[af.Graph, af.Blob, af.Blob]:
        graph = af.Graph("g", deterministic=True, **options)
        x = graph.blob("x", (2, 12, 12, 8))
        weights = [
            graph.variable(f"w{i}", shape, init=af.nn.init.gaussian(std=0.3, seed=i))
            for i, shape in enumerate([(3, 3, 8, 16), (3, 3, 1, 16), (1, 1, 16, 16)])
        ]
        shift = graph.variable("shift", (16,), init=af.nn.init.gaussian(std=1, seed=9))
        y = ops.relu(ops.bias(ops.conv(x, weights[0], pad=1), shift))
        z = ops.hard_swish(ops.bias(ops.conv(y, weights[1], pad=1, groups=16), shift))
        return graph, x, ops.relu(ops.bias(ops.conv(z, weights[2]), shift) + y)

    (feed,) = arrays("float32", [(2, 12, 12, 8)], 3)
    feed = np.nan_to_num(feed, posinf=2.0, neginf=-2.0).clip(-3, 3)
    found = []
    for options in ({"fuse": False, "libraries": ["numpy"]}, {"fuse": False}, {}):
        graph, x, y = build(**options)
        async with graph:
            for _ in range(2):
                await graph.run({x: feed})
                compiled()
            found.append((await graph.run({x: feed}))[y])
            kinds = [(op.kernel.key.library, op.kernel.key.operation) for op in graph.compile().ops]
    assert kinds == [("numba", "Followed")] * 3
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)  # products add up in another order
    assert_same_bits(found[2], found[1], signs_of_zeros=False)
