"""Whether oneDNN is there, and what it computes."""

from __future__ import annotations

from actorflow.errors import MissingExtraError
from actorflow.ops.onednn.library import libdnnl
from actorflow.ops.registry import kernels_of, load_library

#: Functions that it computes where they are in a chain.
_IN_CHAINS = frozenset(["Erf", "Exp", "Log", "NormalCdf", "Tanh"])


def why_not() -> str:
    """The reason why the library is not there; empty where it is."""
    try:
        libdnnl()
    except MissingExtraError as error:
        return str(error)
    return ""


def computed() -> frozenset[str]:
    """Kinds of the operations whose results have last digits of their own."""
    load_library("cpu", "onednn")
    return _IN_CHAINS | {known.key.operation for known in kernels_of("cpu", "onednn")}
