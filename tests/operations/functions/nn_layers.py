"""Transposed convolution, maxima of whole images, normalization, resizing: functions of networks' layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from tests.operations.nn.windows import channels_first, channels_last, pairs, per_axis
from tests.operations.table import Sample, call, composed, normal, positive, whole


def _transposed(torch: Any, x: Any, weight: Any, groups: int = 1, **how: Any) -> Any:
    """Torch's border is as wide on both sides, and has no third derivative with more at an end: it is cut away here."""
    rank = x.ndim - 2
    stride, dilation = (per_axis(how.get(name, 1), rank) for name in ("stride", "dilation"))
    border, more = pairs(how.get("pad", 0), rank), per_axis(how.get("output_pad", 0), rank)
    weight = weight.movedim((-1, -2), (0, 1)).contiguous()
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    whole = function(channels_first(torch, x), weight, stride=stride, groups=groups, dilation=dilation)
    cut = [n for (p, q), m in zip(reversed(border), reversed(more), strict=True) for n in (-p, m - q)]
    return channels_last(torch.nn.functional.pad(whole, cut))


def transposed(x: np.ndarray, weight: np.ndarray, groups: int = 1, **how: Any) -> np.ndarray:
    """Each element of an image sends its product with the kernel to its windows."""
    rank = x.ndim - 2
    defaults = {"stride": 1, "dilation": 1, "output_pad": 0}
    stride, dilation, output_pad = (per_axis(how.get(name, n), rank) for name, n in defaults.items())
    border = pairs(how.get("pad", 0), rank)
    lengths = zip(x.shape[1:-1], stride, dilation, weight.shape, border, output_pad, strict=False)
    size = [(n - 1) * s + d * (k - 1) + 1 - sum(p) + more for n, s, d, k, p, more in lengths]
    y = np.zeros((len(x), *size, groups, weight.shape[-2]), x.dtype)
    x, weight = (each.reshape(*each.shape[:-1], groups, each.shape[-1] // groups) for each in (x, weight))
    for place in np.ndindex(*x.shape[1:-2]):
        for offset in np.ndindex(*weight.shape[:-3]):
            to = tuple(
                i * s + a * d - p for i, s, a, d, (p, _) in zip(place, stride, offset, dilation, border, strict=True)
            )
            if all(0 <= at < n for at, n in zip(to, size, strict=True)):
                y[(slice(None), *to)] += np.einsum("ngi,ogi->ngo", x[(slice(None), *place)], weight[offset])
    return y.reshape(*y.shape[:-2], -1)


_TRANSPOSED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((4, 5), {"stride": 2, "pad": 1, "output_pad": 1}),
    ((4, 5), {"stride": (2, 3), "output_pad": (0, 2)}),
    ((4, 5), {"dilation": 2, "pad": ((0, 1), 2)}),
    ((3,), {"stride": 3}),
    ((2, 2, 2), {"stride": 2}),
    ((3, 2), {"stride": (2, 1), "pad": (0, 1), "dilation": (1, 2), "groups": 2, "output_pad": (1, 0)}),
]


def _global_max(torch: Any, x: Any) -> Any:
    function = getattr(torch.nn.functional, f"adaptive_max_pool{x.ndim - 2}d")
    return function(channels_first(torch, x), 1).flatten(1)


def _group_norm(x: Any, *affine: Any, groups: int, epsilon: float) -> Any:
    return ops.group_norm(x, groups, *affine, epsilon=epsilon)


def _instance_norm(x: Any, *affine: Any, epsilon: float) -> Any:
    return ops.instance_norm(x, *affine, epsilon=epsilon)


def _groups_of_torch(torch: Any, x: Any, *affine: Any, groups: int = 0, epsilon: float) -> Any:
    return torch.group_norm(x.movedim(-1, 1), groups or x.shape[-1], *affine, eps=epsilon).movedim(1, -1)


def _rms_norm(torch: Any, x: Any, *scale: Any, axes: int, epsilon: float) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-axes:], *scale, eps=epsilon)


