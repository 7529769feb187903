"""Tapes at run time: short ops that fire as one.

Between the ops of a tape there is no message, no queue and no look at the clock but the one that ends an op's time:
they are called one after the other in one loop. All else is theirs: an error names the op that has failed, a frame that
is cancelled stops behind the op that runs, trace and profile have a line and a number for each. These are written for
many calls at once, before somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, pairwise
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np

from actorflow.actors.blob import deliver
from actorflow.actors.frame import Frame
from actorflow.actors.joined import Joined, parts_of
from actorflow.actors.op import FOREVER_NS, INLINE_NS, OpActor, Wiring
from actorflow.actors.turnstile import Turnstiles
from actorflow.devices.base import Fence, Stopped
from actorflow.errors import GraphError
from actorflow.graph.nodes import Op
from actorflow.trace.counters import NodeState
from actorflow.trace.ring import Trace

_RUNNING, _DONE = int(NodeState.RUNNING), int(NodeState.DONE)
#: A tape that takes longer runs on its lane. On the loop, it goes on later.
_SLICE_NS = 1_000_000
#: One with long ops, from where on a lane costs little: some three times what waking its thread and the loop takes.
_LONG_NS = 300_000
#: Calls of ops that are accounted for together.
_MOST_OWED = 4096


#: One call of a tape that has ended well: the position in the trace of the first of its ops, the frame's number,
#: whether it was on the lane, and the time, `perf_counter_ns`, at the beginning and behind each op.
_Played: TypeAlias = tuple[int, int, bool, list[int]]


class TapeActor(Joined):
    """Short ops, one behind the other.

    They all wait for the same: whatever takes time lies in front of all of them or of none, so none of them is late for
    being one of several. Ops of one lane follow what is on the lane, as a single op does; ops of several lanes run on
    the loop alone, and wait until it has seen what they need.

    Long ops of one lane are one piece of work there with what lies between them (``is_long``). It goes to the lane, but
    for one that takes little longer than waking a thread for it, and then the loop, while no other frame is in flight.

    Args:
        wiring: Of all of them together.
        parts: The ops, in a topological order.
        changed: Called when they take longer than they did, so that they should not be one tape any more.
        is_long: Whether some of them are long.
        running: The frames in flight.
    """

    def __init__(
        self,
        wiring: Wiring,
        *,
        parts: Sequence[OpActor],
        changed: Callable[[], None],
        is_long: bool,
        running: Collection[Frame],
    ) -> None:
        super().__init__(wiring)
        self.parts = tuple(parts)
        self._stays_on_loop = any(part.lane is not wiring.lane for part in parts)
        turnstiles = [part.turnstile for part in parts if part.turnstile is not None]
        self.turnstile = Turnstiles(turnstiles, alone=self._stays_on_loop) if turnstiles else None
        self._steps = [part.bound() for part in parts]
        self._changed = changed
        self._is_long = is_long
        self._running = running
        self._stamps: dict[Frame, list[int]] = {}  # of the calls under way
        self._ids = np.array([leaf.node_id for leaf in parts_of(self)], np.intp)
        self._owed: list[_Played] = []  # not written to trace and profile yet
        self._trace: Trace | None = None  # where they are to be written
        self.inline_ns = _LONG_NS if is_long else max(_SLICE_NS, *[part.inline_ns for part in parts])
        self._slow: list[int] | None = None  # stamps of the last call, if that was slow
        self.cost_ns = self.last_ns = self._expect()

    @property
    def what(self) -> str:
        return f"{self.parts[0].what} to {self.parts[-1].what}"

    def under_way(self, frame: Frame) -> Op:
        stamps = self._stamps.get(frame, (0,))
        return self.parts[min(len(stamps), len(self.parts)) - 1].node

    def progress(self, frame: Frame) -> Iterator[tuple[int, NodeState]]:
        ended = len(self._stamps.get(frame, (0,))) - 1
        for number, part in enumerate(self.parts):
            state = NodeState.DONE if number < ended else NodeState.RUNNING if number == ended else NodeState.QUEUED
            yield from [(leaf, state) for leaf, _ in part.progress(frame)]

    def replay(self, inputs: list[Any], number: int) -> Any:
        raise GraphError(f"ops {self.what} are called as one: each of them replays its own call")

    # -- one call ------------------------------------------------------------------------------------------------------

    def compute(self, frame: Frame) -> None:
        if frame.monitor is None:
            self._play(frame)
            return
        stamps = self._begun(frame)  # in a thread, beside those who watch
        for part in self.parts[len(stamps) - 1 :]:
            part._show(frame, _RUNNING)
            part.compute(frame)
            stamps.append(perf_counter_ns())
            part._show(frame, _DONE)
            if frame.halted:
                return

    def _play(self, frame: Frame, slice_ns: int = FOREVER_NS) -> bool:
        """Call the ops that are left; False if the time for that has passed before the last one."""
        stamps = self._begun(frame)
        due_ns = stamps[-1] + slice_ns
        left = [] if frame.halted else self._steps[len(stamps) - 1 :]  # it may have been stopped since it was begun
        for step in left:
            step(frame)
            now_ns = perf_counter_ns()
            stamps.append(now_ns)
            if frame.halted:
                return True
            if now_ns > due_ns:
                return len(stamps) > len(self._steps)
        return True

    def _begun(self, frame: Frame) -> list[int]:
        """The stamps of a call that begins, or goes on, now."""
        stamps = self._stamps.get(frame)
        if stamps is None:
            stamps = self._stamps[frame] = [perf_counter_ns()]
        return stamps

    def fire(self, frame: Frame) -> int:
        if frame in self._stamps:  # the rest of a call
            return self._call_inline(frame)
        return super().fire(frame)

    def begin(self, frame: Frame) -> int:
        return self._call_inline(frame) if self._stays_on_loop else super().begin(frame)

    def _follows(self, fence: Fence) -> bool:
        return not self._stays_on_loop and super()._follows(fence)

    def _call_inline(self, frame: Frame) -> int:
        if self._is_long and len(self._running) > 1:
            return self.begin(frame)
        try:
            if not self._play(frame, _SLICE_NS):
                return self._go_on_later(frame)
        except BaseException as error:  # noqa: BLE001  as of a single op
            end_ns = perf_counter_ns()
            self._failed(frame, error, 0, end_ns, self.node_id)
        else:
            end_ns = self._stamps[frame][-1]
            self._account(frame, 0, end_ns, self.node_id)
            self._announce(frame)
        self.leave()
        return end_ns

    def _go_on_later(self, frame: Frame) -> int:
        """Ops have become slow: the rest of the call is for the next slice of the loop's time, or for the lane."""
        stamps = self._stamps[frame]
        if not self._is_long:
            frame.ready.append((self, frame))
            return stamps[-1]
        if frame.monitor is not None:
            for part in self.parts[: len(stamps) - 1]:
                part._show(frame, _DONE)
        return self.begin(frame)

    def _show(self, frame: Frame, state: int) -> None:
        """Nothing is shown of all of them at once: each shows itself as it is called."""

    def _take_end(self, frame: Frame, fence: Fence) -> None:
        if type(fence.error) is Stopped:
            self._account_each(frame, self._stamps.pop(frame, []), self.key)
        super()._take_end(frame, fence)

    # -- what is told of it --------------------------------------------------------------------------------------------

    def _account(self, frame: Frame, elapsed_ns: int, end_ns: int, key: int) -> None:
        stamps = self._stamps.pop(frame)
        if len(stamps) <= len(self.parts):  # the frame was stopped meanwhile
            self._account_each(frame, stamps, key)
            return
        if frame.monitor is not None and key == self.node_id:
            frame.monitor.show_all(self._ids, NodeState.DONE)
        total_ns, last_ns = stamps[-1] - stamps[0], self.last_ns
        self.cost_ns = total_ns if total_ns < last_ns else last_ns  # noqa: FURB136  as of a single op
        self.last_ns = total_ns
        trace = frame.trace
        owed = self._owed
        if not owed:
            self._trace = trace
            trace.owe(self._settle)
        owed.append((trace.reserve(len(self._ids)), frame.number, key != self.node_id, stamps))
        if len(owed) * len(self._ids) > _MOST_OWED:
            trace.settle()
        if total_ns > self._slow_ns:
            self._look(stamps)
        else:
            self._slow = None

    def _account_each(self, frame: Frame, stamps: list[int], key: int) -> None:
        for part, begun_ns, ended_ns in zip(self.parts, stamps, stamps[1:], strict=False):
            part._account(frame, ended_ns - begun_ns, ended_ns, self._key_of(part, key))
            deliver(part.updates, frame, None)  # as they would have been, one by one, before another op failed

    def _failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        stamps = self._stamps.pop(frame, [end_ns])
        self._account_each(frame, stamps, key)
        culprit = self.parts[min(len(stamps), len(self.parts)) - 1]
        culprit._failed(frame, error, end_ns - stamps[-1], end_ns, self._key_of(culprit, key))

    def _expect(self) -> int:
        """Note how long a call takes if no part has become slow; where some always were, that does not matter."""
        expected_ns = sum([part.cost_ns for part in self.parts])
        self._slow_ns = FOREVER_NS if self._is_long else expected_ns + INLINE_NS
        return expected_ns

    def _look(self, stamps: list[int]) -> None:
        """A call was slow; if the one before was, too, that is no accident."""
        before, self._slow = self._slow, stamps
        if before is None:
            return
        for part, *times in zip(self.parts, _elapsed(before), _elapsed(stamps), strict=True):
            part.cost_ns, part.last_ns = min(times), times[-1]
        self._expect()
        self._changed()

    # -- many calls at once --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Write what is owed to trace and profile."""
        played, self._owed = self._owed, []
        trace = self._trace
        assert trace is not None
        count = len(self.parts)
        positions, frames, on_lane, all_stamps = zip(*played, strict=True)
        stamps = np.fromiter(chain.from_iterable(all_stamps), np.int64, len(played) * (count + 1)).reshape(
            -1, count + 1
        )
        elapsed = np.diff(stamps)
        for part, (*earlier, last_ns) in zip(self.parts, elapsed[-2:].T.tolist(), strict=True):
            part.cost_ns, part.last_ns = min(last_ns, *earlier or [part.last_ns]), last_ns
        self._expect()
        leaves = [(i, leaf, *of) for i, part in enumerate(self.parts) for leaf, *of in _shares(part)]
        of, actors, begins, ends = zip(*leaves, strict=True)
        whole = elapsed[:, of]
        begun, ended = (whole * begins).astype(np.int64), (whole * ends).astype(np.int64)
        rows = np.empty((*ended.shape, 4), np.int64)
        rows[..., 0] = stamps[:, of] + ended
        rows[..., 1] = own = ended - begun
        keys = np.array([[leaf.node_id for leaf in actors], [leaf.key for leaf in actors]])
        rows[..., 2] = keys[np.array(on_lane, np.intp)]
        rows[..., 3] = np.array(frames)[:, None]
        trace.write(np.array(positions), rows)
        for leaf, total_ns, last_ns in zip(actors, own.sum(axis=0).tolist(), own[-1].tolist(), strict=True):
            profile = leaf.profile
            profile.calls += len(played)
            profile.total_ns += total_ns
            profile.last_ns = last_ns


def _elapsed(stamps: Sequence[int]) -> list[int]:
    return [end - begin for begin, end in pairwise(stamps)]


def _shares(part: OpActor) -> Iterator[tuple[OpActor, float, float]]:
    """The ops that a part of a tape stands for, and when each begins and ends, as parts of the part's time."""
    if isinstance(part, Joined):
        ends = part.ends_within()
        yield from zip(part.parts, [0.0, *ends], ends, strict=False)
    else:
        yield part, 0.0, 1.0
