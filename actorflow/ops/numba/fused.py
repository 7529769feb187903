"""Chains of elementwise operations: those steps that NumPy and compiled code compute alike, several in one loop.

These are sums, products, quotients, square roots, comparisons and choices: results are NumPy's to the bit, so it makes
no difference when a loop is compiled. Exponentials and the like are left to NumPy, which computes them by vectors.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np

from actorflow.ops import elementwise as ew
from actorflow.ops import registry
from actorflow.ops.cpu import blocks
from actorflow.ops.cpu import fused as numpys
from actorflow.ops.cpu.blocks import Chain, ChainStep
from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.parallel import Finish
from actorflow.ops.fused import Followed, Fused
from actorflow.ops.nn import activation
from actorflow.ops.numba.following import Following, bits_of, follower
from actorflow.ops.numba.kernels import are_plain
from actorflow.ops.numba.routine import Routine
from actorflow.ops.operation import Operation
from actorflow.ops.step import StepError
from actorflow.spec import TensorSpec

_LARGER = "{0} if {0} > {1} or {0} != {0} else {1}"
_SMALLER = "{0} if {0} < {1} or {0} != {0} else {1}"
#: Python of one element, of the arguments and then the parameters.
_TEXTS: dict[type[Operation], str] = {
    ew.Subtract: "{0} - {1}",
    ew.Multiply: "{0} * {1}",
    ew.Divide: "{0} / {1}",
    ew.Scale: "{0} * {1}",
    ew.Negative: "-{0}",
    ew.Positive: "{0}",
    ew.Absolute: "abs({0})",
    ew.Square: "{0} * {0}",
    ew.Reciprocal: "one / {0}",
    ew.Sqrt: "sqrt({0})",
    ew.Maximum: _LARGER,
    ew.AtLeast: _LARGER,
    ew.Minimum: _SMALLER,
    ew.AtMost: _SMALLER,
    ew.Equal: "{0} == {1}",
    ew.NotEqual: "{0} != {1}",
    ew.Less: "{0} < {1}",
    ew.LessEqual: "{0} <= {1}",
    ew.Greater: "{0} > {1}",
    ew.GreaterEqual: "{0} >= {1}",
    ew.IsNan: "{0} != {0}",
    ew.LogicalNot: "not {0}",
    ew.LogicalAnd: "{0} and {1}",
    ew.LogicalOr: "{0} or {1}",
    ew.Where: "{1} if {0} else {2}",
    ew.Cast: "one if {0} else zero",  # of truths: other dtypes are not in one loop
    activation.Relu: "{0} if {0} > zero or {0} != {0} else zero",
    activation.ReluDown: "{0} if {1} > zero else zero",
}
_BOOL = np.dtype(np.bool_)


def _text(operation: Operation, count: int) -> str | None:
    """Python of one element; None for what is left to NumPy."""
    if isinstance(operation, ew.Sum):
        return " + ".join(f"{{{i}}}" for i in range(count))
    return _TEXTS.get(type(operation))


class _Line(NamedTuple):
    """One step in a loop.

    Attributes:
        kind: The operation.
        text: Python of one element.
        arguments: Positions among the arrays, numbers and lines before, in this order.
        compute: NumPy's function.
        dtype: Dtype of the value.
    """

    kind: type[Operation]
    text: str
    arguments: tuple[int, ...]
    compute: Callable[..., Any]
    dtype: np.dtype[Any]


class _Loop:
    """Several steps in one loop, with one result.

    Args:
        lines: The steps; the last one is the result.
        widths: For each array how its elements are found: 0 if it has all of a block, 1 if it is one element, else the
            number of elements that each row takes anew.
        numbers: Numbers of the steps.
        dtype: Dtype of all but truths.
    """

    def __init__(
        self, lines: Sequence[_Line], widths: Sequence[int], numbers: Sequence[float], dtype: np.dtype[Any]
    ) -> None:
        self._lines = lines
        self._widths = tuple(widths)
        self._numbers = tuple(numbers)
        self._dtype = dtype
        self._width = max([*widths, 0])
        self._routines: dict[int, Routine] = {}
        self._follower: Routine | None = None

    def __call__(self, *arrays: Array, out: Array) -> None:
        alias = next((k for k, array in enumerate(arrays) if array is out), -1)
        routine = self._routines.get(alias)
        if routine is None:
            lines = tuple([(line.text, line.arguments) for line in self._lines])
            routine = _routine(lines, self._widths, len(self._numbers), self._dtype.name, alias)
            self._routines[alias] = routine
        function = routine.function
        if function is None or not are_plain([*arrays, out], self._dtype):
            self._by_numpy(arrays, out)
            return
        width = self._width if self._width > 1 else out.size
        given = [id(array) for k, array in enumerate(arrays) if k != alias]
        function(*given, id(out), *self._numbers, out.size // max(1, width), width)

    def following(self, arrays: Sequence[Array], y: int) -> Following | None:
        """The loop on arrays, to be computed for some rows and columns at a time; None if that is not to be had yet.

        Args:
            arrays: What it reads.
            y: Position of the one that the result is written over.
        """
        if any(map(math.isnan, self._numbers)):
            return None
        order = [y, *[k for k in range(len(arrays)) if k != y]]
        if self._follower is None:
            place = {position: k for k, position in enumerate(order)}
            lines = tuple(
                [(line.kind, tuple([place.get(each, each) for each in line.arguments])) for line in self._lines]
            )
            widths = tuple([self._widths[k] for k in order])
            self._follower = follower(lines, widths, len(self._numbers), self._dtype.name)
            bits = [bits_of(number, self._dtype) for number in self._numbers]
            self._template = np.array([*[0] * len(order), *bits], np.int64)
        if self._follower.function is None or not are_plain([*arrays], self._dtype):
            return None
        given = self._template.copy()
        given[: len(order)] = [id(arrays[k]) for k in order]
        return Following(given, self._follower, arrays[y])

    def _by_numpy(self, arrays: Sequence[Array], out: Array) -> None:
        values: list[Any] = [*arrays, *[np.asarray(number, self._dtype) for number in self._numbers]]
        last = len(self._lines) - 1
        for i, line in enumerate(self._lines):
            taken = [values[position] for position in line.arguments]
            memory = out if i == last else scratch(f"loop {i}", out.shape, line.dtype)
            if i == last and any(each is out for each in arrays):  # which the last step may read in any order
                memory = scratch("loop", out.shape, out.dtype)
            line.compute(*taken, out=memory)
            if memory is not out and i == last:
                np.copyto(out, memory)
            values.append(memory)


@lru_cache(maxsize=4096)
def _routine(
    lines: tuple[tuple[str, tuple[int, ...]], ...], widths: tuple[int, ...], numbers: int, dtype: str, alias: int
) -> Routine:
    """The loop over rows and columns.

    Args:
        lines: Text and arguments of each step.
        widths: As for `_Loop`.
        numbers: How many there are.
        dtype: Name of the dtype.
        alias: Position of the array that the result is written over; -1 if there is none.
    """
    arrays = [f"x{k}" for k in range(len(widths))]
    given = [name for k, name in enumerate(arrays) if k != alias]
    result = "y" if alias < 0 else arrays[alias]
    given.append(result)
    names = [f"a{k}" for k in range(len(widths))] + [f"n{k}" for k in range(numbers)]
    head = [f"    a{k} = x{k}[0]" for k, width in enumerate(widths) if width == 1]
    body = [f"            a{k} = x{k}[{'c' if width else 'base + c'}]" for k, width in enumerate(widths) if width != 1]
    for text, arguments in lines:
        names.append(f"v{len(names)}")
        body.append(f"            {names[-1]} = {text.format(*[names[position] for position in arguments])}")
    scalars = [f"n{k}" for k in range(numbers)]
    source = "\n".join(
        [
            f"def chain({', '.join([*given, *scalars, 'rows', 'width'])}):",
            f"    zero, one = np.{dtype}(0), np.{dtype}(1)",
            *head,
            "    for r in range(rows):",
            "        base = r * width",
            "        for c in range(width):",
            *body,
            f"            {result}[base + c] = {names[-1]}",
        ]
    )
    return Routine(source, "chain", [*[f"{dtype}*"] * len(given), *[dtype] * numbers, "intp", "intp"])


def prepared(operation: Fused, inputs: Sequence[Array], by_rows: bool) -> numpys.Prepared:
    """A chain whose loops are compiled, on inputs of these types."""
    key = ("numba", blocks.BLOCK, by_rows, *[(x.shape, x.dtype) for x in inputs])
    found: numpys.Prepared | None = operation.prepared.get(key)
    if found is None:
        made = _Rewriter(operation, [TensorSpec(x.shape, x.dtype) for x in inputs], by_rows).prepared()
        found = operation.prepared[key] = made or numpys.prepared(operation, inputs, by_rows)
    return found


class _Rewriter:
    """Puts steps of a chain that follow each other into loops.

    A value is in memory if it is a result, if NumPy computes it, or if a step that NumPy computes reads it; others are
    computed where they are needed.
    """

    def __init__(self, operation: Fused, specs: Sequence[TensorSpec], by_rows: bool) -> None:
        self._operation = operation
        self._specs = specs
        self._by_rows = by_rows
        self._first = len(specs)
        self._found = operation.specs(specs)
        self._steps = numpys.steps_of(operation, specs)
        self._whole = np.broadcast_shapes(*[spec.shape for spec in specs])
        self._chain = Chain(self._steps, specs, self._whole, operation.results, by_rows=by_rows)
        self._in_loop = [self._may_be_in_loop(i) for i in range(len(self._steps))]

    def _width(self, position: int) -> int | None:
        """How the elements of a value are found, see `_Loop`; None if in no such way."""
        static = self._chain.static.get(position)
        if static is None:
            return 0 if position >= self._first or self._specs[position].shape == self._whole else None
        size = math.prod(static)
        own = static[next((i for i, n in enumerate(static) if n != 1), len(static)) :]
        return size if own == self._whole[len(self._whole) - len(own) :] else None

    def _kind(self, i: int) -> Operation:
        return self._operation.steps[i].operation

    def _number(self, position: int) -> Any:
        """The value of a step that is a number; None for other values."""
        value = self._steps[position - self._first].compute if position >= self._first else None
        return value.item() if isinstance(value, np.ndarray) else None

    def _may_be_in_loop(self, i: int) -> bool:
        step, position = self._steps[i], self._first + i
        if self._number(position) is not None or position in self._chain.static or not self._chain.is_plain:
            return False
        if _text(self._kind(i), len(step.arguments)) is None:
            return False
        if type(self._kind(i)) is ew.Cast and (self._found[step.arguments[0]].dtype != _BOOL or step.dtype == _BOOL):
            return False
        kinds = {self._found[position].dtype for position in (*step.arguments, position)} - {_BOOL}
        return (
            len(kinds) <= 1
            and kinds <= {np.dtype(np.float32), np.dtype(np.float64)}
            and None not in [self._width(position) for position in step.arguments]
        )

    def _stored(self) -> set[int]:
        """Steps whose values are in memory. Steps that store or read truths there are left to NumPy."""
        first, stored, before = self._first, set(self._operation.results), -1
        while len(stored) != before:
            before = len(stored)
            for i, step in reversed([*enumerate(self._steps)]):
                truths = [each for each in step.arguments if self._found[each].dtype == _BOOL]
                if (i in stored and self._found[first + i].dtype == _BOOL) or any(
                    position < first or position - first in stored for position in truths
                ):
                    self._in_loop[i] = False
                if not self._in_loop[i] and self._number(first + i) is None:
                    stored.add(i)
                    stored.update(position - first for position in step.arguments if position >= first)
        return stored

    def prepared(self) -> numpys.Prepared | None:
        """The new chain; None if there is no loop in it, or it cannot be computed in place where the old one can."""
        first, steps, operation = self._first, self._steps, self._operation
        stored = self._stored()
        made: list[ChainStep] = []
        origins: list[Sequence[int]] = []
        place = {position: position for position in range(first)}
        for i in sorted(stored):
            if self._in_loop[i]:
                loop = self._loop(i, stored, place)
                if loop is None:
                    return None
                step, own = loop
            else:
                step = steps[i]._replace(arguments=tuple([place[position] for position in steps[i].arguments]))
                own = [i]
            place[first + i] = first + len(made)
            made.append(step)
            origins.append(own)
        if not any(isinstance(step.compute, _Loop) for step in made):
            return None
        results = [place[first + i] - first for i in operation.results]
        chain = Chain(made, self._specs, self._whole, results, by_rows=self._by_rows)
        if chain.last.get(0, -1) > results[0]:
            return None
        return numpys.Prepared(chain, origins)

    def _loop(self, end: int, stored: set[int], place: dict[int, int]) -> tuple[ChainStep, list[int]] | None:
        """The loop that computes the value of a step from what is in memory, and the steps in it."""
        first = self._first
        own, stack = {end}, [end]
        while stack:
            for position in self._steps[stack.pop()].arguments:
                i = position - first
                if i >= 0 and i not in stored and i not in own and self._number(position) is None:
                    own.add(i)
                    stack.append(i)
        read = dict.fromkeys(position for i in sorted(own) for position in self._steps[i].arguments)
        leaves = [each for each in read if each - first not in own and self._number(each) is None]
        names = {position: k for k, position in enumerate(leaves)}
        numbers: list[float] = []

        def name_of(number: float) -> int:
            numbers.append(number)
            return len(leaves) + len(numbers) - 1

        for position in read:
            number = self._number(position)
            if number is not None:
                names[position] = name_of(number)
        factors = {i: operation.factor for i in sorted(own) if isinstance(operation := self._kind(i), ew.Scale)}
        parameters = {i: name_of(factor) for i, factor in factors.items()}
        dtype = self._found[first + end].dtype
        lines: list[_Line] = []
        for i in sorted(own):
            step = self._steps[i]
            arguments = [names[position] for position in step.arguments]
            text = _text(self._kind(i), len(arguments))
            assert text is not None
            assert callable(step.compute)
            compute = step.compute
            if i in parameters:
                arguments.append(parameters[i])
                compute = _without_last(compute)
            names[first + i] = len(leaves) + len(numbers) + len(lines)
            lines.append(_Line(type(self._kind(i)), text, tuple(arguments), compute, step.dtype))
        widths = [self._width(position) for position in leaves]
        if len({width for width in widths if width not in (0, 1)}) > 1:
            return None
        loop = _Loop(lines, [w or 0 for w in widths], numbers, dtype)
        return ChainStep(loop, tuple([place[position] for position in leaves]), dtype, aligned=True), sorted(own)


class Ending(NamedTuple):
    """What takes rows of a result.

    Attributes:
        finish: What takes them, see `Kernel.finishes`; None if nothing does.
        following: The same as machine code; None if that is not compiled, or not one loop with one result.
    """

    finish: Finish | None
    following: Following | None

    def take(self, start: int, stop: int) -> None:
        """Give it rows that are there."""
        if self.following is not None:
            self.following.take(start, stop)
        elif self.finish is not None:
            self.finish(start, stop)


def ending(finish: Finish | None) -> Ending:
    """What takes rows of a result, as machine code where that can be."""
    return Ending(finish, None if finish is None else _following(finish))


def _following(finish: Finish) -> Following | None:
    if not isinstance(finish, numpys.Finish) or len(finish.outputs) != 1 or len(finish.chain.calls) != 1:
        return None
    ((_, compute, arguments),) = finish.chain.calls
    if not isinstance(compute, _Loop) or arguments.count(0) != 1:
        return None
    values = finish.begun
    y = arguments.index(0)
    return compute.following([finish.outputs[0] if k == y else values[each] for k, each in enumerate(arguments)], y)


def _without_last(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A function that knows its parameter by itself."""
    return lambda *arguments, out: compute(*arguments[:-1], out=out)


