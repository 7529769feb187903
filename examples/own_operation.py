"""An operation of one's own: mathematics, gradient, a kernel for the CPU, a check of all that, a training with it.

Run it with ``python examples/own_operation.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import actorflow as af


@dataclass(frozen=True)
class SmoothRelu(af.ops.Operation):
    """``y = log(1 + exp(sharpness * x)) / sharpness``, elementwise: a smooth relu.

    Attributes:
        sharpness: How narrow its bend is.
    """

    arguments = ("x",)

    sharpness: float = 1.0

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        (x,) = inputs
        if x.dtype.kind != "f":
            raise af.DTypeError(f"SmoothRelu: x must be floating, got {x}")
        return (x,)

    def gradient(self, op: af.Op, grads: Sequence[af.Blob | None], wanted: Sequence[bool]) -> Sequence[af.Blob | None]:
        """dx = g * sigmoid(sharpness * x), as ops of the same graph."""
        (g,), (x,) = grads, op.inputs
        assert g is not None  # only ops whose output the loss depends on are asked
        return [g * af.ops.sigmoid(self.sharpness * x)]


@af.ops.kernel(SmoothRelu)  # for the CPU, NumPy, any dtype and layout unless said otherwise
def smooth_relu_cpu(operation: SmoothRelu, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    (x,), (y,) = inputs, outputs
    np.multiply(x, operation.sharpness, out=y)  # into the buffer that is given: a run then allocates nothing
    np.logaddexp(y, 0, out=y)
    np.divide(y, operation.sharpness, out=y)


def smooth_relu(x: af.Blob, sharpness: float = 1.0) -> af.Blob:
    """The functional form, as `af.ops` has it for its own operations."""
    return x.graph.apply(SmoothRelu(sharpness), x)


def check() -> None:
    x = np.random.default_rng(0).normal(0, 3, (4, 5))
    af.testing.check_gradient(SmoothRelu(sharpness=2.0), x)
    print("the gradient is right")
    result_graph = af.Graph("check")
    y = smooth_relu(result_graph.blob("x", x.shape, x.dtype))
    np.testing.assert_allclose(result_graph.run_sync({"x": x})[y], np.log1p(np.exp(x)))
    print("the values are right")


async def train() -> None:
    """Which points lie within a circle? A network with two layers of it learns that."""
    graph = af.Graph("circle")
    points = graph.blob("points", (256, 2))
    inside = graph.blob("inside", (256,), "int64")
    layer = af.nn.InnerProduct(16, weight_init=af.nn.init.he(seed=0), name="hidden")
    scores = af.nn.InnerProduct(2, name="scores")(smooth_relu(layer(points, training=True), 4.0), training=True)
    loss = af.ops.softmax_loss(scores, inside)
    accuracy = af.ops.accuracy(scores, inside)
    step = af.nn.SGD(0.5, momentum=0.9).minimize(loss)
    rng = np.random.default_rng(0)

    def batches():
        for _ in range(300):
            batch = rng.uniform(-1, 1, (256, 2)).astype("float32")
            yield {points: batch, inside: (np.linalg.norm(batch, axis=1) < 0.7).astype("int64")}

    async with graph:
        results = [result async for result in graph.stream(batches(), fetch=[loss, accuracy, step], in_flight=2)]
    first, last = results[0], results[-1]
    print(
        f"accuracy: {first[accuracy]:.0%} at first, {'more' if last[accuracy] > 0.95 else 'less'} than 95% in the end"
    )


check()
af.run(train())
