"""Graphs as ONNX files: valid, and computed by ONNX Runtime as here."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.ops.linalg import vector_norm
from actorflow.spec import axes_in
from tests.operations import ROWS, Row, Sample, samples
from tests.support.effort import FULL, slow

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def session(path: Path) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def close(found: Any, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    finite = np.abs(expected[np.isfinite(expected)]) if expected.dtype.kind == "f" else np.ones(1)
    atol = tolerance * max(1.0, finite.max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def computed(graph: af.Graph, run: Callable[[], Any]) -> Any:
    """What a run gives; the graph's threads end with it."""

    async def one() -> Any:
        async with graph:
            return await run()

    return asyncio.run(one())


def saved(graph: af.Graph | af.Model, folder: Path, **how: Any) -> Any:
    path = folder / "model.onnx"
    af.onnx.save(graph, path, **how)
    return onnx.load(path)


def kinds(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def agree(
    graph: af.Graph,
    folder: Path,
    feeds: dict[af.Blob, np.ndarray],
    tolerance: float = 1e-5,
    returns: bool = False,
    **how: Any,
) -> Any:
    """Save, run both, compare the outputs that the file has, and those of the file loaded again; the file."""
    model = saved(graph, folder, **how)
    names = [output.name for output in model.graph.output]
    found = session(folder / "model.onnx").run(names, {blob.name: value for blob, value in feeds.items()})
    result = computed(graph, lambda: graph.run(feeds, fetch=[graph[name] for name in names]))
    for name, value in zip(names, found, strict=True):
        close(value, np.asarray(result[name]), tolerance)
    if returns:
        loaded = af.onnx.load(model)
        again = computed(loaded.graph, lambda: loaded.run({blob.name: value for blob, value in feeds.items()}))
        for name in names:
            close(again[name], np.asarray(result[name]), tolerance)
    return model


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], int]] = {
    # How it is made, a sample, and how many transpositions the file may have.
    "mlp": (lambda: nn.MLP(5, (7, 6), activation="gelu"), (4, 4, 2), 0),
    "lenet": (lambda: nn.LeNet(10, (4, 6, 9)), (28, 28, 1), 2),
    "nin": (lambda: nn.NIN(7), (16, 16, 3), 1),
    "nin of the paper": (lambda: nn.NIN.cifar10(7, width=12), (32, 32, 3), 1),
    "alexnet": (lambda: nn.AlexNet(5, hidden=16), (67, 67, 3), 1),
    "vgg": (lambda: nn.VGG(5, size=11, width=4, hidden=16), (40, 40, 3), 2),
    "googlenet": (lambda: nn.GoogLeNet(5), (64, 64, 3), 1),
    "resnet": (lambda: nn.ResNet(5, width=8), (64, 64, 3), 1),
    "deep resnet": (lambda: nn.ResNet(5, size=50, width=4), (64, 64, 3), 1),
    "small mobile net": (lambda: nn.MobileNetV3(5, size="small"), (64, 64, 3), 1),
    "large mobile net": (lambda: nn.MobileNetV3(5), (64, 64, 3), 1),
}


@pytest.mark.parametrize("name", slow(MODELS, but=[*MODELS.keys() - {"googlenet", "large mobile net"}]))
def test_models(name: str, tmp_path: Path) -> None:
    make, shape, transposed = MODELS[name]
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", *shape))
    net = make()
    y = net(x, training=False)
    for variable in net.variables:  # that nothing is 0 or 1 by chance
        random = np.random.default_rng(len(variable.name))
        noise = random.standard_normal(variable.shape).astype("f4")
        if "running_variance" in variable.name:
            variable.value = 1 + 0.1 * np.abs(noise)
        elif len(variable.shape) == 1:
            variable.value = variable.value + 0.1 * noise
    for batch in (1, 3):
        model = agree(graph, tmp_path, {x: normal(batch, *shape)}, 1e-4)
    assert [each.type.tensor_type.shape.dim[0].dim_param for each in model.graph.input] == ["batch"]
    assert [output.name for output in model.graph.output] == [y.name]
    assert kinds(model).count("Transpose") == transposed


