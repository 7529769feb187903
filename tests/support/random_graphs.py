"""Random graphs over nearly all kinds of operation: a seed gives one, the same under all settings and on all places.

What is drawn are the cases that kernels are tried with, the forms of random expressions, and what networks are made of:
products with biases, norms, activations and residuals behind them, losses, gradients, updates. What an op reads is,
where that can be, what others have computed, cut, repeated and cast to fit.

A graph with open axes stands beside the same graphs with all axes closed, for several lengths. A step is drawn once,
and done in all of the graphs: of the numbers in its shapes and parameters, some are axes by name in the graph that is
open, and their lengths in the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

import actorflow as af
from actorflow import nn, ops
from actorflow.loop import at_once
from actorflow.ops.rows import Elementwise
from actorflow.plan.lengths import Closed
from actorflow.spec import Length, at, axes_in, axis
from tests.operations import PARTICULAR, ROWS, Row, Sample, samples
from tests.sim.test_operations import COMPOSITIONS
from tests.support import forms
from tests.support.graph_files import half

AXES = ("rows", "width", "time")  # at most, of a graph
LENGTHS = 3  # of each axis
SHORT = (0, 1, 1, 2, 3, 5, 8)
CASES_FIRST, FEWEST, MOST = 3, 4, 24
MOST_ELEMENTS = 4_000
FLOATS = ("float32", "float32", "float64", "float16")
ACTIVATIONS = ["relu", "sigmoid", "tanh", "elu", "leaky_relu", "gelu", "silu", "softplus", "hard_sigmoid", "hard_swish"]
OPTIMIZERS: tuple[Callable[[], nn.Optimizer], ...] = (
    lambda: nn.SGD(0.1, momentum=0.9, weight_decay=0.01),
    lambda: nn.SGD(0.1, clip=nn.Clip(norm=0.5)),
    lambda: nn.Adam(0.01, clip=nn.Clip(value=0.1)),
    lambda: nn.AdamW(0.01),
    lambda: nn.Adagrad(0.1),
    lambda: nn.RMSProp(0.01, momentum=0.5, centered=True),
)


@cache
def cases() -> dict[str, list[Sample]]:
    """The samples of each kind, without large ones where there are others; the kinds are shuffled."""
    drawn: dict[str, list[tuple[int, Sample]]] = {}
    for row, sample in samples():
        drawn.setdefault(row.name, []).append((sum(x.size for x in sample.drawn()), sample))
    kinds = [*drawn]
    np.random.default_rng(0).shuffle(kinds)
    least = {kind: min(size for size, _ in drawn[kind]) for kind in kinds}
    return {kind: [each for size, each in drawn[kind] if size <= max(MOST_ELEMENTS, least[kind])] for kind in kinds}


def floats_of(row: Row) -> list[str]:
    """Dtypes that the numbers of a row's samples are drawn in."""
    return [name for name in FLOATS if name in row.dtypes] or [*FLOATS]


