"""Graphs as files: the structure of a graph, and the values that it goes on from, for another process.

A file is a zip of the graph's structure as JSON and of all arrays as safetensors, stored as they are, so that what a
member takes in memory is what it takes in the file: nothing is compressed, or unpacked to the disk. It has nothing
that is run: functions, and operations that are not the package's, are named, and found only where the one who loads it
allows these names. It is built by the calls that users build graphs with, so that types are inferred and checked again.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from actorflow.checkpoint.checkpoint import check_at_rest, check_no_loop, next_frame, to_the_end
from actorflow.checkpoint.file import (
    DamagedError,
    Tensor,
    parsed,
    read_json,
    require_format,
    unreadable,
    write_atomically,
    write_file,
)
from actorflow.checkpoint.values import (
    Names,
    Reader,
    UnsavableError,
    Writer,
    check_fits,
    dtype_text,
    hints_of,
    kinds,
    names_in,
    packed,
    written_shape,
)
from actorflow.devices import DeviceOptions
from actorflow.devices.registry import device_kind
from actorflow.errors import CheckpointError, GraphError, MissingExtraError, did_you_mean
from actorflow.graph import options
from actorflow.graph.body import Body, bodies_of, with_bodies
from actorflow.graph.cache import Cached
from actorflow.graph.graph import Graph, Interface, targets_of
from actorflow.graph.nodes import Blob, Node, Op, Site, State, Variable
from actorflow.interchange import to_numpy
from actorflow.ops.operation import Operation
from actorflow.place import Place
from actorflow.plan.validate import chosen, in_order, states_of
from actorflow.spec import TensorSpec, rows_axis

if TYPE_CHECKING:
    from actorflow.graph.graph import Fetch

STRUCTURE, TENSORS = "graph.json", "weights.safetensors"
#: Most bytes that are read at once while the table of contents is looked for; that of two members is far smaller.
_LONGEST_TABLE = 1 << 17


def _write_archive(path: Path, structure: bytes, arrays: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all; blocks; raises CheckpointError if it cannot be written."""

    def pack(temporary: Path) -> None:
        tensors = temporary.with_name(TENSORS)
        write_file(tensors, arrays, {"actorflow_graph": STRUCTURE})
        with zipfile.ZipFile(temporary, "w") as file:
            file.writestr(zipfile.ZipInfo(STRUCTURE), structure)
            member = zipfile.ZipInfo(TENSORS)
            member.file_size = tensors.stat().st_size  # larger ones need another header
            with tensors.open("rb") as content, file.open(member, "w") as out:
                shutil.copyfileobj(content, out, 1 << 20)

    try:
        write_atomically(path, pack)
    except OSError as error:
        raise CheckpointError(f"{path}: the graph cannot be written: {error}") from error


def _read_archive(path: Path) -> tuple[bytes, bytes]:
    """Read a file, which may be anything; blocks.

    Returns:
        The description of the graph, and the tensors.
    Raises:
        CheckpointError: if it cannot be read; `DamagedError` if it is not such a file.
    """
    try:
        with path.open("rb") as opened:
            return _read_opened(path, opened)
    except OSError as error:
        raise unreadable(path, error) from error


def _read_opened(path: Path, opened: io.BufferedReader) -> tuple[bytes, bytes]:
    size_bytes = opened.seek(0, io.SEEK_END)
    try:
        file: Any = _Opened(opened)
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            found = sorted(member.filename for member in members)
            if found != [STRUCTURE, TENSORS]:
                raise ValueError(
                    f"expected the members {STRUCTURE} and {TENSORS}, got {', '.join(found) or 'none':.200}"
                )
            for member in members:
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise ValueError(f"member {member.filename}: expected one that is neither compressed nor encrypted")
            if sum(max(member.file_size, member.compress_size) for member in members) > size_bytes:
                raise ValueError(f"expected members that fit into {size_bytes} bytes")
            file.most = size_bytes
            return archive.read(STRUCTURE), archive.read(TENSORS)
    except OSError:
        raise
    except Exception as error:
        # zipfile raises whatever reading a field has led to.
        problem = f"the file is cut off, damaged or no graph: {error}"
        raise DamagedError(path, problem) from error


