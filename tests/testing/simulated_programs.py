"""Programs that are simulated under many seeds; each checks its own answers, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any
from unittest import mock

import numpy as np

import actorflow as af
import actorflow.array as xp
from actorflow.checkpoint.file import DamagedError
from actorflow.ranks import edges, peers
from actorflow.serve.app import SERVICE
from actorflow.testing import Faults, InjectedError, Simulated, SimulationError, shrink, simulate

Program = Callable[[], Coroutine[Any, Any, object]]


class NotServedError(Exception):
    """A server has answered with an error of its own."""


#: What calls may end with, and what only where faults strike.
EXPECTED = (af.OpTimeoutError, af.RunTimeoutError, asyncio.CancelledError)
BY_FAULTS = (
    InjectedError,
    DamagedError,
    MemoryError,
    af.DeviceError,
    af.PeerFailedError,
    af.PeerLostError,
    ConnectionError,
    asyncio.IncompleteReadError,
    NotServedError,
)
#: Whether faults may strike the program that runs.
faulty: ContextVar[bool] = ContextVar("faulty", default=True)
FAULTS = Faults(fails=0.03, slow=0.05, threads=0.01, cancels=0.05, memory=0.01, blocks=0.01)


def is_expected(error: BaseException) -> bool:
    """Whether an error follows from a fault, at once or in turn."""
    cause: BaseException | None = None if isinstance(error, AssertionError) else error
    while cause is not None:
        if isinstance(cause, EXPECTED) or (isinstance(cause, BY_FAULTS) and faulty.get()):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


async def settled(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """What calls return; the errors among that are those of faults."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not is_expected(each):
            raise each
    return found


async def runs() -> object:
    """Frames of one graph, each with functions of all kinds, overlap; each has its own answer."""
    async with af.Graph("runs") as graph:
        x = graph.blob("x", [3])
        h = af.ops.exp(x)

        async def later(a: np.ndarray) -> np.ndarray:
            await asyncio.sleep(0.003)
            return a + 1

        a = graph.function("later", later, h.spec, retries=1, backoff=0.005)(h)
        b = graph.function("double", lambda h: h * 2, h.spec)(h)
        y = af.ops.sum(a + b)

        async def one(number: int) -> float | None:
            result = await graph.run({x: np.full(3, number / 8, np.float32)}, timeout=0.02 if number == 3 else None)
            assert abs(result[y] - 3 * (3 * np.exp(number / 8) + 1)) < 1e-4, (number, result[y])
            return number

        return [type(each).__name__ for each in await settled(*map(one, range(6)))]


async def variables() -> object:
    """Every frame adds its bit to two variables, together: in both if it ends well, in none if it fails.

    A run that is cancelled in the turn in which its frame has ended has added it.
    """
    async with af.Graph("variables") as graph:
        x = graph.blob("x", [2])
        kept = [graph.variable(name, [2], init=np.zeros(2)) for name in ("v", "w")]
        for variable in kept:
            [variable, x] >> graph.function(f"add to {variable.name}", lambda a, b: a + b) >> [variable]

        async def one(number: int) -> None:
            await graph.run({x: np.full(2, 2.0**number, np.float32)}, atomic=True)

        found = await settled(*map(one, range(5)))
        values = [variable.value.tolist() for variable in kept]
        assert values == [[values[0][0]] * 2] * 2, (values, found)
        added = [bool(int(values[0][0]) >> number & 1) for number in range(5)]
        for each, is_added in zip(found, added, strict=True):
            assert isinstance(each, asyncio.CancelledError) or is_added != isinstance(each, BaseException), (
                values,
                found,
            )
        return [type(each).__name__ for each in found]


async def batches() -> object:
    """Callers share frames; each gets its own rows."""
    graph = af.Graph("batches")
    x = graph.blob("x", ["batch", 4])
    y = af.ops.sum(af.ops.exp(x), axis=1)
    async with graph, graph.batched(max_rows=4, max_wait=0.002) as batcher:

        async def one(number: int) -> int:
            await asyncio.sleep(number % 5 * 0.001)
            rows = np.full((1 + number % 2, 4), number / 4, np.float32)
            result = await batcher.run({x: rows}, timeout=None if number % 7 else 0.01)
            np.testing.assert_allclose(result[y], 4 * np.exp(rows[:, 0]), rtol=1e-6)
            return number

        found = await settled(*map(one, range(12)))
        assert batcher.statistics().waiting_rows == 0
        return [type(each).__name__ for each in found]


