"""Arrays of other libraries: fed, fetched and copied to the host."""

import array as stdlib
import os
import sys
from collections import deque
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import actorflow as af
import actorflow.array as xp
from actorflow.interchange import as_array, from_host_exchange, to_numpy

array_api_strict = pytest.importorskip("array_api_strict")
ml_dtypes = pytest.importorskip("ml_dtypes")

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None and not os.environ.get("CI"), reason="torch is not installed: make test WITH=torch"
)


@pytest.fixture
def torch() -> ModuleType:
    """Torch; with CI set, a missing one fails here."""
    import torch

    return torch


class Exporter:
    """An array of a library that nobody knows, which speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OldExporter(Exporter):
    """From before DLPack had versions and flags."""

    def __dlpack__(self, stream: None = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(stream=stream)


class Remote(Exporter):
    """In the memory of an accelerator."""

    kind = 2

    def __dlpack__(self, *, dl_device: Any = None, **options: Any) -> Any:
        raise BufferError("this memory cannot be mapped")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 1


class RemoteCupy(Remote):
    """As CuPy's arrays: `get` copies, `__array__` refuses."""

    shape = dtype = None

    def get(self) -> np.ndarray:
        return self.array.copy()

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")


class RemoteJax(Remote):
    """As jax's arrays: `__array__` copies."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array.copy()


class RemoteMapped(Remote):
    """An exporter that can be asked for a copy on the host."""

    def __dlpack__(self, *, dl_device: Any = None, **options: Any) -> Any:
        assert dl_device == (1, 0)
        return self.array.copy().__dlpack__(max_version=options["max_version"])


class Simulated:
    """As `SimArray`: no protocol works, only `get`."""

    place = "sim:0"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape_, self.dtype_ = array.shape, array.dtype

    shape = property(lambda self: self.shape_)
    dtype = property(lambda self: self.dtype_)
    ndim = property(lambda self: len(self.shape_))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("in the memory of sim:0")

    def get(self) -> np.ndarray:
        return self.array.copy()


class Holder:
    """Speaks one protocol of NumPy's."""

    def __init__(self, array: np.ndarray, protocol: str) -> None:
        self.__dict__["array"] = array
        self.protocol = protocol

    def __getattr__(self, name: str) -> Any:
        if name != self.__dict__.get("protocol"):
            raise AttributeError(name)
        return getattr(self.array, name)


def shares(found: np.ndarray, array: np.ndarray) -> bool:
    return found.ctypes.data == array.ctypes.data and found.strides == array.strides and found.dtype == array.dtype


