"""Values of a running graph on the page: samples for permitted viewers, while they look.

Values are private, so nothing is sampled unless the application offers it, and a client has
asked for it and shown the token, where there is one. A cookie is not enough, as for control. All clients together have
at most ten frames a second sampled. A client gets the newest sample when it has taken the one before,
so nothing piles up for a slow one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.core import clock_ns
from actorflow.errors import GraphError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Node, Op, Variable
from actorflow.loop import end, wait_out
from actorflow.threads import aside
from actorflow.trace.ring import RecordedValue
from actorflow.trace.values import ValueStatistics, norm_of, statistics_of
from actorflow.web.http import to_json
from actorflow.web.pictures import described, finite

if TYPE_CHECKING:
    from actorflow.runtime.program import Result
    from actorflow.runtime.taps import Tap
    from actorflow.web.access import TokenCheck

_log = logging.getLogger(__name__)

#: Seconds between samples of what is selected, and between those of norms, of which each takes two frames. Of the
#: former at most seven are in a second, and of the latter's frames three, where the second of two comes late.
VALUES_S, NORMS_S = 0.15, 1.25
#: Blobs that are sampled at once: of more clients than that, the first ones' are.
_MOST_BLOBS = 32
#: Earlier samples of a blob that a client is told of.
_MOST_KEPT = 160
#: Bytes of the weights whose norms are computed; of gradients there are as many.
_MOST_BYTES = 256 << 20
#: Of the time of one core, what is described takes at most this share.
_SHARE = 0.1


class Viewer:
    """Request of one client, and the newest message of each type that it has not been sent."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake  # called when there is news
        self.blob: Blob | None = None
        self.norms = False
        self.news: dict[str, str] = {}

    def tell(self, kind: str, message: str) -> None:
        """Have the client told."""
        self.news[kind] = message
        self.wake()


class Layer(NamedTuple):
    """A variable that is trained, and its gradient, where it has one."""

    variable: Variable
    gradient: Blob | None


