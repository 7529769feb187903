"""Tapes: operations bound to each other once, to be computed again and again without records and plans.

A tape is the text of a Python function: a line for each operation, whose arguments are local variables. What each value
is written into is decided when the tape is made: a temporary goes where another one has ended. A tape keeps no values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, prod
from sys import getrefcount
from time import perf_counter_ns
from typing import Any

import numpy as np

from actorflow.array.record.fusing import Line, fuse
from actorflow.array.record.primitives import DType, Value, as_recorded
from actorflow.array.record.record import OpStep, compact, quiet
from actorflow.ops.cpu.buffers import scratch
from actorflow.spec import TensorSpec

#: Bytes of a value from which on its memory is used again within a tape: less than NumPy keeps by itself.
_REUSED_BYTES = 4_096
#: Least and most bytes of a temporary that goes into memory that the thread keeps. The C library takes fresh pages from
#: the system for such values again and again; of larger ones, not much should be kept.
_BRIEF_BYTES = 1 << 16, 1 << 20
#: Bytes of a constant up to which it is compared with others.
_COMPARED_BYTES = 512


class StepError(Exception):
    """A step of a tape that has failed; the error is its cause.

    Attributes:
        step: The step's position among those that the tape was made of.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Tape:
    """Some results of steps, as one function.

    Args:
        steps: In order. Their arguments are positions, first of what is given, then of the steps before; or constants.
        given: Number of values that are given.
        outputs: Positions of the results, which are steps'.
        types: Shapes and dtypes of what is given, None for what has none; if left out, nothing is fused.
        most_bytes: Size from which on memory is given to each call, instead of being made by it.
        is_timed: Whether the last of the results are times: one before, and one after each line.

    Attributes:
        rooms: Types of the memory that is given to each call.
        order: For each line, the position of its step.
        owned: For each result, whether it has memory of its own.
    """

    def __init__(
        self,
        steps: Sequence[OpStep],
        given: int,
        outputs: Sequence[int],
        *,
        types: Sequence[TensorSpec | None] | None = None,
        most_bytes: float = inf,
        is_timed: bool = False,
    ) -> None:
        self._scope: dict[str, Any] = {
            "empty": np.empty,
            "checked": as_recorded,
            "compact": _compact,
            "now": perf_counter_ns,
        }
        lines, names = self._lines(steps, given, outputs)
        if types is not None:
            known = {f"v{i}": spec for i, spec in enumerate(types) if spec is not None}
            known.update({c: TensorSpec(x.shape, x.dtype) for c, x in self._scope.items() if type(x) is np.ndarray})
            lines = fuse(lines, known, {names[i] for i in outputs})
        last = {read: i for i, line in enumerate(lines) for read in line.reads if read[0] == "v"}
        last.update({names[i]: len(lines) for i in outputs})
        over, brief = _memory(lines, last)
        self.rooms: list[TensorSpec] = []
        self.order = [line.at for line in lines]
        self.owned = [_owns(steps[i - given]) for i in outputs]
        clock = "; n{} = now()" if is_timed else ""
        ends: dict[int, list[str]] = {}
        later = {name: i for i, name in over.items()}  # a variable whose memory is used again is needed until then
        for name, i in last.items():
            ends.setdefault(later.get(name, i), []).append(name)
        texts = [f"def run(brief, rooms, {', '.join([f'v{i}' for i in range(given)])}):", f"    pass{clock.format(0)}"]
        self._at = [0, 0]
        for i, line in enumerate(lines):
            ended, out = ends.get(i, ()), over.get(i)
            if i in brief:
                out = f"brief({brief[i]!r}, s{line.result[1:]}, t{line.result[1:]})"
            elif out is None and _owns(line.step) and _bytes_of(line) >= most_bytes:
                out = f"rooms[{len(self.rooms)}]"
                self.rooms.append(TensorSpec(line.step.shape, line.step.dtype))
            own = [*self._text(line, out), *([f"del {', '.join(ended)}"] if ended else [])]
            own[-1] += clock.format(i + 1)
            texts += [f"    {text}" for text in own]
            self._at += [line.at] * len(own)
        results = [
            names[i] if owned else f"compact({names[i]}, rooms)" for i, owned in zip(outputs, self.owned, strict=True)
        ]
        times = [f"n{i}" for i in range(len(lines) + 1)] if is_timed else []
        texts.append(f"    return ({', '.join([*results, *times])},)")
        self._at.append(0)
        exec("\n".join(texts), self._scope)  # noqa: S102  the text is the package's own
        self._run: Callable[..., tuple[Any, ...]] = self._scope["run"]

    def __call__(self, values: Sequence[Any], rooms: Sequence[Value] = ()) -> tuple[Any, ...]:
        """The results.

        Args:
            values: What is given.
            rooms: Memory to write into, see ``rooms``.
        Raises:
            StepError: if a step fails.
        """
        try:
            found: tuple[Any, ...] = quiet.call(self._run, (_fresh if quiet.is_in else scratch, rooms, *values))
        except Exception as error:
            raise StepError(self._failed(error)) from error
        return found

    def _failed(self, error: Exception) -> int:
        """The step that has failed: that of the line in the function's frame."""
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code is not self._run.__code__:
            traceback = traceback.tb_next
        return 0 if traceback is None else self._at[traceback.tb_lineno - 1]

    def _lines(self, steps: Sequence[OpStep], given: int, outputs: Sequence[int]) -> tuple[list[Line], dict[int, str]]:
        """The steps that the results need, without repetitions, and the variables of all positions."""
        needed = {*outputs}
        for i in range(given + len(steps) - 1, given - 1, -1):
            if i in needed:
                needed.update([each for each in steps[i - given].arguments if type(each) is int])
        names = {i: f"v{i}" for i in range(given)}
        known: dict[Any, str] = {}
        lines = []
        for at, step in enumerate(steps):
            i = given + at
            if i not in needed:
                continue
            op = step.op
            reads = [names[each] if type(each) is int else self._constant(each, known) for each in step.arguments]
            name = f"v{i}"
            if op.elementwise and not step.shape and int not in map(type, step.arguments):
                value = np.empty((), step.dtype)
                quiet.call(partial(op.compute, out=value), (*step.arguments, *step.params))
                names[i] = self._constant(value, known)
                continue
            if op.pure:
                name = known.setdefault((op, step.params, step.dtype, step.shape, *reads), name)
            names[i] = name
            if name == f"v{i}":
                lines.append(Line(name, at, step, reads))
        return lines, names

    def _constant(self, value: Value, known: dict[Any, str]) -> str:
        name = f"c{len(self._scope)}"
        if value.nbytes <= _COMPARED_BYTES:
            name = known.setdefault((value.dtype, value.shape, value.tobytes()), name)
        self._scope[name] = value
        return name

    def _text(self, line: Line, out: str | None) -> list[str]:
        """The text of a step, which writes into memory where it is named."""
        result, _, step, reads = line
        op, key = step.op, result[1:]
        given = ", ".join(reads)
        self._scope.update({f"f{key}": op, f"s{key}": step.shape, f"t{key}": step.dtype})
        bound = op.bound(step.params, step.shape)
        if bound is not None:
            self._scope[f"f{key}"] = bound if out is None else op.returns.func  # type: ignore[union-attr]
            return [f"{result} = f{key}({given})" if out is None else f"{result} = f{key}({given}, {out})"]
        if step.params:
            self._scope[f"p{key}"] = step.params
            given += f"{', ' if given else ''}*p{key}"
        if _owns(step):
            return [f"{result} = {out or f'empty(s{key}, t{key})'}", f"f{key}.compute({given}, out={result})"]
        return [f"{result} = checked(f{key}.compute({given}{', owned=False' if op.owns else ''}), s{key}, t{key})"]