@registry.kernel(Fused, library="numba")
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    numpys.fused(operation, inputs, outputs, prepared)


def in_one_loop(operation: Fused, specs: Sequence[TensorSpec]) -> Callable[..., None] | None:
    """A chain with one result as a loop that is called with its inputs and ``out``; None if it is not one."""
    calls = prepared(operation, specs, False).chain.calls  # type: ignore[arg-type]
    (_, loop, order), *more = calls
    if more or not isinstance(loop, _Loop):
        return None
    if [*order] == [*range(len(specs))]:
        return loop
    return lambda *inputs, out: loop(*[inputs[i] for i in order], out=out)


_fused.in_one_loop = in_one_loop  # type: ignore[attr-defined]


#: Computes an operation with what follows: called with x, y, and `Following.call`.
Direct = Callable[[Array, Array, int, int], None]


class Call(Protocol):
    """Computes an operation of two arrays of some types.

    Attributes:
        size_bytes: Of the tables that it keeps.
    """

    size_bytes: int

    def __call__(self, x: Array, weight: Array, y: Array, ending: Ending) -> None:
        """Compute ``y``, whose rows something takes."""

    def direct(self, weight: Array) -> Direct | None:
        """The same with a weight that stays, by one thread; None if that does not pay."""


class _Latest(threading.local):
    """What has computed the operation that this thread has computed last; None where that was left to NumPy.

    It is the thread's, as one operation may stand in several graphs, each with a thread of its own.
    """

    call: Call | None = None


