"""Programs of users under ``mypy --strict``: public names have types, and ``Any`` does not leak from them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import actorflow
import actorflow.array as xp

pytest.importorskip("mypy")

GRAPHS = """
import numpy as np
import numpy.typing as npt
from typing import Any, assert_type

import actorflow as af

graph = af.Graph("g", trace_capacity=1 << 10, devices={"cpu": af.devices.DeviceOptions()})
assert_type(graph, af.Graph)
x = graph.blob("x", shape=(4, 3), dtype=np.float32, place="cpu")
assert_type(x, af.Blob)
assert_type(x.shape, tuple[int, ...])
w = graph.variable("w", (3, 2), init=np.zeros((3, 2)))
assert_type(w, af.Variable)
assert_type(w.value, npt.NDArray[Any])
op = graph.op("inner", af.ops.Inner())
assert_type(op, af.Op)
y = graph.blob("y", (4, 2))
assert_type([x, w] >> op, af.Op)
assert_type(op >> y, af.Blob)
assert_type(af.ops.relu(y), af.Blob)
assert_type(af.gradient(y, [w]), list[af.Blob])
assert_type(af.gradient(y, w), af.Blob)
assert_type(graph.nodes[0].name, str)
assert_type(graph.sinks, tuple[af.Blob, ...])
assert_type(graph.statistics(), af.GraphStatistics)
assert_type(graph.statistics().frames.finished, int)
assert_type(graph.statistics().ops["inner"].calls, int)
assert_type(graph.statistics().memory[af.Place()].held_bytes, int)
assert_type(graph.compile(), af.Plan)
assert_type(graph.summary(), str)
assert_type(af.world().rank, int)


@graph.function
def bare(x: npt.NDArray[np.float32]) -> None: ...


@graph.function(outputs=af.TensorSpec.of(()), inputs=[y], timeout=1.0)
async def total(y: npt.NDArray[np.float32]) -> np.float32:
    return np.float32(y.sum())


assert_type(bare, af.Op)
assert_type(total.outputs[0], af.Blob)
assert_type(graph.function("f", abs, af.TensorSpec.of(())), af.Op)


async def main() -> None:
    async with graph as entered:
        assert_type(entered, af.Graph)
        result = await graph.run({x: np.zeros((4, 3)), "z": [1.0]}, fetch=[y, "inner"], timeout=1.0)
        assert_type(result, af.Result)
        assert_type(result[y], npt.NDArray[Any])
        assert_type(result["y"].tolist(), Any)
        assert_type(result.get("y"), npt.NDArray[Any] | None)
        assert_type(result.get("y", 0), npt.NDArray[Any] | int)
        for name, value in result.items():
            assert_type(value, npt.NDArray[Any])
        stream = graph.stream([{x: np.ones((4, 3))}], in_flight=2)
        assert_type(stream, af.FrameStream)
        async for each in stream:
            assert_type(each[y], npt.NDArray[Any])
        graph.pause("why")
        assert_type(graph.paused, af.Pause | None)
        assert_type(graph.cancel(reason="over"), list[int])


assert_type(af.run(main()), None)
assert_type(graph.run_sync({x: np.zeros((4, 3))}), af.Result)
"""

LAYERS = """
from collections.abc import Sequence
from typing import Any, assert_type

import actorflow as af
from actorflow import nn

graph = af.Graph("g")
x = graph.blob("x", (8, 28, 28, 1))
labels = graph.blob("labels", (8,), "int64")
conv = nn.Conv(8, 3)
assert_type(conv(x), af.Blob)
network = nn.Conv(8, 3) >> nn.Activation("relu") >> nn.Flatten() >> nn.InnerProduct(10)
scores = network(x, training=False)
assert_type(scores, af.Blob)
assert_type([x] >> conv, nn.Conv)
assert_type(network.variables, tuple[af.Variable, ...])
hidden, last, cell = nn.LSTM(4)(graph.blob("sequence", (5, 8, 3)))
assert_type(cell, af.Blob)


class Block(af.Composite):
    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        return af.ops.relu(x)


class Halves(af.Composite[tuple[af.Blob, af.Blob]]):
    def build(self, *bottom: af.Blob, training: bool) -> Sequence[af.Blob]:
        return bottom[0], bottom[0]


assert_type(Block("block")(x), af.Blob)
left, right = Halves()(x)
assert_type(left, af.Blob)
loss = nn.SoftmaxLoss()(scores, labels)
assert_type(loss, af.Blob)
"""

EXPRESSIONS = """
import numpy as np
from typing import assert_type

import actorflow as af

