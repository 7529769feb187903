"""Loading: files' values put into a graph's variables, all of them or none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from actorflow.checkpoint.reading import check_fit, find
from actorflow.checkpoint.snapshot import check_at_rest, check_no_loop, own_variables, to_the_end
from actorflow.errors import CheckpointError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Variable


@dataclass(frozen=True)
class Checkpoint:
    """What has been loaded.

    Attributes:
        path: The file; of a checkpoint that another number of ranks saved, the first one's.
        frame: Number of the graph's next frame; None in files of others.
        positions: What the application said of its place in the data, by rank that saved it: this rank's alone where as
            many ranks load it as have saved it, else that of all.
        missing: Variables of this rank that the file does not have, which keep their values.
        unexpected: Names in the file that are no variables of the graph.
        saved_on: How many ranks saved it.
        rank: This one.
        size: How many ranks load it.
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
        """Whether another number of ranks saved it."""
        return self.saved_on != self.size

    @property
    def position(self) -> dict[str, Any]:
        """What the application said of its place in the data: this rank's, or what all ranks said that saved it.

        Raises:
            CheckpointError: if another number of ranks saved it and they were at different places, so that this rank's
                is to be made of ``positions``.
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
    """Put a file's values into the variables of a graph; what it runs next is what ran after the file was saved.

    The file is read in a thread. Any safetensors file will do whose names are those of variables; without a frame's
    number the graph's goes on. A copy of a variable (`Graph.replica`, data parallel) that the file does not have gets
    the value of the variable itself; copies that the graph does not have are left out.

    Args:
        graph: Any graph of the root; the root's variables are loaded, of a graph that several ranks run those whose
            place is on this rank.
        path: The file.
        strict: Whether variables that the file lacks, and names that are no variables, are errors; else they are given
            back as ``missing`` and ``unexpected``.
    Raises:
        CheckpointError: if the file cannot be read or is damaged; if a shape or dtype differs from the variable's, with
            both; if nothing in it is a variable's; or, if ``strict``, if names differ. Nothing has been changed then.
        GraphError: if frames are in flight.
        MissingExtraError: if safetensors is not installed.
    """
    root = graph.root
    check_at_rest(root, "loaded")
    content = await to_the_end(lambda: read(root, [Path(path)], strict))
    return put(root, content)


def load_checkpoint_sync(graph: Graph, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
    """`load_checkpoint` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await load_checkpoint(...)`` there.
        CheckpointError, GraphError: as for `load_checkpoint`.
    """
    check_no_loop("load_checkpoint")
    return put(graph.root, read(graph.root, [Path(path)], strict))


def read(
    root: Graph, paths: Sequence[Path], strict: bool, *, ranks: Sequence[int] = (), saved_on: int | None = None
) -> Fitting:
    """Read files and check them, and that they fit; blocks.

    Args:
        root: The graph.
        paths: The files: this rank's first, if there is one.
        strict: As for `load_checkpoint`.
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
    """Assign what has been read.

    Raises:
        GraphError: if frames are in flight.
    """
    check_at_rest(root, "loaded")
    for variable, array in content.arrays.items():
        variable.commit(array)
    if content.checkpoint.frame is not None:
        root.engine.next_number = content.checkpoint.frame
    return content.checkpoint
