"""Whatever the user's code raises, wherever it is called: the loader ends with an error that names the stage.

Each case is (where user code is called) x (what is raised) x (the stages around it) x (asyncio, uvloop): nothing hangs,
neither the iteration nor the end of the loader; the items before it have come; what ends programs has left the loop,
once; nothing is left; and the next iteration gives the rest.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import multiprocessing
import numbers
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import actorflow as af
from actorflow.devices import WorkerLane
from actorflow.pipeline import Limiter, Pipeline, concat, interleave, merge, source, zip_
from actorflow.pipeline.calls.call import CallActor
from actorflow.pipeline.calls.chunks import ChunkActor
from actorflow.pipeline.calls.job import Job
from actorflow.pipeline.calls.order import InOrder, Unordered
from actorflow.pipeline.calls.tasks import Workers
from actorflow.pipeline.processes.pool import Processes
from actorflow.pipeline.processes.process import Worker
from actorflow.pipeline.stages.branch import _SplitActor
from actorflow.pipeline.stages.join import JoinActor
from actorflow.pipeline.stages.passing import PassActor
from actorflow.pipeline.stages.source import _SourceOrder
from actorflow.pipeline.stats import StageStats
from tests.conftest import _loop_factories
from tests.pipeline.failing import (
    AT,
    COUNT,
    KINDS,
    ON_THE_WAY,
    Fault,
    Function,
    Judged,
    Leaving,
    Opens,
    OutcomeError,
    Trouble,
    called,
    iterated,
    judged,
    leave_when_asked,
)

FULL = bool(os.environ.get("ACTORFLOW_FULL_TESTS"))
#: Only a test that fails waits so long.
PATIENCE_S = float(os.environ.get("ACTORFLOW_PATIENCE_S", "60"))
ENDING = (KeyboardInterrupt, SystemExit)

pytestmark = pytest.mark.usefixtures("calls_count_as_short")


# -- where user code is called ----------------------------------------------------------------------------------


class Place(NamedTuple):
    """A place where stages call user code.

    Attributes:
        add: Adds the stage, which gives the items that it gets, or makes the source, which gives the first numbers.
        stage: The name in the error.
        number: Of the item in the error.
        is_source: Whether it is a source.
        is_ordered: Whether items keep their order.
        is_item: Whether it happens at an item, so that those before it have come.
        legal: Kinds that mean something else there: the end.
        in_branch: Whether the stage may stand in a branch.
    """

    add: Callable[[Any, Fault], Pipeline]
    stage: str
    number: int | None = AT
    is_source: bool = False
    is_ordered: bool = True
    is_item: bool = True
    legal: tuple[type[BaseException], ...] = ()
    in_branch: bool = True


PLACES: dict[str, Place] = {}


def stage(name: str, **about: Any) -> Callable[[Callable[[Pipeline, Fault], Pipeline]], None]:
    """Register what adds a stage."""

    def register(add: Callable[[Pipeline, Fault], Pipeline]) -> None:
        PLACES[add.__name__.strip("_")] = Place(add, name, **about)

    return register


def origin(**about: Any) -> Callable[[Callable[[Fault], Any]], None]:
    """Register what makes the data of a source; both on the loop and in a thread if it is not async."""

    def register(make: Callable[[Fault], Any]) -> None:
        for executor in ("loop", "thread") if not make.__name__.endswith("async") else ("auto",):

            def add(_: Any, fault: Fault, executor: Any = executor) -> Pipeline:
                return source(make(fault), executor=executor)

            PLACES[f"{make.__name__.strip('_')}, {executor}"] = Place(add, "source", is_source=True, **about)

    return register


def asynchronous(fault: Callable[[Any], Any], turns: int = 1) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    async def call(x: Any) -> Any:
        for _ in range(turns):
            await asyncio.sleep(0)
        return fault(x)

    return call


#: How functions are called: options, and whether the function is async.
WAYS: dict[str, tuple[dict[str, Any], int | None]] = {
    "loop": ({"executor": "loop"}, None),
    "short": ({}, None),
    "job on the loop": ({"executor": "loop", "limiter": Limiter(2)}, None),
    "thread": ({"executor": "thread"}, None),
    "threads": ({"executor": "thread", "concurrency": 3, "timeout": 3600}, None),
    "threads, unordered": ({"executor": "thread", "concurrency": 3, "ordered": False}, None),
    "at once": ({}, 0),
    "task": ({}, 1),
    "tasks": ({"concurrency": 3}, 1),
    "tasks, unordered": ({"concurrency": 3, "ordered": False}, 1),
    "tasks in time": ({"concurrency": 2, "timeout": 3600, "limiter": Limiter(2)}, 1),
}


class Gives:
    """Its `__next__` fails."""

    def __init__(self, fault: Fault, items: list[Any]) -> None:
        self._fault, self._items = fault, iter(items)

    def __iter__(self) -> Gives:
        return self

    def __next__(self) -> Any:
        return self._fault(next(self._items))


class GivesLater(Gives):
    """Its `__anext__` fails at once, before there is anything to await."""

    def __aiter__(self) -> GivesLater:
        return self

    def __anext__(self) -> Awaitable[Any]:
        try:
            x = next(self._items)
        except StopIteration:
            return self._end()
        self._fault(x)
        return asynchronous(lambda x: x)(x)

    async def _end(self) -> Any:
        raise StopAsyncIteration


async def items_later(fault: Fault, items: list[Any]) -> AsyncIterator[Any]:
    for x in items:
        await asyncio.sleep(0)
        yield fault(x)


def items_now(fault: Fault, items: list[Any]) -> Iterator[Any]:
    for x in items:
        yield fault(x)


def register_calls() -> None:
    for way, (options, turns) in WAYS.items():
        is_ordered = options.get("ordered", True)
        about: dict[str, Any] = {"is_ordered": is_ordered, "in_branch": is_ordered}

        def made(fn: Callable[[Any], Any], turns: int | None = turns) -> Callable[[Any], Any]:
            return fn if turns is None else asynchronous(fn, turns)

        def add_map(p: Any, fault: Fault, o: Any = options, made: Any = made) -> Pipeline:
            return p.map(made(fault), name="fails", **o)

        def add_filter(p: Any, fault: Fault, o: Any = options, made: Any = made) -> Pipeline:
            return p.filter(made(lambda x: (fault(x), True)[1]), name="fails", **o)

        def add_truth(p: Any, fault: Fault, o: Any = options, made: Any = made) -> Pipeline:
            return p.filter(made(lambda x: Judged(fault, x)), name="fails", **o)

        def add_call(p: Any, fault: Fault, o: Any = options, made: Any = made) -> Pipeline:
            return p.flat_map(made(lambda x: [fault(x)]), name="fails", **o)

        def add_iter(p: Any, fault: Fault, o: Any = options, made: Any = made) -> Pipeline:
            return p.flat_map(made(lambda x: Opens(fault, x)), name="fails", **o)

        def add_next(p: Any, fault: Fault, o: Any = options, made: Any = made) -> Pipeline:
            return p.flat_map(made(lambda x: Gives(fault, [x])), name="fails", **o)

        def add_body(p: Any, fault: Fault, o: Any = options, made: Any = made) -> Pipeline:
            return p.flat_map(made(lambda x: items_now(fault, [x])), name="fails", **o)

        adds = {"map": add_map, "filter": add_filter, "truth": add_truth}
        expands = {"flat_map": add_call, "flat_map iter": add_iter, "flat_map body": add_body}
        for what, add in {**adds, **expands}.items():
            PLACES[f"{what}, {way}"] = Place(add, "fails", **about)
        PLACES[f"flat_map next, {way}"] = Place(add_next, "fails", legal=(StopIteration,), **about)
        if turns:

            def add_anext(p: Any, fault: Fault, o: Any = options) -> Pipeline:
                async def give(x: Any) -> Any:
                    return GivesLater(fault, [x])

                return p.flat_map(give, name="fails", **o)

            def add_async_body(p: Any, fault: Fault, o: Any = options) -> Pipeline:
                async def each(x: Any) -> AsyncIterator[Any]:
                    await asyncio.sleep(0)
                    yield fault(x)

                return p.flat_map(each, name="fails", **o)

            if "timeout" in options:
                continue  # as without
            PLACES[f"flat_map async body, {way}"] = Place(add_async_body, "fails", **about)
            PLACES[f"flat_map anext, {way}"] = Place(add_anext, "fails", legal=(StopAsyncIteration,), **about)


register_calls()


class Key:
    """Its hash, or its comparison, fails."""

    def __init__(self, hashed: Fault | None, compared: Fault | None, x: Any) -> None:
        self._hashed, self._compared, self._x = hashed, compared, x

    def __hash__(self) -> int:
        if self._hashed is not None:
            self._hashed(self._x)
        return hash(0)

    def __eq__(self, other: object) -> bool:
        if self._compared is not None:
            self._compared(self._x)
        return other == 0


@stage("branch", in_branch=False)
def _branch_key(p: Pipeline, fault: Fault) -> Pipeline:
    return p.branch(lambda x: fault(x) * 0, {0: lambda p: p})


@stage("branch", in_branch=False)
def _branch_hash(p: Pipeline, fault: Fault) -> Pipeline:
    return p.branch(lambda x: Key(fault, None, x), {0: lambda p: p})


@stage("branch", in_branch=False)
def _branch_comparison(p: Pipeline, fault: Fault) -> Pipeline:
    return p.branch(lambda x: Key(None, fault, x), {0: lambda p: p})


@stage("prefetch")
def _prefetch_size(p: Pipeline, fault: Fault) -> Pipeline:
    return p.prefetch(3, size_bytes=1_000, size=fault)


class Heavy:
    """Says wrongly, or not at all, how large it is."""

    def __init__(self, fault: Fault, x: Any) -> None:
        self._fault, self.x = fault, x

    @property
    def nbytes(self) -> int:
        self._fault(self.x)
        return 1


@stage("prefetch")
def _prefetch_nbytes(p: Pipeline, fault: Fault) -> Pipeline:
    return p.map(lambda x: Heavy(fault, x)).prefetch(3, size_bytes=1_000).map(lambda heavy: heavy.x)


@stage("cache", in_branch=False)
def _cache_size(p: Pipeline, fault: Fault) -> Pipeline:
    return p.cache(size_bytes=1_000, size=fault)


@stage("batch/collate")
def _collate(p: Pipeline, fault: Fault) -> Pipeline:
    return p.batch(1, collate=lambda items: fault(items[0]), executor="loop")


class Digits(numbers.Number):
    """Its `__array__` fails."""

    def __init__(self, fault: Fault, x: Any) -> None:
        self._fault, self._x = fault, x

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, *arguments: Any, **named: Any) -> Any:
        return np.array(self._fault(self._x))


@stage("batch/collate")
def _stack(p: Pipeline, fault: Fault) -> Pipeline:
    return p.map(lambda x: Digits(fault, x)).batch(1, executor="loop").map(lambda batch: int(batch[0]))


@stage("unbatch")
def _unbatch(p: Pipeline, fault: Fault) -> Pipeline:
    return p.map(lambda x: Opens(fault, x)).unbatch()


class Parts(Mapping[str, Any]):
    """Its values fail."""

    def __init__(self, fault: Fault, x: Any) -> None:
        self._fault, self.x = fault, x

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __getitem__(self, key: str) -> Any:
        return self._fault(self.x)


@stage("to sim:0", in_branch=False)
def _to_device(p: Pipeline, fault: Fault) -> Pipeline:
    return p.map(lambda x: Parts(fault, x)).to("sim:0").map(lambda parts: parts["x"])


class LaterParts(Parts):
    """Its values fail when they are asked for once more."""

    def __init__(self, fault: Fault, x: Any) -> None:
        super().__init__(fault, x)
        self._asked = 0

    def __getitem__(self, key: str) -> Any:
        self._asked += 1
        return self._fault(self.x) if self._asked == 2 else self.x


@stage("to sim:0", in_branch=False)
def _to_device_later(p: Pipeline, fault: Fault) -> Pipeline:
    return p.map(lambda x: LaterParts(fault, x)).to("sim:0").map(lambda parts: parts["x"])


@origin()
def generator(fault: Fault) -> Any:
    return lambda epoch: items_now(fault, list(range(COUNT)))


@origin(number=None, is_item=False)
def function(fault: Fault) -> Any:
    def give(epoch: int) -> range:
        fault()
        return range(COUNT)

    return give


class Rows:
    """A sequence that fails at a row, or when it is asked how many there are."""

    def __init__(self, row: Callable[[int], Any], length: Callable[[], Any], epoch: Callable[[], Any]) -> None:
        self._row, self._length, self._epoch = row, length, epoch

    def set_epoch(self, epoch: int) -> None:
        self._epoch()

    def __len__(self) -> int:
        self._length()
        return COUNT

    def __getitem__(self, row: int) -> Any:
        return self._row(row)


def nothing(x: Any = None) -> Any:
    return x


@origin()
def row(fault: Fault) -> Any:
    return Rows(fault, nothing, nothing)


@origin(number=0, is_item=False)
def length(fault: Fault) -> Any:
    return Rows(nothing, fault, nothing)


@origin(number=0, is_item=False)
def epoch(fault: Fault) -> Any:
    return Rows(nothing, nothing, fault)


@origin(number=0, is_item=False)
def iter_(fault: Fault) -> Any:
    class Data:
        def __iter__(self) -> Iterator[int]:
            fault()
            return iter(range(COUNT))

    return Data()


@origin(legal=(StopIteration,))
def next_(fault: Fault) -> Any:
    return lambda epoch: Gives(fault, list(range(COUNT)))


@origin()
def body_async(fault: Fault) -> Any:
    return lambda epoch: items_later(fault, list(range(COUNT)))


@origin(number=0, is_item=False)
def aiter_async(fault: Fault) -> Any:
    class Data:
        def __aiter__(self) -> AsyncIterator[int]:
            fault()
            return items_later(fault, list(range(COUNT)))

    return Data()


@origin(legal=(StopAsyncIteration,))
def anext_async(fault: Fault) -> Any:
    return lambda epoch: GivesLater(fault, list(range(COUNT)))


class Knowing:
    """A source that knows its place."""

    def __init__(self, *, start: Any = nothing, behind: Any = nothing, load: Any = nothing) -> None:
        self._start, self._behind, self._load = start, behind, load
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        while self._at < COUNT:
            self._at += 1
            yield self._at - 1

    def state_dict(self) -> dict[str, int]:
        if self._at:
            self._behind(self._at - 1)
        else:
            self._start()
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._load()
        self._at = state["at"]


@origin(number=None, is_item=False)
def state_at_the_start(fault: Fault) -> Any:
    return lambda epoch: Knowing(start=fault)


@origin()
def state_behind_an_item(fault: Fault) -> Any:
    return lambda epoch: Knowing(behind=fault)


@origin(number=0, is_item=False)
def state_loaded(fault: Fault) -> Any:
    return lambda epoch: Knowing(load=fault)


# -- the stages around it ---------------------------------------------------------------------------------------


class Around(NamedTuple):
    """Stages around a place.

    Attributes:
        make: Adds all of them.
        whole: What they give.
        lead: Items that come before those of the place.
        size: Items that only come together.
        number: Of the item that fails, if it is another one there.
    """

    make: Callable[[Place, Fault], Pipeline]
    whole: list[Any]
    lead: int = 0
    size: int = 1
    number: int | None = None

    def before(self, at: int) -> list[Any]:
        """What comes before the place's item at a number."""
        return self.whole[: self.lead + at // self.size * self.size]


def first_of(place: Place, fault: Fault) -> Pipeline:
    return place.add(source(list(range(COUNT))), fault)


def _between_tasks(place: Place, fault: Fault) -> Pipeline:
    if place.is_source:
        made = place.add(None, fault)
    else:
        made = place.add(source(range(COUNT)).map(asynchronous(nothing), name="front", concurrency=2), fault)
    return made.map(asynchronous(nothing), name="behind", concurrency=2)


def _batched(place: Place, fault: Fault) -> Pipeline:
    return first_of(place, fault).batch(2, collate=list, name="pairs").unbatch(name="again")


def _in_a_branch(place: Place, fault: Fault) -> Pipeline:
    return source(range(COUNT)).branch(
        lambda x: x % 2, {0: lambda p: p.map(asynchronous(nothing)), 1: lambda p: place.add(p, fault)}, name="ways"
    )


def _zipped(place: Place, fault: Fault) -> Pipeline:
    return zip_(first_of(place, fault), source(range(COUNT), name="other")).map(lambda pair: pair[0], name="one")


NUMBERS = list(range(COUNT))
AROUND: dict[str, Around] = {
    "alone": Around(first_of, NUMBERS),
    "between tasks": Around(_between_tasks, NUMBERS),
    "prefetched": Around(lambda place, fault: first_of(place, fault).prefetch(2, name="ready"), NUMBERS),
    "batched": Around(_batched, NUMBERS, size=2),
    "in a branch": Around(_in_a_branch, NUMBERS, number=AT // 2),
    "zipped": Around(_zipped, NUMBERS),
    "repeated": Around(lambda place, fault: first_of(place, fault).repeat(2), NUMBERS * 2),
    "second": Around(
        lambda place, fault: concat(source([-1], name="other"), first_of(place, fault)), [-1, *NUMBERS], lead=1
    ),
    "in turn": Around(lambda place, fault: interleave(first_of(place, fault), source([], name="other")), NUMBERS),
    "merged": Around(lambda place, fault: merge(first_of(place, fault), source([], name="other")), NUMBERS),
}


def fits(place: Place, around: str) -> bool:
    return around != "in a branch" or (place.in_branch and not place.is_source)


# -- one case ---------------------------------------------------------------------------------------------------


def ended(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, list[BaseException]]:
    """What a coroutine returns or raises, and what has left the loop meanwhile."""
    task = loop.create_task(asyncio.wait_for(coroutine, PATIENCE_S))
    left: list[BaseException] = []
    while not task.done():
        try:
            loop.run_until_complete(task)
        except ENDING as error:
            left.append(error)
        except BaseException:  # noqa: BLE001  the task's, below
            pass
    return task.exception() or task.result(), left


def open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # that of the folder
            continue
        found.append(fd)
    return found


async def take(loader: Pipeline, items: list[Any], is_closed: bool) -> None:
    try:
        async for item in loader:
            items.append(item)
    finally:
        if is_closed:
            await loader.aclose()


def check(
    loop: asyncio.AbstractEventLoop, name: str, kind: type[BaseException], around: str, *, is_closed: bool
) -> None:
    place, shape = PLACES[name], AROUND[around]
    fault = Fault(kind)
    loader = shape.make(place, fault)
    items: list[Any] = []
    error, left = ended(loop, take(loader, items, is_closed))
    if kind in place.legal:
        assert not isinstance(error, BaseException)
        ended(loop, loader.aclose())
        return
    assert isinstance(error, af.StageError), repr(error)
    assert error.stage == place.stage
    number = place.number if shape.number is None or not place.is_item else shape.number
    assert error.number == number
    assert f"\n  created at {__file__}:" in str(error)
    cause = error.__cause__
    became_runtime_error = issubclass(kind, StopIteration | StopAsyncIteration) and isinstance(cause, RuntimeError)
    assert type(cause) is kind or became_runtime_error
    assert len(left) == issubclass(kind, ENDING)
    assert all(one is cause for one in left)
    if place.number is None:  # before anything runs
        assert not items
    elif place.is_ordered:
        assert items == shape.before(AT if place.is_item else 0)
    assert not [task for task in asyncio.all_tasks(loop) if is_closed]
    fault.is_armed = False
    rest: list[Any] = []
    error, left = ended(loop, take(loader, rest, True))
    assert (error, left) == (None, [])
    if place.is_ordered:
        assert items + rest == shape.whole
    else:
        assert sorted(items + rest) == sorted(shape.whole)
    assert not asyncio.all_tasks(loop)


@pytest.mark.parametrize("kind_of_loop", _loop_factories())
@pytest.mark.parametrize("place", PLACES)
def test_an_error_that_names_the_stage(place: str, kind_of_loop: str) -> None:
    """All kinds; in the short form each with one of the stages around, in the full one with all of them."""
    loop = _loop_factories()[kind_of_loop]()
    wrong: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: wrong.append(context))
    threads, files = set(threading.enumerate()), len(open_files())
    shapes = [around for around in AROUND if fits(PLACES[place], around)]
    first = list(PLACES).index(place)
    try:
        for index, kind in enumerate(KINDS):
            for number, around in enumerate(shapes if FULL else [shapes[(first + index) % len(shapes)]]):
                try:
                    check(loop, place, kind, around, is_closed=(first + index + number) % 2 == 0)
                except BaseException as error:
                    error.add_note(f"{kind.__name__}, {around}, {kind_of_loop}")
                    raise
                assert set(threading.enumerate()) == threads
                assert len(open_files()) == files
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    gc.collect()
    assert not wrong
    for options, _ in WAYS.values():
        assert options.get("limiter", Limiter(1)).running == 0


# -- processes --------------------------------------------------------------------------------------------------

FAR: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "map": (called, ON_THE_WAY),
    "filter": (judged, ("packed here", "opened there", "judged")),
    "flat_map": (iterated, ("iterated", "packed there", "opened here")),
}


