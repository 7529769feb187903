"""The updates of the optimizers, and gradients limited by their norm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.updates import NormFactor, ScaleBy, SquareSum, state_spec
from actorflow.testing import check_gradient

ml_dtypes = pytest.importorskip("ml_dtypes")


@settings(deadline=None)
@given(
    st.sampled_from([(), (3,), (2, 0), (2, 3, 4), (50, 700)]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["C", "F", "strided"]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)
def test_sgd_update_is_its_formula(
    compute, laid_out, tolerance, shape, dtype, layout, momentum, decay, scale, rate, nesterov
) -> None:
    random = np.random.default_rng(0)
    weight, grad, velocity = (laid_out(random.standard_normal(shape).astype(dtype), layout) for _ in range(3))
    operation = ops.SgdUpdate(momentum, decay, scale, nesterov)
    new_weight, new_velocity = compute(operation, weight, grad, velocity, np.array(rate))
    moved = scale * rate * (grad + decay * weight)
    expected = momentum * velocity + moved
    np.testing.assert_allclose(new_velocity, expected, **tolerance(dtype))
    step = momentum * expected + moved if nesterov and momentum else expected
    np.testing.assert_allclose(new_weight, weight - step, **tolerance(dtype))


def adam(operation: ops.AdamUpdate, w, g, mean, square, rate, step) -> list[np.ndarray]:
    t, rate = int(step) + 1, operation.rate_scale * float(rate)
    if not operation.decoupled:
        g = g + operation.weight_decay * w
    mean = operation.beta1 * mean + (1 - operation.beta1) * g
    square = operation.beta2 * square + (1 - operation.beta2) * g**2
    if operation.decoupled:
        w = w - rate * operation.weight_decay * w
    scaled = (mean / (1 - operation.beta1**t)) / (np.sqrt(square / (1 - operation.beta2**t)) + operation.eps)
    return [w - rate * scaled, mean, square]


def adagrad(operation: ops.AdagradUpdate, w, g, square, rate) -> list[np.ndarray]:
    g = g + operation.weight_decay * w
    square = square + g**2
    return [w - operation.rate_scale * float(rate) * g / (np.sqrt(square) + operation.eps), square]


def rmsprop(operation: ops.RmsPropUpdate, w, g, square, rate, *more) -> list[np.ndarray]:
    states = dict(zip(operation.more, more, strict=True))
    g = g + operation.weight_decay * w
    square = operation.alpha * square + (1 - operation.alpha) * g**2
    variance = square
    if operation.centered:
        states["mean"] = operation.alpha * states["mean"] + (1 - operation.alpha) * g
        variance = np.maximum(square - states["mean"] ** 2, 0)
    moved = g / (np.sqrt(variance) + operation.eps)
    if operation.momentum:
        states["velocity"] = moved = operation.momentum * states["velocity"] + moved
    return [w - operation.rate_scale * float(rate) * moved, square, *states.values()]


FORMULAS = {ops.AdamUpdate: adam, ops.AdagradUpdate: adagrad, ops.RmsPropUpdate: rmsprop}
DECAYS = st.sampled_from([0.0, 0.01])
SCALES = st.sampled_from([1.0, 2.0])
UPDATES = st.one_of(
    st.builds(ops.AdamUpdate, st.just(0.9), st.just(0.99), st.just(1e-6), DECAYS, st.booleans(), SCALES),
    st.builds(ops.AdagradUpdate, st.just(1e-6), DECAYS, SCALES),
    st.builds(
        ops.RmsPropUpdate, st.just(0.9), st.just(1e-3), DECAYS, st.sampled_from([0.0, 0.9]), st.booleans(), SCALES
    ),
)


def drawn(operation: ops.Operation, shape, dtype, seed=0) -> list[np.ndarray]:
    """Arguments of an update, as it takes them; squares are not negative, and more than a mean's."""
    random = np.random.default_rng(seed)
    state = state_spec(af.TensorSpec.of(shape, dtype)).dtype
    weight, grad, mean = (random.standard_normal(shape) for _ in range(3))
    known = {
        "weight": weight.astype(dtype),
        "grad": grad.astype(dtype),
        "mean": (0.5 * mean).astype(state),
        "velocity": mean.astype(state),
        "square": (mean**2 + random.random(shape)).astype(state),
        "rate": np.array(0.1),
        "step": np.array(3),
    }
    names = [*operation.arguments]
    if names[-1] == "*more":
        names[-1:] = operation.more
    return [known[name] for name in names]


