"""What values hold, in numbers: against NumPy, and in traces."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import actorflow as af
from actorflow.cli.trace import show_trace
from actorflow.trace.recording import read_trace
from actorflow.trace.ring import RecordedValue, Trace
from actorflow.trace.values import histogram_of, norm_of, statistics_of

NUMBERS = stn.arrays(
    st.sampled_from(["float32", "float64", "int32", "uint8"]), stn.array_shapes(max_dims=3, max_side=40, min_side=0)
)


class TestHistogram:
    @given(array=NUMBERS, bins=st.integers(1, 70))
    @example(array=np.array([-3e38, 3e38], "f"), bins=4)
    @example(array=np.array([1, np.nextafter(np.float32(1), np.float32(2))], "f"), bins=64)
    @example(array=np.array([-0.0, 0.0]), bins=64)
    @example(array=np.array([-1.7e308, 1.7e308]), bins=8)
    @example(array=np.array([0, 5e-324]), bins=8)
    @example(array=np.array([1 << 23], "f"), bins=1)
    def test_is_numpys(self, array: Any, bins: int) -> None:
        found = histogram_of(array, statistics_of(array), bins)
        finite = array[np.isfinite(array)]
        if not finite.size or not np.isfinite(float(finite.max()) - float(finite.min())):
            assert found is None
            return
        assert found is not None
        assert sum(found.counts) == finite.size
        try:
            with np.errstate(all="raise"):
                counts, edges = np.histogram(finite, bins)
        except (ValueError, FloatingPointError):  # neighbours among the floats, or a range that overflows
            assert len(found.counts) in {1, bins}
        else:
            assert list(found.counts) == counts.tolist()
            assert [found.low, found.high] == pytest.approx([edges[0], edges[-1]], rel=1e-6)

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
    def test_of_many_elements(self, dtype: str) -> None:
        """More than are looked at together; strided as well."""
        array = (100 * np.random.default_rng(0).normal(size=(300, 301))).astype(dtype)
        for view in (array, array[::2, ::3], array.T):
            found = histogram_of(view, statistics_of(view), 64)
            assert found is not None
            assert list(found.counts) == np.histogram(view, 64)[0].tolist()

    def test_what_is_not_finite_is_left_out(self) -> None:
        array = np.array([1, np.nan, 2, np.inf, -np.inf, 4], "f")
        assert histogram_of(array, statistics_of(array), 3) == (1.0, 4.0, [1, 1, 1])


class TestNorm:
    @given(array=NUMBERS)
    def test_is_numpys(self, array: Any) -> None:
        with np.errstate(all="ignore"):
            expected = np.sqrt((array.astype("d") ** 2).sum())
        if np.isfinite(expected):
            assert norm_of(array) == pytest.approx(expected, rel=1e-12)
        else:
            assert not np.isfinite(norm_of(array))

    def test_of_a_difference(self) -> None:
        before, after = np.random.default_rng(0).normal(size=(2, 200, 201)).astype("f")
        for a, b in ((before, after), (before.T, after.T), (before, after.T.copy().T)):
            expected = np.linalg.norm(b.astype("d") - a.astype("d"))
            assert norm_of(b, minus=a) == pytest.approx(expected, rel=1e-12)
        assert norm_of(before + 1j * after) == pytest.approx(np.hypot(norm_of(before), norm_of(after)), rel=1e-6)


class TestTraces:
    """Statistics of values are counters in the file for trace viewers, where a tap was asked for them."""

    async def _traced(self, **options: Any) -> af.Graph:
        graph = af.Graph("g")
        x = graph.blob("x", (3,))
        af.ops.tanh(af.ops.log(x, name="hidden"))
        async with graph, graph.tap("hidden", "x", **options) as tap:
            for number in range(4):
                await graph.run({x: np.array([number, 1, 2], "f")})
                await anext(tap)
        return graph

    async def test_each_sample_is_a_counter(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        graph = await self._traced(trace=True)
        recording = graph.recording()
        assert [(value.name, value.frame) for value in recording.values] == [
            (name, frame) for frame in range(4) for name in ("hidden/out", "x")
        ]
        await graph.save_trace(tmp_path / "trace.json")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        counters = [event for event in events if event["ph"] == "C"]
        assert [counter["name"] for counter in counters] == ["hidden/out", "x"] * 4
        assert counters[0]["args"] == pytest.approx(
            {"nan": 0, "infinite": 1, "min": 0, "max": np.log(2), "mean": np.log(2) / 2, "std": np.log(2) / 2,
             "norm": np.log(2)}, rel=1e-6,
        )  # fmt: skip
        starts = [event["ts"] for event in events if event["ph"] == "b" and event["cat"] == "frame"]
        assert all(counters[2 * frame]["ts"] > start for frame, start in enumerate(starts))
        read = read_trace(tmp_path / "trace.json").values
        assert [value._replace(figures={}) for value in read] == [
            value._replace(figures={}) for value in recording.values
        ]
        assert read[-1].figures == pytest.approx(recording.values[-1].figures)
        show_trace(tmp_path / "trace.json")
        assert "values that were looked at" in capsys.readouterr().out
        show_trace(tmp_path / "trace.json", as_json=True)
        assert len(json.loads(capsys.readouterr().out)["values"]) == 8

    async def test_only_where_it_was_asked_for(self, tmp_path: Path) -> None:
        graph = await self._traced()
        assert not graph.recording().values
        await graph.save_trace(tmp_path / "trace.json")
        assert '"C"' not in (tmp_path / "trace.json").read_text()

    async def test_large_values_do_not_take_the_loops_time(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (1 << 18,))
        af.ops.scale(x, 2.0, name="double")
        async with graph, graph.tap("double", trace=True) as tap:
            await graph.run({x: np.ones(1 << 18, "f")})
            looking = asyncio.create_task(anext(tap))
            await asyncio.sleep(0)
            assert not looking.done()
            np.testing.assert_array_equal((await looking)["double/out"], 2.0)
        (value,) = graph.recording().values
        assert value.figures["mean"] == 2.0

    def test_the_newest_are_kept(self) -> None:
        trace = Trace(64)
        for number in range(10_000):
            trace.add_value(RecordedValue("x", number, number, {}))
        assert [trace.values[0].frame, trace.values[-1].frame, len(trace.values)] == [10_000 - 8192, 9_999, 8192]
