"""Event loops for every test, and a check that it leaves nothing running."""

import asyncio
import gc
import multiprocessing
import os
import runpy
import signal
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings

import actorflow.array.transforms.to_graph  # noqa: F401  else its kernels may be lost with a registry that a test restores
from actorflow.devices import check_place
from actorflow.devices.cpu import CPU
from actorflow.errors import DeviceUnavailableError
from actorflow.place import Place
from tests.support.effort import FULL
from tests.support.loops import LoopFactory, loop_factories

# Some examples of each property, and in `make test-exhaustive` all that are wanted.
settings.register_profile("short", max_examples=20, deadline=None, print_blob=True)
settings.register_profile("full", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile("full" if FULL else "short")

#: Folders of tests of what a loop does with the package. All else computes the same on any loop.
ON_BOTH_LOOPS = {"actors", "devices", "flow", "gpu", "pipeline", "ranks", "runtime", "serve", "transport", "web"}
TESTS = Path(__file__).parent
#: Name of the parameter by which pytest-asyncio gives a test its loop.
LOOP = "_asyncio_loop_factory"
#: Name of the parameter of a test that is no coroutine, and makes a loop of that kind.
KIND_OF_LOOP = "kind_of_loop"

pytest_plugins = ["tests.support.workers", "tests.support.costs", "tests.support.budget", "tests.support.together"]

ToIdx = Callable[[npt.NDArray[np.generic]], bytes]

#: What each process that a test starts would import anew, for half a second; `make test-exhaustive` has it do so.
IMPORTED = ["actorflow.pipeline.processes.remote", "actorflow.pipeline", "hypothesis.extra.numpy", "pytest"]

#: How long a thread or task that is about to end may take. Only a failing test waits this long.
GRACE_S = 60.0


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C, which some tests press, work although a shell has what it starts in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not FULL:
        multiprocessing.set_forkserver_preload(IMPORTED)
    # Bits are NumPy's, in programs that tests run, too; `make test-onednn` lets its tests find the library.
    CPU.libraries = ("numpy",)
    os.environ.setdefault("ACTORFLOW_ONEDNN", "0")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Look for no cycles meanwhile: to look through all that is collected takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests as slow before others are chosen by marks; skip those of a GPU that are then left."""
    for item in items:
        if _is_on_its_second_loop(item):
            item.add_marker(pytest.mark.slow)
    yield
    _skip_without_gpu(items)


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    """Skip what computes on a GPU where there is none; fail instead where one is required, as `make test-gpu` does.

    One test of each file says so for all.
    """
    on_gpu = {item: None for item in items if item.get_closest_marker("gpu") is not None}
    problem = _gpu_problem() if on_gpu else None
    if problem is None:
        return
    if os.environ.get("ACTORFLOW_REQUIRE_GPU"):
        raise pytest.UsageError(f"ACTORFLOW_REQUIRE_GPU is set, but no CUDA device can be used: {problem}")
    first = {item.path: item for item in reversed(on_gpu)}
    for path, count in Counter(item.path for item in on_gpu).items():
        first[path].add_marker(pytest.mark.skip(reason=f"{problem} ({count} tests of this file)"))
    items[:] = [item for item in items if item not in on_gpu or item is first[item.path]]


def _gpu_problem() -> str | None:
    """Why no CUDA device can be used, None if one can."""
    try:
        check_place(Place.parse("cuda:0"))
    except DeviceUnavailableError as error:
        return str(error)
    return None


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """Run an async test on each kind of event loop, or on one of them, by its name, where the kind matters little.

    That is so for most folders, for tests marked ``any_loop``, and for those of a browser, whose time is the browser's.
    """
    factories = loop_factories()
    if FULL or _is_for_both_loops(item):
        return factories
    name = _loop_of(item.name)
    return {name: factories[name]}


def _is_for_both_loops(item: pytest.Item) -> bool:
    path = item.path.relative_to(TESTS)
    return (len(path.parts) == 1 or path.parts[0] in ON_BOTH_LOOPS) and not any(
        map(item.get_closest_marker, ("any_loop", "browser"))
    )


def _loop_of(test: str) -> str:
    """The kind of loop that a test runs on where it runs on one."""
    return sorted(loop_factories())[zlib.crc32(test.encode()) % len(loop_factories())]


def _is_on_its_second_loop(item: pytest.Item) -> bool:
    """Whether a test that runs on both kinds of loop runs on the one that it would not have alone."""
    case = getattr(item, "callspec", None)
    name = next((name for name in (LOOP, KIND_OF_LOOP) if case is not None and name in case.params), None)
    if case is None or name is None or not _is_for_both_loops(item):
        return False
    others = sorted((other, index) for other, index in case.indices.items() if other != name)
    own = _loop_of(f"{item.name.partition('[')[0]}{others}")
    return case.params[name] not in (own, loop_factories()[own])


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """Keep what was there before a module out of the collector's sight: tests that collect take a tenth of the time.

    It stays out of sight: a collection of all that a session holds takes a third of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def calls_count_as_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls run on the loop once they are known, however slow the machine is at the moment."""
    for module in ("actors.op", "pipeline.calls.call", "pipeline.calls.map"):
        monkeypatch.setattr(f"actorflow.{module}.INLINE_NS", 3_600_000_000_000)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test that leaves a thread behind; set up first, so it looks when the test's loop is closed."""
    before = set(threading.enumerate())
    yield
    left = _left_since(before)
    if left:
        gc.collect()  # threads of a dropped graph end when it is collected
        for thread in left:
            thread.join(GRACE_S)
        left = _left_since(before)
    assert not left, f"the test left threads running: {[thread.name for thread in left]}"


def _left_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that were started since."""
    return [thread for thread in threading.enumerate() if thread not in before]


@pytest.fixture(autouse=True)
def no_task_left(no_thread_left: None, request: pytest.FixtureRequest) -> None:
    """Fail an async test that leaves a task behind."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("_no_task_left")


@pytest.fixture
def _no_task_left(_function_scoped_runner: asyncio.Runner) -> Iterator[None]:
    """Look at the loop from without: a coroutine as fixture takes as long as the rest of a short test."""
    yield
    loop = _function_scoped_runner.get_loop()
    left = asyncio.all_tasks(loop)
    if left:
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=GRACE_S))
    assert not left, f"the test left tasks running: {left}"


@pytest.fixture(scope="session")
def digits_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the network of ``examples/service.py``, trained."""
    path = tmp_path_factory.mktemp("weights") / "digits.safetensors"
    example = Path(__file__).parents[1] / "examples" / "service.py"
    asyncio.run(runpy.run_path(str(example))["train"](path))
    return path


@pytest.fixture(scope="session")
def idx() -> ToIdx:
    """Function that makes an IDX file's content of an array, by the format's description and apart from the reader."""
    codes = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}

    def content(array: npt.NDArray[np.generic]) -> bytes:
        code = codes[array.dtype.str[1:]]
        header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
        return header + array.astype(array.dtype.newbyteorder(">")).tobytes()

    return content
