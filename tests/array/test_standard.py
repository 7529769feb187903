"""Every function of the standard, against array-api-strict."""

import inspect
import operator
from functools import cache
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import actorflow as af
import actorflow.array as xp
from tests.operations import ROWS, Row, Sample, drawn
from tests.operations.functions.draws import ALL, COMPLEX, FLOATS, INTEGERS, Draws
from tests.support.effort import FULL

strict = pytest.importorskip("array_api_strict")

#: How many samples of each function are tried. On an accelerator each call is a graph of its own.
PLACES = {"cpu": 1_000 if FULL else 5, "sim:0": 125 if FULL else 1}
FUNCTIONS = drawn("standard")
EACH = settings(max_examples=1_000 if FULL else 6)


def check(sample: Sample, row: Row, place: str) -> None:
    arrays, parameters = sample.drawn(), sample.parameters
    with np.errstate(all="ignore"):
        expected = row.of_standard(strict, *map(strict.asarray, arrays), **parameters)
    with xp.at(place):
        found = row.of_standard(xp, *map(xp.asarray, arrays), **parameters)
    compare(found, expected, place)


def compare(found: Any, expected: Any, place: str) -> None:
    for mine, its in zip(*[each if isinstance(each, tuple) else (each,) for each in (found, expected)], strict=True):
        reference = np.asarray(its)
        assert isinstance(mine, xp.Array)
        assert str(mine.device) == place
        assert mine.shape == reference.shape
        assert mine.dtype == reference.dtype
        value = mine.to_numpy()
        assert (value.shape, value.dtype) == (mine.shape, mine.dtype)
        if reference.dtype.kind in "fc":
            eps = np.finfo(reference.dtype).eps
            np.testing.assert_allclose(value, reference, rtol=200 * eps, atol=200 * eps)
        else:
            np.testing.assert_array_equal(value, reference)


def differs(name: str, values: list[np.ndarray]) -> bool:
    """Return whether NumPy, and array-api-strict with it, differs from the standard, or there is not one result.

    What is wanted is in ``test_special_values.py``.
    """
    infinite = any(not np.isfinite(value).all() for value in values if value.dtype.kind in "fc")
    if name in ("sign", "tanh") and values[0].dtype.kind == "c":
        # array-api-strict divides by the magnitude, which may be subnormal, or overflow.
        magnitude = np.abs(values[0][values[0] != 0])
        usual = np.isfinite(magnitude) & (magnitude >= np.finfo(magnitude.dtype).smallest_normal)
        return infinite or (name == "sign" and not usual.all())
    if name == "expm1":
        return values[0].dtype.kind == "c" and (infinite or bool((~np.isfinite(np.exp(values[0]))).any()))
    return name == "floor_divide" and infinite


@pytest.mark.together("place", PLACES, at_once=30)
@pytest.mark.together("row", FUNCTIONS, ids=str)
def test_values(row: Row, place: str) -> None:
    for number in np.random.default_rng(0).integers(0, 1 << 40, PLACES[place]).tolist():
        sample = row.drawn(number)
        if differs(row.name.removeprefix("array."), sample.drawn()):
            continue
        try:
            check(sample, row, place)
        except Exception as error:
            error.add_note(f"sample {number} of {row}: {sample.drawn()} {sample.parameters}")
            raise


#: Rows of operations whose real numbers the standard leaves out.
ONLY_COMPLEX = ("Imag", "Fft", "Ifft", "Irfft")
OPERATIONS = [row for row in ROWS.values() if row.kind is not None and row.standard is not None]


@pytest.mark.together("row", OPERATIONS, ids=str)
def test_operations(row: Row) -> None:
    for sample in row.samples:
        names = [name for name in sample.dtypes(row) if name in (COMPLEX if row.name in ONLY_COMPLEX else ALL)]
        if "float16" not in map(str, sample.parameters.values()):
            for name in names if FULL else names[:3]:
                arrays = sample.inputs(name)
                with np.errstate(all="ignore"):
                    expected = row.of_standard(strict, *map(strict.asarray, arrays), **sample.parameters)
                compare(sample.apply(*map(xp.asarray, arrays)), expected, "cpu")


@pytest.mark.parametrize("module", ["", "linalg", "fft"])
def test_nothing_is_missing(module: str) -> None:
    its = getattr(strict, module) if module else strict
    mine = getattr(xp, module) if module else xp
    extras = {"ArrayAPIStrictFlags", "Device", "set_array_api_strict_flags", "get_array_api_strict_flags"}
    extras |= {"reset_array_api_strict_flags"}
    names = {name for name in its.__all__ if not name.startswith("_") and not name.endswith("Flags")}
    assert names - extras - set(dir(mine)) == set()


