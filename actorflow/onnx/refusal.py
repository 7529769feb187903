"""Errors of nodes that cannot be loaded."""

from actorflow.errors import GraphError


class Refused(GraphError):  # noqa: N818  a word for what happens to a node
    """A node cannot be lowered; the message says why."""


class DependsOnData(Refused):
    """What must be known before a run is not: it is computed where the file declares the shape of the result."""
