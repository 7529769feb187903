"""From a program to one with tapes: which ops fire as one, by what their calls have taken.

Whatever takes time (a long op, a task, a copy, a turn at a variable) lies in front of an op or does not. Ops that have
the same of it in front of them may be computed as soon as it is there, one behind the other. They are a class, and the
pieces of a class, in the order in which its ops would fire one by one, are its tapes. So no op waits for what it would
not have waited for by itself, and no two tapes wait for each other: a message leads to a later piece of the same class,
or to a class that has more in front of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from actorflow.actors.blob import BlobActor
from actorflow.actors.op import FOREVER_NS, OpActor, Wiring
from actorflow.actors.tape import TapeActor
from actorflow.actors.variable import VariableUse
from actorflow.devices.base import Lane
from actorflow.loop import Steps
from actorflow.runtime.branches import Branches

if TYPE_CHECKING:
    from actorflow.runtime.program import Program

_Unit = tuple[OpActor, ...]


class Limits(NamedTuple):
    """What a tape may be.

    Attributes:
        tape_ns: Longest expected time: the loop has other work to do, and a slice of its time may end with a tape.
        ops: Most ops.
        frames: How many frames run before the first tapes are made; each further look comes after four times as many.
        short_ns: Longest expected time of an op, if it is not what may run on the loop.
    """

    tape_ns: int = 100_000
    ops: int = 1_000
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
    units = yield from find_tapes(base.ops, base.first, base.uses, lanes)
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
            made = self._twin(single, tuple([self.receivers[follower] for follower in single.followers]), single.freed)
            yield
        self.ops.append(made)
        self.receivers.update(dict.fromkeys(unit, made))

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
        outer = [self.receivers[follower] for follower in readers if follower not in inside]
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
            followers=tuple(outer),
            lane=parts[0].lane,
            profile=first.profile,
        )
        is_long = not all(map(_is_short, unit))
        return TapeActor(wiring, parts=parts, changed=self._pace.look_now, is_long=is_long, running=self._running)

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
        self.is_long = False
        self.is_awaited = False  # by others than what follows on the lane
        self.has_turns = False


class _Class:
    """Ops that have the same in front of them."""

    def __init__(self, components: frozenset[int]) -> None:
        self.components = components  # classes that have a part of that
        self.alone: list[OpActor] = []  # ops that take time, or are no part of a tape for another reason
        self.pieces: list[_Piece] = []
        self.open: dict[Lane | None, _Piece] = {}  # the last piece on each lane
        self.begun: defaultdict[Lane | None, int] = defaultdict(int)  # how many long ops each lane has had


def find_tapes(
    ops: Collection[OpActor],
    first: Iterable[OpActor],
    uses: Iterable[VariableUse],
    lanes: Mapping[OpActor, Lane] = _AS_PLANNED,
) -> Steps[list[_Unit]]:
    """The ops that fire as one.

    Args:
        ops: Of a program.
        first: Those that wait for nothing, in the order in which they fire.
        uses: Turns at variables that they wait for.
        lanes: Lanes of ops, where they are not those of the plan.
    Returns:
        All ops, those of a tape together, each such unit behind those that it reads from.
    """
    classes = [_Class(frozenset())]
    known: dict[Hashable, int] = {}

    def numbered(key: Hashable, components: frozenset[int]) -> int:
        number = known.get(key)
        if number is None:
            number = known[key] = len(classes)
            classes.append(_Class(components))
        return number

    def behind(number: int, lane: Lane) -> int:
        """The class of what the loop tells of ops of a class on a lane, as far as that has come."""
        begun = classes[number].begun[lane]
        before = frozenset([number]) if not begun else frozenset([number, known.get((number, lane, begun - 1), number)])
        return numbered((number, lane, begun), before)

    def lane_of(op: OpActor) -> Lane:
        return lanes.get(op, op.lane)

    before: defaultdict[OpActor, set[int]] = defaultdict(set)  # classes that have a part of what is in front
    waits: defaultdict[OpActor, int] = defaultdict(int)
    for op in ops:
        for follower in op.followers:
            waits[follower] += 1
        yield
    for use in uses:
        turn = numbered(use, frozenset([0]))
        for follower in use.followers:
            before[follower].add(turn)
    for op in _as_they_fire([*first, *[op for op in ops if op not in waits]], waits):
        number, lane = _class_of(before.pop(op, set()), classes, numbered), lane_of(op)
        is_short = _is_short(op)
        if is_short or _joins(op):
            if not is_short and not number:  # what is on the loop may be on several lanes
                number = numbered(lane, frozenset([0]))
            others = [
                each for each in op.followers if lane_of(each) is not lane or not (_is_short(each) or _joins(each))
            ]
            _append(classes[number], op, lane if number else None, is_short, bool(number and others))
            for follower in op.followers:
                # From lane to lane they are told by the loop, and are no pieces of one order.
                away = number and lane_of(follower) is not lane
                before[follower].add(behind(number, lane) if away else number)
        else:
            classes[number].alone.append(op)
            own = numbered(op, frozenset([number]))
            for follower in op.followers:
                before[follower].add(own)
        yield
    return [
        unit
        for each in classes
        for unit in (*(tuple(piece.ops) for piece in each.pieces), *((op,) for op in each.alone))
    ]


def _as_they_fire(first: Iterable[OpActor], waits: dict[OpActor, int]) -> Iterator[OpActor]:
    """All ops in the order in which they would fire one by one, if none of them took any time."""
    ready = deque(dict.fromkeys(first))
    while ready:
        yield (op := ready.popleft())
        for follower in op.followers:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)


def _class_of(found: set[int], classes: Sequence[_Class], numbered: Callable[[Hashable, frozenset[int]], int]) -> int:
    """The class of all that some classes have in front of them; a class comes behind those that it is made of."""
    if len(found) > 1:
        found = found.difference(*[classes[number].components for number in found])
    if len(found) < 2:
        return next(iter(found), 0)
    together = frozenset(found)
    return numbered(together, together | {0})


def _is_short(op: OpActor) -> bool:
    limit_ns = op.inline_ns if LIMITS.short_ns is None else LIMITS.short_ns
    return op.inline_ns >= 0 and op.attempts is None and not op.updates and op.cost_ns <= limit_ns


def _joins(op: OpActor) -> bool:
    """Return whether a long op may be a part of a piece of work on its lane."""
    return op.joins and op.inline_ns >= 0 and op.attempts is None and not op.updates


def _append(members: _Class, op: OpActor, lane: Lane | None, is_short: bool, is_awaited: bool) -> None:
    """Add an op to the last piece on its lane, or begin another one.

    Nobody who is told when a piece has ended is late for what is long, nor for more than a tape's time.
    """
    piece = members.open.get(lane)
    if piece is not None:
        is_late = piece.is_awaited or not (piece.is_long or not is_short)
        has_turn = op.turnstile is not None
        if (
            (piece.is_awaited and not is_short)
            or (is_late and piece.spent_ns + op.cost_ns > LIMITS.tape_ns)
            or len(piece.ops) >= LIMITS.ops
            or (has_turn and piece.is_long)
            or (piece.has_turns and not is_short)
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
    piece.is_awaited |= is_awaited
    piece.has_turns |= op.turnstile is not None
