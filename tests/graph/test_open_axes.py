"""Open axes: what is inferred, what is refused and when, and the plans that frames of different lengths have."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.spec import axis

LINE = f"{__file__}:"


def rows(n: int, features: int = 3, first: float = 0.0) -> np.ndarray:
    return np.arange(first, first + n * features, dtype="float32").reshape(n, features)


# -- at definition ----------------------------------------------------------------------------------------------------


def test_shapes_are_formulas() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", "h", "w", 3))
    n, h, w = axis("batch"), axis("h"), axis("w")
    assert ops.flatten(x).shape == (n, 3 * h * w)
    assert ops.max_pool(x, 2, 2).shape == (n, (h + 1) // 2, (w + 1) // 2, 3)
    assert ops.max_pool(ops.max_pool(x, 2, 2), 2, 2).shape[1] == (h + 3) // 4
    assert ops.concat([x, x], 1).shape[1] == 2 * h
    assert ops.resize(x, scale=1.5).shape[1] == 3 * h // 2
    assert x[:, ::-2].shape[1] == (h + 1) // 2
    assert ops.concat([x[:, :2], x[:, 2:]], 1).shape == ops.roll(x, 3, 1).shape == x.shape
    assert [part.shape[1] for part in ops.split(x, 2, 1)] == [h // 2, h // 2]
    assert (x + graph.blob("y", (1, "h", 1, 3))).shape == x.shape


def test_names_stand_for_their_lengths() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 12))
    y = ops.reshape(x, ("batch", 3, -1))
    assert y.shape == (axis("batch"), 3, 4)
    assert x.reshape("batch", 12).shape == x.reshape(("batch", 12)).shape == x.shape
    assert ops.broadcast_to(graph.blob("v", 12), ("batch", 12)).shape == x.shape
    assert ops.fill(graph, 1.0, ("batch", 2)).shape[0] == axis("batch")
    assert ops.gaussian(graph, ("batch", 2)).shape[0] == axis("batch")
    assert graph.run_sync({x: rows(2, 12)}, fetch=[y])[y].shape == (2, 3, 4)


def test_what_never_fits_is_refused_at_once() -> None:
    graph = af.Graph("g")
    x, y = graph.blob("x", ("batch", 3)), graph.blob("y", ("batch", 4))
    with pytest.raises(af.ShapeError, match=r"op 'sum': .*shape \(batch, 3\), got float32\[batch, 4\]"):
        ops.add(x, y)
    with pytest.raises(af.ShapeError, match="b must have length 3"):
        ops.matmul(x, graph.blob("w", (4, 5)))
    with pytest.raises(af.ShapeError, match=r"must broadcast with terms\[0\]'s shape \(batch \+ 1, 3\)"):
        ops.concat([x, graph.blob("one", (1, 3))]) + x
    with pytest.raises(af.ShapeError, match='got None: give the axis a name, such as "batch"'):
        graph.blob("z", (None, 3))
    with pytest.raises(af.ShapeError, match="cannot name an axis"):
        graph.blob("z", ("a-b", 3))


def test_variables_are_closed() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, "features"))
    with pytest.raises(af.ShapeError, match=r"variable 'w': .* no axis can be open, got float32\[features, 2\]"):
        graph.variable("w", (x.shape[1], 2))
    with pytest.raises(af.ShapeError, match="no axis can be open"):
        nn.InnerProduct(5)(x)


def test_what_needs_the_number_is_refused() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("time", 2, 4))
    for make, what in (
        (lambda: ops.unstack(x), "unstack needs the number time"),
        (lambda: ops.scan(lambda x, h: [ops.tanh(x + h)], x, [graph.blob("h", (2, 4))]), "scan needs the number time"),
        (lambda: [x[i] for i in range(x.shape[0])], "the length time is not known before a run"),
        (lambda: graph.constant(np.arange(x.shape[0])), "the length time is not known before a run"),
        (lambda: ops.resize(graph.blob("y", (2, "h", 3)), scale=0.7), "halves, quarters and so on, got 0.7"),
    ):
        with pytest.raises(af.ShapeError, match=what):
            make()


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("reverse", [False, True])
def test_sequences_may_have_open_steps(kind: str, reverse: bool) -> None:
    """Values and gradients are those of a graph of these lengths, whose sequences may end before others, too."""
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]

    def made(time: Any, batch: Any) -> Any:
        graph = af.Graph("g")
        x, lengths = graph.blob("x", (time, batch, 4), "f8"), graph.blob("lengths", (batch,), "int32")
        wx, wh = graph.variable("wx", (gates * 3, 4), "f8", 0.1), graph.variable("wh", (gates * 3, 3), "f8", 0.2)
        found = [*getattr(ops, kind)(x, wx, wh, reverse=reverse)]
        found += getattr(ops, kind)(x, wx, wh, lengths=lengths, reverse=reverse)
        loss = sum(ops.sum(ops.square(each)) for each in found)
        return graph, x, lengths, [*found, *af.gradient(loss, [x, wx, wh])]

    graph, x, lengths, wanted = made("time", "batch")
    for time, batch in ((3, 2), (1, 1), (5, 4), (0, 2), (3, 0)):
        value, counts = np.random.default_rng(0).standard_normal((time, batch, 4)), np.arange(batch, dtype=np.int32) * 2
        result = graph.run_sync({x: value, lengths: counts}, fetch=wanted)
        other, known_x, known_lengths, same = made(time, batch)
        expected = other.run_sync({known_x: value, known_lengths: counts}, fetch=same)
        for mine, theirs in zip(wanted, same, strict=True):
            np.testing.assert_array_equal(result[mine], expected[theirs])


def test_gradients_of_gradients_of_sequences_need_the_number_of_steps() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("time", 2, 4))
    y, _ = ops.rnn(x, graph.variable("wx", (3, 4), "f4", 0.1), graph.variable("wh", (3, 3), "f4", 0.1))
    with pytest.raises(af.GraphError, match="a step by step computation needs the number time"):
        af.gradient(ops.sum(ops.square(af.gradient(ops.sum(y), x))), x)


# -- lengths that do not fit ------------------------------------------------------------------------------------------


def test_what_is_assumed_is_checked_for_each_length() -> None:
    graph = af.Graph("g")
    x, y = graph.blob("x", ("batch", 3)), graph.blob("y", ("rows", 3))
    total = ops.maximum(x, y)
    feeds = {x: rows(2), y: rows(2)}
    assert graph.run_sync(feeds, fetch=[total])[total].shape == (2, 3)
    for batch, other in ((2, 3), (1, 3), (3, 1), (0, 1)):
        with pytest.raises(af.ShapeError) as caught:
            graph.run_sync({x: rows(batch), y: rows(other)}, fetch=[total])
        assert f"op 'maximum', with batch = {batch}, rows = {other}: Maximum: b must broadcast with a's shape" in str(
            caught.value
        )
        assert f"created at {LINE}" in str(caught.value)
    assert graph.run_sync(feeds, fetch=[total])[total].shape == (2, 3)  # it runs on


def test_an_axis_of_length_1_is_not_repeated() -> None:
    graph = af.Graph("g")
    x, y = graph.blob("x", ("batch", 3)), graph.blob("y", (4, 3))
    total = x * y
    dx = af.gradient(ops.sum(total * total), x)
    assert dx.spec.dtype == x.dtype
    assert graph.run_sync({x: rows(4), y: rows(4)}, fetch=[dx])[dx].shape == (4, 3)
    with pytest.raises(af.ShapeError, match="op 'multiply', with batch = 1"):
        graph.run_sync({x: rows(1), y: rows(4)}, fetch=[total])
    copies = ops.broadcast_to(x, (4, 3))
    with pytest.raises(af.ShapeError, match="op 'broadcastto', with batch = 1: BroadcastTo: x must broadcast to shape"):
        graph.run_sync({x: rows(1)}, fetch=[copies])


def test_reshapes_and_splits_that_do_not_fit() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 3))
    pairs, (_, half) = ops.reshape(x, (-1, 6)), ops.split(x, 2)
    assert graph.run_sync({x: rows(4)}, fetch=[pairs, half])[pairs].tolist() == rows(2, 6).tolist()
    with pytest.raises(af.ShapeError, match="'reshape', with batch = 3: Reshape: x of 9 elements cannot have shape"):
        graph.run_sync({x: rows(3)}, fetch=[pairs])
    with pytest.raises(af.ShapeError, match=r"'split', with batch = 3: Split: lengths .* must add up"):
        graph.run_sync({x: rows(3)}, fetch=[half])
    best, _ = ops.top_k(x, 2, axis=0)
    with pytest.raises(af.ShapeError, match="with batch = 1"):
        graph.run_sync({x: rows(1)}, fetch=[best])


def test_two_sources_that_disagree() -> None:
    graph = af.Graph("g")
    x, labels = graph.blob("x", ("batch", 3)), graph.blob("labels", ("batch",), "int64")
    loss = ops.softmax_loss(x, labels)
    with pytest.raises(
        af.ShapeError, match=r"axis 'batch' is 2 in the feed for blob 'x' .*, and 4 in the one for 'labels'"
    ):
        graph.run_sync({x: rows(2), labels: [0, 1, 2, 0]}, fetch=[loss])
    with pytest.raises(af.ShapeError, match=r"feed for blob 'x': expected shape \(batch, 3\), got \(3,\)"):
        graph.run_sync({x: [1.0, 2.0, 3.0], labels: [0]}, fetch=[loss])
    with pytest.raises(af.ShapeError, match="'x'"):
        graph.run_sync({x: rows(2, 4), labels: [0, 1]}, fetch=[loss])


def test_a_length_that_no_feed_says() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4,))
    y = ops.fill(graph, 2.0, ("batch", 4)) * x
    with pytest.raises(af.FeedError, match="no feed says the length of 'batch'"):
        graph.run_sync({x: np.ones(4, "f")}, fetch=[y])
    other = graph.blob("images", ("batch", 4))
    with pytest.raises(af.FeedError, match=r"cannot feed 'image', .* did you mean 'images'\?"):
        graph.run_sync({x: np.ones(4, "f"), "image": rows(2, 4)}, fetch=[y * other])
    half = graph.blob("half", (axis("other") * 2,))
    with pytest.raises(af.FeedError, match="no feed says the length of 'other'"):
        graph.run_sync({half: np.ones(4, "f")}, fetch=[half])


def test_compile_takes_the_lengths() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", "time"))
    y = ops.relu(x)
    plan = graph.compile([y], axes={"batch": 2, "time": 5})
    assert {slot.spec.shape for slot in plan.slots} == {(2, 5)}
    assert graph.memory_cost([y], axes={"batch": 20, "time": 5}) is not None
    for axes in (
        {"batch": 2},
        {"batch": 2, "time": -1},
        {"batch": 2, "time": 5, "depth": 1},
        {"batch": 2, "time": "5"},
    ):
        with pytest.raises(af.GraphError, match="open axes of graph 'g' are 'batch', 'time': give the length of each"):
            graph.compile([y], axes=axes)  # type: ignore[arg-type]


# -- frames -----------------------------------------------------------------------------------------------------------


def test_feeds_may_be_sequences() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 2))
    y = x * 2.0
    for value in ([[1, 2], [3, 4], [5, 6]], ((1.0, 2.0),), np.zeros((0, 2), "f"), [[True, False]]):
        assert graph.run_sync({x: value}, fetch=[y])[y].tolist() == (2.0 * np.asarray(value)).tolist()


def test_an_empty_batch() -> None:
    graph = af.Graph("g")
    x, labels = graph.blob("x", ("batch", 4, 4, 3)), graph.blob("labels", ("batch",), "int64")
    scores = nn.InnerProduct(5)(ops.flatten(ops.max_pool(nn.Conv(4, 3, pad=1)(x), 2, 2)))
    loss = ops.softmax_loss(scores, labels)
    gradients = af.gradient(loss, [*graph.variables])
    for n in (0, 1, 3, 0):
        feeds = {x: np.ones((n, 4, 4, 3), "f"), labels: np.zeros(n, "int64")}
        result = graph.run_sync(feeds, fetch=[scores, loss, *gradients])
        assert result[scores].shape == (n, 5)
        assert math.isnan(result[loss]) == (n == 0)
        assert all(np.isfinite(result[each]).all() for each in gradients)


def test_parts_use_their_own_axes_alone() -> None:
    graph = af.Graph("g")
    x, y = graph.blob("x", ("batch",)), graph.blob("y", ("time",))
    one, other = ops.exp(x), ops.tanh(y)
    assert graph.run_sync({x: [0.0, 0.0]}, fetch=[one])[one].tolist() == [1.0, 1.0]
    assert graph.run_sync({y: [0.0]}, fetch=[other])[other].tolist() == [0.0]
    assert [*graph.compile([one], axes={"batch": 1}).slots]
    with pytest.raises(af.FeedError, match=r"'time'|'y'"):
        graph.run_sync({x: [0.0]})


async def test_functions_and_sub_graphs() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 2))
    seen: list[tuple[int, ...]] = []

    def doubled(x: np.ndarray) -> np.ndarray:
        seen.append(x.shape)
        return x * 2

    async def later(x: np.ndarray) -> np.ndarray:
        await asyncio.sleep(0)
        return np.concatenate([x, x])

    with graph.subgraph("inner"):
        y = graph.function("doubled", doubled, af.TensorSpec.of(("batch", 2)))(x)
        z = graph.function("later", later, af.TensorSpec.of((2 * axis("batch"), 2)))(y)
    wrong = graph.function("wrong", later, af.TensorSpec.of(("batch", 2)))(x)
    async with graph:
        for n in (2, 0, 1):
            result = await graph.run({x: np.ones((n, 2), "f")}, fetch=[z])
            assert result[z].tolist() == [[2.0, 2.0]] * 2 * n
        assert seen == [(2, 2), (0, 2), (1, 2)]
        with pytest.raises(af.OpError, match="wrong"):
            await graph.run({x: np.ones((3, 2), "f")}, fetch=[wrong])


async def test_plans_that_are_made_again_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    graph = af.Graph("g", max_plans=3)
    x = graph.blob("x", ("batch",))
    ops.exp(x)
    async with graph:
        for lengths, said in (([*range(1, 60)], 0), ([1, 2, 3] * 5, 0), ([1, 2, 3, 4] * 5, 1)):
            for n in lengths:
                await graph.run({x: np.zeros(n, "f")})
            messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert len(messages) == said
    assert "graph 'g' makes plans again" in messages[0]
    assert "max_plans=3" in messages[0]


def test_dry_runs_say_the_types() -> None:
    graph = af.Graph("g", dry_run=True)
    x = graph.blob("x", ("batch", 3))
    y = ops.concat([x, x])
    for n in (2, 5):
        assert graph.run_sync({x: rows(n)}, fetch=[y])[y] == af.TensorSpec.of((2 * n, 3))


def test_retries() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch",))
    calls: list[int] = []

    def brittle(x: np.ndarray) -> np.ndarray:
        calls.append(len(x))
        if len(calls) % 2:
            raise OSError("again")
        return x

    y = graph.function("brittle", brittle, x.spec, retries=1)(x)
    for n in (2, 3):
        assert graph.run_sync({x: np.zeros(n, "f")}, fetch=[y])[y].shape == (n,)
    assert calls == [2, 2, 3, 3]
