"""From a program to one with tapes: which ops fire as one, by what their calls have taken.

Whatever takes time (a long op, a task, a copy, a turn at a variable) lies in front of an op or does not. Ops that have
the same of it in front of them may be computed as soon as it is there, one behind the other. They are a class, and the
pieces of a class, in the order in which its ops would fire one by one, are its tapes. So no op waits for what it would
not have waited for by itself, and no two tapes wait for each other: a message leads to a later piece of the same class,
or to a class that has more in front of it.

An op that takes time may be followed on a tape, too, where all that has not fired yet waits for it: then nothing could
run beside it, and nothing is late for being told at the end of the tape.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from actorflow.actors.blob import BlobActor
from actorflow.actors.op import FOREVER_NS, OpActor, Wiring
from actorflow.actors.tape import TapeActor
from actorflow.actors.variable import VariableUse
from actorflow.devices.base import Lane
from actorflow.loop import Steps

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
        chain_ns: Longest expected time of a tape of a lane, of ops each of which all that follow wait for.
    """

    tape_ns: int = 100_000
    ops: int = 1_000
    frames: int = 4
    short_ns: int | None = None
    chain_ns: int = 10_000_000


#: Tests have others.
LIMITS = Limits()
_GROWTH = 4


class Pace:
    """Says when a program's tapes are looked at.

    Attributes:
        left: Number of frames until then.
    """

    __slots__ = ("_frames", "left")

    def __init__(self, may_have_tapes: bool) -> None:
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
    units = yield from find_tapes(base.ops, base.first, base.uses)
    if {unit for unit in units if len(unit) > 1} == program.tapes:
        return program
    joining = Joining(base, program.pace)
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
        pending: Number of messages that each mailbox waits for.
        owned: Slots that one tape reads alone, so that nobody has to count their readers.
    """

    def __init__(self, base: Program, pace: Pace) -> None:
        self.receivers: dict[OpActor, OpActor] = {}
        self.ops: list[OpActor] = []
        self.tapes: set[_Unit] = set()
        self.twins: dict[OpActor, OpActor] = {}
        self.pending = base.pending.copy()
        self.owned: set[int] = set()
        self._readers = base.readers_of_shared()
        self._pace = pace

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
        twin = op.twin(followers, freed)
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
            key=first.key,
            inputs=tuple([blob for op in unit for blob in op.inputs if blob not in within]),
            freed=(),
            outputs=tuple(written),
            unread=(),
            followers=tuple(outer),
            lane=first.lane,
            profile=first.profile,
        )
        return TapeActor(wiring, parts=parts, changed=self._pace.look_now)

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


class _Class:
    """Ops that have the same in front of them."""

    def __init__(self, components: frozenset[int]) -> None:
        self.components = components  # classes that have a part of that
        self.pieces: list[list[OpActor]] = []
        self.open: dict[Lane | None, tuple[list[OpActor], int]] = {}  # the last piece on each lane, and its time


def find_tapes(ops: Collection[OpActor], first: Iterable[OpActor], uses: Iterable[VariableUse]) -> Steps[list[_Unit]]:
    """The ops that fire as one.

    Args:
        ops: Of a program.
        first: Those that wait for nothing, in the order in which they fire.
        uses: Turns at variables that they wait for.
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
    chain: list[OpActor] = []
    behind = left_ns = -1  # of the chain: the class of what follows it, and how much longer it may get
    for op, is_only in _as_they_fire([*first, *[op for op in ops if op not in waits]], waits):
        number = _class_of(before.pop(op, set()), classes, numbered)
        in_chain = is_only and op.turnstile is None and _may_be_joined(op)
        left_ns -= op.cost_ns
        if in_chain and number == behind and left_ns >= 0 and op.lane is chain[0].lane:
            chain.append(op)
            for follower in op.followers:
                before[follower].add(behind)
        elif _is_short(op):
            left_ns = -1
            _append(classes[number], op, op.lane if number else None)
            for follower in op.followers:
                # From lane to lane they are told by the loop, and are no pieces of one order.
                away = number and follower.lane is not op.lane
                before[follower].add(numbered((number, op.lane), frozenset([number])) if away else number)
        else:
            behind = numbered(op, frozenset([number]))
            for follower in op.followers:
                before[follower].add(behind)
            chain, left_ns = [op], LIMITS.chain_ns - op.cost_ns if in_chain else -1
            classes[number].pieces.append(chain)
        yield
    return [tuple(piece) for each in classes for piece in each.pieces]


def _as_they_fire(first: Iterable[OpActor], waits: dict[OpActor, int]) -> Iterator[tuple[OpActor, bool]]:
    """All ops in the order in which they would fire one by one, if none of them took any time.

    And whether no other one is ready then: those that have not fired yet wait for this one, all of them.
    """
    ready = deque(dict.fromkeys(first))
    while ready:
        op = ready.popleft()
        yield op, not ready
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
    return op.cost_ns <= limit_ns and _may_be_joined(op)


def _may_be_joined(op: OpActor) -> bool:
    return op.inline_ns >= 0 and op.attempts is None and not op.updates


def _append(members: _Class, op: OpActor, lane: Lane | None) -> None:
    piece, spent_ns = members.open.get(lane, (None, 0))
    spent_ns += op.cost_ns
    if piece is None or spent_ns > LIMITS.tape_ns or len(piece) >= LIMITS.ops:
        piece, spent_ns = [], op.cost_ns
        members.pieces.append(piece)
    piece.append(op)
    members.open[lane] = piece, spent_ns
