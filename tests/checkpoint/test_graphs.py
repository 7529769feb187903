"""Graphs as files: whatever a graph is comes back in another process, and computes the same to the bit."""

import ast
import asyncio
import dataclasses
import json
import math
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.checkpoint import file
from actorflow.checkpoint.file import Tensor, dtype_code
from actorflow.checkpoint.values import Names, Reader, UnsavableError, Writer, kinds, names_in, packed
from actorflow.ops.fft import Fft, Ifft, Irfft, Rfft
from actorflow.ops.fills import Constant, numbers
from actorflow.ops.function import Emitting
from actorflow.ops.fused import Followed
from actorflow.ops.nn.resize import Resize
from actorflow.ops.operation import SAVABLE, Operation
from actorflow.ops.together import Together
from actorflow.ops.transfer import Receive, Send, Stage, Transfer
from actorflow.place import Place
from actorflow.spec import Length, TensorSpec, axis, following, minimum
from actorflow.transport.local import LocalWorld
from tests.operations import operations, samples
from tests.support.effort import FULL, slow
from tests.support.graph_files import Case, differences, emitted, half, structure
from tests.support.random_graphs import OpenGraphs, RandomGraph
from tests.support.waiting import frames_begun

pytest.importorskip("safetensors")
pytest.importorskip("safetensors.numpy")

ROOT = Path(__file__).parents[2]


async def check_in_another_process(folder: Path, count: int) -> None:
    """Check that another process computes what the cases of a folder say."""
    command = [sys.executable, "-W", "error", "-m", "tests.support.graph_files", str(folder)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = await process.communicate()
    assert (process.returncode, said.decode().strip()) == (0, f"{count} files")


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [[0], *slow([range(1, 260) if FULL else [2, 3]])], ids=["one", "more"])
async def test_random_graphs(seeds: Sequence[int], tmp_path: Path) -> None:
    count, saved = len(seeds), 0
    for seed in seeds:
        subject = RandomGraph(seed)
        async with subject.graph:
            await subject.run(1)  # so that variables and random streams are on their way
            blobs, frames = subject.blobs, [subject.fed, subject.fed]
            saved += await Case(tmp_path, f"closed{seed}", subject.graph, blobs, frames, [subject.graph]).save()
        several = OpenGraphs(seed)
        graph = several.graphs[0]
        async with graph:
            frames = [several.feeds(0, lengths) for lengths in range(3)]
            saved += await Case(tmp_path, f"open{seed}", graph, [each.open for each in several.fetch], frames).save()
    assert saved > 1.9 * count
    await check_in_another_process(tmp_path, saved)


OPTIMIZERS: tuple[Callable[[], nn.Optimizer], ...] = (
    lambda: nn.SGD(nn.rates.Warmup(nn.rates.Cosine(0.1, 10), 2), momentum=0.9, weight_decay=0.01),
    lambda: nn.Adam(0.01, clip=nn.Clip(norm=0.5)),
    lambda: nn.AdamW(nn.rates.MultiStep(0.01, (1, 3))),
    lambda: nn.Adagrad(nn.rates.StepDecay(0.1, 2)),
    lambda: nn.RMSProp(nn.rates.Poly(0.01, 9), momentum=0.5, centered=True),
    lambda: nn.SGD(nn.rates.Fixed(0.1), multipliers=nn.bias_multipliers, nesterov=True, momentum=0.5),
)
#: A model, and the shape of what it takes; that of images has the batch first.
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "MLP": (lambda: nn.MLP(3, (8, 8), activation="tanh", dropout=0.1), (6, 4, 4, 1)),
    "LeNet": (lambda: nn.LeNet(3, (4, 4, 8)), (6, 16, 16, 1)),
    "NIN": (lambda: nn.NIN(3, (4, 8)), (3, 12, 12, 2)),
    "VGG": (lambda: nn.VGG(3, size=11, width=4, hidden=16), (2, 32, 32, 2)),
    "ResNet": (lambda: nn.ResNet(3, width=4, small_images=True), (3, 8, 8, 2)),
    "ResNet50": (lambda: nn.ResNet(3, size=50, width=2, small_images=True), (3, 8, 8, 2)),
    "MobileNetV3": (lambda: nn.MobileNetV3(3, size="small"), (3, 32, 32, 2)),
    "Inception": (lambda: nn.Inception(2, 3, 4, 5, 6, 8), (2, 5, 6, 7)),
    "NINBlock": (lambda: nn.NINBlock(3, (4, 5)), (2, 6, 6, 3)),
    "LSTM": (lambda: nn.LSTM(3, 2, seed=1, peepholes=True, bidirectional=True), (5, 4, 3)),
    "GRU": (lambda: nn.GRU(3, 2, seed=1, bidirectional=True), (5, 4, 3)),
    "RNN": (lambda: nn.RNN(6, 1, seed=1), (5, 4, 3)),
    "LSTMCell": (lambda: nn.LSTMCell(5), (4, 3)),
    "LSTMLanguageModel": (lambda: nn.LSTMLanguageModel(11, features=5, hidden=4, layers=2), (6, 2)),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(4, 2), (2, 5, 4)),
}
LARGE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "AlexNet": (lambda: nn.AlexNet(10), (1, 227, 227, 3)),
    "VGG16": (lambda: nn.VGG(10), (1, 224, 224, 3)),
    "GoogLeNet": (lambda: nn.GoogLeNet(3), (2, 224, 224, 3)),
}


