"""Data parallel training gives the weights of one place with the whole batch, whatever the places and the scheme."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel import DataParallel
from actorflow.ops.transfer import Receive, Send
from actorflow.plan.validate import needed_ops
from actorflow.transport.local import LocalWorld
from tests.nn.parallel.ranks import Ranks, size_of
from tests.support.effort import FULL, slow

SCHEMES = ("allreduce", "server", "aggregate")
NETS: dict[str, tuple[Callable[[], af.Composite], tuple[int, ...]]] = {
    "mlp": (lambda: nn.MLP(4, (6,), activation="tanh"), (5,)),
    "lenet": (lambda: nn.LeNet(4, (2, 3, 5)), (16, 16, 1)),
}
OPTIMIZERS: dict[str, Callable[[], nn.Optimizer]] = {
    "sgd": lambda: nn.SGD(0.1, momentum=0.9, weight_decay=0.01, multipliers=nn.bias_multipliers),
    "adam": lambda: nn.Adam(0.01),
    "clipped": lambda: nn.SGD(0.1, clip=nn.Clip(value=0.05, norm=0.1)),
    "scheduled": lambda: nn.SGD(nn.rates.MultiStep(0.1, milestones=(2,))),
}
DEVICES = (["cpu"], ["cpu", "sim:0"], ["sim:0", "cpu", "sim:1", "cpu"])
RANKS = (["cpu", "1/cpu"], ["cpu", "1/cpu", "2/cpu", "3/cpu"], ["1/cpu", "sim:0", "1/sim:0", "cpu"])
HOW = (("sgd", 1), ("sgd", 3), ("adam", 3), ("adam", 1))
BATCH = 7  # no place has as much as another


def batches(shape: Sequence[int], count: int = 3) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {"x": random.standard_normal((BATCH, *shape)), "labels": random.integers(0, 4, BATCH)} for _ in range(count)
    ]


def build_plain(net: str, optimizer: str, graph: af.Graph) -> Mapping[str, Any]:
    """The network on the whole batch; its variables have the names that those of the other are drawn by."""
    make, shape = NETS[net]
    x, labels = graph.blob("x", (BATCH, *shape), "float64"), graph.blob("labels", BATCH, "int64")
    with graph.subgraph("dataparallel"):
        made = make()
        loss = ops.softmax_loss(made(x), labels)
    train = OPTIMIZERS[optimizer]().minimize(loss)
    return {"x": x, "labels": labels, "loss": loss, "train": train, "nets": [made]}


def build_parallel(net: str, optimizer: str, places: Sequence[str], graph: af.Graph, **how: Any) -> Mapping[str, Any]:
    make, shape = NETS[net]
    x, labels = graph.blob("x", (BATCH, *shape), "float64"), graph.blob("labels", BATCH, "int64")
    model = DataParallel(make(), places, loss=ops.softmax_loss, **how)
    loss = model(x, labels)
    train = model.minimize(OPTIMIZERS[optimizer]())
    return {"x": x, "labels": labels, "loss": loss, "train": train, "nets": model.replicas}


async def trained(ranks: Ranks, shape: Sequence[int], in_flight: int) -> tuple[list[float], list[list[np.ndarray]]]:
    """Losses, and the weights of each replica."""
    results = await ranks.stream(batches(shape), ["loss", "train"], in_flight)
    losses = [float(result["loss"]) for result in results]
    return losses, [[ranks.value(variable) for variable in net.variables] for net in ranks["nets"]]


_expected: dict[tuple[str, str], tuple[list[float], list[list[np.ndarray]]]] = {}


async def check_like_one_place(net: str, optimizer: str, places: Sequence[str], in_flight: int, **how: Any) -> None:
    shape = NETS[net][1]
    if (net, optimizer) not in _expected:
        plain = Ranks(1, lambda graph: build_plain(net, optimizer, graph))
        _expected[net, optimizer] = await trained(plain, shape, 1)
    losses, (weights,) = _expected[net, optimizer]
    seed = how.pop("seed", None)
    size = size_of([*places, *how.get("servers", ())])
    ranks = Ranks(size, lambda graph: build_parallel(net, optimizer, places, graph, **how), seed)
    found, replicas = await trained(ranks, shape, in_flight)
    np.testing.assert_allclose(found, losses, rtol=0, atol=1e-12)
    for replica in replicas:
        for value, expected, first in zip(replica, weights, replicas[0], strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)
            np.testing.assert_array_equal(value, first)  # alike to the last bit


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("places", slow([*DEVICES, *RANKS], but=[DEVICES[1], RANKS[0]]), ids=" ".join)
async def test_like_one_place(net: str, scheme: str, places: list[str]) -> None:
    some = HOW[len(places) % 2 :: 2] if net == "mlp" else [HOW[len(places) % 4]]
    for optimizer, in_flight in HOW if FULL else some:
        await check_like_one_place(net, optimizer, places, in_flight, scheme=scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("optimizer", ["clipped", "scheduled"])
@pytest.mark.parametrize("places", [["cpu", "sim:0"], ["cpu", "1/cpu"]], ids=" ".join)
async def test_limits_and_policies(scheme: str, optimizer: str, places: list[str]) -> None:
    await check_like_one_place("mlp", optimizer, places, 2, scheme=scheme)


@pytest.mark.parametrize("scheme", ["server", "aggregate"])
async def test_servers_apart_from_the_places(scheme: str) -> None:
    await check_like_one_place("mlp", "adam", ["cpu", "1/cpu"], 2, scheme=scheme, servers=["2/cpu", "1/cpu"])


PLACES = st.sampled_from(["cpu", "sim:0", "1/cpu", "1/sim:0", "2/cpu"])


@pytest.mark.timeout(1200)
@given(
    places=st.lists(PLACES, min_size=1, max_size=5),
    scheme=st.sampled_from(SCHEMES),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    in_flight=st.integers(1, 4),
    bucket_bytes=st.sampled_from([1, 100, 1 << 20]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=1_000 if FULL else 5)
def test_any_places_and_any_order_of_messages(
    places: list[str], scheme: str, optimizer: str, in_flight: int, bucket_bytes: int, seed: int
) -> None:
    how = {"scheme": scheme, "bucket_bytes": bucket_bytes, "seed": seed}
    af.run(check_like_one_place("mlp", optimizer, places, in_flight, **how))


# -- what else it builds ----------------------------------------------------------------------------------------------


def model_of(net: af.Composite, places: Sequence[str], graph: af.Graph | None = None, **how: Any) -> DataParallel:
    graph = graph or af.Graph("g")
    model = DataParallel(net, places, loss=ops.softmax_loss, **how)
    model(graph.blob("x", (6, 5), "float64"), graph.blob("labels", 6, "int64"))
    return model


def needed(target: af.Op | af.Graph) -> set[af.Op]:
    return set(needed_ops([target]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_update_waits_for_its_own_gradient_alone(scheme: str) -> None:
    """The last layer's needs nothing of the way back through the first one, at any place."""
    model = model_of(nn.MLP(4, (6,)), ["cpu", "sim:0"], scheme=scheme)
    model.minimize(nn.SGD(0.1))
    for net in model.replicas:
        first, last = net.layers[0].variables[0], net.layers[-1].variables[0]
        (update,), (first_update,) = last.producers, first.producers
        backward = [op.name for op in needed(update) if op.operation.kind == "InnerWeight"]
        assert len(backward) == 2
        assert all("scores" in name for name in backward)
        assert len([op for op in needed(first_update) if op.operation.kind == "InnerWeight"]) == 2


