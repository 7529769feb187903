"""The contender that is not one of `inference`, as tables name it."""

__all__ = ["BACKEND"]

BACKEND = 'actorflow, backend="onnxruntime"'
