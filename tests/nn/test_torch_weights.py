"""Weights in torch's order, as plain arrays: matched, turned, and refused as a whole."""

import asyncio
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops


def drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype("f4") for name, shape in shapes.items()}


def built(layer: Any, *shapes: tuple[Any, ...]) -> Any:
    graph = af.Graph("g")
    layer(*[graph.blob(f"x{i}", shape) for i, shape in enumerate(shapes)], training=False)
    return layer


LENET = {
    "features.0.weight": (2, 1, 5, 5),
    "features.0.bias": (2,),
    "features.3.weight": (3, 2, 5, 5),
    "features.3.bias": (3,),
    "classifier.0.weight": (4, 48),
    "classifier.0.bias": (4,),
    "classifier.2.weight": (10, 4),
    "classifier.2.bias": (10,),
}


def lenet() -> nn.LeNet:
    return built(nn.LeNet(10, (2, 3, 4)), ("batch", 28, 28, 1))


def values(net: Any) -> list[np.ndarray]:
    return [variable.value.copy() for variable in net.variables]


def test_a_convolution_is_transposed_and_the_columns_behind_it_are_moved() -> None:
    net, given = lenet(), drawn(LENET)
    names = nn.load_torch(net, given)
    assert names["conv1/weight"] == ("features.3.weight",)
    by_name = {variable.name.removeprefix("lenet/"): variable.value for variable in net.variables}
    np.testing.assert_array_equal(by_name["conv0/weight"], given["features.0.weight"].transpose(2, 3, 1, 0))
    wanted = given["classifier.0.weight"].reshape(4, 3, 4, 4).transpose(0, 2, 3, 1).reshape(4, 48)
    np.testing.assert_array_equal(by_name["hidden/weight"], wanted)
    np.testing.assert_array_equal(by_name["scores/weight"], given["classifier.2.weight"])


def test_columns_stay_where_nothing_has_channels() -> None:
    net = built(nn.MLP(3, (4,)), (2, 5, 5, 3))
    given = drawn({"0.weight": (4, 75), "0.bias": (4,), "1.weight": (3, 4), "1.bias": (3,)})
    nn.load_torch(net, given)
    np.testing.assert_array_equal(net.variables[0].value, given["0.weight"])


def test_a_user_who_transposes_back_gets_torchs_columns() -> None:
    graph = af.Graph("g")
    x = nn.Conv(3, 3, name="conv")(graph.blob("x", (2, 6, 6, 1)))
    nn.InnerProduct(2, name="fc")(ops.flatten(ops.transpose(x, (0, 3, 1, 2))))
    given = drawn({"conv.weight": (3, 1, 3, 3), "conv.bias": (3,), "fc.weight": (2, 48), "fc.bias": (2,)})
    nn.load_torch(graph, given)
    np.testing.assert_array_equal(graph.variables[2].value, given["fc.weight"])


def test_features_of_a_norm_on_flattened_images_are_moved() -> None:
    graph = af.Graph("g")
    x = nn.Conv(3, 3, bias=False, name="conv")(graph.blob("x", (2, 6, 6, 1)))
    nn.LayerNorm(axes=3, name="image")(x)
    nn.BatchNorm(name="flat")(ops.flatten(x))
    shapes = {f"flat.{name}": (48,) for name in ("weight", "bias", "running_mean", "running_var")}
    shapes |= {"conv.weight": (3, 1, 3, 3), "image.weight": (3, 4, 4), "image.bias": (3, 4, 4)}
    given = drawn(shapes)
    given["flat.num_batches_tracked"] = np.array(7)
    nn.load_torch(graph, given)
    found = {variable.name: variable.value for variable in graph.variables}
    np.testing.assert_array_equal(found["image/scale"], given["image.weight"].transpose(1, 2, 0))
    for ours, theirs in {"scale": "weight", "running_variance": "running_var"}.items():
        wanted = given[f"flat.{theirs}"].reshape(3, 4, 4).transpose(1, 2, 0).reshape(-1)
        np.testing.assert_array_equal(found[f"flat/{ours}"], wanted)


def test_columns_behind_many_blocks_of_joined_and_normalized_images() -> None:
    graph = af.Graph("g")
    x = nn.Conv(4, 1, bias=False, name="conv")(graph.blob("x", (2, 3, 3, 1)))
    x = ops.relu(nn.GroupNorm(2, name="group")(x))
    x = ops.concat([x, ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, 1:4, 1:4]], axis=-1)
    nn.InnerProduct(2, bias=False, name="fc")(nn.Dropout()(x))
    shapes = {"conv.weight": (4, 1, 1, 1), "group.weight": (4,), "group.bias": (4,), "fc.weight": (2, 72)}
    given = drawn(shapes)
    nn.load_torch(graph, given)
    wanted = given["fc.weight"].reshape(2, 8, 3, 3).transpose(0, 2, 3, 1).reshape(2, 72)
    np.testing.assert_array_equal(graph.variables[-1].value, wanted)


