"""Random programs of arrays, against the same programs in NumPy."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import actorflow.array as xp

PROGRAMS = settings(max_examples=max(24, settings.default.max_examples // 4))
#: Small ones are computed as they are, large ones in blocks, by several threads, in buffers that are used again.
LENGTHS = (3, 70_000)
ROWS = 4

Step = Callable[[Any, dict[int, Any], Callable[[Any], Any]], None]


def _binary(name: str, a: int, b: int, out: int) -> Step:
    return lambda ns, env, value: env.__setitem__(out, getattr(ns, name)(env[a], env[b]))


UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "copy": lambda ns, x: ns.asarray(x, copy=True),
    "negative": lambda ns, x: ns.negative(x),
    "square_less": lambda ns, x: ns.square(x) / 8.0 - 1.0,
    "clip": lambda ns, x: ns.clip(x, -2.0, 2.0),
    "halve": lambda ns, x: x * 0.5 + 1.0,
    "where": lambda ns, x: ns.where(x > 0, x, x * -0.25),
    "flip": lambda ns, x: ns.flip(x, axis=1),
    "reversed": lambda ns, x: x[:, ::-1] + 0.0,
    "first": lambda ns, x: ns.broadcast_to(x[0, :], x.shape) + 0.0,
    "round_trip": lambda ns, x: ns.reshape(ns.reshape(x, (-1,)), x.shape),
    "turned": lambda ns, x: ns.matrix_transpose(ns.matrix_transpose(x) * 2.0),
    "centred": lambda ns, x: x - ns.mean(x, axis=1, keepdims=True),
    "scaled": lambda ns, x: x / (1.0 + ns.max(ns.abs(x))),
    "total": lambda ns, x: x + ns.sum(x > 0, axis=0, keepdims=True) * 0.125,
    "rolled": lambda ns, x: ns.roll(x, 1, axis=1),
}


def _unary(name: str, a: int, out: int) -> Step:
    return lambda ns, env, value: env.__setitem__(out, UNARY[name](ns, env[a]))


def _in_place(symbol: str, a: int, b: int) -> Step:
    def step(ns: Any, env: dict[int, Any], value: Any) -> None:
        if symbol == "+":
            env[a] += env[b]
        elif symbol == "-":
            env[a] -= 0.5
        else:
            env[a] *= 0.5

    return step


def _assign(a: int, b: int, key: str) -> Step:
    def step(ns: Any, env: dict[int, Any], value: Any) -> None:
        x = env[a]
        if key == "row":
            x[1, :] = env[b][2, :]
        elif key == "number":
            x[:, 1:] = 3.0
        elif key == "mask":
            x[x > 1.0] = -1.0
        else:
            x[...] = env[b]

    return step


def _forget(a: int, b: int) -> Step:
    return lambda ns, env, value: env.__setitem__(a, value(env[b]))


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Step, int | None]]:
    """Steps, each with the array that is forced after it, if one is."""
    steps: list[tuple[Step, int | None]] = []
    slot = st.integers(0, 3)
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(("unary", "unary", "binary", "in_place", "assign", "forget")))
        a, b, out = draw(slot), draw(slot), draw(slot)
        if kind == "unary":
            step = _unary(draw(st.sampled_from([*UNARY])), a, out)
        elif kind == "binary":
            step = _binary(draw(st.sampled_from(("add", "subtract", "maximum", "minimum"))), a, b, out)
        elif kind == "in_place":
            step = _in_place(draw(st.sampled_from("+-*")), a, b)
        elif kind == "assign":
            step = _assign(a, b, draw(st.sampled_from(("row", "number", "mask", "all"))))
        else:
            step = _forget(a, b)
        steps.append((step, draw(st.one_of(st.none(), st.none(), slot))))
    return steps


def start(length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal((ROWS, length)) for _ in range(4)]


def in_numpy(steps: list[tuple[Step, int | None]], length: int) -> list[np.ndarray]:
    """The program in NumPy, where each result is a value of its own."""
    env = dict(enumerate(start(length)))
    for step, _ in steps:
        step(np, env, np.copy)
        for i, value in env.items():
            env[i] = np.array(value)
    return [env[i] for i in range(4)]


def in_arrays(steps: list[tuple[Step, int | None]], length: int, values: list[xp.Array] | None = None) -> Any:
    env: dict[int, Any] = dict(enumerate(values or [xp.asarray(value) for value in start(length)]))
    env = {i: xp.asarray(x, copy=True) for i, x in env.items()}
    for step, forced in steps:
        step(xp, env, lambda x: xp.asarray(x, copy=True))
        # NumPy's program copies after each step: two names are two values.
        names: dict[int, int] = {}
        for i, x in env.items():
            if id(x) in names:
                env[i] = xp.asarray(x, copy=True)
            names[id(x)] = i
        if forced is not None:
            env[forced].wait()
    return [env[i] for i in range(4)]


async def awaited(steps: list[tuple[Step, int | None]], values: list[xp.Array]) -> list[np.ndarray]:
    """The results of `in_arrays`, by a coroutine that awaits what the program forces."""
    env: dict[int, Any] = {i: xp.asarray(x, copy=True) for i, x in enumerate(values)}
    for step, forced in steps:
        step(xp, env, lambda x: xp.asarray(x, copy=True))
        env = {i: xp.asarray(x, copy=True) if i else x for i, x in env.items()}
        if forced is not None:
            await env[forced]
    return [await env.pop(i) for i in range(4)]


def check(found: list[xp.Array], expected: list[np.ndarray]) -> None:
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.to_numpy(), its, rtol=1e-9, atol=1e-9)


@PROGRAMS
@given(programs(), st.sampled_from(LENGTHS), st.sampled_from(({}, {"run_ahead": False}, {"sequential": True})))
def test_programs_compute_what_numpy_computes(steps: Any, length: int, modes: dict[str, bool]) -> None:
    expected = in_numpy(steps, length)
    with xp.session(**modes):
        check(in_arrays(steps, length), expected)


@pytest.mark.slow
@PROGRAMS
@given(programs())
def test_programs_do_so_within_a_budget(steps: Any) -> None:
    length = LENGTHS[1]
    expected = in_numpy(steps, length)
    one = ROWS * length * 8
    with xp.session(memory_budget=24 * one) as session:
        check(in_arrays(steps, length), expected)
        assert session.peak_bytes <= 24 * one


@settings(PROGRAMS, max_examples=PROGRAMS.max_examples // 3)
@given(st.lists(programs(), min_size=2, max_size=4))
def test_threads_record_programs_on_the_same_arrays(several: list[Any]) -> None:
    length = LENGTHS[1] if len(several) == 2 else LENGTHS[0]
    expected = [in_numpy(steps, length) for steps in several]
    with xp.session():
        shared = [xp.asarray(value) + 0.0 for value in start(length)]

        def work(number: int) -> None:
            check(in_arrays(several[number], length, shared), expected[number])

        with ThreadPoolExecutor(len(several)) as pool:
            list(pool.map(work, range(len(several))))


@settings(PROGRAMS, max_examples=PROGRAMS.max_examples // 4)
@given(
    st.lists(programs(), min_size=2, max_size=4),
    st.sampled_from(({}, {"run_ahead": False}, {"memory_budget": 100 * ROWS * LENGTHS[1] * 8})),
)
def test_coroutines_await_programs_on_the_same_arrays(several: list[Any], modes: dict[str, Any]) -> None:
    length = LENGTHS[1] if len(several) == 2 else LENGTHS[0]

    async def main() -> list[list[np.ndarray]]:
        shared = [xp.asarray(value) + 0.0 for value in start(length)]
        return await asyncio.gather(*[awaited(steps, shared) for steps in several])

    with xp.session(**modes):
        found = asyncio.run(main())
    for steps, values in zip(several, found, strict=True):
        for mine, its in zip(values, in_numpy(steps, length), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@PROGRAMS
@given(programs(), st.sampled_from(LENGTHS), st.integers(0, 3))
def test_programs_that_delete_what_they_do_not_need(steps: Any, length: int, kept: int) -> None:
    """Only one result is looked at; the others are gone before anything is computed."""
    expected = in_numpy(steps, length)
    with xp.session(run_ahead=False) as session:
        found = in_arrays([(step, None) for step, _ in steps], length)
        x = found[kept]
        del found
        xp.wait_for_all()
        computed = session.computed
        check([x], [expected[kept]])
        assert session.computed == computed
