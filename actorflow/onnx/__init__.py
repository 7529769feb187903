"""Models from ONNX files, as ordinary ops under the names of the file's nodes, and graphs as ONNX files."""

from typing import TYPE_CHECKING

from actorflow.errors import require

require("onnx", extra="onnx", purpose="models in ONNX files")

from actorflow.onnx.network import Network as Network  # noqa: E402
from actorflow.onnx.network import load as load  # noqa: E402
from actorflow.onnx.saving import save as save  # noqa: E402

__all__ = ["Network", "load", "save"]

if not TYPE_CHECKING:  # for which any name would be one that is there

    def __getattr__(name: str) -> object:
        from actorflow.foreign import missing

        missing(__name__, name)
