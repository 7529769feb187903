"""Operators of ONNX, by kind; importing one fills its rows of the table."""

from importlib import import_module

from actorflow.onnx.table import TABLE as TABLE

for _kind in (
    "convolution", "elementwise", "indexing", "learned", "microsoft", "products", "quantized", "recurrent",
    "reductions", "resizing", "sampling", "shaping", "signals",
):  # fmt: skip
    import_module(f"{__name__}.{_kind}")
