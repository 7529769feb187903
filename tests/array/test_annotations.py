"""Functions and classes with annotations that are not postponed: Python 3.14 keeps code for them, and runs it later."""

import functools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.array.transforms.surroundings import surroundings

if TYPE_CHECKING:
    from missing import Missing


class Layer:
    """Annotated as its users are; what the annotations name is nothing that its methods read."""

    unit: "Missing | None" = None
    weight: xp.Array
    rate: float = 2.0

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __call__(self, x: xp.Array) -> xp.Array:
        return x * self.weight * self.rate


def test_annotations_of_a_class_are_no_part_of_its_state() -> None:
    layer = Layer(xp.ones(3))
    before = surroundings(layer)
    assert before is not None
    assert layer.weight in [leaf for leaf in before[0] if isinstance(leaf, xp.Array)]
    assert Layer.__annotations__["rate"] is float  # from now on the class may have them at hand
    after = surroundings(layer)
    assert after is not None
    assert after[1] == before[1]
    assert all(a is b for a, b in zip(after[0], before[0], strict=True))


def test_annotations_inside_of_a_function_are_read_as_its_globals_are() -> None:
    def scaled(x: xp.Array, rate: float) -> xp.Array:
        def inner(y: xp.Array) -> xp.Array:
            return y * rate

        return inner(x)

    assert surroundings(functools.partial(scaled, rate=2.0)) is not None


def test_attributes_of_a_class_are_part_of_its_state(monkeypatch) -> None:
    layer = Layer(xp.ones(3))

    def numbers() -> list[float]:
        found = surroundings(layer)
        assert found is not None
        return [leaf for leaf in found[0] if isinstance(leaf, float)]

    assert numbers() == [2.0]
    monkeypatch.setattr(Layer, "rate", 3.0)
    assert numbers() == [3.0]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated where they are")
class TestAnnotationsThatCannotBeEvaluated:
    def test_of_a_function_that_is_traced(self) -> None:
        def doubled(weight: Missing) -> Missing:
            return weight * 2

        graph = af.to_graph(doubled, xp.ones(3))
        assert graph.blobs[0].name == "weight"

    def test_of_a_function_that_is_lifted(self) -> None:
        def scaled(x: af.Blob, factor: Missing) -> af.Blob:
            return af.ops.scale(x, factor)

        def renamed(x: Missing, factor: float) -> Missing:
            return af.ops.scale(x, factor)

        for function in (scaled, renamed):
            assert xp.nn.lift(function)(xp.ones(3), factor=3.0).to_numpy().tolist() == [3.0] * 3

    def test_of_a_function_that_is_differentiated(self) -> None:
        def loss(x: Missing) -> Missing:
            return xp.sum(x * x)

        assert af.grad(loss)(xp.asarray(np.ones(3))).to_numpy().tolist() == [2.0] * 3

    async def test_of_a_function_that_is_an_op(self) -> None:
        def plus_one(x: Missing) -> Missing:
            return x + 1

        graph = af.Graph("g")
        x = graph.blob("x", 3)
        y = graph.function("plus", plus_one, outputs=af.TensorSpec.of(3))(x)
        async with graph:
            assert (await graph.run({x: np.ones(3, "f")}))[y].tolist() == [2.0] * 3
