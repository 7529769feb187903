"""Models that are served: what each takes and gives, how it is run, what became of its requests."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, cast

import numpy.typing as npt

from actorflow.errors import GraphError, QueueFullError, did_you_mean
from actorflow.graph.graph import Graph
from actorflow.interchange import to_numpy
from actorflow.runtime.batched import Batcher
from actorflow.runtime.model import Model
from actorflow.serve.answers import refused
from actorflow.serve.limits import Limits, check_number
from actorflow.serve.tensors import Tensor
from actorflow.trace.batches import SECONDS, Histogram

#: A model, or its versions: the last one is what requests get that name none.
Versions = Model | Graph | Mapping[str, Model | Graph]

_NAME = re.compile(r"[\w.~@+-]{1,200}", re.ASCII)
#: Names of an axis whose elements do not know each other, in models of all makers.
_BATCH = re.compile(r".*batch.*|n", re.IGNORECASE)


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

    Attributes:
        inputs: Its inputs by name.
        outputs: Its outputs by name.
        unbatched: Why requests do not share frames; None if they do.
        page: Path of its live page; None if there is none.
        answers: Number of answers to requests for inference, by status.
        cancelled: Number of requests whose client has hung up.
        latency_s: Times from the head of a request to its answer.

    Raises:
        DTypeError: if the protocol has no such dtype.
        GraphError: if an axis is to be batched that cannot be.
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
    ) -> None:
        check_number("max_rows", max_rows, whole=True)
        check_number("max_wait", max_wait, whole=False)
        if not isinstance(cast(object, batch_axis), str | None):
            raise TypeError(f"batch_axis must be the name of an axis, got {batch_axis!r}")
        self.name = name
        self.version = version
        self.model = model
        self.inputs = {each: Tensor.of(each, blob.spec, name) for each, blob in model.inputs.items()}
        self.outputs = {each: Tensor.of(each, blob.spec, name) for each, blob in model.outputs.items()}
        self.unbatched: str | None = None
        self.page: str | None = None
        self.answers: Counter[int] = Counter()
        self.cancelled = 0
        self.latency_s = Histogram(SECONDS)
        self._limits = limits
        self._waiting = 0
        self._options = {
            "max_rows": max_rows,
            "max_wait": max_wait,
            "queue_rows": limits.queue_rows,
            "in_flight": limits.in_flight,
            "axis": batch_axis,
        }
        self._turns: asyncio.Semaphore
        self._batcher: Batcher | None = None
        self._make_batcher()  # what is wrong with it is said before anything is served

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name}/{self.version}"

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
        """A batcher, which is opened once; None if requests do not share frames."""
        axis = self._options["axis"]
        if not self._options["max_rows"]:
            self.unbatched = "batched runs are turned off"
            return None
        first = next((tensor.spec.leading_axis for tensor in self.inputs.values()), None)
        if axis is None and first is not None and not _BATCH.fullmatch(first):
            self.unbatched = f"its inputs begin with axis {first!r}, which may be no batch"
            return None
        try:
            return self.model.batched(**self._options)
        except GraphError as error:
            if axis is not None:
                raise
            self.unbatched = str(error)
            return None

    def described(self) -> dict[str, Any]:
        """What the protocol calls the metadata of a model, but for its versions."""
        return {
            "platform": "actorflow_graph",
            "inputs": [tensor.described() for tensor in self.inputs.values()],
            "outputs": [tensor.described() for tensor in self.outputs.values()],
        }

    async def run(self, inputs: Mapping[str, npt.NDArray[Any]], timeout_s: float) -> dict[str, npt.NDArray[Any]]:
        """Compute the outputs, in a frame with the rows of others or in one by itself.

        Raises:
            Refused: with 413, for more rows than may wait.
            QueueFullError, RunTimeoutError, ...: as `Batcher.run` and `Model.run` do.
        Cancellation: as `Batcher.run` and `Model.run` do.
        """
        if self._batcher is None:
            return await self._run_alone(inputs, timeout_s)
        rows = max(len(array) for array in inputs.values())
        if rows > self._limits.queue_rows:
            raise refused(413, f"expected at most {self._limits.queue_rows} rows, got {rows}: send them in parts")
        result = await self._batcher.run(self.model.feeds(inputs), timeout=timeout_s)
        return {name: to_numpy(result[blob]) for name, blob in self.model.outputs.items()}

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
        options: As for `Hosted`.

    Raises:
        ValueError: if there is none, or if a name cannot stand in a path.
        DTypeError, GraphError: as `Hosted`.
    """

    def __init__(self, models: Mapping[str, Versions], limits: Limits, **options: Any) -> None:
        if not isinstance(cast(object, models), Mapping):
            raise TypeError(f"expected models by name, {{'name': model}}, got {type(models).__name__}")
        if not models:
            raise ValueError("expected at least one model to serve")
        self._models: dict[str, dict[str, Hosted]] = {}
        for name, given in models.items():
            versions = given if isinstance(given, Mapping) else {"1": given}
            for each in (name, *versions):
                if not isinstance(cast(object, each), str):
                    raise TypeError(f"names and versions must be texts, got {each!r}")
                if not _NAME.fullmatch(each) or not each.strip("."):
                    raise ValueError(f"expected letters, digits and any of ._~@+- in names and versions, got {each!r}")
            if not versions:
                raise ValueError(f"expected at least one version of model {name!r}")
            self._models[name] = {
                version: Hosted(name, version, _model(model), limits, **options) for version, model in versions.items()
            }

    def __iter__(self) -> Iterator[Hosted]:
        return chain.from_iterable([versions.values() for versions in self._models.values()])

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [*self._models]

    def versions(self, name: str) -> list[str]:
        """Versions of a model."""
        return [*self._models[name]]

    def find(self, name: str, version: str | None) -> Hosted:
        """A model by its name and version, the last one unless it is given.

        Raises:
            Refused: with 404, if there is none.
        """
        versions = self._models.get(name)
        if versions is None:
            raise refused(404, f"there is no model {name!r}{did_you_mean(name, self._models)}")
        if version is None:
            version = next(reversed(versions))
        if version not in versions:
            raise refused(404, f"model {name!r} has no version {version!r}: expected one of {[*versions]}")
        return versions[version]


def _model(given: Any) -> Model:
    if isinstance(given, Graph):
        return Model.of(given)
    if not isinstance(given, Model):
        raise TypeError(f"expected an af.Model or an af.Graph to serve, got {type(given).__name__}")
    return given