@pytest.mark.parametrize("kind_of_loop", _loop_factories())
@pytest.mark.parametrize("method", FAR)
def test_an_error_of_what_runs_in_processes(method: str, kind_of_loop: str) -> None:
    forkserver.ensure_running()  # it stays
    loop = _loop_factories()[kind_of_loop]()
    files = len(open_files())
    wrong: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: wrong.append(context))
    fn, places = FAR[method]
    now: list[tuple[str, type[BaseException]]] = []
    processes: set[int | None] = set()

    def make(x: int) -> Trouble:
        where, kind = now[0] if now and x == AT else ("", ValueError)
        return Trouble(where, kind, x)

    front = source(range(COUNT)).map(make, name="front", executor="loop")
    loader = getattr(front, method)(fn, executor="process", name="fails").map(lambda item: item.x, name="behind")
    for where in places:
        for kind in KINDS:
            now[:] = [(where, kind)]
            items: list[int] = []
            error, left = ended(loop, take(loader, items, False))
            assert isinstance(error, af.StageError), (where, kind, error)
            assert (error.stage, error.number, items) == ("fails", AT, NUMBERS[:AT]), (where, kind, error)
            cause = error.__cause__
            # What cannot be sent back comes as something that means the same.
            assert isinstance(cause, SystemExit if kind is Leaving else kind), (where, kind, cause)
            assert left == ([cause] if issubclass(kind, ENDING) else []), (where, kind)
            now.clear()
            error, left = ended(loop, take(loader, items, False))
            assert (error, left, items) == (None, [], NUMBERS), (where, kind)
            processes |= {child.pid for child in multiprocessing.active_children()}
    assert len(processes) == 1  # none had to be replaced
    assert ended(loop, loader.aclose()) == (None, [])
    assert not asyncio.all_tasks(loop)
    assert not multiprocessing.active_children()
    assert len(open_files()) == files
    loop.close()
    assert not wrong


