"""Random graphs give the same results and the same errors, whatever a plan makes of their ops.

The settings of a graph that plans depend on are compared with a plan of one kernel for each op: bit for bit, but for
what kernels change that add up products in other blocks. What such a kernel has part in may differ by a tolerance, if
the reference itself changes by no more where the numbers that go in differ by a rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.devices.cpu import CPU
from actorflow.devices.team import team
from actorflow.plan import fuse
from tests.operations.table import TOLERANCE
from tests.support import onednn
from tests.support.effort import FULL, slow
from tests.support.random_graphs import Found, RandomGraph, cases, upstream

GRAPHS, BLOCK = (3_000, 50) if FULL else (60, 1)
#: Seed of the first one, from which on they join many ops. The table of operations says which those are.
FIRST = 60
LEAST_KINDS = 180
_NOISES = 3


class Setting(NamedTuple):
    """A place, options of a graph, the CPU's libraries, the kinds whose kernels differ by roundings, large values."""

    place: str = "cpu"
    options: Mapping[str, Any] = MappingProxyType({})
    libraries: tuple[str, ...] = ("numpy",)
    inexact: frozenset[str] = frozenset()
    large_bytes: int = 0

    @contextmanager
    def graph(self, seed: int, *more: Any, **noise: int) -> Iterator[RandomGraph]:
        """The graph of a seed; it is planned within the block."""
        patch = mock.patch.object
        with patch(fuse, "LARGE_BYTES", self.large_bytes), patch(CPU, "libraries", self.libraries):
            yield RandomGraph(seed, self.place, *more, **noise, **self.options)


#: Options of the graphs that others are compared with.
REFERENCE: Mapping[str, Any] = MappingProxyType({"fuse": False})
SETTINGS = [Setting(), Setting(options={"sequential": True}), Setting("sim:0"), Setting("sim:0", {"capture": True})]
if not onednn.why_not():
    _LIBRARY = Setting(libraries=("onednn", "numpy"), inexact=onednn.computed())
    SETTINGS += [_LIBRARY, _LIBRARY._replace(large_bytes=fuse.LARGE_BYTES)]

PLACES = sorted({setting.place for setting in SETTINGS})


@pytest.fixture(autouse=True)
def blas_on_one_thread() -> Iterator[None]:
    """Threads, of which there are as many as lanes leave, change the order in which products are added up."""
    team.keep_single()
    yield
    team.release_single()


class PlantedError(Exception):
    pass


class Switch:
    """Whether the brittle row raises."""

    on = False


def _brittle(x: Any, out: Any) -> None:
    if Switch.on:
        raise PlantedError("it was asked to fail")
    np.multiply(x, 0.5, out=out)


Brittle, brittle = ops.unary(
    "brittle", "A half of it, or an error.", _brittle, lambda g, x: g * 0.5, kinds="fV", cuda="x * T(0.5)"
)


def planted(x: af.Blob) -> af.Blob:
    return brittle(x)


LINE = f"{__file__}:{planted.__code__.co_firstlineno + 1} in planted"


def is_inexact(blob: af.Blob, kinds: frozenset[str]) -> bool:
    """Return whether an op of these kinds has part in a value, or in a variable that has."""
    todo, seen = [blob], {blob}
    while todo:
        for op in todo.pop().producers:
            if op.operation.kind in kinds:
                return True
            todo += [x for x in op.inputs if x not in seen]
            seen |= {*op.inputs}
    return False


def assert_same(found: np.ndarray, expected: np.ndarray, signs_of_zeros: bool = True) -> None:
    """Compare bit for bit, but for the bits of what is not a number."""
    np.testing.assert_array_equal(found, expected, strict=True)
    if expected.dtype.kind in "fc" and signs_of_zeros:
        parts = expected.real.dtype
        one, other = (np.ascontiguousarray(x).reshape(-1).view(parts) for x in (found, expected))
        np.testing.assert_array_equal(np.signbit(one[~np.isnan(one)]), np.signbit(other[~np.isnan(other)]))