class _Opened:
    """An open file of which only so many bytes are read at once, whatever its fields say."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.most = _LONGEST_TABLE
        self.seek: Callable[..., int] = file.seek
        self.tell, self.seekable = file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(self.most + 1 if size < 0 else min(size, self.most + 1))
        if len(content) > self.most:
            raise ValueError(f"expected at most {self.most} bytes, got more")
        return content


FORMAT, VERSION = "actorflow graph", 1
_SHOWN = 10  # names that a message lists
_MOST = 1 << 63
#: Settings of a graph, as `Graph` takes them.
_OPTIONS: dict[str, Any] = {
    "memory_budget": int | None,
    "sequential": bool,
    "deterministic": bool,
    "dry_run": bool,
    "stall_limit": float | None,
    "block_limit": float | None,
    "libraries": tuple[str, ...] | None,
    "force_cpu": bool,
    "capture": bool,
    "fuse": bool,
    "trace_capacity": int,
    "max_plans": int,
}


# -- saving -----------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """The part of a graph that is saved."""

    root: Graph
    revision: int
    frame: int  # number of the next one
    ops: tuple[Op, ...]
    nodes: tuple[Node, ...]  # in order of creation, the ops among them
    scopes: tuple[str, ...]
    interface: Interface | None
    rank: int  # that saves it

    @property
    def variables(self) -> list[Variable]:
        """Variables whose values are on this rank."""
        return [each for each in self.nodes if isinstance(each, Variable) and each.place.rank == self.rank]


async def save_graph(
    graph: Graph, path: str | os.PathLike[str], fetch: Fetch | Mapping[str, Any], inputs: Mapping[str, Any] | None
) -> None:
    """Save a graph, or the part that some targets need, while it runs; see `Graph.save`."""
    require_format()
    part = _part_of(graph, fetch, inputs)
    root, variables = part.root, part.variables
    if root._engine is None:  # no frame has begun
        values = [variable.held for variable in variables]
    else:
        frame, snapshot = root.engine.snapshot(variables)
        part, values = part._replace(frame=frame), await snapshot
    await to_the_end(lambda: _write(part, values, Path(path)))


def save_graph_sync(
    graph: Graph, path: str | os.PathLike[str], fetch: Fetch | Mapping[str, Any], inputs: Mapping[str, Any] | None
) -> None:
    """`save_graph` for scripts."""
    check_no_loop("Graph.save")
    require_format()
    check_at_rest(graph.root, "saved")
    part = _part_of(graph, fetch, inputs)
    _write(part, [variable.held for variable in part.variables], Path(path))


def _part_of(graph: Graph, fetch: Fetch | Mapping[str, Any], inputs: Mapping[str, Any] | None) -> Part:
    if graph.parent is not None:
        raise GraphError(f"{graph.name!r} is a sub-graph: save its root {graph.root.name!r}, with fetch=... for a part")
    scopes, rank = tuple(graph._store.scopes), graph.world.rank
    everything = Part(graph, graph.revision, next_frame(graph), graph.ops, graph.nodes, scopes, graph._interface, rank)
    if fetch is None:
        if inputs is not None:
            raise GraphError("inputs have names only beside outputs: give fetch={name: blob, ...}, too")
        return everything
    given = fetch.values() if isinstance(fetch, Mapping) else targets_of(fetch) or ()
    targets = [graph.resolve(target) for target in given]
    _, fetched = chosen(graph, targets)
    ops, _ = chosen(graph, [*targets, *states_of(targets).values()])
    outputs = {blob.name: blob for blob in fetched}
    if isinstance(fetch, Mapping):
        outputs = {name: _blob_of(graph, target) for name, target in fetch.items()}
    ops = tuple(sorted(with_bodies(ops), key=lambda op: op.id))
    kept: dict[Node, None] = dict.fromkeys([*ops, *fetched])
    kept |= dict.fromkeys(blob for op in ops for blob in (*op.inputs, *op.outputs))
    bodies = [body for op in ops for body in bodies_of(op)]
    kept |= dict.fromkeys(blob for body in bodies for blob in (*body.inputs, *body.outputs))
    blobs = [each for each in kept if isinstance(each, Blob) and each.graph.body is None]
    fed = [each for each in blobs if not each.producers and not isinstance(each, State | Variable)]
    sources = {blob.name: blob for blob in sorted(fed, key=lambda blob: blob.id)}
    if inputs is not None:
        sources = {name: _blob_of(graph, blob) for name, blob in inputs.items()}
        lacking = [blob.name for blob in fed if blob not in set(sources.values())]
        if lacking:
            raise GraphError(f"the outputs need {', '.join(lacking)}, which is no input")
        kept |= dict.fromkeys(sources.values())
    nodes = tuple(sorted(kept, key=lambda node: node.id))
    interface = Interface(sources, outputs) if outputs else None
    return everything._replace(ops=ops, nodes=nodes, scopes=_scopes_of(nodes, scopes), interface=interface)


def _scopes_of(nodes: Iterable[Node], scopes: Iterable[str]) -> tuple[str, ...]:
    wanted = {node.graph.name for node in nodes if node.graph.parent is not None}
    wanted |= {body.scope.name for op in nodes if isinstance(op, Op) for body in bodies_of(op)}
    wanted |= {name[:i] for name in wanted for i, sign in enumerate(name) if sign == "/"}
    return tuple([name for name in scopes if name in wanted])


def _blob_of(graph: Graph, target: Any) -> Blob:
    found = graph.resolve(target)
    if not isinstance(found, Blob):
        raise GraphError(f"inputs and outputs must be blobs, got {found!r}")
    return found


def _write(part: Part, values: Sequence[Any], path: Path) -> None:
    structure, arrays = _described(part)
    for variable, value in zip(part.variables, values, strict=True):
        arrays[variable.name] = to_numpy(value)
    _write_archive(path, structure, {name: packed(array) for name, array in arrays.items()})


def _described(part: Part) -> tuple[bytes, dict[str, npt.NDArray[Any]]]:
    """A part as JSON, and the arrays of its operations; raises CheckpointError naming all that cannot be saved."""
    root, nodes = part.root, part.nodes
    in_order(root, part.ops)
    size = root.size
    ids = {node: node.id for node in nodes}
    if size > _most(len(nodes)):
        size, ids = len(nodes), {node: i for i, node in enumerate(nodes)}
    problems: list[str] = []
    writer, written = Writer(), []
    consumers: dict[Blob, list[Op]] = {}  # ops that read each blob, in order of creation
    for op in part.ops:
        for blob in op.inputs:
            consumers.setdefault(blob, []).append(op)
    for node in nodes:
        record: dict[str, Any] = {"id": ids[node], "kind": "op", "name": node.name, "place": str(node.place)}
        if node.graph.parent is not None:
            record["scope"] = node.graph.name
        try:
            if isinstance(node, Op):
                record |= _written_op(node, writer)
            elif isinstance(node, Blob):
                record |= _written_blob(node, ids, consumers.get(node, []))
            if isinstance(node, State):
                writer.arrays[node.name] = node.init
        except UnsavableError as error:
            problems.append(f"{record['kind']} {node.name!r}: {error}; created at {node.site}")
        written.append(json.dumps(record, allow_nan=False))
    head = {"format": FORMAT, "version": VERSION, "name": root.name, "frame": part.frame, "rank": part.rank}
    scopes = part.scopes if len(part.scopes) <= _most(len(nodes)) else _scopes_of(nodes, part.scopes)
    head |= {"ids": size, "scopes": scopes, **_written_interface(part)}
    bodies = [root._store.scopes[name].body for name in scopes]
    written_bodies = {
        body.scope.name: {
            "parameters": [blob.name for blob in body.parameters],
            "captured": [[outer.name, inner.name] for outer, inner in body.captured.items()],
            "outputs": [blob.name for blob in body.outputs],
        }
        for body in bodies
        if body is not None
    }
    if written_bodies:
        head["bodies"] = written_bodies
    try:
        head["options"] = _written_options(root, writer)
    except UnsavableError as error:
        problems.append(f"the graph's options: {error}")
    if problems:
        parts = "1 part of it has" if len(problems) == 1 else f"{len(problems)} parts of it have"
        lines = "\n  ".join(problems)
        raise CheckpointError(f"graph {root.name!r} cannot be saved: {parts} no form in a file:\n  {lines}")
    if part.revision != root.revision:
        raise GraphError(f"graph {root.name!r} was changed while it was saved")
    texts = [json.dumps(head, allow_nan=False)[:-1], ', "nodes": [\n', ",\n".join(written), "\n]}\n"]
    return "".join(texts).encode(), writer.arrays


def _most(nodes: int) -> int:
    """Most ids, and most scopes, in a file of so many nodes: it must not take far more memory than it has bytes."""
    return 16 * nodes + 4096


def _written_op(op: Op, writer: Writer) -> dict[str, Any]:
    record: dict[str, Any] = {
        "operation": writer.write(op.operation, op.name),
        "inputs": [blob.name for blob in op.inputs],
        "outputs": [blob.name for blob in op.outputs],
        "lane": op.lane,
        "priority": op.priority,
    }
    if op.attempts is not None:
        record["attempts"] = [writer.write(each, op.name) for each in op.attempts]
    if op.hints is not None:
        record["hints"] = [None if op.hints.libraries is None else [*op.hints.libraries], op.hints.force_cpu]
    return record


def _written_blob(blob: Blob, ids: Mapping[Node, int], consumers: Sequence[Op]) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": "blob", "shape": written_shape(blob.shape), "dtype": dtype_text(blob.dtype)}
    if isinstance(blob, Variable):
        first = blob.replica_of
        record |= {"kind": "variable", "state": blob.is_state}
        record["replica_of"] = None if first is None or first not in ids else first.name
    if isinstance(blob, Cached):
        raise UnsavableError("files have no caches yet: save its weights, and make the graph that writes by them anew")
    if isinstance(blob, State):
        record |= {"kind": "state", "next": None if blob.following is None else blob.following.name}
    producers = [op for op in blob.producers if op in ids]
    if producers != sorted(producers, key=lambda op: op.id):
        record["producers"] = [op.name for op in producers]
    read_by = [op for op in blob.consumers if op in ids]
    if read_by != consumers:
        record["consumers"] = [op.name for op in read_by]
    return record


def _written_interface(part: Part) -> dict[str, Any]:
    given = part.interface
    if given is None or not set(part.nodes).issuperset(blob for blobs in given for blob in blobs.values()):
        return {}
    return {what: {name: blob.name for name, blob in blobs.items()} for what, blobs in given._asdict().items()}


def _written_options(root: Graph, writer: Writer) -> dict[str, Any]:
    given = root.options
    plain = given._asdict() | {
        "memory_budget": given.memory_budget_bytes,
        "stall_limit": given.stall_limit_s,
        "block_limit": given.block_limit_s,
        **(given.hints or options.Hints())._asdict(),
    }
    written = {name: writer.write(plain[name], root.name) for name in _OPTIONS}
    written["devices"] = {str(place): _written_device(each, writer) for place, each in given.devices.items()}
    return written


def _written_device(given: DeviceOptions, writer: Writer) -> dict[str, Any]:
    """Options of a device that are not the default: a clock, for instance, has no other form."""
    kind: Any = type(given)
    plain, found = kind(), {}
    for field in fields(given):
        value = getattr(given, field.name)
        if value != getattr(plain, field.name):
            check_fits(value, hints_of(kind)[field.name])
            found[field.name] = writer.write(value, "")
    return {"type": kind.__name__, "options": found}


# -- loading ----------------------------------------------------------------------------------------------------------


async def load(
    path: str | os.PathLike[str],
    *,
    functions: Iterable[str | Callable[..., Any] | Op] = (),
    memory_budget: int | None = None,
    max_plans: int | None = None,
) -> Graph:
    """Load the graph that `Graph.save` has written; the file is read, and the graph built, in a thread.

    It computes the next results of the saved one, to the bit: variables have their values, and random
    streams go on. `Model.of` gives its inputs and outputs by the names that the file has.

    Args:
        path: The file.
        functions: Functions, and classes of operations, that the file may name, by themselves or as
            ``module:qualname``: functions a file names are called when the graph runs. This package's need no leave.
        memory_budget: Of the graph, see `Graph`; None for the file's.
        max_plans: Likewise.
    Raises:
        GraphError: if a number is not positive.
        CheckpointError: if the file cannot be read, is damaged or of another version; names a function not allowed,
            or not there; if an op, a blob or a tensor does not fit the others.
        MissingExtraError: if safetensors is not installed.
    Cancellation: once the file is being read, that is done to its end before CancelledError is raised.

    Example:
        >>> import asyncio
        >>> graph = af.Graph("scale")
        >>> y = graph.blob("x", ["n"]) * graph.variable("w", [], init=3.0)
        >>> graph.save_sync("scale.af")
        >>> loaded = asyncio.run(af.load("scale.af"))
        >>> loaded.run_sync({"x": [1, 2]})[y.name]
        array([3., 6.], dtype=float32)
    """
    names, limits = Names(functions), options.limits_of(memory_budget, max_plans)
    return await to_the_end(lambda: _load(Path(path), names, limits))


def load_sync(
    path: str | os.PathLike[str],
    *,
    functions: Iterable[str | Callable[..., Any] | Op] = (),
    memory_budget: int | None = None,
    max_plans: int | None = None,
) -> Graph:
    """`load` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await load(...)`` there.
        CheckpointError: as for `load`.

    Example:
        >>> import math
        >>> graph = af.Graph("roots")
        >>> x = graph.blob("x", [])
        >>> y = graph.function("root", math.sqrt, x.spec)(x)
        >>> graph.save_sync("roots.af")
        >>> loaded = af.load_sync("roots.af", functions=[math.sqrt])  # no other one is called
        >>> loaded.run_sync({"x": 9})[y.name]
        array(3., dtype=float32)
    """
    check_no_loop("load")
    return _load(Path(path), Names(functions), options.limits_of(memory_budget, max_plans))


def _load(path: Path, names: Names, limits: Mapping[str, Any]) -> Graph:
    require_format()
    described, content = _read_archive(path)
    structure = _parsed_structure(path, described)
    if (structure["format"], structure["version"]) != (FORMAT, VERSION):
        version = f"{structure['format']!r:.40}, version {structure['version']!r:.40}"
        raise CheckpointError(f"{path}: expected {FORMAT!r}, version {VERSION}, got {version}", page="files")
    _check_names(path, structure, names)
    tensors = parsed(path, content).tensors
    del described, content
    builder = _Builder(path, structure, tensors, names)
    with _read_as(path):
        graph = builder.build()
    graph.options = graph.options._replace(**limits)
    return graph


@contextmanager
def _read_as(path: Path, where: str = "") -> Iterator[None]:
    """Say of an error inside where in a file it was made: its content may lead to any."""
    try:
        yield
    except (DamagedError, MissingExtraError):
        raise
    except Exception as error:
        text = f"{_said(error):.2000}"
        raise DamagedError(path, text if not where or text.startswith(where) else f"{where}: {text}") from error


def _said(error: Exception) -> str:
    return f"{error}" if isinstance(error, GraphError | ValueError) else f"{type(error).__name__}: {error}"


#: Fields of a file's JSON, with their types.
_HEAD: dict[str, Any] = {
    "format": Any,
    "version": Any,
    "name": str,
    "frame": int,
    "rank": int,
    "ids": int,
    "scopes": list,
    "options": dict,
    "nodes": list,
}
_INTERFACE: dict[str, Any] = {"inputs": dict, "outputs": dict}
_BODY: dict[str, Any] = {"parameters": list, "captured": list, "outputs": list}
_NODE: dict[str, Any] = {"id": int, "kind": str, "name": str, "place": str}
_BLOB: dict[str, Any] = {**_NODE, "shape": list, "dtype": str}
_FIELDS: dict[str, dict[str, Any]] = {
    "blob": _BLOB,
    "variable": {**_BLOB, "state": bool, "replica_of": str | None},
    "state": {**_BLOB, "next": str | None},
    "op": {**_NODE, "operation": dict, "inputs": list, "outputs": list, "lane": str | None, "priority": int},
}
_OPTIONAL: dict[str, dict[str, Any]] = {
    "blob": {"scope": str, "producers": list, "consumers": list},
    "variable": {"scope": str, "producers": list, "consumers": list},
    "state": {"scope": str, "consumers": list},
    "op": {"scope": str, "attempts": list, "hints": list},
}


def _parsed_structure(path: Path, text: bytes) -> dict[str, Any]:
    with _read_as(path, STRUCTURE):
        found = read_json(text, parse_constant=_no_number)
        if not isinstance(found, dict) or found.get("format") != FORMAT or "version" not in found:
            raise ValueError(f"expected an object of the format {FORMAT!r} and its version, got {found!r:.200}")
        if found["version"] == VERSION:
            _check_fields(found, _HEAD, {**_INTERFACE, "bodies": dict})
        return found


def _no_number(text: str) -> Any:
    raise ValueError(f"expected a number, got {text}")


def _check_fields(record: Any, known: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Check that an object has the fields that it must have, of their types, and no others."""
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, got {record!r:.200}")
    for name in record:
        if name not in known and name not in optional:
            raise ValueError(f"unknown field {name!r:.80}{did_you_mean(name[:80], [*known, *optional])}")
    for name, hint in known.items():
        if name not in record:
            raise ValueError(f"expected the field {name!r}, there is none")
        _check_field(name, record[name], hint)
    for name, hint in optional.items():
        if name in record:
            _check_field(name, record[name], hint)