@pytest.mark.parametrize("kind", KINDS if FULL else [OutcomeError, KeyboardInterrupt])
def test_a_function_that_cannot_be_made_again_in_a_process(kind: type[BaseException]) -> None:
    loop = asyncio.new_event_loop()
    loader = source(range(COUNT)).map(Function(kind), executor="process", name="fails")
    error, left = ended(loop, take(loader, [], True))
    assert isinstance(error, af.StageError)
    assert (error.stage, error.number) == ("fails", 0)
    assert isinstance(error.__cause__, SystemExit if kind is Leaving else kind)
    assert bool(left) == issubclass(kind, ENDING)
    loop.close()


@pytest.mark.parametrize("kind_of_loop", _loop_factories())
def test_a_process_that_ends_while_items_wait_for_it(kind_of_loop: str) -> None:
    """Its last answer and its end come at once, with items unread; uvloop tells of that once."""
    loop = _loop_factories()[kind_of_loop]()
    loader = source(range(COUNT)).map(leave_when_asked, executor="process")

    async def main() -> None:
        async with loader:
            for _ in range(3 if FULL else 1):
                with pytest.raises(af.StageError, match="exit code 3") as raised:
                    async for _ in loader:
                        pass
                assert raised.value.number is not None

    assert ended(loop, main()) == (None, [])
    loop.close()


