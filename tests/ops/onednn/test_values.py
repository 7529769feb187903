"""Results of the library, beside the NumPy of each row of the table of operations."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from actorflow.ops.cpu.kept import Kept, kept
from actorflow.ops.elementwise import Multiply
from actorflow.ops.linalg import Inner, InnerDown
from actorflow.ops.nn.activation import Elu, Gelu, GeluTanh, Sigmoid, Silu, Softplus
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.norm import BatchNorm, BatchNormDown, LayerNorm, LayerNormDown
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, GlobalAverage, MaxPool
from actorflow.ops.nn.softmax import LogSoftmax, Softmax
from actorflow.ops.reductions import ReduceMean
from actorflow.ops.registry import lookup
from actorflow.spec import TensorSpec
from tests.operations import ROWS, Row
from tests.operations.table import dtype_of
from tests.ops.test_values import SPECIAL, check_values
from tests.support.layouts import LAYOUTS

#: Operations of which the library has a kernel.
COMPUTED = [
    Conv,
    ConvDown,
    ConvWeight,
    Inner,
    InnerDown,
    MaxPool,
    AveragePool,
    AveragePoolDown,
    GlobalAverage,
    Softmax,
    LogSoftmax,
    Elu,
    Gelu,
    GeluTanh,
    Sigmoid,
    Silu,
    Softplus,
    BatchNorm,
    BatchNormDown,
    LayerNorm,
    LayerNormDown,
]


@pytest.mark.parametrize("row", [ROWS[kind.__name__] for kind in COMPUTED], ids=str)
def test_values(compute: Any, left: list[str], row: Row) -> None:
    check_values(compute, row, row.first, "float32", *LAYOUTS)
    assert left == []
    for sample in row.samples[1:]:
        check_values(compute, row, sample, "float32", *LAYOUTS)


def test_products_of_images_with_a_number_for_each_channel(compute: Any, left: list[str]) -> None:
    random = np.random.default_rng(0)
    for shape in ((2, 5, 4, 7), (1, 9, 3), (3, 1, 1, 1, 6)):
        x = random.standard_normal(shape).astype("f")
        factors = random.standard_normal((shape[0], *[1] * (len(shape) - 2), shape[-1])).astype("f")
        for each in ((x, factors), (factors, x)):
            np.testing.assert_array_equal(compute(Multiply(), *each)[0], x * factors)
    assert left == []
    for other in ((2, 1, 1, 1), (5, 4, 7), (2, 5, 4, 7), (1, 1, 1, 7)):
        x, y = (random.standard_normal(each).astype("f") for each in ((2, 5, 4, 7), other))
        np.testing.assert_array_equal(compute(Multiply(), x, y)[0], x * y)
    assert left == ["Multiply"] * 4


def test_products_of_other_shapes_are_bound_to_numpys_kernel(loaded: None) -> None:
    """It would be asked for in each call else, which takes 20 times as long as to multiply some numbers."""
    kernel = lookup(Multiply(), "cpu", "onednn", np.dtype("float32"))
    assert kernel is not None
    images = [TensorSpec((2, 5, 4, 7), "float32"), TensorSpec((2, 1, 1, 7), "float32")]
    assert kernel.bound(Multiply(), images).key.library == "onednn"
    assert kernel.bound(Multiply(), [images[0], images[0]]).key.library == "numpy"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_half_precision(compute: Any, left: list[str], dtype: str) -> None:
    """They are those of float32, rounded once, whatever follows from weights that stay."""
    kind, random = dtype_of(dtype), np.random.default_rng(0)
    x, weight = (random.standard_normal(shape).astype(kind) for shape in ((2, 3, 40), (50, 40)))
    g = random.standard_normal((2, 3, 50)).astype(kind)
    for operation, given, matrix in ((Inner(), x, weight.T), (InnerDown(), g, weight)):
        exact = given.astype("f8") @ matrix.astype("f8")
        for _ in range(3):
            (found,) = compute(operation, given, weight)
            bound = 0.51 * float(ml_dtypes.finfo(kind).eps) * abs(exact) + 1e-5
            assert found.dtype == kind
            assert (abs(found.astype("f8") - exact) <= bound).all()
    assert left == []


@pytest.mark.parametrize("keepdims", [False, True])
def test_means_of_images(compute: Any, left: list[str], keepdims: bool) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 4, 7 + keepdims)).astype("f")
    for axis in ((1, 2), (-2, 1)):
        (found,) = compute(ReduceMean(axis, keepdims), x)
        np.testing.assert_allclose(found, x.mean((1, 2), keepdims=keepdims), rtol=1e-5, atol=1e-6)
    assert left == []
    np.testing.assert_allclose(compute(ReduceMean((2, 3)), x)[0], x.mean((2, 3)), rtol=1e-5, atol=1e-6)
    assert left == ["ReduceMean"]


@pytest.mark.parametrize("row", [row for row in SPECIAL if row.kind in COMPUTED], ids=str)
def test_values_of_special_numbers(compute: Any, row: Row) -> None:
    """Infinities, and what is not a number: NaN stays NaN."""
    assert row.special is not None
    check_values(compute, row, row.special, "float32", "C")


@pytest.mark.parametrize("row", [ROWS[kind.__name__] for kind in COMPUTED], ids=str)
def test_bits_are_the_same_from_run_to_run(compute: Any, row: Row) -> None:
    sample = row.samples[-1]
    inputs = sample.inputs()
    first = compute(sample.operation, *inputs)
    for _ in range(3):
        for one, other in zip(first, compute(sample.operation, *inputs), strict=True):
            np.testing.assert_array_equal(one, other)


def called(operation: Any, *inputs: np.ndarray) -> np.ndarray:
    """The result of the library's kernel for these very arrays."""
    (spec,) = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs])
    found, y = lookup(operation, "cpu", "onednn", inputs[0].dtype), np.empty(spec.shape, spec.dtype)
    assert found is not None
    found.function(operation, [*inputs], [y])
    return y


