"""Models that commands are given: files, and attributes of modules."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from actorflow.errors import GraphError, text_of
from actorflow.graph.graph import Graph
from actorflow.runtime.model import Model


class SourceOptions(NamedTuple):
    """Options for opening models in files.

    Attributes:
        functions: Names of functions that files ``.af`` may have called, ``module:name``, as for `actorflow.load`.
        limits: ``memory_budget`` and ``max_plans`` of their graphs, where they are given.
    """

    backend: str | None = None  # of files ``.onnx``, as for `actorflow.onnx.load`
    axes: Mapping[str, Any] = MappingProxyType({})
    functions: Sequence[str] = ()
    limits: Mapping[str, Any] = MappingProxyType({})

    def wanted(self) -> Iterator[tuple[str, str]]:
        """The options that are given, and the files that they are for."""
        if self.backend is not None:
            yield "a backend is", ".onnx"
        if self.axes:
            yield "axes are", ".onnx"
        if self.functions:
            yield "functions are", ".af"
        for name in self.limits:
            yield f"{name} is", ".onnx or .af"


def open_models(sources: Sequence[str], options: SourceOptions) -> list[Model]:
    """The models that texts name, as `open_model` has them; each option must be for one of them."""
    check_options(sources, options)
    return [open_model(source, options) for source in sources]


def check_options(sources: Sequence[str], options: SourceOptions) -> None:
    """Check that each option is for one of the sources; raises GraphError if one is not."""
    kinds = {kind_of(source) for source in sources}
    for what, kind in options.wanted():
        if kinds.isdisjoint(kind.split(" or ")):
            raise GraphError(f"{', '.join(sources)}: {what} for files {kind} alone")


def kind_of(source: str) -> str:
    """Ending of a file's name, in lower case."""
    return Path(source).suffix.lower()


def open_model(source: str, options: SourceOptions | None = None) -> Model:
    """The model that a text names.

    Args:
        source: A file ``.onnx`` or ``.af``, or ``module:attribute``, a model, a graph, or a function without arguments
            that returns one. Modules are looked for in the current directory, too.
        options: For files; options of another kind do not matter.
    Raises:
        GraphError: if it names none.
        OSError: if a file cannot be read.
        ...: errors of the module's import, and of the function.
    """
    options = options or SourceOptions()
    kind = kind_of(source)
    found: Any
    if kind == ".onnx":
        from actorflow.onnx import load

        backend: Any = options.backend or "actorflow"
        found = load(source, axes=options.axes, backend=backend, **options.limits)
    elif kind == ".af":
        from actorflow.checkpoint import load_sync

        if options.functions:
            _look_here()
        found = load_sync(source, functions=options.functions, **options.limits)
    else:
        found = _attribute(source)
    if isinstance(found, Graph):
        found = Model.of(found)
    if not isinstance(found, Model):
        raise GraphError(f"{source}: expected an af.Model or an af.Graph, got {type(found).__name__}")
    return found


def _look_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _attribute(source: str) -> Any:
    module, colon, path = source.partition(":")
    if not (module and colon and path):
        raise GraphError(f"{source}: expected a file .onnx or .af, or module:attribute")
    _look_here()
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and lacks another one
        raise GraphError(f"{source}: there is no module {error.name!r}") from None
    try:
        found = reduce(getattr, path.split("."), imported)
    except AttributeError as error:
        raise GraphError(f"{source}: {text_of(error)}") from None
    return found if isinstance(found, Graph | Model) or not callable(found) else found()
