"""Edges of a graph from one rank to another, and the identity of a graph that all ranks must agree on."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from actorflow.errors import listed
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.ops.collective import AllReduce
from actorflow.spec import TensorSpec

#: Most names that an error shows.
_SHOWN = 5


def home_of(blob: Blob) -> int:
    """The rank on which a blob's value is first."""
    if not blob.producers or is_gathered(blob):
        return blob.place.rank
    return blob.producers[0].place.rank


def is_gathered(blob: Blob) -> bool:
    """Return whether producers' outputs go to the blob's place, to be summed or to become a variable's value."""
    return isinstance(blob, Variable) or blob.has_several_producers


def ranks_of_edges(ops: Iterable[Op], fetched: Iterable[Blob], constants: frozenset[Blob]) -> frozenset[int]:
    """The ranks at the ends of edges between ranks; each rank has the constants by itself."""
    return frozenset().union(*_ranks(ops, fetched, constants))


def _ranks(ops: Iterable[Op], fetched: Iterable[Blob], constants: frozenset[Blob]) -> Iterator[set[int]]:
    for op in ops:
        if constants.isdisjoint(op.outputs):
            yield _ranks_of_op(op, constants)
    for blob in fetched:
        if blob not in constants:
            home, rank = home_of(blob), blob.place.rank
            yield {home, rank} if home != rank else set()


def _ranks_of_op(op: Op, constants: frozenset[Blob]) -> set[int]:
    """The ranks that something goes to or comes from because of an op; none if all is on one."""
    ranks = {op.place.rank, *[home_of(blob) for blob in op.inputs if blob not in constants]}
    ranks.update(blob.place.rank for blob in op.outputs if is_gathered(blob))
    if isinstance(op.operation, AllReduce):
        return ranks.union(op.operation.ranks)
    return ranks if len(ranks) > 1 else set()


class Identity(NamedTuple):
    """A selection of a graph's ops, independent of the order in which they were built.

    Attributes:
        digest: Equal on all ranks, or they have different graphs.
        lines: The text that was digested, compressed: a line per op, sorted.
        ranks: The ranks that messages go to or come from.
        fetches: Names of the fetched blobs, for errors.
    """

    digest: str
    lines: bytes
    ranks: frozenset[int]
    fetches: str


def identity_of(
    ops: Sequence[Op], fetched: Sequence[Blob], constants: frozenset[Blob], spec_of: Callable[[Blob], TensorSpec]
) -> Identity:
    """The identity of a selection of ops and of their fetched blobs; ``spec_of`` gives the types of blobs."""

    def shown(blobs: Iterable[Blob]) -> str:
        return ", ".join(f"{blob.name} {spec_of(blob)} on {blob.place}" for blob in blobs) or "nothing"

    def where(op: Op) -> str:
        return str(op.place) if constants.isdisjoint(op.outputs) else f"{op.place}, once"

    lines = sorted(
        f"op {op.name!r}\t{op.operation} on {where(op)}, {shown(op.inputs)} -> {shown(op.outputs)}" for op in ops
    )
    lines += sorted(f"fetch of {blob.name!r}\t{shown([blob])}" for blob in fetched)
    text = "\n".join(lines).encode()
    fetches = listed([repr(blob.name) for blob in fetched], _SHOWN) or "nothing"
    ranks = ranks_of_edges(ops, fetched, constants)
    return Identity(hashlib.sha256(text).hexdigest(), zlib.compress(text, 1), ranks, fetches)


def difference(here: bytes, there: bytes, rank: int, other: int) -> str:
    """The first difference between two ranks' lines, in words.

    Args:
        here: Lines of rank ``rank``.
        there: Lines of rank ``other``.
    """
    ours, theirs = (_by_name(lines) for lines in (here, there))
    differing = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    name = min(differing, key=lambda name: (name.startswith("fetch"), name))
    found = {rank: ours.get(name, "has none"), other: theirs.get(name, "has none")}
    shown = "; ".join(f"rank {key}: {found[key]}" for key in sorted(found))
    return f"ranks {min(found)} and {max(found)} have different graphs; the first difference is {name}: {shown}"


def _by_name(lines: bytes) -> dict[str, str]:
    parts = (line.partition("\t") for line in zlib.decompress(lines).decode().split("\n"))
    return {name: rest for name, _, rest in parts}
