"""Which edges of a graph lead from one rank to another. It follows from the ranks of ops and blobs alone."""

from __future__ import annotations

from collections.abc import Iterable

from actorflow.node import Blob, Op, Variable
from actorflow.ops.collective import AllReduce

__all__ = ["crosses_ranks", "home_of", "is_gathered"]


def home_of(blob: Blob) -> int:
    """The rank on which a blob's value is first."""
    if not blob.producers or is_gathered(blob):
        return blob.place.rank
    return blob.producers[0].place.rank


def is_gathered(blob: Blob) -> bool:
    """Whether what producers write goes to where the blob lives, to be summed or to become a variable's value."""
    return isinstance(blob, Variable) or blob.has_several_producers


def crosses_ranks(ops: Iterable[Op], fetched: Iterable[Blob]) -> bool:
    """Whether anything goes from one rank to another."""
    return any(_crosses(op) for op in ops) or any(home_of(blob) != blob.place.rank for blob in fetched)


def _crosses(op: Op) -> bool:
    rank = op.place.rank
    return (
        isinstance(op.operation, AllReduce)
        or any(home_of(blob) != rank for blob in op.inputs)
        or any(is_gathered(blob) and blob.place.rank != rank for blob in op.outputs)
    )
