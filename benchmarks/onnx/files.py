"""``python -m benchmarks.onnx.files FOLDER --out TABLE.md``: what becomes of the ONNX files in a folder.

Each file is computed by onnxruntime and by `af.onnx.load`, each in a process of its own on one core, with bounds of
time and memory. What is fed are up to three sets of lengths of open axes that onnxruntime computes. The table says
which backend loads the file and why the default one does not, the largest difference from onnxruntime's results as a
part of the largest result, processor time of a run and of loading as multiples of onnxruntime's, memory that the
loaded model holds as a multiple of the file's bytes, and what both hold after a first run. A star behind the difference
marks files with sums of products of 8 bits that onnxruntime cuts off at 16 bits on this processor: the difference is
its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine

__all__ = ["main"]

_MOST_S, _MOST_BYTES = 120, 6 << 30
#: Seconds that runs of one set of lengths are timed, and the least and most of them.
_TIMED_S, _LEAST, _MOST = 0.5, 3, 200
#: Results that differ by more of the largest one are wrong; of smaller numbers than this, that is the largest.
WRONG, _SMALL = 1e-3, 1e-2
#: Bytes of files whose memory is compared: of smaller ones it is that of what a run computes with.
_LARGE = 2e6
#: Lengths to try: of the first open axis of an input, and of the others.
_LENGTHS = (
    (1, 48), (2, 64), (3, 96), (1, 320), (1, 32), (1, 1), (2, 1), (1, 512), (2, 12), (1, 100), (1, 1600), (1, 16000)
)  # fmt: skip
#: Values of inputs that cannot be anything, by parts of their names.
_VALUES = {" sr ": 16000, "mask": 1, "type_ids": 0, "segment": 0}
#: Operators that multiply integers of 8 bits, and the largest weight of which two products fit 16 bits.
_NARROW = {
    "ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat",
    "QLinearConv", "QLinearMatMul",
}  # fmt: skip
_MOST_WEIGHT = 64
_DTYPES = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all files, and write the table as it grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.onnx.files", description=__doc__)
    parser.add_argument("folder", type=Path, help="whose files .onnx, also those in folders inside, are measured")
    parser.add_argument("--out", type=Path, required=True, help="file for the table")
    parser.add_argument("--only", default="", help="measure files with this in their path alone")
    options = parser.parse_args(arguments)
    for name in ("onnxruntime", "actorflow.onnx", "actorflow.runtime.engine"):
        import_module(name)
    paths = [each for each in sorted(options.folder.rglob("*.onnx")) if options.only in str(each)]
    rows = []
    for path in paths:
        rows.append({"file": path.relative_to(options.folder).as_posix(), **_measured(path)})
        options.out.write_text(table(rows), encoding="utf-8")
        print(json.dumps(rows[-1]), flush=True)
    return 0


def _measured(path: Path) -> dict[str, Any]:
    """What both processes say of a file."""
    with tempfile.TemporaryDirectory() as folder:
        peer = _asked(path, "peer", folder)
        if "error" in peer:
            return {"peer_error": peer["error"]}
        found = _asked(path, "actorflow", folder)
        if "load_error" in found:
            found = {**_asked(path, "onnxruntime", folder), "refused": found["load_error"]}
    return {**found, **{f"peer_{name}": value for name, value in peer.items()}}


def _asked(path: Path, who: str, folder: str) -> dict[str, Any]:
    """What a process says that is forked from this one, which has imported everything."""
    process = get_context("fork").Process(target=answer, args=(str(path), who, folder))
    process.start()
    process.join(_MOST_S)
    if process.is_alive():
        process.kill()
        process.join()
        return {"error": f"took more than {_MOST_S} s"}
    said = Path(folder, f"{who}.json")
    if not said.exists():
        return {"error": f"process ended with {process.exitcode}"}
    found: dict[str, Any] = json.loads(said.read_text(encoding="utf-8"))
    return found


# -- in the processes --------------------------------------------------------------------------------------------------


def answer(path: str, who: str, folder: str) -> None:
    """Write what one side says of a file, as JSON."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    found = _of_peer(path, folder) if who == "peer" else _of_us(path, who, folder)
    Path(folder, f"{who}.json").write_text(json.dumps(found), encoding="utf-8")


