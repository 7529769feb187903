"""Operations with any parameters that a file may have: refused, or computed as inferred, in bounded time."""

from __future__ import annotations

import signal
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu.pool import inverse_counts
from actorflow.ops.cpu.windows import taps
from actorflow.ops.nn.lrn import ChannelWindowSum
from actorflow.ops.nn.windows import Windows, slide
from tests.support.effort import FULL
from tests.support.kernels import compute_cpu
from tests.support.onednn import why_not
from tests.support.warm import ROOT, run_program

#: How often one gets its time before it counts as one without an end: a machine may stand still meanwhile.
_TIMES = 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are limited as on Linux")
@pytest.mark.parametrize("library", ["numpy", "onednn"])
def test_any_parameters(library: str) -> None:
    """What infer says is what a kernel gives, and nothing takes time or memory by the word of a parameter alone."""
    if library == "onednn" and why_not():
        pytest.skip(why_not())
    count = (600 if library == "numpy" else 300) * (100 if FULL else 1)
    first, ended = 0, 0
    while True:
        program = ("-m", "tests.support.parameters", library, 1, first, count)
        found = run_program(*program, folder=ROOT)
        lines = found.stdout.splitlines()
        assert not [lines[i - 1 : i + 1] for i, line in enumerate(lines) if line.startswith("WRONG")]
        if found.returncode != -signal.SIGXCPU:
            break
        last = int(lines[-1].split()[0])
        ended = ended + 1 if last == first else 1
        assert ended < _TIMES, f"takes too long: {lines[-1]}"
        first = last
    assert found.returncode == 0, found.stderr[-2000:]
    assert len(lines) > (count - first) // 2


@st.composite
def windows(draw: Any) -> Windows:
    """Windows along an axis or two, whose kernel and border may be larger than what they see."""
    rank = draw(st.integers(1, 2))
    each = lambda least, most: st.tuples(*[st.integers(least, most)] * rank)  # noqa: E731
    size, kernel = draw(each(1, 5)), draw(each(1, 40))
    pad = tuple((draw(st.integers(0, k)), draw(st.integers(0, k))) for k in kernel)
    dilation, stride = draw(each(1, 3)), draw(each(1, 9))
    try:
        return slide("test", size, kernel, stride, pad, dilation, draw(st.booleans()))
    except af.GraphError:  # they are larger than images and border
        return slide("test", size, (1,) * rank)


@given(windows(), st.data())
def test_offsets_of_windows(w: Windows, data: st.DataObject) -> None:
    """What windows see is found without a look at each offset of the kernel."""
    cuts = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in w.out]
    piece = (slice(0, 1), *[slice(*cut) for cut in cuts])
    expected = {}
    for offset in np.ndindex(*w.kernel):
        seen = []
        for at in product(*[range(*cut) for cut in cuts]):
            axes = zip(at, offset, w.stride, w.dilation, w.pad, strict=True)
            place = tuple([i * s + k * d - before for i, k, s, d, (before, _) in axes])
            if all(0 <= i < n for i, n in zip(place, w.size, strict=True)):
                seen.append((tuple([i - first for i, (first, _) in zip(at, cuts, strict=True)]), place))
        if seen:
            expected[offset] = seen
    found = {}
    for offset, window, element in taps(w, piece):
        steps = [[[*range(w.size[i])[part]] for i, part in enumerate(element[1:])]]
        steps.append([[*range(cut[1] - cut[0])[part]] for cut, part in zip(cuts, window[1:], strict=True)])
        found[offset] = [*zip(product(*steps[1]), product(*steps[0]), strict=True)]
    assert found == expected
    assert [*found] == [*expected]


@given(windows(), st.booleans())
def test_counts_of_windows(w: Windows, count_pad: bool) -> None:
    counts = np.ones(w.out)
    for at in np.ndindex(*w.out):
        axes = [*zip(at, w.stride, w.kernel, w.dilation, w.pad, w.size, strict=True)]
        for i, s, k, d, (before, after), n in axes:
            places = [i * s + offset * d - before for offset in range(k)]
            counts[at] *= sum([(place < n + after) if count_pad else (0 <= place < n) for place in places])
    np.testing.assert_allclose(inverse_counts(w, count_pad, np.dtype("f8"))[..., 0], 1 / np.maximum(counts, 1))


@given(st.integers(1, 300), st.integers(1, 700) | st.just(1 << 40), st.booleans())
def test_a_window_of_many_channels(channels: int, size: int, transposed: bool) -> None:
    x = np.random.default_rng(channels).standard_normal((3, channels))
    before, after = (size - 1) // 2 if transposed else size // 2, size // 2 if transposed else (size - 1) // 2
    sums = [x[:, max(0, i - before) : i + after + 1].sum(axis=1) for i in range(channels)]
    (found,) = compute_cpu(ChannelWindowSum(size, transposed), x)
    np.testing.assert_allclose(found, np.stack(sums, axis=1), atol=1e-9)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (ops.Conv(pad=1 << 20, stride=1 << 21), r"pad \(\(1048576, 1048576\), .* is too wide"),
        (ops.Conv(stride=1 << 40), "stride must be less than 2147483648"),
        (ops.Conv(pad=1 << 40), "pad must be less than 2147483648"),
    ],
)
def test_borders_that_are_refused(operation: ops.Operation, message: str) -> None:
    with pytest.raises(af.GraphError, match=message):
        operation.infer(af.TensorSpec.of((1, 6, 6, 2)), af.TensorSpec.of((1, 1, 2, 4)))


def test_kernels_that_are_refused() -> None:
    x = af.TensorSpec.of((1, 6, 6, 2))
    with pytest.raises(af.GraphError, match=r"kernel \(1048576, 3\) and pad .* are too large for images \(6, 6\)"):
        ops.MaxPool((1 << 20, 3), (3, 2000), ((1 << 20) - 1, 2)).infer(x)
    (y,) = ops.MaxPool(1 << 20, 1 << 20, (1 << 20) - 1).infer(x)  # of four windows, each sees all
    assert y.shape == (1, 2, 2, 2)


def test_types_that_cannot_be() -> None:
    graph = af.Graph("g")
    for spec in (af.TensorSpec((-1, 2), np.dtype("f")), af.TensorSpec((1 << 62, 41), np.dtype("f"))):
        with pytest.raises(af.ShapeError, match=r"non-negative|less than 2\*\*63 bytes"):
            graph.apply(ops.Fill(1.0, spec))
