"""Training as an async iterator of steps, that starts again where a checkpoint was saved."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from pathlib import Path
from typing import Any

import numpy.typing as npt

from actorflow.checkpoint import Checkpoint, Checkpoints
from actorflow.data import Batches, Reshardable, Resumable
from actorflow.errors import CheckpointError, DataError, GraphError, flag, whole
from actorflow.graph.graph import Feeds, Graph
from actorflow.graph.nodes import Blob
from actorflow.interchange import to_numpy
from actorflow.loop import wait_out, waits
from actorflow.nn.parallel.exchange import spread
from actorflow.nn.progress import Progress
from actorflow.nn.steps import Epoch, Feeding, Mean, Step, Validate, check_counts, counted, mean_of, means, rows_of
from actorflow.place import Place
from actorflow.plan.validate import chosen
from actorflow.runtime.program import Result
from actorflow.runtime.stream import FrameStream


class Trainer:
    """Runs the steps of a training, and saves and restores its place.

    It is an async iterator, not a framework of callbacks: code to run between steps stands in the loop's body, in
    the application's own task. `fit` is for those who want nothing in between.

    On several ranks each of them has a trainer, and each gets all losses and metrics, wherever they are computed.

    Steps overlap, ``in_flight`` at a time. Checkpoints are taken between two steps without stopping either, and written
    in a thread meanwhile.

    Args:
        loss: Shape ().
        train: Result of `Optimizer.minimize`.
        metrics: Blobs that are fetched in each step, by name: of shape () for a mean over the batch, or (batch, ...)
            for a value per row.
        in_flight: Steps that may overlap, at least 1.
        checkpoints: Where to save; None for nowhere.
        every: Save after this many steps, positive; and at the end.
        batch: Names of the open axes along which a batch has its rows; steps count by them in means over several. The
            default is the one that the sources of the fetched blobs begin with.

    Attributes:
        number: Steps begun, those before a `resume` included.
        epoch: The epoch that is trained, counted from 0.

    Raises:
        GraphError: if the loss is not 0-d, or a number is out of range.

    Example:
        >>> graph = af.Graph("digits")
        >>> x, labels = graph.blob("x", ["batch", 2]), graph.blob("labels", ["batch"], "int64")
        >>> scores = af.nn.MLP(2, hidden=[8])(x)
        >>> loss, accuracy = af.ops.softmax_loss(scores, labels), af.ops.accuracy(scores, labels)
        >>> trainer = af.nn.Trainer(loss, af.nn.SGD(0.5).minimize(loss), {"accuracy": accuracy})
        >>> feeds = [{x: [[0, 1], [1, 0]], labels: [0, 1]}] * 20
        >>> async def main():
        ...     async with graph:
        ...         async for step in trainer.steps(feeds, epochs=3):
        ...             if step.number % 20 == 0:
        ...                 print(step.epoch, step.metrics)
        >>> af.run(main())
        0 {'accuracy': 1.0}
        1 {'accuracy': 1.0}
        2 {'accuracy': 1.0}
    """

    def __init__(
        self,
        loss: Blob,
        train: Graph,
        metrics: Mapping[str, Blob] | None = None,
        *,
        in_flight: int = 2,
        checkpoints: Checkpoints | None = None,
        every: int = 1000,
        batch: str | Collection[str] | None = None,
    ) -> None:
        if loss.shape:
            raise GraphError(f"Trainer: the loss must have shape (), got {loss.spec}")
        in_flight, every = whole("Trainer: in_flight", in_flight, 1), whole("Trainer: every", every, 1)
        self.number = 0
        self.epoch = 0
        self._graph = loss.graph.root
        self._loss = loss
        self._metrics = dict(metrics or {})
        self._copies: dict[Blob, list[Blob]] = {}
        self._fetch: list[Blob | Graph] = [*self._everywhere([loss, *self._metrics.values()]), train]
        self._in_flight = in_flight
        self._checkpoints = checkpoints
        self._every = every
        self._batch_axes = {batch} if isinstance(batch, str) else None if batch is None else set(batch)
        known = frozenset().union(*[source.spec.axes for source in self._graph.sources])
        for name in (self._batch_axes or set()) - known:
            raise GraphError(
                f"Trainer: batch={name!r} is no open axis of the sources of graph {self._graph.name!r}: "
                f"these are {', '.join(sorted(known)) or 'none'}"
            )
        self._batch = 0  # feeds of the epoch that have been taken
        self._resumable: Resumable | None = None
        self._resumed: Checkpoint | None = None  # until the feeds have been brought to its place
        self._running = False
        self._saved: int | None = None
        self._saving: asyncio.Task[Path] | None = None
        self._validations: dict[int, dict[str, float]] = {}
        self._stream: FrameStream | None = None
        self._taken = 0  # feeds that the stream has taken
        self._offered = False  # the last of them has been handed over, and the next one not been asked for
        self._whole = True  # no step of the past was cancelled
        self._wanted: list[asyncio.Future[asyncio.Task[Path]]] = []

    async def save(self) -> Path:
        """Save a checkpoint besides those of ``every``; also while steps run, and while the graph is paused.

        It is taken between two steps, at once: but if a feed has been taken whose step has not begun, when it has. What
        goes wrong is raised here; the training goes on.

        Returns:
            The file.
        Raises:
            GraphError: without ``checkpoints=``; on several ranks, which must save the same steps, by ``every``; if the
                steps are given up before it could be taken, so that some of their updates may be missing.
            CheckpointError: as for `Checkpoints.save`.

        Example:
            >>> graph = af.Graph("g")
            >>> x, w = graph.blob("x", []), graph.variable("w", [], init=1)
            >>> loss = af.ops.square(x - w)
            >>> train = af.nn.SGD(0.1).minimize(loss)
            >>> trainer = af.nn.Trainer(loss, train, checkpoints=af.Checkpoints(graph, "runs/g"))
            >>> async def main():
            ...     async with graph:
            ...         async for step in trainer.steps([{x: 3}] * 5, epochs=1):
            ...             if step.number == 3:
            ...                 path = await trainer.save()
            ...         return path.exists()
            >>> af.run(main())
            True
        """
        if self._checkpoints is None:
            raise GraphError("Trainer: there is nowhere to save to without checkpoints=")
        if self._graph.world.size > 1:
            raise GraphError("Trainer: the ranks must save the same steps: only every= does that")
        if self._stream is not None and not (self._offered and self._stream.started == self._taken):
            wanted: asyncio.Future[asyncio.Task[Path]] = asyncio.get_running_loop().create_future()
            self._wanted.append(wanted)
            return await asyncio.shield(await wanted)
        if self._stream is None and not self._whole:
            raise GraphError("Trainer: steps have been cancelled, some of whose updates may be missing: resume() first")
        return await self._checkpoints.save(self.number, self._position())

    async def resume(self, *, fallback: bool = False) -> bool:
        """Load the last checkpoint, if there is one; training then goes on behind the step that it was saved after.

        Feeds that know their place (`af.data.Loader`, all that is `af.data.Resumable`) go back to it: the next feed is
        the first that is made. Other feeds of the epoch in which that was are taken from its start, and those that have
        been taken before are skipped; so they must be the same ones each time: seed their order by the epoch.

        Any number of ranks can go on from a checkpoint of another number. Feeds that know their place are then told
        those of all ranks, if they are `af.data.Reshardable`, as `af.data.Loader` is.

        Args:
            fallback: As for `Checkpoints.load`.
        Returns:
            Whether there was one.
        Raises:
            CheckpointError, GraphError: as for `Checkpoints.load`; if no trainer has saved it, or the ranks that have
                were not at one step.

        Example:
            >>> graph = af.Graph("g")
            >>> x, w = graph.blob("x", []), graph.variable("w", [], init=1)
            >>> loss = af.ops.square(x - w)
            >>> train = af.nn.SGD(0.1).minimize(loss)
            >>> async def train_until(step):
            ...     async with graph:
            ...         trainer = af.nn.Trainer(loss, train, checkpoints=af.Checkpoints(graph, "runs/w"), every=2)
            ...         print(await trainer.resume(), end=": ")
            ...         steps = trainer.steps([{x: 3}] * 10, epochs=1, until=step)
            ...         print([step.number async for step in steps])
            >>> af.run(train_until(4))
            False: [1, 2, 3, 4]
            >>> af.run(train_until(7))  # another process, say
            True: [5, 6, 7]
        """
        if self._checkpoints is None:
            raise GraphError("Trainer: there is nothing to resume from without checkpoints=")
        found = await self._checkpoints.load(fallback=fallback)
        if found is None:
            return False
        steps = [_step_of(found.path, position) for position in found.positions.values()]
        if any(step != steps[0] for step in steps):
            raise CheckpointError(f"{found.path}: expected all ranks at one step, epoch and batch, got {steps}")
        self.number, self.epoch, self._batch = steps[0]
        self._resumed, self._whole = found, True
        self._saved = self.number
        return True

    def steps(self, feeds: Feeding, epochs: int | None = 1, *, until: int | None = None) -> AsyncGenerator[Step, None]:
        """Train, and yield each step in order when it is done; the steps after it are running by then.

        Args:
            feeds: The feeds of an epoch, from an iterable or an async iterable that can be iterated again, or a
                function that gives them for an epoch. Each is a mapping, or a pair of a mapping and the number of its
                rows that count: the others only fill the batch, and are trained on, but count in no metric. Of a
                `af.data.Loader` that is known.
            epochs: Epochs in all, those before a `resume` or an earlier call included; None for no end.
            until: Number of the last step, within an epoch or not; None for that of the last epoch.
        Raises:
            GraphError: if rows only fill a batch and a metric is a mean over all of it.
            CheckpointError: if a checkpoint cannot be saved, at a later step or at the end, or if the one resumed from
                does not say where feeds that know their place were, or cannot say it to this number of ranks.
            DataError: if that is not a place of theirs, or if an epoch has fewer feeds than had been taken when it was
                saved.
            OpError, StallError, ...: as for `Graph.stream`.
        Cancellation, and leaving the ``async for`` early (use ``contextlib.aclosing``): cancels the steps in flight,
        some of whose updates may have been made, and waits for a checkpoint that is being written. `resume` goes back
        to the last one.

        Example:
            >>> from contextlib import aclosing
            >>> graph = af.Graph("g")
            >>> x, w = graph.blob("x", []), graph.variable("w", [], init=1)
            >>> loss = af.ops.square(x - w)
            >>> trainer = af.nn.Trainer(loss, af.nn.SGD(0.25).minimize(loss), in_flight=1)
            >>> async def main():
            ...     async with graph, aclosing(trainer.steps([{x: 3}] * 100)) as steps:
            ...         async for step in steps:
            ...             if step.loss < 0.1:
            ...                 return step.number
            >>> af.run(main())
            4
        """
        epochs = None if epochs is None else whole("epochs", epochs)
        return self._steps(feeds, epochs, None if until is None else whole("until", until), None)

    async def epochs(
        self, feeds: Feeding, epochs: int = 1, *, validate: Validate | None = None, progress: bool = False
    ) -> AsyncGenerator[Epoch, None]:
        """Train, and yield each epoch when it is done; the first steps of the next one are running by then.

        Args:
            feeds, epochs: As for `steps`.
            validate: Awaited when all steps of an epoch have begun and before any of the next one does: its runs
                sees the weights of that moment. Gives numbers by name; see `evaluate`.
            progress: Whether to show a bar at the terminal, or a line for each epoch elsewhere.
        Raises:
            OpError, CheckpointError, ...: as for `steps`; and those of ``validate``.

        Example:
            >>> graph = af.Graph("g")
            >>> x, w = graph.blob("x", []), graph.variable("w", [], init=1)
            >>> loss = af.ops.square(x - w)
            >>> trainer = af.nn.Trainer(loss, af.nn.SGD(0.25).minimize(loss))
            >>> async def validate():
            ...     return {"w": (await graph.run(fetch=w))[w].item()}
            >>> async def main():
            ...     async with graph:
            ...         async for epoch in trainer.epochs([{x: 3}] * 2, epochs=2, validate=validate):
            ...             print(epoch.number, epoch.means, epoch.validation)
            >>> af.run(main())
            0 {'loss': 2.5} {'w': 2.5}
            1 {'loss': 0.15625} {'w': 2.875}
        """
        epochs, progress = whole("epochs", epochs), flag("progress", progress)
        size: int | None = getattr(feeds, "__len__", lambda: None)()
        number, count = self.epoch, 0
        gathered: dict[str, Mean] = {}
        shown: AbstractContextManager[Progress | None] = Progress(epochs, size) if progress else nullcontext()
        with shown as bar:
            async with aclosing(self._steps(feeds, epochs, None, validate)) as steps:
                async for step in steps:
                    if step.epoch != number and count:
                        yield self._epoch(number, count, gathered, bar)
                        count, gathered = 0, {}
                    number, count = step.epoch, count + 1
                    step.add_to(gathered)
                    if bar is not None:
                        bar.advance(step)
            if count:
                yield self._epoch(number, count, gathered, bar)

    async def fit(
        self, feeds: Feeding, epochs: int = 1, *, validate: Validate | None = None, progress: bool = False
    ) -> list[Epoch]:
        """Train to the end; see `epochs`, whose list this is.

        Example:
            >>> graph = af.Graph("g")
            >>> x, w = graph.blob("x", []), graph.variable("w", [], init=1)
            >>> loss = af.ops.square(x - w)
            >>> trainer = af.nn.Trainer(loss, af.nn.SGD(0.5).minimize(loss))
            >>> async def main():
            ...     async with graph:
            ...         return await trainer.fit([{x: 3}], epochs=2)
            >>> [epoch.means for epoch in af.run(main())]
            [{'loss': 4.0}, {'loss': 0.0}]
        """
        async with aclosing(self.epochs(feeds, epochs, validate=validate, progress=progress)) as done:
            return [epoch async for epoch in done]

    async def evaluate(
        self, feeds: AsyncIterable[Any] | Iterable[Any], metrics: Mapping[str, Blob]
    ) -> dict[str, float]:
        """Means of blobs over feeds, in frames that train nothing.

        Build the network again with ``training=False``: it shares its variables with the one that is trained.

        Of a `af.data.Loader` it takes a pass of its own over a whole epoch. Other feeds that know their place are taken
        from there to the end of their epoch, and brought back to it, however the evaluation ends.

        Args:
            feeds: Each a mapping, or a pair of a mapping and the number of its rows that count: the others only fill
                the batch. Of a `af.data.Loader` that is known.
            metrics: Blobs by name: of shape () for a mean over the batch, or (batch, ...) for a value per row.
        Raises:
            GraphError: if only a part of a batch counts and a blob is a mean over all of it.

        Example:
            >>> graph = af.Graph("g")
            >>> x, labels = graph.blob("x", ["batch", 2]), graph.blob("labels", ["batch"], "int64")
            >>> net = af.nn.MLP(2, hidden=[8], dropout=0.5)
            >>> loss = af.ops.softmax_loss(net(x), labels)
            >>> accuracy = af.ops.accuracy(net(x, training=False), labels)
            >>> trainer = af.nn.Trainer(loss, af.nn.SGD(0.5).minimize(loss))
            >>> async def main():
            ...     async with graph:
            ...         return await trainer.evaluate([{x: [[1, 1], [1, 1]], labels: [0, 1]}], {"accuracy": accuracy})
            >>> af.run(main())
            {'accuracy': 0.5}
        """
        if isinstance(feeds, Batches):
            return await self._means(feeds.one_pass(), metrics)
        if not isinstance(feeds, Resumable):
            return await self._means(feeds, metrics)
        place = feeds.state_dict()
        try:
            found = await self._means(feeds, metrics)
        except BaseException as error:
            try:
                feeds.load_state_dict(place)
            except Exception as other:  # noqa: BLE001  the first one says why the evaluation has ended
                error.add_note(f"the feeds could not be brought back to where they were: {other}")
            raise
        feeds.load_state_dict(place)
        return found

    async def _means(self, feeds: AsyncIterable[Any] | Iterable[Any], metrics: Mapping[str, Blob]) -> dict[str, float]:
        gathered = {name: Mean() for name in metrics}
        counts: deque[int | None] = deque()
        fetch = self._everywhere(metrics.values())
        axes = self._axes_of_rows(fetch)

        async def source() -> AsyncGenerator[Feeds, None]:
            async with aclosing(counted(feeds)) as items:
                async for feed, count in items:
                    if count is not None:
                        check_counts(metrics)
                    counts.append(count)
                    yield feed

        stream = self._graph.stream(source(), fetch=fetch, in_flight=self._in_flight)
        async with aclosing(stream) as results:
            async for result in results:
                count, rows = counts.popleft(), rows_of(result.lengths, axes)
                for name, blob in metrics.items():
                    gathered[name].add(*mean_of(name, self._value(result, blob), count, rows))
        return means(gathered)

    async def _steps(
        self, feeds: Feeding, epochs: int | None, until: int | None, validate: Validate | None
    ) -> AsyncGenerator[Step, None]:
        if self._running:
            raise GraphError("Trainer: steps are running already: one loop at a time can take them")
        begun: deque[tuple[int, int, int | None]] = deque()
        self._settle(feeds)
        axes = self._axes_of_rows(self._fetch)
        source = self._source(feeds, epochs, until, begun, validate)
        self._running, self._whole, self._taken, self._offered = True, False, 0, True
        try:
            stream = self._stream = self._graph.stream(source, fetch=self._fetch, in_flight=self._in_flight)
            stream.call_at_starts(self._save_for_others)
            async with aclosing(stream) as results:
                async for result in results:
                    number, epoch, count = begun.popleft()
                    values = {
                        name: mean_of(name, self._value(result, blob), count)[0] for name, blob in self._metrics.items()
                    }
                    rows = rows_of(result.lengths, axes) if count is None else count
                    yield Step(number, epoch, float(self._value(result, self._loss)), values, rows)
            self._whole = True
            self._save_for_others()
            await self._save()
            if self._saving is not None:
                await self._saving
        finally:
            self._running, self._stream = False, None
            for wanted in self._wanted:
                if waits(wanted):
                    wanted.set_exception(GraphError("Trainer: the steps have been given up before it could be saved"))
            self._wanted.clear()
            saving, self._saving = self._saving, None
            if saving is not None:
                await wait_out([saving])
            if saving is not None and not saving.cancelled():
                saving.exception()  # raised above, or less important than the error being raised

    def _everywhere(self, blobs: Collection[Blob]) -> list[Blob]:
        """Blobs that all ranks fetch so that each of them has the values: a copy of each on every rank."""
        ranks = [Place(rank) for rank in range(self._graph.world.size)]
        for blob in blobs:
            if blob not in self._copies:
                self._copies[blob] = spread(blob, ranks) if len(ranks) > 1 else [blob]
        return [copy for blob in blobs for copy in self._copies[blob]]

    def _value(self, result: Result, blob: Blob) -> npt.NDArray[Any]:
        return to_numpy(result[self._copies[blob][self._graph.world.rank]])

    def _axes_of_rows(self, fetch: Sequence[Blob | Graph]) -> Collection[str]:
        """The open axes along which the batches have rows that a frame needs for its fetched blobs."""
        if self._batch_axes is not None:
            return self._batch_axes
        ops, fetched = chosen(self._graph, fetch)
        sources = {blob for blob in (*fetched, *[blob for op in ops for blob in op.inputs]) if not blob.producers}
        axes = {axis for axis in [blob.spec.leading_axis for blob in sources] if axis is not None}
        if len(axes) > 1:
            names = ", ".join(map(repr, sorted(axes)))
            raise GraphError(
                f"Trainer: sources begin with the open axes {names}: say by batch= which are those of rows"
            )
        return axes

    def _settle(self, feeds: object) -> None:
        self._resumable = feeds if isinstance(feeds, Resumable) else None
        if self._resumable is not None and self._resumed is not None:
            _bring(self._resumable, self._resumed, self.number)
        self._resumed = None

    async def _source(
        self,
        feeds: Feeding,
        epochs: int | None,
        until: int | None,
        begun: deque[tuple[int, int, int | None]],
        validate: Validate | None,
    ) -> AsyncGenerator[Feeds, None]:
        """The feeds of all epochs. Code behind a yield runs when its step has begun, before the next one."""
        self._offered = False
        while (epochs is None or self.epoch < epochs) and (until is None or self.number < until):
            taken, known = self._batch, 0
            skipped = 0 if self._resumable is not None else taken
            of_epoch = feeds(self.epoch) if callable(feeds) else feeds
            async with aclosing(counted(of_epoch)) as items:
                async for feed, count in items:
                    known += 1
                    if known <= skipped:
                        continue
                    if count is not None:
                        check_counts(self._metrics)
                    self.number += 1
                    self._batch += 1
                    begun.append((self.number, self.epoch, count))
                    self._taken += 1
                    self._offered = True
                    yield feed
                    self._offered = False
                    if self.number % self._every == 0:
                        await self._save()
                    if self.number == until:
                        return
            if not known and not taken and self.epoch and not callable(feeds):
                raise GraphError("Trainer: the feeds ended with the first epoch: give a function of the epoch")
            if not known and not taken and epochs is None:
                raise GraphError(f"Trainer: epoch {self.epoch} has no feeds: without epochs= that would never end")
            if known < skipped:
                raise DataError(f"epoch {self.epoch} has {known} feeds, but {skipped} had been taken when saved")
            if validate is not None:
                self._validations[self.epoch] = dict(await validate())
            self.epoch, self._batch = self.epoch + 1, 0

    async def _save(self) -> None:
        if self._checkpoints is None or self._saved == self.number:
            return
        if self._saving is not None:
            await asyncio.shield(self._saving)  # it is written to its end whatever becomes of the steps
        self._saving = self._checkpoints.save(self.number, self._position())
        self._saved = self.number

    def _save_for_others(self) -> None:
        """Begin the checkpoint that `save` waits for, as a step has just begun and no further feed been asked for."""
        wanted, self._wanted = [future for future in self._wanted if waits(future)], []
        if not wanted:
            return
        assert self._checkpoints is not None
        try:
            saving = self._checkpoints.save(self.number, self._position())
        except Exception as error:  # noqa: BLE001  it is raised where the checkpoint is awaited
            for future in wanted:
                future.set_exception(error)
            return
        saving.add_done_callback(lambda task: task.cancelled() or task.exception())
        for future in wanted:
            future.set_result(saving)

    def _position(self) -> dict[str, Any]:
        position: dict[str, Any] = {"step": self.number, "epoch": self.epoch, "batch": self._batch}
        if self._resumable is not None:
            position["feeds"] = self._resumable.state_dict()
        return position

    def _epoch(self, number: int, count: int, gathered: dict[str, Mean], bar: Progress | None) -> Epoch:
        validation = self._validations.pop(number, {})
        if bar is not None:
            bar.validated(validation)
        return Epoch(number, count, means(gathered), validation)


def _step_of(path: Path, position: Mapping[str, Any]) -> tuple[int, int, int]:
    """Step, epoch and batch of a trainer's position; raises CheckpointError if it is none."""
    try:
        step, epoch, batch = (int(position[key]) for key in ("step", "epoch", "batch"))
    except KeyError as error:
        raise CheckpointError(f"{path}: expected the position of a trainer, got {dict(position)}") from error
    return step, epoch, batch


def _bring(feeds: Resumable, found: Checkpoint, step: int) -> None:
    kind, places = type(feeds).__name__, [position.get("feeds") for position in found.positions.values()]
    states = [place for place in places if place is not None]
    if len(states) < len(places):
        raise CheckpointError(
            f"{found.path}: the checkpoint of step {step} was saved with feeds that do not know their place: {kind}, "
            "which knows its own, cannot tell where to go on"
        )
    if found.is_resharded and isinstance(feeds, Reshardable):
        feeds.load_state_dicts(states)
    elif all(state == states[0] for state in states):
        feeds.load_state_dict(states[0])
    else:
        raise CheckpointError(
            f"{found.path}: the checkpoint of step {step} was saved on {found.saved_on} ranks, whose feeds were each "
            f"at a place of its own: {kind} on {found.size} cannot go on behind all, as it has no load_state_dicts()"
        )
