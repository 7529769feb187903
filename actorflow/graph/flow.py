"""Operations that decide and repeat: branches and loops, whose bodies are parts of the same graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError, whole
from actorflow.graph.body import Body
from actorflow.graph.gradient import is_floating, pulled_back
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.ops.elementwise import add, subtract
from actorflow.ops.fills import filled
from actorflow.ops.indexing import take
from actorflow.ops.operation import Application, Grads, Operand, Operation
from actorflow.ops.shaping import stack
from actorflow.spec import TensorSpec, may_equal

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

_INDEX = np.dtype(np.int64)
_BOOL = np.dtype(np.bool_)


@dataclass(frozen=True)
class WithBodies(Operation):
    """Base of operations that compute parts of the graph: each call is a frame of a body, inside that of the op.

    Attributes:
        bodies: The parts.
        reads: For each body, the positions among the op's inputs of the blobs from outside that it reads.
    """

    bodies: tuple[Body, ...]
    reads: tuple[tuple[int, ...], ...]

    @property
    def bodies_at_once(self) -> int:
        """Most calls of its bodies that overlap in a frame."""
        return 1

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(body.scope.name for body in self.bodies)})"

    @property
    def given(self) -> int:
        """Number of inputs before the blobs from outside."""
        raise NotImplementedError

    def check_arity(self, count: int) -> None:
        expected = max([self.given, *[position + 1 for reads in self.reads for position in reads]])
        if count != expected:
            raise GraphError(f"{self.kind} takes {expected} inputs, got {count}")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        for body, reads in zip(self.bodies, self.reads, strict=True):
            for blob, position in zip(body.captured.values(), reads, strict=True):
                _check_fits(self.kind, blob, inputs[position])
        return self.outputs_for(inputs)

    def outputs_for(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Types of the outputs."""
        raise NotImplementedError

    def in_graph(self, root: Graph, inputs: Sequence[Blob]) -> list[Blob]:
        """Apply it once more in the current scope of another graph, with bodies made there."""
        with root._store.all_or_nothing(), root.unique_subgraph(self.kind.lower()):
            bodies = []
            for old, reads in zip(self.bodies, self.reads, strict=True):
                body, outside = (
                    Body(root.unique_subgraph(old.scope.name.rpartition("/")[2])),
                    [inputs[i] for i in reads],
                )
                names = [blob.name.rpartition("/")[2] for blob in old.parameters]
                made = body.trace(lambda *given: old.inline([*given, *outside], root), names, old.parameters)  # noqa: B023
                body.outputs = tuple([body.own(blob) for blob in made])
                bodies.append(body)
            captured, read = _captured(bodies, self.given)
            operation = replace(self, bodies=tuple(bodies), reads=read)
            return _applied(root, operation, [*inputs[: self.given], *captured])


