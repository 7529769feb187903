"""Functions that make arrays."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.array.namespace.apply import cast, node_of, value_of
from actorflow.array.namespace.types import checked_dtype
from actorflow.array.record.placement import at, default_place, place_of, transfer
from actorflow.array.record.primitives import Primitive, Value
from actorflow.array.record.record import HOST, Record, current_evaluator, given, record
from actorflow.core import desk
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.interchange import from_host_exchange, is_fixed
from actorflow.ops import elementwise as ew
from actorflow.ops.shaping import broadcast_to, reshape
from actorflow.place import Place
from actorflow.runtime.quiet import quiet
from actorflow.spec import TensorSpec
from actorflow.threads import simulation

if TYPE_CHECKING:
    from actorflow.array.array import Array

_DType = npt.DTypeLike | None
_Device = Place | str | None


def made_on(device: _Device, array: Array) -> Array:
    """An array made on the CPU, on a device: the default one for None."""
    place = default_place() if device is None else place_of(device)
    return array if place is HOST else transfer(array, place)


def asarray(obj: Any, /, *, dtype: _DType = None, device: _Device = None, copy: bool | None = None) -> Array:
    """An array of numbers, of nested sequences, or of another library's array on the CPU, as `numpy.asarray`.

    Args:
        obj: The numbers. An array of this package is returned itself, unless its dtype or ``copy`` asks for another.
        dtype: Of the elements; that of ``obj`` if left out.
        device: Where the array is to live; that of `at` if left out, that of ``obj`` if it is an array of this package.
        copy: False shares the memory of a NumPy array that nothing can write to: it is read-only, and so is the array
            whose memory it shows. What is recorded may be computed later, so all other elements are copied, at once.
    Raises:
        GraphError: if memory cannot be shared as asked.
    Example:
        >>> xp.asarray([[1, 2], [3, 4]], dtype="float32")
        Array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    if type(obj) is Record.array_type:
        return _converted(obj, dtype, copy, device)
    if isinstance(obj, list | tuple):
        obj = _unpacked(obj)
    foreign = hasattr(obj, "__dlpack__") or hasattr(obj, "__array__") or hasattr(obj, "__array_interface__")
    try:
        value = _exchanged(obj, "asarray") if foreign else value_of(obj, dtype)
    except ValueError as error:
        if isinstance(error, GraphError):
            raise
        raise ShapeError(f"asarray: {error}") from error
    kind = checked_dtype("asarray", dtype if dtype is not None else value.dtype)
    if value.dtype.kind == "c" and kind.kind in "iuf":
        raise DTypeError(f"asarray: {value.dtype} to {kind} would drop imaginary parts")
    if copy is False and (not foreign or value.dtype != kind):
        raise GraphError("asarray: copy=False, but this cannot be taken without a copy")
    return _entered("asarray", value, kind, device, copy)


def _exchanged(obj: Any, what: str) -> Value:
    return np.asarray(obj) if isinstance(obj, np.ndarray) else from_host_exchange(obj, what)


def _entered(what: str, value: Value, kind: np.dtype[Any], device: _Device, copy: bool | None) -> Array:
    """An array with elements of the caller's, who may change his own before what is recorded has been computed."""
    evaluator = current_evaluator()
    if copy is False:
        if not is_fixed(value):
            raise GraphError(
                f"{what}: copy=False, but this memory may be written to before what is recorded has been computed: "
                "leave copy out, or make the NumPy array that owns it read-only, owner.setflags(write=False)"
            )
        return made_on(device, given(value, evaluator))
    target = evaluator.buffer(value.shape, kind)
    quiet.run(np.copyto, target, value, "unsafe")
    return made_on(device, given(target, evaluator, counted=True))