#: One whose variables are of both kinds: weights, and what is known of batches.
QUICK = ["NINBlock"]


@pytest.mark.parametrize("names", [QUICK, *slow([[*MODELS, *LARGE] if FULL else [*MODELS]])], ids=["some", "all"])
async def test_models_with_optimizers(names: list[str], tmp_path: Path) -> None:
    """A training goes on where it was saved."""
    for i, name in enumerate(names):
        make, shape = (MODELS | LARGE)[name]
        graph, random = af.Graph(name, deterministic=True), np.random.default_rng(i)
        if name == "LSTMLanguageModel":
            x, value = graph.blob("x", shape, "int64"), random.integers(0, 11, shape)
        else:
            in_time = name in ("LSTM", "GRU", "RNN")  # which comes before the batch
            opened = (shape[0], "batch", *shape[2:]) if in_time else ("batch", *shape[1:])
            x, value = graph.blob("x", opened), random.standard_normal(shape, "float32")
        top = make()(x)
        tops = [*top] if isinstance(top, tuple) else [top]
        loss = ops.add(*[ops.sum(ops.square(y)) for y in tops[:2]]) if len(tops) > 1 else ops.sum(ops.square(tops[0]))
        train = OPTIMIZERS[i % len(OPTIMIZERS)]().minimize(loss)
        async with graph:
            await graph.run({x: value}, fetch=[train])
            await Case(tmp_path, name, graph, [loss, *tops], [{x: value}] * 2, [train]).save()
    await check_in_another_process(tmp_path, len(names))


def test_every_model_is_tried() -> None:
    known = {
        name
        for name in nn.__all__
        for each in [getattr(nn, name)]
        if isinstance(each, type) and each.__module__ in ("actorflow.nn.models", "actorflow.nn.recurrent")
    }
    assert known <= {*MODELS, *LARGE}


async def test_frames_go_on_meanwhile(tmp_path: Path) -> None:
    graph = af.Graph("counting")
    count = graph.variable("count", (), "int64")
    one = graph.constant(np.int64(1), name="one")
    [count, one] >> graph.op("add", ops.Sum()) >> [count]
    noise = ops.gaussian(graph, (3,), seed=5)
    path = tmp_path / "g.af"
    async with graph:
        runs = [asyncio.ensure_future(graph.run(fetch=["add", noise])) for _ in range(3)]
        await frames_begun(graph, 3)
        saving = asyncio.ensure_future(graph.save(path))
        await asyncio.sleep(0)
        runs += [asyncio.ensure_future(graph.run(fetch=["add", noise])) for _ in range(3)]
        values = [(await run)[noise] for run in runs]
        await saving
    other = await af.load(path)
    async with other:
        assert other["count"].value == 3
        for value in values[3:]:
            np.testing.assert_array_equal((await other.run(fetch=["add", noise.name]))[noise.name], value)
    assert other["count"].value == 6


@pytest.mark.parametrize("scheme", ["allreduce", "server", "aggregate"])
async def test_several_places(tmp_path: Path, scheme: str) -> None:
    graph = af.Graph("parallel", deterministic=True)
    x, labels = graph.blob("x", ("batch", 6)), graph.blob("labels", ("batch",), "int64")
    places = ["cpu", "sim:0"]
    model = nn.parallel.DataParallel(nn.MLP(3, (4,), dropout=0.3), places, loss=ops.softmax_loss, scheme=scheme)
    loss = model(x, labels)
    train = model.minimize(nn.SGD(nn.rates.Cosine(0.1, 9), momentum=0.9))
    feeds = {x: np.random.default_rng(0).standard_normal((5, 6), "f"), labels: np.arange(5) % 3}
    async with graph:
        await graph.run(feeds, fetch=[train])
        await Case(tmp_path, "parallel", graph, [loss], [feeds] * 2, [train]).save()
    assert await differences(tmp_path / "parallel.af") == []


def test_graphs_of_array_code(tmp_path: Path) -> None:
    graph = af.to_graph(lambda a, b: (a @ b).sum() + a.mean(), TensorSpec.of(("n", 4)), TensorSpec.of((4, 3)))
    graph.save_sync(tmp_path / "g.af")
    other = af.load_sync(tmp_path / "g.af")
    feeds = {blob.name: np.ones(blob.spec.shape if not blob.spec.axes else (2, 4), "f") for blob in graph.sources}
    (found,), (expected,) = other.run_sync(feeds).values(), graph.run_sync(feeds).values()
    assert found == expected
    assert described(other) == described(graph)


