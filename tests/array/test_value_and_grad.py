"""`value_and_grad`: how it calls, traces and differentiates functions: containers, caches, closures, nesting."""

import functools
import gc
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.array.transforms.calls import Arguments
from actorflow.core import desk
from tests.support.numbers import numbers


class Calls:
    """Counts calls of functions that are differentiated."""

    count = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    call = Arguments.call

    def counted(self: Arguments, *args: Any) -> Any:
        found.count += 1
        return call(self, *args)

    monkeypatch.setattr(Arguments, "call", counted)
    return found


class Shown(float):
    def __repr__(self) -> str:
        return "a number"


class Layer(NamedTuple):
    weight: Any
    bias: Any


# -- arguments and results --------------------------------------------------------------------------------------


def test_gradients_have_the_containers_of_the_arguments() -> None:
    weights = {"layers": [Layer(numbers(3, 4), numbers(4, seed=1)), (numbers(4, seed=2), "linear", None)], "rate": 2.0}

    def loss(weights: Any, x: Any) -> Any:
        first, (second, kind, nothing) = weights["layers"]
        assert (kind, nothing) == ("linear", None)
        return xp.sum((x @ first.weight + first.bias) @ second) * weights["rate"]

    x = numbers(5, 3, seed=3)
    value, slopes = af.value_and_grad(loss)(weights, x)
    first, second = weights["layers"][0], weights["layers"][1][0]
    np.testing.assert_allclose(float(value), 2.0 * np.sum((x @ first.weight + first.bias) @ second))
    layer = slopes["layers"][0]
    assert type(layer) is Layer
    np.testing.assert_allclose(layer.weight.to_numpy(), 2.0 * np.outer(x.sum(axis=0), second))
    np.testing.assert_allclose(layer.bias.to_numpy(), 10.0 * second)
    vector, kind, nothing = slopes["layers"][1]
    assert (kind, nothing) == (None, None)
    np.testing.assert_allclose(vector.to_numpy(), 2.0 * (x @ first.weight + first.bias).sum(axis=0))
    np.testing.assert_allclose(float(slopes["rate"]), float(value) / 2.0)


def test_numbers_and_arrays_of_numpy_are_arguments() -> None:
    assert float(af.grad(lambda x: x**3.0)(2.0)) == pytest.approx(12.0)
    slope = af.grad(lambda x, n: xp.sum(x**n))
    assert slope(np.array([1.0, 2.0]), 3).to_numpy().tolist() == [3.0, 12.0]
    assert slope(np.array([1.0, 2.0]), 2).to_numpy().tolist() == [2.0, 4.0]
    assert af.grad(lambda x, flags: xp.sum(x * flags))(np.ones(2), np.array([3, 4])).to_numpy().tolist() == [3.0, 4.0]


def test_arguments_by_position_and_by_name() -> None:
    def function(x: Any, y: Any, *, scale: Any = 1.0, twice: bool = False) -> Any:
        found = xp.sum(x * y * y) * scale
        return found * 2.0 if twice else found

    x, y = xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0])
    assert af.grad(function, argnums=-1)(x, y).to_numpy().tolist() == [6.0, 16.0]
    dy, dx = af.grad(function, argnums=(1, 0))(x, y, scale=xp.asarray(10.0), twice=True)
    assert dy.to_numpy().tolist() == [120.0, 320.0]
    assert dx.to_numpy().tolist() == [180.0, 320.0]
    assert af.grad(function)(x, y, scale=0.5).to_numpy().tolist() == [4.5, 8.0]


