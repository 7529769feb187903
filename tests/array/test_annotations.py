"""Functions and classes with annotations that are not postponed: Python 3.14 keeps code for them, and runs it later."""

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp

if TYPE_CHECKING:
    from missing import Missing


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated where they are")
class TestAnnotationsThatCannotBeEvaluated:
    def test_of_a_function_that_is_traced(self) -> None:
        def doubled(weight: Missing) -> Missing:
            return weight * 2

        graph = af.to_graph(doubled, xp.ones(3))
        assert graph.blobs[0].name == "weight"

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