x = af.Graph("g").blob("x", (4, 3))
assert_type(2 * x + 1.0, af.Blob)
assert_type(x / x - np.float32(0.5), af.Blob)
assert_type(x * np.ones(3, np.float32), af.Blob)
assert_type(x @ x.T, af.Blob)
assert_type(-abs(x) ** 2, af.Blob)
assert_type((x < 1) & ~(x >= 0.5), af.Blob)
assert_type(x[1:, ..., None], af.Blob)
assert_type(x.mean(axis=0, keepdims=True).astype("float64").reshape(-1).sum(), af.Blob)
assert_type(x.transpose(1, 0).ndim, int)
assert_type(x == x, bool)
y = af.array.ones((4, 3))
assert_type(y.sum(0).reshape(3, 1).astype("int8").transpose() + y.T, af.array.Array)
x + "text"  # type: ignore[arg-type]
x.item()  # type: ignore[attr-defined]
for row in x:  # type: ignore[misc]
    pass
"""

PIPELINES = """
from collections.abc import Iterator, Sequence
from typing import assert_type

import numpy as np

import actorflow as af


async def fetch(number: int) -> bytes:
    return bytes(number)


def decode(data: bytes) -> float:
    return float(len(data))


def texts(value: float) -> Iterator[str]:
    yield str(value)


def total(values: Sequence[float]) -> float:
    return sum(values)


numbers = af.pipeline.source(range(8), shuffle=True)
fetched = numbers.map(fetch, concurrency=4)
decoded = fetched.map(decode)
assert_type(fetched, af.pipeline.Pipeline[bytes])
assert_type(decoded.filter(bool).prefetch(2), af.pipeline.Pipeline[float])
assert_type(decoded.flat_map(texts), af.pipeline.Pipeline[str])
assert_type(decoded.batch(4, collate=total), af.pipeline.Pipeline[float])
assert_type(decoded.batch(4, collate=list), af.pipeline.Pipeline[list[float]])
assert_type(numbers.zip(decoded), af.pipeline.Pipeline[tuple[int, float]])
assert_type(decoded.enumerate(), af.pipeline.Pipeline[tuple[int, float]])
assert_type(numbers.stats()["map"].items_per_s, float)


def of_epoch(epoch: int) -> list[str]:
    return [str(epoch)]


assert_type(af.pipeline.source(of_epoch), af.pipeline.Pipeline[str])
loader = af.data.Loader({"x": np.arange(8.0)}, 4, seed=0)
assert_type(loader, af.data.Batches)


async def main() -> None:
    async with decoded:
        async for value in decoded:
            assert_type(value, float)
    async for feed in loader:
        assert_type(feed, af.data.Feed)
    for data in fetched.iter_sync():
        assert_type(data, bytes)
"""

ARRAYS = """
from typing import assert_type

import actorflow.array as xp

x = xp.exp(xp.asarray([1.0, 2.0]))
assert_type(x, xp.Array)
assert_type(xp.where(xp.less(x, 2.0), xp.add(x, 1), xp.atan2(x, x)), xp.Array)
"""
ARRAYS += "\n".join([f"xp.{name}" for name in xp.__all__])

#: Programs that must not pass, and what is said of them.
WRONG = {
    "import actorflow as af\naf.Graph('g', trace_capacity='many')": "arg-type",
    "import actorflow as af\naf.Graph('g').blobb": "attr-defined",
    "import actorflow as af\naf.Graph('g').function(outputs=3)": "call-overload",
    "import actorflow as af\naf.nonsense": "attr-defined",
    "import actorflow as af\naf.pipeline.source([1]).map(str.upper)": "arg-type",
}


def complaints(programs: list[str], folder: Path) -> list[list[str]]:
    """Messages of mypy on each program, in one run for all."""
    paths = [folder / f"program{i}.py" for i in range(len(programs))]
    for path, program in zip(paths, programs, strict=True):
        path.write_text(program)
    root = Path(actorflow.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", *map(str, paths)],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(root), "MYPY_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return [[line for line in lines if line.startswith(f"{path.name}:")] for path in paths]


@pytest.mark.slow
def test_programs_of_users(tmp_path: Path) -> None:
    right = [GRAPHS, LAYERS, EXPRESSIONS, PIPELINES, ARRAYS]
    said_of = complaints([*right, *WRONG], tmp_path)
    wrong = said_of[len(right) :]
    assert said_of[: len(right)] == [[] for _ in right]
    for (program, code), said in zip(WRONG.items(), wrong, strict=True):
        assert [line for line in said if code in line], f"{program}: {said}"
