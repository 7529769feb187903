"""Functions of the table of operations, of blobs and of arrays: beside NumPy's, their gradients beside each other."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from tests.operations import Row, Sample, calls, cases, drawn, samples
from tests.operations.shaping import parts
from tests.ops.test_gradients import by, has_slopes, is_real
from tests.ops.test_values import agree, wide
from tests.support.effort import FULL
from tests.support.worlds import STANDARD, World

BLOBS = World(np.asarray, ops, ops.linalg, SimpleNamespace(float64="float64", complex128="complex128"))
#: Of complex numbers they multiply these with real ones, which blobs do not.
OF_REAL = ("array.linalg.svd", "array.linalg.eigh")
CALLS = [(row, sample) for row, sample in calls() if row.numpy]
#: Functions, and operations that differences are not taken of in graphs: of complex numbers, or with statistics.
SMOOTH = [each for each in calls() if has_slopes(*each, kinds="fc")]
SMOOTH += [each for each in samples() if has_slopes(*each, kinds="fc") and not is_real(*each)]


async def on_blobs(sample: Sample, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What a graph gives; its results are of the types that were inferred."""
    graph = af.Graph("g")
    blobs = [graph.blob(f"x{i}", x.shape, x.dtype) for i, x in enumerate(arrays)]
    results = parts(sample.apply(*blobs))
    async with graph:
        found = await graph.run(dict(zip(blobs, arrays, strict=True)), fetch=results)
    values = [found[blob] for blob in results]
    assert [(x.shape, x.dtype) for x in values] == [(blob.shape, blob.dtype) for blob in results]
    return values


@pytest.mark.together(("row", "sample"), cases(CALLS), at_once=30)
async def test_graphs_and_arrays_give_what_numpy_gives(row: Row, sample: Sample) -> None:
    assert row.numpy is not None
    for dtype in ("float64", "float32") if FULL or sample is row.first else ("float64",):
        arrays = sample.inputs(dtype)
        expected = parts(row.numpy(*map(wide, arrays), **sample.parameters))
        of_arrays = [x.to_numpy() for x in parts(sample.apply(*map(xp.asarray, arrays)))]
        of_blobs = await on_blobs(sample, arrays)
        for found in (of_blobs, of_arrays):
            agree(found, expected, row, f"{sample} of {dtype}")
        assert [x.dtype for x in of_blobs] == [x.dtype for x in of_arrays]
        if dtype == "float64":
            assert [x.dtype for x in of_blobs] == [np.asarray(x).dtype for x in expected]


#: Functions that the standard has by the same names and parameters: the table draws arrays for them.
NAMED = (
    "concat stack unstack squeeze expand_dims moveaxis flip roll tile repeat broadcast_to triangles x[key] x[::-1] "
    "take take_along_axis sum prod max min mean argmax argmin sort argsort matmul vecdot tensordot matrix_transpose"
)
SAME = [
    row
    for row in drawn("blobs")
    if row.name.startswith(("array.linalg.", "array.fft."))
    or row.name.removeprefix("array.") in (*NAMED.split(), "x[i, j]")
]


@pytest.mark.together("row", SAME, ids=str, at_once=6)
async def test_functions_of_blobs_give_what_numpy_gives(row: Row) -> None:
    for sample in row.drawn.smooth(3, 32):
        given = [x.real if row.name in OF_REAL else x for x in sample.drawn()]
        floating = np.result_type(*(x for x in given if x.dtype.kind in "fc"))  # blobs promote nothing
        arrays = [x.astype(floating) if x.dtype.kind in "fc" else x for x in given]
        expected = parts(row.of_standard(STANDARD, *arrays, **sample.parameters))
        of_blobs = Sample(partial(row.of_standard, BLOBS, **sample.parameters), sample.make)
        found = await on_blobs(of_blobs, arrays)
        agree(found, expected, row, str(sample))
        assert [x.dtype for x in found] == [np.result_type(x, its) for x, its in zip(found, expected, strict=True)]


def loss_of(results: Any) -> Any:
    """A number that depends on each part of each result in another way; of blobs as of arrays."""
    terms = []
    for i, y in enumerate(parts(results)):
        for part in (ops.real(y), ops.imag(y) * 0.5) if y.dtype.kind == "c" else (y,):
            if part.dtype.kind == "f":
                terms.append(ops.sum(part * np.random.default_rng(i).uniform(0.5, 1.5, part.shape)))
    return sum(terms[1:], terms[0])


@pytest.mark.together(("row", "sample"), cases(SMOOTH), at_once=30)
async def test_gradients_of_graphs_are_those_of_arrays(row: Row, sample: Sample) -> None:
    """Of real and of complex inputs."""
    arrays = sample.inputs("float64")
    which = by(sample, arrays)

    def loss(*moved: Any) -> Any:
        given = dict(zip(which, moved, strict=True))
        results = sample.apply(*[given.get(i, moved[0].literal(x)) for i, x in enumerate(arrays)])
        return loss_of(parts(results)[: row.slopes])

    slopes = af.grad(loss, argnums=range(len(which)))(*[xp.asarray(arrays[i]) for i in which])
    expected = [each.to_numpy() for each in slopes]
    graph, feeds, operands = af.Graph("g"), {}, []
    for i in which:
        x = arrays[i]
        given = [x.real, x.imag] if x.dtype.kind == "c" else [x]
        blobs = [graph.blob(f"x{i}.{part}", x.shape, values.dtype) for part, values in enumerate(given)]
        feeds |= dict(zip(blobs, given, strict=True))
        operands.append(blobs[0] if len(blobs) == 1 else ops.cast(blobs[0], x.dtype) + ops.cast(blobs[1], x.dtype) * 1j)
    grads = af.gradient(loss(*operands), [*feeds])
    async with graph:
        found = await graph.run(feeds, fetch=grads)
    wanted = [part for g in expected for part in ((g.real, g.imag) if g.dtype.kind == "c" else (g,))]
    for grad, its in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(found[grad], its, rtol=1e-9, atol=1e-9)
