"""Functions of tensors: parameters that operations do not have, and what is made of several of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow import ops
from tests.operations.drawn import AXES, FILLED, SHAPES
from tests.operations.table import SINGLE_AND_DOUBLE, Make, Row, Sample, call, flags, normal, whole

_CUBE = (2, 3, 4)
_NUMBERS = normal(_CUBE)
_INDICES = st.sampled_from(["int8", "int32", "int64", "uint8"])


def _row(name: str, torch: Any, *samples: Sample, **more: Any) -> Row:
    return Row(None, samples, name=name, torch=torch, **{"dtypes": SINGLE_AND_DOUBLE, **more})


# -- one operation, with other parameters -----------------------------------------------------------------------------


def _clip(x: Any, low: float | None = None, high: float | None = None) -> Any:
    return ops.clip(x, low, high)


def _with_numbers(x: Any) -> Any:
    return ops.power(x, 3.0) + ops.subtract(2.0, x) + 2.0**x + ops.scale(x, -2.5)


def _reduction(name: str, torch_name: str, make: Make = _NUMBERS) -> Row:
    samples = [call(getattr(ops, name), make, axis=axis) for axis in ((-1, 0), -2, None)]
    samples.append(call(getattr(ops, name), make, axis=-1, keepdims=True))

    def reduced(torch: Any, x: Any, axis: Any, keepdims: bool = False) -> Any:
        axes = tuple(range(x.ndim)) if axis is None else axis
        if name == "prod":
            for i in sorted((i % 3 for i in (axes if isinstance(axes, tuple) else (axes,))), reverse=True):
                x = torch.prod(x, i, keepdim=keepdims)
            return x
        return getattr(torch, torch_name)(x, axes, keepdim=keepdims)

    return _row(f"ops.{name}", reduced, *samples, differentiable=name in ("sum", "mean", "max", "min", "prod"))


def _position(name: str) -> Row:
    samples = [call(getattr(ops, name), normal(_CUBE), axis=axis) for axis in (-1, 0, None)]
    return _row(
        f"ops.{name}",
        lambda torch, x, axis: getattr(torch, name)(x, axis),
        *samples,
        differentiable=False,
    )


def _without_then_with(x: Any, axis: int) -> Any:
    y = ops.expand_dims(x, axis)
    return y, ops.squeeze(y, axis), ops.squeeze(x)


# -- products ---------------------------------------------------------------------------------------------------------

_EINSUMS: list[tuple[Any, ...]] = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("...ij,...jk->...ik", (4, 1, 2, 3), (5, 3, 2)),
    ("iij,j->i", (3, 3, 2), (2,)),
    ("ij,j,jk->k", (2, 3), (3,), (3, 4)),
    ("i,j", (2,), (3,)),
    ("ij->", (2, 3)),
    ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
]


def _einsum(*xs: Any, subscripts: str) -> Any:
    return ops.einsum(subscripts, *xs)


# -- parts and indices ------------------------------------------------------------------------------------------------


def _parts(x: Any, keys: Any) -> Any:
    for key in keys:
        x = ops.slice(x, key)
    return x


def _parts_of_torch(torch: Any, x: Any, keys: Any) -> Any:
    """By the places of the elements, as torch has no negative steps."""
    index = np.arange(x.numel()).reshape(tuple(x.shape))
    for key in keys:
        index = np.asarray(index[key])
    return x.reshape(-1)[torch.from_numpy(np.array(index))]


@st.composite
def _slices(draw: st.DrawFn, count: int) -> Sample:
    shape = draw(SHAPES if count == 1 else FILLED)
    keys, part = [], np.empty(shape)
    for _ in range(count):
        more = {"allow_newaxis": True, "allow_ellipsis": True, "max_dims": 6} if count == 1 else {}
        keys.append(draw(hnp.basic_indices(part.shape, **more)))  # type: ignore[arg-type]
        part = np.asarray(part[keys[-1]])
    return call(_parts, normal(shape), keys=tuple(keys))


def _picked(shape: tuple[int, ...], picked: tuple[int, ...], length: int, dtype: str = "int64") -> Make:
    low = 0 if dtype[0] == "u" else -length
    return lambda random: [random.standard_normal(shape), random.integers(low, length, picked).astype(dtype)]


@st.composite
def _takes(draw: st.DrawFn) -> Sample:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
    picked = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return call(ops.take, _picked(shape, picked, shape[axis], draw(_INDICES)), axis=axis)


def _take(torch: Any, x: Any, indices: Any, axis: int) -> Any:
    return x[(*(slice(None),) * (axis % x.ndim), indices.long() % x.shape[axis])]


def _embedding(weight: Any, indices: Any) -> Any:
    return ops.embedding(indices, weight)


def _embedded(rows: int, features: int, picked: tuple[int, ...]) -> Make:
    return lambda random: [random.standard_normal((rows, features)), random.integers(0, rows, picked)]


def _rows_and_columns(shape: tuple[int, ...], picked: tuple[int, ...], has_values: bool) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        arrays = normal(shape, *[(*picked, *shape[2:])] * has_values)(random)
        return [*arrays, *(random.integers(-n, n, picked) for n in shape[:2])]

    return make


def _at(x: Any, i: Any, j: Any) -> Any:
    return x[i, j]


def _add_at(x: Any, values: Any, i: Any, j: Any) -> Any:
    return ops.add_at(x, (i, j), values)


def _index_arrays(function: Any, has_values: bool) -> Any:
    return st.builds(
        lambda shape, picked: call(function, _rows_and_columns(shape, picked, has_values)),
        hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=4),
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3),
    )


_TORCH_MODES = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def _scatter(x: Any, values: Any, indices: Any, axis: int, mode: str) -> Any:
    return ops.scatter(x, indices, values, axis, mode)  # type: ignore[arg-type]


def _scattered(shape: tuple[int, ...], axis: int, count: int, mode: str) -> Sample:
    picked = tuple(count if i == axis % len(shape) else n for i, n in enumerate(shape))

    def make(random: np.random.Generator) -> list[np.ndarray]:
        return [*normal(shape, picked)(random), random.integers(0, shape[axis], picked)]

    return call(_scatter, make, axis=axis, mode=mode)


@st.composite
def _scatters(draw: st.DrawFn) -> Sample:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return _scattered(shape, axis, draw(st.integers(0, 5)), draw(st.sampled_from(sorted(_TORCH_MODES))))


def _top(x: Any, k: int, axis: int, largest: bool) -> Any:
    return ops.top_k(x, k, axis, largest=largest)


@st.composite
def _tops(draw: st.DrawFn) -> Sample:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return call(_top, normal(shape), k=draw(st.integers(0, shape[axis])), axis=axis, largest=draw(st.booleans()))


@st.composite
def _pads(draw: st.DrawFn) -> Sample:
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    shape = draw(AXES if mode == "constant" else hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    most = {"constant": lambda n: 3, "reflect": lambda n: n - 1, "edge": lambda n: 4, "wrap": lambda n: n}[mode]
    widths = tuple((draw(st.integers(0, most(n))), draw(st.integers(0, most(n)))) for n in shape)
    return call(ops.pad, normal(shape), widths=widths, mode=mode, value=1.5)


def _padded(torch: Any, x: Any, widths: Any, mode: str, value: float = 0.0) -> Any:
    flat = [n for pair in reversed(widths) for n in pair]
    if mode == "constant":
        return torch.nn.functional.pad(x, flat, "constant", value)
    theirs = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return torch.nn.functional.pad(x[None, None], flat, theirs)[0, 0]


@st.composite
def _expansions(draw: st.DrawFn) -> Sample:
    shape = draw(SHAPES)
    return call(_without_then_with, normal(shape), axis=draw(st.integers(-len(shape) - 1, len(shape))))


ROWS = [
    _row(
        "ops.clip",
        lambda torch, x, low=None, high=None: torch.clamp(x, low, high),
        call(_clip, normal(_CUBE), low=-0.5, high=0.7),
        *(
            Sample(call(_clip, whole(-3, _CUBE), **bounds).what, whole(-3, _CUBE), smooth=False)
            for bounds in ({"low": 0.0}, {"high": 1.0})
        ),
    ),
    _row(
        "powers of numbers",
        lambda torch, x: x**3.0 + (2.0 - x) + 2.0**x + x * -2.5,
        call(_with_numbers, normal(_CUBE)),
        call(_with_numbers, normal(())),
    ),
    _row("a term twice", lambda torch, a, b: a + b + a, call(lambda a, b: ops.add(a, b, a), normal((2, 3), (3,)))),
    _row("ops.average", lambda torch, a, b: (a + b) / 2, call(ops.average, normal((2, 3), (2, 1)))),
    *(_reduction(name, torch) for name, torch in (("sum", "sum"), ("mean", "mean"), ("max", "amax"), ("min", "amin"))),
    _reduction("prod", "prod"),
    *(_reduction(name, name, flags(_CUBE)) for name in ("any", "all")),
    _position("argmax"),
    _position("argmin"),
    _row(
        "ops.flip",
        lambda torch, x, axis: torch.flip(x, axis),
        *(call(ops.flip, normal(_CUBE), axis=axis) for axis in ((-1, 0), (-2,))),
    ),
    _row(
        "axes of length 1",
        lambda torch, x, axis: (x.unsqueeze(axis), x.unsqueeze(axis).squeeze(axis), x.squeeze()),
        call(_without_then_with, normal((2, 1, 3)), axis=-2),
        strategy=_expansions(),
    ),
    _row(
        "ops.matmul",
        "matmul",
        *(
            call(ops.matmul, normal(a, b))
            for a, b in (((4,), (4,)), ((4,), (3, 4, 2)), ((2, 3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4,)))
        ),
    ),
    _row(
        "ops.einsum",
        lambda torch, *xs, subscripts: torch.einsum(subscripts, *xs),
        *(call(_einsum, normal(*shapes), subscripts=subscripts) for subscripts, *shapes in _EINSUMS),
    ),
    _row(
        "ops.slice",
        _parts_of_torch,
        call(_parts, normal((4, 3, 5)), keys=(np.s_[::-2, None, ..., 1:0:-1],)),
        strategy=_slices(1),
    ),
    _row(
        "slices of slices",
        _parts_of_torch,
        call(_parts, normal((4, 5)), keys=(np.s_[::-1, 1:], np.s_[1:, ::2], np.s_[-1])),
        strategy=_slices(3),
    ),
    _row(
        "ops.pad",
        _padded,
        call(ops.pad, normal((2, 3)), widths=((1, 0), (2, 1)), mode="reflect"),
        strategy=_pads(),
    ),
    _row("ops.take", _take, call(ops.take, _picked((2, 3), (4,), 3, "int8"), axis=-1), strategy=_takes()),
    _row(
        "ops.embedding",
        # Torch's own has no second derivative where there are no elements.
        lambda torch, weight, indices: (
            torch.nn.functional.embedding(indices, weight) if weight.shape[1] * indices.numel() else weight[indices]
        ),
        call(_embedding, _embedded(3, 2, (4,))),
        strategy=st.builds(
            lambda *sizes: call(_embedding, _embedded(*sizes)), st.integers(1, 6), st.integers(0, 5), SHAPES
        ),
    ),
    _row(
        "ops.top_k",
        lambda torch, x, k, axis, largest: torch.topk(x, k, axis, largest),
        call(_top, normal((2, 5)), k=3, axis=-1, largest=True),
        strategy=_tops(),
    ),
    _row(
        "ops.scatter",
        lambda torch, x, values, indices, axis, mode: x.scatter_reduce(axis, indices, values, _TORCH_MODES[mode]),
        *(_scattered((3, 4), 1, 5, mode) for mode in _TORCH_MODES),
        strategy=_scatters(),
    ),
    _row(
        "index arrays",
        lambda torch, x, i, j: x[i, j],
        call(_at, _rows_and_columns((3, 4, 2), (5,), False)),
        strategy=_index_arrays(_at, has_values=False),
    ),
    _row(
        "ops.add_at",
        lambda torch, x, values, i, j: x.index_put((i, j), values, accumulate=True),
        call(_add_at, _rows_and_columns((3, 4, 2), (5,), True)),
        strategy=_index_arrays(_add_at, has_values=True),
    ),
]
