"""Recurrent networks: cells, and scans of them over whole sequences.

Gates lie side by side, in PyTorch's order: input, forget, cell, output of a long short-term memory. Weights have shape
(gates * hidden, features), as of `inner`. Each kind of network is one operation over a whole sequence, of any
number of steps, and one for its gradient; gradients of gradients, and peepholes, are other operations step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.composition import composed_gradient
from actorflow.ops.elementwise import cast, less, plus, tanh, where
from actorflow.ops.indexing import INDEX, flip, line, read
from actorflow.ops.linalg import bias as add_bias
from actorflow.ops.linalg import inner
from actorflow.ops.nn.activation import relu, sigmoid
from actorflow.ops.operation import Application, Cost, Grads, Operation, X, apply, rank_is, same_dtype, whole
from actorflow.ops.reductions import count_nonzero
from actorflow.ops.shaping import concat, expand_dims, reshape, split, stack
from actorflow.spec import TensorSpec, known

#: Activations of a simple recurrent network.
_ACTIVATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({"tanh": tanh, "relu": relu})


def _axes(gates: int, *states: str) -> dict[str, str]:
    """Axes of the arguments of a sequence with so many gates, and these states beside the hidden one."""
    rows = "hidden" if gates == 1 else f"{gates} * hidden"
    found = {"x": "steps, batch, features"} | dict.fromkeys(("hidden", *states), "batch, hidden")
    return found | {"weight_x": f"{rows}, features", "weight_h": f"{rows}, hidden", "bias": rows}


def check_axes(kind: str, axes: Mapping[str, str], inputs: Mapping[str, TensorSpec]) -> None:
    """Check that inputs have one floating dtype, and shapes that agree where axes have the same names.

    Args:
        kind: Name of the operation.
        axes: Names of the axes of each input, or products of a number and such a name.
        inputs: The types.
    """
    same_dtype(kind, **inputs)
    lengths: dict[str, int] = {}
    for name, text in axes.items():
        spec, own = inputs[name], text.split(", ")
        if len(spec.shape) != len(own):
            raise ShapeError(f"{kind}: {name} must have shape ({text}), got {spec}")
        lengths = dict(zip(own, spec.shape, strict=True)) | lengths
        expected = tuple(int(axis[0]) * lengths[axis[4:]] if " * " in axis else lengths[axis] for axis in own)
        if spec.shape != expected:
            raise ShapeError(f"{kind}: {name} must have shape ({text}), here {expected}, got {spec}")


def before_activation(g: Any, activations: Any) -> Any:
    """The gradient by the gates from that by their activations alone."""
    i, f, z, o = split(activations, 4, axis=1)
    return g * concat([i * (1.0 - i), f * (1.0 - f), 1.0 - z * z, o * (1.0 - o)], axis=1)


class LSTMGatesDown(Operation):
    """The gradient of `LSTMGates` by the gates and the cell, from its states and activations."""

    arguments = ("g_hidden", "g_cell", "cell", "new_cell", "activations")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        axes = dict.fromkeys(("cell", *self.arguments), "batch, hidden") | {"activations": "batch, 4 * hidden"}
        check_axes("LSTMGatesDown", axes, dict(zip(self.arguments, inputs, strict=True)))
        return (inputs[-1], inputs[2])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return composed_gradient(_gates_down, op, grads, wanted)


def _gates_down(g_hidden: Any, g_cell: Any, cell: Any, new_cell: Any, activations: Any) -> tuple[Any, Any]:
    i, f, z, o = split(activations, 4, axis=1)
    t = tanh(new_cell)
    d = g_cell + g_hidden * o * (1.0 - t * t)  # the gradient by the new cell
    return before_activation(concat([d * z, d * cell, d * i, g_hidden * t], axis=1), activations), d * f


class LSTMGates(Operation):
    """The new state of one step, from the gates before their activations; see `lstm_cell`.

    ``i, f, o`` are sigmoids and ``z`` a tanh of a quarter of ``gates`` each; ``cell = f * cell + i * z`` and
    ``hidden = o * tanh(cell)``. The third output is the gates' activations, for the gradient.
    """

    arguments = ("gates", "cell")
    per_element = 9  # four activations, and five more of the new cell and the new hidden state

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        gates, cell = inputs
        axes = {"cell": "batch, hidden", "gates": "batch, 4 * hidden"}
        check_axes("LSTMGates", axes, {"gates": gates, "cell": cell})
        return (cell, cell, gates)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        g_hidden, g_cell, g_activations = grads
        _, new_cell, activations = op.outputs
        by_gates: list[Any] = []
        by_cell = None
        if g_hidden is not None or g_cell is not None:
            given = [new_cell.constant_like(0.0, new_cell.shape) if g is None else g for g in (g_hidden, g_cell)]
            through_states, by_cell = apply(LSTMGatesDown(), *given, op.inputs[1], new_cell, activations)
            by_gates.append(through_states)
        if g_activations is not None:
            by_gates.append(before_activation(g_activations, activations))
        return [plus(*by_gates), by_cell]


@dataclass(frozen=True)
class _Sequence(Operation):
    """Base of networks over whole sequences, of any number of steps.

    Outputs: the hidden state after each step, the last states, and, for the gradient, each step's values.

    """

    axes: ClassVar[Mapping[str, str]]  # of each argument, for `check_axes`
    states: ClassVar[int] = 1  # the first of which is the hidden one
    widths: ClassVar[tuple[int, ...]] = ()  # of what is saved for the gradient, how many times the state's length
    per_state: ClassVar[int]  # additions and the like for an element of the hidden state, beside products

    @property
    def saves(self) -> bool:
        """Whether it gives the values that gradients need."""
        return True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        check_axes(self.kind, self.axes, dict(zip(self.arguments, inputs, strict=True)))
        x, hidden = inputs[:2]
        y, *saved = [TensorSpec((x.shape[0], *_times(n, hidden.shape)), x.dtype) for n in (1, *self.widths)]
        return (y, *[hidden] * self.states, *(saved if self.saves else ()))

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        x, weight_h, y = inputs[0], inputs[self.states + 2], outputs[0]
        gates = weight_h.shape[0] * x.shape[0] * x.shape[1]
        return Cost(gates * (x.shape[2] + y.shape[2]), self.per_state * y.size)

    @property
    def down(self) -> _SequenceDown:
        """The operation that gives the gradient."""
        raise NotImplementedError

    def step(self, gates: Any, states: Sequence[Any], *weights: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """The new states, and the values saved of a step.

        Args:
            gates: Product of the step's input with ``weight_x``, and the bias.
            states: The states before.
            weights: ``weight_h``, and the inputs behind the bias.
        """
        raise NotImplementedError

    def by_steps(self, x: Any, *more: Any) -> Sequence[Any]:
        """The outputs, each step in ops of its own."""
        states: Sequence[Any] = more[: self.states]
        weight_x, weight_h, bias, *weights = more[self.states :]
        found: list[Sequence[Any]] = []
        for each in _steps(_affine(x, weight_x, bias)):
            states, saved = self.step(each, states, weight_h, *weights)
            found.append((states[0], *saved))
        if found:
            y, *all_saved = [stack(each) for each in zip(*found, strict=True)]
        else:
            y, *all_saved = [x.constant_like(0.0, (0, *_times(n, more[0].shape))) for n in (1, *self.widths)]
        return [y, *states, *(all_saved if self.saves else ())]

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        count = 1 + self.states
        if not self.saves or (self.saved and grads[count] is not None):
            return composed_gradient(self.by_steps, op, grads, wanted)
        pairs = zip(grads[:count], op.outputs[:count], strict=True)
        given = [y.constant_like(0.0, y.shape) if g is None else g for g, y in pairs]
        by_saved = [g for g in grads[count + 1 :] if g is not None]
        made: Sequence[Any] = apply(self.down, *given, *op.inputs, op.outputs[0], *op.outputs[count:], *by_saved)
        return made


class _SequenceDown(Operation):
    """Base of gradients of sequences by all inputs, back through all steps.

    It takes the gradients by the hidden states after each step and by the last states, and all that the operation has
    read and saved. Its own gradient is that of the steps in other operations: the saved values follow from the inputs.
    """

    @property
    def whole(self) -> _Sequence:
        """The operation whose gradient it is."""
        raise NotImplementedError

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        whole, states = self.whole, self.whole.states
        read = inputs[1 + states : 1 + states + len(whole.axes)]
        names = [name.strip("*") for name in self.arguments]
        same_dtype(self.kind, **dict(zip(names, inputs, strict=False)))
        y, *more = whole.infer(*read)
        expected = [y, *more[:states], *read, y, *more[states:]]
        expected += expected[-1:] * (len(inputs) - len(expected))
        for position, (spec, each) in enumerate(zip(inputs, expected, strict=True)):
            if spec != each:
                raise ShapeError(f"{self.kind}: {names[min(position, len(names) - 1)]} must be {each}, got {spec}")
        return tuple(read)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        whole, count = self.whole, 1 + self.whole.states
        stop = count + len(whole.axes)

        def formula(*given: Any) -> Sequence[Any]:
            read, more = given[count:stop], given[stop + 1 + whole.saved :]
            by_outputs = [*given[:count], *[None] * (whole.saved - len(more)), *more]
            return composed_gradient(whole.by_steps, Application(read, (), op.name), by_outputs, [True] * len(read))

        return composed_gradient(formula, op, grads, wanted)


def _times(n: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape whose last length is taken that many times."""
    return (*shape[:-1], n * shape[-1])