def test_shapes_and_libraries_have_their_own_form_of_a_weight(compute: Any) -> None:
    operation, random = Conv(pad=1), np.random.default_rng(0)
    weight = random.standard_normal((3, 3, 8, 24)).astype("f")
    images = [random.standard_normal((n, size, size, 8)).astype("f") for n, size in ((1, 3), (4, 16), (1, 56))]
    expected = [compute(Conv(pad=1), image, weight)[0] for image in images]
    for _ in range(3):
        for image, each in zip(images, expected, strict=True):
            np.testing.assert_array_equal(called(operation, image, weight), each)
            negative = kept(operation).derived("negative").of((weight,), np.negative)
            np.testing.assert_array_equal(negative, -weight)
    assert [each.is_held for each in kept(operation)._derived.values()].count(True) >= 2


def test_arrays_of_a_step_may_lie_in_any_order(by_default: None) -> None:
    """Directly, too: of a step whose weight stays, and of one without."""
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((2, 6, 5, 8)).astype("f"), random.standard_normal((1, 1, 8, 8)).astype("f")
    turned = np.asfortranarray(x)
    for operation, more in ((Conv(), [weight]), (MaxPool(2), []), (Softmax(), [])):
        inputs = [x, *more]
        specs = [TensorSpec(each.shape, each.dtype) for each in inputs]
        (spec,) = operation.infer(*specs)
        found = lookup(operation, "cpu", "onednn", x.dtype)
        assert found is not None
        function = found.bound(operation, specs).function
        results = []
        for image in (x, x, x, turned, x):
            results.append(np.empty(spec.shape, spec.dtype))
            function(operation, [image, *more], [results[-1]])
        for each in results[1:]:
            np.testing.assert_array_equal(each, results[0])


def test_a_new_weight_replaces_all_forms_of_the_one_before() -> None:
    own, (old, new) = Kept(), np.ones((2, 3), "f")
    for form in ("one", "other"):
        for _ in range(2):
            assert own.derived(form).of([old], lambda _: "old") == "old"
    for _ in range(2):
        assert own.derived("one").of([new], lambda _: "new") == "new"
    assert [own.derived(form)._found is None for form in ("one", "other")] == [False, True]
    assert own.derived("other").of([new], lambda _: "new") == "new"