async def streams() -> object:
    """The results of a stream come in order."""
    async with af.Graph("streams") as graph:
        x = graph.blob("x", [], "int64")
        y = graph.function("square", lambda a: a * a, x.spec)(x)

        async def feeds() -> AsyncIterator[dict[Any, int]]:
            for number in range(12):
                await asyncio.sleep(0.001)
                assert stream.held < 3
                yield {x: number}

        found, stream = [], graph.stream(feeds(), in_flight=3)
        try:
            async for result in stream:
                found.append(int(result[y]))
        except Exception as error:
            if not is_expected(error):
                raise
        assert found == [number**2 for number in range(len(found))], found
        return found


async def accelerators() -> object:
    """A chain over two streams of a simulated accelerator, and back."""
    async with af.Graph("accelerators") as graph:
        x = graph.blob("x", [8])
        h = af.nn.parallel.CopyTo("sim:0")(x)
        for _ in range(3):
            h = af.ops.exp(h * 0.1)
        y = af.nn.parallel.CopyTo("cpu")(af.ops.sum(h) + af.ops.max(h))

        async def one(number: int) -> int:
            result = await graph.run({x: np.full(8, number, np.float32)})
            expected = np.exp(0.1 * np.exp(0.1 * np.exp(0.1 * number)))
            assert abs(float(result[y]) - 9 * expected) < 1e-4, (number, result[y])
            return number

        return [type(each).__name__ for each in await settled(*map(one, range(5)))]


async def pipelines() -> object:
    """Items keep their order through tasks and threads."""

    async def add(number: int) -> int:
        await asyncio.sleep(0.002)
        return number + 1

    loader = af.pipeline.source(range(20)).map(add, concurrency=3).map(lambda n: n * 2, concurrency=2).batch(4)
    found: list[int] = []
    try:
        async with loader:
            async for batch in loader:
                found += batch.tolist()
    except Exception as error:
        if not is_expected(error):
            raise
    assert found == [2 * (number + 1) for number in range(len(found))], found
    return found


async def merges() -> object:
    """Items of two pipelines come in the order of their times; who is slow gets the newest, and the others count."""

    async def wait(number: int) -> int:
        await asyncio.sleep(number % 3 * 0.001)
        return number

    def merged() -> Any:
        odd = af.pipeline.source(range(1, 24, 2)).map(wait, concurrency=2)
        even = af.pipeline.source(range(0, 24, 2)).map(lambda n: n)
        return af.pipeline.merge(odd, even, time=lambda n: n)

    async def all_items() -> list[int]:
        found: list[int] = []
        try:
            async with merged() as loader:
                async for number in loader:
                    found.append(number)
            assert len(found) == 24
        finally:
            assert found == [*range(len(found))], found
        return found

    async def newest_items() -> list[int]:
        found: list[int] = []
        async with merged().newest() as loader:
            try:
                async for number in loader:
                    found.append(number)
                    await asyncio.sleep(0.002)
                assert found[-1] == 23
                assert len(found) + loader.stats()["newest"].skipped == 24
            finally:
                assert found == sorted(set(found)), found
        return found

    return [type(each).__name__ for each in await settled(all_items(), newest_items())]


async def ranks() -> object:
    """Two ranks add up what each is fed."""
    world = af.world()
    async with af.Graph("ranks") as graph:
        parts = [graph.blob(f"part{rank}", [2], place=f"{rank}/cpu") for rank in range(2)]
        total = af.nn.parallel.Aggregate("0/cpu")(*parts)
        found = []
        for number in range(4):
            result = await graph.run({parts[world.rank]: [world.rank, 10 * number]}, fetch=total)
            found += [value.tolist() for value in dict(result).values()]
        assert found == ([[1.0, 20.0 * number] for number in range(4)] if world.rank == 0 else []), found
        return found


