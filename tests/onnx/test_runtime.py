"""Parts of models that ONNX Runtime computes: ops that can be stopped, fail by name, and keep to their cores."""

import asyncio
import os
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.core import FOREVER_NS
from actorflow.threads import cores
from tests.support.waiting import HELD_S, held_limits
from tests.support.warm import ROOT, run_program

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from actorflow.onnx.runtime import OnnxRuntime, Session  # noqa: E402

LIMIT_S = 60  # only a failing test waits


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any] | None = None) -> bytes:
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers or [])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def floats(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def double_model() -> bytes:
    """y = x + x, of rows of 3."""
    return model([helper.make_node("Add", ["x", "x"], ["y"])], [floats("x", "n", 3)], [floats("y", "n", 3)])


def endless_model() -> bytes:
    """y = x, after as many turns of a loop as ``turns`` says."""
    turns = helper.make_tensor_value_info("turns", TensorProto.INT64, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            floats("v", 2),
        ],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), floats("w", 2)],
    )
    return model(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)], [turns, floats("x", 2)], [floats("y", 2)]
    )


class Graph:
    """A graph with one op that ONNX Runtime computes."""

    def __init__(
        self,
        model: bytes,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        threads: int | None = None,
        **options: Any,
    ) -> None:
        self.graph = af.Graph("onnx", **options)
        self.inputs = {name: self.graph.blob(name, *spec) for name, spec in inputs.items()}
        self.session = Session("model.onnx", model, list(inputs), list(outputs), threads)
        takes = tuple([blob.spec for blob in self.inputs.values()])
        gives = tuple([af.TensorSpec.of(*spec) for spec in outputs.values()])
        found = self.graph.op("model", OnnxRuntime(self.session, takes, gives))(*self.inputs.values())
        self.outputs = dict(zip(outputs, (found,) if len(outputs) == 1 else found, strict=True))

    async def run(self, timeout: float | None = None, **values: Any) -> Any:
        feeds = {self.inputs[name]: value for name, value in values.items()}
        return await self.graph.run(feeds, fetch=list(self.outputs.values()), timeout=timeout)