class Watched:
    """A namespace that notes which of its functions are called, and with which keywords."""

    def __init__(self, namespace: Any, used: dict[str, set[str]], prefix: str = "") -> None:
        self._namespace, self._used, self._prefix = namespace, used, prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if inspect.ismodule(found):
            return Watched(found, self._used, f"{name}.")
        if not inspect.isfunction(found):
            return found

        def noted(*arguments: Any, **keywords: Any) -> Any:
            self._used.setdefault(f"{self._prefix}{name}", set()).update(keywords)
            return found(*arguments, **keywords)

        return noted


@cache
def used() -> dict[str, set[str]]:
    """The functions that samples call, each with the keywords."""
    names: dict[str, set[str]] = {}
    watched = Watched(xp, names)
    for row in FUNCTIONS:
        sample = row.drawn(0)
        row.of_standard(watched, *map(xp.asarray, sample.drawn()), **sample.parameters)
    return names


def test_every_keyword_is_tried() -> None:
    missing = set()
    for module, prefix in ((xp, ""), (xp.linalg, "linalg."), (xp.fft, "fft.")):
        for name in module.__all__:
            function = getattr(module, name)
            if not inspect.isfunction(function) or f"{prefix}{name}" not in used():
                continue
            parameters = inspect.signature(function).parameters.values()
            keywords = {p.name for p in parameters if p.kind != p.POSITIONAL_ONLY and p.default is not p.empty}
            keywords -= {"name"}  # of an op
            missing |= {f"{prefix}{name}({each}=)" for each in keywords - used()[f"{prefix}{name}"]}
    # Where arrays live is tried elsewhere, as is what array-api-strict does not have; names are for ops.
    elsewhere = ("(device=)", "(name=)", "(transpose_a=)", "(transpose_b=)")
    assert {each for each in missing if not each.endswith(elsewhere)} == {"isin(invert=)"}


def test_every_function_is_tried() -> None:
    tried = {name.rsplit(".")[-1] for name in used()}
    elsewhere = {"from_dlpack", "broadcast_shapes"}
    typed = {"can_cast", "finfo", "iinfo", "isdtype", "result_type"}
    mine = {"Array", "Session", "at", "current", "erf", "fft", "fmod", "from_numpy", "grad", "linalg", "nn", "randb"}
    mine |= {"array", "randn", "session", "trace", "trunc_divide", "value_and_grad", "wait_for_all"}
    names = {*xp.__all__, *xp.linalg.__all__, *xp.fft.__all__} - {*xp.__array_namespace_info__().dtypes()}
    constants = {"e", "inf", "nan", "newaxis", "pi", "API_VERSIONS"}
    left = {name for name in names if not name.startswith("_")} - tried - elsewhere - typed - mine - constants
    assert left == set()


@pytest.mark.parametrize("module", ["", "linalg", "fft"])
def test_signatures_are_those_of_the_standard(module: str) -> None:
    its = getattr(strict, module) if module else strict
    mine = getattr(xp, module) if module else xp
    for name in its.__all__:
        function = getattr(mine, name, None)
        if not inspect.isfunction(getattr(its, name)) or function is None:
            continue
        expected = inspect.signature(getattr(its, name)).parameters
        found = inspect.signature(function).parameters
        # Some parameters have other names there, where they can only be given by position.
        by_name = {p.name for p in expected.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        assert by_name <= set(found), name
        for parameter in expected.values():
            if parameter.name in by_name and parameter.default is not parameter.empty:
                assert found[parameter.name].default is not parameter.empty, (name, parameter.name)


def test_arrays_have_what_the_standard_says() -> None:
    kind = type(strict.asarray(1))
    names = {name for name in dir(kind) if name.startswith("__") and callable(getattr(kind, name))}
    names |= {"T", "mT", "device", "dtype", "ndim", "shape", "size", "to_device"}
    assert names - {"__buffer__"} - set(dir(xp.Array)) == set()


def test_creation_takes_what_numpy_takes() -> None:
    assert xp.asarray([[1, 2], [3, 4]], dtype=xp.float32).dtype == xp.float32
    assert xp.asarray([xp.asarray(1.0), 2.0]).to_numpy().tolist() == [1.0, 2.0]
    assert xp.asarray(3).shape == ()
    assert xp.arange(np.int64(3)).dtype == xp.int64
    x = xp.asarray([1.0])
    assert xp.asarray(x) is x
    assert xp.asarray(x, copy=True) is not x
    with pytest.raises(OverflowError):
        xp.asarray([300], dtype=xp.uint8)
    with pytest.raises(ValueError, match="imaginary"):
        xp.asarray(np.array([1j]), dtype=xp.float64)
    with pytest.raises(ValueError, match="copy=False"):
        xp.asarray([1.0], copy=False)


def test_types() -> None:
    assert xp.result_type(xp.int8, xp.asarray([1], dtype=xp.uint8), 3) == xp.int16
    assert xp.can_cast(xp.int8, xp.int16)
    assert not xp.can_cast(xp.asarray([1.0]), xp.float32)
    assert xp.isdtype(xp.float32, ("integral", "real floating"))
    assert not xp.isdtype(xp.bool, "numeric")
    assert xp.isdtype(xp.int8, xp.int8)
    assert (xp.finfo(xp.complex64).bits, xp.finfo(xp.float64).eps) == (32, np.finfo(np.float64).eps)
    assert (xp.iinfo(xp.int8).min, xp.iinfo(xp.asarray([1])).bits) == (-128, 64)
    info = xp.__array_namespace_info__()
    assert set(info.dtypes(kind="bool")) == {"bool"}
    assert len(info.dtypes()) == 13
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] == xp.float64
    assert info.capabilities()["max dimensions"] == 64


