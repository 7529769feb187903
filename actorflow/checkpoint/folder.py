"""A folder that keeps the last checkpoints of a training."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from functools import partial
from pathlib import Path

from actorflow.checkpoint.files import LEFTOVER
from actorflow.checkpoint.restore import Checkpoint, Fitting, put, read
from actorflow.checkpoint.snapshot import PendingSnapshot, Position, check_at_rest, take_snapshot, to_the_end
from actorflow.checkpoint.tensors import DamagedError, require_format
from actorflow.errors import CheckpointError, GraphError
from actorflow.graph import Graph
from actorflow.ranks.gathering import gather

__all__ = ["Checkpoints"]

_log = logging.getLogger("actorflow")

_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
_LEFT = re.compile(rf"\.{_NAME.pattern}{LEFTOVER}")


class Checkpoints:
    """The last checkpoints of a graph, each under the number of its step, in a folder of their own.

    ::

        checkpoints = af.Checkpoints(graph, "runs/digits", keep=3)
        found = await checkpoints.load()          # None at the first start
        await checkpoints.save(step=1000, position={"epoch": 2})

    One process at a time may save into a folder. Of a graph that several ranks run, each has its own variables in a
    folder within, ``rank-1`` say, and all must save and load the same steps; what is loaded is the last one that all
    have.

    Args:
        graph: Any graph of the root; all variables of the root are saved.
        folder: Made when something is saved.
        keep: How many are kept, at least 1; None for all.

    Attributes:
        folder: As given, or this rank's within.
        keep: As given.

    Raises:
        GraphError: if ``keep`` is less than 1.
        MissingExtraError: if safetensors is not installed.
    """

    def __init__(self, graph: Graph, folder: str | os.PathLike[str], *, keep: int | None = 3) -> None:
        if keep is not None and keep < 1:
            raise GraphError(f"Checkpoints: keep must be at least 1, got {keep}")
        require_format()  # now, not when the first one is to be saved
        self._graph = graph.root
        self._world = self._graph.world
        self.folder = Path(folder) if self._world.size == 1 else Path(folder) / f"rank-{self._world.rank}"
        self.keep = keep
        self._writing = asyncio.Lock()
        self._latest: int | None = None

    def steps(self) -> dict[int, Path]:
        """The files by step, in ascending order.

        Raises:
            CheckpointError: if the folder cannot be read.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CheckpointError(f"{self.folder}: the folder cannot be used: {error}") from error
        found = {int(match[1]): self.folder / match[0] for match in map(_NAME.fullmatch, names) if match}
        return dict(sorted(found.items()))

    def save(self, step: int, position: Position | None = None) -> asyncio.Task[Path]:
        """Save the graph as it is at this call: after all frames started so far, before all later ones.

        Frames go on meanwhile; the file is written in a thread. When it is there, those before the last ``keep`` are
        deleted.

        Args:
            step: Its number, more than those of the files that are there; a file of the same step is replaced.
            position: As for `save_checkpoint`.
        Returns:
            A task that ends with the file's path, and raises what `save_checkpoint` does. Await it some time.
        Raises:
            CheckpointError: if the folder has later steps than this one, which another training must have saved: a
                checkpoint would be the oldest one there, and `load` would take theirs.
        """
        later = [known for known in self.steps() if known > max(step, self._latest or 0)]
        if step < 0 or later or (self._latest is not None and step < self._latest):
            newest = later[-1] if later else self._latest
            raise CheckpointError(
                f"{self.folder}: step {step} cannot be saved, there is a checkpoint of step {newest}: "
                "load that one, delete it, or use another folder"
            )
        self._latest = step
        return asyncio.ensure_future(self._save(step, take_snapshot(self._graph, position)))

    async def load(self, *, step: int | None = None, strict: bool = True, fallback: bool = False) -> Checkpoint | None:
        """Load the last checkpoint.

        Args:
            step: Another one.
            strict: As for `load_checkpoint`.
            fallback: Whether to take the one before where a file is damaged. Such files are logged, and renamed so that
                they are out of the way.
        Returns:
            What was loaded; None if there is nothing.
        Raises:
            CheckpointError, GraphError: as for `load_checkpoint`; if there is no such step; if all are damaged.
        """
        check_at_rest(self._graph, "loaded")
        steps = await self._common_steps()
        if step is not None and step not in steps:
            known = ", ".join(map(str, steps)) or "none"
            raise CheckpointError(f"{self.folder}: there is no checkpoint of step {step}; there are {known}")
        damaged = []
        for number in reversed(steps) if step is None else [step]:
            content, error = await self._read(steps[number], strict)
            problems = await gather(self._world, "checkpoint read", error and str(error))
            problem = error or next((CheckpointError(text) for text in problems if text), None)
            if problem is None:
                assert content is not None
                self._latest = number
                return put(self._graph, content)
            if not fallback:
                raise problem
            damaged.append(problem)
            if error is not None:
                _log.warning("%s; taking the one before", error)
                os.replace(steps[number], f"{steps[number]}.damaged")
        if damaged:
            raise CheckpointError(f"{self.folder}: all checkpoints are damaged: {damaged[0]}") from damaged[0]
        return None

    async def _common_steps(self) -> dict[int, Path]:
        """The files of the steps that all ranks have."""
        steps = self.steps()
        of_all = await gather(self._world, "checkpoint steps", list(steps))
        return {number: path for number, path in steps.items() if all(number in known for known in of_all)}

    async def _read(self, path: Path, strict: bool) -> tuple[Fitting | None, DamagedError | None]:
        """A file, or how it is damaged."""
        try:
            return await to_the_end(partial(read, self._graph, path, strict)), None
        except DamagedError as error:
            return None, error

    async def _save(self, step: int, snapshot: PendingSnapshot) -> Path:
        path = self.folder / f"checkpoint-{step:010d}.safetensors"
        async with self._writing:
            try:
                await to_the_end(self._prepare)
            except OSError as error:
                raise CheckpointError(f"{self.folder}: the folder cannot be used: {error}") from error
            await snapshot.save(path)
            await to_the_end(self._prune)
        return path

    def _prepare(self) -> None:
        """Make the folder, and delete what a killed process left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if _LEFT.fullmatch(path.name):
                shutil.rmtree(path)

    def _prune(self) -> None:
        if self.keep is not None:
            for path in list(self.steps().values())[: -self.keep]:
                path.unlink(missing_ok=True)
