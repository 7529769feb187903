"""Torch's kernels against NumPy's, threads, and that nothing imports torch unasked."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
import actorflow.ops.cpu  # registers NumPy's kernels
from actorflow import ops
from actorflow.devices import blas
from actorflow.errors import KernelNotFoundError, MissingExtraError
from actorflow.ops import find_kernel
from actorflow.ops.cpu import parallel
from actorflow.ops.cpu.parallel import even_cuts
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from actorflow.spec import TensorSpec
from tests.operations.nn.conv import convolutions
from tests.operations.nn.pool import poolings
from tests.operations.table import Sample, normal
from tests.ops.test_parallel import with_help
from tests.support.waiting import in_threads

HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(
    not HAS_TORCH and not os.environ.get("CI"), reason="torch is not installed: make test WITH=torch"
)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """Torch's kernels are registered, and do what is small, too; with CI set, a missing torch fails here."""
    if not HAS_TORCH and not os.environ.get("CI"):
        yield
        return
    from actorflow.ops.torch import conv

    with mock.patch.multiple(conv, LEAST_PRODUCTS=0, LEAST_WINDOWS=0):
        yield


@pytest.fixture(scope="session")
def lay(laid_out: Callable[[np.ndarray, str], np.ndarray]) -> Callable[[np.ndarray, str], np.ndarray]:
    """As `laid_out`; "reversed" has negative strides."""
    flip = (slice(None, None, -1),) * 2
    return lambda array, layout: array[flip].copy()[flip] if layout == "reversed" else laid_out(array, layout)


def computed(operation: ops.Operation, libraries: Sequence[str], *inputs: np.ndarray) -> list[np.ndarray]:
    """Results of the first library's kernel for inputs that it cannot write to, in buffers full of nan."""
    inputs = tuple(array.view() for array in inputs)
    for array in inputs:
        array.flags.writeable = False
    specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in inputs))
    outputs = [np.full(spec.shape, np.nan if spec.dtype.kind == "f" else -9, spec.dtype) for spec in specs]
    found = find_kernel(operation, "cpu", inputs[0].dtype, libraries=libraries)
    assert found.function(operation, list(inputs), outputs) is None
    return outputs


def compare(operation: ops.Operation, dtype: str, *inputs: np.ndarray) -> np.ndarray:
    expected = computed(operation, ["numpy"], *(np.ascontiguousarray(array) for array in inputs))
    before = [array.copy() for array in inputs]
    actual = computed(operation, ["torch", "numpy"], *inputs)
    for array, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, old)
    close = {"rtol": 2e-4, "atol": 2e-4} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-10}
    for found, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(found, wanted, **close)
    return actual[0]


def images(draw: st.DrawFn) -> tuple[Sample, ...]:
    """The mean of images of any size."""
    size = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    return (Sample(ops.GlobalAverage(), normal((draw(st.integers(0, 3)), *size, draw(st.integers(1, 4))))),)


@pytest.mark.slow
@needs_torch
@settings(deadline=None)
@given(
    st.one_of(convolutions(is_even=True), poolings(is_even=True), st.composite(images)()),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["C", "F", "strided", "reversed"]),
)
def test_what_slides_windows_is_numpys(lay: Any, drawn: tuple[Sample, ...], dtype: str, layout: str) -> None:
    for sample in drawn:
        compare(sample.operation, dtype, *(lay(x, layout) for x in sample.inputs(dtype)))


@needs_torch
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_number_is_lost(value: float) -> None:
    x = np.array([value, 1.0, 3.0, value, value, value]).reshape(1, 1, 6, 1)
    compare(ops.AveragePool((1, 2)), "float64", x)
    y = compare(ops.MaxPool((1, 2)), "float64", x)
    if not np.isnan(value):  # whose window has no maximum
        compare(MaxPoolDown((1, 2)), "float64", np.arange(3.0).reshape(1, 1, 3, 1), x, y)


@needs_torch
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"),
    [((4, 5), (3, 3), (1, 3), (1, 0)), ((6, 1), (3, 1), (1, 2), (0, 1)), ((4, 7, 3), (3, 3, 3), (3, 1, 2), (1, 1, 0))],
)
def test_images_of_one_channel_are_not_read_beside(size, kernel, stride, pad) -> None:
    random = np.random.default_rng(0)
    for outputs in (1, 2, 3):
        x, weight = random.standard_normal((2, *size, 1)), random.standard_normal((*kernel, 1, outputs))
        compare(ops.Conv(stride, pad), "float32", x.astype("f"), weight.astype("f"))


