"""NaN and infinities that are looked for: an error that names the op, wherever it runs; else no news."""

import asyncio
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.graph.options import FiniteCheck
from actorflow.plan import fuse
from tests.operations import EACH, PARTICULAR

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
        fused = ops.Fused((ops.Step(ops.Sqrt(), (0,)), ops.Step(ops.Exp(), (1,))), (1,))
        y = graph.apply(fused, graph["x"], name="chain")
        async with graph:
            assert (await failing(graph, y, invalid="raise")).op_name == "chain"

    @pytest.mark.together("kind", EACH)
    async def test_nothing_is_an_error_of_what_is_none(self, kind: str) -> None:
        operation, inputs = EACH[kind]
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
        graph = af.Graph("g")
        assert graph._check_here() is None
        with np.errstate(all="raise"):
            assert graph._check_here() == FiniteCheck(kernels_of_host=True)
            with np.errstate(all="warn"):
                assert graph._check_here() is None
            with np.errstate(invalid="ignore"):
                assert graph._check_here() == FiniteCheck(nan=False, kernels_of_host=True)
        with np.errstate(under="raise", invalid="warn", divide="print", over="call"):
            assert graph._check_here() is None
        assert graph._check_here() is None
        graph.check_finite = FiniteCheck(infinity=False, pause=True)
        assert graph._check_here() == FiniteCheck(infinity=False, pause=True)
        with np.errstate(all="raise"):
            assert graph._check_here() == FiniteCheck()

    async def test_feeds_and_variables_are_no_arithmetic(self, graph: af.Graph) -> None:
        with np.errstate(all="raise"):
            w = graph.variable("w", (4,), init=[1e-50, 1e50, 1, 2])
            y = ops.add(graph["x"], w)
            async with graph:
                assert np.isinf((await graph.run({"x": [1e-50, 1e50, 0, 0]}))[y][1])


@pytest.mark.together("kind", sorted({*EACH} - PARTICULAR))
async def test_kernels_do_not_warn(kind: str, request: pytest.FixtureRequest) -> None:
    """On a lane and on the loop alike; warnings are errors here."""
    operation, inputs = EACH[kind]
    graph, feeds = af.Graph("g"), []
    blobs = [graph.blob(f"x{i}", array.shape, array.dtype) for i, array in enumerate(inputs)]
    graph.apply(operation, *blobs, name="op")
    for special in (np.nan, np.inf, -np.inf, 0.0, 3e38, 1e-45):
        chosen = [np.arange(each.size).reshape(each.shape) % 3 == 0 for each in inputs]
        arrays = [
            np.where(here, special, each).astype(each.dtype) if each.dtype.kind == "f" else each
            for here, each in zip(chosen, inputs, strict=True)
        ]
        feeds.append(dict(zip(blobs, arrays, strict=True)))
    async with graph:
        for fed in feeds:
            await graph.run(fed)
        request.getfixturevalue("calls_count_as_short")
        for fed in feeds:
            await graph.run(fed)


def planted(graph: af.Graph, x: af.Blob, depth: int, at: int, width: int) -> str:
    """Make layers of ops whose values are finite, but for one op that takes a logarithm of -1; returns its name."""
    layer = [x] * width
    for level in range(depth):
        made = []
        for column in range(width):
            other = layer[(column * 7 + level) % width]
            value = ops.tanh(ops.add(layer[column], other), name=f"tanh{level}.{column}")
            if level * width + column == at:
                value = ops.log(ops.subtract(ops.scale(value, 0.0), graph.constant(1.0)), name="bad")
            made.append(value)
        layer = made
    return "bad"


