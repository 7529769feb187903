"""Iterating a pipeline: epochs, positions, statistics, the end, and the common state of a loader's runs."""

from __future__ import annotations

import asyncio
import threading
import weakref
import zlib
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from actorflow.core import clock_ns
from actorflow.devices import Device, open_device
from actorflow.errors import DeviceError, PipelineError, shown
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.pipeline.calls.call import Call
from actorflow.pipeline.calls.options import Skip, Skips
from actorflow.pipeline.processes.workers import ProcessPool
from actorflow.pipeline.run import Run
from actorflow.pipeline.stages.branch import BranchStart
from actorflow.pipeline.stages.stage import (
    Build,
    Stage,
    StageActor,
    calling_site,
    caught,
    seeds_of,
    signature,
    walk,
    whole_number,
)
from actorflow.pipeline.stats import LoaderStats, StageStats, bottleneck
from actorflow.place import Place
from actorflow.threads import forget_in_child, in_thread


class LoaderResources:
    """Counts, kept items and processes of a loader."""

    def __init__(self, stages: list[Stage]) -> None:
        self.stats = {stage: StageStats(stage.name, stage.kind, stage.site, stage.concurrency) for stage in stages}
        self.skips = Skips()  # items left out
        self.caches: dict[Stage, Any] = {}  # items that caches have kept
        self._pools: dict[Stage, ProcessPool] = {}
        self._devices: dict[Stage, Device] = {}
        self._used: set[Stage] = set()
        weakref.finalize(self, _close_all, self._pools, self._devices)
        forget_in_child(self)

    def forget_parent(self) -> None:
        """This is the child of a fork: devices, and calls that run, are the parent's."""
        self._devices.clear()
        for stats in self.stats.values():
            stats.running = 0

    def pool(self, stage: Call) -> ProcessPool:
        """The processes that call the function of a stage."""
        if stage not in self._pools:
            self._pools[stage] = ProcessPool(stage.for_processes(), stage.concurrency, seeds_of(stage))
        return self._pools[stage]

    def device(self, stage: Stage, place: Place, graph: Graph | None, loop: asyncio.AbstractEventLoop) -> Device:
        """The loader's own device for a stage, with the options of the graph's."""
        device = self._devices.get(stage)
        if device is None:
            options = None if graph is None else graph.root.options.devices.get(place)
            device = self._devices[stage] = open_device(place, options)
        device.bind(loop)
        return device

    def use_up(self, stage: Stage) -> None:
        """A source that can be iterated once is iterated; raises PipelineError the second time."""
        if stage in self._used:
            raise PipelineError(
                f"source {stage.name!r} is an iterator, which can be iterated once, from its start: give a sequence, "
                "an iterable that begins anew each time, or a function that gives one for an epoch"
            )
        self._used.add(stage)

    async def aclose(self) -> None:
        """Stop the processes and forget kept items."""
        self.caches.clear()
        devices = list(self._devices.values())
        _close_all({}, self._devices)
        for device in devices:
            device.join()
        if self._pools:
            try:
                await in_thread(lambda: _close_all(self._pools, {}))
            except DeviceError:  # there is no thread to be had: the loop waits
                _close_all(self._pools, {})


def _close_all(pools: dict[Stage, ProcessPool], devices: dict[Stage, Device]) -> None:
    for device in devices.values():
        device.close()
    devices.clear()
    while pools:
        _, pool = pools.popitem()
        pool.close()


T = TypeVar("T")

_VERSION = 2
_LOOK_S = 0.1  # time after which a waiting thread looks again whether the loop is still there, in seconds
_known: weakref.WeakSet[Loader[Any]] = weakref.WeakSet()


