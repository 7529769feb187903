"""Stages that pass items on as they come, on the loop: take, skip, enumerate, shard, batch, newest, prefetch.

Repeat and cache do so with streams that come again; a cache keeps the items of the first time.
"""

from __future__ import annotations

import operator
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from actorflow.errors import PipelineError, StageError, shown
from actorflow.pipeline.stages.stage import MARK, Build, FollowingActor, Stage, StageActor, Wait


class PassActor(FollowingActor):
    """Gives at most one item for each that it takes, and perhaps some at the end."""

    @abstractmethod
    def pass_on(self, value: Any, at: Any) -> None:
        """An item has come: append to ``self.out.items`` the items that go out, if any."""

    def mark(self, at: Any) -> Any:
        """The position to give a mark that came with position ``at``."""
        return at

    def flush(self) -> bool:
        """No more items will come: give one that is left; False if there is none."""
        return False

    def step(self, now: int) -> Wait:
        inbox, out, stats = self.inboxes[0], self.out, self.stats
        items, outputs, room = inbox.items, out.items, out.capacity
        before, taken, marks = len(outputs), 0, 0
        while items and len(outputs) < room and not self.is_over:
            value, at = items.popleft()
            if value is MARK:
                outputs.append((MARK, self.mark(at)))
                marks += 1
            else:
                taken += 1
                self.pass_on(value, at)
        if not self.is_over and not items and inbox.end is not None:
            self._end(inbox.end.error)
        given = len(outputs) - before
        stats.items_in += taken
        stats.items_out += given - marks
        if given:
            out.owner.wake()
        if self.is_over:
            return Wait.NOTHING
        if taken or marks:
            inbox.source.wake()
            stats.holds(self.held)
        return Wait.PUT if len(outputs) >= room else Wait.GET

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            while len(self.out.items) < self.out.capacity:
                if not self.flush():
                    break
            else:
                return
        self.finish(error)


class _CountActor(PassActor):
    """Positions have a count of items besides the one in front."""

    def __init__(self, stage: Stage, build: Build, state: Any) -> None:
        super().__init__(stage, build, None if state is None else state[0])
        self.count = 0 if state is None else state[1]
        self.start = (self.start, self.count)

    def mark(self, at: Any) -> Any:
        return at, self.count

    def freeze(self, position: Any) -> Any:
        return [self.upstream.freeze(position[0]), position[1]]


class _TakeActor(_CountActor):
    def step(self, now: int) -> Wait:
        if self.count >= self._stage.count:
            return self.finish()
        return super().step(now)

    def pass_on(self, value: Any, at: Any) -> None:
        self.count += 1
        self.out.items.append((value, (at, self.count)))
        if self.count >= self._stage.count:
            self.finish()


class Take(Stage):
    """`Pipeline.take`."""

    kind = "take"
    actor_type = _TakeActor

    count: int


class _SkipActor(_CountActor):
    def pass_on(self, value: Any, at: Any) -> None:
        if self.count < self._stage.count:
            self.count += 1
        else:
            self.out.items.append((value, (at, self.count)))


class SkipFirst(Stage):
    """`Pipeline.skip`."""

    kind = "skip"
    keeps_marks = True
    actor_type = _SkipActor

    count: int


class _EnumerateActor(_CountActor):
    def pass_on(self, value: Any, at: Any) -> None:
        number = self._stage.first + self.count
        self.count += 1
        self.out.items.append(((number, value), (at, self.count)))


class Enumerate(Stage):
    """`Pipeline.enumerate`."""

    kind = "enumerate"
    keeps_marks = True
    actor_type = _EnumerateActor

    first: int


class _ShardActor(_CountActor):
    """With ``even``, an item goes out when the last one of its round has come; its position is that of the round."""

    _mine: Any = None

    def pass_on(self, value: Any, at: Any) -> None:
        stage, turn = self._stage, self.count % self._stage.world
        self.count += 1
        if turn == stage.rank:
            self._mine = value
        if turn == (stage.world - 1 if stage.even else stage.rank):
            value, self._mine = self._mine, None
            self.out.items.append((value, (at, self.count)))


class Shard(Stage):
    """`Pipeline.shard`."""

    kind = "shard"
    actor_type = _ShardActor

    rank: int
    world: int
    even: bool

    @property
    def shape(self) -> str:
        return f"{self.kind}({self.rank} of {self.world})"


class _GroupActor(PassActor):
    def __init__(self, stage: Group, build: Build, state: Any) -> None:
        super().__init__(stage, build, state)
        self._group: list[Any] = []
        self._clean = self._last = self.start  # behind the last batch, behind the last item

    def pass_on(self, value: Any, at: Any) -> None:
        group = self._group
        group.append(value)
        self._last = at
        if len(group) == self._stage.size:
            self.out.items.append((group, at))
            self._group = []
            self._clean = at

    def mark(self, at: Any) -> Any:
        if not self._group:
            self._clean = at
        return self._clean

    def flush(self) -> bool:
        group, self._group = self._group, []
        if group and not self._stage.drop_last:
            self.out.items.append((group, self._last))
            return True
        return False

    def halt(self) -> None:
        self._group = []

    @property
    def held(self) -> int:
        return super().held + len(self._group)


class Group(Stage):
    """The first half of `Pipeline.batch`: lists of items."""

    kind = "batch"
    keeps_marks = True
    actor_type = _GroupActor

    size: int
    drop_last: bool