SEQUENCES: dict[str, Callable[[af.Blob], Any]] = {
    "lstm": lambda x: nn.LSTM(5, 2)(x),
    "lstm of both directions": lambda x: nn.LSTM(5, bidirectional=True)(x),
    "lstm from batches": lambda x: nn.LSTM(5, batch_first=True)(ops.transpose(x, (1, 0, 2)))[0],
    "gru": lambda x: nn.GRU(5)(x),
    "gru of the paper": lambda x: nn.GRU(5, reset_after=False)(x)[0],
    "rnn": lambda x: nn.RNN(5, bidirectional=True)(x),
    "peepholes": lambda x: nn.LSTM(5, peepholes=True)(x)[0],
    "cell": lambda x: nn.LSTMCell(5)(x[0]),
    "attention": lambda x: nn.MultiHeadAttention(2)(ops.transpose(x, (1, 0, 2))),
    "causal attention": lambda x: nn.MultiHeadAttention(4, 2, causal=True)(ops.transpose(x, (1, 0, 2))),
    "layer norm": lambda x: nn.LayerNorm()(x),
    "rms norm": lambda x: nn.RMSNorm()(x),
    "group norm": lambda x: nn.GroupNorm(2)(x),
    "batch norm": lambda x: nn.BatchNorm()(x, training=False),
}


@pytest.mark.together("name", SEQUENCES, at_once=14)
def test_layers_of_sequences(name: str, tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, "batch", 8))
    SEQUENCES[name](x)
    for batch in (1, 3):
        agree(graph, tmp_path, {x: normal(4, batch, 8)})


def test_a_language_model_of_any_length(tmp_path: Path) -> None:
    graph = af.Graph("g")
    tokens = graph.blob("tokens", ("steps", "batch"), "int64")
    nn.LSTMLanguageModel(11, features=6, hidden=5, layers=2)(tokens, training=False)
    for shape in ((1, 1), (5, 3)):
        agree(graph, tmp_path, {tokens: np.arange(np.prod(shape)).reshape(shape) % 11})


def test_an_lstm_with_states(tmp_path: Path) -> None:
    graph = af.Graph("g")
    blobs = graph.blob("x", (3, 2, 4)), graph.blob("h", (1, 2, 5)), graph.blob("c", (1, 2, 5))
    nn.LSTM(5)(*blobs)
    agree(graph, tmp_path, {blob: normal(*blob.shape, seed=i) for i, blob in enumerate(blobs)})


@pytest.mark.parametrize("reverse", [False, True])
def test_a_network_over_sequences_of_several_lengths(reverse: bool, tmp_path: Path) -> None:
    graph = af.Graph("g")
    x, lengths = graph.blob("x", ("steps", 3, 4)), graph.blob("lengths", (3,), "int32")
    ops.gru(x, known(x, 15, 4), known(x, 15, 5), lengths=lengths, reverse=reverse)
    agree(graph, tmp_path, {x: normal(6, 3, 4), lengths: np.array([2, 6, 3], np.int32)}, returns=True)


def known(x: af.Blob, *shape: int) -> af.Blob:
    return x.graph.constant(normal(*shape))


