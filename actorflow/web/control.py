"""Commands through the page: pause, step, resume, cancel, how many frames overlap, a checkpoint, a look for NaN."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from actorflow.checkpoint import Checkpoints
from actorflow.errors import CheckpointError, GraphError, MissingExtraError, visible
from actorflow.graph.options import FiniteCheck
from actorflow.threads import aside
from actorflow.web.http import CHUNK_BYTES, Refused, Request, Response, Route, to_json

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.runtime.stream import FrameStream
    from actorflow.web.access import TokenCheck
    from actorflow.web.live import LiveStream

_log = logging.getLogger("actorflow")

#: Most frames that a command may name: of a stream, or steps at once.
_MAX_IN_FLIGHT, _MAX_STEPS = 1024, 1_000_000
#: Frames in flight that are told of, the newest.
_MAX_LISTED = 200


class Saves(Protocol):
    """Interface of an object that saves a checkpoint when asked; `actorflow.nn.Trainer` has it."""

    async def save(self) -> Path:
        """Save one, and give its file."""


class _Conflict(Exception):  # noqa: N818  an answer, not an error
    """A command that cannot be carried out now."""


_Arguments = Mapping[str, Any]
#: The arguments that a command takes, and how large they may be, or that they are yes or no.
_Limits = Mapping[str, "int | type[bool]"]
_Command = Callable[[_Arguments, str], Awaitable[tuple[str, dict[str, Any]]]]


class Control:
    """Carries out commands of a page, or of another program, that may give them.

    Args:
        stream: Of the graph; its clients are told of each command.
        guard: Knows the tokens; None if no client may control.
        checkpoints: Where to save: a folder, `Checkpoints`, or an object with a coroutine function ``save``, as
            `actorflow.nn.Trainer` has; None for nowhere.
    Raises:
        MissingExtraError: if checkpoints need a package that is not installed.
        TypeError: if nothing can be saved to ``checkpoints``.
    """

    def __init__(
        self,
        stream: LiveStream,
        guard: TokenCheck | None,
        token: str | None,
        checkpoints: Checkpoints | Saves | str | os.PathLike[str] | None,
    ) -> None:
        self._stream = stream
        self._graph = stream.graph
        self._guard = guard
        self._token = token
        self._save_one = None if checkpoints is None else _saver(self._graph, checkpoints)
        self._commands: dict[str, tuple[_Command, _Limits]] = {
            "pause": (self._pause, {}),
            "resume": (self._resume, {}),
            "step": (self._step, {"frames": _MAX_STEPS}),
            "cancel": (self._cancel, {"frame": 1 << 62}),
            "in_flight": (self._in_flight, {"in_flight": _MAX_IN_FLIGHT, "stream": 1 << 62}),
            "stop": (self._stop, {"stream": 1 << 62}),
            "save": (self._save, {}),
            "check_finite": (self._check_finite, {"on": bool, "pause": bool}),
        }

    def routes(self) -> list[Route]:
        """Routes of the commands; without a guard they only say that there is no control."""
        found = [Route("GET", "/api/control", self._tell)]
        if self._guard is not None:
            found += [Route("POST", f"/api/control/{name}", partial(self._carry_out, name)) for name in self._commands]
            found.append(Route("POST", "/api/control/call", self._give_call))
        return found

    # -- who may ------------------------------------------------------------------------------------------------

    def _may(self, request: Request) -> bool:
        return self._guard is not None and self._guard.shown(request) == self._token

    def _check(self, request: Request) -> None:
        """Refuse clients that may not command, and requests that a browser may have been made to send."""
        assert self._guard is not None
        # Not a cookie: other servers of this host are sent it, too, and a browser sends it for pages of theirs.
        if self._guard.shown(request) is None:
            how = "open the address that the server printed, with its token, in this tab"
            raise Refused(Response.of_text(401, f"expected the token as Authorization: Bearer; in a browser, {how}"))
        if not self._may(request):
            raise Refused(Response.of_text(403, "this token lets you look; control needs the other one"))
        # No form of another page can have this type without being asked for permission first.
        if request.value("content-type").partition(";")[0].strip().lower() != "application/json":
            raise Refused(Response.of_text(415, "expected a body of type application/json"))

    # -- requests -----------------------------------------------------------------------------------------------

    async def _tell(self, request: Request) -> Response:
        content = {
            "offered": self._guard is not None,
            "allowed": self._may(request),
            "saves": self._save_one is not None,
            "frames": [frame.number for frame in self._graph.engine.running if not frame.halted][-_MAX_LISTED:],
            **control_state(self._graph),
        }
        return Response.of_json(to_json(content))

    async def _carry_out(self, name: str, request: Request) -> Response:
        self._check(request)
        command, limits = self._commands[name]
        arguments = await _arguments(request, limits)
        by = request.peer or "an unknown address"
        try:
            text, content = await command(arguments, by)
        except (_Conflict, GraphError, CheckpointError, OSError) as error:  # the last of a save of another kind
            why = visible(str(error), lines=True)
            _log.warning("graph %r: %s could not %s from the live page: %s", self._graph.name, by, name, why)
            return Response.of_text(409, str(error))
        # A warning, as it is seen unless the program says otherwise: a client has changed what it does.
        _log.warning("graph %r: %s from the live page, by %s", self._graph.name, text, by)
        self._stream.tell_command({"time": time.time(), "by": by, "text": text})
        return Response.of_json(to_json({"done": text, **content, **control_state(self._graph)}))

    async def _give_call(self, request: Request) -> Response:
        """The file of the kept call: values of the graph, so only for those who may control."""
        self._check(request)
        frame = (await _arguments(request, {"frame": 1 << 62})).get("frame")
        kept = self._graph.engine.resources.kept_call
        if kept is None or frame not in (None, kept.frame):
            known = "no call is" if kept is None else f"only a call of frame {kept.frame} is"
            return Response.of_text(409, f"{known} kept, as one that has made a NaN or an infinity")
        try:
            alone = kept.to_graph()
            content = await _saved(alone)
        except (GraphError, CheckpointError, MissingExtraError, OSError) as error:
            return Response.of_text(409, str(error))
        by = request.peer or "an unknown address"
        _log.warning(
            "graph %r: a call of frame %d was saved from the live page, by %s", self._graph.name, kept.frame, by
        )
        headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="frame-{kept.frame}.af"'}
        return Response(200, content, "application/octet-stream", headers)

    # -- commands -----------------------------------------------------------------------------------------------

    async def _pause(self, _: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        self._graph.pause(f"from the page, by {by}")
        return "paused", {}

    async def _resume(self, _: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        self._graph.resume()
        return "resumed", {}

    async def _step(self, arguments: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        frames = arguments.get("frames", 1)
        self._graph.step(frames)
        return f"stepped {frames:,} frame{'s' * (frames > 1)}", {}

    async def _cancel(self, arguments: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        cancelled = self._graph.cancel(arguments.get("frame"), reason=f"from the page, by {by}")
        what = f"frame {cancelled[0]:,}" if len(cancelled) == 1 else f"{len(cancelled):,} frames"
        return f"cancelled {what}", {"cancelled": cancelled}

    async def _in_flight(self, arguments: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        if "in_flight" not in arguments:
            raise Refused(Response.of_text(400, "expected in_flight"))
        stream = self._stream_of(arguments)
        stream.in_flight = frames = arguments["in_flight"]
        return f"stream {stream.number} has up to {frames:,} frame{'s' * (frames > 1)} in flight", {}

    async def _stop(self, arguments: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        stream = self._stream_of(arguments)
        stream.finish()
        return f"stopped stream {stream.number}: it ends with the frames that have started", {}

    def _stream_of(self, arguments: _Arguments) -> FrameStream:
        streams = {stream.number: stream for stream in self._graph.streams}
        known = ", ".join(map(str, streams)) or "none"
        number = arguments.get("stream", next(iter(streams), None) if len(streams) == 1 else None)
        if number not in streams:
            what = "no stream was named" if number is None else f"stream {number} does not run"
            raise _Conflict(f"{what}; running: {known}")
        return streams[number]

    async def _check_finite(self, arguments: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        if self._graph.world.size > 1:
            raise _Conflict("of a graph on several ranks the program says what is looked for, as all must do the same")
        before, is_on, pauses = self._graph.check_finite, arguments.get("on", True), arguments.get("pause", True)
        # The program's own kinds of check stay; frames that start from now on have them.
        self._graph.check_finite = (before or FiniteCheck())._replace(pause=pauses) if is_on else None
        return (f"set to {'pause' if pauses else 'fail'} at the first NaN" if is_on else "set not to look for NaN"), {}

    async def _save(self, _: _Arguments, by: str) -> tuple[str, dict[str, Any]]:
        if self._save_one is None:
            raise _Conflict("there is nowhere to save to: give the page checkpoints=")
        path = await self._save_one()
        return f"saved {path.name}", {"path": str(path)}


def control_state(graph: Graph) -> dict[str, Any]:
    """Content of the ``control`` message: how a graph is paused, and the streams that run."""
    pause, check, kept = graph.paused, graph.check_finite, graph.engine.resources.kept_call
    return {
        "paused": None
        if pause is None
        else {"reason": pause.reason, "since": pause.since_s, "steps": pause.steps, "waiting": pause.waiting},
        "paused_ranks": sorted(graph.engine.queue.paused_ranks),
        "streams": [{"stream": stream.number, "in_flight": stream.in_flight} for stream in graph.streams],
        "check_finite": check and {"nan": check.nan, "infinity": check.infinity, "pause": check.pause},
        "kept": kept and {"frame": kept.frame, "op_id": kept.op_id},
    }


async def _arguments(request: Request, limits: _Limits) -> _Arguments:
    """The body's object: of the names that there are, whole numbers in their limits, and yes or no."""
    body = await request.body()
    try:
        content = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Refused(Response.of_text(400, "expected a JSON object"))
    known = f" but {' and '.join(limits)}" if limits else ""
    for name, value in content.items():
        if name not in limits:
            raise Refused(Response.of_text(400, f"expected no argument{known}, got {name!r}"))
        least, limit = 0 if name in {"frame", "stream"} else 1, limits[name]
        if isinstance(limit, type):
            if type(value) is not limit:
                raise Refused(Response.of_text(400, f"expected {name} to be true or false"))
        elif type(value) is not int or not least <= value <= limit:
            raise Refused(Response.of_text(400, f"expected {name} to be a whole number from {least} to {limit:,}"))
    return content


async def _saved(graph: Graph) -> list[bytes]:
    """The file of a graph, in parts."""
    with tempfile.TemporaryDirectory(prefix="actorflow-") as folder:
        path = Path(folder, "call.af")
        async with graph:
            await graph.save(path)
        content = await aside(path.read_bytes)
    return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]


def _saver(graph: Graph, checkpoints: Checkpoints | Saves | str | os.PathLike[str]) -> Callable[[], Awaitable[Path]]:
    if isinstance(checkpoints, str | os.PathLike):
        checkpoints = Checkpoints(graph, checkpoints)
    if not isinstance(checkpoints, Checkpoints):
        if not callable(getattr(checkpoints, "save", None)) or hasattr(checkpoints, "nodes"):  # a graph saves itself
            expected = "checkpoints= to be a folder, Checkpoints, or a Trainer"
            raise TypeError(f"expected {expected}, got {type(checkpoints).__name__}")
        return checkpoints.save
    folder = checkpoints

    async def save() -> Path:
        if graph.world.size > 1:
            raise GraphError("a graph on several ranks cannot be saved from the page: all must save the same steps")
        return await folder.save(graph.engine.next_number)

    return save