def test_other_results_come_along() -> None:
    def loss(w: Any, x: Any) -> Any:
        scores = x @ w
        others = {"scores": scores, "x": x, "name": "linear", "twice": (scores, scores), "no": None}
        return xp.sum(scores * scores), others

    w, x = numbers(3), numbers(2, 3, seed=1)
    (value, aux), slope = af.value_and_grad(loss, has_aux=True)(w, x)
    assert (aux["name"], aux["no"]) == ("linear", None)
    for found in (aux["scores"], *aux["twice"]):
        np.testing.assert_allclose(found.to_numpy(), x @ w)
    np.testing.assert_array_equal(aux["x"].to_numpy(), x)
    np.testing.assert_allclose(float(value), np.sum((x @ w) ** 2))
    again, others = af.grad(loss, has_aux=True)(w, x)
    np.testing.assert_allclose(again.to_numpy(), slope.to_numpy())
    assert others["name"] == "linear"
    aux["scores"] += 1.0
    np.testing.assert_allclose(aux["twice"][0].to_numpy(), x @ w)


def test_results_are_values_of_their_own() -> None:
    x = xp.asarray([1.0, 2.0])
    dx, dy = af.grad(lambda x, y: xp.sum(x + y), argnums=(0, 1))(x, x)
    dx += 1.0
    assert dy.to_numpy().tolist() == [1.0, 1.0]
    number = xp.asarray(3.0)
    value, slope = af.value_and_grad(lambda x: x)(number)
    value += 1.0
    assert (float(value), float(slope), float(number)) == (4.0, 1.0, 3.0)


def test_what_a_part_does_not_reach_has_a_zero_gradient() -> None:
    slopes = af.grad(lambda w: xp.sum(w["used"]) + 0.0 * xp.sum(xp.floor(w["stepped"])))(
        {"used": numbers(2), "unused": numbers(3, 2), "stepped": numbers(2), "count": np.array([1])}
    )
    assert slopes["used"].to_numpy().tolist() == [1.0, 1.0]
    assert not slopes["unused"].to_numpy().any()
    assert slopes["unused"].shape == (3, 2)
    assert slopes["stepped"].to_numpy().tolist() == [0.0, 0.0]
    assert slopes["count"] is None


def test_what_is_wrong_is_said_where_the_function_is_called() -> None:
    x = xp.asarray([2.0, 1.0])
    with pytest.raises(af.GraphError, match="does not depend on any argument"):
        af.grad(lambda x: xp.sum(xp.ones(3)))(x)
    with pytest.raises(af.GraphError, match="does not depend on any argument"):
        af.grad(lambda x: xp.astype(xp.argmax(x), xp.float64))(x)
    with pytest.raises(af.ShapeError, match=r"0-d array, got shape \(2,\)"):
        af.grad(lambda x: x * 2.0)(x)
    with pytest.raises(af.DTypeError, match="must return one array, got tuple"):
        af.grad(lambda x: (x, x))(x)
    with pytest.raises(af.DTypeError, match="must return a real floating array, got int64"):
        af.grad(lambda x: xp.sum(xp.astype(x, xp.int64)))(x)
    with pytest.raises(af.DTypeError, match="has_aux the function must return a pair, got Array"):
        af.grad(xp.sum, has_aux=True)(x)
    with pytest.raises(af.DTypeError, match="none of the arguments to differentiate by is a floating array"):
        af.grad(lambda x: xp.sum(x))(xp.asarray([1, 2]))
    with pytest.raises(af.GraphError, match="no argument 1, the function was called with 1"):
        af.grad(xp.sum, argnums=1)(x)
    with pytest.raises(af.GraphError, match="dry run"):
        af.grad(lambda x: x[0] if x[0] > 0 else x[1])(x)
    with pytest.raises(af.GraphError, match="use where"):
        af.grad(lambda x: xp.sum(x[x > 1.0]))(x)
    with pytest.raises(af.DTypeError, match="must be hashable, got set"):
        af.grad(lambda x, options: xp.sum(x), cache=True)(x, {1, 2})


# -- recipes ----------------------------------------------------------------------------------------------------


def test_the_recipes_that_are_kept_are_bounded(calls: Calls) -> None:
    both = af.value_and_grad(lambda x, scale: xp.sum(x) * scale, cache=True)
    x = xp.asarray([1.0])
    for scale in range(200):
        both(x, float(scale))
    assert len(both.recipes) == 64
    assert calls.count == 200
    both(x, 199.0)
    assert calls.count == 200
    both(x, 0.0)
    assert calls.count == 201