# -- what a graph is --------------------------------------------------------------------------------------------------


def built(**options: Any) -> af.Graph:
    """A graph with some of everything that is not an operation."""
    graph = af.Graph("all of it", **options)
    x = graph.blob("x", ("batch", "time", 4))
    w = graph.variable("w", (4, 3), init=nn.init.gaussian(seed=1))
    with graph.subgraph("outer"), graph.at(lane="left", libraries=["numpy"]):
        with graph.subgraph("inner"):
            pass
        y = ops.matmul(x, w)
        graph.replica("copy", w)
    z = graph.blob("z", y.shape)
    for i, operation in enumerate((ops.Tanh(), ops.Scale(0.5), ops.Relu())):
        op = graph.op(f"term{i}", operation, priority=i, timeout=2.5 if i else None, retries=i, backoff=0.25 * i)
        [y] >> op
    for i in (1, 2, 0):  # in which order they add up
        graph[f"term{i}"] >> [z]
    graph.op("forced", ops.Exp(), force_cpu=True)(z)
    early, late = graph.op("early", ops.Exp()), graph.op("late", ops.Exp())
    for op in (late, early):  # in which order gradients add up
        op(z)
    graph["w"].is_state = True
    graph.constant(np.array(["text", "more"]), name="text")
    graph.constant(np.array([1 + 2j], ">c16"), name="swapped")
    graph.function("half", half, x.spec, concurrency=None)(x)
    graph.op("deleted", ops.Exp())(z)
    graph.prune([each for each in graph.sinks if not each.name.startswith("deleted")])
    return graph


def described(graph: af.Graph) -> dict[str, Any]:
    """Everything that can be asked of a graph."""
    found: dict[str, Any] = {"": (graph.name, graph.options._replace(world=None), graph.size, [*graph._store.scopes])}
    for node in graph.nodes:
        what: tuple[Any, ...] = (type(node).__name__, node.id, node.place, node.graph.name)
        if isinstance(node, af.Op):
            what += (node.lane, node.attempts, node.hints, node.priority, node.operation)
            what += tuple(blob.name for blob in (*node.inputs, *node.outputs))
        else:
            assert isinstance(node, af.Blob)
            what += (node.spec, [op.name for op in node.producers], [op.name for op in node.consumers])
        if isinstance(node, af.Variable):
            what += (node.is_state, node.replica_of and node.replica_of.name, node.value.tobytes(), node.value.dtype)
        found[node.name] = what
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "memory_budget": 10_000_000,
            "sequential": True,
            "deterministic": True,
            "dry_run": True,
            "stall_limit": 2,
            "block_limit": 0.5,
            "libraries": ["onednn", "numpy"],
            "force_cpu": True,
            "devices": {
                "sim:0": af.devices.SimOptions(latency_s=0.5, libraries=("numpy",)),
                "cpu": af.devices.DeviceOptions(),
            },
            "capture": True,
            "fuse": False,
            "trace_capacity": 100,
            "max_plans": 7,
        },
    ],
)
def test_everything_comes_back(tmp_path: Path, options: dict[str, Any]) -> None:
    graph = built(**options)
    graph.save_sync(tmp_path / "g.af")
    other = af.load_sync(tmp_path / "g.af", functions=["tests.support.graph_files:half"])
    assert described(other) == described(graph)
    assert other["text"].operation.value.tolist() == ["text", "more"]
    assert other["swapped"].operation.value.dtype.str == ">c16"
    assert graph.unique_name("term0") == other.unique_name("term0")
    other.save_sync(tmp_path / "again.af")
    assert structure(tmp_path / "again.af") == structure(tmp_path / "g.af")
    assert "g.af" in str(other["half"].site)


def test_limits_of_who_loads(tmp_path: Path) -> None:
    af.Graph("g", memory_budget=100, max_plans=7).save_sync(tmp_path / "g.af")
    for limits in ({}, {"memory_budget": 1 << 20}, {"max_plans": 3}, {"memory_budget": 5, "max_plans": 1}):
        options = af.load_sync(tmp_path / "g.af", **limits).options
        wanted = {"memory_budget": 100, "max_plans": 7} | limits
        assert (options.memory_budget_bytes, options.max_plans) == (wanted["memory_budget"], wanted["max_plans"])
    for name in ("memory_budget", "max_plans"):
        with pytest.raises(af.GraphError, match=f"{name} must be at least 1, got 0"):
            af.load_sync(tmp_path / "not there", **{name: 0})


def test_an_empty_graph(tmp_path: Path) -> None:
    af.Graph("empty").save_sync(tmp_path / "g.af")
    assert described(af.load_sync(tmp_path / "g.af")) == described(af.Graph("empty"))