def array(obj: Any, /, dtype: _DType = None, *, device: _Device = None, copy: bool | None = True) -> Array:
    """An array of numbers, as `numpy.array`: a copy, unless ``copy`` says otherwise. See `asarray`.

    Example:
        >>> xp.array([[1, 2], [3, 4]], "float32")
        Array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    return asarray(obj, dtype=dtype, device=device, copy=copy)


def _converted(x: Array, dtype: _DType, copy: bool | None, device: _Device) -> Array:
    moved = x if device is None else x.to_device(device)
    if moved is not x:
        if copy is False:
            raise GraphError(f"asarray: copy=False, but the array must be copied from {x.device} to {moved.device}")
        return _converted(moved, dtype, None, None)
    kind = x.dtype if dtype is None else checked_dtype("asarray", dtype)
    if kind != x.dtype:
        if copy is False:
            raise GraphError(f"asarray: copy=False, but {x.dtype} must be converted to {kind}")
        return cast(x, kind)
    found: Array | None = desk.call(np.ndarray.copy, x, is_view=False) if copy else x
    return ew.copy(x) if found is None else found


def _unpacked(values: Sequence[Any]) -> Any:
    if any(type(each) is Record.array_type for each in values):
        return [each.to_numpy() if type(each) is Record.array_type else each for each in values]
    if any(isinstance(each, list | tuple) for each in values):
        return [_unpacked(each) if isinstance(each, list | tuple) else each for each in values]
    return values


def from_numpy(value: npt.ArrayLike) -> Array:
    """An array with a copy of NumPy's elements; waits for room in the session's memory budget.

    Raises:
        OutOfMemoryError: if there is none even after all that was recorded has been computed.
    Example:
        >>> values = np.arange(3)
        >>> x = xp.from_numpy(values)
        >>> values[0] = 100
        >>> print(x)
        [0 1 2]
    """
    return asarray(value)


def from_dlpack(x: Any, /, *, device: _Device = None, copy: bool | None = None) -> Array:
    """An array of another library on the CPU, by DLPack; ``device`` and ``copy`` are as for `asarray`.

    Raises:
        GraphError, DTypeError: if memory cannot be shared as asked, or is not of numbers.
    Example:
        >>> xp.from_dlpack(np.arange(3))
        Array([0, 1, 2], dtype=int64)
    """
    if type(x) is Record.array_type:
        return _converted(x, None, copy, device)
    value = _exchanged(x, "from_dlpack")
    return _entered("from_dlpack", value, checked_dtype("from_dlpack", value.dtype), device, copy)


# -- constants --------------------------------------------------------------------------------------------------


FULL = Primitive("full", lambda value, shape: np.full(shape, value), prompt=True)
_ARANGE = Primitive("arange", lambda *params: np.arange(*params[:-1]), prompt=True)
_LINSPACE = Primitive("linspace", lambda *params: np.linspace(*params[:-1]), prompt=True)
_EYE = Primitive("eye", np.eye, prompt=True)


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return TensorSpec.of(shape, np.int8).shape


def full(
    shape: int | Sequence[int], fill_value: complex | Array, *, dtype: _DType = None, device: _Device = None
) -> Array:
    """As `numpy.full`; ``fill_value`` may be an array without axes, which is computed when it is needed.

    Raises:
        ShapeError, DTypeError: if a length is negative, or the dtype is none of the standard's.
    Example:
        >>> xp.full((2, 2), 7)
        Array([[7, 7],
               [7, 7]], dtype=int64)
    """
    wanted = _shape(shape)
    place = default_place() if device is None else place_of(device)
    if place is not HOST:
        with at(place):  # one number is copied there
            return broadcast_to(full((), fill_value, dtype=dtype, device=HOST), wanted)
    if type(fill_value) is Record.array_type:
        kind = fill_value.dtype if dtype is None else checked_dtype("full", dtype)
        return broadcast_to(cast(fill_value, kind), wanted)
    value = np.asarray(fill_value)
    kind = checked_dtype("full", value.dtype if dtype is None else dtype)
    return record(FULL, (value_of(fill_value, kind),), wanted, kind, (wanted,), current_evaluator())


def zeros(shape: int | Sequence[int], *, dtype: _DType = None, device: _Device = None) -> Array:
    """As `numpy.zeros`; errors are those of `full`.

    Example:
        >>> xp.zeros((2, 3))
        Array([[0., 0., 0.],
               [0., 0., 0.]], dtype=float64)
    """
    return full(shape, 0, dtype=np.float64 if dtype is None else dtype, device=device)


def ones(shape: int | Sequence[int], *, dtype: _DType = None, device: _Device = None) -> Array:
    """As `numpy.ones`; errors are those of `full`.

    Example:
        >>> xp.ones((2, 2), dtype="int32")
        Array([[1, 1],
               [1, 1]], dtype=int32)
    """
    return full(shape, 1, dtype=np.float64 if dtype is None else dtype, device=device)


def empty(shape: int | Sequence[int], *, dtype: _DType = None, device: _Device = None) -> Array:
    """An array of zeros: contents are never undefined here. As `zeros`.

    Example:
        >>> xp.empty(3)
        Array([0., 0., 0.], dtype=float64)
    """
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Array, /, fill_value: complex, *, dtype: _DType = None, device: _Device = None) -> Array:
    """As `numpy.full_like`, on the device of ``x`` unless another one is named.

    Raises:
        DTypeError: if the dtype is none of the standard's.
    Example:
        >>> xp.full_like(xp.asarray([1.0, 2.0]), 7)
        Array([7., 7.], dtype=float64)
    """
    node = node_of("full_like", "x", x)
    kind = node.dtype if dtype is None else checked_dtype("full_like", dtype)
    place = node.place if device is None else place_of(device)
    if place is not HOST:
        return full(node.shape, fill_value, dtype=kind, device=place)
    return record(FULL, (value_of(fill_value, kind),), node.shape, kind, (node.shape,), node.evaluator)


def zeros_like(x: Array, /, *, dtype: _DType = None, device: _Device = None) -> Array:
    """As `numpy.zeros_like`, on the device of ``x`` unless another one is named. Errors: those of `full_like`.

    Example:
        >>> xp.zeros_like(xp.asarray([1, 2, 3]))
        Array([0, 0, 0], dtype=int64)
    """
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: _DType = None, device: _Device = None) -> Array:
    """As `numpy.ones_like`, on the device of ``x`` unless another one is named. Errors: those of `full_like`.

    Example:
        >>> xp.ones_like(xp.asarray([[1, 2], [3, 4]]))
        Array([[1, 1],
               [1, 1]], dtype=int64)
    """
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: _DType = None, device: _Device = None) -> Array:
    """An array of zeros, as `zeros_like`: contents are never undefined here.

    Example:
        >>> xp.empty_like(xp.asarray([1, 2, 3]))
        Array([0, 0, 0], dtype=int64)
    """
    return full_like(x, 0, dtype=dtype, device=device)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: _DType = None, device: _Device = None
) -> Array:
    """As `numpy.arange`: numbers from ``start`` on, ``step`` apart, before ``stop``; one argument alone is ``stop``.

    Raises:
        ShapeError: if ``step`` is 0.
    Example:
        >>> print(xp.arange(4), xp.arange(1, 2, 0.25))
        [0 1 2 3] [1.   1.25 1.5  1.75]
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ShapeError("arange: step must not be 0")
    whole = all(isinstance(each, int | np.integer) for each in (start, stop, step))
    kind = checked_dtype("arange", dtype if dtype is not None else np.int64 if whole else np.float64)
    count = max(0, math.ceil((stop - start) / step))  # as NumPy, which divides large integers as floats, too
    # Zeros of both signs are equal, and what is made of equal parameters is made once.
    params = (start, stop, step, kind, math.copysign(1.0, start))
    return made_on(device, record(_ARANGE, (), (count,), kind, params, current_evaluator()))


