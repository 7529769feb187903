"""Chains behind a product or a convolution, as the library's primitives compute them with their results.

A chain of elementwise steps is read from its end to its beginning. At the beginning, sums and products with what has no
rows of its own are put into the weight and the bias (a bias, normalization by given statistics); all else becomes a
post-op, as the library calls it. A chain that cannot be written so is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from actorflow.ops import elementwise as ew
from actorflow.ops.cpu import fused as numpys
from actorflow.ops.cpu.blocks import Fold
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.fills import Fill
from actorflow.ops.fused import Fused
from actorflow.ops.nn import activation
from actorflow.ops.onednn.library import UnsupportedError
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

ADD, MULTIPLY, DIVIDE, SUBTRACT = 0x1FFF0, 0x1FFF1, 0x1FFF4, 0x1FFF5
_RELU, TANH, _ELU, _SQUARE, _ABS, _SQRT, _LINEAR, _SOFT_RELU, _HARD_SIGMOID, _LOGISTIC, _EXP = range(0x20, 0x2B)
_GELU_TANH, _SWISH, _LOG = 0x2B, 0x2C, 0x2D
_CLIP, _GELU_ERF, _HARD_SWISH = 0x2F, 0x31, 0x34
#: Functions that the library has within others alone.
_ERF, _NORMAL_CDF = -1, -2


class Eltwise(NamedTuple):
    """A function of an element, by the library's number of it."""

    kind: int
    alpha: float = 0.0
    beta: float = 0.0


class Binary(NamedTuple):
    """The element and an operand."""

    kind: int  # `ADD` and the like
    operand: float | int  # A number, or the position of a value in the chain


_Step = Eltwise | Binary
#: Relu that keeps NaN, which the library's own makes 0: ``x * min(max(1e30 * x, 0), 1)``.
_STEP = Eltwise(_HARD_SWISH, 1e30)
_PLAIN: dict[type[Any], Eltwise] = {
    activation.Relu: _STEP,
    activation.Sigmoid: Eltwise(_LOGISTIC),
    activation.Silu: Eltwise(_SWISH, 1.0),
    activation.Gelu: Eltwise(_GELU_ERF),
    activation.GeluTanh: Eltwise(_GELU_TANH),
    activation.NormalCdf: Eltwise(_NORMAL_CDF),
    ew.Erf: Eltwise(_ERF),
    ew.Tanh: Eltwise(TANH),
    ew.Square: Eltwise(_SQUARE),
    ew.Absolute: Eltwise(_ABS),
    ew.Sqrt: Eltwise(_SQRT),
    ew.Exp: Eltwise(_EXP),
    ew.Log: Eltwise(_LOG),
    ew.Negative: Eltwise(_LINEAR, -1.0, 0.0),
}
_BINARY: dict[type[Any], int] = {ew.Sum: ADD, ew.Subtract: SUBTRACT, ew.Multiply: MULTIPLY, ew.Divide: DIVIDE}
_FLOAT = np.dtype(np.float32)


