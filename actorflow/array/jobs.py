"""Jobs: records that are computed together, called one by one or as programs.

The steps of a training are recorded again and again, with other values. Their structure is a key: operations, shapes,
dtypes, which of them reads what, and which values are wanted. From the second time on, a program computes what has a
key. What differs from step to step is given to it, like values: numbers, bounds of slices, streams of random numbers.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from sys import getrefcount
from traceback import clear_frames
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.record.placement import accelerator_of
from actorflow.array.record.primitives import LARGE, as_recorded, compact, copied, touched
from actorflow.array.record.record import HOST, Error, InterruptedStepError, Record, bytes_of, called, site_of
from actorflow.array.record.steps import Description, Part, common, describe
from actorflow.core import clock_ns, desk
from actorflow.errors import DeviceError, OpError, OutOfMemoryError
from actorflow.ops.step import StepError
from actorflow.runtime.interrupts import interruptible
from actorflow.runtime.recent import RecentCache
from actorflow.spec import TensorSpec
from actorflow.threads import simulation

if TYPE_CHECKING:
    from actorflow.array.sessions import Session
    from actorflow.array.transforms.to_graph import Program
    from actorflow.runtime.service import Service

#: Structures that are kept, and the lines that begin some.
_MOST_STRUCTURES = 256
_MOST_STARTS = 1_024
#: Least operations between two lines that begin the same structure.
_LEAST_BETWEEN = 16
#: Most operations of a structure: a program is planned, some 300 us for each.
_MOST_STEPS = 512
#: Most graphs that differ in numbers alone; beyond that, the numbers are fed.
_MOST_VARIANTS = 4
#: Fewest operations whose structure is looked at.
_FEWEST = 4
#: Bytes of a value from which on reuse of its memory is worth a check.
_REUSED_BYTES = 4_096
#: Most operations of accelerators that are one graph.
_MOST_PLACED = 256
_LOST = "it was being computed in the parent process when this one was forked from it"


def _calibrate() -> tuple[int, int]:
    """Reference counts of an item of a tuple, and of a value in a list and one more place."""
    node = (np.empty(2),), [np.empty(2)]
    values = [*node[1]]
    return getrefcount(node[0][0]), getrefcount(values[0])


_IN_INPUTS, _IN_RECORD = _calibrate()


class Job:
    """Records that one thread computes, or the service.

    Args:
        session, nodes: Their session, and the records, in order.
        wanted: The records whose values are wanted even if no array shows them.
        asked: Under a budget, the numbers of the records that somebody waits for.

    Attributes:
        parts: The pieces that are computed one after the other.
        is_full: Whether there was no room for something that nobody waits for. What is left is then computed only where
            somebody does: else it would hold the room of what comes before it.
        needs_service: Whether a part of it is for the service alone.
        is_served: Whether the service computes it.
        interrupt: The exception that has interrupted the service, for the thread that waits.
    """

    def __init__(self, session: Session, nodes: list[Record], wanted: set[Record], asked: set[int]) -> None:
        self.asked = asked
        self.is_full = False
        self.is_served = False
        self.interrupt: BaseException | None = None
        self.parts = [*_parts(session, nodes, wanted)]
        self.needs_service = any(part.needs_service for part in self.parts)
        for node in nodes:  # at the end: records of a plan that has failed are planned again
            node.unit = self

    def compute(self, refusal: BaseException | None) -> None:
        """Compute it in the calling thread; ``refusal`` says why there is no service for what only that can compute.

        Records that an interrupt leaves are computed by the next one who asks.
        """
        for part in self.parts:
            if isinstance(part, Run) and part.description.is_placed:
                part.fail(refusal or DeviceError("there is no service"))
            else:
                part.compute()

    async def serve(self, service: Service) -> None:
        """Compute it on a service."""
        try:
            for part in self.parts:
                await part.serve(service)
        except InterruptedStepError as error:
            self.interrupt = error.__cause__
        except BaseException as error:  # noqa: BLE001  raised to all who ask for the values
            for part in self.parts:
                part.fail(error)

    def end(self) -> list[Record]:
        """Let go of the records; returns those that have no values. With the session's lock held."""
        return [node for part in self.parts for node in part.end()]