def test_a_network_that_is_built_for_its_training_first() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 6, 6, 1))
    layers = [nn.Conv(3, 3, name="conv"), nn.BatchNorm(name="norm"), nn.Activation(), nn.Dropout()]
    net = af.Chain(*layers, nn.InnerProduct(2, name="fc"), name="net")
    loss = ops.mean(net(x, training=True))
    nn.SGD(0.1, momentum=0.9).minimize(loss)
    net(x, training=False)
    shapes = {"conv.weight": (3, 1, 3, 3), "conv.bias": (3,), "fc.weight": (2, 48), "fc.bias": (2,)}
    given = drawn(shapes | {f"norm.{name}": (3,) for name in ("weight", "bias", "running_mean", "running_var")})
    names = nn.load_torch(net, given)
    assert len(names) == 8
    wanted = given["fc.weight"].reshape(2, 3, 4, 4).transpose(0, 2, 3, 1).reshape(2, 48)
    np.testing.assert_array_equal(net.variables[-2].value, wanted)


def test_peepholes_are_not_torchs() -> None:
    net = built(nn.LSTM(2, peepholes=True), (3, 1, 2))
    given = drawn({"weight_ih_l0": (8, 2), "weight_hh_l0": (8, 2), "bias_ih_l0": (8,), "bias_hh_l0": (8,)})
    with pytest.raises(af.CheckpointError, match=r"missing: 'peepholes_l0' \(6,\), for 'layer0/peepholes'"):
        nn.load_torch(net, given)


def test_sequences_behind_convolutions_stay_as_they_are() -> None:
    graph = af.Graph("g")
    x = nn.Conv(3, 3, bias=False, name="conv")(graph.blob("x", (2, 6, 2)))
    y, _, _ = nn.LSTM(5, batch_first=True, name="lstm")(x)
    nn.InnerProduct(2, bias=False, name="fc")(ops.flatten(y))
    nn.Linear(2, bias=False, name="each")(y)
    shapes = {"conv.weight": (3, 2, 3), "lstm.weight_ih_l0": (20, 3), "lstm.weight_hh_l0": (20, 5)}
    given = drawn(
        shapes | {"lstm.bias_ih_l0": (20,), "lstm.bias_hh_l0": (20,), "fc.weight": (2, 20), "each.weight": (2, 5)}
    )
    nn.load_torch(graph, given)
    found = {variable.name: variable.value for variable in graph.variables}
    np.testing.assert_array_equal(found["fc/weight"], given["fc.weight"])
    np.testing.assert_array_equal(found["each/weight"], given["each.weight"])
    np.testing.assert_array_equal(found["lstm/layer0/bias"], given["lstm.bias_ih_l0"] + given["lstm.bias_hh_l0"])


def test_names_win_over_the_order() -> None:
    net = built(nn.MLP(4, (4, 4)), (2, 4))
    given = drawn(
        {f"{name}.{p}": s for name in ("scores", "hidden1", "hidden0") for p, s in (("weight", (4, 4)), ("bias", (4,)))}
    )
    names = nn.load_torch(net, given)
    assert all(found == (ours.replace("/", "."),) for ours, found in names.items())


def test_names_that_overlap_by_chance_do_not_count() -> None:
    net = built(nn.MLP(4, (4, 4)), (2, 4))
    given = drawn(
        {f"{name}.{p}": s for name in ("hidden1", "hidden2", "out") for p, s in (("weight", (4, 4)), ("bias", (4,)))}
    )
    names = nn.load_torch(net, given)
    assert names["hidden0/weight"] == ("hidden1.weight",)
    assert names["hidden1/weight"] == ("hidden2.weight",)


@pytest.mark.parametrize("make", [dict, lambda names: lambda name: names.get(name.split(".")[0], "x") + name[1:]])
def test_other_names(make: Any) -> None:
    net = built(nn.MLP(4, (4,)), (2, 4))
    given = drawn({f"{name}.{p}": s for name in "ab" for p, s in (("weight", (4, 4)), ("bias", (4,)))})
    assert nn.load_torch(net, given, make({"a": "scores", "b": "hidden0"}))["scores/weight"] == ("a.weight",)
    np.testing.assert_array_equal(net.variables[2].value, given["a.weight"])