@settings(deadline=None)
@given(
    UPDATES,
    st.sampled_from([(), (3,), (2, 0), (2, 3, 4), (50, 700)]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["C", "F", "strided"]),
)
def test_an_update_is_its_formula(compute, laid_out, tolerance, operation, shape, dtype, layout) -> None:
    arrays = drawn(operation, shape, dtype)
    found = compute(operation, *(laid_out(array, layout) if array.shape else array for array in arrays))
    expected = FORMULAS[type(operation)](operation, *(np.asarray(a, "float64") for a in arrays))
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, **tolerance(dtype))


@settings(deadline=None, max_examples=20)
@given(UPDATES, st.sampled_from(["float16", ml_dtypes.bfloat16]))
def test_16_bits_are_computed_in_32(compute, operation, dtype) -> None:
    arrays = drawn(operation, (7, 3), dtype)
    found = compute(operation, *arrays)
    expected = FORMULAS[type(operation)](operation, *(np.asarray(a, "float64") for a in arrays))
    assert found[0].dtype == dtype
    np.testing.assert_allclose(found[0].astype("float64"), expected[0], rtol=1e-2, atol=1e-2)
    for actual, wanted in zip(found[1:], expected[1:], strict=True):
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_a_step_of_adam_on_a_gradient_of_nothing_is_nothing(compute) -> None:
    x, zero = np.ones(3), np.zeros(3)
    weight, *_ = compute(ops.AdamUpdate(), x, zero, zero, zero, np.array(0.1), np.array(0))
    np.testing.assert_array_equal(weight, x)


STATE = (af.TensorSpec.of(2), af.TensorSpec.of(2))
RATE, STEP = af.TensorSpec.of((), "float64"), af.TensorSpec.of((), "int64")


@pytest.mark.parametrize(
    ("operation", "specs", "error", "message"),
    [
        (ops.AdamUpdate(), [*STATE, *STATE, RATE, RATE], af.DTypeError, "AdamUpdate: step must be int64, got float64"),
        (ops.AdamUpdate(), [*STATE, *STATE, STEP, STEP], af.DTypeError, "AdamUpdate: rate must be floating, got int64"),
        (
            ops.AdamUpdate(),
            [*[af.TensorSpec.of(2, "float16")] * 4, RATE, STEP],
            af.DTypeError,
            "AdamUpdate: mean must be float32 for a weight of float16, got float16",
        ),
        (
            ops.AdagradUpdate(),
            [*STATE, af.TensorSpec.of(3), RATE],
            af.ShapeError,
            r"AdagradUpdate: square must have weight's shape \(2,\), got float32\[3\]",
        ),
        (
            ops.RmsPropUpdate(momentum=0.5),
            [*STATE, STATE[0], RATE, af.TensorSpec.of(3)],
            af.ShapeError,
            r"RmsPropUpdate: velocity must have weight's shape \(2,\), got float32\[3\]",
        ),
    ],
)
def test_types_that_do_not_fit_are_errors_that_name_the_argument(operation, specs, error, message) -> None:
    with pytest.raises(error, match=message):
        operation.infer(*specs)


@pytest.mark.parametrize(
    ("settings", "count"), [({}, 4), ({"momentum": 0.5}, 5), ({"momentum": 0.5, "centered": True}, 6)]
)
def test_rmsprop_takes_the_states_it_needs(settings, count) -> None:
    operation = ops.RmsPropUpdate(**settings)
    operation.check_arity(count)
    with pytest.raises(af.GraphError, match=rf"takes {count} inputs \(weight, grad, square, rate.*\), got {count + 1}"):
        operation.check_arity(count + 1)


@pytest.mark.parametrize(
    ("specs", "error", "message"),
    [
        ([(2,), (3,), (2,), ()], af.ShapeError, r"grad must have weight's shape \(2,\), got float32\[3\]"),
        ([(2,), (2,), (1,), ()], af.ShapeError, r"velocity must have weight's shape \(2,\), got float32\[1\]"),
        ([(2,), (2,), (2,), (1,)], af.ShapeError, r"rate must have shape \(\), got float32\[1\]"),
    ],
)
def test_shapes_that_do_not_fit_are_errors_that_name_the_argument(specs, error, message) -> None:
    with pytest.raises(error, match=message):
        ops.SgdUpdate().infer(*(af.TensorSpec.of(shape) for shape in specs))


def test_the_rate_must_be_floating() -> None:
    weight = af.TensorSpec.of(2)
    with pytest.raises(af.DTypeError, match="rate must be floating, got int64"):
        ops.SgdUpdate().infer(weight, weight, weight, af.TensorSpec.of((), "int64"))


SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6) | st.just((300, 250))


