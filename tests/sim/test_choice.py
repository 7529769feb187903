"""The choice of a kernel for an op: hints, fallbacks, and what is inserted for them, on a device with few kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.devices import DeviceOptions
from actorflow.devices.sim import SimOptions, launch_kernel
from actorflow.ops import Layout, Operation, registry
from actorflow.ops.registry import kernel
from actorflow.ops.transfer import Transfer
from actorflow.spec import TensorSpec

X = np.arange(8, dtype="f").reshape(1, 2, 2, 2)


@dataclass(frozen=True)
class Plus(Operation):
    """``x + 1``, without kernels of its own; in another layout, too."""

    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout(((0, 3, 1, 2),), ((0, 3, 1, 2),))}

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return inputs


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what is registered here."""
    for library in (("cpu", "numpy"), ("sim", "sim")):
        registry.load_library(*library)
    monkeypatch.setattr(registry, "_kernels", dict(registry._kernels))
    monkeypatch.setattr(registry, "_modules", dict(registry._modules))
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))


Seen = list[tuple[str, tuple[int, ...], str]]


@pytest.fixture
def seen() -> Seen:
    """Each call of a kernel: its library, and the shape and dtype of its input."""
    return []


@pytest.fixture
def register(seen: Seen) -> Callable[..., None]:
    """``register(device, library, **options)``: a kernel of `Plus`."""

    def add(device: str, library: str, **options: Any) -> None:
        def compute(_: Plus, inputs: list[Any], outputs: list[Any]) -> None:
            seen.append((library, inputs[0].shape, str(inputs[0].dtype)))
            if device == "sim":
                launch_kernel(lambda xs, ys: np.add(xs[0], 1, out=ys[0]), inputs, outputs, "plus")
            else:
                np.add(inputs[0], 1, out=outputs[0])

        kernel(Plus, device=device, library=library, **options)(compute)

    return add


async def outcome(graph: af.Graph, y: af.Blob, dtype: str = "f") -> None:
    async with graph:
        result = af.to_numpy((await graph.run({"x": X.astype(dtype)}, fetch=[y]))[y])
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(result, X + 1)


def plus(graph: af.Graph, dtype: str = "f", **hints: Any) -> af.Blob:
    with graph.at("sim:0"):
        x = graph.blob("x", X.shape, dtype)
        return graph.op("plus", Plus(), **hints)(x)


class TestHints:
    @pytest.fixture(autouse=True)
    def two_libraries(self, register: Callable[..., None]) -> None:
        register("sim", "sim")
        register("sim", "fast")
        register("cpu", "numpy")

    async def test_the_order_of_the_device(self, seen: Seen) -> None:
        graph = af.Graph("g")
        await outcome(graph, plus(graph))
        assert [name for name, _, _ in seen] == ["sim"]

    async def test_of_the_graph(self, seen: Seen) -> None:
        graph = af.Graph("g", libraries=["fast"])
        await outcome(graph, plus(graph))
        assert [name for name, _, _ in seen] == ["fast"]
        assert not graph.compile().notes

    @pytest.mark.parametrize("options", [SimOptions(libraries=("fast",)), DeviceOptions(libraries=("fast",))])
    async def test_of_the_device(self, seen: Seen, options: DeviceOptions) -> None:
        graph = af.Graph("g", devices={"sim:0": options})
        await outcome(graph, plus(graph))
        assert [name for name, _, _ in seen] == ["fast"]

    async def test_the_graph_before_the_device(self, seen: Seen) -> None:
        graph = af.Graph("g", libraries=["sim"], devices={"sim:0": SimOptions(libraries=("fast",))})
        await outcome(graph, plus(graph))
        assert [name for name, _, _ in seen] == ["sim"]

    async def test_at_before_the_graph(self, seen: Seen) -> None:
        graph = af.Graph("g", libraries=["sim"])
        with graph.at(libraries=["fast"]), graph.at("sim:0"):
            await outcome(graph, plus(graph))
        assert [name for name, _, _ in seen] == ["fast"]

    async def test_the_op_before_at(self, seen: Seen) -> None:
        graph = af.Graph("g")
        with graph.at(libraries=["sim"]):
            y = plus(graph, libraries=["fast"])
        await outcome(graph, y)
        assert [name for name, _, _ in seen] == ["fast"]

    @pytest.mark.parametrize("where", ["op", "at", "graph"])
    async def test_force_cpu(self, seen: Seen, where: str) -> None:
        graph = af.Graph("g", force_cpu=where == "graph")
        with graph.at(force_cpu=where == "at"):
            y = plus(graph, force_cpu=where == "op")
        await outcome(graph, y)
        assert [name for name, _, _ in seen] == ["numpy"]
        assert list(graph.compile().notes) == ["Plus runs on the CPU: as asked for"]

    @pytest.mark.parametrize("where", ["op", "at", "graph", "device"])
    async def test_an_unknown_library(self, where: str) -> None:
        bad = {"libraries": ["cudna"]}
        devices = {"sim:0": SimOptions(libraries=("cudna",))} if where == "device" else {}
        graph = af.Graph("g", devices=devices, **(bad if where == "graph" else {}))
        with graph.at(**(bad if where == "at" else {})):
            plus(graph, **(bad if where == "op" else {}))
        with pytest.raises(af.KernelNotFoundError, match=r"no library 'cudna'.*; libraries: .*sim"):
            graph.compile()

    async def test_a_library_of_another_device_says_nothing(self, seen: Seen) -> None:
        graph = af.Graph("g", libraries=["numpy", "fast"])
        await outcome(graph, plus(graph))
        assert [name for name, _, _ in seen] == ["fast"]


