"""Which edges of a graph lead from one rank to another. It follows from the ranks of ops and blobs alone."""

from __future__ import annotations

from collections.abc import Iterable

from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.ops.collective import AllReduce


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
    return any(_ranks_of_op(op) for op in ops) or any(_ranks_of_fetched(blob) for blob in fetched)


def ranks_of_edges(ops: Iterable[Op], fetched: Iterable[Blob]) -> frozenset[int]:
    """The ranks at the ends of what goes from one rank to another."""
    return frozenset().union(*map(_ranks_of_op, ops), *map(_ranks_of_fetched, fetched))


def _ranks_of_op(op: Op) -> set[int]:
    """The ranks that something goes to or comes from because of an op; none if all is on one."""
    ranks = {op.place.rank, *map(home_of, op.inputs)}
    ranks.update(blob.place.rank for blob in op.outputs if is_gathered(blob))
    if isinstance(op.operation, AllReduce):
        return ranks.union(op.operation.ranks)
    return ranks if len(ranks) > 1 else set()


def _ranks_of_fetched(blob: Blob) -> set[int]:
    home = home_of(blob)
    return {home, blob.place.rank} if home != blob.place.rank else set()