def test_names_of_tensors_and_what_is_left_out() -> None:
    graph = af.Graph("g")
    w = graph.variable("w", (3, 3, 2, 4), init=nn.init.constant(0.0))
    b = graph.variable("b", (4,), init=nn.init.constant(0.0))
    ops.bias(ops.conv(graph.blob("x", (1, 5, 5, 2)), w), b)
    given = drawn({"conv.weight": (4, 2, 3, 3), "conv.bias": (4,), "head.weight": (7, 7)})
    with pytest.raises(af.CheckpointError, match=r"missing: 'w' \(4, 2, 3, 3\), for 'w' \(3, 3, 2, 4\)"):
        nn.load_torch(graph, given)
    nn.load_torch(graph, given, {"conv.weight": "w", "conv.bias": "b", "head": None})
    np.testing.assert_array_equal(w.value, given["conv.weight"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(b.value, given["conv.bias"])


def test_all_that_does_not_fit_is_said_at_once_and_nothing_is_changed() -> None:
    net = lenet()
    before = values(net)
    given: dict[str, Any] = drawn(LENET | {"features.0.weight": (2, 3, 5, 5), "classifier.2.bias": (11,)})
    given["extra.weight"] = np.zeros((2, 2, 2), "f4")
    given["features.3.bias"] = np.zeros(3, "c8")
    given["state"] = None
    with pytest.raises(af.CheckpointError) as caught:
        nn.load_torch(net, given)
    text = str(caught.value)
    for wanted in (
        "'conv0/weight' (5, 5, 1, 2) needs (2, 1, 5, 5) of torch, 'features.0.weight' has "
        "(2, 3, 5, 5), here (5, 5, 3, 2)",
        "'scores/bias' (10,) needs (10,) of torch, 'classifier.2.bias' has (11,)",
        "dtype: 'conv1/bias' is float32, 'features.3.bias' is complex64",
        "not expected: 'extra.weight' (2, 2, 2)",
        "not expected: 'state'",
    ):
        assert wanted in text, text
    for old, new in zip(before, values(net), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.together("kind", ["max", "average"])
@pytest.mark.together(("size", "ceil", "is_said"), [(7, True, True), (7, False, False), (8, True, False)])
def test_poolings_that_round_up_are_named_where_shapes_differ(kind: str, size: int, ceil: bool, is_said: bool) -> None:
    layers = (
        nn.Conv(2, 3, pad=1, name="conv"),
        nn.Pool(kind, 2, ceil=ceil, name="pool"),
        nn.InnerProduct(3, name="head"),
    )
    net = built(af.Chain(*layers, name="net"), ("batch", size, size, 1))
    state = {"0.weight": (2, 1, 3, 3), "0.bias": (2,), "3.weight": (3, 50), "3.bias": (3,)}
    with pytest.raises(af.CheckpointError, match="has \\(3, 50\\)") as raised:
        nn.load_torch(net, drawn(state))
    assert ("these poolings round up" in str(raised.value) and f"'net/pool/{kind}'" in str(raised.value)) == is_said
    assert raised.value.__notes__ == ["More: actorflow docs torch-weights"]


def test_layers_of_a_kind_of_which_there_are_not_as_many_are_all_listed() -> None:
    net = lenet()
    given = {name: value for name, value in drawn(LENET).items() if not name.startswith("features.3")}
    with pytest.raises(af.CheckpointError) as caught:
        nn.load_torch(net, given)
    text = str(caught.value)
    assert "missing: 'conv0.weight' (2, 1, 5, 5), for 'conv0/weight'" in text
    assert "missing: 'conv1.bias' (3,)" in text
    assert "not expected: 'features.0.weight'" in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("renaming", "message"),
    [
        ({"classifier.0": "hiden"}, r"not expected: 'classifier.0.weight' \(4, 48\), as 'hiden.weight'"),
        ({"clasifier": "hidden"}, "map: the state dict has no 'clasifier'"),
        ({"features.0": "scores", "features.3": "scores"}, "'features.0.weight' and 'features.3.weight' are both"),
    ],
)
def test_a_wrong_map(renaming: dict[str, str | None], message: str) -> None:
    with pytest.raises(af.CheckpointError, match=message):
        nn.load_torch(lenet(), drawn(LENET), renaming)


def test_a_convolution_of_1x1_is_an_inner_product() -> None:
    net = built(nn.MLP(4, (4,)), (2, 4))
    given = drawn({"a.weight": (4, 4, 1, 1), "a.bias": (4,), "b.weight": (4, 4), "b.bias": (4,)})
    nn.load_torch(net, given)
    np.testing.assert_array_equal(net.variables[0].value, given["a.weight"][:, :, 0, 0])


def test_copies_get_the_value_and_other_dtypes_are_converted() -> None:
    net = built(nn.MLP(4, ()), (2, 4))
    given = {"weight": np.arange(16.0).reshape(4, 4), "bias": np.zeros(4, "f2")}
    nn.load_torch(net.layers[0], given)
    assert net.variables[0].value.dtype == "f4"
    np.testing.assert_array_equal(net.variables[0].value, given["weight"])


async def test_frames_in_flight() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 4))
    layer = nn.InnerProduct(4)
    started, may_end = asyncio.Event(), asyncio.Event()

    async def wait(value: np.ndarray) -> np.ndarray:
        started.set()
        await may_end.wait()
        return value

    graph.function("wait", wait, outputs=[af.TensorSpec.of((2, 4))])(layer(x))
    run = asyncio.ensure_future(graph.run({x: np.zeros((2, 4), "f4")}))
    await started.wait()
    given = drawn({"weight": (4, 4), "bias": (4,)})
    with pytest.raises(af.GraphError, match="frames in flight"):
        nn.load_torch(layer, given)
    may_end.set()
    await run
    nn.load_torch(layer, given)
    np.testing.assert_array_equal(layer.variables[0].value, given["weight"])


def test_a_scope_without_weights() -> None:
    with pytest.raises(af.GraphError, match="no weights"):
        nn.load_torch(af.Graph("empty"), {})
    with pytest.raises(af.GraphError, match="not been built"):
        nn.load_torch(nn.LeNet(10), {})