def test_what_is_newer_than_the_version_that_it_names() -> None:
    assert xp.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    assert xp.broadcast_shapes() == ()
    with pytest.raises(ValueError, match="do not broadcast"):
        xp.broadcast_shapes((2,), (3,))
    x = xp.asarray([1.0, xp.nan, 3.0])
    assert xp.isin(x, xp.asarray([xp.nan, 3.0]), invert=True).to_numpy().tolist() == [True, True, False]
    with pytest.raises(TypeError, match=r"(?i)isin"):
        xp.isin(1, 2)
    for version in xp.API_VERSIONS:
        assert x.__array_namespace__(api_version=version) is xp
    with pytest.raises(ValueError, match="api_version"):
        x.__array_namespace__(api_version="2020.12")


def test_errors_are_those_that_array_code_expects() -> None:
    x = xp.zeros((2, 3))
    for wrong in (
        lambda: xp.expand_dims(x, axis=4),
        lambda: xp.sum(x, axis=2),
        lambda: xp.flip(x, axis=(-3,)),
        lambda: xp.linalg.vector_norm(x, axis=5),
        lambda: xp.fft.fft(x, axis=2),
    ):
        with pytest.raises(IndexError):
            wrong()
        with pytest.raises(ValueError, match=r"out of bounds|axis must be from"):
            wrong()
    for wrong in (
        lambda: xp.bitwise_and(x, x),
        lambda: xp.sum([1.0]),
        lambda: x & x,
        lambda: xp.where(x, x, x),
        lambda: xp.linalg.inv(xp.zeros((2, 2), dtype=xp.int8)),
        lambda: xp.astype(xp.zeros(2, dtype=xp.complex64), xp.float32),
        lambda: operator.index(xp.asarray(1.0)),
        lambda: float(xp.asarray(1j)),
        lambda: x + "1",
        lambda: hash(x),
    ):
        with pytest.raises(TypeError):
            wrong()
    for wrong in (lambda: xp.asarray([1], dtype=xp.int8) + 1000, lambda: xp.full((), -1, dtype=xp.uint8)):
        with pytest.raises(OverflowError):
            wrong()


def test_numbers_beyond_a_dtype_are_infinite_without_a_warning() -> None:
    x = xp.asarray([1.0, 2.0], dtype=xp.float32)
    assert (x * 1e300).to_numpy().tolist() == [np.inf, np.inf]
    assert xp.clip(x, -1e300, 1e300).to_numpy().tolist() == [1.0, 2.0]
    assert xp.full(2, -1e300, dtype=xp.float32).to_numpy().tolist() == [-np.inf, -np.inf]
    assert xp.asarray([1e300], dtype=xp.complex64).to_numpy().tolist() == [np.inf]
    x[0] = 1e300
    x[1] = np.asarray(-1e300)
    assert x.to_numpy().tolist() == [np.inf, -np.inf]
    assert xp.asarray(np.asarray([1e300]), dtype=xp.float32).to_numpy().tolist() == [np.inf]


def test_integers_within_bounds_that_are_fractions_are_as_in_numpy() -> None:
    n = np.arange(5)
    for low, high in ((0.5, 2.5), (None, 2.5), (0.5, None), (np.array([0.5]), 3), (1, 3)):
        found = xp.clip(xp.asarray(n), *[xp.asarray(b) if isinstance(b, np.ndarray) else b for b in (low, high)])
        np.testing.assert_array_equal(found.to_numpy(), np.clip(n, low, high), strict=True)
    with pytest.raises(af.DTypeError):
        af.ops.clip(af.Graph("clip").blob("x", 5, "int64"), 0.5, 2.5)


