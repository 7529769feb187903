"""Stages that give any number of items for each: flat_map, and the source, which is one for a single item."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from actorflow.pipeline.call import CallActor
from actorflow.pipeline.calls import Call
from actorflow.pipeline.job import Job, Slot, SlotState
from actorflow.pipeline.stage import SLICE_NS, StageActor

__all__ = ["Expand", "ExpandActor"]


class _More:
    """Some outputs of an item, whether these are all, and what was raised behind them."""

    __slots__ = ("error", "is_all", "outputs")

    def __init__(self, outputs: list[Any], is_all: bool, error: BaseException | None = None) -> None:
        self.outputs = outputs
        self.is_all = is_all
        self.error = error


class ExpandActor(CallActor):
    """Takes a few items at a time from what the function returns, as there is room for them."""

    def open(self, slot: Slot) -> Any:
        """What gives the outputs of an item; an iterator, or an async one."""
        return iter(self.how.fn(slot.value))

    def call(self, slot: Slot) -> _More:
        """Take some items, in whatever thread."""
        if slot.iterator is None:
            slot.iterator = self.open(slot)
        iterator, outputs = slot.iterator, []
        deadline = perf_counter_ns() + SLICE_NS
        for _ in range(self.out.capacity + slot.skip):
            try:
                outputs.append(next(iterator))
            except StopIteration:
                slot.iterator = None
                return _More(outputs, True)
            except BaseException as error:  # noqa: BLE001  what came before it goes out first
                slot.iterator = None
                return _More(outputs, True, error)
            if perf_counter_ns() > deadline:
                break
        return _More(outputs, False)

    async def call_async(self, slot: Slot) -> _More:
        """Take items until as many wait as there is room for; each goes out as soon as it is there."""
        if slot.iterator is None:
            opened = self.open_async(slot)
            slot.iterator = await opened if inspect.isawaitable(opened) else opened
            if not isinstance(slot.iterator, AsyncIterator):
                slot.iterator = iter(slot.iterator)
        if not isinstance(slot.iterator, AsyncIterator):
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
        """What gives the outputs of an item, or an awaitable of it."""
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
        if isinstance(iterator, AsyncIterator):
            aclose = getattr(iterator, "aclose", None)
            if aclose is not None and not self.run.loop.is_closed():
                self.run.start_task(_aclose(aclose), self.stats.name)
        elif iterator is not None:
            close = getattr(iterator, "close", None)
            if close is not None:
                with suppress(Exception):  # nobody is left to be told
                    close()


async def _aclose(aclose: Any) -> None:
    with suppress(Exception):  # as above
        await aclose()


@dataclass(frozen=True, eq=False, kw_only=True)
class Expand(Call):
    """`Pipeline.flat_map`."""

    kind = "flat_map"

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        return ExpandActor(*args, **kwargs)
