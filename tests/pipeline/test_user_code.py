"""Whatever the user's code raises, wherever it is called: the loader ends with an error that names the stage.

Each case is (where user code is called) x (what is raised) x (the stages around it) x (asyncio, uvloop): nothing hangs,
neither the iteration nor the end of the loader; the items before it have come; what ends programs has left the loop,
once; nothing is left; and the next iteration gives the rest.
"""

import asyncio
import gc
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing import forkserver
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.pipeline import Limiter, Pipeline, source, zip_
from tests.pipeline.failing import (
    AT,
    COUNT,
    KINDS,
    ON_THE_WAY,
    Fault,
    Function,
    Leaving,
    OutcomeError,
    Trouble,
    called,
    iterated,
    judged,
    leave_when_asked,
)
from tests.pipeline.user_code import (
    AROUND,
    ENDING,
    NUMBERS,
    PATIENCE_S,
    PLACES,
    WAYS,
    Parts,
    asynchronous,
    check,
    ended,
    fits,
    nothing,
    open_files,
    take,
)
from tests.support.effort import FULL
from tests.support.loops import loop_factories

pytestmark = pytest.mark.usefixtures("calls_count_as_short")


@pytest.fixture(params=loop_factories())
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop of each kind."""
    made = loop_factories()[request.param]()
    yield made
    made.close()


@pytest.mark.parametrize("kind_of_loop", loop_factories())
@pytest.mark.parametrize("place", PLACES)
def test_an_error_that_names_the_stage(place: str, kind_of_loop: str) -> None:
    """All kinds; in the short form each with one of the stages around, in the full one with all of them."""
    loop = loop_factories()[kind_of_loop]()
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


@pytest.mark.parametrize("method", FAR)
def test_an_error_of_what_runs_in_processes(method: str, loop: asyncio.AbstractEventLoop) -> None:
    forkserver.ensure_running()  # it stays
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
    assert len(open_files()) <= files  # those of tests before may be closed meanwhile
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


def test_a_process_that_ends_while_items_wait_for_it(loop: asyncio.AbstractEventLoop) -> None:
    """Its last answer and its end come at once, with items unread; uvloop tells of that once."""
    loader = source(range(COUNT)).map(leave_when_asked, executor="process")

    async def main() -> None:
        async with loader:
            for _ in range(3 if FULL else 1):
                with pytest.raises(af.StageError, match="exit code 3") as raised:
                    async for _ in loader:
                        pass
                assert raised.value.number is not None

    assert ended(loop, main()) == (None, [])


# -- more of the user's -----------------------------------------------------------------------------------------


@pytest.mark.together("way", ["awaits", "returns", "swallows"])
@pytest.mark.together("concurrency", [1, 3])
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


@pytest.mark.parametrize("place", ["map, at once", "map, tasks", "flat_map async body, tasks"])
def test_a_loop_that_cancels_all_its_tasks(place: str, loop: asyncio.AbstractEventLoop) -> None:
    """As `asyncio.run` does at its end, with an iteration that somebody keeps."""
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


@pytest.mark.parametrize("kind_of_loop", loop_factories())
@pytest.mark.together("kind", KINDS)
@pytest.mark.together("end", ["break", "take"])
def test_an_iterator_that_cannot_be_closed(kind: type[BaseException], end: str, kind_of_loop: str) -> None:
    """Nobody is left to be told but the loop's exception handler; the loader ends all the same."""
    for data in (Closes(kind), ClosesLater(kind)):
        loop = loop_factories()[kind_of_loop]()
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


@pytest.mark.together("kind", KINDS)
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


@pytest.mark.together("kind", KINDS)
def test_parts_of_a_feed_that_fail(kind: type[BaseException], loop: asyncio.AbstractEventLoop) -> None:
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


@pytest.mark.together("kind", KINDS)
@pytest.mark.together("options", [{"retries": 2}, {"retries": 2, "backoff": 1e-4}, {"on_error": "skip"}])
@pytest.mark.together("way", ["loop", "thread", "at once", "tasks"])
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


@pytest.mark.together(("make", "message"), MESSAGES, ids=[message[:40] for _, message in MESSAGES])
async def test_what_is_said_of_wrong_answers(make: Callable[[], Pipeline], message: str) -> None:
    async with make() as loader:
        with pytest.raises(af.StageError, match=f"(?s)^stage {message}.*\n  created at {__file__}"):
            await asyncio.wait_for(take(loader, [], False), PATIENCE_S)