def assert_close(found: np.ndarray, expected: np.ndarray, near: list[np.ndarray], dtype: str) -> None:
    """Compare what is stable within a tolerance of the largest number."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    precise = "complex128" if expected.dtype.kind == "c" else "float64"
    one, other = found.astype(precise), expected.astype(precise)
    with np.errstate(all="ignore"):
        spread = np.max([abs(x.astype(precise) - other) for x in near], axis=0, initial=0.0)
        size = np.abs(other[np.isfinite(other)]).max(initial=1.0)
        allowed = max(TOLERANCE[dtype]) * size
        is_stable = np.isfinite(other) & (spread <= allowed)
        assert (abs(one - other)[is_stable] <= allowed + 10 * spread[is_stable]).all()


async def results(seed: int, setting: Setting, **noise: int) -> list[Found]:
    with setting.graph(seed, **noise) as graph:
        async with graph.graph:
            return await graph.run()


async def compare(setting: Setting, found: list[Found], expected: list[Found], seed: int) -> None:
    near: list[list[Found]] = []
    for i, (mine, its) in enumerate(zip(found, expected, strict=True)):
        assert mine.blob.name == its.blob.name
        try:
            if not is_inexact(its.blob, setting.inexact):
                assert_same(mine.value, its.value)
                continue
            near = near or [await results(seed, Setting(options=REFERENCE), noise=noise) for noise in range(_NOISES)]
            floats = [x.dtype for x in upstream(its.blob) if x.dtype.kind == "f"]
            lowest = min(floats, key=lambda dtype: dtype.itemsize, default=np.dtype("float32"))
            assert_close(mine.value, its.value, [of[i].value for of in near], lowest.name)
        except AssertionError as error:
            error.add_note(f"seed {seed}: {its.blob.name}, {its.when}, under {setting}")
            raise


@pytest.mark.parametrize("first", slow(range(FIRST, FIRST + GRAPHS, BLOCK), but=range(FIRST + 1, FIRST + 7)))
async def test_results_do_not_depend_on_the_plan(first: int) -> None:
    for seed in range(first, first + BLOCK):
        expected = await results(seed, Setting(options=REFERENCE))
        for setting in SETTINGS:
            await compare(setting, await results(seed, setting), expected, seed)


async def failed(seed: int, setting: Setting) -> tuple[list[str], list[Found]]:
    """What a run that fails says of the op, its inputs and its line; and the results of those after it."""
    with setting.graph(seed, planted) as graph:
        async with graph.graph:
            Switch.on = True
            with pytest.raises(af.OpError) as caught:
                await graph.run(atomic=True)  # which variables it had updated otherwise is chance
            Switch.on = False
            error = caught.value
            assert error.op.operation == Brittle()
            assert str(error.op.site) == LINE
            cause: BaseException | None = error
            while cause is not None and not isinstance(
                cause, PlantedError
            ):  # of devices, the error of their lane is between
                cause = cause.__cause__
            assert cause is not None
            said = re.sub(r"'main[.\d]*'", "'main'", str(error)).splitlines()  # plans have as many lanes as they need
            return [error.op_name, *said], await graph.run()


@pytest.mark.parametrize("first", slow(range(FIRST, FIRST + GRAPHS, 5 * BLOCK), but={FIRST + 5, FIRST + 10}))
async def test_errors_do_not_depend_on_the_plan(first: int) -> None:
    for seed in range(first, first + 5 * BLOCK, 5):
        expected = {place: await failed(seed, Setting(place, REFERENCE)) for place in PLACES}  # errors name lanes
        for setting in SETTINGS:
            said, found = await failed(seed, setting)
            assert said == expected[setting.place][0], f"seed {seed}, {setting}"
            assert said[-1] == f"  created at {LINE}"
            if not setting.inexact:
                await compare(setting, found, expected[setting.place][1], seed)


@pytest.mark.parametrize("setting", SETTINGS, ids=range(len(SETTINGS)))
def test_plans_join_ops(setting: Setting) -> None:
    """Else nothing is compared here."""
    joined = 0
    for seed in range(FIRST, FIRST + 20):
        with setting.graph(seed) as graph:
            joined += sum(len(op.parts) > 1 for op in graph.graph.compile([*graph.blobs, graph.graph]).ops)
    assert joined >= (5 if setting.large_bytes else 20), joined


@pytest.mark.skipif(not FULL, reason="few graphs have not all kinds: ACTORFLOW_FULL_TESTS=1")
def test_nearly_all_kinds_are_drawn() -> None:
    kinds = set().union(*(RandomGraph(seed).kinds for seed in range(GRAPHS // 5)))
    assert len(kinds) >= LEAST_KINDS, sorted({*cases()} - kinds)
