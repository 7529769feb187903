"""Stages that give any number of items for each: flat_map, and the source, which is one for a single item."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from actorflow.core import clock_ns
from actorflow.errors import PipelineError, shown
from actorflow.pipeline.calls.boundary import ends_task
from actorflow.pipeline.calls.call import Call, CallActor, Job
from actorflow.pipeline.calls.order import Slot, SlotState
from actorflow.pipeline.stages.actor import SLICE_NS, StageActor


def iterated(given: Any) -> Iterator[Any]:
    """An iterator of what a function of the user's has given.

    Raises:
        PipelineError: if it is not an iterable.
    """
    if isinstance(given, Iterable) or hasattr(given, "__getitem__"):
        return iter(given)
    raise PipelineError(f"expected an iterable from the function, got {shown(given)}")


def _is_async(iterator: Any) -> bool:
    return hasattr(type(iterator), "__anext__")


class _More(NamedTuple):
    """Some outputs of an item, whether these are all, and what was raised behind them."""

    outputs: list[Any]
    is_all: bool
    error: BaseException | None = None


class ExpandActor(CallActor):
    """Takes a few items at a time from what the function returns, as there is room for them."""

    def open(self, slot: Slot) -> Any:
        """An iterator of the outputs of an item."""
        return iterated(self.how.fn(slot.value))

    def call(self, slot: Slot) -> _More:
        """Take some items, in whatever thread."""
        if slot.iterator is None:
            slot.iterator = self.open(slot)
        iterator, outputs = slot.iterator, []
        deadline = clock_ns() + SLICE_NS
        for _ in range(self.out.capacity + slot.skip):
            try:
                outputs.append(next(iterator))
            except StopIteration:
                slot.iterator = None
                return _More(outputs, True)
            except BaseException as error:  # noqa: BLE001  what came before it goes out first
                slot.iterator = None
                return _More(outputs, True, error)
            if clock_ns() > deadline:
                break
        return _More(outputs, False)

    async def call_async(self, slot: Slot) -> _More:
        """Take items until as many wait as there is room for; each goes out as soon as it is there."""
        if slot.iterator is None:
            opened = self.open_async(slot)
            given = await opened if inspect.isawaitable(opened) else opened
            slot.iterator = aiter(given) if isinstance(given, AsyncIterable) else iterated(given)
        if not _is_async(slot.iterator):
            return self.call(slot)
        while len(slot.outputs) < self.out.capacity:
            try:
                value = await anext(slot.iterator)
            except StopAsyncIteration:
                slot.iterator = None
                return _More([], True)
            if self._keep(slot, value):
                self.order.gained(slot)
                self.wake()
        return _More([], False)

    def open_async(self, slot: Slot) -> Any:
        """An iterable of the outputs of an item, or an awaitable of one."""
        return self.how.fn(slot.value)

    def take(self, slot: Slot, result: Any) -> None:
        if isinstance(result, _More):
            outputs, is_all = result.outputs, result.is_all
        else:
            outputs, is_all = result, True  # of another process
        for value in outputs:
            self._keep(slot, value)
        if isinstance(result, _More) and result.error is not None:
            self._failed(slot, result.error)
            return
        slot.state = SlotState.DONE if is_all else SlotState.PAUSED
        self.order.gained(slot)

    def _units(self, job: Job) -> int:
        return max(1, len(job.results.outputs)) if isinstance(job.results, _More) else 1

    def _keep(self, slot: Slot, value: Any) -> bool:
        if slot.skip:
            slot.skip -= 1
            return False
        slot.outputs.append(value)
        return True

    def dispose(self, job: Job) -> None:
        for slot in job.slots:
            self.close(slot.iterator)

    def close(self, iterator: Any) -> None:
        try:
            if not _is_async(iterator):
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
            elif not self.run.loop.is_closed():
                aclose = getattr(iterator, "aclose", None)
                if aclose is not None:
                    self.run.start_task(self._aclose(aclose), self.stats.name)
        except BaseException as error:  # noqa: BLE001  nothing is left to be told
            self.report(error)

    async def _aclose(self, aclose: Callable[[], Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await aclose()
        except BaseException as error:
            if ends_task(error, task):
                raise
            self.report(error)  # as above


class Expand(Call):
    """`Pipeline.flat_map`."""

    kind = "flat_map"

    def for_processes(self) -> Callable[[Any], Any]:
        return partial(_listed, self.options.fn)

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        return ExpandActor(*args, **kwargs)


def _listed(fn: Callable[[Any], Any], item: Any) -> list[Any]:
    """The items of what a function returns, in a list: an iterator cannot be sent."""
    return list(iterated(fn(item)))
