"""Models that commands are given: files, and attributes of modules."""

from __future__ import annotations

import importlib
import os
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from actorflow.errors import GraphError, text_of
from actorflow.graph.graph import Graph
from actorflow.runtime.model import Model


def open_model(source: str, *, backend: str | None = None) -> Model:
    """The model that a text names.

    Args:
        source: A file ``.onnx`` or ``.af``, or ``module:attribute``, a model, a graph, or a function without arguments
            that returns one. Modules are looked for in the current directory, too.
        backend: As for `actorflow.onnx.load`, for files of ONNX alone.
    Raises:
        GraphError: if it names none.
        OSError: if a file cannot be read.
        ...: what the module raises when it is imported, and what the function does.
    """
    kind = Path(source).suffix.lower()
    if backend is not None and kind != ".onnx":
        raise GraphError(f"{source}: a backend is for files .onnx alone")
    found: Any
    if kind == ".onnx":
        from actorflow.onnx import load

        options: Any = {} if backend is None else {"backend": backend}
        found = load(source, **options)
    elif kind == ".af":
        from actorflow.checkpoint import load_sync

        found = load_sync(source)
    else:
        found = _attribute(source)
    if isinstance(found, Graph):
        found = Model.of(found)
    if not isinstance(found, Model):
        raise GraphError(f"{source}: expected an af.Model or an af.Graph, got {type(found).__name__}")
    return found


def _attribute(source: str) -> Any:
    module, colon, path = source.partition(":")
    if not (module and colon and path):
        raise GraphError(f"{source}: expected a file .onnx or .af, or module:attribute")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
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
