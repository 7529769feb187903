"""Tensors go to JSON and bytes and come back, to the bit; what does not fit is refused."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from actorflow.errors import DTypeError
from actorflow.loop import at_once
from actorflow.serve.account import Account, Share
from actorflow.serve.tensors import DATATYPES, Tensor, datatype_of, to_bytes, to_json
from actorflow.spec import TensorSpec
from actorflow.web.http import Refused

MANY = 1 << 30
DTYPES = [name for name in DATATYPES if name != "bfloat16"]


def tensor(dtype: Any, shape: Any = ("n", "m")) -> Tensor:
    return Tensor.of("x", TensorSpec.of(shape, dtype), "model")


def from_json(described: Tensor, data: Any, shape: tuple[int, ...]) -> np.ndarray:
    return at_once(described.of_json(data, shape, Share(Account(MANY))))


def refusal(read: Any) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        read()
    response = caught.value.response
    return response.status, json.loads(b"".join(response.chunks))["error"]


@st.composite
def arrays(draw: st.DrawFn, **elements: Any) -> np.ndarray:
    """Arrays of any dtype and layout."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    array = draw(npst.arrays(dtype, npst.array_shapes(max_dims=3, min_side=0, max_side=70), elements=elements))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    return array[:: draw(st.sampled_from([1, 2, -1]))]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(arrays(), st.integers(0, 20))
def test_bytes_go_there_and_back(array: np.ndarray, offset: int) -> None:
    data = to_bytes(array)
    assert bytes(data) == array.tobytes()
    memory = memoryview(bytearray(bytes(offset) + bytes(data)))[offset:]
    got = tensor(array.dtype, array.shape).of_bytes(memory, array.shape)
    assert same_bits(got, array)
    assert got.flags.aligned


@given(arrays(allow_nan=False, allow_infinity=False))
def test_json_goes_there_and_back(array: np.ndarray) -> None:
    described = tensor(array.dtype, array.shape)
    text = b"".join(at_once(to_json(described, array)))
    for data in (json.loads(text), array.tolist()):
        assert same_bits(from_json(described, data, array.shape), array)


def test_bfloat16() -> None:
    described = tensor(ml_dtypes.bfloat16)
    array = np.array([[1.5, -2.0, 0.0]], ml_dtypes.bfloat16)
    assert described.datatype == "BF16"
    assert json.loads(b"".join(at_once(to_json(described, array)))) == [1.5, -2.0, 0.0]
    assert same_bits(from_json(described, [1.5, -2, 0], (1, 3)), array)
    assert same_bits(described.of_bytes(to_bytes(array), (1, 3)), array)
    assert refusal(lambda: from_json(described, [1e39, 0, 0], (1, 3)))[0] == 400


def test_aligned_bytes_are_not_copied() -> None:
    memory = np.zeros(8, np.float32)
    tensor("float32", ("n",)).of_bytes(memory.view(np.uint8).data, (8,))[3] = 7
    assert memory[3] == 7