def test_ids_of_graphs_of_which_nearly_all_was_deleted_are_numbered_anew(tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2,))
    for _ in range(4_000):
        y = ops.relu(x)
    graph.prune([y])
    graph.save_sync(tmp_path / "g.af")
    other = af.load_sync(tmp_path / "g.af")
    assert [(node.id, node.name) for node in other.nodes] == [(i, node.name) for i, node in enumerate(graph.nodes)]


def test_replicas_begin_as_what_they_copy(tmp_path: Path) -> None:
    graph = af.Graph("g")
    graph.variable("w", (3,), init=[1, 2, 3])
    graph.save_sync(tmp_path / "g.af")
    other = af.load_sync(tmp_path / "g.af")
    other["w"].value = [4, 5, 6]
    assert other.replica("v", other["w"]).value.tolist() == [1, 2, 3]
    assert other["w"].value.tolist() == [4, 5, 6]


def test_each_rank_saves_its_own(tmp_path: Path) -> None:
    worlds = LocalWorld(2).transports
    for rank in range(2):
        graph = af.Graph("g", world=worlds[rank])
        for i in range(2):
            graph.variable(f"w{i}", (), init=i + 1, place=f"{i}/cpu")
        graph.save_sync(tmp_path / f"{rank}.af")
    graph = af.load_sync(tmp_path / "0.af")
    assert graph["w0"].value == 1
    assert graph["w1"].place == Place(1)
    with pytest.raises(af.PlaceError, match="is on rank 1"):
        _ = graph["w1"].value
    with pytest.raises(af.GraphError, match="was saved by rank 0"):
        _ = graph["w1"].held
    with pytest.raises(af.CheckpointError, match=r"1\.af: variable 'w0': its value is on rank 0, rank 1 has saved"):
        af.load_sync(tmp_path / "1.af")


# -- parts, and models ------------------------------------------------------------------------------------------------


