"""The children of forks: what their parent has used works there from its beginning, or raises at once.

Each program is a process of its own, as a fork copies all that a test process has.
"""

import ast
import gc
import os
import signal
import sys
import textwrap
import threading
from functools import cache
from pathlib import Path

import pytest

import actorflow as af
from actorflow.devices.cuda import availability
from actorflow.errors import DeviceUnavailableError
from actorflow.place import Place
from actorflow.runtime.interrupts import Guard
from actorflow.threads import forget_in_child, held_at_fork
from tests.support import forking
from tests.support.effort import FULL, slow
from tests.support.warm import run_program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

PACKAGE = Path(af.__file__).parent
#: Only a program that hangs takes this long.
PATIENCE_S = 120.0

BEGIN = """
import asyncio, multiprocessing, os, sys, threading
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import actorflow as af
import actorflow.array as xp
from actorflow.devices import open_device
from actorflow.devices.team import team
from actorflow.place import Place
from tests.support.forking import LOOP, PATIENCE_S, begin, end, fork, raises, run

gate, begun = threading.Event(), threading.Event()
FORKS = int(os.environ.get("FORKING_COUNT", "1"))

def add(x):
    return x + 1

def wait(x):  # a call of the parent's that is under way when it forks
    if x == 100:
        begun.set()
        assert gate.wait(PATIENCE_S)
    return x + 1

async def has_begun():
    while not begun.is_set():
        await asyncio.sleep(0)

def adding(fn=add, **options):
    graph = af.Graph("g", **options)
    x = graph.blob("x", ())
    y = graph.function("y", fn, af.TensorSpec.of((), "float32"), timeout=PATIENCE_S)(x)  # always by the lane's thread
    async def value(k):
        return float((await graph.run({x: k}))[y])
    return graph, x, y, value

async def forked(child):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    await asyncio.to_thread(process.join, PATIENCE_S)
    assert process.exitcode == 0, process.exitcode
"""


