"""Convolutions, products and poolings of any parameters, beside what NumPy's kernels compute in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actorflow.errors import GraphError, ShapeError
from actorflow.ops import Operation
from actorflow.ops.linalg import Inner, InnerDown
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, MaxPool
from actorflow.ops.registry import lookup
from actorflow.spec import TensorSpec
from tests.support.effort import FULL

SPECIALS = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, 1e-45], "f")
#: The kernels keep nothing between examples that could be told.
tried = settings(
    max_examples=2_000 if FULL else 50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds, shares = st.integers(0, 2**31), st.sampled_from([0.0, 0.02])


def values(seed: int, shape: tuple[int, ...], odd: float = 0.0) -> np.ndarray:
    """Random numbers, a share of them odd ones."""
    random = np.random.default_rng(seed)
    found = random.standard_normal(shape, np.float32)
    return np.where(random.random(shape) < odd, random.choice(SPECIALS, shape), found)


def exact(operation: Operation, inputs: list[np.ndarray]) -> np.ndarray:
    wide = [x.astype(np.float64) for x in inputs]
    (spec,) = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in wide]) or ()
    y, known = np.empty(*spec), lookup(operation, "cpu", "numpy", np.dtype(np.float64))
    assert known is not None
    with np.errstate(all="ignore"):
        known.function(operation, wide, [y])
    return y


def check(compute: Any, operation: Operation, inputs: list[np.ndarray], depth: int) -> None:
    """Errors are at most those of ``depth`` roundings of the sum of all products' sizes."""
    with np.errstate(all="ignore"):
        (found,) = compute(operation, *inputs)
        expected = exact(operation, inputs)
        bound = (depth + 1) * np.finfo("f").eps * exact(operation, [abs(x) for x in inputs])
        narrow = expected.astype("f")
    finite = np.isfinite(narrow)
    np.testing.assert_array_equal(found[~finite], narrow[~finite])
    np.testing.assert_array_less(abs(found[finite] - expected[finite]), bound[finite] + np.finfo("f").tiny)


@st.composite
def convolutions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of images and a weight, and the parameters of a convolution."""
    rank = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 4 if rank < 3 else 2)) for _ in range(rank))
    own = draw(st.sampled_from([1, 2, 3, 16, 33]))
    groups = draw(st.sampled_from([2, 8, 17])) if own == 1 else draw(st.sampled_from([1, 1, 2]))
    columns = groups * (draw(st.sampled_from([1, 1, 2])) if own == 1 else draw(st.sampled_from([8, 24, 50, 131])))
    how = {
        "stride": tuple(draw(st.integers(1, 3)) for _ in kernel),
        "pad": tuple(draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in kernel),
        "dilation": tuple(draw(st.integers(1, 2)) for _ in kernel),
        "groups": groups,
    }
    size = tuple(draw(st.integers(1, 12)) for _ in kernel)
    return (draw(st.integers(1, 3)), *size, groups * own), (*kernel, own, columns), how


#: Images of one column, rows at distances of their own.
COLUMN = (2, 12, 1, 16), (3, 1, 16, 24), {"stride": (2, 1), "pad": ((1, 0), (0, 0)), "dilation": (2, 1), "groups": 1}


@given(case=convolutions(), seed=seeds, odd=shares)
@example(case=COLUMN, seed=0, odd=0.0)
@tried
def test_convolutions_and_their_gradients(compute: Any, case: Any, seed: int, odd: float) -> None:
    images, kernel, how = case
    try:
        w = Conv(**how).windows(images[1:-1], kernel[:-2])
    except ShapeError:  # the kernel is larger than the images
        return
    x, weight, g = (
        values(seed, images, odd),
        values(seed + 1, kernel),
        values(seed + 2, (images[0], *w.out, kernel[-1])),
    )
    taps = math.prod(kernel[:-2])
    check(compute, Conv(**how), [x, weight], taps * kernel[-2])
    check(compute, ConvDown(**how, size=images[1:-1]), [g, weight], taps * kernel[-1])
    check(compute, ConvWeight(**how, kernel=kernel[:-2]), [g, x], images[0] * math.prod(w.out))


@given(rows=st.integers(1, 90), columns=st.integers(1, 140), depth=st.integers(1, 300), seed=seeds, odd=shares)
@tried
def test_inner_products(compute: Any, rows: int, columns: int, depth: int, seed: int, odd: float) -> None:
    x, weight = values(seed, (rows, depth), odd), values(seed + 1, (columns, depth))
    check(compute, Inner(), [x, weight], depth)
    check(compute, InnerDown(), [values(seed + 2, (rows, columns), odd), weight], columns)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 10), st.integers(1, 10), st.sampled_from([1, 3, 8, 19])),
    sizes=st.tuples(*[st.integers(1, 3)] * 6),
    pad=st.tuples(*[st.integers(0, 2)] * 4),
    ceil=st.booleans(),
    count_pad=st.booleans(),
    seed=seeds,
)
@tried
def test_poolings(compute: Any, shape: Any, sizes: Any, pad: Any, ceil: bool, count_pad: bool, seed: int) -> None:
    how = {"kernel": sizes[:2], "stride": sizes[2:4], "dilation": sizes[4:], "pad": (pad[:2], pad[2:]), "ceil": ceil}
    x = values(seed, shape)
    try:
        (spec,) = MaxPool(**how).infer(TensorSpec(x.shape, x.dtype))
    except (GraphError, ShapeError):
        return
    np.testing.assert_array_equal(compute(MaxPool(**how), x)[0], exact(MaxPool(**how), [x]).astype("f"))
    taps = math.prod(how["kernel"])
    check(compute, AveragePool(**how, count_pad=count_pad), [x], taps + 1)
    down = AveragePoolDown(**how, count_pad=count_pad, size=shape[1:-1])
    check(compute, down, [values(seed + 1, spec.shape)], taps + 1)
