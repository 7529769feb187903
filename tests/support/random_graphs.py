"""Random graphs over nearly all kinds of operation: a seed gives one, the same under all settings and on all places.

What is drawn are the cases that kernels are tried with, the forms of random expressions, and what networks are made of:
products with biases, norms, activations and residuals behind them, losses, gradients, updates. What an op reads is,
where that can be, what others have computed, cut, repeated and cast to fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

import actorflow as af
from actorflow import nn, ops
from actorflow.ops.rows import Elementwise
from tests.operations import PARTICULAR, ROWS, Row, Sample, samples
from tests.sim.test_operations import COMPOSITIONS
from tests.support import forms
from tests.support.graph_files import half

FEWEST, MOST = 3, 40  # ops, but for gradients, updates, and what the last step adds
CASES_FIRST = 3  # steps that draw the next kind, before others do so, too
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


class RandomGraph:
    """The graph of a seed.

    Args:
        seed: Chooses everything; the graphs of as many seeds in a row as there are kinds draw each kind thrice or more.
        place: Where it computes, but for some functions, which are the CPU's.
        brittle: Makes an op of a blob that is not constant, somewhere in the graph.
        noise: Chooses by how little the numbers that go in differ from those without it.
        options: Of `af.Graph`.
    """

    def __init__(
        self,
        seed: int,
        place: str = "cpu",
        brittle: Callable[[af.Blob], af.Blob] | None = None,
        noise: int | None = None,
        **options: Any,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self._noise = None if noise is None else np.random.default_rng(noise)
        self.graph = af.Graph("random", **options)
        self.fed: dict[af.Blob, np.ndarray] = {}
        self.values: list[af.Blob] = []  # what ops may read
        self._same: set[af.Blob] = set()
        self._names = self._steps = 0
        self._others = (self._several, self._update, self._compose)
        start = CASES_FIRST * seed % len(cases())
        self._kinds = islice(cycle(cases()), start, None)
        with self.graph.at(place):
            for shape in ((2, 6, 6, 3), (5, 41), (5, 41), (7,)):
                self.values.append(self._source(self.rng.standard_normal(shape).astype(self._pick(FLOATS))))
            wanted = int(self.rng.integers(FEWEST, MOST + 1))
            self._grow_to(int(self.rng.integers(wanted)))
            if brittle is not None:
                self.values += [brittle(self._pick(self._changing()))] * 3  # of which others read the more
            self._grow_to(wanted)
            self._finish()
        inner = [blob for blob in self.values if blob.producers]
        chosen = [self._pick(inner) for _ in range(self.rng.integers(6))] if inner else []
        self.fetch: list[Any] = [*dict.fromkeys([*self.graph.sinks, *chosen]), self.graph]

    @property
    def kinds(self) -> set[str]:
        """Kinds of the operations that a frame computes, or a constant is made of."""
        return {op.operation.kind for op in self.graph.ops}

    async def run(self, frames: int = 2, atomic: bool = False) -> list[Found]:
        """What is fetched of some frames, and then the variables."""
        found: list[Found] = []
        for frame in range(frames):
            feeds = {
                blob: x * x.dtype.type(0.75) if frame and x.dtype.kind == "f" else x for blob, x in self.fed.items()
            }
            result = await self.graph.run(feeds, fetch=self.fetch, atomic=atomic)
            found += [Found(blob, f"frame {frame}", af.to_numpy(result[blob])) for blob in self.fetch[:-1]]
        return found + [Found(variable, "afterwards", np.array(variable.value)) for variable in self.graph.variables]

    # -- steps ------------------------------------------------------------------------------------------------------

    def _grow_to(self, ops: int) -> None:
        """Add random steps; one that does not fit what it is drawn for is none."""
        while len(self.graph.ops) < ops:
            any_step = (*[self._case] * 5, *[self._form] * 5, *[self._product] * 3, *self._others)
            step = self._pick([self._case] if self._steps < CASES_FIRST else any_step)
            self._steps += 1
            with suppress(af.ActorflowError):
                self._keep(step())

    def _case(self) -> Any:
        """The next kind, in one of its cases."""
        row = ROWS[next(self._kinds)]
        sample = self._pick(cases()[row.name])
        operation, arrays = sample.operation, sample.inputs(self._pick(floats_of(row)), self.rng)
        return self.graph.apply(operation, *[self._input(operation, i, x) for i, x in enumerate(arrays)])

    def _input(self, operation: ops.Operation, position: int, array: np.ndarray) -> af.Blob:
        """What others have computed, where an operation takes any numbers; a leaf of these numbers otherwise."""
        if operation.kind in PARTICULAR:
            return self._source(array, is_same=True)
        takes_any = {
            "f": not isinstance(operation, ops.Cast),
            "i": isinstance(operation, Elementwise) and operation.kind != "Power",
            "b": True,
        }
        if takes_any.get(array.dtype.kind) and not operation.is_constant(position) and self.rng.random() < 0.7:
            return self._fitting(array.shape, array.dtype)
        return self._leaf(array)

    def _form(self) -> Any:
        """An expression of one value or two."""
        x = self._pick([y for y in self._floats() if y.spec.size <= MOST_ELEMENTS // 4 and len(y.shape) < 5])
        drawn, inputs = forms.drawn(self.rng, x.shape), [x]
        if drawn is forms.TWO:
            inputs.insert(
                int(self.rng.integers(2)), self._pick([y for y in self._floats(x.dtype) if _fits(x.shape, y.shape)])
            )
        return drawn[self._pick([*drawn])](*inputs)

    def _product(self) -> Any:
        """A product or a pooling, and some of what networks have behind it."""
        y = self._pick((self._conv, self._conv, self._pool, self._inner, self._matmul))()
        for _ in range(self.rng.integers(6)):
            if self.rng.random() < 0.2:
                self._keep(y)
            y = self._pick(BEHIND)(self, y)
        return y

    def _conv(self) -> af.Blob:
        dtype = self._pick(FLOATS)
        channels, count, groups = self._pick(((3, 4, 1), (4, 4, 4), (4, 8, 4), (6, 4, 2), (8, 16, 1)))
        axes = self._pick((1, 2, 2, 2, 3))
        kernel, stride, pad = (int(self._pick(numbers)) for numbers in ((1, 1, 3, 5), (1, 1, 2), (0, 1, 2)))
        x = self._fitting((2, *(6, 7, 5)[:axes], channels), dtype)
        if groups == 1 and self.rng.random() < 0.2:
            return ops.conv_transpose(x, self._parameter((*[kernel] * axes, count, channels), dtype), stride)
        weight = self._parameter((*[kernel] * axes, channels // groups, count), dtype)
        return ops.conv(x, weight, stride, pad, 1, groups)

    def _pool(self) -> af.Blob:
        x = self._fitting((2, 6, 6, 4), self._pick(FLOATS))
        how = self._pick(((2, 2, 0), (3, 2, 1), (3, 1, 1)))
        return self._pick((ops.max_pool, ops.average_pool, lambda x, *how: ops.global_average(x)))(x, *how)

    def _inner(self) -> af.Blob:
        dtype = self._pick(FLOATS)
        return ops.inner(self._fitting((6, 12), dtype), self._parameter((9, 12), dtype))

    def _matmul(self) -> af.Blob:
        dtype = self._pick(FLOATS)
        batch = self._pick(((), (3,), (2, 3)))
        other = self._parameter((5, 7), dtype) if self.rng.random() < 0.5 else self._fitting((*batch, 5, 7), dtype)
        return ops.matmul(self._fitting((*batch, 4, 5), dtype), other)

    def _several(self) -> Any:
        """A blob that several ops add to."""
        x = self._pick(self._floats())
        y = self.graph.blob(self._name("sum"), x.shape, x.dtype)
        for operation in (ops.Tanh(), ops.Scale(0.5), ops.Relu())[: self.rng.integers(2, 4)]:
            [self._fitting(x.shape, x.dtype)] >> self.graph.op(self._name("term"), operation) >> [y]
        return y

    def _update(self) -> Any:
        """A new value of a variable, and something of the old one; or a function's."""
        x = self._pick(self._floats())
        if self.rng.random() < 0.5:
            return self.graph.function(self._name("user"), half, x.spec, place="cpu")(x)
        variable = self._parameter(x.shape, x.dtype)
        [x] >> self.graph.op(self._name("update"), ops.Tanh()) >> [variable]
        return ops.add(variable, x)

    def _compose(self) -> Any:
        function, needed = COMPOSITIONS[self._pick([*COMPOSITIONS])]
        return function(*[self._fitting(shape, "float32") for shape in needed])

    def _finish(self) -> None:
        """Losses, gradients by leaves, an update of what is left to train."""
        for y in [self._pick(self._floats()) for _ in range(self.rng.integers(4))]:
            with suppress(af.ActorflowError):
                loss = self._loss(y)
                wrt = [x for x in dict.fromkeys(leaves_of(loss)) if x.dtype.kind == "f"]
                self.rng.shuffle(wrt)  # type: ignore[arg-type]
                for x in wrt[:3]:
                    with suppress(af.GraphError):  # there is an op without a gradient between
                        self._keep(af.gradient(loss, x))
                self._pick(OPTIMIZERS)().minimize(loss)

    def _loss(self, y: af.Blob) -> af.Blob:
        if y.shape == ():
            return y
        if len(y.shape) == 2 and self.rng.random() < 0.5:
            return ops.softmax_loss(y, self._leaf(self.rng.integers(0, y.shape[1], y.shape[0])))
        target = self._fitting(y.shape, y.dtype)
        return self._pick((ops.mse_loss, ops.l1_loss, ops.huber_loss, lambda y, target: ops.mean(y * target)))(
            y, target
        )

    # -- values -----------------------------------------------------------------------------------------------------

    def _pick(self, among: Sequence[Any]) -> Any:
        if not among:
            raise af.GraphError("there is nothing to choose from")
        return among[int(self.rng.integers(len(among)))]

    def _keep(self, made: Any) -> None:
        made = made if isinstance(made, tuple | list) else [made]
        self.values += [blob for blob in made if 0 < blob.spec.size <= MOST_ELEMENTS]

    def _floats(self, dtype: Any = None) -> list[af.Blob]:
        return [x for x in self.values if (x.dtype.kind == "f" if dtype is None else x.dtype == dtype)]

    def _changing(self) -> list[af.Blob]:
        """Real floating values that are not made of constants alone."""
        return [x for x in self._floats() if leaves_of(x)]

    def _name(self, what: str) -> str:
        self._names += 1
        return f"{what}{self._names}"

    def _leaf(self, array: np.ndarray) -> af.Blob:
        """Fed, a variable, or constant."""
        how = self.rng.random()
        if how < 0.25:
            return self.graph.constant(self._near(array))
        if how < 0.5 and array.dtype.kind == "f":
            return self._variable(array)
        return self._source(array)

    def _source(self, array: np.ndarray, is_same: bool = False) -> af.Blob:
        """A fed blob; its rows are turned around in later frames unless it is to be the same."""
        blob = self.graph.blob(self._name("x"), array.shape, array.dtype)
        self.fed[blob] = self._near(array)
        if is_same or not array.shape:
            self._same.add(blob)
        return blob

    def _variable(self, array: np.ndarray) -> af.Variable:
        return self.graph.variable(self._name("w"), array.shape, array.dtype, self._near(array))

    def _near(self, array: np.ndarray) -> np.ndarray:
        """The same numbers, or some that differ by a few roundings."""
        if self._noise is None or array.dtype.kind != "f":
            return array
        noise = self._noise.standard_normal(array.shape) * 4 * np.finfo(array.dtype).eps
        return (array * (1.0 + noise)).astype(array.dtype)

    def _parameter(self, shape: tuple[int, ...], dtype: Any, low: float = -1.0) -> af.Variable:
        return self._variable(self.rng.uniform(low, low + 2.0, shape).astype(dtype))

    def _fitting(self, shape: tuple[int, ...], dtype: Any) -> af.Blob:
        """A value of another op, cut, repeated and cast to this; or one that has it."""
        dtype = np.dtype(dtype)
        fitting = [x for x in self.values if x.dtype.kind == dtype.kind or {x.dtype.kind, dtype.kind} == {"c", "f"}]
        same = [x for x in fitting if x.shape == shape and x.dtype == dtype]
        if same and self.rng.random() < 0.7:
            return self._pick(same)
        x = self._pick(fitting)
        x = ops.real(x) if x.dtype.kind == "c" else x
        x = ops.cast(x, dtype) if x.dtype != dtype else x
        size = math.prod(shape)
        if x.shape != shape:
            flat = ops.reshape(x, (-1,))
            flat = ops.tile(flat, -(-size // flat.shape[0])) if flat.shape[0] < size else flat
            x = ops.reshape(flat[:size], shape)
        return x


def _normalized(graph: RandomGraph, y: af.Blob) -> af.Blob:
    statistics = np.promote_types(y.dtype, "float32")
    mean, variance = (graph._parameter(y.shape[-1:], statistics, low) for low in (-1.0, 0.5))
    scale, shift = (graph._parameter(y.shape[-1:], y.dtype) for _ in range(2))
    return ops.batch_norm(y, mean, variance, scale, shift, training=bool(graph.rng.random() < 0.4))


def _factors(graph: RandomGraph, y: af.Blob) -> af.Blob:
    return y * graph._fitting((*y.shape[:1], *[1] * (len(y.shape) - 2), *y.shape[-1:]), y.dtype)


def _there_and_back(graph: RandomGraph, y: af.Blob) -> af.Blob:
    return ops.cast(ops.relu(ops.cast(y, graph._pick(FLOATS))), y.dtype)


#: What is put behind products.
BEHIND: tuple[Callable[[RandomGraph, af.Blob], af.Blob], ...] = (
    *[lambda graph, y: ops.bias(y, graph._parameter(y.shape[-1:], y.dtype))] * 3,
    *[lambda graph, y: getattr(ops, graph._pick(ACTIVATIONS))(y)] * 3,
    *[lambda graph, y: ops.add(y, graph._fitting(y.shape, y.dtype))] * 2,
    *[_normalized] * 2,
    _factors,
    _there_and_back,
    lambda graph, y: ops.scale(y, float(graph.rng.uniform(-1.0, 1.0))),
    lambda graph, y: ops.layer_norm(y, *(graph._parameter(y.shape[-1:], y.dtype) for _ in range(2))),
    lambda graph, y: ops.dropout(y, 0.3, int(graph.rng.integers(1 << 40))),
    lambda graph, y: ops.softmax(y),
    lambda graph, y: ops.log_softmax(y),
    lambda graph, y: ops.clip(y, -0.5, 0.5),
    lambda graph, y: ops.where(ops.greater(y, 0.0), y, graph._fitting(y.shape, y.dtype)),
    lambda graph, y: y - ops.mean(y, axis=-1, keepdims=True),
    lambda graph, y: ops.concat([y, graph._fitting(y.shape, y.dtype)], axis=-1),
    lambda graph, y: ops.max(y, axis=-1),
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


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= MOST_ELEMENTS
    except ValueError:
        return False