@dataclass(frozen=True)
class Switch(WithBodies):
    """Computes one of several bodies on the same operands: the one whose number the first input is.

    Attributes:
        operands: Number of operands.
    """

    operands: int = 0

    arguments = ("index", "*operands")

    @property
    def given(self) -> int:
        return 1 + self.operands

    def outputs_for(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        if inputs[0].shape != () or inputs[0].dtype.kind not in "biu":
            what = f"{self.kind}: the index must be a whole number or a truth value of shape ()"
            raise DTypeError(f"{what}, got {inputs[0]}")
        for body in self.bodies:
            for blob, spec in zip(body.parameters, inputs[1:], strict=False):
                _check_fits(self.kind, blob, spec)
        return tuple([blob.spec for blob in self.bodies[0].outputs])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        index, *given = op.inputs
        known = [g for g in grads if g is not None]
        if not known or not any(wanted):
            return [None] * len(wanted)
        by = [i - 1 for i, is_wanted in enumerate(wanted) if is_wanted]

        def back(which: int) -> Callable[..., list[Blob]]:
            body, reads = self.bodies[which], self.reads[which]

            def computed(*blobs: Blob) -> list[Blob]:
                inputs, rest = blobs[: len(given)], iter(blobs[len(given) :])
                y = body.inline([*inputs[: self.operands], *[inputs[i - 1] for i in reads]])
                return pulled_back(y, [None if g is None else next(rest) for g in grads], [inputs[i] for i in by])

            return computed

        branches = [back(which) for which in range(len(self.bodies))]
        found = iter(_switch(f"{self.kind.lower()}_back", index, branches, [*given, *known]))
        return [next(found) if is_wanted else None for is_wanted in wanted]


@dataclass(frozen=True)
class Loop(WithBodies):
    """Computes a body again and again; each time it is given the values that it carried on the last time.

    Its inputs are the carried values at the start, then arrays whose entries along the first axis it gets one by one.
    Its outputs are the carried values at the end, then arrays of the values that it has given each time, along the
    first axis; then, for gradients alone, the carried values before each time, and how often it was computed.

    Attributes:
        carries, scanned: Numbers of the former and the latter inputs.
        length: How often it is computed at most; None for as often as it says.
        tests: Whether there is a second body, which says of carried values whether to go on; the first one says it of
            the values it carries on, as its last output.
        reverse: Whether entries are given and taken from the last to the first.
        exact: Whether it is an error if it ends before its length: the arrays it gives would have no other entries.
    """

    carries: int = 0
    scanned: int = 0
    length: Any = None
    tests: bool = False
    reverse: bool = False
    exact: bool = False

    arguments = ("*values",)

    @property
    def given(self) -> int:
        return self.carries + self.scanned

    @property
    def saved(self) -> int:  # type: ignore[override]  # it follows from the fields
        return 0 if self.length is None else self.carries + 1

    def outputs_for(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        body, carried = self.bodies[0], inputs[: self.carries]
        for blob, after, spec in zip(body.parameters[: self.carries], body.outputs, carried, strict=False):
            _check_fits(self.kind, blob, spec)
            _check_fits(f"{self.kind}: what is carried on", after, spec)
        given = inputs[self.carries : self.carries + self.scanned]
        for blob, spec in zip(body.parameters[self.carries :], given, strict=True):
            if not spec.shape or not may_equal(spec.shape[0], self.length):
                raise ShapeError(f"{self.kind}: {blob.name!r} must have {self.length} entries, got {spec}")
            _check_fits(self.kind, blob, TensorSpec(spec.shape[1:], spec.dtype))
        specs = [blob.spec for blob in body.outputs]
        n = self.length
        taken = [TensorSpec((n, *shape), dtype) for shape, dtype in specs[self.carries : len(specs) - self.tests]]
        kept = [] if n is None else [*[TensorSpec((n, *s.shape), s.dtype) for s in carried], TensorSpec((), _INDEX)]
        return (*specs[: self.carries], *taken, *kept)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        if self.length is None:
            raise GraphError(
                f"{op.name!r} is a loop without a limit, whose steps are not kept: its gradient needs "
                "while_loop(..., limit=n)"
            )
        c, s, n = self.carries, self.scanned, len(self.bodies[0].outputs) - self.tests - self.carries
        if not any(wanted) or all(g is None for g in grads):
            return [None] * len(wanted)
        if self.length == 0:
            return [*grads[:c], *[None] * (len(wanted) - c)]
        start, scanned, outer = op.inputs[:c], op.inputs[c : c + s], op.inputs[c + s :]
        *kept, count = op.outputs[c + n :]
        smooth = [i for i in range(c) if is_floating(start[i])]
        into = [i for i in range(s) if wanted[c + i]]  # scanned inputs, and outer ones, that gradients are wanted of
        beside = [i for i in range(len(outer)) if wanted[c + s + i]]
        body, reads = self.bodies[0], [i - c - s for i in self.reads[0]]
        taken = [i for i in range(n) if grads[c + i] is not None]
        looked_at = [i for i in smooth if grads[c + n + i] is not None]  # by a gradient of which this is one, too

        def step(carried: Sequence[Blob], entries: Sequence[Blob]) -> tuple[list[Blob], list[Blob]]:
            """One step back: from gradients by the values carried on to gradients by the values given."""
            later, sums = carried[: len(smooth)], carried[len(smooth) :]
            values, x, g = entries[:c], entries[c : c + s], entries[c + s :]
            here = root.current_scope.body
            assert here is not None
            outer_in = [here.own(blob) for blob in outer]
            y = body.inline([*values, *x, *[outer_in[i] for i in reads]])
            of_carried = dict(zip(smooth, later, strict=True))
            of_taken = dict(zip(taken, g, strict=False))
            seeds = [of_carried.get(i) for i in range(c)] + [of_taken.get(i) for i in range(n)] + [None] * self.tests
            by = [*[values[i] for i in smooth], *[x[i] for i in into], *[outer_in[i] for i in beside]]
            found = pulled_back(y, seeds, by) if by else []
            first, last = len(smooth), len(smooth) + len(into)
            for i, more in zip(looked_at, g[len(taken) :], strict=True):
                found[smooth.index(i)] = add(found[smooth.index(i)], more)
            return [*found[:first], *[add(a, b) for a, b in zip(sums, found[last:], strict=True)]], found[first:last]

        root = op.inputs[0].graph.root
        begin = [
            g if g is not None else filled(0, start[i].shape, start[i]) for i, g in ((i, grads[i]) for i in smooth)
        ]
        begin += [filled(0, outer[i].shape, outer[i]) for i in beside]
        entries = [*kept, *scanned, *[grads[c + i] for i in taken], *[grads[c + n + i] for i in looked_at]]
        per_step: Sequence[Blob] = ()
        if self.tests:
            found = _steps_back("loop", step, begin, entries, count, self.length)
        else:
            found, per_step = _scan(f"{self.kind.lower()}_back", step, begin, entries, self.length, not self.reverse)
        results: list[Any] = [None] * len(wanted)
        for i, g in [*zip(smooth, found, strict=False), *zip([c + i for i in into], per_step, strict=False)]:
            results[i] = g if wanted[i] else None
        for i, g in zip(beside, found[len(smooth) :], strict=True):
            results[c + s + i] = g
        return results


def _steps_back(
    name: str, step: Callable[..., Any], begin: Sequence[Blob], entries: Sequence[Blob], count: Blob, length: Any
) -> list[Blob]:
    """The steps of a loop that has decided its own end, from the last one that it has done to the first."""

    def go_on(left: Blob, *_: Blob) -> Blob:
        return left > 0

    def back(left: Blob, *carried: Blob) -> list[Blob]:
        left = subtract(left, 1)
        return [left, *step(carried, [take(each, left) for each in entries])[0]]

    return _while(f"{name}_back", go_on, back, [count, *begin], length)[1:]


def _check_fits(kind: str, blob: Blob, spec: TensorSpec) -> None:
    error = ShapeError if not may_equal(blob.shape, spec.shape) else DTypeError if blob.dtype != spec.dtype else None
    if error is not None:
        raise error(f"{kind}: {blob.name!r} is {blob.spec}, got {spec}")


# -- the functional forms ---------------------------------------------------------------------------------------------


def cond(predicate: Any, then: Callable[..., T], otherwise: Callable[..., T], *operands: Any, name: str = "cond") -> T:
    """Compute one of two branches, as a truth value of each frame says.

    Both are called once, now, to make their ops. Blobs from outside that these read are inputs, too: operands need
    not be given. A frame computes the branch that was taken, and nothing that only the other one needs.

    Args:
        predicate: Truth value, of shape ().
        then: Called with the operands; gives blobs, or tuples, lists and dicts of them, or None.
        otherwise: Likewise; its result must have the same structure, shapes and dtypes.
        operands: Blobs, or tuples, lists and dicts of them; numbers and arrays are constants.
        name: Of the sub-graph with both branches, made unique.
    Returns:
        The results of the branches, as blobs outside. With an array as predicate, only the branch that is taken is
        called, now.
    Raises:
        GraphError: if the branches do not give the same, or one updates a variable; `ShapeError`, `DTypeError`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [])
        >>> y = af.cond(x > 0, lambda: af.ops.sqrt(x), lambda: -x)
        >>> graph.run_sync({x: 9})[y], graph.run_sync({x: -2})[y]
        (array(3., dtype=float32), array(2., dtype=float32))
    """
    if _is_eager(predicate):
        return (then if predicate else otherwise)(*operands)
    if not isinstance(predicate, Blob):
        raise TypeError(f"cond: the predicate must be a blob or an array, got {type(predicate).__name__}")
    if predicate.dtype != _BOOL:
        raise DTypeError(f"cond: the predicate must be a truth value of shape (), got {predicate.spec}")
    return _switched(name, predicate, [otherwise, then], operands, ("otherwise", "then"))


def switch(index: Any, branches: Sequence[Callable[..., T]], *operands: Any, name: str = "switch") -> T:
    """Compute one of several branches: the one whose number a blob has in a frame; else as `cond`.

    Args:
        index: Whole number, of shape (); a frame fails in which it is not one of a branch.
        branches: Each is called with the operands.
        operands, name: As for `cond`.

    Example:
        >>> graph = af.Graph("g")
        >>> x, kind = graph.blob("x", []), graph.blob("kind", [], "int64")
        >>> y = af.switch(kind, [af.ops.exp, af.ops.sqrt, af.ops.negative], x)
        >>> graph.run_sync({x: 4, kind: 1})[y]
        array(2., dtype=float32)
    """
    if not branches:
        raise GraphError("switch: give at least one branch")
    if _is_eager(index):
        number: Any = index
        which = int(number)
        if not 0 <= which < len(branches):
            raise GraphError(f"switch: the index is {which}, and there are {len(branches)} branches")
        return branches[which](*operands)
    if not isinstance(index, Blob):
        raise TypeError(f"switch: the index must be a blob or an array, got {type(index).__name__}")
    return _switched(name, index, branches, operands, [f"branch{i}" for i in range(len(branches))])


def while_loop(
    condition: Callable[P, Any],
    body: Callable[P, T],
    state: Any,
    *,
    limit: int | None = None,
    name: str = "while_loop",
) -> T:
    """Compute a body on its last result, for as long as a condition holds.

    Both functions are called once or twice, now, to make their ops; blobs from outside that these read are inputs.

    Args:
        condition: Called with the state; gives a truth value of shape ().
        body: Called with the state; gives the next one, of the same structure, shapes and dtypes.
        state: A blob, a number or an array; or a tuple or list, whose entries are arguments of the functions; they may
            be tuples, lists and dicts.
        limit: How often the body is computed at most, even if the condition holds. Gradients need it: the state before
            each time is kept then.
        name: Of the sub-graph with the body, made unique.
    Returns:
        The last state.
    Raises:
        GraphError: if the body's result has another structure than the state; `ShapeError`, `DTypeError`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [])
        >>> root, _ = af.while_loop(
        ...     lambda y, error: error > 1e-4, lambda y, _: (z := (y + x / y) / 2, af.ops.absolute(z - y)), (x, x)
        ... )
        >>> graph.run_sync({x: 2})[root]
        array(1.4142135, dtype=float32)
    """
    if limit is not None:
        limit = whole("while_loop: limit", limit, 0)
    is_many = isinstance(state, tuple | list)

    def called(fn: Callable[..., Any], given: Any) -> Any:
        return fn(*given) if is_many else fn(given)

    if _is_eager(state):
        steps = 0
        while steps != limit and called(condition, state):
            state, steps = called(body, state), steps + 1
        return cast(T, state)
    root = _root_of("while_loop", state)
    leaves, rebuilt = _flat("while_loop: state", state, root)

    def go_on(*blobs: Blob) -> Blob:
        found = called(condition, rebuilt(blobs))
        if not isinstance(found, Blob) or found.spec != TensorSpec((), _BOOL):
            got = found.spec if isinstance(found, Blob) else type(found).__name__
            raise DTypeError(f"while_loop: the condition must give a truth value of shape (), got {got}")
        return found

    def following(*blobs: Blob) -> list[Blob]:
        return _same("while_loop: the body", called(body, rebuilt(blobs)), state, leaves, root)

    return cast(T, rebuilt(_while(name, go_on, following, leaves, limit)))


def scan(
    body: Callable[..., tuple[T, U]],
    carry: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
    name: str = "scan",
) -> tuple[T, U]:
    """Compute a body for each entry of arrays, along their first axis, with values that it carries on.

    The body is called once, now, to make its ops; blobs from outside that these read are inputs.

    Args:
        body: Called with the carried values, and with the entries of ``xs``, None without; gives the next ones, of
            the same structure, shapes and dtypes as ``carry``, and the values taken each time, or None.
        carry: A blob, a number or an array; or a tuple, list or dict of them; or None.
        xs: Likewise, with at least one axis; the first may be open.
        length: How often it is computed, without ``xs``.
        reverse: From the last entry to the first.
        name: Of the sub-graph with the body, made unique.
    Returns:
        The values carried at the end, and the values taken each time, along a new first axis.
    Raises:
        GraphError: if the body does not give the carried values; `ShapeError`, `DTypeError`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["n"])
        >>> last, sums = af.scan(lambda total, x: (total + x, total + x), 0.0, x)
        >>> result = graph.run_sync({x: [1, 2, 3]}, fetch=[last, sums])
        >>> result[last], result[sums]
        (array(6., dtype=float32), array([1., 3., 6.], dtype=float32))
    """
    if _is_eager((carry, xs)):
        return _scan_now(body, carry, xs, length, reverse)
    root = _root_of("scan", (carry, xs))
    carried_in, rebuilt_carry = _flat("scan: carry", carry, root)
    entries, rebuilt_entry = _flat("scan: xs", xs, root)
    if entries and length is not None:
        raise GraphError("scan: the length is that of xs: give one of them")
    for blob in entries:
        if not blob.shape:
            raise ShapeError(f"scan: xs must have at least one axis, blob {blob.name!r} is {blob.spec}")
    if entries:
        count: Any = entries[0].shape[0]
        for blob in entries:
            if not may_equal(blob.shape[0], count):
                raise ShapeError(
                    f"scan: all of xs must have the same length, {entries[0].name!r} is {entries[0].spec}, "
                    f"{blob.name!r} {blob.spec}"
                )
    elif length is None:
        raise GraphError("scan: give xs or length=")
    else:
        count = whole("scan: length", length, 0)
    rebuilt_taken: list[Callable[[Sequence[Blob]], Any]] = []

    def step(carried: Sequence[Blob], given: Sequence[Blob]) -> tuple[list[Blob], list[Blob]]:
        made: object = body(rebuilt_carry(carried), rebuilt_entry(given))
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise GraphError(f"scan: the body must give two things, what is carried on and what is taken, got {made!r}")
        taken, rebuilt = _flat("scan: what is taken", made[1], root)
        rebuilt_taken.append(rebuilt)
        return _same("scan: the body", made[0], carry, carried_in, root), taken

    last, taken = _scan(name, step, carried_in, entries, count, bool(reverse))
    return rebuilt_carry(last), rebuilt_taken[0](taken)


def _is_eager(value: Any) -> bool:
    """Return whether a structure has an array, whose values are there when they are asked for, and not a blob."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else None
    return isinstance(value, Operand) and not isinstance(value, Blob) if parts is None else any(map(_is_eager, parts))


def _scan_now(body: Callable[..., Any], carry: Any, xs: Any, length: int | None, reverse: bool) -> tuple[Any, Any]:

    def mapped(function: Callable[..., Any], *values: Any) -> Any:
        first = values[0]
        if isinstance(first, Mapping):
            return {key: mapped(function, *[value[key] for value in values]) for key in first}
        if isinstance(first, tuple | list):
            parts = [mapped(function, *each) for each in zip(*values, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
        return None if first is None else function(*values)

    lengths: set[int] = set() if length is None else {length}
    mapped(lambda x: lengths.add(x.shape[0]), xs)
    if len(lengths) != 1:
        raise GraphError(f"scan: give xs of one length, or length=, got {sorted(lengths) or 'neither'}")
    count, taken = lengths.pop(), []
    for i in reversed(range(count)) if reverse else range(count):
        carry, y = body(carry, mapped(lambda x, i=i: x[i], xs))
        taken.append(y)
    if not count:  # the types are those of an entry's results, though no entry is computed

        def no_entries(y: Any) -> Any:
            return (
                filled(0, (0, *y.shape), y)
                if isinstance(y, Operand)
                else np.zeros((0, *np.shape(y)), np.result_type(y))
            )

        def like_entry(x: Any) -> Any:
            return filled(0, x.shape[1:], x) if isinstance(x, Operand) else np.zeros(x.shape[1:], x.dtype)

        return carry, mapped(no_entries, body(carry, mapped(like_entry, xs))[1])
    if reverse:
        taken.reverse()
    return carry, mapped(lambda *parts: stack(list(parts)), *taken)


# -- making the ops ---------------------------------------------------------------------------------------------------


def _switched(
    name: str, index: Blob, branches: Sequence[Callable[..., T]], operands: Sequence[Any], names: Sequence[str]
) -> T:
    root = index.graph.root
    leaves, rebuilt = _flat(f"{name}: operands", tuple(operands), root)
    shapes: list[Any] = []

    def flat(branch: Callable[..., Any]) -> Callable[..., list[Blob]]:
        def made(*blobs: Blob) -> list[Blob]:
            found = branch(*rebuilt(blobs))
            flattened, back = _flat(f"{name}: what a branch gives", found, root)
            shapes.append((_structure(found), back))
            if shapes[0][0] != shapes[-1][0]:
                raise GraphError(
                    f"{name}: all branches must give the same structure, got {shapes[0][0]} and {shapes[-1][0]}"
                )
            return flattened

        return made

    made = _switch(name, index, [flat(branch) for branch in branches], leaves, names)
    return cast(T, shapes[0][1](made))


def _switch(
    name: str,
    index: Blob,
    branches: Sequence[Callable[..., list[Blob]]],
    operands: Sequence[Blob],
    names: Sequence[str] = (),
) -> list[Blob]:
    root = index.graph.root
    with root._store.all_or_nothing(), root.unique_subgraph(name):
        bodies = []
        for i, branch in enumerate(branches):
            body = Body(root.unique_subgraph(names[i] if names else f"branch{i}"))
            made = body.trace(branch, [f"x{j}" for j in range(len(operands))], operands)
            body.outputs = tuple([body.own(blob) for blob in made])
            bodies.append(body)
        for body in bodies[1:]:
            given = [blob.spec for blob in bodies[0].outputs], [blob.spec for blob in body.outputs]
            if given[0] != given[1]:
                told = ", ".join(map(str, given[0])), ", ".join(map(str, given[1]))
                raise ShapeError(f"{name}: all branches must give the same types, got {told[0]} and {told[1]}")
        captured, reads = _captured(bodies, 1 + len(operands))
        operation = Switch(tuple(bodies), reads, len(operands))
        return _applied(root, operation, [index, *operands, *captured])


def _while(
    name: str, condition: Callable[..., Blob], body: Callable[..., list[Blob]], state: Sequence[Blob], limit: Any
) -> list[Blob]:
    def step(*blobs: Blob) -> tuple[list[Blob], list[Blob]]:
        return body(*blobs), []

    return _repeated(name, condition, step, state, limit, exact=False)[0]


def _repeated(
    name: str,
    condition: Callable[..., Blob],
    body: Callable[..., tuple[list[Blob], list[Blob]]],
    state: Sequence[Blob],
    limit: Any,
    *,
    exact: bool,
) -> tuple[list[Blob], list[Blob]]:
    """The last state, and the values taken each time, ``limit`` of them."""
    root = state[0].graph.root
    names = [f"state{i}" for i in range(len(state))]
    with root._store.all_or_nothing(), root.unique_subgraph(name):
        step = Body(root.unique_subgraph("body"))
        following, taken = step.trace(body, names, state)
        with step.scope:  # so that one frame gives the next state, and says whether to go on
            following = [step.own(blob) for blob in following]
            goes_on = step.own(condition(*following))
            step.outputs = (*following, *[step.own(blob) for blob in taken], goes_on)
        first = Body(root.unique_subgraph("condition"))
        first.outputs = (first.own(first.trace(condition, names, state)),)
        captured, reads = _captured([step, first], len(state))
        operation = Loop((step, first), reads, len(state), 0, limit, tests=True, exact=exact)
        made = _applied(root, operation, [*state, *captured])
    return made[: len(state)], made[len(state) : len(state) + len(taken)]


def _scan(
    name: str, step: Callable[..., Any], carry: Sequence[Blob], xs: Sequence[Blob], length: Any, reverse: bool
) -> tuple[list[Blob], list[Blob]]:
    root = (*carry, *xs)[0].graph.root
    names = [f"carry{i}" for i in range(len(carry))] + [f"x{i}" for i in range(len(xs))]
    with root._store.all_or_nothing(), root.unique_subgraph(name):
        body = Body(root.unique_subgraph("body"))
        # Blobs of the entries' types, which nothing else needs.
        entries = [SimpleNamespace(spec=TensorSpec(x.shape[1:], x.dtype), place=x.place) for x in xs]
        carried, taken = body.trace(lambda *b: step(b[: len(carry)], b[len(carry) :]), names, [*carry, *entries])
        body.outputs = tuple([body.own(blob) for blob in (*carried, *taken)])
        captured, reads = _captured([body], len(carry) + len(xs))
        operation = Loop((body,), reads, len(carry), len(xs), length, reverse=reverse)
        made = _applied(root, operation, [*carry, *xs, *captured])
    return made[: len(carry)], made[len(carry) : len(carry) + len(taken)]


def _applied(root: Graph, operation: WithBodies, inputs: Sequence[Blob]) -> list[Blob]:
    made = root.apply(operation, *inputs, name=operation.kind.lower())
    for body in operation.bodies:
        body.is_closed = True
    return [made] if isinstance(made, Blob) else [*made]


def _captured(bodies: Sequence[Body], first: int) -> tuple[list[Blob], tuple[tuple[int, ...], ...]]:
    """Blobs that bodies read from outside, each once, and for each body at which positions, counted from ``first``."""
    captured = [*dict.fromkeys(chain.from_iterable(body.captured for body in bodies))]
    position = {blob: first + i for i, blob in enumerate(captured)}
    return captured, tuple([tuple([position[blob] for blob in body.captured]) for body in bodies])


def _root_of(what: str, value: Any) -> Graph:
    if isinstance(value, Blob):
        return value.graph.root
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for part in parts:
        try:
            return _root_of(what, part)
        except GraphError:
            continue
    raise GraphError(f"{what}: give at least one blob")


def _flat(what: str, value: Any, root: Graph) -> tuple[list[Blob], Callable[[Sequence[Blob]], Any]]:
    """The blobs of a structure of tuples, lists and dicts, and a function that makes it of others."""
    leaves: list[Blob] = []

    def entered(value: Any) -> Any:
        if value is None:
            return lambda _: None
        if isinstance(value, tuple | list):
            parts, kind = [entered(part) for part in value], type(value)
            if hasattr(value, "_fields"):
                return lambda blobs: kind(*[part(blobs) for part in parts])
            return lambda blobs: kind([part(blobs) for part in parts])
        if isinstance(value, Mapping):
            named = {key: entered(part) for key, part in value.items()}
            return lambda blobs: {key: part(blobs) for key, part in named.items()}
        if not isinstance(value, Blob):
            try:
                value = root.constant(value)
            except GraphError as error:
                raise type(error)(f"{what}: {error}") from None
        position = len(leaves)
        leaves.append(value)
        return lambda blobs: blobs[position]

    rebuilt = entered(value)
    return leaves, rebuilt


def _structure(value: Any) -> str:
    if isinstance(value, tuple | list):
        inner = ", ".join(map(_structure, value))
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_structure(part)}' for key, part in value.items())}}}"
    return "None" if value is None else "blob"


def _same(what: str, made: Any, like: Any, leaves: Sequence[Blob], root: Graph) -> list[Blob]:
    """The blobs of a structure that must be as another one; numbers take the dtypes of that."""
    wanted, got = _structure(like), _structure(made)
    if wanted != got:
        raise GraphError(f"{what} must give {wanted} as it was given, got {got}")
    found, _ = _flat(what, made, root)
    for i, (blob, expected) in enumerate(zip(found, leaves, strict=True)):
        if not may_equal(blob.shape, expected.shape) or blob.dtype != expected.dtype:
            kind = DTypeError if blob.dtype != expected.dtype else ShapeError
            raise kind(f"{what} must give {expected.spec} for value {i}, as it began, got {blob.spec}")
    return found
