"""Arrays of a simulated device: what they tell, and that nothing reads them by mistake."""

import copy
import gc
import math
import operator
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.sim import SimArray

MISTAKES: dict[str, Callable[[Any], Any]] = {
    "asarray": np.asarray,
    "array": np.array,
    "array of objects": lambda x: np.array(x, dtype=object),
    "array in a list": lambda x: np.array([x, x]),
    "asanyarray": np.asanyarray,
    "ascontiguousarray": np.ascontiguousarray,
    "fromiter": lambda x: np.fromiter(x, "f"),
    "ufunc": np.negative,
    "ufunc, second argument": lambda x: np.add(np.ones(6), x),
    "ufunc, out": lambda x: np.negative(np.ones(6, "f"), out=x),
    "ufunc.reduce": np.add.reduce,
    "ufunc.at": lambda x: np.add.at(x, 0, 1),
    "array function": np.sum,
    "concatenate": lambda x: np.concatenate([np.ones(6), x]),
    "where": lambda x: np.where(x, 1, 0),
    "dot": lambda x: np.dot(np.ones(6), x),
    "copyto from": lambda x: np.copyto(np.ones(6, "f"), x),
    "copyto to": lambda x: np.copyto(x, np.ones(6, "f")),
    "assigned to a slice": lambda x: operator.setitem(np.ones(6), slice(None), x),
    "allclose": lambda x: np.allclose(x, np.ones(6)),
    "assert_array_equal": lambda x: np.testing.assert_array_equal(x, np.ones(6)),
    "printed by NumPy": np.array2string,
    "shape of": np.shape,
    "index": lambda x: [1, 2, 3][x],
    "array on the left": lambda x: np.ones(6) * x,
    "number on the left": lambda x: 2 * x,
    "matrix product": lambda x: x @ x,
    "array @": lambda x: np.ones(6) @ x,
    "in place": lambda x: operator.iadd(x, 1),
    "array, in place": lambda x: operator.iadd(np.ones(6), x),
    "power": lambda x: x**2,
    "divmod": lambda x: divmod(x, 2),
    "negative": operator.neg,
    "abs": abs,
    "equal": lambda x: x == 3,
    "equal to an array": lambda x: np.ones(6) == x,
    "not equal": lambda x: x != 3,
    "less": lambda x: x < 3,
    "greater than an array": lambda x: np.ones(6) > x,
    "bool": bool,
    "float": float,
    "int": int,
    "complex": complex,
    "round": round,
    "math": math.sqrt,
    "iterated": iter,
    "list": list,
    "unpacked": lambda x: print(*x),
    "contains": lambda x: 3 in x,
    "item": lambda x: x[0],
    "set item": lambda x: operator.setitem(x, 0, 1.0),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}
#: Here Python or NumPy itself says no, and never asks the array.
UNASKED: dict[str, Callable[[Any], Any]] = {
    "frombuffer": np.frombuffer,
    "from_dlpack": np.from_dlpack,
    "memoryview": memoryview,
    "bytes": bytes,
    "bytearray.extend": lambda x: bytearray().join([x]),
    "len": len,
    "struct": lambda x: np.ndarray((6,), "f", buffer=x),
}


@pytest.fixture
def x(sim: Any) -> SimArray:
    return sim.array(sim.device(), 1, 2, 3, 4, 5, 6)


class TestRefuses:
    @pytest.mark.together("mistake", MISTAKES.values(), ids=list(MISTAKES))
    def test_says_what_to_do(self, x: SimArray, mistake: Callable[[Any], Any]) -> None:
        with pytest.raises(TypeError, match=r"memory of sim:0.*af\.to_numpy\(x\)"):
            mistake(x)

    @pytest.mark.together("mistake", UNASKED.values(), ids=list(UNASKED))
    def test_is_no_buffer(self, x: SimArray, mistake: Callable[[Any], Any]) -> None:
        with pytest.raises((TypeError, AttributeError)):
            mistake(x)

    def test_a_scalar_is_no_number(self, sim: Any) -> None:
        x = sim.device().upload(np.array(3))
        for read in (float, int, bool, operator.index, range):
            with pytest.raises(TypeError, match=r"af\.to_numpy"):
                read(x)

    @pytest.mark.together(
        "name",
        [
            "__dlpack__",
            "__array_interface__",
            "__array_struct__",
            "__cuda_array_interface__",
            "data",
            "__len__",
            "tolist",
        ],
    )
    def test_has_no_other_way_in(self, x: SimArray, name: str) -> None:
        assert not hasattr(x, name)

    def test_takes_no_attributes(self, x: SimArray) -> None:
        with pytest.raises(AttributeError):
            x.other = 1  # type: ignore[attr-defined]


class TestTells:
    def test_what_it_is(self, x: SimArray) -> None:
        assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.itemsize) == ((6,), np.dtype("f4"), 1, 6, 24, 4)
        assert x.base is None
        assert str(x.place) == "sim:0"
        assert repr(x) == str(x) == f"{x}" == "<SimArray float32[6] on sim:0>"

    def test_it_is_itself(self, x: SimArray) -> None:
        assert [x].index(x) == 0
        assert {x: 1}[x] == 1
        reference = weakref.ref(x)
        assert reference() is x

    def test_get_is_a_copy(self, x: SimArray) -> None:
        first = x.get()
        first[:] = 0
        assert x.get().tolist() == [1, 2, 3, 4, 5, 6]


class TestViews:
    @pytest.mark.parametrize("shape", [(2, 3), (3, -1), (1, 6, 1)])
    def test_a_view_shows_the_same_memory(self, x: SimArray, shape: tuple[int, ...]) -> None:
        view = x.reshape(shape)
        assert view.base is x
        assert view.block is x.block
        np.testing.assert_array_equal(view.get(), np.arange(1, 7, dtype="f").reshape(shape))
        assert x.reshape(*shape).shape == view.shape

    def test_the_base_is_always_the_owner(self, x: SimArray) -> None:
        assert x.reshape(2, 3).reshape(3, 2).reshape(() if x.size == 1 else (6,)).base is x

    def test_another_size_is_refused(self, x: SimArray) -> None:
        with pytest.raises(af.ShapeError, match=r"float32\[6\] on sim:0> has 6 elements, no shape \(4, 2\) has"):
            x.reshape(4, 2)

    def test_a_view_keeps_the_memory(self, sim: Any) -> None:
        device = sim.device()
        x = sim.empty(device, 64)
        view = x.reshape(8, 8)
        del x
        gc.collect()
        assert device.arena.used_bytes == 256
        del view
        gc.collect()
        assert device.arena.used_bytes == 0