class TestFallbacks:
    async def test_to_another_library(self, register: Callable[..., None], seen: Seen) -> None:
        register("sim", "sim")
        register("sim", "fast", dtypes=["int8"])
        register("cpu", "numpy")
        graph = af.Graph("g", libraries=["fast"])
        await outcome(graph, plus(graph))
        assert seen == [("sim", X.shape, "float32")]
        assert list(graph.compile().notes) == ["Plus by sim: no kernel of fast"]

    async def test_to_another_layout(self, register: Callable[..., None], seen: Seen) -> None:
        register("sim", "sim", layout="nchw")
        register("sim", "fast", dtypes=["float64"])
        register("cpu", "numpy")
        graph = af.Graph("g", devices={"sim:0": SimOptions(libraries=("fast", "sim"))})
        y = plus(graph)
        assert [op.operation.kind for op in graph.compile().ops] == ["Transfer", "Transpose", "Plus", "Transpose"]
        await outcome(graph, y)
        assert seen == [("sim", (1, 2, 2, 2), "float32")]
        assert "its arrays are converted to nchw" in graph.compile().summary()

    async def test_layouts_permute_what_they_say(self, register: Callable[..., None], seen: Seen) -> None:
        register("sim", "sim", layout="nchw")
        graph = af.Graph("g")
        with graph.at("sim:0"):
            x = graph.blob("x", (2, 5, 6, 3))
            y = graph.op("b", Plus())(graph.op("a", Plus())(x))
        value = np.random.default_rng(0).standard_normal(x.shape).astype("f")
        async with graph:
            np.testing.assert_array_equal(af.to_numpy((await graph.run({x: value}))[y]), value + np.float32(1) + 1)
        assert [shape for _, shape, _ in seen] == [(2, 3, 5, 6)] * 2

    async def test_to_another_dtype(self, register: Callable[..., None], seen: Seen) -> None:
        register("sim", "sim", dtypes=["float64"])
        register("cpu", "numpy")
        graph = af.Graph("g")
        y = plus(graph)
        assert [op.operation.kind for op in graph.compile().ops] == ["Transfer", "Cast", "Plus", "Cast"]
        await outcome(graph, y)
        assert seen == [("sim", X.shape, "float64")]
        assert list(graph.compile().notes) == ["Plus by sim: its arrays are converted to float64"]

    async def test_layout_and_dtype_together(self, register: Callable[..., None], seen: Seen) -> None:
        register("sim", "sim", dtypes=["float64"], layout="nchw")
        graph = af.Graph("g")
        await outcome(graph, plus(graph, "float16"), "float16")
        assert seen == [("sim", (1, 2, 2, 2), "float64")]

    async def test_half_precision_prefers_single(self, register: Callable[..., None], seen: Seen) -> None:
        register("sim", "sim", dtypes=["float32", "float64"])
        graph = af.Graph("g")
        await outcome(graph, plus(graph, "float16"), "float16")
        assert seen == [("sim", X.shape, "float32")]

    async def test_the_form_is_made_once_for_all(self, register: Callable[..., None]) -> None:
        register("sim", "sim", dtypes=["float64"])
        graph = af.Graph("g")
        with graph.at("sim:0"):
            x = graph.blob("x", X.shape)
            for name in ("a", "b"):
                graph.op(name, Plus())(x)
        kinds = [op.operation.kind for op in graph.compile().ops]
        assert (kinds.count("Transfer"), kinds.count("Cast")) == (1, 3)

    async def test_to_the_cpu_last(self, register: Callable[..., None], seen: Seen) -> None:
        register("sim", "sim", dtypes=["int8"])
        register("cpu", "numpy", dtypes=["float64"])
        graph = af.Graph("g")
        await outcome(graph, plus(graph))
        assert seen == [("numpy", X.shape, "float64")]

    def test_nowhere(self) -> None:
        graph = af.Graph("g")
        plus(graph)
        with pytest.raises(af.KernelNotFoundError, match=r"no kernel for Plus\(device=sim, library=sim"):
            graph.compile()


