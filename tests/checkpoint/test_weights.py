"""Weights alone: of a graph or a part of one, in any other graph, under any other scope."""

import asyncio
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.checkpoint.file import read_file
from actorflow.transport.local import LocalWorld

safetensors = pytest.importorskip("safetensors")
pytest.importorskip("safetensors.numpy")

BATCH = 4


class Network:
    """A network with a normalization, which has running statistics, and an optimizer, which has states."""

    def __init__(self, scope: str | None = None, training: bool = False, seed: int = 0) -> None:
        self.graph = graph = af.Graph("network")
        self.x, self.labels = graph.blob("x", (BATCH, 5)), graph.blob("labels", (BATCH,), "int64")
        init = nn.init.gaussian(1.0, seed=seed)
        self.front = nn.InnerProduct(6, weight_init=init, name="front")
        self.norm, self.back = nn.BatchNorm(name="norm"), nn.InnerProduct(3, weight_init=init, name="back")
        self.net = self.front >> self.norm >> self.back
        self.net.name = scope or "chain"
        self.scores = self.net(self.x, training=training)
        if training:
            with graph.subgraph("test"):
                self.test = self.net(self.x, training=False)
            self.loss = ops.softmax_loss(self.scores, self.labels)
            self.train = nn.Adam(0.1).minimize(self.loss)

    def values(self) -> dict[str, np.ndarray]:
        return {variable.name: variable.value for variable in self.graph.variables}

    async def trained(self) -> None:
        random = np.random.default_rng(0)
        for _ in range(3):
            x = random.standard_normal((BATCH, 5)).astype("f")
            await self.graph.run({self.x: x, self.labels: random.integers(0, 3, BATCH)}, fetch=[self.train])


def probe() -> np.ndarray:
    return np.random.default_rng(9).standard_normal((BATCH, 5)).astype("f")


async def test_an_inference_graph_computes_what_the_trained_one_does(tmp_path: Path) -> None:
    trained, other = Network(training=True), Network(seed=1)
    async with trained.graph, other.graph:
        await trained.trained()
        await af.save_weights(trained.graph, tmp_path / "w")
        expected = (await trained.graph.run({trained.x: probe()}, fetch=[trained.test]))[trained.test]
        assert await af.load_weights(other.graph, tmp_path / "w") == ((), ())
        found = (await other.graph.run({other.x: probe()}))[other.scores]
    np.testing.assert_array_equal(found, expected)
    names = read_file(tmp_path / "w").tensors.keys()
    assert names == {f"chain/{name}" for name in WEIGHTS}
    assert len([name for name in trained.values() if name.startswith("adam")]) == 2 + 2 * 6


WEIGHTS = [
    "front/weight",
    "front/bias",
    "norm/scale",
    "norm/shift",
    "norm/running_mean",
    "norm/running_variance",
    "back/weight",
    "back/bias",
]


@pytest.mark.parametrize("save", [lambda network: network.net, lambda network: network.graph["chain"]])
@pytest.mark.parametrize("load", [lambda network: network.net, lambda network: network.graph["inner"]])
def test_names_are_those_within_the_scope(tmp_path: Path, save: Any, load: Any) -> None:
    trained, other = Network(training=True), Network("inner", seed=1)
    af.save_weights_sync(save(trained), tmp_path / "w")
    assert read_file(tmp_path / "w").tensors.keys() == set(WEIGHTS)
    assert af.load_weights_sync(load(other), tmp_path / "w") == ((), ())
    for name in WEIGHTS:
        np.testing.assert_array_equal(other.values()[f"inner/{name}"], trained.values()[f"chain/{name}"])


def test_one_layer_is_saved_and_loaded_and_nothing_else_is_touched(tmp_path: Path) -> None:
    trained, other = Network(training=True), Network(training=True, seed=1)
    before = other.values()
    af.save_weights_sync(trained.front, tmp_path / "w")
    assert read_file(tmp_path / "w").tensors.keys() == {"weight", "bias"}
    af.load_weights_sync(other.front, tmp_path / "w")
    after = other.values()
    changed = {name for name in after if after[name].tobytes() != before[name].tobytes()}
    assert changed == {"chain/front/weight"}  # the biases of both are 0
    np.testing.assert_array_equal(after["chain/front/weight"], trained.values()["chain/front/weight"])
    with pytest.raises(
        af.CheckpointError, match=r"does not fit 'chain/back': variable .*F32\[3, 6\], the file has F32\[6, 5\]"
    ):
        af.load_weights_sync(other.back, tmp_path / "w")
    assert {name: value.tobytes() for name, value in other.values().items()} == {
        name: value.tobytes() for name, value in after.items()
    }


