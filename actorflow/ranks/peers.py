"""The counterparts of one graph on the other ranks: same programs, same frames, and news of what has stopped.

The ranks start the same frames in the same order (each runs the same program), and number those that exchange messages
alike. Besides the messages of the edges there are notes: that a frame has stopped and why, that a stream has ended.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from actorflow.actors.frame import Frame
from actorflow.errors import GraphError, PeerFailedError, PeerLostError, RunCancelledError, TransportError, text_of
from actorflow.plan.ranks import difference
from actorflow.ranks.collectives import Collectives
from actorflow.ranks.edges import WINDOW, Exchange
from actorflow.ranks.hub import Done, Recipient, hub_of
from actorflow.transport.base import Transport

_log = logging.getLogger("actorflow")

#: Seconds after which a rank says that it waits for others to begin.
_PATIENCE_S = 10.0


class Peers(Recipient):
    """Counterparts of one graph on the other ranks, as this rank knows them.

    Attributes:
        handlers: Called with the rank and what it said, by kind of note.
    """

    def __init__(self, name: str, transport: Transport) -> None:
        self.transport = transport  # carries messages and notes
        self._name = name
        self._hub = hub_of(transport)
        self._key = self._hub.open(name, self)
        self._done = self._hub.done[self._key] = Done()
        self.collectives = Collectives(transport, self.post)  # the collectives of the graph
        self._frames: dict[int, tuple[Frame, frozenset[int]]] = {}  # and the ranks that have to do with it
        self._refused: dict[int, PeerFailedError] = {}  # frames that stopped elsewhere before they started here
        self._proposals: dict[int, dict[int, tuple[str, int]]] = {}  # on rank 0: of each rank, by program
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._proposed: dict[int, Exchange] = {}
        self._ends: dict[int, dict[int, int]] = {}  # by stream: where each rank ended it
        self._settled: asyncio.Future[None] | None = None
        self._speaks = False  # whether frames that exchange messages were to start
        self._last: Exchange | None = None  # of the newest of them that all ranks have agreed on
        self.handlers: dict[str, Callable[..., None]] = {
            "plan": self._heard_plan,
            "agreed": self._heard_agreed,
            "differs": self._heard_differs,
            "disagreed": self._heard_disagreed,
            "stopped": self._heard_stopped,
            "ended": self._heard_ended,
            "ready": self.collectives.heard_ready,
            "start": self.collectives.heard_start,
            "void": self.collectives.heard_void,
        }

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.transport.size) if rank != self.transport.rank]

    def post(self, rank: int, kind: str, *content: Any) -> None:
        """Say something to the counterpart on a rank."""
        self._hub.post(self._key, rank, kind, *content)

    def _post_to_all(self, ranks: Iterable[int], kind: str, *content: Any) -> None:
        for rank in ranks:
            self.post(rank, kind, *content)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that messages come on."""
        self._hub.bind(loop, self._key)

    def heard(self, rank: int, kind: str, *content: Any) -> None:
        self.handlers[kind](rank, *content)

    # -- before frames -------------------------------------------------------------------------------------------------

    def prepare(self, exchange: Exchange) -> Awaitable[None] | None:
        """Return what must be awaited before a frame of a program may start, if anything."""
        self._speaks = True
        if exchange.agreed:
            self._last = exchange
        if exchange.agreed and self._settled is None and not self._hub.lost:
            return None
        return self._prepare(exchange)

    async def _prepare(self, exchange: Exchange) -> None:
        if self._hub.lost:
            raise copy.copy(next(iter(self._hub.lost.values())))
        while self._settled is not None:
            await asyncio.shield(self._settled)
        if not exchange.agreed:
            if exchange.agreement is None or exchange.agreement.done():
                exchange.agreement = asyncio.ensure_future(self._agree(exchange))
                exchange.agreement.add_done_callback(_seen)
            await asyncio.shield(exchange.agreement)

    async def _agree(self, exchange: Exchange) -> None:
        """Find out whether all ranks have the same program; raises GraphError with the first difference."""
        number = self._done.plans
        for gone in self._hub.gone.values():
            if number >= gone.done(self._key).plans:
                raise copy.copy(gone.error)
        self._done.plans += 1
        loop = asyncio.get_running_loop()
        answer = self._answers[number] = loop.create_future()
        self._proposed[number] = exchange
        timer = loop.call_later(_PATIENCE_S, self._complain, number)
        try:
            self.post(0, "plan", number, exchange.identity.digest, exchange.most_edges)
            await answer
        finally:
            timer.cancel()
            del self._answers[number], self._proposed[number]

    def _complain(self, number: int) -> None:
        there = self._proposals.get(number, {})
        missing = [rank for rank in range(self.transport.size) if rank not in there] if self.transport.rank == 0 else []
        whom = f"ranks {missing}" if missing else "the other ranks"
        _log.warning(
            "graph %r: rank %d has waited %g s for %s to run it, too",
            self._name,
            self.transport.rank,
            _PATIENCE_S,
            whom,
        )

    def _heard_plan(self, rank: int, number: int, digest: str, edges: int) -> None:
        """On rank 0: a rank has said which program it has."""
        proposals = self._proposals.setdefault(number, {})
        proposals[rank] = digest, edges
        if len(proposals) < self.transport.size:
            return
        del self._proposals[number]
        own, _ = proposals[0]
        others = [rank for rank, (digest, _) in sorted(proposals.items()) if digest != own]
        if others:
            lines = base64.b85encode(self._proposed[number].identity.lines).decode()
            self.post(others[0], "differs", number, lines)
            return
        block = max(edges for _, edges in proposals.values()) * WINDOW
        hub = self._hub
        if hub.tags + block > self.transport.max_tag:
            hub.tags = 0  # those of programs long ago
        if block > self.transport.max_tag:
            message = f"graph {self._name!r} has more edges between two ranks than {self.transport.name} can number"
            self._post_to_all(range(self.transport.size), "disagreed", number, message)
            return
        first, hub.tags = hub.tags, hub.tags + block
        self._post_to_all(range(self.transport.size), "agreed", number, first)

    def _heard_agreed(self, _: int, number: int, first_tag: int) -> None:
        answer = self._answers.get(number)
        if answer is None or answer.done():  # the run that waited was cancelled, as the loop ended
            return
        exchange = self._proposed[number]
        try:
            exchange.agree(first_tag)  # now: notes that come next may be about frames of it
        except TransportError as error:
            answer.set_exception(error)
        else:
            self._last = exchange
            answer.set_result(None)

    def _heard_differs(self, _: int, number: int, lines: str) -> None:
        """On a rank whose program differs from rank 0's: find the first difference, and say it."""
        here = self._proposed[number].identity.lines
        message = f"graph {self._name!r}: {difference(here, base64.b85decode(lines), self.transport.rank, 0)}"
        self._post_to_all(range(self.transport.size), "disagreed", number, message)

    def _heard_disagreed(self, _: int, number: int, message: str) -> None:
        answer = self._answers.get(number)
        if answer is not None and not answer.done():
            answer.set_exception(GraphError(message))

    # -- frames --------------------------------------------------------------------------------------------------------

    def enter(self, frame: Frame, ranks: frozenset[int]) -> None:
        """A frame starts here; messages go between these ranks."""
        if len(self._frames) >= WINDOW:
            raise GraphError(f"graph {self._name!r}: more than {WINDOW} frames in flight between ranks")
        done = self._done
        frame.serial = serial = done.frames
        done.frames += 1
        done.running.add(serial)
        self._frames[serial] = frame, ranks
        error = self._refused.pop(serial, None) or self._after_end(serial) or self._without(serial, ranks)
        if error is not None:
            asyncio.get_running_loop().call_soon(frame.stop_with, error, True)

    def refuse(self, number: int, error: BaseException) -> int:
        """A frame cannot start here; returns its serial number."""
        serial = self._done.frames
        self._done.frames += 1
        self._post_to_all(self._others, "stopped", serial, number, f"could not start: {text_of(error)}")
        return serial

    def leave(self, frame: Frame) -> None:
        """A frame has ended here."""
        self._frames.pop(frame.serial, None)
        self._done.running.discard(frame.serial)

    def stopped(self, frame: Frame) -> None:
        """A frame has failed here, or was cancelled: tell the other ranks, unless they have told this one."""
        if isinstance(frame.error, PeerFailedError | PeerLostError):
            return
        cancelled = frame.error is None or isinstance(frame.error, RunCancelledError)
        what = "was cancelled" if cancelled else f"failed: {frame.error}"
        self._post_to_all(self._others, "stopped", frame.serial, frame.number, what)

    def tell_paused(self, paused: bool) -> None:
        """Tell the other ranks whether this one starts no frames for now."""
        self._post_to_all(self._others, "paused", paused)

    def _heard_stopped(self, rank: int, serial: int, number: int, what: str) -> None:
        error = PeerFailedError(
            rank, f"frame {number} {what}\n  on rank {rank}; it cannot end on rank {self.transport.rank}"
        )
        if serial >= self._done.frames:
            self._refused[serial] = error
        else:
            self._stop(serial, error)

    def _stop(self, serial: int, error: TransportError) -> None:
        if serial in self._frames:
            frame, _ = self._frames[serial]
            frame.stop_with(error, at_once=True)

    # -- the ends of ranks ---------------------------------------------------------------------------------------------

    def fail(self, error: TransportError) -> None:
        waiting: Sequence[asyncio.Future[Any]] = [*self._answers.values()]
        if self._settled is not None:
            waiting = [*waiting, self._settled]
        for future in waiting:
            if not future.done():
                future.set_exception(copy.copy(error))
                future.exception()  # seen, though nothing may wait for it now
        for serial in list(self._frames):
            self._stop(serial, copy.copy(error))

    def left(self, error: PeerFailedError, done: Done) -> None:
        for number, answer in self._answers.items():
            if number >= done.plans and not answer.done():
                answer.set_exception(copy.copy(error))
        for serial, (_, ranks) in list(self._frames.items()):
            missing = self._without(serial, ranks)
            if missing is not None:
                self._stop(serial, missing)
        for number in sorted(self._ends):
            self._settle_if_all_have_ended(number)
        self.handlers.get("paused", _ignore)(error.rank, False)

    def awaited(self) -> Collection[int]:
        if self._answers or self._settled is not None:
            return self._others
        return set().union(*[ranks for _, ranks in self._frames.values()])

    def _without(self, serial: int, ranks: frozenset[int]) -> TransportError | None:
        """Why a frame cannot end: a rank is lost, or one that it needs has left and not done its part of it."""
        for error in self._hub.lost.values():
            return copy.copy(error)
        for rank, gone in self._hub.gone.items():
            if rank in ranks and serial >= gone.done(self._key).frames:
                return copy.copy(gone.error)
        return None

    # -- the ends of streams -------------------------------------------------------------------------------------------

    def end_stream(self) -> None:
        """A stream has ended on this rank; the others may have started more frames of it, or fewer.

        The next frame has to wait until all have said how many: what some have started and others have not is made up
        for then, so that all go on with the same number.
        """
        if not self._speaks or self._hub.lost:
            return
        number = self._done.streams
        self._done.streams += 1
        if self._settled is None:
            self._settled = asyncio.get_running_loop().create_future()
        self._post_to_all(range(self.transport.size), "ended", number, self._done.frames)

    def _heard_ended(self, rank: int, number: int, serial: int) -> None:
        ends = self._ends.setdefault(number, {})
        ends[rank] = serial
        if number >= self._done.streams:  # here it goes on
            for later in [frame for frame in self._frames if frame >= serial]:
                error = self._after_end(later)
                assert error is not None
                self._stop(later, error)
        else:
            self._settle_if_all_have_ended(number)

    def _settle_if_all_have_ended(self, number: int) -> None:
        """All ranks but those that have left."""
        if number < self._done.streams and self._ends[number].keys() | self._hub.gone.keys() >= {
            *range(self.transport.size)
        }:
            self._settle(number)

    def _after_end(self, serial: int) -> PeerFailedError | None:
        """Why a frame that starts now cannot end: another rank has ended the stream before it."""
        for rank, end in self._ends.get(self._done.streams, {}).items():
            if serial >= end:
                return PeerFailedError(
                    rank, f"rank {rank} ended its stream before this frame, rank {self.transport.rank} did not"
                )
        return None

    def _settle(self, number: int) -> None:
        ends = self._ends.pop(number)
        assert self._settled is not None
        last = max(ends.values())
        for serial in range(self._done.frames, last):
            assert self._last is not None  # others have started frames that this rank has agreed to
            self._last.void(serial)
        self._done.frames = last
        self._refused = {serial: error for serial, error in self._refused.items() if serial >= last}
        if number < self._done.streams - 1:
            return
        settled, self._settled = self._settled, None
        if not settled.done():
            settled.set_result(None)

    async def settle(self, timeout_s: float) -> None:
        """Wait until all ranks have ended their streams, for a while at most."""
        settled = self._settled
        if settled is not None and not self._hub.lost:
            await asyncio.wait([settled], timeout=timeout_s)


def _seen(agreement: asyncio.Task[None]) -> None:
    """Mark an error as seen: the run that waited for it may have been cancelled."""
    if not agreement.cancelled():
        agreement.exception()


def _ignore(_: int, __: bool) -> None:
    """Handle a note before its handler is known."""
