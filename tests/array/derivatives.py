"""Functions with gradients: each in array code, and as PyTorch has it, with arguments to differentiate by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import actorflow.array as xp

Function = Callable[..., Any]


class Case(NamedTuple):
    """A function of arrays, and its like in PyTorch: ``theirs(torch, *tensors)``; None where it has none."""

    ours: Function
    theirs: Function | None
    arrays: tuple[np.ndarray, ...]


CASES: dict[str, Case] = {}


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def complexes(*shape: int, seed: int = 0) -> np.ndarray:
    return numbers(*shape, seed=seed) + 1j * numbers(*shape, seed=seed + 100)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.abs(numbers(*shape, seed=seed)) + 0.3


def within(*shape: int, seed: int = 0) -> np.ndarray:
    """From -0.9 to 0.9."""
    return np.random.default_rng(seed).uniform(-0.9, 0.9, shape)


def regular(*shape: int, seed: int = 0) -> np.ndarray:
    """Square matrices far from singular."""
    return numbers(*shape, seed=seed) + 3.0 * np.eye(shape[-1])


def case(name: str, ours: Function, theirs: Function | None, *arrays: np.ndarray) -> None:
    assert name not in CASES, name
    CASES[name] = Case(ours, theirs, arrays)


def named(name: str, *arrays: np.ndarray, theirs: str = "", suffix: str = "") -> None:
    """A function that has the same arguments in both; ``theirs`` is its name there."""

    def of_torch(torch: Any, *tensors: Any) -> Any:
        found = torch
        for part in (theirs or name).split("."):
            found = getattr(found, part)
        return found(*tensors)

    def of_arrays(*values: Any) -> Any:
        found: Any = xp
        for part in name.split("."):
            found = getattr(found, part)
        return found(*values)

    case(name + suffix, of_arrays, of_torch, *arrays)


# -- elementwise ------------------------------------------------------------------------------------------------

for _name in ("abs", "asinh", "atan", "cos", "cosh", "exp", "expm1", "negative", "positive", "sin", "sinh", "square"):
    named(_name, numbers(3, 4))
    named(_name, complexes(3, 2), suffix="_complex")
for _name in ("tan", "tanh", "reciprocal"):
    named(_name, within(3, 4) + 1.5)
    named(_name, complexes(3, 2), suffix="_complex")
for _name in ("log", "log10", "log1p", "log2", "sqrt"):
    named(_name, positive(3, 4))
    named(_name, positive(3, 2) + 0.5j, suffix="_complex")
for _name in ("acos", "asin", "atanh"):
    named(_name, within(3, 4))
    named(_name, within(3, 2) + 0.5j, suffix="_complex")
named("acosh", positive(3, 4) + 1.0)
named("acosh", complexes(3, 2), suffix="_complex")
for _name in ("ceil", "floor", "round", "trunc", "sign"):
    case(
        _name,
        lambda x, name=_name: getattr(xp, name)(x * 3.0) + x,
        lambda torch, x, name=_name: getattr(torch, name)(x * 3.0) + x,
        numbers(7) / 7.0 + 0.01,
    )
case("sign_complex", xp.sign, lambda torch, x: torch.sgn(x), complexes(3, 2))
case("conj", lambda x: xp.conj(x) * x * x, lambda torch, x: torch.conj(x) * x * x, complexes(3, 2))
case("real", lambda x: xp.real(x * x), lambda torch, x: torch.real(x * x), complexes(3, 2))
case("imag", lambda x: xp.imag(x * x), lambda torch, x: torch.imag(x * x), complexes(3, 2))
case("real_to_complex", lambda x: x * (1.0 + 2.0j) * x, lambda torch, x: x * (1.0 + 2.0j) * x, numbers(3))
case("astype", lambda x: xp.astype(x, xp.complex128) ** 2.0, lambda torch, x: x.to(torch.complex128) ** 2.0, numbers(3))

PAIRS = {
    "same": (numbers(3, 4), numbers(3, 4, seed=1)),
    "rows": (numbers(3, 4), numbers(4, seed=1)),
    "columns": (numbers(3, 1), numbers(2, 1, 4, seed=1)),
    "number": (numbers(), numbers(2, 3, seed=1)),
}
for _suffix, (_a, _b) in PAIRS.items():
    for _name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "hypot", "atan2", "logaddexp"):
        named(_name, _a, _b, suffix=f"_{_suffix}")
    named("copysign", _a, _b, suffix=f"_{_suffix}")
    named("remainder", _a, np.abs(_b) + 2.0, suffix=f"_{_suffix}")
    named("pow", np.abs(_a) + 0.3, _b, suffix=f"_{_suffix}")
for _name in ("add", "subtract", "multiply", "divide"):
    named(_name, complexes(3, 2), complexes(2, seed=1), suffix="_complex")
    named(_name, complexes(3, 2), numbers(2, seed=1), suffix="_mixed")
named("erf", numbers(3, 4))
named("fmod", numbers(3, 4), numbers(3, 4, seed=1) + 3.0)
named("pow", complexes(3, 2), complexes(3, 2, seed=1), suffix="_complex")
case("power_constant", lambda x: x**3.0 + 2.0**x, lambda torch, x: x**3.0 + 2.0**x, numbers(4))
case("constants", lambda x: 1.0 - 2.0 / (x + 5.0), lambda torch, x: 1.0 - 2.0 / (x + 5.0), numbers(4))
case(
    "where",
    lambda x, y: xp.where(x > y, x * y, y),
    lambda torch, x, y: torch.where(x > y, x * y, y),
    numbers(3, 4),
    numbers(4, seed=1),
)
case(
    "where_number",
    lambda x: xp.where(x > 0.0, x * x, 0.1) + xp.where(x > 0.0, 2.0, x),
    lambda torch, x: torch.where(x > 0.0, x * x, 0.1) + torch.where(x > 0.0, 2.0, x),
    numbers(6),
)
case("clip", lambda x: xp.clip(x, -0.5, 0.7), lambda torch, x: torch.clamp(x, -0.5, 0.7), numbers(9))
case(
    "clip_arrays",
    lambda x, low, high: xp.clip(x, low, high),
    lambda torch, x, low, high: torch.clamp(x, low, high),
    numbers(9),
    numbers(9, seed=1) - 1.0,
    numbers(9, seed=2) + 1.5,
)
case("clip_low", lambda x: xp.clip(x, min=0.0), lambda torch, x: torch.clamp(x, min=0.0), numbers(9))


# -- reductions -------------------------------------------------------------------------------------------------

for _name, _theirs in (("sum", "sum"), ("mean", "mean"), ("max", "amax"), ("min", "amin")):
    for _axis in (None, 0, (0, 2), -1):
        for _keepdims in (False, True):
            case(
                f"{_name}_{_axis}_{_keepdims}",
                lambda x, f=_name, axis=_axis, keep=_keepdims: getattr(xp, f)(x, axis=axis, keepdims=keep),
                lambda torch, x, f=_theirs, axis=_axis, keep=_keepdims: getattr(torch, f)(
                    x, dim=(0, 1, 2) if axis is None else axis, keepdim=keep
                ),
                numbers(2, 3, 4),
            )
case("prod", xp.prod, lambda torch, x: torch.prod(x), numbers(2, 3))
case("prod_axis", lambda x: xp.prod(x, axis=1), lambda torch, x: torch.prod(x, dim=1), numbers(2, 3, 2))
case(
    "prod_axes",
    lambda x: xp.prod(x, axis=(2, 0), keepdims=True),
    lambda torch, x: torch.prod(torch.prod(x, 2, keepdim=True), 0, keepdim=True),
    numbers(2, 3, 2),
)
_zeros = np.array([[0.0, 2.0, 3.0], [0.0, 4.0, 0.0], [1.0, 2.0, 0.5]])
case("prod_zeros", lambda x: xp.prod(x, axis=1), lambda torch, x: torch.prod(x, dim=1), _zeros)
case("prod_complex", lambda x: xp.prod(x, axis=0), lambda torch, x: torch.prod(x, dim=0), complexes(3, 2))
for _correction in (0, 1):
    case(
        f"var_{_correction}",
        lambda x, c=_correction: xp.var(x, axis=1, correction=c) + xp.std(x, correction=c),
        lambda torch, x, c=_correction: torch.var(x, dim=1, correction=c) + torch.std(x, correction=c),
        numbers(3, 4),
    )
case("cumulative_sum", lambda x: xp.cumulative_sum(x, axis=1), lambda torch, x: torch.cumsum(x, 1), numbers(2, 4, 2))
case(
    "cumulative_sum_initial",
    lambda x: xp.cumulative_sum(x, axis=0, include_initial=True),
    lambda torch, x: torch.cat([torch.zeros_like(x[:1]), torch.cumsum(x, 0)]),
    numbers(4),
)
case("cumulative_prod", lambda x: xp.cumulative_prod(x, axis=1), lambda torch, x: torch.cumprod(x, 1), numbers(2, 4))
case("cumulative_prod_zeros", lambda x: xp.cumulative_prod(x, axis=1), lambda torch, x: torch.cumprod(x, 1), _zeros)
case(
    "cumulative_prod_complex",
    lambda x: xp.cumulative_prod(x, axis=0),
    lambda torch, x: torch.cumprod(x, 0),
    complexes(4),
)
case("diff", lambda x: xp.diff(x, axis=0, n=2), lambda torch, x: torch.diff(x, dim=0, n=2), numbers(4, 2))
case(
    "diff_prepended",
    lambda x, y: xp.diff(x, prepend=y, append=y * 2.0),
    lambda torch, x, y: torch.diff(x, prepend=y, append=y * 2.0),
    numbers(2, 3),
    numbers(2, 1, seed=1),
)
for _descending in (False, True):
    case(
        f"sort_{_descending}",
        lambda x, d=_descending: xp.sort(x, axis=0, descending=d),
        lambda torch, x, d=_descending: torch.sort(x, dim=0, descending=d).values,
        numbers(5, 2),
    )


# -- arranging, indices -----------------------------------------------------------------------------------------

_cube = numbers(2, 3, 4)
case("reshape", lambda x: xp.reshape(x, (-1, 6)), lambda torch, x: x.reshape(-1, 6), _cube)
case("permute", lambda x: xp.permute_dims(x, (2, 0, 1)), lambda torch, x: x.permute(2, 0, 1), _cube)
case("moveaxis", lambda x: xp.moveaxis(x, 0, -1), lambda torch, x: torch.moveaxis(x, 0, -1), _cube)
case("flip", lambda x: xp.flip(x, axis=(0, 2)), lambda torch, x: torch.flip(x, (0, 2)), _cube)
case("roll", lambda x: xp.roll(x, (1, -2), axis=(0, 2)), lambda torch, x: torch.roll(x, (1, -2), (0, 2)), _cube)
case("roll_flat", lambda x: xp.roll(x, 5), lambda torch, x: torch.roll(x, 5), _cube)
case("tile", lambda x: xp.tile(x, (2, 1, 3)), lambda torch, x: torch.tile(x, (2, 1, 3)), _cube)
case("tile_more", lambda x: xp.tile(x, (2, 1, 1, 3)), lambda torch, x: torch.tile(x, (2, 1, 1, 3)), _cube)
case("repeat", lambda x: xp.repeat(x, 3, axis=1), lambda torch, x: torch.repeat_interleave(x, 3, 1), _cube)
case("repeat_flat", lambda x: xp.repeat(x, 2), lambda torch, x: torch.repeat_interleave(x, 2), _cube)
case(
    "repeat_counts",
    lambda x: xp.repeat(x, xp.asarray([2, 0, 3]), axis=1),
    lambda torch, x: torch.repeat_interleave(x, torch.tensor([2, 0, 3]), 1),
    _cube,
)
case("expand", lambda x: xp.expand_dims(x, axis=1), lambda torch, x: x.unsqueeze(1), _cube)
case("squeeze", lambda x: xp.squeeze(x, axis=1), lambda torch, x: x.squeeze(1), numbers(2, 1, 3))
case(
    "broadcast",
    lambda x, y: xp.broadcast_arrays(x, y),
    lambda torch, x, y: torch.broadcast_tensors(x, y),
    numbers(3, 1),
    numbers(4, seed=1),
)
case("broadcast_to", lambda x: xp.broadcast_to(x, (2, 3, 4)), lambda torch, x: x.expand(2, 3, 4), numbers(3, 1))
case(
    "concat",
    lambda x, y: xp.concat([x, y, x * y[:1, :]], axis=0),
    lambda torch, x, y: torch.cat([x, y, x * y[:1]]),
    numbers(2, 3),
    numbers(3, 3, seed=1),
)
case("stack", lambda x, y: xp.stack([x, y], axis=1), lambda torch, x, y: torch.stack([x, y], 1), _cube, _cube * 2.0)
case("unstack", lambda x: xp.unstack(x, axis=1), lambda torch, x: torch.unbind(x, 1), _cube)
case("meshgrid", xp.meshgrid, lambda torch, *x: torch.meshgrid(*x, indexing="xy"), numbers(3), numbers(2, seed=1))
case(
    "triangles",
    lambda x: xp.tril(x, k=1) * xp.triu(x, k=-1),
    lambda torch, x: torch.tril(x, 1) * torch.triu(x, -1),
    numbers(2, 3, 4),
)
case("slice", lambda x: x[:, 2:0:-1, ::2], lambda torch, x: torch.flip(x[:, 1:3, ::2], (1,)), _cube)
case("integer", lambda x: x[1, ..., -1, None], lambda torch, x: x[1, ..., -1, None], _cube)
case(
    "index_arrays",
    lambda x: x[[0, 1, 0, 0], :, xp.asarray([3, 1, 3, 0])],
    lambda torch, x: x[[0, 1, 0, 0], :, torch.tensor([3, 1, 3, 0])],
    _cube,
)
case(
    "take",
    lambda x: xp.take(x, xp.asarray([2, 0, 2, 2]), axis=1),
    lambda torch, x: torch.index_select(x, 1, torch.tensor([2, 0, 2, 2])),
    _cube,
)
_along = np.array([[[3, 3, 0]], [[1, 3, 1]]])
case(
    "take_along_axis",
    lambda x: xp.take_along_axis(x, xp.asarray(_along), axis=2),
    lambda torch, x: torch.gather(x, 2, torch.tensor(_along).expand(2, 3, 3)),
    _cube,
)
_mask = numbers(2, 3, seed=5) > 0
case("mask_outside", lambda x: x[_mask], lambda torch, x: x[torch.tensor(_mask)], _cube)


def assigned(*parts: Any) -> Function:
    """A function that writes its second argument, times something, into parts of its first one."""

    def function(x: Any, y: Any) -> Any:
        x = x * 1.0
        for part in parts:
            x[part] = y * 2.0
        return x * x

    return function


def assigned_by_torch(*parts: Any) -> Function:
    def function(torch: Any, x: Any, y: Any) -> Any:
        return assigned(*[torch.tensor(part) if isinstance(part, np.ndarray) else part for part in parts])(x, y)

    return function


for _suffix, _parts, _value in (
    ("slice", [(slice(None), 1)], numbers(2, 4, seed=1)),
    ("number", [(0, slice(None, None, 2))], numbers(seed=1)),
    ("twice", [(0, 1), (slice(None), slice(1, None))], numbers(4, seed=1)),
    ("broadcast", [(slice(None), slice(0, 2))], numbers(2, 1, 1, seed=1)),
    ("mask_number", [_mask], numbers(seed=1)),
    ("mask_row", [_mask], numbers(4, seed=1)),
    ("mask", [_mask], numbers(int(_mask.sum()), 4, seed=1)),
):
    case(f"assign_{_suffix}", assigned(*_parts), assigned_by_torch(*_parts), _cube, _value)
case(
    "assign_index_array",
    assigned(np.array([1, 0])),
    assigned_by_torch(np.array([1, 0])),
    _cube,
    numbers(2, 3, 4, seed=1),
)
# Of what is written to one place the last one counts; PyTorch gives all of them its gradient.
case("assign_again", assigned(np.array([1, 0, 1])), None, _cube, numbers(3, 3, 4, seed=1))


# -- products ---------------------------------------------------------------------------------------------------

for _suffix, _a, _b in (
    ("", numbers(3, 4), numbers(4, 2, seed=1)),
    ("_batch", numbers(2, 1, 3, 4), numbers(5, 4, 2, seed=1)),
    ("_vectors", numbers(4), numbers(4, seed=1)),
    ("_left", numbers(4), numbers(3, 4, 2, seed=1)),
    ("_right", numbers(2, 3, 4), numbers(4, seed=1)),
    ("_complex", complexes(3, 4), complexes(4, 2, seed=1)),
    ("_complex_left", complexes(4), complexes(3, 4, 2, seed=1)),
):
    named("matmul", _a, _b, suffix=_suffix)
named("linalg.vecdot", numbers(3, 4), numbers(4, seed=1))
named("linalg.vecdot", complexes(3, 4), complexes(2, 1, 4, seed=1), suffix="_complex")
case(
    "vecdot_axis",
    lambda x, y: xp.vecdot(x, y, axis=0),
    lambda torch, x, y: torch.linalg.vecdot(x, y, dim=0),
    complexes(3, 4),
    complexes(3, 4, seed=1),
)
for _suffix, _axes in (("2", 2), ("0", 0), ("named", ((0, 2), (1, 0))), ("crossed", ((2, 0), (0, 1)))):
    _left, _right = (2, 3, 4), {"2": (3, 4, 2), "0": (2,)}.get(_suffix, (4, 2, 3))
    case(
        f"tensordot_{_suffix}",
        lambda x, y, axes=_axes: xp.tensordot(x, y, axes=axes),
        lambda torch, x, y, axes=_axes: torch.tensordot(x, y, dims=axes),
        complexes(*_left),
        complexes(*_right, seed=1),
    )
named("linalg.outer", complexes(3), complexes(4, seed=1), theirs="outer")
named("linalg.cross", complexes(1, 2, 3), complexes(4, 1, 3, seed=1))
case(
    "cross_axis",
    lambda x, y: xp.linalg.cross(x, y, axis=0),
    lambda torch, x, y: torch.linalg.cross(x, y, dim=0),
    numbers(3, 2),
    numbers(3, 1, seed=1),
)
for _offset in (0, 1, -2):
    case(
        f"diagonal_{_offset}",
        lambda x, k=_offset: xp.linalg.diagonal(x, offset=k),
        lambda torch, x, k=_offset: torch.diagonal(x, k, -2, -1),
        numbers(2, 4, 3),
    )
    case(
        f"trace_{_offset}",
        lambda x, k=_offset: xp.linalg.trace(x, offset=k),
        lambda torch, x, k=_offset: torch.diagonal(x, k, -2, -1).sum(-1),
        numbers(2, 4, 3),
    )
case("matrix_transpose", lambda x: x.mT @ x, lambda torch, x: x.mT @ x, numbers(2, 3, 4))
for _n in (0, 1, 2, 5, -1, -3):
    case(
        f"matrix_power_{_n}",
        lambda x, n=_n: xp.linalg.matrix_power(x, n) + x,
        lambda torch, x, n=_n: torch.linalg.matrix_power(x, n) + x,
        regular(2, 3, 3) / 3.0,
    )


# -- matrices ---------------------------------------------------------------------------------------------------


def whole_eigh(conj: Function, w: Any, v: Any) -> Any:
    """The part that does not depend on the factors of magnitude 1 that vectors are determined up to."""
    return w, v * conj(v), (v * w[..., None, :] ** 2.0) @ conj(v.mT)


def whole_eig(conj: Function, w: Any, v: Any) -> Any:
    """As above, for any order of the vectors."""
    return (v * w[..., None, :]) @ conj(v.mT)


def whole_svd(conj: Function, u: Any, s: Any, vh: Any) -> Any:
    """As above: u and v may turn together."""
    return u * conj(u), s, vh * conj(vh), (u * s[..., None, :] ** 2.0) @ vh


_square, _pairs = regular(2, 3, 3), regular(3, 3) + 1j * numbers(3, 3, seed=7)
for _suffix, _x in (("", _square), ("_complex", _pairs)):
    named("linalg.inv", _x, suffix=_suffix)
    named("linalg.det", _x, suffix=_suffix)
    named("linalg.slogdet", _x, suffix=_suffix)
    named("linalg.svdvals", _x, suffix=_suffix)
    named("linalg.qr", _x, suffix=_suffix)
    case(
        f"cholesky{_suffix}",
        lambda x: xp.linalg.cholesky(x @ xp.conj(x.mT) + xp.eye(3)),
        lambda torch, x: torch.linalg.cholesky(x @ x.mH + torch.eye(3)),
        _x,
    )
    case(
        f"cholesky_upper{_suffix}",
        lambda x: xp.linalg.cholesky(x @ xp.conj(x.mT) + xp.eye(3), upper=True),
        lambda torch, x: torch.linalg.cholesky(x @ x.mH + torch.eye(3), upper=True),
        _x,
    )
    case(
        f"eigvalsh{_suffix}",
        lambda x: xp.linalg.eigvalsh(x + xp.conj(x.mT)),
        lambda torch, x: torch.linalg.eigvalsh(x + x.mH),
        _x,
    )
    case(
        f"eigh{_suffix}",
        lambda x: whole_eigh(xp.conj, *xp.linalg.eigh(x + xp.conj(x.mT))),
        lambda torch, x: whole_eigh(torch.conj, *torch.linalg.eigh(x + x.mH)),
        _x,
    )
    case(
        f"eig{_suffix}",
        lambda x: whole_eig(xp.conj, *xp.linalg.eig(x)),
        lambda torch, x: whole_eig(torch.conj, *torch.linalg.eig(x)),
        _x,
    )
    named("linalg.eigvals", _x, suffix=_suffix)
named("linalg.det", np.array([[1.0, 2.0], [2.0, 4.0]]), suffix="_singular")
named("linalg.det", np.zeros((3, 3)) + np.diag([1.0, 2.0, 0.0]), suffix="_of_rank_2")
named("linalg.qr", numbers(2, 4, 3), suffix="_tall")
named("linalg.qr", numbers(2, 3, 5), suffix="_wide")
case("qr_complete", lambda x: xp.linalg.qr(x, mode="complete"), None, numbers(3, 4))
for _suffix, _x in (
    ("", numbers(2, 4, 3)),
    ("_wide", numbers(2, 5)),
    ("_square", regular(3, 3)),
    ("_complex", complexes(4, 3)),
):
    case(
        f"svd{_suffix}",
        lambda x: whole_svd(xp.conj, *xp.linalg.svd(x, full_matrices=False)),
        lambda torch, x: whole_svd(torch.conj, *torch.linalg.svd(x, full_matrices=False)),
        _x,
    )
    case(
        f"svd_full{_suffix}",
        lambda x: xp.linalg.svd(x).S,
        lambda torch, x: torch.linalg.svd(x).S,
        _x,
    )
    named("linalg.pinv", _x, suffix=_suffix)
named("linalg.solve", regular(3, 3), numbers(3, seed=1), suffix="_vector")
named("linalg.solve", regular(2, 1, 3, 3), numbers(4, 3, 2, seed=1))
named("linalg.solve", _pairs, complexes(3, 2, seed=1), suffix="_complex")
for _order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
    for _keepdims in (False, True):
        case(
            f"matrix_norm_{_order}_{_keepdims}",
            lambda x, order=_order, keep=_keepdims: xp.linalg.matrix_norm(x, ord=order, keepdims=keep),
            lambda torch, x, order=_order, keep=_keepdims: torch.linalg.matrix_norm(x, ord=order, keepdim=keep),
            numbers(2, 3, 4),
        )
for _order in (2, 1, 3, 0.5, -1, np.inf, -np.inf):
    case(
        f"vector_norm_{_order}",
        lambda x, order=_order: xp.linalg.vector_norm(x, ord=order, axis=(0, 2), keepdims=True),
        lambda torch, x, order=_order: torch.linalg.vector_norm(x, ord=order, dim=(0, 2), keepdim=True),
        numbers(2, 3, 4),
    )
    case(
        f"vector_norm_{_order}_complex",
        lambda x, order=_order: xp.linalg.vector_norm(x, ord=order, axis=-1),
        lambda torch, x, order=_order: torch.linalg.vector_norm(x, ord=order, dim=-1),
        complexes(3, 2),
    )


# -- Fourier transforms -----------------------------------------------------------------------------------------

for _norm in ("backward", "ortho", "forward"):
    for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        _x = numbers(2, 6) if _name in ("rfft", "ihfft") else complexes(2, 6)
        for _n in (None, 4, 5, 9):
            case(
                f"{_name}_{_norm}_{_n}",
                lambda x, f=_name, n=_n, norm=_norm: getattr(xp.fft, f)(x, n=n, norm=norm),
                lambda torch, x, f=_name, n=_n, norm=_norm: getattr(torch.fft, f)(x, n=n, norm=norm),
                _x,
            )
for _name in ("fftn", "ifftn", "rfftn", "irfftn"):
    _x = numbers(2, 3, 4) if _name == "rfftn" else complexes(2, 3, 4)
    for _lengths, _axes in ((None, None), ((5, 3), (0, 2)), ((2, 4), (-1, 1))):
        case(
            f"{_name}_{_lengths}",
            lambda x, f=_name, s=_lengths, axes=_axes: getattr(xp.fft, f)(x, s=s, axes=axes, norm="ortho"),
            lambda torch, x, f=_name, s=_lengths, axes=_axes: getattr(torch.fft, f)(x, s=s, dim=axes, norm="ortho"),
            _x,
        )
case("fft_of_real", xp.fft.fft, lambda torch, x: torch.fft.fft(x), numbers(2, 5))
case(
    "fftshift",
    lambda x: xp.fft.fftshift(x, axes=0) * xp.fft.ifftshift(x),
    lambda torch, x: torch.fft.fftshift(x, dim=0) * torch.fft.ifftshift(x),
    numbers(3, 4),
)


# -- constants --------------------------------------------------------------------------------------------------

_table = np.array([[4.0, 1.0], [0.0, 2.0]])
case(
    "made_inside",
    lambda x: xp.where(xp.asarray([True, False]), xp.asarray(_table) @ x, xp.linalg.solve(xp.asarray(_table), x * x)),
    lambda torch, x: torch.where(
        torch.tensor([True, False]),
        torch.tensor(_table) @ x,
        torch.linalg.solve(torch.tensor(_table), x * x),
    ),
    numbers(2, 2),
)
case(
    "products_inside",
    lambda x: xp.tensordot(xp.asarray(_table), x, axes=1) + xp.linalg.outer(x[0, :], xp.asarray([1.0, 3.0])),
    lambda torch, x: torch.tensordot(torch.tensor(_table), x, dims=1) + torch.outer(x[0], torch.tensor([1.0, 3.0])),
    numbers(2, 2),
)
case(
    "assigned_inside",
    lambda x: assigned(xp.asarray([1]))(x, xp.asarray([5.0, 6.0])) * xp.take(x, xp.asarray([1, 1]), axis=0),
    lambda torch, x: assigned(torch.tensor([1]))(x, torch.tensor([5.0, 6.0])) * x[[1, 1]],
    numbers(2, 2),
)


# -- networks ---------------------------------------------------------------------------------------------------

case(
    "network",
    lambda x, w: xp.nn.softmax_loss(xp.nn.gelu(x @ w), xp.asarray([0, 2, 1])),
    lambda torch, x, w: torch.nn.functional.cross_entropy(torch.nn.functional.gelu(x @ w), torch.tensor([0, 2, 1])),
    numbers(3, 4),
    numbers(4, 5, seed=1),
)
case("softmax", lambda x: xp.nn.softmax(x, axis=0), lambda torch, x: torch.softmax(x, 0), numbers(3, 4))
case("sigmoid", xp.nn.sigmoid, lambda torch, x: torch.sigmoid(x), numbers(3, 4))
case(
    "parts",
    lambda x: [part**2.0 for part in split(x)],
    lambda torch, x: [part**2.0 for part in torch.chunk(x, 2, 1)],
    numbers(3, 4),
)


def split(x: Any) -> Any:
    from actorflow import ops

    return ops.split(x, 2, axis=1)


# -- where there are no central differences ---------------------------------------------------------------------

#: Functions at kinks and corners, where PyTorch's choice is taken.
CORNERS: dict[str, Case] = {
    name: Case(*CASES[name][:2], arrays)
    for name, arrays in {
        "abs": (np.zeros(3),),
        "sqrt": (np.zeros(2),),
        "sign_complex": (np.zeros(2, complex),),
        "maximum_same": (np.array([1.0, 2.0, 0.0]), np.array([1.0, 0.0, 0.0])),
        "minimum_rows": (np.array([[1.0, 2.0], [0.0, 2.0]]), np.array([1.0, 2.0])),
        "clip": (np.array([-0.5, 0.7, 0.0, -2.0, 2.0]),),
        "clip_low": (np.array([0.0, -0.0, 1.0]),),
        "max_None_False": (np.array([[[1.0, 3.0], [3.0, 3.0]]]),),
        "max_0_True": (np.array([[[1.0, 3.0]], [[1.0, 2.0]]]),),
        "min_(0, 2)_False": (np.ones((2, 3, 2)),),
        "var_1": (np.ones((2, 3)),),
        "pow_same": (np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, 2.0, 1.0, 0.0])),
        "vector_norm_2": (np.zeros((2, 2, 2)),),
        "vector_norm_1": (np.zeros((2, 2, 2)),),
        "vector_norm_3": (np.array([[[0.0, 2.0]], [[0.0, 1.0]]]),),
        "vector_norm_inf": (np.array([[[2.0, -2.0]], [[0.0, 1.0]]]),),
        "matrix_norm_fro_False": (np.zeros((1, 2, 2)),),
        "sort_False": (np.array([[2.0], [1.0], [2.0], [1.0]]),),
        "sort_True": (np.array([[2.0], [1.0], [2.0], [1.0]]),),
        "cumulative_prod": (np.zeros((2, 4)),),
    }.items()
}
