"""Composites that sum blobs up over places."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow import ops
from actorflow.errors import DTypeError, ShapeError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob
from actorflow.nn.parallel.moving import moved, spread
from actorflow.place import Place


def _check_alike(kind: str, blobs: Sequence[Blob]) -> None:
    """Check that all are of the first one's type: a sum would broadcast.

    Raises:
        ShapeError, DTypeError: naming the one that differs.
    """
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
    """The sum of blobs at a place; what another rank has of them is summed up there, and sent once."""
    by_rank = _by_rank(blobs)
    partial = [_added(group, place if rank == place.rank else group[0].place) for rank, group in by_rank.items()]
    return moved(_added(partial, place), place)


def _by_rank(blobs: Sequence[Blob]) -> dict[int, list[Blob]]:
    groups: dict[int, list[Blob]] = {}
    for blob in blobs:
        groups.setdefault(blob.place.rank, []).append(blob)
    return groups


def _added(blobs: Sequence[Blob], place: Place) -> Blob:
    """Their sum in this order, computed at a place; a single one stays where it is."""
    if len(blobs) == 1:
        return blobs[0]
    with blobs[0].graph.root.at(place):
        return ops.add(*blobs, name="sum")


def _averaged(y: Blob, count: int) -> Blob:
    with y.graph.root.at(y.place):
        return ops.scale(y, 1.0 / count, name="average")


class Aggregate(Composite):
    """The sum of blobs of any places, at one place. Those of one rank are summed up first, and sent as one.

    Bottom: one or more blobs of one type. Top: one. The terms are added in the order of the bottom, rank by rank, so
    the result does not depend on timing.

    Args:
        place: Where to.
        average: Whether to divide by the number of blobs.
        name: Scope of its nodes.
    Raises:
        PlaceError: if it is no place. ShapeError, DTypeError, when built, if the blobs differ or are not numbers.
    Gradient: to all places.
    Source: Purine2 composite ``Aggregate``.
    """

    def __init__(self, place: Place | str, average: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.place = Place.parse(place)
        self.average = average

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One or more bottom blobs, one top blob."""
        _check_alike("Aggregate", bottom)
        y = summed(bottom, self.place)
        return _averaged(y, len(bottom)) if self.average else y


class AllReduce(Composite):
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
    """

    def __init__(self, average: bool = False, priority: int = 0, name: str | None = None) -> None:
        super().__init__(name)
        self.average = average
        self.priority = priority

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """As many top blobs as bottom blobs."""
        _check_alike("AllReduce", bottom)
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