@needs_torch
@pytest.mark.parametrize(
    ("batch", "size", "channels", "by_numpy"),
    [(2, 16, (8, 8), False), (2, 2, (8, 8), True), (2, 4, (8, 8), True), (2, 16, (1, 8), True), (2, 16, (8, 1), False)],
)
def test_what_is_small_is_left_to_numpy(batch: int, size: int, channels: tuple[int, int], by_numpy: bool) -> None:
    from actorflow.ops.torch import conv

    random = np.random.default_rng(0)
    x, g = (random.standard_normal((batch, size, size, n), np.float32) for n in channels)
    weight = random.standard_normal((3, 3, *channels), np.float32)
    with (
        mock.patch.multiple(conv, LEAST_PRODUCTS=30_000, LEAST_WINDOWS=16),
        mock.patch.object(conv, "conv", wraps=conv.conv) as forward,
        mock.patch.object(conv, "conv_down", wraps=conv.conv_down) as down,
        mock.patch.object(conv, "conv_weight", wraps=conv.conv_weight) as of_weight,
    ):
        compare(ops.Conv(1, 1), "float32", x, weight)
        compare(ConvDown(1, 1, size=(size, size)), "float32", g, weight)
        compare(ConvWeight(1, 1, kernel=(3, 3)), "float32", g, x)
    assert [taken.call_count for taken in (forward, down, of_weight)] == [by_numpy] * 3


@needs_torch
def test_numpys_kernel_is_taken_for_what_torch_cannot_do() -> None:
    def library(operation: ops.Operation, dtype: str = "float32") -> str:
        return find_kernel(operation, "cpu", np.dtype(dtype), libraries=["torch", "numpy"]).key.library

    for kind in (ops.MaxPool, MaxPoolDown, ops.AveragePool, AveragePoolDown):
        for kernel, pad in ((3, 2), ((3, 3), (2, 0)), ((3, 1), 1), (4, ((1, 2), 1))):
            assert library(kind(kernel, 1, pad)) == "numpy"
        for kernel, pad in ((3, 1), ((3, 3), (1, 0)), ((3, 2), 1), (4, ((2, 2), 1))):
            assert library(kind(kernel, 1, pad)) == "torch"
            assert library(kind(kernel, 1, pad), "float16") == "numpy"
    assert library(ops.MaxPool(3, pad=1, dilation=2)) == "numpy"
    assert library(ops.MaxPool(3, dilation=2)) == "torch"
    assert library(ops.AveragePool(3, dilation=2)) == "numpy"
    assert library(ops.Conv(1, 5), "float64") == "torch"
    assert library(ops.Conv(1, ((1, 0),)), "float64") == "numpy"
    assert library(ops.Relu()) == "numpy"
    for stride, pad in (((2, 2, 2), (3, 1, 2)), ((2, 1, 1), (3, 0, 0)), ((3, 1, 1), (4, 1, 1)), (2, 4)):
        assert library(ConvWeight(stride, pad, 1, 2, kernel=(8, 8, 8))) == "numpy"
        assert library(ConvDown(stride, pad, 1, 2, size=(9, 9, 9))) == "torch"
        assert library(ops.Conv(stride, pad, 1, 2)) == "torch"
    for stride, pad in ((1, 2), (2, 2), (2, 1), ((1, 2, 3), (4, 2, 3)), (4, 0)):
        assert library(ConvWeight(stride, pad, kernel=(8, 8, 8))) == "torch"
    assert library(ConvWeight((2, 2), (3, 3), kernel=(8, 8))) == "torch"
    with pytest.raises(KernelNotFoundError, match="library=torch"):
        find_kernel(ops.MaxPool(3, 1, 2), "cpu", np.dtype("float32"), libraries=["torch"])


@needs_torch
def test_a_plan_notes_that_numpy_computes_what_torch_would_spoil() -> None:
    graph = af.Graph("volumes", libraries=["torch"])
    x = graph.blob("x", (1, 2, 4, 6, 2))
    weight = graph.variable("w", (4, 2, 4, 1, 8), init=af.nn.init.gaussian(std=0.1, seed=0))
    y = af.ops.conv(x, weight, stride=2, pad=(3, 1, 2), groups=2)
    (gradient,) = af.gradient(af.ops.sum(y), [weight])
    plan = graph.compile(fetch=[y, gradient])
    notes = {type(op.operation).__name__: op.note for op in plan.ops}
    assert notes["Conv"] == ""
    assert notes["ConvWeight"] == "ConvWeight by numpy: no kernel of torch"