def test_variables_are_where_the_scheme_says() -> None:
    places = ["cpu", "1/cpu", "sim:0"]
    model = model_of(nn.MLP(4, (6,)), places)
    assert [{str(v.place) for v in net.variables} for net in model.replicas] == [{place} for place in places]
    model = model_of(nn.MLP(4, (6,)), places, scheme="server")
    assert [str(v.place) for v in model.variables] == ["cpu", "sim:0", "1/cpu", "sim:0"]
    model = model_of(nn.MLP(4, (6,)), places, scheme="aggregate", servers=["2/cpu", "cpu"])
    assert {str(v.place) for v in model.variables} == {"2/cpu"}


def test_a_weight_is_sent_once_to_a_rank() -> None:
    world = LocalWorld(2)
    graph = af.Graph("g", world=world.transports[0])
    model = model_of(nn.MLP(4, (6,)), ["cpu", "1/sim:0", "1/sim:1", "1/cpu"], graph, scheme="aggregate")
    train = model.minimize(nn.SGD(0.1))
    plan = graph.compile([train])
    sent = [op.site for op in plan.ops if isinstance(op.operation, Send)]
    received = [op for op in plan.ops if isinstance(op.operation, Receive)]
    assert sorted(blob.name for blob in sent if isinstance(blob, af.Variable)) == sorted(
        variable.name for variable in model.variables
    )
    assert len(received) == len(model.variables)  # gradients, summed up there; the loss is not asked for


