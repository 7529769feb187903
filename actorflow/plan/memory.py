"""Memory that a plan takes. Pure: works on the plan's ops and slots alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.devices.memory import SHARED_BYTES
from actorflow.errors import GraphError
from actorflow.graph.nodes import Variable
from actorflow.loop import Steps
from actorflow.ops.collective import AllReduce
from actorflow.ops.transfer import Receive, Stage, Transfer
from actorflow.place import Place

if TYPE_CHECKING:
    from actorflow.plan.plan import PlannedOp, Slot

_MESSAGES = (AllReduce, Receive, Stage, Transfer)
#: Most pieces of memory that are tried for a value: of a training, thousands may be taken at once.
_MOST_LOOKED_AT = 32
#: A value takes no memory of more times its size: ops on several lanes may need pieces that the plan's order does not.
_MOST_TIMES = 4
#: Ops, or values, that a step looks at.
_OPS_PER_STEP = 16


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one frame.

    Attributes:
        variable_bytes: Variables that the plan reads or updates; they outlive the frame.
        constant_bytes: Constants that its frames read, which all of them share.
        peak_bytes: Most that a frame holds besides, when its ops run one after the other in the order of the plan.
        total_bytes: All values of a frame together: its memory if nothing were given back.
        peak_slots: The values held at the peak, and the bytes of each, largest first.
        peak_op: Name of the op at which the peak is reached.
    """

    variable_bytes: int
    constant_bytes: int
    peak_bytes: int
    total_bytes: int
    peak_slots: tuple[tuple[str, int], ...]
    peak_op: str

    def __str__(self) -> str:
        rows = [f"  {size:>15,}  {name}" for name, size in self.peak_slots[:20]]
        if len(self.peak_slots) > 20:
            rows.append(f"  {sum(size for _, size in self.peak_slots[20:]):>15,}  {len(self.peak_slots) - 20} more")
        return "\n".join(
            [
                f"variables: {self.variable_bytes:,} bytes",
                *([f"constants: {self.constant_bytes:,} bytes"] if self.constant_bytes else []),
                f"one frame: {self.peak_bytes:,} bytes at its peak, {self.total_bytes:,} if nothing were given back",
                f"held at the peak, op {self.peak_op!r}:",
                *rows,
            ]
        )


def slot_charges(ops: Sequence[PlannedOp], slots: Sequence[Slot]) -> list[int]:
    """Bytes that each slot takes: 0 for feeds, for variables' current values and for Python objects."""
    charges = [0] * len(slots)
    for op in ops:
        for index in op.outputs:
            spec = slots[index].spec
            if not spec.dtype.hasobject:
                charges[index] = spec.size_bytes
        # A view keeps its base.
        if op.kernel is not None and op.kernel.returns:
            viewed = max((charges[index] for index in op.inputs), default=0)
            for index in op.outputs:
                charges[index] = max(charges[index], viewed)
        if op.bodies and op.outputs:  # the memory of its bodies counts as long as its first output is there
            peaks = [0 if isinstance(body, GraphError) else body.footprint().peak_bytes for body in op.bodies]
            charges[op.outputs[0]] += max(peaks) * getattr(op.operation, "bodies_at_once", 1)
    return charges


def rooms_of(ops: Sequence[PlannedOp], slots: Sequence[Slot]) -> Steps[dict[int, int]]:
    """Bytes of the memory that each large value takes, which others have while it is not there.

    Each gets the smallest memory that is free from when it is made until it is last read, in the order of the plan: the
    largest values first. Memory of sizes between two powers of two is as large as the largest of it.

    Fetched values, values that may be written over them, and copies by devices have memory of their own.
    """
    begins: dict[int, int] = {}
    ends = [len(ops)] * len(slots)
    for at, (_, allocated, freed) in enumerate(_steps(ops, slots)):
        begins.update(dict.fromkeys(allocated, at))
        for index in freed:
            ends[index] = at
        if not at % _OPS_PER_STEP:
            yield
    sizes: dict[Place, dict[int, int]] = {}
    own: set[int] = set()
    over: dict[int, int] = {}  # the value that another is written over
    for op in reversed(ops):
        kernel = op.kernel
        is_plain = kernel is not None and not kernel.returns and not isinstance(op.operation, _MESSAGES)
        for index in op.outputs:
            slot = slots[index]
            if index in own or not is_plain or slot.is_fetched or slot.updates is not None or slot.spec.dtype.hasobject:
                own.add(index)
            elif slot.spec.size_bytes >= SHARED_BYTES:
                sizes.setdefault(slot.place, {})[index] = slot.spec.size_bytes
        kept = op.inputs if kernel is not None and kernel.returns else ()  # a view keeps its base
        if kernel is not None and kernel.inplace:
            first, y = op.inputs[0], op.outputs[0]
            if y in own:
                own.add(first)
            elif slots[first].readers == 1 and slots[first].spec == slots[y].spec:
                over[y], kept = first, (first,)
        last = max((ends[index] for index in op.outputs), default=0)
        for index in kept:
            ends[index] = max(ends[index], last)
        if not op.index % _OPS_PER_STEP:
            yield
    rooms: dict[int, int] = {}
    for of_place in sizes.values():
        yield from _place(of_place, over, begins, ends, rooms)
    return rooms


