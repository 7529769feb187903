"""Functions of NumPy whose loops the compiled core calls by itself: the same bits as NumPy's own call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.errors import ActorflowError
from actorflow.ops.elementwise import Sum
from actorflow.ops.rows import Elementwise

DTYPES = ["float32", "float64", "float16", "complex64", "int32", "int64", "uint8", "bool"]
SHAPES = [
    ((), ()),
    ((7,), (7,)),
    ((3, 5), ()),
    ((), (3, 5)),
    ((601,), (1,)),
    ((4, 3), (3,)),
    ((4, 1), (1, 3)),
    ((0, 2), (0, 2)),
]


def functions() -> Iterator[type[Elementwise]]:
    """Operations that consist of a function of NumPy."""
    kinds = [*Elementwise.__subclasses__()]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if isinstance(kind.function, np.ufunc) and kind.__module__.startswith("actorflow.") and not kind.conditions:
            yield kind


def values(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    random = np.random.default_rng(seed)
    found = random.integers(0 if dtype in {"uint8", "bool"} else -4, 5, shape).astype(dtype)
    if dtype.startswith(("float", "complex")):
        found = found * np.dtype(dtype).type(0.37)
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).tiny / 4, np.finfo(dtype).max])
        flat = found.reshape(-1)
        flat[: len(special)] = special[: flat.size].astype(dtype)
        found = random.permutation(flat).reshape(shape)
    return np.asarray(found, dtype)


def seen(array: Any) -> Any:
    """The bits, with one pattern for what is no number."""
    return np.where(array == array, array, 0).tobytes(), (array == array).tobytes()


class Compared:
    """Ops of one graph, each with what NumPy computes."""

    def __init__(self) -> None:
        self.graph = af.Graph("loops", fuse=False)
        self.ops: list[tuple[Any, Callable[..., Any], list[Any], list[Any]]] = []
        self.tried = 0

    def add(self, make: Callable[..., Any], expected: Callable[..., Any], arrays: list[Any]) -> None:
        """Add an op, if there is one of these types."""
        self.tried += 1
        try:
            with self.graph.subgraph(f"op{self.tried}"):
                blobs = [self.graph.blob(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
                self.ops.append((make(*blobs), expected, blobs, arrays))
        except ActorflowError:
            pass

    def check(self) -> None:
        """Compare the bits, on flat arrays twice, and on others."""
        assert self.ops
        for change in (np.ascontiguousarray, np.copy, np.asfortranarray):
            given = [[change(x).reshape(x.shape) if x.ndim < 2 else change(x) for x in op[3]] for op in self.ops]
            feeds = {
                blob: x
                for op, arrays in zip(self.ops, given, strict=True)
                for blob, x in zip(op[2], arrays, strict=True)
            }
            result = self.graph.run_sync(feeds, fetch=[op[0] for op in self.ops])
            for (found, expected, _, _), arrays in zip(self.ops, given, strict=True):
                with np.errstate(all="ignore"):
                    wanted = expected(*arrays)
                got = result[found]
                assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
                assert seen(got) == seen(wanted), (found, got, wanted)


@pytest.mark.together("kind", [*functions()], at_once=20)
def test_elementwise(kind: type[Elementwise]) -> None:
    compared, function = Compared(), kind.function
    for dtype in DTYPES:
        for seed, shapes in enumerate(SHAPES):
            arrays = [values(dtype, shape, seed + i) for i, shape in enumerate(shapes[: function.nin])]
            compared.add(lambda *blobs: compared.graph.apply(kind(), *blobs), function, arrays)
    compared.check()


def test_sums_of_two() -> None:
    compared = Compared()
    for dtype in DTYPES:
        for shape in ((), (7,), (3, 5), (601,)):
            arrays = [values(dtype, shape, i) for i in (0, 1)]
            compared.add(lambda *blobs: compared.graph.apply(Sum(), *blobs), np.add, arrays)
    compared.check()


REDUCTIONS = {"max": np.maximum, "min": np.minimum, "any": np.logical_or, "all": np.logical_and}


@pytest.mark.together("name", REDUCTIONS)
def test_reductions_to_one(name: str) -> None:
    compared, make, reduce = Compared(), getattr(af.ops, name), REDUCTIONS[name].reduce
    for dtype in DTYPES:
        for shape in ((), (1,), (7,), (3, 5), (601,), (2, 1, 3)):
            for keepdims in (False, True):
                axes = tuple(range(len(shape)))
                compared.add(
                    lambda x, keepdims=keepdims: make(x, keepdims=keepdims),
                    lambda x, axes=axes, keepdims=keepdims: np.asarray(reduce(x, axis=axes, keepdims=keepdims)),
                    [values(dtype, shape, 3)],
                )
    compared.check()


def test_what_a_loop_raises_is_raised() -> None:
    graph = af.Graph("powers")
    x, y = graph.blob("x", [3], "int64"), graph.blob("y", [3], "int64")
    z = x**y
    assert graph.run_sync({x: [1, 2, 3], y: [1, 2, 3]})[z].tolist() == [1, 4, 27]
    with pytest.raises(af.OpError, match="negative integer powers"):
        graph.run_sync({x: [1, 2, 3], y: [1, -2, 3]})


def test_results_take_the_place_of_what_is_read_no_more() -> None:
    graph = af.Graph("chain", fuse=False)
    x = graph.blob("x", [64])
    y = x
    for _ in range(50):
        y = y * 1.5
    fed = np.ones(64, np.float32)
    for _ in range(3):
        assert graph.run_sync({x: fed})[y].tolist() == [np.prod([np.float32(1.5)] * 50, dtype=np.float32)] * 64
    assert fed.tolist() == [1] * 64