class Loader(Generic[T]):
    """Iterates a pipeline, epoch after epoch; see `Pipeline`, which it is the base of.

    Attributes:
        stage: The last stage.
        epoch: That the next item belongs to, counted from 0.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.epoch = 0
        self._saved: Any = None  # the position in the epoch where the next run begins; None for its beginning
        self._resources: LoaderResources | None = None
        self._run: Run | None = None
        self._last: StageActor | None = None
        self._done: tuple[int, Run, StageActor] | None = None  # an epoch that has come to its end, until the next one
        self._iteration: weakref.ref[Iteration[T]] | None = None
        self._elapsed_ns = self._wait_ns = self._delivered = 0
        self._feeding: weakref.ref[Feeding] | None = None
        self._ended: list[Run] = []  # those that have left threads, which may still be in a call

        _known.add(self)
        forget_in_child(self)

    def __getstate__(self) -> dict[str, Any]:
        """The stages, and the place; another process has neither the run nor its statistics."""
        epoch, position = self._place()
        return {"stage": self.stage, "epoch": epoch, "position": position}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Loader.__init__(self, state["stage"])
        self.epoch, self._saved = state["epoch"], state["position"]

    def forget_parent(self) -> None:
        """This is the child of a fork: the run is the parent's; one here begins where that was."""
        run = self._run
        if run is not None:
            run.forget_parent()
            # A thread of the parent may have been in the middle of an item.
            self._saved = self._frozen(run.recent[-1] if run.taken is None else run.place())
            self._count(run)
            self._run = self._last = self._iteration = None

    # -- iterating ----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Iteration[T]:
        """Take the rest of an epoch: the first time all of the first one, then all of the second, ...

        An epoch left in the middle goes on there: items in flight are computed again.

        Raises:
            PipelineError: if an iteration is under way, or a source cannot be iterated again.
        """
        loop = asyncio.get_running_loop()
        if self._run is not None:
            if self._is_running:
                raise PipelineError("the loader is being iterated: end that first, with aclose() or by leaving it")
            self._leave()
        if self._resources is None:
            self._resources = LoaderResources(self.stages)
        run = Run(loop)
        try:
            last = self.stage.build(Build(run, self._resources, self.epoch), self._saved)
        except BaseException:
            run.stop()
            raise
        self._run, self._last, self._done = run, last, None
        run.begin(last)
        iteration = Iteration(self, run)
        self._iteration = weakref.ref(iteration)
        return iteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop, and wait until no task, thread or process of the loader is left. It can be iterated again.

        Cancellation: calls under way end by themselves.
        """
        await self.stopped()
        if self._resources is not None:
            await self._resources.aclose()

    async def stopped(self) -> None:
        """End the iteration that is under way, and wait until nothing of any runs; resources of later ones stay."""
        run = self._run
        if run is not None:
            run.stop()
            self._leave()
            await run.closed()
        for ended in self._ended[:]:
            await ended.closed()
        self._forget_ended()

    def _forget_ended(self) -> None:
        self._ended = [run for run in self._ended if run.has_threads]

    @property
    def _is_running(self) -> bool:
        run, iteration = self._run, None if self._iteration is None else self._iteration()
        return run is not None and run.ended_ns is None and iteration is not None and not run.loop.is_closed()

    def _leave(self) -> None:
        """A run has stopped, at its end or before: the next one begins where it was."""
        run = self._run
        if run is None:
            return
        self._saved = self._frozen(run.place())
        run.stop()
        self._count(run)
        self._run = self._last = None

    def _finished(self, run: Run) -> None:
        self._count(run)
        if self._run is run:
            assert self._last is not None
            self._done = self.epoch, run, self._last
            self._run = self._last = None
        self.epoch += 1
        self._saved = None

    def _count(self, run: Run) -> None:
        assert run.ended_ns is not None
        self._elapsed_ns += run.ended_ns - run.started_ns
        self._wait_ns += run.wait_ns
        self._delivered += run.delivered
        self._ended.append(run)
        self._forget_ended()

    # -- positions ----------------------------------------------------------------------------------------------

    def state_dict(self, *, delivered: int | None = None) -> dict[str, Any]:
        """The place behind the last item that was taken, as plain data that JSON can hold.

        Items in flight then are computed again, so nothing is lost and nothing comes twice. The items that follow are
        those that would have followed, in the same order, if the functions give the same for the same items.

        Args:
            delivered: The place behind this many items of this iteration, or of one that has just come to its end,
                instead, one of the last 1,024: for callers that have asked for items that they are not done with, as
                `Graph.stream` does.
        Raises:
            PipelineError: if that place is not known any more.

        Example:
            >>> loader, other = (af.pipeline.source(range(10), shuffle=True, seed=1).batch(2) for _ in range(2))
            >>> items = loader.iter_sync()
            >>> first = next(items), next(items)
            >>> state = loader.state_dict()  # plain data, for a file
            >>> other.load_state_dict(state)
            >>> [batch.tolist() for batch in other.iter_sync()] == [batch.tolist() for batch in items]
            True
        """
        epoch, position = self._place(None if delivered is None else whole_number("delivered", delivered))
        stages = signature(self.stage)
        digest = _digest(stages, position)
        return {"version": _VERSION, "stages": stages, "epoch": epoch, "position": position, "digest": digest}

    def _place(self, delivered: int | None = None) -> tuple[int, Any]:
        """The epoch, and the position in it as plain data; see `state_dict`."""
        run = self._run
        if run is None:
            return (self.epoch, self._saved) if delivered is None else self._place_of_done(delivered)
        if run.ended_ns is None and run.thread != threading.get_ident():
            return self._place_elsewhere(run, delivered)
        return self.epoch, self._frozen(run.place(delivered))

    def _place_of_done(self, delivered: int) -> tuple[int, Any]:
        """The place in the iteration that has ended, as who takes items ahead is not done with the last of them."""
        if self._done is None:
            raise PipelineError(f"the loader is not being iterated, so no item {delivered} is known")
        epoch, run, last = self._done
        if delivered == run.delivered:
            return self.epoch, self._saved
        return epoch, last.freeze(run.place(delivered))

    def _place_elsewhere(self, run: Run, delivered: int | None) -> tuple[int, Any]:
        """The place while a loop in another thread iterates."""
        place: Future[tuple[int, Any]] = Future()

        def tell() -> None:
            try:
                place.set_result(self._place(delivered))
            except BaseException as error:  # noqa: BLE001  raised where it was asked for
                place.set_exception(error)

        try:
            run.loop.call_soon_threadsafe(tell)
        except RuntimeError:  # it has just ended
            return self._place(delivered)
        while True:
            try:
                return place.result(timeout=_LOOK_S)
            except TimeoutError:
                if run.loop.is_closed():  # before it has told
                    return self._place(delivered)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place that `state_dict` gave, of this loader or of one that was made in the same way.

        Concurrency, executors, buffers, timeouts and batch sizes may differ.

        Raises:
            PipelineError: if it is nothing that `state_dict` gave, or its position was changed since, the place of
                another pipeline, or the loader is being iterated.
        """
        if not isinstance(state, Mapping):
            raise PipelineError(f"expected what state_dict() gave, got {shown(state)}")
        missing = {"version", "stages", "epoch", "position", "digest"} - state.keys()
        if missing:
            raise PipelineError(f"expected what state_dict() gave, but {', '.join(sorted(missing))} is missing")
        if state["version"] != _VERSION:
            raise PipelineError(f"expected a state of version {_VERSION}, got {state['version']!r}")
        stages = signature(self.stage)
        if state["stages"] != stages:
            raise PipelineError(f"the state is that of another pipeline\n  here: {stages}\n  there: {state['stages']}")
        epoch, position = state["epoch"], state["position"]
        if type(epoch) is not int or epoch < 0:
            raise PipelineError(f"expected an epoch that is a whole number of at least 0, got {shown(epoch)}")
        digest = _digest(stages, position)
        if state["digest"] != digest:
            raise PipelineError(
                f"expected the position that state_dict() gave, with digest {shown(state['digest'])}, got "
                f"{shown(position)}, with digest {digest}"
            )
        self._go_to(epoch, position)

    def _go_to(self, epoch: int, position: Any) -> None:
        if self._is_running:
            raise PipelineError("the loader is being iterated: end that first, with aclose() or by leaving it")
        self._leave()
        self.epoch, self._saved, self._done = epoch, position, None

    def _frozen(self, position: Any) -> Any:
        assert self._last is not None
        return self._last.freeze(position)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def stages(self) -> list[Stage]:
        """All stages, in the order of the data."""
        return [stage for stage in walk(self.stage) if not isinstance(stage, BranchStart)]

    @property
    def skips(self) -> tuple[Skip, ...]:
        """The newest items that were left out since their calls had failed; at most 1,000.

        Example:
            >>> loader = af.pipeline.source(["1", "two", "3"]).map(int, name="parse", on_error="skip")
            >>> list(loader.iter_sync())
            [1, 3]
            >>> [(skip.stage, skip.number, skip.item) for skip in loader.skips]
            [('parse', 1, "'two'")]
        """
        return () if self._resources is None else tuple(self._resources.skips.records)

    def stats(self) -> LoaderStats:
        """Statistics of all stages, over all iterations; cheap enough for polling.

        Example:
            >>> loader = af.pipeline.source(range(6)).map(str, name="text").batch(4, collate=list)
            >>> _ = list(loader.iter_sync())
            >>> stats = loader.stats()
            >>> stats.delivered, stats["text"].items_out
            (2, 6)
        """
        elapsed_ns, wait_ns, delivered = self._elapsed_ns, self._wait_ns, self._delivered
        run = self._run
        if run is not None:
            elapsed_ns += (run.ended_ns or clock_ns()) - run.started_ns
            wait_ns += run.wait_ns
            delivered += run.delivered
        session = self._resources or LoaderResources(self.stages)
        snapshots = tuple(session.stats[stage].snapshot(elapsed_ns) for stage in self.stages)
        queued, room = (0, 0) if run is None else (len(run.outlet.items), run.outlet.capacity)
        return LoaderStats(snapshots, delivered, elapsed_ns * 1e-9, wait_ns * 1e-9, queued, room)

    def fed_by(self, feeding: Feeding) -> None:
        """Items become feeds of a graph."""
        self._feeding = weakref.ref(feeding)

    @property
    def fed(self) -> tuple[Blob | str, ...]:
        """The blobs that parts of its items are fed to, as far as that is known: by `Pipeline.feed`."""
        feeding = None if self._feeding is None else self._feeding()
        return () if feeding is None else feeding.blobs

    def bottleneck(self) -> str:
        """The stage to widen, in words."""
        return bottleneck(self.stats(), [stage.executor for stage in self.stages])