def _check_field(name: str, value: Any, hint: Any) -> None:
    if type(value) is hint is not int:  # nearly all: files have many
        return
    try:
        check_fits(value, hint)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if hint is int and (isinstance(value, bool) or not -_MOST <= value < _MOST):
        raise ValueError(f"{name}: expected an integer of 64 bits, got {value!r:.80}")


def _check_names(path: Path, structure: dict[str, Any], names: Names) -> None:
    """Check that the operations are known, and that functions and others may be named."""
    refused: dict[str, str] = {}
    seen: set[str] = set()
    for record in structure["nodes"]:
        op = record.get("name") if isinstance(record, dict) else None
        for name in names_in(record.get("operation")) if isinstance(record, dict) else ():
            if name in seen:
                continue
            seen.add(name)
            if ":" not in name:
                problem = f"op {op!r:.200}: unknown operation {name!r:.80}{did_you_mean(name[:80], kinds())}"
                raise CheckpointError(
                    f"{path}: {problem}; the file may be of a later version of actorflow", page="files"
                )
            if len(refused) <= _SHOWN and not names.allows(name):
                refused[name] = f"{name:.200} (op {op!r:.200})"
    if refused:
        shown = [*refused.values()][:_SHOWN] + (["and others"] if len(refused) > _SHOWN else [])
        listed = ", ".join([repr(name[:200]) for name in [*refused][:_SHOWN]])
        raise CheckpointError(
            f"{path}: the file names what is not allowed: {', '.join(shown)}; if you trust it, load it with "
            f"functions=[{listed}] (--function {next(iter(refused)):.200} of the command line)"
        )