class Twice(af.Composite):
    """Scores by a layer on a layer, which share their weight."""

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        weight = self.variable(x, "weight", (x.shape[1], x.shape[1]), nn.init.xavier(0))
        return ops.inner(ops.inner(x, weight), weight)


def test_gradients_of_one_weight_are_summed_up_before_they_are_sent() -> None:
    world = LocalWorld(2)
    graph = af.Graph("g", world=world.transports[1])
    model = model_of(Twice("net"), ["1/cpu"], graph, scheme="aggregate", servers=["cpu"])
    train = model.minimize(nn.SGD(0.1))
    plan = graph.compile([train])
    kinds = [op.operation.kind for op in plan.ops]
    assert (kinds.count("InnerWeight"), kinds.count("Send")) == (2, 1)


def test_layers_of_the_network_name_the_factors_of_all_copies() -> None:
    net = nn.MLP(4, (6,))
    model = model_of(net, ["cpu", "sim:0"])
    factors = nn.layer_multipliers({net.layers[-1]: nn.Multipliers(rate=0.1)}, nn.bias_multipliers)
    model.minimize(nn.SGD(1.0, multipliers=factors))
    for replica in model.replicas:
        updates = [variable.producers[0].operation for variable in replica.variables]
        assert [update.rate_scale for update in updates] == [1.0, 2.0, 0.1, 0.2]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_tests_after_training_see_the_trained_weights(scheme: str) -> None:
    """The composite that was given is the first place's: built again, it has what was trained."""
    net = nn.MLP(4, (6,), dropout=0.5)
    graph = af.Graph("g")
    model = model_of(net, ["cpu", "sim:0"], graph, scheme=scheme)
    train = model.minimize(nn.SGD(0.5))
    again = model(graph["x"], graph["labels"], training=False)
    scores = net(graph["x"], training=False)
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((6, 5)), "labels": random.integers(0, 4, 6)}
    before = await graph.run(feeds, fetch=[again, train])
    for _ in range(30):
        await graph.run(feeds, fetch=[train])
    after = await graph.run(feeds, fetch=[again, scores])
    assert float(after[again]) < float(before[again])
    plain = -np.log(np.exp(after[scores]) / np.exp(after[scores]).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(float(after[again]), plain[np.arange(6), feeds["labels"]].mean(), rtol=1e-12)
    await graph.aclose()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_blob_for_each_place(scheme: str) -> None:
    places, sizes = ["cpu", "1/cpu", "1/sim:0"], [4, 1, 2]

    def build(graph: af.Graph) -> Mapping[str, Any]:
        xs = [graph.blob(f"x{i}", (n, 5), "float64", places[i]) for i, n in enumerate(sizes)]
        labels = [graph.blob(f"labels{i}", n, "int64", places[i]) for i, n in enumerate(sizes)]
        model = DataParallel(NETS["mlp"][0](), places, loss=ops.softmax_loss, split=False, scheme=scheme)
        loss = model(*xs, *labels)
        train = model.minimize(OPTIMIZERS["sgd"]())
        return {b.name: b for b in (*xs, *labels)} | {"loss": loss, "train": train, "nets": model.replicas}

    ranks = Ranks(2, build)
    cuts = np.cumsum(sizes)[:-1]
    feeds = [
        {f"{name}{i}": part for name, whole in batch.items() for i, part in enumerate(np.split(whole, cuts))}
        for batch in batches((5,))
    ]
    results = await ranks.stream(feeds, ["loss", "train"], 2)
    losses, _ = await trained(Ranks(1, lambda graph: build_plain("mlp", "sgd", graph)), (5,), 1)
    np.testing.assert_allclose([float(result["loss"]) for result in results], losses, rtol=0, atol=1e-12)


class Normalized(af.Composite):
    """Batch normalization, then scores."""

    def __init__(self) -> None:
        super().__init__("normalized")
        self.layers = [nn.BatchNorm(), nn.InnerProduct(4)]

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        for layer in self.layers:
            x = layer(x, training=training)
        return x


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_batch_normalization_sees_each_share(scheme: str) -> None:
    """Statistics of each place's share; running ones of each place, or of the first one."""

    def build(graph: af.Graph) -> Mapping[str, Any]:
        model = model_of(Normalized(), ["cpu", "1/cpu"], graph, scheme=scheme)
        train = model.minimize(nn.SGD(0.1))
        return {"x": graph["x"], "labels": graph["labels"], "train": train, "model": model}

    ranks = Ranks(2, build)
    random = np.random.default_rng(0)
    x = random.standard_normal((6, 5)) * 3 + 1
    await ranks.stream([{"x": x, "labels": random.integers(0, 4, 6)}], ["train"])
    nets = ranks["model"].replicas
    for net, share in list(zip(nets, (x[:3], x[3:]), strict=True))[: 2 if scheme == "allreduce" else 1]:
        mean, variance = (ranks.value(variable) for variable in net.layers[0].statistics)
        np.testing.assert_allclose(mean, 0.1 * share.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(variance, 0.9 + 0.1 * share.var(axis=0, ddof=1), rtol=1e-12)
    if scheme != "allreduce":
        assert nets[0] is nets[1]


async def test_some_variables_alone() -> None:
    net = nn.MLP(4, (6,))
    graph = af.Graph("g")
    model = model_of(net, ["cpu", "cpu"], graph)
    chosen = net.layers[-1].variables
    train = model.minimize(nn.SGD(0.1), chosen)
    before = [variable.value.copy() for variable in net.variables]
    random = np.random.default_rng(0)
    await graph.run({"x": random.standard_normal((6, 5)), "labels": random.integers(0, 4, 6)}, fetch=[train])
    moved = [
        variable for variable, old in zip(net.variables, before, strict=True) if not np.array_equal(variable.value, old)
    ]
    assert moved == list(chosen)
    await graph.aclose()


def refuse_twice() -> None:
    net = nn.MLP(4, (6,))
    model_of(net, ["cpu"])
    DataParallel(net, ["cpu", "sim:0"])


def refuse_foreign() -> None:
    model = model_of(nn.MLP(4, (6,)), ["cpu", "sim:0"])
    model.minimize(nn.SGD(0.1), [model.losses[0].graph.root.variable("other", 3)])


def refuse_hidden() -> None:
    class Hiding(af.Composite):
        def __init__(self) -> None:
            super().__init__("hiding")
            layer = nn.InnerProduct(4)
            self.scores = lambda x: layer(x)  # which no copy of the composite has a copy of

        def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
            scores: af.Blob = self.scores(bottom[0])
            return scores

    model_of(Hiding(), ["cpu", "sim:0"]).minimize(nn.SGD(0.1))


@pytest.mark.together(
    ("make", "message"),
    [
        (lambda: DataParallel(nn.MLP(4), ["cpu"], scheme="ring"), "scheme must be one of allreduce, server, aggregate"),
        (lambda: DataParallel(nn.MLP(4), ["cpu"], servers=["cpu"]), "scheme 'allreduce' has no servers"),
        (lambda: DataParallel(nn.MLP(4), []), "give at least one place"),
        (refuse_twice, "composite 'mlp' has been built: give it first"),
        (refuse_foreign, "variable 'other' has no copy in 'dataparallel/replica1'"),
        (refuse_hidden, "weight' has no copy in 'dataparallel/replica1': .* attributes of the network 'hiding'"),
        (lambda: DataParallel(nn.MLP(4), ["cpu"]).minimize(nn.SGD(0.1)), "build it for training first"),
        (lambda: DataParallel(nn.MLP(4), ["cpu"])(af.Graph("g").blob("x", (3, 2))), "the loss must be 0-d"),
        (lambda: DataParallel(nn.MLP(4), ["cpu"] * 4)(af.Graph("g").blob("x", (3, 2))), "cannot be split into 4 parts"),
        (lambda: DataParallel(nn.MLP(4), ["cpu"])(af.Graph("g").blob("x", ())), r"has shape \(batch, ...\)"),
        (
            lambda: DataParallel(nn.MLP(4), ["cpu"] * 2, split=False)(*[af.Graph("g").blob("x", (3, 2))] * 3),
            "bottom blobs for each of 2 places, got 3",
        ),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(af.GraphError, match=message):
        make()
