"""Arrays on devices, tried on the simulated accelerator, which finds work that is not ordered."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import actorflow as af
import actorflow.array as xp
from actorflow.array import Session
from actorflow.array.jobs import Run
from actorflow.devices.team import team
from tests.array.test_random_programs import LENGTHS, PROGRAMS, check, in_numpy, programs, start

PLACES = ("cpu", "sim:0", "sim:1")


def graphs(session: Session) -> list[list[str]]:
    """The kinds of the steps of the graphs that were made, without those that give views or move values."""
    assert session.service is not None
    made: list[Any] = [*session.service.graphs.values()]
    kinds = [[op.operation.kind for op in compiled.graph.compile(compiled.fetched).ops] for compiled in made]
    return [[kind for kind in of_graph if kind not in ("Reshape", "Transfer")] for of_graph in kinds]


# -- where arrays are ---------------------------------------------------------------------------------------------


def test_an_array_lives_where_it_was_copied_to_and_so_do_results(lazy: Session) -> None:
    x = xp.asarray([1.0, 2.0])
    y = x.to_device("sim:0")
    z = xp.sqrt(y * y + 1.0)
    assert [str(each.device) for each in (x, y, z)] == ["cpu", "sim:0", "sim:0"]
    assert y.to_device("sim:0") is y
    assert lazy.computed == 0
    np.testing.assert_array_equal(z.to_numpy(), np.sqrt([2.0, 5.0]))
    np.testing.assert_array_equal(z.to_device("sim:1").to_device("cpu").to_numpy(), np.sqrt([2.0, 5.0]))
    assert y.to_device(z.device).device == af.Place.parse("sim:0")


@pytest.mark.together(
    ("make", "value"),
    [
        (lambda **where: xp.asarray([[1, 2]], **where), [[1, 2]]),
        (lambda **where: xp.asarray(xp.asarray([1.5]), **where), [1.5]),
        (lambda **where: xp.zeros((2, 3), **where), np.zeros((2, 3))),
        (lambda **where: xp.full((2,), 3, dtype=xp.int8, **where), [3, 3]),
        (lambda **where: xp.ones_like(xp.asarray([1.5]), **where), [1.0]),
        (lambda **where: xp.arange(3, **where), [0, 1, 2]),
        (lambda **where: xp.linspace(0, 1, 3, **where), [0, 0.5, 1]),
        (lambda **where: xp.eye(2, **where), np.eye(2)),
        (lambda **where: xp.from_dlpack(np.arange(2.0), **where), [0, 1]),
        (lambda **where: xp.fft.fftfreq(4, **where), np.fft.fftfreq(4)),
        (lambda **where: xp.astype(xp.asarray([1.5]), xp.int32, **where), [1]),
    ],
)
def test_arrays_are_made_where_it_is_said(make: Any, value: Any) -> None:
    there = make(device="sim:1")
    assert there.device == af.Place.parse("sim:1")
    assert make().device == af.Place()
    for x in (there, make()):
        np.testing.assert_array_equal(x.to_numpy(), value)


def test_at_says_where_what_is_made_and_recorded_inside_lives() -> None:
    x = xp.asarray([4.0, 9.0])
    with xp.at("sim:0"):
        assert xp.__array_namespace_info__().default_device() == af.Place.parse("sim:0")
        y = xp.sqrt(x) + xp.asarray(1.0) + xp.randn((2,), seed=1) * 0
        with xp.at("cpu"):
            z = y * 2
        n = xp.asarray(2.0) * xp.asarray(3.0)
    assert [str(each.device) for each in (x, y, z, n)] == ["cpu", "sim:0", "cpu", "sim:0"]
    assert xp.zeros(2).device == af.Place()
    np.testing.assert_array_equal(z.to_numpy(), [6.0, 8.0])
    assert float(n) == 6.0


def test_arrays_of_different_devices_do_not_mix_but_for_numbers() -> None:
    x, y = xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0], device="sim:0")
    with pytest.raises(af.PlaceError, match=r"add: .*float64\[2\] on cpu, float64\[2\] on sim:0.*to_device\('cpu'\)"):
        x + y
    with pytest.raises(af.PlaceError, match="concat"):
        xp.concat([y, y.to_device("sim:1")])
    z = y * xp.asarray(2.0) + 1
    assert z.device == y.device
    assert z.to_numpy().tolist() == [7.0, 9.0]
    with pytest.raises(af.PlaceError, match="different devices"):
        z + xp.asarray(1.0, device="sim:1")


def test_what_changes_an_array_leaves_it_where_it_is() -> None:
    x, y = xp.asarray([[1.0, 2.0], [3.0, 4.0]], device="sim:0"), xp.ones((2, 2))
    with xp.at("sim:1"):
        x += y
        x[0, :] = y[1, :]
    x[x > 4] = 0
    assert x.device == af.Place.parse("sim:0")
    assert x.to_numpy().tolist() == [[1, 1], [4, 0]]


def test_results_whose_shapes_depend_on_values_live_with_the_array() -> None:
    x = xp.asarray([3.0, 1.0, 3.0], device="sim:0")
    found = [x[x > 2], *xp.nonzero(x), xp.unique_values(x), xp.cumulative_sum(x, include_initial=True), x[1]]
    assert {str(each.device) for each in found} == {"sim:0"}
    assert [each.to_numpy().tolist() for each in found] == [[3, 3], [0, 1, 2], [1, 3], [0, 3, 4, 7], 1]


def test_devices_that_are_not_there_are_told_at_once() -> None:
    x = xp.ones(2)
    for attempt in (lambda: x.to_device("abacus:0"), lambda: xp.zeros(2, device="sim:99"), lambda: xp.at("x:1")):
        with pytest.raises(af.DeviceUnavailableError), attempt() or nullcontext():
            pass
    with pytest.raises(af.PlaceError, match="this rank alone"):
        x.to_device("1/cpu")
    with pytest.raises(af.GraphError, match="streams"):
        x.to_device("sim:0", stream=1)
    with pytest.raises(af.GraphError, match="copy=False"):
        xp.asarray(x, device="sim:0", copy=False)


def test_memory_of_a_simulated_device_is_not_shared() -> None:
    x = xp.asarray([1.0], device="sim:0")
    with pytest.raises(BufferError, match="sim:0"):
        np.from_dlpack(x)
    with pytest.raises(BufferError, match="sim:0"):
        x.__dlpack_device__()
    assert np.asarray(x).tolist() == [1.0]


# -- what is computed, and how ------------------------------------------------------------------------------------


def test_a_chain_is_one_kernel(lazy: Session) -> None:
    x = xp.asarray(np.linspace(0, 1, 7), device="sim:0")
    y = xp.where(x > 0.5, xp.exp(-x) * 2.0, xp.sqrt(x) / (x + 1.0))
    total = xp.sum(y)
    expected = np.where(np.linspace(0, 1, 7) > 0.5, np.exp(-np.linspace(0, 1, 7)) * 2, 0)
    np.testing.assert_allclose(y.to_numpy()[4:], expected[4:])
    assert total.device == x.device
    assert graphs(lazy) == [["Fused"]]
    assert [*lazy.profile] == ["to_device", "greater", "negative", "exp", "multiply", "sqrt", "add", "divide", "where"]


def test_a_chain_of_values_that_are_there_copies_nothing_and_leaves_the_cores_to_blas(
    lazy: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = xp.asarray([1.0, 2.0], device="sim:0").wait()
    chain = [((x + 1.0) * x).wait() for _ in range(2)]
    assert chain[0].to_numpy().tolist() == [2.0, 6.0]  # which has opened lanes of the host
    changes: list[Any] = []
    monkeypatch.setattr(team, "_change", lambda **numbers: changes.append(numbers))
    ((x + 1.0) * x).wait()
    assert not changes
    assert lazy.service is not None
    newest: Any = [*lazy.service.graphs.values()][-1]
    assert [op.operation.kind for op in newest.graph.compile(newest.fetched).ops] == ["Fused"]


def test_a_loop_runs_one_graph_again_and_again(lazy: Session) -> None:
    x = xp.asarray(np.eye(3), device="sim:0").wait()
    w = x
    for i in range(20):
        w = x @ w * 0.5 + float(i % 2)
        w.wait()
    made = graphs(lazy)
    assert len(made) == 4  # to copy; for the first turn, x @ x; for each number
    for i in range(20):  # other numbers each time: from some on they are fed
        w = w * (0.5 + i)
        w.wait()
    assert len(graphs(lazy)) <= len(made) + 5


def test_what_a_device_has_no_kernel_for_is_computed_on_the_cpu_in_between() -> None:
    value = np.random.default_rng(0).standard_normal((4, 4))
    x = xp.asarray(value, device="sim:0")
    y = xp.linalg.inv(xp.sort(x + 1.0, axis=0)) * 2.0
    q, r = xp.linalg.qr(y)
    assert {str(each.device) for each in (y, q, r)} == {"sim:0"}
    np.testing.assert_allclose(y.to_numpy(), np.linalg.inv(np.sort(value + 1, axis=0)) * 2, rtol=1e-9)
    np.testing.assert_allclose((q @ r).to_numpy(), y.to_numpy(), rtol=1e-9)
    c = xp.asarray([1 + 2j], device="sim:0") * 1j
    assert c.to_numpy().tolist() == [-2 + 1j]


def test_long_programs_are_divided(lazy: Session) -> None:
    x = xp.zeros((3,), device="sim:0")
    for _ in range(600):
        x = x + 1
    assert x.to_numpy().tolist() == [600.0] * 3
    assert len(graphs(lazy)) > 2


async def test_await_gives_the_value_on_the_cpu() -> None:
    x = xp.asarray([1.0, 2.0], device="sim:0") * 3
    values = await asyncio.gather(_value(x), _value(x + 1))
    assert [value.tolist() for value in values] == [[3, 6], [4, 7]]


async def _value(x: xp.Array) -> Any:
    return await x


def test_gradients_go_back_through_copies() -> None:
    def loss(x: xp.Array, y: xp.Array) -> xp.Array:
        there = x.to_device("sim:0") * 2.0
        return xp.sum((there.to_device("cpu") * y + xp.ones((2, 2))) * y)

    x, y = xp.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([[0.5, 1.0], [1.5, 2.0]])
    found = af.grad(loss, argnums=(0, 1))
    for place in ("cpu", "sim:1"):
        dx, dy = found(x.to_device(place), y)
        np.testing.assert_allclose(dx.to_numpy(), 2 * y.to_numpy() ** 2)
        np.testing.assert_allclose(dy.to_numpy(), 4 * x.to_numpy() * y.to_numpy() + 1)


def test_random_numbers_are_those_of_the_cpu() -> None:
    x = xp.ones((50,), dtype=xp.float32, device="sim:0")
    y = xp.nn.dropout(x, rate=0.5, seed=3)
    assert y.device == x.device
    assert 0 < np.count_nonzero(y.to_numpy()) < 50
    with xp.at("sim:0"):
        drawn = xp.randn((5,), seed=4)
    np.testing.assert_array_equal(drawn.to_numpy(), xp.randn((5,), seed=4).to_numpy())


def test_a_traced_function_may_use_arrays_of_a_device() -> None:
    w = xp.asarray([1.0, 2.0], device="sim:0")
    graph = af.to_graph(lambda x: x.to_device("sim:0") * w, xp.ones(2))
    assert graph.run_sync({"x": [3.0, 4.0]})["result/out"].tolist() == [3.0, 8.0]


# -- failures -----------------------------------------------------------------------------------------------------


def test_errors_name_the_line_that_recorded_the_operation() -> None:
    inverse = xp.linalg.inv(xp.zeros((2, 2), device="sim:0"))
    for x in (inverse + 1.0, (inverse * 2.0).to_device("cpu") - 1.0):
        with pytest.raises(af.OpError) as caught:
            x.wait()
        cause = caught.value.__cause__
        assert cause is not None
        assert isinstance(cause.__cause__, np.linalg.LinAlgError)
        assert "op 'inv'" in str(caught.value)
        assert "argument 0 float64[2, 2] on sim:0" in str(caught.value)
        assert str(caught.value).endswith("in test_errors_name_the_line_that_recorded_the_operation")
    assert (xp.ones((2, 2), device="sim:0") + 1).to_numpy().tolist() == [[2, 2], [2, 2]]  # the others go on


def test_a_failure_is_that_of_what_depends_on_it_alone() -> None:
    with xp.session() as session:
        x = xp.zeros((2, 2), device="sim:0")
        inverse, other = xp.linalg.inv(x), x + 1.0
        xp.wait_for_all()
        assert other.to_numpy().tolist() == [[1, 1], [1, 1]]
        with pytest.raises(af.OpError, match="Singular"):
            inverse.wait()
        (joined,) = [each for name, each in session.profile.items() if "inv" in name]
        assert (joined.calls, joined.failed) == (0, 1)


def test_division_by_zero_is_no_news() -> None:
    x = xp.asarray([1.0, -1.0, 0.0], device="sim:0")
    assert str((x / 0.0).to_numpy().tolist()) == "[inf, -inf, nan]"
    assert (xp.linalg.outer(x, x) * 1e308 @ (x * 1e308)).to_numpy()[0] == np.inf


def test_a_budget_holds_for_each_device() -> None:
    mib = 2**20
    with xp.session(memory_budget=8 * mib) as session:
        total = xp.asarray(0.0, device="sim:0")
        for _ in range(10):
            batch = xp.asarray(np.ones((512, 256)), device="sim:0")  # 1 MiB
            total = total + xp.sum(xp.square(batch) * 2.0)
        assert float(total) == 10 * 2 * 512 * 256
        held = []
        with pytest.raises(af.OutOfMemoryError, match=r"on sim:0: .*needs .* of the budget of 8,388,608 bytes"):
            for _ in range(10):
                held.append((xp.zeros((512, 256), device="sim:0") + 1.0).wait())
        assert 3 <= len(held) < 8
        del held[1:]
        assert float(xp.sum(held[0])) == 512 * 256
        assert session.memory_of(held[0]._node).pool.peak_bytes <= 8 * mib


@pytest.mark.parametrize("uploads", [1, 2, 3, 6, 7])
def test_what_is_computed_together_takes_no_more_of_a_budget_than_line_by_line(uploads: int) -> None:
    """Each upload and what is computed from it takes 3 MiB, and all uploads are begun with the first sum."""
    mib = 2**20
    with xp.session(memory_budget=8 * mib, run_ahead=False) as session:
        total = xp.asarray(0.0, device="sim:0")
        for _ in range(uploads):
            total = total + xp.sum(xp.square(xp.asarray(np.ones((512, 256)), device="sim:0")) * 2.0)
        assert float(total) == uploads * 2 * 512 * 256
        assert session.memory_of(total._node).pool.peak_bytes < 3.1 * mib


def test_uploads_ahead_of_what_has_no_room_leave_it_free() -> None:
    mib = 2**20
    with xp.session(memory_budget=8 * mib, run_ahead=False) as session:
        held = xp.zeros((3 * 512, 256), device="sim:0") + 1.0
        held.wait()
        sums = []
        for i in range(5):
            batch = xp.asarray(np.full((512, 256), float(i)), device="sim:0")
            sums.append(xp.sum(xp.concat([batch] * 5)))
        del batch
        with pytest.raises(af.OutOfMemoryError, match="a new array needs"):
            xp.asarray(np.ones((9 * 512, 256)))  # what was recorded is computed first, and its first sum takes 6 MiB
        assert session.memory_of(held._node).pool.held_bytes < 4.1 * mib
        with pytest.raises(af.OutOfMemoryError, match="on sim:0: concat needs"):
            sums[0].wait()
        del held
        assert [float(each) for each in sums[1:]] == [5.0 * 512 * 256 * i for i in range(1, 5)]


def test_nobody_sees_the_error_of_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that fail together are computed one by one; till then they have no errors."""
    served, seen = Run._served, []

    async def watched(self: Run, service: Any, outputs: Any) -> list[Any]:
        seen.append([self.description.produced[i].error for i in outputs])
        return await served(self, service, outputs)

    monkeypatch.setattr(Run, "_served", watched)
    test_a_device_that_has_no_room_says_so()
    assert len(seen[0]) > 1
    assert not any(error for errors in seen for error in errors)


