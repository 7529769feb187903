"""Work that several questions share: shapes of graphs, operations of known cost, a small network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import actorflow as af
from actorflow.ops import Operation, kernel

__all__ = [
    "MatMul",
    "Pass",
    "Tasks",
    "Training",
    "build_graph",
    "chain",
    "chain_graph",
    "hashing",
    "hashing_rounds",
    "layered",
    "matmul_factors",
    "matmul_size",
    "sinks_of",
    "training_step",
]

#: A graph in neutral form: per task the values it reads; value 0 is the source, value i + 1 the result of task i.
Tasks = list[tuple[int, ...]]


def chain(count: int) -> Tasks:
    """Each task reads the result before."""
    return [(i,) for i in range(count)]


def layered(count: int, width: int = 100, fan_in: int = 3) -> Tasks:
    """Layers of ``width`` tasks; each reads ``fan_in`` results of the layer before, the first layer the source."""
    tasks: Tasks = []
    for i in range(count):
        layer, column = divmod(i, width)
        first = 1 + (layer - 1) * width
        tasks.append(tuple(first + (column * 7 + k * 13) % width for k in range(fan_in)) if layer else (0,))
    return tasks


def sinks_of(tasks: Tasks) -> list[int]:
    """Values that no task reads."""
    read = {value for inputs in tasks for value in inputs}
    return [value for value in range(1, len(tasks) + 1) if value not in read]


@dataclass(frozen=True)
class Pass(Operation):
    """The first input, as it is: an operation that costs nothing."""

    arguments = ("*x",)

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs[:1]


@kernel(Pass, returns=True)
def _pass(_operation: Pass, inputs: Any, _outputs: Any) -> Any:
    return inputs[:1]


@dataclass(frozen=True)
class MatMul(Operation):
    """``y = x @ w``, square."""

    arguments = ("x", "w")

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs[:1]


@kernel(MatMul)
def _matmul(_operation: MatMul, inputs: Any, outputs: Any) -> None:
    np.matmul(inputs[0], inputs[1], out=outputs[0])


def build_graph(
    tasks: Tasks, operation: Operation | Callable[..., Any], shape: tuple[int, ...] = (1,), name: str = "benchmark"
) -> tuple[af.Graph, af.Blob]:
    """A graph of tasks that all do the same, and its source, a float32 blob."""
    graph = af.Graph(name)
    source = graph.blob("x", shape)
    spec = source.spec
    blobs = [source]
    for i, inputs in enumerate(tasks):
        if isinstance(operation, Operation):
            op = graph.op(f"task{i}", operation)
        else:
            op = graph.function(f"task{i}", operation, spec)
        blobs.append(op(*[blobs[value] for value in inputs]))
    return graph, source


def matmul_factors(size: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Two square orthogonal matrices: products of any number of them stay of one size."""
    rng = np.random.default_rng(0)
    x, w = (np.linalg.qr(rng.standard_normal((size, size)))[0].astype(np.float32) for _ in range(2))
    return x, w


def chain_graph(
    count: int, w: npt.NDArray[np.float32], operation: Operation | Callable[..., Any]
) -> tuple[af.Graph, af.Blob]:
    """``x @ w @ w @ ...``, and its source ``x``."""
    graph = af.Graph("chain")
    source = y = graph.blob("x", w.shape)
    factor = graph.variable("w", w.shape, init=w)
    for i in range(count):
        if isinstance(operation, Operation):
            op = graph.op(f"product{i}", operation)
        else:
            op = graph.function(f"product{i}", operation, source.spec)
        y = op(y, factor)
    return graph, source


def matmul_size(target_s: float) -> int:
    """Size of square matrices whose product takes about ``target_s`` here, a multiple of 8."""

    def prepare(size: int) -> Callable[[], object]:
        x = np.ones((size, size), dtype=np.float32)
        out = np.empty_like(x)
        return lambda: np.matmul(x, x, out=out)

    sizes = np.unique(np.geomspace(2, 256, 60).astype(int)) * 8
    return _first_that_takes(target_s, sizes.tolist(), prepare)


def hashing(rounds: int) -> object:
    """Work that runs without the GIL, on one core, and needs no memory: so threads of it do not disturb each other."""
    return hashlib.pbkdf2_hmac("sha256", b"benchmark", b"benchmark", rounds)


def hashing_rounds(target_s: float) -> int:
    """Number of rounds of `hashing` that take about ``target_s`` here."""
    sizes = np.geomspace(100, 1_000_000, 100).astype(int).tolist()
    return _first_that_takes(target_s, sizes, lambda rounds: lambda: hashing(rounds))


def _first_that_takes(target_s: float, sizes: Iterable[int], prepare: Callable[[int], Callable[[], object]]) -> int:
    """The first of ascending sizes with which the prepared work takes ``target_s``, or the last of them."""
    for size in sizes:
        if _fastest(prepare(size), target_s) >= target_s:
            break
    return size


def _fastest(work: Callable[[], object], about_s: float) -> float:
    """The least time of a call: what disturbs it only adds to it."""
    batch = max(1, int(2e-4 / about_s))
    times = []
    for _ in range(5):
        start = perf_counter()
        for _ in range(batch):
            work()
        times.append((perf_counter() - start) / batch)
    return min(times)


class Training(NamedTuple):
    """A small Network in Network on images of random numbers, with its updates."""

    graph: af.Graph
    feeds: dict[Any, Any]
    loss: af.Blob
    updates: af.Graph


def training_step(batch: int = 32, size: int = 8, classes: int = 10) -> Training:
    """The network that the demo trains on the digits."""
    rng = np.random.default_rng(0)
    graph = af.Graph("training")
    images = graph.blob("images", (batch, size, size, 1))
    labels = graph.blob("labels", (batch,), "int64")
    scores = af.nn.NIN(classes, seed=0)(images, training=True)
    loss = af.ops.softmax_loss(scores, labels)
    updates = af.nn.SGD(rate=0.05, momentum=0.9, weight_decay=1e-4).minimize(loss)
    feeds = {
        images: rng.standard_normal(images.shape, dtype=np.float32),
        labels: rng.integers(0, classes, labels.shape),
    }
    return Training(graph, feeds, loss, updates)