def _of_peer(path: str, folder: str) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    onnxruntime.InferenceSession(_first(), options, providers=["CPUExecutionProvider"])
    load = _Loading()
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  its errors have no common base
        return {"error": f"load: {error!s:.300}"}
    found = load.ended()
    feeds, why = [], "no lengths fit"
    for lengths, most in product(_LENGTHS, (10, 2)):
        named: dict[str, int] = {}
        given = {each.name: _fed(each, lengths, named, most, seed) for seed, each in enumerate(session.get_inputs())}
        if any(value is None for value in given.values()):
            return {"error": f"takes {', '.join(each.type for each in session.get_inputs())}"}
        shapes = {name: value.shape for name, value in given.items()}
        if any({name: value.shape for name, value in each.items()} == shapes for each, _ in feeds):
            continue
        try:
            results = session.run(None, given)
        except Exception as error:  # noqa: BLE001  lengths that do not fit
            why = str(error)
            continue
        if any(not isinstance(each, np.ndarray) for each in results):
            return {"error": "gives sequences or maps"}
        if any(not each.size or (each.dtype.kind == "f" and not np.isfinite(each).all()) for each in results):
            why = "results are empty, or no numbers"
            continue
        feeds.append((given, results))
        found.setdefault("ran", load.ended()["held"])
        if len(feeds) == 3:
            break
    if not feeds:
        return {"error": f"run: {why:.300}"}
    for i, (given, results) in enumerate(feeds):
        np.savez(f"{folder}/{i}.npz", *results, **{f"in:{name}": value for name, value in given.items()})
    found["shapes"] = [{name: list(value.shape) for name, value in given.items()} for given, _ in feeds]
    found["run_s"] = [_timed(lambda: session.run(None, given)) for given, _ in feeds]  # noqa: B023  called at once
    return {**found, "bytes": _size(path), "saturates": _saturates(path)}


def _saturates(path: str) -> bool:
    """Return whether onnxruntime's sums of two products of 8 bits may be too large for the 16 bits that it adds in.

    It does so on processors of x86 without VNNI, where weights have a sign.
    """
    from onnx import TensorProto, load, numpy_helper

    processor = Path("/proc/cpuinfo").read_text(encoding="ascii")
    if "vnni" in processor or "avx2" not in processor:
        return False
    graph = load(path, load_external_data=False).graph
    read = {name for node in graph.node if node.op_type in _NARROW for name in node.input}
    weights = [each for each in graph.initializer if each.name in read and each.data_type == TensorProto.INT8]
    return any(
        np.abs(numpy_helper.to_array(each).astype(np.int16)).max(initial=0) > _MOST_WEIGHT
        for each in weights
        if len(each.dims) > 1  # others are where 0 is
    )


def _of_us(path: str, backend: str, folder: str) -> dict[str, Any]:
    import actorflow as af

    af.onnx.load(_first(), backend=backend).run_sync({"x": np.ones((64, 256), np.float32)})  # type: ignore[arg-type]
    load = _Loading()
    try:
        model = af.onnx.load(path, backend=backend)  # type: ignore[arg-type]
    except (af.ActorflowError, OSError) as error:
        return {"load_error": str(error)}
    found = {"backend": backend, **load.ended()}
    errors, times = [], []

    async def run() -> None:
        async with model.graph:
            for i in range(len(list(Path(folder).glob("*.npz")))):
                with np.load(f"{folder}/{i}.npz", allow_pickle=True) as kept:
                    given = {name: kept[f"in:{name}"] for name in model.inputs}
                    expected = [kept[f"arr_{k}"] for k in range(len(model.outputs))]
                results = await model.run(given)
                found.setdefault("ran", load.ended()["held"])
                errors.append(max(difference(*pair) for pair in zip(results.values(), expected, strict=True)))
                runs, start, begin = 0, process_time(), perf_counter()
                best = float("inf")
                while runs < _LEAST or (perf_counter() - begin < _TIMED_S and runs < _MOST):
                    start = process_time()
                    await model.run(given)
                    best, runs = min(best, process_time() - start), runs + 1
                times.append(best)

    try:
        af.run(run())
    except af.ActorflowError as error:
        said = str(error).partition("created at")[0]  # a line of this program
        return {**found, "error": f"run: {said.rstrip():.400}"}
    return {**found, "difference": max(errors), "run_s": times, "peak": load.peak()}


