"""First launches, which compile kernels: a thread of the device makes them, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.actors.op import KernelActor
from actorflow.actors.stream import StreamKernelActor
from actorflow.devices.cuda import CudaDevice

RANDOM = np.random.default_rng(0)
#: Of chains: what was compiled for an earlier test is not compiled again.
_NUMBERS = count(100)
_FUNCTIONS = (af.ops.tanh, af.ops.sigmoid, af.ops.sin, af.ops.cos, af.ops.atan, af.ops.relu)


class Compiler:
    """CuPy's compiler, which everything goes through that CuPy compiles or loads.

    Attributes:
        threads: The threads it was called in, call by call.
        before: Called in front of each call.
    """

    def __init__(self, compile_one: Callable[..., Any]) -> None:
        self.threads: list[threading.Thread] = []
        self.before: Callable[[], object] = lambda: None
        self._compile_one = compile_one

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.threads.append(threading.current_thread())
        self.before()
        return self._compile_one(*args, **named)


@pytest.fixture
def compiler(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Compiler:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))  # nothing was compiled by an earlier process
    compiler = Compiler(cupy.cuda.compiler._compile_module_with_cache)
    monkeypatch.setattr(cupy.cuda.compiler, "_compile_module_with_cache", compiler)
    return compiler


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[threading.Thread]]:
    """For each op on a stream, by its name, the threads that its kernel was called in."""
    found = defaultdict(list)
    compute = KernelActor._compute_into

    def noted(actor: KernelActor, *args: Any) -> list[Any]:
        if isinstance(actor, StreamKernelActor) and actor.compiles:
            found[actor.node.name].append(threading.current_thread())
        return compute(actor, *args)

    monkeypatch.setattr(KernelActor, "_compute_into", noted)
    return found


def chain(x: Any, number: int) -> Any:
    """The chain of functions of a number, which no other test has."""
    digits = [int(digit) for digit in np.base_repr(number + 6**7, 6)]
    for digit in [*digits, 0, 1, 2]:
        x = _FUNCTIONS[digit](x)
    return x


def kinds() -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """Each kind of op: its name, what makes it, and arrays for it."""
    x = RANDOM.standard_normal((6, 5)).astype("f")
    image, filters = RANDOM.standard_normal((2, 6, 6, 3)).astype("f"), RANDOM.standard_normal((3, 3, 3, 4)).astype("f")
    yield "elementwise", af.ops.tanh, [x]
    yield "chain", partial(chain, number=1), [x]
    yield "reduction", lambda x: af.ops.sum(x, axis=1), [x]
    yield "chain that is reduced", lambda x: af.ops.mean(chain(x, 2), axis=0), [x]
    yield "product", af.ops.inner, [x, RANDOM.standard_normal((4, 5)).astype("f")]
    yield "convolution", lambda x, w: af.ops.conv(x, w, pad=(1, 1)), [image, filters]
    yield "pooling", lambda x: af.ops.max_pool(x, (2, 2), (2, 2)), [image]
    yield "view", lambda x: af.ops.scale(af.ops.reshape(x, (5, 6)), 2.0), [x]


KINDS = {name: (make, arrays) for name, make, arrays in kinds()}


def graph_of(make: Callable[..., Any], arrays: list[Any], place: str, **options: Any) -> tuple[af.Graph, af.Blob]:
    graph = af.Graph("first", **options)
    with graph.at(place):
        return graph, make(*[graph.blob(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)])


async def run(graph: af.Graph, y: af.Blob, arrays: list[Any]) -> np.ndarray:
    return af.to_numpy((await graph.run({f"x{i}": array for i, array in enumerate(arrays)}, fetch=[y]))[y])


@pytest.mark.parametrize("name", KINDS)
async def test_the_first_launch_is_aside_and_the_next_ones_are_not(
    name: str, compiler: Compiler, launches: dict[str, list[threading.Thread]]
) -> None:
    make, arrays = KINDS[name]
    results = []
    for place in ("cpu", "cuda:0"):
        graph, y = graph_of(make, arrays, place)
        async with graph:
            results.append([await run(graph, y, arrays) for _ in range(3)])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)
    here = threading.current_thread()
    assert here not in compiler.threads
    assert launches
    for threads in launches.values():
        assert len(threads) == 3
        assert threads[0] is not here
        assert threads[1:] == [here, here]


async def test_a_training_compiles_nothing_on_the_loop(
    compiler: Compiler, launches: dict[str, list[threading.Thread]]
) -> None:
    """Updates of variables, with frames in flight: they come in order, whatever is compiled meanwhile."""
    batches = [RANDOM.standard_normal((7, 3)).astype("f") for _ in range(6)]
    found = []
    for place in ("cpu", "cuda:0"):
        graph = af.Graph("training")
        with graph.at(place):
            x = graph.blob("x", (7, 3))
            weight = graph.variable("weight", (2, 3), init=af.nn.init.gaussian(std=0.5, seed=1))
            loss = af.ops.mean(af.ops.tanh(af.ops.inner(x, weight)))
            train = af.nn.SGD(rate=0.1, momentum=0.9).minimize(loss)
        async with graph:
            stream = graph.stream([{"x": batch} for batch in batches], fetch=[loss, train], in_flight=3)
            losses = [float(af.to_numpy(result[loss])) async for result in stream]
            found.append([*losses, *weight.value.ravel()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-6)
    here = threading.current_thread()
    assert here not in compiler.threads
    assert all(threads[0] is not here and threads[-1] is here for threads in launches.values())


async def test_buffers_of_first_launches_are_made_for_the_lanes_stream(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of memory that another stream has let go of, that stream may still have work."""
    streams, allocate = [], CudaDevice.allocate

    def noted(device: CudaDevice, spec: af.TensorSpec) -> Any:
        streams.append(cupy.cuda.get_current_stream().ptr)
        return allocate(device, spec)

    monkeypatch.setattr(CudaDevice, "allocate", noted)
    x = np.linspace(-1, 1, 15, dtype="f")
    graph, y = graph_of(af.ops.sum, [x], "cuda:0")
    async with graph:
        await run(graph, y, [x])
        device = graph.engine.resources.device(af.Place.parse("cuda:0"))
        lanes = {lane.stream.raw.ptr for lane in device._all_lanes()}
    assert len(streams) >= 2
    assert lanes.issuperset(streams)