def test_a_device_that_has_no_room_says_so() -> None:
    with xp.session(devices={"sim:0": af.devices.SimOptions(memory_bytes=1 << 20)}):
        x = xp.ones((1 << 15,), device="sim:0")
        with pytest.raises(af.OutOfMemoryError, match="sim:0 has no room"):
            (xp.broadcast_to(x, (8, 1 << 15)) + 1.0).wait()
        assert float(xp.sum(x)) == 1 << 15


# -- sessions -----------------------------------------------------------------------------------------------------


def test_a_dry_run_checks_and_computes_nothing() -> None:
    with xp.session(dry_run=True) as session:
        x = xp.ones((2, 3), device="sim:0")
        y = x @ xp.ones((3, 2), device="sim:0")
        assert (y.shape, str(y.device)) == ((2, 2), "sim:0")
        with pytest.raises(af.PlaceError):
            y + xp.ones((2, 2))
        with pytest.raises(af.GraphError, match="dry run"):
            y.to_numpy()
    assert session.computed == 0


def test_a_sequential_session_computes_in_the_line() -> None:
    with xp.session(sequential=True) as session:
        x = xp.asarray([1.0], device="sim:0") + 1
        assert x._node.done
        assert list(session.profile) == ["to_device", "add"]
        with pytest.raises(af.OpError, match="inv"):
            xp.linalg.inv(xp.zeros((1, 1), device="sim:0"))