class TestInTheMiddle:
    """An operation that only the CPU has, in the middle of a device's graph."""

    def graph(self, readers: int = 1) -> tuple[af.Graph, list[af.Blob]]:
        graph = af.Graph("g")
        with graph.at("sim:0"):
            x = graph.blob("x", X.shape)
            y = graph.op("plus", Plus())(ops.scale(x, 2.0))
            return graph, [ops.scale(y, 3.0 + i) for i in range(readers)]

    async def test_two_copies_one_line_one_note(
        self, register: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        register("cpu", "numpy")
        graph, (z,) = self.graph()
        plan = graph.compile()
        copies = [op for op in plan.ops if isinstance(op.operation, Transfer) and op.site is not graph["x"]]
        assert [(str(op.operation), op.lane) for op in copies] == [
            ("sim:0 -> cpu", "outbound"),
            ("cpu -> sim:0", "inbound"),
        ]
        assert "note: Plus runs on the CPU: no sim kernel (plus)" in plan.summary()
        async with graph:
            with caplog.at_level(logging.INFO, "actorflow"):
                for _ in range(3):
                    result = await graph.run({"x": X}, fetch=[z])
                await graph.run({"x": X}, fetch=[z, graph])
        np.testing.assert_array_equal(af.to_numpy(result[z]), (X * 2 + 1) * 3)
        lines = [record.getMessage() for record in caplog.records if record.name == "actorflow"]
        assert lines == ["graph 'g': Plus runs on the CPU: no sim kernel (plus)"]

    async def test_copies_are_shared(self, register: Callable[..., None]) -> None:
        register("cpu", "numpy")
        graph, tops = self.graph(readers=4)
        assert sum(isinstance(op.operation, Transfer) for op in graph.compile().ops) == 3  # x's, and the same two
        async with graph:
            result = await graph.run({"x": X})
        for i, top in enumerate(tops):
            np.testing.assert_array_equal(af.to_numpy(result[top]), (X * 2 + 1) * (3 + i))

    async def test_two_devices_get_a_copy_each(self) -> None:
        graph = af.Graph("g")
        with graph.at("sim:0"):
            x = graph.blob("x", X.shape)
            y = ops.scale(x, 2.0)
        tops = []
        for place in ("sim:0", "sim:1", "sim:1", "cpu", "cpu"):
            with graph.at(place):
                tops.append(ops.scale(y, 3.0))
        copies = [str(op.operation) for op in graph.compile().ops if isinstance(op.operation, Transfer)]
        assert sorted(copies) == ["cpu -> sim:0", "sim:0 -> cpu", "sim:0 -> sim:1"]
        async with graph:
            result = await graph.run({x: X})
        for top in tops:
            np.testing.assert_array_equal(af.to_numpy(result[top]), X * 6)


def test_gradients_keep_places_lanes_and_hints() -> None:
    graph = af.Graph("g")
    with graph.at("sim:0", "side", libraries=["sim"]):
        x = graph.blob("x", (2, 2))
        y = ops.tanh(ops.tanh(x))
    with graph.at("sim:1"):
        loss = ops.reshape(ops.inner(ops.reshape(y, (1, 4)), graph.variable("w", (1, 4), init=1)), ())
    af.gradient(loss, x)
    downs = [op for op in graph.ops if op.operation.kind == "Subtract"]  # 1 - y * y
    assert len(downs) == 2
    for op in downs:
        assert (str(op.place), op.lane, op.hints) == ("sim:0", "side", graph["tanh"].hints)
        assert op.hints is not None
