"""Records of a structure that was seen before are computed by a tape: the same values, errors and counts."""

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import actorflow as af
import actorflow.array as xp
from actorflow.array.jobs import Run
from actorflow.core import desk
from actorflow.plan import fuse
from tests.support.numbers import with_specials as numbers

#: The last ones are large enough for loops.
SHAPES = [(3, 4), (0, 5), (1, 200), (96, 96), (128, 65)]
Step = tuple[str, int, int]
#: Of values, and of a number that differs from one time to the next.
_OPERATIONS: dict[str, Callable[[Any, Any, Any, int], Any]] = {
    "add": lambda ns, x, y, k: x + y,
    "subtract": lambda ns, x, y, k: x - y * (0.5 * k),
    "multiply": lambda ns, x, y, k: x * y,
    "twice": lambda ns, x, y, k: x * x + x,
    "again": lambda ns, x, y, k: (x * y) - (x * y) + (x + 2.0) * (x + 2.0),
    "chosen": lambda ns, x, y, k: ns.where(x > y, x, y) * ns.astype(x > 0.0, x.dtype),
    "larger": lambda ns, x, y, k: ns.maximum(x, 0.0) + ns.minimum(y, float(k)),
    "root": lambda ns, x, y, k: ns.sqrt(ns.abs(x)) / y,
    "exp": lambda ns, x, y, k: ns.exp(x) - 1.0,
    "centred": lambda ns, x, y, k: x - ns.sum(x, axis=-1, keepdims=True),
    "whole": lambda ns, x, y, k: x - ns.sum(x) * ns.sum(y * y, axis=0, keepdims=True),
    "row": lambda ns, x, y, k: x + y[:1, :] * 2.0 if len(y) else x,
    "rolled": lambda ns, x, y, k: ns.concat([x[k:, :], x[:k, :]], axis=0),
    "part": lambda ns, x, y, k: x + x[min(k, max(len(x) - 1, 0)) :, :][:1, :] if len(x) else x,
    "turned": lambda ns, x, y, k: ns.matrix_transpose(ns.matrix_transpose(x) + 1.0),
    "product": lambda ns, x, y, k: ns.matmul(x, ns.matmul(ns.matrix_transpose(y), x)),
    "flat": lambda ns, x, y, k: ns.reshape(ns.reshape(x, (-1,)) * 3.0, x.shape),
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The sequences whose structure was known."""
    found: list[Any] = []
    compute = Run.compute

    def noted(self: Any) -> None:
        found.append(self)
        compute(self)

    monkeypatch.setattr(Run, "compute", noted)
    yield found
    found.clear()


def run(program: list[Step], values: list[Any], k: int, drop: bool) -> list[Any]:
    values = [*values]
    for name, i, j in program:
        values.append(_OPERATIONS[name](xp, values[i], values[j], k))
    return values[-1:] if drop else values[2:]


def same_bits(x: Any, y: Any) -> None:
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    np.testing.assert_array_equal(x, y)
    is_number = ~np.isnan(x)  # which NaN it is differs between NumPy's own loops
    np.testing.assert_array_equal(np.signbit(x) & is_number, np.signbit(y) & is_number)


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    names = st.sampled_from([*_OPERATIONS])
    count = draw(st.integers(1, 7))
    return [(draw(names), draw(st.integers(0, i + 1)), draw(st.integers(0, i + 1))) for i in range(count)]


#: A product with the transpose of an equal array, which BLAS adds up in another order than that of one with its own.
_EQUAL = [*[("add", 0, 0)] * 4, ("product", 2, 3), ("add", 0, 6), ("add", 0, 7)]
#: The same behind views and a step that may be one, and products that are equal but for that.
_EQUAL_PARTS = [*[("add", 0, 0)] * 2, ("turned", 2, 0), ("turned", 3, 0), ("product", 4, 5), ("product", 4, 4)]


@example(_EQUAL, (96, 96), "float32", False, False)
@example(_EQUAL, (128, 65), "float64", False, True)
@example(_EQUAL_PARTS, (96, 96), "float32", False, False)
@settings(max_examples=settings.default.max_examples // 4)
@given(programs(), st.sampled_from(SHAPES), st.sampled_from(["float32", "float64"]), st.booleans(), st.booleans())
def test_what_comes_again_has_the_values_of_each_operation_by_itself(
    program: list[Step], shape: tuple[int, ...], dtype: str, specials: bool, drop: bool
) -> None:
    for k in range(3):
        others = numbers(shape, dtype, 10 + k, specials)
        # Twice the same array, parts of one, another order in memory: other structures, or the same on other arrays.
        pairs = [(numbers(shape, dtype, k, specials), others), (others, None), (others.T.copy().T, others[::-1])]
        for a, b in pairs:
            results = []
            for options in ({"sequential": True}, {"run_ahead": False}):
                with xp.session(**options):
                    x = xp.asarray(a)
                    found = run(program, [x, x if b is None else xp.asarray(b)], k, drop)
                    xp.wait_for_all()
                    results.append([each.to_numpy() for each in found])
            for one, other in zip(*results, strict=True):
                same_bits(one, other)


@pytest.mark.parametrize("shape", [(96, 96), (300, 40)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loops_compute_what_numpy_does(
    shape: tuple[int, ...], dtype: str, known: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse, "LARGE_BYTES", 0)

    def step(ns: Any, x: Any, y: Any, rate: float) -> Any:
        h = ns.maximum(x * y + y[0, :], 0.0)
        return x - rate * (h * ns.astype(h > 0.5, h.dtype)) / (ns.sqrt(ns.abs(y)) + 0.25)

    for k in range(4):
        a, b = numbers(shape, dtype, k, True), numbers(shape, dtype, k + 10, True)
        with np.errstate(all="ignore"):
            expected = step(np, a, b, 0.1 * k)
        with xp.session(run_ahead=False):
            same_bits(step(xp, xp.asarray(a), xp.asarray(b), 0.1 * k).to_numpy(), expected)
            same_bits(step(xp, xp.asarray(a.T.copy()).mT, xp.asarray(b), 0.1 * k).to_numpy(), expected)
    assert any("+" in name for unit in known for name in _names(unit))


def _names(unit: Any) -> list[str]:
    return [op.what for op in unit.structure.program.program.ops]


def train(ns: Any, x: Any, weights: list[Any], steps: int, rate: float) -> list[Any]:
    w, b = weights
    for k in range(steps):
        part = x[8 * k : 8 * k + 8, :]
        h = ns.tanh(ns.matmul(part, w) + b)
        g = (h - 0.5) * (1.0 - h * h)
        norm = ns.sqrt(ns.sum(g * g) + 1e-6)
        scaled = g / norm * (rate / (1.0 + k))
        w = w - ns.matmul(ns.matrix_transpose(part), scaled)
        b = b - ns.sum(scaled, axis=0) * 2.0
    return [w, b]


def test_steps_of_a_loop_are_sequences_of_one_structure(known: list[Any]) -> None:
    x, w, b = numbers((200, 5), "float32", 0, False), numbers((5, 3), "float32", 1, False), np.zeros(3, np.float32)
    for steps in (25, 24, 11):
        expected = train(np, x, [w, b], steps, 0.1)
        with xp.session(run_ahead=False) as session:
            found = train(xp, xp.asarray(x), [xp.asarray(w), xp.asarray(b)], steps, 0.1)
            xp.wait_for_all()
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one.to_numpy(), other, rtol=1e-5)
            counts = {name: profile.calls for name, profile in session.profile.items()}
            assert counts["matmul"] == 2 * steps
            assert counts["tanh"] == counts["getitem"] == steps
            assert session.computed == sum(counts.values())
    assert len({id(unit.structure) for unit in known}) < 10
    assert len(known) > 40


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("of_first_step", [False, True])
def test_what_does_not_change_in_a_loop_is_computed_once(turned: bool, of_first_step: bool) -> None:
    a = numbers((6, 6), "float32", 0, False)

    def steps(ns: Any, x: Any) -> Any:
        w = kept = x
        for k in range(4):
            for _ in range(16):
                w = ns.tanh(w + k)
            if of_first_step and not k:
                kept = w
            part = ns.matrix_transpose(kept) if turned else kept
            w = w + ns.matmul(part, kept) * 0.01  # the product is the same in each step
        return w

    with xp.session(run_ahead=False) as session:
        np.testing.assert_allclose(steps(xp, xp.asarray(a)).to_numpy(), steps(np, a), rtol=1e-5)
        assert session.profile["matmul"].calls == 1
        assert session.profile["tanh"].calls == 64


def test_counts_are_those_of_operations_one_by_one(known: list[Any]) -> None:
    def step(x: Any, scale: float) -> Any:
        y = xp.exp(x) * scale
        return (y + xp.exp(x) * scale) - xp.sum(y) + (x * scale) * (x * scale)

    expected: dict[str, int] = {}
    for k in range(1, 6):
        with xp.session(run_ahead=False) as session:
            step(xp.asarray(np.arange(3.0) * k), 0.5 * k).wait()
            counts = {name: profile.calls for name, profile in session.profile.items()}
            expected = expected or {**counts, "computed": session.computed, "shared": session.shared}
            assert {**counts, "computed": session.computed, "shared": session.shared} == expected
    assert expected["shared"] == 3
    assert len(known) == 4


def test_values_that_are_asked_for_one_by_one_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "placing", None)
    a = np.arange(530_000.0)  # too much to be computed in the line
    with xp.session():
        x = xp.asarray(a)
        found = [x + 1.0, x * 2.0, x - 3.0]
        assert not any(each._node.done for each in found)
        found[1].wait()
        assert all(each._node.done for each in found)
    with xp.session(run_ahead=False):
        x = xp.asarray(a)
        found = [x + 1.0, x * 2.0, x - 3.0]
        found[1].wait()
        assert [each._node.done for each in found] == [False, True, False]


def test_what_fails_is_named_with_its_line_and_the_rest_is_computed(known: list[Any]) -> None:
    def step(x: Any) -> tuple[Any, Any, Any]:
        other = xp.sum(x * 2.0) + 1.0
        inverse = xp.linalg.inv(x)
        return other, inverse, inverse + 1.0

    for k in range(6):
        matrix = np.zeros((3, 3)) if k % 2 else np.eye(3) * (k + 1)
        with xp.session(run_ahead=False) as session:
            other, inverse, more = step(xp.asarray(matrix))
            xp.wait_for_all()
            assert float(other) == 2.0 * matrix.sum() + 1.0
            assert session.profile["inv"].failed == k % 2
            if k % 2 == 0:
                np.testing.assert_array_equal(more.to_numpy(), np.linalg.inv(matrix) + 1.0)
                continue
            for each in (inverse, more):
                with pytest.raises(af.OpError, match=r"op 'inv'.*Singular") as caught:
                    each.wait()
                assert f":{step.__code__.co_firstlineno + 2} in step" in str(caught.value)
    assert len(known) > 3


def test_a_missing_value_fails_only_what_reads_it(known: list[Any]) -> None:
    for k in range(3):
        with xp.session(run_ahead=False):
            broken = xp.linalg.inv(xp.asarray(np.zeros((2, 2))))
            with pytest.raises(af.OpError):
                broken.wait()
            x = xp.asarray(np.full((2, 2), float(k)))
            good, bad = (x + 1.0) * 3.0 - x, (broken + 1.0) * x
            xp.wait_for_all()
            assert good.to_numpy().tolist() == [[2.0 * k + 3.0] * 2] * 2
            with pytest.raises(af.OpError, match="'inv'"):
                bad.wait()
    assert len(known) == 2


def test_nothing_is_kept_alive() -> None:
    refs: list[weakref.ref[Any]] = []
    with xp.session(run_ahead=False):
        for k in range(4):
            x, y = xp.asarray(np.full((300, 300), float(k))), xp.asarray(np.ones(300))
            found = [(x + y) * 2.0 - x, xp.sum(x * y, axis=0), xp.matrix_transpose(x)[:3, :]]
            xp.wait_for_all()
            refs += [weakref.ref(each._node) for each in (x, y, *found)]
            refs += [weakref.ref(each._node.value) for each in (x, y, *found)]
        del x, y, found
        gc.collect()
        assert all(ref() is None for ref in refs)


def test_a_small_part_of_a_large_value_does_not_keep_it() -> None:
    with xp.session(run_ahead=False):
        for k in range(3):
            x = xp.asarray(np.full((700, 600), float(k)))
            part = (x + 1.0)[: 40 + k * 100, :]
            (part + 1.0).wait()
            xp.wait_for_all()
            base = part._node.value.base
            assert base is None or base.nbytes < 2 * part.nbytes
            assert part[0, 0].item() == k + 1.0


def test_random_numbers_are_drawn_anew_each_time_and_again_with_a_seed(known: list[Any]) -> None:
    def step(x: Any, **seed: int) -> Any:
        drawn = xp.randn((3, 4), **seed) * x + 1.0
        return drawn - xp.sum(x) if seed else drawn * xp.nn.dropout(x, 0.5) - xp.sum(x)

    free, seeded = [], []
    for _ in range(4):
        with xp.session(run_ahead=False):
            x = xp.asarray(np.arange(12.0).reshape(3, 4))
            free.append(step(x).to_numpy().tolist())
            seeded.append(step(x, seed=3).to_numpy().tolist())
    assert len({str(each) for each in free}) == 4
    assert len({str(each) for each in seeded}) == 1
    assert known


def test_zeros_of_both_signs_are_other_parameters() -> None:
    for start in (0.0, -0.0, 0.0, -0.0, -0.0, 0.0):
        with xp.session(run_ahead=False):
            x, y = xp.arange(start, 3.0), xp.arange(-start, 3.0)
            found = [x * 1.0, (x * start) - x, xp.full((2,), start) * y[:2], y * 1.0]
            xp.wait_for_all()
            one, other = np.arange(start, 3.0), np.arange(-start, 3.0)
            expected = [one, one * start - one, np.full(2, start) * other[:2], other]
            for each, own in zip(found, expected, strict=True):
                same_bits(each.to_numpy(), own)


def test_which_values_are_wanted_is_part_of_a_structure(known: list[Any]) -> None:
    for held in (0, 0, 1, 1, 2, 2, 0, 3, 3):
        with xp.session(run_ahead=False):
            x = xp.asarray(np.arange(4.0))
            values = [x + 1.0]
            values.append(values[0] * 2.0)
            values.append(xp.exp(values[1]))
            values.append(values[2] - values[0])
            last, mine = values[3] * 0.5, values[held]
            del values
            xp.wait_for_all()
            one = np.arange(4.0) + 1.0
            expected = [one, one * 2.0, np.exp(one * 2.0), np.exp(one * 2.0) - one]
            same_bits(mine.to_numpy(), expected[held])
            same_bits(last.to_numpy(), expected[3] * 0.5)
    assert len(known) == 5


def test_loops_tell_numbers_rows_columns_and_whole_arrays_apart(known: list[Any]) -> None:
    x = numbers((130, 130), "float32", 0, False)
    for _ in range(3):
        for shape in [(), (1,), (130,), (1, 130), (130, 1), (130, 130), (1, 1)]:
            y = numbers(shape, "float32", 1, False)
            with xp.session(run_ahead=False):
                a, b = xp.asarray(x), xp.asarray(y)
                same_bits((((a + b) * b - a) / (a * 2.0 + b)).to_numpy(), ((x + y) * y - x) / (x * np.float32(2.0) + y))
    assert len(known) == 14


def test_threads_share_structures() -> None:
    def work(seed: int) -> bool:
        x = numbers((300, 70), "float32", seed, False)
        w, b = numbers((70, 9), "float32", seed + 1, False), np.zeros(9, np.float32)
        with xp.session(run_ahead=bool(seed % 2)):
            found = [each.to_numpy() for each in train(xp, xp.asarray(x), [xp.asarray(w), xp.asarray(b)], 30, 0.1)]
        with xp.session(sequential=True):
            own = [each.to_numpy() for each in train(xp, xp.asarray(x), [xp.asarray(w), xp.asarray(b)], 30, 0.1)]
        return all(np.array_equal(one, other) for one, other in zip(found, own, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))


def test_what_a_step_keeps_for_later_does_not_keep_the_steps_before_it_from_programs(known: list[Any]) -> None:
    """Of the last step some results are kept that nobody has asked for yet."""

    def loss(weights: Any, x: Any, y: Any) -> Any:
        w, v, b = weights
        return xp.mean(xp.square(xp.tanh(x @ w) @ v + b - y))

    both = {cache: af.value_and_grad(loss, cache=cache) for cache in (True, False)}
    x, y = numbers((300, 20), "float32", 0, False), numbers((300, 9), "float32", 1, False)
    steps, found = 12, {}
    for cache in (False, True):
        for _ in range(4):
            known.clear()
            with xp.session(run_ahead=False):
                weights = [xp.asarray(numbers(s, "float32", 2, False)) for s in ((20, 30), (30, 9), (9,))]
                a, b = xp.asarray(x), xp.asarray(y)
                for _ in range(steps):
                    _, slopes = both[cache](weights, a[:, :], b[:, :])
                    weights = [w - 0.1 * g for w, g in zip(weights, slopes, strict=True)]
                found[cache] = [each.to_numpy() for each in weights]
    for one, other in zip(found[True], found[False], strict=True):
        same_bits(one, other)
    assert known