# -- what goes wrong in this package ----------------------------------------------------------------------------


def everything() -> Pipeline:
    """Nearly all stages, with calls on the loop, in threads and in tasks."""
    numbers = source(range(COUNT)).map(asynchronous(nothing), name="task").shuffle(2)
    ways = numbers.branch(
        lambda x: x % 2,
        {0: lambda p: p.map(nothing, executor="thread", name="thread"), 1: lambda p: p.filter(lambda x: True)},
    )
    tasks = ways.map(asynchronous(nothing), concurrency=3, ordered=False, timeout=3600, name="tasks")
    batches = tasks.flat_map(lambda x: [x]).batch(2, collate=list).unbatch().prefetch(2)
    return batches.zip(source(lambda epoch: iter(range(COUNT)), name="other")).map(lambda pair: pair[0]).take(COUNT)


class Planted(BaseException):
    """A mistake in this package."""


MISTAKES: list[tuple[type, str]] = [
    (InOrder, "emit"),
    (InOrder, "accept"),
    (InOrder, "gained"),
    (InOrder, "is_due"),
    (Unordered, "emit"),
    (Unordered, "gained"),
    (_SourceOrder, "_position"),
    (CallActor, "_begin"),
    (CallActor, "_concluded"),
    (CallActor, "_leave"),
    (CallActor, "_timed"),
    (JoinActor, "taken"),
    (PassActor, "_end"),
    (StageStats, "called"),
    (StageStats, "holds"),
    (Workers, "_goes_on"),
    (Workers, "_job"),
    (Workers, "submit"),
    (_SplitActor, "_port"),
]


