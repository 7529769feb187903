"""Sums of many blobs over several places, a few of them at a time: what each message costs is paid a few times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorflow import ops
from actorflow.errors import GraphError, whole
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob
from actorflow.nn.parallel.exchange import AllReduce, check_alike
from actorflow.ops.operation import same_numbers

#: Bytes of the largest bucket, and of the smallest. What one collective costs besides copying and adding is small
#: beside what it takes for either; larger ones would leave less to be computed meanwhile.
BUCKET_BYTES, _FIRST_BYTES = 25 << 20, 1 << 20
#: Each bucket may be so many times as large as the one before.
_GROWTH = 4


class BucketedAllReduce(Composite[Any]):
    """The sums of many tensors over several places, at each of them: one collective for several tensors.

    Bottom: for each tensor a blob at each place, in the order of the places. The tensors that are needed first come
    first, as the gradients of a network's front layers, which are computed last. Top: likewise.

    Tensors of one dtype that follow each other are copied into one bucket, reduced as one (`AllReduce`), and taken
    apart again, without copies on the CPU. The first bucket is small, as nothing is left to be computed while it is
    reduced; the others grow. Buckets of the first tensors overtake others. The result is that of an `AllReduce` for
    each tensor, but for rounding where the order in which ranks are added depends on the size of a message; it does not
    depend on timing. Where all places are of one rank, nothing is put into buckets.

    Args:
        places: How many there are.
        bucket_bytes: The most that a bucket holds, unless it is one tensor.
        average: Whether to divide by the number of places.
        names: A name for each tensor, which collectives and errors show; by default that of its first blob.
        name: Scope of its nodes.
    Raises:
        GraphError: if the bottom is not a blob for each place, or ``bucket_bytes`` not positive.
        ShapeError, DTypeError: when built, naming the tensor, if its blobs differ or are not numbers.
    Gradient: the sum of all places' gradients, at each of them.

    Example:
        >>> graph = af.Graph("g")
        >>> weight = [graph.blob(f"weight{i}", [2, 2], place=f"sim:{i}") for i in range(2)]
        >>> bias = [graph.blob(f"bias{i}", [2], place=f"sim:{i}") for i in range(2)]
        >>> sums = af.nn.parallel.BucketedAllReduce(2, average=True)(*weight, *bias)
        >>> [(str(blob.spec), str(blob.place)) for blob in sums]
        [('float32[2, 2]', 'sim:0'), ('float32[2, 2]', 'sim:1'), ('float32[2]', 'sim:0'), ('float32[2]', 'sim:1')]
    """

    def __init__(
        self,
        places: int,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        average: bool = False,
        names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        places = whole("BucketedAllReduce: places", places, 1)
        bucket_bytes = whole("BucketedAllReduce: bucket_bytes", bucket_bytes, 1)
        self.places = places
        self.bucket_bytes = bucket_bytes
        self.average = average
        self.names = names

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """A multiple of the number of places, of bottom and of top blobs."""
        count = self.places
        if len(bottom) % count:
            raise GraphError(f"BucketedAllReduce takes a blob at each of {count} places, got {len(bottom)}")
        tensors = [bottom[i : i + count] for i in range(0, len(bottom), count)]
        names = [blobs[0].name for blobs in tensors] if self.names is None else self.names
        if len(names) != len(tensors):
            raise GraphError(f"BucketedAllReduce has {len(names)} names for {len(tensors)} tensors")
        for name, blobs in zip(names, tensors, strict=True):
            check_alike(f"BucketedAllReduce of {name!r}", blobs)
            same_numbers(f"BucketedAllReduce of {name!r}", x=blobs[0].spec)
        one_rank = len({blob.place.rank for blob in bottom}) == 1
        buckets = [[i] for i in range(len(tensors))] if one_rank else self._buckets([t[0] for t in tensors])
        top: dict[int, Sequence[Blob]] = {}
        for left, bucket in zip(range(len(buckets), 0, -1), buckets, strict=True):
            more = f"+{len(bucket) - 1}" if len(bucket) > 1 else ""
            reduce = AllReduce(self.average, priority=left, name=names[bucket[0]].replace("/", ".") + more)
            sums = reduce(*[_joined(blobs) for blobs in zip(*[tensors[i] for i in bucket], strict=True)])
            parts = [_parted(y, [tensors[i][0] for i in bucket]) for y in (sums if count > 1 else [sums])]
            top |= dict(zip(bucket, zip(*parts, strict=True), strict=True))
        return [y for i in range(len(tensors)) for y in top[i]]

    def _buckets(self, tensors: Sequence[Blob]) -> list[list[int]]:
        """Indices of the tensors in each bucket: of one dtype, and ascending."""
        found: list[list[int]] = []
        latest: dict[Any, tuple[list[int], int, int]] = {}  # by dtype: the bucket, its bytes, and the most of them
        for i, blob in enumerate(tensors):
            size_bytes = blob.spec.size_bytes
            bucket, before, limit = latest.get(blob.dtype, ([], 0, min(_FIRST_BYTES, self.bucket_bytes)))
            if bucket and before + size_bytes > limit:
                bucket, before, limit = [], 0, min(_GROWTH * limit, self.bucket_bytes)
            if not bucket:
                found.append(bucket)
            bucket.append(i)
            latest[blob.dtype] = bucket, before + size_bytes, limit
        return found


def _joined(blobs: Sequence[Blob]) -> Blob:
    if len(blobs) == 1:
        return blobs[0]
    with blobs[0].graph.root.at(blobs[0].place):
        return ops.concat(blobs, axis=None, name="join")


def _parted(x: Blob, like: Sequence[Blob]) -> Sequence[Blob]:
    if len(like) == 1:
        return [x]
    with x.graph.root.at(x.place):
        parts = ops.split(x, [blob.spec.size for blob in like])
        return [ops.reshape(part, blob.shape) for part, blob in zip(parts, like, strict=True)]