def linspace(
    start: complex, stop: complex, /, num: int, *, dtype: _DType = None, device: _Device = None, endpoint: bool = True
) -> Array:
    """As `numpy.linspace`: ``num`` numbers, which must be given, at equal distances from ``start`` to ``stop``.

    Raises:
        ShapeError, DTypeError: if ``num`` is negative, or the dtype is none of the standard's.
    Example:
        >>> xp.linspace(0, 1, 5)
        Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float64)
    """
    if num < 0:
        raise ShapeError(f"linspace: num must not be negative, got {num}")
    kind = checked_dtype("linspace", np.result_type(np.float64, start, stop) if dtype is None else dtype)
    params = (start, stop, int(num), bool(endpoint), False, kind, repr((start, stop)))  # for zeros, as in `arange`
    return made_on(device, record(_LINSPACE, (), (int(num),), kind, params, current_evaluator()))


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: _DType = None, device: _Device = None
) -> Array:
    """As `numpy.eye`.

    Raises:
        ShapeError, DTypeError: if a number is negative, or the dtype is none of the standard's.
    Example:
        >>> xp.eye(2, 3, k=1)
        Array([[0., 1., 0.],
               [0., 0., 1.]], dtype=float64)
    """
    kind = checked_dtype("eye", np.float64 if dtype is None else dtype)
    shape = _shape((n_rows, n_rows if n_cols is None else n_cols))
    return made_on(device, record(_EYE, (), shape, kind, (*shape, int(k), kind), current_evaluator()))


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """As `numpy.meshgrid`, a list of arrays.

    Raises:
        ShapeError, DTypeError: if one is not a vector, or the dtypes differ.
    Gradient: the sum of g over what was repeated.
    Example:
        >>> x, y = xp.meshgrid(xp.asarray([1, 2, 3]), xp.asarray([10, 20]))
        >>> x + y
        Array([[11, 12, 13],
               [21, 22, 23]], dtype=int64)
    """
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    nodes = [node_of("meshgrid", "each argument", x) for x in arrays]
    wrong = [node.shape for node in nodes if len(node.shape) > 1]
    if wrong:
        raise ShapeError(f"meshgrid: expected vectors, got shape {wrong[0]}")
    if len({node.dtype for node in nodes}) > 1:
        raise DTypeError(f"meshgrid: arrays must have one dtype, got {', '.join(str(node.dtype) for node in nodes)}")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    lengths = [node.size for node in nodes]
    shape = [lengths[i] for i in order]
    return [
        broadcast_to(reshape(x, [lengths[i] if axis == order.index(i) else 1 for axis in range(len(order))]), shape)
        for i, x in enumerate(arrays)
    ]


