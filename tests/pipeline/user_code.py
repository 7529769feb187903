"""Every place where a pipeline calls user code, the stages around it, and the check of one case."""

from __future__ import annotations

import asyncio
import numbers
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import actorflow as af
from actorflow.pipeline import Limiter, Pipeline, concat, interleave, merge, source, zip_
from tests.pipeline.failing import (
    AT,
    COUNT,
    Fault,
    Judged,
    Opens,
)

#: Only a test that fails waits so long.
PATIENCE_S = float(os.environ.get("ACTORFLOW_PATIENCE_S", "60"))
ENDING = (KeyboardInterrupt, SystemExit)
NUMBERS = list(range(COUNT))


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


def nothing(x: Any = None) -> Any:
    return x


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


#: Stages that call a function, given it and how it is made to be called.
CALLS: dict[str, Callable[..., Pipeline]] = {
    "map": lambda p, made, fault, **how: p.map(made(fault), **how),
    "filter": lambda p, made, fault, **how: p.filter(made(lambda x: (fault(x), True)[1]), **how),
    "truth": lambda p, made, fault, **how: p.filter(made(lambda x: Judged(fault, x)), **how),
    "flat_map": lambda p, made, fault, **how: p.flat_map(made(lambda x: [fault(x)]), **how),
    "flat_map iter": lambda p, made, fault, **how: p.flat_map(made(lambda x: Opens(fault, x)), **how),
    "flat_map body": lambda p, made, fault, **how: p.flat_map(made(lambda x: items_now(fault, [x])), **how),
    "flat_map next": lambda p, made, fault, **how: p.flat_map(made(lambda x: Gives(fault, [x])), **how),
    "flat_map async body": lambda p, _, fault, **how: p.flat_map(partial(_one_later, fault), **how),
    "flat_map anext": lambda p, made, fault, **how: p.flat_map(made(lambda x: GivesLater(fault, [x])), **how),
}
LEGAL = {"flat_map next": (StopIteration,), "flat_map anext": (StopAsyncIteration,)}


async def _one_later(fault: Fault, x: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(0)
    yield fault(x)


def register_calls() -> None:
    for way, (options, turns) in WAYS.items():
        made = nothing if turns is None else partial(asynchronous, turns=turns)
        is_ordered = options.get("ordered", True)
        for what, call in CALLS.items():
            if what in ("flat_map async body", "flat_map anext") and (not turns or "timeout" in options):
                continue  # of async functions; with a limit as without

            def add(p: Any, fault: Fault, call: Any = call, made: Any = made, how: Any = options) -> Pipeline:
                return call(p, made, fault, name="fails", **how)

            about: Any = {"is_ordered": is_ordered, "in_branch": is_ordered, "legal": LEGAL.get(what, ())}
            PLACES[f"{what}, {way}"] = Place(add, "fails", **about)


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


class Heavy:
    """Says wrongly, or not at all, how large it is."""

    def __init__(self, fault: Fault, x: Any) -> None:
        self._fault, self.x = fault, x

    @property
    def nbytes(self) -> int:
        self._fault(self.x)
        return 1


class Digits(numbers.Number):
    """Its `__array__` fails."""

    def __init__(self, fault: Fault, x: Any) -> None:
        self._fault, self._x = fault, x

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, *arguments: Any, **named: Any) -> Any:
        return np.array(self._fault(self._x))


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


class LaterParts(Parts):
    """Its values fail when they are asked for once more."""

    def __init__(self, fault: Fault, x: Any) -> None:
        super().__init__(fault, x)
        self._asked = 0

    def __getitem__(self, key: str) -> Any:
        self._asked += 1
        return self._fault(self.x) if self._asked == 2 else self.x


PLACES |= {
    "branch_key": Place(lambda p, f: p.branch(lambda x: f(x) * 0, {0: nothing}), "branch", in_branch=False),
    "branch_hash": Place(lambda p, f: p.branch(lambda x: Key(f, None, x), {0: nothing}), "branch", in_branch=False),
    "branch_comparison": Place(
        lambda p, f: p.branch(lambda x: Key(None, f, x), {0: nothing}), "branch", in_branch=False
    ),
    "prefetch_size": Place(lambda p, f: p.prefetch(3, size_bytes=1_000, size=f), "prefetch"),
    "prefetch_nbytes": Place(
        lambda p, f: p.map(lambda x: Heavy(f, x)).prefetch(3, size_bytes=1_000).map(lambda heavy: heavy.x), "prefetch"
    ),
    "cache_size": Place(lambda p, f: p.cache(size_bytes=1_000, size=f), "cache", in_branch=False),
    "collate": Place(lambda p, f: p.batch(1, collate=lambda items: f(items[0]), executor="loop"), "batch/collate"),
    "stack": Place(
        lambda p, f: p.map(lambda x: Digits(f, x)).batch(1, executor="loop").map(lambda batch: int(batch[0])),
        "batch/collate",
    ),
    "unbatch": Place(lambda p, f: p.map(lambda x: Opens(f, x)).unbatch(), "unbatch"),
} | {
    name: Place(
        lambda p, f, kind=kind: p.map(lambda x: kind(f, x)).to("sim:0").map(lambda parts: parts["x"]),
        "to sim:0",
        in_branch=False,
    )
    for name, kind in {"to_device": Parts, "to_device_later": LaterParts}.items()
}


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


def _iterable(fault: Fault, method: str, items: Callable[..., Any]) -> Any:
    """Data that fail as their iteration begins."""
    return type("Data", (), {method: lambda self: (fault(), items(nothing, range(COUNT)))[1]})()


#: Data of sources, and where it happens: before anything runs, before the first item, or at an item.
DATA: dict[str, tuple[Callable[[Fault], Any], dict[str, Any]]] = {
    "generator": (lambda f: lambda epoch: items_now(f, NUMBERS), {}),
    "function": (lambda f: lambda epoch: (f(), NUMBERS)[1], {"number": None}),
    "row": (lambda f: Rows(f, nothing, nothing), {}),
    "length": (lambda f: Rows(nothing, f, nothing), {"number": 0}),
    "epoch": (lambda f: Rows(nothing, nothing, f), {"number": 0}),
    "iter": (lambda f: _iterable(f, "__iter__", items_now), {"number": 0}),
    "next": (lambda f: lambda epoch: Gives(f, NUMBERS), {"legal": (StopIteration,)}),
    "body_async": (lambda f: lambda epoch: items_later(f, NUMBERS), {}),
    "aiter_async": (lambda f: _iterable(f, "__aiter__", items_later), {"number": 0}),
    "anext_async": (lambda f: lambda epoch: GivesLater(f, NUMBERS), {"legal": (StopAsyncIteration,)}),
    "state_at_the_start": (lambda f: lambda epoch: Knowing(start=f), {"number": None}),
    "state_behind_an_item": (lambda f: lambda epoch: Knowing(behind=f), {}),
    "state_loaded": (lambda f: lambda epoch: Knowing(load=f), {"number": 0}),
}
for _name, (_make, _about) in DATA.items():  # on the loop and in a thread those that are not async
    for _executor in ("auto",) if _name.endswith("async") else ("loop", "thread"):
        PLACES[f"{_name}, {_executor}"] = Place(
            lambda _, fault, make=_make, executor=_executor: source(make(fault), executor=executor),
            "source",
            is_source=True,
            is_item="number" not in _about,
            **_about,
        )


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
        """Items before the place's item at a number."""
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
    """Result or error of a coroutine, and what has left the loop meanwhile."""
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
