"""Branches: items take different ways by their keys, and come together again in the order in which they came.

Each item is followed by a mark. A branch may give any number of items for one, now or later, but passes the marks on
in order. So its results in front of a mark belong to the mark's item, and where the branches join it is known whose
turn it is, without a guess at how long a branch will take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from actorflow.errors import PipelineError, shown
from actorflow.pipeline.stages.join import JoinActor
from actorflow.pipeline.stages.stage import MARK, Build, End, FollowingActor, Stage, StageActor, Wait


class Branch(Stage):
    """The stage at which branches part."""

    kind = "branch"

    key: Callable[[Any], Any]  # function that gives the key of an item
    keys: tuple[Any, ...]  # keys of the branches, in order

    @property
    def executor(self) -> str:
        return "loop"

    @property
    def shape(self) -> str:
        return f"{self.kind}({len(self.keys)})"

    def build(self, build: Build, state: Any) -> StageActor:
        raise PipelineError(f"stage {self.name!r}: branches must come together again")


class BranchStart(Stage):
    """The beginning of one branch."""

    kind = "port"
    keeps_marks = True

    def build(self, build: Build, state: Any) -> StageActor:
        port = build.ports[self]
        assert isinstance(port, _StartActor)
        if state is not None:  # items up to this one have been through the branch
            port.start = port.last = port.frozen = _Passed(state, None, None)
        return port


class BranchJoin(Stage):
    """The stage at which branches come together again; ``upstream`` are the branches' last stages."""

    kind = "join"

    split: Branch  # the stage at which they part
    ports: tuple[BranchStart, ...]  # their beginnings

    def within(self, again: Callable[[Stage], Stage]) -> Stage:
        split, ports = again(self.split), [again(port) for port in self.ports]
        assert isinstance(split, Branch)
        return replace(self, split=split, ports=tuple([port for port in ports if isinstance(port, BranchStart)]))

    def build(self, build: Build, state: Any) -> StageActor:
        front, number, states = (None, 0, [None] * len(self.ports)) if state is None else state
        split = _BranchActor(self.split, build, front, number)
        ports = [_StartActor(split, number) for _ in self.ports]
        split.ports = ports
        inner = replace(build, ports={**build.ports, **dict(zip(self.ports, ports, strict=True))})
        return _JoinedActor(self, inner, states, split)


@dataclass(slots=True, eq=False)
class _Passed:
    """A position in a branch: behind an item."""

    number: int  # of the item among those of all branches
    before: Any  # position before it, in front of the branches
    after: Any  # position behind it, there
    next: _Passed | None = None  # behind the next item of the same branch


class _StartActor(StageActor):
    """Hands on the items of the split."""

    def __init__(self, split: _BranchActor, number: int) -> None:
        super().__init__(split.run, split.stats, 0)
        self.stats.actor = split
        self._split = split
        self.start = self.last = self.frozen = _Passed(number - 1, None, None)

    @property
    def has_room(self) -> bool:
        return len(self.out.items) < self.out.capacity

    def give(self, value: Any, passed: _Passed) -> None:
        """Hand on an item."""
        self.last.next = passed
        self.last = passed
        if not self.is_over:
            self.out.items += ((value, passed), (MARK, passed))
            self.out.owner.wake()

    def wake(self) -> None:
        self._split.wake()

    def step(self, now: int) -> Wait:
        raise AssertionError("a port is never fired")

    def freeze(self, position: _Passed) -> int:
        self.frozen = position
        return position.number


class _BranchActor(FollowingActor):
    """Gives each item to its branch.

    Attributes:
        turns: Branch and position of each item whose results have not come together yet.
    """

    ports: list[_StartActor]  # beginnings of the branches

    def __init__(self, stage: Branch, build: Build, front: Any, number: int) -> None:
        super().__init__(stage, build, front)
        self.turns: deque[tuple[int, _Passed]] = deque()
        self.has_ended = False  # true once all items have been given
        self._indices = {key: index for index, key in enumerate(stage.keys)}
        self._number = number
        self._before = self.start
        self._error: BaseException | None = None

    def step(self, now: int) -> Wait:
        inbox, stats = self.inboxes[0], self.stats
        taken = 0
        while inbox.items:
            value, after = inbox.items[0]
            port = self._port(value)
            if port is None:
                return Wait.NOTHING
            if not (self.ports[port].has_room or self.ports[port].is_over):
                break
            inbox.items.popleft()
            taken += 1
            passed = _Passed(self._number, self._before, after)
            self._number += 1
            self._before = after
            if passed.number > self.ports[port].last.number:  # else it has been through the branch
                self.turns.append((port, passed))
                self.ports[port].give(value, passed)
        stats.items_in += taken
        stats.items_out += taken
        if taken:
            inbox.source.wake()
        if not inbox.items and inbox.end is not None:
            return self.finish(inbox.end.error)
        return Wait.PUT if inbox.items else Wait.GET

    def _port(self, value: Any) -> int | None:
        """Index of an item's branch; None if it has none, which ends the run."""
        stage = self._stage
        try:
            key = stage.key(value)
            index = self._indices.get(key)
            if index is None:
                raise PipelineError(f"no branch for key {shown(key)}; there are {', '.join(map(shown, stage.keys))}")
        except BaseException as error:  # noqa: BLE001  it becomes the item's
            self.finish(self.caught(error, self._number, value))
            return None
        return index

    def finish(self, error: BaseException | None = None) -> Wait:
        self.has_ended = True
        for port in self.ports:
            if not port.is_over:
                port.out.end = End(error)
                port.is_over = True
                port.out.owner.wake()
        self.stop()
        return Wait.NOTHING


class _JoinedActor(JoinActor):
    """Gives the branches' results, in the order of the items they came of."""

    def __init__(self, stage: BranchJoin, build: Build, states: Any, split: _BranchActor) -> None:
        super().__init__(stage, build, states)
        self._split = split
        self._number = split._number
        self._latest: _Passed | None = None
        self.start = tuple(self.at), None

    def next_item(self) -> tuple[Any, Any] | None:
        turns = self._split.turns
        while turns:
            index, self._latest = turns[0]
            inbox = self.inboxes[index]
            if not inbox.items:
                self.has_ended(inbox)
                return None
            value = self.taken(index)
            if value is MARK:
                turns.popleft()
            else:
                return value, (tuple(self.at), self._latest)
        return self._last_item() if self._split.has_ended else None

    def _last_item(self) -> tuple[Any, Any] | None:
        """An item that the branches still give when none comes any more: in their order."""
        for index, inbox in enumerate(self.inboxes):
            if inbox.items:
                return self.taken(index), (tuple(self.at), self._latest)
            if not self.has_ended(inbox) or self.is_over:
                return None
        self.finish()
        return None

    def halt(self) -> None:
        self._split.stop()

    def freeze(self, position: Any) -> Any:
        at, latest = position
        states = super().freeze(at)
        split = self._split
        if latest is None:
            return [split.freeze(split.start), self._number, states]
        first = latest.number + 1, latest.after
        for port in split.ports:
            following = port.frozen.next
            if following is not None and following.number < first[0]:
                first = following.number, following.before
        return [split.freeze(first[1]), first[0], states]
