"""Composites that bring blobs from place to place: copies, parts, joins, sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from actorflow import ops
from actorflow.errors import DTypeError, GraphError, ShapeError, whole
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob
from actorflow.nn.layers import Layer
from actorflow.ops.operation import axes_of
from actorflow.place import Place


def as_places(kind: str, places: Iterable[Place | str]) -> tuple[Place, ...]:
    """Places, from their texts or as they are; raises GraphError if there are none."""
    if isinstance(places, Place | str):
        raise GraphError(f"{kind}: places must be a sequence of places, got {str(places)!r} alone")
    found = tuple(Place.parse(place) for place in places)
    if not found:
        raise GraphError(f"{kind}: give at least one place")
    return found


def moved(x: Blob, place: Place) -> Blob:
    """A blob at a place: itself where it lives, else a copy."""
    if x.place == place:
        return x
    with x.graph.root.at(place):
        return ops.copy(x)


def spread(x: Blob, places: Sequence[Place]) -> list[Blob]:
    """A blob at each place, one copy for all that are the same; the plan sends one message to each other rank."""
    at = {place: moved(x, place) for place in dict.fromkeys(places)}
    return [at[place] for place in places]


def lengths_of(kind: str, length: int, parts: int) -> tuple[int, ...]:
    """Lengths of ``parts`` parts of ``length`` elements: as even as can be, the first ones one more.

    Of an open axis that turns out to be shorter than there are parts, the last parts are empty.

    Raises:
        ShapeError: if one would get none.
    """
    if length < parts:
        raise ShapeError(f"{kind}: an axis of {length} elements cannot be split into {parts} parts")
    return tuple((length + i) // parts for i in reversed(range(parts)))


def pieces_of(kind: str, x: Blob, parts: int, axis: int = 0) -> list[Blob]:
    """A blob cut along an axis, where it lives; see `lengths_of`."""
    if parts == 1:
        return [x]
    (axis,) = axes_of(kind, axis, len(x.shape))
    with x.graph.root.at(x.place):
        return ops.split(x, lengths_of(kind, x.shape[axis], parts), axis)


class CopyTo(Composite[Any]):
    """The bottom at another place; blobs that live there stay themselves.

    Bottom and top: any blobs, as many as these.

    Args:
        place: Where to.
        name: Scope of its nodes.
    Raises:
        PlaceError: if it is not a place.
    Source: Purine2 composite ``Copy``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [2])
        >>> af.nn.parallel.CopyTo("sim:0")(x)
        <Blob 'copyto/copy/out' float32[2] on sim:0>
    """

    def __init__(self, place: Place | str, name: str | None = None) -> None:
        super().__init__(name)
        self.place = Place.parse(place)

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """Give as many top blobs as there are bottom blobs."""
        return [moved(x, self.place) for x in bottom]


class Distribute(Composite[Any]):
    """One blob at several places: one message to each other rank, and from there to its places.

    Bottom: one blob. Top: one per place.

    Args:
        places: Where to, in the order of the top.
        name: Scope of its nodes.
    Raises:
        GraphError: if there are no places; PlaceError if a text is not a place.
    Gradient: the sum of all places' gradients.
    Source: Purine2 composite ``Distribute``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [2])
        >>> [str(blob.place) for blob in af.nn.parallel.Distribute(["sim:0", "sim:1"])(x)]
        ['sim:0', 'sim:1']
    """

    def __init__(self, places: Iterable[Place | str], name: str | None = None) -> None:
        super().__init__(name)
        self.places = as_places("Distribute", places)

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """One bottom blob, a top blob for each place."""
        if len(bottom) != 1:
            raise GraphError(f"Distribute takes 1 bottom blob (x), got {len(bottom)}")
        return spread(bottom[0], self.places)


class Scatter(Composite[Any]):
    """Each blob cut along an axis, a part for each place; no more than its part is sent anywhere.

    Bottom: one or more blobs. Top: the parts of the first one at all places, then those of the second one, ...

    The parts are as long as each other, or the first ones one longer.

    Args:
        places: Where to, in the order of the parts.
        axis: Where it is cut, counted from the end if negative.
        name: Scope of its nodes.
    Raises:
        GraphError: if there are no places; PlaceError if a text is not a place. ShapeError, when built, if there is no
            such axis or it is shorter than there are places.
    Source: Purine2 composite ``Split``.

    Example:
        >>> graph = af.Graph("g")
        >>> batch = graph.blob("batch", [5, 2])
        >>> first, second = af.nn.parallel.Scatter(["sim:0", "sim:1"])(batch)
        >>> first.spec.shape, second.spec.shape, str(second.place)
        ((3, 2), (2, 2), 'sim:1')
    """

    def __init__(self, places: Iterable[Place | str], axis: int = 0, name: str | None = None) -> None:
        super().__init__(name)
        self.places = as_places("Scatter", places)
        self.axis = whole(f"{type(self).__name__}: axis", axis)

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """Give a top blob for each bottom blob and place."""
        return [
            moved(part, place)
            for x in bottom
            for part, place in zip(pieces_of("Scatter", x, len(self.places), self.axis), self.places, strict=True)
        ]


class Gather(Layer):
    """Blobs of any places, joined along an axis at one place.

    Bottom: one or more blobs. Top: one.

    Args:
        place: Where to.
        axis: Where they are joined, counted from the end if negative.
        name: Scope of its nodes.
    Raises:
        PlaceError: if it is not a place. ShapeError, DTypeError, when built, as for `ops.concat`.
    Source: Purine2 composite ``Concat``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [4])
        >>> parts = af.nn.parallel.Scatter(["sim:0", "sim:1"])(x)
        >>> y = af.nn.parallel.Gather("cpu")(*(part * 10 for part in parts))
        >>> graph.run_sync({x: [1, 2, 3, 4]})[y]
        array([10., 20., 30., 40.], dtype=float32)
    """

    def __init__(self, place: Place | str, axis: int = 0, name: str | None = None) -> None:
        super().__init__(name)
        self.place = Place.parse(place)
        self.axis = whole(f"{type(self).__name__}: axis", axis)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One or more bottom blobs, one top blob."""
        with bottom[0].graph.root.at(self.place):
            return ops.concat(bottom, self.axis, name="join")


