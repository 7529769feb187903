"""Graphs for records that devices compute together: one for all records of the same structure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from actorflow import ops
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import Value
from actorflow.array.record.record import OpStep
from actorflow.array.transforms.to_graph import as_blob, translate
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.place import Place
from actorflow.spec import TensorSpec


class Compiled(NamedTuple):
    """A graph for a computation.

    Attributes:
        graph: The graph.
        feeds: Its sources, with the positions of their inputs.
        fetches: A blob for each result.
        steps: For names of its ops, the position of the step that each is made for.
    """

    graph: Graph
    feeds: Sequence[tuple[int, Blob]]
    fetches: Sequence[Blob]
    steps: Mapping[str, int]


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
        feeds: list[tuple[int, Blob]] = []
        for i, read in enumerate(self.reads):
            if isinstance(read, np.ndarray):
                values.append(read)
                continue
            spec, place = read
            values.append(graph.blob(f"x{i}", spec.shape, spec.dtype, place))
            feeds.append((i, values[-1]))
        ends: list[int] = []  # nodes made for a step have lower ids
        for step, place in zip(self.steps, self.places, strict=True):
            values.append(self._translated(graph, step, place, [values[a] for a in step.arguments]))
            ends.append(graph.size)
        first = len(self.reads)
        wanted = [self._at_place(graph, values[first + i], self.places[i]) for i in self.results]
        names = {op.name: min(bisect_right(ends, op.id), len(ends) - 1) for op in graph.ops}
        return Compiled(graph, feeds, wanted, names)

    def _translated(self, graph: Graph, step: OpStep, place: Place, inputs: list[Any]) -> Any:
        if step.op is TRANSFER:
            return self._at_place(graph, inputs[0], place)
        with graph.at(self.place):
            return translate(graph, step, inputs)

    def _at_place(self, graph: Graph, value: Blob | Value, place: Place) -> Blob:
        """A blob that the graph computes, where its value is to live; a view where that is possible."""
        with graph.at(place):
            blob = as_blob(graph, value)  # numbers are part of the graph
            if blob.producers and blob.place == place:
                return blob  # a fed blob is never fetched as it was fed
            moved: Blob = graph.apply(ops.Reshape(blob.shape), blob)
        return moved
