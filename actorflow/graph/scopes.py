"""Sub-graphs: named scopes of a graph that its nodes are made in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

from actorflow.errors import GraphError

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.store import Members


class Scopes:
    """The scopes in a graph or sub-graph, and which of them nodes are made in."""

    name: str
    parent: Graph | None
    root: Graph
    _prefix: str
    _members: Members
    _scope_stack: list[Graph]

    def subgraph(self, name: str) -> Graph:
        """Make a sub-graph: a scope whose nodes' names start with its name.

        ``with graph.subgraph("encoder"):`` has all that is made in ``graph`` go there: layers, what the functional form
        makes, and blobs, variables, ops, functions and further sub-graphs as well.

        Raises:
            GraphError: if the name is taken or no name.
        """
        scope = self._inmost
        return self.root._add_scope(scope, scope._full_name(name))

    def unique_subgraph(self, name: str) -> Graph:
        """Make a sub-graph in the current scope; a taken name gets a number."""
        scope = self.root.current_scope
        return self.root._add_scope(scope, self.unique_name(name))

    def unique_name(self, name: str) -> str:
        """A free name in the current scope, relative to the root: ``name``, else ``name_1``, ``name_2``, ..."""
        return self._members.free_name(self.current_scope._full_name(name))

    def __enter__(self) -> Self:
        self.root._scope_stack.append(self._graph)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.root._scope_stack.pop()

    @property
    def current_scope(self) -> Graph:
        """The scope that nodes are made in: of the innermost ``with`` block, else the root."""
        return self.root._scope_stack[-1]

    def delete_subgraph(self, name: str) -> None:
        """Delete a sub-graph with all its nodes.

        Ops outside that read one of its blobs are then missing inputs, which the next compile reports.

        Raises:
            GraphError: if there is no such sub-graph.
        """
        self._members.delete_scope(self._full_name(name))

    @property
    def _inmost(self) -> Graph:
        """Where what is made in this graph goes: to the current scope, if that lies in it."""
        current = self.root._scope_stack[-1]
        return current if self.parent is None or current.name.startswith(self._prefix) else self._graph

    @property
    def _graph(self) -> Graph:
        return cast("Graph", self)  # which is the one class that this is a part of

    def _full_name(self, name: str) -> str:
        if self.parent is not None and not self._exists:
            raise GraphError(f"sub-graph {self.name!r} was deleted: nothing can be made in it")
        return self._prefix + checked_name(name, "node")

    @property
    def _exists(self) -> bool:
        return self.parent is None or self._members.scopes.get(self.name) is self


def checked_name(name: object, what: str) -> str:
    """A name as it may be given.

    Raises:
        GraphError: if it is none.
    """
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
        raise GraphError(f"{name!r} cannot name a {what}: a name is printable, not empty and has no '/'")
    return name
