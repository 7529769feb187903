"""What operations cost by their formulas: as counted by hand, and as published of known networks."""

from __future__ import annotations

from typing import Any

import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.ops.operation import Cost, Operation
from actorflow.plan.validate import needed_ops


def cost_of(*outputs: af.Blob) -> Cost:
    found = [op.operation.cost([x.spec for x in op.inputs], [y.spec for y in op.outputs]) for op in needed_ops(outputs)]
    known = [cost for cost in found if cost is not None]
    assert len(known) == len(found)
    return Cost(sum(cost.multiply_adds for cost in known), sum(cost.others for cost in known))


CASES: dict[str, tuple[Any, Cost]] = {
    "conv": (lambda x: ops.conv(x, variable(x, 3, 2, 4, 8), 2), Cost(2 * 2 * 3 * 8 * 3 * 2 * 4)),
    "grouped": (lambda x: ops.conv(x, variable(x, 1, 1, 2, 8), groups=2), Cost(2 * 5 * 6 * 8 * 2)),
    "transposed": (lambda x: ops.conv_transpose(x, variable(x, 2, 2, 8, 4), 2), Cost(2 * 5 * 6 * 4 * 2 * 2 * 8)),
    "inner": (lambda x: ops.inner(x, variable(x, 7, 4)), Cost(2 * 5 * 6 * 4 * 7)),
    "matmul": (lambda x: ops.matmul(x, x, transpose_b=True), Cost(2 * 5 * 6 * 6 * 4)),
    "transposed matmul": (lambda x: ops.matmul(x, x, transpose_a=True), Cost(2 * 5 * 4 * 4 * 6)),
    "bias": (lambda x: ops.bias(x, variable(x, 4)), Cost(0, 240)),
    "elementwise": (ops.exp, Cost(0, 240)),
    "three terms": (lambda x: ops.add(x, x, x), Cost(0, 480)),
    "reduction": (lambda x: ops.sum(x, 1), Cost(0, 240)),
    "average": (ops.global_average, Cost(0, 240)),
    "max pool": (lambda x: ops.max_pool(x, (2, 3)), Cost(0, 2 * 3 * 2 * 4 * 6)),
    "softmax": (ops.softmax, Cost(0, 720)),
    "layer norm": (lambda x: ops.layer_norm(x, variable(x, 4), variable(x, 4)), Cost(0, 1680)),
    "linear": (lambda x: ops.resize(x, (10, 6))[:1], Cost(0, 3 * 2 * 10 * 6 * 4)),
    "lstm": (
        lambda x: ops.lstm(x[0], variable(x, 12, 4), variable(x, 12, 3), variable(x, 12))[0],
        Cost(5 * 6 * 12 * (4 + 3), 5 * 6 * 3 * 17),
    ),
    "moved": (lambda x: ops.pad(ops.transpose(ops.reshape(x, (10, 6, 4))), 1)[None], Cost()),
    "picked": (lambda x: ops.concat([x, x[:, ::-1]], 0), Cost()),
}


def variable(x: af.Blob, *shape: int) -> af.Variable:
    return x.graph.variable(x.graph.unique_name("w"), shape, init=nn.init.constant(0.0))


@pytest.mark.together("name", CASES)
def test_costs(name: str) -> None:
    make, expected = CASES[name]
    x = af.Graph("g").blob("x", (2, 5, 6, 4))
    assert cost_of(make(x)) == expected


@pytest.mark.parametrize("name", ["conv", "inner", "matmul"])
def test_gradients_of_a_product_cost_as_much_each(name: str) -> None:
    make, expected = CASES[name]
    graph = af.Graph("g")
    x = graph.blob("x", (2, 5, 6, 4))
    grads = af.gradient(ops.sum(make(x)), [x, *graph.variables])
    # By x and by the weight; where both operands are x, by each of them.
    assert cost_of(*grads).multiply_adds == 2 * expected.multiply_adds


def test_costs_follow_open_axes() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 3))
    cost = cost_of(ops.inner(x, variable(x, 4, 3)), ops.relu(x))
    assert (str(cost.multiply_adds), str(cost.others), str(cost.flops)) == ("12*batch", "3*batch", "27*batch")


@pytest.mark.together(
    ("make", "size", "millions"),
    [
        (lambda: nn.ResNet(), 224, 1814),
        (lambda: nn.ResNet(size=50), 224, 4089),
        (lambda: nn.VGG(), 224, 15_470),
        (lambda: nn.MobileNetV3(), 224, 216.6),
        (lambda: nn.AlexNet(), 227, 724),
    ],
    ids=["resnet 18", "resnet 50", "vgg 16", "mobile net v3", "alexnet"],
)
def test_published_numbers(make: Any, size: int, millions: float) -> None:
    x = af.Graph("g").blob("x", (1, size, size, 3))
    assert cost_of(make()(x, training=False)).multiply_adds == pytest.approx(millions * 1e6, rel=1e-3)


def test_nobody_knows_what_a_function_costs() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2,))
    graph.function("own", lambda value: value, outputs=[x.spec])(x)
    (op,) = graph.ops
    assert op.operation.cost([x.spec], [x.spec]) is None


def test_an_operation_of_ones_own_says_its_cost() -> None:
    class Twice(Operation):
        per_element = 2

    assert Twice().cost([], [af.TensorSpec.of((3, 4))]) == Cost(0, 24)
