"""Sources of items: sequences, iterables, async iterables, functions that give one of these for an epoch."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np

from actorflow.core import clock_ns
from actorflow.errors import PipelineError, StageError, shown
from actorflow.pipeline.calls.map import ExpandActor
from actorflow.pipeline.calls.options import Executor, Options
from actorflow.pipeline.calls.order import InOrder, Slot, SlotState
from actorflow.pipeline.stages.sampler import Sampler
from actorflow.pipeline.stages.stage import SLICE_NS, Build, Stage, StageActor, Wait, caught, stage_error

T_co = TypeVar("T_co", covariant=True)

_IN_MEMORY = (list, tuple, range, np.ndarray, str, bytes)  # types whose items take no time to get


class Indexed(Protocol[T_co]):
    """A sequence as far as sources need it."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> T_co: ...


@runtime_checkable
class Resumable(Protocol):
    """An iterable that knows its place: iterated, it goes on where it is, to the end of the epoch.

    Example:
        >>> class Lines:
        ...     def __init__(self, lines):
        ...         self.lines, self.taken = lines, 0
        ...
        ...     def __iter__(self):
        ...         while self.taken < len(self.lines):
        ...             self.taken += 1
        ...             yield self.lines[self.taken - 1]
        ...         self.taken = 0
        ...
        ...     def state_dict(self):
        ...         return {"taken": self.taken}
        ...
        ...     def load_state_dict(self, state):
        ...         self.taken = state["taken"]
        >>> isinstance(Lines([]), af.data.Resumable)
        True
        >>> loader = af.pipeline.source(Lines(["a", "b", "c"]))
        >>> next(loader.iter_sync()), list(loader.iter_sync())
        ('a', ['b', 'c'])
    """

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last item that was taken, as values JSON can hold."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place that `state_dict` gave, of this object or of one that was made in the same way."""


class Source(Stage):
    """`source`."""

    kind = "source"

    data: Any  # the sequence, iterable or function that gives the items
    sampler: Sampler | None = None  # in which order they are taken out of a sequence
    seed: int = 0
    place: Executor = "auto"  # executor of the iteration: "auto", "loop" or "thread"
    order: str = ""  # text of other settings that the items depend on; a saved position must agree with it

    @property
    def executor(self) -> str:
        return "thread" if self.place == "auto" else self.place

    @property
    def seeds(self) -> tuple[int, ...]:
        return (self.seed if self.sampler is None else self.sampler.seed or 0,)

    @property
    def shape(self) -> str:
        if self.sampler is None:
            return f"{self.kind}({self.order})" if self.order else self.kind
        return f"{self.kind}(seed={self.sampler.seed}, count={self.sampler.count})"

    def build(self, build: Build, state: Any) -> StageActor:
        try:
            opening = _Opening(self, build.epoch, state)
        except BaseException as error:
            raise caught(self, error) from error
        if opening.is_iterator and opening.data is self.data:
            build.resources.use_up(self)
        is_in_memory = opening.is_in_memory and self.place == "auto" and not opening.is_async
        options = Options(
            fn=_asynchronous if opening.is_async else iter,  # `_SourceActor.open` is called
            executor="auto" if opening.is_async else "loop" if is_in_memory else self.place,
            buffer=0,
            expands=True,
        )
        return _SourceActor(opening, build, self, options, state=opening.start)


async def _asynchronous() -> None:
    """Stands for an async iterable."""