@pytest.mark.parametrize("nth", [1, 2, 5] if FULL else [1, 3])
@pytest.mark.parametrize(("owner", "name"), MISTAKES, ids=lambda what: what if isinstance(what, str) else what.__name__)
async def test_mistakes_of_this_package_end_the_run(
    owner: type, name: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ends_with_a_mistake(everything(), owner, name, nth, monkeypatch)


async def ends_with_a_mistake(
    loader: Pipeline,
    owner: type,
    name: str,
    nth: int,
    monkeypatch: pytest.MonkeyPatch,
    when: Any = None,
    count: int = COUNT,
) -> None:
    """Checks a run in which the n-th call of a method raises, and the next one."""
    method, calls = getattr(owner, name), 0

    def fail(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += when is None or when(self)
        if calls == nth:
            calls += 1
            raise Planted
        return method(self, *arguments, **named)

    items: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(af.StageError) as raised:
            await asyncio.wait_for(take(loader, items, True), PATIENCE_S)
    assert raised.value.stage in [stage.name for stage in loader.stages]
    assert isinstance(raised.value.__cause__, Planted)
    assert calls > nth
    async with loader:
        items += [x async for x in loader]
    assert sorted(items) == NUMBERS[:count]


def falter(x: int) -> int:
    if not FAILED:
        FAILED.append(x)
        raise OSError("not yet")
    return x


FAILED: list[int] = []


async def test_mistakes_when_a_call_is_repeated_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    FAILED.clear()
    loader = source(range(COUNT)).map(falter, retries=1, backoff=1e-3, executor="loop")
    await ends_with_a_mistake(
        loader, CallActor, "wake", 1, monkeypatch, lambda actor: any(slot.attempt for slot in actor.waiting)
    )


async def test_mistakes_when_a_call_takes_too_long_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def block(x: int) -> int:
        assert x != AT or release.wait(60)
        return x

    loader = source(range(COUNT)).map(block, executor="thread", timeout=0.05)
    wake = WorkerLane.add_thread

    def fail(lane: WorkerLane) -> None:
        release.set()
        wake(lane)
        raise Planted

    items: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(WorkerLane, "add_thread", fail)
        with pytest.raises(af.StageError, match=r"stage 'block' .* failed with Planted"):
            await asyncio.wait_for(take(loader, items, True), PATIENCE_S)
    assert items == NUMBERS[:AT]


@pytest.mark.parametrize("count", [1, COUNT])  # what is lost with one item, others may end
@pytest.mark.parametrize(
    ("owner", "name", "nth"),
    [(ChunkActor, "_timed", 1), (Worker, "_answered", 1), (Worker, "_begin_message", 2), (Processes, "_assign", 1)],
)
def test_mistakes_around_processes_end_the_run(
    owner: type, name: str, nth: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        loader = source(range(count)).map(abs, executor="process")
        await ends_with_a_mistake(loader, owner, name, nth, monkeypatch, count=count)

    af.run(main())


async def test_mistakes_when_a_process_is_lost_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(worker: Worker) -> int:
        raise Planted

    loader = source(range(COUNT)).map(leave_when_asked, executor="process")
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "exit_code", property(fail))
        with pytest.raises(af.StageError, match=r"stage 'leave_when_asked' .* failed with Planted") as raised:
            await asyncio.wait_for(take(loader, [], True), PATIENCE_S)
    assert raised.value.number == AT


async def test_a_process_that_cannot_be_replaced_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assign = Processes._assign

    def fail(processes: Processes, task: Any) -> None:
        if sys._getframe(1).f_code.co_name == "_assign_again":
            raise Planted
        assign(processes, task)

    loader = source([AT, *NUMBERS]).map(leave_when_asked, executor="process", on_error="skip")
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "_assign", fail)
        with pytest.raises(af.StageError, match=r"stage 'leave_when_asked' .* failed with Planted"):
            await asyncio.wait_for(take(loader, [], True), PATIENCE_S)


async def test_mistakes_when_stages_stop_are_told_and_stop_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    halt, halted = CallActor.halt, 0

    def fail(actor: CallActor) -> None:
        nonlocal halted
        halted += 1
        halt(actor)
        raise Planted

    loader = everything()
    with monkeypatch.context() as patch:
        patch.setattr(CallActor, "halt", fail)
        async with loader:
            items = aiter(loader)
            await anext(items)
            del items
    assert halted == len(told) > 5
    assert all(isinstance(context["exception"], Planted) for context in told)


async def test_mistakes_reach_who_asks_for_the_place_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(loader: Pipeline, position: Any) -> Any:
        raise Planted

    async with source(range(COUNT)) as loader:
        items = aiter(loader)
        await anext(items)
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "_frozen", fail)
            with pytest.raises(Planted):
                await asyncio.wait_for(asyncio.to_thread(loader.state_dict), PATIENCE_S)
        assert (await asyncio.to_thread(loader.state_dict))["position"] == 1


