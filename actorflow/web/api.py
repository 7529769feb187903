"""What the page shows, for programs: JSON, a trace to take away, metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
from aiohttp import web

from actorflow.errors import MissingExtraError
from actorflow.history import NodeState, OpProfile
from actorflow.web.chrome import chrome_trace
from actorflow.web.latency import Latencies
from actorflow.web.metrics import exposition
from actorflow.web.pipelines import pipelines
from actorflow.web.stream import Stream
from actorflow.web.vitals import memory_of

__all__ = ["STREAM", "add_routes"]

STREAM: web.AppKey[Stream] = web.AppKey("stream", Stream)
_NEVER = OpProfile()


def add_routes(router: web.UrlDispatcher) -> None:
    """Add what this module answers."""
    router.add_get("/api/graph", _graph)
    router.add_get("/api/state", _state)
    router.add_get("/api/errors", _errors)
    router.add_get("/api/pipelines", _pipelines)
    router.add_get("/trace.json", _trace)
    router.add_get("/metrics", _metrics)
    router.add_get("/healthz", _health)


async def _graph(request: web.Request) -> web.Response:
    structure = await request.app[STREAM].structure()
    return _json(structure.message)


async def _state(request: web.Request) -> web.Response:
    graph = request.app[STREAM].graph
    engine = graph.engine
    row_of = np.full(graph.size, -1, np.int64)
    ops = list(graph.ops)
    ids = np.array([op.id for op in ops], np.int64)
    row_of[ids] = np.arange(len(ops))
    latencies = Latencies(engine.trace, row_of)
    rows = latencies.advance()
    medians, tails = (
        dict(zip(rows.tolist(), us.tolist(), strict=True)) for us in latencies.estimate_us(rows, 0.5, 0.99)
    )
    states = None if engine.monitor is None else engine.monitor.states
    described: list[dict[str, Any]] = []
    for row, op in enumerate(ops):
        profile = engine.profile.get(op.id, _NEVER)
        state = NodeState(states[op.id]) if states is not None and op.id < len(states) else NodeState.IDLE
        if state is NodeState.IDLE and profile.calls:
            state = NodeState.DONE  # before anybody watched
        described.append(
            {
                "name": op.name,
                "state": state.name.lower(),
                "calls": profile.calls,
                "total_us": profile.total_ns / 1e3,
                "last_us": profile.last_ns / 1e3,
                "p50_us": medians.get(row),
                "p99_us": tails.get(row),
            }
        )
    content = {"graph": graph.name, "frames": _frames(graph), "ops": described, "memory": memory_of(engine)}
    return _json(json.dumps(content))


async def _errors(request: web.Request) -> web.Response:
    graph = request.app[STREAM].graph
    names = {op.id: op.name for op in graph.ops}
    failures = [
        {
            "time": failure.time_s,
            "frame": failure.frame,
            "op": None if failure.op_id is None else names.get(failure.op_id),
            "message": failure.message,
        }
        for failure in graph.engine.errors
    ]
    return _json(json.dumps({"graph": graph.name, "failed": graph.engine.frames.failed, "newest": failures}))


async def _pipelines(_: web.Request) -> web.Response:
    return _json(json.dumps({"pipelines": pipelines()}))


async def _trace(request: web.Request) -> web.Response:
    stream = request.app[STREAM]
    structure = await stream.structure()
    trace = stream.graph.engine.trace
    calls, tracks = trace.since(0), list(trace.tracks)
    text = await asyncio.to_thread(
        chrome_trace, stream.graph.name, calls, tracks, structure.names, structure.index_of, trace.origin_ns
    )
    response = _json(text)
    response.headers["Content-Disposition"] = 'attachment; filename="trace.json"'
    return response


async def _metrics(request: web.Request) -> web.Response:
    try:
        body, content_type = exposition(request.app[STREAM].graph)
    except MissingExtraError as error:
        raise web.HTTPNotImplemented(text=f"501: {error}\n") from None
    return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


async def _health(request: web.Request) -> web.Response:
    graph = request.app[STREAM].graph
    return _json(json.dumps({"status": "ok", "graph": graph.name, "frames": _frames(graph)}))


def _frames(graph: Any) -> dict[str, int]:
    frames = graph.engine.frames
    return {name: getattr(frames, name) for name in ("started", "finished", "failed", "cancelled", "in_flight")}


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json", headers={"Cache-Control": "no-store"})
