"""Functions as operations: arities, outputs, and kinds of callables."""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.ops import Function

SCALAR = af.TensorSpec.of(())


@pytest.fixture
def graph() -> Iterator[af.Graph]:
    graph = af.Graph("g")
    yield graph
    asyncio.run(graph.aclose())


class TestArities:
    @pytest.mark.parametrize("inputs", range(4))
    @pytest.mark.parametrize("outputs", range(4))
    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("kind", [tuple, list])
    def test_any_number_of_inputs_and_outputs(
        self, graph: af.Graph, inputs: int, outputs: int, is_async: bool, kind: Any
    ) -> None:
        seen: list[list[float]] = []

        def plain(*values: Any) -> Any:
            seen.append([float(value) for value in values])
            results = [sum(seen[-1]) + i for i in range(outputs)]
            return results[0] if outputs == 1 else kind(results)

        async def waiting(*values: Any) -> Any:
            await asyncio.sleep(0)
            return plain(*values)

        sources = [graph.blob(f"x{i}", ()) for i in range(inputs)]
        sinks = [graph.blob(f"y{i}", ()) for i in range(outputs)]
        sources >> graph.function("f", waiting if is_async else plain) >> sinks
        result = graph.run_sync({source: i + 1 for i, source in enumerate(sources)})
        total = inputs * (inputs + 1) // 2
        assert seen == [[i + 1 for i in range(inputs)]]
        assert [float(result[sink]) for sink in sinks] == [total + i for i in range(outputs)]
        assert len(result) == outputs

    def test_the_functional_form(self, graph: af.Graph) -> None:
        a, b = graph.function("f", lambda: (1, 2.5), outputs=[SCALAR, SCALAR])()
        total = graph.function("g", lambda a, b: a + b, outputs=SCALAR)(a, b)
        graph.function("h", lambda total: None, outputs=())(total)
        assert graph.run_sync(fetch=[total, "h"])[total] == 3.5


class TestOutputs:
    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (None, "the function must return 2 values in a tuple or list, got 'NoneType'"),
            ((1,), "the function must return 2 values in a tuple or list, got 1 values"),
            ((1, 2, 3), "got 3 values"),
            ("ab", "got 'str'"),
            (np.zeros(2), "got 'ndarray'"),
            ((1, [1, 2]), r"result 1: expected shape \(\), got \(2,\)"),
            ((1j, 1), "result 0: expected dtype float32, got complex128"),
        ],
    )
    def test_wrong_results(self, graph: af.Graph, returned: Any, message: str) -> None:
        graph.function("f", lambda: returned, outputs=[SCALAR, SCALAR])()
        with pytest.raises(af.OpError, match=message) as caught:
            graph.run_sync()
        assert isinstance(caught.value.__cause__, af.GraphError)

    @pytest.mark.parametrize(
        ("returned", "dtype"),
        [(3, "float32"), (3, "uint8"), (True, "bool"), (np.float16(0.5), "float32"), (2.5, "float16")],
    )
    def test_numbers_take_the_declared_dtype(self, graph: af.Graph, returned: Any, dtype: str) -> None:
        y = graph.function("f", lambda: returned, outputs=af.TensorSpec.of((), dtype))()
        value = graph.run_sync()[y]
        assert (value.dtype, value.shape) == (np.dtype(dtype), ())
        assert value == returned

    def test_integers_that_do_not_fit(self, graph: af.Graph) -> None:
        graph.function("f", lambda: 300, outputs=af.TensorSpec.of((), "int8"))()
        with pytest.raises(af.OpError, match="the result: expected dtype int8, got integers from 300 to 300"):
            graph.run_sync()

    def test_any_object(self, graph: af.Graph) -> None:
        anything = af.TensorSpec.of((), object)
        thing = {"a": [1, 2]}
        a = graph.function("make", lambda: thing, outputs=anything)()
        b = graph.function("pass", lambda thing: thing, outputs=anything)(a)
        assert graph.run_sync()[b] is thing

    def test_what_a_function_without_outputs_returns_is_not_looked_at(self, graph: af.Graph) -> None:
        graph.function("f", lambda: object())
        assert len(graph.run_sync()) == 0


class PlainCallable:
    def __call__(self, x: Any) -> Any:
        return x + 1


class AsyncCallable:
    async def __call__(self, x: Any) -> Any:
        await asyncio.sleep(0)
        return x + 1

    async def method(self, x: Any) -> Any:
        return await self(x)


async def plus(x: Any, y: int) -> Any:
    return x + y


class TestKinds:
    @pytest.mark.parametrize(
        ("fn", "is_async"),
        [
            (lambda x: x + 1, False),
            (functools.partial(np.add, 1), False),
            (PlainCallable(), False),
            (AsyncCallable(), True),
            (AsyncCallable().method, True),
            (functools.partial(plus, y=1), True),
        ],
    )
    def test_what_can_be_called(self, graph: af.Graph, fn: Any, is_async: bool) -> None:
        assert Function(fn).is_async is is_async
        x = graph.blob("x", 2)
        y = graph.function("f", fn, outputs=x.spec)(x)
        assert graph.run_sync({x: [1, 2]})[y].tolist() == [2, 3]

    def test_names(self) -> None:
        assert str(Function(abs)) == "abs"
        assert str(Function(plus)) == "plus"
        assert "PlainCallable object" in str(Function(PlainCallable()))
        assert "\n" not in str(Function(functools.partial(np.add, np.eye(3))))

    def test_functions_have_no_gradient(self, graph: af.Graph) -> None:
        w = graph.variable("w", ())
        loss = graph.function("f", lambda w: w, outputs=SCALAR)(w)
        assert not loss.producers[0].operation.differentiable
        with pytest.raises(af.GraphError):
            af.gradient(loss, [w])
