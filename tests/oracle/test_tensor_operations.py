"""Tensor operations against PyTorch: values, gradients, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from tests.oracle.comparison import TOLERANCE, check, drawn, examples, ours, theirs
from tests.support.layouts import laid_out

torch = pytest.importorskip("torch", reason="torch is not installed: make test WITH=torch")

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

dtypes = st.sampled_from(sorted(TOLERANCE))
layouts = st.sampled_from(["C", "F", "strided"])
seeds = st.integers(0, 2**32 - 1)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
filled = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)
many = examples(25)


# -- elementwise ----------------------------------------------------------------------------------------------------


class Unary(NamedTuple):
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    make: Callable[[np.ndarray], np.ndarray] = lambda x: x

    def __str__(self) -> str:
        return getattr(self.theirs, "__name__", "lambda")


UNARY = [
    Unary(ops.negative, torch.neg),
    Unary(ops.absolute, torch.abs),
    Unary(ops.sign, torch.sign),
    Unary(ops.exp, torch.exp),
    Unary(ops.log, torch.log, lambda x: abs(x) + 0.1),
    Unary(ops.sqrt, torch.sqrt, lambda x: abs(x) + 0.1),
    Unary(ops.square, torch.square),
    Unary(ops.reciprocal, torch.reciprocal, lambda x: np.copysign(abs(x) + 0.5, x)),
    Unary(ops.floor, torch.floor),
    Unary(ops.ceil, torch.ceil),
    Unary(ops.round, torch.round, lambda x: np.asarray(4 * x).round() / 2),
    Unary(lambda x: ops.clip(x, -0.5, 0.7), lambda x: torch.clamp(x, -0.5, 0.7)),
    Unary(lambda x: ops.clip(x, low=0.0), lambda x: torch.clamp(x, min=0.0), lambda x: np.asarray(x).round()),
    Unary(lambda x: ops.clip(x, high=1.0), lambda x: torch.clamp(x, max=1.0), lambda x: np.asarray(x).round()),
    Unary(lambda x: ops.scale(x, -2.5), lambda x: x * -2.5),
    Unary(lambda x: ops.power(x, 3.0), lambda x: torch.pow(x, 3.0)),
    Unary(lambda x: ops.subtract(2.0, x), lambda x: 2.0 - x),
]


@pytest.mark.parametrize("case", UNARY, ids=str)
@examples(8)
@given(shape=shapes, dtype=dtypes, layout=layouts, seed=seeds)
def test_unary(case: Unary, shape, dtype, layout, seed) -> None:
    (x,) = drawn(seed, shape, dtype=dtype)
    check(case.ours, case.theirs, [laid_out(np.asarray(case.make(x)).astype(dtype), layout)])


def _rounded(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).round()


BINARY = [
    Unary(ops.add, torch.add),
    Unary(ops.subtract, torch.sub),
    Unary(ops.multiply, torch.mul),
    Unary(ops.divide, torch.div, lambda x: np.copysign(abs(x) + 0.5, x)),
    Unary(ops.maximum, torch.maximum, _rounded),  # many pairs are equal
    Unary(ops.minimum, torch.minimum, _rounded),
    Unary(lambda a, b: ops.add(a, b, a), lambda a, b: a + b + a),
    Unary(lambda a, b: ops.weighted_sum([a, b], [0.3, -2.0]), lambda a, b: 0.3 * a - 2.0 * b),
    Unary(ops.average, lambda a, b: (a + b) / 2),
]
pairs = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=4)


@pytest.mark.parametrize("case", BINARY, ids=str)
@examples(12)
@given(shapes=pairs, dtype=dtypes, layout=layouts, seed=seeds)
def test_binary(case: Unary, shapes, dtype, layout, seed) -> None:
    arrays = [
        laid_out(np.asarray(case.make(x)).astype(dtype), layout) for x in drawn(seed, *shapes.input_shapes, dtype=dtype)
    ]
    check(case.ours, case.theirs, arrays)


@many
@given(shapes=pairs, dtype=dtypes, seed=seeds)
def test_power(shapes, dtype, seed) -> None:
    a, b = drawn(seed, *shapes.input_shapes, dtype=dtype)
    check(ops.power, torch.pow, [np.asarray(abs(a) + a.dtype.type(0.1)), b])


@many
@given(shapes=pairs, dtype=dtypes, seed=seeds)
def test_power_of_whole_numbers_and_zeros(shapes, dtype, seed) -> None:
    random = np.random.default_rng(seed)
    a, b = (
        np.asarray(random.integers(low, 4, s)).astype(dtype)
        for low, s in zip((-3, 0), shapes.input_shapes, strict=True)
    )
    check(lambda a, b: ops.power(a, b), torch.pow, [a, b], orders=0)
    (found, da), (wanted, expected) = (
        [step[0] for step in run(f, [a, b], 1)] for run, f in ((ours, ops.power), (theirs, torch.pow))
    )
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(da, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
@examples(10)
@given(shapes=pairs, dtype=st.sampled_from(["float32", "float64", "float16", "int8", "int64", "uint8"]), seed=seeds)
def test_comparisons(name, shapes, dtype, seed) -> None:
    random = np.random.default_rng(seed)
    arrays = [np.asarray(random.integers(0, 3, shape)).astype(dtype) for shape in shapes.input_shapes]
    their = {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
    ((found,),) = ours(getattr(ops, name), arrays, 0)
    ((wanted,),) = theirs(getattr(torch, their[name]), arrays, 0)
    np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "logical_not"])
@examples(10)
@given(shapes=pairs, seed=seeds)
def test_logic(name, shapes, seed) -> None:
    random = np.random.default_rng(seed)
    arrays = [np.asarray(random.random(shape) < 0.5) for shape in shapes.input_shapes][: 1 if name.endswith("t") else 2]
    ((found,),) = ours(getattr(ops, name), arrays, 0)
    ((wanted,),) = theirs(getattr(torch, name), arrays, 0)
    np.testing.assert_array_equal(found, wanted, strict=True)


@many
@given(
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, min_side=0, max_side=4),
    dtype=dtypes,
    layout=layouts,
    seed=seeds,
)
def test_where(shapes, dtype, layout, seed) -> None:
    condition, *arrays = drawn(seed, *shapes.input_shapes, dtype=dtype)
    check(ops.where, torch.where, [laid_out(np.asarray(x), layout) for x in (condition > 0, *arrays)])


# -- reductions -----------------------------------------------------------------------------------------------------


def _axes(data: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if not shape or data.draw(st.booleans()):
        return None
    found = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return tuple(i - len(shape) if data.draw(st.booleans()) else i for i in found)


def _all_axes(axes: tuple[int, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(shape))) if axes is None else axes


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@examples(20)
@given(data=st.data(), keepdims=st.booleans(), dtype=dtypes, layout=layouts, seed=seeds, is_long=st.booleans())
def test_reductions(name, data, keepdims, dtype, layout, seed, is_long) -> None:
    shape = data.draw(shapes if name in ("sum", "mean") else filled)
    axes = _axes(data, shape)
    if is_long and shape:
        i = data.draw(st.integers(0, len(shape) - 1))
        shape = (*shape[:i], shape[i] * 50, *shape[i + 1 :])
    (x,) = drawn(seed, shape, dtype=dtype)
    x = laid_out(x if name in ("sum", "mean") else np.asarray(x.round()), layout)
    their = {"max": torch.amax, "min": torch.amin}.get(name, getattr(torch, name))
    check(
        lambda x: getattr(ops, name)(x, axes, keepdims),
        lambda x: their(x, dim=_all_axes(axes, shape), keepdim=keepdims) if shape else their(x, dim=()),
        [x],
    )


@many
@given(data=st.data(), shape=shapes, keepdims=st.booleans(), dtype=dtypes, layout=layouts, seed=seeds)
def test_prod(data, shape, keepdims, dtype, layout, seed) -> None:
    axes = _axes(data, shape)
    (x,) = drawn(seed, shape, dtype=dtype)
    x = np.where(np.random.default_rng(seed).random(shape) < 0.2, x.dtype.type(0), x)  # several zeros, too

    def oracle(x: Any) -> Any:
        for axis in sorted({i % len(shape) for i in _all_axes(axes, shape)}, reverse=True):
            x = torch.prod(x, dim=axis, keepdim=keepdims)
        return x if shape else x * 1

    check(lambda x: ops.prod(x, axes, keepdims), oracle, [laid_out(np.asarray(x), layout)])


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@examples(15)
@given(data=st.data(), shape=filled, keepdims=st.booleans(), seed=seeds, is_flat=st.booleans())
def test_positions(name, data, shape, keepdims, seed, is_flat) -> None:
    axis = None if is_flat or not shape else data.draw(st.integers(-len(shape), len(shape) - 1))
    (x,) = drawn(seed, shape, dtype="float64")
    keepdims = keepdims and axis is not None
    ((found,),) = ours(lambda x: getattr(ops, name)(x, axis, keepdims), [x], 0)
    ((wanted,),) = theirs(lambda x: getattr(torch, name)(x, dim=axis, keepdim=keepdims), [x], 0)
    np.testing.assert_array_equal(found, wanted, strict=True)


@many
@given(data=st.data(), shape=shapes, seed=seeds)
def test_counts(data, shape, seed) -> None:
    axes = _axes(data, shape)
    (x,) = drawn(seed, shape, dtype="float64")
    (flags,), (wanted,) = ours(lambda x: ops.greater(x, 0.0), [x], 0)[0], theirs(lambda x: x > 0, [x], 0)[0]
    np.testing.assert_array_equal(flags, wanted, strict=True)
    for name in ("any", "all", "count_nonzero"):
        ((found,),) = ours(lambda x: getattr(ops, name)(x, axes), [flags], 0)  # noqa: B023
        oracle = lambda x: getattr(torch, name)(x, dim=_all_axes(axes, shape)) if shape else getattr(torch, name)(x)  # noqa: B023, E731
        ((wanted,),) = theirs(oracle, [flags], 0)
        np.testing.assert_array_equal(found, wanted, strict=True)


# -- shapes ---------------------------------------------------------------------------------------------------------


@many
@given(
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=1, max_dims=4, min_side=0, max_side=4),
    seed=seeds,
    dtype=dtypes,
    data=st.data(),
)
def test_broadcast_to(shapes, seed, dtype, data) -> None:
    (shape,) = shapes.input_shapes
    to = data.draw(
        hnp.broadcastable_shapes(shape, max_dims=5, min_side=0, max_side=4).map(
            lambda other: np.broadcast_shapes(shape, other)
        )
    )
    check(lambda x: ops.broadcast_to(x, to), lambda x: torch.broadcast_to(x, to), drawn(seed, shape, dtype=dtype))


@many
@given(shape=shapes, seed=seeds, dtype=dtypes, layout=layouts, data=st.data())
def test_axes_of_length_1(shape, seed, dtype, layout, data) -> None:
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    check(lambda x: ops.expand_dims(x, axis), lambda x: torch.unsqueeze(x, axis), [x])
    check(lambda x: ops.squeeze(x), lambda x: torch.squeeze(x), [x])
    check(
        lambda x: ops.squeeze(ops.expand_dims(x, axis), axis),
        lambda x: torch.squeeze(torch.unsqueeze(x, axis), axis),
        [x],
    )
    check(lambda x: ops.reshape(x, (-1,) if 0 not in shape else (0,)), lambda x: torch.reshape(x, (-1,)), [x])


@many
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    seed=seeds,
    dtype=dtypes,
    layout=layouts,
    data=st.data(),
)
def test_concat_and_split(shape, lengths, seed, dtype, layout, data) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    before, after = shape[: axis % len(shape)], shape[axis % len(shape) + 1 :]
    parts = [laid_out(x, layout) for x in drawn(seed, *[(*before, n, *after) for n in lengths], dtype=dtype)]
    check(lambda *parts: ops.concat(parts, axis), lambda *parts: torch.cat(parts, dim=axis), parts)
    (whole,) = drawn(seed, (*before, sum(lengths), *after), dtype=dtype)
    whole = laid_out(whole, layout)
    check(lambda x: ops.split(x, lengths, axis), lambda x: torch.split(x, lengths, dim=axis), [whole])
    # Some of the pieces are not used.
    check(
        lambda x: ops.square(ops.split(x, lengths, axis)[0]),
        lambda x: torch.split(x, lengths, dim=axis)[0] ** 2,
        [whole],
    )
    check(lambda *parts: ops.stack(parts, axis), lambda *parts: torch.stack(parts, dim=axis), [parts[0], parts[0] + 1])


@many
@given(shape=shapes, seed=seeds, dtype=dtypes, layout=layouts, data=st.data())
def test_slice(shape, seed, dtype, layout, data) -> None:
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True, max_dims=6))

    def oracle(x: Any) -> Any:
        # Torch has no negative steps.
        index = np.arange(x.numel()).reshape(tuple(x.shape))[key]
        return x.reshape(-1)[torch.from_numpy(np.array(index))]

    check(lambda x: ops.slice(x, key), oracle, [x])


@many
@given(shape=filled, seed=seeds, dtype=dtypes, data=st.data())
def test_slices_of_slices_are_those_of_numpy(shape, seed, dtype, data) -> None:
    (x,) = drawn(seed, shape, dtype=dtype)
    keys = []
    part = x
    for _ in range(3):
        keys.append(data.draw(hnp.basic_indices(part.shape)))
        part = np.asarray(part[keys[-1]])

    def nested(x: Any) -> Any:
        for key in keys:
            x = ops.slice(x, key)
        return x

    graph = af.Graph("nested")
    blob = graph.blob("x", shape, dtype)
    y = nested(ops.scale(blob, 1.0))
    np.testing.assert_array_equal(graph.run_sync({blob: x})[y], part, strict=True)


@many
@given(shape=shapes, seed=seeds, dtype=dtypes, layout=layouts, data=st.data())
def test_flip(shape, seed, dtype, layout, data) -> None:
    axes = _axes(data, shape)
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    check(lambda x: ops.flip(x, axes), lambda x: torch.flip(x, _all_axes(axes, shape)), [x])


@many
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
    seed=seeds,
    dtype=dtypes,
    layout=layouts,
    data=st.data(),
)
def test_pad_with_a_constant(shape, seed, dtype, layout, data) -> None:
    widths = [(data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))) for _ in shape]
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    flat = [w for pair in reversed(widths) for w in pair]
    check(lambda x: ops.pad(x, widths, value=1.5), lambda x: torch.nn.functional.pad(x, flat, "constant", 1.5), [x])


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@examples(20)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5),
    seed=seeds,
    dtype=dtypes,
    layout=layouts,
    data=st.data(),
)
def test_pad_with_what_is_inside(mode, shape, seed, dtype, layout, data) -> None:
    def most(n: int) -> int:
        return {"reflect": n - 1, "edge": 4, "wrap": n}[mode]

    widths = [(data.draw(st.integers(0, most(n))), data.draw(st.integers(0, most(n)))) for n in shape]
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    flat = [w for pair in reversed(widths) for w in pair]
    their = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    check(
        lambda x: ops.pad(x, widths, mode),
        lambda x: torch.nn.functional.pad(x[None, None], flat, their)[0, 0],
        [x],
    )


# -- indices --------------------------------------------------------------------------------------------------------

index_dtypes = st.sampled_from(["int8", "int32", "int64", "uint8"])


@many
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4),
    picked=hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5),
    seed=seeds,
    dtype=dtypes,
    index_dtype=index_dtypes,
    layout=layouts,
    data=st.data(),
)
def test_take(shape, picked, seed, dtype, index_dtype, layout, data) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    low = 0 if index_dtype[0] == "u" else -shape[axis]
    indices = np.asarray(np.random.default_rng(seed).integers(low, shape[axis], picked)).astype(index_dtype)

    def oracle(x: Any, indices: Any) -> Any:
        key = (slice(None),) * (axis % len(shape))
        return x[(*key, indices.long() % shape[axis])]

    check(lambda x, i: ops.take(x, i, axis), oracle, [x, laid_out(indices, layout)])


@many
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4),
    count=st.integers(0, 6),
    seed=seeds,
    dtype=dtypes,
    layout=layouts,
    data=st.data(),
)
def test_take_along_axis(shape, count, seed, dtype, layout, data) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    picked = [count if i == axis % len(shape) else n for i, n in enumerate(shape)]
    indices = laid_out(np.random.default_rng(seed).integers(0, shape[axis], picked), layout)
    check(
        lambda x, i: ops.take_along_axis(x, i, axis), lambda x, i: torch.gather(x, axis, i.contiguous()), [x, indices]
    )


@many
@given(rows=st.integers(1, 6), features=st.integers(0, 5), picked=shapes, seed=seeds, dtype=dtypes)
def test_embedding_and_one_hot(rows, features, picked, seed, dtype) -> None:
    (weight,) = drawn(seed, (rows, features), dtype=dtype)
    indices = np.asarray(np.random.default_rng(seed).integers(0, rows, picked))
    check(lambda w, i: ops.embedding(i, w), lambda w, i: torch.nn.functional.embedding(i, w), [weight, indices])
    ((found,),) = ours(lambda i: ops.one_hot(i, rows, "int64"), [indices], 0)
    ((wanted,),) = theirs(lambda i: torch.nn.functional.one_hot(i, rows), [indices], 0)
    np.testing.assert_array_equal(found, wanted, strict=True)


_TORCH_MODES = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}
ordered_shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)


def _whole(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Few different numbers, 0 among them: many are equal."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


@many
@given(shape=ordered_shapes, seed=seeds, dtype=dtypes, layout=layouts, descending=st.booleans(), data=st.data())
def test_sort_and_top_k(shape, seed, dtype, layout, descending, data) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    x = laid_out(drawn(seed, shape, dtype=dtype)[0], layout)
    check(lambda x: ops.sort(x, axis, descending), lambda x: torch.sort(x, axis, descending)[0], [x])
    check(lambda x: ops.top_k(x, k, axis, largest=descending)[0], lambda x: torch.topk(x, k, axis, descending)[0], [x])


@many
@given(shape=ordered_shapes, seed=seeds, dtype=dtypes, layout=layouts, reverse=st.booleans(), data=st.data())
def test_scans(shape, seed, dtype, layout, reverse, data) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = laid_out(_whole(seed, shape, dtype), layout)

    def turned(function: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda x: torch.flip(function(torch.flip(x, [axis]), axis), [axis]) if reverse else function(x, axis)

    check(lambda x: ops.cumsum(x, axis, reverse=reverse), turned(torch.cumsum), [x])
    check(lambda x: ops.cumprod(x, axis, reverse=reverse), turned(torch.cumprod), [x])


@many
@given(
    shape=ordered_shapes, seed=seeds, dtype=dtypes, mode=st.sampled_from(["add", "mul", "min", "max"]), data=st.data()
)
def test_scatter(shape, seed, dtype, mode, data) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    picked = [data.draw(st.integers(0, 5)) if i == axis % len(shape) else n for i, n in enumerate(shape)]
    indices = np.random.default_rng(seed).integers(0, shape[axis], picked)
    x, values = drawn(seed, shape, tuple(picked), dtype=dtype)
    check(
        lambda x, v, i: ops.scatter(x, i, v, axis, mode),
        lambda x, v, i: x.scatter_reduce(axis, i, v, _TORCH_MODES[mode]),
        [x, values, indices],
    )


@many
@given(shape=hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=4), seed=seeds, dtype=dtypes, data=st.data())
def test_index_arrays(shape, seed, dtype, data) -> None:
    picked = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    random = np.random.default_rng(seed)
    rows, columns = (random.integers(-n, n, picked) for n in shape[:2])
    x, values = drawn(seed, shape, (*picked, *shape[2:]), dtype=dtype)
    check(lambda x, i, j: x[i, j], lambda x, i, j: x[i, j], [x, rows, columns])
    check(
        lambda x, v, i, j: ops.add_at(x, (i, j), v),
        lambda x, v, i, j: x.index_put((i, j), v, accumulate=True),
        [x, values, rows, columns],
    )