def _lrn(torch: Any, x: Any, alpha: float, beta: float, size: int, k: float) -> Any:
    if x.numel() and x.ndim > 2:
        return torch.nn.functional.local_response_norm(x.movedim(-1, 1), size, alpha, beta, k).movedim(1, -1)
    # Torch's own refuses vectors, and batches without elements: its definition.
    squares = torch.nn.functional.pad(x * x, (size // 2, (size - 1) // 2))
    return x / (k + alpha / size * sum(squares[..., i : i + x.shape[-1]] for i in range(size))) ** beta


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


#: With corners that lie on each other, too.
_ALIGNED = [
    (name, rank, how if how["mode"] == "nearest" else {**how, "coordinates": coordinates})
    for name, rank, how in _MODES
    for coordinates in ("half_pixel", "align_corners")[: 1 if how["mode"] == "nearest" else 2]
]


def _resize(torch: Any, x: Any, size: Any = None, scale: Any = None, **how: Any) -> Any:
    def own(each: dict[str, Any]) -> bool:
        return all(how.get(name) == value for name, value in each.items())

    mode = next(name for name, rank, each in _MODES if rank == x.ndim - 2 and own(each))
    options = {} if how["mode"] == "nearest" else {"align_corners": how["coordinates"] == "align_corners"}
    resized = torch.nn.functional.interpolate(x.movedim(-1, 1), size, scale, mode=mode, **options)
    return resized.movedim(1, -1)


def _largest(x: np.ndarray) -> np.ndarray:
    return x.max(tuple(range(1, x.ndim - 1)))


#: Shapes whose last axis is that of channels, and numbers of groups.
_GROUPED = (((2, 3, 4), 2), ((3, 6), 3), ((1, 2, 1, 3, 2), 1), ((2, 4, 3, 9), 3))

ROWS = [
    composed(
        "conv_transpose",
        _transposed,
        *(
            call(ops.conv_transpose, normal((2, *size, 4), (*(3,) * len(size), 4 // how.get("groups", 1), 4)), **how)
            for size, how in _TRANSPOSED
        ),
        numpy=transposed,
        orders=3,
    ),
    composed(
        "ops.global_max",
        _global_max,
        *(call(ops.global_max, normal((2, *size, 3))) for size in ((3, 2), (4,), (2, 1, 3))),
        Sample(call(ops.global_max, whole(-3, ())).what, whole(-3, (2, 4, 3, 3)), smooth=False),
        numpy=_largest,
    ),
    composed(
        "ops.group_norm",
        _groups_of_torch,
        *(
            call(_group_norm, normal(x, *[x[-1:]] * count), groups=groups, epsilon=0.1)
            for x, groups in _GROUPED
            for count in (2, 0)
        ),
    ),
    composed(
        "ops.instance_norm",
        _groups_of_torch,
        *(call(_instance_norm, normal(x, *[x[-1:]] * count), epsilon=0.1) for x, _ in _GROUPED for count in (0, 2)),
    ),
    composed(
        "ops.instance_norm by its values",
        lambda torch, x, *affine, epsilon: torch.nn.functional.instance_norm(
            x.movedim(-1, 1), None, None, *affine, eps=epsilon
        ).movedim(1, -1),
        *(call(_instance_norm, normal(x, x[-1:], x[-1:]), epsilon=0.1) for x in ((2, 3, 4), (2, 4, 3, 9))),
        differentiable=False,  # gradcheck of torch 2.13 fails for it
    ),
    composed(
        "ops.rms_norm",
        _rms_norm,
        *(
            call(ops.rms_norm, normal(x, *[x[-axes:]] * count), axes=axes, epsilon=0.01)
            for x, axes, count in (((2, 3, 4), 2, 1), ((5,), 1, 0), ((2, 1, 3), 1, 1), ((2, 3, 1, 4), 4, 0))
        ),
    ),
    composed(
        "ops.lrn",
        _lrn,
        *(
            call(ops.lrn, normal(x), alpha=alpha, beta=beta, size=size, k=k)
            for x, alpha, beta, size, k in (
                ((2, 3, 7), 1.0, 0.75, 4, 2.0),
                ((3, 9), 1e-4, 0.5, 7, 1.0),
                ((2, 0, 3), 1.0, 0.5, 1, 1.0),
                ((2, 1, 2, 1), 1.0, 0.75, 5, 2.0),
            )
        ),
    ),
    composed("ops.batch_norm", _batch_norm_of_torch, *(_normalized(*x) for x in ((4, 3), (0, 2), (2, 1, 3, 4)))),
    composed(
        "ops.resize",
        _resize,
        call(ops.resize, normal((2, 3, 4, 2)), scale=1.25, mode="cubic", coordinates="half_pixel"),
        *(
            call(ops.resize, normal((2, *(3, 5, 2)[:rank], 3)), **by, **how)
            for i, (name, rank, how) in enumerate(_ALIGNED)
            for by in ({"size": (7, 2, 5)[:rank]}, {"scale": 3.0 if i % 2 else 1.5})
        ),
    ),
]