@pytest.mark.parametrize("cache", [False, True])
def test_recipes_keep_no_dry_run_and_no_argument(cache: bool) -> None:

    slope = af.grad(lambda x: xp.sum(xp.nn.gelu(x) * xp.linalg.inv(x)), cache=cache)
    x = xp.asarray(numbers(3, 3))
    slope(x).wait()
    gc.collect()
    assert desk.dry_runs == 0
    gone = weakref.ref(x)
    del x
    assert gone() is None


class TestRecipesThatAreKept:
    """With ``cache=True`` a function reads arrays from its arguments alone, and anything else in its first call."""

    X = xp.asarray([3.0])

    def test_arrays_in_variables_around_are_refused(self) -> None:
        weights = {"w": xp.asarray([2.0])}
        both = af.value_and_grad(lambda x: xp.sum(x * weights["w"]), cache=True)
        for _ in range(2):
            with pytest.raises(af.GraphError, match=r"<lambda> reads an array .* arguments, float64\[1\].* make it an"):
                both(self.X)
        assert len(both.recipes) == 0

    def test_arrays_whose_values_are_asked_for_are_refused(self) -> None:
        mask = xp.asarray([True])
        with pytest.raises(af.GraphError, match="is not one of its arguments, bool"):
            af.grad(lambda x: xp.sum(x[mask]), cache=True)(self.X)

    def test_arrays_of_a_gradient_around_are_refused(self) -> None:
        holder = Holder()
        slope = af.grad(lambda y: holder.array * y, cache=True)

        def outer(x: Any) -> Any:
            holder.array = x
            return slope(xp.asarray(1.0)) * x

        with pytest.raises(af.GraphError, match="reads an array"):
            af.grad(outer)(xp.asarray(2.0))

    def test_arrays_that_it_makes_are_its_own(self, calls: Calls) -> None:
        slope = af.grad(lambda x: xp.sum(x * xp.asarray([2.0]) + xp.full((1,), 3.0) * x), cache=True)
        assert [slope(self.X).to_numpy().tolist() for _ in range(3)] == [[5.0]] * 3
        assert calls.count == 1

    def test_plain_values_around_are_those_of_the_first_call(self, calls: Calls) -> None:
        settings = Settings()
        slope = af.grad(settings, cache=True)
        assert slope(self.X).to_numpy().tolist() == [2.0]
        settings.rate = 3.0
        assert slope(self.X).to_numpy().tolist() == [2.0]
        assert calls.count == 1

    def test_plain_values_among_the_arguments_are_part_of_the_recipe(self, calls: Calls) -> None:
        slope = af.grad(lambda x, rate, activation: xp.sum(activation(x) * rate), cache=True)
        assert slope(self.X, 2, xp.positive).to_numpy().tolist() == [2.0]
        assert slope(self.X, 3, xp.positive).to_numpy().tolist() == [3.0]
        assert slope(self.X, 3, xp.square).to_numpy().tolist() == [18.0]
        assert slope(self.X, 2, xp.positive).to_numpy().tolist() == [2.0]
        assert calls.count == 3

    def test_the_sign_of_zero_among_the_arguments(self) -> None:
        slope = af.grad(lambda x, zero: xp.sum(x * xp.atan2(xp.asarray(zero), xp.asarray(-1.0))), cache=True)
        assert float(slope(self.X, 0.0)[0]) == pytest.approx(np.pi)
        assert float(slope(self.X, -0.0)[0]) == pytest.approx(-np.pi)
        assert [float(slope(self.X, Shown(zero))[0]) > 0.0 for zero in (0.0, -0.0)] == [True, False]

    def test_keys_that_only_compare_equal(self) -> None:
        slope = af.grad(lambda parts: xp.sum(parts[1]) * 2.0, cache=True)
        assert [[*map(type, slope({key: self.X}))] for key in (1, True, 1.0)] == [[int], [bool], [float]]

    def test_a_recipe_is_recorded_where_its_arrays_live(self, calls: Calls) -> None:
        slope = af.grad(lambda x: xp.sum(x * x + xp.zeros(2)), cache=True)
        with xp.session():
            for device in ("cpu", "sim:0", "cpu"):
                found = slope(xp.asarray([1.0, 2.0], device=device))
                assert (str(found.device), found.to_numpy().tolist()) == (device, [2.0, 4.0])
        assert calls.count == 1

    def test_by_default_nothing_is_kept(self, calls: Calls) -> None:
        both = af.value_and_grad(lambda x: xp.sum(x))
        for _ in range(3):
            both(self.X)
        assert calls.count == 3
        assert len(both.recipes) == 0

    def test_arguments_without_a_hash_need_no_recipe(self) -> None:
        slope = af.grad(lambda x, options: xp.sum(x) * len(options))
        assert slope(self.X, {1, 2}).to_numpy().tolist() == [2.0]