@needs_torch
def test_arrays_are_lent_not_copied() -> None:
    from actorflow.ops.torch.tensors import images, tensor, weights

    array = np.arange(120.0).reshape(2, 3, 4, 5)
    locked = array.view()
    locked.flags.writeable = False
    for lent in (array, locked, array[:, ::2], array.transpose(3, 1, 0, 2)):
        assert tensor(lent).data_ptr() == lent.ctypes.data
        assert tensor(lent).stride() == tuple(stride // 8 for stride in lent.strides)
        np.testing.assert_array_equal(images(lent).numpy(), lent.transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(weights(lent).numpy(), lent.transpose(3, 2, 0, 1))
    import torch

    assert images(array).is_contiguous(memory_format=torch.channels_last)
    single = array[:1][::-1]  # a stride that is negative, and counts for nothing
    assert tensor(single).data_ptr() == single.ctypes.data
    assert tensor(single).stride() == (60, 20, 5, 1)
    odd = np.zeros((3, 2), np.dtype([("a", np.uint8), ("b", np.float32)]))["b"]  # strides that are not whole elements
    for copied in (array[::-1], odd):
        np.testing.assert_array_equal(tensor(copied).numpy(), copied)


class TestThreads:
    @pytest.fixture
    def four_cores(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
        """As on a machine with four cores; ``threads()`` is what a kernel's torch calls may use, in any thread."""
        import torch

        from actorflow.ops.torch import tensors

        before = torch.get_num_threads()
        limits = blas.BlasThreads()
        monkeypatch.setattr(blas, "cores", lambda: 4)
        monkeypatch.setattr(tensors, "blas_threads", limits)
        self.limits, self.torch = limits, torch
        torch.set_num_threads(4)
        seen: list[int] = []
        kernel = tensors.within_share(lambda operation, inputs, outputs: seen.append(torch.get_num_threads()))

        def threads() -> int:
            kernel(None, [], [])
            return seen.pop()

        yield threads
        torch.set_num_threads(before)

    @needs_torch
    def test_a_kernel_has_its_lanes_share(self, four_cores: Callable[[], int]) -> None:
        seen = []
        for _ in range(5):
            self.limits.lane_started()
            seen.append((four_cores(), in_thread(four_cores)))
        assert seen == [(4, 4), (2, 2), (1, 1), (1, 1), (1, 1)]
        for _ in range(4):
            self.limits.lane_stopped()
        assert four_cores() == 4
        self.limits.lane_stopped()

    @needs_torch
    def test_the_applications_number_is_kept(self, four_cores: Callable[[], int]) -> None:
        for _ in range(2):
            self.limits.lane_started()
        assert in_thread(lambda: (four_cores(), self.torch.get_num_threads())) == (2, 4)
        assert self.torch.get_num_threads() == 4
        assert in_thread(self.torch.get_num_threads) == 4
        self.torch.set_num_threads(1)
        assert (four_cores(), in_thread(four_cores)) == (1, 1)
        assert self.torch.get_num_threads() == 1
        for _ in range(2):
            self.limits.lane_stopped()

    @needs_torch
    def test_the_number_comes_back_after_an_error(self, four_cores: Callable[[], int]) -> None:
        from actorflow.ops.torch.tensors import within_share

        @within_share
        def fails(operation: Any, inputs: Any, outputs: Any) -> None:
            raise RuntimeError(self.torch.get_num_threads())

        self.limits.keep_single()
        with pytest.raises(RuntimeError, match="1"):
            fails(None, [], [])
        assert self.torch.get_num_threads() == 4
        self.limits.release_single()

    @needs_torch
    def test_lanes_compute_at_the_same_time(self) -> None:
        random = np.random.default_rng(0)
        weight = random.standard_normal((3, 3, 8, 8)).astype("f")
        images = [random.standard_normal((4, 12, 12, 8)).astype("f") for _ in range(4)]
        conv, pool = ops.Conv(pad=1), ops.MaxPool(3, 2)

        def chain(x: np.ndarray, libraries: list[str]) -> np.ndarray:
            for _ in range(5):
                (x,) = computed(conv, libraries, x, weight)
            return computed(pool, libraries, x)[0]

        barrier = threading.Barrier(len(images))
        found: dict[int, list[np.ndarray]] = {}

        def work(i: int) -> None:
            barrier.wait()
            found[i] = [chain(images[i], ["torch"]) for _ in range(5)]

        in_threads(*(partial(work, i) for i in range(len(images))))
        for i, x in enumerate(images):
            expected = chain(x, ["numpy"])
            for actual in found[i]:
                np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@needs_torch
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_pieces_of_a_batch_are_the_same_whoever_computes_them(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    from actorflow.ops.torch import conv, pool, tensors

    limits = blas.BlasThreads()
    limits.keep_single()
    monkeypatch.setattr(tensors, "blas_threads", limits)
    monkeypatch.setattr(parallel, "WORTH_NS", 0)
    monkeypatch.setattr(conv, "_PIECE_PRODUCTS", 1)
    monkeypatch.setattr(pool, "_PIECE_ELEMENTS", 1)
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((batch, 9, 9, 4)).astype("f"), random.standard_normal((3, 3, 4, 6)).astype("f")
    (g,) = computed(ops.Conv(pad=1), ["numpy"], x, weight)
    (y,) = computed(ops.MaxPool(2, 2), ["numpy"], x)
    for operation, *inputs in (
        (ops.Conv(pad=1), x, weight),
        (ConvDown(pad=1, size=(9, 9)), g, weight),
        (ConvWeight(pad=1, kernel=(3, 3)), g, x),
        (ops.MaxPool(2, 2), x),
        (MaxPoolDown(2, 2), y, x, y),
        (ops.AveragePool(2, 2), x),
        (AveragePoolDown(2, 2, size=(9, 9)), y),
    ):
        compute = partial(computed, operation, ["torch"], *inputs)
        with mock.patch.object(tensors, "even_cuts", wraps=even_cuts) as cuts:
            (alone,) = compute()
        cuts.assert_called_once_with(batch, 2)
        (helped,) = with_help(1, compute)
        assert helped.tobytes() == alone.tobytes()
        (expected,) = computed(operation, ["numpy"], *inputs)
        np.testing.assert_allclose(alone, expected, rtol=1e-3, atol=1e-3)


@needs_torch
async def test_a_graph_on_several_lanes_with_frames_in_flight() -> None:
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((4, 16, 16, 8)).astype("f"), "labels": np.arange(4)}

    async def trained(libraries: list[str] | None) -> tuple[set[str], list[np.ndarray]]:
        graph = af.Graph("branches", libraries=libraries)
        x, labels = graph.blob("x", (4, 16, 16, 8)), graph.blob("labels", (4,), "int64")
        weights = [graph.variable(f"w{i}", (3, 3, 8, 10), init=af.nn.init.gaussian(std=0.1, seed=i)) for i in range(3)]
        convolved = [af.ops.relu(af.ops.conv(x, weight, pad=1)) for weight in weights]
        pooled = [af.ops.max_pool(convolved[0], 3, 2), *(af.ops.average_pool(y, 3, 2) for y in convolved[1:])]
        loss = af.ops.softmax_loss(af.ops.add(*map(af.ops.global_average, pooled)), labels)
        fetch = [loss, *af.gradient(loss, weights)]
        kernels = {op.kernel.key for op in graph.compile(fetch=fetch).ops if op.kernel is not None}
        async with graph:
            results = await asyncio.gather(*(graph.run(feeds, fetch=fetch) for _ in range(6)))
            for result in results[1:]:
                for blob in fetch:
                    np.testing.assert_array_equal(result[blob], results[0][blob])
        return {key.operation for key in kernels if key.library == "torch"}, [results[0][blob] for blob in fetch]

    used, found = await trained(["torch"])
    assert {"Conv", "ConvWeight", "MaxPool", "MaxPoolDown", "AveragePoolDown", "GlobalAverage"} <= used
    unused, expected = await trained(None)
    assert not unused
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-5)


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    in_threads(lambda: found.append(function()))
    return found[0]


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_imports_torch_unasked() -> None:
    program = """
import sys
import numpy as np
import actorflow as af
graph = af.Graph("g")
x = graph.blob("x", (1, 8, 8, 3))
y = af.ops.max_pool(af.ops.conv(x, graph.variable("w", (3, 3, 3, 4), init=np.ones((3, 3, 3, 4), "f"))), 2)
graph.run_sync({x: np.ones((1, 8, 8, 3), "f")})
print(graph.run_sync({x: np.ones((1, 8, 8, 3), "f")})[y].shape, "torch" in sys.modules)
"""
    assert run(program) == "(1, 3, 3, 4) False\n"


def test_a_missing_torch_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("actorflow.ops.torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"library 'torch' needs 'torch': pip install 'actorflow\[torch\]'"):
        import actorflow.ops.torch  # noqa: F401