class Values:
    """Samples values for the clients that look at them.

    Args:
        offered: Whether anybody may.
        guard: Knows the tokens, if there are any.
    """

    def __init__(self, graph: Graph, offered: bool = False, guard: TokenCheck | None = None) -> None:
        self._graph = graph
        self._offered = offered
        self._guard = guard
        self._viewers: list[Viewer] = []
        self._selected = _Sampling(self._sample_selected, VALUES_S)
        self._norms = _Sampling(self._sample_norms, NORMS_S)
        self._kept = set[asyncio.Task[None]]()
        self._one = asyncio.Lock()
        self._taken = asyncio.Event()

    def may(self, token: str | None) -> bool:
        """Return whether somebody who shows a token, or none, may see values."""
        return self._offered and (self._guard is None or (token is not None and self._guard.known(token) is not None))

    def ask(self, viewer: Viewer, message: Mapping[str, Any], find: Callable[[int], Blob | None]) -> bool:
        """Take a client's request; returns whether it is one.

        Args:
            find: Gives the blob of an id.
        """
        match message:
            case {"of": int() | None as of, "norms": bool(norms), "token": str() | None as token, **rest} if not (
                rest or isinstance(of, bool)
            ):
                pass
            case _:
                return False
        allowed = self.may(token)
        viewer.blob = find(of) if allowed and of is not None else None
        viewer.norms = allowed and norms
        viewer.news.clear()
        problem = "a graph on several ranks has no taps" if self._graph.world.size > 1 else None
        viewer.tell(
            "values", to_json({"type": "values", "offered": self._offered, "allowed": allowed, "problem": problem})
        )
        if viewer not in self._viewers:
            self._viewers.append(viewer)
        self._refresh()
        if viewer.blob is not None and (samples := self._kept_samples(viewer.blob)):
            viewer.tell("kept", to_json({"type": "kept", "id": viewer.blob.id, "samples": samples}))
        if isinstance(viewer.blob, Variable) and not viewer.blob.is_state and problem is None:
            task = asyncio.create_task(self._show_kept(viewer, viewer.blob))
            self._kept.add(task)
            task.add_done_callback(self._kept.discard)
        return True

    def _kept_samples(self, blob: Blob) -> list[dict[str, Any]]:
        """Statistics of a blob in frames of before, as far as the trace has them."""
        samples = [
            {"id": blob.id, "frame": value.frame, "shape": blob.shape, "dtype": str(blob.dtype)}
            | {name: finite(figure) for name, figure in value.figures.items()}
            for value in self._graph.engine.trace.values
            if value.name == blob.name
        ]
        return samples[-_MOST_KEPT:]

    def leave(self, viewer: Viewer) -> None:
        """A client has gone."""
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            self._refresh()

    def take(self, viewer: Viewer) -> list[str]:
        """Messages for a client, each once."""
        news = [*viewer.news.values()]
        viewer.news.clear()
        self._taken.set()
        return news

    async def aclose(self) -> None:
        """End all taps; idempotent."""
        self._viewers.clear()
        tasks = [task for task in (self._selected.task, self._norms.task, *self._kept) if task is not None]
        self._refresh()
        for task in self._kept:
            end(task)
        await wait_out(tasks)
        self._taken, self._one = asyncio.Event(), asyncio.Lock()  # the page may be opened again, on another loop

    # -- sampling -----------------------------------------------------------------------------------------------

    @property
    def _blobs(self) -> tuple[Blob, ...]:
        blobs = dict.fromkeys(viewer.blob for viewer in self._viewers if viewer.blob is not None)
        return tuple(blobs)[:_MOST_BLOBS]

    def _refresh(self) -> None:
        """Clients have come, gone, or want other things."""
        blobs = self._blobs
        self._selected.want(bool(blobs))
        if self._selected.tap is not None and blobs:
            self._selected.tap.blobs = blobs
        self._norms.want(any(viewer.norms for viewer in self._viewers))
        self._taken.set()

    async def _sample_selected(self, sampling: _Sampling) -> None:
        kernels, revision = frozenset[Any](), -1
        async with self._graph.tap(*self._blobs, interval=VALUES_S) as sampling.tap:
            sampling.tap.blobs = self._blobs
            async for sample in sampling.tap:
                if self._graph.revision != revision:
                    revision, nodes = self._graph.revision, self._graph.nodes
                    kernels = await aside(partial(_kernels_of, nodes))
                names = {viewer.blob.name: viewer.blob for viewer in self._viewers if viewer.blob is not None}
                wanted = {blob: sample[name] for name, blob in names.items() if name in sample}
                spent_s, messages = await aside(partial(_described, sample.frames[0], wanted, kernels))
                for blob, (statistics, message) in messages.items():
                    value = RecordedValue(blob.name, clock_ns(), sample.frames[0], statistics.figures)
                    self._graph.engine.trace.add_value(value)
                    for viewer in self._viewers:
                        if viewer.blob is blob:
                            viewer.tell("sample", message)
                del sample, wanted, messages
                await self._rest(spent_s, lambda: [v for v in self._viewers if v.blob is not None], "sample")

    async def _show_kept(self, viewer: Viewer, variable: Variable) -> None:
        """Tell of a variable's value between frames: a graph that is paused, idle or at its end has no other sample."""
        async with self._one:
            if viewer not in self._viewers or viewer.blob is not variable or "sample" in viewer.news:
                return
            try:
                next_frame, values = self._graph.engine.snapshot([variable])
                (value,) = await values
            except GraphError as error:
                _log.debug("the value of variable %r is not shown: %s", variable.name, error)
                return
            kernels = await aside(partial(_kernels_of, self._graph.nodes))
            frame = next_frame - 1 if next_frame else None
            _, messages = await aside(partial(_described, frame, {variable: value}, kernels))
            if viewer.blob is variable:
                viewer.tell("sample", messages[variable][1])
            await asyncio.sleep(VALUES_S)

    async def _sample_norms(self, sampling: _Sampling) -> None:
        while True:
            revision = self._graph.revision
            layers, left_out = await aside(partial(_layers_of, self._graph.nodes))
            if not layers:
                self._tell_norms(to_json({"type": "norms", "frame": None, "layers": [], "left_out": 0}))
                return
            blobs = [blob for layer in layers for blob in layer if blob is not None]
            async with self._graph.tap(*blobs, interval=NORMS_S, in_a_row=2) as sampling.tap:
                before: Result | None = None
                async for sample in sampling.tap:
                    first, before = before, sample
                    if first is None or abs(first.frames[0] - sample.frames[0]) != 1:
                        continue
                    pair = sorted([first, sample], key=lambda each: each.frames)
                    spent_s, message = await aside(partial(_norms, layers, left_out, pair))
                    self._tell_norms(message)
                    before = None
                    del first, sample, pair
                    await self._rest(spent_s, lambda: [v for v in self._viewers if v.norms], "norms")
                    if self._graph.revision != revision:
                        break

    def _tell_norms(self, message: str) -> None:
        for viewer in self._viewers:
            if viewer.norms:
                viewer.tell("norms", message)

    async def _rest(self, spent_s: float, viewers: Callable[[], list[Viewer]], kind: str) -> None:
        """Wait for as long as describing must not go on, and until a viewer has taken the last sample."""
        await asyncio.sleep(spent_s / _SHARE)
        while all(kind in viewer.news for viewer in viewers()):
            self._taken.clear()
            await self._taken.wait()


