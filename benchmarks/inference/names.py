"""The contenders, as tables name them."""

__all__ = ["ONNX", "OURS"]

OURS, ONNX = "actorflow", "onnxruntime"
