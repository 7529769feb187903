"""Tapes at run time: short ops that fire as one.

Between the ops of a tape there is no message, no queue and no look at the clock but the one that ends an op's time:
they are called one after the other in one loop. All else is theirs: an error names the op that has failed, a frame that
is cancelled stops behind the op that runs, trace and profile have a line and a number for each. These are written for
many calls at once, before somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from actorflow.actors.blob import deliver
from actorflow.actors.frame import Frame
from actorflow.actors.joined import Joined, parts_of
from actorflow.actors.op import FOREVER_NS, INLINE_NS, OpActor, Play, Wiring
from actorflow.actors.turnstile import Turnstiles
from actorflow.devices.base import Fence, Stopped
from actorflow.errors import GraphError
from actorflow.graph.nodes import Op
from actorflow.trace.counters import NodeState
from actorflow.trace.ring import Trace

_RUNNING, _DONE = int(NodeState.RUNNING), int(NodeState.DONE)
#: How long a tape on the loop keeps others waiting that are ready, or the loop when a slice of its time is over.
_TURN_NS = 100_000
#: A tape of long ops on the loop goes on on its lane behind that, and one of short ones that takes twice as long is
#: called there.
_SLICE_NS = 1_000_000
#: One with long ops, from where on a lane costs little: as many times what waking its thread and the loop takes, and
#: this at least.
_HANDOVERS, _LONG_NS = 3, 300_000
#: Calls of ops that are accounted for together.
_MOST_OWED = 4096


#: One call of a tape that has ended well: the position in the trace of the first of its ops, the frame's number,
#: whether it was on the lane, the time, `perf_counter_ns`, at the beginning and behind each op, and its gaps.
_Played: TypeAlias = tuple[int, int, bool, list[int], "_Gaps"]
#: Ops of one call before which others had their turn: their numbers in the tape, and when they began.
_Gaps: TypeAlias = Sequence[tuple[int, int]]
_Ints: TypeAlias = npt.NDArray[np.int64]


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
        counted: Slots whose readers are counted.
        running: The frames in flight.
    """

    def __init__(
        self,
        wiring: Wiring,
        *,
        parts: Sequence[OpActor],
        changed: Callable[[], None],
        is_long: bool,
        counted: Container[int],
        running: Collection[Frame],
    ) -> None:
        super().__init__(wiring)
        self.parts = tuple(parts)
        self._stays_on_loop = any(part.lane is not wiring.lane for part in parts)
        turnstiles = [part.turnstile for part in parts if part.turnstile is not None]
        self.turnstile: Turnstiles | None = None
        if turnstiles:
            self.turnstile = Turnstiles(turnstiles, alone=self._stays_on_loop)
        self._stretches: list[tuple[int, int, Play, list[Any]]] = []  # of those that are called by the same
        bound = [part.bound(counted) for part in parts]
        for play, steps in groupby(bound, itemgetter(0)):
            begin = self._stretches[-1][1] if self._stretches else 0
            needed = [each for _, each in steps]
            self._stretches.append((begin, begin + len(needed), play, needed))
        self._changed = changed
        self._is_long = is_long
        self._running = running
        self._stamps: dict[Frame, list[int]] = {}  # of the calls under way
        self._ids = np.array([leaf.node_id for leaf in parts_of(self)], np.intp)
        self._gaps: dict[Frame, list[tuple[int, int]]] = {}  # of those, where others had their turn in between
        self._owed: list[_Played] = []  # not written to the trace yet
        self._trace: Trace | None = None  # where they are to be written, and what it is to ask for before a look
        self._leaves: _Leaves | None = None
        self._newest = np.array([[part.last_ns for part in parts]])  # times of the last two calls that are known
        self.inline_ns = _LONG_NS if is_long else max(2 * _SLICE_NS, *[part.inline_ns for part in parts])
        self._slow: list[int] | None = None  # stamps of the last call, if that was slow
        self.cost_ns = self.last_ns = self._planned_ns = self._expect()

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
            yield from [(leaf.node_id, state) for leaf in parts_of(part)] if part.parts else [(part.node_id, state)]

    def replay(self, inputs: list[Any], number: int) -> Any:
        raise GraphError(f"ops {self.what} are called as one: each of them replays its own call")

    # -- one call ------------------------------------------------------------------------------------------------------

    def compute(self, frame: Frame) -> None:
        if frame.monitor is None:
            self._play(frame)
            return
        stamps, _ = self._begun(frame)  # in a thread, beside those who watch
        for part in self.parts[len(stamps) - 1 :]:
            part._show(frame, _RUNNING)
            part.compute(frame)
            stamps.append(perf_counter_ns())
            part._show(frame, _DONE)
            if frame.halted:
                return

    def _play(self, frame: Frame, turn_ns: int = FOREVER_NS) -> bool:
        """Call the ops that are left; False if others are to have their turn before the last one.

        Args:
            frame: Of the call.
            turn_ns: How long they are called before it is asked whether there are others.
        """
        stamps, now_ns = self._begun(frame)
        begun, due_ns = len(stamps) - 1, now_ns + turn_ns
        for first, end, play, steps in self._stretches:
            if begun >= end:
                continue
            left = iter(steps) if begun <= first else islice(steps, begun - first, None)
            while len(stamps) <= end:
                if frame.halted:
                    return True
                play(frame, left, stamps, due_ns)
                if stamps[-1] > due_ns and len(stamps) <= len(self.parts) and not frame.halted:
                    if self._is_long or frame.ready or stamps[-1] > frame.ready.due_ns:
                        return False
                    due_ns = stamps[-1] + turn_ns
        return True

    def _begun(self, frame: Frame) -> tuple[list[int], int]:
        """The stamps of a call that begins, or goes on, now, and the time."""
        stamps, now_ns = self._stamps.get(frame), perf_counter_ns()
        if stamps is None:
            stamps = self._stamps[frame] = [now_ns]
        else:
            self._gaps.setdefault(frame, []).append((len(stamps) - 1, now_ns))
        return stamps, now_ns

    def fire(self, frame: Frame) -> int:
        if frame in self._stamps:  # the rest of a call
            if not frame.halted:
                del frame.outstanding[self]
                return self._call_inline(frame)
            end_ns = self._call_inline(frame)
            frame.settle(self)  # which has waited for this
            return end_ns
        return super().fire(frame)

    def begin(self, frame: Frame) -> int:
        return self._call_inline(frame) if self._stays_on_loop else super().begin(frame)

    def _follows(self, fence: Fence) -> bool:
        return not self._stays_on_loop and super()._follows(fence)

    def _call_inline(self, frame: Frame) -> int:
        if self._is_long and len(self._running) > 1:
            return self.begin(frame)
        try:
            if not self._play(frame, _SLICE_NS if self._is_long else _TURN_NS):
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
        """Others are to have their turn: the rest of the call is for later, or for the lane."""
        stamps = self._stamps[frame]
        if not self._is_long:
            if self.turnstile is not None:
                self.turnstile.hold()
            frame.put_off(self)
            return stamps[-1]
        if frame.monitor is not None:
            for part in self.parts[: len(stamps) - 1]:
                part._show(frame, _DONE)
        return self.begin(frame)

    def _show(self, frame: Frame, state: int) -> None:
        """Nothing is shown of all of them at once: each shows itself as it is called."""

    def _take_end(self, frame: Frame, fence: Fence) -> None:
        if type(fence.error) is Stopped:
            self._account_each(frame, self._stamps.pop(frame, []), self._gaps.pop(frame, ()), self.key)
        super()._take_end(frame, fence)

    # -- what is told of it --------------------------------------------------------------------------------------------

    def _account(self, frame: Frame, elapsed_ns: int, end_ns: int, key: int) -> None:
        stamps = self._stamps.pop(frame)
        gaps = self._gaps.pop(frame, ()) if self._gaps else ()
        if len(stamps) <= len(self.parts):  # the frame was stopped meanwhile
            self._account_each(frame, stamps, gaps, key)
            return
        if frame.monitor is not None and key == self.node_id:
            frame.monitor.show_all(self._ids, NodeState.DONE)
        if self._is_long:
            self.inline_ns = min(_SLICE_NS, max(_LONG_NS, _HANDOVERS * self.lane.handover_ns))
        total_ns, last_ns = stamps[-1] - stamps[0], self.last_ns
        if gaps:
            total_ns = sum(_elapsed(stamps, gaps))
        self.cost_ns = total_ns if total_ns < last_ns else last_ns  # noqa: FURB136  as of a single op
        self.last_ns = total_ns
        trace, count = frame.trace, len(self._ids)
        if self._trace is None:
            self._trace = trace
            trace.owe(self._settle)
        owed = self._owed
        owed.append((trace.reserve(count), frame.number, key != self.node_id, stamps, gaps))
        if len(owed) * count > _MOST_OWED:
            self._write()
        if total_ns > self._slow_ns:
            self._look(stamps, gaps)
        else:
            self._slow = None

    def _account_each(self, frame: Frame, stamps: list[int], gaps: _Gaps, key: int) -> None:
        for part, ended_ns, elapsed_ns in zip(self.parts, stamps[1:], _elapsed(stamps, gaps), strict=False):
            part._account(frame, elapsed_ns, ended_ns, self._key_of(part, key))
            deliver(part.updates, frame, None)  # as they would have been, one by one, before another op failed

    def _failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        stamps, gaps = self._stamps.pop(frame, [end_ns]), self._gaps.pop(frame, ())
        self._account_each(frame, stamps, gaps, key)
        begin = min(len(stamps), len(self.parts)) - 1
        culprit, begun_ns = self.parts[begin], dict(gaps).get(begin, stamps[-1])
        culprit._failed(frame, error, end_ns - begun_ns, end_ns, self._key_of(culprit, key))

    def _expect(self) -> int:
        """Note how long a call takes if no part has become slow; where some always were, that does not matter."""
        expected_ns = sum([part.cost_ns for part in self.parts])
        self._slow_ns = FOREVER_NS if self._is_long else expected_ns + INLINE_NS
        return expected_ns

    def _look(self, stamps: list[int], gaps: _Gaps) -> None:
        """A call was slow; if the one before was, too, that is no accident."""
        before, self._slow = self._slow, _elapsed(stamps, gaps)
        if before is None:
            return
        for part, *times in zip(self.parts, before, self._slow, strict=True):
            part.cost_ns, part.last_ns = min(times), times[-1]
        # What takes a little more each is no reason to look at the whole program.
        if self._expect() > 2 * self._planned_ns or any(part.cost_ns > INLINE_NS for part in self.parts):
            self._changed()

    # -- many calls at once --------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write what is owed to the trace, and add it up for the profile."""
        played, self._owed = self._owed, []
        trace, count = self._trace, len(self.parts)
        assert trace is not None
        if self._leaves is None:
            self._leaves = _Leaves(self.parts)
        positions, frames, on_lane, all_stamps, gaps = zip(*played, strict=True)
        stamps = np.fromiter(chain.from_iterable(all_stamps), np.int64, len(played) * (count + 1))
        stamps = stamps.reshape(-1, count + 1)
        begins = stamps[:, :-1].copy()
        for row, index, begun_ns in [(row, *gap) for row, those in enumerate(gaps) for gap in those]:
            begins[row, index] = begun_ns
        elapsed = stamps[:, 1:] - begins
        self._newest = np.concatenate([self._newest, elapsed[-2:]])[-2:]
        trace.write(np.array(positions), self._leaves.rows(begins, elapsed, on_lane, frames))

    def _settle(self) -> None:
        """Write what is owed to trace and profile."""
        if self._owed:
            self._write()
        self._trace = None
        costs, times = self._newest.min(axis=0).tolist(), self._newest[-1].tolist()
        for part, cost_ns, last_ns in zip(self.parts, costs, times, strict=True):
            part.cost_ns, part.last_ns = cost_ns, last_ns
        self._expect()
        if self._leaves is not None:
            self._leaves.add_to_profiles()
            if self._leaves.have_shares:  # which may change
                self._leaves = None


