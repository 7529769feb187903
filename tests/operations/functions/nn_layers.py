"""Transposed convolution, maxima of whole images, normalization, resizing: functions of networks' layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow import ops
from tests.operations.drawn import SIZES, Axes
from tests.operations.nn.windows import channels_first, channels_last, per_axis
from tests.operations.table import SINGLE_AND_DOUBLE, Row, Sample, call, normal, positive, whole

_IMAGES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5)


def _transposed(torch: Any, x: Any, weight: Any, groups: int = 1, **how: Any) -> Any:
    rank = x.ndim - 2
    given: dict[str, Any] = {
        name: per_axis(how.get(name, default), rank) for name, default in (("stride", 1), ("dilation", 1))
    }
    pad, more = (per_axis(how.get(name, 0), rank) for name in ("pad", "output_pad"))
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    weight = weight.movedim((-1, -2), (0, 1)).contiguous()
    x, given["groups"] = channels_first(torch, x), groups
    y = function(x, weight, padding=pad, output_padding=more, **given)
    if any(more):  # of which torch has no third derivative: of all that is not cut away
        cut = [n for p, m in zip(reversed(pad), reversed(more), strict=True) for n in (-p, m - p)]
        whole = torch.nn.functional.pad(function(x, weight, **given), cut)
        y = whole + (y - whole).detach()
    return channels_last(y)


@st.composite
def _transposed_convolutions(draw: st.DrawFn) -> Sample:
    axes = Axes(draw)
    kernel, dilation, stride = axes(1, 3), axes(1, 3), axes(1, 3)
    groups = draw(st.sampled_from([1, 1, 2]))
    # A third derivative of a single channel fails in torch 2.13: "grad_weight must be contiguous".
    inputs, outputs = draw(st.integers(1 if groups > 1 else 2, 3)) * groups, draw(st.integers(1, 3))
    return call(
        ops.conv_transpose,
        normal((draw(st.integers(1, 2)), *axes(1, 4), inputs), (*kernel, outputs, inputs)),
        stride=stride,
        pad=tuple(min(p, d * (k - 1) // 2) for p, d, k in zip(axes(0, 2), dilation, kernel, strict=True)),
        dilation=dilation,
        groups=groups,
        output_pad=tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)),
    )


def _global_max(torch: Any, x: Any) -> Any:
    function = getattr(torch.nn.functional, f"adaptive_max_pool{x.ndim - 2}d")
    return function(channels_first(torch, x), 1).flatten(1)


def _group_norm(x: Any, *affine: Any, groups: int, epsilon: float) -> Any:
    return ops.group_norm(x, groups, *affine, epsilon=epsilon)


def _instance_norm(x: Any, *affine: Any, epsilon: float) -> Any:
    return ops.instance_norm(x, *affine, epsilon=epsilon)


def _groups_of_torch(torch: Any, x: Any, *affine: Any, groups: int = 0, epsilon: float) -> Any:
    return torch.group_norm(x.movedim(-1, 1), groups or x.shape[-1], *affine, eps=epsilon).movedim(1, -1)


@st.composite
def _grouped(draw: st.DrawFn, is_instance: bool) -> Sample:
    size = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4))
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    make = normal((draw(st.integers(1, 3)), *size, groups * each), *[(groups * each,)] * (2 * draw(st.booleans())))
    if is_instance:
        return call(_instance_norm, make, epsilon=0.1)
    return call(_group_norm, make, groups=groups, epsilon=0.1)


def _rms_norm(torch: Any, x: Any, *scale: Any, axes: int, epsilon: float) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-axes:], *scale, eps=epsilon)


@st.composite
def _mean_squares(draw: st.DrawFn) -> Sample:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
    axes = draw(st.integers(1, len(shape)))
    make = normal(shape, *[shape[-axes:]] * draw(st.booleans()))
    return call(ops.rms_norm, make, axes=axes, epsilon=0.01)


def _lrn(torch: Any, x: Any, alpha: float, beta: float, size: int, k: float) -> Any:
    if x.numel() and x.ndim > 2:
        return torch.nn.functional.local_response_norm(x.movedim(-1, 1), size, alpha, beta, k).movedim(1, -1)
    # Torch's own refuses vectors, and batches without elements: its definition.
    squares = torch.nn.functional.pad(x * x, (size // 2, (size - 1) // 2))
    return x / (k + alpha / size * sum(squares[..., i : i + x.shape[-1]] for i in range(size))) ** beta


@st.composite
def _responses(draw: st.DrawFn) -> Sample:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    how = {
        "alpha": st.sampled_from([1e-4, 1.0]),
        "beta": st.sampled_from([0.75, 0.5]),
        "k": st.sampled_from([1.0, 2.0]),
    }
    make = normal((*shape, draw(st.integers(1, 9))))
    return call(ops.lrn, make, size=draw(st.integers(1, 7)), **{name: draw(each) for name, each in how.items()})


def _batch_norm(x: Any, mean: Any, variance: Any, *affine: Any, epsilon: float) -> Any:
    return ops.batch_norm(x, mean, variance, *affine, epsilon=epsilon)


def _batch_norm_of_torch(torch: Any, x: Any, *rest: Any, epsilon: float) -> Any:
    return torch.nn.functional.batch_norm(x.movedim(-1, 1), *rest, eps=epsilon).movedim(1, -1)


def _normalized(*shape: int) -> Sample:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        (variance,), arrays = positive(shape[-1:])(random), normal(shape, *[shape[-1:]] * 3)(random)
        return [*arrays[:2], variance, *arrays[2:]]

    sample = call(_batch_norm, make, epsilon=0.1)
    return Sample(sample.what, make, wrt=(0, 3, 4))


#: Torch's mode, the number of spatial axes, and ours.
_MODES: list[tuple[str, int, dict[str, Any]]] = [
    *(("nearest", rank, {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}) for rank in (1, 2, 3)),
    *(("nearest-exact", rank, {"mode": "nearest", "rounding": "round_prefer_ceil"}) for rank in (1, 2, 3)),
    *((mode, rank, {"mode": "linear"}) for rank, mode in enumerate(["linear", "bilinear", "trilinear"], start=1)),
    ("bicubic", 2, {"mode": "cubic"}),
]


def _resize(torch: Any, x: Any, size: Any = None, scale: Any = None, **how: Any) -> Any:
    def own(each: dict[str, Any]) -> bool:
        return all(how.get(name) == value for name, value in each.items())

    mode = next(name for name, rank, each in _MODES if rank == x.ndim - 2 and own(each))
    options = {} if how["mode"] == "nearest" else {"align_corners": how["coordinates"] == "align_corners"}
    resized = torch.nn.functional.interpolate(x.movedim(-1, 1), size, scale, mode=mode, **options)
    return resized.movedim(1, -1)


@st.composite
def _resized(draw: st.DrawFn) -> Sample:
    _, rank, how = draw(st.sampled_from(_MODES))
    old = draw(st.tuples(*[st.integers(1, 6)] * rank))
    size, scale = draw(st.tuples(*[st.integers(1, 13)] * rank)), draw(st.sampled_from([None, 0.5, 1.25, 2.0, 3.0]))
    if scale is not None and any(int(n * scale) in (0, n) for n in old):
        scale = None  # torch's gradient of what has the old size is that of a copy
    if how["mode"] != "nearest":
        how = {**how, "coordinates": draw(st.sampled_from(["half_pixel", "align_corners"]))}
    return call(ops.resize, normal((2, *old, 3)), **({"size": size} if scale is None else {"scale": scale}), **how)


def _row(name: str, torch: Any, samples: list[Sample], strategy: Any, **more: Any) -> Row:
    return Row(None, samples, name=name, torch=torch, dtypes=SINGLE_AND_DOUBLE, strategy=strategy, **more)


ROWS = [
    _row(
        "ops.conv_transpose",
        _transposed,
        [
            call(
                ops.conv_transpose,
                normal((2, 3, 2, 4), (2, 3, 1, 4)),
                stride=(2, 1),
                pad=(0, 1),
                dilation=(1, 2),
                groups=2,
                output_pad=(1, 0),
            )
        ],
        _transposed_convolutions(),
        orders=3,
    ),
    _row(
        "ops.global_max",
        _global_max,
        [call(ops.global_max, normal((2, 3, 2, 3)))],
        st.builds(
            lambda size, make: call(ops.global_max, make((2, *size, 3))),
            _IMAGES,
            st.sampled_from([normal, lambda shape: whole(-3, shape)]),
        ),
    ),
    _row(
        "ops.group_norm",
        _groups_of_torch,
        [call(_group_norm, normal((2, 3, 4), (4,), (4,)), groups=2, epsilon=0.1)],
        _grouped(is_instance=False),
    ),
    _row(
        "ops.instance_norm",
        _groups_of_torch,
        [call(_instance_norm, normal((2, 3, 4)), epsilon=0.1)],
        _grouped(is_instance=True),
    ),
    _row(
        "ops.instance_norm by its values",
        lambda torch, x, *affine, epsilon: torch.nn.functional.instance_norm(
            x.movedim(-1, 1), None, None, *affine, eps=epsilon
        ).movedim(1, -1),
        [call(_instance_norm, normal((2, 3, 4), (4,), (4,)), epsilon=0.1)],
        _grouped(is_instance=True).filter(lambda sample: math.prod(sample.drawn()[0].shape[1:-1]) > 1),
        differentiable=False,  # gradcheck of torch 2.13 fails for it
    ),
    _row(
        "ops.rms_norm",
        _rms_norm,
        [call(ops.rms_norm, normal((2, 3, 4), (3, 4)), axes=2, epsilon=0.01)],
        _mean_squares(),
    ),
    _row(
        "ops.lrn",
        _lrn,
        [call(ops.lrn, normal((2, 3, 7)), alpha=1.0, beta=0.75, size=4, k=2.0)],
        _responses(),
    ),
    _row(
        "ops.batch_norm",
        _batch_norm_of_torch,
        [_normalized(4, 3)],
        st.builds(
            lambda shape, channels: _normalized(*shape, channels),
            hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
            SIZES,
        ),
    ),
    _row(
        "ops.resize",
        _resize,
        [call(ops.resize, normal((2, 3, 4, 2)), scale=1.25, mode="cubic", coordinates="half_pixel")],
        _resized(),
    ),
]
