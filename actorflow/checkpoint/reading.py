"""Files read as far as they are needed: which of them has what, and the values for some variables."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from actorflow.checkpoint.snapshot import FORMAT
from actorflow.checkpoint.tensors import DamagedError, Outline, Tensor, dtype_code, read_file, read_outline
from actorflow.errors import CheckpointError
from actorflow.graph.nodes import Variable

#: Names that a message lists.
_SHOWN = 10

#: Under which names a file may have a variable's value, the best first.
Wanted = Mapping[Variable, tuple[str, ...]]


class Part(NamedTuple):
    """One of the files that a checkpoint is in.

    Attributes:
        path: The file.
        names: Of its tensors.
        rank: That saved it.
        ranks: How many saved together.
        frame: Number of the next frame there; None in weights, and in files of others.
        position: What the application said of its place in the data; None as above.
        replicas: Names of copies, with the name of what they are copies of.
        states: Names of what only a training needs.
    """

    path: Path
    names: frozenset[str]
    rank: int = 0
    ranks: int = 1
    frame: int | None = None
    position: dict[str, Any] | None = None
    replicas: Mapping[str, str] = {}
    states: frozenset[str] = frozenset()


class Found(NamedTuple):
    """What files have for some variables.

    Attributes:
        parts: The files that were looked into.
        arrays: Values, each in memory of its own.
        missing: Variables that no file has.
        problems: Types that differ, in words.
    """

    parts: list[Part]
    arrays: dict[Variable, npt.NDArray[Any]]
    missing: list[Variable]
    problems: list[str]


def find(paths: Sequence[Path], wanted: Wanted, *, every: bool = False) -> Found:
    """Look for variables in files, and read the files that have them; blocks.

    Args:
        paths: The files, the most likely one first.
        wanted: The variables.
        every: Whether to look into all files; else only until all variables have been found.
    Raises:
        CheckpointError: if a file cannot be read; `DamagedError` if it is damaged.
    """
    parts: list[Part] = []
    tensors: dict[Path, dict[str, Tensor]] = {}
    lacking = {names[0] for names in wanted.values()}
    for path in paths:
        if parts and not lacking and not every:
            break
        if len(paths) == 1:  # read at once, so that all of it is of one file though another one may take its place
            content = _read(path)
            tensors[path] = content.tensors
            outline = Outline(frozenset(content.tensors), content.metadata)
        else:
            outline = _outlined(path)
        parts.append(_part(path, outline))
        lacking -= outline.names
    homes = {variable: _home(names, parts) for variable, names in wanted.items()}
    arrays, problems = {}, []
    for part in parts:
        own = {variable: home[1] for variable, home in homes.items() if home is not None and home[0] is part}
        if own and part.path not in tensors:
            content = _read(part.path)
            tensors[part.path] = {name: content.tensors[name] for name in own.values() if name in content.tensors}
        for variable, name in own.items():
            tensor = tensors[part.path].get(name)
            if tensor is None:
                raise DamagedError(part.path, f"the file has been replaced while it was read: {name!r} is gone")
            if (tensor.shape, tensor.dtype) == (variable.shape, dtype_code(variable.dtype)):
                array = tensor.array(variable.dtype)
                arrays[variable] = array if name == wanted[variable][0] else array.copy()
            else:
                code = dtype_code(variable.dtype) or str(variable.dtype)
                problems.append(f"variable {variable.name!r} is {code}{list(variable.shape)}, the file has {tensor}")
        tensors.pop(part.path, None)
    return Found(parts, arrays, [variable for variable, home in homes.items() if home is None], problems)


def read_after(path: Path) -> str | None:
    """The step of the last whole checkpoint when a file was saved, "" if there was none; None where it does not say.

    Raises:
        CheckpointError: as for `find`.
    """
    return _outlined(path).metadata.get("after")


def check_fit(
    what: str, found: Found, missing: Sequence[str], unexpected: Sequence[str], strict: bool, known: Collection[str]
) -> None:
    """Check that what was found can be loaded.

    Args:
        what: The graph or scope, in words.
        found: What was found.
        missing: Names of variables that were not.
        unexpected: Names in the files that are none of its variables.
        strict: Whether these two are errors.
        known: Names under which a file may have a variable, on any rank.
    Raises:
        CheckpointError: saying all that does not fit.
    """
    problems = list(found.problems)
    lacks = "the file lacks" if len(found.parts) == 1 else f"the {len(found.parts)} files lack"
    if strict and missing:
        problems.append(f"{lacks} {_listed(missing)}")
    if strict and unexpected:
        problems.append(f"the graph has no variable {_listed(unexpected)}")
    names = sorted(set().union(*(part.names for part in found.parts)))
    if not problems and (missing or names) and not any(name in known for name in names):
        problems.append(
            "no name in it is that of a variable, so that nothing would be loaded: "
            f"it has {_listed(names) or 'none'}, expected {_listed([*known]) or 'none'}"
        )
    if problems:
        shown = problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])
        others = f" and {len(found.parts) - 1} more" if len(found.parts) > 1 else ""
        raise CheckpointError(f"{found.parts[0].path}{others} does not fit {what}: " + "; ".join(shown))


def _home(names: Sequence[str], parts: Sequence[Part]) -> tuple[Part, str] | None:
    """The file that has a variable, and its name there."""
    return next(((part, name) for name in names for part in parts if name in part.names), None)


def _read(path: Path) -> Any:
    try:
        return read_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint cannot be read: {error}") from error


def _outlined(path: Path) -> Outline:
    try:
        return read_outline(path)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint cannot be read: {error}") from error


def _part(path: Path, outline: Outline) -> Part:
    """What a file says of itself."""
    metadata = outline.metadata
    version = metadata.get("actorflow")
    if version is None:
        return Part(path, outline.names)
    if version != FORMAT:
        raise CheckpointError(f"{path}: expected a checkpoint of format {FORMAT}, got {version!r}")
    try:
        position = None if (text := metadata.get("position")) is None else dict(json.loads(text))
        frame = None if (text := metadata.get("frame")) is None else int(text)
        return Part(
            path,
            outline.names,
            int(metadata.get("rank", 0)),
            int(metadata.get("ranks", 1)),
            frame,
            position,
            dict(json.loads(metadata.get("replicas", "{}"))),
            frozenset(json.loads(metadata.get("states", "[]"))),
        )
    except (TypeError, ValueError) as error:
        raise DamagedError(path, f"the metadata are damaged: {type(error).__name__}: {error}") from error


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