class Found(NamedTuple):
    """A value, of which blob, and when."""

    blob: af.Blob
    when: str
    value: np.ndarray


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
        return (self.closed or self.all)[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.open.dtype


class RefusedError(Exception):
    """A step cannot be done in all graphs."""


class OpenGraphs:
    """The graphs of a seed.

    Args:
        seed: Chooses everything; the graphs of as many seeds in a row as there are kinds draw each kind thrice or more.
        place: Where they compute, but for some functions, which are the CPU's.
        brittle: Makes an op of a blob that is not constant, somewhere in the graphs.
        noise: Chooses by how little the numbers that go in differ from those without it.
        axes: Names of axes that may be open; without any, there is one graph.
        options: Of `af.Graph`.
    Attributes:
        refused: What was done for all lengths that were tried, but not with open axes: by the kind, and why.
        unequal: What was done with open axes, but fits for some of the lengths only in the closed graphs.
    """

    def __init__(
        self,
        seed: int,
        place: str = "cpu",
        brittle: Callable[[af.Blob], af.Blob] | None = None,
        noise: int | None = None,
        axes: Sequence[str] = AXES,
        **options: Any,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self._noise = None if noise is None else np.random.default_rng(noise)
        self._axes = axes
        self.lengths: list[dict[str, int]] = [{} for _ in range(LENGTHS if axes else 0)]
        self.graphs = [af.Graph("open", **options), *[af.Graph("closed", **options) for _ in self.lengths]]
        self._worlds = [Here(*each) for each in zip(self.graphs, (None, *self.lengths), strict=True)]
        self._fed: list[tuple[Twins, list[np.ndarray]]] = []
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
            self._grow_to(int(self.rng.integers(wanted)) if brittle is not None else wanted)
            if brittle is not None:
                fragile = self._do("brittle", lambda here, x: brittle(x), self._pick(self._changing()))
                self.values += fragile * 2  # of which others read the more
                self._grow_to(wanted)
            self._finish()
            said = self.lengths[0] if axes else {}
            named = [self._source(np.zeros(n), (axis(name),)) for name, n in said.items()]  # say all lengths
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
        return {twins.all[graph]: arrays[lengths] for twins, arrays in self._fed}

    def has_ones(self, lengths: int) -> bool:
        """Return whether an open axis, or what follows from some, is 1: some sums are then of one element."""
        return any(
            isinstance(n, Length) and n.at(self.lengths[lengths]) == 1
            for op in self.graphs[0].ops
            for blob in (*op.inputs, *op.outputs)
            for n in blob.shape
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def _grow_to(self, count: int) -> None:
        """Add random steps; one that does not fit what it is drawn for is none."""
        while len(self.graphs[0].ops) < count and self._steps < 4 * MOST:
            self._grow()

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
        if operation.kind in PARTICULAR:
            return self._source(array, shape)
        if takes_any.get(array.dtype.kind) and not operation.is_constant(position) and self.rng.random() < 0.6:
            return self._fitting(shape, array.dtype)
        return self._leaf(array, shape)

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
        for n in sorted(numbers) if self._axes else ():
            if self.rng.random() < 0.4:
                continue
            fitting = [name for name, length in self.lengths[0].items() if length == n]
            free = [name for name in self._axes if name not in self.lengths[0]]
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

    def _changing(self) -> list[Twins]:
        """Real floating values that are not made of constants alone."""
        return [x for x in self._floats() if leaves_of(x.open)]

    def _leaf(self, array: np.ndarray, shape: tuple[Any, ...]) -> Twins:
        """Fed, a variable, or constant; but fed where axes are open."""
        how = self.rng.random()
        if axes_in(shape) or how > 0.5:
            return self._source(array, shape)
        if how < 0.25:
            value = self._near(array)
            return Twins([graph.constant(value) for graph in self.graphs])
        return self._variable(array) if array.dtype.kind == "f" else self._source(array, shape)

    def _near(self, array: np.ndarray) -> np.ndarray:
        """The same numbers, or some that differ by a few roundings."""
        if self._noise is None or array.dtype.kind != "f":
            return array
        noise = self._noise.standard_normal(array.shape) * 4 * np.finfo(array.dtype).eps
        return (array * (1.0 + noise)).astype(array.dtype)

    def _source(self, array: np.ndarray, shape: tuple[Any, ...]) -> Twins:
        """A fed blob; of other lengths, its parts come again and again."""
        name, array = self._name("x"), self._near(array)
        made = [here.graph.blob(name, here(shape), array.dtype) for here in self._worlds]
        arrays = [] if self._axes else [array]
        for blob in made[1:]:
            found = array if array.size else np.zeros(blob.shape, array.dtype)
            for i, n in enumerate(blob.shape):
                found = found if found.shape[i] == n else found.take(np.arange(n) % max(array.shape[i], 1), axis=i)
            arrays.append(found)
        twins = Twins(made)
        self._fed.append((twins, arrays))
        self.values.append(twins)
        return twins

    def _parameter(self, shape: tuple[int, ...], dtype: Any, low: float = -1.0) -> Twins:
        """A variable, whose shape is closed."""
        return self._variable(self.rng.uniform(low, low + 2.0, shape).astype(dtype))

    def _variable(self, array: np.ndarray) -> Twins:
        name, value = self._name("w"), self._near(array)
        return Twins([graph.variable(name, value.shape, value.dtype, value) for graph in self.graphs])

    def _fitting(self, shape: tuple[Any, ...], dtype: Any) -> Twins:
        """A value of another op, repeated, cut and cast to this; or one that has it; or a new one."""
        dtype = np.dtype(dtype)
        fitting = [x for x in self.values if x.dtype.kind == dtype.kind or {x.dtype.kind, dtype.kind} == {"c", "f"}]
        same = [x for x in fitting if x.open.shape == shape and x.dtype == dtype]
        how = self.rng.random()
        if same and how < 0.6:
            return self._pick(same)
        if how < 0.8 or not fitting:
            nominal = at(shape, self.lengths[0]) if self._axes else shape
            drawn = self.rng.standard_normal(nominal) * 2
            return self._source(drawn > 0 if dtype.kind == "b" else drawn.astype(dtype), shape)
        x = self._pick(fitting)
        is_shaped = x.open.shape == shape  # which may hold for some lengths of another one, too
        (x,) = self._do("fitting", lambda here, x: _fitted(x, here(shape), dtype, is_shaped), x, keeps=False)
        return x


class RandomGraph(OpenGraphs):
    """The graph of a seed without open axes; arguments as those of `OpenGraphs`."""

    def __init__(self, seed: int, *how: Any, **more: Any) -> None:
        super().__init__(seed, *how, axes=(), **more)
        (self.graph,) = self.graphs
        self.blobs = [*dict.fromkeys([*self.graph.sinks, *[twins.open for twins in self.fetch]])]

    @property
    def kinds(self) -> set[str]:
        """Kinds of the operations that a frame computes, or a constant is made of."""
        return {op.operation.kind for op in self.graph.ops}

    @property
    def fed(self) -> dict[af.Blob, np.ndarray]:
        """What is fed to the first frame."""
        return self.feeds(0, 0)

    async def run(self, frames: int = 2, atomic: bool = False) -> list[Found]:
        """What is fetched of some frames, and then the variables."""
        found: list[Found] = []
        for frame in range(frames):
            feeds = {
                blob: x * x.dtype.type(0.75) if frame and x.dtype.kind == "f" else x for blob, x in self.fed.items()
            }
            result = await self.graph.run(feeds, fetch=[*self.blobs, self.graph], atomic=atomic)
            found += [Found(blob, f"frame {frame}", af.to_numpy(result[blob])) for blob in self.blobs]
        return found + [Found(variable, "afterwards", np.array(variable.value)) for variable in self.graph.variables]


def _fitted(x: af.Blob, shape: tuple[Any, ...], dtype: np.dtype[Any], is_shaped: bool) -> af.Blob:
    x = ops.real(x) if x.dtype.kind == "c" and dtype.kind == "f" else x
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


def _beside(name: str, make: Callable[[af.Blob, af.Blob], Any], *, is_factor: bool = False) -> Any:
    """Something of a value and of another one like it; or of a factor for each row and channel."""

    def joined(graphs: OpenGraphs, y: Twins) -> list[Twins]:
        shape = y.open.shape
        other = (*shape[:1], *[1] * (len(shape) - 2), *shape[-1:]) if is_factor and len(shape) > 1 else shape
        return graphs._do(name, lambda here, *x: make(*x), y, graphs._fitting(other, y.dtype))

    return joined


def _there_and_back(graphs: OpenGraphs, y: Twins) -> list[Twins]:
    dtype = graphs._pick(FLOATS)
    return graphs._do("cast", lambda here, x: ops.cast(ops.relu(ops.cast(x, dtype)), x.dtype), y)


def _plain(name: str, make: Callable[[af.Blob], Any]) -> Callable[[OpenGraphs, Twins], list[Twins]]:
    return lambda graphs, y: graphs._do(name, lambda here, x: make(x), y)


_BEHIND: tuple[Callable[[OpenGraphs, Twins], list[Twins]], ...] = (
    *[_with_parameters("bias", -1.0)] * 2,
    _with_parameters("batch_norm", -1.0, 0.5, -1.0, -1.0, training=True),
    _with_parameters("batch_norm", -1.0, 0.5, -1.0, -1.0, training=False),
    _with_parameters("layer_norm", -1.0, -1.0),
    *[_plain(name, getattr(ops, name)) for name in (*ACTIVATIONS, "softmax", "log_softmax", "cumsum", "flatten")],
    *[_beside("add", ops.add)] * 2,
    _beside("factors", ops.multiply, is_factor=True),
    _beside("where", lambda y, z: ops.where(ops.greater(y, 0.0), y, z)),
    _beside("concat", lambda y, z: ops.concat([y, z], axis=-1)),
    _there_and_back,
    _plain("clip", lambda x: ops.clip(x, -0.5, 0.5)),
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


def upstream(blob: af.Blob) -> list[af.Blob]:
    """A blob and all that it is made of in a frame, in the order in which they are met; a variable as it was before."""
    todo, seen = [blob], dict.fromkeys([blob])
    while todo:
        for op in todo.pop().producers:
            new = [x for x in op.inputs if x not in seen]
            seen |= dict.fromkeys(new)
            todo += [x for x in new if not isinstance(x, af.Variable)]
    return [*seen]


def leaves_of(blob: af.Blob) -> list[af.Blob]:
    """What is fed, and the variables, that a blob depends on."""
    return [x for x in upstream(blob) if isinstance(x, af.Variable) or not x.producers]


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
