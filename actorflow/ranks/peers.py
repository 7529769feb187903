"""The counterparts of one graph on the other ranks: same programs, same frames, and news of what has stopped.

The ranks start the same frames in the same order (each runs the same program), and number those that exchange messages
alike. Besides the messages of the edges there are notes: that a frame has stopped and why, that a stream has ended.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any
from weakref import WeakValueDictionary

from actorflow.actors.frame import Frame
from actorflow.errors import (
    ActorflowError,
    GraphError,
    PeerFailedError,
    PeerLostError,
    RunCancelledError,
    ShapeError,
    TransportError,
    text_of,
)
from actorflow.loop import waits
from actorflow.plan.lengths import OpenAxes
from actorflow.plan.ranks import Identity, difference
from actorflow.ranks.collectives import Collectives
from actorflow.ranks.edges import WINDOW, Exchange
from actorflow.ranks.hub import Done, Recipient, hub_of
from actorflow.spec import Lengths
from actorflow.transport.base import Transport

_log = logging.getLogger("actorflow")

_SILENCE_S = 0.2  # seconds after which a rank says that it waits for others to begin: to them, and in the log
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
        self._proposals: dict[int, dict[int, tuple[Any, ...]]] = {}  # on rank 0: what each rank has asked
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._proposed: dict[int, Exchange] = {}
        self._tags: dict[str, int] = {}  # of programs that all have agreed on, by digest: some ranks may forget them
        self._ends: dict[int, dict[int, tuple[int, int]]] = {}  # by stream: frame and question where each rank ended it
        self._settled: asyncio.Future[None] | None = None
        self._speaks = False  # whether frames that exchange messages were to start
        self._agreed: WeakValueDictionary[str, Exchange] = WeakValueDictionary()  # by digest
        # Ranks tell each other from which frame on they run another program, and what that fetches.
        self._programs: deque[tuple[int, str, str]] = deque(maxlen=WINDOW)  # here: serial number, digest, fetches
        self._told: dict[int, dict[int, tuple[str, str]]] = {}  # there: digest, fetches, by serial number and rank
        self._waiting: dict[int, tuple[int, int, str]] = {}  # question that a rank waits for, frame behind it, fetches
        self._parted: GraphError | None = None  # why nothing can go between the ranks any more
        self._parted_from = sys.maxsize  # serial number of the first frame that cannot end
        self.are_held: Callable[[], bool] = bool  # whether frames wait to be started
        self.handlers: dict[str, Callable[..., None]] = {
            "plan": self._heard_plan,
            "lengths": self._heard_lengths,
            "settled": self._heard_settled,
            "agreed": self._heard_agreed,
            "differs": self._heard_differs,
            "disagreed": self._heard_disagreed,
            "runs": self._heard_runs,
            "waits": self._heard_waits,
            "parted": self._heard_parted,
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

    def are_ready(self, exchange: Exchange) -> bool:
        """Return whether a frame of a program may start at once."""
        self._speaks = True
        if not exchange.agreed and exchange.identity.digest in self._tags:
            exchange.agree(self._tags[exchange.identity.digest])
        if exchange.agreed:
            self._agreed[exchange.identity.digest] = exchange
        is_at_rest = self._settled is None and not self._hub.lost and self._parted is None
        return exchange.agreed and is_at_rest and self._full(self._done.frames) is None

    def prepare(self, exchange: Exchange) -> Awaitable[None] | None:
        """Return what must be awaited before a frame of a program may start, if anything."""
        return None if self.are_ready(exchange) else self._prepare(exchange)

    async def _prepare(self, exchange: Exchange) -> None:
        await self._come_to_rest()
        if not exchange.agreed:
            if exchange.agreement is None or exchange.agreement.done():
                exchange.agreement = asyncio.ensure_future(
                    self._ask("plan", exchange.identity.digest, exchange.most_edges, exchange=exchange)
                )
                exchange.agreement.add_done_callback(_seen)
            await asyncio.shield(exchange.agreement)

    async def _come_to_rest(self) -> None:
        if self._hub.lost:
            raise copy.copy(next(iter(self._hub.lost.values())))
        if self._parted is not None:
            raise copy.copy(self._parted)
        while self._settled is not None:
            await asyncio.shield(self._settled)
        while (oldest := self._full(self._done.frames)) is not None:
            await asyncio.wait([oldest.ended])

    def _full(self, serial: int) -> Frame | None:
        """The oldest frame that runs, if one would take its messages: they are told apart modulo `WINDOW`."""
        oldest = next(iter(self._frames), serial)
        return self._frames[oldest][0] if serial - oldest >= WINDOW else None

    async def agree_on_lengths(self, axes: OpenAxes, feeds: Any) -> Lengths:
        """The lengths of a frame's open axes: each rank tells all others those of the sources that it has.

        Raises:
            FeedError, ShapeError: if an axis has no length, or several ones: on all ranks, and none starts a frame.
            PeerFailedError: if the feeds of another rank are wrong.
        """
        self._speaks = True
        await self._come_to_rest()
        own: dict[str, int] = {}
        failure: Exception | None = None
        try:
            own = axes.found(feeds, self.transport.rank)
        except Exception as error:  # noqa: BLE001  the other ranks must not wait for this one
            failure = error
        told = await self._ask("lengths", own, None if failure is None else text_of(failure))
        if failure is not None:
            raise failure
        found: dict[str, tuple[int, int]] = {}
        for rank, (lengths, why) in enumerate(told):
            if why is not None:
                raise PeerFailedError(rank, f"a frame of graph {self._name!r} could not start: {why}\n  on rank {rank}")
            for name, n in lengths.items():
                known, other = found.setdefault(name, (n, rank))
                if known != n:
                    raise ShapeError(
                        f"graph {self._name!r}: axis {name!r} is {known} in the feeds of rank {other}, and {n} in "
                        f"those of rank {rank}: an axis that may differ from rank to rank has a name on each"
                    )
        return axes.whole({name: n for name, (n, _) in found.items()})

    async def _ask(self, kind: str, *content: Any, exchange: Exchange | None = None) -> Any:
        """Answer to a question that all ranks ask rank 0, each when it has come to it."""
        if self._parted is not None:
            raise copy.copy(self._parted)
        number = self._done.plans
        for gone in self._hub.gone.values():
            if number >= gone.done(self._key).plans:
                raise copy.copy(gone.error)
        for rank, (_, questions) in self._ends.get(self._done.streams, {}).items():
            if number >= questions:
                raise self._ended_before(rank)
        self._done.plans += 1
        loop = asyncio.get_running_loop()
        answer = self._answers[number] = loop.create_future()
        fetches = ""
        if exchange is not None:
            self._proposed[number] = exchange
            fetches = exchange.identity.fetches
        timers = [
            loop.call_later(_SILENCE_S, self._say_that_it_waits, number, fetches),
            loop.call_later(_PATIENCE_S, self._complain, number, fetches),
        ]
        try:
            self.post(0, kind, number, *content)
            return await answer
        finally:
            for timer in timers:
                timer.cancel()
            del self._answers[number]
            self._proposed.pop(number, None)

    def _say_that_it_waits(self, number: int, fetches: str) -> None:
        """Tell the others that a question comes before the next frame here: some may have started that instead."""
        if not self.are_held():
            self._post_to_all(self._others, "waits", number, self._done.frames, fetches)

    def _complain(self, number: int, fetches: str) -> None:
        self._say_that_it_waits(number, fetches)
        there = self._proposals.get(number, {})
        missing = [rank for rank in range(self.transport.size) if rank not in there] if self.transport.rank == 0 else []
        whom = f"ranks {missing}" if missing else "the other ranks"
        _log.warning(
            "graph %r: rank %d has waited %g s for %s to run it, too (more: actorflow docs mpi)",
            self._name,
            self.transport.rank,
            _PATIENCE_S,
            whom,
        )

    def _all_asked(self, rank: int, number: int, *content: Any) -> list[tuple[Any, ...]] | None:
        """On rank 0: what all ranks have asked, by rank, once they all have."""
        proposals = self._proposals.setdefault(number, {})
        proposals[rank] = content
        if len(proposals) < self.transport.size or self._parted is not None:
            return None
        del self._proposals[number]
        others = [other for other, (kind, *_) in sorted(proposals.items()) if kind != proposals[0][0]]
        if others:
            message = (
                f"graph {self._name!r}: ranks 0 and {others[0]} do not run the same ops: give all ranks the same fetch"
            )
            self._post_to_all(range(self.transport.size), "disagreed", number, message)
            return None
        return [asked for _, asked in sorted(proposals.items())]

    def _heard_lengths(self, rank: int, number: int, lengths: dict[str, int], why: str | None) -> None:
        told = self._all_asked(rank, number, "lengths", lengths, why)
        if told is not None:
            self._post_to_all(range(self.transport.size), "settled", number, [content for _, *content in told])

    def _heard_settled(self, _: int, number: int, told: list[Any]) -> None:
        answer = self._answers.get(number)
        if waits(answer):
            answer.set_result(told)

    def _heard_plan(self, rank: int, number: int, digest: str, edges: int) -> None:
        told = self._all_asked(rank, number, "plan", digest, edges)
        if told is None:
            return
        proposals = {rank: asked for rank, (_, *asked) in enumerate(told)}
        own, _ = proposals[0]
        others = [rank for rank, (digest, _) in sorted(proposals.items()) if digest != own]
        if others:
            lines = base64.b85encode(self._proposed[number].identity.lines).decode()
            self.post(others[0], "differs", number, lines)
            return
        first = self._hub.tags_for(self._key, max(edges for _, edges in proposals.values()) * WINDOW)
        if first is None:
            name = self.transport.name
            message = (
                f"graph {self._name!r} has more edges between two ranks than {name} can number beside other graphs'"
            )
            self._post_to_all(range(self.transport.size), "disagreed", number, message)
        else:
            self._post_to_all(range(self.transport.size), "agreed", number, first, own)

    def _heard_agreed(self, _: int, number: int, first_tag: int, digest: str) -> None:
        self._tags[digest] = first_tag
        answer = self._answers.get(number)
        if not waits(answer):  # the run that waited was cancelled, as the loop ended
            return
        exchange = self._proposed[number]
        try:
            exchange.agree(first_tag)  # now: notes that come next may be about frames of it
        except TransportError as error:
            answer.set_exception(error)
        else:
            self._agreed[digest] = exchange
            answer.set_result(None)

    def _heard_differs(self, _: int, number: int, lines: str) -> None:
        """On a rank whose program differs from rank 0's: find the first difference, and say it."""
        exchange = self._proposed.get(number)
        if exchange is None:  # who asked has gone, or has been told that the ranks have parted
            return
        here = exchange.identity.lines
        message = f"graph {self._name!r}: {difference(here, base64.b85decode(lines), self.transport.rank, 0)}"
        self._post_to_all(range(self.transport.size), "disagreed", number, message)

    def _heard_disagreed(self, _: int, number: int, message: str) -> None:
        self._fail(GraphError(message), lambda asked: asked == number)

    def _fail(self, error: Exception, which: Callable[[int], bool] = lambda _: True) -> None:
        for number, answer in self._answers.items():
            if which(number) and not answer.done():
                answer.set_exception(copy.copy(error))

    # -- frames --------------------------------------------------------------------------------------------------------

    def enter(self, frame: Frame, identity: Identity) -> None:
        """A frame of a program starts here."""
        done = self._done
        frame.serial = serial = done.frames
        done.running.add(serial)
        ranks = identity.ranks
        self._frames[serial] = frame, ranks
        self._count(identity)
        error: ActorflowError | None = copy.copy(self._parted) or self._refused.pop(serial, None)
        error = error or self._after_end(serial) or self._without(serial, ranks)
        if error is not None:
            asyncio.get_running_loop().call_soon(frame.stop_with, error, True)

    def refuse(self, number: int, error: BaseException, identity: Identity) -> int:
        """A frame of a program cannot start here; returns its serial number."""
        serial = self._done.frames
        self._count(identity)
        self._refused.pop(serial, None)
        self._post_to_all(self._others, "stopped", serial, number, f"could not start: {text_of(error)}")
        return serial

    # -- one program in each frame -------------------------------------------------------------------------------------

    def _count(self, identity: Identity) -> None:
        """Count a frame of a program, and say so if it is not the program of the frame before."""
        serial, digest = self._done.frames, identity.digest
        self._done.frames += 1
        if not self._programs or self._programs[-1][1] != digest:
            self._programs.append((serial, digest, identity.fetches))
            self._post_to_all(self._others, "runs", serial, digest, identity.fetches)
        if serial in self._told:
            self._compare(serial)
        for rank in [*self._waiting]:
            self._look_behind(rank)

    def _program_of(self, serial: int) -> tuple[int, str, str] | None:
        return next((program for program in reversed(self._programs) if program[0] <= serial), None)

    def _heard_runs(self, rank: int, serial: int, digest: str, fetches: str) -> None:
        self._told.setdefault(serial, {})[rank] = digest, fetches
        if serial < self._done.frames:
            self._compare(serial)

    def _compare(self, serial: int) -> None:
        own = self._program_of(serial)
        for rank, (digest, fetches) in self._told.pop(serial).items():
            if own is not None and digest != own[1]:
                self._part(serial, rank, fetches)

    def _heard_waits(self, rank: int, number: int, serial: int, fetches: str) -> None:
        """Another rank has asked something, and waits for the answer before it starts a frame."""
        self._waiting[rank] = number, serial, fetches
        self._look_behind(rank)

    def _look_behind(self, rank: int) -> None:
        """Look whether a frame was started here that another rank has asked something before."""
        number, serial, fetches = self._waiting[rank]
        if self._done.plans > number and number not in self._answers:
            del self._waiting[rank]
        elif self._done.frames > serial:
            del self._waiting[rank]
            self._part(serial, rank, fetches)

    def _part(self, serial: int, rank: int, fetches: str) -> None:
        """Let all ranks know that this one and another one do not run the same in a frame."""
        if serial >= self._parted_from:
            return
        own = self._program_of(serial)
        found = {self.transport.rank: "" if own is None else own[2], rank: fetches}
        shown = ", ".join(f"rank {each} fetches {found[each] or 'something else'}" for each in sorted(found))
        message = (
            f"graph {self._name!r}: ranks {min(found)} and {max(found)} do not run the same ops: {shown}. All "
            "ranks must build the same graph, and run it with the same fetch in the same order; then build it anew"
        )
        self._post_to_all(self._others, "parted", serial, message)
        self._heard_parted(self.transport.rank, serial, message)

    def _heard_parted(self, _: int, serial: int, message: str) -> None:
        """From a frame on nothing can go between the ranks: who waits is told, and who comes later."""
        if serial >= self._parted_from:
            return
        self._parted, self._parted_from = GraphError(message), serial
        self._fail(self._parted)
        for later in [each for each in self._frames if each >= serial]:
            self._stop(later, copy.copy(self._parted))

    def leave(self, frame: Frame) -> None:
        """A frame has ended here."""
        self._frames.pop(frame.serial, None)
        self._done.running.discard(frame.serial)

    def stopped(self, frame: Frame) -> None:
        """A frame has failed here, or was cancelled: tell the other ranks, unless they have told this one."""
        self._frames.pop(frame.serial, None)  # it has done its part of all messages
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

    def _stop(self, serial: int, error: ActorflowError) -> None:
        if serial in self._frames:
            frame, _ = self._frames[serial]
            frame.stop_with(error, at_once=True)

    # -- the ends of ranks ---------------------------------------------------------------------------------------------

    def fail(self, error: TransportError) -> None:
        for future in [*self._answers.values(), *([] if self._settled is None else [self._settled])]:
            if not future.done():
                future.set_exception(copy.copy(error))
                future.exception()  # seen, though nothing may wait for it now
        for serial in list(self._frames):
            self._stop(serial, copy.copy(error))

    def left(self, error: PeerFailedError, done: Done) -> None:
        self._fail(error, lambda asked: asked >= done.plans)
        for serial, (_, ranks) in list(self._frames.items()):
            missing = self._without(serial, ranks)
            if missing is not None:
                self._stop(serial, missing)
        self._settle_ends()
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
        self._post_to_all(range(self.transport.size), "ended", number, self._done.frames, self._done.plans)

    def _heard_ended(self, rank: int, number: int, serial: int, questions: int) -> None:
        ends = self._ends.setdefault(number, {})
        ends[rank] = serial, questions
        # Whether the stream goes on here or not: that rank comes to none of these.
        self._fail(self._ended_before(rank), lambda asked: asked >= questions)
        for later in [frame for frame in self._frames if frame >= serial]:
            self._stop(later, self._ended_before(rank))
        self._settle_ends()

    def _settle_ends(self, _: object = None) -> None:
        """Settle the streams that all ranks have ended, but those that have left."""
        for number, ends in sorted(self._ends.items()):
            if number >= self._done.streams or not ends.keys() | self._hub.gone.keys() >= {*range(self.transport.size)}:
                return
            oldest = self._full(max(serial for serial, _ in ends.values()) - 1)
            if oldest is not None:  # what is made up for would take its messages
                oldest.ended.add_done_callback(self._settle_ends)
                return
            self._settle(number)

    def _after_end(self, serial: int) -> PeerFailedError | None:
        """Why a frame that starts now cannot end: another rank has ended the stream before it."""
        for rank, (end, _) in self._ends.get(self._done.streams, {}).items():
            if serial >= end:
                return self._ended_before(rank)
        return None

    def _ended_before(self, rank: int) -> PeerFailedError:
        return PeerFailedError(
            rank, f"rank {rank} ended its stream before this frame, rank {self.transport.rank} did not"
        )

    def _settle(self, number: int) -> None:
        ends = self._ends.pop(number)
        assert self._settled is not None
        last = max(serial for serial, _ in ends.values())
        self._done.plans = max(questions for _, questions in ends.values())
        self._proposals = {asked: there for asked, there in self._proposals.items() if asked >= self._done.plans}
        digest = self._programs[-1][1] if self._programs else ""
        for serial in range(self._done.frames, last):
            for rank, (digest, fetches) in self._told.get(serial, {}).items():
                if digest not in self._agreed:  # forgotten here since: it cannot be made up for
                    self._part(serial, rank, fetches)
            if digest in self._agreed:
                self._agreed[digest].void(serial)
        self._done.frames = last
        self._programs.clear()  # the others may have run something else last: say what comes
        self._told = {serial: told for serial, told in self._told.items() if serial >= last}
        self._waiting.clear()
        self._refused = {serial: error for serial, error in self._refused.items() if serial >= last}
        if number < self._done.streams - 1:
            return
        settled, self._settled = self._settled, None
        if not settled.done():
            settled.set_result(None)

    async def settle(self, timeout_s: float) -> None:
        """Give up what has been asked, and wait until all ranks have ended their streams, for a while at most."""
        loop = asyncio.get_running_loop()
        for answer in self._answers.values():
            if answer.get_loop() is loop:  # another one was closed
                answer.cancel()
        await asyncio.sleep(0)  # who has asked is told
        settled = self._settled
        if settled is not None and not self._hub.lost:
            await asyncio.wait([settled], timeout=timeout_s)


def _seen(agreement: asyncio.Task[None]) -> None:
    """Mark an error as seen: the run that waited for it may have been cancelled."""
    if not agreement.cancelled():
        agreement.exception()


def _ignore(_: int, __: bool) -> None:
    """Handle a note before its handler is known."""