class TestOfGraphs:
    @pytest.mark.parametrize("sequential", [False, True])
    async def test_the_first_op_of_many_is_named_with_its_frame(self, sequential: bool) -> None:
        for at in (0, 57, 166, 249):
            graph = af.Graph("g", check_finite=True, sequential=sequential)
            name = planted(graph, graph.blob("x", (3,)), 10, at, 25)
            async with graph:
                for number in range(3):
                    with pytest.raises(af.NotFiniteError, match=r"the result has 3 NaN, the inputs none") as caught:
                        await graph.run({"x": [0.1, 0.2, 0.3]})
                    error = caught.value
                    assert (error.op_name, error.frame) == (name, number)
                    assert f"created at {__file__}:" in str(error)
                    (held,) = error.inputs.values()
                    assert (held.minimum, held.maximum, held.shape) == (-1.0, -1.0, (3,))
                    assert error.results[0].nan == 3

    async def test_what_has_no_such_values_is_the_same_to_the_bit(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (64, 9))
        y = ops.softmax(ops.tanh(ops.scale(x, 3.0)))
        feed = np.random.default_rng(1).normal(size=(64, 9)).astype("f")
        async with graph:
            plain = (await graph.run({x: feed}, fetch=y))[y].copy()
            graph.check_finite = True
            np.testing.assert_array_equal((await graph.run({x: feed}, fetch=y))[y], plain)

    async def test_it_is_set_between_runs(self, graph: af.Graph) -> None:
        y = ops.log(graph["x"], name="bad")
        async with graph:
            assert np.isnan((await graph.run({"x": X}, fetch=y))[y][2])
            graph.check_finite = True
            assert graph.check_finite == FiniteCheck()
            with pytest.raises(af.NotFiniteError):
                await graph.run({"x": X}, fetch=y)
            graph.check_finite = False
            assert graph.check_finite is None
            assert np.isnan((await graph.run({"x": X}, fetch=y))[y][2])

    async def test_the_part_of_a_chain_is_named(self) -> None:
        graph = af.Graph("g", check_finite=True)
        y = ops.tanh(ops.log(ops.scale(graph.blob("x", (4,)), -1.0), name="bad"))
        async with graph:
            with pytest.raises(af.NotFiniteError, match="op 'bad'"):
                await graph.run({"x": np.ones(4, "f")}, fetch=y)

    async def test_masks_may_be_infinite(self) -> None:
        graph = af.Graph("g", check_finite=FiniteCheck(infinity=False))
        x, mask = graph.blob("x", (1, 4)), graph.blob("mask", (1, 4))
        y = ops.softmax(ops.add(x, ops.log(mask)))
        feeds = {x: [[1, 2, 3, 4]], mask: [[1, 0, 0, 0]]}
        async with graph:
            np.testing.assert_array_equal((await graph.run(feeds, fetch=y))[y], [[1, 0, 0, 0]])
            graph.check_finite = True
            with pytest.raises(af.NotFiniteError, match="3 infinite"):
                await graph.run(feeds, fetch=y)

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("inputs", [0, 1])
    async def test_functions(self, graph: af.Graph, is_async: bool, inputs: int) -> None:
        graph.check_finite = True

        def plain(*arrays: np.ndarray) -> Any:
            return np.array([1.0, np.nan]), 3.0

        async def waiting(*arrays: np.ndarray) -> Any:
            await asyncio.sleep(0)
            return plain(*arrays)

        specs = af.TensorSpec.of(2, "float64"), af.TensorSpec.of((), "float64")
        op = graph.function("strange", waiting if is_async else plain, specs)
        y, _ = op(*[graph["x"]] * inputs)
        async with graph:
            for _ in range(4):
                with pytest.raises(af.NotFiniteError, match="op 'strange'") as caught:
                    await graph.run({"x": X} if inputs else {}, fetch=y)
                assert [each.nan for each in caught.value.results] == [1, 0]
                assert len(caught.value.inputs) == inputs
                replayed = caught.value.replay()
                assert np.isnan((await replayed if is_async else replayed)[0][1])

    async def test_a_simulated_accelerator(self) -> None:
        graph = af.Graph("g", check_finite=True)
        x = graph.blob("x", (4,), place="sim:0")
        y = ops.tanh(ops.log(x, name="bad"))
        async with graph:
            for number in range(3):
                with pytest.raises(af.NotFiniteError, match="op 'bad'") as caught:
                    await graph.run({x: X}, fetch=y)
                assert caught.value.frame == number
            assert (await graph.run({x: np.ones(4, "f")}, fetch=y))[y].shape == (4,)

    async def test_repeated_calls(self, graph: af.Graph) -> None:
        graph.check_finite = True
        calls = []

        def flaky(x: np.ndarray) -> Any:
            calls.append(1)
            return x / (len(calls) - 1) if len(calls) > 1 else np.full_like(x, np.nan)

        y = graph.function("flaky", flaky, graph["x"].spec, retries=1)(graph["x"])
        async with graph:
            np.testing.assert_array_equal((await graph.run({"x": X}, fetch=y))[y], X)

    async def test_constants_that_are_computed_once(self) -> None:
        graph = af.Graph("g")
        y = ops.add(graph.blob("x", ()), ops.log(graph.constant(-1.0), name="bad"))
        async with graph:
            await graph.run({"x": 1}, fetch=y)  # it is known then, and looked at all the same
            graph.check_finite = True
            with pytest.raises(af.NotFiniteError, match="op 'bad'") as caught:
                await graph.run({"x": 1}, fetch=y)
            assert caught.value.frame is None

    @pytest.mark.parametrize("wrong", ["pause", 1, {}])
    def test_what_it_takes(self, wrong: Any) -> None:
        with pytest.raises(af.GraphError, match="check_finite must be True, False or a FiniteCheck"):
            af.Graph("g", check_finite=wrong)
        with pytest.raises(af.GraphError, match="check_finite must be True, False or a FiniteCheck"):
            af.Graph("g").check_finite = wrong

    async def test_the_error_goes_through_pickle(self, graph: af.Graph) -> None:
        graph.check_finite = True
        y = ops.log(graph["x"], name="bad")
        async with graph:
            with pytest.raises(af.NotFiniteError) as caught:
                await graph.run({"x": X}, fetch=y)
        error = pickle.loads(pickle.dumps(caught.value))
        assert type(error) is af.NotFiniteError
        assert (error.op_name, error.frame, error.results) == ("bad", 0, caught.value.results)
        with pytest.raises(af.GraphError, match="inputs were not kept"):
            error.to_graph()


