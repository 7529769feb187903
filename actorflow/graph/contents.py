"""Looking into a graph: its nodes, by kind and by name, as a table and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorflow.errors import GraphError, did_you_mean
from actorflow.graph.nodes import Blob, Node, Op, Variable

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.store import Members


class Contents:
    """What is in a graph or sub-graph."""

    name: str
    parent: Graph | None
    root: Graph
    _prefix: str
    _members: Members

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of this graph and its sub-graphs, in order of creation."""
        nodes = self._members.nodes.values()
        return tuple(nodes) if self.parent is None else tuple(n for n in nodes if n.name.startswith(self._prefix))

    @property
    def ops(self) -> tuple[Op, ...]:
        """All ops, in order of creation."""
        return tuple([node for node in self.nodes if isinstance(node, Op)])

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All blobs, variables included, in order of creation."""
        return tuple([node for node in self.nodes if isinstance(node, Blob)])

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, in order of creation."""
        return tuple(node for node in self.nodes if isinstance(node, Variable))

    @property
    def sources(self) -> tuple[Blob, ...]:
        """Blobs that must be fed: neither variables nor written by an op."""
        return tuple(b for b in self.blobs if not b.producers and not isinstance(b, Variable))

    @property
    def sinks(self) -> tuple[Blob, ...]:
        """Blobs that are fetched by default: written by an op, read by none, no variables."""
        return tuple(
            b
            for b in self.nodes
            if isinstance(b, Blob) and not b.consumers and b.producers and not isinstance(b, Variable)
        )

    @property
    def revision(self) -> int:
        """Counts the changes of the structure."""
        return self._members.revision

    @property
    def size(self) -> int:
        """One more than the largest `Node.id`."""
        return self._members.next_id

    def resolve(self, target: object) -> Blob | Op | Graph:
        """The node or sub-graph that ``target`` is or names.

        Raises:
            GraphError: if there is none of that name, or it belongs to another graph.
        """
        found = self._find(target)
        if found is not None:
            return found
        if isinstance(target, str):
            near = did_you_mean(target, self._names())
            raise GraphError(f"graph {self.name!r} has no blob, op or sub-graph named {target!r}{near}")
        if isinstance(target, Contents):
            raise GraphError(f"{target.name!r} is not a part of graph {self.root.name!r}")
        if isinstance(target, Blob | Op):
            raise GraphError(f"{target!r} is not in graph {self.root.name!r}")
        raise GraphError(f"expected a blob, an op, a sub-graph or a name, got {target!r}")

    def _find(self, target: object) -> Blob | Op | Graph | None:
        """The node or sub-graph that ``target`` is or names, if it is in this graph."""
        if isinstance(target, str):
            return self._members.find(self._prefix + target)
        if target is self.root:
            return self.root
        found = self._members.find(target.name) if isinstance(target, Blob | Op | Contents) else None
        return found if found is target else None

    def _names(self) -> list[str]:
        """What nodes and sub-graphs are called here."""
        members, prefix = self._members, self._prefix
        return [name.removeprefix(prefix) for name in (*members.nodes, *members.scopes) if name.startswith(prefix)]

    # -- for people ---------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """A table of the ops: name, operation, place and lane, types of inputs and outputs."""
        from actorflow.show.tables import graph_table

        return graph_table(self)

    def to_dot(self, *, times: bool = False) -> str:
        """The graph in Graphviz's language: ops as boxes, blobs as ellipses, variables in bold.

        Args:
            times: Colour what was called, the redder the more of the time it took, and say how often and how long.
        """
        from actorflow.show.dot import graph_dot

        return graph_dot(self, times=times)

    def to_svg(self, *, times: bool = False) -> str:
        """The picture that Graphviz draws of `to_dot`; waits for its program.

        Raises:
            MissingExtraError: if Graphviz is not installed.
        """
        from actorflow.show.dot import graph_dot, to_svg

        return to_svg(graph_dot(self, times=times))

    def _repr_html_(self) -> str:
        from actorflow.show.notebook import graph_html

        return graph_html(self)

    # -- by name ------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.resolve(name)

    def __contains__(self, target: object) -> bool:
        return self._find(target) is not None

    __iter__ = None  # or Python would ask for graph[0], graph[1], ...: iterate over `nodes`, `ops` or `blobs`