async def crossings() -> object:
    """Frames of two ranks overtake each other where few have messages of their own; one rank leaves a stream early."""
    world = af.world()

    async def late(a: np.ndarray) -> np.ndarray:
        await asyncio.sleep(float(a[0]) % 4 * 0.002)
        return a.copy()

    async with af.Graph("crossings") as graph:
        x = graph.blob("x", [2], place="0/cpu")
        with graph.at("1/cpu"):
            h = graph.function("late", late, x.spec)(x)
            z = af.ops.scale(x, 3.0, name="z")
        with graph.at("0/cpu"):
            y = af.ops.scale(h, 2.0, name="y")
        found: list[object] = []
        for number in range(6):
            fetch, factor, rank = ((y, 2.0, 0), (z, 3.0, 1))[number // 2 % 2]
            feeds = [{x: np.full(2, 10 * number + k, np.float32)} for k in range(5)]
            try:
                at = 0
                async with aclosing(graph.stream(feeds, fetch=[fetch], in_flight=4)) as results:
                    async for result in results:
                        expected = [feeds[at][x].tolist()] if world.rank == rank else []
                        values = [(value / factor).tolist() for value in dict(result).values()]
                        assert values == expected, (number, at, values)
                        at += 1
                        if number % 3 == world.rank and at == 2:
                            break
                    else:
                        assert at == 5, (number, at)
            except af.PeerFailedError as error:
                left = any(words in str(error) for words in ("was cancelled", "ended its stream"))
                if not faulty.get() and not (left and number % 3 == 1 - world.rank):
                    raise
            found.append((number, at))
        return found


async def budgets() -> object:
    """Frames in flight wait for memory of which there is not enough for all."""
    async with af.Graph("budgets", memory_budget=40_000) as graph:
        x = graph.blob("x", [1000])
        h = graph.function("later", _later, x.spec, timeout=0.5)(x)
        y = af.ops.sum(af.ops.sort(af.ops.exp(h)) + h)

        async def one(number: int) -> int:
            result = await graph.run({x: np.full(1000, number / 8, np.float32)})
            assert abs(float(result[y]) / 1000 - np.exp(number / 8) - number / 8) < 1e-3, (number, result[y])
            return number

        return [type(each).__name__ for each in await settled(*map(one, range(6)))]


async def _later(a: np.ndarray) -> np.ndarray:
    await asyncio.sleep(0.002)
    return a.copy()


async def loops() -> object:
    """Frames repeat a body, and take one branch of two."""
    async with af.Graph("loops") as graph:
        x = graph.blob("x", [], "float64")
        y = af.while_loop(lambda y: y < 100.0, lambda y: y * 3.0, x)
        z = af.cond(y > 150.0, lambda y: y - 1.0, lambda y: y + 1.0, y)

        async def one(number: int) -> int:
            result = await graph.run({x: float(number)})
            expected = float(number)
            while expected < 100:
                expected *= 3
            assert result[z] == (expected - 1 if expected > 150 else expected + 1), (number, result[z])
            return number

        return [type(each).__name__ for each in await settled(*map(one, range(1, 7)))]


async def sessions() -> object:
    """More clients than slots add up numbers, each in its own session; failed steps change nothing."""
    graph = af.Graph("sessions")
    x, total = graph.blob("x", ["row"]), graph.state("total", ["row"])
    y = total + graph.function("as it is", lambda a: a.copy(), x.spec)(x)
    total.assign(y)
    async with graph, graph.batched(max_rows=3, max_wait=0.002, max_sessions=3) as batcher:

        async def client(number: int) -> float:
            async with batcher.session(timeout=None, ttl=0.5) as session:
                known = 0.0
                for step in range(4):
                    assert batcher.statistics().sessions <= 3
                    try:
                        timeout = 0.003 if (number + step) % 5 == 0 else None
                        assert (await session.run({x: [number]}, timeout=timeout))[y].tolist() == [known + number]
                        known += number
                    except BaseException as error:
                        if not is_expected(error) or isinstance(error, asyncio.CancelledError):
                            raise
                    finally:
                        assert session.state_dict()["total"] == known, (number, step)
            return known

        found = await settled(*map(client, range(1, 8)))
        figures = batcher.statistics()
        assert (figures.sessions, figures.waiting_rows) == (0, 0), figures
        return [type(each).__name__ for each in found]


async def iterations() -> object:
    """Callers iterate until their number is 1; some leave before, some take another step in between."""
    graph = af.Graph("iterations")
    n = graph.blob("n", ["row"], "int64")
    fed = graph.function("later", _later, n.spec)(n)
    following = af.ops.where(af.ops.equal(fed % 2, 0), fed // 2, 3 * fed + 1)
    done, total = af.ops.equal(following, 1), graph.state("total", ["row"], "int64")
    total.assign(y := total + fed)
    async with graph, graph.batched(fetch=[following, done, y], max_rows=4, max_wait=0.001, max_sessions=4) as batcher:

        async def caller(number: int) -> int:
            expected, read, limit = number, 0, 2 if number % 3 == 0 else None
            async with batcher.session(timeout=None) as session:
                steps: Any = session.iterate({n: [number]}, feedback={n: following}, until=done, limit=limit)
                try:
                    async for step in steps:
                        assert expected > 1
                        read += expected
                        expected = 3 * expected + 1 if expected % 2 else expected // 2
                        assert (step[following], step[y]) == ([expected], [read]), (number, expected, read)
                        if number % 4 == 3:
                            await asyncio.sleep(0.005)  # steps are computed meanwhile, and forgotten
                            read += 2 * number
                            assert (await session.run({n: [2 * number]}))[y] == [read]
                finally:
                    await steps.aclose()
                assert limit or expected == 1
                return number

        found = await settled(*map(caller, range(2, 9)))
        figures = batcher.statistics()
        assert (figures.sessions, figures.waiting_rows) == (0, 0), figures
        return [type(each).__name__ for each in found]


async def swaps() -> object:
    """Callers iterate while weights are exchanged: a step has one version of both, which is no older than the last."""
    graph = af.Graph("swaps")
    n, weights = graph.blob("n", ["row"], "int64"), [graph.variable(name, [], "int64", init=0) for name in ("v", "w")]
    later = graph.function("later", _later, n.spec)(n)
    following, read = later + 1, af.ops.stack([weights[0] + 0 * n, weights[1] + 0 * later], 1)
    model, begun, done = af.Model.of(graph, fetch=[following, read]), 0, 0

    async def swap() -> None:
        nonlocal begun, done
        for begun in range(1, 5):
            await asyncio.sleep(0.004)
            await model.swap({each.name: np.int64(begun) for each in weights})
            done = begun

    async with graph, model.batched(max_rows=3, max_wait=0.001, max_sessions=3) as batcher:

        async def caller(number: int) -> int:
            async with batcher.session(timeout=None) as session:
                steps: Any = session.iterate({n: [number]}, feedback={n: following}, limit=2 + number)
                known, step = done, 0
                try:
                    async for result in steps:
                        step += 1
                        assert result[following] == [number + step]
                        ((version, other),) = result[read].tolist()
                        assert known <= version == other <= begun, (known, version, other, begun)
                        known = version
                        await asyncio.sleep(number % 3 * 0.002)  # steps are computed meanwhile
                finally:
                    await steps.aclose()
                assert step == 2 + number
                return number

        found = await settled(swap(), *map(caller, range(6)))
        assert done <= int(weights[0].value) == int(weights[1].value) <= begun
        assert batcher.statistics().waiting_rows == 0
        return [type(each).__name__ for each in found]


async def emissions() -> object:
    """Items of an op that emits are computed two at a time, and collected in order."""
    async with af.Graph("emissions") as graph:
        x = graph.blob("x", [4])

        @graph.function(outputs=af.TensorSpec.of([]), emits=True, in_flight=2)
        async def each(values: np.ndarray) -> AsyncIterator[np.ndarray]:
            for value in values:
                await asyncio.sleep(0.001)
                yield value

        item = each(x)
        y = af.collect(af.ops.exp(item) + graph.function("negate", lambda a: -a, item.spec)(item), length=4)

        async def one(number: int) -> int:
            fed = np.arange(number, number + 4, dtype=np.float32) / 4
            np.testing.assert_allclose((await graph.run({x: fed}))[y], np.exp(fed) - fed, rtol=1e-5)
            return number

        return [type(each).__name__ for each in await settled(*map(one, range(4)))]


async def calls() -> object:
    """A graph runs another one, which counts the calls that end well, and has room for one at a time."""
    inner, outer = af.Graph("inner", memory_budget=8_000), af.Graph("outer")
    a, count = inner.blob("a", [500]), inner.variable("count", [], "int64", init=0)
    squared = af.ops.square(af.ops.sort(a) + 1)
    [count] >> inner.function("add one", lambda n: n + 1) >> [count]
    x = outer.blob("x", [500])
    h = outer.call(inner, {a: x}, fetch=[squared, "add one"], concurrency=2, retries=1)
    y = af.ops.sum(h * 2)
    async with inner, outer:

        async def one(number: int) -> int:
            result = await outer.run({x: np.full(500, number, np.float32)}, timeout=0.02 if number == 2 else None)
            assert result[y] == 1000 * (number + 1) ** 2, (number, result[y])
            return number

        found = await settled(*map(one, range(6)))
        assert count.value >= sum(not isinstance(each, BaseException) for each in found)
        return [type(each).__name__ for each in found]


async def gradients() -> object:
    """Gradients through another graph, a loop and a branch are those at the weight, which each frame changes once."""
    inner, outer = af.Graph("inner"), af.Graph("outer")
    a = inner.blob("a", [3], "float64")
    af.ops.square(a)
    x, w = outer.blob("x", [3], "float64"), outer.variable("w", [], "float64", init=1)
    h = outer.call(inner, {a: x * w}, concurrency=2, retries=1)
    y = af.ops.sum(af.while_loop(lambda y: af.ops.max(y) < 50.0, lambda y: y * 2.0, h, limit=9))
    z = af.cond(y > 200.0, lambda y: y * 3.0, lambda y: y * 1.0, y)
    dx, dw = af.gradient(z, [x, w])
    [w, dw] >> outer.function("add one", lambda w, dw: w + np.sign(dw)) >> [w]
    async with inner, outer:

        async def one(number: int) -> float:
            fed = np.arange(number, number + 3.0)
            result = await outer.run({x: fed}, fetch=[z, dx, dw, "add one"], atomic=True)
            weight = 2 * result[z] / result[dw]
            values = (fed * weight) ** 2
            while values.max() < 50:
                values *= 2
            expected = values.sum() * (3 if values.sum() > 200 else 1)
            np.testing.assert_allclose(result[z], expected)
            np.testing.assert_allclose(result[dx], 2 * expected * fed / (fed**2).sum())
            return round(float(weight), 9)

        found = await settled(*map(one, range(1, 6)))
        seen = [each for each in found if isinstance(each, float)]
        assert set(seen) <= {1.0, 2.0, 3.0, 4.0, 5.0}
        assert len(set(seen)) == len(seen) < w.value <= 6, (found, w.value)
        return [type(each).__name__ for each in found]


async def parts() -> object:
    """Runs go on without what has failed: the rest is right, and what depends on a failure has its error."""

    async def left(a: np.ndarray) -> np.ndarray:
        await asyncio.sleep(0.002)
        if a[0] == 2:
            raise ValueError("this one fails")
        return a.copy()

    async with af.Graph("parts", memory_budget=40_000) as graph:
        x = graph.blob("x", [1000])
        first = af.ops.exp(graph.function("left", left, x.spec, retries=1)(x))
        second = graph.function("right", lambda a: a * 2, x.spec)(x + 1)
        wanted = {first: (), second: (), first + second: (first, second)}

        async def one(number: int) -> int:
            result = await graph.run({x: np.full(1000, number, np.float32)}, fetch=[*wanted], partial=True)
            values = np.exp(number), 2 * (number + 1), np.exp(number) + 2 * (number + 1)
            for (blob, needs), value in zip(wanted.items(), values, strict=True):
                assert (blob in result) != (blob.name in result.errors)
                if blob in result:
                    np.testing.assert_allclose(result[blob], np.full(1000, value), rtol=1e-6)
                    assert all(each in result for each in needs)
                else:
                    error = result.errors[blob.name]
                    assert is_expected(error) or (number == 2 and error.op_name == "left"), error
            assert number != 2 or first not in result
            return number

        return [type(each).__name__ for each in await settled(*map(one, range(5)))]


def asked(model: str, port: int, data: Sequence[float], **parameters: Any) -> bytes:
    """A request for a row, as it is sent."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(data)], "data": data}
    body = json.dumps({"inputs": [tensor], "parameters": parameters})
    headers = f"Host: 127.0.0.1:{port}\r\nContent-Length: {len(body)}"
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\n{headers}\r\n\r\n{body}".encode()


async def answered(reader: asyncio.StreamReader) -> list[float]:
    """The only output of the answer to a request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, length = int(head.split()[1]), int(re.findall(r"Content-Length: (\d+)", head)[0])
    answer = json.loads(await reader.readexactly(length))
    if status != 200:
        raise NotServedError(status, answer)
    (output,) = answer["outputs"]
    return output["data"]


async def sequences() -> object:
    """Clients send steps of sequences, and hang up: a step with an answer counts once, one without once or never."""
    graph = af.Graph("sums")
    x, total = graph.blob("x", ["batch", 1]), graph.state("total", ["batch", 1])
    y = total + graph.function("later", _later, x.spec)(x)
    total.assign(y)
    limits = af.serve.Limits(timeout_s=5, warm_up_s=0, sequences=3)
    app = af.serve.create_app({"sums": graph}, limits=limits)
    async with graph, af.serve.Server(app, port=0) as server:

        async def client(number: int) -> int:
            surely = perhaps = 0  # steps that count, as bits
            for step in range(5):
                flags = {"sequence_start": not surely | perhaps, "sequence_end": step == 4}
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                try:
                    writer.write(asked("sums", server.port, [1 << step], sequence_id=number + 1, **flags))
                    perhaps |= 1 << step
                    if (number + step) % 4 == 1:
                        await asyncio.sleep(number * 0.002)
                        raise ConnectionAbortedError
                    found = int((await answered(reader))[0])
                    assert surely == found & surely, (found, surely)
                    assert found == found & perhaps >= 1 << step, (found, perhaps)
                    surely = perhaps = found
                except NotServedError as error:
                    status, answer = error.args
                    if status == 400 and "there is no sequence" in answer["error"]:
                        assert not surely, "a sequence is lost"
                        perhaps = 0
                    elif status != 503 and not faulty.get():
                        raise
                    perhaps &= ~(1 << step)
                except (ConnectionError, asyncio.IncompleteReadError) as error:
                    if not faulty.get() and not isinstance(error, ConnectionAbortedError):
                        raise
                    writer.close()
                    await asyncio.sleep(20)  # the server has done it by then, or never will
                finally:
                    writer.close()
            return number

        found = await settled(*map(client, range(4)))
        assert await server.drain(20) == 0
        assert app[SERVICE]._account.held_bytes == 0
        return [type(each).__name__ for each in found]


async def serving() -> object:
    """Clients ask a server of models: one sends half and hangs up, one is slow, one asks twice at once."""
    graph = af.Graph("serving")
    x = graph.blob("x", ["batch", 2])
    af.ops.sum(af.ops.exp(x), axis=1)
    limits = af.serve.Limits(timeout_s=5, body_timeout_s=2, warm_up_s=0)
    app = af.serve.create_app({"m": graph}, limits=limits)
    async with graph, af.serve.Server(app, port=0) as server:

        async def client(number: int) -> int:
            data = [number / 4, number / 8]
            sent = asked("m", server.port, data)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                if number % 4 == 1:
                    writer.write(sent[: len(sent) * number // 8])
                    await asyncio.sleep(0.01)
                    return number
                count = 2 if number % 4 == 3 else 1
                for part in [sent[:40], sent[40:]] if number % 4 == 2 else [sent * count]:
                    writer.write(part)
                    await asyncio.sleep(0.5)
                for _ in range(count):
                    np.testing.assert_allclose(await answered(reader), [np.exp(data).sum()], rtol=1e-6)
            finally:
                writer.close()
            return number

        found = await settled(*map(client, range(8)))
        assert await server.drain(20) == 0
        assert app[SERVICE]._account.held_bytes == 0
        return [type(each).__name__ for each in found]


async def arrays() -> object:
    """Tasks go on with what others have recorded, on the host and on an accelerator; each awaits values of its own."""
    with xp.session():
        shared = xp.exp(xp.asarray(np.arange(8.0)) / 8)

        async def one(number: int) -> int:
            x = (shared if number % 2 else shared.to_device("sim:0")) * float(number)
            await asyncio.sleep(number % 3 * 0.001)
            y = xp.sum(xp.sort(-x) + 1.0)
            value, expected = await y, 8 - number * np.exp(np.arange(8.0) / 8).sum()
            assert abs(value - expected) < 1e-9, (number, value)
            return number

        return [type(each).__name__ for each in await settled(*map(one, range(4)))]


class Journal:
    """What a program that saves checkpoints knows of them, however often power fails."""

    def __init__(self) -> None:
        self.folder = TemporaryDirectory()
        self.begun = self.saved = 0  # the last step whose checkpoint was begun, and that was promised


#: That of the program that runs, by its loop.
_journals: dict[asyncio.AbstractEventLoop, Journal] = {}


def forget_journals() -> None:
    """Delete the files of a program that has ended."""
    while _journals:
        _journals.popitem()[1].folder.cleanup()


async def checkpoints(lies: bool = False) -> object:
    """A training goes on from its last checkpoint; what was saved is there, unless the disk has lied."""
    loop = asyncio.get_running_loop()
    if loop not in _journals:
        forget_journals()
        _journals[loop] = Journal()
    journal, graph = _journals[loop], af.Graph("checkpoints")
    x = graph.blob("x", [4])
    kept = [graph.variable(name, [4], init=np.zeros(4)) for name in ("v", "w")]
    for variable in kept:
        [variable, x] >> graph.function(f"add to {variable.name}", lambda a, b: a + b, retries=9) >> [variable]
    checkpoints = af.Checkpoints(graph, Path(journal.folder.name, "run"), keep=2)
    async with graph:
        try:
            found = await checkpoints.load(fallback=True)
        except af.CheckpointError as error:
            if lies and not isinstance(error, DamagedError):  # all of them are damaged
                raise
            raise AssertionError("what was saved is not there") from error
        step = 0 if found is None else found.position["step"]  # type: ignore[index]
        assert (0 if lies else journal.saved) <= step <= journal.begun, (journal.saved, step, journal.begun)
        assert [variable.value.tolist() for variable in kept] == [[step] * 4] * 2
        while step < 4:
            step += 1
            await graph.run({x: np.ones(4, np.float32)}, atomic=True)
            journal.begun = max(journal.begun, step)
            try:
                path = await checkpoints.save(step, position={"step": step})
            except af.CheckpointError as error:
                if "in the simulation" not in str(error):
                    raise
            else:
                journal.saved = step
                names = sorted(each.name for each in path.parent.iterdir() if not each.name.endswith(".damaged"))
                assert names[-1] == path.name, names
                assert len(names) <= 2, names
        return step


async def lying_disks() -> object:
    """As `checkpoints`, on a disk that does not keep what it was told to."""
    return await checkpoints(lies=True)


@dataclass(frozen=True)
class Kind:
    """A program, what goes wrong under every second seed, its ranks, and how many frames have tags of their own."""

    program: Program
    faults: Faults = FAULTS
    ranks: int = 1
    window: int = edges.WINDOW

    def simulate(self, seed: int) -> Simulated | BaseException:
        """What it does under a seed; the error that it ends with, if that follows from a fault.

        Raises:
            Exception: if it does not hold what it promises.
        """
        try:
            return self._under(seed, simulate)
        except Exception as error:
            if not seed % 2 or isinstance(error, SimulationError) or not is_expected(error):
                raise
            return error

    def shrink(self, seed: int) -> list[str]:
        """The fewest events with which it does not hold what it promises; see `actorflow.testing.shrink`."""
        return self._under(seed, shrink)

    def _under(self, seed: int, run: Callable[..., Any]) -> Any:
        token = faulty.set(bool(seed % 2))
        try:
            faults = self.faults if seed % 2 else None
            with mock.patch.object(edges, "WINDOW", self.window), mock.patch.object(peers, "WINDOW", self.window):
                return run(self.program, seed=seed, ranks=self.ranks, faults=faults, time_limit_s=1000)
        finally:
            faulty.reset(token)
            forget_journals()


OF_RANKS = replace(FAULTS, cancels=0.0, stops=0.2, freezes=0.2, late=0.05, cuts=0.2)
KINDS: dict[str, Kind] = {
    each.__name__: Kind(each)
    for each in (
        runs, variables, batches, sessions, iterations, swaps, streams, emissions, calls, gradients, parts, budgets,
        loops, accelerators, pipelines, merges, arrays,
    )
} | {
    "ranks": Kind(ranks, OF_RANKS, 2),
    "crossings": Kind(crossings, OF_RANKS, 2, window=3),
    "checkpoints": Kind(checkpoints, Faults(slow=0.1, fails=0.02, full=0.03, power=0.05)),
    "lying_disks": Kind(lying_disks, Faults(lies=0.3, power=0.1)),
    "serving": Kind(serving, replace(FAULTS, late=0.02, hangs_up=0.1)),
    "sequences": Kind(sequences, replace(FAULTS, late=0.02, hangs_up=0.1)),
}  # fmt: skip


def outcome(name: str, seed: int) -> list[str]:
    """Trace of a program of a kind under a seed, and how it ended."""
    found = KINDS[name].simulate(seed)
    if isinstance(found, BaseException):
        return [re.sub(rf"{re.escape(gettempdir())}/\w+", "", repr(found))]  # it may name a file
    return [*found.trace, repr(found.value)]
