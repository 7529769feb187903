"""Choices by scores, and the numbers that draw them."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from tests.operations.table import SINGLE_AND_DOUBLE, Make, Row, Sample, call, composed, integers, refused


def _mixed(bits: Any) -> Any:
    """splitmix64 with the signed integers that torch has."""

    def moved(x: Any, count: int) -> Any:
        return (x >> count) & ((1 << (64 - count)) - 1)

    for count, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ moved(bits, count)) * (factor - (1 << 64))
    return bits ^ moved(bits, 31)


def _uniform(torch: Any, seed: Any, position: Any) -> Any:
    apart = 0x9E3779B97F4A7C15 - (1 << 64)
    bits = _mixed(_mixed(seed + apart) + position * apart)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _chosen(scores: Any, random: Any = None, *rows: Any, **given: Any) -> Any:
    """One choice after the other, as it is said: of those left, by the sum of their probabilities."""
    if random is None:
        return scores.argmax(-1)
    found, width = np.empty(random.shape, np.int64), scores.shape[-1]
    names = [name for name in ("temperature", "top_k", "top_p") if rows and given.get(name) is None]
    for at in np.ndindex(random.shape):
        how = {"temperature": 1.0, "top_k": width, "top_p": 1.0, **given}
        how |= {name: each[at] for name, each in zip(names, rows, strict=True)}
        x = scores[at].astype("f8")
        if how["temperature"] == 0:
            found[at] = x.argmax()
            continue
        shares = np.exp((x - x.max()) / how["temperature"])
        order = np.argsort(-shares, stable=True)
        ranked = shares[order]
        ranked[how["top_k"] :] = 0
        ranked[ranked.cumsum() - ranked >= how["top_p"] * ranked.sum()] = 0
        shares[order] = ranked
        found[at] = np.searchsorted(shares.cumsum(), random[at] * shares.sum(), side="right")
    return found


def _sample(torch: Any, *tensors: Any, **given: Any) -> Any:
    return torch.from_numpy(np.asarray(_chosen(*[each.numpy() for each in tensors], **given)))


def _drawn(*shape: int, settings: str = "") -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        front = shape[:-1]
        more = {
            "t": lambda: random.choice([0.0, 0.5, 2.0], front),
            "k": lambda: random.integers(1, shape[-1] + 1, front),
            "p": lambda: random.uniform(0.2, 1.0, front),
        }
        # Few different ones, so that rounding decides nothing.
        numbers = random.integers(0, 1000, front) / 1000 + 0.0005
        return [random.standard_normal(shape), numbers, *[more[each]() for each in settings]]

    return make


def _by_rows(x: Any, random: Any, t: Any, k: Any, p: Any) -> Any:
    return ops.sample(x, random, temperature=t, top_k=k, top_p=p)


ROWS = [
    composed(
        "ops.uniform_at",
        _uniform,
        call(ops.uniform_at, integers((2, 3), (3,), high=1 << 40)),
        call(ops.uniform_at, lambda random: [random.integers(-(1 << 62), 1 << 62, 4), np.arange(3)[:, np.newaxis]]),
        differentiable=False,
    ),
    Row(
        ops.Sample,
        [
            Sample(ops.Sample(), _drawn(4, 7)),
            Sample(ops.Sample(0.5, 3), _drawn(2, 3, 5)),
            Sample(ops.Sample(2.0, top_p=0.6), _drawn(5)),
            Sample(ops.Sample(None, None, None), _drawn(6, 9, settings="tkp")),
        ],
        numpy=_chosen,
        without={"torch": "it has no such operation"},
        dtypes=SINGLE_AND_DOUBLE,
        particular=True,
        onnx="CumSum",
    ),
    composed(
        "ops.sample",
        _sample,
        call(ops.sample, _drawn(4, 7)),
        call(ops.sample, _drawn(2, 3, 5), temperature=0.5, top_k=3),
        call(ops.sample, _drawn(5), temperature=2.0, top_p=0.6),
        call(_by_rows, _drawn(6, 9, settings="tkp")),
        call(ops.sample, lambda random: [random.standard_normal((3, 4))]),
        call(ops.sample, _drawn(3, 4), temperature=0.0),
        differentiable=False,
    ),
]

_CUBE = (2, 3, 4)

WRONG = [
    *refused(
        af.DTypeError,
        (ops.uniform_at, [("int32", 2), ("int64", 2)], "uniform_at: seed must be int64"),
        (ops.sample, [("int64", 2, 3)], "sample: scores must be floating, with an axis"),
        (ops.sample, [_CUBE, ("int64", 2, 3)], "sample: random must be floating"),
        (lambda x, r, k: ops.sample(x, r, top_k=k), [_CUBE, (2, 3), (2, 3)], "sample: top_k must be integers"),
    ),
    *refused(
        af.ShapeError,
        (ops.sample, [_CUBE, (3,)], r"sample: random must have shape \(2, 3\)"),
        (lambda x, r, t: ops.sample(x, r, temperature=t), [_CUBE, (2, 3), (2,)], "sample: temperature must have shape"),
    ),
]
