"""Batches of a data set, epoch after epoch, from a place that can be saved and gone back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from actorflow.data.draws import Rows
from actorflow.data.normalize import Column
from actorflow.data.sampler import Sampler
from actorflow.errors import DataError

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


@runtime_checkable
class Reshardable(Resumable, Protocol):
    """An iterable that can go on where several together have come to, each with a share of the data."""

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go to the place behind all that several have taken, whose number may be another one than now.

        Args:
            states: What `state_dict` gave of each of them, by rank.
        """


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
        return _batches(len(self.sampler), self._size, self._drop_last)

    def __iter__(self) -> Iterator[dict[Any, Array]]:
        """The feeds of the rest of the epoch."""
        for feed, _ in self.counted():
            yield feed

    def counted(self) -> Counted:
        """The feeds of the rest of the epoch, each with the number of its examples that count: in the last batch those
        that only fill it do not.

        Raises:
            Whatever a column or a transform raises; a note names the epoch and the batch, which is asked for again when
            the loader is iterated again.
        """
        return Counted(self, self._rest())

    def one_pass(self) -> Iterator[tuple[dict[Any, Array], int]]:
        """The feeds of the whole epoch, as `counted` gives them, wherever the loader is in it; it stays there.

        So passes do not disturb each other, nor a training that takes its feeds from the loader.
        """
        epoch = self.epoch
        rows = self.sampler.rows(epoch)
        return (self._batch(rows, epoch, batch) for batch in range(len(self)))

    @property
    def fills_up(self) -> bool:
        """Whether the last batch of an epoch has examples that only fill it."""
        return not self._drop_last and len(self.sampler) % self._size != 0

    def _rest(self) -> Iterator[tuple[dict[Any, Array], int]]:
        rows = self.sampler.rows(self.epoch)
        while self.batch < len(self):
            item = self._batch(rows, self.epoch, self.batch)
            self.batch += 1  # before it is given away: who leaves here has it
            yield item
        self.epoch, self.batch = self.epoch + 1, 0

    def _batch(self, rows: Rows, epoch: int, batch: int) -> tuple[dict[Any, Array], int]:
        """A feed, and how many of its examples count."""
        start = batch * self._size
        try:
            feed = self._feed(rows.take(range(start, start + self._size), mode="wrap"), epoch)
        except Exception as error:
            error.add_note(f"in batch {batch} of epoch {epoch}")
            raise
        return feed, min(self._size, len(rows) - start)

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

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go to the place that several loaders have come to together, as one of another number of them.

        Each of them takes every ``interval``-th example of one order, from an ``offset`` of its own on, or so many
        neighbours (`Blocks`), and all have taken as many batches. So what they have taken is the beginning of the
        epoch, and this loader goes on behind it with its own share. Loaders that take all examples each are at one
        place, which is this one's, too.

        Args:
            states: What `state_dict` gave of each of them.
        Raises:
            DataError: if they are not of one order, not of all shares or not at one place; if this loader is of another
                order; if what they have taken does not end with a batch here, as it does where the batches of all
                together have as many examples as before.
        """
        made = self._made()
        shares: list[dict[str, Any]] = []
        for state in map(dict, states):
            if state.keys() != {"epoch", "batch", *made}:
                raise DataError(f"Loader: expected the states of loaders like this, {made}, got {state}")
            if state not in shares:  # several may have taken the same
                shares.append(state)
        if not shares:
            raise DataError("Loader: expected the states of one loader or more, got none")
        first = shares[0]
        block, own_block = first.get("block", 1), made.get("block", 1)
        offsets = sorted(state["offset"] for state in shares)
        alike = all({**state, "offset": 0} == {**first, "offset": 0} for state in shares)
        if not alike or offsets != [*range(0, first["interval"], block)]:
            raise DataError(f"Loader: expected the states of loaders at one place, of one share each, got {shares}")
        # Each epoch of blocks begins where the one before ended, which depends on their interval.
        of_share = {"offset", "size", "block" if "block" in made else "interval"}
        if any(first[key] != made[key] for key in made.keys() - of_share):
            raise DataError(f"Loader: expected the states of loaders in the order of this one, {made}, got {first}")
        ranks, own_ranks = first["interval"] // block, self.sampler.interval // own_block
        of_all, here = first["size"] * ranks, self._size * own_ranks
        batch, rest = divmod(first["batch"] * of_all, here)
        examples = max(first["count"] // first["interval"], 1) * block
        if first["batch"] == _batches(examples, first["size"], self._drop_last):
            batch = len(self)  # the epoch is over
        elif rest or (first["batch"] and (first["size"] % block or self._size % own_block)):
            raise DataError(
                f"Loader: {first['batch'] * of_all} examples of epoch {first['epoch']} have been taken, by {of_all} on "
                f"{ranks} ranks, and no batch here ends with them, which take {here} on {own_ranks}: give batches that "
                f"are {of_all} together" + (", and whole blocks" if "block" in made else "")
            )
        self.load_state_dict({"epoch": first["epoch"], "batch": batch, **made})

    def _feed(self, rows: Rows, epoch: int) -> dict[Any, Array]:
        feed = {}
        for key, column in self._columns.items():
            transform = self._transforms.get(key)
            feed[key] = column[rows] if transform is None else transform(column[rows], rows, epoch)
        return feed

    def _made(self) -> dict[str, Any]:
        """What the batches of an epoch depend on."""
        return {**asdict(self.sampler), "size": self._size, "drop_last": self._drop_last}


class Counted(Iterator[tuple[dict[Any, Array], int]]):
    """The rest of a loader's epoch, as `Loader.counted` gives it. It knows its place: the loader's."""

    def __init__(self, loader: Loader, items: Iterator[tuple[dict[Any, Array], int]]) -> None:
        self._loader = loader
        self._items = items

    def __next__(self) -> tuple[dict[Any, Array], int]:
        return next(self._items)

    def state_dict(self) -> dict[str, Any]:
        """As `Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Loader.load_state_dict`."""
        self._loader.load_state_dict(state)


def _batches(examples: int, size: int, drop_last: bool) -> int:
    """How many batches so many examples make."""
    return examples // size if drop_last else -(-examples // size)


def _name(key: Any) -> str:
    """Of a blob, or a name itself."""
    return str(getattr(key, "name", key))
