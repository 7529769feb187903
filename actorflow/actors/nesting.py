"""Runs that async functions of a graph await: runs that could never end are refused.

A function that runs its own graph may do so without end, which no time limit would ever stop: each cancellation, which
goes from call to call, would find another one behind the last. Such runs are nested up to a limit.

Frames take their turns in the order in which they start: at functions, which may keep state, and at variables. A frame
that an op of an earlier frame awaits would wait for ever for a turn that the earlier one takes only when that op has
ended.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Collection, Iterable

from actorflow.actors.blob import VariableUse
from actorflow.actors.frame import Frame
from actorflow.actors.op import OpActor
from actorflow.actors.task import Call, callers, within
from actorflow.core import Emitter, Turnstile
from actorflow.errors import GraphError

#: Runs inside each other, each awaited by a function of the one before.
MOST_NESTED = 50
#: Turns of the loop that a cancellation takes from call to call, at most: of what asyncio has to await, or one of ours.
_TURNS_EACH = 4


def check_turns(
    graph: str, ops: Iterable[OpActor], uses: Iterable[VariableUse], turnstiles: Collection[Turnstile]
) -> Call | None:
    """Check that a frame that is to start now could end before the calls that it is part of do.

    Args:
        graph: Name of the graph.
        ops: Ops of the frame.
        uses: Its reads and updates of variables whose frames take turns.
        turnstiles: All of the graph.
    Returns:
        The innermost of these calls. One does not await a task that it has started and left behind.
    Raises:
        GraphError: if it would wait for a turn that comes only after such a call, or if these are too many.
    """
    outer = _under_way(graph)
    if not outer:
        return None
    wanted = {op.turnstile: op for op in ops if op.turnstile is not None}
    for frame, caller in outer:
        when = f"when {caller.what!r} has ended"
        later = _followers(caller)
        for op in later:
            if op is not caller and op.turnstile in wanted:
                why = f"frames come there in order, and frame {frame.number} has yet to go there {when}"
                raise _refusal(graph, frame, caller, f"call op {op.what!r}: {why}")
        updated = {update.variable for op in later for update in op.updates}
        for use in uses:
            variable = use.variable
            if variable.is_awaited_by(frame) and (frame.atomic or variable in updated):
                what = f"read variable {variable.variable.name!r}: frame {frame.number} updates it first, {when}"
                raise _refusal(graph, frame, caller, what)
    stuck = _stuck(turnstiles, wanted, outer)
    for turnstile, op in wanted.items():
        if turnstile in stuck:
            frame, caller = next((call for call in outer if call[1].turnstile is turnstile), outer[0])
            is_there = caller.turnstile is turnstile
            why = (
                f"frame {frame.number} has yet to leave it"
                if is_there
                else "each call there waits for one that cannot begin"
            )
            what = f"call op {op.what!r}: frames come there in order, and {why}"
            raise _refusal(graph, frame, caller, what)
    return outer[0]


def turns_to_wait() -> int:
    """Turns of the loop before a run may start, as a call around it has stopped: its cancellation comes before that.

    It goes from call to call, a few turns each, and runs that start meanwhile would have it run after them for ever.
    Code that tidies up in a call that has stopped itself need not wait.
    """
    stopped = [frame.halted for frame, caller in callers() if _has_begun(frame, caller)]
    return _TURNS_EACH * len(stopped) if any(stopped) and not stopped[0] else 0


def _under_way(graph: str) -> list[Call]:
    """The calls that would await a run that is to start now, from the inside out; others are forgotten."""
    calls = [(frame, caller) for frame, caller in callers() if _has_begun(frame, caller)]
    for (frame, _), call in zip(calls, [*calls[1:], None], strict=False):
        if frame.context.get(within) != call:
            frame.context.run(within.set, call)  # else frames that have ended would live as long as this one
    outer = [call for call in calls if not call[0].halted]
    if len(outer) >= MOST_NESTED:
        frame, caller = outer[0]
        raise GraphError(
            f"op {caller.what!r} of frame {frame.number} runs graph {graph!r} inside {len(outer)} runs, each of which "
            f"is awaited by a function of the one before, and {MOST_NESTED} is the most: does a function await its own "
            "graph without end?"
        )
    return outer


def _refusal(graph: str, frame: Frame, caller: OpActor, what: str) -> GraphError:
    return GraphError(
        f"op {caller.what!r} of frame {frame.number} runs its own graph {graph!r}, and that run could never {what}; "
        "fetch=[...] what does not need it, or run it from outside the op"
    )


def _stuck(
    turnstiles: Collection[Turnstile], wanted: Collection[Turnstile], outer: list[tuple[Frame, OpActor]]
) -> set[Turnstile]:
    """Turnstiles whose places would all be taken by calls that await a frame which has yet to enter one of them."""
    if all(turnstile.running < turnstile.limit for turnstile in wanted):
        return set()
    awaited = {call: set(wanted) for call in outer}
    for turnstile in turnstiles:
        for frame in turnstile.expected:
            for call in callers(frame.context):
                if _has_begun(*call) and not call[0].halted:
                    awaited.setdefault(call, set()).add(turnstile)
    stuck = {turnstile for turnstile in turnstiles if turnstile.running >= turnstile.limit}
    while free := {
        turnstile
        for turnstile in stuck
        if sum(op.turnstile is turnstile and not stuck.isdisjoint(to) for (_, op), to in awaited.items())
        < turnstile.limit
    }:
        stuck -= free
    return stuck


def _has_begun(frame: Frame, caller: OpActor) -> bool:
    work = frame.outstanding.get(caller)
    return isinstance(work, Emitter) or (isinstance(work, Task) and not work.done())


def _followers(caller: OpActor) -> dict[OpActor, None]:
    found = {caller: None}
    left = [caller]
    while left:
        for op in left.pop().followers:
            if op not in found:
                found[op] = None
                left.append(op)
    return {part: None for op in found for part in (op, *op.parts)}