class Steps:
    """Records that are called one by one, in order; each lets go of what it has read.

    Attributes:
        shared: How many of them repeated others.
        calls: The calls for the profile: name of the operation, nanoseconds, and whether it has failed.
    """

    needs_service = is_program = False

    def __init__(self, session: Session, nodes: list[Record]) -> None:
        self._session = session
        self._left = nodes[::-1]  # the next one at the end
        self._spoiled: Record | None = None  # one whose input is being written over
        self.shared = 0
        self.calls: list[tuple[str, int, bool]] = []

    def compute(self) -> None:
        """Compute those that are left."""
        left = self._left
        same, twins = _common(left[::-1]) if len(left) > 1 else ({}, set())
        self.shared = len(same)
        with np.errstate(all="ignore"):
            while left:
                if same and (first := same.pop(left[-1], None)) is not None:
                    self._repeat(left[-1], first, left[-1] in twins)
                    del first
                else:
                    self._compute(left[-1])
                if left[-1].done:
                    left[-1].inputs = ()
                    if left[-1].is_held():
                        self._compact(left[-1])
                left[-1].unit = None
                twins.discard(left.pop())

    def _repeat(self, node: Record, first: Record, is_twin: bool) -> None:
        node.value, node.error = first.value, first.error
        if is_twin and node.value is not None:
            node.value = copied(node.value)
            self._session.memory.count(node.value)

    async def serve(self, service: Service) -> None:
        """Compute it on a service."""
        await service.call(partial(called, self.compute))

    def fail(self, error: BaseException) -> None:
        """Note why there are no values."""
        for node in self._left:
            node.error = explain(node, error)

    def end(self) -> list[Record]:
        """Let go of the records as soon as they are computed; returns those that have no values."""
        nodes, self._left = self._left[::-1], []
        spoiled, self._spoiled = self._spoiled, None
        for node in nodes:
            node.unit = None
            if node is spoiled and not node.done:
                node.error = explain(node, DeviceError(_LOST))
            if node.done:
                node.inputs = ()
        return [node for node in nodes if not node.done]

    def _compute(self, node: Record) -> None:
        op: Any = node.op
        values: list[Any] = []
        for each in node.inputs:
            if type(each) is Record:
                if each.error is not None:
                    node.error = each.error
                    return
                if each.value is None:  # there was no room for it
                    return
                values.append(each.value)
            else:
                values.append(each)
        each = None  # type: ignore[assignment]  # it would count as a reference
        over = self._free_input(node, values)
        self._spoiled = None if over is None else node
        if self._session.is_limited:
            error = self._session.admit(node, 0 if over is not None else bytes_of(node))
            if error is not None or node.unit is None:
                node.error = error
                return
        begin_ns = clock_ns()
        try:
            if op.into:
                found = values[over] if over is not None else np.empty(node.shape, node.dtype)
                op.compute(*values, *node.params, out=found)
            else:
                found = as_recorded(interruptible(op.compute, [*values, *node.params]), node.shape, node.dtype)
        except Exception as error:  # noqa: BLE001  raised to all who ask for the value
            values.clear()  # the error's traceback refers to this frame
            node.error = explain(node, error)
            self.calls.append((op.name, clock_ns() - begin_ns, True))
            return
        except BaseException as error:  # an interrupt, for this thread
            if self._spoiled is not None:  # what was being written over may be lost
                node.error = explain(node, error)
            raise
        self._spoiled = None
        self.calls.append((op.name, clock_ns() - begin_ns, False))
        if over is None:
            self._session.memory.count(found)
        node.value = found

    def _compact(self, node: Record) -> None:
        """Have the value of a record keep no memory that is free without it."""
        value = compact(node.value, always=self._session.is_limited)
        if value is not node.value:
            self._session.memory.count(value)
            node.value = value

    def _free_input(self, node: Record, values: list[Any]) -> int | None:
        """The position of an input that the result may be written over, as nothing else refers to it."""
        op: Any = node.op
        for i in range(min(op.over, len(values)) if node.size_bytes >= _REUSED_BYTES else 0):
            if type(node.inputs[i]) is Record and self._is_free(node, i, values):
                return i
        return None

    def _is_free(self, node: Record, i: int, values: list[Any]) -> bool:
        if getrefcount(node.inputs[i]) != _IN_INPUTS or getrefcount(values[i]) != _IN_RECORD:
            return False
        value = values[i]
        is_own = type(value) is np.ndarray and value.base is None and value.flags.writeable
        return is_own and value.flags.c_contiguous and (value.shape, value.dtype) == (node.shape, node.dtype)