async def test_mistakes_when_an_answer_has_come_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    is_expired = Job.__dict__["is_expired"]

    def fail(job: Job, value: bool) -> None:
        if sys._getframe(1).f_code.co_name == "_answered":
            raise Planted
        is_expired.__set__(job, value)

    loader = source(range(COUNT)).map(abs, executor="process", timeout=3600)
    with monkeypatch.context() as patch:
        patch.setattr(Job, "is_expired", property(is_expired.__get__, fail))
        with pytest.raises(af.StageError, match=r"stage 'abs' .* failed with Planted"):
            await asyncio.wait_for(take(loader, [], True), PATIENCE_S)


async def test_mistakes_around_copies_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = source(range(COUNT)).map(np.array, name="arrays").to("sim:0")
    loader = loader.map(lambda x: int(af.to_numpy(x)), name="numbers")
    await ends_with_a_mistake(loader, StageStats, "called", 1, monkeypatch, lambda stats: stats.kind == "to")


# -- more of the user's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["awaits", "returns", "swallows"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_function_that_cancels_the_task_that_calls_it(way: str, concurrency: int) -> None:
    async def fail(x: int) -> int:
        if x == AT:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if way != "returns":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if way == "awaits":
                        raise
        return x

    async with source(range(COUNT)).map(fail, concurrency=concurrency) as loader:
        items: list[int] = []
        outcome = await asyncio.gather(asyncio.wait_for(take(loader, items, False), PATIENCE_S), return_exceptions=True)
    if outcome == [None]:  # the task has not awaited anything since, or it was nobody's business
        assert way != "awaits"
        assert items == NUMBERS
        return
    (error,) = outcome
    assert isinstance(error, af.StageError)
    assert isinstance(error.__cause__, asyncio.CancelledError)
    assert way != "swallows"
    assert way == "returns" or error.number == AT
    assert (error.stage, items) == ("fail", NUMBERS[: len(items)])