class TestPausing:
    async def test_it_warns_and_pauses(self, graph: af.Graph, caplog: pytest.LogCaptureFixture) -> None:
        graph.check_finite = FiniteCheck(pause=True)
        y = ops.tanh(ops.log(graph["x"], name="bad"))
        async with graph:
            assert graph.not_finite is None
            for number in range(3):
                assert np.isnan((await graph.run({"x": X}, fetch=y))[y][2])
                found = graph.not_finite
                assert found is not None
                assert (found.op_name, found.frame) == ("bad", number)
                assert graph.paused is not None
                assert graph.paused.reason == "as op 'bad' has made what is not finite"
                assert f"frame {number}: op 'bad'" in caplog.records[-1].getMessage()
                assert np.isnan(found.replay()[0][2])
                waiting = asyncio.ensure_future(graph.run({"x": np.ones(4, "f")}, fetch=y))
                await asyncio.sleep(0)
                assert graph.paused.waiting == 1
                graph.resume()
                assert np.isfinite((await waiting)[y]).all()
                graph.engine.next_number -= 1  # the frames that find something have the numbers 0, 1 and 2

    async def test_the_first_one_is_kept(self, graph: af.Graph) -> None:
        graph.check_finite = FiniteCheck(pause=True)
        outputs = [ops.log(graph["x"], name=f"bad{i}") for i in range(5)]
        async with graph:
            await graph.run({"x": X}, fetch=outputs)
            first = graph.not_finite
            assert first is not None
            graph.step()
            await graph.run({"x": X}, fetch=outputs)
            assert graph.not_finite is first
            assert len(graph.engine.errors) == 10