class _Sampling:
    """A task with a tap, while it is wanted."""

    def __init__(self, sample: Callable[[_Sampling], Any], interval_s: float) -> None:
        self.tap: Tap | None = None
        self.task: asyncio.Task[None] | None = None
        self._sample = sample
        self._interval_s = interval_s
        self._due_s = 0.0

    def want(self, wanted: bool) -> None:
        """Begin or end."""
        if not wanted and self.task is not None:
            end(self.task)
            self.task = None
        if wanted and (self.task is None or self.task.done()):
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self._due_s - perf_counter()))
            await self._sample(self)
        except GraphError as error:
            _log.debug("values are not sampled: %s", error)
        except Exception:  # noqa: BLE001  a task's last stop
            _log.exception("values for the live page cannot be sampled")
        finally:
            if self.tap is not None:  # another one waits for as long as this one might have to
                self.tap, self._due_s = None, perf_counter() + self._interval_s


def _kernels_of(nodes: Sequence[Node]) -> frozenset[tuple[int, ...]]:
    """Shapes of the kernels of convolutions, which their gradients have as well."""
    return frozenset(node.shape for node in nodes if isinstance(node, Variable) and len(node.shape) == 4)


def _layers_of(nodes: Sequence[Node]) -> tuple[list[Layer], int]:
    """Variables that ops write, only the ones with gradients if there are any; and the number left out."""
    found = []
    for node in nodes:
        if isinstance(node, Variable) and node.producers and not node.is_state and not node.spec.is_object:
            gradients = [grad for op in node.producers if (grad := _gradient(op)) is not None]
            found.append(Layer(node, gradients[0] if gradients else None))
    trained = [layer for layer in found if layer.gradient is not None] or found
    size_bytes = np.cumsum([layer.variable.spec.size_bytes for layer in trained])
    kept = int(np.searchsorted(size_bytes, _MOST_BYTES, side="right"))
    return trained[:kept], len(trained) - kept


def _gradient(op: Op) -> Blob | None:
    arguments: Sequence[str] = op.operation.arguments
    return op.inputs[arguments.index("grad")] if "grad" in arguments else None


def _described(
    frame: int | None, wanted: Mapping[Blob, npt.NDArray[Any]], kernels: frozenset[tuple[int, ...]]
) -> tuple[float, dict[Blob, tuple[ValueStatistics, str]]]:
    began, messages = thread_time(), {}
    for blob, value in wanted.items():
        statistics = statistics_of(value)
        content = described(value, statistics, value.shape in kernels)
        about = {"type": "sample", "id": blob.id, "frame": frame, "time": time.time()}
        messages[blob] = statistics, to_json({**about, **content})
    return thread_time() - began, messages


def _norms(layers: Sequence[Layer], left_out: int, pair: Sequence[Result]) -> tuple[float, str]:
    """Norms of weights, gradients and updates, from the values of each variable in two frames in a row."""
    began, (first, second) = thread_time(), pair
    told = []
    for variable, gradient in layers:
        before, after = first.get(variable.name), second.get(variable.name)
        slope = None if gradient is None else first.get(gradient.name)
        found = {
            "weight": before if before is None else norm_of(before),
            "gradient": slope if slope is None else norm_of(slope),
            "update": None if before is None or after is None else norm_of(after, minus=before),
        }
        told.append({"id": variable.id, **{what: finite(norm) for what, norm in found.items() if norm is not None}})
    about = {"type": "norms", "frame": first.frames[0], "left_out": left_out}
    return thread_time() - began, json.dumps({**about, "layers": told})