#: Functions of images (batch, height, width, 6) that are no sample of an operation alone.
IMAGES: dict[str, Callable[[af.Blob], Any]] = {
    "square": lambda x: x * x - 1.0,
    "by channels": lambda x: x * np.arange(6, dtype="f4"),
    "by rows": lambda x: x + np.arange(7, dtype="f4").reshape(7, 1, 1),
    "by computed channels": lambda x: x * ops.max(x, (0, 1, 2)),
    "by computed factors": lambda x: x * ops.reshape(ops.sigmoid(ops.global_average(x)), (-1, 1, 1, 6)),
    "mean that keeps": lambda x: ops.mean(x, (1,), keepdims=True) + x,
    "any": lambda x: ops.any(x > 0, (1,)),
    "all": lambda x: ops.all(x > -2, (3,), keepdims=True),
    "concat": lambda x: ops.concat([x, ops.relu(x), x[..., :2]], axis=-1),
    "stack": lambda x: ops.stack([x, ops.tanh(x)], axis=1),
    "split": lambda x: ops.split(x, [2, 1, 3], axis=-1),
    "reverse": lambda x: x[:, ::-1, 4:1:-2, -2:],
    "pick": lambda x: x[:, 2, -1, :],
    "pick and add": lambda x: x[..., None, 3],
    "index": lambda x: x[:, :, np.array([[0, 3], [1, 1]])],
    "flatten": lambda x: nn.InnerProduct(3)(x),
    "inner": lambda x: ops.inner(x, x.graph.variable("w", (3, 6), init=nn.init.gaussian(seed=1))),
    "linear layer": lambda x: nn.Linear(3)(ops.reshape(x, (x.shape[0], -1, 6))),
    "tokens": lambda x: nn.LayerNorm()(ops.reshape(x, (x.shape[0], -1, 6))),
    "reshape": lambda x: ops.relu(ops.reshape(x, (-1, 2, 3))),
    "transpose": lambda x: ops.relu(ops.transpose(x, (0, 3, 2, 1))),
    "transposed twice": lambda x: ops.transpose(ops.relu(ops.transpose(x, (3, 1, 0, 2))), (2, 1, 3, 0)),
    "matmul": lambda x: ops.matmul(x, x, transpose_b=True),
    "broadcast": lambda x: ops.broadcast_to(x[:, :1], (2, *x.shape)),
    "where": lambda x: ops.where(x > 0.5, x, -x),
    "cast": lambda x: ops.cast(ops.cast(x * 3.0, "int32"), "float64"),
    "hard": lambda x: [ops.hard_swish(x), ops.hard_sigmoid(x)],
    "smooth": lambda x: [ops.gelu(x), ops.gelu(x, tanh=True), ops.silu(x), ops.softplus(x), ops.softplus(x, 3.0)],
    "leaky": lambda x: [ops.leaky_relu(x, 0.2), ops.elu(x, 0.7)],
    "weighted": lambda x: ops.weighted_sum([x, ops.exp(x), x], [0.5, -1.0, 2.0]),
    "sums": lambda x: ops.add(x, ops.exp(x), ops.sin(x)),
    "batch norm": lambda x: nn.BatchNorm(epsilon=0.1)(x, training=False),
    "group norm": lambda x: nn.GroupNorm(3)(x),
    "instance norm": lambda x: nn.InstanceNorm(affine=True)(x),
    "layer norm": lambda x: nn.LayerNorm(2)(x),
    "conv": lambda x: nn.Conv(4, (3, 2), (2, 1), ((1, 0), (2, 1)), activation="leaky_relu")(x),
    "depthwise": lambda x: nn.Conv(12, 3, dilation=2, groups=6, bias=False)(x),
    "computed weight": lambda x: ops.conv(x, ops.tanh(known(x, 2, 2, 6, 3))),
    "transposed": lambda x: nn.ConvTranspose(4, 3, 2, 1, 1)(x),
    "grouped transposed": lambda x: nn.ConvTranspose(4, (3, 2), (2, 1), ((1, 0), 0), groups=2)(x),
    "product of two readers": lambda x: [y := ops.inner(x[:, 0, 0], known(x, 3, 6)), ops.bias(y, known(x, 3)), -y],
}


@pytest.mark.together("behind", [False, True], ids=["alone", "behind a convolution"], at_once=21)
@pytest.mark.together("name", IMAGES)
def test_operations_on_images(name: str, behind: bool, tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 7, 8, 6))
    IMAGES[name](nn.Conv(6, 1, bias=False, weight_init=nn.init.gaussian(0.4, seed=3))(x) if behind else x)
    for batch in (2, 1):
        agree(graph, tmp_path, {x: normal(batch, 7, 8, 6)})


