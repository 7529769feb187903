"""The updates of the optimizers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.updates import state_spec

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
