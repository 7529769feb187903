"""Several streams made one: zip, concat, interleave, merge, as items come or by their times."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorflow.errors import PipelineError, shown
from actorflow.pipeline.stages.stage import Build, Inbox, Stage, StageActor, Wait


class _Join(Stage):
    @property
    def shape(self) -> str:
        return f"{self.kind}({len(self.upstream)})"


class JoinActor(StageActor):
    """Gives an item whenever `next_item` has one."""

    def __init__(self, stage: Stage, build: Build, states: Any) -> None:
        fronts = [None] * len(stage.upstream) if states is None else states
        sources = [front.build(build, state) for front, state in zip(stage.upstream, fronts, strict=True)]
        super().__init__(build.run, build.stats(stage), len(sources))
        self.reads(*sources)
        self._stage: Any = stage
        self.at = [source.start for source in sources]  # behind the items taken of each

    @abstractmethod
    def next_item(self) -> tuple[Any, Any] | None:
        """The next item and its position; None if it has not come, or there is none (then `finish` was called)."""

    def step(self, now: int) -> Wait:
        out, outputs, stats = self.out, self.out.items, self.stats
        given = 0
        while len(outputs) < out.capacity:
            item = self.next_item()
            if item is None:
                break
            outputs.append(item)
            given += 1
        stats.items_in += given
        stats.items_out += given
        if given:
            out.owner.wake()
        if self.is_over:
            return Wait.NOTHING
        return Wait.PUT if len(outputs) >= out.capacity else Wait.GET

    def taken(self, index: int) -> Any:
        """Take an item of a stream."""
        inbox = self.inboxes[index]
        value, self.at[index] = inbox.items.popleft()
        inbox.source.wake()
        return value

    def has_ended(self, inbox: Inbox) -> bool:
        """Return whether a stream has ended; an error ends all of them."""
        if inbox.items or inbox.end is None:
            return False
        if inbox.end.error is not None and not self.is_over:
            self.finish(inbox.end.error)
        return True

    def freeze(self, position: Any) -> Any:
        return [inbox.source.freeze(at) for inbox, at in zip(self.inboxes, position, strict=True)]


class _ZipActor(JoinActor):
    def __init__(self, stage: Zip, build: Build, state: Any) -> None:
        super().__init__(stage, build, state)
        self._number = 0  # of the next item
        self.start = tuple(self.at)

    def next_item(self) -> tuple[Any, Any] | None:
        if any(not inbox.items for inbox in self.inboxes):
            self._look_for_end()
            return None
        values = tuple([self.taken(index) for index in range(len(self.inboxes))])
        self._number += 1
        return values, tuple(self.at)

    def _look_for_end(self) -> None:
        ended = [self.has_ended(inbox) for inbox in self.inboxes]
        if self.is_over or not any(ended):
            return
        if not self._stage.strict or all(ended):
            self.finish()
        elif all(done or inbox.items for done, inbox in zip(ended, self.inboxes, strict=True)):
            which = ", ".join([str(index) for index, done in enumerate(ended) if done])
            problem = PipelineError(f"the streams are not of one length: there is no such item in number {which}")
            self.finish(self.caught(problem, self._number))


class Zip(_Join):
    """`zip_`."""

    kind = "zip"
    actor_type = _ZipActor

    strict: bool


class _ConcatActor(JoinActor):
    def __init__(self, stage: Concat, build: Build, state: Any) -> None:
        super().__init__(stage, build, None if state is None else state[1])
        self._index = 0 if state is None else state[0]
        for inbox in self.inboxes[: self._index]:
            inbox.source.stop()
        self.start = self._index, tuple(self.at)

    def next_item(self) -> tuple[Any, Any] | None:
        while self._index < len(self.inboxes):
            inbox = self.inboxes[self._index]
            if inbox.items:
                value = self.taken(self._index)
                return value, (self._index, tuple(self.at))
            if not self.has_ended(inbox) or self.is_over:
                return None
            self._index += 1
        self.finish()
        return None

    def freeze(self, position: Any) -> Any:
        index, at = position
        return [index, super().freeze(at)]


class Concat(_Join):
    """`concat`."""

    kind = "concat"
    actor_type = _ConcatActor


class _InterleaveActor(JoinActor):
    def __init__(self, stage: Interleave, build: Build, state: Any) -> None:
        super().__init__(stage, build, None if state is None else state[2])
        self._index: int = 0 if state is None else state[0]
        self._left: int = stage.block if state is None else state[1]
        self.start = self._index, self._left, tuple(self.at)

    def next_item(self) -> tuple[Any, Any] | None:
        for _ in range(len(self.inboxes)):
            inbox = self.inboxes[self._index]
            if inbox.items:
                value = self.taken(self._index)
                self._left -= 1
                if not self._left:
                    self._turn()
                return value, (self._index, self._left, tuple(self.at))
            if not self.has_ended(inbox) or self.is_over:
                return None
            self._turn()
        self.finish()
        return None

    def _turn(self) -> None:
        self._index = (self._index + 1) % len(self.inboxes)
        self._left = self._stage.block

    def freeze(self, position: Any) -> Any:
        index, left, at = position
        return [index, left, super().freeze(at)]


class Interleave(_Join):
    """`interleave`."""

    kind = "interleave"
    actor_type = _InterleaveActor

    block: int


@dataclass(slots=True, eq=False)
class _Turn:
    """A position in a merged stream: behind the items taken of each stream, with the way to the next position."""

    at: tuple[Any, ...]
    index: int
    next: _Turn | None = None


class _MergeActor(JoinActor):
    """Takes from the streams in turn, as far as they have something; first in the order of a saved position."""

    def __init__(self, stage: Merge, build: Build, state: Any) -> None:
        super().__init__(stage, build, None if state is None else state[0])
        self._known: deque[int] = deque(() if state is None else state[1])
        self._index = 0
        self.start = self._turn = _Turn(tuple(self.at), -1)

    def next_item(self) -> tuple[Any, Any] | None:
        count = len(self.inboxes)
        while self._known:
            index = self._known[0]
            if self.inboxes[index].items:
                self._known.popleft()
                return self._take(index)
            if not self.has_ended(self.inboxes[index]) or self.is_over:
                return None
            self._known.popleft()  # it gives less than it did before
        for index in [(self._index + i) % count for i in range(count)]:
            if self.inboxes[index].items:
                self._index = (index + 1) % count
                return self._take(index)
        ended = [self.has_ended(inbox) for inbox in self.inboxes]  # an error counts before the others' ends
        if all(ended) and not self.is_over:
            self.finish()
        return None

    def _take(self, index: int) -> tuple[Any, Any]:
        value = self.taken(index)
        turn = _Turn(tuple(self.at), index)
        self._turn.next = turn
        self._turn = turn
        return value, turn

    def freeze(self, position: Any) -> Any:
        known = []
        following = position.next
        while following is not None:
            known.append(following.index)
            following = following.next
        return [super().freeze(position.at), known]


class Merge(_Join):
    """`merge`."""

    kind = "merge"
    actor_type = _MergeActor


class _MergeByTimeActor(JoinActor):
    """Gives the earliest item when each stream has one, or has ended."""

    def __init__(self, stage: MergeByTime, build: Build, state: Any) -> None:
        super().__init__(stage, build, state)
        self._number = 0  # of the next item
        # Of each stream, in a tuple, the time of its first item, where it is known, and of the one that was taken last.
        self._times: list[Any] = [None] * len(self.inboxes)
        self._latest = self._times.copy()
        self.start = tuple(self.at)

    def next_item(self) -> tuple[Any, Any] | None:
        first = -1
        for index, inbox in enumerate(self.inboxes):
            if not inbox.items:
                if not self.has_ended(inbox) or self.is_over:
                    return None
                continue
            if self._times[index] is None and not self._look(index, inbox.items[0][0]):
                return None
            if first < 0 or self._times[index] < self._times[first]:
                first = index
        if first < 0:
            self.finish()
            return None
        self._latest[first], self._times[first] = self._times[first], None
        self._number += 1
        return self.taken(first), tuple(self.at)

    def _look(self, index: int, item: Any) -> bool:
        """Ask for the time of the first item of a stream; an error, or one that goes back, ends all of them."""
        try:
            found, latest = (self._stage.time(item),), self._latest[index]
            if latest is not None and found < latest:
                raise PipelineError(
                    f"stream {index} goes back in time, from {shown(latest[0])} to {shown(found[0])}: to merge by "
                    "time, each must be in order"
                )
        except BaseException as error:  # noqa: BLE001  it becomes the item's
            self.finish(self.caught(error, self._number, item))
            return False
        self._times[index] = found
        return True


class MergeByTime(_Join):
    """`merge` with ``time``."""

    kind = "merge"
    actor_type = _MergeByTimeActor

    time: Callable[[Any], Any]

    @property
    def shape(self) -> str:
        return f"{self.kind}({len(self.upstream)} by time)"