@pytest.mark.parametrize("prefix", ["chain", "chain/"])
async def test_the_weights_of_a_checkpoint_are_loaded_without_the_rest(tmp_path: Path, prefix: str) -> None:
    trained, other, inner = Network(training=True), Network(seed=1), Network("inner", seed=2)
    async with trained.graph:
        await trained.trained()
        await af.save_checkpoint(trained.graph, tmp_path / "c", {"epoch": 1})
    assert await af.load_weights(other.graph, tmp_path / "c") == ((), ())
    assert await af.load_weights(inner.net, tmp_path / "c", prefix=prefix) == ((), ())
    assert await af.load_weights(inner.front, tmp_path / "c", prefix=f"{prefix.rstrip('/')}/front") == ((), ())
    for name in WEIGHTS:
        np.testing.assert_array_equal(other.values()[f"chain/{name}"], trained.values()[f"chain/{name}"])
        np.testing.assert_array_equal(inner.values()[f"inner/{name}"], trained.values()[f"chain/{name}"])
    assert other.graph.engine.next_number == 0


def test_files_of_other_programs_are_loaded(tmp_path: Path) -> None:
    network = Network()
    arrays = {"weight": np.ones((6, 5), "f"), "bias": np.full(6, 2, "f")}
    safetensors.numpy.save_file(arrays, tmp_path / "w")
    af.load_weights_sync(network.front, tmp_path / "w")
    assert set(network.values()["chain/front/bias"]) == {2}
    # A file of weights is a file of variables: what is in it can be put into a graph like any.
    af.save_weights_sync(network.graph, tmp_path / "own")
    found = af.load_checkpoint_sync(Network(seed=3).graph, tmp_path / "own")
    assert (found.frame, found.position) == (None, {})


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("code", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_floating_values_of_another_dtype_are_converted(tmp_path: Path, code: Any, dtype: str) -> None:
    values = np.array([0.0, -0.0, 1 / 3, -2.5, 6e-8, np.nan, np.inf, -np.inf, 60000]).astype(code)
    safetensors.numpy.save_file({"w": values.reshape(3, 3)}, tmp_path / "w")
    graph = af.Graph("g")
    w = graph.variable("w", (3, 3), dtype)
    assert af.load_weights_sync(graph, tmp_path / "w") == ((), ())
    expected = values.astype(w.dtype).reshape(3, 3)
    assert w.value.dtype == w.dtype
    np.testing.assert_array_equal(w.value.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (np.array([1.0, 1e39]), "float32", r"variable 'w' is F32\[2\], the file has F64\[2\]"),
        (np.array([1.0, 1e5], np.float32), "float16", r"variable 'w' is F16\[2\], the file has F32\[2\]"),
        (np.array([1, 2]), "float32", r"variable 'w' is F32\[2\], the file has I64\[2\]"),
        (np.array([1.0, 2.0]), "int32", r"variable 'w' is I32\[2\], the file has F64\[2\]"),
        (np.array([1.0, 2.0], ml_dtypes.bfloat16), "int32", r"variable 'w' is I32\[2\], the file has BF16\[2\]"),
        (np.array([1.0, 2.0, 3.0], np.float16), "float32", r"variable 'w' is F32\[2\], the file has F16\[3\]"),
    ],
)
def test_other_dtypes_are_refused(tmp_path: Path, values: np.ndarray, dtype: str, expected: str) -> None:
    safetensors.numpy.save_file({"w": values}, tmp_path / "w")
    graph = af.Graph("g")
    w = graph.variable("w", (2,), dtype, init=7)
    with pytest.raises(af.CheckpointError, match=expected):
        af.load_weights_sync(graph, tmp_path / "w")
    assert w.value.tolist() == [7, 7]


