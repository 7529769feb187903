"""Files of graphs of 4 megabytes that are made to take as much memory and time as can be.

``python -m tests.support.large_files FILE`` loads one and prints the most megabytes that this has taken.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.broken_files import megabytes, zipped

SIZE = 4_000_000
OPTIONS = {
    **dict.fromkeys(["memory_budget", "stall_limit", "block_limit", "libraries"]),
    **dict.fromkeys(["sequential", "deterministic", "dry_run", "force_cpu", "capture", "fuse"], False),
    "trace_capacity": 1 << 40,
    "max_plans": 64,
    "devices": {},
}
HEAD: dict[str, Any] = {"format": "actorflow graph", "version": 1, "name": "g", "frame": 3, "rank": 0, "ids": 0}
NOTHING = struct.pack("<Q", 2) + b"{}"


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def graph_of(nodes: list[Any], **more: Any) -> bytes:
    """A file of these nodes."""
    head = {**HEAD, "ids": len(nodes), "scopes": [], "options": OPTIONS, **more}
    return zipped(compact({**head, "nodes": nodes}), NOTHING)


def padded(value: str, width: int) -> bytes:
    """A structure of as many values as fit, each with spaces behind it."""
    text = (value + ",").ljust(width) * (SIZE // width)
    return zipped(f'{{"format": "actorflow graph", "version": 1, "nodes": [{text}{value}]}}'.encode(), NOTHING)


def tensors_of(header: Any, count: int = 0) -> bytes:
    text = compact(header)
    structure = compact({**HEAD, "scopes": [], "options": OPTIONS, "nodes": []})
    return zipped(structure, struct.pack("<Q", len(text)) + text + bytes(count))


def blob(i: int, *shape: Any) -> dict[str, Any]:
    return {"id": i, "kind": "blob", "name": f"b{i}", "place": "cpu", "shape": [*shape], "dtype": "float32"}


def op(i: int, kind: str, inputs: list[str], **parameters: Any) -> list[dict[str, Any]]:
    """An op and its blob of the next number."""
    found = {"id": i, "kind": "op", "name": f"o{i}", "place": "cpu", "operation": {"new": [kind, parameters]}}
    return [{**found, "inputs": inputs, "outputs": [f"b{i + 1}"], "lane": None, "priority": 0}, blob(i + 1)]


def relus() -> list[Any]:
    found = [blob(0)]
    while len(found) < 30_000:
        found += op(len(found), "Relu", [found[-1]["name"]])
    return found


STEP = {"new": ["Step", {"operation": {"new": ["ReduceSum", {"axis": None}]}, "inputs": [0]}]}
LARGE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: padded("[]", 3),
    "padded lists": lambda: padded("[]", 8),
    "padded objects": lambda: padded("{}", 8),
    "padded numbers": lambda: padded("300", 5),
    "letters of 4 bytes": lambda: padded('"\U0001f600"', 8),
    "blobs": lambda: graph_of([blob(i) for i in range(45_000)]),
    "blobs of other shapes": lambda: graph_of([blob(i, i, f"n{i}") for i in range(40_000)]),
    "ops": lambda: graph_of(relus()),
    "scopes": lambda: graph_of([], scopes=[f"s{i}" for i in range(400_000)]),
    "scopes of nodes": lambda: graph_of([blob(i) for i in range(16_000)], scopes=[f"s{i}" for i in range(250_000)]),
    "scopes in scopes": lambda: graph_of([], scopes=["/".join(["s"] * k) for k in range(1, 2_000)]),
    "many inputs": lambda: graph_of([blob(0), *op(1, "Sum", ["b0"] * 700_000)]),
    "many steps": lambda: graph_of([blob(0), *op(1, "Fused", ["b0"], steps=[STEP] * 40_000, results=[*range(40_000)])]),
    "a product of many numbers": lambda: graph_of([blob(0), *op(1, "Reshape", ["b0"], shape=[(1 << 63) - 1] * 60_000)]),
    "long formulas": lambda: graph_of(
        [blob(i, *[{"length": [[1, *["n"] * 40, *["m"] * 40]]}] * 4) for i in range(3_000)]
    ),
    "empty tensors": lambda: tensors_of(
        {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(60_000)}
    ),
    "tensors of a byte": lambda: tensors_of(
        {f"t{i}": {"dtype": "U8", "shape": [], "data_offsets": [i, i + 1]} for i in range(50_000)}, 50_000
    ),
    "metadata": lambda: tensors_of({"__metadata__": {f"{i}": "" for i in range(330_000)}}),
}


def main(path: Path) -> None:
    import actorflow as af

    with suppress(af.CheckpointError):
        af.load_sync(path)
    print(megabytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