def test_arrays_of_another_session_are_used() -> None:
    x = xp.asarray([1.0, 2.0], device="sim:0").wait()
    with xp.session(capture=True):
        y = xp.asarray([3.0, 4.0], device="sim:0").wait()
        for _ in range(3):
            assert (y * x).to_numpy().tolist() == [3.0, 8.0]


def test_kernels_are_captured_where_that_is_asked_for() -> None:
    with xp.session(capture=True, run_ahead=False) as session:
        x = xp.asarray(np.ones((8, 8)), device="sim:0").wait()
        for _ in range(6):
            y = xp.sum(x, axis=0) * 2.0 + xp.max(x, axis=0)
            np.testing.assert_array_equal(y.to_numpy(), np.full(8, 17.0))
            del y
        assert session.service is not None
        segments = [s for c in session.service.graphs.values() for s in c.graph.engine.segments.values()]
        assert sum(segment.replays for segment in segments) > 0


# -- random programs ----------------------------------------------------------------------------------------------


@st.composite
def placements(draw: st.DrawFn) -> list[tuple[str, int | None, str]]:
    """For each step: where it is computed, what is moved before it, and where to."""
    place = st.sampled_from(PLACES)
    moves = st.tuples(place, st.one_of(st.none(), st.integers(0, 3)), place)
    return draw(st.lists(moves, min_size=14, max_size=14))