# -- what is around a function ----------------------------------------------------------------------------------

RATE = 1.0


def scaled(x: Any) -> Any:
    return xp.sum(x * RATE)


def test_variables_around_a_function_are_read_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"w": xp.asarray([2.0])}
    shift = xp.asarray([1.0])

    def loss(x: Any) -> Any:
        return xp.sum((x * weights["w"] + shift) ** 2.0) + scaled(x)

    slope = af.grad(loss)
    x = xp.asarray([3.0])
    assert slope(x).to_numpy().tolist() == [2 * 7 * 2 + 1]
    weights["w"] = weights["w"] * 2.0  # another array
    assert slope(x).to_numpy().tolist() == [2 * 13 * 4 + 1]
    weights["w"] -= 3.0  # the same one, changed in place
    assert slope(x).to_numpy().tolist() == [2 * 4 * 1 + 1]
    shift = xp.asarray([2.0])
    assert slope(x).to_numpy().tolist() == [2 * 5 * 1 + 1]
    monkeypatch.setitem(globals(), "RATE", 5.0)
    assert slope(x).to_numpy().tolist() == [2 * 5 * 1 + 5]


def test_methods_and_partial_functions() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = xp.asarray([2.0])

        def loss(self, x: Any, power: float) -> Any:
            return xp.sum(x * self.weight) ** power

    model = Model()
    slope = af.grad(functools.partial(model.loss, power=2.0))
    x = xp.asarray([3.0])
    assert slope(x).to_numpy().tolist() == [2 * 6 * 2]
    model.weight = xp.asarray([1.0])
    assert slope(x).to_numpy().tolist() == [2 * 3 * 1]


class Settings:
    """Parameters that are not arrays."""

    scale = 1.0

    def __init__(self) -> None:
        self.rate = 2.0

    def rated(self, x: Any) -> Any:
        return x * self.rate * self.scale

    def __call__(self, x: Any) -> Any:
        return xp.sum(self.rated(x))


class TestWhatChangesBetweenCallsIsSeen:
    """The function is called each time."""

    X = xp.asarray([0.5])

    @pytest.mark.parametrize("owner", ["object", "class"])
    def test_attributes_of_an_object_that_is_called_and_of_its_class(
        self, monkeypatch: pytest.MonkeyPatch, owner: str
    ) -> None:
        settings = Settings()
        slope = af.grad(settings)
        for _ in range(2):
            assert slope(self.X).tolist() == [2.0]
        monkeypatch.setattr(*((Settings, "scale", 2.0) if owner == "class" else (settings, "rate", 4.0)))
        assert slope(self.X).tolist() == [4.0]


def test_something_else_than_a_function_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="grad: expected a function of arrays, got int"):
        af.grad(3)


@pytest.mark.parametrize("transform", [af.grad, lambda f: lambda x: af.to_graph(f, x)])
@pytest.mark.parametrize("is_read", [False, True])
def test_arrays_around_must_not_be_changed_inside(transform: Any, is_read: bool) -> None:
    """Whatever becomes of the function: they would have no value."""
    total, parts = xp.asarray([1.0]), xp.zeros((2,))

    def count(x: Any) -> Any:
        nonlocal total
        total += 1.0
        return xp.sum(x * total if is_read else x)

    def note(x: Any) -> Any:
        parts[0] = xp.sum(x)
        return xp.sum(x * parts if is_read else x)

    for function in count, note:
        with pytest.raises(af.GraphError, match=r"a traced function changes an array in place .* float64\[[12]\]"):
            transform(function)(xp.asarray([2.0]))
    assert (total.tolist(), parts.tolist()) == ([1.0], [0.0, 0.0])


