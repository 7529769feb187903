"""OpenTelemetry spans: whose parent is whose, what they say, and that there are not too many of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

SQUARE = af.TensorSpec.of((2, 2))
FEED = {"x": np.ones((2, 2), "float32")}


class Telemetry:
    """A provider of our own, never the global one, and what it has exported."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if name in (None, span.name)]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


def below(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return whether a span is a child of another, and begins and ends within it."""
    assert span.parent is not None
    assert parent.context is not None
    assert None not in (span.start_time, span.end_time, parent.start_time, parent.end_time)
    within = parent.start_time <= span.start_time <= span.end_time <= parent.end_time
    return within and (span.parent.trace_id, span.parent.span_id) == (parent.context.trace_id, parent.context.span_id)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.provider.shutdown()


def service(telemetry: Telemetry, meet: Any = None) -> af.Graph:
    """Parse on the loop, compute on a lane, fetch as a task with a span of its own, and add."""
    graph = af.Graph("service")
    x = graph.blob("x", (2, 2))
    parsed = graph.function("parse", lambda x: x, SQUARE)(x)
    heavy = graph.function("heavy", lambda x: x, SQUARE, lane="side", timeout=60)(parsed)

    async def fetch(x: Any) -> Any:
        with telemetry.tracer.start_as_current_span("inside fetch"):
            await (asyncio.sleep(0) if meet is None else meet())
        return x

    fetched = graph.function("fetch", fetch, SQUARE, concurrency=100)(parsed)
    graph.function("add", lambda *xs: sum(xs), SQUARE)(heavy, fetched)
    graph.instrument(telemetry.provider, min_us=0)
    return graph


async def test_a_request_is_the_parent_of_its_ops(telemetry: Telemetry) -> None:
    graph = service(telemetry)
    async with graph:
        with telemetry.tracer.start_as_current_span("request"):
            await graph.run(FEED)
    request, run = telemetry.span("request"), telemetry.span("run service")
    assert below(run, request)
    for name in ("parse", "heavy", "fetch", "add"):
        assert below(telemetry.span(name), run), name
    assert below(telemetry.span("inside fetch"), telemetry.span("fetch"))
    assert len(telemetry.spans()) == 7
    assert dict(run.attributes or {}) == {
        "actorflow.graph": "service",
        "actorflow.frame": 0,
        "actorflow.end": "finished",
        "actorflow.calls": 4,
        "actorflow.calls_with_span": 4,
    }
    assert run.instrumentation_scope is not None
    assert (run.instrumentation_scope.name, run.instrumentation_scope.version) == ("actorflow", af.__version__)
    heavy = dict(telemetry.span("heavy").attributes or {})
    assert (heavy["actorflow.lane"], heavy["actorflow.operation"]) == ("cpu side", "Function")
    assert (heavy["code.file.path"], heavy["code.function.name"]) == (__file__, "service")
    assert all(span.status.status_code is StatusCode.UNSET for span in telemetry.spans())


async def test_spans_have_the_times_of_the_trace(telemetry: Telemetry) -> None:
    graph = service(telemetry)
    async with graph:
        await graph.run(FEED)
        calls = graph.recording()
    elapsed = {
        calls.names[node]: end - start
        for node, start, end in zip(calls.node, calls.start_ns, calls.end_ns, strict=True)
    }
    for name in ("parse", "heavy", "add"):
        span = telemetry.span(name)
        assert span.end_time is not None
        assert span.start_time is not None
        assert span.end_time - span.start_time == elapsed[name]


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no words")


@pytest.mark.parametrize("kind", ["loop", "lane", "async"])
async def test_an_error_without_words_ends_its_frame(telemetry: Telemetry, kind: str) -> None:
    graph = af.Graph("speechless")

    def call(_: Any) -> Any:
        raise UnspeakableError

    async def wait(_: Any) -> Any:
        raise UnspeakableError

    function = wait if kind == "async" else call
    graph.function("call", function, SQUARE, **({"lane": "side"} if kind == "lane" else {}))(graph.blob("x", (2, 2)))
    graph.instrument(telemetry.provider, min_us=0)
    async with graph:
        with pytest.raises(af.OpError) as caught:
            await graph.run(FEED)
    assert isinstance(caught.value.__cause__, UnspeakableError)
    for name in ("call", "run speechless"):
        assert telemetry.span(name).status.status_code is StatusCode.ERROR
    (event,) = telemetry.span("call").events
    assert event.name == "exception"
    assert dict(event.attributes or {})["exception.message"] == "<UnspeakableError that cannot be shown: RuntimeError>"


class Broken(SpanProcessor):
    """Fails for some spans, when they begin or when they end."""

    def __init__(self, when: str, what: str) -> None:
        self.when = when
        self.what = what
        self.failed = 0

    def _fail(self, when: str, span: Any) -> None:
        if when == self.when and span.name.startswith(self.what):
            self.failed += 1
            raise RuntimeError("no space left")

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._fail("start", span)

    def on_end(self, span: Any) -> None:
        self._fail("end", span)


@pytest.mark.parametrize("when", ["start", "end"])
@pytest.mark.parametrize("what", ["run", "parse", "heavy", "fetch"])
async def test_a_broken_processor_holds_no_frame_up(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, when: str, what: str
) -> None:
    graph = service(telemetry)
    broken = Broken(when, what)
    telemetry.provider.add_span_processor(broken)
    async with graph:
        result = await graph.run(FEED)
        assert (result["add/out"] == 2).all()
    assert broken.failed == 1
    assert "no space left" in caplog.text
    assert len(telemetry.spans("run service")) == (what != "run" or when == "end")


class TestHowMany:
    async def run(self, telemetry: Telemetry, count: int, **options: Any) -> ReadableSpan:
        graph = af.Graph("many")
        value = graph.blob("x", (2, 2))
        for number in range(count):
            value = graph.function(f"op {number}", lambda x: x, SQUARE)(value)
        graph.instrument(telemetry.provider, **options)
        async with graph:
            await graph.run(FEED)
        return telemetry.span("run many")

    async def test_short_calls_have_none(self, telemetry: Telemetry) -> None:
        run = await self.run(telemetry, 20, min_us=1e9)
        assert telemetry.spans() == [run]
        assert run.attributes is not None
        assert (run.attributes["actorflow.calls"], run.attributes["actorflow.calls_with_span"]) == (20, 0)

    async def test_the_longest_have_them(self, telemetry: Telemetry) -> None:
        run = await self.run(telemetry, 20, min_us=0, max_calls=5)
        calls = [span for span in telemetry.spans() if span is not run]
        assert len(calls) == 5
        assert all(below(span, run) for span in calls)
        assert run.attributes is not None
        assert (run.attributes["actorflow.calls"], run.attributes["actorflow.calls_with_span"]) == (20, 5)

    async def test_frames_alone(self, telemetry: Telemetry) -> None:
        graph = service(telemetry)
        graph.instrument(telemetry.provider, min_us=0, max_calls=0)
        async with graph:
            await graph.run(FEED)
        run = telemetry.span("run service")
        assert {span.name for span in telemetry.spans()} == {"run service", "inside fetch"}
        assert below(telemetry.span("inside fetch"), run)

    async def test_async_functions_count(self, telemetry: Telemetry) -> None:
        graph = service(telemetry)
        graph.instrument(telemetry.provider, min_us=0, max_calls=1)
        async with graph:
            await graph.run(FEED)
        assert {span.name for span in telemetry.spans()} == {"run service", "fetch", "inside fetch"}

    async def test_what_is_not_sampled(self) -> None:
        telemetry = Telemetry(sampler=ALWAYS_OFF)
        graph = service(telemetry)
        async with graph:
            await graph.run(FEED)
        assert telemetry.spans() == []
        telemetry.provider.shutdown()

    async def test_not_any_more(self, telemetry: Telemetry) -> None:
        graph = service(telemetry)
        async with graph:
            await graph.run(FEED)
            graph.uninstrument()
            await graph.run(FEED)
        assert len(telemetry.spans("run service")) == 1

    async def test_a_frame_in_flight_keeps_its_spans(self, telemetry: Telemetry) -> None:
        released = asyncio.Event()
        graph = service(telemetry, released.wait)
        async with graph:
            run = asyncio.create_task(graph.run(FEED))
            while not graph.engine.running or not graph.engine.running[0].tasks:
                await asyncio.sleep(0)
            graph.uninstrument()
            released.set()
            await run
        assert below(telemetry.span("fetch"), telemetry.span("run service"))

    @pytest.mark.parametrize("options", [{"min_us": -1.0}, {"max_calls": -1}])
    def test_negative_limits(self, telemetry: Telemetry, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"must (not be negative|be at least 0)"):
            af.Graph("g").instrument(telemetry.provider, **options)

    async def test_nothing_to_run(self, telemetry: Telemetry) -> None:
        graph = af.Graph("dry", dry_run=True)
        af.ops.relu(graph.blob("x", (2, 2)))
        graph.instrument(telemetry.provider)
        async with graph:
            await graph.run(FEED)
        assert (telemetry.span("run dry").attributes or {})["actorflow.end"] == "finished"


def recorded_error(span: ReadableSpan) -> tuple[str, str]:
    """Type and message of the exception that a span has recorded, once and as its status says."""
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes is not None
    assert span.attributes is not None
    found = str(event.attributes["exception.type"]), str(event.attributes["exception.message"])
    assert span.attributes.get("error.type", found[0]) == found[0]  # the SDK itself does not set it
    assert span.status.description == f"{found[0].rpartition('.')[2]}: {found[1]}"
    return found


class TestFailures:
    @pytest.mark.usefixtures("calls_count_as_short")
    @pytest.mark.parametrize("kind", ["inline", "lane", "async", "retried", "retried on a lane"])
    async def test_a_failed_op(self, telemetry: Telemetry, kind: str) -> None:
        graph = af.Graph("failing")

        def fail(x: Any) -> Any:
            if fail.armed:  # type: ignore[attr-defined]
                raise ValueError("no good")
            return x

        async def fail_later(x: Any) -> Any:
            await asyncio.sleep(0)
            return fail(x)

        fail.armed = False  # type: ignore[attr-defined]
        retries = 1 if kind.startswith("retried") else 0
        options: dict[str, Any] = {"lane": "side", "timeout": 60} if kind.endswith("lane") else {}
        failing = fail_later if kind in ("async", "retried") else fail
        good = graph.function("good", lambda x: x, SQUARE)(graph.blob("x", (2, 2)))
        graph.function("bad", failing, SQUARE, retries=retries, **options)(good)
        async with graph:
            for _ in range(3):  # from then on it runs inline
                await graph.run(FEED)
            graph.instrument(telemetry.provider, min_us=0)
            fail.armed = True  # type: ignore[attr-defined]
            with pytest.raises(af.OpError), telemetry.tracer.start_as_current_span("request"):
                await graph.run(FEED)
        run = telemetry.span("run failing")
        assert below(telemetry.span("good"), run)
        bad = telemetry.spans("bad")
        assert len(bad) == 1 + retries
        for span in bad:
            assert below(span, run)
            assert recorded_error(span) == ("ValueError", "no good")
            assert (span.attributes or {})["actorflow.lane"] == graph.recording().tracks[graph.recording().track[-1]]
        ends = [(span.start_time or 0, span.end_time or 0) for span in bad]
        assert all(start < end for start, end in ends)
        assert sorted(ends) == sorted(ends, key=lambda moments: moments[1]), "one after the other"
        name, message = recorded_error(run)
        assert name == "actorflow.errors.OpError"
        assert "'bad'" in message
        assert run.attributes is not None
        assert (run.attributes["actorflow.end"], run.attributes["actorflow.calls"]) == ("failed", 2 + retries)
        assert recorded_error(telemetry.span("request"))[0] == "actorflow.errors.OpError"

    async def test_a_timeout_of_a_run(self, telemetry: Telemetry) -> None:
        graph = service(telemetry, asyncio.Event().wait)
        async with graph:
            with pytest.raises(af.RunTimeoutError):
                await graph.run(FEED, timeout=0.01)
        assert recorded_error(telemetry.span("run service"))[0] == "actorflow.errors.RunTimeoutError"
        # On a busy machine it may be over before the function is called.
        assert all((fetch.attributes or {})["actorflow.end"] == "cancelled" for fetch in telemetry.spans("fetch"))

    async def test_a_timeout_of_an_op(self, telemetry: Telemetry) -> None:
        graph = af.Graph("late")

        async def wait(x: Any) -> Any:
            await asyncio.Event().wait()

        graph.function("wait", wait, SQUARE, timeout=0.01)(graph.blob("x", (2, 2)))
        graph.instrument(telemetry.provider)
        async with graph:
            with pytest.raises(af.OpTimeoutError):
                await graph.run(FEED)
        assert recorded_error(telemetry.span("run late"))[0] == "actorflow.errors.OpTimeoutError"
        assert telemetry.span("wait").end_time is not None

    def test_a_loop_that_was_closed_in_the_middle(self, telemetry: Telemetry) -> None:
        """Its frames are given up; a later run has spans as ever."""
        event = None

        def meet() -> Any:
            return asyncio.sleep(0) if event is None else event.wait()

        graph = service(telemetry, meet)

        async def leave() -> None:
            nonlocal event
            event = asyncio.Event()
            run = asyncio.create_task(graph.run(FEED))
            while not graph.engine.running or not graph.engine.running[0].tasks:
                await asyncio.sleep(0)
            run.cancel()

        asyncio.run(leave())
        event = None

        async def again() -> None:
            async with graph:
                await graph.run(FEED)

        asyncio.run(again())
        (run,) = [span for span in telemetry.spans("run service") if (span.attributes or {})["actorflow.frame"] == 1]
        assert [below(span, run) for span in telemetry.spans("fetch")].count(True) == 1


class TestStreams:
    async def feeds(self, telemetry: Telemetry, count: int) -> AsyncIterator[dict[str, Any]]:
        for number in range(count):
            with telemetry.tracer.start_span(f"message {number}"):
                pass
            yield FEED

    async def test_frames_link_to_where_they_come_from(self, telemetry: Telemetry) -> None:
        graph = service(telemetry)
        async with graph:
            with telemetry.tracer.start_as_current_span("consumer"):
                async for _ in graph.stream([FEED] * 5, in_flight=3):
                    pass
        consumer, frames = telemetry.span("consumer"), telemetry.spans("run service")
        assert len(frames) == 5
        assert len({frame.context.trace_id for frame in frames if frame.context is not None}) == 5
        for frame in frames:
            assert frame.parent is None
            (link,) = frame.links
            assert link.context == consumer.context
            assert len([span for span in telemetry.spans("heavy") if below(span, frame)]) == 1

    async def test_nested(self, telemetry: Telemetry) -> None:
        graph = service(telemetry)
        graph.instrument(telemetry.provider, nest_streams=True)
        async with graph:
            with telemetry.tracer.start_as_current_span("consumer"):
                async for _ in graph.stream([FEED] * 5, in_flight=3):
                    pass
        frames = telemetry.spans("run service")
        assert len(frames) == 5
        assert all(below(frame, telemetry.span("consumer")) and not frame.links for frame in frames)

    async def test_no_span_to_link_to(self, telemetry: Telemetry) -> None:
        graph = service(telemetry)
        async with graph:
            async for _ in graph.stream(self.feeds(telemetry, 3)):
                pass
        assert [(frame.parent, list(frame.links)) for frame in telemetry.spans("run service")] == [(None, [])] * 3

    async def test_baggage_stays(self, telemetry: Telemetry) -> None:
        seen: list[object] = []
        graph = af.Graph("bags")
        graph.function("look", lambda x: seen.append(baggage.get_baggage("tenant")), ())(graph.blob("x", (2, 2)))
        graph.instrument(telemetry.provider)
        async with graph:
            token = context.attach(baggage.set_baggage("tenant", "blue"))
            await graph.run(FEED)
            async for _ in graph.stream([FEED]):
                pass
            context.detach(token)
        assert seen == ["blue", "blue"]


@given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_any_mix_of_ends(seed: int, count: int) -> None:
    """Whatever becomes of each run: one ended span per frame, each call below its own frame, nothing left open."""
    draw = random.Random(seed)
    telemetry = Telemetry()
    ends = [draw.choice(["well", "fails", "cancelled"]) for _ in range(count)]

    async def main() -> None:
        graph = af.Graph("mixed")
        gates = [asyncio.Event() for _ in ends]

        async def wait(number: Any) -> Any:
            with telemetry.tracer.start_as_current_span("inside"):
                await gates[int(number)].wait()
                if ends[int(number)] == "fails":
                    raise ValueError(ends[int(number)])
            return number

        x = graph.blob("x", (), "int64")
        first = graph.function("first", lambda x: x, af.TensorSpec.of((), "int64"))(x)
        graph.function("wait", wait, af.TensorSpec.of((), "int64"), concurrency=100)(first)
        graph.instrument(telemetry.provider, min_us=0)

        async def request(number: int) -> None:
            with telemetry.tracer.start_as_current_span(f"request {number}"), contextlib.suppress(af.OpError):
                await graph.run({x: np.int64(number)})

        async with graph:
            tasks = [asyncio.create_task(request(number)) for number in range(count)]
            while len(graph.engine.running) < count or not all(frame.tasks for frame in graph.engine.running):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            for number in draw.sample(range(count), count):
                if ends[number] == "cancelled":
                    tasks[number].cancel()
                else:
                    gates[number].set()
                if draw.random() < 0.5:
                    await asyncio.sleep(0)
            await asyncio.wait(tasks)

    asyncio.run(main())
    assert len(telemetry.spans()) == 5 * count
    for number, end in enumerate(ends):
        parent = telemetry.span(f"request {number}")
        (run,) = [span for span in telemetry.spans("run mixed") if below(span, parent)]
        (wait,) = [span for span in telemetry.spans("wait") if below(span, run)]
        assert [below(span, run) for span in telemetry.spans("first")].count(True) == 1
        assert [below(span, wait) for span in telemetry.spans("inside")].count(True) == 1
        found = (run.attributes or {})["actorflow.end"], run.status.status_code, wait.status.status_code
        assert (
            found
            == {
                "well": ("finished", StatusCode.UNSET, StatusCode.UNSET),
                "fails": ("failed", StatusCode.ERROR, StatusCode.ERROR),
                "cancelled": ("cancelled", StatusCode.UNSET, StatusCode.UNSET),
            }[end]
        )
    telemetry.provider.shutdown()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(af.MissingExtraError, match=r"graph.instrument\(\) needs 'opentelemetry': .*actorflow\[otel\]"):
        af.Graph("g").instrument()


async def test_without_a_provider_nothing_happens() -> None:
    """Nobody has set one up: the API's own spans record nothing."""
    graph = af.Graph("quiet")
    graph.function("quick", lambda x: x, SQUARE)(graph.blob("x", (2, 2)))
    graph.instrument()
    async with graph:
        await graph.run(FEED)
    assert not trace.get_current_span().is_recording()


async def test_requests_of_a_batch_and_their_frame_link_to_each_other(telemetry: Telemetry) -> None:
    graph = af.Graph("batched")
    af.ops.scale(graph.blob("x", ("batch", 2)), 2.0)
    graph.instrument(telemetry.provider)
    numbers = {}

    async def request(name: str, rows: int) -> None:
        with telemetry.tracer.start_as_current_span(name):
            numbers[name] = (await batcher.run({"x": np.ones((rows, 2), "float32")})).frames

    async with graph, graph.batched(max_rows=4) as batcher:
        await asyncio.gather(request("a", 1), request("b", 1), request("c", 6))
        await batcher.run({"x": np.ones((1, 2), "float32")})  # of no span
    frames = {(run.attributes or {})["actorflow.frame"]: run for run in telemetry.spans("run batched")}
    assert {name: set(found) for name, found in numbers.items()} == {"a": {0}, "b": {0}, "c": {1, 2}}
    assert all(run.parent is None for run in frames.values())
    for name, found in numbers.items():
        span = telemetry.span(name)
        links = {(link.attributes or {})["actorflow.frame"]: link.context.span_id for link in span.links}
        assert links == {number: frames[number].context.span_id for number in found}
    linked = {number: {link.context.span_id for link in run.links} for number, run in frames.items()}
    ids = {name: telemetry.span(name).context.span_id for name in numbers}
    assert linked == {0: {ids["a"], ids["b"]}, 1: {ids["c"]}, 2: {ids["c"]}, 3: set()}
