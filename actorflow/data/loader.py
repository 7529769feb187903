"""Batches of a data set, epoch after epoch, from a place that can be saved and gone back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from actorflow.data.draws import Rows
from actorflow.data.normalize import Column
from actorflow.data.sampler import Sampler
from actorflow.errors import DataError

__all__ = ["Loader", "Resumable", "Transform"]

Array = npt.NDArray[Any]
#: What is made of some values of a column, their rows and the epoch; an `Augmentation`, say.
Transform = Callable[[Array, Rows, int], Array]


@runtime_checkable
class Resumable(Protocol):
    """An iterable that knows its place: iterated, it goes on where it is, to the end of the epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last item that was taken, as what JSON can hold."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place that `state_dict` gave, of this object or of one that was made in the same way."""


class Loader:
    """Feeds of a graph, batch by batch, from arrays or whatever is indexed like them.

    ::

        loader = Loader({images: train.images, labels: train.labels}, 128, seed=0, transforms={images: augment})
        await trainer.fit(loader, epochs=10)

    To iterate is to take the rest of an epoch: the first time all of the first one, then all of the second, ...; what
    was left in the middle goes on there. Where that is `state_dict` tells; a `Trainer` keeps it in its checkpoints, so
    that a resumed training begins with the very next batch, and nothing before it is read or decoded. It is
    synchronous: each batch is made when it is asked for. One iteration at a time.

    Args:
        columns: By blob or name, what is fed: arrays, `ImageFiles`, or any other `Column`, of one length.
        size: Examples per batch.
        seed: Shuffles each epoch anew; None takes the examples in order.
        sampler: Chooses the order instead of a seed.
        transforms: By blob or name, what is fed instead of the column's own values.
        drop_last: Whether an epoch ends with its last full batch. Else what is missing in the last batch comes from the
            epoch's beginning: see `counted`.

    Attributes:
        epoch: That the next batch belongs to, counted from 0.
        batch: Its number in the epoch, counted from 0.
        sampler: That chooses the order.

    Raises:
        DataError: if the columns differ in length, a transform is for none of them, both a seed and a sampler are
            given, or no batch of this size can be filled.
    """

    def __init__(
        self,
        columns: Mapping[Any, Column],
        size: int,
        *,
        seed: int | None = None,
        sampler: Sampler | None = None,
        transforms: Mapping[Any, Transform] | None = None,
        drop_last: bool = True,
    ) -> None:
        self._columns = dict(columns)
        self._transforms = dict(transforms or {})
        self._size = size
        self._drop_last = drop_last
        self.epoch = 0
        self.batch = 0
        lengths = {_name(key): len(column) for key, column in self._columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"Loader: expected columns of one length, got {lengths or 'none'}")
        unknown = [_name(key) for key in self._transforms if key not in self._columns]
        if unknown:
            raise DataError(f"Loader: there are transforms for {', '.join(unknown)}, which is no column: {lengths}")
        if seed is not None and sampler is not None:
            raise DataError("Loader: a sampler has a seed of its own, give one of both")
        count = next(iter(lengths.values()))
        self.sampler = Sampler(count, seed) if sampler is None else sampler
        if self.sampler.count != count:
            raise DataError(f"Loader: expected a sampler of {count} examples, as the columns have, got {self.sampler}")
        if size < 1 or (drop_last and size > len(self.sampler)):
            raise DataError(
                f"Loader: expected a batch size from 1 to {len(self.sampler)}, the examples of an epoch, got {size}"
            )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.sampler) // self._size if self._drop_last else -(-len(self.sampler) // self._size)

    def __iter__(self) -> Iterator[dict[Any, Array]]:
        """The feeds of the rest of the epoch."""
        for feed, _ in self.counted():
            yield feed

    def counted(self) -> Iterator[tuple[dict[Any, Array], int]]:
        """The feeds of the rest of the epoch, each with the number of its examples that count, for `Trainer.evaluate`:
        in the last batch those that only fill it do not.

        Raises:
            Whatever a column or a transform raises; a note names the epoch and the batch, which is asked for again when
            the loader is iterated again.
        """
        rows = self.sampler.rows(self.epoch)
        while self.batch < len(self):
            start = self.batch * self._size
            try:
                feed = self._feed(rows.take(range(start, start + self._size), mode="wrap"))
            except Exception as error:
                error.add_note(f"in batch {self.batch} of epoch {self.epoch}")
                raise
            self.batch += 1  # before it is given away: who leaves here has it
            yield feed, min(self._size, len(rows) - start)
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch that was taken, and what the meaning of that depends on."""
        return {"epoch": self.epoch, "batch": self.batch, **self._made()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place.

        Args:
            state: What `state_dict` gave, of this loader or of one like it.
        Raises:
            DataError: if that had another number of examples, another order or another batch size.
        """
        made, known = self._made(), dict(state)
        epoch, batch = known.pop("epoch", None), known.pop("batch", None)
        if not isinstance(epoch, int) or not isinstance(batch, int) or epoch < 0 or not 0 <= batch <= len(self):
            raise DataError(f"Loader: expected an epoch and a batch from 0 to {len(self)}, got {dict(state)}")
        if known != made:
            raise DataError(f"Loader: expected the state of a loader like this, {made}, got that of one with {known}")
        self.epoch, self.batch = epoch, batch

    def _feed(self, rows: Rows) -> dict[Any, Array]:
        feed = {}
        for key, column in self._columns.items():
            transform = self._transforms.get(key)
            feed[key] = column[rows] if transform is None else transform(column[rows], rows, self.epoch)
        return feed

    def _made(self) -> dict[str, Any]:
        """What the batches of an epoch depend on."""
        return {**asdict(self.sampler), "size": self._size, "drop_last": self._drop_last}


def _name(key: Any) -> str:
    """Of a blob, or a name itself."""
    return str(getattr(key, "name", key))
