"""Errors of nodes that cannot be loaded."""

from actorflow.errors import GraphError


class Refused(GraphError):  # noqa: N818  a word for what happens to a node
    """A node cannot be lowered; the message says why."""


class DependsOnData(Refused):
    """A value needed before a run is not known then: it is computed where the file declares the result's shape."""
