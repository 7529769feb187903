"""Products of integers of 16 bits and conversions of half precision in compiled code, and the same without it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import buffers, linalg
from tests.support.kernels import compute_cpu


@pytest.fixture
def module() -> Any:
    found = buffers.narrow()
    if found is None:
        pytest.skip("there is no compiled code, or the processor has no AVX2")
    return found


@pytest.fixture(params=["compiled", "without"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled code, where there is some, and without."""
    if request.param == "without":
        for each in (buffers, linalg):
            monkeypatch.setattr(each, "narrow", lambda: None)
    else:
        request.getfixturevalue("module")
    return str(request.param)


def _integers(shape: tuple[int, ...], low: int, high: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True, dtype=np.int32)


def test_products_of_all_sizes(module: Any) -> None:
    for rows in range(1, 14):
        for depth, columns in ((2, 1), (6, 15), (7, 16), (8, 17), (33, 40)):
            a = _integers((rows, depth), -(2**15), 2**15 - 1)
            even = np.zeros((rows, depth + depth % 2), np.int16)
            even[:, :depth] = a
            for size, low, high in ((1, -128, 127), (2, -900, 900)):
                b, out = _integers((depth, columns), low, high, 1), np.full((rows, columns), 7, np.int32)
                module.multiply(even, module.pack(b, size), out)
                np.testing.assert_array_equal(out, a.astype("i8") @ b.astype("i8"))


def test_rows_in_16_bits_and_the_largest_of_their_numbers(module: Any) -> None:
    for rows, columns, width in ((1, 1, 2), (3, 16, 16), (2, 33, 34), (5, 48, 60)):
        for number in (0, -(2**15), 2**15 - 1, 40_000, -(2**31), 2**31 - 1):
            for place in (0, -1):
                x, y = _integers((rows, columns), -99, 99), np.full((rows, width), 7, np.int16)
                x[place, place] = number
                largest = module.to_int16(x, y)
                assert largest == abs(x.astype("i8")).max()
                if largest < 2**15:
                    np.testing.assert_array_equal(y[:, :columns], x)
                    assert not y[:, columns:].any()


def test_numbers_in_8_bits(module: Any) -> None:
    for size in (1, 7, 8, 9, 40):
        for low in (-3.0, 1.0, -9.0):
            x = (np.random.default_rng(size).random(size) * 5 + low).astype(np.float32)
            assert module.limits(x) == (min(x.min(), 0), max(x.max(), 0))
            y = np.full(size, 7, np.uint8)
            module.to_uint8(x, y, 0.01, 100.0)
            np.testing.assert_array_equal(y, np.clip(np.rint(x / np.float32(0.01)) + 100, 0, 255).astype(np.uint8))
    assert module.limits(np.float32([np.nan, 1, -2])) == (-2, 1)
    assert module.limits(np.empty(0, np.float32)) == (0, 0)


def test_what_does_not_fit_is_refused(module: Any) -> None:
    with pytest.raises(ValueError, match="expected panels of int8 or int16, got float64 with 2 axes"):
        module.multiply(np.zeros((3, 4), np.int16), np.zeros((2, 2)), np.zeros((3, 20), np.int32))
    with pytest.raises(ValueError, match="shapes do not fit"):
        module.to_uint8(np.zeros(3, np.float32), np.zeros(2, np.uint8), 1.0, 0.0)
    panels = module.pack(np.ones((4, 20), np.int32))
    for a, out in (((3, 6), (3, 20)), ((3, 4), (2, 20)), ((3, 4), (3, 33)), ((0, 4), (0, 20))):
        with pytest.raises(ValueError, match=r"shapes do not fit|nothing to multiply"):
            module.multiply(np.zeros(a, np.int16), panels, np.zeros(out, np.int32))
    for shapes in (((2, 3), (3, 4)), ((2, 3), (2, 2)), ((0, 3), (0, 4)), ((2, 0), (2, 0))):
        with pytest.raises(ValueError, match="shapes do not fit"):
            module.to_int16(*[np.zeros(shape, kind) for shape, kind in zip(shapes, ("i4", "i2"), strict=True)])
    for convert, kinds in ((module.to_float32, ("u2", "f4")), (module.to_float16, ("f4", "u2"))):
        for sizes in ((3, 2), (0, 0)):
            with pytest.raises(ValueError, match="shapes do not fit"):
                convert(*[np.zeros(size, kind) for size, kind in zip(sizes, kinds, strict=True)])


#: Largest sizes of both matrices, and their depth: of 8 bits, of 16 and more, and with sums beyond 32 bits.
SIZES = {"8 bits": (255, 127, 512), "16 bits": (32767, 120, 64), "more": (32768, 100, 64), "wraps": (32768, 32768, 9)}