def in_places(steps: list[Any], where: list[tuple[str, int | None, str]], values: list[xp.Array]) -> list[xp.Array]:
    env: dict[int, Any] = dict(enumerate(xp.asarray(x, copy=True) for x in values))
    for (step, forced), (place, moved, target) in zip(steps, where, strict=False):
        if moved is not None:
            env[moved] = env[moved].to_device(target)
        with xp.at(place):
            step(xp, env, lambda x: xp.asarray(x, copy=True))
        names: dict[int, int] = {}
        for i, x in env.items():  # two names are two values
            if id(x) in names:
                env[i] = xp.asarray(x, copy=True)
            names[id(x)] = i
        if forced is not None:
            env[forced].wait()
    return [env[i] for i in range(4)]


MODES = ({}, {"run_ahead": False}, {"sequential": True}, {"capture": True}, {"memory_budget": 2**28})


@pytest.mark.slow
@settings(PROGRAMS, max_examples=PROGRAMS.max_examples // 2)
@given(programs(), placements(), st.sampled_from(LENGTHS), st.sampled_from(MODES))
def test_programs_on_devices_compute_what_numpy_computes(steps: Any, where: Any, length: int, modes: Any) -> None:
    expected = in_numpy(steps, length)
    with xp.session(**modes):
        check(in_places(steps, where, [xp.asarray(value) for value in start(length)]), expected)


@settings(PROGRAMS, max_examples=PROGRAMS.max_examples // 8)
@given(st.lists(st.tuples(programs(), placements()), min_size=2, max_size=4))
def test_threads_record_programs_on_the_arrays_of_devices(several: list[Any]) -> None:
    length = LENGTHS[0]
    expected = [in_numpy(steps, length) for steps, _ in several]
    with xp.session():
        shared = [
            xp.asarray(value, device=place) + 0.0 for value, place in zip(start(length), 2 * PLACES, strict=False)
        ]

        def work(number: int) -> None:
            check(in_places(*several[number], shared), expected[number])

        with ThreadPoolExecutor(len(several)) as pool:
            list(pool.map(work, range(len(several))))


# -- what a program does ------------------------------------------------------------------------------------------


def trained(place: str, cache: bool) -> list[Any]:
    """The losses of some steps of training, and the weights behind them."""
    random = np.random.default_rng(0)
    values, labels = random.standard_normal((12, 4)), random.integers(0, 3, 12)

    def loss(weights: dict[str, xp.Array], x: xp.Array, labels: xp.Array) -> xp.Array:
        hidden = xp.nn.relu(x @ weights["first"] + weights["bias"])
        return xp.nn.softmax_loss(hidden @ weights["second"] / 2.0, labels) + 0.01 * xp.sum(weights["first"] ** 2)

    with xp.session(), xp.at(place):
        step = af.value_and_grad(loss, cache=cache)
        x, y = xp.asarray(values), xp.asarray(labels)
        weights = {
            "first": xp.asarray(random.standard_normal((4, 5))),
            "bias": xp.zeros((5,)),
            "second": xp.asarray(random.standard_normal((5, 3))),
        }
        speeds = {name: xp.zeros_like(weight) for name, weight in weights.items()}
        found: list[Any] = []
        for i in range(4):
            value, slopes = step(weights, x, y)
            for name, slope in slopes.items():
                speeds[name] = 0.9 * speeds[name] + slope
                weights[name] = weights[name] - 0.1 / (i + 1) * speeds[name]
            found.append(float(value) if i % 2 else value)
        assert {str(weight.device) for weight in weights.values()} == {place}
        return [*map(float, found), *[weight.to_numpy() for weight in weights.values()]]


@pytest.mark.parametrize("cache", [False, True])
def test_training_is_that_of_the_cpu(cache: bool) -> None:
    for mine, its in zip(trained("sim:0", cache), trained("cpu", cache), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-9)


#: Loss functions with a number in each place that a gradient, or the step behind it, may have one.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "square": lambda w: xp.sum(w * w),
    "only a number": lambda w: xp.sum(w) * 3.0,
    "mean": lambda w: xp.mean(w),
    "one element": lambda w: w[1],
    "power": lambda w: xp.sum(w**3.0) / 2.0,
    "no part": lambda w: xp.sum(xp.asarray([1.0, 2.0])) + 0.0 * xp.sum(w),
    "where": lambda w: xp.sum(xp.where(w > 1.0, w, 2.0)),
    "several results": lambda w: xp.sum(xp.linalg.qr(xp.reshape(w * w + w, (2, 2)) + xp.eye(2))[1]),
    "norm": lambda w: xp.linalg.vector_norm(w),
}


@pytest.mark.together("cache", [False, True], at_once=9)
@pytest.mark.together("loss", LOSSES)
def test_steps_of_any_loss(loss: str, cache: bool) -> None:
    found = {}
    for place in ("cpu", "sim:0"):
        with xp.session(), xp.at(place):
            step = af.value_and_grad(LOSSES[loss], cache=cache)
            w = xp.asarray(np.arange(4.0))
            found[place] = []
            for _ in range(3):
                value, slope = step(w)
                w = w - 0.1 * slope
                found[place] += [float(value), float(slope[0]), w.to_numpy()]
    for mine, its in zip(*found.values(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-9)


def test_parts_of_several_results_may_be_asked_for_one_by_one() -> None:
    value = np.random.default_rng(0).standard_normal((3, 3))
    with xp.session(), xp.at("sim:0"):
        q, r = xp.linalg.qr(xp.asarray(value))
        np.testing.assert_allclose(q.to_numpy(), np.linalg.qr(value)[0])
        np.testing.assert_allclose((r + r).to_numpy(), 2 * np.linalg.qr(value)[1])
        np.testing.assert_allclose(r.to_numpy(), np.linalg.qr(value)[1])


def test_numbers_alone_are_computed_where_they_live() -> None:
    with xp.session(), xp.at("sim:0"):
        moved = (xp.full((), 3.0) * 2.0).to_device("sim:1")
        assert str(moved.device) == "sim:1"
        assert float(moved) == 6.0