SHARED = arrays.arrays(
    st.sampled_from(["float32", "float64", "float16", "int8", "uint16", "int64", "bool", "complex64"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


class TestToNumpy:
    def test_numpys_own_arrays_are_given_back(self) -> None:
        array = np.arange(6.0)
        assert to_numpy(array) is array
        scalar = to_numpy(np.float32(1.5))
        assert (type(scalar), scalar.dtype, scalar.shape) == (np.ndarray, np.dtype("f"), ())

    @given(SHARED, st.booleans())
    def test_dlpack_shares_the_memory_of_the_host(self, array: np.ndarray, transpose: bool) -> None:
        array = array.T if transpose else array
        found = to_numpy(Exporter(array))
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
        if array.size:
            assert found.flags.writeable
            assert shares(found, array)

    def test_what_cannot_be_written_to_stays_so(self) -> None:
        array = np.arange(3.0)
        array.flags.writeable = False
        assert shares(to_numpy(Exporter(array)), array)
        assert not to_numpy(Exporter(array)).flags.writeable

    def test_exporters_from_before_versions(self) -> None:
        array = np.arange(3.0)
        assert shares(to_numpy(OldExporter(array)), array)

    def test_the_memory_lives_as_long_as_the_array(self) -> None:
        found = to_numpy(Exporter(np.arange(1000.0)))
        np.testing.assert_array_equal(found, np.arange(1000.0))

    @pytest.mark.parametrize("protocol", ["__array__", "__array_interface__", "__array_struct__"])
    def test_numpys_protocols(self, protocol: str) -> None:
        array = np.arange(4.0)
        if protocol == "__array__":  # looked up on the type
            holder: Any = type("Array", (), {"__array__": lambda self, dtype=None, copy=None: array})()
        else:
            holder = Holder(array, protocol)
        assert shares(to_numpy(holder), array)

    @pytest.mark.parametrize("kind", [RemoteCupy, RemoteJax, RemoteMapped, Simulated])
    def test_a_devices_array_is_copied(self, kind: Any) -> None:
        array = np.arange(4.0)
        found = to_numpy(kind(array))
        np.testing.assert_array_equal(found, array)
        assert not np.shares_memory(found, array)

    def test_a_device_that_forbids_everything(self) -> None:
        with pytest.raises(af.GraphError, match=r"to_numpy: NumPy cannot read the memory of this .*\.Remote: "):
            to_numpy(Remote(np.ones(2)))

    def test_pinned_memory_is_the_hosts(self) -> None:
        array = np.ones(3)

        class Pinned(Exporter):
            def __dlpack_device__(self) -> tuple[int, int]:
                return 3, 0

        assert shares(to_numpy(Pinned(array)), array)

    @pytest.mark.together(
        ("value", "name"), [(1.5, "float"), ([1, 2], "list"), ("text", "str"), (None, "NoneType"), (np.ndarray, "type")]
    )
    def test_what_is_no_array(self, value: Any, name: str) -> None:
        with pytest.raises(af.DTypeError, match=f"(?m)to_numpy: expected an array, got {name}$"):
            to_numpy(value)

    def test_an_array_of_a_strict_library(self) -> None:
        value = array_api_strict.reshape(array_api_strict.arange(6, dtype=array_api_strict.float32), (2, 3))
        found = to_numpy(value)
        np.testing.assert_array_equal(found, np.arange(6, dtype="f").reshape(2, 3))
        assert shares(found, np.from_dlpack(value))

    def test_exporters_whose_dtype_dlpack_lacks(self) -> None:
        array = np.array([1.5, -2.0], ml_dtypes.bfloat16)

        class Both(Exporter):
            def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
                return self.array

        assert to_numpy(Both(array)) is array
        with pytest.raises(af.GraphError, match=r"NumPy cannot read the memory of this .*Exporter: "):
            to_numpy(Exporter(array))


class TestAsArray:
    @given(SHARED)
    def test_an_exporter_is_taken_without_a_copy(self, array: np.ndarray) -> None:
        found = as_array(Exporter(array), af.TensorSpec(array.shape, array.dtype), "it")
        np.testing.assert_array_equal(found, array)
        assert not array.size or shares(found, array)

    def test_its_dtype_is_only_widened(self) -> None:
        assert as_array(Exporter(np.ones(2, "f")), af.TensorSpec.of(2, "float64"), "it").dtype == np.float64
        with pytest.raises(af.DTypeError, match=r"(?m)it: expected dtype float32, got float64$"):
            as_array(Exporter(np.ones(2)), af.TensorSpec.of(2), "it")

    def test_its_shape_is_checked(self) -> None:
        with pytest.raises(af.ShapeError, match=r"it: expected shape \(2,\), got \(3,\)"):
            as_array(Exporter(np.ones(3, "f")), af.TensorSpec.of(2), "it")

    @pytest.mark.parametrize(
        ("value", "where"),
        [
            (Remote(np.ones(2, "f")), r"Remote on cuda:1"),
            (RemoteCupy(np.ones(2, "f")), r"RemoteCupy on cuda:1"),
            (Simulated(np.ones(2, "f")), r"Simulated on sim:0"),
        ],
    )
    def test_what_lies_on_a_device_is_refused(self, value: Any, where: str) -> None:
        message = rf"it: expected an array in the host's memory, got a .*\.{where}; copy it, af\.to_numpy\(value\), or"
        with pytest.raises(af.PlaceError, match=message):
            as_array(value, af.TensorSpec.of(2), "it")

    def test_a_device_that_dlpack_has_no_name_for(self) -> None:
        value = Remote(np.ones(2, "f"))
        value.kind = 99  # type: ignore[misc]
        with pytest.raises(af.PlaceError, match="on DLPack device 99:1;"):
            as_array(value, af.TensorSpec.of(2), "it")

    def test_what_refuses_to_be_an_array(self) -> None:
        class Refuses:
            def __array__(self, *_: Any, **__: Any) -> np.ndarray:
                raise TypeError("never")

        with pytest.raises(af.DTypeError, match=r"it: expected an array, got .*Refuses: never"):
            as_array(Refuses(), af.TensorSpec.of(2), "it")

    @pytest.mark.parametrize("value", [range(2), deque([0, 1]), stdlib.array("f", [0, 1]), memoryview(b"\x00\x01")])
    def test_other_sequences(self, value: Any) -> None:
        np.testing.assert_array_equal(as_array(value, af.TensorSpec.of(2), "it"), [0, 1])


class TestValuesOfAType:
    @pytest.mark.together(
        ("value", "dtype", "expected"),
        [
            ([1, 2], "float32", [1, 2]),
            ([1, 255], "uint8", [1, 255]),
            ([-128, 127], "int8", [-128, 127]),
            ([0, 1], "bool", [False, True]),
            ([True, False], "int64", [1, 0]),
            ([0.1, 2.5], "float32", np.float32([0.1, 2.5])),
            ([0.1, 1e300], "float32", np.float32([0.1, np.inf])),
            ([1, 2], "complex64", [1, 2]),
            (np.float32([1, 2]), "float64", [1, 2]),
            (np.uint8([1, 2]), "int64", [1, 2]),
        ],
    )
    def test_what_fits(self, value: Any, dtype: str, expected: Any) -> None:
        array = as_array(value, af.TensorSpec.of(2, dtype), "it")
        assert array.dtype == dtype
        assert np.array_equal(array, np.asarray(expected, dtype))

    @pytest.mark.together(
        ("value", "dtype", "message"),
        [
            ([1, 256], "uint8", "it: expected dtype uint8, got integers from 1 to 256"),
            ([-1, 3], "uint64", "expected dtype uint64, got integers from -1 to 3"),
            ([1 << 63, 1 << 63], "int64", "got integers from 9223372036854775808 to 9223372036854775808"),
            ([0, 2], "bool", "expected dtype bool, got integers from 0 to 2"),
            ([0, 1 << 64], "int64", "expected dtype int64, got object"),
            ([1.0, 2.0], "int64", "expected dtype int64, got float64$"),
            ([1j, 2.0], "float32", "expected dtype float32, got complex128$"),
            (["a", "b"], "float32", "expected dtype float32, got <U1$"),
            (np.ones(2), "float32", r"got float64; convert it, array\.astype\('float32'\)"),
            (np.ones(2, complex), "float32", "got complex128$"),
            (np.int64([1, 2]), "uint8", r"got int64; convert it, array\.astype\('uint8'\)"),
        ],
    )
    def test_what_does_not(self, value: Any, dtype: str, message: str) -> None:
        with pytest.raises(af.DTypeError, match=f"(?m){message}"):
            as_array(value, af.TensorSpec.of(2, dtype), "it")

    def test_nothing_is_called_so(self) -> None:  # a function without a return, say
        with pytest.raises(af.DTypeError, match=r"(?m)it: expected dtype float32, got None$"):
            as_array(None, af.TensorSpec.of(()), "it")
        with pytest.raises(af.ShapeError, match=r"(?m)it: expected shape \(2,\), got None$"):
            as_array(None, af.TensorSpec.of(2), "it")

    def test_scalars_of_numpy_have_a_dtype_of_their_own(self) -> None:
        spec = af.TensorSpec.of(())
        assert as_array(0.1, spec, "it") == np.float32(0.1)
        with pytest.raises(af.DTypeError, match="expected dtype float32, got float64"):
            as_array(np.float64(0.1), spec, "it")
        assert as_array(np.float64(0.1), spec, "it", narrow=True) == np.float32(0.1)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([1, 2, 3], r"it: expected shape \(2,\), got \(3,\)"),
            (1, r"it: expected shape \(2,\), got \(\)"),
            ([[1], [2, 3]], r"it: expected shape \(2,\); setting an array element with a sequence"),
        ],
    )
    def test_wrong_shapes(self, value: Any, message: str) -> None:
        with pytest.raises(af.ShapeError, match=message):
            as_array(value, af.TensorSpec.of(2), "it")

    @given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=4), st.sampled_from("bhilBHIL?"))
    def test_integers_are_never_changed(self, value: list[int], dtype: str) -> None:
        spec = af.TensorSpec.of(len(value), dtype)
        try:
            array = as_array(value, spec, "it")
        except af.DTypeError:
            assert any(not fits(item, spec.dtype) for item in value)
        else:
            assert [int(item) for item in array] == value