class _Leaves:
    """The ops that those of a tape stand for, and how long they have taken since their profiles were looked at."""

    def __init__(self, parts: Sequence[OpActor]) -> None:
        leaves = [(i, leaf, *of) for i, part in enumerate(parts) for leaf, *of in _shares(part)]
        of, self._actors, begins, ends = zip(*leaves, strict=True)
        self.have_shares = any(isinstance(part, Joined) for part in parts)  # some of them in the time of one part
        self._of, self._begins, self._ends = np.array(of), np.array(begins), np.array(ends)
        self._keys = np.array([[leaf.node_id for leaf in self._actors], [leaf.key for leaf in self._actors]])
        self._calls = 0
        self._last_ns = self._total_ns = np.zeros(len(leaves), np.int64)

    def rows(self, begins: _Ints, elapsed: _Ints, on_lane: Sequence[bool], frames: Sequence[int]) -> _Ints:
        """Rows for the trace of calls, given when each op began and how long it took; they are added up."""
        ended = own = elapsed
        if self.have_shares:
            begins, whole = begins[:, self._of], elapsed[:, self._of]
            ended = (whole * self._ends).astype(np.int64)
            own = ended - (whole * self._begins).astype(np.int64)
        rows = np.empty((*own.shape, 4), np.int64)
        np.add(begins, ended, out=rows[..., 0])
        rows[..., 1] = own
        rows[..., 2] = self._keys[np.array(on_lane, np.intp)]
        rows[..., 3] = np.array(frames)[:, None]
        self._calls += len(own)
        self._total_ns = self._total_ns + own.sum(axis=0)
        self._last_ns = own[-1].copy()
        return rows

    def add_to_profiles(self) -> None:
        """Let the profiles have what was added up."""
        if not self._calls:
            return
        for leaf, total_ns, last_ns in zip(self._actors, self._total_ns.tolist(), self._last_ns.tolist(), strict=True):
            profile = leaf.profile
            profile.calls += self._calls
            profile.total_ns += total_ns
            profile.last_ns = last_ns
        self._calls, self._total_ns = 0, np.zeros_like(self._total_ns)


def _elapsed(stamps: Sequence[int], gaps: _Gaps) -> list[int]:
    """How long each call took."""
    begins = [*stamps[:-1]]
    for index, begun_ns in gaps:
        if index < len(begins):
            begins[index] = begun_ns
    return [end - begin for begin, end in zip(begins, stamps[1:], strict=True)]


def _shares(part: OpActor) -> Iterator[tuple[OpActor, float, float]]:
    """The ops that a part of a tape stands for, and when each begins and ends, as parts of the part's time."""
    if isinstance(part, Joined):
        ends = part.ends_within()
        yield from zip(part.parts, [0.0, *ends], ends, strict=False)
    else:
        yield part, 0.0, 1.0
