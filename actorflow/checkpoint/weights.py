"""Weights alone: the variables that a network computes with, of a graph or a part of one, for any other graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actorflow.checkpoint import checkpoint
from actorflow.checkpoint.file import Values, Wanted, check_fit, find
from actorflow.checkpoint.graphs import load_sync
from actorflow.errors import ActorflowError, GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Variable
from actorflow.interchange import as_array

#: Where a file is, or the files that ranks saved together.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class LoadedWeights(NamedTuple):
    """Differences between a file and the weights that `load_weights` was to load.

    Attributes:
        missing: Weights that the file does not have, which keep their values; by the names that they would have there.
        unexpected: Names in the file that are not weights of the scope.

    Example:
        >>> graph = af.Graph("net")
        >>> _ = graph.variable("w", [2])
        >>> af.save_weights_sync(graph, "net.safetensors")
        >>> other = af.Graph("other")
        >>> _ = other.variable("w", [2]), other.variable("bias", [])
        >>> af.load_weights_sync(other, "net.safetensors", strict=False)
        LoadedWeights(missing=('bias',), unexpected=())
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


async def save_weights(scope: Graph | Composite, path: str | os.PathLike[str]) -> None:
    """Save the weights of a graph, a sub-graph or a layer to a file, while the graph runs.

    Weights are all variables that not only a training needs: running statistics of a normalization, too, but no rates,
    steps or moments of an optimizer, and of copies (`Graph.replica`, data parallel) the first alone. Their names in the
    file are those within the scope, so that another scope can load them. The file is written as by `save_checkpoint`.

    Args:
        scope: A graph, a part of one (``graph["encoder"]``), or a composite that has been built.
        path: The file, ``.safetensors`` by custom. Of a graph that several ranks run it has the weights on this rank.
    Raises:
        CheckpointError: if the file cannot be written, or a variable's dtype cannot be stored.
        GraphError: if the scope has no weights on this rank; if a frame started before this fails or is cancelled, so
            that some of its updates may be missing.
        MissingExtraError: if safetensors is not installed.
    Cancellation: as for `save_checkpoint`.

    Example:
        >>> import asyncio
        >>> graph = af.Graph("autoencoder")
        >>> x = graph.blob("x", ["batch", 8])
        >>> encoder, decoder = af.nn.InnerProduct(2, name="encoder"), af.nn.InnerProduct(8, name="decoder")
        >>> y = decoder(encoder(x))
        >>> asyncio.run(af.save_weights(encoder, "encoder.safetensors"))
        >>> asyncio.run(af.load_weights(encoder, "encoder.safetensors"))
        LoadedWeights(missing=(), unexpected=())
    """
    weights = _storable(scope)
    root = next(iter(weights)).graph.root
    _, values = root.engine.snapshot(list(weights))
    await checkpoint.PendingSnapshot(tuple(weights.values()), values, checkpoint.metadata_of(root, ())).save(Path(path))


def save_weights_sync(scope: Graph | Composite, path: str | os.PathLike[str]) -> None:
    """`save_weights` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await save_weights(...)`` there.
        CheckpointError: as for `save_weights`.
        GraphError: as for `save_weights`, and if frames are in flight.

    Example:
        >>> graph = af.Graph("net")
        >>> w = graph.variable("w", [2], init=[1, 2])
        >>> af.save_weights_sync(graph, "net.safetensors")
        >>> w.value = 0, 0
        >>> _ = af.load_weights_sync(graph, "net.safetensors")
        >>> w.value
        array([1., 2.], dtype=float32)
    """
    checkpoint.check_no_loop("save_weights")
    weights = _storable(scope)
    root = next(iter(weights)).graph.root
    checkpoint.check_at_rest(root, "saved")
    values = {name: variable.held for variable, name in weights.items()}
    checkpoint.write(Path(path), values, checkpoint.metadata_of(root, ()))