@pytest.mark.parametrize("kind_of_loop", _loop_factories())
@pytest.mark.parametrize("place", ["map, at once", "map, tasks", "flat_map async body, tasks"])
def test_a_loop_that_cancels_all_its_tasks(place: str, kind_of_loop: str) -> None:
    """As `asyncio.run` does at its end, with an iteration that somebody keeps."""
    loop = _loop_factories()[kind_of_loop]()
    fault = Fault(ValueError)
    fault.is_armed = False
    loader = PLACES[place].add(source(range(COUNT)).map(asynchronous(nothing), name="front"), fault)

    async def begin() -> Any:
        iteration = aiter(loader)
        await anext(iteration)
        return iteration

    iteration = loop.run_until_complete(begin())
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S))
    assert not asyncio.all_tasks(loop)
    rest: list[int] = []
    del iteration
    assert ended(loop, take(loader, rest, True)) == (None, [])
    assert rest == NUMBERS[1:]
    loop.close()


class Closes:
    """An iterator, of both kinds, whose end fails."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind
        self.closed = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return 0

    def close(self) -> None:
        self.closed += 1
        raise self._kind


class ClosesLater(Closes):
    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        await asyncio.sleep(0)
        return 0

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.close()


@pytest.mark.parametrize("kind_of_loop", _loop_factories())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["break", "take"])
def test_an_iterator_that_cannot_be_closed(kind: type[BaseException], end: str, kind_of_loop: str) -> None:
    """Nobody is left to be told but the loop's exception handler; the loader ends all the same."""
    for data in (Closes(kind), ClosesLater(kind)):
        loop = _loop_factories()[kind_of_loop]()
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda loop, context, told=told: told.append(context))
        loader = source(lambda epoch, data=data: data, executor="auto" if isinstance(data, ClosesLater) else "loop")
        loader = loader.map(nothing, name="behind", executor="loop").take(2)

        async def main(loader: Pipeline = loader) -> None:
            async with loader:
                async for _ in loader:
                    if end == "break":
                        break

        error, left = ended(loop, main())
        assert error is None
        assert data.closed == 1
        (context,) = told
        assert context["message"].startswith("stage 'source' has ended")
        assert type(context["exception"]) in (kind, RuntimeError)  # as Python has it for StopIteration
        assert len(left) == issubclass(kind, ENDING)
        assert not asyncio.all_tasks(loop)
        loop.close()


async def test_all_iterators_are_closed_though_none_can_be() -> None:
    opened: list[Closes] = []
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

    async def each(x: int) -> Closes:
        opened.append(Closes(OSError))
        return opened[-1]

    async with source(range(3)).flat_map(each, concurrency=3) as loader:
        items = aiter(loader)
        for _ in range(50):
            await anext(items)
    assert [one.closed for one in opened] == [1, 1, 1]
    assert len(told) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_without_a_loop(kind: type[BaseException]) -> None:
    """What ends programs comes out where the loader is iterated: there the loop is run."""
    items: list[int] = []
    fault = Fault(kind)
    loader = source(range(COUNT)).map(fault, executor="thread")
    with pytest.raises(kind if issubclass(kind, ENDING) else af.StageError) as raised:
        items.extend(loader.iter_sync())
    if not issubclass(kind, ENDING):
        assert isinstance(raised.value.__cause__, kind)
        assert items == NUMBERS[:AT]
    fault.is_armed = False
    items.extend(loader.iter_sync())
    assert items == NUMBERS


@pytest.mark.parametrize("kind_of_loop", _loop_factories())
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_feed_that_fail(kind: type[BaseException], kind_of_loop: str) -> None:
    loop = _loop_factories()[kind_of_loop]()
    fault = Fault(kind)
    feeds = source(range(COUNT)).map(lambda x: Parts(fault, x), name="parts").feed(x="x")
    given: list[Any] = []

    async def main() -> None:
        async for feed in feeds:
            given.append(feed["x"])

    error, left = ended(loop, main())
    assert isinstance(error, af.StageError)
    assert (error.stage, error.number, given) == ("feed", AT, NUMBERS[:AT])
    assert f"created at {__file__}" in str(error)
    assert isinstance(error.__cause__, kind)
    assert left == ([error.__cause__] if issubclass(kind, ENDING) else [])
    ended(loop, feeds.loader.aclose())
    assert not asyncio.all_tasks(loop)
    loop.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"retries": 2}, {"retries": 2, "backoff": 1e-4}, {"on_error": "skip"}])
@pytest.mark.parametrize("way", ["loop", "thread", "at once", "tasks"])
def test_only_exceptions_are_repeated_and_left_out(
    way: str, options: dict[str, Any], kind: type[BaseException]
) -> None:
    calls = 0

    def fail(x: int) -> int:
        nonlocal calls
        calls += x == AT
        return fault(x)

    fault = Fault(kind)
    how, turns = WAYS[way]
    fn = fail if turns is None else asynchronous(fail, turns)
    loader = source(range(COUNT)).map(fn, name="fails", **how, **options)
    items: list[int] = []
    loop = asyncio.new_event_loop()
    error, _ = ended(loop, take(loader, items, True))
    loop.close()
    # A coroutine makes a RuntimeError of a StopIteration.
    is_exception = issubclass(kind, Exception)
    if is_exception and "on_error" in options:
        assert error is None
        assert items == [x for x in NUMBERS if x != AT]
        assert [skip.number for skip in loader.skips] == [AT]
    else:
        assert (error.stage, error.number, items) == ("fails", AT, NUMBERS[:AT])
    assert calls == (1 + options.get("retries", 0) if is_exception else 1)


@pytest.mark.parametrize("turns", [None, 0])
async def test_more_retries_than_a_float_has_doublings(turns: int | None) -> None:
    calls = 0

    def fail(x: int) -> int:
        nonlocal calls
        calls += 1
        if calls <= 1_500:
            raise ConnectionError
        return x

    fn = fail if turns is None else asynchronous(fail, turns)
    async with source(range(5)).map(fn, retries=2_000) as loader:
        assert [x async for x in loader] == list(range(5))


