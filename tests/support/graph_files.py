"""Graphs in files, loaded and run by another process: ``python -m tests.support.graph_files FOLDER``.

A case is a file, what is fed in each frame, what is fetched, and the bits that this must give.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af
from actorflow.devices.cpu import CPU


def half(x: np.ndarray) -> Any:
    """A function of the user's, which files name."""
    return x * x.dtype.type(0.5)


def emitted(x: np.ndarray) -> Any:
    """A generator of the user's, likewise."""
    yield x


class Case:
    """A graph, saved in a folder, and what it then computes.

    Args:
        folder: The file and its values go there.
        name: Their name.
        graph: The graph, which may have run.
        fetch: Blobs that are compared, beside the variables.
        frames: Feeds of each frame.
        also: What is run besides.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        graph: af.Graph,
        fetch: Sequence[af.Blob],
        frames: Sequence[Mapping[af.Blob, Any]],
        also: Sequence[Any] = (),
    ) -> None:
        self.folder, self.name, self.graph, self.fetch, self.frames = folder, name, graph, fetch, frames
        self.also = [each for each in also if not isinstance(each, af.Graph)]
        for each in also:
            self.also += each.ops if isinstance(each, af.Graph) else ()

    async def save(self) -> bool:
        """Save the graph, and then what it computes next; False if it refuses what is fed."""
        path = self.folder / f"{self.name}.af"
        await self.graph.save(path)
        frames = [{blob.name: np.asarray(x) for blob, x in feeds.items()} for feeds in self.frames]
        try:
            expected = await computed(
                self.graph, [blob.name for blob in self.fetch], [op.name for op in self.also], frames
            )
        except af.OpError:  # such as labels that an open axis is too short for
            path.unlink()
            return False
        feeds = {f"{i}:{blob.name}": np.asarray(x) for i, feeds in enumerate(self.frames) for blob, x in feeds.items()}
        np.savez(self.folder / f"{self.name}.feeds.npz", **{f"f{i}": x for i, x in enumerate(feeds.values())})
        np.savez(self.folder / f"{self.name}.npz", **{f"y{i}": y for i, y in enumerate(expected)})
        about = {
            "fetch": [blob.name for blob in self.fetch],
            "also": [op.name for op in self.also],
            "feeds": [*feeds],
            "frames": len(self.frames),
        }
        (self.folder / f"{self.name}.json").write_text(json.dumps(about))
        return True


async def computed(
    graph: af.Graph, fetch: Sequence[str], also: Sequence[str], frames: Sequence[Mapping[str, np.ndarray]]
) -> list[np.ndarray]:
    """What is fetched of some frames, and then the variables."""
    found = []
    for feeds in frames:
        result = await graph.run(feeds, fetch=[*fetch, *also])
        found += [af.to_numpy(result[name]) for name in fetch]
    return found + [np.array(variable.value) for variable in graph.variables]


async def differences(path: Path) -> list[str]:
    """What a file's graph computes otherwise than its case says; and whether saving it again gives the same text."""
    about = json.loads(path.with_suffix(".json").read_text())
    frames: list[dict[str, np.ndarray]] = [{} for _ in range(about["frames"])]
    with np.load(path.with_suffix(".feeds.npz")) as feeds:
        for i, key in enumerate(about["feeds"]):
            number, _, name = key.partition(":")
            frames[int(number)][name] = feeds[f"f{i}"]
    graph = await af.load(path, functions=["tests.support.graph_files:half"])
    again = path.with_suffix(".again")
    await graph.save(again)
    wrong = [] if structure(again) == structure(path) else ["saved again it has another text"]
    async with graph:
        found = await computed(graph, about["fetch"], about["also"], frames)
    names = [*about["fetch"] * about["frames"], *(variable.name for variable in graph.variables)]
    with np.load(path.with_suffix(".npz")) as expected:
        for i, (name, value) in enumerate(zip(names, found, strict=True)):
            other = expected[f"y{i}"]
            if (value.dtype, value.shape, bits(value)) != (other.dtype, other.shape, bits(other)):
                wrong.append(f"{name}: expected {other!r:.300}, got {value!r:.300}")
    return wrong


def bits(value: np.ndarray) -> bytes:
    """The bits of an array, with one NaN for all: their signs differ between NumPy's own loops."""
    if value.dtype.kind in "fc":
        value = np.array(value, order="C").reshape(-1).view(value.real.dtype)
        value[np.isnan(value)] = np.nan
    return value.tobytes()


def structure(path: Path) -> bytes:
    """The JSON of a file."""
    with zipfile.ZipFile(path) as file:
        return file.read("graph.json")


async def main(folder: Path) -> None:
    count = 0
    for path in sorted(folder.glob("*.af")):
        for wrong in await differences(path):
            print(f"{path.name}: {wrong}")
        count += 1
    print(count, "files")


if __name__ == "__main__":
    CPU.libraries = ("numpy",)  # as in the tests
    asyncio.run(main(Path(sys.argv[1])))
