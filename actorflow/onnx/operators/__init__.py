"""Operators of ONNX, by kind; importing one fills its rows of the table."""

from actorflow.onnx.operators import (
    convolution as convolution,
)
from actorflow.onnx.operators import (
    elementwise as elementwise,
)
from actorflow.onnx.operators import (
    indexing as indexing,
)
from actorflow.onnx.operators import (
    learned as learned,
)
from actorflow.onnx.operators import (
    microsoft as microsoft,
)
from actorflow.onnx.operators import (
    products as products,
)
from actorflow.onnx.operators import (
    quantized as quantized,
)
from actorflow.onnx.operators import (
    recurrent as recurrent,
)
from actorflow.onnx.operators import (
    reductions as reductions,
)
from actorflow.onnx.operators import (
    resizing as resizing,
)
from actorflow.onnx.operators import (
    sampling as sampling,
)
from actorflow.onnx.operators import (
    shaping as shaping,
)
from actorflow.onnx.operators import (
    signals as signals,
)
from actorflow.onnx.table import TABLE as TABLE
