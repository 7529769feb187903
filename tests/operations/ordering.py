"""Scans, sorting, searching."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.ordering import Recurrence
from tests.operations.elementwise import FEW_POINTS, POINTS, triples
from tests.operations.table import (
    COMPLEX,
    FLOATS,
    HOST,
    INTEGERS,
    Row,
    Sample,
    Wrong,
    backward,
    flags,
    normal,
    refused,
    whole,
)

NUMBERS = ("float16", "bfloat16", "float32", "float64", *INTEGERS)


def scanned(ufunc: np.ufunc) -> Any:
    """Each element with those before it."""

    def scan(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
        x = np.flip(x, axis) if reverse else x
        y = (np.cumsum if ufunc is np.add else np.cumprod)(x, axis=axis)
        if exclusive:
            first = np.full_like(np.take(y, [0], axis), ufunc.identity)
            y = np.concatenate([first, np.delete(y, -1, axis)], axis=axis)
        return np.flip(y, axis) if reverse else y

    return scan


def _scanned_by_torch(name: str) -> Any:
    def scan(torch: Any, x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
        x = torch.flip(x, (axis,)) if reverse else x
        y = getattr(torch, name)(x, axis)
        if exclusive:
            first = torch.full_like(y.narrow(axis, 0, 1), 0 if name == "cumsum" else 1)
            y = torch.cat([first, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
        return torch.flip(y, (axis,)) if reverse else y

    return scan


def _recurrence(x: np.ndarray, factors: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    x, factors = (np.moveaxis(each, axis, 0)[:: -1 if reverse else 1] for each in (x, factors))
    y = np.empty_like(x)
    for i in range(len(x)):
        y[i] = x[i] + (factors[i] * y[i - 1] if i else 0)
    return np.moveaxis(y[:: -1 if reverse else 1], 0, axis)


def _sorted(x: np.ndarray, axis: int, reverse: bool, stable: bool) -> np.ndarray:
    y = np.sort(x, axis)
    return np.flip(y, axis) if reverse else y


def _order(x: np.ndarray, axis: int, reverse: bool, stable: bool) -> np.ndarray:
    if not reverse:
        return np.argsort(x, axis, stable=True)
    found = x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, stable=True)
    return np.flip(found, axis)


def _places(x: np.ndarray, size: int, fill: int) -> list[np.ndarray]:
    found = np.stack(np.nonzero(x))
    known = found[:, :size]
    rest = np.full((x.ndim, size - known.shape[1]), fill)
    return [np.concatenate([known, rest], 1), np.asarray(found.shape[1])]


def _searched(random: np.random.Generator) -> list[np.ndarray]:
    return [np.sort(random.standard_normal(40)), random.standard_normal((5, 3))]


ROWS = [
    *(
        Row(
            scan,
            [
                Sample(scan(1), normal((2, 3))),
                *(Sample(scan(1, *how), normal((4, 30, 6))) for how in product((False, True), repeat=2)),
                *(Sample(scan(1, *how), whole(0, (3, 4, 5))) for how in product((False, True), repeat=2)),
            ],
            numpy=scanned(ufunc),
            torch=_scanned_by_torch(name),
            corners=[Sample(scan(1), triples(POINTS if scan is ops.CumSum else FEW_POINTS))],
            dtypes=(*NUMBERS, *COMPLEX),
            onnx="CumSum" if scan is ops.CumSum else "",
        )
        for scan, ufunc, name in ((ops.CumSum, np.add, "cumsum"), (ops.CumProd, np.multiply, "cumprod"))
    ),
    backward(
        Recurrence,
        _recurrence,
        [Sample(Recurrence(-1, reverse), normal((4, 30), (4, 30))) for reverse in (False, True)],
        by_steps=True,
        devices=HOST,
        dtypes=FLOATS,
    ),
    *(
        Row(
            kind,
            [
                Sample(kind(0), normal((5, 2))),
                *(
                    Sample(kind(1, *how), whole(-3, (4, 90, 6)), smooth=False)
                    for how in product((False, True), (True,))
                ),
            ],
            numpy=reference,
            torch=lambda torch, x, axis, reverse, stable, which=which: torch.sort(
                x, dim=axis, descending=reverse, stable=True
            )[which],
            standard=lambda xp, x, axis, reverse, stable, name=kind.function_name: getattr(xp, name)(
                x, axis=axis, descending=reverse, stable=True
            ),
            dtypes=NUMBERS,
            onnx="TopK",
        )
        for kind, reference, which in ((ops.Sort, _sorted, 0), (ops.ArgSort, _order, 1))
    ),
    Row(
        ops.Nonzero,
        [Sample(ops.Nonzero(size, -1), flags((5, 41))) for size in (3, 300)],
        numpy=_places,
        without={"torch": "the number of places is a parameter here, and a result there"},
        devices=HOST,
    ),
    Row(
        ops.SearchSorted,
        [Sample(ops.SearchSorted(side), _searched) for side in ("left", "right")],
        numpy=np.searchsorted,
        torch=lambda torch, x1, x2, side: torch.searchsorted(x1, x2, side=side),
        standard="searchsorted",
        dtypes=("float16", "float32", "float64"),
        devices=HOST,
    ),
    Row(
        ops.IsIn,
        [Sample(ops.IsIn(invert), whole(-3, (5, 41), (3,))) for invert in (False, True)],
        numpy=np.isin,
        torch=lambda torch, x1, x2, invert: torch.isin(x1, x2, invert=invert),
        dtypes=("float16", "float32", "float64", *INTEGERS),
        devices=HOST,
    ),
]

_CUBE = ("float64", 3, 4, 5)

WRONG = [
    Wrong(lambda x: ops.cumsum(x, 3), [_CUBE], af.AxisError, "CumSum: axis must be from -3 to 2, got 3"),
    Wrong(ops.cumsum, [("bool", 3)], af.DTypeError, "CumSum: x must be numeric"),
    *refused(
        af.ShapeError,
        (lambda x: ops.top_k(x, 5, axis=1), [_CUBE], "top_k: k must be from 0 to 4, got 5"),
        (ops.searchsorted, [_CUBE, _CUBE], "searchsorted: x1 must have one axis"),
        (lambda x: ops.nonzero(x, -1), [_CUBE], "size must not be negative"),
    ),
    Wrong(lambda x, v: ops.searchsorted(x, v, "up"), [(5,), _CUBE], af.GraphError, "side must be 'left' or 'right'"),
]
