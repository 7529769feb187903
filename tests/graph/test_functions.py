"""Ops of functions, made by decorators."""

import inspect
from functools import partial

import numpy as np
import pytest

import actorflow as af

SPEC = af.TensorSpec.of((2,))


class TestDecorators:
    async def test_a_bare_one_makes_an_op_that_is_connected_later(self) -> None:
        graph = af.Graph("g")
        x, y = graph.blob("x", (2,)), graph.blob("y", (2,))

        @graph.function
        def double(x: np.ndarray) -> np.ndarray:
            return 2 * x

        assert isinstance(double, af.Op)
        assert graph["double"] is double
        [x] >> double >> [y]
        async with graph:
            assert (await graph.run({x: [1, 2]}))[y].tolist() == [2, 4]

    async def test_one_with_outputs_makes_an_op_that_is_called_with_blobs(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (2,))

        @graph.function(outputs=[SPEC, SPEC])
        async def both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return x + 1, x - 1

        more, less = both(x)
        async with graph:
            result = await graph.run({x: [1, 2]})
        assert result[more].tolist() == [2, 3]
        assert result["both/out1"].tolist() == [0, 1]
        assert less.producers == [both]

    async def test_inputs_with_outputs_and_without(self) -> None:
        graph, seen = af.Graph("g"), []
        x = graph.blob("x", (2,))

        @graph.function("add", outputs=SPEC, inputs=[x, x], lane="side", priority=3, timeout=5.0, retries=1)
        def total(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return x + y

        @graph.function(inputs=total.outputs[0])
        def log(y: np.ndarray) -> None:
            seen.append(y.tolist())

        assert (total.name, total.lane, total.priority) == ("add", "side", 3)
        assert total.attempts is not None
        assert total.attempts.retries == 1
        assert (log.inputs, log.outputs) == (total.outputs, ())
        async with graph:
            await graph.run({x: [1, 2]})
        assert seen == [[2, 4]]

    def test_the_line_of_the_function_is_its_site(self) -> None:
        graph = af.Graph("g")

        @graph.function(outputs=SPEC)
        def f() -> np.ndarray:
            return np.zeros(2, "float32")

        lines, first = inspect.getsourcelines(f.operation.fn)  # type: ignore[attr-defined]
        assert first <= f.site.line < first + len(lines)
        assert f.site.filename == __file__

    def test_names(self) -> None:
        graph = af.Graph("g")
        with graph.subgraph("scope"):
            assert graph.function(abs).name == "scope/abs"
        assert graph.function("f", abs, inputs=graph.blob("x", (2,))).name == "f"
        assert graph.function()(partial(abs)).name == "partial"
        with pytest.raises(af.GraphError, match="the name 'f' is taken"):
            graph.function("f")(abs)

    def test_what_is_wrong_leaves_the_graph_as_it_was(self) -> None:
        graph, other = af.Graph("g"), af.Graph("other")
        x = other.blob("x", (2,))
        for make in (
            lambda: graph.function("f", inputs=[x])(abs),
            lambda: graph.function("f", abs, SPEC, inputs=x),
            lambda: graph.function("f", abs, inputs=["x"]),  # type: ignore[list-item]
            lambda: graph.function("")(abs),
            lambda: graph.function("f")(3),  # type: ignore[arg-type]
            lambda: graph.function(retries=-1)(abs),
        ):
            with pytest.raises((af.GraphError, TypeError)):
                make()
            assert graph.nodes == ()
