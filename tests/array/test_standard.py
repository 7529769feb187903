"""Every function of the standard, against array-api-strict."""

from __future__ import annotations

import inspect
from typing import Any

import array_api_strict as strict
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import actorflow.array as xp
from tests.array.cases import CASES
from tests.array.families import BINARY, COMPLEX, SAME_DTYPE, UNARY, arrays, pairs

#: Each function is tried so often in CI; a thousand times with all tests.
EACH = settings(
    max_examples=max(6, settings.default.max_examples // 20 if settings.default.max_examples < 1_000 else 1_000)
)


def check(values: list[np.ndarray], function: Any) -> None:
    with np.errstate(all="ignore"):
        expected = function(strict, *[strict.asarray(value) for value in values])
    found = function(xp, *[xp.asarray(value) for value in values])
    for mine, its in zip(*[each if isinstance(each, tuple) else (each,) for each in (found, expected)], strict=True):
        reference = np.asarray(its)
        assert isinstance(mine, xp.Array)
        assert mine.shape == reference.shape
        assert mine.dtype == reference.dtype
        value = mine.to_numpy()
        assert (value.shape, value.dtype) == (mine.shape, mine.dtype)
        if reference.dtype.kind in "fc":
            eps = np.finfo(reference.dtype).eps
            np.testing.assert_allclose(value, reference, rtol=200 * eps, atol=200 * eps)
        else:
            np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    @EACH
    @given(arrays(UNARY[name]).filter(lambda x: name != "sign" or x.dtype.kind != "c" or not np.isinf(x).any()))
    def agrees(x: np.ndarray) -> None:
        check([x], lambda xp, x: getattr(xp, name)(x))

    with np.errstate(all="ignore"):
        agrees()


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    @EACH
    @given(pairs(BINARY[name], mixed=name not in SAME_DTYPE))
    def agrees(values: list[np.ndarray]) -> None:
        check(values, lambda xp, a, b: getattr(xp, name)(a, b))

    agrees()


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    @EACH
    @given(st.composite(lambda draw: CASES[name](draw))())
    def agrees(call: Any) -> None:
        check(*call)

    agrees()


@pytest.mark.parametrize("module", ["", "linalg", "fft"])
def test_nothing_is_missing(module: str) -> None:
    its = getattr(strict, module) if module else strict
    mine = getattr(xp, module) if module else xp
    extras = {"ArrayAPIStrictFlags", "Device", "set_array_api_strict_flags", "get_array_api_strict_flags"}
    extras |= {"reset_array_api_strict_flags", "broadcast_shapes", "isin"}  # the last two are newer than 2024.12
    names = {name for name in its.__all__ if not name.startswith("_") and not name.endswith("Flags")}
    assert names - extras - set(dir(mine)) == set()


def test_every_function_is_tried() -> None:
    tried = {*UNARY, *BINARY, *CASES}
    elsewhere = {"asarray", "from_dlpack", "empty", "empty_like", "ones", "zeros", "ones_like", "zeros_like"}
    covered = {"squeeze", "tril", "triu", "trace", "trunc", "fftfreq", "rfftfreq", "fftshift", "ifftshift"}
    typed = {"can_cast", "finfo", "iinfo", "isdtype", "result_type"}
    mine = {
        "randn",
        "randb",
        "from_numpy",
        "grad",
        "nn",
        "trace",
        "value_and_grad",
        "session",
        "current",
        "wait_for_all",
        "Array",
        "Session",
        "linalg",
        "fft",
    }
    names = {*xp.__all__, *xp.linalg.__all__, *xp.fft.__all__} - {*xp.__array_namespace_info__().dtypes()}
    constants = {"e", "inf", "nan", "newaxis", "pi", "API_VERSIONS"}
    left = {name for name in names if not name.startswith("_")} - tried - elsewhere - covered - typed - mine - constants
    assert left == set()


def test_complex_is_covered() -> None:
    assert set(COMPLEX) <= set(UNARY["exp"])


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