def _arguments(whole: type[_Sequence], *saved: str) -> tuple[str, ...]:
    names = whole.arguments
    return ("g_y", *[f"g_{name}" for name in names[1 : 1 + whole.states]], *names, "y", *saved)


@dataclass(frozen=True)
class LSTM(_Sequence):
    """A long short-term memory over a whole sequence, in one op; see `lstm`.

    Outputs: the hidden state after each step, the last hidden state and the last cell; then, for the gradient, the
    gates' activations and the cell after each step.

    Attributes:
        saves: Whether there are the last two; where nothing reads them, a plan goes without.
    """

    axes = _axes(4, "cell")
    arguments = tuple(axes)
    states = saved = 2
    widths = (4, 1)
    per_state = LSTMGates.per_element + 8

    saves: bool = True

    @property
    def down(self) -> LSTMDown:
        return LSTMDown()

    def step(self, gates: Any, states: Sequence[Any], *weights: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        hidden, cell = states
        hidden, cell, activations = apply(LSTMGates(), gates + inner(hidden, weights[0]), cell)
        return (hidden, cell), (activations, cell)


class LSTMDown(_SequenceDown):
    """The gradient of `LSTM` by all its inputs. A second array of cells is the gradient by the cells of each step."""

    arguments = _arguments(LSTM, "activations", "*cells")

    @property
    def whole(self) -> LSTM:
        return LSTM()


@dataclass(frozen=True)
class GRU(_Sequence):
    """Gated recurrent units over a whole sequence, in one op; see `gru`.

    Outputs: the hidden state after each step, and the last one; then, for the gradient, of each step ``r``, ``z``,
    ``n`` and what else has a product with ``weight_h``: ``h_n``, or with a reset before it ``r * hidden``.

    Attributes:
        reset_after: As for `gru`.
        saves: Whether there is the last one; where nothing reads it, a plan goes without.
    """

    axes = _axes(3) | {"bias_h": "3 * hidden"}
    arguments = tuple(axes)
    saved = 1
    widths = (4,)
    per_state = 13

    reset_after: bool = True
    saves: bool = True

    @property
    def down(self) -> GRUDown:
        return GRUDown(self.reset_after)

    def step(self, gates: Any, states: Sequence[Any], *weights: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        (hidden,), (weight_h, bias_h), width = states, weights, states[0].shape[-1]
        (a_rz, a_n), both = split(gates, [2 * width, width], axis=1), [2 * width, width]
        (w_rz, w_n), (b_rz, b_n) = split(weight_h, both), split(bias_h, both)
        r, z = split(sigmoid(a_rz + _affine(hidden, w_rz, b_rz)), 2, axis=1)
        inside = _affine(hidden, w_n, b_n) if self.reset_after else r * hidden
        n = tanh(a_n + (r * inside if self.reset_after else _affine(inside, w_n, b_n)))
        return (n + z * (hidden - n),), (concat([r, z, n, inside], axis=1),)


@dataclass(frozen=True)
class GRUDown(_SequenceDown):
    """The gradient of `GRU` by all its inputs."""

    arguments = _arguments(GRU, "activations")

    reset_after: bool = True

    @property
    def whole(self) -> GRU:
        return GRU(self.reset_after)


@dataclass(frozen=True)
class RNN(_Sequence):
    """A simple recurrent network over a whole sequence, in one op; see `rnn`.

    Outputs: the hidden state after each step, and the last one.

    Attributes:
        activation: As for `rnn`.
    """

    axes = _axes(1)
    arguments = tuple(axes)
    per_state = 3
    activation: str = "tanh"

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.activation not in _ACTIVATIONS:
            raise GraphError(f"RNN: activation must be 'tanh' or 'relu', got {self.activation!r}")
        return super().infer(*inputs)

    @property
    def down(self) -> RNNDown:
        return RNNDown(self.activation)

    def step(self, gates: Any, states: Sequence[Any], *weights: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        return (_ACTIVATIONS[self.activation](gates + inner(states[0], weights[0])),), ()


@dataclass(frozen=True)
class RNNDown(_SequenceDown):
    """The gradient of `RNN` by all its inputs."""

    arguments = _arguments(RNN)

    activation: str = "tanh"

    @property
    def whole(self) -> RNN:
        return RNN(self.activation)


@dataclass(frozen=True)
class Ragged(Operation):
    """A network over sequences of several lengths, whose later steps leave its states as they are, and give 0.

    Outputs: the hidden state after each step, and the last states.

    Attributes:
        network: The network.
        reverse: Whether each sequence begins at its own last step.
    """

    arguments = ("x", "lengths", "*more")

    network: _Sequence
    reverse: bool = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, lengths, *more = inputs
        found = self.network.infer(x, *more)[: 1 + self.network.states]
        if lengths.dtype.kind not in "iu":
            raise DTypeError(f"{self.network.kind}: lengths must be integers, got {lengths}")
        if lengths.shape != x.shape[1:2]:
            raise ShapeError(
                f"{self.network.kind}: lengths must have shape (batch,), here {x.shape[1:2]}, got {lengths}"
            )
        return found

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return self.network.cost([inputs[0], *inputs[2:]], outputs)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return composed_gradient(self._to_the_end, op, grads, wanted)

    def _to_the_end(self, x: Any, lengths: Any, *more: Any) -> Sequence[Any]:
        """The outputs, of sequences that are all computed to the end. Steps behind their ends are not taken."""
        network, first = self.network, more[: self.network.states]
        steps, rows = (line(x, axis, x.shape[:2]) for axis in (0, 1))
        runs = less(steps, lengths if lengths.dtype == steps.dtype else cast(lengths, steps.dtype))
        count = count_nonzero(runs, 0)
        back = where(runs, count - 1 - steps, steps)

        def at(values: Any, steps: Any) -> Any:
            return read(values, (INDEX, INDEX), [steps, rows])

        y, *after = apply(network, at(x, back) if self.reverse else x, *more)
        after = [y, *after[network.states + 1 :]]  # of a cell, too
        found = [concat([expand_dims(a, 0), b]) for a, b in zip(first, after, strict=True)]
        lasts = [reshape(at(each, expand_dims(count, 0)), first[0].shape) for each in found]
        y = where(expand_dims(runs, 2), y, 0.0)
        return [at(y, back) if self.reverse else y, *lasts]

    def in_parts(self, ends: Sequence[int], inputs: Sequence[Any], outputs: Sequence[Any], run: Any) -> None:
        """Compute the outputs part by part: the steps up to the end of the shortest sequence, of all, and so on.

        Args:
            ends: Number of steps of each sequence.
            inputs: Arrays of the network.
            outputs: Arrays to write into.
            run: Computes the network, as ``run(inputs, outputs)``.
        """
        x, *more = inputs
        y, *lasts = outputs
        states, weights = more[: self.network.states], more[self.network.states :]
        x, begin = _turned(x, ends) if self.reverse else x, 0
        y.fill(0)
        for last, state in zip(lasts, states, strict=True):
            last[...] = state
        for end in sorted({*ends} - {0}):
            part = x[begin:end], y[begin:end]
            going = [i for i, own in enumerate(ends) if own >= end]
            if len(going) == len(ends):
                run([part[0], *[last.copy() for last in lasts], *weights], [part[1], *lasts])
            else:
                given = [last[going] for last in lasts]
                found = [each.copy() for each in (part[1][:, going], *given)]  # which are contiguous
                run([part[0][:, going], *given, *weights], found)
                part[1][:, going] = found[0]
                for last, each in zip(lasts, found[1:], strict=True):
                    last[going] = each
            begin = end
        if self.reverse:
            y[...] = _turned(y, ends)


def _turned(x: Any, ends: Sequence[int]) -> Any:
    """Sequences of these lengths from their ends on."""
    found = x.copy()
    for rows, end in [(slice(None), ends[0])] if len({*ends}) == 1 else enumerate(ends):
        found[:end, rows] = x[:end, rows][::-1]
    return found


@whole
def lstm_cell(
    x: X,
    hidden: X,
    cell: X,
    weight_x: X,
    weight_h: X,
    bias: X | None = None,
    name: str | None = None,
    *,
    peepholes: X | None = None,
) -> tuple[X, X]:
    """One step of a long short-term memory.

    ``gates = x @ weight_x.T + hidden @ weight_h.T + bias``; sigmoids ``i, f, o`` and a tanh ``z`` of a quarter each;
    ``cell = f * cell + i * z``, ``hidden = o * tanh(cell)``.

    Args:
        x: Input, shape (batch, features), floating.
        hidden: Hidden state, shape (batch, hidden), dtype of ``x``.
        cell: Cell, likewise.
        weight_x: Shape (4 * hidden, features); rows are of the gates i, f, z, o, in this order.
        weight_h: Shape (4 * hidden, hidden).
        bias: Shape (4 * hidden,): the sum of PyTorch's two; None for 0.
        name: Name of the op that makes the new state.
        peepholes: Factors on the cell, shape (3 * hidden,), that are added to the gates i and f, and on the new cell,
            added to o; None for 0.
    Returns:
        The new hidden state and the new cell, each (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs.
    Source: Hochreiter and Schmidhuber, 1997, with forget gates (Gers et al., 2000) and peepholes (Gers and Schmidhuber,
        2000); `torch.nn.LSTMCell`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((2, 3)), xp.zeros((16, 3)), xp.zeros((16, 4))
        >>> hidden, cell = af.ops.lstm_cell(x, xp.zeros((2, 4)), xp.ones((2, 4)), weight_x, weight_h)
        >>> print(hidden.shape, cell[0])
        (2, 4) [0.5 0.5 0.5 0.5]
    """
    gates = plus(inner(x, weight_x), inner(hidden, weight_h))
    return _lstm_step(gates if bias is None else add_bias(gates, bias), cell, peepholes, name)


def _lstm_step(gates: Any, cell: Any, peepholes: Any, name: str | None = None) -> tuple[Any, Any]:
    if peepholes is None:
        hidden, cell, _ = apply(LSTMGates(), gates, cell, name=name)
        return hidden, cell
    width = cell.shape[-1]
    for_inputs, for_outputs = split(peepholes, [2 * width, width])
    before, z, o = split(gates, [2 * width, width, width], axis=1)
    i, f = split(sigmoid(before + concat([cell, cell], axis=1) * for_inputs), 2, axis=1)
    cell = f * cell + i * tanh(z)
    return sigmoid(o + cell * for_outputs) * tanh(cell), cell


@whole
def lstm(
    x: X,
    weight_x: X,
    weight_h: X,
    bias: X | None = None,
    hidden: X | None = None,
    cell: X | None = None,
    name: str | None = None,
    *,
    peepholes: X | None = None,
    lengths: X | None = None,
    reverse: bool = False,
) -> tuple[X, X, X]:
    """A long short-term memory over whole sequences: `lstm_cell` step by step.

    It is one op of any number of steps, open ones and none among them; with peepholes it is step by step. Time comes
    first, as by default in PyTorch; `nn.LSTM` takes batches first on request.

    Args:
        x: Inputs, shape (steps, batch, features), floating.
        weight_x, weight_h, bias, peepholes: As in `lstm_cell`.
        hidden: First hidden state, shape (batch, hidden), dtype of ``x``; None for 0.
        cell: First cell, likewise.
        lengths, reverse: As in `scan`.
    Returns:
        The hidden states after each step, (steps, batch, hidden); the last one and the last cell, (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs; gradients of gradients need the number of steps.
    Source: As `lstm_cell`; `torch.nn.LSTM`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((5, 2, 3)), xp.zeros((16, 3)), xp.zeros((16, 4))
        >>> steps, hidden, cell = af.ops.lstm(x, weight_x, weight_h, cell=xp.ones((2, 4)))
        >>> print(steps.shape, hidden.shape, cell[0, 0])  # half of the cell is kept in each step
        (5, 2, 4) (2, 4) 0.03125
    """
    if peepholes is not None:

        def step(gates: Any, hidden: X, cell: X) -> Sequence[X]:
            return _lstm_step(gates + inner(hidden, weight_h), cell, peepholes)

        found = {"x": x.spec, "weight_h": weight_h.spec, "weight_x": weight_x.spec}
        check_axes("LSTM", {each: LSTM.axes[each] for each in found}, found)
        states = [
            x.constant_like(0.0, (x.shape[1], weight_h.shape[1])) if each is None else each for each in (hidden, cell)
        ]
        gates = _affine(x, weight_x, bias)
        y, last_hidden, last_cell = scan(step, gates, states, lengths=lengths, reverse=reverse, name=name)
        return y, last_hidden, last_cell
    weights = (weight_x, weight_h, bias)
    y, last_hidden, last_cell = _sequence(LSTM(), x, [hidden, cell], weights, lengths, reverse, name)
    return y, last_hidden, last_cell


@whole
def rnn(
    x: X,
    weight_x: X,
    weight_h: X,
    bias: X | None = None,
    hidden: X | None = None,
    *,
    activation: str = "tanh",
    lengths: X | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> tuple[X, X]:
    """A simple recurrent network over whole sequences: ``hidden = tanh(x @ weight_x.T + hidden @ weight_h.T + bias)``.

    Args:
        x: Inputs, shape (steps, batch, features), floating; steps may be open, and 0.
        weight_x: Shape (hidden, features), dtype of ``x``.
        weight_h: Shape (hidden, hidden).
        bias: Shape (hidden,): the sum of PyTorch's two; None for 0.
        hidden: First hidden state, shape (batch, hidden); None for 0.
        activation: "tanh" or "relu".
        lengths, reverse: As in `scan`.
    Returns:
        The hidden states after each step, (steps, batch, hidden), and the last one, (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if the activation is unknown.
    Gradient: by all inputs; gradients of gradients need the number of steps.
    Source: Elman, Finding structure in time, 1990; `torch.nn.RNN`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((3, 1, 1)), xp.ones((1, 1)), xp.ones((1, 1))
        >>> steps, last = af.ops.rnn(x, weight_x, weight_h, activation="relu")
        >>> print(xp.reshape(steps, (-1,)), last)
        [1. 2. 3.] [[3.]]
    """
    y, last = _sequence(RNN(activation), x, [hidden], (weight_x, weight_h, bias), lengths, reverse, name)
    return y, last


@whole
def gru(
    x: X,
    weight_x: X,
    weight_h: X,
    bias: X | None = None,
    bias_h: X | None = None,
    hidden: X | None = None,
    *,
    reset_after: bool = True,
    lengths: X | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> tuple[X, X]:
    """Gated recurrent units over whole sequences.

    With thirds ``a`` of ``x @ weight_x.T + bias`` and ``h`` of ``hidden @ weight_h.T + bias_h``: sigmoids ``r`` of
    ``a_r + h_r`` and ``z`` of ``a_z + h_z``, ``n = tanh(a_n + r * h_n)``, ``hidden = (1 - z) * n + z * hidden``.

    Args:
        x: Inputs, shape (steps, batch, features), floating; steps may be open, and 0.
        weight_x: Shape (3 * hidden, features), dtype of ``x``; rows are of r, z, n, in this order.
        weight_h: Shape (3 * hidden, hidden).
        bias: Shape (3 * hidden,); None for 0.
        bias_h: Likewise.
        hidden: First hidden state, shape (batch, hidden); None for 0.
        reset_after: Whether ``r`` is a factor on ``h_n``, as in PyTorch, cuDNN and ONNX with ``linear_before_reset``.
            If not, it is one on the hidden state that ``h_n`` is made of, as in the paper.
        lengths, reverse: As in `scan`.
    Returns:
        The hidden states after each step, (steps, batch, hidden), and the last one, (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs; gradients of gradients need the number of steps.
    Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014; `torch.nn.GRU`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((5, 2, 3)), xp.zeros((12, 3)), xp.zeros((12, 4))
        >>> steps, last = af.ops.gru(x, weight_x, weight_h, hidden=xp.ones((2, 4)))
        >>> print(steps.shape, last.shape)
        (5, 2, 4) (2, 4)
        >>> print(last[0, 0])  # half of it is kept in each step
        0.03125
    """
    weights = (weight_x, weight_h, bias, bias_h)
    y, last = _sequence(GRU(reset_after), x, [hidden], weights, lengths, reverse, name)
    return y, last


def _steps(x: Any) -> list[Any]:
    steps = known("a step by step computation", x.shape[0])
    return [reshape(part, x.shape[1:]) for part in split(x, steps)] if steps else []


def _affine(x: X, weight: X, bias: X | None) -> Any:
    return inner(x, weight) if bias is None else add_bias(inner(x, weight), bias)


def _sequence(
    operation: _Sequence,
    x: X,
    states: Sequence[X | None],
    weights: Sequence[X | None],
    lengths: X | None,
    reverse: bool,
    name: str | None,
) -> tuple[X, ...]:
    """The hidden state after each step, and the last states; states and biases that are None are 0."""
    weight_h = weights[1]
    assert weight_h is not None
    rank_is(operation.kind, "x", x.spec, ("steps", "batch", "features"))
    rank_is(operation.kind, "weight_h", weight_h.spec, operation.axes["weight_h"].split(", "))
    shape = (x.shape[1], weight_h.shape[1])
    first = [x.constant_like(0.0, shape) if each is None else each for each in states]
    given = [x.constant_like(0.0, weight_h.shape[:1]) if each is None else each for each in weights]
    if lengths is None:
        y, *more = apply(operation, flip(x, 0) if reverse else x, *first, *given, name=name)
        return flip(y, 0) if reverse else y, *more[: operation.states]
    found: tuple[X, ...] = apply(Ragged(operation, reverse), x, lengths, *first, *given, name=name)
    return found


@whole
def scan(
    cell: Callable[..., Sequence[X]],
    x: X,
    states: Sequence[X],
    *,
    lengths: X | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> tuple[X, ...]:
    """A cell step by step: ``states = cell(x[t], *states)``, each step in ops of its own.

    Args:
        cell: Makes the new states, of the types of the old ones, from one step of ``x`` and the states.
        x: Inputs, shape (steps, batch, ...), at least one step.
        states: First states, one or more, (batch, ...).
        lengths: Number of steps of each sequence, shape (batch,), integers; None for all. Later steps leave its states
            as they are, and give 0.
        reverse: Whether the last step comes first.
        name: Name of the op that joins the outputs.
    Returns:
        The first state after each step, (steps, batch, ...), in the order of ``x``; then the last states.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by the inputs, the first states, and whatever the cell reads.
    Example:
        >>> graph = af.Graph("sums")
        >>> x, start = graph.blob("x", shape=(3, "batch")), graph.blob("start", shape="batch")
        >>> sums, last = af.ops.scan(lambda x, total: [total + x], x, [start])
        >>> print(graph.run_sync({x: [[1, 10], [2, 20], [3, 30]], start: [0, 0]})[sums])
        [[ 1. 10.]
         [ 3. 30.]
         [ 6. 60.]]
    """
    order = range(known("scan", x.shape[0]))[:: -1 if reverse else 1]
    steps, found = _steps(x), {}
    counts: Any = lengths
    for t in order:
        new: Sequence[Any] = cell(steps[t], *states)
        if counts is not None:
            runs = [reshape(counts > t, (-1, *[1] * (len(state.shape) - 1))) for state in new]
            found[t] = where(runs[0], new[0], 0.0)
            new = [where(*given) for given in zip(runs, new, states, strict=True)]
        states = new
        found.setdefault(t, new[0])
    return (stack([found[t] for t in sorted(found)], name=name), *states)