class Run(Steps):
    """Records that are computed by a program. If a step of it fails, they are called one by one."""

    def __init__(self, session: Session, nodes: list[Record], description: Description, structure: Structure) -> None:
        super().__init__(session, nodes)
        self.description = description
        self.steps = description.steps
        self.structure = structure
        self.needs_service = structure.is_large or description.is_placed
        self.elapsed_ns = 0  # of the program
        self.form: Any = None  # the program that has computed it

    def compute(self) -> None:
        """Compute it in the calling thread."""
        program = self.structure.program
        if program is not None and not self._are_missing():
            try:
                begin_ns = clock_ns()
                values = self.description.values()
                found = interruptible(program, (values,))
                self.elapsed_ns = clock_ns() - begin_ns
                self.form = program
                self._hand_on(found, {id(each) for each in values})
                return
            except (StepError, MemoryError):  # operations that do not need what has failed are computed all the same
                pass
        self._one_by_one()

    def _are_missing(self) -> bool:
        return any(type(each) is Record and each.value is None for each in self.description.given)

    def _one_by_one(self) -> None:
        self.description = self.description._replace(given=[], produced={})
        super().compute()

    def end(self) -> list[Record]:
        self.description = self.description._replace(given=[], produced={})
        return super().end()

    async def serve(self, service: Service) -> None:
        description = self.description
        if description.is_placed:
            await self._serve_placed(service)
            return
        if not self._are_missing():
            try:
                self._hand_on(await self._served(service, [*description.produced]), set())
                return
            except Exception as error:  # noqa: BLE001  the operations are called one by one, which says what is wrong
                if isinstance(error.__cause__, InterruptedStepError):
                    raise error.__cause__ from error.__cause__.__cause__
        await service.call(partial(called, self._one_by_one))

    async def _serve_placed(self, service: Service) -> None:
        """Compute records of accelerators. Where something fails, the results are computed one by one."""
        description = self.description
        failed: dict[Record, Error | None] = {}  # why a value is not to be had; None if there was no room for it
        nodes = self._left[::-1]
        own = {*nodes}
        for node in nodes:
            for each in node.inputs:
                if type(each) is Record and (each in failed or (each.value is None and each not in own)):
                    failed[node] = failed.get(each) or each.error
        outputs = []
        for i, node in description.produced.items():
            if self._session.is_limited and node not in failed:
                error = self._session.admit(node, bytes_of(node))
                if node.unit is None:
                    failed[node] = error
            if node in failed:
                node.error = failed[node]
            else:
                outputs.append(i)
        if outputs:
            await self._compute_some(service, outputs)
        del nodes, own, failed
        self.end()

    async def _compute_some(self, service: Service, outputs: Sequence[int]) -> None:
        """Compute some of the results of accelerators, one by one if they cannot be had together."""
        produced = self.description.produced
        try:
            found = await self._served(service, outputs)
        except BaseException as error:  # noqa: BLE001  raised to all who ask for the value
            cause = error
        else:
            for i, value in zip(outputs, found, strict=True):
                self._session.memory_of(produced[i]).count(value)
                produced[i].value = value  # its memory is the service's to use again
            self.is_program, self.shared = True, self.form.repeats
            return
        if len(outputs) > 1:  # the failure may concern only some of them; no error is shown before that is known
            del cause
            for i in outputs:
                await self._compute_some(service, [i])
            return
        at = outputs[0]
        if isinstance(cause, OpError) and self.form is not None:
            at, cause = self.form.step_of(cause), cause.__cause__ or cause
        failed = self._left[-1 - at]
        produced[outputs[0]].error = explain(failed, cause)
        self.calls.append((failed.name, 0, True))

    async def _served(self, service: Service, outputs: Sequence[int]) -> list[Any]:
        description = self.description
        self.form = None
        self.form = form = self.structure.served(service, description, outputs, self._session.capture)
        values = description.values()
        begin_ns = clock_ns()
        found = await form.serve(service, values)
        self.elapsed_ns += clock_ns() - begin_ns
        return found

    def _hand_on(self, found: Sequence[Any], known: set[int]) -> None:
        """Give the records their values, of which those that are known count already."""
        memory = self._session.memory
        for node, value in zip(self.description.produced.values(), found, strict=True):
            if id(value) not in known:
                known.add(id(value))
                memory.count(value)
            node.value = value  # its memory is the program's to use again
        self.is_program, self.shared = True, self.form.repeats
        self.end()