@settings(deadline=None)
@given(SHAPES, st.sampled_from(["float16", "float32", "float64", ml_dtypes.bfloat16]), st.sampled_from("CF"))
def test_squares_are_summed_in_float64(compute, laid_out, shape, dtype, layout) -> None:
    x = (100 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    (found,) = compute(SquareSum(), laid_out(x, layout))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, (x.astype("float64") ** 2).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("squares", "factor"),
    [
        ([9.0, 16.0], 0.2 / (1 + 2e-7)),
        ([0.25], 1.0),
        ([0.0, 0.0], 1.0),
        ([np.inf], 0.0),
        ([1.0, np.nan], np.nan),
    ],
)
def test_the_factor_is_at_most_1(compute, squares, factor) -> None:
    (found,) = compute(NormFactor(1.0), *map(np.asarray, squares))
    np.testing.assert_allclose(found, factor, rtol=1e-12)


@settings(deadline=None)
@given(SHAPES, st.sampled_from(["float16", "float32", "float64", ml_dtypes.bfloat16]), st.sampled_from("CF"))
def test_a_computed_factor_scales_without_widening(compute, laid_out, shape, dtype, layout) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    (found,) = compute(ScaleBy(), laid_out(x, layout), np.array(0.25))
    np.testing.assert_array_equal(found, (x * np.asarray(0.25, dtype)).astype(dtype), strict=True)


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_gradients(max_norm) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3))
    check_gradient(SquareSum(), x)
    check_gradient(NormFactor(max_norm), 2.0, 3.0)
    check_gradient(ScaleBy(), x, 0.3)


def test_a_norm_of_0_has_gradients_of_any_order() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,), "float64")
    (clipped,) = ops.clip_by_global_norm([x], 1.0)
    first = af.gradient(ops.sum(ops.multiply(clipped, clipped)), x)
    second = af.gradient(ops.sum(first), x)
    result = graph.run_sync({x: np.zeros(3)}, fetch=[first, second])
    np.testing.assert_array_equal(result[first], np.zeros(3))
    np.testing.assert_array_equal(result[second], np.full(3, 2.0))


@pytest.mark.parametrize("place", ["cpu", "sim:0"])
def test_all_gradients_have_one_norm(place) -> None:
    graph = af.Graph("g")
    with graph.at(place):
        a, b = graph.blob("a", (2,), "float64"), graph.blob("b", (1, 2), "float32")
    clipped = ops.clip_by_global_norm([a, b], 2.5)
    assert [blob.spec for blob in clipped] == [a.spec, b.spec]
    assert {blob.place for blob in clipped} == {a.place}
    result = graph.run_sync({a: np.array([3.0, 0.0]), b: np.array([[0.0, 4.0]], "float32")}, fetch=clipped)
    np.testing.assert_allclose(af.to_numpy(result[clipped[0]]), [1.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(af.to_numpy(result[clipped[1]]), [[0.0, 2.0]], rtol=1e-6)


def test_gradients_on_several_places_meet_on_the_cpu() -> None:
    graph = af.Graph("g")
    a, b = graph.blob("a", (2,), place="cpu"), graph.blob("b", (2,), place="sim:0")
    clipped = ops.clip_by_global_norm([a, b], 5.0)
    assert [blob.place for blob in clipped] == [a.place, b.place]
    result = graph.run_sync({a: [6.0, 0.0], b: [0.0, 8.0]}, fetch=clipped)
    np.testing.assert_allclose([af.to_numpy(result[blob]) for blob in clipped], [[3, 0], [0, 4]], rtol=1e-6)


def test_what_does_not_fit_is_an_error_that_names_it() -> None:
    scalar, vector = af.TensorSpec.of((), "float64"), af.TensorSpec.of(2, "float64")
    with pytest.raises(af.GraphError, match="clip_by_global_norm: give at least one gradient"):
        ops.clip_by_global_norm([], 1.0)
    with pytest.raises(af.GraphError, match="NormFactor: max_norm must be positive, got 0"):
        NormFactor(0.0).infer(scalar)
    with pytest.raises(af.ShapeError, match=r"NormFactor: squares\[1\] must have shape \(\), got float64\[2\]"):
        NormFactor(1.0).infer(scalar, vector)
    with pytest.raises(af.DTypeError, match="ScaleBy: factor must be float64, got float32"):
        ScaleBy().infer(vector, af.TensorSpec.of(()))
    with pytest.raises(af.DTypeError, match="SquareSum: x must be floating, got int64"):
        SquareSum().infer(af.TensorSpec.of(2, "int64"))
