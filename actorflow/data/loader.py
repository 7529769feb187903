"""Batches of a data set as a pipeline of feeds, from a place that can be saved and gone back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from actorflow.data.augment import Column
from actorflow.errors import DataError, flag, whole
from actorflow.graph.nodes import Blob
from actorflow.pipeline.calls.map import Map
from actorflow.pipeline.calls.options import Executor, Options
from actorflow.pipeline.pipeline import Pipeline
from actorflow.pipeline.stages.sampler import Rows, Sampler
from actorflow.pipeline.stages.source import Resumable, Source
from actorflow.pipeline.stages.stage import calling_site
from actorflow.pipeline.sync import blocking

Array = npt.NDArray[Any]
_Batch = tuple[int, int, Rows, int | None]  # epoch, number, rows, and how many of these count if some may not
#: A function of some values of a column, their rows and the epoch, such as an `Augmentation`.
Transform = Callable[[Array, Rows, int], Array]


@runtime_checkable
class Reshardable(Resumable, Protocol):
    """An iterable that can go on where several together have come to, each with a share of the data.

    Example:
        >>> isinstance(af.data.Loader({"x": np.arange(8)}, 2), af.data.Reshardable)
        True
        >>> isinstance(af.pipeline.source(range(8)), af.data.Reshardable)  # `Resumable` alone
        False
    """

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go to the place behind all that several have taken, whose number may be another one than now.

        Args:
            states: Results of `state_dict` of each of them, by rank.
        """


class Feed(dict[Any, Array]):
    """The arrays of one batch, by blob or name.

    Attributes:
        count: Rows that count, where a last batch is filled up with others; None if all rows of all batches do.

    Example:
        >>> loader = af.data.Loader({"x": np.arange(5)}, 2, fill=True)
        >>> [(feed["x"].tolist(), feed.count) for feed in loader]
        [([0, 1], 2), ([2, 3], 2), ([4, 0], 1)]
    """

    def __init__(self, arrays: Mapping[Any, Array], count: int | None) -> None:
        super().__init__(arrays)
        self.count = count

    def __reduce__(self) -> Any:
        return Feed, (dict(self), self.count)


def Loader(  # noqa: N802  it was a class
    columns: Mapping[Any, Column | list[Any] | tuple[Any, ...]],
    size: int,
    *,
    seed: int | None = None,
    sampler: Sampler | None = None,
    transforms: Mapping[Any, Transform] | None = None,
    drop_last: bool | None = None,
    fill: bool | None = None,
    concurrency: int = 1,
    executor: Executor = "auto",
) -> Batches:
    """Make a pipeline of feeds for a graph from arrays or whatever is indexed like them.

    Args:
        columns: By blob or name, values fed: arrays or values NumPy takes as such, `ImageFiles`, or any other `Column`,
            of one length.
        size: Examples per batch.
        seed: Shuffles each epoch anew; None takes the examples in order.
        sampler: Chooses the order instead of a seed.
        transforms: By blob or name, values fed instead of the column's own: a function of the values of a
            batch, the numbers of their rows and the epoch, such as an `Augmentation`.
        drop_last: Whether an epoch ends with its last full batch. The default is that it does, unless all columns are
            for blobs that begin with an open axis, or ``fill`` is given.
        fill: Whether a last batch that is not full is filled up with examples of the epoch's beginning, for a graph of
            one batch size: `Feed.count` says how many of its rows count. Else it is short; that is the default for
            blobs that begin with an open axis.
        concurrency: Batches that are made at once.
        executor: Where they are made, as for `Pipeline.map`.
    Raises:
        DataError: if the columns differ in length, a transform is for none of them, both a seed and a sampler are
            given, or no batch of this size can be filled.

    Example:
        >>> graph = af.Graph("g")
        >>> x, labels = graph.blob("x", ["batch", 8, 8, 1]), graph.blob("labels", ["batch"], "int64")
        >>> columns = {x: np.ones([5, 12, 12, 1], "float32"), labels: np.arange(5)}
        >>> augment = af.data.Augmentation([af.data.Crop(8), af.data.Mirror()], seed=0)
        >>> loader = af.data.Loader(columns, 2, transforms={x: augment})
        >>> [(feed[x].shape, feed[labels].tolist()) for feed in loader]
        [((2, 8, 8, 1), [0, 1]), ((2, 8, 8, 1), [2, 3]), ((1, 8, 8, 1), [4])]
    """
    taken = {key: np.asarray(each) if isinstance(each, list | tuple) else each for key, each in columns.items()}
    transforms = dict(transforms or {})
    lengths = {_name(key): len(column) for key, column in taken.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"Loader: expected columns of one length, got {lengths or 'none'}")
    unknown = [_name(key) for key in transforms if key not in taken]
    if unknown:
        raise DataError(f"Loader: there are transforms for {', '.join(unknown)}, not a column: {lengths}")
    if seed is not None and sampler is not None:
        raise DataError("Loader: a sampler has a seed of its own, give one of both")
    count = next(iter(lengths.values()))
    sampler = Sampler(count, seed) if sampler is None else sampler
    if sampler.count != count:
        raise DataError(f"Loader: expected a sampler of {count} examples, as the columns have, got {sampler}")
    size = whole("Loader: size", size, 1, error=DataError)
    drop_last = None if drop_last is None else flag("drop_last", drop_last)
    fill = None if fill is None else flag("fill", fill)
    is_open = all(isinstance(key, Blob) and key.spec.leading_axis for key in taken)
    drop_last = fill is None and not is_open if drop_last is None else drop_last
    fill = not is_open if fill is None else fill
    if drop_last and size > len(sampler):
        raise DataError(f"Loader: expected a batch size from 1 to {len(sampler)}, the examples of an epoch, got {size}")
    made = _Cut(taken, transforms, sampler, size, drop_last, fill)
    site = calling_site()
    source = Source(name="rows", site=site, data=made, place="loop", order=str(made.settings))
    options = Options(fn=made.feed, concurrency=concurrency, executor=executor)
    return Batches(Map(name="feed", site=site, upstream=(source,), options=options))