OPEN: dict[str, Callable[[af.Blob], Any]] = {
    "conv": lambda x: nn.Conv(4, 3, 2, 1)(x),
    "transposed": lambda x: nn.ConvTranspose(4, 2, 2)(x),
    "max pool": lambda x: ops.max_pool(x, 3, 2, 1),
    "max pool, down": lambda x: ops.max_pool(x, 3, 2, 1, ceil=False),
    "average pool": lambda x: ops.average_pool(x, 3, 2),
    "average pool, border": lambda x: ops.average_pool(x, 3, 2, 1, ceil=False),
    "average": ops.global_average,
    "group norm": lambda x: nn.GroupNorm(3)(x),
    "tokens": lambda x: ops.reshape(x, (x.shape[0], x.shape[1] * x.shape[2], 6)),
    "tokens of pooled": lambda x: ops.reshape(y := ops.max_pool(x, 3, 2), (y.shape[0], y.shape[1] * y.shape[2], 6)),
    "halves": lambda x: ops.relu(ops.reshape(x, (x.shape[0] * x.shape[1], x.shape[2], 2, 3))),
    "broadcast": lambda x: ops.broadcast_to(ops.mean(x, (1,), keepdims=True), x.shape),
    "fill": lambda x: x + ops.fill(x.graph, 2.0, (x.shape[1], x.shape[2], 1)),
    "nearest": lambda x: ops.resize(x, scale=2, mode="nearest"),
    "to a size": lambda x: ops.resize(x, (9, 5)),
    "crop": lambda x: x[:, 1:-1, : x.shape[2] - 2],
    "pad": lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0))),
    "sums": lambda x: ops.mean(x, (1, 2)),
}