class _Opening:
    """An iteration of the items of one epoch, from any of them on.

    It asks the data all that must be known of it, so that there is one place where the user's answers can be wrong.

    Attributes:
        start: The position before the first item: how many are behind it, with the source's own state if it knows
            its place.
        seeks: True if it can begin at any item, without giving those before it.
    """

    def __init__(self, source: Source, epoch: int, state: Any) -> None:
        data = source.data
        if callable(data) and not isinstance(data, Iterable | AsyncIterable):
            data = data(epoch)
        self.data = data  # the iterable
        self.sampler = source.sampler
        self.epoch = epoch
        self.states: deque[Any] = deque()  # its states behind each item that waits to go out
        self.is_async = isinstance(data, AsyncIterable)
        if not (self.is_async or isinstance(data, Iterable) or is_indexable(data)):
            raise PipelineError(f"expected an iterable, got {shown(data)} for epoch {epoch}")
        self.is_iterator = isinstance(data, Iterator | AsyncIterator)
        self.is_in_memory = isinstance(data, _IN_MEMORY)
        self.is_resumable = isinstance(data, Resumable) and not self.is_async
        self.seeks = self.is_resumable or (is_indexable(data) and not isinstance(data, Mapping))
        if state is None:
            state = (0, copy.deepcopy(data.state_dict())) if self.is_resumable else 0
        self.start = state  # the position that was saved; None for the beginning

    def open(self, first: int, state: Any) -> Iterator[Any]:
        """The items from a place on."""
        data = self.data
        if self.is_resumable:
            data.load_state_dict(copy.deepcopy(state))
            return self._with_states(data)
        set_epoch = getattr(data, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if not self.seeks:
            return iter(data)
        if self.sampler is not None:
            return _items(data, self.sampler.rows(self.epoch)[first:].tolist())
        if isinstance(data, list | tuple | range):
            return iter(data[first:] if first else data)
        return _items(data, range(first, len(data)))

    def _with_states(self, data: Any) -> Iterator[Any]:
        for item in data:
            self.states.append(copy.deepcopy(data.state_dict()))
            yield item


def _items(data: Any, rows: Iterable[int]) -> Iterator[Any]:
    """Items by number. Not by `map`, which would take a StopIteration that ``data`` raises for the end."""
    for row in rows:
        yield data[row]


class _SourceOrder(InOrder):
    """Positions are the number of items given, with the source's own state if it knows its place."""

    def __init__(self, actor: _SourceActor, state: Any) -> None:
        self.slots = deque()
        self.accepted = 1
        self.seen = self.skipped = 0
        self._actor = actor
        self._is_simple = False
        opening = actor.opening
        self._states = opening.states if opening.is_resumable else None
        self.start: Any = state
        first = self.start if self._states is None else self.start[0]
        slot = Slot(0, None, None, None)
        slot.emitted = first
        slot.skip = 0 if opening.seeks else first
        self.slots.append(slot)

    def _position(self, slot: Slot) -> Any:
        return slot.emitted if self._states is None else (slot.emitted, self._states.popleft())

    def freeze(self, position: Any) -> Any:
        return position if self._states is None else list(position)


class _SourceActor(ExpandActor):
    """One item, the data, which is expanded."""

    def __init__(self, opening: _Opening, *args: Any, **kwargs: Any) -> None:
        self.opening = opening
        super().__init__(*args, **kwargs)
        self.waiting.extend(self.order.slots)

    def make_order(self, state: Any) -> InOrder:
        return _SourceOrder(self, state)

    def open(self, slot: Slot) -> Iterator[Any]:
        start = self.start
        return self.opening.open(slot.emitted, start[1] if self.opening.is_resumable else None)

    def open_async(self, slot: Slot) -> Any:
        return aiter(self.opening.data)

    def _stage_error(self, slot: Slot, error: BaseException) -> StageError:
        return stage_error(self.stats, error, slot.emitted - slot.skip)

    def step(self, now: int) -> Wait:
        order, deadline = self.order, now + SLICE_NS
        while True:
            blocked = order.emit()
            if self.is_over:
                return Wait.NOTHING
            if self.waiting and self._gives():
                self._give(self.waiting.popleft())
                if order.slots[0].state is SlotState.PAUSED:
                    return Wait.PUT
            self._begin_waiting()
            if not order.is_due():
                break
            if clock_ns() > deadline:
                self.wake()
                return Wait.NOTHING
        if not order.slots:
            return self.finish()
        return Wait.PUT if blocked or not self.running else Wait.CALLS

    def refill(self) -> None:
        self._begin_waiting()

    def _gives(self) -> bool:
        slot = self.waiting[0]
        return (
            slot.iterator is not None
            and not (slot.skip or self.opening.is_resumable or self.opening.is_async)
            and self._is_inline()
        )

    def _give(self, slot: Slot) -> None:
        """Give item after item, on the loop, as sources in memory do."""
        out = self.out
        outputs, room, iterator = out.items, out.capacity, slot.iterator
        before = emitted = slot.emitted
        start = clock_ns()
        error: BaseException | None = None
        slot.state = SlotState.PAUSED
        try:
            while len(outputs) < room:
                value = next(iterator)
                emitted += 1
                outputs.append((value, emitted))
        except StopIteration:
            slot.iterator = None
            slot.state = SlotState.DONE
        except BaseException as failure:  # noqa: BLE001  items before it go out first
            error = failure
        slot.emitted = emitted
        if emitted > before:
            self.stats.items_out += emitted - before
            elapsed_ns = clock_ns() - start
            self._timed(elapsed_ns, emitted - before)
            out.fit(elapsed_ns // (emitted - before))
            out.owner.wake()
        if error is not None:
            slot.iterator = None
            self._failed(slot, error)
            del error  # whose traceback refers to this call


def is_indexable(data: Any) -> TypeGuard[Indexed[Any]]:
    """Return whether items can be taken by number."""
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Mapping | set | frozenset)


def check_data(data: Any) -> None:
    """Check that something can be a source; raises PipelineError if it cannot."""
    if not (isinstance(data, Iterable | AsyncIterable) or callable(data) or is_indexable(data)):
        raise PipelineError(
            "a source must be a sequence, an iterable, an async iterable, or a function that gives one for an epoch, "
            f"got {type(data).__name__}"
        )