@dataclass(frozen=True, eq=False)
class _Cut:
    """Cuts a data set into batches: called with an epoch, it gives the rows of its batches."""

    columns: Mapping[Any, Column]
    transforms: Mapping[Any, Transform]
    sampler: Sampler
    size: int
    drop_last: bool
    fill: bool

    def __call__(self, epoch: int) -> _Epoch:
        return _Epoch(self, epoch)

    def count(self, examples: int, size: int) -> int:
        """Number of batches of a size that some examples make."""
        return examples // size if self.drop_last else -(-examples // size)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the batches of an epoch depend on."""
        return {**asdict(self.sampler), "size": self.size, "drop_last": self.drop_last}

    def feed(self, batch: _Batch) -> Feed:
        epoch, number, rows, count = batch
        try:
            feed = {}
            for key, column in self.columns.items():
                transform = self.transforms.get(key)
                feed[key] = column[rows] if transform is None else transform(column[rows], rows, epoch)
        except Exception as error:
            error.add_note(f"in batch {number} of epoch {epoch}")
            raise
        return Feed(feed, count)


class _Epoch:
    def __init__(self, cut: _Cut, epoch: int) -> None:
        self._cut = cut
        self._epoch = epoch
        self._rows = cut.sampler.rows(epoch)

    def __len__(self) -> int:
        return self._cut.count(len(self._rows), self._cut.size)

    def __getitem__(self, number: int) -> _Batch:
        cut, start = self._cut, number * self._cut.size
        if cut.drop_last or not cut.fill:
            return self._epoch, number, self._rows[start : start + cut.size], None
        rows = self._rows.take(range(start, start + cut.size), mode="wrap")
        return self._epoch, number, rows, min(cut.size, len(self._rows) - start)


