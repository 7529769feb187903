"""What plans do that the user may not expect: logged once, and kept for those who watch."""

from __future__ import annotations

import logging
from collections import deque

from actorflow.graph.graph import Graph
from actorflow.ops.transfer import Receive, Send, Transfer
from actorflow.plan.plan import Plan
from actorflow.trace.counters import NodeNote

_log = logging.getLogger("actorflow")

#: Names of ops that a log line shows.
_SHOWN = 10


class Notes:
    """What has been noted of the plans of one graph.

    Args:
        graph: A root graph.

    Attributes:
        newest: The newest notes.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._noted: set[NodeNote] = set()
        self.newest: deque[NodeNote] = deque(maxlen=10_000)

    def take(self, plan: Plan) -> None:
        """Note what is not as the user asked, and which blobs are copied or sent."""
        for note, names in plan.notes.items():
            new = [name for name in names if self._is_new(NodeNote(self._graph[name].id, note))]
            if new:
                shown = ", ".join(new[:_SHOWN]) + (f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else "")
                _log.info("graph %r: %s (%s)", self._graph.name, note, shown)
        for op in plan.ops:
            if isinstance(op.operation, Transfer):
                self._is_new(NodeNote(op.shown_as.id, f"copied {op.operation}, lane {op.lane}"))
            elif isinstance(op.operation, Send | Receive):
                self._is_new(NodeNote(op.shown_as.id, f"{op.operation.kind.lower()} {op.operation}"))

    def _is_new(self, note: NodeNote) -> bool:
        if note in self._noted:
            return False
        self._noted.add(note)
        self.newest.append(note)
        return True
