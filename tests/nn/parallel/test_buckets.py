"""Tensors that are reduced in buckets get the sums that each would get alone."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel import BucketedAllReduce, DataParallel
from tests.nn.parallel.ranks import Ranks, size_of
from tests.support.effort import FULL

DTYPES = ("float32", "float64", "float16", "int64", "uint8")
MIB = 1 << 20


class Tensor(NamedTuple):
    """Type of a tensor."""

    shape: tuple[int, ...]
    dtype: str = "float32"


def build(tensors: Sequence[Tensor], places: Sequence[str], how: Mapping[str, Any], graph: af.Graph) -> dict[str, Any]:
    """A blob of each tensor at each place, and their sums."""
    bottom = [
        graph.blob(f"x{i}.{j}", tensor.shape, tensor.dtype, place)
        for i, tensor in enumerate(tensors)
        for j, place in enumerate(places)
    ]
    reduce = BucketedAllReduce(len(places), **how)
    reduce(*bottom)
    sums = {f"sum {blob.name}": y for blob, y in zip(bottom, reduce.top, strict=True)}
    return {blob.name: blob for blob in bottom} | sums


async def reduced(
    tensors: Sequence[Tensor], places: Sequence[str], feeds: Sequence[Mapping[str, Any]], seed: int | None, **how: Any
) -> list[dict[str, np.ndarray]]:
    ranks = Ranks(size_of(places), lambda graph: build(tensors, places, how, graph), seed)
    fetch = [f"sum x{i}.{j}" for i in range(len(tensors)) for j in range(len(places))]
    return await ranks.stream(feeds, fetch, in_flight=2)


def drawn(tensors: Sequence[Tensor], places: Sequence[str], seed: int, *, special: bool = False) -> dict[str, Any]:
    """Small whole numbers, whose sums are exact in all dtypes; some NaN and infinities."""
    random = np.random.default_rng(seed)
    found = {}
    for i, (shape, dtype) in enumerate(tensors):
        for j in range(len(places)):
            x = np.asarray(random.integers(0, 9, shape)).astype(af.TensorSpec.of(shape, dtype).dtype)
            if special and x.dtype.kind not in "iu" and x.size:
                x.reshape(-1)[random.integers(x.size)] = random.choice([np.nan, np.inf, -np.inf, -0.0])
            found[f"x{i}.{j}"] = x
    return found


PLACES = st.sampled_from(["cpu", "1/cpu", "2/cpu", "sim:0", "1/sim:0"])
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@pytest.mark.timeout(1200)
@given(
    tensors=st.lists(st.builds(Tensor, SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=9),
    places=st.lists(PLACES, min_size=1, max_size=4),
    bucket_bytes=st.integers(1, 300),
    average=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=1_000 if FULL else 8)
def test_any_tensors_at_any_places(
    tensors: list[Tensor], places: list[str], bucket_bytes: int, average: bool, seed: int
) -> None:
    if average:  # of whole numbers there is none
        tensors = [tensor._replace(dtype="float32") for tensor in tensors]
    feeds = [drawn(tensors, places, seed + i, special=i == 1) for i in range(3)]
    how = {"bucket_bytes": bucket_bytes, "average": average}
    found = af.run(reduced(tensors, places, feeds, seed, **how))
    for feed, sums in zip(feeds, found, strict=True):
        for i, (shape, _) in enumerate(tensors):
            terms = [feed[f"x{i}.{j}"] for j in range(len(places))]
            with np.errstate(invalid="ignore"):
                expected = sum(terms[1:], start=terms[0])
                if average:
                    expected = expected * np.float32(1 / len(places))
            for j in range(len(places)):
                y = sums[f"sum x{i}.{j}"]
                assert (y.shape, y.dtype) == (shape, terms[0].dtype)
                np.testing.assert_array_equal(y.astype("float64"), np.asarray(expected).astype("float64"))


@pytest.mark.parametrize("places", [["cpu", "1/cpu", "2/cpu"], ["1/cpu", "cpu", "1/sim:0"]], ids=" ".join)
async def test_the_same_bits_in_any_order_of_messages(places: list[str]) -> None:
    tensors = [Tensor((7, 3)), Tensor((5,)), Tensor((), "float64"), Tensor((40,)), Tensor((3,), "float64")]
    random = np.random.default_rng(0)
    feed = {
        f"x{i}.{j}": np.asarray(random.standard_normal(shape) * 1e3, dtype)
        for i, (shape, dtype) in enumerate(tensors)
        for j in range(len(places))
    }
    first, *others = [await reduced(tensors, places, [feed], seed, bucket_bytes=200) for seed in (None, 1, 2)]
    for other in others:
        for name, value in first[0].items():
            assert value.tobytes() == other[0][name].tobytes(), name


# -- what goes into which bucket --------------------------------------------------------------------------------------


def buckets_of(tensors: Sequence[Tensor], **how: Any) -> list[ops.AllReduce]:
    graph = af.Graph("g")
    build(tensors, ["cpu", "1/cpu"], how, graph)
    parts = [op for op in graph.ops if isinstance(op.operation, ops.AllReduce)]
    assert [op.operation for op in parts[::2]] == [op.operation for op in parts[1::2]]
    found = []
    for op in parts[::2]:
        assert isinstance(op.operation, ops.AllReduce)
        found.append(op.operation)
    return found


def names_of(tensors: Sequence[Tensor], **how: Any) -> list[str]:
    return [bucket.group.rpartition("/")[2] for bucket in buckets_of(tensors, **how)]


def test_the_first_bucket_is_small_and_the_others_grow() -> None:
    tensors = [Tensor((MIB // 16,))] * 60  # a quarter of a MiB each
    assert names_of(tensors) == ["x0.0+3", "x4.0+15", "x20.0+39"]
    assert names_of(tensors, bucket_bytes=3 * MIB) == ["x0.0+3", *[f"x{i}.0+11" for i in range(4, 52, 12)], "x52.0+7"]
    assert [bucket.priority for bucket in buckets_of(tensors)] == [3, 2, 1]


def test_a_large_tensor_is_a_bucket_of_its_own_and_is_not_copied() -> None:
    assert names_of([Tensor((10,)), Tensor((MIB,)), Tensor((10,))]) == ["x0.0", "x1.0", "x2.0"]
    graph = af.Graph("g")
    build([Tensor((2 * MIB,)), Tensor((8 * MIB,))], ["cpu", "1/cpu"], {"bucket_bytes": MIB}, graph)
    assert {op.operation.kind for op in graph.ops} == {"AllReduce"}


def test_each_dtype_has_buckets_of_its_own() -> None:
    tensors = [Tensor((2,), dtype) for dtype in ("float32", "float64", "float32", "float16", "float64")]
    assert names_of(tensors) == ["x0.0+1", "x1.0+1", "x3.0"]


def test_on_one_rank_nothing_is_put_into_buckets() -> None:
    graph = af.Graph("g")
    build([Tensor((2,))] * 3, ["cpu", "sim:0"], {}, graph)
    kinds = {op.operation.kind for op in graph.ops}
    assert "Sum" in kinds
    assert kinds.isdisjoint({"Concat", "Split", "AllReduce"})


def model_of(variables: Sequence[str] = (), **how: Any) -> tuple[DataParallel, af.Graph]:
    graph = af.Graph("g")
    model = DataParallel(nn.MLP(4, (6, 5)), ["cpu", "1/cpu"], loss=ops.softmax_loss, **how)
    model(graph.blob("x", (6, 3), "float64"), graph.blob("labels", 6, "int64"))
    found = [v for v in model.replicas[0].variables if any(v.name.endswith(name) for name in variables)]
    return model, model.minimize(nn.SGD(0.1), found or None)


@pytest.mark.parametrize("bucket_bytes", [1, 200, 25 * MIB])
def test_gradients_of_front_layers_go_first(bucket_bytes: int) -> None:
    _, train = model_of(bucket_bytes=bucket_bytes)
    reduced = [op.operation for op in train.ops if isinstance(op.operation, ops.AllReduce)][::2]
    assert all(a.priority > b.priority for a, b in pairwise(reduced))
    firsts = [op.group.rpartition("mlp.")[2].partition("+")[0] for op in reduced]
    names = [f"{layer}.{part}" for layer in ("hidden0", "hidden1", "scores") for part in ("weight", "bias")]
    assert firsts == [name for name in names if name in firsts]
    assert len(firsts) == {1: 6, 200: 4, 25 * MIB: 1}[bucket_bytes]


def test_frozen_variables_are_in_no_bucket() -> None:
    model, train = model_of(["hidden0/bias", "scores/weight"])
    (joined, _) = [op for op in train.ops if op.operation.kind == "Concat"]
    assert joined.outputs[0].shape == (6 + 4 * 5,)
    assert sum(len(variable.producers) for variable in model.replicas[1].variables) == 2


# -- errors name the tensor -------------------------------------------------------------------------------------------


def test_a_parameter_without_gradient_is_named() -> None:
    graph = af.Graph("g")

    class Unused(af.Composite):
        def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
            self.variable(bottom[0], "unused", (3,), nn.init.constant(0.0))
            weight = self.variable(bottom[0], "weight", (4, 3), nn.init.xavier(0))
            return ops.inner(bottom[0], weight)

    model = DataParallel(Unused("net"), ["cpu", "1/cpu"], loss=ops.softmax_loss)
    model(graph.blob("x", (6, 3)), graph.blob("labels", 6, "int64"))
    (unused,) = [variable for variable in model.replicas[0].variables if variable.name.endswith("unused")]
    before = len(graph.ops)
    with pytest.raises(af.GraphError, match="net/unused"):
        model.minimize(nn.SGD(0.1), model.replicas[0].variables)
    assert len(graph.ops) == before
    train = model.minimize(nn.SGD(0.1))  # what the loss depends on
    assert not unused.producers
    assert [op.operation.kind for op in train.ops].count("AllReduce") == 2


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("a", (2,), "float32", (2,), "float32"), ("b", (2,), "float32", (3,), "float32")], "of 'b': blob 'b.1'"),
        ([("a", (2,), "float32", (2,), "float32"), ("b", (2,), "float32", (2,), "float64")], "of 'b': blob 'b.1'"),
        ([("a", (2,), "bool", (2,), "bool")], "of 'a': x must be numeric"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tensors: list[tuple[str, Any, str, Any, str]], message: str) -> None:
    graph = af.Graph("g")
    bottom = []
    for name, shape, dtype, other_shape, other_dtype in tensors:
        bottom += [graph.blob(f"{name}.0", shape, dtype), graph.blob(f"{name}.1", other_shape, other_dtype, "1/cpu")]
    with pytest.raises((af.ShapeError, af.DTypeError), match=message):
        BucketedAllReduce(2, names=[name for name, *_ in tensors])(*bottom)


@pytest.mark.parametrize(
    ("how", "count", "message"),
    [
        ({"places": 0}, 2, "must be at least 1"),
        ({"places": 2, "bucket_bytes": 0}, 2, "must be at least 1"),
        ({"places": 2}, 3, "takes a blob at each of 2 places, got 3"),
        ({"places": 2, "names": ["a"]}, 4, "has 1 names for 2 tensors"),
    ],
)
def test_refusals(how: dict[str, Any], count: int, message: str) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.GraphError, match=message):
        BucketedAllReduce(**how)(*[graph.blob(f"x{i}", 2) for i in range(count)])