@pytest.mark.together("behind", [False, True], ids=["alone", "behind a convolution"], at_once=18)
@pytest.mark.together("name", OPEN)
def test_open_sizes(name: str, behind: bool, tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", "height", "width", 6))
    OPEN[name](nn.Conv(6, 1, weight_init=nn.init.gaussian(0.4, seed=3))(x) if behind else x)
    for size in ((2, 7, 8), (1, 12, 5), (3, 6, 6)):
        agree(graph, tmp_path, {x: normal(*size, 6)})


#: Functions of sequences (batch, steps, 8) of any number of steps.
STEPS: dict[str, Callable[[af.Blob], Any]] = {
    "causal attention": lambda x: nn.MultiHeadAttention(2, causal=True)(x),
    "gru": lambda x: nn.GRU(5)(ops.transpose(x, (1, 0, 2))),
    "sort": lambda x: [ops.sort(x, 1), ops.sort(x, 1, descending=True)],
    "argsort": lambda x: [ops.argsort(ops.round(x), 1), ops.argsort(ops.round(x), -2, descending=True)],
    "top": lambda x: [*ops.top_k(x, 3, 1), *ops.top_k(x, 2, largest=False)],
    "draws": lambda x: [
        ops.sample(x, r := ops.sigmoid(x[..., 0]), top_k=3),
        ops.sample(x, r, temperature=ops.relu(r - 0.4), top_k=ops.cast(r * 8.0, "int32"), top_p=r),
        ops.sample(x * 3.0, r, temperature=0.5, top_p=0.6),
        ops.sample(ops.cast(x, "float64"), r),
        ops.sample(ops.transpose(x, (0, 2, 1)), ops.sigmoid(x[:, 0]), top_p=0.0),
    ],
    "triangles": lambda x: [ops.tril(y := ops.matmul(x, x, transpose_b=True), -1), ops.triu(y, 1)],
    "functions": lambda x: [ops.trunc(x * 3.0), ops.expm1(x), ops.log1p(ops.absolute(x)), ops.isfinite(ops.log(x))],
}


@pytest.mark.parametrize("name", STEPS)
def test_open_steps_there_and_back(name: str, tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", "steps", 8))
    STEPS[name](x)
    for size in ((2, 5), (1, 3), (3, 7)):
        agree(graph, tmp_path, {x: normal(*size, 8)}, returns=True)


#: Kinds that raise: what they are made for are trainings, or numbers that depend on open axes.
REFUSED = {"BatchNorm", "Dropout", "Numbers"}
SAMPLES = [(row, sample) for row, sample in samples() if row.onnx and (FULL or sample in row.samples[:12])]


def _built(sample: Sample, dtype: str, behind: bool = False) -> tuple[af.Graph, dict[af.Blob, np.ndarray]]:
    """A graph of an operation; behind a convolution of its first input, whose result has its channels last."""
    graph = af.Graph("g")
    feeds = {graph.blob(f"x{i}", x.shape, x.dtype): x for i, x in enumerate(sample.inputs(dtype))}
    first, *rest = feeds or [None]
    if behind and first is not None:
        same = np.eye(first.shape[-1], dtype=dtype).reshape(*[1] * (len(first.shape) - 2), *[first.shape[-1]] * 2)
        first = ops.conv(first, graph.constant(same))
    graph.op("tested", sample.operation)(*([] if first is None else [first]), *rest)
    return graph, feeds


def _of_images(row: Row) -> list[Sample]:
    """Samples whose first inputs have as many axes as images, and elements."""
    first = [(sample, sample.drawn()[:1]) for sample in row.samples]
    found = [sample for sample, x in first if x and x[0].dtype.kind == "f" and 2 < x[0].ndim < 6 and x[0].size]
    return found if FULL else found[:: max(1, len(found) // 3)]


def _saved(row: Row, folder: Path) -> list[str]:
    """Operators of a file of an operation, with any of its parameters."""
    for sample in row.samples:
        try:
            return kinds(saved(_built(sample, "float32")[0], folder))
        except af.GraphError:
            continue
    return []


def test_operators_of_the_operations(tmp_path: Path) -> None:
    found = {row.name: _saved(row, tmp_path) for row in ROWS.values() if row.kind and row.name not in REFUSED}
    assert [name for name, operators in found.items() if bool(operators) != bool(ROWS[name].onnx)] == []
    assert [name for name, operators in found.items() if operators and ROWS[name].onnx not in operators] == []


#: In double precision the first sample of each operation, or all.
DOUBLE = [(row, sample, "float64", False) for row, sample in SAMPLES if FULL or sample is row.first]
TYPED = [(row, sample, "float32", False) for row, sample in SAMPLES]
#: Some that take images, or all, behind a convolution.
BEHIND = [(row, sample, "float32", True) for row in ROWS.values() if row.onnx for sample in _of_images(row)]


@pytest.mark.together(
    ("row", "sample", "dtype", "behind"),
    [*TYPED, *slow(BEHIND + DOUBLE, but=BEHIND[::3])],
    ids=[f"{i}-{row}" for i, (row, *_) in enumerate(TYPED + BEHIND + DOUBLE)],
)
def test_every_sample_of_an_operation_is_right_or_refused(
    row: Row, sample: Sample, dtype: str, behind: bool, tmp_path: Path
) -> None:
    try:
        graph, feeds = _built(sample, dtype, behind)
    except af.GraphError:
        return  # not for this dtype
    try:
        agree(graph, tmp_path, feeds, 1e-5 if dtype == "float32" else 1e-7)  # parameters of nodes are float32
    except af.GraphError as error:
        assert "cannot be saved as ONNX" in str(error)  # noqa: PT017
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented:
        pass  # valid, but the runtime has no kernel for the dtype
    except runtime.capi.onnxruntime_pybind11_state.InvalidArgument as error:
        assert "dimension is <= 0" in str(error)  # noqa: PT017  of images without pixels
    except runtime.capi.onnxruntime_pybind11_state.Fail as error:
        assert "LRN" in str(error) or "'Cubic' mode only supports" in str(error)  # noqa: PT017  for other ranks


UNARY: list[Callable[[Any], Any]] = [
    ops.relu,
    ops.tanh,
    ops.negative,
    ops.softmax,
    lambda x: ops.softmax(x, 1),
    lambda x: ops.leaky_relu(x, 0.1),
    lambda x: x * 0.5 + 1.0,
    lambda x: ops.clip(x, -1.0, 1.0),
    lambda x: nn.BatchNorm()(x, training=False),
    lambda x: nn.LayerNorm()(x),
    lambda x: ops.lrn(x, 0.1, size=3),
    lambda x: ops.pad(x, ((0, 0), (1, 0), (0, 1), (0, 0))),
    lambda x: ops.flip(x, 1),
    lambda x: x[:, :, :-1] if x.shape[2] > 3 else x,
    lambda x: nn.Conv(4, 1, bias=False)(x),
    lambda x: nn.Conv(4, 3, pad=1, groups=2)(x),
    lambda x: ops.max_pool(x, 2) if min(x.shape[1:3]) > 2 else x,
    lambda x: ops.average_pool(x, 2, 1, 1, count_pad=False),
    lambda x: ops.transpose(ops.tanh(ops.transpose(x, (0, 3, 1, 2))), (0, 2, 3, 1)),
    lambda x: ops.transpose(x, (0, 2, 1, 3)),
    lambda x: x * ops.reshape(ops.sigmoid(ops.global_average(x)), (-1, 1, 1, 4)),
    lambda x: x - ops.mean(x, (1, 2), keepdims=True),
    lambda x: ops.reshape(ops.reshape(x, (-1, x.shape[1] * x.shape[2], 4)), (-1, *x.shape[1:])),
]
BINARY: list[Callable[[Any, Any], Any]] = [
    ops.add,
    ops.multiply,
    ops.maximum,
    lambda a, b: ops.where(a > b, a, b),
    lambda a, b: ops.split(ops.concat([a, b], -1), 2, axis=-1)[1],
    lambda a, b: a + ops.mean(b, (0, 1)),
]


@pytest.mark.together("seed", range(400 if FULL else 40), at_once=14)
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 5, 6, 4))
    known = [x]
    for _ in range(12):
        a = known[random.integers(max(0, len(known) - 4), len(known))]
        partners = [b for b in known if b.shape == a.shape]
        if random.random() < 0.3:
            known.append(BINARY[random.integers(len(BINARY))](a, partners[random.integers(len(partners))]))
        else:
            known.append(UNARY[random.integers(len(UNARY))](a))
    fetch = list({y: None for y in (known[-1], known[random.integers(1, len(known))]) if y is not x})
    for batch in (1, 3):
        agree(graph, tmp_path, {x: normal(batch, 5, 6, 4, seed=seed)}, fetch=fetch)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_names_of_a_model(tmp_path: Path) -> None:
    graph = af.Graph("g")
    a, b = graph.blob("a", ("n", 3)), graph.blob("b", ("n", 3))
    y, z = ops.relu(a - b), ops.exp(a)
    served = af.Model(graph, {"left": a, "right": b}, {"a": y, "left/out": z, "again": y, "same": a})
    model = saved(served, tmp_path)
    assert [each.name for each in model.graph.input] == ["left", "right"]
    assert [each.name for each in model.graph.output] == ["a", "left/out", "again", "same"]
    given = {"left": normal(2, 3), "right": normal(2, 3, seed=1)}
    found = session(tmp_path / "model.onnx").run(None, given)
    for name, value in zip(served.outputs, found, strict=True):
        close(value, served.run_sync(given)[name])
    with pytest.raises(af.GraphError, match="leave fetch out"):
        af.onnx.save(served, tmp_path / "x.onnx", fetch=y)


def test_values_that_are_known_as_outputs(tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2,))
    w = graph.variable("w", (2,), init=np.array([1, 2], "f4"))
    c = graph.constant(np.array([3, 4], "f4"))
    agree(graph, tmp_path, {x: normal(2)}, fetch=[w, c, x + w])


def test_sums_of_several_producers(tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 5, 5, 3))
    y = graph.blob("y", (2, 5, 5, 3))
    weight = graph.variable("w", (1, 1, 3, 3), init=nn.init.gaussian(seed=1))
    [x] >> graph.op("late", ops.Relu()) >> [y]
    [x, weight] >> graph.op("conv", ops.Conv()) >> [y]
    ops.tanh(y)
    agree(graph, tmp_path, {x: normal(2, 5, 5, 3)})


