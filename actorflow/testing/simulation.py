"""Whole programs from a seed: which call goes next, how long it takes and which fault strikes it."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from sysconfig import get_paths
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from actorflow import core
from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.frame import Frame, what_it_waits_for
from actorflow.actors.op import OpActor
from actorflow.devices.cpu import WorkerLane, on_lane
from actorflow.devices.team import team
from actorflow.errors import ActorflowError, DeviceError, real, seconds, whole
from actorflow.plan.plan import PlannedOp
from actorflow.runtime.engine import prepare_host
from actorflow.runtime.resources import Resources
from actorflow.testing.clock import VirtualTimeLoop
from actorflow.testing.disk import Disk
from actorflow.testing.faults import FaultyBuild, planted
from actorflow.testing.network import Network
from actorflow.threads import simulation
from actorflow.trace.ring import Trace
from actorflow.transport.local import LocalTransport, LocalWorld
from actorflow.transport.world import simulated_rank

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: Where code is that is not the program's.
_OTHERS = (str(Path(__file__).parents[1]), *[get_paths()[name] for name in ("stdlib", "purelib", "platlib")])
#: Costs of an op that send it to its lane, or keep it on the loop.
_SHORT_NS, _LONG_NS = 0, 1 << 62
#: Seconds of the simulation after a program's end in which all that it has left behind must have ended.
_PATIENCE_S = 100
#: Of 2**64: numbers that a seed draws are fractions of it.
_RANGE = 1 << 64


class SimulationError(ActorflowError):
    """A simulated program hung, or left something behind."""


class InjectedError(Exception):
    """Raised by an op that `Faults.fails` strikes."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Chances of faults in a simulation, each from 0 to 1.

    Args:
        fails: That a call of an op raises `InjectedError`.
        slow: That a call takes up to ``slow_s`` longer.
        slow_s: How much longer, in seconds of the simulation.
        threads: That a lane finds no thread when it is given work.
        cancels: That a task which the program has made is cancelled, some time after its beginning.
        stops: That a rank stops, as if its process were killed: it does and hears nothing any more.
        freezes: That a rank stands still for a while, of up to ``frozen_s``.
        frozen_s: How long, in seconds of the simulation.
        memory: That a call of an op raises MemoryError.
        late: That bytes of a connection, or a message between ranks, are on their way for up to ``slow_s``.
        cuts: That a rank is cut off for a while, of up to ``frozen_s``: messages from it and to it are late.
        hangs_up: That a connection is lost, in the middle of a message or between two.
        full: That a step of writing a file of `actorflow.checkpoint` finds no room on the disk.
        lies: That flushed bytes are lost all the same when power fails.
        power: That power fails before a step of writing a file: the program is cancelled, and begun again on what is
            left on the disk. Files that were not flushed are torn.
        blocks: That the loop is blocked for up to ``blocked_s``, or its clock jumps so far, before an op begins.
        blocked_s: How long, in seconds of the simulation.

    Example:
        >>> af.testing.Faults(fails=0.1)
        Faults(fails=0.1)
    """

    fails: float = 0.0
    slow: float = 0.0
    slow_s: float = 1.0
    threads: float = 0.0
    cancels: float = 0.0
    stops: float = 0.0
    freezes: float = 0.0
    frozen_s: float = 1.0
    memory: float = 0.0
    cuts: float = 0.0
    late: float = 0.0
    hangs_up: float = 0.0
    full: float = 0.0
    lies: float = 0.0
    power: float = 0.0
    blocks: float = 0.0
    blocked_s: float = 1.0

    def __repr__(self) -> str:  # which failures print, to be pasted
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return f"Faults({', '.join([f'{name}={getattr(self, name)!r}' for name in given])})"

    def __post_init__(self) -> None:
        for field in fields(self):
            value, what = getattr(self, field.name), f"Faults: {field.name}"
            if field.name.endswith("_s"):
                seconds(what, value)
            else:
                real(what, value, 0, 1, kind="a chance")


@dataclass(frozen=True)
class Simulated:
    """Outcome of a simulation.

    Attributes:
        value: The program's result; with several ranks a tuple of the results of each, None for a rank
            that has stopped.
        trace: The events in order, a line each: the time in seconds, and the event.
        time_s: How long it has taken, in seconds of the simulation.

    Example:
        >>> async def program():
        ...     return await asyncio.sleep(60, "rested")
        >>> import asyncio
        >>> af.testing.simulate(program, seed=0)
        Simulated(value='rested', trace=(), time_s=60.0)
    """

    value: Any
    trace: tuple[str, ...]
    time_s: float


def simulate(
    program: Callable[[], Coroutine[Any, Any, object]],
    *,
    seed: int,
    ranks: int = 1,
    faults: Faults | None = None,
    time_limit_s: float = 3600.0,
) -> Simulated:
    """Run an async program in one thread, on a clock that jumps, in an order that follows from a seed.

    There are no threads: the loop does the work of lanes, of `asyncio.to_thread` and of simulated accelerators, after a
    time that the seed draws. Which ready op is called next, on the loop or on its lane, how long each call takes, which
    one a fault strikes and which task is cancelled follow from the seed, too. The same program under the same seed does
    the same, to the last line of its trace, with the compiled core or without it.

    When the program has ended, its other tasks are cancelled, and nothing of it may be left: no frame, no work of a
    lane, no turn at a function, no memory of a budget.

    With several ranks the program runs once for each, on the same loop: `actorflow.world` and graphs made there know
    which one it is. Messages come late and overtake each other, but not within a pair and tag. A rank whose program
    has ended leaves, as a process that ends does.

    A program may use graphs, batchers, streams, pipelines with threads, servers of models and other servers of asyncio,
    with connections among its own tasks (`asyncio.open_connection`): bytes come late and in other pieces than they were
    sent. It reads the time from its loop, and makes no threads, processes or other connections. Lazy arrays are
    awaited: their values cannot be waited for otherwise while the loop computes them. The generator of `random` is
    seeded for it, and random arrays follow from that.

    Args:
        program: An async function without arguments.
        seed: Names one course of events.
        ranks: How many ranks there are.
        faults: The faults that may strike; none if None.
        time_limit_s: Most seconds of the simulation.
    Returns:
        The program's result, and the trace.
    Raises:
        SimulationError: if nothing can happen any more though the program has not ended, if it has not ended in time,
            or if it leaves something behind.
        Exception: as the program raises it; a note on it says how to have it again.
        RuntimeError: if a loop runs in this thread.

    Example:
        >>> import asyncio
        >>> async def program():
        ...     async with af.Graph("g") as graph:
        ...         x = graph.blob("x", [])
        ...         y = af.ops.exp(x)
        ...         await asyncio.sleep(3600)  # takes no time
        ...         return (await graph.run({x: 0}))[y].item()
        >>> found = af.testing.simulate(program, seed=1, time_limit_s=4000)
        >>> found.value, found.time_s > 3600
        (1.0, True)
        >>> found.trace == af.testing.simulate(program, seed=1, time_limit_s=4000).trace
        True
    """
    return _Course(program, seed, ranks, faults, time_limit_s).run()


def shrink(
    program: Callable[[], Coroutine[Any, Any, object]],
    *,
    seed: int,
    ranks: int = 1,
    faults: Faults | None = None,
    time_limit_s: float = 3600.0,
) -> list[str]:
    """Find a smallest set of drawn events with which a program still fails as it does under a seed.

    All others happen as they would without a seed: the oldest first, at once, without faults.

    Args:
        program, seed, ranks, faults, time_limit_s: As for `simulate`.
    Returns:
        The events, in the order in which they were drawn. None of them can be left out; without any, the program fails
        whatever the order.
    Raises:
        ValueError: if the program does not fail under that seed.

    Example:
        >>> async def program():
        ...     async with af.Graph("g") as graph:
        ...         x = graph.blob("x", [])
        ...         y = af.ops.exp(x, name="exp")
        ...         for number in range(5):
        ...             await graph.run({x: number})
        >>> af.testing.shrink(program, seed=4, faults=af.testing.Faults(fails=0.2))
        ['op exp, frame 3: fails']
    """

    def fails(kept: frozenset[tuple[str, int]] | None) -> tuple[str, list[tuple[str, int]]] | None:
        course = _Course(program, seed, ranks, faults, time_limit_s, kept)
        try:
            course.run()
        except Exception as error:  # noqa: BLE001  whatever the program raises is what is looked for
            return _kind_of(error), course.draws.made
        return None

    first = fails(None)
    if first is None:
        raise ValueError(f"the program does not fail under seed {seed}")
    kind, made = first
    size = len(made)
    while size := size // 2 or (size > 1):
        start = 0
        while start < len(made):
            rest = made[:start] + made[start + size :]
            found = fails(frozenset(rest))
            if found is not None and found[0] == kind:
                made = [each for each in found[1] if each in rest]
            else:
                start += size
        if size == 1:
            break
    return [f"{what}{f' ({number + 1}.)' if number else ''}" for what, number in made]


def _kind_of(error: BaseException) -> str:
    return " < ".join(type(each).__name__ for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


class _Draws:
    """Numbers that follow from a seed, and from the purpose of each: not from the order in which they are asked for.

    Args:
        seed: Names them.
        kept: The draws that are made; all other numbers are 0. None for all.

    Attributes:
        made: The numbers drawn that were not 0, in order.
    """

    def __init__(self, seed: int, kept: frozenset[tuple[str, int]] | None) -> None:
        self.made: list[tuple[str, int]] = []
        self._key = seed.to_bytes(16, "big", signed=True)
        self._kept = kept
        self._counts: Counter[str] = Counter()

    def number(self, what: str) -> float:
        """A fraction from 0 to 1."""
        count = self._counts[what]
        self._counts[what] += 1
        if self._kept is not None and (what, count) not in self._kept:
            return 0.0
        digest = hashlib.blake2b(f"{what}#{count}".encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "big") / _RANGE

    def below(self, most: int, what: str) -> int:
        """A whole number from 0 on; 0 comes without a seed."""
        drawn = int(self.number(what) * most) if most > 1 else 0
        return self._noted(drawn, what)

    def chance(self, chance: float, what: str) -> bool:
        """True with a chance."""
        return bool(chance) and bool(self._noted(self.number(what) > 1 - chance, what))

    def duration_s(self, least_s: float, most_s: float, what: str) -> float:
        """A time between two, most often a short one."""
        return self._noted(least_s * (most_s / least_s) ** self.number(what), what) if most_s > least_s else least_s

    def _noted(self, drawn: _T, what: str) -> _T:
        if drawn and (self._kept is None or (what, self._counts[what] - 1) in self._kept):
            self.made.append((what, self._counts[what] - 1))
        return drawn


class _Course:
    """One run of a program under a seed."""

    def __init__(
        self,
        program: Callable[[], Coroutine[Any, Any, object]],
        seed: int,
        ranks: int,
        faults: Faults | None,
        time_limit_s: float,
        kept: frozenset[tuple[str, int]] | None = None,
    ) -> None:
        self._seed = whole("simulate: seed", seed)
        self._ranks = whole("simulate: ranks", ranks, 1)
        self._limit_s = seconds("simulate: time_limit_s", time_limit_s)
        self._program = program
        self._given = faults
        self.faults = faults or Faults()
        self.draws = _Draws(self._seed, kept)
        self.trace: list[str] = []

    def run(self) -> Simulated:
        """Run it; see `simulate`."""
        prepare_host()  # what a process does once is no part of what a seed says
        with _seeded(self._seed), asyncio.Runner(loop_factory=partial(_Loop, self)) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, _Loop)
            with loop.in_charge():
                try:
                    value = runner.run(self._limited(loop))
                    loop.settle()
                except (Exception, asyncio.CancelledError) as error:
                    error.add_note(self._again())
                    raise
            return Simulated(value, tuple(self.trace), loop.time())

    def note(self, loop: _Loop, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{loop.time():.9f} {text}")

    async def _limited(self, loop: _Loop) -> Any:
        if self._ranks == 1:
            tasks = [asyncio.create_task(self._begun(loop))]
        else:
            world = LocalWorld(self._ranks, self._seed)
            tasks = [asyncio.create_task(self._rank(transport)) for transport in world.transports]
            loop.threaten(world, tasks)
        loop.has_begun = True
        _, pending = await asyncio.wait(tasks, timeout=self._limit_s, return_when=asyncio.FIRST_EXCEPTION)
        waits = loop.what_is_awaited()
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        if pending and not failed:
            text = f"the program has not ended after {self._limit_s:g} s of its time: {waits}"
            self.note(loop, text)
            raise SimulationError(text)
        values = tuple([None if task in loop.stopped else task.result() for task in [*failed, *tasks]])
        return values if self._ranks > 1 else values[0]

    async def _begun(self, loop: _Loop) -> object:
        """Run the program; again, whenever power has failed."""
        while True:
            loop.has_begun = False  # this task is the program itself, and is not cancelled as one that it makes
            task = loop.process = asyncio.create_task(self._program())
            loop.has_begun = True
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()  # as this is, if it is
            if not loop.has_no_power:
                return await task
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            loop.start_again()

    async def _rank(self, transport: LocalTransport) -> object:
        simulated_rank.set(transport)
        try:
            return await self._program()
        finally:
            transport.close()

    def _again(self) -> str:
        given = f", faults={self._given}" if self._given is not None else ""
        name = getattr(self._program, "__name__", "program")
        ranks = f", ranks={self._ranks}" if self._ranks > 1 else ""
        return f"again: af.testing.simulate({name}, seed={self._seed}{ranks}{given}, time_limit_s={self._limit_s:g})"


class _Loop(VirtualTimeLoop):
    """A loop that does the work of threads itself."""

    def __init__(self, course: _Course) -> None:
        self._course = course
        self._draws = course.draws
        self._faults = course.faults
        self._adopted: list[Resources] = []
        self._busy: Counter[WorkerLane] = Counter()
        self._network = Network(self, self)
        self._quiet = Context()
        self._quiet.run(np.seterr, all="ignore")  # as on the threads of lanes
        self._disk = Disk(self, self._cut_power)
        self.has_begun = self.has_no_power = False
        self.process: asyncio.Task[object]
        self._cut_off: dict[int, float] = {}  # until when ranks are
        self._broken: list[str] = []  # what may never be, and was
        self.begun: defaultdict[Trace, Counter[tuple[int, int]]] = defaultdict(Counter)  # calls, by op and frame
        self.stopped: set[asyncio.Task[object]] = set()
        super().__init__()
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Have lanes, accelerators and clocks of this process turn to this loop."""
        if simulation.work is not None:
            raise RuntimeError("a simulation cannot be begun within another one")
        simulation.work, simulation.call_at, simulation.disk = self._work, self._call_at, self._disk.step
        simulation.loop = self
        for forget in simulation.forgets:
            forget()
        self.set_exception_handler(self._report)
        core.set_clock(self._clock_ns)
        team.keep_single()  # sums are not to depend on threads
        collects = gc.isenabled()
        gc.disable()  # when it runs depends on what ran before
        try:
            yield
        finally:
            team.release_single()
            core.set_clock(None)
            self.set_exception_handler(lambda *_: None)  # that a program which hangs has left tasks is no news
            simulation.work = simulation.call_at = simulation.disk = simulation.loop = None
            self._disk.close()
            for resources in self._adopted:  # a rank that was killed has not closed its own
                for device in resources.devices.values():
                    device.close()
            self._adopted.clear()
            for lane in self._busy:
                while lane.take() is not None:
                    pass  # nobody is left who waits for it
            self._busy.clear()
            if collects:
                gc.enable()

    @property
    def is_at_work(self) -> bool:
        return False

    def rests(self) -> None:
        raise SimulationError(f"nothing can happen any more, and the program has not ended: {self.what_is_awaited()}")

    def adopt(self, resources: Resources) -> None:
        if resources not in self._adopted:
            self._adopted.append(resources)
        home, engine = resources.dispatcher, resources.graph.root._engine
        # Numbers drawn for a frame follow from the seed alone, not from the graph's runs before.
        first = 0 if engine is None else engine.next_number
        home.take = partial(self._take, home, resources, first)
        home.slice_ns = 0
        if engine is not None and engine.resources is resources:
            others = [each for each in planted(engine) if not isinstance(each, _Everywhere)]
            engine.build_with(FaultyBuild((*others, _Everywhere(self, first))), fuse=not others)

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], Any], *args: *_Ts) -> asyncio.Future[Any]:
        """Call it later, here."""
        future = self.create_future()
        self._later("call of a thread", self._call, future, partial(func, *args))
        return future

    # -- what is drawn ------------------------------------------------------------------------------------------

    def _take(self, home: Dispatcher, resources: Resources, first: int) -> tuple[Any, Any]:
        ready, graph, budget = home.ready, resources.graph.name, resources.budget
        if budget is not None:
            for place, most in budget.capacities.items():
                if budget.shared[place] > most:
                    self._broken.append(f"graph {graph!r} took {budget.shared[place]} of {most} bytes on {place}")
        ready.rotate(-self._draws.below(len(ready), f"graph {graph}: what goes next"))
        actor, frame = ready.popleft()
        what = f"graph {graph}: the loop is blocked"
        if self._draws.chance(self._faults.blocks, what):
            self._course.note(self, what)
            self.advance(self._draws.duration_s(1e-3, self._faults.blocked_s, f"{what} so long"))
        if isinstance(actor, OpActor):
            goes = self._draws.below(2, f"op {actor.what}, frame {frame.number - first}: to its lane")
            actor.cost_ns = _LONG_NS if goes else _SHORT_NS
        return actor, frame

    def strike(self, actor: OpActor, number: int) -> None:
        """A call of an op begins, on the loop or as work of a lane."""
        what = f"op {actor.what}, frame {number}"
        self._course.note(self, f"{what}{'' if on_lane() else ', on the loop'}")
        if not on_lane():
            self.advance(self._call_s(what))
        self._may_fail(what)

    async def strike_later(self, actor: OpActor, number: int) -> None:
        """A call of an async function begins."""
        what = f"op {actor.what}, frame {number}"
        self._course.note(self, what)
        await asyncio.sleep(self._call_s(what))
        self._may_fail(what)

    def _call_s(self, what: str) -> float:
        taken = self._draws.duration_s(1e-7, 1e-3, f"{what}: takes time")
        if self._draws.chance(self._faults.slow, f"{what}: is slow"):
            taken += self._draws.duration_s(1e-3, self._faults.slow_s, f"{what}: how slow")
        return taken

    def _may_fail(self, what: str) -> None:
        for chance, why, error in (
            (self._faults.fails, "fails", InjectedError),
            (self._faults.memory, "has no memory", MemoryError),
        ):
            if self._draws.chance(chance, f"{what}: {why}"):
                self._course.note(self, f"{what}: {why}")
                raise error(f"{what} {why} in the simulation")

    # -- threads ------------------------------------------------------------------------------------------------

    def _work(self, lane: WorkerLane) -> None:
        if self._draws.chance(self._faults.threads, f"lane {lane.name}: no thread"):
            raise DeviceError(f"thread 'actorflow-{lane.name}' cannot be started: the simulation has none left")
        self._busy[lane] += 0  # it is known from here on
        self._later(f"lane {lane.name}", self._begin, lane)

    def _begin(self, lane: WorkerLane) -> None:
        if self._busy[lane] >= lane.limit:
            return  # the end of what runs there begins the next
        fence = lane.take()
        if fence is not None:
            self._busy[lane] += 1
            what = f"work of lane {lane.name}"
            self._course.note(self, f"{what} begins")
            taken = self._call_s(what)
            self.call_later(taken, self._end, lane, fence, core.clock_ns(), context=self._quiet)

    def _end(self, lane: WorkerLane, fence: Any, begun_ns: int) -> None:
        self._busy[lane] -= 1
        with _beside(self):
            lane.end(fence, begun_ns)
        self._begin(lane)

    def _call(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        if future.cancelled():
            return
        try:
            with _beside(self):
                value = call()
        except BaseException as error:  # noqa: BLE001  raised where it is awaited
            future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(value)

    def _later(self, what: str, call: Callable[..., object], *args: Any) -> None:
        self.call_later(self._draws.duration_s(1e-6, 1e-2, f"{what}: begins late"), call, *args)

    def _call_at(self, time_ns: int, call: Callable[[], None]) -> None:
        self.call_at(time_ns / 1e9, call)

    def _clock_ns(self) -> int:
        return round(self.time() * 1e9)

    # -- connections --------------------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self._network.listen(protocol_factory, host or "127.0.0.1", port or 0)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._network.connect(protocol_factory, port)

    def travels_s(self, what: str) -> float:
        """See `Chances`."""
        taken = self._draws.duration_s(1e-5, 1e-2, f"{what}: travels")
        if self._draws.chance(self._faults.late, f"{what}: is late"):
            taken += self._draws.duration_s(1e-3, self._faults.slow_s, f"{what}: how late")
        return taken

    def cut(self, what: str, size_bytes: int) -> int:
        """See `Chances`."""
        return self._draws.below(size_bytes, f"{what}: comes in pieces")

    def hangs_up_s(self, what: str) -> float | None:
        """See `Chances`."""
        is_lost = self._draws.chance(self._faults.hangs_up, f"{what}: is lost")
        return self._draws.duration_s(1e-6, 1.0, f"{what}: is lost after a while") if is_lost else None

    # -- the disk ---------------------------------------------------------------------------------------------------

    def strikes(self, fault: str) -> bool:
        """See `Chances` of disks."""
        chance = {"is full": self._faults.full, "lies": self._faults.lies, "loses power": self._faults.power}[fault]
        if not self._draws.chance(chance, f"disk: it {fault}"):
            return False
        self._course.note(self, f"disk: it {fault}")
        return True

    def below(self, most: int, what: str) -> int:
        """See `Chances` of disks."""
        return self._draws.below(most, what)

    def _cut_power(self) -> None:
        self.has_no_power = True
        self.call_soon(self.process.cancel)

    def start_again(self) -> None:
        """There is power again, and nothing of the program that ran."""
        self._disk.start()
        self.has_no_power = False

    # -- tasks ------------------------------------------------------------------------------------------------------

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any], **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        code = getattr(work, "cr_code", None)
        if self._faults.cancels and self.has_begun and code and not code.co_filename.startswith(_OTHERS):
            what = f"task {code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}: is cancelled"
            if self._draws.chance(self._faults.cancels, what):
                self.call_later(self._draws.duration_s(1e-6, 1.0, f"{what} after a while"), self._cancel, task, what)
        return task

    def _cancel(self, task: asyncio.Task[Any], what: str) -> None:
        if not task.done():
            self._course.note(self, what)
            task.cancel()

    def threaten(self, world: LocalWorld, tasks: list[asyncio.Task[object]]) -> None:
        """Draw which ranks stop, stand still or are cut off, and when; and have messages be late."""
        if self._faults.late or self._faults.cuts:
            world.mail.delay_s = self._message_delay_s
        for rank, task in enumerate(tasks):
            what = f"rank {rank}: stops"
            if self._draws.chance(self._faults.stops, what):
                self.call_later(
                    self._draws.duration_s(1e-6, 1.0, f"{what} after a while"), self._stop, world, rank, task
                )
            what = f"rank {rank}: stands still"
            if self._draws.chance(self._faults.freezes, what):
                begin_s = self._draws.duration_s(1e-6, 1.0, f"{what} after a while")
                end_s = begin_s + self._draws.duration_s(1e-6, self._faults.frozen_s, f"{what} so long")
                self.call_later(begin_s, self._tell_of, what, world.freeze, rank)
                self.call_later(end_s, self._tell_of, f"rank {rank}: goes on", world.thaw, rank)

            what = f"rank {rank}: is cut off"
            if self._draws.chance(self._faults.cuts, what):
                begin_s = self._draws.duration_s(1e-6, 1.0, f"{what} after a while")
                end_s = begin_s + self._draws.duration_s(1e-6, self._faults.frozen_s, f"{what} so long")
                self.call_later(begin_s, self._tell_of, what, partial(self._cut_off.__setitem__, rank), end_s)

    def _message_delay_s(self, stream: Any) -> float:
        ranks = [each for each in stream if isinstance(each, int)][:2]
        if len(ranks) < 2 or stream[0] in ("sent", "received"):
            return 0.0  # it stays on a rank
        end_s = max(self._cut_off.get(rank, 0.0) for rank in ranks)
        if end_s > self.time():
            return end_s - self.time()
        what = f"message {' '.join(map(str, stream))}"
        is_late = self._draws.chance(self._faults.late, f"{what}: is late")
        return self._draws.duration_s(1e-3, self._faults.slow_s, f"{what}: how late") if is_late else 0.0

    def _stop(self, world: LocalWorld, rank: int, task: asyncio.Task[object]) -> None:
        if not task.done():
            self._tell_of(f"rank {rank}: stops", world.kill, rank)
            self.stopped.add(task)
            task.cancel()

    def _tell_of(self, what: str, call: Callable[..., None], *args: Any) -> None:
        self._course.note(self, what)
        call(*args)

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Something has failed that nobody waits for: in a callback, not in a task of the program."""
        if "never retrieved" not in context["message"]:
            self._broken.append(f"{context['message']}: {context.get('exception')!r}")

    # -- the end ----------------------------------------------------------------------------------------------------

    def what_is_awaited(self) -> str:
        """The messages that frames in flight wait for, as text."""
        waits = [text for resources in self._adopted for text in _frames(resources)]
        return "; ".join(waits) or "no frame is in flight"

    def settle(self) -> None:
        """The program has ended: cancel the tasks it has left, as `asyncio.run` does, and check that nothing stays.

        Raises:
            SimulationError: if it has.
        """
        left: list[str] = []
        self.has_begun = False
        for task in asyncio.all_tasks(self):
            task.cancel()
        for _ in range(_PATIENCE_S):
            left = [text for resources in self._adopted for text in _left_by(resources)]
            left += [f"a call on lane {lane.name!r}" for lane, count in self._busy.items() if count]
            if not left:
                break
            self.run_until_complete(asyncio.sleep(1))
        else:
            raise SimulationError(f"the program has ended and left {'; '.join(left)}")
        counts = {resources.graph.name: resources.frames for resources in self._adopted}
        self._broken += [
            f"frames of graph {name!r} ended twice: {each}" for name, each in counts.items() if each.finished < 0
        ]
        for resources in self._adopted:
            self._broken += _untold(resources, self.begun[resources.trace])
        if self._broken:
            raise SimulationError(self._broken[0])


class _Everywhere:
    """A fault that may strike any op, as the loop draws."""

    delay_s: float | None = None

    def __init__(self, loop: _Loop, first: int) -> None:
        self._loop = loop
        self._first = first

    def applies(self, op: PlannedOp) -> bool:
        return op.site is op.node

    def strike(self, actor: OpActor, frame: Frame) -> None:
        self._loop.begun[frame.trace][actor.node_id, frame.number] += 1
        self._loop.strike(actor, frame.number - self._first)

    def strike_later(self, actor: OpActor, frame: Frame) -> Callable[[], Awaitable[None]]:
        self._loop.begun[frame.trace][actor.node_id, frame.number] += 1
        return partial(self._loop.strike_later, actor, frame.number - self._first)


def _frames(resources: Resources) -> Iterator[str]:
    for frame in sorted(resources.running, key=lambda frame: frame.number):
        yield f"frame {frame.number} of graph {resources.graph.name!r}, {what_it_waits_for(frame)}"


def _left_by(resources: Resources) -> Iterator[str]:
    name = resources.graph.name
    yield from _frames(resources)
    for lane in resources.lanes_at_work():
        yield f"work on lane {lane.name!r} of graph {name!r}"
    if resources.budget is not None and resources.budget.shared_bytes:
        yield f"{resources.budget.shared_bytes} bytes of the budget of graph {name!r}"
    for op, turnstile in resources.turnstiles.items():
        if turnstile.running or turnstile.parked:
            yield f"turns at op {op.name!r}"


def _untold(resources: Resources, begun: Counter[tuple[int, int]]) -> Iterator[str]:
    """Faults of the trace of a graph: it has each call once, but for calls that ended with their frames."""
    calls, frames, what = resources.trace.since(0), resources.frames, f"the trace of graph {resources.graph.name!r}"
    keys = np.stack([calls.node, calls.frame], axis=1)
    told, well = (Counter(map(tuple, some.tolist())) for some in (keys, keys[~calls.failed]))
    for call, count in (well - begun).items():  # what finds no thread has failed, and never begun
        if call in begun:
            yield f"{what} has {count} calls too many of op {call[0]} in frame {call[1]}"
    lacking = {frame for _, frame in begun - told}
    if len(lacking) > frames.started - frames.finished and not calls.lost:
        yield f"{what} lacks calls of frames {sorted(lacking)}, of which some have ended well"


@contextmanager
def _beside(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """A context in which no loop runs, as in a thread."""
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Have the global generator begin at a seed; it goes on where it was afterwards."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