@given(st.data(), st.integers(0, 1 << 40))
@EACH
def test_parts_are_those_of_numpy(data: st.DataObject, number: int) -> None:
    x = Draws(number).array(dims=(1, 3), least=1)
    whole = data.draw(hnp.integer_array_indices(x.shape, result_shape=hnp.array_shapes(max_dims=2, max_side=3)))
    basic = data.draw(hnp.basic_indices(x.shape, allow_newaxis=True))
    mask = data.draw(hnp.arrays(bool, x.shape[: data.draw(st.integers(1, x.ndim))]))
    for key in (whole, basic, mask, (mask,), (..., whole[-1])):
        mine = tuple(xp.asarray(p) if isinstance(p, np.ndarray) else p for p in key) if type(key) is tuple else key
        mine = xp.asarray(mine) if isinstance(mine, np.ndarray) else mine
        y, z = xp.asarray(x), x.copy()
        np.testing.assert_array_equal(y[mine].to_numpy(), z[key], strict=True)
        y[mine], z[key] = 1, 1
        np.testing.assert_array_equal(y.to_numpy(), z, strict=True)


def test_ends_of_slices_can_be_arrays() -> None:
    x = xp.arange(6)
    one, four = xp.asarray(1), xp.asarray(3) + 1
    assert x[one:four].to_numpy().tolist() == [1, 2, 3]
    assert x[: xp.asarray([4])[0] : xp.asarray(2)].to_numpy().tolist() == [0, 2]
    assert x[np.int64(1) : np.int64(3)].to_numpy().tolist() == [1, 2]
    x[one : xp.asarray(2)] = 7
    assert x.to_numpy().tolist() == [0, 7, 2, 3, 4, 5]
    assert xp.reshape(x, (2, 3))[one, xp.asarray(0)].to_numpy() == 3


@pytest.mark.together("name", ["add", "multiply", "floor_divide", "less", "maximum"], at_once=40)
@pytest.mark.together("number", range(200 if FULL else 4))
def test_numbers_that_are_there_are_computed_at_once(number: int, name: str) -> None:
    """And give what they would if they were recorded."""
    x = Draws(number).array((*FLOATS, *INTEGERS), ())
    with np.errstate(all="ignore"), xp.session(run_ahead=False) as session:
        there = xp.asarray(x)
        later = xp.asarray(x.reshape(1))[...]
        function = getattr(xp, name)
        for other in (there, 1):
            before = session.computed
            at_once, lazily = function(there, other), function(xp.reshape(later, ()), other)
            assert session.computed == before
            assert at_once.dtype == lazily.dtype
            np.testing.assert_array_equal(at_once.to_numpy(), lazily.to_numpy(), strict=True)


def test_an_element_of_a_computed_array_is_read_at_once() -> None:
    with xp.session(run_ahead=False) as session:
        x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
        y = (x * 2).wait()
        assert session.computed == 1
        element = y[-1, 0]
        assert element.to_numpy() == 6.0
        assert session.computed == 1
        y[1, 0] = 7.0
        assert element.to_numpy() == 6.0
        with pytest.raises(IndexError, match="out of bounds"):
            y[2, 0]
    with xp.session(sequential=True) as session:
        assert (xp.asarray(1.0) + xp.asarray(2.0)).to_numpy() == 3.0
        assert session.computed == 1


def test_integers_to_negative_powers_fail_where_they_are_asked_for() -> None:
    power = xp.asarray(2) ** xp.asarray(-1)
    with pytest.raises(af.OpError, match="negative integer powers"):
        int(power)


def test_dlpack_without_a_copy() -> None:
    x = xp.asarray([1.0, 2.0])
    for options in ({}, {"copy": False}, {"copy": True}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}):
        assert x.__dlpack__(**options) is not None
        assert x.__dlpack__(**{"max_version": (0, 8), **options}) is not None
    shared = np.from_dlpack(x, copy=False)
    assert np.shares_memory(shared, x.to_numpy())
    assert not np.shares_memory(np.from_dlpack(x, copy=True), x.to_numpy())
    y = xp.from_dlpack(np.asarray([3, 4]), copy=True, device=x.device)
    assert y.to_numpy().tolist() == [3, 4]


def test_several_arrays_come_in_the_containers_of_the_standard() -> None:
    x = xp.asarray([1.0, 2.0])
    matrix = xp.asarray([[2.0, 0.0], [0.0, 3.0]])
    for found, kind in [
        (xp.meshgrid(x, x), list),  # a tuple from 2025.12 on
        (xp.broadcast_arrays(x, xp.asarray(1.0)), list),  # likewise
        (xp.unstack(x), tuple),
        (xp.nonzero(matrix), tuple),
        (xp.unique_counts(x), tuple),
        (xp.linalg.qr(matrix), tuple),
        (xp.linalg.slogdet(matrix), tuple),
    ]:
        assert isinstance(found, kind)
        assert len(found) == 2
    assert xp.__array_api_version__ == "2024.12"
    assert xp.meshgrid() == xp.broadcast_arrays() == []