def fits(item: int, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return item in (0, 1)
    info = np.iinfo(dtype)
    return int(info.min) <= item <= int(info.max)


def echo(shape: tuple[int, ...], dtype: Any = "float32") -> tuple[af.Graph, af.Blob, list[np.ndarray]]:
    """A graph that gives back what it is fed, and what its function saw."""
    graph = af.Graph("echo")
    x = graph.blob("x", shape, dtype)
    seen: list[np.ndarray] = []
    graph.function("see", lambda x: seen.append(x) or x, x.spec)(x)
    return graph, x, seen


@needs_torch
class TestTorch:
    def test_tensors_are_fed_without_a_copy_and_come_back_as_the_callers_own(self, torch: ModuleType) -> None:
        graph, x, seen = echo((2, 3))
        fed = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        result = graph.run_sync({x: fed})
        assert seen[0].ctypes.data == fed.data_ptr()
        back = torch.from_dlpack(result["see/out"])
        assert back.data_ptr() != fed.data_ptr()
        assert torch.equal(back, fed)

    def test_results_become_tensors_that_later_frames_leave_alone(self, torch: ModuleType) -> None:
        async def main() -> None:
            graph = af.Graph("g")
            x = graph.blob("x", (1000,))
            y = af.ops.scale(x, 2.0)
            async with graph:
                tensors = []
                for i in range(4):
                    result = await graph.run({x: torch.full((1000,), float(i))})
                    tensors.append(torch.from_dlpack(result[y]))
                    assert tensors[-1].data_ptr() == result[y].ctypes.data
                    del result
            assert [tensor.unique().tolist() for tensor in tensors] == [[0.0], [2.0], [4.0], [6.0]]

        af.run(main())

    @pytest.mark.parametrize("view", ["t()", "[::2]", "expand"])
    def test_tensors_of_any_strides(self, torch: ModuleType, view: str) -> None:
        fed = torch.arange(12.0).reshape(3, 4)
        fed = {"t()": fed.t(), "[::2]": fed[:, ::2], "expand": fed[:, :1].expand(3, 5)}[view]
        graph, x, seen = echo(tuple(fed.shape))
        graph.run_sync({x: fed})
        assert seen[0].ctypes.data == fed.data_ptr()
        np.testing.assert_array_equal(seen[0], fed.numpy())

    def test_a_history_for_gradients_is_left_behind(self, torch: ModuleType) -> None:
        fed = torch.nn.Parameter(torch.ones(3))
        graph, x, seen = echo((3,))
        graph.run_sync({x: fed})
        graph.run_sync({x: fed * 2})
        assert seen[0].ctypes.data == fed.data_ptr() == to_numpy(fed).ctypes.data
        np.testing.assert_array_equal(seen[1], [2, 2, 2])

    def test_pending_conjugation_and_negation_are_computed(self, torch: ModuleType) -> None:
        z = torch.tensor([1 + 2j, 3 - 4j])
        assert z.conj().is_conj()
        assert z.conj().imag.is_neg()
        np.testing.assert_array_equal(to_numpy(z.conj()), [1 - 2j, 3 + 4j])
        np.testing.assert_array_equal(to_numpy(z.conj().imag), [-2, 4])
        np.testing.assert_array_equal(from_host_exchange(z.conj().imag, "it"), [-2, 4])

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_small_floats(self, torch: ModuleType, name: str) -> None:
        fed = torch.tensor([[1.5, -2.0], [0.0, float("inf")]]).t().to(getattr(torch, name))
        found = to_numpy(fed)
        assert found.dtype == getattr(ml_dtypes, name)
        assert found.ctypes.data == fed.data_ptr()
        np.testing.assert_array_equal(found.astype("f"), fed.float().numpy())
        assert to_numpy(fed[0, 0]).shape == ()

    def test_bfloat16_without_ml_dtypes(self, torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(af.DTypeError, match=r"NumPy has no dtype bfloat16; .* pip install ml_dtypes"):
            to_numpy(torch.ones(2, dtype=torch.bfloat16))

    def test_a_dtype_that_nobody_has(self, torch: ModuleType) -> None:
        with pytest.raises(af.DTypeError, match="neither NumPy nor ml_dtypes has a dtype float4_e2m1fn_x2"):
            to_numpy(torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))

    def test_sparse_tensors_are_refused(self, torch: ModuleType) -> None:
        with pytest.raises(af.GraphError, match=r"it: NumPy cannot read the memory of this torch\.Tensor: .*to_dense"):
            as_array(torch.eye(2).to_sparse(), af.TensorSpec.of((2, 2)), "it")

    def test_a_tensor_on_another_device_is_refused(self, torch: ModuleType) -> None:
        graph, x, _ = echo((2,))
        with pytest.raises(af.PlaceError, match=r"feed for blob 'x': expected an array in the host's .* on meta; copy"):
            graph.run_sync({x: torch.ones(2, device="meta")})
        with pytest.raises(af.GraphError, match=r"to_numpy: NumPy cannot read .*no data"):
            to_numpy(torch.ones(2, device="meta"))

    def test_variables_keep_a_copy(self, torch: ModuleType) -> None:
        source = torch.nn.Parameter(torch.ones(2))
        variable = af.Graph("g").variable("w", (2,), init=source)
        variable.value = source
        with torch.no_grad():
            source.fill_(7)
        np.testing.assert_array_equal(variable.value, [1, 1])

    def test_functions_may_return_tensors(self, torch: ModuleType) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (3,))
        made: list[Any] = []
        y = graph.function("double", lambda x: made.append(torch.from_dlpack(x) * 2) or made[0], x.spec)(x)
        result = graph.run_sync({x: [1, 2, 3]})[y]
        np.testing.assert_array_equal(result, [2, 4, 6])
        made[0].zero_()  # which the function has kept
        np.testing.assert_array_equal(result, [2, 4, 6])


def test_a_lazy_array_shares_its_memory_read_only() -> None:
    x = xp.asarray([1.0, 2.0]).wait()
    found = af.to_numpy(x)
    assert np.shares_memory(found, x.to_numpy())
    assert not found.flags.writeable