@pytest.mark.together("value", [np.nan, np.inf, -np.inf])
@pytest.mark.together("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_json_has_no_nan(value: float, dtype: Any) -> None:
    status, message = refusal(lambda: at_once(to_json(tensor(dtype), np.array([[0, value]], dtype))))
    assert status == 400
    assert "ask for binary data" in message


@pytest.mark.together(
    ("dtype", "data", "message"),
    [
        ("float32", [1e39, 0], "out of the range of FP32"),
        ("float16", [70_000, 0], "out of the range of FP16"),
        ("float64", [float("inf"), 0], "out of the range of FP64"),
        ("float64", [10**400, 0], "out of the range of FP64"),
        ("float64", [True, 0], "expected numbers for FP64"),
        ("float64", ["1", 0], "expected numbers for FP64"),
        ("float64", [None, 0], "expected numbers for FP64"),
        ("float64", [[1], [0]], "expected data flat, or nested as shape"),
        ("float64", [1, [0]], "expected numbers for FP64"),
        ("float64", [{}, 0], "expected numbers for FP64"),
        ("int8", [128, 0], "out of the range of INT8"),
        ("uint8", [-1, 0], "out of the range of UINT8"),
        ("int64", [2**63, 0], "out of the range of INT64"),
        ("uint64", [2**64, 0], "out of the range of UINT64"),
        ("int32", [1.0, 0], "expected integers for INT32"),
        ("int32", [True, 0], "expected integers for INT32"),
        ("bool", [1, 0], "expected true and false for BOOL"),
        ("float32", [1], "expected 2 values for shape [1, 2], got 1"),
        ("float32", [1, 2, 3], "expected 2 values for shape [1, 2], got 3"),
        ("float32", [[1, 2], [3, 4]], "nested as shape [1, 2]"),
        ("float32", [[1], [2]], "nested as shape [1, 2]"),
        ("float32", "12", "expected a list of data"),
        ("float32", {"0": 1}, "expected a list of data"),
    ],
)
def test_values_that_do_not_fit(dtype: str, data: Any, message: str) -> None:
    status, said = refusal(lambda: from_json(tensor(dtype), data, (1, 2)))
    assert status == 400
    assert message in said


def test_integers_keep_all_digits() -> None:
    for dtype, value in (("int64", -(2**63)), ("uint64", 2**64 - 1)):
        (got,) = from_json(tensor(dtype, ("n",)), [value], (1,))
        assert int(got) == value
        assert json.loads(b"".join(at_once(to_json(tensor(dtype, ("n",)), np.array([value], dtype))))) == [value]


@pytest.mark.together("shape", [None, "3", [-1, 3], [1.0, 3], [True, 3], ["1", 3], {"0": 1}, 3])
def test_what_is_no_shape(shape: Any) -> None:
    status, message = refusal(lambda: tensor("float32", ("n", 3)).checked(shape, "FP32", MANY))
    assert status == 400
    assert "a list of lengths" in message


@pytest.mark.parametrize("shape", [[], [3], [1, 4], [1, 3, 1]])
def test_shapes_that_do_not_fit(shape: list[int]) -> None:
    status, message = refusal(lambda: tensor("float32", ("n", 3)).checked(shape, "FP32", MANY))
    assert (status, message) == (400, f"input 'x': expected shape [-1, 3], got {shape}")


@pytest.mark.parametrize("shape", [[1 << 40, 1], [1 << 62, 1 << 62], [0, 1 << 62], [10**100, 10**100]])
def test_shapes_that_are_huge(shape: list[int]) -> None:
    status, message = refusal(lambda: tensor("float32").checked(shape, "FP32", MANY))
    assert status == 413
    assert "has more than 1,073,741,824 bytes" in message


@pytest.mark.together("datatype", ["BYTES", "FP64", "fp32", "", None, 32, [], "FP32 "])
def test_other_datatypes(datatype: Any) -> None:
    status, message = refusal(lambda: tensor("float32").checked([1, 1], datatype, MANY))
    assert (status, message) == (400, f"input 'x': expected datatype FP32, got {datatype!r}")


def test_bytes_that_do_not_fit() -> None:
    floats, flags = tensor("float32"), tensor("bool", ("n",))
    message = "input 'x': expected 8 bytes of binary data for shape [1, 2], got 7"
    assert refusal(lambda: floats.of_bytes(memoryview(bytes(7)), (1, 2))) == (400, message)
    assert refusal(lambda: flags.of_bytes(memoryview(b"\x01\x02"), (2,)))[0] == 400
    assert flags.of_bytes(memoryview(b"\x01\x00"), (2,)).tolist() == [True, False]


@pytest.mark.together("dtype", ["complex64", "U3", ">f4", "datetime64[s]"])
def test_dtypes_that_the_protocol_lacks(dtype: Any) -> None:
    with pytest.raises(DTypeError, match=r"model 'model': 'x' .* cannot be served: expected a dtype of"):
        tensor(dtype, ())


@pytest.mark.parametrize("value", [[np.ones(2)], np.ones(2, "complex64")])
def test_objects_that_the_protocol_has_no_name_for(value: Any) -> None:
    with pytest.raises(DTypeError, match=r"output 'x': (a list|complex64) cannot be served"):
        datatype_of(tensor(object, ()), value)