def test_names_of_weights_and_nodes(tmp_path: Path) -> None:
    graph = af.Graph("g")
    nn.LeNet(3, (2, 2, 2), name="net")(graph.blob("x", (1, 16, 16, 1)), training=False)
    model = saved(graph, tmp_path)
    assert {"net/conv0/weight", "net/hidden/bias"} <= {tensor.name for tensor in model.graph.initializer}
    assert {"net/conv0/conv", "net/pool0/max"} <= {node.name for node in model.graph.node}
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    (weight,) = (tensor for tensor in model.graph.initializer if tensor.name == "net/conv0/weight")
    assert list(weight.dims) == [2, 1, 5, 5]


def test_a_training_beside_it_is_left_out(tmp_path: Path) -> None:
    graph = af.Graph("g")
    x, labels = graph.blob("x", ("batch", 8)), graph.blob("labels", ("batch",), "int64")
    net = nn.MLP(3, (4,), dropout=0.5)
    loss = ops.softmax_loss(net(x), labels)
    nn.SGD(0.1).minimize(loss)
    y = net(x, training=False)
    model = agree(graph, tmp_path, {x: normal(2, 8)}, fetch=y)
    assert [each.name for each in model.graph.input] == ["x"]
    with pytest.raises(af.GraphError) as caught:
        af.onnx.save(graph, tmp_path / "x.onnx", fetch=loss)
    text = str(caught.value)
    assert "drop' (Dropout(" in text
    assert "built with training=False" in text
    assert "(SoftmaxLoss(" in text
    assert f"{Path(__file__).name}:" in text
    assert not (tmp_path / "x.onnx").exists()


