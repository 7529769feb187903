"""Weights loaded from PyTorch's modules: layers and models then compute what the modules do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.graph.gradient import trainable
from actorflow.nn.models import _INCEPTIONS, MOBILE_NETS

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

tn = torch.nn


def seeded(module: Any, seed: int = 0) -> Any:
    """The module in inference, with other weights and statistics than it begins with."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                # Weights about as large as keeps activations as they are; variances positive.
                noise = torch.randn(tensor.shape, generator=generator)
                fan = max(1, tensor[0].numel()) if tensor.ndim > 1 else 25
                tensor.copy_(1 + 0.1 * noise if tensor.ndim < 2 and "bias" not in name else noise * fan**-0.5)
                if "running_var" in name:
                    tensor.abs_()
    return module.eval()


def first(tensor: Any) -> Any:
    """Channels last."""
    return tensor.permute(0, *range(2, tensor.ndim), 1) if tensor.ndim > 2 else tensor


def flat(tensors: Any) -> list[Any]:
    return [each for part in tensors for each in flat(part)] if isinstance(tensors, tuple) else [tensors]


def check(
    layer: Any,
    module: Any,
    x: np.ndarray,
    tolerance: float = 1e-5,
    images: bool = True,
    training: bool = False,
    **how: Any,
) -> None:
    """Load, run both, and compare within a tolerance of the largest number."""
    graph = af.Graph("g")
    blob = graph.blob("x", x.shape, x.dtype)
    y = layer(blob, training=training) if isinstance(layer, af.Composite) else layer(blob)
    nn.load_torch(layer if isinstance(layer, af.Composite) else graph, seeded(module).state_dict(), **how)
    given = torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)) if images else x)
    with torch.no_grad():
        expected = module(given)
    tops = y if isinstance(y, tuple) else (y,)
    found = graph.run_sync({blob: x}, fetch=list(tops))
    for mine, theirs in zip(tops, flat(expected), strict=True):
        wanted = (first(theirs) if images else theirs).numpy()
        assert np.abs(wanted).max() > 1e-3
        np.testing.assert_allclose(found[mine], wanted, rtol=0, atol=tolerance * max(1, np.abs(wanted).max()))


def check_training(make: Callable[[], Any], module: Any, x: np.ndarray, least: float = 0.0) -> None:
    """Scores of a step of training, and its gradients, which come into our order as weights do: by loading them."""
    graph = af.Graph("g")
    blob, labels = graph.blob("x", x.shape, "float64"), graph.blob("labels", x.shape[:1], "int64")
    net, slopes = make(), make()
    scores, _ = net(blob, training=True), slopes(blob, training=True)
    loss = ops.softmax_loss(scores, labels)
    parameters = trainable(loss)
    grads = af.gradient(loss, parameters)
    state = seeded(module).double().train().state_dict()
    nn.load_torch(net, state)
    classes = np.arange(len(x)) % scores.shape[-1]
    theirs = module(torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1))).double())
    torch.nn.functional.cross_entropy(theirs, torch.from_numpy(classes)).backward()
    nn.load_torch(slopes, {**state, **{name: each.grad for name, each in module.named_parameters()}})
    wanted = dict(zip(net.variables, (each.value for each in slopes.variables), strict=True))
    found = graph.run_sync({blob: x, labels: classes}, fetch=[scores, *grads])
    pairs = [(scores, theirs.detach().numpy()), *((g, wanted[w]) for g, w in zip(grads, parameters, strict=True))]
    for mine, its in pairs:
        np.testing.assert_allclose(found[mine], its, rtol=1e-9, atol=1e-9 * max(np.abs(its).max(), least))


def check_model(make: Callable[[], Any], module: Any, *shape: int, tolerance: float = 1e-5, least: float = 0.0) -> None:
    check(make(), module, normal(*shape), tolerance)
    check_training(make, module, normal(*shape), least)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("f4")