def program(text: str, loop: str, **environment: str) -> None:
    """Run a program to its end, and kill what it has left then."""
    done = run_program(
        "-c",
        BEGIN + textwrap.dedent(text),
        folder=PACKAGE.parent,
        environment={"FORKING_LOOP": loop, **environment},
        timeout_s=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    """The kind of loop that a program uses."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return str(request.param)


PROGRAMS = {
    "after a run": """
        graph, x, y, value = adding()
        assert run(value(1)) == 2
        def child():
            assert run(value(2)) == 3
            fork(lambda: run(value(3)) == 4 or sys.exit(1))
            assert run(value(4)) == 5
            run(graph.aclose())
        fork(child)
        assert run(value(5)) == 6
        fork(child)
    """,
    "while other threads are in the portal": """
        graph, x, y, value = adding(wait)
        def other():
            assert graph.run_sync({x: 100})[y] == 101
        assert graph.run_sync({x: 1})[y] == 2
        thread = threading.Thread(target=other)
        thread.start()
        assert begun.wait(PATIENCE_S)
        def child():
            assert graph.run_sync({x: 2})[y] == 3
            thread = threading.Thread(target=lambda: graph.run_sync({x: 3}))
            thread.start()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        fork(child)
        gate.set()
        thread.join(PATIENCE_S)
        assert graph.run_sync({x: 4})[y] == 5
    """,
    "by multiprocessing after a run": """
        graph, x, y, value = adding()
        assert run(value(1)) == 2
        def child():
            assert run(value(2)) == 3
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == 0, process.exitcode
    """,
    "in the middle of a run, on its loop": """
        graph, x, y, value = adding(wait)
        async def main():
            running = asyncio.ensure_future(value(100))
            await has_begun()
            def child():
                counts = graph.engine.frames
                assert (counts.started, counts.in_flight, counts.cancelled, counts.finished) == (1, 0, 1, 0)
                assert not graph.engine.running
                assert run(value(1)) == 2
            await forked(child)
            gate.set()
            assert await running == 101
            assert await value(1) == 2
        run(main())
    """,
    "in the middle of a run, in another thread": """
        graph, x, y, value = adding(wait)
        thread = threading.Thread(target=lambda: run(value(100)))
        thread.start()
        assert begun.wait(PATIENCE_S)
        fork(lambda: run(value(1)) == 2 or sys.exit(1))
        gate.set()
        thread.join()
        assert run(value(1)) == 2
    """,
    "by an op, on a lane and on the loop": """
        def forks(x):
            if x == 5:
                fork(lambda: run(value(1)) == 2 or sys.exit(1))
            return x + 1
        async def forks_too(x):
            return forks(x)
        for fn in (forks, forks_too):
            graph, x, y, value = adding(fn)
            assert run(value(5)) == 6
            assert run(value(6)) == 7
    """,
    "a pool of processes in an op": """
        graph, x, y, value = adding()
        def elsewhere(k):
            return run(value(k))
        def pooled(x):
            with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
                return float(sum(pool.map(elsewhere, [int(x), int(x) + 1])))
        other, u, v, pooled_value = adding(pooled)
        assert run(value(1)) == 2
        assert run(pooled_value(1)) == 5
        assert run(value(1)) == 2
    """,
    "variables are what they were": """
        graph = af.Graph("g")
        w = graph.variable("w", (), init=1.0)
        [w] >> graph.op("double", af.ops.Scale(2.0)) >> [w]
        v = graph.variable("v", (2,), init=3.0, place="sim:0")
        [v] >> graph.op("half", af.ops.Scale(0.5), place="sim:0") >> [v]
        async def steps(count):
            for _ in range(count):
                await graph.run()
            return float(w.value), np.asarray(v.value).tolist()
        assert run(steps(2)) == (4, [0.75] * 2)
        def child():
            assert float(w.value) == 4
            assert run(steps(2)) == (16, [0.1875] * 2)
        fork(child)
        assert run(steps(1)) == (8, [0.375] * 2)
    """,
    "again and again, while other threads compute": """
        graph, x, y, value = adding()
        over = threading.Event()
        def runs():
            while not over.is_set():
                assert run(value(1)) == 2
        def computes():
            while not over.is_set():
                with xp.session(memory_budget=1 << 26):
                    assert float(xp.sum(xp.ones((300, 300)) * 2.0 + 1.0)) == 3.0 * 300 * 300
        def loads():
            while not over.is_set():
                assert list(af.pipeline.source(range(9)).map(add, executor="thread").iter_sync()) == list(range(1, 10))
        threads = [threading.Thread(target=work) for work in (runs, computes, computes, loads)]
        def child():
            assert run(value(1)) == 2
            assert float(xp.sum(xp.ones((300, 300)) * 2.0)) == 2.0 * 300 * 300
            assert float(xp.sum(xp.ones(3).to_device("sim:0"))) == 3
            assert list(af.pipeline.source(range(9)).map(add, executor="thread").iter_sync()) == list(range(1, 10))
        child()  # what is imported on first use is there: Python's locks of modules are not fit for forks
        run(graph.aclose())
        for thread in threads:
            thread.start()
        try:
            for _ in range(FORKS):
                fork(child)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    """,
    "streams": """
        graph, x, y, value = adding()
        async def parent():
            stream = graph.stream([{x: k} for k in range(5)])
            other = graph.stream([{x: k} for k in range(5)])
            assert float((await anext(stream))[y]) == 1
            def child():
                async def main():
                    raises_at_once = False
                    try:
                        await anext(stream)
                    except af.errors.GraphError as error:
                        raises_at_once = "stream 0 of graph 'g' runs in the parent process" in str(error)
                    assert raises_at_once
                    await stream.aclose()
                    assert [float(each[y]) async for each in other] == [1, 2, 3, 4, 5]
                    assert [float(each[y]) async for each in graph.stream([{x: 7}])] == [8]
                run(main())
            await forked(child)
            assert [float(each[y]) async for each in stream] == [2, 3, 4, 5]
        run(parent())
    """,
    "paused": """
        graph, x, y, value = adding()
        async def parent():
            assert await value(1) == 2
            graph.pause("wait")
            waiting = asyncio.ensure_future(value(2))
            await asyncio.sleep(0)
            def child():
                assert graph.paused is not None and not graph.paused.waiting
                async def main():
                    mine = asyncio.ensure_future(value(3))
                    await asyncio.sleep(0)
                    graph.resume()
                    assert await mine == 4
                run(main())
            await forked(child)
            graph.resume()
            assert await waiting == 3
        run(parent())
    """,
    "a memory budget": """
        graph, x, y, value = adding(wait, memory_budget=64)
        async def main():
            running = asyncio.ensure_future(value(100))
            await has_begun()
            process = multiprocessing.get_context("fork").Process(target=lambda: run(value(1)))
            process.start()
            await asyncio.to_thread(process.join, PATIENCE_S)
            assert process.exitcode == 0, process.exitcode
            gate.set()
            assert await running == 101
        run(main())
    """,
    "a watched loop, BLAS on one thread, two lanes": """
        graph, x, y, value = adding(deterministic=True, block_limit=PATIENCE_S)
        z = graph.function("z", add, y.spec, lane="other", timeout=PATIENCE_S)(x)
        before = team._lanes
        assert run(value(1)) == 2
        lanes = team._lanes - before
        assert lanes > 1
        def child():
            assert team._lanes == team._keepers == 0
            assert run(value(2)) == 3
            assert (team._lanes, team._keepers) == (lanes, 1)
            run(graph.aclose())
            assert team._lanes == team._keepers == 0
            assert np.array_equal(np.eye(300) @ np.eye(300), np.eye(300))
        fork(child)
        run(graph.aclose())
        assert team._lanes == before
    """,
    "simulated devices": """
        graph = af.Graph("g", capture=True)
        x = graph.blob("x", (3,), place="sim:0")
        y = af.ops.exp(af.ops.exp(x))
        async def value():
            return (await graph.run({x: np.zeros(3, np.float32)}, fetch=[y]))[y].get().tolist()
        expected = run(value())
        device = open_device(Place.parse("sim:0"))
        def child():
            assert run(value()) == expected
            run(graph.aclose())
            async def own():
                device.bind(asyncio.get_running_loop())
                raises(af.errors.DeviceError, "closed", lambda: device.lane("main").submit(print, None, print, True))
            run(own())
            device.close()
            device.join()
        lane = device.lane("main")
        fork(child)
        assert run(value()) == expected
        device.close()
        device.join()
    """,
    "arrays that another thread computes": """
        x = xp.asarray(np.ones((800, 800)))
        y = xp.asarray(np.full((800, 800), 2.0))
        long = x
        for _ in range(300):
            long = xp.sin(long) * 0.5
        started = threading.Event()
        thread = threading.Thread(target=long.wait)
        thread.start()
        evaluator = long._node.evaluator
        while not evaluator._jobs:
            pass
        def child():
            assert float(xp.sum(y + 1.0)) == 3.0 * 800 * 800
            assert abs(float((long + 1.0)[0, 0]) - 1.0) < 1e-6  # it computes what the parent's thread is at, too
            async def awaited():
                return await xp.sum(y * 2.0)
            assert float(run(awaited())) == 4.0 * 800 * 800
            assert float(xp.sum(y.to_device("sim:0"))) == 2.0 * 800 * 800
        fork(child, leaves=True)
        thread.join()
        assert abs(float(long[0, 0])) < 1e-6
    """,
    "a loader in the middle, with threads": """
        loader = af.pipeline.source(range(40)).map(add, executor="thread", concurrency=3).batch(2)
        async def parent():
            items = aiter(loader)
            first = [list(map(int, await anext(items))) for _ in range(4)]
            assert first == [[1, 2], [3, 4], [5, 6], [7, 8]]
            def child():
                async def old():
                    try:
                        await anext(items)
                    except af.errors.PipelineError as error:
                        assert "the iteration runs in the parent process" in str(error)
                        return
                    raise AssertionError
                run(old())
                async def new():
                    async with loader:
                        return [list(map(int, item)) async for item in loader]
                found = run(new())
                assert found == [[k, k + 1] for k in range(9, 40, 2)], found
            await forked(child)
            rest = [list(map(int, item)) async for item in items]
            assert rest == [[k, k + 1] for k in range(9, 40, 2)], rest
            await loader.aclose()
        run(parent())
    """,
    "a loader in the middle, with processes": """
        import operator
        loader = af.pipeline.source(range(200)).map(operator.neg, executor="process", concurrency=2)
        async def parent():
            items = aiter(loader)
            assert [await anext(items) for _ in range(5)] == [0, -1, -2, -3, -4]
            def child():
                async def new():
                    async with loader:
                        return [item async for item in loader]
                found = run(new())
                assert found == [-k for k in range(5, 200)], found
            # In a thread: a child that leaves as programs do must not go on with this loop.
            await asyncio.to_thread(fork, child, leaves=True)
            await asyncio.to_thread(fork, lambda: None, leaves=True)
            assert [item async for item in items] == [-k for k in range(5, 200)]
            await loader.aclose()
        run(parent())
    """,
    "a loader without a loop": """
        loader = af.pipeline.source(range(20)).map(add, executor="thread")
        items = loader.iter_sync()
        assert [next(items) for _ in range(3)] == [1, 2, 3]
        def child():
            raises(af.errors.PipelineError, "the loader runs in the parent process", lambda: next(items))
            items.close()
            assert list(loader.iter_sync()) == list(range(4, 21))
        fork(child)
        assert list(items) == list(range(4, 21))
    """,
    "a limiter whose calls run": """
        limiter = af.pipeline.Limiter(1)
        loader = af.pipeline.source([100]).map(wait, executor="thread", limiter=limiter)
        def take():
            async def main():
                async with loader:
                    return [item async for item in loader]
            return run(main())
        thread = threading.Thread(target=take)
        thread.start()
        assert begun.wait(PATIENCE_S)
        def child():
            assert not limiter.running
            gate.set()
            assert take() == [101]
        fork(child)
        gate.set()
        thread.join()
        assert not limiter.running
    """,
    "several ranks": """
        from actorflow.transport import LocalWorld
        world = LocalWorld(2)
        graphs = []
        for transport in world.transports:
            graph = af.Graph("g", world=transport)
            x = graph.blob("x", (), place="0/cpu")
            y = graph.function("y", add, x.spec, place="1/cpu")(x)
            graphs.append((graph, x, y))
        async def both():
            (a, x, _), (b, _, y) = graphs
            found = await asyncio.gather(a.run({x: 1}), b.run({}))
            return float(found[1][y])
        assert run(both()) == 2
        def child():
            for _ in range(2):
                raises(af.errors.TransportError, "forked from rank 0 of 2", lambda: run(both()))
        fork(child)
        assert run(both()) == 2
    """,
    "a page that is being served": """
        import urllib.request
        graph, x, y, value = adding()
        async def parent():
            async with af.web.serve(graph, port=0) as view:
                def get():
                    with urllib.request.urlopen(view.url + "healthz", timeout=PATIENCE_S) as answer:
                        return answer.status
                assert await asyncio.to_thread(get) == 200
                def child():
                    run(view.aclose())
                    async def own():
                        async with af.web.serve(graph, port=0) as mine:
                            assert mine.port != view.port
                            assert await value(1) == 2
                    run(own())
                await forked(child)
                assert await asyncio.to_thread(get) == 200
        run(parent())
    """,
    "a checkpoint that is being written": """
        import tempfile
        graph, x, y, value = adding()
        graph.variable("w", (2,), init=af.nn.init.constant(3.0))
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = af.checkpoint.Checkpoints(graph, folder)
            async def parent():
                async with checkpoints._writing:
                    def child():
                        async def main():
                            await checkpoints.save(1)
                        run(main())
                    await forked(child)
            run(parent())
            assert list(checkpoints.steps()) == [1]
    """,
}


@pytest.mark.parametrize("name", slow(PROGRAMS, but=[*PROGRAMS][::4]))
def test_the_child_of_a_fork_works_or_raises_at_once(name: str, loop: str) -> None:
    program(PROGRAMS[name], loop, FORKING_COUNT="200" if FULL else "5")


def test_cuda_that_was_used_before_a_fork_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "_process", os.getpid() + 1)
    with pytest.raises(DeviceUnavailableError, match=r"place 'cuda:0': CUDA was in use when this process was forked"):
        availability.check_cuda(Place.parse("cuda:0"))


def test_ctrl_c_is_the_applications_again_in_a_child_that_was_forked_within_a_guard() -> None:
    handler = signal.getsignal(signal.SIGINT)

    def child() -> None:
        assert signal.getsignal(signal.SIGINT) is handler

    with Guard(threading.Condition()):
        assert signal.getsignal(signal.SIGINT) is not handler
        forking.fork(child)
        assert signal.getsignal(signal.SIGINT) is not handler
    assert signal.getsignal(signal.SIGINT) is handler


class Told:
    """Counts how often it is told of a fork."""

    def __init__(self) -> None:
        self.count = 0

    def forget_parent(self) -> None:
        self.count += 1


def test_who_asks_for_it_is_told_in_the_child_alone() -> None:
    told, dropped = forget_in_child(Told()), forget_in_child(Told())
    del dropped

    def child() -> None:
        assert told.count == 1

    forking.fork(child)
    assert told.count == 0


def test_who_cannot_forget_keeps_nobody_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def forget_parent(self) -> None:
            raise ValueError("not now")

    said: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said_of: said.append(said_of.exc_value))
    heirs = [forget_in_child(Failing()), forget_in_child(Told()), forget_in_child(Failing()), forget_in_child(Told())]

    def child() -> None:
        assert [getattr(heir, "count", None) for heir in heirs] == [None, 1, None, 1]
        (group,) = said
        assert isinstance(group, BaseExceptionGroup)
        assert [str(error) for error in group.exceptions] == ["not now", "not now"]

    forking.fork(child)
    assert not said


@pytest.mark.parametrize("is_outer", [False, True])
def test_a_fork_waits_for_locks(is_outer: bool) -> None:
    lock, is_held, is_whole = held_at_fork(threading.Lock(), is_outer=is_outer), threading.Event(), [True]

    def change() -> None:
        with lock:
            is_whole[0] = False
            is_held.set()
            wanted.wait(PATIENCE_S)
            is_whole[0] = True

    class Wanted:
        """Found by the fork before the lock, as it was made before; so the fork has begun."""

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            wanted.set()
            return True

        def release(self) -> None:
            return

    wanted = threading.Event()
    first = held_at_fork(Wanted(), is_outer=True)
    thread = threading.Thread(target=change)
    thread.start()
    assert is_held.wait(PATIENCE_S)

    def child() -> None:
        assert is_whole == [True]
        assert lock.acquire(timeout=PATIENCE_S)

    if is_outer:
        wanted.set()  # the lock comes first
    forking.fork(child)
    thread.join()
    assert not lock.locked()
    del first


def test_a_fork_within_a_lock_goes_on_and_its_child_finds_it_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.threads._PATIENCE_S", 0.01)
    lock = held_at_fork(threading.Lock())

    def child() -> None:
        assert lock.acquire(timeout=PATIENCE_S)

    with lock:  # a handler of a signal, say, forks
        forking.fork(child)
        assert lock.locked()
    assert not lock.locked()


def test_the_collector_does_not_run_during_a_fork_and_runs_again_after_it() -> None:
    def child() -> None:
        assert gc.isenabled()

    forking.fork(child)
    assert gc.isenabled()
    gc.disable()
    try:
        forking.fork(lambda: (_ for _ in ()).throw(AssertionError) if gc.isenabled() else None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_that_fork_at_once_leave_the_collector_on_and_no_lock_taken() -> None:
    lock, forks, begun = held_at_fork(threading.Lock()), [], threading.Event()

    def child() -> None:
        assert gc.isenabled()
        assert not lock.locked()

    def fork() -> None:
        begun.set()
        forks.append(forking.begin(child))

    class Begun:
        """Taken by the first fork when it has begun; the other one begins within it."""

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if threading.current_thread() is first and not begun.is_set():
                second.start()
                assert begun.wait(PATIENCE_S)
            return True

        def release(self) -> None:
            return

    first, second = threading.current_thread(), threading.Thread(target=fork)
    inside = held_at_fork(Begun())
    forks.append(forking.begin(child))
    second.join(PATIENCE_S)
    for child_id in forks:
        forking.end(child_id)
    assert gc.isenabled()
    assert not lock.locked()
    assert len(forks) == 2
    del inside


#: Where locks are made that no child of a fork ever takes: of work that ends with its parent's threads, and of tests.
OWN_LOCKS = {"devices.team": 2, "testing.faults": 1}
#: Modules whose threads another one forgets, or none keeps.
FORGOTTEN_BY = {
    "runtime.service": "array.sessions",
    "testing.conformance.device_bench": None,
    "transport.mpi.deaths": None,  # in a child, transports raise and do nothing else
}


@pytest.mark.slow
def test_every_lock_is_held_at_a_fork() -> None:
    free = {
        module: count
        for module, tree in _modules().items()
        if (count := _count(tree, "Lock", "RLock", "Condition", "Semaphore") - _count(tree, "held_at_fork"))
        and module != "threads"
    }
    assert free == OWN_LOCKS


@pytest.mark.slow
def test_who_keeps_threads_forgets_them_in_a_child() -> None:
    modules = _modules()
    for module, tree in modules.items():
        if _count(tree, "start_thread"):
            home = FORGOTTEN_BY.get(module, module)
            names = {node.name for node in ast.walk(modules[home]) if isinstance(node, ast.FunctionDef)} if home else {}
            assert home is None or "forget_parent" in names, f"{module} starts threads, and nobody forgets them"


@cache
def _modules() -> dict[str, ast.AST]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }


@cache
def _calls(tree: ast.AST) -> list[ast.expr]:
    return [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _count(tree: ast.AST, *names: str) -> int:
    """Calls of functions of these names, but for asyncio's."""
    return sum(
        getattr(call, "attr", getattr(call, "id", None)) in names
        and not (isinstance(call, ast.Attribute) and getattr(call.value, "id", None) == "asyncio")
        for call in _calls(tree)
    )
