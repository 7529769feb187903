"""Models from ONNX files: ordinary ops under the names of the file's nodes."""

from actorflow.errors import require

require("onnx", extra="onnx", purpose="models from ONNX files")

from actorflow.onnx.network import Network as Network  # noqa: E402
from actorflow.onnx.network import load as load  # noqa: E402

__all__ = ["Network", "load"]