def _place(
    sizes: Mapping[int, int],
    over: Mapping[int, int],
    begins: Mapping[int, int],
    ends: Sequence[int],
    rooms: dict[int, int],
) -> Steps[None]:
    """Find the bytes of the memory for each value of one place, by the values' bytes, and when they are there."""
    largest: dict[int, int] = {}  # memory, by the order of its size
    pieces: list[tuple[int, list[int], list[int]]] = []  # memory, the largest first, and when it is taken
    for n, (index, size) in enumerate(sorted(sizes.items(), key=lambda each: -each[1])):
        if not n % _OPS_PER_STEP:
            yield
        if over.get(index) in sizes:
            continue
        begin, end, at = begins[index], ends[index], 0
        for room, starts, stops in pieces[: -_MOST_LOOKED_AT - 1 : -1]:
            at = bisect_right(starts, end)
            if room <= _MOST_TIMES * size and (not at or stops[at - 1] < begin):
                break
        else:
            room, starts, stops, at = largest.setdefault((size - 1).bit_length(), size), [], [], 0
            pieces.append((room, starts, stops))
        starts.insert(at, begin)
        stops.insert(at, end)
        rooms[index] = room
    for index in sizes:
        root = index
        while over.get(root) in sizes:
            root = over[root]
        rooms[index] = rooms[root]


def places_of(slots: Sequence[Slot]) -> tuple[Place, ...]:
    """All places where a plan has values."""
    return tuple({slot.place: None for slot in slots})


def footprint(ops: Sequence[PlannedOp], slots: Sequence[Slot], place: Place | None = None) -> Footprint:
    """Follow the plan op by op; for one place, or for all together."""
    charges = slot_charges(ops, slots)
    if place is not None:
        charges = [charge if slot.place == place else 0 for charge, slot in zip(charges, slots, strict=True)]
    peak_bytes, peak_at, held = 0, 0, 0
    for op, allocated, freed in _steps(ops, slots):
        held += sum(charges[index] for index in allocated)
        if held > peak_bytes:
            peak_bytes, peak_at = held, op.index
        held -= sum(charges[index] for index in freed)
    live: set[int] = set()
    for op, allocated, freed in _steps(ops, slots):
        live.update(allocated)
        if op.index == peak_at:
            break
        live.difference_update(freed)
    variables = {
        slot.blob for slot in slots if isinstance(slot.blob, Variable) and (place is None or slot.blob.place == place)
    }
    rows = sorted(((slots[i].blob.name, charges[i]) for i in live if charges[i]), key=lambda row: (-row[1], row[0]))
    return Footprint(
        variable_bytes=sum(variable.spec.size_bytes for variable in variables),
        constant_bytes=sum(
            slot.spec.size_bytes
            for slot in slots
            if slot.is_constant and slot.readers and (place is None or slot.place == place)
        ),
        peak_bytes=peak_bytes,
        total_bytes=sum(charges),
        peak_slots=tuple(rows),
        peak_op=ops[peak_at].site.name if ops else "",
    )


def _steps(ops: Sequence[PlannedOp], slots: Sequence[Slot]) -> Iterator[tuple[PlannedOp, Sequence[int], Sequence[int]]]:
    readers = [slot.readers for slot in slots]
    read_slot = {slot.blob: slot.index for slot in slots if isinstance(slot.blob, Variable) and slot.updates is None}
    replaced: dict[int, int] = {}
    for op in ops:
        freed = []
        for index in op.outputs:
            variable = slots[index].updates
            if variable is None:
                if not readers[index]:
                    freed.append(index)
            elif readers[read_slot[variable]]:
                replaced[read_slot[variable]] = index  # the old value stays as long as the frame reads it
            else:
                freed.append(index)
        for index in op.inputs:
            readers[index] -= 1
            if not readers[index]:
                freed.append(replaced.get(index, index))
        yield op, op.outputs, freed
