"""Streams that come again: repeat, and cache, which keeps the items of the first time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from actorflow.errors import PipelineError
from actorflow.pipeline.stages.actor import StageActor, Wait
from actorflow.pipeline.stages.passing import PassActor, bytes_of, size_of
from actorflow.pipeline.stages.stage import Build, Stage


class _RepeatActor(PassActor):
    """Builds the stages in front again when they have ended."""

    def __init__(self, stage: Repeat, build: Build, state: Any) -> None:
        done, front = (0, None) if state is None else state
        super().__init__(stage, stage.front_build(build, done), front)
        self._build = build
        self._done = done
        self._source = self.upstream
        self._is_empty = state is None
        self.start = (self._source, self.start, done)

    def step(self, now: int) -> Wait:
        if self._stage.times == 0:
            self.finish()
            return Wait.NOTHING
        return super().step(now)

    def pass_on(self, value: Any, at: Any) -> None:
        self._is_empty = False
        self.out.items.append((value, (self._source, at, self._done)))

    def _end(self, error: BaseException | None) -> None:
        times = self._stage.times
        if error is not None or self._done + 1 == times:
            self.finish(error)
        elif times is None and self._is_empty:
            self.finish(self.caught(PipelineError("an empty stream would be repeated for ever")))
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        run, inbox = self.run, self.inboxes[0]
        known = len(run.actors)
        self._done += 1
        self._is_empty = True
        inbox.end = None
        self._source = self._stage.front_build(self._build, self._done).front(self._stage, None)
        inbox.connect(self._source)
        for actor in run.actors[known:]:
            actor.wake()
        run.forget_ended()

    def freeze(self, position: Any) -> Any:
        source, at, done = position
        return [done, source.freeze(at)]


class Repeat(Stage):
    """`Pipeline.repeat`."""

    kind = "repeat"
    actor_type = _RepeatActor

    times: int | None

    def front_build(self, build: Build, done: int) -> Build:
        """Settings for building the stages in front once more."""
        return replace(build, epoch=build.epoch * (self.times or 1) + done)


@dataclass(eq=False)
class _Store:
    """Items kept by a cache, from run to run of one loader."""

    epoch: int  # that they were computed for
    items: list[Any] = field(default_factory=list)
    front: Any = None  # position of the stages in front, from which they come again in this order


class Cache(Stage):
    """`Pipeline.cache`."""

    kind = "cache"

    size_bytes: int | None
    size: Callable[[Any], int] | None

    def build(self, build: Build, state: Any) -> StageActor:
        front, count, epoch = (None, 0, build.epoch) if state is None else state
        store = build.resources.caches.get(self)
        if store is not None and (state is None or store.epoch == epoch):
            return _KeptActor(self, build, store, count)
        return _CacheActor(self, replace(build, epoch=epoch), front, _Store(epoch), count)


class _CacheActor(PassActor):
    """The first time: keeps what passes. A run that begins in the middle computes, and keeps, what went out before."""

    def __init__(self, stage: Cache, build: Build, front: Any, store: _Store, count: int) -> None:
        super().__init__(stage, build, front)
        self._store = store
        self._size = stage.size or size_of
        self._bytes = 0
        self._given = self.start = count
        self._caches = build.resources.caches

    def pass_on(self, value: Any, at: Any) -> None:
        stage, items = self._stage, self._store.items
        if stage.size_bytes is not None:
            try:
                self._bytes += bytes_of(self._size, value)
                if self._bytes > stage.size_bytes:
                    raise PipelineError(f"the items take more than size_bytes={stage.size_bytes}")
            except BaseException as error:  # noqa: BLE001  it becomes the item's
                self.finish(self.caught(error, len(items), value))
                return
            self.stats.holds_bytes(self._bytes)
        items.append(value)
        if len(items) > self._given:
            self._given += 1
            self.out.items.append((value, self._given))

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._store.front = self.upstream.freeze(self.upstream.start)
            self._caches[self._stage] = self._store
        self.finish(error)

    def halt(self) -> None:
        self._store = _Store(self._store.epoch)  # what is not whole is of no use

    def freeze(self, position: Any) -> Any:
        return [self.upstream.freeze(self.upstream.start), position, self._store.epoch]


class _KeptActor(StageActor):
    """From then on: gives what was kept."""

    def __init__(self, stage: Cache, build: Build, store: _Store, count: int) -> None:
        super().__init__(build.run, build.stats(stage), 0)
        self._store = store
        self._given = self.start = count

    def step(self, now: int) -> Wait:
        out, items, before = self.out, self._store.items, self._given
        while len(out.items) < out.capacity and self._given < len(items):
            value = items[self._given]
            self._given += 1
            out.items.append((value, self._given))
        if self._given > before:
            self.stats.items_out += self._given - before
            out.owner.wake()
        if self._given == len(items):
            self.finish()
            return Wait.NOTHING
        return Wait.PUT

    def freeze(self, position: Any) -> Any:
        return [self._store.front, position, self._store.epoch]