class _NewestActor(FollowingActor):
    """Puts each item in the place of the one that waits behind it; the stage in front always has room."""

    def step(self, now: int) -> Wait:
        inbox, waiting, stats = self.inboxes[0], self.out.items, self.stats
        taken = len(inbox.items)
        if taken:
            old = len(waiting)
            stats.items_in += taken
            stats.items_out += 1 - old
            stats.skipped += taken - 1 + old
            stats.holds(taken)
            waiting.clear()
            waiting.append(inbox.items[-1])
            inbox.items.clear()
            inbox.source.wake()
            self.out.owner.wake()
        return Wait.GET if inbox.end is None else self.finish(inbox.end.error)


class Newest(Stage):
    """`Pipeline.newest`."""

    kind = "newest"
    actor_type = _NewestActor


class _PrefetchActor(FollowingActor):
    """Takes an item out of its inbox when there is room for its bytes, so the one behind is not even asked for."""

    _stage: Prefetch

    def __init__(self, stage: Prefetch, build: Build, state: Any) -> None:
        super().__init__(stage, build, state, capacity=1)
        inbox = self.inboxes[0]
        inbox.least, inbox.capacity = None, 1  # one item, however cheap, is all that may wait in front of the bound
        self._size = stage.size or size_of
        self._buffer: deque[tuple[Any, Any, int]] = deque()
        self._bytes = 0
        self._next: tuple[Any, int] | None = None  # the item in the inbox, which may yet be replaced, and its bytes
        self._number = 0  # of that item
        self._failure: StageError | None = None  # their number is not known; held items go out first

    def step(self, now: int) -> Wait:
        while any([self._give(), self._take()]):
            pass
        inbox, out = self.inboxes[0], self.out
        if not self._buffer and self._failure is not None:
            return self.finish(self._failure)
        if not self._buffer and not inbox.items and inbox.end is not None:
            return self.finish(inbox.end.error)
        return Wait.PUT if len(out.items) >= out.capacity and self._buffer else Wait.GET

    def _give(self) -> bool:
        out, buffer = self.out, self._buffer
        given = 0
        while buffer and len(out.items) < out.capacity:
            value, at, size_bytes = buffer.popleft()
            self._bytes -= size_bytes
            given += value is not MARK
            out.items.append((value, at))
            out.owner.wake()
        self.stats.items_out += given
        if given and self._stage.size_bytes is not None:
            self.stats.holds_bytes(self._bytes)
        return bool(given)

    def _take(self) -> bool:
        inbox, stage, items = self.inboxes[0], self._stage, self.inboxes[0].items
        if not items or len(self._buffer) >= stage.count or self._failure is not None:
            return False
        value, at = items[0]
        size_bytes = 0
        if stage.size_bytes is not None and value is not MARK:
            if self._next is None or self._next[0] is not value:
                try:
                    self._next = value, bytes_of(self._size, value)
                except BaseException as error:  # noqa: BLE001  it becomes the item's
                    self._failure = self.caught(error, self._number, value)
                    return False
            size_bytes = self._next[1]
            # One that is larger than all the room there is has to pass, too: alone.
            if self._buffer and self._bytes + size_bytes > stage.size_bytes:
                return False
        self._next = None
        items.popleft()
        self._number += value is not MARK
        self.stats.items_in += value is not MARK
        self._buffer.append((value, at, size_bytes))
        self._bytes += size_bytes
        if stage.size_bytes is not None:
            self.stats.holds_bytes(self._bytes)
        self.stats.holds(self.held)
        inbox.source.wake()
        return True

    def halt(self) -> None:
        self._buffer.clear()

    @property
    def queued(self) -> int:
        return super().queued + len(self._buffer)

    @property
    def room(self) -> int:
        return super().room + self._stage.count


class Prefetch(Stage):
    """`Pipeline.prefetch`."""

    kind = "prefetch"
    keeps_marks = True
    actor_type = _PrefetchActor

    count: int
    size_bytes: int | None
    size: Callable[[Any], int] | None


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
            return self.finish()
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
    """The first time: keeps the items. A run from the middle on computes, and keeps, those before."""

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
        self._store = _Store(self._store.epoch)  # a part is of no use

    def freeze(self, position: Any) -> Any:
        return [self.upstream.freeze(self.upstream.start), position, self._store.epoch]


class _KeptActor(StageActor):
    """From then on: gives the kept items."""

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
        return self.finish() if self._given == len(items) else Wait.PUT

    def freeze(self, position: Any) -> Any:
        return [self._store.front, position, self._store.epoch]


def bytes_of(size: Callable[[Any], int], item: Any) -> int:
    """Bytes of an item, as the user's function says; raises PipelineError if it says anything else."""
    given = size(item)
    try:
        size_bytes = operator.index(given)
    except TypeError:
        size_bytes = -1
    if size_bytes < 0:
        raise PipelineError(
            f"expected size= to give the bytes of an item, a whole number from 0 on, got {shown(given)}"
        )
    return size_bytes


def size_of(item: Any) -> int:
    """Bytes of an item: those of arrays, texts and byte strings, also within tuples, lists, sets and mappings.

    Any other object counts by itself, without those it refers to.
    """
    size_bytes = getattr(item, "nbytes", None)
    if isinstance(size_bytes, int):
        return size_bytes
    if isinstance(item, Mapping):
        return sum(size_of(value) for value in item.values())
    if isinstance(item, tuple | list | set | frozenset):
        return sum(size_of(value) for value in item)
    return sys.getsizeof(item)
