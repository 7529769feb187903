"""Choices by scores, and the numbers that draw them."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from tests.operations.table import Make, call, composed, integers, refused


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


def _sample(
    torch: Any, scores: Any, random: Any = None, heat: Any = None, k: Any = None, p: Any = None, **given: Any
) -> Any:
    """One choice after the other, as it is said: of those left, by the sum of their probabilities."""
    if random is None:
        return scores.argmax(-1)
    found, width = [], scores.shape[-1]
    for i, row in enumerate(scores.reshape(-1, width)):
        settings = {
            name: each.reshape(-1)[i].item() for name, each in (("t", heat), ("k", k), ("p", p)) if each is not None
        }
        t = settings.get("t", given.get("temperature", 1.0))
        k_i, p_i = settings.get("k", given.get("top_k", width)), settings.get("p", given.get("top_p", 1.0))
        if t == 0:
            found.append(row.argmax())
            continue
        shares = torch.softmax(row.double() / t, 0)
        ranked, order = torch.sort(shares, descending=True, stable=True)
        ranked[k_i:] = 0
        ranked[ranked.cumsum(0) - ranked >= p_i * ranked.sum()] = 0
        shares[order] = ranked
        found.append(torch.searchsorted(shares.cumsum(0), random.reshape(-1)[i].double() * shares.sum(), right=True))
    return torch.stack(found).reshape(scores.shape[:-1])


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