async def test_an_error_of_a_loader_within_a_function_names_both_stages() -> None:
    async def inner(x: int) -> list[int]:
        async with source([x]).map(Fault(ValueError), name="inner") as loader:
            return [y async for y in loader]

    with pytest.raises(af.StageError, match=r"stage 'outer' .* failed with StageError: stage 'inner'") as raised:
        async with source(range(COUNT)).map(inner, name="outer") as loader:
            await take(loader, [], True)
    assert isinstance(raised.value.__cause__, af.StageError)
    assert raised.value.number == AT


async def none(x: Any) -> None:
    return None


class Lying:
    """Has fewer rows than it says."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, row: int) -> int:
        return [0, 1][row]


class NoIterator:
    def __iter__(self) -> Any:
        return 3


class NoAwaitable:
    def __aiter__(self) -> Any:
        return self

    def __anext__(self) -> Any:
        return 3


MESSAGES: list[tuple[Callable[[], Pipeline], str]] = [
    (lambda: source(Lying()), r"'source' .* IndexError: list index out of range\n  item 2"),
    (lambda: source(Lying(), shuffle=True), r"'source' .* IndexError: list index out of range\n  item \d"),
    (lambda: source(NoIterator()), "'source' .* non-iterator of type 'int'"),
    (lambda: source(NoAwaitable()), "'source' .* object int can't be used in 'await'"),
    (lambda: source(lambda epoch: None), "'source' .* expected an iterable, got None for epoch 0"),
    (lambda: source(range(3)).flat_map(none), "'none' .* expected an iterable from the function, got None"),
    (lambda: source([1]).flat_map(np.array, name="each"), "'each' .* iteration over a 0-d array"),
    (lambda: source([1, 2]).unbatch(), "'unbatch' .* expected a batch: an array, a list, .* got 1"),
    (lambda: source([(np.zeros(2), np.zeros(3))]).unbatch(), "'unbatch' .* parts of a batch to be of one length"),
    (lambda: source([1]).cache(size_bytes=9, size=str), "'cache' .* expected size= to give the bytes .* got '1'"),
    (lambda: source([1]).prefetch(2, size_bytes=9, size=lambda x: None), "'prefetch' .* expected size= .* got None"),
    (lambda: source([1]).prefetch(2, size_bytes=9, size=lambda x: -5), "'prefetch' .* expected size= .* got -5"),
    (lambda: source([1]).branch(lambda x: [], {0: lambda p: p}), "'branch' .* unhashable type: 'list'"),
    (lambda: source([1]).branch(lambda x: 2, {0: lambda p: p}), "'branch' .* no branch for key 2; there are 0"),
    (lambda: source([1]).filter(lambda x: np.zeros(2), name="keep"), "'keep' .* truth value of an array"),
    (lambda: source([np.zeros(2), np.zeros(3)]).batch(2), r"'batch/collate' .* of one shape .* got \(2,\), \(3,\)"),
    (lambda: source([1, "a"]).batch(2), r"'batch/collate' .* of one type .* int in row 0; str in row 1"),
    (lambda: zip_(source([1]), source([1, 2]), strict=True), "'zip' .* not of one length: .* in number 0\n  item 1"),
    (lambda: source([]).repeat(), "'repeat' .* an empty stream would be repeated for ever"),
]


@pytest.mark.parametrize(("make", "message"), MESSAGES, ids=[message[:40] for _, message in MESSAGES])
async def test_what_is_said_of_wrong_answers(make: Callable[[], Pipeline], message: str) -> None:
    async with make() as loader:
        with pytest.raises(af.StageError, match=f"(?s)^stage {message}.*\n  created at {__file__}"):
            await asyncio.wait_for(take(loader, [], False), PATIENCE_S)


# -- each boundary is needed ------------------------------------------------------------------------------------

PACKAGE = Path(af.__file__).parent


def boundaries() -> list[tuple[str, int]]:
    """File and line of each handler and each decorator that stops whatever is raised in `actorflow.pipeline`."""
    found = []
    for path in sorted((PACKAGE / "pipeline").rglob("*.py")):
        file = path.relative_to(PACKAGE / "pipeline").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name):
                only_cleans = isinstance(node.body[-1], ast.Raise) and node.name is None
                if node.type.id == "BaseException" and not only_cleans:
                    found.append((file, node.lineno))
            if isinstance(node, ast.FunctionDef):
                found += [(file, one.lineno) for one in node.decorator_list if ast.unparse(one) == "guarded"]
    return found


@pytest.mark.skipif(not FULL, reason="a part of make test-full")
@pytest.mark.parametrize(("file", "line"), boundaries())
def test_fails_without_any_one_boundary(file: str, line: int, tmp_path: Path) -> None:
    """The tests above, with a package in which one of the boundaries is taken out."""
    shutil.copytree(PACKAGE, tmp_path / "actorflow")
    shutil.copytree(Path(__file__).parents[1], tmp_path / "tests")
    path = tmp_path / "actorflow" / "pipeline" / file
    lines = path.read_text().splitlines(keepends=True)
    changed = lines[line - 1].replace("except BaseException", "except ()").replace("@guarded", "")
    assert changed != lines[line - 1]
    path.write_text("".join([*lines[: line - 1], changed, *lines[line:]]))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "ACTORFLOW_PATIENCE_S": "10", "ACTORFLOW_FULL_TESTS": ""}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n0", "--timeout=120"]
    done = subprocess.run(
        [*command, "tests/pipeline/test_user_code.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout[-2_000:]
