"""OpenTelemetry spans of a graph: one per frame, below the span of its caller, and below that one per call.

Only this module imports OpenTelemetry, and only its API: without an SDK that the application sets up, spans are
nothing. Calls are not touched: their spans are made when their frame has ended, from the times in the trace. Only those
of async functions are there while they run, as their own work has spans below them. Failed calls say so by
themselves, since a trace does not keep their errors.

Source: the semantic conventions of OpenTelemetry (``code.*``, ``error.type``, ``exception`` events).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, Protocol

import numpy as np
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, TracerProvider

from actorflow.errors import text_of
from actorflow.spec import Lengths

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Node, Op
    from actorflow.trace.ring import Trace

_log = logging.getLogger("actorflow")
_Arguments = ParamSpec("_Arguments")

_ASYNC = "async functions"  # the track of calls that have spans of their own already
_REMOTE = "rank "  # how the tracks of other ranks' calls begin, which those ranks make spans of


class _Frame(Protocol):
    """A running frame, as far as its spans need it: see `actorflow.actors.frame.Frame`."""

    number: int
    context: contextvars.Context
    trace: Trace
    has_ended: bool
    spans: FrameSpans | None

    @property
    def lengths(self) -> Lengths: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def state(self) -> Enum: ...


class _OpActor(Protocol):
    @property
    def node(self) -> Op: ...


def _harmless(method: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Keep errors of the application's samplers and span processors from frames, which would never end."""

    @wraps(method)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except BaseException:  # noqa: BLE001  they are the application's
            _log.exception("a span could not be made, or not be ended")

    return guarded


class Instrumentation:
    """Makes spans of one graph; see `Graph.instrument`."""

    def __init__(
        self,
        graph: Graph,
        version: str,
        tracer_provider: TracerProvider | None,
        *,
        min_us: float,
        max_calls: int,
        nest_streams: bool,
    ) -> None:
        self.graph = graph  # a root graph
        self.tracer: Tracer = trace.get_tracer("actorflow", version, tracer_provider)
        self.min_ns = round(min_us * 1e3)
        self.max_calls = max_calls  # most calls of one frame that have one
        self._nest_streams = nest_streams
        self._revision = -1
        self._nodes: dict[int, Node] = {}

    @_harmless
    def begin(self, frame: _Frame, *, streamed: bool, requesters: Sequence[Span] = ()) -> None:
        """A frame has started, and none of its calls has; ``requesters`` are spans of the requests that it computes."""
        current: Context = frame.context.run(contexts.get_current)
        links = None
        if requesters or (streamed and not self._nest_streams):
            linked = [span.get_span_context() for span in requesters or [trace.get_current_span(current)]]
            links = [Link(each) for each in linked if each.is_valid]
            current = trace.set_span_in_context(trace.INVALID_SPAN, current)  # but for the span, the same: its baggage
        span = self.tracer.start_span(
            f"run {self.graph.name}",
            context=current,
            attributes={
                "actorflow.graph": self.graph.name,
                "actorflow.frame": frame.number,
                **{f"actorflow.axes.{name}": n for name, n in frame.lengths},
            },
            links=links,
        )
        for requester in requesters:
            requester.add_link(span.get_span_context(), {"actorflow.frame": frame.number})
        spans = FrameSpans(self, frame, span, trace.set_span_in_context(span, current))
        if frame.has_ended:  # there was nothing to do
            spans.end(frame)
        else:
            frame.context.run(contexts.attach, spans.context)
            frame.spans = spans

    def current(self) -> Span:
        """The span that is current here."""
        return trace.get_current_span()

    def node(self, node_id: int) -> Node | None:
        """A node by its id; None if it was deleted."""
        if self._revision != self.graph.revision:
            self._revision = self.graph.revision
            self._nodes = {node.id: node for node in self.graph.nodes}
        return self._nodes.get(node_id)


class _FailedCall(NamedTuple):
    node: Node
    track: str
    start_ns: int
    end_ns: int
    error: BaseException