def _digest(stages: str, position: Any) -> str:
    return f"{zlib.crc32(repr(_plain([stages, position])).encode()):08x}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((str(key), _plain(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def live_loaders() -> list[Loader[Any]]:
    """The loaders that are being iterated now, in this process; for the live page: see `Loader.stats`.

    Example:
        >>> loader = af.pipeline.source(range(3))
        >>> async def main():
        ...     async with loader:
        ...         async for _ in loader:
        ...             return loader in af.pipeline.live_loaders()
        >>> af.run(main()), loader in af.pipeline.live_loaders()
        (True, False)
    """
    return [loader for loader in _known if loader._is_running]


class Iteration(AsyncIterator[T]):
    """One iteration of a loader. Dropping it stops calls under way; `aclose` also waits for the end."""

    def __init__(self, loader: Loader[T], run: Run) -> None:
        self._loader = loader
        self.run = run  # the run that is iterated
        self._items = run.outlet.items

    async def __anext__(self) -> T:
        run, items = self.run, self._items
        if not items:
            try:
                is_there = await run.fill()
            except BaseException:
                del self  # a traceback that is kept must not keep the iteration
                raise
            if not is_there:
                await self._end()
        value, at = items.popleft()
        run.delivered += 1
        run.recent.append(at)
        run.outlet.source.wake()
        item: T = value
        return item

    async def aclose(self) -> None:
        """Stop, and wait until nothing of this iteration runs any more. Idempotent."""
        self.run.stop()
        await self.run.closed()

    async def _end(self) -> None:
        run = self.run
        has_ended, is_first = run.outlet.end is not None, run.ended_ns is None
        error = run.take_error()
        run.stop()
        await run.tasks_ended()
        if run.drained is not None:
            await run.drained()
        if error is not None and is_first:
            try:
                raise error
            finally:
                del error  # whose traceback refers to this call
        if is_first and has_ended:
            self._loader._finished(run)
        raise StopAsyncIteration

    def __del__(self) -> None:
        run = self.run
        if run.ended_ns is None and not run.loop.is_closed():
            try:
                run.loop.call_soon_threadsafe(run.stop)
            except RuntimeError:  # closed since
                run.stop()