class Batches(Pipeline[Feed]):
    """The pipeline that `Loader` makes: feeds of a graph, batch by batch.

    To iterate, with ``async for`` or ``for``, is to take the rest of an epoch: the first time all of the first one,
    then all of the second, ...; one that was left in the middle goes on there. `state_dict` tells where that is. A
    `Trainer` keeps it in its checkpoints, so that a resumed training begins with the very next batch, and nothing
    before it is read or decoded.

    Example:
        >>> loader = af.data.Loader({"x": np.arange(6)}, 2)
        >>> next(iter(loader))["x"], loader.next_batch
        (array([0, 1]), 1)
        >>> [feed["x"].tolist() for feed in loader]  # the rest of the epoch
        [[2, 3], [4, 5]]
        >>> state = loader.state_dict()
    """

    @property
    def _cut(self) -> _Cut:
        source = self.stages[0]
        assert isinstance(source, Source)
        cut: _Cut = source.data
        return cut

    @property
    def sampler(self) -> Sampler:
        """The order of the examples."""
        return self._cut.sampler

    @property
    def next_batch(self) -> int:
        """Number of the next batch in the epoch, counted from 0."""
        return self._place()[1] or 0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._cut.count(len(self.sampler), self._cut.size)

    def __iter__(self) -> Iterator[Feed]:
        """The feeds of the rest of the epoch, for synchronous programs: a loop that runs here waits for each."""
        return blocking(self, 1)

    def one_pass(self) -> Iterator[Feed]:
        """The feeds of the whole epoch, wherever the loader is in it; it stays there.

        Each is made when it is asked for, in the calling thread. So passes do not disturb each other, nor a training
        that takes its feeds from the loader.

        Example:
            >>> loader = af.data.Loader({"x": np.arange(4)}, 2)
            >>> [feed["x"].tolist() for feed in loader.one_pass()], loader.next_batch
            ([[0, 1], [2, 3]], 0)
        """
        cut = self._cut
        epoch = cut(self.epoch)
        return (cut.feed(epoch[number]) for number in range(len(epoch)))

    def state_dict(self, *, delivered: int | None = None) -> dict[str, Any]:
        """The place behind the last batch that was taken, and all that its meaning depends on.

        Args:
            delivered: As for `Pipeline.state_dict`.

        Example:
            >>> loader, other = (af.data.Loader({"x": np.arange(6)}, 2, seed=0) for _ in range(2))
            >>> _ = next(iter(loader))
            >>> other.load_state_dict(loader.state_dict())
            >>> [feed["x"].tolist() for feed in loader] == [feed["x"].tolist() for feed in other]
            True
        """
        epoch, batch = self._place(delivered)
        return {"epoch": epoch, "batch": batch or 0, **self._cut.settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place.

        Args:
            state: Result of `state_dict`, of this loader or of one like it.
        Raises:
            DataError: if that had another number of examples, another order or another batch size.
        """
        made, known = self._cut.settings, dict(state)
        epoch, batch = known.pop("epoch", None), known.pop("batch", None)
        if not isinstance(epoch, int) or not isinstance(batch, int) or epoch < 0 or not 0 <= batch <= len(self):
            raise DataError(f"Loader: expected an epoch and a batch from 0 to {len(self)}, got {dict(state)}")
        if known != made:
            raise DataError(f"Loader: expected the state of a loader like this, {made}, got that of one with {known}")
        self._go_to(epoch, batch)

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go to the place that several loaders have come to together, as one of another number of them.

        Each of them takes every ``interval``-th example of one order, from an ``offset`` of its own on, or a block of
        neighbours (`Blocks`), and all have taken as many batches. So the examples taken are the beginning of the
        epoch, and this loader goes on behind it with its own share. Loaders that take all examples each are at one
        place, which is this one's, too.

        Args:
            states: Results of `state_dict` of each of them.
        Raises:
            DataError: if they are not of one order, not of all shares or not at one place; if this loader is of another
                order; if the examples they have taken do not end with a batch here, as it does where the batches of all
                together have as many examples as before.

        Example:
            >>> shares = [af.data.Sampler(8, offset=rank, interval=2) for rank in range(2)]
            >>> ranks = [af.data.Loader({"x": np.arange(8)}, 2, sampler=share) for share in shares]
            >>> _ = [next(iter(loader)) for loader in ranks]  # each has taken its first batch
            >>> alone = af.data.Loader({"x": np.arange(8)}, 4)
            >>> alone.load_state_dicts([loader.state_dict() for loader in ranks])
            >>> [feed["x"].tolist() for feed in alone]
            [[4, 5, 6, 7]]
        """
        cut = self._cut
        made = cut.settings
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
        ranks, own_ranks = first["interval"] // block, cut.sampler.interval // own_block
        of_all, here = first["size"] * ranks, cut.size * own_ranks
        batch, rest = divmod(first["batch"] * of_all, here)
        examples = max(first["count"] // first["interval"], 1) * block
        if first["batch"] == cut.count(examples, first["size"]):
            batch = len(self)  # the epoch is over
        elif rest or (first["batch"] and (first["size"] % block or cut.size % own_block)):
            raise DataError(
                f"Loader: {first['batch'] * of_all} examples of epoch {first['epoch']} have been taken, by {of_all} on "
                f"{ranks} ranks, and no batch here ends with them, which take {here} on {own_ranks}: give batches that "
                f"are {of_all} together" + (", and whole blocks" if "block" in made else "")
            )
        self.load_state_dict({"epoch": first["epoch"], "batch": batch, **made})


def _name(key: Any) -> str:
    return str(getattr(key, "name", key))