def _parts(session: Session, nodes: list[Record], wanted: set[Record]) -> Iterator[Steps | Run]:
    if desk.placing is not None and any(accelerator_of(node) is not None for node in nodes):
        if session.is_limited:  # each waits for room
            for is_placed, some in groupby(nodes, lambda node: accelerator_of(node) is not None):
                own = [*some]
                if is_placed:
                    for node in own:
                        yield _run(session, [node], {node}, is_placed=True)
                else:
                    yield Steps(session, own)
            return
        parts = [nodes[i : i + _MOST_PLACED] for i in range(0, len(nodes), _MOST_PLACED)]
        for i, own in enumerate(parts):
            later = {each for part in parts[i + 1 :] for node in part for each in node.inputs if type(each) is Record}
            yield _run(session, own, wanted | later, is_placed=True)
        return
    op: Any = nodes[0].op
    # A large reduction alone is a program, too, for its exacter sums.
    is_few = len(nodes) < _FEWEST and not ((len(nodes) > 1 or op.reduction) and _has_large(nodes))
    if is_few or not session.takes_programs:
        yield Steps(session, nodes)
        return
    stretches = structures.stretches(nodes)
    if len(stretches) > 1 and _have_common(stretches):
        stretches = [nodes] if len(nodes) <= _MOST_STEPS else []
    runs: list[tuple[list[Record], Run | None]] = []
    for own in reversed(stretches):
        run = _run(session, own, wanted) if len(own) <= _MOST_STEPS else None
        runs.append((own, run))
        if run is None:
            wanted.update([each for node in own for each in node.inputs if type(each) is Record])
        else:
            wanted.update([each for each in run.description.given if type(each) is Record])
    rest: list[Record] = [] if stretches else nodes
    for own, run in reversed(runs):
        if run is None or not (run.needs_service or run.structure.times_met > 1):
            rest = [*rest, *own]
            continue
        if rest:
            yield Steps(session, rest)
            rest = []
        structures.begin(own[0])
        if not run.needs_service and run.structure.program is None:
            run.structure.program = _program(run.description, [*run.description.produced], {}, is_served=False)
        yield run
    if rest:
        yield Steps(session, rest)


def _run(session: Session, nodes: list[Record], wanted: set[Record], is_placed: bool = False) -> Run:
    description = describe(nodes, wanted, is_placed)
    structure = structures.known.get(description.key)
    if structure is None:
        structure = Structure(not is_placed and _has_large(nodes))
        structures.known.put(description.key, structure)
    structure.times_met += 1
    return Run(session, nodes, description, structure)


def _has_large(nodes: Iterable[Record]) -> bool:
    """Return whether an operation takes so long that it is worth a thread of its own."""
    return any(touched(node.op, node.inputs, node.size) > LARGE for node in nodes)  # type: ignore[arg-type]


def _have_common(stretches: list[list[Record]]) -> bool:
    """Return whether an operation that is more than a view or a constant repeats one of another stretch."""
    of: dict[Any, int] = {node: i for i, own in enumerate(stretches) for node in own}
    return any(
        of[node] != of[first] and not first.op.view and any(type(each) is Record for each in first.inputs)  # type: ignore[union-attr]
        for node, first in _common(of)[0].items()
    )


def _common(nodes: Iterable[Record]) -> tuple[dict[Record, Record], set[Record]]:
    return common([(node, node, node.inputs) for node in nodes])