@pytest.mark.parametrize("name", SIZES)
def test_products_are_those_of_numpy(form: str, name: str) -> None:
    most, other, depth = SIZES[name]
    for shape in ((70, depth), (3, 5, depth)):
        a, b = _integers(shape, -most, most), _integers((depth, 300), -other, other, 1)
        for _ in range(3):  # with a matrix that it has seen
            (y,) = compute_cpu(ops.Matmul(), a, b)
            np.testing.assert_array_equal(y, a @ b)


async def test_each_of_several_products_keeps_its_weight(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one operation, too, in one graph or in two; new weights are packed before they come, and all goes at last."""
    seen, packed = [], []

    def noted(b: np.ndarray, old: Any = linalg._packed) -> Any:
        found = old(b)
        seen.append(b.shape)
        packed.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(linalg, "_packed", noted)
    shared, a = ops.Matmul(), np.ones((64, 32), np.int32)
    sizes = [(32, 40), (40, 50)]

    async def run(graph: af.Graph, y: af.Blob) -> None:
        weights = [variable.value for variable in graph.variables]
        for _ in range(3):
            np.testing.assert_array_equal((await graph.run({"x": a}, fetch=[y]))[y], a @ weights[0] @ weights[1])

    graphs = []
    for number in range(2):
        graph = af.Graph(f"g{number}")
        y: af.Blob = graph.blob("x", a.shape, "int32")
        for i, size in enumerate(sizes):
            weight = graph.variable(f"w{i}", size, "int32", init=_integers(size, -9, 9, 2 * number + i))
            y = graph.op(f"product{i}", shared)(y, weight)
        graphs.append((graph, y))
    for graph, y in [*graphs, *graphs]:
        await run(graph, y)
    expected = 4 * sizes if form == "compiled" else []  # a variable is known at its second use
    assert seen == expected
    assert all(op.operation is shared for graph, _ in graphs for op in graph.ops)
    for graph, y in graphs:
        await graph.engine.swap({variable: variable.value + 1 for variable in graph.variables})
        await run(graph, y)
        await graph.aclose()
    assert sorted(seen) == sorted([*expected, *expected[: len(expected) // 2]])
    del graph, graphs, weight, y
    gc.collect()
    assert not any(ref() is not None for ref in packed)


@pytest.mark.parametrize("dtype", ["int32", "float16"])
def test_a_matrix_that_is_written_over_is_not_kept(form: str, dtype: str) -> None:
    """The array that a function gives is the same one in each run, and may have other contents."""
    a, b = (each.astype(dtype) for each in (_integers((70, 64), -9, 9), _integers((64, 300), -9, 9, 1)))
    if dtype == "float16":
        b = np.ascontiguousarray(b.T)
    with af.Graph("g") as graph:
        x, w = graph.blob("x", a.shape, dtype), graph.blob("w", b.shape, dtype)
        graph.function("weight", lambda: b) >> [w]
        y = x @ w if dtype == "int32" else ops.inner(x, w)
        for factor in (1, 1, -2, 5):
            b *= np.asarray(factor, dtype)
            expected = a.astype("f8") @ (b if dtype == "int32" else b.T).astype("f8")
            np.testing.assert_array_equal(graph.run_sync({x: a})[y], expected.astype(dtype))


def _as_half(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(np.float16)


def test_conversions_are_those_of_numpy(form: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = buffers.widened(halves)
    np.testing.assert_array_equal(wide, halves.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(halves))
    with np.errstate(all="ignore"):
        between = np.nextafter(wide, np.float32(np.inf)), (wide[:-1] + wide[1:]) / 2  # ties, and beside them
    random = np.random.default_rng(0).standard_normal(999).astype("f") * np.float32(1e-7)
    for x in (wide, *between, random, np.array([65519.9, 65520, 1e30, -1e30, 3e-8, 2.9e-8, -0.0], "f")):
        found = np.empty(x.shape, np.float16)
        buffers.put_rounded(x, found)
        np.testing.assert_array_equal(found, _as_half(x))
        np.testing.assert_array_equal(np.signbit(found), np.signbit(_as_half(x)))
    turned = np.asfortranarray(halves.reshape(256, 256))
    np.testing.assert_array_equal(buffers.widened(turned), turned.astype("f"))
    target = np.empty((256, 256), np.float16, order="F")
    buffers.put_rounded(wide.reshape(256, 256), target)
    np.testing.assert_array_equal(target, halves.reshape(256, 256))