class Feeding:
    """The feeds that `Pipeline.feed` gives, epoch after epoch. It knows its place as its loader does.

    Args:
        loader: Gives the items.
        blobs: Blobs that the parts of items are fed to.
        parts: The same by key, for items that are mappings.

    Attributes:
        name, kind, site: Names in errors, as stages have them.

    Raises:
        PipelineError: unless either is given.

    Example:
        >>> loader = af.pipeline.source([{"image": [1, 2], "label": 0}])
        >>> feeding = loader.feed(image="x", label="y")
        >>> feeding.feed_of({"image": [1, 2], "label": 0})
        {'x': [1, 2], 'y': 0}
    """

    name = kind = "feed"

    def __init__(self, loader: Loader[Any], blobs: tuple[Blob | str, ...], parts: Mapping[str, Blob | str]) -> None:
        if bool(blobs) == bool(parts):
            raise PipelineError("feed: expected either blobs for the parts of tuples, or blobs by key for mappings")
        self.loader = loader
        self._blobs = blobs
        self._parts = dict(parts)
        self.site = calling_site()
        loader.fed_by(self)

    @property
    def blobs(self) -> tuple[Blob | str, ...]:
        return self._blobs or tuple(self._parts.values())

    def __aiter__(self) -> AsyncIterator[dict[Any, Any]]:
        return _Feeds(self, aiter(self.loader))

    def state_dict(self) -> dict[str, Any]:
        """As `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)

    def feed_of(self, item: Any) -> dict[Any, Any]:
        """The feed that is made of an item.

        Raises:
            PipelineError: if its parts do not correspond to the blobs.
        """
        if self._parts:
            if not hasattr(type(item), "keys"):
                raise PipelineError(f"feed: expected items that are mappings, got {type(item).__name__}")
            missing = [key for key in self._parts if key not in item]
            if missing:
                raise PipelineError(f"feed: an item has no {missing[0]!r}; it has {', '.join(map(shown, item.keys()))}")
            return {blob: item[key] for key, blob in self._parts.items()}
        if len(self._blobs) == 1:
            return {self._blobs[0]: item}
        if not isinstance(item, tuple | list) or len(item) != len(self._blobs):
            got = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
            raise PipelineError(f"feed: expected items of {len(self._blobs)} parts, a tuple, got {got}")
        return dict(zip(self._blobs, item, strict=True))


class _Feeds(AsyncIterator[dict[Any, Any]]):
    def __init__(self, feeding: Feeding, items: AsyncIterator[Any]) -> None:
        self._feeding = feeding
        self._items: Any = items
        self._number = 0

    async def __anext__(self) -> dict[Any, Any]:
        item = await anext(self._items)
        number = self._number
        self._number += 1
        try:
            return self._feeding.feed_of(item)
        except BaseException as error:
            raise caught(self._feeding, error, number, item) from error

    async def aclose(self) -> None:
        await self._items.aclose()
