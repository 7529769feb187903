"""Files of graphs with something wrong in them, read by a process that counts its memory and its time.

``python -m tests.support.broken_files FOLDER FIRST COUNT`` changes each of the good files of a folder in random ways
and prints what is wrong: other errors than those for files, graphs that are not what their file says, seconds and
megabytes past the limits.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import actorflow as af
from actorflow.plan.lengths import OpenAxes

MOST_MEGABYTES, MOST_SECONDS = 200, 20
STRUCTURE, TENSORS = "graph.json", "weights.safetensors"

#: What stands in the place of a value.
STRANGE: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: None,
    lambda draw: draw.choice([True, False]),
    lambda draw: draw.choice([-1, 0, 1, 2, 64, 1 << 31, 1 << 62, 1 << 63, 1 << 127, -(1 << 200), 10**400]),
    lambda draw: draw.choice([0.5, -0.0, 1e308, float("nan"), float("inf"), -1e-320]),
    lambda draw: draw.choice(
        ["", "x", "/", "a//b", "..", "../../etc/passwd", "\0", "\u202e", "batch", "os:system", "cpu"]
    ),
    lambda draw: draw.choice(
        ["float32", "O", "object", "V8", "U1000000000", "f4,f4", "cuda:0", "9/sim:3", "op", "variable"]
    ),
    lambda draw: "x" * draw.choice([10, 1_000, 100_000]),
    lambda draw: draw.choice([[], [[]], {}, {"a": 1}, [None], ["x"] * 1_000, [1 << 40] * 70, [-1], [2, 3]]),
    lambda draw: nested(draw.choice([10, 60, 250])),
    lambda draw: {"length": [[draw.choice([1, -3, 0]), "batch", ["//", [[1, "n"]], draw.choice([2, 0, "x"])]]]},
    lambda draw: {"new": [draw.choice(["Relu", "Conv", "Fused", "Constant", "Nope", "os:path"]), {}]},
    lambda draw: {"tensor": ["op//0", "float32", [1 << 40]]},
    lambda draw: {
        draw.choice(["list", "dict", "slice", "bytes", "spec", "number", "float", "member"]): draw.choice([0, []])
    },
)


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def members(content: bytes) -> tuple[bytes, bytes]:
    with zipfile.ZipFile(BytesIO(content)) as file:
        return file.read(STRUCTURE), file.read(TENSORS)


def zipped(structure: bytes, tensors: bytes) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(STRUCTURE, structure)
        file.writestr(TENSORS, tensors)
    return out.getvalue()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All containers in a JSON value, with their keys."""
    todo = [value]
    while todo:
        container = todo.pop()
        keys = [*container] if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                todo.append(container[key])


def changed_json(text: bytes, draw: random.Random) -> bytes:
    """A structure with one to three things in it that are otherwise."""
    value = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        container, key = draw.choice([*places(value)])
        other, source = draw.choice([*places(value)])
        how = draw.randrange(6)
        if how <= 1:
            container[key] = draw.choice(STRANGE)(draw)
        elif how == 2:
            container[key] = json.loads(json.dumps(other[source]))
        elif how == 3:
            container.pop(key)
        elif isinstance(container, dict):
            container[draw.choice(["new", "kind", "scope", "producers", "consumers", "attempts", "x"])] = json.loads(
                json.dumps(other[source])
            )
        elif how == 4:
            container.insert(key, json.loads(json.dumps(other[source])))
        else:
            draw.shuffle(container)
    return json.dumps(value).encode()


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bytes of which some are other ones, or missing, or there twice."""
    found = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5])):
        if not found:
            break
        start = draw.randrange(len(found))
        stop = min(len(found), start + draw.choice([1, 1, 4, 50, 2_000]))
        how = draw.randrange(5)
        if how <= 1:
            found[start] ^= 1 << draw.randrange(8)
        elif how == 2:
            del found[start : draw.choice([stop, len(found)])]
        elif how == 3:
            found[start:start] = found[start:stop]
        else:
            found[start:stop] = draw.randbytes(stop - start)
    return bytes(found)


def changed_header(tensors: bytes, draw: random.Random) -> bytes:
    """Tensors under a table that says something else."""
    (length,) = struct.unpack("<Q", tensors[:8])
    header = changed_json(tensors[8 : 8 + length], draw)
    return struct.pack("<Q", draw.choice([len(header), len(header), length, 1 << 40])) + header + tensors[8 + length :]


def broken(content: bytes, seed: int) -> tuple[bytes, bool]:
    """A file that was changed, and whether only its bytes were, which checksums are for."""
    draw = random.Random(seed)
    structure, tensors = members(content)
    how = seed % 8
    if how <= 3:
        return zipped(changed_json(structure, draw), tensors), False
    if how == 4:
        return zipped(structure, changed_header(tensors, draw)), False
    if how == 5:
        return zipped(changed_bytes(structure, draw), tensors), False
    if how == 6:
        return zipped(structure, changed_bytes(tensors, draw)), True
    return changed_bytes(content, draw), True


def judged(path: Path, good: bytes, is_same: bool) -> str | None:
    """What is wrong with how a file is read; None if that is an error for files, or the graph that the file says."""
    try:
        graph = af.load_sync(path, functions=["tests.support.graph_files:half"])
    except af.CheckpointError as error:
        if not str(error).startswith(str(path)) or isinstance(error.__cause__, MemoryError):
            return f"{error!r} {error.__cause__!r}"
        return None
    with suppress(af.ActorflowError):  # bare ones are what is looked for
        graph.compile(axes=dict.fromkeys(OpenAxes(graph.name, graph.ops, []).names, 3))
    again = path.with_suffix(".again")
    graph.save_sync(again)
    found = members(again.read_bytes())
    if is_same:
        path.write_bytes(good)
        expected = af.load_sync(path, functions=["tests.support.graph_files:half"])
        if found[0] != members(good)[0] or values(graph) != values(expected):
            return "it is another graph"
    other = path.with_suffix(".other")
    af.load_sync(again, functions=["tests.support.graph_files:half"]).save_sync(other)
    return None if members(other.read_bytes())[0] == found[0] else "saved again it has another text"


def values(graph: af.Graph) -> list[bytes]:
    return [variable.value.tobytes() for variable in graph.variables]


def megabytes() -> float:
    status = Path("/proc/self/status").read_text()  # `ru_maxrss` is that of the process before this one, too
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main(folder: Path, first: int, count: int) -> None:
    goods = [path.read_bytes() for path in sorted(folder.glob("good*.af"))]
    path, slowest = folder / "broken.af", 0.0
    gc.collect()
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    for seed in range(first, first + count):
        good = goods[seed // 8 % len(goods)]
        content, is_same = broken(good, seed)
        path.write_bytes(content)
        started = time.perf_counter()
        problem = judged(path, good, is_same)
        took = time.perf_counter() - started
        slowest = max(slowest, took)
        if problem is not None or took > MOST_SECONDS:
            print(f"seed {seed}: {problem}, {took:.1f} s")
    if megabytes() > MOST_MEGABYTES:
        print(f"expected at most {MOST_MEGABYTES} megabytes, got {megabytes():.0f}")
    print(f"{count} files", file=sys.stderr)
    print(f"slowest {slowest:.3f} s, {megabytes():.0f} megabytes", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