class Following:
    """A chain behind a result, written as a scale and a shift of each column, and post-ops.

    Args:
        chain: The chain, whose first input is the result.
        specs: Types of its inputs.
        folds: Whether there is a weight that columns can be scaled by, and a bias.

    Attributes:
        scales: Whether columns are multiplied.
        shifts: Whether something is added to columns.
        chain: The chain.
        post_ops: The post-ops of the primitive.
        static: Positions of the inputs that have no rows of their own.
        rows: Positions of the inputs that are read by post-ops, row by row.
    Raises:
        UnsupportedError: if it cannot be written so.
    """

    def __init__(self, chain: Fused, specs: Sequence[TensorSpec], folds: bool = True) -> None:
        self.chain, self._specs = chain, specs
        found, ends = chain.specs(specs), [len(specs) + i for i in chain.results]
        is_known = specs[0].shape and all(spec.dtype == _FLOAT and spec.size for spec in found)
        if not is_known or [found[i] for i in ends] != [specs[0]]:
            raise UnsupportedError("several results, or other types")
        self._count = len(specs)
        self._is_static = [False, *[_has_no_rows(spec, specs[0]) for spec in specs[1:]]]
        self._moves = [True, *[False] * (len(specs) - 1)]
        for step in chain.steps:
            self._is_static.append(all(self._is_static[position] for position in step.inputs))
            self._moves.append(any(self._moves[position] for position in step.inputs))
        steps = self._path(ends[0], 0)
        first = next((i for i, step in enumerate(steps) if not (folds and self._is_affine(step))), len(steps))
        self._affine = steps[:first]
        self.scales = any(isinstance(step, Eltwise) or step.kind in (MULTIPLY, DIVIDE) for step in self._affine)
        self.shifts = bool(self._affine)
        self.post_ops = _joined(steps[first:])
        if any(isinstance(each, Eltwise) and each.kind < 0 for each in self.post_ops):
            raise UnsupportedError("erf")
        operands = [each.operand for each in self.post_ops if isinstance(each, Binary)]
        self.static = [i for i in range(1, len(specs)) if self._is_static[i]]
        self.rows = [each for each in operands if isinstance(each, int) and not self._is_static[each]]
        if any(position >= len(specs) or specs[position].shape != specs[0].shape for position in self.rows):
            raise UnsupportedError("values of rows alone")

    def is_static(self, position: int) -> bool:
        """Return whether a value of the chain has no rows of its own."""
        return self._is_static[position]

    def values(self, inputs: Mapping[int, Array]) -> dict[int, Any]:
        """The values that have no rows, from the inputs that have none, by position."""
        known: dict[int, Any] = dict(inputs)
        steps = numpys.steps_of(self.chain, self._specs)
        for position, step in enumerate(steps, self._count):
            if isinstance(step.compute, np.ndarray):
                known[position] = step.compute
            elif self._is_static[position]:
                assert not isinstance(step.compute, Fold)  # nothing that follows reduces
                arguments = [known[each] for each in step.arguments]
                shape = np.broadcast_shapes(*[each.shape for each in arguments])
                known[position] = np.empty(shape, step.dtype)
                step.compute(*arguments, out=known[position])
        return known

    def affine(self, values: Mapping[int, Any], columns: int) -> tuple[Array | None, Array]:
        """Factors of the columns, None for 1, and the numbers that are then added to them."""
        scale, shift = np.ones(columns), np.zeros(columns)
        for step in self._affine:
            if isinstance(step, Eltwise):
                scale, shift = step.alpha * scale, step.alpha * shift + step.beta
                continue
            operand = step.operand
            value = operand if isinstance(operand, float) else values[operand].reshape(-1).astype(np.float64)
            if step.kind == ADD:
                shift = shift + value
            elif step.kind == SUBTRACT:
                shift = shift - value
            elif step.kind == MULTIPLY:
                scale, shift = scale * value, shift * value
            else:
                scale, shift = scale / value, shift / value
        return (scale.astype(_FLOAT) if self.scales else None), shift.astype(_FLOAT)

    # -- from the end to the beginning ----------------------------------------------------------------------------

    def _path(self, position: int, base: int) -> list[_Step]:
        """The steps from one value of the chain to another one."""
        if position == base:
            return []
        if position < self._count:
            raise UnsupportedError("another value")
        step = self.chain.steps[position - self._count]
        operation, arguments = step.operation, step.inputs
        moving = [each for each in arguments if self._moves[each]]
        if type(operation) is ew.Multiply and len(moving) == 2:
            return self._gated(moving, base)
        if len(moving) != 1:
            raise UnsupportedError(f"{operation} of several values")
        before = self._path(moving[0], base)
        others = [self._number(each) for each in arguments if each != moving[0]]
        plain = _PLAIN.get(type(operation)) or _with_parameters(operation)
        if plain is not None:
            return [*before, plain]
        kind = _BINARY.get(type(operation))
        if kind is not None:
            if kind in (SUBTRACT, DIVIDE) and arguments[0] != moving[0]:
                if kind == DIVIDE:
                    raise UnsupportedError("a quotient by the result")
                return [*before, Eltwise(_LINEAR, -1.0, 0.0), Binary(ADD, others[0])]
            return [*before, *[Binary(kind, other) for other in others]]
        if isinstance(operation, ew.AtLeast | ew.AtMost | ew.Maximum | ew.Minimum) and isinstance(others[0], float):
            is_least = isinstance(operation, ew.AtLeast | ew.Maximum)
            bounds = (others[0], math.inf) if is_least else (-math.inf, others[0])
            return [*before, Eltwise(_CLIP, *bounds)]
        raise UnsupportedError(str(operation))

    def _gated(self, moving: Sequence[int], base: int) -> list[_Step]:
        """The product of a value and a function of it: swish and the like."""
        for value, gate in (moving, moving[::-1]):
            try:
                steps = _joined(self._path(gate, value))
            except UnsupportedError:
                continue
            found = _GATES.get(tuple([step.kind for step in steps if isinstance(step, Eltwise)]))
            if found is not None and len(steps) <= 3 and all(isinstance(step, Eltwise) for step in steps):
                gated = found(*steps)
                if gated is not None:
                    return [*self._path(value, base), *gated]
        raise UnsupportedError("a product of two values")

    def _number(self, position: int) -> float | int:
        """A value as an operand: a number if it is one, else its position."""
        if position >= self._count:
            operation = self.chain.steps[position - self._count].operation
            if isinstance(operation, Fill):
                return float(operation.value)
        return position

    def _is_affine(self, step: _Step) -> bool:
        if isinstance(step, Eltwise):
            return step.kind == _LINEAR
        return isinstance(step.operand, float) or self._is_static[step.operand]


