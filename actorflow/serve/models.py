"""Models that are served: what each takes and gives, how it is run, what became of its requests."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain, pairwise
from typing import Any, NamedTuple, cast

import numpy.typing as npt

from actorflow.errors import GraphError, QueueFullError, did_you_mean, mapping, real, seconds, text, text_of, whole
from actorflow.graph.graph import Graph
from actorflow.interchange import to_numpy
from actorflow.plan.validate import states_of
from actorflow.runtime.batched import Batcher, Batching
from actorflow.runtime.model import Model
from actorflow.runtime.program import Result
from actorflow.runtime.sessions import Session
from actorflow.serve.answers import refused
from actorflow.serve.limits import Limits
from actorflow.serve.tensors import Tensor
from actorflow.trace.batches import SECONDS, Histogram

#: A model, or a function that opens one, which is called again when it is to be loaded anew.
Source = Model | Graph | Callable[[], Model | Graph]
#: A model, or its versions: the last one is what requests get that name none.
Versions = Source | Mapping[str, Source]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[\w.~@+-]{1,200}", re.ASCII)
#: Names of an axis whose elements do not know each other, in models of all makers.
_BATCH = re.compile(r".*batch.*|n", re.IGNORECASE)


class Sequence(NamedTuple):
    """Parameters of a request that is a step of a sequence, see Triton's extension of the protocol.

    Attributes:
        id: Its id, a number or a text.
        start: Whether this is its first step, before which one of that id ends.
        end: Whether this is its last step.
    """

    id: int | str
    start: bool
    end: bool


class Hosted:
    """One version of a model.

    Args:
        name: Its name for clients.
        version: Likewise.
        model: The model.
        limits: How much may wait.
        max_rows: Most rows of a frame of batched runs; 0 runs each request by itself.
        max_wait: As for `Graph.batched`.
        batch_axis: Name of the axis that is batched; None for the first one of the inputs if its name says so.
        state: Inputs that each sequence keeps, each with the output that gives its next value, by name.
        fixed: Values of inputs that are the same for all requests, by name.
        feedback: Inputs that steps of one request are fed, each with the output of the step before, by name.
        until: Output that is true for the last step.
        limit: Most steps of a request.

    Attributes:
        inputs: Its inputs by name, but for those that are kept or fixed.
        outputs: Its outputs by name, but for those that give the next values of what is kept.
        keeps_state: Whether requests are steps of sequences.
        unbatched: Why requests do not share frames; None if they do.
        page: Path of its live page; None if there is none.
        is_warm: Whether what first requests would wait for is there, as far as it can be had before.
        cold: Why it is not all there; None if it is.
        answers: Number of answers to requests for inference, by status.
        cancelled: Number of requests whose client has hung up.
        latency_s: Times from the head of a request to its answer.
        in_flight: Number of requests that are being answered.

    Raises:
        DTypeError: if the protocol has no such dtype.
        GraphError: if an axis is to be batched that cannot be, or a state is to be kept.
    """

    def __init__(
        self,
        name: str,
        version: str,
        model: Model,
        limits: Limits,
        *,
        max_rows: int = 32,
        max_wait: float = 0.002,
        batch_axis: str | None = None,
        state: Mapping[str, str] | None = None,
        fixed: Mapping[str, npt.ArrayLike] | None = None,
        feedback: Mapping[str, str] | None = None,
        until: str | None = None,
        limit: int = 1024,
    ) -> None:
        max_rows, max_wait = whole("max_rows", max_rows, 0), seconds("max_wait", max_wait)
        batch_axis = None if batch_axis is None else text("batch_axis", batch_axis)
        self.name = name
        self.version = version
        self.model = model
        self._state = {key: following for key, following in (state or {}).items() if key in model.inputs}
        self._fixed = {key: value for key, value in (fixed or {}).items() if key in model.inputs}
        inner, nexts = {*self._state, *self._fixed}, {*self._state.values()}
        inputs = {each: blob for each, blob in model.inputs.items() if each not in inner}
        self._results = {each: blob for each, blob in model.outputs.items() if each not in nexts}
        self.inputs = {each: Tensor.of(each, blob.spec, name) for each, blob in inputs.items()}
        self.outputs = {each: Tensor.of(each, blob.spec, name) for each, blob in self._results.items()}
        self.keeps_state = bool(self._state) or bool(states_of(model.outputs.values()))
        self.unbatched: str | None = None
        self.page: str | None = None
        self.is_warm = False
        self.cold: str | None = None
        self.answers: Counter[int] = Counter()
        self.cancelled = 0
        self.latency_s = Histogram(SECONDS)
        self.in_flight = 0
        self._family = [self]  # this version, and those that it has taken the place of and that have not ended
        self._limits = limits
        self._batch_axis = batch_axis
        self._max_rows = max_rows
        self._waiting = 0
        self._options: Batching = {
            "max_rows": max_rows,
            "max_wait": max_wait,
            "queue_rows": limits.queue_rows,
            "in_flight": limits.in_flight,
            "axis": batch_axis,
            "max_sessions": limits.sequences,
        }
        self._feedback = {key: of for key, of in (feedback or {}).items() if key in inputs}
        self._until = until if self._feedback else None
        self._most_steps = whole("limit", limit, 1)
        for each in (*self._feedback.values(), *([self._until] if self._until else [])):
            if each not in self._results:
                raise GraphError(f"model {name!r} has no output {each!r}{did_you_mean(each, self._results)}")
        self._sequences: dict[int | str, Session] = {}
        self._turns: asyncio.Semaphore
        self._batcher: Batcher | None = None
        self._make_batcher()  # what is wrong with it is said before anything is served

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name}/{self.version}"

    @property
    def sessions(self) -> int:
        """Number of sequences and streams that are open."""
        return 0 if self._batcher is None else self._batcher.statistics().sessions

    def follow(self, before: Hosted) -> None:
        """Take the place of another one, which ends the sequences that it has begun."""
        self.answers, self.cancelled, self.latency_s = before.answers, before.cancelled, before.latency_s
        self._family = before._family
        self._family.append(self)

    def leave(self) -> None:
        """Have ended all that was begun."""
        self._family.remove(self)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Take requests inside the block; at its end the graph is closed, and whoever still waits is sent away."""
        self._turns = asyncio.Semaphore(self._limits.in_flight)
        async with self.model.graph:
            self._batcher = batcher = self._make_batcher()
            if batcher is None:
                yield
                return
            async with batcher:
                try:
                    yield
                finally:
                    await batcher.aclose()

    def _make_batcher(self) -> Batcher | None:
        if self._fixed or self.keeps_state:
            options: Batching = {**self._options, "max_rows": self._max_rows or 1}
            return self.model.sessions(self._state, fixed=self._fixed, **options)
        if not self._max_rows:
            self.unbatched = "batched runs are turned off"
            return None
        first = next((tensor.spec.leading_axis for tensor in self.inputs.values()), None)
        if first is not None and self._rows_axis() is None:
            self.unbatched = f"its inputs begin with axis {first!r}, which may be no batch"
            return None
        try:
            return self.model.batched(**self._options)
        except GraphError as error:
            if self._batch_axis is not None:
                raise
            self.unbatched = str(error)
            return None

    async def warm_up(self) -> None:
        """Have plans and kernels ready for the lengths that can be known: of rows, one and the most.

        What goes wrong is said, and no reason to refuse requests, which may have other lengths and values.
        """
        self.is_warm, self.cold = False, None
        limit_s = self._limits.warm_up_s
        try:
            if limit_s:
                async with asyncio.timeout(limit_s):
                    self.cold = await self._warm_up()
        except TimeoutError:
            self.cold = f"it was not warm after {limit_s:g} s"
            _log.warning("model %s takes requests, though %s (more: actorflow docs serving)", self.label, self.cold)
        except Exception as error:  # noqa: BLE001  the other models are to be warm all the same
            self.cold = f"it has failed on zeros: {type(error).__name__}: {text_of(error)}"
            _log.warning("model %s takes requests, though %s (more: actorflow docs serving)", self.label, self.cold)
        finally:
            self.is_warm = True

    async def _warm_up(self) -> str | None:
        axes = {name for tensor in self.inputs.values() for name in tensor.spec.axes}
        rows = self._rows_axis() if axes else None
        unknown = sorted(axes - {rows})
        if unknown:
            return f"lengths of {', '.join(unknown)} come with the requests"
        most = self._max_rows if self.unbatched is None else 1
        for given in [{rows: count} for count in dict.fromkeys((1, most))] if rows else [{}]:
            if not await self.model.warm_up(axes=given):
                return "it is planned, and not run on zeros, which might be felt outside"
        return None

    def _rows_axis(self) -> str | None:
        first = next((tensor.spec.leading_axis for tensor in self.inputs.values()), None)
        if self._batch_axis is not None or first is None or _BATCH.fullmatch(first):
            return self._batch_axis or first
        return None

    def described(self) -> dict[str, Any]:
        """The metadata of a model, as the protocol has it, without its versions."""
        return {
            "platform": "actorflow_graph",
            "inputs": [tensor.described() for tensor in self.inputs.values()],
            "outputs": [tensor.described() for tensor in self.outputs.values()],
        }

    async def run(
        self, inputs: Mapping[str, npt.NDArray[Any]], timeout_s: float, sequence: Sequence | Session | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Compute the outputs, in a frame with the rows of others or in one by itself.

        Raises:
            Refused: with 413, for more rows than may wait; with 400, for a step of no sequence.
            QueueFullError, RunTimeoutError, ...: as `Batcher.run` and `Model.run` do.
        Cancellation: as `Batcher.run` and `Model.run` do.
        """
        if isinstance(sequence, Sequence):
            other = self.keeper(sequence.id, self)
            if other is not self and other is not None:
                if not sequence.start:
                    return await other.run(inputs, timeout_s, sequence)
                other._sequences[sequence.id].close()
        if self._batcher is None:
            return await self._run_alone(inputs, timeout_s)
        rows = max(len(array) for array in inputs.values())
        if rows > self._limits.queue_rows:
            raise refused(413, f"expected at most {self._limits.queue_rows} rows, got {rows}: send them in parts")
        feeds = {self.model.inputs[name]: array for name, array in inputs.items()}
        if self.keeps_state:
            result = await self._step(self._batcher, sequence, feeds, timeout_s)
        else:
            result = await self._batcher.run(feeds, timeout=timeout_s)
        return {name: to_numpy(result[blob]) for name, blob in self._results.items()}

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session | None]:
        """A caller that comes again, for `run`; None where the model keeps no state.

        Raises:
            SessionsFullError: if there are too many.
        """
        if self._batcher is None or not self.keeps_state:
            yield None
            return
        async with self._batcher.session() as session:
            yield session

    async def iterate(
        self, inputs: Mapping[str, npt.NDArray[Any]], limit: int | None, timeout_s: float
    ) -> AsyncGenerator[dict[str, npt.NDArray[Any]], None]:
        """Compute steps of one row, of which each is fed what the one before gave; one where nothing is fed back.

        Args:
            limit: Most steps; no more than those of the model.
            timeout_s: Longest time of each, and to wait for a session.
        Raises:
            Refused: with 400, if there are more rows than one.
            SessionsFullError, QueueFullError, ...: as `Batcher.session` and `Session.run`.
        """
        if any(len(array) != 1 for array in inputs.values()):
            raise refused(400, "expected one row of each input")
        if self._batcher is None or not self._feedback:
            if self.keeps_state:
                raise refused(400, f"model {self.name!r} keeps state, and nothing says what its steps feed each other")
            yield await self.run(inputs, timeout_s)
            return
        named, outputs = self.model.inputs, self.model.outputs
        async with self._batcher.session(timeout=timeout_s) as session:
            steps = session.iterate(
                {named[name]: array for name, array in inputs.items()},
                feedback={named[name]: outputs[of] for name, of in self._feedback.items()},
                until=None if self._until is None else outputs[self._until],
                limit=min(limit or self._most_steps, self._most_steps),
                timeout=timeout_s,
            )
            async for result in steps:
                yield {name: to_numpy(result[blob]) for name, blob in self._results.items()}

    def keeper(self, key: int | str, asked: Hosted) -> Hosted | None:
        """The one that keeps an open sequence, itself or one before it, with inputs and outputs as ``asked``."""
        open_ones = [each for each in self._family if key in each._sequences and each._sequences[key].is_open]
        return next((each for each in open_ones if each is asked or each.described() == asked.described()), None)

    def row(self, data: bytes) -> dict[str, npt.NDArray[Any]]:
        """One row of the only input, by its values alone.

        Raises:
            Refused: with 400, if there are several inputs, or the values are not those of a row.
        """
        if len(self.inputs) != 1:
            raise refused(400, f"model {self.name!r} has {len(self.inputs)} inputs: expected a text with JSON")
        ((name, tensor),) = self.inputs.items()
        if tensor.is_text:
            raise refused(400, f"input {name!r} takes texts: expected a text with JSON")
        shape = [1 if not i and n == -1 else n for i, n in enumerate(tensor.shape)]
        if -1 in shape:
            at = shape.index(-1)
            shape[at] = 1
            if -1 in shape:
                raise refused(400, f"input {name!r} has several open axes: expected a text with JSON")
            shape[at] = len(data) // max(math.prod(shape) * tensor.spec.dtype.itemsize, 1)
        return {name: tensor.of_bytes(memoryview(data), tuple(shape))}

    async def _step(
        self, batcher: Batcher, sequence: Sequence | Session | None, feeds: Mapping[Any, Any], timeout_s: float
    ) -> Result:
        if sequence is None:
            raise refused(400, f"model {self.name!r} keeps state: expected the parameter sequence_id")
        if isinstance(sequence, Session):
            return await sequence.run(feeds, timeout=timeout_s)
        known = self._sequences
        session = known.get(sequence.id)
        if sequence.start:
            if session is not None:
                session.close()
            if len(known) >= self._limits.sequences:  # of which most may have expired
                self._sequences = known = {key: each for key, each in known.items() if each.is_open}
            idle_s = self._limits.sequence_idle_s
            session = batcher.session(ttl=idle_s if idle_s < math.inf else None)
            await session.__aenter__()  # at once, or with an error
            known[sequence.id] = session
        elif session is None or not session.is_open:
            raise refused(
                400,
                f"there is no sequence {sequence.id!r}: expected sequence_start with its first request; it ends "
                f"{self._limits.sequence_idle_s:g} s after its last one",
            )
        try:
            return await session.run(feeds, timeout=timeout_s)
        finally:
            if sequence.end:
                session.close()
            if not session.is_open and known.get(sequence.id) is session:
                del known[sequence.id]

    async def _run_alone(self, inputs: Mapping[str, npt.NDArray[Any]], timeout_s: float) -> dict[str, Any]:
        if self._turns.locked() and self._waiting >= self._limits.queue_rows:
            raise QueueFullError(self.model.graph.name, 1, self._waiting, self._limits.queue_rows)
        async with asyncio.timeout(timeout_s):
            self._waiting += 1
            try:
                await self._turns.acquire()
            finally:
                self._waiting -= 1
            try:
                return await self.model.run(inputs)
            finally:
                self._turns.release()


class Models:
    """All models by name and version.

    Args:
        models: As for `actorflow.serve.create_app`.
        limits: How much may wait for each.
        shares: As for `actorflow.serve.create_app`.
        options: As for `Hosted`.

    Raises:
        ValueError: if there is none, or if a name cannot stand in a path.
        DTypeError, GraphError: as `Hosted`.
    """

    def __init__(
        self, models: Mapping[str, Versions], limits: Limits, shares: Mapping[str, float], **options: Any
    ) -> None:
        if not isinstance(cast(object, models), Mapping):
            raise TypeError(f"expected models by name, {{'name': model}}, got {type(models).__name__}")
        if not models:
            raise ValueError("expected at least one model to serve")
        self._sources: dict[str, Mapping[str, Source]] = {}
        for name, given in models.items():
            versions = given if isinstance(given, Mapping) else {"1": given}
            for each in (name, *versions):
                if not isinstance(cast(object, each), str):
                    raise TypeError(f"names and versions must be texts, got {each!r}")
                if not _NAME.fullmatch(each) or not each.strip("."):
                    raise ValueError(f"expected letters, digits and any of ._~@+- in names and versions, got {each!r}")
            if not versions:
                raise ValueError(f"expected at least one version of model {name!r}")
            self._sources[name] = versions
        made = {name: {each: opened_model(of) for each, of in own.items()} for name, own in self._sources.items()}
        known = {each for versions in made.values() for model in versions.values() for each in model.inputs}
        for what in ("state", "fixed", "feedback"):
            for each in options.get(what) or ():
                if each not in known:
                    raise GraphError(f"{what}: no model has an input {each!r}{did_you_mean(each, known)}")
        self._limits, self._options = limits, options
        self._shares = dict[str, float]()
        self._taken = Counter[str]()  # requests that versions with a share have been given
        self._models: dict[str, dict[str, Hosted]] = {}
        mapping("shares", shares)
        labels = [f"{name}/{version}" for name, versions in made.items() for version in versions]
        for label, share in shares.items():
            if label not in labels:
                raise GraphError(f"shares: there is no version {label!r}{did_you_mean(str(label), labels)}")
            self._shares[label] = real(f"shares: {label}", share, above=0)
        for name, own in made.items():
            self.serve(name, {version: self.hosted(name, version, model) for version, model in own.items()})

    def __iter__(self) -> Iterator[Hosted]:
        return chain.from_iterable([versions.values() for versions in self._models.values()])

    def hosted(self, name: str, version: str, model: Model) -> Hosted:
        """A version of a model, of what was opened; raises as `Hosted`."""
        return Hosted(name, version, model, self._limits, **self._options)

    def sources(self, name: str) -> Mapping[str, Source]:
        """Source of the versions of a model.

        Raises:
            Refused: with 404, if there is none.
        """
        if name not in self._sources:
            raise refused(404, f"there is no model {name!r}{did_you_mean(name, self._sources)}")
        return self._sources[name]

    def served(self, name: str) -> Mapping[str, Hosted]:
        """The versions of a model that are served."""
        return self._models.get(name, {})

    def serve(self, name: str, versions: dict[str, Hosted]) -> None:
        """Serve these versions of a model from now on.

        Raises:
            GraphError: if some that share requests have different inputs or outputs, or not all keep state.
        """
        for first, other in pairwise(self._sharing(versions)):
            if first.described() != other.described():
                raise GraphError(f"shares: {first.label} and {other.label} have different inputs or outputs")
            if first.keeps_state != other.keeps_state:
                raise GraphError(f"shares: one of {first.label} and {other.label} keeps state, and the other does not")
        others = {each: own for each, own in self._models.items() if each != name}
        self._models = {**others, name: versions} if versions else others

    def index(self, *, ready: bool) -> list[dict[str, str]]:
        """All versions of all models, as Triton's extension tells of them, or those that are ready."""
        found = []
        for name, versions in self._sources.items():
            for version in versions:
                hosted = self.served(name).get(version)
                state = "UNAVAILABLE" if hosted is None else "READY" if hosted.is_warm else "LOADING"
                reason = "unloaded" if hosted is None else hosted.cold or ""
                if state == "READY" or not ready:
                    found.append({"name": name, "version": version, "state": state, "reason": reason})
        return found

    def _sharing(self, versions: Mapping[str, Hosted]) -> list[Hosted]:
        return [each for each in versions.values() if each.label in self._shares]

    def following(self, name: str) -> Hosted:
        """The version that computes the next request that names none; raises as `find`."""
        sharing = self._sharing(self.served(name))
        if not sharing:
            return self.find(name, None)
        chosen = min(sharing, key=lambda each: (self._taken[each.label] + 1) / self._shares[each.label])
        self._taken[chosen.label] += 1
        return chosen

    def keeper(self, hosted: Hosted, sequence: Sequence) -> Hosted:
        """The version that computes a step that names none: the one that the sequence began on, else this one.

        If the step begins the sequence anew, it ends on that version first.
        """
        for other in self.served(hosted.name).values():
            keeper = None if other is hosted else other.keeper(sequence.id, hosted)
            if keeper is not None:
                if not sequence.start:
                    self._taken.update({other.label: 1, hosted.label: -1})
                    return other
                keeper._sequences[sequence.id].close()
        return hosted

    def find(self, name: str, version: str | None) -> Hosted:
        """A model by its name and version, the last one unless it is given, of those that share requests if some do.

        Raises:
            Refused: with 404, if there is none.
        """
        versions = self._models.get(name)
        if versions is None:
            self.sources(name)
            raise refused(404, f"model {name!r} is not loaded")
        if version is None:
            version = (self._sharing(versions) or [*versions.values()])[-1].version
        if version not in versions:
            raise refused(404, f"model {name!r} has no version {version!r}: expected one of {[*versions]}")
        return versions[version]


def opened_model(source: Source) -> Model:
    """The model of a source; a function that opens one is called."""
    given: Any = source if isinstance(source, Model | Graph) or not callable(source) else source()
    if isinstance(given, Graph):
        return Model.of(given)
    if not isinstance(given, Model):
        raise TypeError(f"expected an af.Model or an af.Graph to serve, got {type(given).__name__}")
    return given
