"""Checkpoint of a graph in one file: its state between two frames, saved while it runs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy.typing as npt

from actorflow.checkpoint.file import FORMAT, check_fit, dtype_code, find, require_format, write_atomically, write_file
from actorflow.errors import CheckpointError, GraphError
from actorflow.graph.graph import Graph, root_of
from actorflow.graph.nodes import Variable
from actorflow.interchange import to_numpy
from actorflow.loop import wait_out
from actorflow.threads import in_thread

#: Where an application is in its data.
Position = Mapping[str, Any]


def position_text(position: Position | None) -> str:
    """A position as JSON; raises CheckpointError naming the key of a value that JSON would change."""
    plain = dict(position or {})
    try:
        _check(plain, "position")
        return json.dumps(plain)
    except (RecursionError, ValueError) as error:  # for instance one that contains itself
        raise CheckpointError(f"the position must be what JSON can hold: {type(error).__name__}: {error}") from error


def _check(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(
                    f"the position must be what JSON can hold: {where} has the key {key!r}, of type "
                    f"{type(key).__name__}, and JSON's keys are texts: use {str(key)!r}, or a list of pairs"
                )
            _check(item, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check(item, f"{where}[{i}]")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        hint = ", which would come back as a list" if isinstance(value, tuple) else ""
        raise CheckpointError(
            f"the position must be what JSON can hold: {where} is of type {type(value).__name__}{hint}: {value!r:.200}"
        )


_T = TypeVar("_T")


def write(path: Path, values: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write values by name, wherever they are, and the file's metadata; blocks; raises CheckpointError."""
    arrays = {name: to_numpy(value) for name, value in values.items()}
    try:
        write_atomically(path, lambda temporary: write_file(temporary, arrays, metadata))
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint cannot be written: {error}") from error


async def save_checkpoint(graph: Graph, path: str | os.PathLike[str], position: Position | None = None) -> None:
    """Save a graph to a file, while it runs: its state after all frames started before this, and before all others.

    No frame waits for that, and the file is written in a thread. It replaces one of its name only when it is whole.

    Args:
        graph: Any graph of the root; all variables of the root are saved, of a graph that several ranks run those whose
            place is on this rank.
        path: The file, ``.safetensors`` by custom; one for each rank.
        position: Place of the application in its data, for `load_checkpoint` to return: a value JSON can hold and gives
            back as it was, so keys are texts, and sequences lists.
    Raises:
        CheckpointError: if the file cannot be written, a variable's dtype cannot be stored, or ``position`` is not
            JSON, naming the key.
        GraphError: if one of the frames before fails or is cancelled, so that some of its updates may be missing.
        MissingExtraError: if safetensors is not installed.
    Cancellation: once the file is being written, that is done to its end before CancelledError is raised.

    Example:
        >>> import asyncio
        >>> graph = af.Graph("counter")
        >>> count = graph.variable("count", [], init=3)
        >>> asyncio.run(af.save_checkpoint(graph, "counter.safetensors", position={"epoch": 2}))
        >>> count.value = 0
        >>> asyncio.run(af.load_checkpoint(graph, "counter.safetensors")).position
        {'epoch': 2}
        >>> count.value
        array(3., dtype=float32)
    """
    await take_snapshot(graph, position).save(Path(path))


def save_checkpoint_sync(graph: Graph, path: str | os.PathLike[str], position: Position | None = None) -> None:
    """`save_checkpoint` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await save_checkpoint(...)`` there.
        CheckpointError: as for `save_checkpoint`.
        GraphError: if frames are in flight.

    Example:
        >>> graph = af.Graph("counter")
        >>> count = graph.variable("count", [], init=3)
        >>> af.save_checkpoint_sync(graph, "counter.safetensors")
        >>> count.value = 0
        >>> _ = af.load_checkpoint_sync(graph, "counter.safetensors")
        >>> count.value
        array(3., dtype=float32)
    """
    check_no_loop("save_checkpoint")
    root = root_of(graph)
    check_at_rest(root, "saved")
    variables, text = _saved(root, position)
    frame = next_frame(root)
    metadata = metadata_of(root, variables, frame=str(frame), position=text)
    write(Path(path), {variable.name: variable.held for variable in variables}, metadata)


class PendingSnapshot(NamedTuple):
    """A snapshot that has begun: its moment is fixed, its values may still be computed."""

    names: tuple[str, ...]  # names of the variables in the file
    values: Awaitable[list[Any]]  # gives the variables' values
    metadata: dict[str, str]  # of the file

    async def save(self, path: Path) -> None:
        """Wait for the values and write the file, in a thread; raises as `save_checkpoint` does."""
        values = dict(zip(self.names, await self.values, strict=True))
        await to_the_end(lambda: write(path, values, self.metadata))


