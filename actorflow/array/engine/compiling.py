"""Graphs for records that devices compute together: one for all records of the same structure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from actorflow import ops
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART, Value
from actorflow.array.record.record import SEVERAL, OpStep
from actorflow.array.transforms.to_graph import as_blob, translate
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.place import Place
from actorflow.spec import TensorSpec


class Compiled(NamedTuple):
    """A graph for a computation.

    Attributes:
        graph: The graph.
        feeds: Its sources, with the positions of their inputs; of what has several values, with the part as well.
        fetches: A blob for each result, or a tuple of them for one of several values.
        steps: For names of its ops, the position of the step that each is made for.
    """

    graph: Graph
    feeds: Sequence[tuple[int, int | None, Blob]]
    fetches: Sequence[Blob | tuple[Blob, ...]]
    steps: Mapping[str, int]

    @property
    def fetched(self) -> list[Blob]:
        """All blobs that are fetched."""
        return [blob for each in self.fetches for blob in (each if isinstance(each, tuple) else (each,))]


@dataclass(eq=False)
class Computation:
    """Operations to be computed on a device, and their inputs.

    Attributes:
        place: The device.
        steps: The operations, in order; positions of arguments count what is read first.
        places: Where the result of each lives.
        reads: For all that is read, its type and place; for a number that is to be part of the graph, the value.
        results: Positions of the steps whose values are wanted.
        structure: A key that computations share which differ in numbers alone.
        numbers: The numbers that are part of the graph.
    """

    place: Place
    steps: Sequence[OpStep]
    places: Sequence[Place]
    reads: Sequence[tuple[TensorSpec, Place] | Value]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        steps = zip(self.steps, self.places, strict=True)
        self.structure: Hashable = (
            self.place,
            self.results,
            tuple([(s.op, s.arguments, s.params, s.shape, s.dtype, at) for s, at in steps]),
            tuple([read.dtype if isinstance(read, np.ndarray) else read for read in self.reads]),
        )
        self.numbers = tuple([read.tobytes() for read in self.reads if isinstance(read, np.ndarray)])

    @property
    def key(self) -> Hashable:
        """A key that equal computations share."""
        return self.structure, self.numbers

    def with_numbers_fed(self) -> Computation:
        """The computation with its numbers fed, so that one graph serves all of them."""
        place = self.place
        fed = [(TensorSpec((), read.dtype), place) if isinstance(read, np.ndarray) else read for read in self.reads]
        return replace(self, reads=fed)

    def compile(self, **modes: Any) -> Compiled:
        """Make a graph for it.

        Args:
            modes: Of the graph.
        """
        graph = Graph("arrays", **modes)
        values: list[Any] = []
        feeds: list[tuple[int, int | None, Blob]] = []
        for i, read in enumerate(self.reads):
            if isinstance(read, np.ndarray):
                values.append(read)
                continue
            spec, place = read
            if spec.dtype == SEVERAL:  # only parts of it are read, whose steps know their types
                values.append({})
                continue
            values.append(graph.blob(f"x{i}", spec.shape, spec.dtype, place))
            feeds.append((i, None, values[-1]))
        ends: list[int] = []  # nodes made for a step have lower ids
        for step, place in zip(self.steps, self.places, strict=True):
            inputs = [values[a] for a in step.arguments]
            if step.op is PART and isinstance(inputs[0], dict):
                part = step.params[0]
                if part not in inputs[0]:
                    blob = graph.blob(f"x{step.arguments[0]}.{part}", step.shape, step.dtype, place)
                    inputs[0][part] = blob
                    feeds.append((step.arguments[0], part, blob))
            values.append(self._translated(graph, step, place, inputs))
            ends.append(graph.size)
        first = len(self.reads)
        wanted = [self._result(graph, values[first + i], self.places[i]) for i in self.results]
        names = {op.name: min(bisect_right(ends, op.id), len(ends) - 1) for op in graph.ops}
        return Compiled(graph, feeds, wanted, names)

    def _translated(self, graph: Graph, step: OpStep, place: Place, inputs: list[Any]) -> Any:
        if step.op is TRANSFER:
            return self._at_place(graph, inputs[0], place)
        with graph.at(self.place):
            return translate(graph, step, inputs)

    def _result(self, graph: Graph, value: Any, place: Place) -> Any:
        if isinstance(value, tuple):
            return tuple([self._at_place(graph, each, place) for each in value])
        return self._at_place(graph, value, place)

    def _at_place(self, graph: Graph, value: Blob | Value, place: Place) -> Blob:
        """A blob that the graph computes, where its value is to live; a view where that is possible."""
        with graph.at(place):
            blob = as_blob(graph, value)  # numbers are part of the graph
            if blob.producers and blob.place == place:
                return blob  # a fed blob is never fetched as it was fed
            moved: Blob = graph.apply(ops.Reshape(blob.shape), blob)
        return moved