LAYERS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "conv": (lambda: nn.Conv(6, 3, 2, 1), lambda: tn.Conv2d(4, 6, 3, 2, 1), (2, 7, 8, 4)),
    "conv without bias": (
        lambda: nn.Conv(6, (3, 2), bias=False),
        lambda: tn.Conv2d(4, 6, (3, 2), bias=False),
        (2, 7, 8, 4),
    ),
    "grouped": (lambda: nn.Conv(6, 3, groups=2), lambda: tn.Conv2d(4, 6, 3, groups=2), (2, 7, 8, 4)),
    "depthwise": (lambda: nn.Conv(8, 3, groups=4), lambda: tn.Conv2d(4, 8, 3, groups=4), (2, 7, 8, 4)),
    "one axis": (lambda: nn.Conv(6, 3), lambda: tn.Conv1d(4, 6, 3), (2, 9, 4)),
    "three axes": (lambda: nn.Conv(6, 2), lambda: tn.Conv3d(4, 6, 2), (2, 3, 4, 5, 4)),
    "transposed": (lambda: nn.ConvTranspose(6, 3, 2, 1, 1), lambda: tn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (2, 4, 5, 4)),
    "grouped transposed": (
        lambda: nn.ConvTranspose(6, 3, 2, groups=2),
        lambda: tn.ConvTranspose2d(4, 6, 3, 2, groups=2),
        (2, 4, 5, 4),
    ),
    "linear": (lambda: nn.InnerProduct(5), lambda: tn.Linear(4, 5), (3, 4)),
    "batch norm": (nn.BatchNorm, lambda: tn.BatchNorm2d(4), (2, 3, 5, 4)),
    "batch norm without scale": (
        lambda: nn.BatchNorm(affine=False),
        lambda: tn.BatchNorm2d(4, affine=False),
        (2, 3, 5, 4),
    ),
    "group norm": (lambda: nn.GroupNorm(2), lambda: tn.GroupNorm(2, 4), (2, 3, 5, 4)),
    "instance norm": (lambda: nn.InstanceNorm(affine=True), lambda: tn.InstanceNorm2d(4, affine=True), (2, 3, 5, 4)),
}
SEQUENCES = {
    "linear": (lambda: nn.Linear(5), lambda: tn.Linear(4, 5), (2, 3, 4)),
    "layer norm": (nn.LayerNorm, lambda: tn.LayerNorm(4), (2, 3, 4)),
    "layer norm of two axes": (lambda: nn.LayerNorm(2), lambda: tn.LayerNorm((3, 4)), (2, 3, 4)),
    "rms norm": (nn.RMSNorm, lambda: tn.RMSNorm(4, 1e-5), (2, 3, 4)),
    "rnn": (lambda: nn.RNN(5, 2), lambda: tn.RNN(4, 5, 2), (3, 2, 4)),
    "rnn of relus": (
        lambda: nn.RNN(5, activation="relu", bidirectional=True, batch_first=True),
        lambda: tn.RNN(4, 5, nonlinearity="relu", bidirectional=True, batch_first=True),
        (2, 3, 4),
    ),
    "gru": (lambda: nn.GRU(5), lambda: tn.GRU(4, 5), (3, 2, 4)),
    "gru of both directions": (
        lambda: nn.GRU(5, 2, bidirectional=True),
        lambda: tn.GRU(4, 5, 2, bidirectional=True),
        (3, 2, 4),
    ),
    "lstm": (lambda: nn.LSTM(5), lambda: tn.LSTM(4, 5), (3, 2, 4)),
    "lstm of both directions": (
        lambda: nn.LSTM(5, 2, bidirectional=True, batch_first=True),
        lambda: tn.LSTM(4, 5, 2, bidirectional=True, batch_first=True),
        (2, 3, 4),
    ),
    "lstm cell": (lambda: nn.LSTMCell(5), lambda: tn.LSTMCell(4, 5), (3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_images(name: str) -> None:
    make, oracle, shape = LAYERS[name]
    check(make(), oracle(), normal(*shape))


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_layer_of_sequences(name: str) -> None:
    make, oracle, shape = SEQUENCES[name]
    check(make(), oracle(), normal(*shape), images=False)


def test_an_embedding() -> None:
    indices = np.arange(6).reshape(2, 3)
    check(nn.Embedding(7, 4), tn.Embedding(7, 4), indices, images=False)


class Attention(tn.Module):
    """Of a sequence to itself, or to the first features of it."""

    def __init__(self, narrow: int | None = None) -> None:
        super().__init__()
        self.narrow = narrow
        self.attn = tn.MultiheadAttention(8, 2, kdim=narrow, vdim=narrow, batch_first=True)

    def forward(self, x: Any) -> Any:
        context = x if self.narrow is None else x[..., : self.narrow]
        return self.attn(x, context, context)[0]


@pytest.mark.parametrize("narrow", [None, 6])
def test_attention(narrow: int | None) -> None:
    layer = nn.MultiHeadAttention(2, name="attn")

    def ours(x: af.Blob) -> af.Blob:
        return layer(x) if narrow is None else layer(x, x[..., :narrow])

    # Where widths differ, ours has keys as wide as the queries, as torch's embedded ones.
    check(ours, Attention(narrow), normal(2, 3, 8), images=False)


def sequential(*modules: Any) -> Any:
    return tn.Sequential(*modules)


def relus(*convolutions: Any) -> list[Any]:
    return [each for conv in convolutions for each in (conv, tn.ReLU())]


def test_the_first_inner_product_behind_a_convolution_sees_other_columns() -> None:
    """Torch flattens channels, height, width: without a permutation the outputs differ by as much as they are."""
    x = normal(2, 6, 5, 3)
    layers = [nn.Conv(4, 3, name="a"), nn.InnerProduct(5, name="b")]
    module = seeded(sequential(tn.Conv2d(3, 4, 3), tn.Flatten(), tn.Linear(48, 5)))
    check(af.Chain(*layers, name="net"), module, x)
    weight = layers[1].variables[0]
    graph = weight.graph.root
    blob = graph.sources[0]
    right = graph.run_sync({blob: x})[graph.sinks[0]]
    weight.value = module[2].weight.detach().numpy()
    assert np.abs(graph.run_sync({blob: x})[graph.sinks[0]] - right).max() > 0.3


def lenet() -> Any:
    return sequential(
        tn.Conv2d(1, 20, 5), tn.ReLU(), tn.MaxPool2d(2), tn.Conv2d(20, 50, 5), tn.ReLU(), tn.MaxPool2d(2),
        tn.Flatten(), tn.Linear(800, 500), tn.ReLU(), tn.Linear(500, 10),
    )  # fmt: skip


def test_lenet() -> None:
    check_model(lambda: nn.LeNet(10), lenet(), 2, 28, 28, 1)


def test_mlp() -> None:
    layers = [tn.Flatten(), tn.Linear(12, 7), tn.ReLU(), tn.Linear(7, 3)]
    check(nn.MLP(3, (7,)), sequential(*layers), normal(2, 12), images=False)


class Mean(tn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean((2, 3))


def test_nin() -> None:
    conv = tn.Conv2d
    module = sequential(
        *relus(conv(3, 8, 3, 1, 1), conv(8, 8, 1)), tn.MaxPool2d(3, 2, ceil_mode=True),
        *relus(conv(8, 6, 3, 1, 1), conv(6, 6, 1)), conv(6, 5, 1), Mean(),
    )  # fmt: skip
    check_model(lambda: nn.NIN(5, (8, 6), dropout=0.0), module, 2, 12, 12, 3)


def test_vgg() -> None:
    layers: list[Any] = []
    channels = 3
    for stage, count in enumerate((1, 1, 2, 2, 2)):
        for _ in range(count):
            layers += relus(tn.Conv2d(channels, width := 4 * min(2**stage, 8), 3, 1, 1))
            channels = width
        layers.append(tn.MaxPool2d(2))
    rest = [tn.Flatten(), *relus(tn.Linear(128, 9), tn.Linear(9, 9)), tn.Linear(9, 5)]
    module = sequential(*layers, *rest)
    check_model(lambda: nn.VGG(5, size=11, width=4, hidden=9, dropout=0.0), module, 2, 64, 64, 3)


def test_alexnet() -> None:
    def lrn() -> Any:
        return tn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)

    def pool() -> Any:
        return tn.MaxPool2d(3, 2, ceil_mode=True)

    conv = tn.Conv2d
    module = sequential(
        *relus(conv(3, 96, 11, 4)), lrn(), pool(), *relus(conv(96, 256, 5, 1, 2, groups=2)), lrn(), pool(),
        *relus(conv(256, 384, 3, 1, 1), conv(384, 384, 3, 1, 1, groups=2), conv(384, 256, 3, 1, 1, groups=2)), pool(),
        tn.Flatten(), *relus(tn.Linear(1024, 9), tn.Linear(9, 9)), tn.Linear(9, 5),
    )  # fmt: skip
    check_model(lambda: nn.AlexNet(5, hidden=9, dropout=0.0), module, 2, 79, 79, 3)


class Inception(tn.Module):
    def __init__(self, channels: int, one: int, three: int, five: int, r3: int, r5: int, pool: int) -> None:
        super().__init__()
        conv = tn.Conv2d
        self.branch1 = sequential(*relus(conv(channels, one, 1)))
        self.branch2 = sequential(*relus(conv(channels, r3, 1), conv(r3, three, 3, 1, 1)))
        self.branch3 = sequential(*relus(conv(channels, r5, 1), conv(r5, five, 5, 1, 2)))
        self.branch4 = sequential(tn.MaxPool2d(3, 1, 1), *relus(conv(channels, pool, 1)))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNet(tn.Module):
    """Scores, and those of the auxiliary heads, which look at what comes out of two blocks."""

    def __init__(self, classes: int, auxiliary: bool) -> None:
        super().__init__()
        pool = partial(tn.MaxPool2d, 3, 2, ceil_mode=True)
        lrn = partial(tn.LocalResponseNorm, 5, 1e-4, 0.75, 1.0)
        stem = relus(tn.Conv2d(64, 64, 1), tn.Conv2d(64, 192, 3, 1, 1))
        parts: list[list[Any]] = [[*relus(tn.Conv2d(3, 64, 7, 2, 3)), pool(), lrn(), *stem, lrn(), pool()]]
        channels, seen = 192, []
        for block, widths in _INCEPTIONS.items():
            if block in ("4a", "5a"):
                parts[-1].append(pool())
            parts[-1].append(Inception(channels, *widths))
            channels = sum(widths[:3]) + widths[5]
            if block in ("4a", "4d"):
                parts.append([])
                seen.append(channels)
        self.parts = tn.ModuleList(sequential(*part) for part in parts)
        self.scores = sequential(Mean(), tn.Linear(channels, classes))
        pooled = partial(tn.AvgPool2d, 5, 3, ceil_mode=True)
        self.heads = tn.ModuleList(
            sequential(
                pooled(), *relus(tn.Conv2d(n, 128, 1)), tn.Flatten(), *relus(tn.LazyLinear(1024)),
                tn.Linear(1024, classes),
            )
            for n in (seen if auxiliary else ())
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        found = []
        for part in self.parts:
            x = part(x)
            found.append(x)
        scores = self.scores(x)
        return (scores, *(head(y) for head, y in zip(self.heads, found, strict=False))) if self.heads else scores


@pytest.mark.parametrize("auxiliary", [False, True])
def test_googlenet(auxiliary: bool) -> None:
    size = 224 if auxiliary else 64
    module = GoogLeNet(9, auxiliary)
    module(torch.zeros(1, 3, size, size))
    net = nn.GoogLeNet(9, auxiliary=auxiliary, dropout=0.0)
    for head in net.auxiliary:
        head.layers[-2].rate = 0.0
    check(net, module, normal(1, size, size, 3), training=auxiliary)


class Residual(tn.Module):
    """As torchvision's: the shortcut is defined last."""

    def __init__(self, channels: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        out = width * 4 if deep else width
        sizes = [(width, 1, 1), (width, 3, stride), (out, 1, 1)] if deep else [(width, 3, stride), (width, 3, 1)]
        self.count = len(sizes)
        before = channels
        for i, (after, kernel, step) in enumerate(sizes):
            self.add_module(f"conv{i}", tn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{i}", tn.BatchNorm2d(after))
            before = after
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = sequential(tn.Conv2d(channels, out, 1, stride, bias=False), tn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        y = x
        for i in range(self.count):
            y = torch.relu(y) if i else y
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


@pytest.mark.parametrize("size", [18, 50])
def test_resnet(size: int) -> None:
    deep, channels = size == 50, 4
    layers = [tn.Conv2d(3, 4, 7, 2, 3, bias=False), tn.BatchNorm2d(4), tn.ReLU(), tn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate((3, 4, 6, 3) if deep else (2, 2, 2, 2)):
        for i in range(count):
            layers.append(Residual(channels, 4 << stage, 2 if stage and not i else 1, deep))
            channels = (4 << stage) * (4 if deep else 1)
    module = sequential(*layers, Mean(), tn.Linear(channels, 5))
    check_model(lambda: nn.ResNet(5, size=size, width=4), module, 2, 64, 64, 3, tolerance=1e-4)


class Squeeze(tn.Module):
    """As torchvision's: convolutions of 1x1 where we have inner products."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = tn.Conv2d(channels, squeezed, 1), tn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Any) -> Any:
        y = self.fc2(torch.relu(self.fc1(x.mean((2, 3), keepdim=True))))
        return x * (y / 6 + 0.5).clamp(0, 1)  # hardsigmoid's own gradient has 1/6 in float32 alone


class Inverted(tn.Module):
    def __init__(self, channels: int, kernel: int, wide: int, out: int, squeezes: bool, kind: str, stride: int) -> None:
        super().__init__()
        activation = tn.ReLU if kind == "relu" else tn.Hardswish
        layers: list[Any] = []
        if wide != channels:
            layers += [tn.Conv2d(channels, wide, 1, bias=False), tn.BatchNorm2d(wide, 1e-3), activation()]
        layers += [tn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)]
        layers += [tn.BatchNorm2d(wide, 1e-3), activation()]
        if squeezes:
            quarter = wide // 4
            squeezed = max(8, (quarter + 4) // 8 * 8)
            layers.append(Squeeze(wide, squeezed + 8 * (squeezed < 0.9 * quarter)))
        layers += [tn.Conv2d(wide, out, 1, bias=False), tn.BatchNorm2d(out, 1e-3)]
        self.block, self.adds = sequential(*layers), stride == 1 and channels == out

    def forward(self, x: Any) -> Any:
        return self.block(x) + x if self.adds else self.block(x)


@pytest.mark.parametrize("size", ["small", "large"])
def test_mobile_net(size: str) -> None:
    blocks, hidden = MOBILE_NETS[size]
    channels = 16
    layers = [tn.Conv2d(3, 16, 3, 2, 1, bias=False), tn.BatchNorm2d(16, 1e-3), tn.Hardswish()]
    for block in blocks:
        layers.append(Inverted(channels, *block))
        channels = block[2]
    layers += [tn.Conv2d(channels, 6 * channels, 1, bias=False), tn.BatchNorm2d(6 * channels, 1e-3), tn.Hardswish()]
    layers += [Mean(), tn.Linear(6 * channels, hidden), tn.Hardswish(), tn.Linear(hidden, 5)]
    # What a norm adds before a 1x1 convolution and another norm has a gradient of 0, but for rounding.
    make = lambda: nn.MobileNetV3(5, size=size, dropout=0.0)  # noqa: E731
    check_model(make, sequential(*layers), 3, 64, 64, 3, tolerance=1e-4, least=1e-3)


class LanguageModel(tn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = tn.Embedding(11, 6), tn.LSTM(6, 5, 2), tn.Linear(5, 11)

    def forward(self, tokens: Any) -> Any:
        y, (hidden, cell) = self.rnn(self.emb(tokens))
        return self.fc(y), hidden, cell


@pytest.mark.parametrize("how", [{}, {"map": {"emb": "embedding", "rnn": "lstm", "fc": "scores"}}])
def test_a_language_model(how: dict[str, Any]) -> None:
    tokens = np.random.default_rng(0).integers(0, 11, (4, 3))
    check(nn.LSTMLanguageModel(11, features=6, hidden=5, layers=2), LanguageModel(), tokens, images=False, **how)


def test_weights_of_half_precision_and_of_a_wrapped_module() -> None:
    graph = af.Graph("g")
    layer = nn.InnerProduct(3, name="fc")
    layer(graph.blob("x", (1, 4)))
    module = tn.DataParallel(sequential(tn.Linear(4, 3))).bfloat16()
    nn.load_torch(graph, module.state_dict(), lambda name: name.removeprefix("module."))
    expected = module.module[0].weight.detach().float().numpy()
    np.testing.assert_array_equal(layer.variables[0].value, expected)


def test_ops_without_layers() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (1, 5, 5, 2))
    weight, bias = (graph.variable(n, s, init=nn.init.constant(0.0)) for n, s in (("w", (3, 3, 2, 4)), ("b", (4,))))
    y = ops.bias(ops.conv(x, weight), bias)
    module = seeded(tn.Conv2d(2, 4, 3))
    nn.load_torch(graph, module.state_dict(), {"weight": "w", "bias": "b"})
    value = normal(1, 5, 5, 2)
    with torch.no_grad():
        expected = module(torch.from_numpy(value).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(graph.run_sync({x: value})[y], expected, atol=1e-5)