def test_names_that_differ_are_errors_or_given_back(tmp_path: Path) -> None:
    network = Network()
    before = network.values()["chain/front/bias"]
    weight = np.ones((6, 5), "f")
    safetensors.numpy.save_file({"weight": weight, "more": np.zeros(1)}, tmp_path / "w")
    with pytest.raises(af.CheckpointError, match="the file lacks 'bias'; the graph has no variable 'more'"):
        af.load_weights_sync(network.front, tmp_path / "w")
    assert af.load_weights_sync(network.front, tmp_path / "w", strict=False) == (("bias",), ("more",))
    np.testing.assert_array_equal(network.values()["chain/front/weight"], weight)
    np.testing.assert_array_equal(network.values()["chain/front/bias"], before)


@pytest.mark.parametrize("strict", [True, False])
def test_nothing_that_matches_is_always_an_error(tmp_path: Path, strict: bool) -> None:
    network = Network()
    af.save_weights_sync(network.front, tmp_path / "front")
    af.save_weights_sync(network.graph, tmp_path / "all")
    message = (
        "no name in it is that of a variable, .*it has 'bias', 'weight', expected 'chain/" if not strict else "lacks"
    )
    with pytest.raises(af.CheckpointError, match=message):
        af.load_weights_sync(network.graph, tmp_path / "front", strict=strict)
    with pytest.raises(af.CheckpointError, match=message):
        af.load_checkpoint_sync(network.graph, tmp_path / "front", strict=strict)
    with pytest.raises(af.CheckpointError, match="lacks" if strict else "expected 'net/weight', 'net/bias'"):
        af.load_weights_sync(network.front, tmp_path / "all", strict=strict, prefix="net")
    safetensors.numpy.save_file({}, tmp_path / "none")
    with pytest.raises(af.CheckpointError, match="lacks" if strict else "it has none, expected"):
        af.load_weights_sync(network.graph, tmp_path / "none", strict=strict)
    bare = af.Graph("bare")
    with pytest.raises(af.CheckpointError, match="no variable" if strict else "expected none"):
        af.load_checkpoint_sync(bare, tmp_path / "front", strict=strict)


def test_what_has_no_weights_is_an_error(tmp_path: Path) -> None:
    network = Network(training=True)
    for scope, message in (
        (nn.InnerProduct(3, name="later"), "composite 'later' has not been built"),
        (network.graph["adam"], "'adam' has no weights"),
        (network.graph["test"], "'test' has no weights"),
        (network.x, "expected a graph, a sub-graph or a composite with weights, got <Blob"),
    ):
        for work in (af.save_weights_sync, af.load_weights_sync):
            with pytest.raises(af.GraphError, match=message):
                work(scope, tmp_path / "w")
    with pytest.raises(af.GraphError, match="expected at least one file"):
        af.load_weights_sync(network.graph, [])
    shared = nn.InnerProduct(6, name="shared")
    graph = af.Graph("g")
    x = graph.blob("x", (2, 6))
    chain = nn.InnerProduct(6, name="own") >> shared
    chain(shared(x))
    with pytest.raises(af.GraphError, match="'shared/weight' of composite 'chain' belongs to another scope"):
        af.save_weights_sync(chain, tmp_path / "w")
    assert not list(tmp_path.iterdir())


async def test_a_graph_that_runs_is_saved_and_loaded_between_frames(tmp_path: Path) -> None:
    graph = af.Graph("slow")
    v, w = (graph.variable(name, (), "int64", init=7) for name in "vw")
    begun, gate = asyncio.Event(), asyncio.Event()

    async def add(w: Any) -> Any:
        begun.set()
        await gate.wait()
        return w + 1

    [w] >> graph.function("add", add) >> [w]
    async with graph:
        await af.save_weights(graph, tmp_path / "first")
        v.value = w.value = 0
        running = asyncio.ensure_future(graph.run())
        await begun.wait()
        saving = asyncio.ensure_future(af.save_weights(graph, tmp_path / "w"))
        for work in (af.save_weights_sync, af.load_weights_sync):
            with pytest.raises(RuntimeError, match="inside a running event loop would block it"):
                work(graph, tmp_path / "w")
        loading = asyncio.ensure_future(af.load_weights(graph, tmp_path / "first"))
        while v.value == 0:  # which no frame updates
            await asyncio.sleep(0)
        assert w.value == 0
        gate.set()
        await asyncio.gather(running, saving, loading)
    assert read_file(tmp_path / "w").tensors["w"].array(np.dtype("int64")) == 1
    assert w.value == 7  # behind the update of the frame