class TestParts:
    def graph(self) -> tuple[af.Graph, af.Blob, af.Blob]:
        graph = af.Graph("net")
        x, labels = graph.blob("x", ("batch", 4)), graph.blob("labels", ("batch",), "int64")
        net = nn.InnerProduct(6, name="front") >> nn.BatchNorm(name="norm") >> nn.InnerProduct(3, name="back")
        scores = net(x, training=True)
        with graph.subgraph("test"):
            tested = net(x, training=False)
        nn.Adam(0.1).minimize(ops.softmax_loss(scores, labels))
        graph.function("other", lambda x: x, x.spec)(x)  # which could not be saved
        return graph, x, tested

    async def test_it_has_what_the_targets_need(self, tmp_path: Path) -> None:
        graph, x, tested = self.graph()
        before = described(graph)
        await graph.save(tmp_path / "g.af", fetch=[tested])
        assert described(graph) == before
        other = await af.load(tmp_path / "g.af")
        assert {op.graph.name for op in other.ops} == {f"test/chain/{name}" for name in ("front", "norm", "back")}
        assert {each.name for each in other.variables} == {
            *("chain/front/weight", "chain/front/bias", "chain/norm/scale", "chain/norm/shift"),
            *("chain/norm/running_mean", "chain/norm/running_variance", "chain/back/weight", "chain/back/bias"),
        }
        assert not any(each.is_state for each in other.variables)
        assert [blob.name for blob in other.sources] == ["x"]
        value = np.random.default_rng(0).standard_normal((5, 4)).astype("f")
        async with graph, other:
            expected = (await graph.run({x: value}, fetch=tested))[tested]
            np.testing.assert_array_equal((await other.run({"x": value}))[tested.name], expected)

    async def test_names_of_inputs_and_outputs(self, tmp_path: Path) -> None:
        graph, x, tested = self.graph()
        model = af.Model(graph, {"image": x}, {"scores": tested, "again": tested, "shown": x})
        await model.save(tmp_path / "g.af")
        loaded = af.Model.of(await af.load(tmp_path / "g.af"))
        assert repr(loaded) == repr(model)
        await loaded.graph.save(tmp_path / "again.af")
        assert structure(tmp_path / "again.af") == structure(tmp_path / "g.af")
        value = np.ones((2, 4), "f")
        async with graph, loaded.graph:
            found, expected = await loaded.run({"image": value}), await model.run({"image": value})
        assert [*found] == [*expected] == ["scores", "again", "shown"]
        for name in found:
            np.testing.assert_array_equal(found[name], expected[name])

    def test_outputs_are_what_was_fetched(self, tmp_path: Path) -> None:
        graph = af.Graph("g")
        x, y = graph.blob("x", (2,)), graph.blob("y", (2,))
        middle = ops.exp(x)
        last = ops.add(middle, y)
        graph.save_sync(tmp_path / "g.af", fetch=[last, middle])
        model = af.Model.of(af.load_sync(tmp_path / "g.af"))
        assert ([*model.inputs], [*model.outputs]) == (["x", "y"], [last.name, middle.name])
        graph.save_sync(tmp_path / "g.af", fetch={"sum": last}, inputs={"b": "y", "a": "x"})
        model = af.Model.of(af.load_sync(tmp_path / "g.af"))
        assert ([*model.inputs], [*model.outputs]) == (["b", "a"], ["sum"])
        graph.save_sync(tmp_path / "g.af", fetch=middle, inputs={"a": x, "unused": y})
        assert [*af.Model.of(af.load_sync(tmp_path / "g.af")).inputs] == ["a", "unused"]
        graph.save_sync(tmp_path / "g.af", fetch=["exp"])
        assert [*af.Model.of(af.load_sync(tmp_path / "g.af")).outputs] == ["exp/out"]

    @pytest.mark.together(
        ("options", "message"),
        [
            ({"inputs": {"a": "x"}}, "inputs have names only beside outputs"),
            ({"fetch": ["no"]}, "has no blob, op or sub-graph named 'no'"),
            ({"fetch": {"y": "exp"}}, "inputs and outputs must be blobs, got <Op 'exp'"),
            ({"fetch": {"y": "exp/out"}, "inputs": {}}, "the outputs need x, which is no input"),
            ({"fetch": {"y": "exp/out"}, "inputs": {"x": "exp"}}, "inputs and outputs must be blobs, got <Op 'exp'"),
        ],
    )
    def test_what_is_no_part(self, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        graph = af.Graph("g")
        ops.exp(graph.blob("x", (2,)))
        with pytest.raises(af.GraphError, match=message):
            graph.save_sync(tmp_path / "g.af", **options)

    def test_a_sub_graph_cannot_be_saved(self, tmp_path: Path) -> None:
        with pytest.raises(af.GraphError, match="'part' is a sub-graph: save its root 'g'"):
            af.Graph("g").subgraph("part").save_sync(tmp_path / "g.af")

    def test_what_is_not_complete_cannot(self, tmp_path: Path) -> None:
        graph = af.Graph("g")
        y = ops.exp(graph.blob("x", (2,)))
        graph.op("open", ops.Relu())
        with pytest.raises(af.GraphError, match=r"op 'open' .* is missing its inputs"):
            graph.save_sync(tmp_path / "g.af")
        graph.save_sync(tmp_path / "g.af", fetch=y)
        assert len(af.load_sync(tmp_path / "g.af").ops) == 1

    async def test_sync_forms_are_for_scripts(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match=r"use Graph\.save\(\)"):
            af.Graph("g").save_sync(tmp_path / "g.af")
        with pytest.raises(RuntimeError, match=r"use load\(\)"):
            af.load_sync(tmp_path / "g.af")

    async def test_a_graph_that_changes_meanwhile(self, tmp_path: Path) -> None:
        graph, entered, go_on = af.Graph("g"), asyncio.Event(), asyncio.Event()
        w = graph.variable("w", (2,))
        y = ops.exp(w)

        async def wait(value: np.ndarray) -> np.ndarray:
            entered.set()
            await go_on.wait()
            return value + 1

        [w] >> graph.function("wait", wait) >> [w]
        async with graph:
            run = asyncio.ensure_future(graph.run(fetch=["wait"]))
            await entered.wait()
            saving = asyncio.ensure_future(graph.save(tmp_path / "g.af", fetch=y))
            await asyncio.sleep(0)
            graph.blob("z", (2,))
            go_on.set()
            with pytest.raises(af.GraphError, match="graph 'g' was changed while it was saved"):
                await saving
            await run
            await graph.save(tmp_path / "g.af", fetch=y)
        assert af.Model.of(await af.load(tmp_path / "g.af")).graph["w"].value.tolist() == [1, 1]


# -- operations -------------------------------------------------------------------------------------------------------


def through_a_file(value: Any, *functions: Any) -> Any:
    """A value, written and read."""
    writer = Writer()
    text = json.dumps(writer.write(value, "op"), allow_nan=False)
    tensors = {}
    for name, array in writer.arrays.items():
        array = packed(array)
        tensors[name] = Tensor(dtype_code(array.dtype) or "", array.shape, bytearray(array.tobytes()))
    names = Names(functions)
    assert all(names.allows(name) for name in names_in(json.loads(text)))
    return Reader(names, tensors).read(json.loads(text))


def test_every_operation_comes_back() -> None:
    tried: dict[Any, list[Operation]] = {}
    for _, sample in samples():
        tried.setdefault(type(sample.operation), []).append(sample.operation)
    planned = {Followed, Receive, Send, Stage, Together, Transfer}
    every = {kind for kind in operations() - planned if getattr(sys.modules[kind.__module__], kind.__name__) is kind}
    for kind in every - set(tried):
        defaults = {"group": "g", "ranks": (0, 1), "function": SAVED, "given": (axis("n"), 2)}
        defaults["fn"] = emitted if kind is Emitting else half
        given = {
            field.name: defaults.get(field.name, 1)
            for field in dataclasses.fields(kind)
            if field.default is dataclasses.MISSING and field.init
        }
        if "spec" in given:
            given["spec"] = TensorSpec.of((axis("n"), 2))
        tried[kind] = [kind(**given)]
    assert len(every) > 190
    for kind in every:
        assert kinds()[kind.__name__] is kind
        for operation in tried[kind]:
            found = through_a_file(operation, half, emitted)
            assert found == operation or str(found) == str(operation)  # NaN is not equal to itself
            assert type(found) is kind
            for field in dataclasses.fields(kind):
                if field.init:
                    assert type(getattr(found, field.name)) is type(getattr(operation, field.name))


def test_operations_of_plans_cannot_be_saved() -> None:
    with pytest.raises(UnsavableError, match="Send is an operation that plans are made of"):
        Writer().write(Send(1, "edge"), "op")
    assert "Send" not in kinds()


SAVED = next(iter(sorted(SAVABLE, key=lambda each: each.__qualname__)))


def test_functions_of_lengths_can_be_saved() -> None:
    """All that the package gives `numbers` and `following` may stand in files."""
    given = set()
    for path in (ROOT / "actorflow" / "ops").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called in ("following", "numbers", "_beside") and "cuda" not in path.parts and len(node.args) > 1:
                first = node.args[1 if called == "_beside" else 0]
                if isinstance(first, ast.Name) and first.id not in ("function", "other"):
                    given.add(f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{first.id}")
    assert len(given) > 10
    names = Names([])
    assert [name for name in sorted(given) if not names.allows(name)] == []


@pytest.mark.together(
    "value",
    [
        *(None, True, 0, -1, 2**127, "", "text \u1234 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")),
        *(0.1, -0.0, math.inf, -math.inf, 1e-310, 3 - 4j, complex(math.inf, -0.0)),
        *((), (1, (2.0, "x"), None), [1, [2]], {"a": 1, 2: (3,)}, slice(None, 3, -1), ..., b"\x00\xff"),
        *(np.dtype("float32"), np.dtype(">i2"), np.dtype("<U7"), np.dtype("datetime64[ns]"), np.dtype(object)),
        *(np.float32(0.1), np.int8(-3), np.bool_(True), np.complex128(1 + 2j), np.str_("ab"), np.float16("nan")),
        *(TensorSpec.of((3, 0)), TensorSpec.of(("n", 2), "int8"), TensorSpec.of((), object)),
        *(
            axis("n"),
            axis("n") * 3 - 2,
            (axis("n") + 5) // 3 * axis("m"),
            minimum(axis("n"), 7),
            axis("a") // axis("b"),
        ),
        *(Place.parse("1/cuda:2"), ops.Relu(), ops.Step(ops.Relu(), (0,))),
        *(nn.rates.Warmup(nn.rates.Cosine(0.1, 5), 3), following(SAVED, axis("n"))),
        *(numbers(half, axis("n"), shape=(axis("n"),)), len, np.tanh),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_values_come_back(value: Any) -> None:
    found = through_a_file(value, half, len, np.tanh)
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    assert found == value or found != found  # NaN


def test_a_nan_keeps_its_bits() -> None:
    for text in ("010000000000f87f", "00000000000ff8ff"):
        value = float(np.frombuffer(bytes.fromhex(text), "<f8")[0])
        assert np.float64(through_a_file(value)).tobytes().hex() == text


@pytest.mark.together(
    "array",
    [
        *(np.arange(6).reshape(2, 3)[:, ::2], np.zeros((0, 3), "f2"), np.array(1.5), np.array([[True, False]])),
        *(np.array(["a", "bcd"]), np.array([b"a", b"bcd"]), np.arange(3, dtype=">f4"), np.array([1 + 1j], "c16")),
        *(np.array(["2020-01-01"], "M8[D]"), np.arange(3, dtype=np.longdouble), np.array([], "U3")),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_arrays_come_back(array: np.ndarray) -> None:
    found = through_a_file(array)
    assert (found.dtype.str, found.shape, found.tobytes()) == (array.dtype.str, array.shape, array.tobytes())
    constant = through_a_file(Constant(array))
    assert constant.value.dtype == array.dtype


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_small_dtypes_come_back(tmp_path: Path, name: str) -> None:
    """In a process that has not loaded what gives them to NumPy."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    graph, dtype = af.Graph("g"), np.dtype(getattr(ml_dtypes, name))
    graph.variable("w", (3,), dtype, np.arange(3).astype(dtype))
    graph.save_sync(tmp_path / "g.af")
    program = f"import actorflow as af; print(af.load_sync({str(tmp_path / 'g.af')!r})['w'].value)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[0 1 2]"


# -- what is named ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Thrice(Operation):
    """An operation of the user's."""

    factor: float = 3.0
    note: Any = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return inputs

    def compute(self, *inputs: Any) -> Any:
        return inputs[0] * self.factor


@dataclasses.dataclass(frozen=True)
class Adds:
    """A function with a parameter."""

    what: float

    def __call__(self, x: np.ndarray) -> Any:
        return x + np.float32(self.what)


class Hidden(Thrice):
    """One whose fields do not say all of it."""

    def __init__(self, secret: int) -> None:
        object.__setattr__(self, "factor", 1.0)
        object.__setattr__(self, "note", None)
        object.__setattr__(self, "secret", secret)


decorating = af.Graph("decorating")


@decorating.function(outputs=TensorSpec.of((2,)))
def decorated(x: np.ndarray) -> Any:
    return x * 2


HERE = __name__


class TestNames:
    def graph(self) -> af.Graph:
        graph = af.Graph("g")
        x = graph.blob("x", (2,))
        graph.function("half", half, x.spec)(x)
        graph.function("adds", Adds(2.0), x.spec)(x)
        graph.apply(Thrice(note=(1, Adds(3.0))), x)
        graph.function("decorated", decorated.operation.fn, x.spec)(x)
        return graph

    NAMES = ("tests.support.graph_files:half", f"{HERE}:Adds", f"{HERE}:Thrice", f"{HERE}:decorated")

    def test_they_must_be_allowed(self, tmp_path: Path) -> None:
        path = tmp_path / "g.af"
        self.graph().save_sync(path)
        with pytest.raises(af.CheckpointError) as refused:
            af.load_sync(path)
        for name in self.NAMES:
            assert name in str(refused.value)
        assert f"functions=[{', '.join(map(repr, self.NAMES))}]" in str(refused.value)
        with pytest.raises(af.CheckpointError, match=rf"g\.af: the file names what is not allowed: {HERE}:Thrice \(op"):
            af.load_sync(path, functions=[half, Adds, decorated])

    @pytest.mark.parametrize("allowed", [NAMES, (half, Adds, Thrice, decorated)])
    def test_they_are_found(self, tmp_path: Path, allowed: Any) -> None:
        graph = self.graph()
        graph.save_sync(tmp_path / "g.af")
        other = af.load_sync(tmp_path / "g.af", functions=allowed)
        value = np.array([1, 2], "f")
        expected, found = graph.run_sync({"x": value}), other.run_sync({"x": value})
        assert [*found] == [*expected]
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])

    def test_what_has_no_name_is_named_at_once(self, tmp_path: Path) -> None:
        def local(x: Any) -> Any:
            return x

        graph = self.graph()
        x = graph["x"]
        with graph.subgraph("part"):
            graph.function("first", lambda x: x, x.spec)(x)
        graph.function("second", local, x.spec)(x)
        graph.function("third", partial(half), x.spec)(x)
        graph.function("fourth", "text".join, x.spec)(x)
        graph.apply(Hidden(1), x, name="fifth")
        graph.apply(Thrice(note={1, 2}), x, name="sixth")
        nn.SGD(lambda step: 0.1).minimize(ops.sum(nn.InnerProduct(2)(ops.reshape(x, (1, 2)))))
        with pytest.raises(af.CheckpointError) as refused:
            graph.save_sync(tmp_path / "g.af")
        head, *lines = str(refused.value).splitlines()
        assert head == "graph 'g' cannot be saved: 7 parts of it have no form in a file:"
        said = "\n".join(lines)
        for text in (
            "'part/first': ",
            "<lambda> is a lambda",
            "'second'",
            "local to a function",
            "'third'",
            "'fourth'",
        ):
            assert text in said
        assert "'fifth': Hidden has an __init__ of its own: make it a dataclass" in said
        assert "'sixth': field note of Thrice: there is no form for values of type builtins.set" in said
        assert "op 'sgd/schedule': field fn of Function: field policy of _Schedule: " in said
        assert all(f"created at {__file__}:" in line for line in lines)
        assert not (tmp_path / "g.af").exists()

    def test_what_is_not_there_any_more(self, tmp_path: Path) -> None:
        path = tmp_path / "g.af"
        self.graph().save_sync(path)
        rewrite(path, lambda text: text.replace("graph_files:half", "graph_files:third"))
        with pytest.raises(af.CheckpointError, match=r"node 1: .*graph_files:third cannot be found: AttributeError"):
            af.load_sync(path, functions=["tests.support.graph_files:third", Adds, Thrice, decorated])

    @pytest.mark.together(
        "name",
        [
            *("os:system", "builtins:exec", "actorflow.checkpoint.file:write_file", "actorflow.nn.optim:np.load"),
            *(
                "actorflow.ops.function:name_of",
                "actorflow.__main__:x",
                "actorflow.nn.no:x",
                "nothing",
                "a:b:c",
                ":",
                "",
            ),
        ],
    )
    def test_nothing_else_is_found(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "g.af"
        self.graph().save_sync(path)
        rewrite(path, lambda text: text.replace("tests.support.graph_files:half", name))
        with pytest.raises(af.CheckpointError, match=r"not allowed|unknown operation"):
            af.load_sync(path, functions=[Adds, Thrice, decorated])

    @pytest.mark.together("wrong", ["half", [3], [lambda: 0], 5, [None]])
    def test_wrong_leave(self, tmp_path: Path, wrong: Any) -> None:
        with pytest.raises(af.GraphError, match="functions"):
            af.load_sync(tmp_path / "g.af", functions=wrong)


@pytest.mark.together(
    ("operation", "old", "new"),
    [
        *[
            (kind(3, 1), '"axis": 1', f'"axis": {axis}')
            for kind in (Fft, Ifft, Irfft, Rfft)
            for axis in (-3, 2, 1 << 80)
        ],
        (Irfft(3, 1), '"axis": 1', '"axis": true'),
        (Irfft(3, 1), '"points": 3', f'"points": {1 << 62}'),
        (Resize(1, 3), '"axis": 1', '"axis": -1'),
        (ops.Slice((1,)), '"key": [1]', '"key": [true]'),
        (ops.Slice((1,)), '"key": [1]', '"key": ["index"]'),
        (ops.OneHot(3, np.dtype("f4")), '"depth": 3', f'"depth": {1 << 62}'),
    ],
)
def test_parameters_that_lead_to_no_type_are_refused(tmp_path: Path, operation: Any, old: str, new: str) -> None:
    """Whatever a file says, what kernels are given and give has the types that the graph says."""
    graph = af.Graph("g")
    graph.apply(operation, graph.blob("x", (4, 8), "int64" if isinstance(operation, ops.OneHot) else "float32"))
    path = tmp_path / "g.af"
    graph.save_sync(path)
    assert old in structure(path).decode()
    rewrite(path, lambda text: text.replace(old, new))
    with pytest.raises(af.CheckpointError, match=r"g\.af: "):
        af.load_sync(path)


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Change the JSON of a file."""
    with zipfile.ZipFile(path) as file:
        text, tensors = file.read("graph.json").decode(), file.read("weights.safetensors")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("graph.json", change(text))
        file.writestr("weights.safetensors", tensors)


def test_lengths_refuse_what_is_none() -> None:
    for bad in (
        *(None, 3, [], [[1]], [[1, "a"], [1, "a"]], [[True, "a"]], [[1.0, "a"]], [[1, "b"], [1, "a"]], [[1, "b", "a"]]),
        *([[1, "a b"]], [[1, ["//", 3, 0]]], [[0, "a"]], [[1, ["//", [[1, "a"]], "b"]]], {"a": 1}, "ab", [["2", "a"]]),
        *([[1, ["**", [[1, "a"]], 2]]], [[math.nan, "a"]], [[1, ["//", True, 2]]]),
    ):
        with pytest.raises(af.ShapeError):
            Length.of_formula(bad)
    length = axis("x")
    with pytest.raises(af.ShapeError, match="at most 1000 are allowed"):
        for _ in range(60):
            length = (length * (length + 1) + 1) // 3


def test_saving_clears_what_a_killed_process_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, path = af.Graph("g"), tmp_path / "m[1].af"
    graph.blob("x", (2,)) + 1.0
    killed = (
        "import os, actorflow as af\n"
        "graph = af.Graph('g')\n"
        "graph.blob('x', (2,)) + 1.0\n"
        "os.replace = lambda *_: os._exit(9)\n"
        f"graph.save_sync({str(path)!r})"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    number = next(file._numbers) + 1  # of the next folder, as in a process that has the number of a killed one
    own = tmp_path / f".m[1].af.{os.getpid()}-{number}.tmp"
    own.mkdir()
    others = [tmp_path / f".m[1].af.{os.getppid()}-0.tmp", tmp_path / ".m1.af.1-0.tmp", tmp_path / ".m[1].af.x.tmp"]
    for folder in others:
        folder.mkdir()
    graph.save_sync(path)
    assert not left.exists()
    assert not own.exists()
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])  # of one that lives, and what is none
    assert af.load_sync(path)["x"].shape == (2,)


def test_folders_of_saves_that_are_under_way_stay(tmp_path: Path) -> None:
    seen = []

    def write(temporary: Path) -> None:
        file.write_atomically(tmp_path / "a", lambda inner: seen.append(inner.write_bytes(b"inner")))
        assert temporary.parent.exists()
        temporary.write_bytes(b"outer")

    file.write_atomically(tmp_path / "a", write)
    assert (tmp_path / "a").read_bytes() == b"outer"
    assert seen == [5]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
