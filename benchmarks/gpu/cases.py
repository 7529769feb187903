"""One case per operation: its inputs, and how CuPy and torch do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow import ops
from actorflow.ops import Operation
from actorflow.ops.indexing import TakeDown
from actorflow.ops.linalg import BiasDown, InnerDown, InnerWeight
from actorflow.ops.nn.activation import ReluDown
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.nn.loss import SoftmaxLossDown
from actorflow.ops.nn.norm import BatchNormDown
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from actorflow.ops.nn.softmax import SoftmaxDown

__all__ = ["OperationCase", "operation_cases"]

_Array = npt.NDArray[Any]
_EXACT, _PRODUCT = 1e-5, 1e-4
_RATE, _MOMENTUM, _DECAY, _DROPOUT = 1e-3, 0.9, 1e-4, 0.5


@dataclass(frozen=True)
class OperationCase:
    """One operation on arrays of one shape.

    Attributes:
        title: The operation, and where it matters its shapes.
        operation: What is measured.
        arrays: Its inputs.
        bare: ``bare(xp, *arrays)`` does the same with CuPy; None where that takes more than a few calls.
        torch: ``torch(module, *tensors)`` gives a function that does the same; None where torch has no such thing.
        tolerance: Relative error that two float32 computations may differ by.
    """

    title: str
    operation: Operation
    arrays: tuple[_Array, ...]
    bare: Callable[..., Any] | None = None
    torch: Callable[..., Callable[[], Any]] | None = None
    tolerance: float = _EXACT


def operation_cases(*, quick: bool, seed: int = 0) -> Iterator[OperationCase]:
    """All cases, made one by one, since their arrays are large.

    Args:
        quick: Tiny shapes.
        seed: Of the random inputs.
    """
    rng = np.random.default_rng(seed)
    yield from _elementwise(rng, (2, 4, 4, 3) if quick else (128, 32, 32, 96))
    yield from _linear(rng, *((4, 8, 6) if quick else (512, 4096, 1024)))
    batch = 2 if quick else 128
    # (size, channels in, channels out, kernel, pad): the layers of the Network in Network of the paper.
    for i, shape in enumerate(((32, 3, 192, 5, 2), (32, 192, 160, 1, 0), (16, 96, 192, 5, 2), (8, 192, 192, 3, 1))):
        yield from _convolution(rng, batch, *((5, 3, 4 + i, *shape[3:]) if quick else shape))
    yield from _pooling(rng, (2, 7, 7, 3) if quick else (128, 32, 32, 96))
    yield from _normalization(rng, (2, 4, 4, 3) if quick else (128, 32, 32, 96))
    yield from _indices(rng, *((30, 4, 8) if quick else (50_000, 512, 8192)))
    yield from _losses(rng, 8 if quick else 4096, 10 if quick else 1000)


def _normal(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.standard_normal(shape, np.float32)


def _elementwise(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[OperationCase]:
    x, g, z = (_normal(rng, *shape) for _ in range(3))
    positive = np.maximum(x, 0)
    yield OperationCase("copy", ops.Copy(), (x,), lambda xp, x: x.copy(), lambda t, x: lambda: x.clone())
    yield OperationCase(
        "cast to float16",
        ops.Cast(np.dtype(np.float16)),
        (x,),
        lambda xp, x: x.astype(np.float16),
        lambda t, x: lambda: x.half(),
    )
    yield OperationCase(
        "transpose to NCHW",
        ops.Transpose((0, 3, 1, 2)),
        (x,),
        lambda xp, x: xp.ascontiguousarray(x.transpose(0, 3, 1, 2)),
        lambda t, x: lambda: x.permute(0, 3, 1, 2).contiguous(),
    )
    yield OperationCase("scale", ops.Scale(0.5), (x,), lambda xp, x: x * 0.5, lambda t, x: lambda: x * 0.5)
    yield OperationCase(
        "sum of 3", ops.Sum(), (x, g, z), lambda xp, a, b, c: a + b + c, lambda t, a, b, c: lambda: a + b + c
    )
    yield OperationCase("mul", ops.Multiply(), (x, g), lambda xp, a, b: a * b, lambda t, a, b: lambda: a * b)
    yield OperationCase("relu", ops.Relu(), (x,), lambda xp, x: xp.maximum(x, 0), lambda t, x: lambda: t.relu(x))
    yield OperationCase(
        "relu, gradient",
        ReluDown(),
        (g, positive),
        lambda xp, g, y: g * (y > 0),
        lambda t, g, y: lambda: g * (y > 0),
    )
    yield OperationCase(
        "sigmoid", ops.Sigmoid(), (x,), lambda xp, x: 1 / (1 + xp.exp(-x)), lambda t, x: lambda: t.sigmoid(x)
    )
    yield OperationCase("tanh", ops.Tanh(), (x,), lambda xp, x: xp.tanh(x), lambda t, x: lambda: t.tanh(x))
    # Drawing the same numbers takes a kernel of its own; CuPy's are others.
    yield OperationCase(
        "dropout",
        ops.Dropout(_DROPOUT, 1),
        (x,),
        lambda xp, x: x * (xp.random.random(x.shape) >= _DROPOUT).astype(np.float32) * (1 / (1 - _DROPOUT)),
        lambda t, x: lambda: t.nn.functional.dropout(x, _DROPOUT),
    )
    yield OperationCase(
        "choice, of dropout's gradient",
        ops.Where(),
        (x > 0, g, np.zeros((), np.float32)),
        lambda xp, mask, g, zero: xp.where(mask, g, zero),
        lambda t, mask, g, zero: lambda: t.where(mask, g, zero),
    )
    yield OperationCase(
        "update by SGD",
        ops.SgdUpdate(_MOMENTUM, _DECAY),
        (x, g, z, np.array(_RATE)),
        _bare_sgd,
        _torch_sgd,
    )


def _bare_sgd(_xp: Any, weight: Any, grad: Any, velocity: Any, _rate: Any) -> Any:
    velocity = _MOMENTUM * velocity + _RATE * (grad + _DECAY * weight)
    return weight - velocity, velocity


def _torch_sgd(torch: Any, weight: Any, grad: Any, _velocity: Any, _rate: Any) -> Callable[[], Any]:
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = grad.clone()
    optimizer = torch.optim.SGD([parameter], _RATE, _MOMENTUM, weight_decay=_DECAY)
    step: Callable[[], Any] = optimizer.step
    return step


def _linear(rng: np.random.Generator, batch: int, width: int, outputs: int) -> Iterator[OperationCase]:
    x, weight, g = _normal(rng, batch, width), _normal(rng, outputs, width), _normal(rng, batch, outputs)
    b = _normal(rng, outputs)
    size = f"{batch} x {width} -> {outputs}"
    yield OperationCase(
        f"inner {size}",
        ops.Inner(),
        (x, weight),
        lambda xp, x, w: x @ w.T,
        lambda t, x, w: lambda: x @ w.T,
        _PRODUCT,
    )
    yield OperationCase(
        f"inner {size}, gradient of x",
        InnerDown(),
        (g, weight),
        lambda xp, g, w: g @ w,
        lambda t, g, w: lambda: g @ w,
        _PRODUCT,
    )
    yield OperationCase(
        f"inner {size}, gradient of the weight",
        InnerWeight(),
        (g, x),
        lambda xp, g, x: g.T @ x,
        lambda t, g, x: lambda: g.T @ x,
        _PRODUCT,
    )
    yield OperationCase("bias", ops.Bias(), (g, b), lambda xp, x, b: x + b, lambda t, x, b: lambda: x + b)
    yield OperationCase(
        "bias, gradient", BiasDown(), (g,), lambda xp, g: g.sum(axis=0), lambda t, g: lambda: g.sum(0), _PRODUCT
    )


def _convolution(
    rng: np.random.Generator, batch: int, size: int, channels: int, outputs: int, kernel: int, pad: int
) -> Iterator[OperationCase]:
    x, weight = _normal(rng, batch, size, size, channels), _normal(rng, kernel, kernel, channels, outputs)
    side = size + 2 * pad - kernel + 1
    g = _normal(rng, batch, side, side, outputs)
    title = f"convolution {kernel}x{kernel}, {channels} -> {outputs} at {size}x{size}"

    def forward(xp: Any, x: Any, weight: Any) -> Any:
        padded = xp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        windows = xp.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))
        columns = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, weight[..., 0].size)
        return (columns @ weight.reshape(-1, outputs)).reshape(batch, side, side, outputs)

    def torch_forward(torch: Any, x: Any, weight: Any) -> Callable[[], Any]:
        images, kernels = _nchw(x), _oihw(torch, weight)
        return lambda: torch.nn.functional.conv2d(images, kernels, padding=pad)

    def torch_down(torch: Any, g: Any, weight: Any) -> Callable[[], Any]:
        grads, kernels = _nchw(g), _oihw(torch, weight)
        return lambda: torch.nn.grad.conv2d_input((batch, channels, size, size), kernels, grads, padding=pad)

    def torch_weight(torch: Any, g: Any, x: Any) -> Callable[[], Any]:
        grads, images = _nchw(g), _nchw(x)
        return lambda: torch.nn.grad.conv2d_weight(images, (outputs, channels, kernel, kernel), grads, padding=pad)

    yield OperationCase(title, ops.Conv(pad=pad), (x, weight), forward, torch_forward, _PRODUCT)
    down = ConvDown(pad=pad, size=(size, size))
    yield OperationCase(f"{title}, gradient of x", down, (g, weight), None, torch_down, _PRODUCT)
    of_weight = ConvWeight(pad=pad, kernel=(kernel, kernel))
    yield OperationCase(f"{title}, gradient of the weight", of_weight, (g, x), None, torch_weight, _PRODUCT)


def _nchw(x: Any) -> Any:
    """The same memory as a tensor that torch calls channels last."""
    return x.permute(0, 3, 1, 2)


def _oihw(torch: Any, weight: Any) -> Any:
    return weight.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)


def _pooling(rng: np.random.Generator, shape: tuple[int, int, int, int]) -> Iterator[OperationCase]:
    batch, height, width, channels = shape
    x = _normal(rng, *shape)
    window: dict[str, Any] = {"kernel": (3, 3), "stride": (2, 2)}
    rows, columns = ops.MaxPool(**window).windows((height, width)).out
    g = _normal(rng, batch, rows, columns, channels)
    y = np.full(g.shape, -np.inf, np.float32)
    for i in range(3):
        for j in range(3):
            part = x[:, i::2, j::2][:, :rows, :columns]
            edge = y[:, : part.shape[1], : part.shape[2]]
            np.maximum(edge, part, out=edge)

    def torch_pool(pool: str) -> Callable[..., Callable[[], Any]]:
        return lambda t, x: lambda: getattr(t.nn.functional, pool)(_nchw(x), 3, 2, ceil_mode=True)

    def torch_max_down(torch: Any, g: Any, x: Any, _y: Any) -> Callable[[], Any]:
        return _backward(torch, lambda images: torch.nn.functional.max_pool2d(images, 3, 2, ceil_mode=True), x, g)

    def torch_average_down(torch: Any, g: Any) -> Callable[[], Any]:
        zeros = torch.zeros(shape, device=g.device)
        return _backward(torch, lambda images: torch.nn.functional.avg_pool2d(images, 3, 2, ceil_mode=True), zeros, g)

    def torch_indices(torch: Any, x: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.max_pool2d(_nchw(x), 3, 2, ceil_mode=True, return_indices=True)

    yield OperationCase("max pooling 3x3/2", ops.MaxPool(**window), (x,), None, torch_pool("max_pool2d"))
    yield OperationCase("max pooling, gradient", MaxPoolDown(**window), (g, x, y), None, torch_max_down)
    indices = ops.MaxPool(**window, return_indices=True)
    yield OperationCase("max pooling with indices", indices, (x,), None, torch_indices)
    yield OperationCase("average pooling 3x3/2", ops.AveragePool(**window), (x,), None, torch_pool("avg_pool2d"))
    average_down = AveragePoolDown(**window, size=(height, width))
    yield OperationCase("average pooling, gradient", average_down, (g,), None, torch_average_down)
    yield OperationCase(
        "global average",
        ops.GlobalAverage(),
        (x,),
        lambda xp, x: x.mean(axis=(1, 2)),
        lambda t, x: lambda: x.mean((1, 2)),
    )
    yield OperationCase(
        "broadcast",
        ops.BroadcastTo(shape),
        (_normal(rng, batch, 1, 1, channels),),
        lambda xp, g: xp.broadcast_to(g, shape).copy(),
        lambda t, g: lambda: g.expand(shape).contiguous(),
    )


def _backward(torch: Any, forward: Callable[[Any], Any], x: Any, g: Any) -> Callable[[], Any]:
    """The backward part alone."""
    images = _nchw(x).detach().requires_grad_()
    y, grads = forward(images), _nchw(g)
    return lambda: torch.autograd.grad(y, images, grads, retain_graph=True)


def _normalization(rng: np.random.Generator, shape: tuple[int, int, int, int]) -> Iterator[OperationCase]:
    x, g = _normal(rng, *shape), _normal(rng, *shape)
    scale, shift, running, spread = (1 + _normal(rng, shape[-1]) ** 2 for _ in range(4))
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))

    def torch_norm(torch: Any, x: Any, scale: Any, shift: Any, running: Any, spread: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.batch_norm(_nchw(x), running, spread, scale, shift, training=True)

    def torch_down(torch: Any, g: Any, x: Any, scale: Any, _mean: Any, _variance: Any) -> Callable[[], Any]:
        norm = partial(torch.nn.functional.batch_norm, running_mean=None, running_var=None, weight=scale, training=True)
        return _backward(torch, norm, x, g)

    yield OperationCase("batch norm", ops.BatchNorm(), (x, scale, shift, running, spread), None, torch_norm)
    yield OperationCase(
        "batch norm, gradient", BatchNormDown(), (g, x, scale, mean, variance), None, torch_down, _PRODUCT
    )


def _indices(rng: np.random.Generator, rows: int, width: int, count: int) -> Iterator[OperationCase]:
    """A few rows are taken very often, as words are."""
    table, g = _normal(rng, rows, width), _normal(rng, count, width)
    picked = (rows ** rng.random(count)).astype(np.int64) - 1

    def torch_down(torch: Any, g: Any, picked: Any) -> Callable[[], Any]:
        return lambda: torch.zeros(rows, width, device=g.device).index_add_(0, picked, g)

    yield OperationCase(
        f"embedding of {count} in {rows} x {width}",
        ops.Take(),
        (table, picked),
        lambda xp, table, picked: table[picked],
        lambda t, table, picked: lambda: table[picked],
    )
    yield OperationCase(
        f"embedding of {count} in {rows} x {width}, gradient",
        TakeDown(rows),
        (g, picked),
        None,
        torch_down,
    )


def _losses(rng: np.random.Generator, batch: int, classes: int) -> Iterator[OperationCase]:
    x, g = _normal(rng, batch, classes), _normal(rng, batch, classes)
    labels = rng.integers(0, classes, batch)
    y = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)

    def torch_loss_down(torch: Any, g: Any, x: Any, labels: Any) -> Callable[[], Any]:
        scores = x.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(scores, labels)
        return lambda: torch.autograd.grad(loss, scores, g, retain_graph=True)

    yield OperationCase("softmax", ops.Softmax(), (x,), _softmax, lambda t, x: lambda: t.softmax(x, -1))
    yield OperationCase(
        "softmax, gradient",
        SoftmaxDown(),
        (g, y),
        lambda xp, g, y: y * (g - (g * y).sum(axis=-1, keepdims=True)),
        lambda t, g, y: lambda: y * (g - (g * y).sum(-1, keepdim=True)),
    )
    yield OperationCase(
        "loss of softmax",
        ops.SoftmaxLoss(),
        (x, labels),
        lambda xp, x, labels: -xp.log(_softmax(xp, x)[xp.arange(batch), labels]).mean(),
        lambda t, x, labels: lambda: t.nn.functional.cross_entropy(x, labels),
    )
    yield OperationCase(
        "loss of softmax, gradient",
        SoftmaxLossDown(),
        (np.array(1, np.float32), x, labels),
        None,
        torch_loss_down,
    )
    yield OperationCase(
        "accuracy",
        ops.Accuracy(),
        (x, labels),
        lambda xp, x, labels: (x.argmax(axis=-1) == labels).mean(),
        lambda t, x, labels: lambda: (x.argmax(-1) == labels).float().mean(),
    )


def _softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