def take_snapshot(graph: Graph, position: Position | None) -> PendingSnapshot:
    """Begin a snapshot of this very moment; raises CheckpointError as for `save_checkpoint`."""
    root = root_of(graph)
    variables, text = _saved(root, position)
    frame, values = root.engine.snapshot(variables)
    metadata = metadata_of(root, variables, frame=str(frame), position=text)
    return PendingSnapshot(tuple(variable.name for variable in variables), values, metadata)


async def to_the_end(work: Callable[[], _T]) -> _T:
    """Do blocking work in a thread; a cancellation waits for its end."""
    task = asyncio.ensure_future(in_thread(work))
    try:
        await wait_out([task])
    except asyncio.CancelledError:
        if not task.cancelled():
            task.exception()  # the cancellation is told instead
        raise
    return task.result()


def check_at_rest(root: Graph, what: str) -> None:
    """Check that no frame is in flight; raises GraphError if there is one."""
    count = 0 if root._engine is None else root._engine.frames.in_flight
    if count:
        raise GraphError(f"graph {root.name!r} cannot be {what} with frames in flight, it has {count}: await them")


def next_frame(root: Graph) -> int:
    """Number of the frame that a graph starts next, which random streams depend on."""
    return root._first_frame if root._engine is None else root._engine.next_number


def own_variables(root: Graph) -> list[Variable]:
    """The variables whose values are on this rank."""
    rank = root.world.rank
    return [variable for variable in root.variables if variable.place.rank == rank]


def check_no_loop(name: str) -> None:
    """Check that a function for scripts is not called in a running loop, which it would block; raises RuntimeError."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"{name}_sync() inside a running event loop would block it: use {name}()")


def check_storable(variables: Iterable[Variable]) -> None:
    """Check that a file can have the values of variables; raises CheckpointError naming one that it cannot have."""
    require_format()
    for variable in variables:
        if dtype_code(variable.dtype) is None:
            raise CheckpointError(f"variable {variable.name!r} cannot be saved: safetensors has no {variable.dtype}")


def metadata_of(root: Graph, variables: Iterable[Variable], **more: str) -> dict[str, str]:
    """Metadata of a file: which rank saved it, and which of its variables others can do without."""
    replicas = {variable.name: variable.replica_of.name for variable in variables if variable.replica_of is not None}
    states = [variable.name for variable in variables if variable.is_state]
    facts = {"actorflow": FORMAT, "rank": str(root.world.rank), "ranks": str(root.world.size)}
    return {**facts, "replicas": json.dumps(replicas), "states": json.dumps(states), **more}


def _saved(root: Graph, position: Position | None) -> tuple[Sequence[Variable], str]:
    variables = own_variables(root)
    check_storable(variables)
    return variables, position_text(position)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been loaded.

    Attributes:
        path: The file; of a checkpoint that another number of ranks saved, the first one's.
        frame: Number of the graph's next frame; None in files of others.
        positions: The application's place in the data, by rank that saved it: this rank's alone where as
            many ranks load it as have saved it, else that of all.
        missing: Variables of this rank that the file does not have, which keep their values.
        unexpected: Names in the file that are not variables of the graph.
        saved_on: How many ranks saved it.
        rank: This one.
        size: How many ranks load it.

    Example:
        >>> graph = af.Graph("counter")
        >>> count = graph.variable("count", [], init=3)
        >>> af.save_checkpoint_sync(graph, "counter.safetensors", position={"epoch": 2})
        >>> checkpoint = af.load_checkpoint_sync(graph, "counter.safetensors")
        >>> checkpoint.path.name, checkpoint.frame, checkpoint.position
        ('counter.safetensors', 0, {'epoch': 2})
    """

    path: Path
    frame: int | None
    positions: dict[int, dict[str, Any]]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    saved_on: int = 1
    rank: int = 0
    size: int = 1

    @property
    def is_resharded(self) -> bool:
        """True if another number of ranks saved it."""
        return self.saved_on != self.size

    @property
    def position(self) -> dict[str, Any]:
        """Place in the data as the application gave it: this rank's, or that of all ranks that saved it.

        Raises:
            CheckpointError: if another number of ranks saved it and they were at different places, so that this rank's
                is to be made of ``positions``.

        Example:
            >>> graph = af.Graph("g")
            >>> _ = graph.variable("w", [2])
            >>> af.save_checkpoint_sync(graph, "g.safetensors", position={"epoch": 2, "batch": 17})
            >>> af.load_checkpoint_sync(graph, "g.safetensors").position["batch"]
            17
        """
        if not self.is_resharded and self.rank in self.positions:
            return self.positions[self.rank]
        known = list(self.positions.values())
        if len(known) == self.saved_on and all(position == known[0] for position in known):
            return known[0]
        raise CheckpointError(
            f"{self.path}: {self.saved_on} ranks have saved it, each at a place of its own in the data, none of which "
            f"is that of rank {self.rank} of {self.size}: make it of `positions`"
        )


