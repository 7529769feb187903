"""Functions as operations: arities, outputs, and kinds of callables."""

import asyncio
import functools
import gc
import inspect
import types
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
            ((1, np.float64(1)), "result 1: expected dtype float32, got float64"),
            ((1, None), "result 1: expected dtype float32, got None"),
            ((1j, 1), "result 0: expected dtype float32, got complex128"),
        ],
    )
    def test_wrong_results(self, graph: af.Graph, returned: Any, message: str) -> None:
        graph.function("f", lambda: returned, outputs=[SCALAR, SCALAR])()
        for _ in range(3):  # on the lane, then on the loop
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


def yielding(x: Any) -> Any:
    yield x


async def yielding_async(x: Any) -> Any:
    yield x


class YieldingCallable:
    def __call__(self, x: Any) -> Any:
        yield x

    async def method(self, x: Any) -> Any:
        yield x


class AsyncCalls:
    """Called, the class gives an object; only that has an async `__call__`."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.x) + np.float32(1)

    async def __call__(self) -> None: ...


def marked(x: Any) -> Any:
    return plus(x, 1)


MARKS = hasattr(inspect, "markcoroutinefunction")
if MARKS:
    inspect.markcoroutinefunction(marked)


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
            (functools.partial(functools.partial(plus), y=1), True),
            (functools.partial(AsyncCallable()), True),
            (functools.partial(AsyncCallable().method), True),
            pytest.param(marked, True, marks=pytest.mark.skipif(not MARKS, reason="new in Python 3.12")),
            (AsyncCalls, False),
        ],
    )
    def test_what_can_be_called(self, graph: af.Graph, fn: Any, is_async: bool) -> None:
        assert Function(fn).is_async is is_async
        x = graph.blob("x", 2)
        y = graph.function("f", fn, outputs=x.spec)(x)
        assert graph.run_sync({x: [1, 2]})[y].tolist() == [2, 3]

    @pytest.mark.parametrize(
        ("fn", "kind"),
        [
            (yielding, "a generator function"),
            (functools.partial(yielding), "a generator function"),
            (YieldingCallable(), "a generator function"),
            (functools.partial(YieldingCallable(), 1), "a generator function"),
            (lambda x: (yield x), "a generator function"),
            (types.coroutine(yielding), "a generator function"),
            (yielding_async, "an async generator function"),
            (functools.partial(yielding_async), "an async generator function"),
            (YieldingCallable().method, "an async generator function"),
        ],
    )
    @pytest.mark.parametrize("outputs", [None, SCALAR, ()])
    def test_generators_are_refused_where_the_op_is_made(
        self, graph: af.Graph, fn: Any, kind: str, outputs: Any
    ) -> None:
        with pytest.raises(af.GraphError, match=rf" is {kind}, of which a call runs nothing: an op needs .* returns"):
            graph.function("f", fn, outputs)
        assert graph.nodes == ()
        with pytest.raises(af.GraphError, match=rf" is {kind}, "):
            Function(fn)

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


@pytest.mark.filterwarnings("error")
class TestWhatHasNotRun:
    """A function that returns a coroutine or a generator: of what it was to do nothing has been done."""

    OBJECT = af.TensorSpec.of((), object)

    @pytest.mark.parametrize("at_once", [False, True])
    @pytest.mark.parametrize("outputs", [(), SCALAR, OBJECT, (SCALAR, SCALAR)])
    @pytest.mark.parametrize("call", [lambda x: plus(x, 1), functools.lru_cache(lambda x: plus(1, 1))])
    def test_a_coroutine_is_an_error(
        self, graph: af.Graph, outputs: Any, call: Any, at_once: bool, request: Any
    ) -> None:
        if at_once:
            request.getfixturevalue("calls_count_as_short")
        x = graph.blob("x", (), object)
        op = graph.function("f", call, outputs)
        op(x)
        for value in (1, 2, 3):  # the first one on a lane, or all on the loop
            with pytest.raises(
                af.OpError, match=r"op 'f' .* returned the coroutine 'plus', which is not awaited: use an"
            ):
                graph.run_sync({x: value})
        gc.collect()

    def test_one_of_several_values(self, graph: af.Graph) -> None:
        op = graph.function("f", lambda: (1.0, plus(1, 1), plus(2, 2)), (SCALAR, SCALAR, SCALAR))
        op()
        with pytest.raises(af.OpError, match="returned the coroutine 'plus'"):
            graph.run_sync()
        gc.collect()  # neither of the two has been awaited, and nobody says so

    @pytest.mark.parametrize("outputs", [(), SCALAR])
    def test_an_async_function_that_does_not_await(self, graph: af.Graph, outputs: Any) -> None:
        async def forgets(x: Any) -> Any:
            return plus(x, 1)

        graph.function("f", forgets, outputs)(graph.blob("x", ()))
        with pytest.raises(af.OpError, match="returned the coroutine 'plus', which is not awaited: await it"):
            graph.run_sync({"x": 1})
        gc.collect()

    @pytest.mark.parametrize("make", [yielding, yielding_async])
    @pytest.mark.parametrize("outputs", [(), SCALAR, (SCALAR, SCALAR)])
    def test_a_generator_is_an_error(self, graph: af.Graph, make: Any, outputs: Any) -> None:
        graph.function("f", lambda x: make(x), outputs)(graph.blob("x", ()))
        with pytest.raises(af.OpError, match=r"returned the generator 'yielding(_async)?', of which nothing has run"):
            graph.run_sync({"x": 1})

    def test_a_generator_may_be_passed_on_as_an_object(self, graph: af.Graph) -> None:
        made = graph.function("f", lambda x: yielding(x), self.OBJECT)(graph.blob("x", ()))
        total = graph.function("g", lambda items: sum(items), SCALAR)(made)
        assert graph.run_sync({"x": 3})[total] == 3

    def test_on_a_stream(self, graph: af.Graph) -> None:
        x = graph.blob("x", (3,), place="sim:0")
        graph.function("f", lambda x: plus(x, 1), x.spec, place="sim:0")(x)
        with pytest.raises(af.OpError, match="returned the coroutine 'plus'"):
            graph.run_sync({x: [1, 2, 3]})
        gc.collect()