class TestTakenElsewhere:
    async def test_a_call_that_failed(self, graph: af.Graph, tmp_path: Path) -> None:
        graph.check_finite = True
        with graph.subgraph("net"):
            w = graph.variable("w", (4,), init=[1, 2, 3, 4])
            y = ops.divide(w, graph["x"], name="bad")
        async with graph:
            for _ in range(2):
                with pytest.raises(af.NotFiniteError) as caught:
                    await graph.run({"x": X}, fetch=y)
        assert "in frame 1" in caught.value.__notes__
        alone = caught.value.to_graph()
        await alone.save(tmp_path / "call.af")
        loaded = await af.load(tmp_path / "call.af")
        assert [op.name for op in loaded.ops] == ["bad"]
        np.testing.assert_array_equal(loaded["x"].value, X)
        np.testing.assert_array_equal(loaded["net.w"].value, [1, 2, 3, 4])
        loaded.check_finite = True
        async with loaded, alone:
            for each in (loaded, alone):
                with pytest.raises(af.NotFiniteError, match="op 'bad'") as again:
                    await each.run()
                assert again.value.frame == 1

    async def test_inputs_of_a_call_are_told_apart_by_whole_names(self) -> None:
        graph = af.Graph("g", check_finite=True)
        x = graph.blob("x", (1,))
        small, large = ops.scale(x, 0.0, name="small"), ops.scale(x, 3.0, name="large")
        y = ops.divide(large, small, name="bad")
        async with graph:
            with pytest.raises(af.NotFiniteError) as caught:
                await graph.run({"x": [1]}, fetch=y)
        alone = caught.value.to_graph()
        assert {each.name: each.value.tolist() for each in alone.variables} == {"large.out": [3], "small.out": [0]}

    async def test_a_call_that_is_repeated_leaves_its_inputs_alone(self) -> None:
        """Also where a run would let the kernel write into them."""
        graph = af.Graph("g", check_finite=True)
        y = ops.log(ops.scale(graph.blob("x", (3,)), -1.0), name="bad")
        async with graph:
            for _ in range(3):
                with pytest.raises(af.NotFiniteError) as caught:
                    await graph.run({"x": np.array([1, 2, 3], "f")}, fetch=y)
                for _ in range(2):
                    with pytest.raises(FloatingPointError, match="has 3 NaN, the inputs none"):
                        caught.value.replay()
                np.testing.assert_array_equal(caught.value.to_graph().variables[0].value, [-1, -2, -3])

    async def test_one_with_random_numbers_has_the_same(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (64,))
        dropped = ops.dropout(x, 0.5, name="drop")
        y = graph.function("refuse", lambda value: 1 / 0 if value.sum() < 1e9 else value, x.spec)(dropped)
        async with graph:
            for _ in range(3):
                with pytest.raises(af.OpError) as caught:
                    await graph.run({x: np.ones(64, "f")}, fetch=y)
        assert caught.value.frame == 2
        alone = caught.value.to_graph()
        async with alone:
            with pytest.raises(af.OpError, match="ZeroDivisionError"):
                await alone.run()
        assert alone.variables[0].value.tolist() == caught.value._replay.args[0][0].tolist()  # type: ignore[union-attr]

    async def test_what_was_fused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fuse, "LARGE_BYTES", 0)
        graph = af.Graph("g")
        y = ops.add(ops.scale(graph.blob("x", (3,)), 2.0), graph.blob("z", (3,)))
        async with graph:
            await graph.run({"x": np.ones(3, "f"), "z": np.ones(3, "f")}, fetch=y)
            (actor,) = graph.engine.program(None, {}).ops
        alone = actor.to_graph([np.ones(3, "f"), np.full(3, 2, "f")], 7)
        async with alone:
            np.testing.assert_array_equal((await alone.run())[alone.sinks[0]], [4, 4, 4])

    async def test_python_objects_stay_here(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (), object)
        graph.function("fail", lambda value: 1 / 0, af.TensorSpec.of((), object))(x)
        async with graph:
            with pytest.raises(af.OpError) as caught:
                await graph.run({x: "text"})
        with pytest.raises(af.GraphError, match="its input 'x' is a Python object"):
            caught.value.to_graph()