def _owns(step: OpStep) -> bool:
    """Return whether the result has memory of its own."""
    return step.op.elementwise or step.op.into


def _memory(lines: Sequence[Line], last: dict[str, int]) -> tuple[dict[int, str], dict[int, str]]:
    """By line, the variable whose value it may write over, and the name of the brief memory that it may write into.

    The first is a temporary of its type that nothing reads any more; the other is for what ends with the tape.
    """
    over: dict[int, str] = {}
    memory: dict[str, set[str]] = {}  # of each variable: those that made the memory that it may refer to
    until: dict[str, int] = {}  # of these: the last line that reads the memory
    holder: dict[str, str] = {}  # and the variable that was written there last
    types: dict[tuple[tuple[int, ...], DType], list[str]] = {}
    for i, line in enumerate(lines):
        result, _, step, reads = line
        end = last.get(result, i)
        if not _owns(step):
            # A reduction's result is never a view of what it reads.
            reads = [] if step.op.reduction else reads
            memory[result] = set().union(*[memory.get(read, set()) for read in reads])
            for each in memory[result]:
                until[each] = max(until[each], end)
            continue
        own = types.setdefault((step.shape, step.dtype), [])
        found = next((each for each in own if _is_free(each, i, step, reads, memory, until, holder)), None)
        if found is None:
            found = holder[result] = result
            if _bytes_of(line) >= _REUSED_BYTES:
                own.append(result)
        else:
            over[i], holder[found] = holder[found], result
        memory[result], until[found] = {found}, end
    made = {line.result: i for i, line in enumerate(lines)}
    ending = [each for each, end in until.items() if end < len(lines)]
    brief = [made[each] for each in ending if _BRIEF_BYTES[0] <= _bytes_of(lines[made[each]]) <= _BRIEF_BYTES[1]]
    return over, {i: f"tape {k}" for k, i in enumerate(brief)}


def _bytes_of(line: Line) -> int:
    return prod(line.step.shape) * line.step.dtype.itemsize


def _fresh(_: str, shape: tuple[int, ...], dtype: DType) -> Value:
    """Memory for a value of a tape within another one, whose brief memory is in use."""
    return np.empty(shape, dtype)


def _is_free(
    made: str,
    i: int,
    step: OpStep,
    reads: Sequence[str],
    memory: dict[str, set[str]],
    until: dict[str, int],
    holder: dict[str, str],
) -> bool:
    """Return whether the memory that a variable made may be written over in a line."""
    if until[made] != i:
        return until[made] < i
    aligned = step.op.elementwise and step.op.aligned  # type: ignore[attr-defined]
    return aligned and all(read == holder[made] for read in reads if made in memory.get(read, ()))


def _calibrate() -> int:
    """The reference count of memory that only a view refers to, as `_compact` sees it."""
    view = np.empty(2)[:1]
    base = view.base
    return getrefcount(base)


_IN_VIEW = _calibrate()


def _compact(value: Any, rooms: Sequence[Value]) -> Any:
    """The same as `compact`; a copy of any part that alone keeps the whole, too."""
    if type(value) is tuple:
        return value
    base = value.base
    if base is not None and value.nbytes * 2 < getattr(base, "nbytes", 0):
        others = getrefcount(base) - _IN_VIEW
        if others <= 0 or (others == 1 and any(base is room for room in rooms)):
            return value.copy()
    return compact(value)
