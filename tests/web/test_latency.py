"""Estimates of quantiles, against exact ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actorflow.trace.ring import Trace
from actorflow.web import telemetry
from actorflow.web.telemetry import Latencies

_SPANS = st.lists(st.integers(200, 10**11), min_size=1, max_size=200)


def estimated(spans: list[int], share: float) -> float:
    trace = Trace(256)
    for span in spans:
        trace.add(10**12, span, 0, 0)
    latencies = Latencies(trace, np.zeros(1, np.int64))
    assert latencies.advance().tolist() == [0]
    (us,) = latencies.estimate_us(np.zeros(1, np.int64), share)
    return float(us[0])


@given(spans=_SPANS, share=st.sampled_from([0.5, 0.99]))
def test_estimates_are_a_bucket_off_at_most(spans: list[int], share: float) -> None:
    exact_us = np.quantile(spans, share, method="inverted_cdf") / 1e3
    assert exact_us / 2**0.26 <= estimated(spans, share) <= exact_us * 2**0.26


@given(rows=st.lists(st.integers(0, 9), max_size=60), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_calls_are_counted_once_and_for_their_op(rows: list[int], cuts: list[int]) -> None:
    trace, row_of = Trace(64), np.arange(10)[::-1].copy()
    row_of[3] = -1  # no op
    latencies = Latencies(trace, row_of)
    told: set[int] = set()
    for at, node in enumerate(rows):
        if at in cuts:
            told |= set(latencies.advance().tolist())
        trace.add(10**9, 1000 * 2**node, node, at)
    told |= set(latencies.advance().tolist())
    assert told == {9 - node for node in rows if node != 3}
    assert latencies.advance().tolist() == []
    for row in told:
        median_us = float(latencies.estimate_us(np.array([row]), 0.5)[0][0])
        assert 2 ** (9 - row) / 2**0.26 <= median_us <= 2 ** (9 - row) * 2**0.26


def test_failed_calls_do_not_count() -> None:
    trace = Trace(64)
    trace.add(10**9, 1_000, 0, 0)
    for frame in range(30):
        trace.add_failed(10**9, 1_000_000, 0, frame, "ValueError")
    latencies = Latencies(trace, np.zeros(1, np.int64))
    latencies.advance()
    assert float(latencies.estimate_us(np.zeros(1, np.int64), 0.99)[0][0]) < 2


def test_what_is_recent_counts_more() -> None:
    trace = Trace(1 << 14)
    latencies = Latencies(trace, np.zeros(1, np.int64))
    for span in (1_000_000, 1_000):
        for _ in range(4):
            for _ in range(5_000):
                trace.add(10**9, span, 0, 0)
            latencies.advance()
    assert float(latencies.estimate_us(np.zeros(1, np.int64), 0.5)[0][0]) < 2


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(telemetry, "_MAX_OPS", 300)
    trace = Trace(1024)
    latencies = Latencies(trace, np.arange(1000))
    for node in range(1000):
        trace.add(10**9, 1000, node, 0)
    assert len(latencies.advance()) == 300
    assert latencies._counts.shape[0] == 300