# -- random numbers ---------------------------------------------------------------------------------------------


def _normal(key: Value, shape: tuple[int, ...], mean: float, std: float) -> Value:
    return np.random.default_rng(key).standard_normal(shape, np.float32) * np.float32(std) + np.float32(mean)


def _bernoulli(key: Value, shape: tuple[int, ...], probability: float) -> Value:
    return (np.random.default_rng(key).random(shape, np.float32) < probability).astype(np.float32)


class Unseeded(Primitive):
    """Random numbers that differ each time: a function whose recipe is kept draws others in each call, too."""

    def __init__(self, name: str, compute: Callable[..., Any]) -> None:
        super().__init__(name, compute, pure=False)

    def again(self, inputs: Any, params: Any) -> tuple[Any, Any]:
        return (_key(None),), params


RANDN, _SEEDED_RANDN = Unseeded("randn", _normal), Primitive("randn", _normal)
RANDB, _SEEDED_RANDB = Unseeded("randb", _bernoulli), Primitive("randb", _bernoulli)


def _key(seed: int | None) -> Value:
    """The key of a random stream: drawn when it is recorded, so that the order of computation does not matter."""
    if seed is None and simulation.loop is not None:
        seed = random.getrandbits(64)  # which follows from the seed of the simulation
    return np.random.SeedSequence(seed).generate_state(4, np.uint64)


def _drawn(op: Primitive, shape: int | Sequence[int], seed: int | None, *params: float) -> Array:
    wanted = _shape(shape)
    own = (wanted, *params)
    return made_on(None, record(op, (_key(seed),), wanted, np.dtype(np.float32), own, current_evaluator()))


def randn(shape: int | Sequence[int], mean: float = 0.0, std: float = 1.0, *, seed: int | None = None) -> Array:
    """float32 numbers of a normal distribution; the same ``seed`` gives the same numbers, None gives others each time.

    Raises:
        GraphError: if ``std`` is negative.
    Example:
        >>> x = xp.randn((200, 100), seed=1)
        >>> print(x.shape, x.dtype, bool(xp.all(x == xp.randn((200, 100), seed=1))))
        (200, 100) float32 True
    """
    if not std >= 0:
        raise GraphError(f"randn: std must not be negative, got {std}")
    return _drawn(RANDN if seed is None else _SEEDED_RANDN, shape, seed, float(mean), float(std))


def randb(shape: int | Sequence[int], probability: float, *, seed: int | None = None) -> Array:
    """float32 ones with a probability, and zeros; ``seed`` is as for `randn`.

    Raises:
        ShapeError: if the probability is not from 0 to 1.
    Example:
        >>> mask = xp.randb(1000, 0.25, seed=1)
        >>> print(mask.dtype, 0.2 < float(xp.mean(mask)) < 0.3)
        float32 True
    """
    if not 0 <= probability <= 1:
        raise ShapeError(f"randb: probability must be from 0 to 1, got {probability}")
    return _drawn(RANDB if seed is None else _SEEDED_RANDB, shape, seed, float(probability))
