"""All ranks in one process, on one loop: for programs without MPI, and for tests of those with it."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import PeerLostError, TransportError, text_of, whole
from actorflow.transport import base
from actorflow.transport.peers import Liveness, NoteInbox, given_up, has_left, liveness_of, lost_elsewhere


class Mail:
    """Letters: calls for a rank, which the loop makes at its next turn, or some turns later.

    Args:
        rng: Chooses the messages that overtake others, and delays; None for neither. Letters of one stream are never
            overtaken.
    Attributes:
        delay_s: Says for how many seconds a letter of a stream is held, with those behind it; None for none.
    """

    delay_s: Callable[[Hashable], float] | None = None

    def __init__(self, rng: random.Random | None) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._rng = rng
        self._letters: dict[Hashable, deque[_Letter]] = {}
        self._gone: set[int] = set()
        self._held: dict[int, list[_Letter]] = {}
        self._late: set[Hashable] = set()  # streams that are held
        self._scheduled = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop. Items put before there was one are delivered, items left by another one are not."""
        if self.loop is not None:
            self._letters.clear()
            self._late.clear()
        self.loop = loop
        self._scheduled = False
        self._schedule()

    @property
    def is_busy(self) -> bool:
        """True if letters wait for the loop."""
        return bool(self._letters)

    def put(self, stream: Hashable, rank: int | None, call: Callable[..., object], *args: Any) -> None:
        """Have ``call`` called, unless the rank has been dropped by then; None for no rank."""
        self._letters.setdefault(stream if self._rng else None, deque()).append((rank, call, args))
        delay_s = 0.0 if self.delay_s is None or stream in self._late else self.delay_s(stream)
        if delay_s and self.loop is not None:
            self._late.add(stream)
            self.loop.call_later(delay_s, self._comes, stream)
        self._schedule()

    def _comes(self, stream: Hashable) -> None:
        self._late.discard(stream)
        self._schedule()

    def drop(self, rank: int) -> None:
        """Deliver nothing to a rank any more."""
        self._gone.add(rank)

    def hold(self, rank: int) -> None:
        """Keep messages for a rank, until `release`."""
        self._held[rank] = []

    def keep(self, rank: int, call: Callable[..., object], *args: Any) -> None:
        """Have a call made when a rank is released."""
        self._held[rank].append((rank, call, args))

    def release(self, rank: int) -> None:
        """Deliver to a rank again, at once the messages kept."""
        for letter in self._held.pop(rank):
            self._deliver(letter)

    def _schedule(self) -> None:
        come = self._letters.keys() - self._late if self._late else self._letters
        if come and not self._scheduled and self.loop is not None and not self.loop.is_closed():
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Hand this turn's letters to the loop, each by itself: one that raises does not touch the others."""
        assert self.loop is not None
        self._scheduled = False
        if self._rng is None:
            for letter in self._letters.pop(None):
                self.loop.call_soon(self._deliver, letter)
            return
        streams = [each for each in self._letters.items() if each[0] not in self._late]
        self._rng.shuffle(streams)
        for stream, letters in streams:
            for _ in range(self._rng.randint(-1, len(letters))):
                self.loop.call_soon(self._deliver, letters.popleft())
            if not letters:
                del self._letters[stream]
        self._schedule()

    def _deliver(self, letter: _Letter) -> None:
        rank, call, args = letter
        if rank is not None and rank in self._held:
            self._held[rank].append(letter)
        elif rank not in self._gone:
            call(*args)


_Letter = tuple[int | None, Callable[..., object], tuple[Any, ...]]


_MAX_TAG = (1 << 31) - 1


