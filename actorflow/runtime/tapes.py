"""From a program to one with tapes: which ops fire as one, by what their calls have taken.

Whatever takes time (a long op, a task, a copy, a turn at a variable) lies in front of an op or does not. Ops that have
the same of it in front of them may be computed as soon as it is there, one behind the other. They are a class, and the
pieces of a class, in the order in which its ops would fire one by one, are its tapes. So no op waits for what it would
not have waited for by itself, and no two tapes wait for each other: a message leads to a later piece of the same class,
or to a class that has more in front of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from actorflow.actors.blob import BlobActor
from actorflow.actors.op import FOREVER_NS, INLINE_NS, OpActor, Wiring
from actorflow.actors.tape import TapeActor
from actorflow.actors.variable import VariableUse
from actorflow.devices.base import Lane
from actorflow.graph.nodes import Blob
from actorflow.loop import Steps
from actorflow.ops.function import Function
from actorflow.runtime.branches import Branches

if TYPE_CHECKING:
    from actorflow.runtime.program import Program

_Unit = tuple[OpActor, ...]


class Limits(NamedTuple):
    """What a tape may be.

    Attributes:
        tape_ns: Longest expected time where others wait for one of the ops: they are told when the tape has ended.
        slice_ns: Longest expected time on the loop where nobody does: after as long, the loop has its turn.
        ops: Most ops.
        updated_bytes: Most bytes of new values of variables: the old ones are held until the end of a tape.
        frames: How many frames run before the first tapes are made; each further look comes after four times as many.
        short_ns: Longest expected time of an op, if it is not what runs on the loop whatever the number of cores.
    """

    tape_ns: int = 100_000
    slice_ns: int = 1_000_000
    ops: int = 1_000
    updated_bytes: int = 16 << 20
    frames: int = 4
    short_ns: int | None = None


_AS_PLANNED: Mapping[OpActor, Lane] = MappingProxyType({})
#: Tests have others.
LIMITS = Limits()
_GROWTH = 4


class Pace:
    """Says when a program's tapes are looked at.

    Attributes:
        left: Number of frames until then.
        branches: Says on which lanes ops are.
    """

    __slots__ = ("_frames", "branches", "left")

    def __init__(self, may_have_tapes: bool) -> None:
        self.branches = Branches()
        self._frames = LIMITS.frames
        self.left = LIMITS.frames if may_have_tapes else FOREVER_NS

    def look_now(self) -> None:
        """Look at them before the next frame: an op takes longer than it did."""
        self.left = 0

    def looked(self) -> None:
        """They have been looked at."""
        self._frames = max(1, self._frames) * _GROWTH
        self.left = self._frames


def with_tapes(program: Program) -> Steps[Program]:
    """The same program, with the tapes that its ops are good for now; frames in flight end as they began."""
    program.pace.looked()
    base = program.base
    program.trace.settle()  # by which costs are known
    for op, twin in program.twins.items():
        op.cost_ns, op.last_ns = twin.cost_ns, twin.last_ns
        yield
    lanes = program.pace.branches.lanes(base)
    others_wait = yield from _others_wait(base)
    units = yield from find_tapes(base.ops, base.first, base.uses, lanes, turns_may_be_one=not others_wait)
    if {unit for unit in units if len(unit) > 1} == program.tapes and lanes == program.lanes:
        return program
    joining = Joining(base, program.pace, lanes)
    for unit in reversed(units):
        yield from joining.add(unit)
    joining.ops.reverse()
    return base.joined(joining)


class Joining:
    """What becomes of a program's ops where some of them fire as one.

    Attributes:
        receivers: What fires for each op.
        ops: Those.
        tapes: The ops of each tape.
        twins: Actors in the place of those of the program that was built.
        lanes: Lanes of ops, where they are not those of the plan.
        pending: Number of messages that each mailbox waits for.
        owned: Slots that one tape reads alone, so that nobody has to count their readers.
    """

    def __init__(self, base: Program, pace: Pace, lanes: Mapping[OpActor, Lane]) -> None:
        self.receivers: dict[OpActor, OpActor] = {}
        self.ops: list[OpActor] = []
        self.tapes: set[_Unit] = set()
        self.twins: dict[OpActor, OpActor] = {}
        self.pending = base.pending.copy()
        self.owned: set[int] = set()
        self.lanes = lanes
        self._readers = base.readers_of_shared()
        self._pace = pace
        self._trace = base.trace
        self._running = base.running

    def add(self, unit: _Unit) -> Steps[None]:
        """Take over ops that fire as one, or one op; all that follow have been taken over."""
        (single, *others) = unit
        if others:
            self.tapes.add(unit)
            parts = yield from self._parts(unit)
            made: OpActor = self._tape(unit, parts)
        else:
            made = self._twin(single, self.told(single.followers), single.freed)
            yield
        self.ops.append(made)
        self.receivers.update(dict.fromkeys(unit, made))

    def told(self, followers: Iterable[OpActor]) -> tuple[OpActor, ...]:
        """What fires for ops that are sent messages at once: each gets one."""
        messages = Counter([self.receivers[follower] for follower in followers])
        for receiver, count in messages.items():
            self.pending[receiver.index] -= count - 1
        return tuple(messages)

    def _twin(self, op: OpActor, followers: tuple[OpActor, ...], freed: tuple[BlobActor, ...]) -> OpActor:
        lane = self.lanes.get(op, op.lane)
        twin = op.twin(followers, freed, lane, lambda key: self._trace.key_beside(key, op.lane.name, lane.name))
        if twin is not op:
            self.twins[op] = twin
        return twin

    def _tape(self, unit: _Unit, parts: Sequence[OpActor]) -> TapeActor:
        """The actor of ops that fire as one: messages from outside go to it, and there are none within it."""
        inside = frozenset(unit)
        readers = [follower for op in unit for follower in op.followers]
        outer = [follower for follower in readers if follower not in inside]
        written = [blob for op in unit for blob in op.outputs]
        within = frozenset(written)
        first, pending = unit[0], self.pending
        pending[first.index] = sum(pending[op.index] for op in unit) - (len(readers) - len(outer))
        for op in unit[1:]:
            pending[op.index] = 0
        wiring = Wiring(
            mailbox=first.index,
            node=first.node,
            node_id=first.node_id,
            key=parts[0].key,
            inputs=tuple([blob for op in unit for blob in op.inputs if blob not in within]),
            freed=(),
            outputs=tuple(written),
            unread=(),
            followers=self.told(outer),
            lane=parts[0].lane,
            profile=first.profile,
        )
        is_long = not all(map(_is_short, unit))
        return TapeActor(
            wiring,
            parts=parts,
            changed=self._pace.look_now,
            is_long=is_long,
            counted={blob.slot for op in unit for blob in op.freed if self._is_counted(blob)},
            running=self._running,
        )

    def _is_counted(self, blob: BlobActor) -> bool:
        return blob.slot in self._readers and blob.slot not in self.owned

    def _parts(self, unit: _Unit) -> Steps[list[OpActor]]:
        """The ops, where the last one that reads a blob gives it back if nothing else reads it."""
        uses = Counter([blob for op in unit for blob in op.freed])
        owned = {blob for blob, count in uses.items() if count > 1 and self._readers.get(blob.slot) == count}
        self.owned.update([blob.slot for blob in owned])
        parts: list[OpActor] = []
        left = owned.copy()
        for op in reversed(unit):
            freed = [blob for blob in dict.fromkeys(op.freed) if blob in left] if owned else []
            left.difference_update(freed)
            others = [blob for blob in op.freed if blob not in owned]
            parts.append(self._twin(op, op.followers, (*others, *freed)))
            yield
        return parts[::-1]


class _Piece:
    """Ops that fire as one, for now."""

    def __init__(self) -> None:
        self.ops: list[OpActor] = []
        self.spent_ns = 0  # of what others would be late for
        self.updated_bytes = 0  # of new values of variables
        self.is_long = False
        self.is_awaited = False  # by others than what follows on the lane
        self.has_turns = False


class _Class:
    """Ops that have the same in front of them."""

    def __init__(self, components: frozenset[int], outside: frozenset[OpActor]) -> None:
        self.components = components  # classes that have a part of that
        self.outside = outside  # what of that is neither a turn nor an op that computes in a tape
        self.alone: list[OpActor] = []  # ops that take time, or are no part of a tape for another reason
        self.pieces: list[_Piece] = []
        self.open: dict[Lane | None, _Piece] = {}  # the last piece on each lane
        self.begun: defaultdict[Lane | None, int] = defaultdict(int)  # how many long ops each lane has had


def find_tapes(
    ops: Collection[OpActor],
    first: Iterable[OpActor],
    uses: Collection[VariableUse],
    lanes: Mapping[OpActor, Lane] = _AS_PLANNED,
    turns_may_be_one: bool = True,
) -> Steps[list[_Unit]]:
    """The ops that fire as one.

    Args:
        ops: Of a program.
        first: Those that wait for nothing, in the order in which they fire.
        uses: Turns at variables that they wait for.
        lanes: Lanes of ops, where they are not those of the plan.
        turns_may_be_one: Whether ops of a tape may wait for turns that by themselves they would not wait for.
    Returns:
        All ops, those of a tape together, each such unit behind those that it reads from.
    """
    order = yield from _as_they_fire(ops, first)
    if turns_may_be_one and any(use.updates for use in uses):
        found = _Classes(lanes, turns_pass_together=True)
        yield from found.fill(order, uses)
        if found.is_updated_together:
            return found.units
    found = _Classes(lanes, turns_pass_together=False)
    yield from found.fill(order, uses)
    return found.units


def _others_wait(base: Program) -> Steps[bool]:
    """Return whether other programs of the graph do more than compute before they update what this one uses.

    A tape that waits for all turns keeps those that have come: for as long as a function of another program takes, and
    for ever, if that awaits a run that waits for one of them.
    """
    own = {op.node for op in base.ops}
    todo: list[Blob] = [use.variable.variable for use in base.uses]
    seen = {*todo}
    while todo:
        for op in todo.pop().producers:
            if op not in own and (isinstance(op.operation, Function) or op.attempts is not None):
                return True
            new = {*op.inputs} - seen
            todo += new
            seen |= new
        yield
    return False


class _Classes:
    """All classes of a program's ops.

    Args:
        lanes: Lanes of ops, where they are not those of the plan.
        turns_pass_together: Whether turns are one, and updates are parts of tapes.
    """

    def __init__(self, lanes: Mapping[OpActor, Lane], *, turns_pass_together: bool) -> None:
        self._lanes = lanes
        self._turns_pass_together = turns_pass_together
        self._classes = [_Class(frozenset(), frozenset())]
        self._known: dict[Hashable, int] = {}
        self._outside: set[frozenset[OpActor]] = set()  # of the updates

    @property
    def is_updated_together(self) -> bool:
        """Whether all updates come at the end of the same, besides turns and computation."""
        return len(self._outside) < 2

    @property
    def units(self) -> list[_Unit]:
        """The ops that fire as one, each unit behind those that it reads from."""
        return [
            unit
            for each in self._classes
            for unit in (*(tuple(piece.ops) for piece in each.pieces), *((op,) for op in each.alone))
        ]

    def fill(self, order: Iterable[OpActor], uses: Iterable[VariableUse]) -> Steps[None]:
        """Give each op, in the order in which they fire, its class and its place there."""
        classes = self._classes
        before: defaultdict[OpActor, set[int]] = defaultdict(set)  # classes that have a part of what is in front
        for use in uses:
            turn = self._numbered("turns" if self._turns_pass_together else use, frozenset([0]))
            for follower in use.followers:
                before[follower].add(turn)
        for op in order:
            number, lane = self._class_of(before.pop(op, set())), self._lane_of(op)
            is_short = self._is_short(op)
            is_part = is_short or self._joins(op)
            if op.updates:
                outside = classes[number].outside
                self._outside.add(outside if is_part else outside | {op})
            if is_part:
                if not is_short and not number:  # what is on the loop may be on several lanes
                    number = self._numbered(lane, frozenset([0]))
                is_awaited = any(not self._goes_on(each, lane if number else None) for each in op.followers)
                _append(classes[number], op, lane if number else None, is_short, is_awaited)
                for follower in op.followers:
                    # From lane to lane they are told by the loop, and are no pieces of one order.
                    away = number and self._lane_of(follower) is not lane
                    before[follower].add(self._behind(number, lane) if away else number)
            else:
                classes[number].alone.append(op)
                own = self._numbered(op, frozenset([number]), outside=(op,))
                for follower in op.followers:
                    before[follower].add(own)
            yield

    def _lane_of(self, op: OpActor) -> Lane:
        return self._lanes.get(op, op.lane)

    def _is_short(self, op: OpActor) -> bool:
        return _is_short(op) and (self._turns_pass_together or not op.updates)

    def _joins(self, op: OpActor) -> bool:
        """Return whether a long op may be a part of a piece of work on its lane."""
        is_alone = op.updates and not self._turns_pass_together
        return op.joins and op.inline_ns >= 0 and op.attempts is None and not is_alone

    def _goes_on(self, follower: OpActor, lane: Lane | None) -> bool:
        """Return whether a follower may be a part of a tape on a lane, or on the loop."""
        if lane is None:
            return self._is_short(follower)
        return self._lane_of(follower) is lane and (self._is_short(follower) or self._joins(follower))

    def _numbered(self, key: Hashable, components: frozenset[int], outside: Iterable[OpActor] = ()) -> int:
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._classes)
            behind = frozenset(outside).union(*[self._classes[each].outside for each in components])
            self._classes.append(_Class(components, behind))
        return number

    def _behind(self, number: int, lane: Lane) -> int:
        """The class of what the loop tells of ops of a class on a lane, as far as that has come."""
        begun = self._classes[number].begun[lane]
        own = frozenset([number])
        before = own if not begun else frozenset([number, self._known.get((number, lane, begun - 1), number)])
        return self._numbered((number, lane, begun), before)

    def _class_of(self, found: set[int]) -> int:
        """The class of all that some classes have in front of them; a class comes behind those that it is made of."""
        if len(found) > 1:
            found = found.difference(*[self._classes[number].components for number in found])
        if len(found) < 2:
            return next(iter(found), 0)
        together = frozenset(found)
        return self._numbered(together, together | {0})


def _as_they_fire(ops: Collection[OpActor], first: Iterable[OpActor]) -> Steps[list[OpActor]]:
    """All ops in the order in which they would fire one by one, if none of them took any time."""
    waits: defaultdict[OpActor, int] = defaultdict(int)
    for op in ops:
        for follower in op.followers:
            waits[follower] += 1
        yield
    order = list(dict.fromkeys([*first, *[op for op in ops if op not in waits]]))
    for op in order:  # it grows
        for follower in op.followers:
            waits[follower] -= 1
            if not waits[follower]:
                order.append(follower)
        yield
    return order


def _is_short(op: OpActor) -> bool:
    # Not `inline_ns` alone: on a single core that is more, as a hop for each op costs too much. A piece is one hop.
    limit_ns = min(op.inline_ns, INLINE_NS) if LIMITS.short_ns is None else LIMITS.short_ns
    return op.inline_ns >= 0 and op.attempts is None and op.cost_ns <= limit_ns


def _append(members: _Class, op: OpActor, lane: Lane | None, is_short: bool, is_awaited: bool) -> None:
    """Add an op to the last piece on its lane, or begin another one.

    Nobody who is told when a piece has ended is late for what is long, nor for more than a tape's time.
    """
    piece = members.open.get(lane)
    updated_bytes = sum([update.bucket.spec.size_bytes for update in op.updates if update.bucket is not None])
    if piece is not None:
        is_late = piece.is_awaited or not (piece.is_long or not is_short)
        has_turn = op.turnstile is not None
        most_ns = LIMITS.tape_ns if piece.is_awaited or lane is not None else max(LIMITS.slice_ns, LIMITS.tape_ns)
        if (
            (piece.is_awaited and not is_short)
            or (is_late and piece.spent_ns + op.cost_ns > most_ns)
            or len(piece.ops) >= LIMITS.ops
            or (has_turn and piece.is_long)
            or (piece.has_turns and not is_short)
            or (piece.updated_bytes and piece.updated_bytes + updated_bytes > LIMITS.updated_bytes)
        ):
            piece = None
    if piece is None:
        piece = members.open[lane] = _Piece()
        members.pieces.append(piece)
    piece.ops.append(op)
    if not is_short:
        piece.is_long = True
        members.begun[lane] += 1
    piece.spent_ns += op.cost_ns if is_short else 0
    piece.updated_bytes += updated_bytes
    piece.is_awaited |= is_awaited
    piece.has_turns |= op.turnstile is not None