class FrameSpans:
    """The span of one frame, and those below it."""

    __slots__ = ("_by_frame", "_calls_left", "_failed", "_from", "_live", "_offset_ns", "_span", "context")

    def __init__(self, instrumentation: Instrumentation, frame: _Frame, span: Span, context: Context) -> None:
        self.context = context  # context in which that span is current
        self._by_frame = instrumentation  # settings and tracer
        self._span = span  # span of the frame
        self._calls_left = instrumentation.max_calls if span.is_recording() else 0
        self._from = frame.trace.total
        self._live: dict[_OpActor, Span] = {}
        self._failed: list[_FailedCall] = []
        self._offset_ns = _clock_offset_ns()

    @_harmless
    def enter(self, actor: _OpActor, context: contextvars.Context) -> None:
        """An async function is about to be called in a context."""
        if self._calls_left:
            self._calls_left -= 1
            span = self._live[actor] = self._start(actor.node, _ASYNC, None)
            context.run(contexts.attach, trace.set_span_in_context(span, self.context))

    @_harmless
    def leave(self, actor: _OpActor, error: BaseException | None) -> None:
        """An async function has ended."""
        span = self._live.pop(actor, None)
        if span is not None:
            _note(span, error)
            span.end()

    @_harmless
    def failed(self, node: Node, track: str, start_ns: int, end_ns: int, error: BaseException) -> None:
        """A call has failed; times as in the trace."""
        if track != _ASYNC and len(self._failed) < self._calls_left:
            self._failed.append(_FailedCall(node, track, start_ns, end_ns, error))

    @_harmless
    def end(self, frame: _Frame) -> None:
        """The frame has ended, and nothing of it runs any more."""
        span, error = self._span, frame.error
        try:
            if span.is_recording():
                span.set_attribute("actorflow.end", frame.state.value)
                if error is not None:
                    _note(span, error)
                self._end_calls(frame)
        finally:
            span.end()

    def _end_calls(self, frame: _Frame) -> None:
        calls = frame.trace.since(self._from)
        local = [not track.startswith((_ASYNC, _REMOTE)) for track in frame.trace.tracks]
        own = calls.frame == frame.number
        rows = np.flatnonzero(own & np.array(local)[calls.track] & ~calls.failed)
        elapsed = (calls.end_ns - calls.start_ns)[rows]
        for call in self._failed[: self._calls_left]:
            self._calls_left -= 1
            span = self._start(call.node, call.track, call.start_ns)
            _note(span, call.error, call.end_ns + self._offset_ns)
            span.end(call.end_ns + self._offset_ns)
        chosen = rows[elapsed >= self._by_frame.min_ns]
        if len(chosen) > self._calls_left:
            longest = np.argsort(-(calls.end_ns - calls.start_ns)[chosen], kind="stable")[: self._calls_left]
            chosen = np.sort(chosen[longest])
        self._calls_left -= len(chosen)
        columns = (column[chosen].tolist() for column in (calls.node, calls.track, calls.start_ns, calls.end_ns))
        for node, track, start_ns, end_ns in zip(*columns, strict=True):
            made = self._start(self._by_frame.node(node), frame.trace.tracks[track], start_ns)
            made.end(end_ns + self._offset_ns)
        made_calls = self._by_frame.max_calls - self._calls_left
        self._span.set_attributes({"actorflow.calls": int(own.sum()), "actorflow.calls_with_span": made_calls})

    def _start(self, node: Node | None, track: str, start_ns: int | None) -> Span:
        attributes: dict[str, str | int] = {"actorflow.lane": track}
        if node is not None:
            attributes |= {
                "code.file.path": node.site.filename,
                "code.line.number": node.site.line,
                "code.function.name": node.site.function,
            }
            operation = getattr(node, "operation", None)
            if operation is not None:
                attributes["actorflow.operation"] = operation.kind
        return self._by_frame.tracer.start_span(
            "a node that is gone" if node is None else node.name,
            context=self.context,
            attributes=attributes,
            start_time=None if start_ns is None else start_ns + self._offset_ns,
        )


def _clock_offset_ns() -> int:
    """From the clock of the trace to that of spans. Of three looks the quickest: a thread may be held up in one."""
    looks = []
    for _ in range(3):
        before_ns = time.perf_counter_ns()
        now_ns = time.time_ns()
        after_ns = time.perf_counter_ns()
        looks.append((after_ns - before_ns, now_ns - (before_ns + after_ns) // 2))
    return min(looks)[1]


def _note(span: Span, error: BaseException | None, time_ns: int | None = None) -> None:
    """Record in a span how its frame or call ended, if not well. A cancellation is not an error."""
    if error is None or isinstance(error, asyncio.CancelledError):
        if error is not None:
            span.set_attribute("actorflow.end", "cancelled")
        return
    kind = type(error)
    named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", named)
    message = text_of(error)
    try:
        span.record_exception(error, timestamp=time_ns)
    except BaseException:  # noqa: BLE001  its own text cannot be had
        said = {"exception.type": named, "exception.message": message}
        span.add_event("exception", said, timestamp=time_ns)
    span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {message}"))
