"""Random graphs with open axes, each beside the same graphs with all axes closed, for several lengths.

A step is drawn once, and done in all of the graphs. What is drawn is what `tests.support.random_graphs` draws; of the
numbers in the shapes and parameters, some are axes by name in the graph that is open, and their lengths in the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.loop import at_once
from actorflow.ops.rows import Elementwise
from actorflow.plan.lengths import Closed
from actorflow.spec import Length, at, axes_in, axis
from tests.operations import ROWS
from tests.sim.test_operations import COMPOSITIONS
from tests.support import forms
from tests.support.graph_files import half
from tests.support.random_graphs import (
    ACTIVATIONS,
    FLOATS,
    MOST_ELEMENTS,
    OPTIMIZERS,
    PARTICULAR,
    cases,
    floats_of,
    leaves_of,
)

AXES = ("rows", "width", "time")  # at most, of a graph
LENGTHS = 3  # of each axis
SHORT = (0, 1, 1, 2, 3, 5, 8)
CASES_FIRST, FEWEST, MOST = 3, 4, 24
#: Parameters that are lengths, or hold some.
_LENGTHS = {
    *("shape", "size", "lengths", "length", "depth", "classes", "points", "widths", "key", "spec", "batch"),
    *("kernel", "forward"),
}


#: Operations on whole sequences.
SEQUENCES = {"GRU", "LSTM", "LSTMGates", "RNN"}


class Here:
    """One of the graphs; it gives lengths, and what holds some, as the graph has them."""

    def __init__(self, graph: af.Graph, lengths: Mapping[str, int] | None) -> None:
        self.graph, self._lengths = graph, lengths

    def __call__(self, value: Any) -> Any:
        return value if self._lengths is None else at(value, self._lengths)


class Twins:
    """A value in all graphs: that of the open one first."""

    def __init__(self, blobs: Sequence[af.Blob]) -> None:
        self.open, *self.closed = self.all = tuple(blobs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape for the first lengths, which are those that cases are made for."""
        return self.closed[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.open.dtype


class RefusedError(Exception):
    """A step cannot be done in all graphs."""


class OpenGraphs:
    """The graphs of a seed.

    Args:
        seed: Chooses everything; the graphs of as many seeds in a row as there are kinds draw each kind thrice or more.
        place: Where they compute.
        options: Of `af.Graph`.
    Attributes:
        refused: What was done for all lengths that were tried, but not with open axes: by the kind, and why.
        unequal: What was done with open axes, but fits for some of the lengths only in the closed graphs.
    """

    def __init__(self, seed: int, place: str = "cpu", **options: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.lengths: list[dict[str, int]] = [{} for _ in range(LENGTHS)]
        self.graphs = [af.Graph("open", **options), *[af.Graph("closed", **options) for _ in self.lengths]]
        self._worlds = [Here(*each) for each in zip(self.graphs, (None, *self.lengths), strict=True)]
        self.fed: list[tuple[Twins, list[np.ndarray]]] = []
        self.values: list[Twins] = []
        self.refused: Counter[tuple[str, str]] = Counter()
        self.unequal: Counter[tuple[str, str]] = Counter()
        self._names = self._steps = 0
        self._kinds = islice(cycle(cases()), CASES_FIRST * seed % len(cases()), None)
        with ExitStack() as stack:
            for graph in self.graphs:
                stack.enter_context(graph.at(place))
            self.ticks = [graph.constant(np.zeros(1), name="tick") for graph in self.graphs]
            for shape in ((2, 6, 6, 3), (5, 41), (7,)):
                self._source(self.rng.standard_normal(shape).astype(self._pick(FLOATS)), self._opened(shape))
            wanted = int(self.rng.integers(FEWEST, MOST))
            while len(self.graphs[0].ops) < wanted and self._steps < 4 * MOST:
                self._grow()
            self._finish()
            named = [self._source(np.zeros(n), (axis(name),)) for name, n in self.lengths[0].items()]  # say all lengths
        inner = [value for value in self.values if value.open.producers]
        sinks = [value for value in inner if not value.open.consumers]
        chosen = [self._pick(inner) for _ in range(self.rng.integers(6))] if inner else []
        self.fetch = [*{twins.open: twins for twins in (*sinks, *chosen, *named)}.values()]

    @property
    def kinds(self) -> set[str]:
        """Kinds of operations that depend on the length of an open axis."""
        return {op.operation.kind for op in self.graphs[0].ops if _axes_of(op)}

    def feeds(self, graph: int, lengths: int) -> dict[af.Blob, np.ndarray]:
        """What is fed to a graph for lengths by their number."""
        return {twins.all[graph]: arrays[lengths] for twins, arrays in self.fed}

    def has_ones(self, lengths: int) -> bool:
        """Return whether an open axis, or what follows from some, is 1: some sums are then of one element."""
        return any(
            isinstance(n, Length) and n.at(self.lengths[lengths]) == 1
            for op in self.graphs[0].ops
            for blob in (*op.inputs, *op.outputs)
            for n in blob.shape
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        others = (*[self._case] * 5, *[self._form] * 5, *[self._layer] * 4, self._sum, self._update, self._compose)
        step = self._pick([self._case] if self._steps < CASES_FIRST else others)
        self._steps += 1
        with suppress(RefusedError, af.ActorflowError):
            step()

    def _do(self, what: str, make: Callable[..., Any], *inputs: Twins, keeps: bool = True) -> list[Twins]:
        """What a step makes of values, in all graphs; or in none of them, if one cannot."""
        errors: list[Exception | None] = []
        made: list[list[af.Blob]] = []
        with ExitStack() as stack:
            for graph in self.graphs:
                stack.enter_context(graph._store.all_or_nothing())
            known = set(self.graphs[0].ops)
            for i, here in enumerate(self._worlds):
                try:
                    found = make(here, *[x.all[i] for x in inputs])
                    made.append([*found] if isinstance(found, tuple | list) else [found])
                    errors.append(None)
                except af.ActorflowError as error:
                    errors.append(error)
            self._judge(what, [op for op in self.graphs[0].ops if op not in known], errors)
            if any(
                [at(blob.shape, lengths) for blob in made[0]] != [blob.shape for blob in closed]
                for lengths, closed in zip(self.lengths, made[1:], strict=True)
            ):  # axes of length 1 are squeezed, say
                raise RefusedError(what)
        results = [*map(Twins, zip(*made, strict=True))]
        if keeps:
            self.values += [
                x for x in results if len(x.shape) < 6 and all(blob.spec.size <= 4 * MOST_ELEMENTS for blob in x.closed)
            ]
        return results

    def _judge(self, what: str, new: Sequence[af.Op], errors: Sequence[Exception | None]) -> None:
        """Refuse a step that some graph refuses, and say which does so without the others."""
        of_open, *of_closed = errors
        if of_open is not None:
            if not any(of_closed):
                self.refused[what, str(of_open)] += 1
            raise RefusedError(what)
        for lengths, of_one in zip(self.lengths, of_closed, strict=True):
            error = None
            try:
                at_once(Closed(tuple(sorted(lengths.items()))).close(new))
            except af.ActorflowError as found:
                error = found
            if (error is None) is not (of_one is None):
                self.unequal[what, f"{lengths}: open {error}, closed {of_one}"] += 1
            if error is not None or of_one is not None:
                raise RefusedError(what)

    def _case(self) -> None:
        """The next kind, in one of its cases, with some of its numbers open."""
        row = ROWS[next(self._kinds)]
        sample = self._pick(cases()[row.name])
        operation, arrays = sample.operation, sample.inputs(self._pick(floats_of(row)), self.rng)
        numbers = {n for x in arrays for n in x.shape[: len(x.shape) - row.closed]}
        numbers |= {n for value in _parameters(operation) for n in _numbers(value)} if not arrays else set()
        opened = self._axes_for(numbers)
        inputs = []
        for i, x in enumerate(arrays):
            count = len(x.shape) - row.closed
            shape = tuple([opened.get(n, n) if k < count else n for k, n in enumerate(x.shape)])
            inputs.append(self._input(operation, i, x, shape))
        for form in dict.fromkeys((_renamed(operation, opened), operation)):
            try:
                self._do(operation.kind, lambda here, *x, form=form: here.graph.apply(here(form), *x), *inputs)
                return
            except RefusedError:
                continue
        raise RefusedError(operation.kind)

    def _input(self, operation: ops.Operation, position: int, array: np.ndarray, shape: tuple[Any, ...]) -> Twins:
        takes_any = {
            "f": not isinstance(operation, ops.Cast),
            "i": isinstance(operation, Elementwise) and operation.kind != "Power",
            "b": True,
        }
        if operation.kind not in PARTICULAR and takes_any.get(array.dtype.kind) and self.rng.random() < 0.6:
            return self._fitting(shape, array.dtype)
        return self._source(array, shape)

    def _form(self) -> None:
        """An expression of one value or two."""
        x = self._pick([x for x in self._floats() if len(x.shape) < 5 and 0 < math.prod(x.shape) < MOST_ELEMENTS])
        drawn, inputs = forms.drawn(self.rng, x.shape), [x]
        if drawn is forms.TWO:
            inputs.insert(int(self.rng.integers(2)), self._pick(self._floats(x.dtype)))
        name = self._pick([*drawn])
        self._do(name, lambda here, *x: drawn[name](*x), *inputs)

    def _layer(self) -> None:
        """What networks are made of, with something behind it."""
        make = self._pick((self._conv, self._conv, self._pool, self._inner, self._matmul, self._resize))
        (y,) = make()
        for _ in range(self.rng.integers(4)):
            behind = self._pick(_BEHIND)
            (y,) = behind(self, y)

    def _conv(self) -> list[Twins]:
        dtype = self._pick(FLOATS)
        channels, count, groups = self._pick(((3, 4, 1), (4, 4, 4), (4, 8, 4), (6, 4, 2)))
        rank = self._pick((1, 2, 2, 3))
        kernel, stride, pad = (
            int(self._pick(numbers)) for numbers in ((1, 3, 5 if rank < 3 else 3), (1, 1, 2), (0, 1, 2))
        )
        x = self._fitting((*self._opened((2, *(6, 7, 5)[:rank])), channels), dtype)
        if groups == 1 and self.rng.random() < 0.3:
            weight = self._parameter((*[kernel] * rank, count, channels), dtype)
            return self._do("conv_transpose", lambda here, x, w: ops.conv_transpose(x, w, stride), x, weight)
        weight = self._parameter((*[kernel] * rank, channels // groups, count), dtype)
        return self._do("conv", lambda here, x, w: ops.conv(x, w, stride, pad, 1, groups), x, weight)

    def _pool(self) -> list[Twins]:
        x = self._fitting((*self._opened((2, 6, 7)), 4), self._pick(FLOATS))
        how, ceil = self._pick(((2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 1))), bool(self.rng.integers(2))
        kind = self._pick((ops.max_pool, ops.average_pool, ops.global_average, ops.global_max))
        if kind in (ops.global_average, ops.global_max):
            return self._do("global", lambda here, x: kind(x), x)
        return self._do("pool", lambda here, x: kind(x, *how, ceil=ceil), x)

    def _inner(self) -> list[Twins]:
        dtype = self._pick(FLOATS)
        x = self._fitting((*self._opened((6,)), 12), dtype)
        return self._do("inner", lambda here, x, w: ops.inner(x, w), x, self._parameter((9, 12), dtype))

    def _matmul(self) -> list[Twins]:
        dtype = self._pick(FLOATS)
        *batch, rows, inner, columns = self._opened((*self._pick(((), (3,), (2, 3))), 4, 5, 7))
        x, y = self._fitting((*batch, rows, inner), dtype), self._fitting((*batch, inner, columns), dtype)
        return self._do("matmul", lambda here, x, y: ops.matmul(x, y), x, y)

    def _resize(self) -> list[Twins]:
        x = self._fitting((*self._opened((2, 6)), 4), "float32")
        scale = self._pick((2, 0.5, 1.5))
        return self._do("resize", lambda here, x: ops.resize(x, scale=scale), x)

    def _sum(self) -> None:
        """A blob that several ops add to."""
        x, name = self._pick(self._floats()), self._name("sum")

        def make(here: Any, x: af.Blob) -> af.Blob:
            y = x.graph.root.blob(name, x.shape, x.dtype)
            for i, operation in enumerate((ops.Tanh(), ops.Scale(0.5))):
                [x] >> x.graph.root.op(f"{name}_{i}", operation) >> [y]
            return y

        self._do("sum of producers", make, x)

    def _update(self) -> None:
        """A new value of a variable, and something of the old one; or a function's; or what a sub-graph makes."""
        x, name, kind = self._pick(self._floats()), self._name("own"), self.rng.integers(3)

        def function(here: Any, x: af.Blob) -> Any:
            return x.graph.root.function(name, half, x.spec, place="cpu")(x)

        def subgraph(here: Any, x: af.Blob) -> Any:
            with x.graph.root.subgraph(name):
                return ops.tanh(x) * 0.5

        if kind < 2:
            self._do(("function", "sub-graph")[kind], (function, subgraph)[kind], x)
            return
        axes = tuple([i for i, n in enumerate(x.open.shape) if isinstance(n, Length)])
        (x,) = self._do("sum", lambda here, x: ops.sum(x, axes) if axes else x, x)
        variable = self._parameter(x.shape, x.dtype)

        def update(here: Any, x: af.Blob, variable: af.Blob) -> af.Blob:
            [x] >> x.graph.root.op(name, ops.Tanh()) >> [variable]
            return ops.add(variable, x)

        self._do("update", update, x, variable)

    def _compose(self) -> None:
        name = self._pick([*COMPOSITIONS])
        function, needed = COMPOSITIONS[name]
        opened = self._axes_for({n for shape in needed for n in shape})
        inputs = [self._fitting(tuple([opened.get(n, n) for n in shape]), "float32") for shape in needed]
        self._do(name, lambda here, *x: function(*x), *inputs)

    def _finish(self) -> None:
        """Losses, gradients of first and second order by leaves, an update of what is left to train."""
        for y in [self._pick(self._floats()) for _ in range(self.rng.integers(1, 4))]:
            with suppress(RefusedError, af.ActorflowError):
                self._learn(y)

    def _learn(self, y: Twins) -> None:
        make = self._pick((ops.mse_loss, ops.l1_loss, ops.huber_loss, lambda y, target: ops.mean(y * target)))
        (loss,) = self._do("loss", lambda here, *x: make(*x), y, self._fitting(y.open.shape, y.dtype), keeps=False)
        leaves = [leaves_of(blob) for blob in loss.all]
        wrt = [Twins(twins) for twins in zip(*leaves, strict=True) if twins[0].dtype.kind == "f"]
        self.rng.shuffle(wrt)  # type: ignore[arg-type]
        # Gradients of sequences' gradients are made of all their steps, thousands of ops.
        is_short = not any(op.operation.kind in SEQUENCES for op in self.graphs[0].ops)
        twice = bool(self.rng.random() < 0.3) and is_short

        def gradients(here: Any, loss: af.Blob, *wrt: af.Blob) -> Any:
            found = af.gradient(loss, [*wrt])
            return af.gradient(ops.sum(ops.square(found[0])), [*wrt]) if twice else found

        for i in range(min(3, len(wrt))):
            with suppress(RefusedError):
                self._do("gradient", gradients, loss, *wrt[i : i + 1 + (i == 0)])
        optimizer = self._pick(OPTIMIZERS)

        def minimize(here: Any, loss: af.Blob) -> list[af.Blob]:
            optimizer().minimize(loss)
            return []

        self._do("minimize", minimize, loss)

    # -- values -------------------------------------------------------------------------------------------------------

    def _pick(self, among: Sequence[Any]) -> Any:
        if not among:
            raise RefusedError("there is nothing to choose from")
        return among[int(self.rng.integers(len(among)))]

    def _name(self, what: str) -> str:
        self._names += 1
        return f"{what}{self._names}"

    def _floats(self, dtype: Any = None) -> list[Twins]:
        return [x for x in self.values if (x.dtype.kind == "f" if dtype is None else x.dtype == dtype)]

    def _axes_for(self, numbers: set[int]) -> dict[int, Any]:
        """Open axes in the place of some of the numbers; what is new gets lengths."""
        found = {}
        for n in sorted(numbers):
            if self.rng.random() < 0.4:
                continue
            fitting = [name for name, length in self.lengths[0].items() if length == n]
            free = [name for name in AXES if name not in self.lengths[0]]
            if not fitting and not free:
                continue
            name = fitting[0] if fitting else free[0]
            if not fitting:
                some = [n, *[int(self._pick((*SHORT, n - 1, n + 1, 2 * n))) for _ in range(LENGTHS - 1)]]
                for lengths, length in zip(self.lengths, some, strict=True):
                    lengths[name] = max(length, 0)
            found[n] = axis(name)
        return found

    def _opened(self, shape: Sequence[int]) -> tuple[Any, ...]:
        opened = self._axes_for({*shape})
        return tuple([opened.get(n, n) for n in shape])

    def _source(self, array: np.ndarray, shape: tuple[Any, ...]) -> Twins:
        """A fed blob; of other lengths, its parts come again and again."""
        name = self._name("x")
        made = [here.graph.blob(name, here(shape), array.dtype) for here in self._worlds]
        arrays = []
        for blob in made[1:]:
            found = array if array.size else np.zeros(blob.shape, array.dtype)
            for i, n in enumerate(blob.shape):
                found = found if found.shape[i] == n else found.take(np.arange(n) % max(array.shape[i], 1), axis=i)
            arrays.append(found)
        twins = Twins(made)
        self.fed.append((twins, arrays))
        self.values.append(twins)
        return twins

    def _parameter(self, shape: tuple[int, ...], dtype: Any, low: float = -1.0) -> Twins:
        """A variable, whose shape is closed."""
        name, value = self._name("w"), self.rng.uniform(low, low + 2.0, shape).astype(dtype)
        return Twins([graph.variable(name, shape, dtype, value) for graph in self.graphs])

    def _fitting(self, shape: tuple[Any, ...], dtype: Any) -> Twins:
        """A value of another op, repeated, cut and cast to this; or one that has it; or a new one."""
        dtype = np.dtype(dtype)
        fitting = [x for x in self.values if x.dtype.kind == dtype.kind]
        same = [x for x in fitting if x.open.shape == shape and x.dtype == dtype]
        how = self.rng.random()
        if same and how < 0.6:
            return self._pick(same)
        if how < 0.8 or not fitting:
            nominal = at(shape, self.lengths[0])
            drawn = self.rng.standard_normal(nominal) * 2
            return self._source(drawn > 0 if dtype.kind == "b" else drawn.astype(dtype), shape)
        x = self._pick(fitting)
        is_shaped = x.open.shape == shape  # which may hold for some lengths of another one, too
        (x,) = self._do("fitting", lambda here, x: _fitted(x, here(shape), dtype, is_shaped), x, keeps=False)
        return x


def _fitted(x: af.Blob, shape: tuple[Any, ...], dtype: np.dtype[Any], is_shaped: bool) -> af.Blob:
    x = ops.cast(x, dtype) if x.dtype != dtype else x
    if is_shaped:
        return x
    size = math.prod(shape)
    flat = ops.reshape(x, (-1,))
    flat = ops.concat([flat, ops.cast(x.graph.root.constant(np.ones(1, "f4")), dtype)])
    flat = ops.tile(flat, size // flat.shape[0] + 2)  # not once: the sum of one -0.0 is 0.0
    return ops.reshape(flat[:size], shape)


def _with_parameters(name: str, *lows: float, **options: Any) -> Callable[[OpenGraphs, Twins], list[Twins]]:
    """A layer with vectors of the length of the last axis, which is closed."""

    def make(graphs: OpenGraphs, y: Twins) -> list[Twins]:
        last = y.open.shape[-1:]
        if not last or axes_in(last):
            raise RefusedError(name)
        wide = np.promote_types(y.dtype, "float32") if name == "batch_norm" else y.dtype
        parameters = [graphs._parameter(y.shape[-1:], wide if i < 2 else y.dtype, low) for i, low in enumerate(lows)]
        return graphs._do(name, lambda here, *x: getattr(ops, name)(*x, **options), y, *parameters)

    return make


def _plain(name: str, make: Callable[[af.Blob], Any]) -> Callable[[OpenGraphs, Twins], list[Twins]]:
    return lambda graphs, y: graphs._do(name, lambda here, x: make(x), y)


_BEHIND: tuple[Callable[[OpenGraphs, Twins], list[Twins]], ...] = (
    *[_with_parameters("bias", -1.0)] * 2,
    _with_parameters("batch_norm", -1.0, 0.5, -1.0, -1.0, training=True),
    _with_parameters("batch_norm", -1.0, 0.5, -1.0, -1.0, training=False),
    _with_parameters("layer_norm", -1.0, -1.0),
    *[_plain(name, getattr(ops, name)) for name in (*ACTIVATIONS, "softmax", "log_softmax", "cumsum", "flatten")],
    _plain("dropout", lambda x: ops.dropout(x, 0.3, 12345)),
    _plain("scale", lambda x: ops.scale(x, -0.7)),
    _plain("mean", lambda x: x - ops.mean(x, axis=0, keepdims=True)),
    _plain("concat", lambda x: ops.concat([x, ops.tanh(x)], axis=0)),
    _plain("slice", lambda x: x[1:]),
    _plain("slice", lambda x: x[::-2]),
    _plain("roll", lambda x: ops.roll(x, 2, 0)),
    _plain("pad", lambda x: ops.pad(x, [(1, 2), *[(0, 0)] * (len(x.shape) - 1)])),
    _plain("max", lambda x: ops.max(x, axis=-1)),
)


def _axes_of(op: af.Op) -> frozenset[str]:
    return axes_in((op.operation, *[blob.spec for blob in (*op.inputs, *op.outputs)]))


def _parameters(operation: Any) -> list[Any]:
    return [getattr(operation, field.name) for field in fields(operation) if field.name in _LENGTHS]


def _numbers(value: Any) -> set[int]:
    if isinstance(value, tuple):
        return {n for each in value for n in _numbers(each)}
    return {value} if isinstance(value, int) and not isinstance(value, bool) and value > 1 else set()


def _renamed(value: Any, opened: Mapping[int, Any]) -> Any:
    """An operation with axes in the place of numbers among its lengths."""
    if isinstance(value, tuple):
        found = [_renamed(each, opened) for each in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    if is_dataclass(value):
        new = {
            field.name: _renamed(getattr(value, field.name), opened)
            for field in fields(value)
            if field.name in _LENGTHS and field.init
        }
        return replace(value, **new)
    return opened.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value