def test_all_that_onnx_does_not_have_is_listed(tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 4))
    y = ops.cumprod(ops.hypot(x, 2.0) + ops.exp(x), axis=0)
    z = graph.function("own", lambda value: value, outputs=[y.spec])(y)
    with pytest.raises(af.GraphError) as caught:
        af.onnx.save(graph, tmp_path / "x.onnx", fetch=z)
    assert [line.split()[0].strip("'") for line in str(caught.value).splitlines()[1:]] == ["hypot", "cumprod", "own"]


@pytest.mark.together(
    ("make", "message"),
    [
        (lambda x: ops.lrn(x, size=4), "even window"),
        (lambda x: ops.max_pool(x, 2, return_indices=True)[1], "is read, which ONNX's does not have"),
        (lambda x: ops.softplus(x, threshold=1.0), "low threshold"),
        (lambda x: ops.real(ops.cast(x, "complex64")), "does not compute with complex64"),
        (lambda x: vector_norm(x, axis=1, ord=3), "the orders 1 and 2, got 3"),
    ],
)
def test_what_onnx_has_otherwise(make: Any, message: str, tmp_path: Path) -> None:
    graph = af.Graph("g")
    y = make(graph.blob("x", (2, 4, 4, 4)))
    with pytest.raises(af.GraphError, match=message):
        af.onnx.save(graph, tmp_path / "x.onnx", fetch=y)


def test_lengths_that_no_input_has(tmp_path: Path) -> None:
    graph = af.Graph("g")
    y = ops.fill(graph, 1.0, ("n",))
    with pytest.raises(af.GraphError, match="open axis 'n' is the length of no input's axis"):
        af.onnx.save(graph, tmp_path / "x.onnx", fetch=y)
    x = graph.blob("x", ("batch", "steps", 8))
    with pytest.raises(af.GraphError, match="give these axes numbers"):
        af.onnx.save(graph, tmp_path / "x.onnx", fetch=ops.repeat(x, 2, 1))