def _first() -> bytes:
    """A model that is loaded before others: what a process imports and starts once is no part of what those take."""
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 256]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "first", ends[:1], ends[1:], [weight])
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


class _Loading:
    """Time and memory of loading, from now on."""

    def __init__(self) -> None:
        gc.collect()
        self._base, self._start = _memory("VmRSS"), process_time()

    def ended(self) -> dict[str, Any]:
        took = process_time() - self._start
        gc.collect()
        return {"load_s": took, "held": _memory("VmRSS") - self._base, "load_peak": self.peak()}

    def peak(self) -> int:
        return _memory("VmHWM") - self._base


def _memory(what: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(lines[what].split()[0]) << 10


def _size(path: str) -> int:
    """Bytes of a file, and of its weights beside it."""
    return sum(each.stat().st_size for each in Path(path).parent.glob(f"{Path(path).name}*"))


def _fed(described: Any, lengths: tuple[int, int], named: dict[str, int], most: int, seed: int) -> Any:
    """What is fed as an input, integers below ``most``; None where that is no tensor. Axes of one name are as long."""
    kind = described.type.removeprefix("tensor(").removesuffix(")")
    if kind == described.type:
        return None
    shape, is_first = [], True
    for length in described.shape or ():
        own = lengths[0] if is_first else lengths[1]
        is_first = is_first and isinstance(length, int)
        own = named.setdefault(length, own) if isinstance(length, str) else own
        shape.append(length if isinstance(length, int) and length >= 0 else own)
    random = np.random.default_rng(seed)
    if kind == "string":
        return np.full(shape, "a word", object)
    dtype = np.dtype(_DTYPES.get(kind, kind))
    said = next((value for part, value in _VALUES.items() if part in f" {described.name} ".lower()), None)
    if said is not None and dtype.kind in "iu":
        return np.full(shape, said, dtype)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else most, shape).astype(dtype)


def _timed(run: Callable[[], Any]) -> float:
    """Processor time of the fastest of some runs."""
    best, count, begin = float("inf"), 0, perf_counter()
    while count < _LEAST or (perf_counter() - begin < _TIMED_S and count < _MOST):
        start = process_time()
        run()
        best, count = min(best, process_time() - start), count + 1
    return best


def difference(found: Any, expected: Any) -> float:
    """The largest difference as a part of the largest number; infinite where types, shapes or text differ, or NaN."""
    if found.shape != expected.shape or found.dtype.kind != expected.dtype.kind:
        return float("inf")
    if not expected.size:
        return 0.0
    if expected.dtype.kind not in "fiub":
        return 0.0 if (found == expected).all() else float("inf")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    usual = np.isfinite(b)
    if not (np.isfinite(a) == usual).all() or not np.array_equal(a[~usual], b[~usual], equal_nan=True):
        return float("inf")
    largest = np.abs(b[usual]).max(initial=0.0)
    return float(np.abs(a[usual] - b[usual]).max(initial=0.0) / max(largest, _SMALL))


