"""NaN and infinities under `np.errstate`: an error that names the op, wherever it runs; else no news."""

import asyncio
import warnings
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.plan.float_errors import traps_here
from tests.ops.every_operation import CASES, OF_LAPACK

X = np.array([4.0, 0.0, -1.0, 1e30], "f")


@pytest.fixture(params=["lane", "loop", "sequential"])
def graph(request: pytest.FixtureRequest) -> af.Graph:
    """Graph whose ops run on a lane at first, on the loop, or one after the other on the loop."""
    if request.param == "loop":
        request.getfixturevalue("calls_count_as_short")
    graph = af.Graph("g", sequential=request.param == "sequential")
    graph.blob("x", (4,))
    return graph


async def failing(graph: af.Graph, fetch: Any, **state: Any) -> af.OpError:
    """Error of a run the first time, and the same later, when its ops may run elsewhere."""
    errors = []
    for _ in range(4):
        with np.errstate(**state), pytest.raises(af.OpError) as caught:
            await graph.run({"x": X}, fetch=fetch)
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    assert isinstance(errors[0].__cause__, FloatingPointError)
    return errors[0]


class TestKernels:
    @pytest.mark.parametrize(
        ("make", "state", "message"),
        [
            (lambda x: ops.sqrt(x, name="bad"), {"invalid": "raise"}, "has 1 NaN, the inputs none"),
            (lambda x: ops.log(x, name="bad"), {"invalid": "raise"}, "has 1 NaN, the inputs none"),
            (lambda x: ops.log(ops.absolute(x), name="bad"), {"divide": "raise"}, "has 1 infinite, the inputs none"),
            (lambda x: ops.divide(x, x, name="bad"), {"all": "raise"}, "has 1 NaN, the inputs none"),
            (lambda x: ops.square(x, name="bad"), {"over": "raise"}, "has 1 infinite, the inputs none"),
            (lambda x: ops.exp(x, name="bad"), {"over": "raise"}, "has 1 infinite, the inputs none"),
            (lambda x: ops.subtract(ops.square(x), ops.square(x), name="bad"), {"invalid": "raise"}, "has 1 NaN"),
            (lambda x: ops.inner(*[ops.reshape(x, (1, 4))] * 2, name="bad"), {"over": "raise"}, "has 1 infinite"),
        ],
    )
    async def test_the_op_is_named(self, graph: af.Graph, make: Any, state: Any, message: str) -> None:
        y = make(graph["x"])
        last = ops.tanh(ops.scale(y, 2.0), name="behind it")
        async with graph:
            error = await failing(graph, last, **state)
            assert error.op_name == "bad"
            assert message in str(error)
            assert f"created at {__file__}:" in str(error)
            with pytest.raises(FloatingPointError, match=message):
                error.replay()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert not np.isfinite((await graph.run({"x": X}, fetch=y))[y]).all()  # outside: no error, no warning

    async def test_what_was_there_before_is_passed_on(self, graph: af.Graph) -> None:
        y = ops.scale(ops.relu(graph["x"]), 0.5)
        async with graph:
            for strange in (np.nan, np.inf):
                with np.errstate(all="raise"):
                    result = await graph.run({"x": np.array([1, strange, 0, 2], "f")}, fetch=y)
                np.testing.assert_array_equal(result[y], np.array([0.5, strange / 2, 0, 1], "f"))

    async def test_what_overflows_inside_of_a_kernel_is_right(self, graph: af.Graph) -> None:
        """An exponential that is 0, of a softmax, and one that is infinite, of a sigmoid."""
        x = graph["x"]
        values = np.array([-1e4, 1e4, -90, 1e-44], "f")
        fetch = [ops.softmax(ops.reshape(x, (1, 4))), ops.sigmoid(x), ops.silu(x), ops.softplus(x), ops.scale(x, 1e-3)]
        async with graph:
            for _ in range(4):
                with np.errstate(all="raise"):
                    result = await graph.run({"x": values}, fetch=fetch)
            plain = await graph.run({"x": values}, fetch=fetch)
        for blob in fetch:
            np.testing.assert_array_equal(result[blob], plain[blob])

    async def test_a_fused_one(self, graph: af.Graph) -> None:
        fused = ops.Fused((ops.FusedStep(ops.Sqrt(), (0,)), ops.FusedStep(ops.Exp(), (1,))), (1,))
        y = graph.apply(fused, graph["x"], name="chain")
        async with graph:
            assert (await failing(graph, y, invalid="raise")).op_name == "chain"

    @pytest.mark.parametrize("kind", CASES)
    async def test_nothing_is_an_error_of_what_is_none(self, kind: str) -> None:
        operation, inputs = CASES[kind]
        arrays = [np.asarray(each) for each in inputs]
        graph = af.Graph("g")
        blobs = [graph.blob(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
        graph.apply(operation, *blobs, name="op")
        async with graph:
            plain = await graph.run(dict(zip(blobs, arrays, strict=True)))
            if not all(np.isfinite(value).all() for value in plain._values if value.dtype.kind == "f"):
                pytest.skip("its result has a NaN or an infinity")
            with np.errstate(all="raise"):
                trapped = await graph.run(dict(zip(blobs, arrays, strict=True)))
        if kind not in ("Bernoulli", "Dropout", "Gaussian", "Uniform"):  # of which each frame has its own
            for name in plain:
                np.testing.assert_array_equal(trapped[name], plain[name])


class TestWhoIsAsked:
    async def test_runs_beside_it_are_not_disturbed(self, graph: af.Graph) -> None:
        """Whoever wakes the loop, each run has the settings of its caller."""
        y = ops.log(graph["x"], name="bad")
        z = ops.scale(y, 1.0)

        async def run(raises: bool) -> bool:
            state = "raise" if raises else "ignore"
            with np.errstate(all=state):
                try:
                    await graph.run({"x": X}, fetch=z)
                except af.OpError as error:
                    return error.op_name == "bad" and isinstance(error.__cause__, FloatingPointError)
            return False

        async with graph:
            wanted = [number % 3 == 0 for number in range(60)]
            assert await asyncio.gather(*map(run, wanted)) == wanted

    async def test_a_stream(self, graph: af.Graph) -> None:
        y = ops.sqrt(graph["x"], name="bad")
        feeds = [{"x": np.abs(X)}, {"x": np.abs(X)}, {"x": X}]
        async with graph:
            with np.errstate(invalid="raise"):
                stream, taken = graph.stream(feeds, fetch=y, in_flight=2), 0
                with pytest.raises(af.OpError, match=r"op 'bad' .* failed with FloatingPointError"):
                    async for _ in stream:
                        taken += 1
            assert taken == 2
            assert len([result async for result in graph.stream(feeds, fetch=y)]) == 3

    @pytest.mark.parametrize("is_async", [False, True])
    async def test_functions_raise_by_themselves(self, graph: af.Graph, is_async: bool) -> None:
        def plain(x: np.ndarray) -> Any:
            return 1 / x

        async def waiting(x: np.ndarray) -> Any:
            await asyncio.sleep(0)
            return 1 / x

        y = graph.function("inverse", waiting if is_async else plain, graph["x"].spec)(graph["x"])
        async with graph:
            error = await failing(graph, y, divide="raise")
            assert error.op_name == "inverse"
            with np.errstate(divide="ignore"):
                assert np.isinf((await graph.run({"x": X}))[y][1])

    async def test_an_update_that_would_be_nan_is_not_made(self, graph: af.Graph) -> None:
        w = graph.variable("w", (4,), init=1.0)
        [w, graph["x"]] >> graph.op("update", ops.Divide()) >> [w]
        async with graph:
            with (
                np.errstate(all="raise"),
                pytest.raises(af.OpError, match=r"op 'update' .*division by zero"),
            ):
                await graph.run({"x": X})
            np.testing.assert_array_equal(w.value, np.ones(4))

    def test_when(self) -> None:
        assert traps_here() is None
        with np.errstate(all="raise"):
            assert traps_here() == (True, True)
            with np.errstate(all="warn"):
                assert traps_here() is None
            with np.errstate(invalid="ignore"):
                assert traps_here() == (False, True)
        with np.errstate(under="raise", invalid="warn", divide="print", over="call"):
            assert traps_here() is None
        assert traps_here() is None

    async def test_feeds_and_variables_are_no_arithmetic(self, graph: af.Graph) -> None:
        with np.errstate(all="raise"):
            w = graph.variable("w", (4,), init=[1e-50, 1e50, 1, 2])
            y = ops.add(graph["x"], w)
            async with graph:
                assert np.isinf((await graph.run({"x": [1e-50, 1e50, 0, 0]}))[y][1])


@pytest.mark.parametrize("kind", sorted({*CASES} - OF_LAPACK))
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 0.0, 3e38, 1e-45])
async def test_kernels_do_not_warn(kind: str, special: float, request: pytest.FixtureRequest) -> None:
    """On a lane and on the loop alike; warnings are errors here."""
    operation, inputs = CASES[kind]
    if kind == "NormFactor" and special < 0:
        pytest.skip("a sum of squares is not negative")
    arrays = []
    for each in map(np.asarray, inputs):
        chosen = np.arange(each.size).reshape(each.shape) % 3 == 0
        arrays.append(np.where(chosen, special, each).astype(each.dtype) if each.dtype.kind == "f" else each)
    graph = af.Graph("g")
    blobs = [graph.blob(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
    graph.apply(operation, *blobs, name="op")
    async with graph:
        await graph.run(dict(zip(blobs, arrays, strict=True)))
        request.getfixturevalue("calls_count_as_short")
        await graph.run(dict(zip(blobs, arrays, strict=True)))