class LocalWorld:
    """Ranks that live in this process and share a loop.

    Args:
        size: How many.
        seed: Deliver as a network might: messages of different ranks and tags overtake each other and take some turns
            of the loop, reproducibly. Without it, everything arrives at the next turn, in order.
        liveness_s: For how many seconds of the loop a rank that was frozen may not answer before it is lost; see
            `actorflow.world`.

    Attributes:
        transports: One per rank.

    Example:
        >>> import asyncio
        >>> from actorflow.transport import LocalWorld
        >>> def build(transport):  # as each rank's process would do
        ...     graph = af.Graph("sums", world=transport)
        ...     parts = [graph.blob(f"part{rank}", [2], place=f"{rank}/cpu") for rank in range(2)]
        ...     return graph, parts[transport.rank], af.nn.parallel.Aggregate("0/cpu")(*parts)
        >>> async def rank(transport):
        ...     graph, part, total = build(transport)
        ...     async with graph:
        ...         return await graph.run({part: [transport.rank, 10]}, fetch=total)
        >>> async def main():
        ...     results = await asyncio.gather(*map(rank, LocalWorld(2).transports))
        ...     return [dict(result) for result in results]
        >>> af.run(main())
        [{'aggregate/sum/out': array([ 1., 20.], dtype=float32)}, {}]
    """

    def __init__(self, size: int, seed: int | None = None, *, liveness_s: float | None = None) -> None:
        size, seed = whole("size", size, 1), None if seed is None else whole("seed", seed)
        self.mail = Mail(None if seed is None else random.Random(seed))  # noqa: S311  no secret
        self.dead: set[int] = set()
        self.frozen: set[int] = set()
        self.streams: dict[tuple[int, int, int], _TaggedMessages] = {}
        self.reductions: dict[tuple[tuple[int, ...], int], _Reduction] = {}
        limit_s = liveness_of(liveness_s)
        self.transports = tuple(LocalTransport(self, rank, size, limit_s) for rank in range(size))

    def kill(self, rank: int) -> None:
        """Have a rank die: it does and hears nothing any more, and the others find out. Idempotent.

        Example:
            >>> import asyncio
            >>> from actorflow.transport import LocalWorld
            >>> async def main():
            ...     world = LocalWorld(2)
            ...     graph = af.Graph("g", world=world.transports[0])
            ...     x = graph.blob("x", [2], place="1/cpu")
            ...     y = af.nn.parallel.CopyTo("0/cpu")(x)
            ...     async with graph:
            ...         run = asyncio.create_task(graph.run(fetch=y))
            ...         await asyncio.sleep(0)
            ...         world.kill(1)
            ...         try:
            ...             await run
            ...         except af.PeerLostError as error:
            ...             print("lost rank", error.rank)
            >>> af.run(main())
            lost rank 1
        """
        if rank not in self.dead:
            self.dead.add(rank)
            self._take_out(rank)
            self.tell_others(PeerLostError(rank))

    def freeze(self, rank: int) -> None:
        """Have a rank stand still, as if its process had been stopped: others that wait for it lose it after a while.

        Its calls meanwhile, and messages for it, wait for `thaw`. Idempotent.
        """
        if rank not in self.frozen | self.dead:
            self.frozen.add(rank)
            self.mail.hold(rank)
            for transport in self.transports:
                transport.watch()

    def thaw(self, rank: int) -> None:
        """Have a rank that was frozen go on. Idempotent."""
        if rank in self.frozen:
            self.frozen.discard(rank)
            self.mail.release(rank)
            for stream in self.streams.values():
                for _ in range(min(len(stream.sends), len(stream.receives))):
                    stream.added()
            for reduction in self.reductions.values():
                reduction.added()

    def close(self) -> None:
        """Close all transports, frozen ones too."""
        for transport in self.transports:
            self.thaw(transport.rank)
            transport.close()

    def leave(self, rank: int) -> None:
        """A rank is done: nothing is called back there any more, and the others find out."""
        lost = [error.rank for error in self.transports[rank].inbox.ends.values() if isinstance(error, PeerLostError)]
        for other in range(len(self.transports)):  # it is for those that it leaves
            for gone in lost:
                if other not in (rank, gone):
                    self.tell(other, lost_elsewhere(gone, rank), rank)
        self._take_out(rank)
        self.tell_others(has_left(rank))

    def tell_others(self, error: base.PeerError) -> None:
        """Have all others know that a rank has ended; they hear of it behind its posts."""
        for transport in self.transports:
            if transport.rank != error.rank:
                self.tell(transport.rank, error)

    def tell(self, rank: int, error: base.PeerError, by: int | None = None) -> None:
        """Have one rank know that another has ended, from that or from a third."""
        stream = "notes", error.rank if by is None else by, rank
        self.mail.put(stream, rank, self.transports[rank].give_up, error)

    def _take_out(self, rank: int) -> None:
        self.transports[rank].closed = True
        self.mail.drop(rank)
        for (source, target, _), stream in self.streams.items():
            if source == rank:
                stream.sends.clear()
            elif target == rank:
                stream.receives.clear()
        for reduction in list(self.reductions.values()):
            reduction.drop(rank)
        if rank in self.frozen:
            self.frozen.discard(rank)
            self.mail.release(rank)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Transport.bind`; transfers under way on a loop that has ended are given up."""
        if self.mail.loop is loop:
            return
        waiting = any(stream.sends or stream.receives for stream in self.streams.values())
        if waiting or self.reductions or self.mail.is_busy:
            if self.mail.loop is not None and not self.mail.loop.is_closed():
                raise TransportError("ranks of this process have messages under way on another event loop")
            self.streams.clear()
            self.reductions.clear()
        self.mail.bind(loop)
        for transport in self.transports:  # the other loop may not have delivered that
            if transport.rank in self.dead:
                self.tell_others(PeerLostError(transport.rank))
            elif transport.closed:
                self.tell_others(has_left(transport.rank))
            elif self.frozen:
                transport.watch()

    def stream(self, source: int, target: int, tag: int) -> _TaggedMessages:
        """The messages of one tag from one rank to another."""
        key = source, target, tag
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = _TaggedMessages(self, *key)
        return stream


class _TaggedMessages:
    """Messages of one tag between two ranks that wait for the other side."""

    __slots__ = ("key", "receives", "sends", "world")

    def __init__(self, world: LocalWorld, source: int, target: int, tag: int) -> None:
        self.world = world
        self.key = (source, target, tag)
        self.sends: deque[tuple[memoryview, base.Sent]] = deque()
        self.receives: deque[tuple[memoryview, base.Received]] = deque()

    def added(self) -> None:
        if self.sends and self.receives:
            self.world.mail.put(self.key, None, self._deliver)

    def end(self, rank: int, error: TransportError) -> None:
        """One side waits no more for the other."""
        source, target, _ = self.key
        while rank == source and self.sends:
            _, sent = self.sends.popleft()
            self.world.mail.put(("sent", *self.key), source, sent, error)
        while rank == target and self.receives:
            _, received = self.receives.popleft()
            self.world.mail.put(("received", *self.key), target, received, 0, error)

    def _deliver(self) -> None:
        if not self.sends or not self.receives:  # a rank has left, or the first transfer took more than one
            return
        source, target, tag = self.key
        if not self.world.frozen.isdisjoint((source, target)):
            return
        data, sent = self.sends.popleft()
        buffer, received = self.receives.popleft()
        error = None
        if len(data) == len(buffer):
            buffer[:] = data
        elif len(data):
            error = TransportError(
                f"a message of {len(data):,} bytes from rank {source} to rank {target}, tag {tag}, where "
                f"{len(buffer):,} are expected"
            )
        self.world.mail.put(("received", *self.key), target, received, len(data), error)
        self.world.mail.put(("sent", *self.key), source, sent, None)


class LocalTransport(base.Transport):
    """One rank of a `LocalWorld`.

    Attributes:
        world: The ranks.
        closed: Whether it does nothing any more.

    Example:
        >>> from actorflow.transport import LocalWorld
        >>> transports = LocalWorld(3).transports
        >>> [(transport.rank, transport.size) for transport in transports]
        [(0, 3), (1, 3), (2, 3)]
        >>> af.Graph("g", world=transports[1]).world.rank
        1
    """

    name = "local"

    def __init__(self, world: LocalWorld, rank: int, size: int, liveness_s: float) -> None:
        super().__init__(rank, size, _MAX_TAG, liveness_s)
        self.world = world
        self.closed = False
        self.inbox = NoteInbox(partial(world.mail.put, ("listener", rank), rank))
        self._groups: dict[tuple[int, ...], LocalGroup] = {}
        self._liveness = Liveness(liveness_s, self._ask)
        self._watched: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self.check_process()
        self.world.bind(loop)

    def close(self) -> None:
        if self.rank in self.world.frozen:
            self.world.mail.keep(self.rank, self.close)
            return
        if not self.closed:
            if self.inbox.listener is not None and self.world.mail.loop is not None:
                self.inbox.listener.leaving()
            self.world.leave(self.rank)
        self.inbox.clear()

    def send(self, rank: int, tag: int, data: memoryview, done: base.Sent) -> None:
        self.check_address(rank, tag)
        if self.acts(self.send, rank, tag, data, done):
            if rank in self.inbox.ends:
                self.world.mail.put(("sent", self.rank, rank, tag), self.rank, done, self.inbox.error(rank))
                return
            stream = self.world.stream(self.rank, rank, tag)
            stream.sends.append((base.flat(data), done))
            stream.added()

    def receive(self, rank: int, tag: int, buffer: memoryview, done: base.Received) -> None:
        self.check_address(rank, tag)
        if self.acts(self.receive, rank, tag, buffer, done):
            if rank in self.inbox.ends:
                self.world.mail.put(("received", rank, self.rank, tag), self.rank, done, 0, self.inbox.error(rank))
                return
            stream = self.world.stream(rank, self.rank, tag)
            stream.receives.append((base.flat(buffer), done))
            stream.added()

    def post(self, rank: int, note: bytes) -> None:
        if rank != self.rank:
            self.check_rank(rank)
        if self.acts(self.post, rank, bytes(note)) and rank not in self.inbox.ends:
            other = self.world.transports[rank]
            self.world.mail.put(("notes", self.rank, rank), rank, other.inbox.hear, self.rank, bytes(note))

    def listen(self, listener: base.Listener | None) -> None:
        if not self.closed:
            self.inbox.listen(listener)

    def group(self, ranks: Sequence[int]) -> LocalGroup:
        ascending = self.check_group(ranks)
        group = self._groups.get(ascending)
        if group is None:
            group = self._groups[ascending] = LocalGroup(self, ascending)
        return group

    def acts(self, call: Callable[..., object], *args: Any) -> bool:
        """True if this rank can make a call now: a dead one does nothing, a frozen one later.

        Raises:
            TransportError: if the transport was closed, or is another process's.
        """
        self.check_process()
        if self.closed and self.rank not in self.world.dead:
            raise TransportError(f"the transport of rank {self.rank} is closed")
        if self.world.mail.loop is None:
            raise TransportError(f"the transport of rank {self.rank} has no event loop: bind it first")
        if self.rank in self.world.frozen:
            self.world.mail.keep(self.rank, call, *args)
            return False
        return not self.closed

    # -- the ends of others -------------------------------------------------------------------------------------

    def give_up(self, error: base.PeerError) -> None:
        """A rank has ended: transfers under way with it have failed, unless it has done its part."""
        rank = error.rank
        if rank in self.inbox.ends:
            return
        self.inbox.hear_of_end(error)
        for stream in list(self.world.streams.values()):
            if rank in stream.key[:2]:
                stream.end(self.rank, self.inbox.error(rank))
        for reduction in list(self.world.reductions.values()):
            if rank in reduction.ranks:
                reduction.end(self.inbox.error(rank), (self.rank,))

    def watch(self) -> None:
        """Look from now on whether the ranks that this one waits for answer, while one is frozen."""
        loop = self.world.mail.loop
        if loop is not None and self._watched is not loop:
            self._watched = loop
            self._look(loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        liveness = self._liveness
        liveness.limit_s = self.liveness_s
        if self.closed or not self.world.frozen or self._watched is not loop or math.isinf(self.liveness_s):
            self._watched = None
            return
        if self.rank not in self.world.frozen:
            for rank in liveness.look(loop.time(), self._awaited()):
                self.world.tell(rank, given_up(self.rank))
                self.give_up(liveness.error(rank))
        loop.call_later(liveness.interval_s, self._look, loop)

    def _awaited(self) -> set[int]:
        listener, own = self.inbox.listener, self.rank
        ranks = set() if listener is None else set(listener.awaited())
        for (source, target, _), stream in self.world.streams.items():
            if own == source and stream.sends:
                ranks.add(target)
            elif own == target and stream.receives:
                ranks.add(source)
        for reduction in self.world.reductions.values():
            if own in reduction.parts:
                ranks.update(reduction.ranks)
        return ranks - self.inbox.ends.keys() - {own}

    def _ask(self, rank: int) -> None:
        other = self.world.transports[rank]
        self.world.mail.put(("asked", self.rank, rank), rank, other._answer, self.rank)

    def _answer(self, rank: int) -> None:
        other = self.world.transports[rank]
        self.world.mail.put(("answered", self.rank, rank), rank, other._liveness.answered, self.rank)


@dataclass(slots=True)
class _Part:
    """Part of one rank in a reduction."""

    operation: str
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    done: base.Sent


class _Reduction:
    """One collective call: waits until all ranks of the group have made it."""

    def __init__(self, world: LocalWorld, ranks: tuple[int, ...], number: int) -> None:
        self.world = world
        self.ranks = ranks
        self.number = number
        self.parts: dict[int, _Part] = {}

    def add(self, rank: int, part: _Part) -> None:
        self.parts[rank] = part
        self.added()

    def added(self) -> None:
        if len(self.parts) == len(self.ranks):
            self.world.mail.put(("reduction", self.ranks), None, self._reduce)

    def end(self, error: BaseException | None, ranks: Iterable[int]) -> None:
        """Tell some of the ranks that have made the call how it ended."""
        for rank in ranks:
            part = self.drop(rank)
            if part is not None:
                self.world.mail.put(("reduced", self.ranks, rank), rank, part.done, error)

    def drop(self, rank: int) -> _Part | None:
        part = self.parts.pop(rank, None)
        if not self.parts:
            self.world.reductions.pop((self.ranks, self.number), None)
        return part

    def _reduce(self) -> None:
        if len(self.parts) < len(self.ranks) or not self.world.frozen.isdisjoint(self.ranks):  # one is not there
            return
        parts = [self.parts[rank] for rank in self.ranks]
        kinds = {rank: f"{p.operation} of {p.source.dtype}{list(p.source.shape)}" for rank, p in self.parts.items()}
        if len(set(kinds.values())) > 1:
            self.end(TransportError(f"the ranks do not reduce the same: {kinds}"), self.ranks)
            return
        try:
            total = parts[0].source.copy()
            for part in parts[1:]:
                base.combine(part.operation, total, part.source, total)
            for part in parts:
                np.copyto(part.target, total)
        except Exception as error:  # noqa: BLE001  such as no memory: nobody may wait for ever
            self.end(TransportError(f"{kinds[self.ranks[0]]} failed: {text_of(error)}"), self.ranks)
            return
        self.end(None, self.ranks)


class LocalGroup(base.RankGroup):
    """Some ranks of a `LocalWorld`."""

    def __init__(self, transport: LocalTransport, ranks: tuple[int, ...]) -> None:
        super().__init__(ranks)
        self._transport = transport
        self._calls = 0

    def all_reduce(self, operation: str, source: Any, target: Any, done: base.Sent) -> None:
        base.check_reduction(operation, source, target)
        transport, world = self._transport, self._transport.world
        if not transport.acts(self.all_reduce, operation, source, target, done):
            return
        key = self.ranks, self._calls
        self._calls += 1
        gone = [rank for rank in self.ranks if rank in transport.inbox.ends]
        if gone:
            error = transport.inbox.error(gone[0])
            world.mail.put(("reduced", self.ranks, transport.rank), transport.rank, done, error)
            return
        reduction = world.reductions.get(key)
        if reduction is None:
            reduction = world.reductions[key] = _Reduction(world, *key)
        reduction.add(transport.rank, _Part(operation, source, target, done))
