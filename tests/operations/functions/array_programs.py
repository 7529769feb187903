"""Random programs of smooth steps on matrices of one shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.operations.functions.draws import Call, Draws, function


def _written(x: Any, k: int, value: Any) -> Any:
    x[:, k] = value
    return x


#: Steps; ``k`` picks among variants.
STEPS: list[Callable[[Any, Any, Any, int], Any]] = [
    lambda f, x, y, k: x + y * (1.0 + k),
    lambda f, x, y, k: x * y,
    lambda f, x, y, k: x / (2.0 + f.abs(y) ** 3.0),
    lambda f, x, y, k: f.tanh(x) + f.sin(y),
    lambda f, x, y, k: f.where(f.asarray([[True], [False], [k > 1]]), x, y),
    lambda f, x, y, k: f.roll(x, k, axis=k % 2) * y,
    lambda f, x, y, k: f.permute_dims(f.flip(x, axis=k % 2), (1, 0)) @ y,
    lambda f, x, y, k: f.concat([x[k % 3 :, :], y[: k % 3, :]], axis=0),
    lambda f, x, y, k: f.take(x, f.asarray([k % 3, 0, 2]), axis=0) - f.mean(y, axis=k % 2, keepdims=True),
    lambda f, x, y, k: f.cumulative_sum(x, axis=k % 2) * f.logaddexp(x, y),
    lambda f, x, y, k: _written(x * 1.0, k % 3, f.sum(y, axis=1)),
    lambda f, x, y, k: f.broadcast_to(f.sum(x * y, axis=k % 2, keepdims=True), (3, 3)) / 3.0,
    lambda f, x, y, k: f.linalg.solve(f.eye(3) * 9.0 + f.tanh(x), y),
]


def _program(d: Draws) -> Call:
    steps = [(d.one(STEPS), d.whole(0, 5), d.whole(0, 5), d.whole(0, 3)) for _ in range(d.among(*range(7)))]
    return d(d.array(("float64",), (3, 3), small=True), d.array(("float64",), (3, 3), small=True), steps=steps)


def _run(f: Any, *arrays: Any, steps: Any) -> Any:
    known = [*arrays]
    for step, i, j, k in steps:
        known.append(f.tanh(step(f, known[i % len(known)], known[j % len(known)], k)))
    return tuple(known)


ROWS = [function("program", _program, _run)]
