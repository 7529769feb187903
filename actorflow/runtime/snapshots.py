"""Snapshots: the values of variables between two frames, for checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from actorflow.actors.frame import Frame, FrameState
from actorflow.errors import GraphError
from actorflow.graph.nodes import Variable

if TYPE_CHECKING:
    from actorflow.runtime.engine import Engine
    from actorflow.runtime.program import Program


class Snapshots:
    """Takes the values of one graph's variables, each time in a frame that only reads.

    Args:
        engine: Of the graph.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._frames: set[Frame] = set()

    def __contains__(self, frame: Frame) -> bool:
        """Whether a frame is that of a snapshot, and not one of the application's."""
        return frame in self._frames

    def take(self, variables: Sequence[Variable]) -> tuple[int, asyncio.Task[list[Any]]]:
        """The values that variables have between the frames started so far and those started from now on.

        Frames go on meanwhile, and none waits for this. It is a frame itself, but has no number of its own, so that
        random streams are the same with it and without it.

        Returns:
            Number of the first frame that is not contained, and what gives the values: the arrays, wherever they are.
            Awaiting that raises GraphError if one of the frames before has failed or was cancelled, so that some of
            its updates may be missing.
        """
        engine = self._engine
        claim = engine.claim()
        try:
            return self._take(variables)
        finally:
            claim.release()  # a frame keeps the graph on its loop by itself

    def _take(self, variables: Sequence[Variable]) -> tuple[int, asyncio.Task[list[Any]]]:
        engine = self._engine
        number, before = engine.next_number, [frame for frame in engine.running if frame.turns]
        started = None
        if variables:
            program = engine.program(tuple(variables))
            frame = engine.start(program, {})
            engine.next_number = number
            self._frames.add(frame)
            frame.ended.add_done_callback(lambda _: self._frames.discard(frame))
            started = program, frame
        return number, asyncio.ensure_future(self._values(started, before, variables))

    async def _values(
        self, started: tuple[Program, Frame] | None, before: Sequence[Frame], variables: Sequence[Variable]
    ) -> list[Any]:
        values: list[Any] = []
        if started is not None:
            program, frame = started
            await self._engine.end_of(frame)
            result = program.result(frame)
            values = [result[variable] for variable in variables]
        unfinished = [earlier.ended for earlier in before if not earlier.ended.done()]
        if unfinished:
            await asyncio.wait(unfinished)
        for earlier in before:
            if earlier.state is not FrameState.FINISHED:
                raise GraphError(
                    f"frame {earlier.number} of graph {self._engine.graph.name!r} ended as {earlier.state.name}: "
                    "some of its updates may be missing"
                )
        return values
