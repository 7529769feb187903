"""Runs of a graph that one of its own async functions awaits: those that could never end are refused.

Frames take their turns in the order in which they start: at functions, which may keep state, and at variables. A frame
that an op of an earlier frame awaits would wait for ever for a turn that the earlier one takes only when that op has
ended.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Collection, Iterable, Iterator
from contextvars import Context, ContextVar

from actorflow.actors.frame import Frame
from actorflow.actors.op import OpActor
from actorflow.actors.turnstile import Turnstile
from actorflow.actors.variable import VariableUse
from actorflow.errors import GraphError

#: The call of an async function that the current code is part of.
within: ContextVar[tuple[Frame, OpActor] | None] = ContextVar("actorflow_within", default=None)


def callers(context: Context | None = None) -> Iterator[tuple[Frame, OpActor]]:
    """The calls that the current code, or that of a context, is part of, from the inside out."""
    call = within.get() if context is None else context.get(within)
    while call is not None:
        yield call
        call = call[0].context.get(within)


def check_turns(
    graph: str, ops: Iterable[OpActor], uses: Iterable[VariableUse], turnstiles: Collection[Turnstile]
) -> None:
    """Check that a frame that is to start now could end before the calls that it is part of do.

    Args:
        graph: Name of the graph.
        ops: Ops of the frame.
        uses: Its reads and updates of variables whose frames take turns.
        turnstiles: All of the graph.
    Raises:
        GraphError: if it would wait for a turn that comes only after such a call.
    """
    # The call does not await a task that it has started and left behind.
    outer = [(frame, caller) for frame, caller in callers() if _runs(frame, caller)]
    if not outer:
        return
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
                if _runs(*call):
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


def _runs(frame: Frame, caller: OpActor) -> bool:
    """Return whether a call of an async function has not ended, and goes on."""
    task = frame.outstanding.get(caller)
    return isinstance(task, Task) and not task.done() and not frame.halted


def _followers(caller: OpActor) -> dict[OpActor, None]:
    found = {caller: None}
    left = [caller]
    while left:
        for op in left.pop().followers:
            if op not in found:
                found[op] = None
                left.append(op)
    return {part: None for op in found for part in (op, *op.parts)}