def _has_no_rows(spec: TensorSpec, y: TensorSpec) -> bool:
    """Return whether an input is one number, or one for each column; beside one row, one of its shape is another row.

    That may be new in each frame, as what a residual connection adds, and the weight would be put in order anew.
    """
    return spec.size == 1 or (spec.size == y.shape[-1] == spec.shape[-1] and spec.shape != y.shape)


#: Beyond that, the logarithm in softplus is the identity to the last digit.
_LEAST_THRESHOLD = 17.0
#: Functions that take far longer than a pass over memory: what one computes is worth a primitive of its own.
LONG = frozenset([TANH, _ELU, _SOFT_RELU, _LOGISTIC, _EXP, _GELU_TANH, _SWISH, _LOG, _GELU_ERF])


def function_of(operation: Operation) -> Eltwise | None:
    """The library's function for an elementwise operation of one input; None if there is none."""
    found = _PLAIN.get(type(operation)) or _with_parameters(operation)
    return None if found is None or found.kind < 0 else found


def _with_parameters(operation: Any) -> Eltwise | None:
    match operation:
        case activation.LeakyRelu():
            return Eltwise(_RELU, operation.slope) if operation.slope else _STEP
        case activation.Elu():
            return Eltwise(_ELU, operation.alpha)
        case activation.Softplus() if operation.threshold >= _LEAST_THRESHOLD:
            return Eltwise(_SOFT_RELU, operation.beta)
        case ew.Scale():
            return Eltwise(_LINEAR, operation.factor)
    return None


def _joined(steps: Sequence[_Step]) -> list[_Step]:
    """Steps with numbers as functions, and two of a kind, or of a known pair, as one."""
    made: list[_Step] = []
    for step in steps:
        made.append(_with_number(step))
        while len(made) > 1:
            pair = _pair(made[-2], made[-1])
            if pair is None:
                break
            line = pair if isinstance(pair, Eltwise) and pair.kind == _LINEAR and not pair.beta else None
            made[-2:] = [pair] if line is None or not math.isclose(line.alpha, 1.0, rel_tol=1e-12) else []
    return made


def _with_number(step: _Step) -> _Step:
    if isinstance(step, Eltwise) or not isinstance(step.operand, float):
        return step
    number = step.operand
    if step.kind == ADD:
        return Eltwise(_LINEAR, 1.0, number)
    if step.kind == SUBTRACT:
        return Eltwise(_LINEAR, 1.0, -number)
    return Eltwise(_LINEAR, number if step.kind == MULTIPLY else 1.0 / number if number else math.inf, 0.0)


def _pair(first: _Step, then: _Step) -> _Step | None:
    """One step for two."""
    if not (isinstance(first, Eltwise) and isinstance(then, Eltwise)):
        return None
    if first.kind == then.kind == _LINEAR:
        return Eltwise(_LINEAR, first.alpha * then.alpha, first.beta * then.alpha + then.beta)
    if first.kind == then.kind == _CLIP and max(first.alpha, then.alpha) <= min(first.beta, then.beta):
        return Eltwise(_CLIP, max(first.alpha, then.alpha), min(first.beta, then.beta))
    if (first.kind, *then) == (_LINEAR, _CLIP, 0.0, 1.0):
        return Eltwise(_HARD_SIGMOID, first.alpha, first.beta)
    return None


def _of_clip(linear: Eltwise, clip: Eltwise) -> list[_Step] | None:
    """``x * min(max(x + 3, 0), 6)``, as exporters write hard-swish, which has a sixth of it."""
    most = clip.beta
    if clip.alpha or not 0 < most < math.inf:
        return None
    return [Eltwise(_HARD_SWISH, linear.alpha / most, linear.beta / most), Eltwise(_LINEAR, most)]


def _of_erf(*steps: Eltwise) -> list[_Step] | None:
    """``x * (1 + erf(x / sqrt(2)))``, times anything: GELU in pieces."""
    inner, _, outer = steps
    is_it = math.isclose(inner.alpha, math.sqrt(0.5), rel_tol=1e-6) and not inner.beta
    if not is_it or not math.isclose(outer.alpha, outer.beta, rel_tol=1e-6):
        return None
    return [Eltwise(_GELU_ERF), Eltwise(_LINEAR, 2.0 * outer.alpha)]


#: Post-ops for a value times a function of it, by the kinds of the steps of that function.
_GATES: dict[tuple[int, ...], Any] = {
    (_LOGISTIC,): lambda _: [Eltwise(_SWISH, 1.0)],
    (_LINEAR, _LOGISTIC): lambda linear, _: None if linear.beta else [Eltwise(_SWISH, linear.alpha)],
    (_HARD_SIGMOID,): lambda step: [Eltwise(_HARD_SWISH, step.alpha, step.beta)],
    (_NORMAL_CDF,): lambda _: [Eltwise(_GELU_ERF)],
    (_LINEAR, _CLIP): _of_clip,
    (_LINEAR, _ERF, _LINEAR): _of_erf,
}