@pytest.mark.parametrize("opset", [18, 19, 20, 21])
def test_opsets(opset: int, tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 12, 12, 3))
    nn.LeNet(3, (2, 2, 2))(ops.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))), training=False)
    model = agree(graph, tmp_path, {x: normal(2, 12, 12, 3)}, opset=opset)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", opset)]
    with pytest.raises(af.GraphError, match="opset must be from 18"):
        af.onnx.save(graph, tmp_path / "x.onnx", opset=17)
    if opset < 20:
        with pytest.raises(af.GraphError, match="needs opset 20"):
            af.onnx.save(graph, tmp_path / "x.onnx", opset=opset, fetch=ops.gelu(x))


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = af.Graph("g")
    nn.MLP(10)(graph.blob("x", (1, 100)), training=False)
    monkeypatch.setattr("actorflow.onnx.saving._MOST_BYTES", 1000)
    with pytest.raises(af.GraphError, match=r"takes 1\d\d,\d\d\d bytes as ONNX, a file can have 2 GB"):
        af.onnx.save(graph, tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = af.Graph("g")
    ops.relu(graph.blob("x", (2,)))
    path = tmp_path / "x.onnx"
    path.write_bytes(b"old")

    def fail(model: Any, where: Path) -> None:
        where.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("actorflow.onnx.saving.save_model", fail)
    with pytest.raises(OSError, match="disk full"):
        af.onnx.save(graph, path)
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


async def test_frames_in_flight(tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2,))
    started, may_end = asyncio.Event(), asyncio.Event()

    async def wait(value: np.ndarray) -> np.ndarray:
        started.set()
        await may_end.wait()
        return value

    graph.function("wait", wait, outputs=[x.spec])(x)
    y = ops.relu(x)
    run = asyncio.ensure_future(graph.run({x: normal(2)}))
    await started.wait()
    with pytest.raises(af.GraphError, match="frames in flight"):
        af.onnx.save(graph, tmp_path / "x.onnx", fetch=y)
    may_end.set()
    await run


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "lenet", "nin", *slow(["alexnet", "googlenet", "resnet", "small mobile net"])])
def test_models_there_and_back(name: str, tmp_path: Path) -> None:
    make, shape, _ = MODELS[name]
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", *shape))
    y = make()(x, training=False)
    af.onnx.save(graph, tmp_path / "model.onnx")
    loaded = af.onnx.load(tmp_path / "model.onnx")
    assert [*loaded.inputs] == ["x"]
    assert axes_in(loaded.inputs["x"].shape) == {"batch"}
    value = normal(2, *shape)
    found = computed(loaded.graph, lambda: loaded.run({"x": value}))
    close(found[y.name], computed(graph, lambda: graph.run({x: value}))[y], 1e-4)


@pytest.mark.together("row", [row for row in ROWS.values() if row.onnx], at_once=10)
def test_operations_there_and_back(row: Row, tmp_path: Path) -> None:
    """With the first axis of what comes first open; of samples that ONNX Runtime does not compute, the next one."""
    why: list[Exception] = []
    for sample in row.samples:
        graph = af.Graph("g")
        given = sample.inputs("float32")
        shapes = [("n", *x.shape[1:]) if i == 0 and x.ndim else x.shape for i, x in enumerate(given)]
        try:
            feeds = {graph.blob(f"x{i}", shapes[i], x.dtype): x for i, x in enumerate(given)}
            graph.op("tested", sample.operation)(*feeds)
            agree(graph, tmp_path, feeds, returns=True)
            return
        except (af.GraphError, runtime.capi.onnxruntime_pybind11_state.Fail) as error:
            why.append(error)
    raise AssertionError(f"{row.name}: {why}")


@pytest.mark.parametrize("name", ["lstm of both directions", "gru", "causal attention", "group norm"])
def test_sequences_there_and_back(name: str, tmp_path: Path) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, "batch", 8))
    SEQUENCES[name](x)
    af.onnx.save(graph, tmp_path / "model.onnx")
    loaded = af.onnx.load(tmp_path / "model.onnx")
    value = normal(4, 3, 8)
    result = computed(graph, lambda: graph.run({x: value}))
    for output, found in computed(loaded.graph, lambda: loaded.run({"x": value})).items():
        close(found, np.asarray(result[output]))