def explain(node: Record, cause: BaseException) -> Error:
    """The error of a record whose computation has raised something; a step before may have handed it on."""
    if cause.__traceback__ is not None:
        clear_frames(cause.__traceback__)  # frames refer to values
    if isinstance(cause, OpError | OutOfMemoryError):
        return cause
    place = accelerator_of(node) or node.place
    inputs = [
        SimpleNamespace(name=f"argument {i}", spec=TensorSpec(x.shape, x.dtype), place=place)
        for i, x in enumerate(node.inputs)
    ]
    failed: Any = SimpleNamespace(name=node.name, site=site_of(node.origin), inputs=inputs, operation="array operation")
    return OpError.of(failed, cause)


# -- structures --------------------------------------------------------------------------------------------------


class Structure:
    """Knowledge of records of one structure.

    Attributes:
        is_large: Whether an operation is worth a thread of its own, so that the service computes them.
        times_met: How often there were records of it.
        program: Computes them; None if it was not needed yet, or the service does.
    """

    def __init__(self, is_large: bool) -> None:
        self.is_large = is_large
        self.times_met = 0
        self.program: Program | None = None
        self._variants: set[Hashable] = set()  # numbers that graphs were made for

    def served(self, service: Service, description: Description, outputs: Sequence[int], capture: bool) -> Program:
        """The program of some results, which a service keeps."""
        numbers = self._numbers(description) if description.is_placed else {}
        return service.kept(
            (description.key, tuple(outputs), tuple(numbers.items())),
            lambda: _program(description, outputs, numbers, is_served=True, capture=capture),
        )

    def _numbers(self, description: Description) -> dict[int, bytes]:
        """The numbers that are made part of a graph, by position: not where others come again and again."""
        given = description.given
        numbers = {i: x.tobytes() for i, x in enumerate(given) if type(x) is np.ndarray and not x.shape}
        if len(self._variants) < _MOST_VARIANTS:
            self._variants.add(tuple(numbers.values()))
        return numbers if tuple(numbers.values()) in self._variants else {}


def _program(description: Description, outputs: Sequence[int], numbers: Container[int], **options: bool) -> Program:
    from actorflow.array.transforms.to_graph import Given, Program

    types = []
    for i, each in enumerate(description.given):
        if isinstance(each, Part):
            types.append(Given(each.spec, each.place))
        elif isinstance(each, Record):
            types.append(Given(TensorSpec(each.shape, each.dtype), each.place))
        elif isinstance(each, np.ndarray):
            types.append(Given(TensorSpec(each.shape, each.dtype), HOST, each if i in numbers else None))
        else:
            types.append(Given(None))
    return Program(description.steps, types, outputs, **options)


class Structures:
    """The structures that were seen last, and the lines that began them."""

    def __init__(self) -> None:
        self.forget()
        simulation.forgets.append(self.forget)

    def forget(self) -> None:
        """Begin without any."""
        self.known: RecentCache[Structure] = RecentCache(_MOST_STRUCTURES)
        #: By the identity of the code, which is kept, since a hash of it takes a hash of all its constants.
        self._starts: dict[tuple[int, int], CodeType] = {}

    def begin(self, node: Record) -> None:
        """Remember that a structure that has come again begins with a record."""
        if _start_of(node) not in self._starts:
            if len(self._starts) >= _MOST_STARTS:
                self._starts.clear()
            self._starts[_start_of(node)] = node._code

    def stretches(self, nodes: list[Record]) -> list[list[Record]]:
        """Records in order, cut where the line comes again that began them, or one that has begun others."""
        cuts, first = [0], _start_of(nodes[0])
        for i, node in enumerate(nodes):
            if i >= cuts[-1] + _LEAST_BETWEEN and ((at := _start_of(node)) == first or at in self._starts):
                cuts.append(i)
                first = at
        return [nodes[start:stop] for start, stop in pairwise([*cuts, len(nodes)])]


def _start_of(node: Record) -> tuple[int, int]:
    """The line that recorded it, as long as there is its code."""
    return id(node._code), node._instruction


structures = Structures()
