"""Initializers."""

import math
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.nn import init

SPEC = af.TensorSpec.of((300, 200))


@pytest.mark.together(
    ("initializer", "mean", "std"),
    [
        (init.gaussian(0.05), 0.0, 0.05),
        (init.gaussian(0.05, mean=1.0), 1.0, 0.05),
        (init.uniform(-1, 3), 1.0, 4 / math.sqrt(12)),
        (init.xavier(), 0.0, math.sqrt(2 / 500)),
        (init.xavier(distribution="normal"), 0.0, math.sqrt(2 / 500)),
        (init.xavier(fan="in", gain=3.0), 0.0, 3 * math.sqrt(1 / 200)),
        (init.xavier(fan="out"), 0.0, math.sqrt(1 / 300)),
        (init.he(), 0.0, math.sqrt(2 / 200)),
        (init.he(fan="out"), 0.0, math.sqrt(2 / 300)),
        (init.he(fan="average", distribution="uniform"), 0.0, math.sqrt(2 / 250)),
        (init.he(slope=0.5), 0.0, math.sqrt(2 / 1.25 / 200)),
        (init.bernoulli(0.3), 0.3, math.sqrt(0.3 * 0.7)),
        (init.constant(0.2), 0.2, 0.0),
    ],
)
def test_distribution(initializer, mean, std) -> None:
    values = initializer(SPEC, "w")
    assert values.shape == SPEC.shape
    assert values.dtype == SPEC.dtype
    assert abs(values.mean() - mean) < max(5 * std / math.sqrt(SPEC.size), 1e-6)
    assert abs(values.std() - std) < 0.02 * std + 1e-6


@pytest.mark.parametrize("make", [init.gaussian, init.uniform, init.xavier, init.he])
def test_seed_and_name_choose_the_stream(make) -> None:
    first = make(seed=1)(SPEC, "a")
    np.testing.assert_array_equal(first, make(seed=1)(SPEC, "a"))
    np.testing.assert_array_equal(make()(SPEC, "a"), make()(SPEC, "a"))
    for other in (make(seed=1)(SPEC, "b"), make(seed=2)(SPEC, "a"), make()(SPEC, "a")):
        assert (first != other).mean() > 0.99


def test_values_do_not_depend_on_what_is_made_before() -> None:
    def values(*names: str) -> dict[str, np.ndarray]:
        graph, initializer = af.Graph("g"), init.gaussian(1.0, seed=3)
        variables = [graph.variable(name, (5,), init=initializer) for name in names]
        return {variable.name: variable.value for variable in reversed(variables)}

    first, second = values("a", "b", "c"), values("c", "a")
    for name, value in second.items():
        np.testing.assert_array_equal(value, first[name])


def test_the_streams_stay_what_they_are() -> None:
    """A change would change every seeded program."""
    drawn = init.gaussian(1.0, seed=1)(af.TensorSpec.of((2,), "float64"), "w")
    np.testing.assert_allclose(drawn, [0.8397428993528054, 0.3248526449856306], rtol=1e-12)


def test_bernoulli_writes_ones_and_zeros_of_the_dtype() -> None:
    for dtype in ("float32", "float64", "int8", "bool"):
        values = init.bernoulli(0.5, seed=0)(af.TensorSpec.of((40,), dtype), "w")
        assert values.dtype == dtype
        assert set(values.tolist()) == {0, 1}
    assert not init.bernoulli(0.0)(SPEC, "w").any()
    assert init.bernoulli(1.0)(SPEC, "w").all()


@pytest.mark.together(
    ("shape", "expected"),
    [((50, 360), (360, 50)), ((3, 5, 40, 50), (600, 750)), ((5, 72, 100), (360, 500)), ((7,), (1, 7)), ((), (1, 1))],
)
def test_fans(shape, expected) -> None:
    assert init.fans(shape) == expected


@pytest.mark.parametrize(("shape", "fan_in"), [((3, 3, 40, 50), 360), ((50, 360), 360), ((5, 72, 100), 360)])
def test_he_counts_the_inputs_of_an_output(shape, fan_in) -> None:
    values = init.he(0)(af.TensorSpec.of(shape, "float64"), "w")
    assert abs(values.std() / math.sqrt(2 / fan_in) - 1) < 0.05


@pytest.mark.parametrize(("shape", "bound"), [((3, 3, 20, 40), math.sqrt(6 / (9 * 60))), ((40, 20), math.sqrt(6 / 60))])
def test_xavier_counts_inputs_and_outputs(shape, bound) -> None:
    values = init.xavier(0)(af.TensorSpec.of(shape, "float64"), "w")
    assert 0.95 * bound < np.abs(values).max() <= bound


def test_a_variable_takes_its_initializer() -> None:
    graph = af.Graph("g")
    w = graph.variable("w", (4, 3), "float64", init.he(3))
    np.testing.assert_array_equal(w.value, init.he(3)(w.spec, "w"))


@pytest.mark.together("dtype", ["int8", "uint64", "bool"])
@pytest.mark.together(
    "made",
    [init.gaussian(2.0), init.uniform(-9, 9), init.xavier(), init.he(distribution="uniform"), init.constant(0.5)],
)
def test_nothing_is_rounded_to_integers(made: Any, dtype: str) -> None:
    w = af.Graph("g").variable("w", (4, 3), dtype, made)
    with pytest.raises(af.DTypeError, match=rf"it gives variable 'w' fractions, which would be rounded to {dtype}"):
        _ = w.value


@pytest.mark.together("dtype", ["int8", "uint64", "bool", "float32", "complex64"])
def test_whole_numbers_are_for_integers_too(dtype: str) -> None:
    for made in (init.constant(1), init.constant(1.0), init.bernoulli(1.0)):
        assert (af.Graph("g").variable("w", (4,), dtype, made).value == 1).all()