def test_copies_of_weights_are_saved_once_and_all_loaded(tmp_path: Path) -> None:
    def build(transport: Any, ranks: int, seed: int) -> tuple[af.Graph, nn.parallel.DataParallel, Any]:
        graph = af.Graph("g", world=transport)
        x, labels = graph.blob("x", (4, 5)), graph.blob("labels", 4, "int64")
        net = nn.InnerProduct(3, weight_init=nn.init.gaussian(1.0, seed=seed), name="fc")
        model = nn.parallel.DataParallel(net, [f"{rank}/cpu" for rank in range(ranks)], loss=ops.softmax_loss)
        model(x, labels)
        return graph, model, model.minimize(nn.SGD(0.1))

    two, three = LocalWorld(2).transports, LocalWorld(3).transports
    ranks = [build(transport, 2, 0) for transport in two]
    af.save_weights_sync(ranks[0][0], tmp_path / "all")
    af.save_weights_sync(ranks[1][1].replicas[1], tmp_path / "second")
    for transport, scope in zip(two, ranks, strict=True):
        if transport.rank:
            with pytest.raises(af.GraphError, match="'g' has no weights on rank 1, or copies alone"):
                af.save_weights_sync(scope[0], tmp_path / "none")
    assert sorted(read_file(tmp_path / "all").tensors) == [
        f"dataparallel/replica0/fc/{name}" for name in ("bias", "weight")
    ]
    assert read_file(tmp_path / "second").tensors.keys() == {"weight", "bias"}
    expected = ranks[0][1].replicas[0].variables[0].value
    for rank, transport in enumerate(three):
        graph, model, _ = build(transport, 3, 1)
        assert af.load_weights_sync(graph, tmp_path / "all") == ((), ())
        np.testing.assert_array_equal(model.replicas[rank].variables[0].value, expected)
    alone = nn.InnerProduct(3, name="alone")
    graph = af.Graph("inference")
    alone(graph.blob("x", (1, 5)))
    for file, prefix in (("all", "dataparallel/replica0/fc"), ("second", "")):
        alone.variables[0].value = np.zeros((3, 5), "f")
        af.load_weights_sync(alone, tmp_path / file, prefix=prefix)
        np.testing.assert_array_equal(alone.variables[0].value, expected)


def test_parts_of_several_ranks_are_loaded_together(tmp_path: Path) -> None:
    def build(transport: Any, ranks: int) -> af.Graph:
        graph = af.Graph("g", world=transport)
        for i in range(3):
            graph.variable(f"w{i}", (2,), init=10.0 * i if ranks == 2 else 0.0, place=f"{i % ranks}/cpu")
        return graph

    paths = []
    for transport in LocalWorld(2).transports:
        paths.append(tmp_path / f"{transport.rank}")
        af.save_weights_sync(build(transport, 2), paths[-1])
    for ranks in (1, 3):
        for transport in LocalWorld(ranks).transports:
            graph = build(transport, ranks)
            assert af.load_weights_sync(graph, paths) == ((), ())
            own = [variable for variable in graph.variables if variable.place.rank == transport.rank]
            assert [variable.value[0] for variable in own] == [10.0 * int(variable.name[1:]) for variable in own]
    with pytest.raises(af.CheckpointError, match="the file lacks 'w1'"):
        af.load_weights_sync(build(LocalWorld(1).transports[0], 1), paths[0])
    with pytest.raises(af.CheckpointError, match="the 2 files lack 'w1'"):
        af.load_weights_sync(build(LocalWorld(1).transports[0], 1), [paths[0], paths[0]])


def test_a_file_whose_contents_nest_without_end_is_damaged(tmp_path: Path) -> None:
    network = Network()
    af.save_weights_sync(network.graph, tmp_path / "whole")
    (tmp_path / "nested").write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    for paths in ([tmp_path / "nested"], [tmp_path / "whole", tmp_path / "nested"]):
        with pytest.raises(af.CheckpointError, match="nested: the file is cut off, damaged or no checkpoint"):
            af.load_weights_sync(network.graph, paths)