def test_arrays_of_a_function_must_not_be_changed_in_another_one_inside() -> None:
    def outer(x: Any) -> Any:
        own = x * 2.0

        def inner(y: Any) -> Any:
            own[0] = xp.sum(y)
            return xp.sum(y * y)

        return xp.sum(af.grad(inner)(x))

    with pytest.raises(af.GraphError, match="a traced function changes an array in place"):
        af.grad(outer)(xp.asarray([2.0]))


def test_arrays_made_inside_may_be_changed() -> None:
    def function(x: Any) -> Any:
        made, filled = xp.asarray(np.zeros(2)), xp.zeros((2,))
        made[0] = xp.sum(x)
        filled += made
        return xp.sum(x * filled)

    assert af.grad(function)(xp.asarray([1.0, 3.0])).to_numpy().tolist() == [5.0, 1.0]


def test_a_dry_run_does_not_take_the_values_of_arrays_outside() -> None:
    x = xp.asarray([1.0, 2.0])
    with xp.session(dry_run=True):
        dry = xp.zeros((2,))
        with pytest.raises(af.GraphError, match="a dry run changes an array in place"):
            x += dry
        dry += x
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("cache", [False, True])
def test_arguments_may_be_changed_inside(cache: bool) -> None:
    def function(x: Any) -> Any:
        x *= x
        x[0] = 5.0
        return xp.sum(x)

    x = xp.asarray([1.0, 3.0])
    value, slope = af.value_and_grad(function, cache=cache)(x)
    assert (float(value), slope.to_numpy().tolist(), x.to_numpy().tolist()) == (14.0, [0.0, 6.0], [1.0, 3.0])


@pytest.mark.parametrize("cache", [False, True])
def test_random_numbers_are_others_in_each_call(cache: bool) -> None:
    draw = af.grad(lambda x: xp.sum(x * xp.randn((4,))) + xp.sum(xp.nn.dropout(x, rate=0.5)), cache=cache)
    same = af.grad(lambda x: xp.sum(x * xp.randn((4,), seed=3)), cache=cache)
    x = xp.ones((4,), dtype=xp.float32)
    assert not np.array_equal(draw(x).to_numpy(), draw(x).to_numpy())
    np.testing.assert_array_equal(same(x).to_numpy(), same(x).to_numpy())
    value, slope = af.value_and_grad(lambda x: xp.sum(x * xp.randn((4,))))(x)
    np.testing.assert_allclose(float(value), slope.to_numpy().sum(), rtol=1e-6)  # of one draw


# -- gradients inside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [False, True])
def test_gradients_inside_of_gradients(cache: bool) -> None:
    def inner(x: Any, y: Any) -> Any:
        return xp.sum(x * x * y)

    slope = af.grad(inner, cache=cache)
    outer = af.grad(lambda x, y: xp.sum(slope(x, y) * slope(x, y)), argnums=(0, 1), cache=cache)
    x, y = numbers(3), numbers(3, seed=1)
    for _ in range(2):
        dx, dy = outer(xp.asarray(x), xp.asarray(y))
        np.testing.assert_allclose(dx.to_numpy(), 8 * x * y * y)
        np.testing.assert_allclose(dy.to_numpy(), 8 * x * x * y)
        x = x + 1.0


def test_a_function_around_a_gradient_may_share_its_variables() -> None:
    perturbed = af.grad(lambda x: x * af.grad(lambda y: x + y)(xp.asarray(1.0)))
    assert float(perturbed(xp.asarray(3.0))) == 1.0
    product = af.grad(lambda x: af.grad(lambda y: xp.sin(x) * y * y)(x))
    expected = 2 * np.cos(0.5) * 0.5 + 2 * np.sin(0.5)
    for _ in range(2):
        assert float(product(0.5)) == pytest.approx(expected)


