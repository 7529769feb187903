"""Operators of ONNX, by kind; importing one fills its rows of the table."""

from actorflow.onnx.operators import (
    convolution as convolution,
    elementwise as elementwise,
    indexing as indexing,
    products as products,
    quantized as quantized,
    recurrent as recurrent,
    reductions as reductions,
    resizing as resizing,
    sampling as sampling,
    shaping as shaping,
    signals as signals,
)
from actorflow.onnx.table import TABLE as TABLE
