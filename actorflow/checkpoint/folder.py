"""A folder that keeps the last checkpoints of a training."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from actorflow.checkpoint import checkpoint
from actorflow.checkpoint.file import LEFTOVER, DamagedError, read_outline, require_format
from actorflow.errors import CheckpointError
from actorflow.errors import whole as whole_number
from actorflow.graph.graph import Graph, root_of
from actorflow.ranks.hub import Announcements, gather
from actorflow.threads import forget_in_child

_log = logging.getLogger("actorflow")

_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
_LEFT = re.compile(rf"\.{_NAME.pattern}{LEFTOVER}")
#: The folder of a rank within; those of earlier versions do not say of how many it is one.
_RANK = re.compile(r"rank-(\d+)(?:-of-(\d+))?")

_T = TypeVar("_T")


class _Saved(NamedTuple):
    """A checkpoint: the files that ``size`` ranks have saved at a step."""

    step: int
    size: int

    def __str__(self) -> str:
        return f"step {self.step}" + (f" of {self.size} ranks" if self.size > 1 else "")


_Files = dict[int, Path]  # the files by rank
#: Files that each rank sees, as it has told: step, number of ranks, and which of them.
_Seen = Sequence[Sequence[tuple[int, int, list[int]]]]


class Checkpoints:
    """The last checkpoints of a graph, each under the number of its step, in a folder of their own.

    One job at a time may save into a folder. Of a graph that several ranks run, each saves its own variables in a
    folder within, ``rank-1-of-4`` say, and all must save and load the same steps; it loads the last one that
    all have saved. These folders may be on disks of the ranks' own.

    Any number of ranks can load a checkpoint of any other number, if all see all files: each takes the values of
    its variables, by name, from where they are. See `load`.

    Args:
        graph: Any graph of the root; all variables of the root are saved.
        folder: Made when something is saved.
        keep: How many are kept, at least 1; None for all. A rank deletes a file when all ranks have as many later ones.

    Attributes:
        folder: As given, or this rank's within.
        keep: As given.

    Raises:
        GraphError: if ``keep`` is less than 1.
        MissingExtraError: if safetensors is not installed.

    Example:
        >>> import asyncio
        >>> graph = af.Graph("net")
        >>> w = graph.variable("w", [], init=1)
        >>> checkpoints = af.Checkpoints(graph, "runs/net", keep=2)
        >>> async def main():
        ...     print(await checkpoints.load())  # nothing at the first start
        ...     for step in 10, 20, 30:
        ...         w.value = step
        ...         await checkpoints.save(step, position={"epoch": step // 10})
        ...     w.value = 0
        ...     return (await checkpoints.load()).position, w.value.item()
        >>> asyncio.run(main())
        None
        ({'epoch': 3}, 30.0)
        >>> list(checkpoints.steps())
        [20, 30]
    """

    def __init__(self, graph: Graph, folder: str | os.PathLike[str], *, keep: int | None = 3) -> None:
        keep = None if keep is None else whole_number("Checkpoints: keep", keep, 1)
        require_format()  # now, not when the first one is to be saved
        self._graph = root_of(graph)
        self._world = world = self._graph.world
        self._top = Path(folder)
        self.folder = self._top if world.size == 1 else self._top / f"rank-{world.rank}-of-{world.size}"
        self.keep = keep
        self._latest: int | None = None
        self._whole: set[int] = set()  # steps that all ranks are known to have
        self._leftovers: list[Path] = []  # files of this rank, of steps that others do not have
        self._any_leftovers = False  # on whichever rank
        self._announced: Announcements | None = None
        forget_in_child(self).forget_parent()

    def forget_parent(self) -> None:
        """Begin: at first, and in the child of a fork, where nothing is being written."""
        self._writing = asyncio.Lock()

    def steps(self) -> dict[int, Path]:
        """The files by step, in ascending order: this rank's, or the first of those that another number of ranks saved.

        Raises:
            CheckpointError: if the folder cannot be read.

        Example:
            >>> graph = af.Graph("g")
            >>> _ = graph.variable("w", [2])
            >>> checkpoints = af.Checkpoints(graph, "runs/g")
            >>> async def main():
            ...     await checkpoints.save(10)
            ...     await checkpoints.save(20)
            >>> af.run(main())
            >>> list(checkpoints.steps())
            [10, 20]
        """
        rank, size = self._world.rank, self._world.size
        found: dict[int, Path] = {}
        for saved, files in self._visible().items():
            if saved.size == size and rank in files:
                found[saved.step] = files[rank]
            elif saved.size != size and len(files) == saved.size:
                found.setdefault(saved.step, files[0])
        return dict(sorted(found.items()))

    def save(self, step: int, position: checkpoint.Position | None = None) -> asyncio.Task[Path]:
        """Save the graph as it is at this call: after all frames started so far, before all later ones.

        Frames go on meanwhile; the file is written in a thread. When it is there, those before the last ``keep`` are
        deleted.

        Args:
            step: Its number, more than those of the files that are there; a file of the same step is replaced.
            position: As for `save_checkpoint`.
        Returns:
            A task that ends with the file's path or an error of `save_checkpoint`. Await it some time. The first
            one after a load that found files of a step not all ranks had waits until all ranks have deleted theirs; it
            raises PeerLostError or PeerFailedError if one of them ends before.
        Raises:
            CheckpointError: if the folder has later steps than this one, which another training must have saved: a
                checkpoint would be the oldest one there, and `load` would take theirs. Or if another number of ranks
                has saved this step.

        Example:
            >>> graph = af.Graph("g")
            >>> x, total = graph.blob("x", []), graph.variable("total", [])
            >>> _ = [total, x] >> graph.op("add", af.ops.Sum()) >> [total]
            >>> checkpoints = af.Checkpoints(graph, "runs/g")
            >>> async def main():
            ...     async with graph:
            ...         _ = await graph.run({x: 1})
            ...         saved = checkpoints.save(1)  # the graph as it is now
            ...         _ = await graph.run({x: 1})  # does not wait for the file
            ...         print((await saved).exists(), total.value)
            ...         await checkpoints.load()
            ...         print(total.value)
            >>> af.run(main())
            True 2.0
            1.0
        """
        step = whole_number("step", step, error=CheckpointError)
        steps = {known: path for known, path in self.steps().items() if path not in self._leftovers}
        later = [known for known in steps if known > max(step, self._latest or 0)]
        if step < 0 or later or (self._latest is not None and step < self._latest):
            newest = later[-1] if later else self._latest
            raise CheckpointError(
                f"{self.folder}: step {step} cannot be saved, there is a checkpoint of step {newest}: "
                "load that one, delete it, or use another folder"
            )
        if step in steps and steps[step].parent != self.folder:
            raise CheckpointError(
                f"{self.folder}: step {step} cannot be saved, another number of ranks has saved it in "
                f"{steps[step].parent}: save a later one, delete that, or use another folder"
            )
        self._latest = step
        snapshot = checkpoint.take_snapshot(self._graph, position)
        snapshot.metadata["after"] = str(max(self._known_whole(), default=""))
        return asyncio.ensure_future(self._save(step, snapshot))

    async def load(
        self, *, step: int | None = None, strict: bool = True, fallback: bool = False
    ) -> checkpoint.Checkpoint | None:
        """Load the last checkpoint.

        Where another number of ranks has saved it, each rank takes its variables, by name, from whichever files have
        them: wherever they lived, weights, optimizer states, steps. Of copies (data parallel, `Graph.replica`)
        a new copy gets the value of the first, and copies too many are left out. The number of the next frame is the
        largest that a rank had. The ranks' places in the data are in ``positions``.

        Args:
            step: Another one.
            strict: As for `load_checkpoint`.
            fallback: Whether to take the one before where a file is damaged. Such files are logged, and renamed so that
                they are out of the way.
        Returns:
            The checkpoint loaded; None if there is none.
        Raises:
            CheckpointError, GraphError: as for `load_checkpoint`, on all ranks if on one of them; if there is no such
                step; if all are damaged; if there are files, but of no step all, unless as many ranks have ended while
                they saved their first one; if another number of ranks has saved them, and this one does not see them
                all. Nothing has been changed then.

        Example:
            >>> graph = af.Graph("g")
            >>> w = graph.variable("w", [])
            >>> checkpoints = af.Checkpoints(graph, "runs/g")
            >>> async def main():
            ...     for step in 1, 2:
            ...         w.value = step
            ...         await checkpoints.save(step, position={"step": step})
            ...     found = await checkpoints.load(step=1)
            ...     return found.position, w.value
            >>> af.run(main())
            ({'step': 1}, array(1., dtype=float32))
        """
        checkpoint.check_at_rest(self._graph, "loaded")
        step = None if step is None else whole_number("step", step)
        files, seen = await self._everywhere("checkpoint steps", self._visible, _told)
        ranks = _together(seen)
        whole = [saved for saved in self._ordered(ranks) if ranks[saved] >= set(range(saved.size))]
        if not whole and any(seen):
            await self._check_first(files, seen)
        if step is not None and not any(saved.step == step for saved in whole):
            known = ", ".join(str(saved.step) for saved in whole) or "none"
            raise CheckpointError(f"{self._top}: there is no checkpoint of step {step}; there are {known}")
        damaged: list[DamagedError] = []
        for saved in [each for each in reversed(whole) if step is None or each.step == step]:
            work = partial(self._fitting, saved, files.get(saved, {}), strict)
            try:
                content, _ = await self._everywhere("checkpoint read", work, lambda _: None)
            except DamagedError as error:
                if not fallback:
                    raise
                damaged.append(error)
                whole.remove(saved)
                if not isinstance(error, _DamagedElsewhereError):
                    _log.warning("%s; taking the one before", error)
                    with contextlib.suppress(FileNotFoundError):  # another rank that has read it was first
                        os.replace(error.path, f"{error.path}.damaged")
                continue
            self._settle(saved, whole, files, seen)
            return checkpoint.put(self._graph, content)
        if damaged:
            raise CheckpointError(f"{self._top}: all checkpoints are damaged: {damaged[0]}") from damaged[0]
        return None

    def _visible(self) -> dict[_Saved, _Files]:
        folders: list[tuple[int, int, Path]] = [(0, 1, self._top)]
        within = [(match, self._top / match[0]) for match in map(_RANK.fullmatch, _names(self._top)) if match]
        unsized = 1 + max((int(match[1]) for match, _ in within if not match[2]), default=0)
        folders += [(int(match[1]), int(match[2] or unsized), path) for match, path in within]
        found: dict[_Saved, _Files] = {}
        for rank, size, folder in folders:
            for match in filter(None, map(_NAME.fullmatch, _names(folder))):
                found.setdefault(_Saved(int(match[1]), size), {})[rank] = folder / match[0]
        return {saved: found[saved] for saved in self._ordered(found)}

    def _ordered(self, found: Iterable[_Saved]) -> list[_Saved]:
        return sorted(found, key=lambda saved: (saved.step, saved.size == self._world.size, saved.size))

    async def _check_first(self, files: dict[_Saved, _Files], seen: _Seen) -> None:
        """None is whole: see whether that is since the ranks ended while they saved the first one."""
        paths = [path for of_saved in files.values() for path in of_saved.values()]
        # Step of the last whole checkpoint when each was saved, "" if there was none; None where it does not say.
        _, after = await self._everywhere(
            "first checkpoint", lambda: [read_outline(path).metadata.get("after") for path in paths], list
        )
        ranks = _together(seen)
        newest = self._ordered(ranks)[-1]
        missing = ", ".join(str(rank) for rank in range(newest.size) if rank not in ranks[newest])
        what = f"of {newest}, the last one, ranks {missing} have no file"
        if any(saved.size != self._world.size for saved in ranks) or any(step != "" for told in after for step in told):
            raise CheckpointError(f"{self._top}: no checkpoint is whole: {what}; delete the folder to begin anew")
        _log.warning("%s: no checkpoint has ever been whole: %s; there is nothing to load", self._top, what)
        self._leftovers, self._any_leftovers = paths, True

    async def _everywhere(self, topic: str, work: Callable[[], _T], tell: Callable[[_T], Any]) -> tuple[_T, list[Any]]:
        """Do blocking work on all ranks; its result here, and the report of each."""
        problem: Exception | None = None
        answer: dict[str, Any] = {}
        try:
            done = await checkpoint.to_the_end(work)
            answer["value"] = tell(done)
        except DamagedError as error:
            problem, answer["damaged"] = error, [str(error.path), error.problem]
        except Exception as error:  # noqa: BLE001  the others must hear of it before it is raised
            problem, answer["failed"] = error, str(error)
        answers = await gather(self._world, topic, answer)
        failed = [(rank, each["failed"]) for rank, each in enumerate(answers) if "failed" in each]
        damaged = [each["damaged"] for each in answers if "damaged" in each]
        if failed and not (problem is not None and "failed" in answer):
            rank, text = failed[0]
            raise CheckpointError(f"on rank {rank}: {text}")
        if problem is not None:
            raise problem
        if damaged:
            path, text = damaged[0]
            raise _DamagedElsewhereError(Path(path), text)
        return done, [each["value"] for each in answers]

    def _fitting(self, saved: _Saved, files: _Files, strict: bool) -> checkpoint.Fitting:
        rank, size = self._world.rank, self._world.size
        needed = [rank] if saved.size == size else range(saved.size)
        unseen = [of for of in needed if of not in files]
        if unseen:
            raise CheckpointError(
                f"{self._top}: {saved} cannot be loaded: rank {rank} of {size} does not see the files of ranks "
                f"{', '.join(map(str, unseen))}; they must be in one folder that all ranks see"
            )
        order = sorted(files, key=lambda of: (of != rank, of)) if saved.size == size else sorted(files)
        return checkpoint.read(self._graph, [files[of] for of in order], strict, ranks=order, saved_on=saved.size)

    def _settle(self, saved: _Saved, whole: list[_Saved], files: dict[_Saved, _Files], seen: _Seen) -> None:
        """A checkpoint is about to be put into the graph: later ones go on from there."""
        rank, size = self._world.rank, self._world.size
        self._latest = saved.step
        self._whole = {each.step for each in whole}
        # The others do not have them: they would be in the way of those that all will save.
        left = {
            each for each in _together(seen) if each.size == size and each.step > max(self._whole) and each not in whole
        }
        self._leftovers = [there[rank] for each, there in files.items() if each in left and rank in there]
        self._any_leftovers = bool(left)
        if saved.size != size:
            _log.info("%s: %s is loaded on %d", self._top, saved, size)

    async def _save(self, step: int, snapshot: checkpoint.PendingSnapshot) -> Path:
        path = self.folder / f"checkpoint-{step:010d}.safetensors"
        if self._announced is None and self._world.size > 1:
            self._announced = Announcements(self._world, f"checkpoints of {self._graph.name}")
        async with self._writing:
            if self._any_leftovers:  # else one rank's file, with those that others still have, would be a whole step
                await self._everywhere(f"checkpoint leftovers of {self._graph.name}", self._prepare, lambda _: None)
                self._any_leftovers = False
            else:
                await checkpoint.to_the_end(self._prepare)
            await snapshot.save(path)
            if self._announced is None:
                self._whole.add(step)
            else:
                self._announced.say(step)
            await checkpoint.to_the_end(partial(self._prune, self._known_whole()))
        return path

    def _known_whole(self) -> frozenset[int]:
        """The steps that all ranks are known to have saved."""
        if self._announced is not None:
            self._whole |= set.intersection(*self._announced.said)
        return frozenset(self._whole)

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.iterdir():
                if _LEFT.fullmatch(path.name):
                    shutil.rmtree(path)
            for path in self._leftovers:
                if path.parent == self.folder:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: the folder cannot be used: {error}") from error
        self._leftovers = []

    def _prune(self, known: frozenset[int]) -> None:
        """Delete checkpoints older than the last ``keep`` whole ones: this rank's files, and other numbers'."""
        if self.keep is None:
            return
        visible = self._visible()
        whole = known | {saved.step for saved, files in visible.items() if len(files) == saved.size}
        if len(whole) < self.keep:
            return
        oldest = sorted(whole)[-self.keep]
        for saved, files in visible.items():
            for rank, path in files.items():
                is_own = saved.size == self._world.size
                if saved.step < oldest and (rank == self._world.rank or not is_own):
                    path.unlink(missing_ok=True)
                    if not is_own and path.parent != self._top:
                        with contextlib.suppress(OSError):  # there is more in it
                            path.parent.rmdir()


class _DamagedElsewhereError(DamagedError):
    """Another rank has found a file damaged."""


def _together(seen: _Seen) -> dict[_Saved, set[int]]:
    """Ranks that have files of each checkpoint, wherever they are seen."""
    ranks: dict[_Saved, set[int]] = {}
    for of_rank in seen:
        for step, size, there in of_rank:
            ranks.setdefault(_Saved(step, size), set()).update(there)
    return ranks


def _told(visible: dict[_Saved, _Files]) -> list[tuple[int, int, list[int]]]:
    """Files that are seen here, as the ranks tell each other."""
    return [(saved.step, saved.size, sorted(files)) for saved, files in visible.items()]


def _names(folder: Path) -> list[str]:
    """Names in a folder; none if it is not there; raises CheckpointError if it cannot be read."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: the folder cannot be used: {error}") from error