class _Builder:
    """Builds the graph of a file."""

    def __init__(self, path: Path, structure: dict[str, Any], tensors: Mapping[str, Tensor], names: Names) -> None:
        self._path, self._structure, self._tensors = path, structure, tensors
        self._reader = Reader(names, tensors)
        self._site = Site(str(path), 0, "load")
        self._places: dict[str, Place] = {}

    def build(self) -> Graph:
        structure = self._structure
        self._graph = graph = Graph(structure["name"], **self._options())
        if len(structure["scopes"]) > _most(len(structure["nodes"])):
            raise ValueError(f"expected fewer scopes for {len(structure['nodes'])} nodes")
        for name in structure["scopes"]:
            with _read_as(self._path, f"scope {name!r:.200}"):
                self._add_scope(name)
        records, last, ids = structure["nodes"], -1, structure["ids"]
        if not 0 <= structure["frame"] < _MOST or not 0 <= ids <= _most(len(records)):
            raise ValueError(f"expected frame and ids in range, got {structure['frame']} and {ids}")
        for i, record in enumerate(records):
            with _read_as(self._path, f"node {i}"):
                last = self._add(record, last)
        if last >= ids:
            raise ValueError(f"expected ids less than {ids}, got {last}")
        graph._store.next_id = ids
        for name, body in self._reader.bodies.items():
            with _read_as(self._path, f"body {name!r:.200}"):
                self._fill(body, structure["bodies"][name])
        for record in records:
            with _read_as(self._path, f"{record['kind']} {record['name']!r:.200}"):
                if record["kind"] == "op":
                    self._connect(record)
                elif record["kind"] == "variable":
                    self._check_variable(record)
                elif record["kind"] == "state" and record["next"] is not None:
                    self._found(record["name"], self._graph._store.nodes).assign(
                        self._found(record["next"], self._graph._store.nodes)
                    )
        for record in records:
            with _read_as(self._path, f"{record['kind']} {record['name']!r:.200}"):
                self._order(record)
        inside = {body: [each for op in body.ops for each in bodies_of(op)] for body in self._reader.bodies.values()}
        try:
            TopologicalSorter(inside).prepare()
        except CycleError as error:
            raise ValueError(f"expected no body inside of itself, got {error.args[1]!r:.200}") from None
        left = [name for name in self._tensors if name not in self._reader.used]
        if left:
            raise ValueError(f"expected no further tensors, got {left!r:.200}")
        in_order(graph, graph.ops)
        graph._interface = self._interface()
        graph._first_frame = structure["frame"]
        return graph

    def _options(self) -> dict[str, Any]:
        written = self._structure["options"]
        _check_fields(written, dict.fromkeys([*_OPTIONS, "devices"], Any), {})
        found = {name: self._reader.read(written[name]) for name in _OPTIONS}
        for name, hint in _OPTIONS.items():
            _check_field(name, found[name], hint)
        devices = written["devices"]
        _check_field("devices", devices, dict)
        return {**found, "devices": {place: self._device(place, each) for place, each in devices.items()}}

    def _device(self, place: str, written: Any) -> DeviceOptions:
        _check_fields(written, {"type": str, "options": dict}, {})
        kind = device_kind(Place.parse(place).kind).options_type
        known = {each.__name__: each for each in (DeviceOptions, kind)}
        if written["type"] not in known:
            raise ValueError(f"expected options of {place}, {' or '.join(known)}, got {written['type']!r:.80}")
        found = known[written["type"]]
        _check_fields(written["options"], {}, dict.fromkeys([field.name for field in fields(found)], Any))
        given = {name: self._reader.read(value) for name, value in written["options"].items()}
        for name, value in given.items():
            _check_field(name, value, hints_of(found)[name])
        return found(**given)

    def _add_scope(self, name: Any) -> None:
        if not isinstance(name, str):
            raise ValueError(f"expected a name, got {name!r:.200}")
        parent, _, own = name.rpartition("/")
        _check_parts(own)
        scope = self._graph._add_scope(self._scope(parent), name)
        if name in self._structure.get("bodies", {}):
            self._reader.bodies[name] = Body(scope)

    def _fill(self, body: Body, record: Any) -> None:
        _check_fields(record, _BODY, {})
        nodes = self._graph._store.nodes

        def blobs(names: Any, inside: Body | None) -> list[Blob]:
            found = [self._found(name, nodes) for name in names]
            for blob in found:
                if not isinstance(blob, Blob) or blob.graph.body is not inside:
                    raise ValueError(f"expected blobs of {body.scope.name!r}, or around it, got {blob!r:.200}")
            return found

        body.parameters, body.outputs = tuple(blobs(record["parameters"], body)), tuple(blobs(record["outputs"], body))
        pairs = record["captured"]
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(f"expected pairs of names, got {pairs!r:.200}")
        outer, inner = blobs([pair[0] for pair in pairs], body.outer), blobs([pair[1] for pair in pairs], body)
        body.captured = dict(zip(outer, inner, strict=True))
        body.is_closed = True

    def _scope(self, name: str) -> Graph:
        return self._graph if not name else self._found(name, self._graph._store.scopes)

    def _add(self, record: Any, last: int) -> int:
        kind = record.get("kind") if isinstance(record, dict) else None
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise ValueError(f"expected a node, of kind {', '.join(_FIELDS)}, got {record!r:.200}")
        _check_fields(record, _FIELDS[kind], _OPTIONAL[kind])
        number, name, scope = record["id"], record["name"], self._scope(record.get("scope", ""))
        if not last < number < _most(len(self._structure["nodes"])):
            raise ValueError(f"expected an id after {last}, got {number}")
        if not name.startswith(scope._prefix):
            raise ValueError(f"expected a name in scope {scope.name!r:.200}, got {name!r:.200}")
        _check_parts(name[len(scope._prefix) :])
        self._graph._store.check_free(name)
        node = self._op(scope, record) if kind == "op" else self._blob(scope, record)
        node.site = self._site
        self._graph._store.add(node)
        return int(number)

    def _place(self, text: str) -> Place:
        found = self._places.get(text)
        if found is None:
            found = self._places[text] = Place.parse(text)
        return found

    def _blob(self, scope: Graph, record: dict[str, Any]) -> Blob:
        spec = self._reader.spec(record["shape"], record["dtype"])
        where = (scope, record["id"], record["name"], self._place(record["place"]), spec)
        if record["kind"] == "blob":
            return Blob(*where)
        if record["kind"] == "state":
            _, row = rows_axis(spec, f"state {record['name']!r:.200}")
            return State(*where, self._reader.array(record["name"], row))
        if spec.axes or spec.dtype.hasobject:
            raise ValueError(f"expected numbers in a shape without open axes for a variable, got {spec}")
        init: Callable[..., Any] = _Elsewhere(str(self._path), self._structure["rank"])
        array = None
        if where[3].rank == self._structure["rank"]:
            array = self._reader.array(record["name"], spec)
            init = lambda *_: array  # noqa: E731  for replicas, which begin alike
        variable = Variable(*where, init)
        variable.commit(array)
        variable.is_state = record["state"]
        return variable

    def _op(self, scope: Graph, record: dict[str, Any]) -> Op:
        try:
            operation = self._reader.read(record["operation"])
        except Exception as error:
            raise ValueError(f"op {record['name']!r:.200}: {_said(error)}") from error
        if not isinstance(operation, Operation):
            raise ValueError(f"expected an operation, got {operation!r:.200}")
        attempts, preferred = record.get("attempts"), record.get("hints")
        if attempts is not None:
            timeout, retries, backoff = self._reader.read(attempts)
            for value, hint in ((timeout, float | None), (retries, int), (backoff, float)):
                _check_field("attempts", value, hint)
            attempts = options.attempts_of(timeout, retries, backoff)
        if preferred is not None:
            libraries, force_cpu = self._reader.read(preferred)
            _check_field("hints", libraries, tuple[str, ...] | None)
            _check_field("hints", force_cpu, bool)
            preferred = options.hints_of(libraries, force_cpu)
        place, lane, priority = self._place(record["place"]), record["lane"], record["priority"]
        return Op(scope, record["id"], record["name"], place, operation, lane, attempts, priority, preferred)

    def _connect(self, record: dict[str, Any]) -> None:
        nodes = self._graph._store.nodes
        op = nodes[record["name"]]
        assert isinstance(op, Op)
        inputs, outputs = ([self._found(name, nodes) for name in record[what]] for what in ("inputs", "outputs"))
        if inputs or not op.is_connected:
            op._connect_inputs(inputs)
        if outputs:
            op._connect_outputs(outputs)

    def _check_variable(self, record: dict[str, Any]) -> None:
        """Check where its value is, and note the variable it copies."""
        nodes, rank, saved_on = self._graph._store.nodes, self._graph.world.rank, self._structure["rank"]
        variable = nodes[record["name"]]
        assert isinstance(variable, Variable)
        if variable.place.rank != saved_on != rank:
            raise ValueError(
                f"its value is on rank {variable.place.rank}, rank {saved_on} has saved the file, and this is rank "
                f"{rank}: load what this rank has saved"
            )
        if record["replica_of"] is not None:
            first = self._found(record["replica_of"], nodes)
            if not isinstance(first, Variable) or first is variable or first.spec != variable.spec:
                raise ValueError(f"expected a copy of a variable of {variable.spec}, got one of {first!r:.200}")
            variable.replica_of = first

    def _order(self, record: dict[str, Any]) -> None:
        """The orders in which a blob's ops were connected, where they are said."""
        nodes = self._graph._store.nodes
        node = nodes[record["name"]]
        if isinstance(node, Variable) and node.replica_of is not None and node.replica_of.replica_of is not None:
            raise ValueError(f"expected a copy of what is no copy itself, got one of {node.replica_of.name!r:.200}")
        for what in ("producers", "consumers"):
            if isinstance(node, Blob) and what in record:
                ops = [self._found(name, nodes) for name in record[what]]
                known = getattr(node, what)
                if Counter(ops) != Counter(known):
                    raise ValueError(f"{what}: expected {len(known)} ops in some order, got {record[what]!r:.200}")
                if what == "producers":
                    node._set_producers(ops)
                else:
                    node.consumers = ops

    def _interface(self) -> Interface | None:
        written = {what: self._structure.get(what) for what in _INTERFACE}
        if None in written.values():
            return None
        nodes = self._graph._store.nodes
        found = {}
        for what, names in written.items():
            with _read_as(self._path, what):
                found[what] = {outer: self._found(name, nodes) for outer, name in (names or {}).items()}
                if not all(isinstance(blob, Blob) for blob in found[what].values()):
                    raise ValueError(f"expected blobs, got {names!r:.200}")
        return Interface(**found)

    @staticmethod
    def _found(name: Any, among: Mapping[str, Any]) -> Any:
        if not isinstance(name, str) or name not in among:
            raise ValueError(f"there is no {name!r:.200}{did_you_mean(str(name)[:80], [*among][:1000])}")
        return among[name]


class _Elsewhere:
    """In the place of the first value of a variable of another rank, which another file has."""

    def __init__(self, path: str, rank: int) -> None:
        self._path, self._rank = path, rank

    def __call__(self, spec: TensorSpec, name: str) -> Any:
        raise GraphError(f"variable {name!r} has no value here: {self._path} was saved by rank {self._rank}")


def _check_parts(name: str) -> None:
    if not name.isprintable() or not all(name.split("/")):
        raise ValueError(f"{name!r:.200} is no name: a name is printable, and not empty between '/'")