class TestCalls:
    async def test_open_axes(self) -> None:
        made = Graph(double_model(), {"x": (("n", 3),)}, {"y": (("n", 3),)})
        async with made.graph:
            for rows in (1, 4, 0, 7):
                x = np.arange(3.0 * rows, dtype="f").reshape(rows, 3)
                result = await made.run(x=x)
                assert np.array_equal(result[made.outputs["y"]], 2 * x)
                assert result.lengths == {"n": rows}

    async def test_batched_runs(self) -> None:
        made = Graph(double_model(), {"x": (("n", 3),)}, {"y": (("n", 3),)})
        x, y = made.inputs["x"], made.outputs["y"]
        async with made.graph, made.graph.batched(fetch=y, max_rows=8) as batcher:
            rows = [np.full((1, 3), number, "f") for number in range(20)]
            results = await asyncio.gather(*[batcher.run({x: row}) for row in rows])
            assert all(np.array_equal(result[y], 2 * row) for result, row in zip(results, rows, strict=True))
            assert batcher.statistics().frames < len(rows)

    async def test_strided_feeds(self) -> None:
        made = Graph(double_model(), {"x": ((2, 3),)}, {"y": ((2, 3),)})
        async with made.graph:
            x = np.arange(24, dtype="f").reshape(4, 6)[::2, ::-2]
            assert np.array_equal((await made.run(x=x))[made.outputs["y"]], 2 * x)

    async def test_the_session_is_made_at_once_and_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made_by = self.watched(monkeypatch)
        made = Graph(double_model(), {"x": (("n", 3),)}, {"y": (("n", 3),)})
        assert made_by == [threading.current_thread()]
        async with made.graph:
            await asyncio.gather(*[made.run(x=np.ones((rows, 3), "f")) for rows in (1, 2, 3, 1)])
        assert len(made_by) == 1

    async def test_it_is_made_anew_on_the_lane_for_other_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made_by = self.watched(monkeypatch)
        made = Graph(double_model(), {"x": (("n", 3),)}, {"y": (("n", 3),)}, threads=cores() + 1)
        async with made.graph:
            await asyncio.gather(*[made.run(x=np.ones((rows, 3), "f")) for rows in (1, 2, 3, 1)])
            assert made.session._made.get_session_options().intra_op_num_threads == cores()
        assert len(made_by) == 2
        assert made_by[1] is not threading.current_thread()

    def watched(self, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
        """The threads that make sessions from now on."""
        import onnxruntime

        threads = []

        def made_here(*args: Any, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return create(*args, **options)

        create = onnxruntime.InferenceSession
        monkeypatch.setattr(onnxruntime, "InferenceSession", made_here)
        return threads

    @pytest.mark.parametrize(
        ("options", "threads"), [({}, cores()), ({"deterministic": True}, 1), ({"sequential": True}, 1)]
    )
    async def test_threads(self, options: Any, threads: int) -> None:
        made = Graph(double_model(), {"x": ((1, 3),)}, {"y": ((1, 3),)}, **options)
        async with made.graph:
            await made.run(x=np.ones((1, 3), "f"))
            assert made.session._made.get_session_options().intra_op_num_threads == threads

    async def test_the_threads_of_several_lanes_are_no_more_than_the_cores(self) -> None:
        made = Graph(double_model(), {"x": ((1, 3),)}, {"y": ((1, 3),)})
        lanes = max(2, cores())
        for number in range(lanes - 1):
            made.graph.function(f"other{number}", lambda x: x, made.inputs["x"].spec, lane=f"lane{number}")(
                made.inputs["x"]
            )
        async with made.graph:
            await made.graph.run({made.inputs["x"]: np.ones((1, 3), "f")})
            assert made.session._made.get_session_options().intra_op_num_threads == max(1, cores() // lanes)


class TestStopping:
    def endless(self) -> Graph:
        return Graph(endless_model(), {"turns": ((), "int64"), "x": ((2,),)}, {"y": ((2,),)})

    async def test_a_timeout(self) -> None:
        made, x = self.endless(), np.ones(2, "f")
        async with made.graph:
            await made.run(turns=np.int64(1), x=x)
            with pytest.raises(af.RunTimeoutError):
                await made.run(turns=np.int64(2**62), x=x, timeout=0.05)
            # Its lane has come free.
            assert np.array_equal((await made.run(turns=np.int64(1), x=x))[made.outputs["y"]], x)
            op = made.graph["model"]
            assert made.graph.engine.profile[op.id].failed == 0

    async def test_a_timeout_of_the_op(self) -> None:
        graph = af.Graph("onnx")
        turns, x = graph.blob("turns", (), "int64"), graph.blob("x", (2,))
        session = Session("model.onnx", endless_model(), ["turns", "x"], ["y"])
        y = graph.op("model", OnnxRuntime(session, (turns.spec, x.spec), (x.spec,)), timeout=HELD_S)(turns, x)
        async with graph:
            with held_limits() as end_limits:
                run = asyncio.create_task(graph.run({turns: np.int64(2**62), x: np.ones(2, "f")}, fetch=y))
                while not graph.engine.running or not any(
                    fence.begun for fence in graph.engine.running[0].outstanding.values()
                ):
                    await asyncio.sleep(0)
                end_limits()
            with pytest.raises(af.OpTimeoutError):
                await run
            result = await graph.run({turns: np.int64(1), x: np.ones(2, "f")}, fetch=y)
            assert np.array_equal(result[y], [1, 1])

    async def test_a_cancellation(self) -> None:
        made, x = self.endless(), np.ones(2, "f")
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        class Spy:
            def run(self, *args: Any) -> Any:
                loop.call_soon_threadsafe(begun.set)
                return session.run(*args)

        async with made.graph:
            await made.run(turns=np.int64(1), x=x)
            session = made.session._made
            made.session._made = Spy()
            task = asyncio.create_task(made.run(turns=np.int64(2**62), x=x))
            async with asyncio.timeout(LIMIT_S):
                await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            made.session._made = session
            assert np.array_equal((await made.run(turns=np.int64(1), x=x))[made.outputs["y"]], x)

    async def test_what_has_loops_never_runs_on_the_event_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "actorflow.runtime.build.kernel_inline_ns", lambda: FOREVER_NS
        )  # as if each call were short
        loaded = af.onnx.load(endless_model(), backend="onnxruntime")
        x, threads = np.ones(2, "f"), []

        class Spy:
            def run(self, *args: Any) -> Any:
                threads.append(threading.current_thread())
                return session.run(*args)

        async with loaded.graph:
            await loaded.run({"turns": np.int64(1), "x": x})
            operation = next(op.operation for op in loaded.graph.ops if isinstance(op.operation, OnnxRuntime))
            session = operation.session._made
            operation.session._made = Spy()
            for _ in range(4):
                await loaded.run({"turns": np.int64(1), "x": x})
            assert threading.main_thread() not in threads
            assert len(threads) == 4
            with pytest.raises(af.RunTimeoutError):
                await loaded.run({"turns": np.int64(2**62), "x": x}, timeout=0.05)

    async def test_the_end_of_the_graph(self) -> None:
        made, x = self.endless(), np.ones(2, "f")
        async with made.graph:
            await made.run(turns=np.int64(1), x=x)
            task = asyncio.create_task(made.run(turns=np.int64(2**62), x=x))
            await asyncio.sleep(0)
            made.graph.cancel()
            with pytest.raises(af.RunCancelledError):
                await task


class TestErrors:
    @pytest.mark.parametrize("sequential", [False, True])  # on a lane, and on the loop
    async def test_a_node_that_fails(self, capfd: pytest.CaptureFixture[str], sequential: bool) -> None:
        indices = helper.make_tensor_value_info("i", TensorProto.INT64, [1])
        node = helper.make_node("Gather", ["x", "i"], ["y"], name="pick")
        made = Graph(
            model([node], [floats("x", 3), indices], [floats("y", 1)]),
            {"x": ((3,),), "i": ((1,), "int64")},
            {"y": ((1,),)},
            sequential=sequential,
        )
        async with made.graph:
            with pytest.raises(af.OpError, match=r"(?s)op 'model' \(OnnxRuntime\(model.onnx\)\).*Name:'pick'"):
                await made.run(x=np.ones(3, "f"), i=np.array([5]))
            result = await made.run(x=np.array([1, 2, 3], "f"), i=np.array([2]))
            assert result[made.outputs["y"]] == 3
        assert capfd.readouterr() == ("", "")

    def test_a_model_that_it_cannot_compute(self, capfd: pytest.CaptureFixture[str]) -> None:
        node = helper.make_node("NoSuchThing", ["x"], ["y"], name="what")
        with pytest.raises(af.GraphError, match=r"onnxruntime cannot compute the model: .*\(\"what\", NoSuchThing"):
            Session("model.onnx", model([node], [floats("x", 1)], [floats("y", 1)]), ["x"], ["y"])
        assert capfd.readouterr() == ("", "")

    def test_a_file_that_it_cannot_compute(self) -> None:
        node = helper.make_node("Relu", ["x"], ["y"], name="bend")
        made = onnx.load_from_string(model([node], [floats("x", 1)], [floats("y", 1)]))
        made.opset_import[0].version = 5
        with pytest.raises(af.GraphError, match=r"cannot compute the model: .*Relu"):
            af.onnx.load(made.SerializeToString(), backend="onnxruntime")

    async def test_an_output_of_another_shape(self) -> None:
        made = Graph(double_model(), {"x": (("n", 3),)}, {"y": ((2, 3),)})
        async with made.graph:
            with pytest.raises(af.OpError, match=r"output y must be float32\[2, 3\], got float32\[5, 3\]"):
                await made.run(x=np.ones((5, 3), "f"))

    @pytest.mark.parametrize(
        ("inputs", "error", "message"),
        [
            ([((2, 3), "float32")], af.ShapeError, r"x must be float32\[4, 3\], got float32\[2, 3\]"),
            ([((4, 3), "float64")], af.DTypeError, r"x must be float32\[4, 3\], got float64"),
            ([], af.GraphError, r"takes 1 inputs \(x\), got 0"),
        ],
    )
    def test_other_inputs(self, inputs: Any, error: Any, message: str) -> None:
        graph = af.Graph("onnx")
        spec = af.TensorSpec.of((4, 3))
        operation = OnnxRuntime(Session("model.onnx", double_model(), ["x"], ["y"]), (spec,), (spec,))
        with pytest.raises(error, match=message):
            graph.op("model", operation)(*[graph.blob(f"x{n}", *given) for n, given in enumerate(inputs)])

    def test_it_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(af.MissingExtraError, match=r"pip install 'actorflow\[onnxruntime\]'"):
            Session("model.onnx", double_model(), ["x"], ["y"])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_child_of_a_fork_has_a_session_of_its_own() -> None:
    text = """
        import asyncio
        import numpy as np
        import actorflow as af
        from tests.onnx.test_runtime import Graph, double_model
        from tests.support.forking import fork

        made = Graph(double_model(), {"x": (("n", 3),)}, {"y": (("n", 3),)})

        def compute():
            x = np.ones((500_000, 3), "f")  # enough for its threads
            result = asyncio.run(made.run(x=x))
            assert np.array_equal(result[made.outputs["y"]], 2 * x)

        compute()
        session = made.session._made
        def child():
            compute()
            assert made.session._made is not session  # whose threads are the parent's

        fork(child)
        compute()
        assert made.session._made is session
        asyncio.run(made.graph.aclose())
    """
    done = run_program("-c", textwrap.dedent(text), folder=ROOT)
    assert done.returncode == 0, done.stderr


#: By name: a node, what it is fed first, its weights, and the shapes of what it gives, open in "n" and "t".
FATAL: dict[str, tuple[dict[str, Any], tuple[Any, ...], dict[str, tuple[int, ...]], list[tuple[Any, ...]]]] = {
    "LSTM": ({"hidden_size": 2}, ("t", "n", 3), {"w": (1, 8, 3), "r": (1, 8, 2)}, [("t", 1, "n", 2), (1, "n", 2)]),
    "GRU": ({"hidden_size": 2}, ("t", "n", 3), {"w": (1, 6, 3), "r": (1, 6, 2)}, [("t", 1, "n", 2), (1, "n", 2)]),
    "RNN": ({"hidden_size": 2}, ("t", "n", 3), {"w": (1, 2, 3), "r": (1, 2, 2)}, [("t", 1, "n", 2), (1, "n", 2)]),
    "ConvTranspose": ({}, ("n", 1, "t", 4, 4), {"w": (1, 2, 3, 3, 3)}, [("n", 2, "t+2", 6, 6)]),
}
PROGRAM = """
import numpy as np
import actorflow as af
from onnx import helper, numpy_helper
from tests.onnx.test_runtime import FATAL, floats, model

for kind, (attributes, shape, weights, gives) in FATAL.items():
    names = [f"y{i}" for i in range(len(gives))]
    constants = [numpy_helper.from_array(np.ones(each, "f"), name) for name, each in weights.items()]
    node = helper.make_node(kind, ["x", *weights], names, **attributes)
    outputs = [floats(name, *each) for name, each in zip(names, gives)]
    with af.onnx.load(model([node], [floats("x", *shape)], outputs, constants), backend="onnxruntime").graph as graph:
        for lengths in ((0, 5), (5, 0), (0, 0), (5, 4)):
            n, t = lengths
            x = np.ones([{"n": n, "t": t}.get(each, each) for each in shape], "f")
            try:
                print(kind, n, t, *[value.shape for value in graph.run_sync({"x": x}).values()])
            except af.OpError as error:
                print(kind, n, t, type(error.__cause__).__name__, "backend='actorflow'" in str(error))
"""


@pytest.mark.slow
def test_arrays_without_elements_do_not_end_the_process() -> None:
    """A server takes whatever rows it is sent: none, too."""
    found = run_program("-c", PROGRAM, folder=ROOT)
    assert (found.returncode, found.stderr[-1000:]) == (0, "")
    lines = found.stdout.splitlines()
    for kind in ("LSTM", "GRU", "RNN"):
        assert f"{kind} 0 5 (5, 1, 0, 2) (1, 0, 2)" in lines
        assert f"{kind} 0 0 (0, 1, 0, 2) (1, 0, 2)" in lines
        assert f"{kind} 5 4 (4, 1, 5, 2) (1, 5, 2)" in lines
    assert "GRU 5 0 GraphError True" in lines  # what it gives is not empty then
    assert "ConvTranspose 0 5 (0, 2, 7, 6, 6)" in lines
    assert "ConvTranspose 5 0 GraphError True" in lines


DIVISION = """
import sys
import numpy as np
import actorflow as af
from onnx import TensorProto, helper, numpy_helper
from tests.onnx.test_runtime import model

def values(name, *shape, dtype=TensorProto.INT64):
    return helper.make_tensor_value_info(name, dtype, shape)

for kind in (TensorProto.INT32, TensorProto.INT64):
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    a = np.array([np.iinfo(dtype).min, 7, -7, 6], dtype)
    given = [values("a", "n", dtype=kind), values("b", "m", dtype=kind)]
    divide = helper.make_node("Div", ["a", "b"], ["y"], "ratio")
    turns = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Div", ["v", "b"], ["w"])]
    inner = [values("i"), values("go", dtype=TensorProto.BOOL), values("v", "n", dtype=kind)]
    body = helper.make_graph(turns, "body", inner, [values("on", dtype=TensorProto.BOOL), values("w", "n", dtype=kind)])
    loop = helper.make_node("Loop", ["once", "", "a"], ["y"], body=body)
    once = [numpy_helper.from_array(np.array(1), "once")]
    for node, constants in ((divide, []), (loop, once)):
        loaded = af.onnx.load(model([node], given, [values("y", "n", dtype=kind)], constants), backend="onnxruntime")
        with loaded.graph:
            for b in ([-1], [2], [-1, -2, 2, 3]):
                print(loaded.run_sync({"a": a, "b": np.array(b, dtype)})["y"].tolist())
"""


@pytest.mark.slow
def test_the_least_integer_is_divided_by_minus_one() -> None:
    """As a trap of the processor, which would end the process; here and in a loop."""
    found = run_program("-c", DIVISION, folder=ROOT)
    assert (found.returncode, found.stderr[-1000:]) == (0, "")
    lines = iter(found.stdout.splitlines())
    for bits in (32, 32, 64, 64):  # as NumPy's numbers wrap around, rounded towards 0
        least = -(2 ** (bits - 1))
        assert next(lines) == str([least, -7, 7, -6])
        assert next(lines) == str([least // 2, 3, -3, 3])
        assert next(lines) == str([least, -3, -3, 2])


class TestSettings:
    def test_threads_and_options(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for settings, threads in (({"threads": 2}, 2), ({"session_options": options}, 3),
                                  ({"session_options": options, "threads": 1}, 1)):  # fmt: skip
            loaded = af.onnx.load(double_model(), backend="onnxruntime", providers=["CPUExecutionProvider"], **settings)
            with loaded.graph:
                assert loaded.run_sync({"x": np.ones((2, 3), "f")})["y"].tolist() == [[2] * 3] * 2
                (op,) = loaded.graph.ops
                assert isinstance(op.operation, OnnxRuntime)
                made = op.operation.session._made.get_session_options()
            assert made.intra_op_num_threads == threads
            assert (made.graph_optimization_level == options.graph_optimization_level) == (
                "session_options" in settings
            )

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"providers": ["Nobody"]}, "onnxruntime has no provider 'Nobody' here, only .*CPUExecutionProvider"),
            ({"providers": "CPUExecutionProvider"}, "providers must be a list"),
            ({"session_options": {}}, "session_options must be an onnxruntime.SessionOptions, got dict"),
            ({"threads": 0}, "threads must be"),
            ({"threads": 1, "backend": "actorflow"}, "threads are for backend='onnxruntime'"),
        ],
    )
    def test_what_cannot_be(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises((af.GraphError, TypeError, ValueError), match=message):
            af.onnx.load(double_model(), **{"backend": "onnxruntime", **settings})