async def test_what_was_launched_for_one_op_is_not_launched_aside_for_another(
    launches: dict[str, list[threading.Thread]],
) -> None:
    x = np.linspace(-1, 1, 6, dtype="f")
    graph, y = graph_of(lambda x: af.ops.tanh(af.ops.tanh(x, name="a"), name="b"), [x], "cuda:0", fuse=False)
    async with graph:
        np.testing.assert_allclose(await run(graph, y, [x]), np.tanh(np.tanh(x)), rtol=1e-5)
    here = threading.current_thread()
    assert [here in launches[name] for name in ("a", "b")] == [False, True]


async def test_ten_new_kernels_leave_the_loop_its_time(
    compiler: Compiler, record_property: Callable[[str, object], None]
) -> None:
    """The longest step of the loop in the first run is noted, and printed with ``-s``; what compiles, is asserted."""
    x = np.linspace(-1, 1, 1000, dtype="f")

    def make(x: Any) -> Any:
        for _ in range(10):
            x = af.ops.max(af.ops.add(chain(x, next(_NUMBERS)), x), axis=0, keepdims=True) + x
        return x

    graph, y = graph_of(make, [x.reshape(10, 100)], "cuda:0")
    longest = 0.0
    async with graph:
        graph.compile([y])
        running = asyncio.create_task(run(graph, y, [x.reshape(10, 100)]))
        before = begun = perf_counter()
        while not running.done():
            await asyncio.sleep(0)
            now = perf_counter()
            longest, before = max(longest, now - before), now
        await running
    record_property("longest_step_ms", round(longest * 1e3, 2))
    print(
        f"first run {1e3 * (before - begun):.0f} ms, {len(compiler.threads)} compiled, longest {longest * 1e3:.1f} ms"
    )
    assert len(compiler.threads) >= 10
    assert threading.current_thread() not in compiler.threads


async def test_what_does_not_compile_is_an_error_of_its_op(compiler: Compiler) -> None:
    x = np.linspace(-1, 1, 12, dtype="f")
    graph, y = graph_of(lambda x: chain(af.ops.scale(x, 2.0), next(_NUMBERS)), [x], "cuda:0")
    async with graph:

        def refuse() -> None:
            raise ArithmeticError("no such instruction")

        compiler.before = refuse
        for _ in range(2):
            with pytest.raises(af.OpError, match="no such instruction") as caught:
                await run(graph, y, [x])
            assert isinstance(caught.value.__cause__, ArithmeticError)
            assert caught.value.op in graph.nodes
        compiler.before = lambda: None
        assert np.isfinite(await run(graph, y, [x])).all()
    assert threading.current_thread() not in compiler.threads


async def test_a_run_is_cancelled_while_a_kernel_compiles(compiler: Compiler) -> None:
    x = np.linspace(-1, 1, 11, dtype="f")
    loop, begun, may_go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def wait() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_go_on.wait(60)

    compiler.before = wait
    graph, y = graph_of(partial(chain, number=next(_NUMBERS)), [x], "cuda:0")
    async with graph:
        expected = asyncio.create_task(run(graph, y, [x]))
        async with asyncio.timeout(60):
            await begun.wait()
        expected.cancel()
        with pytest.raises(asyncio.CancelledError):
            await expected
        assert graph.engine.frames.in_flight  # the thread has its arrays
        may_go_on.set()
        while graph.engine.frames.in_flight:
            await asyncio.sleep(0)
        compiler.before = lambda: None
        assert np.isfinite(await run(graph, y, [x])).all()


async def test_what_is_captured_compiles_aside_too(compiler: Compiler) -> None:
    x = np.linspace(-1, 1, 13, dtype="f")
    graph, y = graph_of(partial(chain, number=5), [x], "cuda:0", capture=True, fuse=False)
    async with graph:
        results = [await run(graph, y, [x]) for _ in range(8)]
        (segment,) = graph.engine.segments.values()
    assert all(np.array_equal(result, results[0]) for result in results)
    assert (segment.calls, segment.refusal) == (8, None)
    assert segment.replays > 0
    assert threading.current_thread() not in compiler.threads


@pytest.mark.parametrize("capture", [False, True])
async def test_the_kernel_that_fails_in_the_thread_is_named(
    capture: bool, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.linspace(-1, 1, 14, dtype="f")
    graph, y = graph_of(
        lambda x: af.ops.tanh(af.ops.sin(af.ops.cos(x, name="one"), name="two"), name="three"),
        [x],
        "cuda:0",
        capture=capture,
        fuse=False,
    )
    compute = KernelActor._compute_into

    def failing(actor: KernelActor, *args: Any) -> list[Any]:
        if actor.node.name == "two":
            assert threading.current_thread() is not here
            raise ArithmeticError("odd")
        return compute(actor, *args)

    here = threading.current_thread()
    async with graph:
        with monkeypatch.context() as patched:
            patched.setattr(KernelActor, "_compute_into", failing)
            with pytest.raises(af.OpError, match=r"op 'two' .*odd"):
                await run(graph, y, [x])
        np.testing.assert_allclose(await run(graph, y, [x]), np.tanh(np.sin(np.cos(x))), rtol=1e-5)