async def load_weights(
    scope: Graph | Composite, path: Paths, *, strict: bool = True, prefix: str = ""
) -> LoadedWeights:
    """Put the weights of a file into a graph, a sub-graph or a layer; nothing else is changed.

    The graph may run meanwhile: each frame computes with the weights from before, or with those of the file, as for
    `Model.swap`. The file is one of `save_weights`, or a checkpoint, of which the rest is left out, or another
    safetensors file. Floating values of another dtype are converted: bfloat16 and float16 to float32 exactly; what is
    wider is rounded, and refused where a number would become infinite.

    Args:
        scope: As for `save_weights`; what is loaded are its weights, of a graph that several ranks run those whose
            place is on this rank.
        path: The file, or files that have the weights together.
        strict: Whether weights that the file lacks, and names in it that are not weights of the scope, are errors.
        prefix: Where in the file the weights are: the name of the scope that they had in a larger one, ``"encoder"``.
    Returns:
        Names that were missing and names that were unexpected: none, if ``strict``.
    Raises:
        CheckpointError: as for `load_checkpoint`; nothing has been changed then.
        GraphError: if the scope has no weights; if an op of the graph itself asks; if frames are in flight of a graph
            that several ranks run.
        MissingExtraError: if safetensors is not installed.
    Cancellation: as for `Model.swap`.

    Example:
        >>> import asyncio
        >>> def network(name):
        ...     graph = af.Graph(name)
        ...     _ = af.nn.MLP(10, name="mlp")(graph.blob("x", ["batch", 64]))
        ...     return graph
        >>> trained, served = network("trained"), network("served")
        >>> async def main():
        ...     await af.save_weights(trained, "all.safetensors")
        ...     return await af.load_weights(served["mlp"], "all.safetensors", prefix="mlp")
        >>> asyncio.run(main())
        LoadedWeights(missing=(), unexpected=())
    """
    found, loaded = await checkpoint.to_the_end(lambda: _of_files(scope, path, strict, prefix))
    await _scope_of(scope).root.engine.swap(found.arrays)
    return loaded


async def swap(
    graph: Graph, source: Paths | Mapping[str, Any], names: Mapping[str, Variable], strict: bool
) -> LoadedWeights:
    """Give a graph other weights while it runs, by names of the outside; see `Model.swap`."""
    outside = {variable: name for name, variable in names.items()}
    weights = {each: tuple({outside.get(each, name): 0, name: 0}) for each, name in weights_of(graph).items()}

    def read() -> tuple[Values, LoadedWeights]:
        if isinstance(source, Mapping):
            return _of_state(graph, weights, source, strict)
        if isinstance(source, str | os.PathLike) and Path(source).suffix == ".af":
            state = {own.name: own.value for own in load_sync(source).variables if not own.is_state}
            return _of_state(graph, weights, state, strict)
        return _read(graph, weights, source, strict)

    found, loaded = await checkpoint.to_the_end(read)
    await graph.engine.swap(found.arrays)
    return loaded


def load_weights_sync(scope: Graph | Composite, path: Paths, *, strict: bool = True, prefix: str = "") -> LoadedWeights:
    """`load_weights` for scripts.

    Raises:
        RuntimeError: inside a running event loop; use ``await load_weights(...)`` there.
        CheckpointError, GraphError: as for `load_weights`; GraphError if frames are in flight.

    Example:
        >>> from safetensors.numpy import save_file  # a file of another program
        >>> save_file({"w": np.array([1, 2], "float32"), "steps": np.array(7)}, "other.safetensors")
        >>> graph = af.Graph("net")
        >>> w = graph.variable("w", [2])
        >>> af.load_weights_sync(graph, "other.safetensors", strict=False)
        LoadedWeights(missing=(), unexpected=('steps',))
        >>> w.value
        array([1., 2.], dtype=float32)
    """
    checkpoint.check_no_loop("load_weights")
    found, loaded = _of_files(scope, path, strict, prefix)
    checkpoint.assign(_scope_of(scope).root, found.arrays)
    return loaded


