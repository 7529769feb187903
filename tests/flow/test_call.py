"""Ops that run other graphs: values, types, order, failures, cancellations, and who keeps what."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import actorflow as af


def scaling() -> tuple[af.Graph, af.Blob, af.Variable, af.Blob]:
    """A graph that multiplies rows by a variable, and counts its frames."""
    graph = af.Graph("scaling")
    values = graph.blob("values", ["k", 2])
    factor = graph.variable("factor", [2], init=[1.0, 10.0])
    return graph, values, factor, values * factor


class TestValues:
    async def test_the_other_graph_computes_it_with_its_own_variables(self) -> None:
        scale, values, factor, scaled = scaling()
        async with scale, af.Graph("g") as graph:
            x = graph.blob("x", ["rows", 2])
            y = graph.call(scale, {values: x + 1})
            total = af.ops.sum(y, 1)
            assert (str(y.spec), y.name) == ("float32[rows, 2]", "scaling/out")
            assert graph.variables == ()
            for rows in (1, 3):
                result = await graph.run({x: np.ones((rows, 2), np.float32)})
                assert result[total].tolist() == [22] * rows
            factor.value = [2, 0]
            assert (await graph.run({x: [[1, 1]]}))[total].tolist() == [4]
            assert scale.statistics().frames.finished == 3
            assert (await scale.run({values: [[1, 1]]}))[scaled].tolist() == [[2, 0]]

    async def test_a_model_is_called_by_its_names(self) -> None:
        scale, values, _, scaled = scaling()
        wide = af.ops.concat([values, scaled], axis=0)
        model = af.Model(scale, {"in": values}, {"scaled": scaled, "wide": wide})
        async with scale, af.Graph("g") as graph:
            x = graph.blob("x", ["n", 2])
            made = graph.call(model, {"in": x})
            assert {name: str(blob.spec) for name, blob in made.items()} == {
                "scaled": "float32[n, 2]",
                "wide": "float32[2*n, 2]",
            }
            only = graph.call(model, {"in": [[3, 4]]}, fetch="scaled")["scaled"]
            result = await graph.run({x: [[1, 2]]}, fetch=[made["wide"], only])
            assert result[made["wide"]].tolist() == [[1, 2], [1, 20]]
            assert result[only].tolist() == [[3, 40]]

    async def test_lengths_that_follow_from_others(self) -> None:
        other = af.Graph("other")
        image = other.blob("image", ["h", "w"])
        flat = af.ops.reshape(image, (-1,))
        pooled = af.ops.concat([flat, flat], axis=0)[::4]
        async with other, af.Graph("g") as graph:
            x = graph.blob("x", ["n", 3])
            y = graph.call(other, {image: x}, fetch=pooled)
            assert str(y.spec) == "float32[(n + 1)//2 + n]"
            fixed = graph.call(other, {image: graph.constant(np.ones((5, 3), np.float32))}, fetch=pooled)
            assert fixed.shape == (8,)
            assert (await graph.run({x: np.ones((3, 3), np.float32)}, fetch=y))[y].shape == (5,)

    async def test_updates_there_are_in_the_order_of_frames_here(self) -> None:
        counter = af.Graph("counter")
        step = counter.blob("step", [])
        count = counter.variable("count", [])
        op = counter.op("add", af.ops.Sum())
        [count, step] >> op >> [count]
        before = count * 1
        async with counter, af.Graph("g") as graph:
            x = graph.blob("x", [])
            y = graph.call(counter, {step: x}, fetch=[before, op])
            results = await asyncio.gather(*[graph.run({x: i + 1}) for i in range(5)])
            assert [float(result[y]) for result in results] == [0, 1, 3, 6, 10]
            assert count.value == 15

    async def test_in_a_loop_for_each_item_and_of_a_call(self) -> None:
        scale, values, _, _ = scaling()
        async with scale, af.Graph("middle") as middle, af.Graph("g") as graph:
            v = middle.blob("v", [1, 2])
            middle.call(scale, {values: v})
            x = graph.blob("x", [1, 2])
            y, _ = af.scan(lambda c, _: (graph.call(middle, {v: c}), None), x, length=3)

            def twice(value: Any) -> Any:
                yield value
                yield value * 2

            item = graph.function("twice", twice, outputs=x.spec, emits=True)(x)
            z = af.collect(graph.call(middle, {v: item}))
            result = await graph.run({x: [[1, 1]]}, fetch=[y, z])
            assert result[y].tolist() == [[1, 1000]]
            assert result[z].tolist() == [[[1, 10]], [[2, 20]]]


def product(x: af.Blob, y: af.Blob, w: af.Blob) -> af.Blob:
    """A product with a weight, and with what is a function of the other."""
    return x * w * y + x


def decided(x: af.Blob, y: af.Blob, w: af.Blob) -> af.Blob:
    """A branch inside a loop, which reads the weight and a constant, and one that reads nothing but a constant."""
    two = x.graph.root.constant([2.0, 3.0], x.dtype)

    def step(c: af.Blob, _: Any) -> Any:
        return af.cond(af.ops.sum(c) > 1, lambda: c * w, lambda: c * two + y), c

    last, taken = af.scan(step, x, length=3)
    return last + af.ops.sum(taken, 0) + af.cond(af.ops.sum(x) > 100, lambda: two, lambda: two * 2)


def repeated(x: af.Blob, y: af.Blob, w: af.Blob) -> af.Blob:
    """A loop that ends by what it computes."""
    return af.while_loop(lambda c: af.ops.sum(c) < 20, lambda c: c * w + y, x, limit=9)


@pytest.mark.together("make", [product, decided, repeated])
class TestGradients:
    async def test_they_are_those_of_the_same_ops_here(self, make: Any) -> None:
        other, inner = af.Graph("other"), af.Graph("inner")
        p, q = (other.blob(name, [2], "float64") for name in "pq")
        made = make(p, q, other.variable("w", [2], "float64", init=[1.5, -0.5]))
        a = inner.blob("a", [2], "float64")
        halved = a * inner.variable("half", [2], "float64", init=[0.5, 0.25])
        async with other, inner, af.Graph("g") as graph:
            x = graph.blob("x", [2], "float64")
            w = graph.variable("w", [2], "float64", init=[1.5, -0.5])
            half = graph.variable("half", [2], "float64", init=[0.5, 0.25])

            def called(x: af.Blob) -> af.Blob:
                return graph.call(other, {p: x, q: graph.call(inner, {a: x * x}, fetch=halved)}, fetch=made)

            def direct(x: af.Blob) -> af.Blob:
                return make(x, x * x * half, w)

            fetched = []
            for form in (called, direct):
                looped, _ = af.scan(lambda c, _, form=form: (form(c) * 0.1, None), x, length=2)
                loss = af.ops.sum(form(x)) + af.ops.sum(looped * looped)
                first = af.gradient(loss, x)
                fetched.append([loss, first, af.gradient(af.ops.sum(first * first), x)])
            for given in ([0.3, 0.4], [2.0, -1.0]):
                result = await graph.run({x: given}, fetch=[*fetched[0], *fetched[1]])
                for ours, expected in zip(*fetched, strict=True):
                    np.testing.assert_allclose(result[ours], result[expected], rtol=1e-12)
            assert (len(other.sinks), len(inner.sinks)) == (1, 1)


async def test_a_gradient_is_on_the_values_that_variables_have_and_updates_none() -> None:
    scale, values, factor, scaled = scaling()
    train = af.nn.SGD(0.1).minimize(af.ops.sum(scaled))
    async with scale, af.Graph("g") as graph:
        x = graph.blob("x", [1, 2])
        dx = af.gradient(af.ops.sum(graph.call(scale, {values: x}, fetch=scaled)), x)
        assert (await graph.run({x: [[1, 1]]}, fetch=dx))[dx].tolist() == [[1, 10]]
        await scale.run({values: [[1, 1]]}, fetch=train)
        np.testing.assert_allclose((await graph.run({x: [[1, 1]]}, fetch=dx))[dx], [[0.9, 9.9]], rtol=1e-6)
        np.testing.assert_allclose(factor.value, [0.9, 9.9], rtol=1e-6)


@pytest.mark.together("kind, message", [("updates", "'count it' updates variable 'count'"), ("random", "draws random")])
def test_what_would_give_something_else_has_no_gradient(kind: str, message: str) -> None:
    other = af.Graph("other")
    v = other.blob("v", [2])
    count = other.variable("count", [2])
    if kind == "updates":
        [count, v] >> other.op("count it", af.ops.Sum()) >> [count]
    y = af.ops.dropout(v, 0.5) if kind == "random" else v * count
    graph = af.Graph("g")
    x = graph.blob("x", [2])
    called = graph.call(other, {v: x}, fetch=[y, *([other["count it"]] if kind == "updates" else [])])
    with pytest.raises(af.GraphError, match=rf"no gradient through 'other': op .*{message}"):
        af.gradient(af.ops.sum(called), x)


class TestFailures:
    async def test_an_error_names_both_ops_and_both_lines(self) -> None:
        other = af.Graph("other")
        v = other.blob("v", [])

        def fails(v: Any) -> Any:
            raise ValueError("inside")

        w = other.function("fails", fails, v.spec)(v)
        async with other, af.Graph("g") as graph:
            x = graph.blob("x", [])
            graph.call(other, {v: x}, fetch=w, name="deep")
            with pytest.raises(af.OpError, match=r"op 'deep' \(run of graph 'other'\) failed with OpError") as caught:
                await graph.run({x: 1})
            assert str(caught.value).count(__file__) == 2
            inner = caught.value.__cause__
            assert isinstance(inner, af.OpError)
            assert inner.op is other["fails"]
            assert isinstance(inner.__cause__, ValueError)
            assert (other.engine.running, graph.engine.running) == ([], [])

    async def test_retries_and_time_limits_of_the_op(self) -> None:
        other = af.Graph("other")
        v = other.blob("v", [])
        calls: list[float] = []

        async def tries(v: Any) -> Any:
            calls.append(float(v))
            if v == 1 and len(calls) < 3:
                raise ValueError("again")
            if v == 2:
                await asyncio.Event().wait()
            return v

        w = other.function("tries", tries, v.spec)(v)
        async with other, af.Graph("g") as graph:
            x = graph.blob("x", [])
            y = graph.call(other, {v: x}, fetch=w, retries=2)
            z = graph.call(other, {v: x}, fetch=w, timeout=0.02)
            assert (await graph.run({x: 1}, fetch=y))[y] == 1
            assert calls == [1, 1, 1]
            with pytest.raises(af.OpTimeoutError):
                await graph.run({x: 2}, fetch=z)
            await other.engine.observer.rest()
            assert not other.engine.running

    async def test_cancelling_here_cancels_there(self) -> None:
        other, begun, ended = af.Graph("other"), asyncio.Event(), []
        v = other.blob("v", [])

        async def waits(v: Any) -> Any:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        w = other.function("waits", waits, v.spec)(v)
        async with other, af.Graph("g") as graph:
            x = graph.blob("x", [])
            graph.call(other, {v: x}, fetch=w)
            run = asyncio.ensure_future(graph.run({x: 1}))
            await begun.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert ended == [True]
            assert not other.engine.running
            assert other.statistics().frames.cancelled == 1

    async def test_a_call_of_what_goes_on_does_not_stall(self) -> None:
        places = []
        other = af.Graph("other")
        v = other.blob("v", [])

        async def noted(v: Any) -> Any:
            (frame,) = graph.engine.running
            places.append(str(frame.position))
            return v

        y, _ = af.scan(lambda c, _: (other.function("noted", noted, v.spec)(c), None), v, length=4)
        async with other, af.Graph("g", stall_limit=3600) as graph:
            x = graph.blob("x", [])
            graph.call(other, {v: x}, fetch=y)
            await graph.run({x: 1})
        assert len(set(places)) == 4


class TestBuilding:
    @pytest.mark.together(
        "make, error, message",
        [
            (lambda g, o: g.call(o, {}), af.GraphError, r"needs values for 'values' float32\[k, 2\]"),
            (lambda g, o: g.call(o, {"value": g["x"]}), af.GraphError, "did you mean 'values'"),
            (lambda g, o: g.call(o, {"values": g["n"]}), af.DTypeError, r"got int64\[3, 2\]"),
            (lambda g, o: g.call(o, {"values": g["wide"]}), af.ShapeError, r"got float32\[3, 5\]"),
            (lambda g, o: g.call(o, {"values": g["line"]}), af.ShapeError, r"got float32\[2\]"),
            (lambda g, o: g.call(g, {"x": g["x"]}), af.GraphError, "without end"),
            (lambda g, o: o.call(g, {}, fetch=g.call(o, {"values": g["x"]})), af.GraphError, "without end"),
            (lambda g, o: g.call(o.subgraph("part"), {}), af.GraphError, "call its root"),
            (lambda g, o: g.call("other", {}), TypeError, "expected a graph or a model"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, make: Any, error: Any, message: str) -> None:
        other, *_ = scaling()
        graph = af.Graph("g")
        for name, shape, dtype in (("x", [3, 2], "float32"), ("n", [3, 2], "int64"), ("wide", [3, 5], "float32")):
            graph.blob(name, shape, dtype)
        graph.blob("line", [2])
        with pytest.raises(error, match=message):
            make(graph, other)

    async def test_a_file_cannot_have_it(self, tmp_path: Any) -> None:
        other, values, *_ = scaling()
        graph = af.Graph("g")
        graph.call(other, {values: graph.blob("x", [3, 2])})
        with pytest.raises(af.CheckpointError, match="run of graph 'scaling' has no name"):
            await graph.save(tmp_path / "g.af")
