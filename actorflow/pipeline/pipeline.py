"""Pipelines as users write them: each method adds a stage and gives a new pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from actorflow.errors import PipelineError, flag, shown, text
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.pipeline.calls.call import Call
from actorflow.pipeline.calls.map import Expand, Filter, Map
from actorflow.pipeline.calls.options import CallOptions, Executor, Options, gives_coroutine
from actorflow.pipeline.loader import Feeding, Loader, T
from actorflow.pipeline.stages.branch import Branch, BranchJoin, BranchStart
from actorflow.pipeline.stages.collate import Padding, stack, unstack
from actorflow.pipeline.stages.join import Concat, Interleave, Merge, MergeByTime, Zip
from actorflow.pipeline.stages.passing import Cache, Enumerate, Group, Newest, Prefetch, Repeat, Shard, SkipFirst, Take
from actorflow.pipeline.stages.sampler import Sampler
from actorflow.pipeline.stages.shuffle import Shuffle
from actorflow.pipeline.stages.source import Indexed, Source, check_data, is_indexable
from actorflow.pipeline.stages.stage import Stage, calling_site, walk, whole_number
from actorflow.pipeline.stages.transfer import Transfer
from actorflow.pipeline.sync import iterate
from actorflow.place import Place

U = TypeVar("U")
V = TypeVar("V")

if TYPE_CHECKING:
    _Items: TypeAlias = Iterable[T] | AsyncIterable[T] | Indexed[T]
    _Text = TypeVar("_Text", bound=str | bytes)
    _Number = TypeVar("_Number", bound=npt.NDArray[Any] | np.generic | complex)
    _Other = TypeVar("_Other", bound=npt.NDArray[Any] | np.generic | complex)
    _Third = TypeVar("_Third", bound=npt.NDArray[Any] | np.generic | complex)
    _K = TypeVar("_K")

    class _Sourcing(TypedDict, total=False):
        shuffle: bool
        seed: int
        sampler: Sampler | None
        executor: Executor
        name: str

    class _Grouping(TypedDict, total=False):
        drop_last: bool
        concurrency: int
        executor: Executor
        name: str

    class _Batching(_Grouping, total=False):
        collate: Padding | None


class Pipeline(Loader[T]):
    """Stages that items go through, and the loader that takes them out at the end.

    A method adds a stage and gives a new pipeline; the old one stays as it is. Nothing runs before it is iterated.
    Items keep their order unless a stage is told otherwise. A stage's ``name=`` is for messages and statistics.

    Example:
        >>> def square(number):
        ...     return number**2
        >>> loader = af.pipeline.source(range(6), shuffle=True, seed=0).map(square).batch(2).prefetch(4)
        >>> async def main():
        ...     async with loader:
        ...         return [batch.shape async for batch in loader]
        >>> af.run(main())
        [(2,), (2,), (2,)]
        >>> sorted(number for batch in loader.iter_sync() for number in batch.tolist())  # the next epoch
        [0, 1, 4, 9, 16, 25]
    """

    # -- calls --------------------------------------------------------------------------------------------------

    @overload
    def map(
        self, fn: Callable[[T], Coroutine[Any, Any, U]], *, name: str | None = None, **options: Unpack[CallOptions]
    ) -> Pipeline[U]: ...

    @overload
    def map(self, fn: Callable[[T], U], *, name: str | None = None, **options: Unpack[CallOptions]) -> Pipeline[U]: ...

    def map(self, fn: Callable[[T], Any], *, name: str | None = None, **options: Unpack[CallOptions]) -> Pipeline[Any]:
        """Replace each item by a function's result for it.

        Args:
            fn: An ``async def`` function runs in tasks on the loop. Any other one runs in threads, unless its calls
                turn out to take less than 100 us: then on the loop.
            concurrency: Calls at once.
            ordered: Whether results go out in the order of the items, else as they come.
            executor: Where a function that is not async runs: "auto", "loop", "thread", or "process" for work that
                holds the GIL; there it must be one that pickle can send, and so must items and results.
            timeout: Longest time of one call in seconds; past it the call counts as failed.
            retries: How often a failed call is repeated.
            backoff: Seconds before the first repetition; each further one waits twice as long, a day at most.
            on_error: Treatment of an item whose call has failed: "raise" ends the iteration with its error, in its
                turn; "skip" leaves it out; a whole number leaves out at most that many; a share below 1 at most that
                part of the items so far, which count as 100 at least.
            limiter: Bounds these calls together with those of other stages.
            buffer: Results that may wait for their turn, besides those in calls; ``concurrency`` by default.
        Raises:
            PipelineError: if something is out of range or does not go together.

        Example:
            >>> async def fetch(number):  # many requests at a time, each repeated if it fails
            ...     return f"page {number}"
            >>> loader = af.pipeline.source(range(3)).map(fetch, concurrency=32, timeout=5, retries=2, on_error="skip")
            >>> list(loader.iter_sync())
            ['page 0', 'page 1', 'page 2']
        """
        return self._call(Map, Options(fn=fn, **options), name)

    def filter(self, fn: Callable[[T], Any], *, name: str | None = None, **options: Unpack[CallOptions]) -> Pipeline[T]:
        """Keep the items for which a function says so; everything else is as for `map`.

        Example:
            >>> list(af.pipeline.source(range(6)).filter(lambda number: number % 2).iter_sync())
            [1, 3, 5]
        """
        return self._call(Filter, Options(fn=fn, **options), name)

    def flat_map(
        self,
        fn: Callable[[T], Iterable[U] | AsyncIterable[U] | Awaitable[Iterable[U]]],
        *,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Pipeline[U]:
        """Put all items that a function gives for one in its place.

        The function gives an iterable, or is a generator function, async or not; a few items are taken from it at a
        time, as there is room. A call for the next few is one for ``timeout``. Everything else is as for `map`.

        Example:
            >>> list(af.pipeline.source(["one two", "three"]).flat_map(str.split).iter_sync())
            ['one', 'two', 'three']
        """
        return self._call(Expand, Options(fn=fn, expands=True, **options), name)

    # -- batches ------------------------------------------------------------------------------------------------

    @overload
    def batch(self: Pipeline[_Text], size: int, **options: Unpack[_Batching]) -> Pipeline[list[_Text]]: ...

    @overload
    def batch(self: Pipeline[_Number], size: int, **options: Unpack[_Batching]) -> Pipeline[npt.NDArray[Any]]: ...

    @overload
    def batch(
        self: Pipeline[tuple[_Number, _Other]], size: int, **options: Unpack[_Batching]
    ) -> Pipeline[tuple[npt.NDArray[Any], npt.NDArray[Any]]]: ...

    @overload
    def batch(
        self: Pipeline[tuple[_Number, _Other, _Third]], size: int, **options: Unpack[_Batching]
    ) -> Pipeline[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]: ...

    @overload
    def batch(
        self: Pipeline[dict[U, _Number]], size: int, **options: Unpack[_Batching]
    ) -> Pipeline[dict[U, npt.NDArray[Any]]]: ...

    @overload
    def batch(self, size: int, **options: Unpack[_Batching]) -> Pipeline[Any]: ...

    @overload
    def batch(self, size: int, *, collate: Callable[[Sequence[T]], U], **options: Unpack[_Grouping]) -> Pipeline[U]: ...

    def batch(
        self,
        size: int,
        *,
        drop_last: bool = False,
        collate: Callable[[Sequence[T]], Any] | None = None,
        concurrency: int = 1,
        executor: Executor = "auto",
        name: str = "batch",
    ) -> Pipeline[Any]:
        """Make one item of each ``size`` items.

        Args:
            size: Items per batch, at least 1.
            drop_last: Whether a last batch that is not full is left out.
            collate: Makes a batch of a list of items: `stack` by default; `pad` makes a function that fills up arrays
                of different shapes; ``list`` leaves the list.
            concurrency: Batches that are made at once.
            executor: Where ``collate`` runs, as for `map`.
        Raises:
            PipelineError: if ``size`` is less than 1. A batch whose items do not go together ends the iteration.

        Example:
            >>> list(af.pipeline.source(range(5)).batch(2).iter_sync())
            [array([0, 1]), array([2, 3]), array([4])]
            >>> list(af.pipeline.source("abcde").batch(2, drop_last=True, collate="".join).iter_sync())
            ['ab', 'cd']
        """
        size = whole_number("size", size, 1)
        options = Options(fn=collate or stack, concurrency=concurrency, executor=executor)
        grouped = self._add(Group, name, size=size, drop_last=flag("drop_last", drop_last))
        if collate is list:
            return grouped
        return grouped._call(Map, options, f"{name}/collate")

    @overload
    def unbatch(self: Pipeline[list[U]], *, name: str = "unbatch") -> Pipeline[U]: ...

    @overload
    def unbatch(self, *, name: str = "unbatch") -> Pipeline[Any]: ...

    def unbatch(self, *, name: str = "unbatch") -> Pipeline[Any]:
        """Make items of batches: of arrays, lists, and tuples or mappings of these. Undoes `batch`.

        Example:
            >>> list(af.pipeline.source([[1, 2], [3]]).unbatch().iter_sync())
            [1, 2, 3]
        """
        return self._call(Expand, Options(fn=unstack, expands=True), name)

    # -- order and number ---------------------------------------------------------------------------------------

    def shuffle(self, size: int, *, seed: int = 0, name: str = "shuffle") -> Pipeline[T]:
        """Mix the items through a buffer; another order each epoch.

        Args:
            size: Items that are held. The more, the better they are mixed; a sequence is mixed wholly, and at no cost,
                by ``source(..., shuffle=True)``.
            seed: The same seed gives the same order.
        Raises:
            PipelineError: if ``size`` is less than 1 or ``seed`` is negative.

        Example:
            >>> loader = af.pipeline.source(range(6)).shuffle(4, seed=0)
            >>> first, second = list(loader.iter_sync()), list(loader.iter_sync())  # two epochs
            >>> sorted(first) == sorted(second), first == second
            (True, False)
        """
        size = whole_number("size", size, 1)
        seed = whole_number("seed", seed, 0)
        return self._add(Shuffle, name, size=size, seed=seed)

    def take(self, count: int, *, name: str = "take") -> Pipeline[T]:
        """The first ``count`` items; then the stages in front stop.

        Raises:
            PipelineError: if ``count`` is negative.

        Example:
            >>> list(af.pipeline.source(range(10**9)).take(3).iter_sync())
            [0, 1, 2]
        """
        count = whole_number("count", count, 0)
        return self._add(Take, name, count=count)

    def skip(self, count: int, *, name: str = "skip") -> Pipeline[T]:
        """All items but the first ``count``.

        Raises:
            PipelineError: if ``count`` is negative.

        Example:
            >>> list(af.pipeline.source("abcd").skip(2).iter_sync())
            ['c', 'd']
        """
        count = whole_number("count", count, 0)
        return self._add(SkipFirst, name, count=count)

    def enumerate(self, start: int = 0, *, name: str = "enumerate") -> Pipeline[tuple[int, T]]:
        """Pairs (number, item), numbered from ``start``.

        Example:
            >>> list(af.pipeline.source("ab").enumerate(start=1).iter_sync())
            [(1, 'a'), (2, 'b')]
        """
        return self._add(Enumerate, name, first=whole_number("start", start))

    def shard(self, rank: int, world: int, *, even: bool = True, name: str = "shard") -> Pipeline[T]:
        """Every ``world``-th item, from number ``rank`` on; best right behind the source, to save work.

        Args:
            rank: Number of the share, from 0 to ``world - 1``.
            world: Number of shares.
            even: Whether all shares get as many items, so that no rank waits for one in vain; up to ``world - 1`` items
                at the end are left out then.
        Raises:
            PipelineError: if there is no such share.

        Example:
            >>> [list(af.pipeline.source(range(7)).shard(rank, 2).iter_sync()) for rank in range(2)]
            [[0, 2, 4], [1, 3, 5]]
        """
        world = whole_number("world", world, 1)
        rank = whole_number("rank", rank, 0)
        if rank >= world:
            raise PipelineError(f"rank must be less than world, got rank {rank} and world {world}")
        return self._add(Shard, name, rank=rank, world=world, even=flag("even", even))

    def repeat(self, times: int | None = None, *, name: str = "repeat") -> Pipeline[T]:
        """The items of several epochs, one behind the other, without an end if ``times`` is None.

        Shuffles in front of it have another order each time.

        Raises:
            PipelineError: if ``times`` is negative.

        Example:
            >>> list(af.pipeline.source("ab").repeat(3).iter_sync())
            ['a', 'b', 'a', 'b', 'a', 'b']
        """
        if times is not None:
            times = whole_number("times", times, 0)
        return self._add(Repeat, name, times=times)

    def cache(
        self, *, size_bytes: int | None = None, size: Callable[[T], int] | None = None, name: str = "cache"
    ) -> Pipeline[T]:
        """Keep all items the first time; later epochs get these very objects, in the order of the first.

        Args:
            size_bytes: If the items take more, the iteration fails.
            size: Bytes of an item; by default those of arrays, texts and byte strings in it.
        Raises:
            PipelineError: if ``size_bytes`` is less than 1.

        Example:
            >>> def load(name):
            ...     print("loading", name)
            ...     return name.upper()
            >>> loader = af.pipeline.source("ab").map(load).cache(size_bytes=1_000_000)
            >>> list(loader.iter_sync())
            loading a
            loading b
            ['A', 'B']
            >>> list(loader.iter_sync())  # the next epoch
            ['A', 'B']
        """
        if size_bytes is not None:
            size_bytes = whole_number("size_bytes", size_bytes, 1)
        return self._add(Cache, name, size_bytes=size_bytes, size=size)

    def newest(self, *, name: str = "newest") -> Pipeline[T]:
        """Give the newest item alone: one that comes takes the place of one that waits, which is left out.

        For live sources whose consumer may be slower: it gets the newest item when it asks. The stages in front never
        wait for those behind. Items that were left out are counted, as ``skipped``; a saved position is behind them.

        Example:
            >>> async def main():
            ...     loader = af.pipeline.source(range(100)).newest()
            ...     async with loader:
            ...         seen = [number async for number in loader]
            ...     return seen[-1], len(seen) + loader.stats()["newest"].skipped
            >>> af.run(main())
            (99, 100)
        """
        return self._add(Newest, name)

    def prefetch(
        self,
        count: int,
        *,
        size_bytes: int | None = None,
        size: Callable[[T], int] | None = None,
        name: str = "prefetch",
    ) -> Pipeline[T]:
        """Hold up to ``count`` items ready.

        Args:
            count: Items, at least 1.
            size_bytes: Most bytes that these take. An item that does not fit waits in front, and so do all stages
                there; one that is larger than all the room is held alone.
            size: Bytes of an item; by default those of arrays, texts and byte strings in it.
        Raises:
            PipelineError: if ``count`` or ``size_bytes`` is less than 1.

        Example:
            >>> images = (np.zeros([100, 100]) for _ in range(3))
            >>> loader = af.pipeline.source(images).prefetch(16, size_bytes=1_000_000)
            >>> len(list(loader.iter_sync()))
            3
        """
        count = whole_number("count", count, 1)
        if size_bytes is not None:
            size_bytes = whole_number("size_bytes", size_bytes, 1)
        return self._add(Prefetch, name, count=count, size_bytes=size_bytes, size=size)

    def to(
        self, place: Place | str, *, graph: Graph | None = None, in_flight: int = 2, name: str | None = None
    ) -> Pipeline[T]:
        """Copy the arrays of each item to a device, on its lane "inbound", through pinned memory where it has that.

        To type checkers the items stay of their type: what is done with them is to feed them.

        Args:
            place: Where to; nothing happens on the CPU.
            graph: The graph that will be fed: its device is used, and the copies count against its memory budget there.
            in_flight: Items that are copied at once.
        Raises:
            PlaceError, DeviceUnavailableError: if there is no such device.

        Example:
            >>> loader = af.pipeline.source([np.ones(2), np.zeros(2)]).to("sim:0")
            >>> [str(array.place) for array in loader.iter_sync()]
            ['sim:0', 'sim:0']
        """
        in_flight = whole_number("in_flight", in_flight, 1)
        parsed = Place.parse(place) if isinstance(place, str) else place
        return self._add(Transfer, name or f"to {parsed}", place=parsed, graph=graph, in_flight=in_flight)

    # -- several streams ----------------------------------------------------------------------------------------

    @overload
    def branch(
        self, key: Callable[[T], _K], branches: Mapping[_K, Callable[[Pipeline[T]], Pipeline[U]]], *, name: str = ...
    ) -> Pipeline[U]: ...

    @overload
    def branch(
        self, key: Callable[[T], object], branches: Mapping[Any, Callable[[Pipeline[T]], object]], *, name: str = ...
    ) -> Pipeline[object]: ...

    def branch(
        self, key: Callable[[T], Any], branches: Mapping[Any, Callable[[Pipeline[T]], Any]], *, name: str = "branch"
    ) -> Pipeline[Any]:
        """Send items different ways, and bring the results together.

        The results of an item keep its place among the others, whichever way it went; results of a branch when all
        items are through, a last batch say, come at the end.

        Args:
            key: Gives the key of an item; runs on the loop.
            branches: By key, functions that add stages: map, filter, flat_map, batch, unbatch, shuffle, skip,
                enumerate and prefetch, all in order.
        Raises:
            PipelineError: if a branch has other stages. An item whose key has no branch ends the iteration.

        Example:
            >>> loader = af.pipeline.source([1, 2, 3, 4]).branch(
            ...     lambda number: number % 2,
            ...     {1: lambda odd: odd.map(str), 0: lambda even: even.filter(lambda number: number > 2)},
            ... )
            >>> list(loader.iter_sync())
            ['1', '3', 4]
        """
        if not branches:
            raise PipelineError("expected at least one branch, got none")
        site = calling_site()
        names = {stage.name for stage in self.stages}
        split = Branch(name=unique_name(name, names), site=site, upstream=(self.stage,), key=key, keys=tuple(branches))
        ports, ends = [], []
        names.add(split.name)
        for label, make in branches.items():
            port = BranchStart(name=f"{split.name}[{shown(label)}]", site=site, upstream=(split,))
            made = make(Pipeline(port))
            if not isinstance(made, Pipeline):
                raise PipelineError(f"branch {shown(label)}: expected a pipeline, got {type(made).__name__}")
            inside = walk(made.stage)
            if port not in inside:
                raise PipelineError(f"branch {shown(label)} must add stages to the pipeline that it is given")
            for stage in inside[inside.index(port) :]:
                if not stage.keeps_marks or (isinstance(stage, Call) and not stage.options.ordered):
                    found = f"stage {stage.name!r} ({stage.shape})"
                    raise PipelineError(f"branch {shown(label)}: {found} cannot stand in a branch")
            ports.append(port)
            ends.append(made.stage)
        joined = BranchJoin(name=f"{split.name}/join", site=site, upstream=tuple(ends), split=split, ports=tuple(ports))
        return Pipeline(joined)

    @overload
    def zip(self, other: Pipeline[U], /, *, strict: bool = False, name: str = "zip") -> Pipeline[tuple[T, U]]: ...

    @overload
    def zip(self, *others: Pipeline[Any], strict: bool = False, name: str = "zip") -> Pipeline[tuple[Any, ...]]: ...

    def zip(self, *others: Pipeline[Any], strict: bool = False, name: str = "zip") -> Pipeline[Any]:
        """Tuples of an item of each pipeline; see `zip_`.

        Example:
            >>> list(af.pipeline.source("ab").zip(af.pipeline.source([1, 2, 3])).iter_sync())
            [('a', 1), ('b', 2)]
        """
        return zip_(self, *others, strict=strict, name=name)

    # -- taking items out ---------------------------------------------------------------------------------------

    def feed(self, *blobs: Blob | str, **parts: Blob | str) -> Feeding:
        """Feeds for `Graph.stream`, `Trainer.steps` and the like.

        Args:
            blobs: Blobs that the parts of each item, a tuple, are fed to; a single blob is fed the item itself.
            parts: Blobs that the parts of each item, a mapping, are fed to, by key.
        Raises:
            PipelineError: if neither or both are given.

        Example:
            >>> graph = af.Graph("g")
            >>> x, factor = graph.blob("x", ["n"]), graph.blob("factor", [])
            >>> y = x * factor
            >>> loader = af.pipeline.source([([1, 2], 10), ([3], 100)])
            >>> async def main():
            ...     async with graph, loader:
            ...         return [result[y].tolist() async for result in graph.stream(loader.feed(x, factor))]
            >>> af.run(main())
            [[10.0, 20.0], [300.0]]
        """
        return Feeding(self, blobs, parts)

    def iter_sync(self, *, ahead: int = 2) -> Iterator[T]:
        """Take the rest of an epoch in a program without a loop: stages run on one in a thread of their own.

        Args:
            ahead: Items that are handed over before they are asked for, at least 1.
        Raises:
            PipelineError: within a running loop, which this would block.

        Example:
            >>> loader = af.pipeline.source(range(4))
            >>> for number in loader.iter_sync():
            ...     if number == 1:
            ...         break
            >>> list(loader.iter_sync())  # the rest of the epoch
            [2, 3]
        """
        ahead = whole_number("ahead", ahead, 1)
        return iterate(self, ahead)

    def __repr__(self) -> str:
        return f"<Pipeline {' -> '.join(stage.name for stage in self.stages)}>"

    # -- adding stages ------------------------------------------------------------------------------------------

    def _add(self, kind: type[Stage], name: str, **fields: Any) -> Pipeline[Any]:
        name = text("name", name)
        names = {stage.name for stage in self.stages}
        stage = kind(name=unique_name(name, names), site=calling_site(), upstream=(self.stage,), **fields)
        return Pipeline(stage)

    def _call(self, kind: type[Call], options: Options, name: str | None) -> Pipeline[Any]:
        return self._add(kind, name or _name_of(options.fn), options=options)


def unique_name(name: str, names: set[str]) -> str:
    """A name for a stage that none of ``names`` is."""
    return next(each for each in chain([name], (f"{name}#{number}" for number in count(2))) if each not in names)


def _name_of(fn: Any) -> str:
    inner = getattr(fn, "func", fn)  # of a functools.partial
    name = getattr(inner, "__name__", None)
    return name if isinstance(name, str) else type(inner).__name__


@overload
def source(data: npt.NDArray[Any], **options: Unpack[_Sourcing]) -> Pipeline[npt.NDArray[Any]]: ...


@overload
def source(data: _Items[T] | Callable[[int], _Items[T]], **options: Unpack[_Sourcing]) -> Pipeline[T]: ...


def source(
    data: Any,
    *,
    shuffle: bool = False,
    seed: int = 0,
    sampler: Sampler | None = None,
    executor: Executor = "auto",
    name: str = "source",
) -> Pipeline[Any]:
    """A pipeline that gives the items of something.

    Args:
        data: A sequence (anything with ``len`` and ``[]``, an array or a map-style data set say), an iterable, an async
            iterable, or a function that gives one of these for an epoch, counted from 0. One that has `state_dict` and
            `load_state_dict` goes on in the middle by these; a sequence by numbers; others are taken up again from
            their start, and items that went out before are dropped.
        shuffle: Whether the items of a sequence come in another order each epoch.
        seed: Seed of these orders, and of the global generators of `random` and NumPy in processes that call functions
            for the items.
        sampler: The order of a sequence's items, instead.
        executor: Where it is iterated: "loop", "thread", or "auto" for the loop if it takes less than 100 us per item.
    Raises:
        PipelineError: if it is nothing of that, or something other than a sequence is to be shuffled.

    Example:
        >>> list(af.pipeline.source([3, 1, 2]).iter_sync())
        [3, 1, 2]
        >>> loader = af.pipeline.source(lambda epoch: (10 * epoch + number for number in range(3)))
        >>> list(loader.iter_sync()), list(loader.iter_sync())
        ([0, 1, 2], [10, 11, 12])
    """
    check_data(data)
    name, shuffle, seed = text("name", name), flag("shuffle", shuffle), whole_number("seed", seed, 0)
    if text("executor", executor) not in ("auto", "loop", "thread"):
        raise PipelineError(f"the executor of a source must be auto, loop or thread, got {executor!r}")
    if gives_coroutine(data):
        raise PipelineError(
            "a source's function must give an iterable, not a coroutine: it may be an async generator function"
        )
    if is_indexable(data):
        if shuffle and sampler is None and len(data):
            sampler = Sampler(len(data), seed)
        if sampler is not None and sampler.count != len(data):
            raise PipelineError(f"the sampler is for {sampler.count} items, but there are {len(data)}")
    elif shuffle or sampler is not None:
        raise PipelineError(
            f"only a sequence can be taken in another order, got {type(data).__name__}: .shuffle(size) mixes any stream"
        )
    return Pipeline(Source(name=name, site=calling_site(), data=data, sampler=sampler, seed=seed, place=executor))


@overload
def zip_(
    first: Pipeline[T], second: Pipeline[U], /, *, strict: bool = False, name: str = "zip"
) -> Pipeline[tuple[T, U]]: ...


@overload
def zip_(
    first: Pipeline[T], second: Pipeline[U], third: Pipeline[V], /, *, strict: bool = False, name: str = "zip"
) -> Pipeline[tuple[T, U, V]]: ...


@overload
def zip_(*pipelines: Pipeline[Any], strict: bool = False, name: str = "zip") -> Pipeline[tuple[Any, ...]]: ...


def zip_(*pipelines: Pipeline[Any], strict: bool = False, name: str = "zip") -> Pipeline[Any]:
    """Tuples of an item of each pipeline, until the shortest ends.

    Args:
        pipelines: At least one.
        strict: Whether it is an error if they are not of one length.
        name: Of the stage, for messages and statistics.
    Raises:
        PipelineError: if there are no pipelines, or they share a stage; with ``strict``, later, if one ends before
            another.

    Example:
        >>> images, labels = af.pipeline.source(["a.png", "b.png"]), af.pipeline.source([0, 1])
        >>> list(af.pipeline.zip_(images, labels, strict=True).iter_sync())
        [('a.png', 0), ('b.png', 1)]
    """
    return _join(Zip, pipelines, name, strict=flag("strict", strict))


def concat(*pipelines: Pipeline[T], name: str = "concat") -> Pipeline[T]:
    """All items of the first pipeline, then all of the second, ...

    Args:
        pipelines: At least one, none of which has a stage of another.
        name: Of the stage, for messages and statistics.
    Raises:
        PipelineError: if it is given something else.

    Example:
        >>> list(af.pipeline.concat(af.pipeline.source("ab"), af.pipeline.source("c")).iter_sync())
        ['a', 'b', 'c']
    """
    return _join(Concat, pipelines, name)


def interleave(*pipelines: Pipeline[T], block: int = 1, name: str = "interleave") -> Pipeline[T]:
    """``block`` items of each pipeline in turn; one that has ended is left out.

    Args:
        pipelines: At least one, none of which has a stage of another.
        block: At least 1.
        name: Of the stage, for messages and statistics.
    Raises:
        PipelineError: if it is given something else.

    Example:
        >>> list(af.pipeline.interleave(af.pipeline.source("abcd"), af.pipeline.source("12"), block=2).iter_sync())
        ['a', 'b', '1', '2', 'c', 'd']
    """
    block = whole_number("block", block, 1)
    return _join(Interleave, pipelines, name, block=block)


def merge(*pipelines: Pipeline[T], time: Callable[[T], Any] | None = None, name: str = "merge") -> Pipeline[T]:
    """The items of several pipelines as they come, or by their times; those of each one keep their order.

    Args:
        pipelines: At least one, none of which has a stage of another.
        time: Gives the time of an item, or whatever else items are compared by; each pipeline must give its own in that
            order. An item goes out when all others have one that is not earlier, or have ended, so all of them are
            waited for; of equal times the first pipeline's comes first. Called on the loop.
        name: Of the stage, for messages and statistics.
    Raises:
        PipelineError: if it is given something else; later, if a pipeline goes back in time.

    Example:
        >>> letters, numbers = af.pipeline.source("abc"), af.pipeline.source("12")
        >>> merged = list(af.pipeline.merge(letters, numbers).iter_sync())  # as they come
        >>> sorted(merged), [item for item in merged if item.isalpha()]
        (['1', '2', 'a', 'b', 'c'], ['a', 'b', 'c'])
        >>> sound, sight = af.pipeline.source([(0.0, "la"), (0.4, "li")]), af.pipeline.source([(0.1, "red")])
        >>> [what for _, what in af.pipeline.merge(sound, sight, time=lambda item: item[0]).iter_sync()]
        ['la', 'red', 'li']
    """
    if time is None:
        return _join(Merge, pipelines, name)
    if not callable(time):
        raise PipelineError(f"{name}: time must be a function of an item, got {shown(time)}")
    return _join(MergeByTime, pipelines, name, time=time)


def _join(kind: type[Stage], pipelines: Sequence[Pipeline[Any]], name: str, **fields: Any) -> Pipeline[Any]:
    name = text("name", name)
    if not pipelines:
        raise PipelineError(f"{name}: expected at least one pipeline, got none")
    for pipeline in pipelines:
        if not isinstance(pipeline, Pipeline):
            raise PipelineError(f"{name}: expected pipelines, got {type(pipeline).__name__}")
    parts = [stage for pipeline in pipelines for stage in pipeline.stages]
    if len(parts) != len(set(parts)):
        raise PipelineError(f"{name}: a pipeline is joined with itself: make it twice")
    stage = kind(
        name=unique_name(name, {part.name for part in parts}),
        site=calling_site(),
        upstream=tuple(pipeline.stage for pipeline in pipelines),
        **fields,
    )
    return Pipeline(stage)