def _scope_of(scope: Graph | Composite) -> Graph:
    """The sub-graph that the names are within; raises GraphError if a composite has not been built."""
    if isinstance(scope, Graph):
        return scope
    if not isinstance(scope, Composite):
        raise GraphError(f"expected a graph, a sub-graph or a composite with weights, got {scope!r}")
    if scope.scope is None:
        raise GraphError(f"composite {scope.name!r} has not been built, so that it has no weights yet")
    return scope.scope


def weights_of(scope: Graph | Composite) -> dict[Variable, str]:
    """The weights, on whatever rank, with their names within the scope."""
    graph = _scope_of(scope)
    prefix = "" if graph.parent is None else graph.name + "/"
    found = {}
    for variable in scope.variables:
        if not variable.name.startswith(prefix):
            raise GraphError(
                f"variable {variable.name!r} of composite {graph.name!r} belongs to another scope, where its layer was "
                f"built first: save and load that one, or the graph around both"
            )
        if not variable.is_state:
            found[variable] = variable.name.removeprefix(prefix)
    if not found:
        raise GraphError(f"{graph.name!r} has no weights")
    return found


def _storable(scope: Graph | Composite) -> dict[Variable, str]:
    weights = weights_of(scope)
    rank = _scope_of(scope).world.rank
    own = {each: name for each, name in weights.items() if each.place.rank == rank and each.replica_of not in weights}
    if not own:
        raise GraphError(
            f"{_scope_of(scope).name!r} has no weights on rank {rank}, or copies alone: save on another rank"
        )
    checkpoint.check_storable(own)
    return own


_Names = Mapping[Variable, Sequence[str]]  # names that each weight may have outside, the best first


def _wanted(graph: Graph, weights: _Names) -> Wanted:
    """Names that values of the weights on this rank may have: those of copies, or of the variables copied."""
    return {
        each: tuple([name for which in (each, each.replica_of) if which is not None for name in weights.get(which, ())])
        for each in weights
        if each.place.rank == graph.world.rank
    }


def _of_state(graph: Graph, weights: _Names, state: Mapping[str, Any], strict: bool) -> tuple[Values, LoadedWeights]:
    arrays, problems, missing = {}, list[str](), []
    for variable, names in _wanted(graph, weights).items():
        name = next((name for name in names if name in state), None)
        if name is None:
            missing.append(variable)
            continue
        try:
            arrays[variable] = as_array(state[name], variable.spec, f"variable {names[0]!r}")
        except ActorflowError as error:
            problems.append(str(error).partition("\n")[0])
    known = set().union(*weights.values())
    lacking, unexpected = [weights[each][0] for each in missing], [name for name in state if name not in known]
    found, loaded = Values([], arrays, missing, problems), LoadedWeights(tuple(lacking), tuple(unexpected))
    check_fit(f"{graph.name!r}", found, *loaded, strict, known)
    return found, loaded


def _of_files(scope: Graph | Composite, path: Paths, strict: bool, prefix: str) -> tuple[Values, LoadedWeights]:
    before = prefix.rstrip("/") + "/" if prefix else ""
    weights = {each: (before + name,) for each, name in weights_of(scope).items()}
    return _read(_scope_of(scope), weights, path, strict, before)


def _read(graph: Graph, weights: _Names, path: Paths, strict: bool, before: str = "") -> tuple[Values, LoadedWeights]:
    wanted = _wanted(graph, weights)
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(each) for each in path]
    if not paths:
        raise GraphError("load_weights: expected at least one file")
    found = find(paths, wanted, every=strict, converts=True)
    known = dict.fromkeys(name for names in weights.values() for name in names)
    unexpected = tuple(
        name
        for part in found.parts
        for name in sorted(part.names)
        if name.startswith(before)
        and name not in known
        and name not in part.states
        and part.replicas.get(name) not in known
    )
    missing = tuple(wanted[variable][0] for variable in found.missing)
    check_fit(f"{graph.name!r}", found, missing, unexpected, strict, known)
    return found, LoadedWeights(missing, unexpected)