class Holder:
    """Holds an array."""

    def __init__(self) -> None:
        self.array: Any = None


def test_arrays_of_a_gradient_around_are_read_in_each_call() -> None:
    holder = Holder()
    slope = af.grad(lambda y: holder.array * y)

    def outer(x: Any) -> Any:
        holder.array = x
        return slope(xp.asarray(1.0)) * x

    for value in (2.0, 3.0):
        assert float(af.grad(outer)(xp.asarray(value))) == 2 * value


def test_traces_of_gradients_are_graphs() -> None:
    graph = af.to_graph(lambda w, x: af.value_and_grad(lambda w: xp.nn.mse_loss(x @ w, xp.ones((3, 1))))(w), *DATA)
    w, x = DATA
    found = graph.run_sync({"w": w, "x": x})
    np.testing.assert_allclose(found["result1/out"], 2 * x.T @ (x @ w - 1.0) / 3, rtol=1e-12)


DATA = numbers(2, 1), numbers(3, 2, seed=1)


# -- computing --------------------------------------------------------------------------------------------------


def test_what_value_and_gradients_share_is_computed_once() -> None:
    with xp.session(run_ahead=False) as session:
        w = {"a": xp.asarray(numbers(80, 90)), "b": xp.asarray(numbers(90, 70, seed=1))}
        x = xp.asarray(numbers(60, 80, seed=2))
        value, slopes = af.value_and_grad(lambda w: xp.mean(xp.tanh(x @ w["a"]) @ w["b"]) ** 2.0)(w)
        for each in (slopes["b"], value, slopes["a"]):
            each.wait()
        products = sum(profile.calls for name, profile in session.profile.items() if "matmul" in name)
    assert products == 5  # two forward; two by the factors of the second, and one by the weight of the first


def test_gradients_that_nobody_keeps_are_not_computed() -> None:
    with xp.session(run_ahead=False) as session:
        value, slope = af.value_and_grad(lambda x: xp.sum(xp.linalg.inv(x)))(xp.asarray(numbers(3, 3)))
        del slope
        value.wait()
        assert session.computed <= 3


@pytest.mark.parametrize("cache", [False, True])
def test_gradients_stay_within_a_budget(cache: bool) -> None:
    with xp.session(memory_budget=24 * 2**20) as session:
        w = xp.asarray(numbers(512, 512) / 30.0)
        both = af.value_and_grad(lambda w, x: xp.mean(xp.square(xp.tanh(x @ w) @ w)), cache=cache)
        for seed in range(4):
            _, slope = both(w, xp.asarray(numbers(512, 512, seed=seed)))
            w -= 0.1 * slope
        assert np.isfinite(w.to_numpy()).all()
        assert session.peak_bytes <= 24 * 2**20


def test_gradients_of_sequential_sessions() -> None:
    with xp.session(sequential=True):
        value, slope = af.value_and_grad(lambda x: xp.sum(x**3.0))(xp.asarray([2.0]))
        assert (float(value), slope.to_numpy().tolist()) == (8.0, [12.0])


@pytest.mark.parametrize("cache", [False, True])
def test_errors_name_the_line_of_the_function(cache: bool) -> None:
    def loss(x: Any) -> Any:
        return xp.sum(xp.linalg.inv(x))

    line = loss.__code__.co_firstlineno + 1
    slope = af.grad(loss, cache=cache)
    for _ in range(2):
        with pytest.raises(af.OpError, match=rf"test_value_and_grad\.py:{line} in loss"):
            slope(xp.zeros((2, 2))).wait()
    assert slope(xp.eye(2)).shape == (2, 2)


def test_names_and_docstrings() -> None:
    def loss(x: Any) -> Any:
        return xp.sum(x)

    assert af.value_and_grad(loss).__name__ == "loss"
    assert af.grad(loss).__doc__ == "Gradient of `loss`."
