"""Saving: what a graph is between two frames, and its file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from actorflow.checkpoint.files import write_atomically
from actorflow.checkpoint.position import Position, position_text
from actorflow.checkpoint.tensors import dtype_code, require_format, write_file
from actorflow.errors import CheckpointError, GraphError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Variable
from actorflow.interchange import to_numpy
from actorflow.threads import in_thread

#: Version of what the metadata say.
FORMAT = "1"

_T = TypeVar("_T")


class Snapshot(NamedTuple):
    """What a graph is between two frames.

    Attributes:
        arrays: Values of the variables by name, wherever they are.
        metadata: What the file says besides.
    """

    arrays: dict[str, Any]
    metadata: dict[str, str]

    def save(self, path: Path) -> None:
        """Write the file; blocks.

        Raises:
            CheckpointError: if it cannot be written.
        """
        arrays = {name: to_numpy(array) for name, array in self.arrays.items()}
        try:
            write_atomically(path, lambda temporary: write_file(temporary, arrays, self.metadata))
        except OSError as error:
            raise CheckpointError(f"{path}: the checkpoint cannot be written: {error}") from error


async def save_checkpoint(graph: Graph, path: str | os.PathLike[str], position: Position | None = None) -> None:
    """Save a graph to a file, while it runs: what it is after all frames started before this, and before all others.

    No frame waits for that, and the file is written in a thread. It replaces one of its name only when it is whole.

    Args:
        graph: Any graph of the root; all variables of the root are saved, of a graph that several ranks run those whose
            place is on this rank.
        path: The file, ``.safetensors`` by custom; one for each rank.
        position: Where the application is in its data, for `load_checkpoint` to give back: what JSON can hold and gives
            back as it was, so keys are texts, and sequences lists.
    Raises:
        CheckpointError: if the file cannot be written, a variable's dtype cannot be stored, or ``position`` is not
            JSON, naming the key.
        GraphError: if one of the frames before fails or is cancelled, so that some of its updates may be missing.
        MissingExtraError: if safetensors is not installed.
    Cancellation: once the file is being written, that is done to its end before CancelledError is raised.
    """
    await take_snapshot(graph, position).save(Path(path))


def save_checkpoint_sync(graph: Graph, path: str | os.PathLike[str], position: Position | None = None) -> None:
    """`save_checkpoint` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await save_checkpoint(...)`` there.
        CheckpointError: as for `save_checkpoint`.
        GraphError: if frames are in flight.
    """
    check_no_loop("save_checkpoint")
    root = graph.root
    check_at_rest(root, "saved")
    variables, text = _saved(root, position)
    frame = 0 if root._engine is None else root._engine.next_number
    metadata = metadata_of(root, variables, frame=str(frame), position=text)
    Snapshot({variable.name: variable.held for variable in variables}, metadata).save(Path(path))


class PendingSnapshot(NamedTuple):
    """A snapshot that has begun: its moment is fixed, its values may still be computed.

    Attributes:
        names: Names of the variables in the file.
        values: Gives the variables' values.
        metadata: What the file says besides.
    """

    names: tuple[str, ...]
    values: Awaitable[list[Any]]
    metadata: dict[str, str]

    async def save(self, path: Path) -> None:
        """Wait for the values and write the file, in a thread.

        Raises:
            CheckpointError, GraphError: as for `save_checkpoint`.
        """
        arrays = dict(zip(self.names, await self.values, strict=True))
        await to_the_end(lambda: Snapshot(arrays, self.metadata).save(path))


def take_snapshot(graph: Graph, position: Position | None) -> PendingSnapshot:
    """Begin a snapshot of this very moment.

    Raises:
        CheckpointError: as for `save_checkpoint`.
    """
    root = graph.root
    variables, text = _saved(root, position)
    frame, values = root.engine.snapshot(variables)
    metadata = metadata_of(root, variables, frame=str(frame), position=text)
    return PendingSnapshot(tuple(variable.name for variable in variables), values, metadata)


async def to_the_end(work: Callable[[], _T]) -> _T:
    """Do blocking work in a thread; a cancellation waits for its end."""
    task = asyncio.ensure_future(in_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the cancellation is what is told
        raise


def check_at_rest(root: Graph, what: str) -> None:
    """Check that no frame is in flight.

    Raises:
        GraphError: if there is one.
    """
    count = 0 if root._engine is None else root._engine.frames.in_flight
    if count:
        raise GraphError(f"graph {root.name!r} cannot be {what} with frames in flight, it has {count}: await them")


def own_variables(root: Graph) -> list[Variable]:
    """The variables whose values are on this rank."""
    rank = root.world.rank
    return [variable for variable in root.variables if variable.place.rank == rank]


def check_no_loop(name: str) -> None:
    """Check that a function for scripts is not called where it would block a loop.

    Raises:
        RuntimeError: inside a running event loop.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"{name}_sync() inside a running event loop would block it: use {name}()")


def check_storable(variables: Iterable[Variable]) -> None:
    """Check that a file can have the values of variables.

    Raises:
        CheckpointError: naming the one whose dtype the format does not have.
        MissingExtraError: if safetensors is not installed.
    """
    require_format()
    for variable in variables:
        if dtype_code(variable.dtype) is None:
            raise CheckpointError(f"variable {variable.name!r} cannot be saved: safetensors has no {variable.dtype}")


def metadata_of(root: Graph, variables: Iterable[Variable], **more: str) -> dict[str, str]:
    """What a file says besides the values: who saved it, and which of its variables others can do without.

    Args:
        root: The graph.
        variables: That are saved, by their full names.
        more: Further metadata.
    """
    replicas = {variable.name: variable.replica_of.name for variable in variables if variable.replica_of is not None}
    states = [variable.name for variable in variables if variable.is_state]
    facts = {"actorflow": FORMAT, "rank": str(root.world.rank), "ranks": str(root.world.size)}
    return {**facts, "replicas": json.dumps(replicas), "states": json.dumps(states), **more}


def _saved(root: Graph, position: Position | None) -> tuple[Sequence[Variable], str]:
    """The variables that are saved, and the position as JSON."""
    variables = own_variables(root)
    check_storable(variables)
    return variables, position_text(position)