def check_alike(kind: str, blobs: Sequence[Blob]) -> None:
    """Check that all are of the first one's type: a sum would broadcast."""
    first = blobs[0]
    for blob in blobs:
        if blob.shape != first.shape:
            raise ShapeError(
                f"{kind}: blob {blob.name!r} must have the shape of {first.name!r}, {first.shape}, got {blob.spec}"
            )
        if blob.dtype != first.dtype:
            raise DTypeError(
                f"{kind}: blob {blob.name!r} must have the dtype of {first.name!r}, {first.dtype}, got {blob.spec}"
            )


def summed(blobs: Sequence[Blob], place: Place) -> Blob:
    """The sum of blobs at a place; those of another rank are summed up there, and sent once."""
    by_rank = _by_rank(blobs)
    partial = [_added(group, place if rank == place.rank else group[0].place) for rank, group in by_rank.items()]
    return moved(_added(partial, place), place)


def _by_rank(blobs: Sequence[Blob]) -> dict[int, list[Blob]]:
    groups: dict[int, list[Blob]] = {}
    for blob in blobs:
        groups.setdefault(blob.place.rank, []).append(blob)
    return groups


def _added(blobs: Sequence[Blob], place: Place) -> Blob:
    if len(blobs) == 1:
        return blobs[0]
    with blobs[0].graph.root.at(place):
        return ops.add(*blobs, name="sum")


def _averaged(y: Blob, count: int) -> Blob:
    with y.graph.root.at(y.place):
        return ops.scale(y, 1.0 / count, name="average")


class Aggregate(Layer):
    """The sum of blobs of any places, at one place. Those of one rank are summed up first, and sent as one.

    Bottom: one or more blobs of one type. Top: one. The terms are added in the order of the bottom, rank by rank, so
    the result does not depend on timing.

    Args:
        place: Where to.
        average: Whether to divide by the number of blobs.
        name: Scope of its nodes.
    Raises:
        PlaceError: if it is not a place. ShapeError, DTypeError, when built, if the blobs differ or are not numbers.
    Gradient: to all places.
    Source: Purine2 composite ``Aggregate``.

    Example:
        >>> graph = af.Graph("g")
        >>> a, b = graph.blob("a", [2], place="sim:0"), graph.blob("b", [2], place="sim:1")
        >>> mean = af.nn.parallel.Aggregate("cpu", average=True)(a, b)
        >>> graph.run_sync({a: [1, 2], b: [3, 6]})[mean]
        array([2., 4.], dtype=float32)
    """

    def __init__(self, place: Place | str, average: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.place = Place.parse(place)
        self.average = average

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One or more bottom blobs, one top blob."""
        check_alike("Aggregate", bottom)
        y = summed(bottom, self.place)
        return _averaged(y, len(bottom)) if self.average else y


class AllReduce(Composite[Any]):
    """The sum of the blobs of several places, at each of them.

    Bottom: a blob for each place, of one type, where it is. Top: as many, at the same places. What one rank has is
    summed up on its first place; the ranks compute the rest together (`ops.AllReduce`). The result is the same to the
    last bit everywhere, and does not depend on timing.

    Args:
        average: Whether to divide by the number of blobs.
        priority: Of those that are ready, the one with the largest is computed first.
        name: Scope of its nodes.
    Raises:
        ShapeError, DTypeError: when built, if the blobs differ or are not numbers.
    Gradient: the sum of all places' gradients, at each of them.
    Source: Purine2 composite ``AllReduce``; MPI ``Iallreduce``.

    Example:
        >>> graph = af.Graph("g")
        >>> a, b = graph.blob("a", [2], place="sim:0"), graph.blob("b", [2], place="sim:1")
        >>> sums = af.nn.parallel.AllReduce()(a, b)
        >>> result = graph.run_sync({a: [1, 2], b: [3, 6]}, fetch=sums)
        >>> [(str(blob.place), af.to_numpy(result[blob]).tolist()) for blob in sums]
        [('sim:0', [4.0, 8.0]), ('sim:1', [4.0, 8.0])]
    """

    def __init__(self, average: bool = False, priority: int = 0, name: str | None = None) -> None:
        super().__init__(name)
        self.average = average
        self.priority = whole("AllReduce: priority", priority)

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """Give as many top blobs as there are bottom blobs."""
        check_alike("AllReduce", bottom)
        root, groups = bottom[0].graph.root, _by_rank(bottom)
        operation = ops.AllReduce(root.current_scope.name, tuple(sorted(groups)), priority=self.priority)
        found: dict[Place, Blob] = {}
        for rank, group in groups.items():
            y = _added(group, group[0].place)
            if len(groups) > 1:
                with root.at(Place(rank)):
                    y = root.apply(operation, y, name=f"rank{rank}")
            if self.average:
                y = _averaged(y, len(bottom))
            places = [x.place for x in group]
            found |= dict(zip(places, spread(y, places), strict=True))
        return [found[x.place] for x in bottom]