LATEST = _Latest()

#: Where an operation's attributes have what was bound, and the inputs that a call had.
_BOUND, _SEEN = "_bound", "_seen"


class _Bound:
    """A call whose weights, and whatever has no rows of its own, are what they were in the call before.

    What follows from them is kept, and they are, so that nothing is written into them.
    """

    def __init__(self, operation: Followed, call: Call, inputs: list[Array], finish: numpys.Finish) -> None:
        count = operation.count
        own = [0, *[position - 1 + count for position in finish.by_row]]
        self._fixed = [(i, array) for i, array in enumerate(inputs) if i not in own]
        self._shapes = [(i, inputs[i].shape) for i in own]
        self._call, self._main_ns = call, operation.main_ns
        # Not what has rows: to refer to this call's buffers would keep them from being used again.
        self._begun = [None if i in finish.by_row else each for i, each in enumerate(finish.begun)]
        self._dtype = inputs[0].dtype
        following = _following(finish)
        assert following is not None
        self._routine, self._given = following.routine, following.given
        self._direct, self._address = call.direct(inputs[1]), following.routine.address
        given = self._given.tolist()
        views = {id(finish.begun[position]): position - 1 + count for position in finish.by_row}
        self._places = [(given.index(each), i) for each, i in views.items() if each in given]

    def run(self, inputs: list[Array], outputs: list[Array]) -> bool:
        """Compute it; False if an input is another one."""
        for i, array in self._fixed:
            if inputs[i] is not array:
                return False
        for i, shape in self._shapes:
            if inputs[i].shape != shape:
                return False
        y = outputs[0]
        if not are_plain([y, *[inputs[i] for i, _ in self._shapes]], self._dtype):
            return False
        begin_ns = perf_counter_ns()
        given = self._given.copy()
        given[0] = id(y)
        for place, i in self._places:
            given[place] = id(inputs[i])
        try:
            if self._direct is not None:
                self._direct(inputs[0], y, id(given), self._address)
            else:
                self._call(inputs[0], inputs[1], y, Ending(None, Following(given, self._routine, y)))
        except Exception as error:
            raise StepError(0) from error
        self._main_ns[0] += perf_counter_ns() - begin_ns
        return True


def _bind(operation: Followed, inputs: list[Array], finish: numpys.Finish, call: Call | None) -> None:
    """Bind the next calls of an operation, if this call had the weights of the one before."""
    own = operation.__dict__
    if call is None:
        own.pop(_SEEN, None)
        return
    seen = [id(array) for i, array in enumerate(inputs) if i and i + 1 - operation.count not in finish.by_row]
    if own.get(_SEEN) == seen and _following(finish) is not None:
        own[_BOUND] = _Bound(operation, call, inputs, finish)
    own[_SEEN] = seen


@registry.kernel(Followed, library="numba", keeps=True)
def _followed(operation: Followed, inputs: list[Array], outputs: list[Array]) -> None:
    bound: _Bound | None = operation.__dict__.get(_BOUND)
    if bound is not None:
        if bound.run(inputs, outputs):
            return
        del operation.__dict__[_BOUND]
    LATEST.call = None
    finish = numpys.followed(operation, inputs, outputs, prepared)
    call, LATEST.call = LATEST.call, None
    _bind(operation, inputs, finish, call)