# -- the table ---------------------------------------------------------------------------------------------------------


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A page of Markdown: what was measured in all, and of each file."""
    machine = describe_machine()
    versions = {name: machine["versions"][name] for name in ("actorflow", "numpy", "onnxruntime")}
    tried = [row for row in rows if "peer_error" not in row]
    loaded = [row for row in tried if "backend" in row]
    computed = [row for row in loaded if "difference" in row]
    ours = [row for row in computed if row["backend"] == "actorflow"]
    wrong = [row for row in computed if row["difference"] > WRONG]
    ratios = [_ratio(row) for row in computed]
    lines = [
        "# ONNX files that packages of PyPI ship\n",
        f"- {machine['cpu']}, one core; Python {machine['python']}; "
        + ", ".join(f"{k} {v}" for k, v in versions.items()),
        f"- {len(tried)} files that onnxruntime computes: {sum(row['backend'] == 'actorflow' for row in loaded)} load "
        f"by default, {len(loaded)} by default or by onnxruntime",
        f"- {len(computed)} compute all that they are fed; {len(wrong)} differ by more than {WRONG} of the largest "
        f"result, {sum(row['peer_saturates'] for row in wrong)} of them where onnxruntime cuts sums off at 16 bits (*)",
    ]
    for what, found in (
        ("processor time of a run, times onnxruntime's", ratios),
        ("the same, of files that load by default", [_ratio(row) for row in ours]),
        ("time of loading, times onnxruntime's", [row["load_s"] / row["peer_load_s"] for row in computed]),
        ("memory held after loading, times the bytes of the file, of 2 MB and more", [*_held(ours, "held")]),
        ("the same after a first run, with what it computes with", [*_held(ours, "ran")]),
        (
            "memory held after a first run, times onnxruntime's, of files of 2 MB and more",
            [row["ran"] / max(row["peer_ran"], 1) for row in ours if row["peer_bytes"] >= _LARGE],
        ),
    ):
        if found:
            above = sum(each > 4 for each in found)
            lines.append(f"- {what}: median {median(found):.2f}, largest {max(found):.2f}, {above} above 4")
    lines += ["", "| file | MB | by | difference | run, ms | times | load, s | times | held, MB | ran | onnxruntime |",
              "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    lines += [_line(row) for row in tried]
    lines += ["", "| file | why not by default, or not at all |", "|---|---|"]
    lines += [f"| {row['file']} | {_why(row)} |" for row in rows if _why(row)]
    return "\n".join(lines) + "\n"


def _ratio(row: dict[str, Any]) -> float:
    return median(a / b for a, b in zip(row["run_s"], row["peer_run_s"], strict=True))


def _held(rows: Sequence[dict[str, Any]], when: str) -> Iterator[float]:
    yield from (row[when] / row["peer_bytes"] for row in rows if row["peer_bytes"] >= _LARGE)


def _line(row: dict[str, Any]) -> str:
    size, by = f"{row['peer_bytes'] / 1e6:.1f}", row.get("backend", "-")
    if "difference" not in row:
        return f"| {row['file']} | {size} | {by} | | | | | | | | |"
    differs = f"{row['difference']:.1e}{'*' * row['peer_saturates']}"
    cells = [
        row["file"], size, by, differs, f"{1e3 * median(row['run_s']):.2f}", f"{_ratio(row):.2f}",
        f"{row['load_s']:.2f}", f"{row['load_s'] / row['peer_load_s']:.1f}", f"{row['held'] / 1e6:.0f}",
        f"{row['ran'] / 1e6:.0f}", f"{row['peer_ran'] / 1e6:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _why(row: dict[str, Any]) -> str:
    """What is refused of a file: operators and reasons, each once."""
    parts = [f"onnxruntime: {row['peer_error']}"] if "peer_error" in row else []
    parts += [row[name] for name in ("load_error", "error") if name in row]
    if "refused" in row:
        lines = row["refused"].splitlines()
        parts += [
            *dict.fromkeys(f"{line.split()[0]}: {line.partition(': ')[2]}" for line in lines[1:] if "'" in line)
        ] or lines
    return "; ".join(parts).replace("|", "/").replace("\n", " ")[:600]


if __name__ == "__main__":
    sys.exit(main())
