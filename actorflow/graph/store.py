"""Nodes and sub-graphs of one root by full name, and undo of calls that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from actorflow.errors import GraphError, did_you_mean
from actorflow.graph.nodes import Blob, Node, Op

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph


class Store:
    """The nodes and sub-graphs of one root.

    Attributes:
        nodes: Every node by full name, in order of creation.
        scopes: Every sub-graph by full name.
        revision: Counts the changes of the structure.
        next_id: The `Node.id` of the next node.
        has_lost_nodes: Whether some were deleted, so that a node at hand may be one of them.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Blob | Op] = {}
        self.scopes: dict[str, Graph] = {}
        self.revision = 0
        self.next_id = 0
        self.has_lost_nodes = False
        self._taken: dict[str, int] = {}  # numbers given to names that were asked for twice
        self._restores: list[Callable[[], None]] = []
        self._withdrawn: set[int] = set()  # ids of ops

    def find(self, full: str) -> Blob | Op | Graph | None:
        """The node or sub-graph of that name; None if there is none."""
        node = self.nodes.get(full)
        return self.scopes.get(full) if node is None else node

    def take_id(self) -> int:
        """The next node's id."""
        self.next_id += 1
        return self.next_id - 1

    def free_name(self, full: str) -> str:
        """``full`` itself if nothing has that name, else with a number behind it that makes it free."""
        if not self._has(full):
            return full
        number = self._taken.get(full, 0)  # where to look first: nearly always the last one that was given
        while number and not self._has(f"{full}_{number}"):  # the node that was to have it was not made, or is gone
            number -= 1
        while self._has(f"{full}_{number + 1}"):
            number += 1
        self._taken[full] = number + 1
        return f"{full}_{number + 1}"

    def _has(self, full: str) -> bool:
        return full in self.nodes or full in self.scopes

    def check_free(self, full: str) -> None:
        """Check that nothing has that name.

        Raises:
            GraphError: if a node or a sub-graph has it.
        """
        if self._has(full):
            taken = self.find(full)
            site = f", created at {taken.site}" if isinstance(taken, Node) else ""
            raise GraphError(f"the name {full!r} is taken by {taken!r}{site}")

    def add(self, node: Blob | Op) -> None:
        """Enter a node that was just made."""
        self.nodes[node.name] = node
        self.revision += 1

    def has_lost(self, node: Node) -> bool:
        """Return whether a node that was here has been deleted."""
        return self.has_lost_nodes and self.nodes.get(node.name) is not node

    def delete(self, nodes: Iterable[Node]) -> None:
        """Delete nodes, and the connections of the remaining blobs to them."""
        gone = set(nodes)
        self.has_lost_nodes = self.has_lost_nodes or bool(gone)
        for node in gone:
            del self.nodes[node.name]
        for node in self.nodes.values():
            if isinstance(node, Blob):
                node._set_producers([op for op in node.producers if op not in gone])
                node.consumers = [op for op in node.consumers if op not in gone]
        self.revision += 1

    @contextmanager
    def all_or_nothing(self, restore: Callable[[], None] | None = None) -> Iterator[None]:
        """Remove the nodes, connections, sub-graphs and names made in the block if it raises.

        Connections that the block makes between nodes that were there before are not undone.

        Args:
            restore: Called then, to undo the block's changes elsewhere, after ``restore`` of the blocks inside it.
        """
        first_id, scopes, outer = self.next_id, len(self.scopes), len(self._restores)
        if restore is not None:
            self._restores.append(restore)
        try:
            yield
        except BaseException:
            self.undo(first_id, scopes)
            for inner in reversed(self._restores[outer:]):
                inner()
            del self._restores[outer:]
            raise
        if not outer:
            self._restores.clear()

    def undo(self, first_id: int, scopes: int) -> None:
        """Delete all nodes from an id on and all but the first ``scopes`` sub-graphs, and free their names."""
        for full in [*islice(self.scopes, scopes, None)]:
            del self.scopes[full]
        nodes = [node for node in self.nodes.values() if node.id >= first_id]
        if nodes:
            self.delete(nodes)
        for body in {scope.body for scope in self.scopes.values() if scope.body is not None}:  # which stay
            body.captured = {blob: own for blob, own in body.captured.items() if own.id < first_id}

    def withdraw(self, op: Op) -> None:
        """Take out an op whose first connection has failed. It may come back: see `put_back`."""
        if self.nodes.get(op.name) is op:
            self.delete([op])
            self._withdrawn.add(op.id)

    def put_back(self, op: Op) -> None:
        """Enter an op again that is to be connected after all.

        Raises:
            GraphError: if it was deleted, or its name is taken by now.
        """
        if op.id not in self._withdrawn or not op.graph._exists:
            raise GraphError(f"op {op.name!r} was deleted: it cannot be connected")
        self.check_free(op.name)
        self._withdrawn.remove(op.id)
        op.id = self.take_id()  # nodes stand in the order of their ids
        self.add(op)

    def delete_scope(self, full: str) -> None:
        """Delete a sub-graph with all that is in it.

        Raises:
            GraphError: if there is none of that name.
        """
        if full not in self.scopes:
            known = ", ".join(sorted(self.scopes)) or "none"
            near = did_you_mean(full, self.scopes)
            raise GraphError(f"no sub-graph {full!r} to delete; sub-graphs: {known}{near}")
        prefix = full + "/"
        self.delete(node for node in self.nodes.values() if node.name.startswith(prefix))
        for scope in [s for s in self.scopes if s == full or s.startswith(prefix)]:
            del self.scopes[scope]
