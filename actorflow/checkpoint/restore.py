"""Loading: a file's values put into a graph's variables, all of them or none."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from actorflow.checkpoint.snapshot import FORMAT, check_at_rest, own_variables, to_the_end
from actorflow.checkpoint.tensors import Content, DamagedError, dtype_code, read_file
from actorflow.errors import CheckpointError
from actorflow.graph import Graph

__all__ = ["Checkpoint", "load_checkpoint", "load_checkpoint_sync"]

#: Names that a message lists.
_SHOWN = 10


class Checkpoint(NamedTuple):
    """What has been loaded.

    Attributes:
        path: The file.
        frame: Number of the graph's next frame; None in files of others.
        position: What the application said of its place in the data.
        missing: Variables that the file does not have, which keep their values.
        unexpected: Names in the file that are no variables of the graph.
    """

    path: Path
    frame: int | None
    position: dict[str, Any]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


class Fitting(NamedTuple):
    """A file that fits a graph, read."""

    checkpoint: Checkpoint
    arrays: dict[str, npt.NDArray[Any]]


async def load_checkpoint(graph: Graph, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
    """Put a file's values into the variables of a graph; what it runs next is what ran after the file was saved.

    The file is read in a thread. Any safetensors file will do whose names are those of variables; without a frame's
    number the graph's goes on.

    Args:
        graph: Any graph of the root; the root's variables are loaded.
        path: The file.
        strict: Whether variables that the file lacks, and names that are no variables, are errors.
    Raises:
        CheckpointError: if the file cannot be read or is damaged; if a shape or dtype differs from the variable's, with
            both; or, if ``strict``, if names differ. Nothing has been changed then.
        GraphError: if frames are in flight.
        MissingExtraError: if safetensors is not installed.
    """
    root = graph.root
    check_at_rest(root, "loaded")
    content = await to_the_end(lambda: read(root, Path(path), strict))
    return put(root, content)


def load_checkpoint_sync(graph: Graph, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
    """`load_checkpoint` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await load_checkpoint(...)`` there.
        CheckpointError, GraphError: as for `load_checkpoint`.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("load_checkpoint_sync() inside a running event loop would block it: use load_checkpoint()")
    return put(graph.root, read(graph.root, Path(path), strict))


def read(root: Graph, path: Path, strict: bool) -> Fitting:
    """Read a file and check it, and that it fits; blocks.

    Raises:
        CheckpointError: as for `load_checkpoint`; `DamagedError` if the file is.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint cannot be read: {error}") from error
    checkpoint = _checked(root, path, content, strict)
    variables = [variable for variable in own_variables(root) if variable.name in content.tensors]
    return Fitting(checkpoint, {each.name: content.tensors[each.name].array(each.dtype) for each in variables})


def put(root: Graph, content: Fitting) -> Checkpoint:
    """Assign what has been read.

    Raises:
        GraphError: if frames are in flight.
    """
    check_at_rest(root, "loaded")
    for name, array in content.arrays.items():
        root[name].commit(array)
    if content.checkpoint.frame is not None:
        root.engine.next_number = content.checkpoint.frame
    return content.checkpoint


def _checked(root: Graph, path: Path, content: Content, strict: bool) -> Checkpoint:
    """What the file says of itself, if its tensors fit the variables."""
    known = {variable.name: variable for variable in own_variables(root)}
    problems = []
    for name, variable in known.items():
        tensor = content.tensors.get(name)
        if tensor is not None and (tensor.shape, tensor.dtype) != (variable.shape, dtype_code(variable.dtype)):
            code = dtype_code(variable.dtype) or str(variable.dtype)
            problems.append(f"variable {name!r} is {code}{list(variable.shape)}, the file has {tensor}")
    missing = tuple(name for name in known if name not in content.tensors)
    unexpected = tuple(name for name in content.tensors if name not in known)
    if strict and missing:
        problems.append(f"the file lacks {_listed(missing)}")
    if strict and unexpected:
        problems.append(f"the graph has no variable {_listed(unexpected)}")
    if problems:
        shown = problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])
        raise CheckpointError(f"{path} does not fit graph {root.name!r}: " + "; ".join(shown))
    frame, position = _facts(path, content.metadata)
    return Checkpoint(path, frame, position, missing, unexpected)


def _facts(path: Path, metadata: Mapping[str, str]) -> tuple[int | None, dict[str, Any]]:
    """The frame's number and the position."""
    version = metadata.get("actorflow")
    if version is None:
        return None, {}
    if version != FORMAT:
        raise CheckpointError(f"{path}: expected a checkpoint of format {FORMAT}, got {version!r}")
    try:
        return int(metadata["frame"]), dict(json.loads(metadata["position"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{path}: the metadata are damaged: {type(error).__name__}: {error}") from error


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