class Fitting(NamedTuple):
    """Files that fit a graph, read."""

    checkpoint: Checkpoint
    arrays: dict[Variable, npt.NDArray[Any]]


async def load_checkpoint(graph: Graph, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
    """Put a file's values into the variables of a graph; its next run is the one after the file was saved.

    The file is read in a thread. Any safetensors file will do whose names are those of variables; without a frame's
    number the graph's goes on. A copy of a variable (`Graph.replica`, data parallel) that the file does not have gets
    the value of the variable itself; copies that the graph does not have are left out.

    Args:
        graph: Any graph of the root; the root's variables are loaded, of a graph that several ranks run those whose
            place is on this rank.
        path: The file.
        strict: Whether variables that the file lacks, and names that are not variables, are errors; else they are given
            back as ``missing`` and ``unexpected``.
    Raises:
        CheckpointError: if the file cannot be read or is damaged; if a shape or dtype differs from the variable's, with
            both; if nothing in it is a variable's; or, if ``strict``, if names differ. Nothing has been changed then.
        GraphError: if frames are in flight.
        MissingExtraError: if safetensors is not installed.

    Example:
        >>> import asyncio
        >>> graph = af.Graph("net")
        >>> w = graph.variable("w", [2], init=[1, 2])
        >>> af.save_checkpoint_sync(graph, "net.safetensors")
        >>> bias = graph.variable("bias", [])  # which the file does not have
        >>> checkpoint = asyncio.run(af.load_checkpoint(graph, "net.safetensors", strict=False))
        >>> checkpoint.missing, checkpoint.unexpected
        (('bias',), ())
    """
    root = root_of(graph)
    check_at_rest(root, "loaded")
    content = await to_the_end(lambda: read(root, [Path(path)], strict))
    return put(root, content)


def load_checkpoint_sync(graph: Graph, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
    """`load_checkpoint` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await load_checkpoint(...)`` there.
        CheckpointError, GraphError: as for `load_checkpoint`.

    Example:
        >>> graph = af.Graph("net")
        >>> w = graph.variable("w", [2], init=[1, 2])
        >>> af.save_checkpoint_sync(graph, "net.safetensors")
        >>> w.value = 0, 0
        >>> af.load_checkpoint_sync(graph, "net.safetensors").missing
        ()
        >>> w.value
        array([1., 2.], dtype=float32)
    """
    check_no_loop("load_checkpoint")
    root = root_of(graph)
    return put(root, read(root, [Path(path)], strict))


def read(
    root: Graph, paths: Sequence[Path], strict: bool, *, ranks: Sequence[int] = (), saved_on: int | None = None
) -> Fitting:
    """Read files and check them, and that they fit; blocks.

    Args:
        paths: The files: this rank's first, if there is one.
        ranks: Which rank saved each file, where that is known.
        saved_on: How many saved them together. If that is another number than there are, all files are looked into.
    Raises:
        CheckpointError: as for `load_checkpoint`; `DamagedError` if one is damaged.
    """
    own, world = own_variables(root), root.world
    every = saved_on not in (None, world.size)
    wanted = {each: (each.name,) if each.replica_of is None else (each.name, each.replica_of.name) for each in own}
    found = find(paths, wanted, every=every)
    known = dict.fromkeys(variable.name for variable in root.variables)  # of all ranks
    missing = tuple(variable.name for variable in found.missing)
    unexpected = tuple(
        name
        for part in found.parts
        for name in sorted(part.names)
        if name not in known and part.replicas.get(name) not in known
    )
    check_fit(f"graph {root.name!r}", found, missing, unexpected, strict, known)
    parts = found.parts if every else found.parts[:1]
    checkpoint = Checkpoint(
        parts[0].path,
        max((part.frame for part in parts if part.frame is not None), default=None),
        {rank: part.position or {} for rank, part in zip(ranks or [part.rank for part in parts], parts, strict=False)},
        missing,
        unexpected,
        parts[0].ranks if saved_on is None else saved_on,
        world.rank,
        world.size,
    )
    return Fitting(checkpoint, found.arrays)


def put(root: Graph, content: Fitting) -> Checkpoint:
    """Assign the values read; raises GraphError if frames are in flight."""
    assign(root, content.arrays)
    if content.checkpoint.frame is not None:
        root.engine.next_number = content.checkpoint.frame
    return content.checkpoint


def assign(root: Graph, arrays: Mapping[Variable, npt.NDArray[Any]]) -> None:
    """Give variables new values; raises GraphError if frames are in flight."""
    check_at_rest(root, "loaded")
    for variable, array in arrays.items():
        variable.commit(array)
