"""What plans compute by one call though nothing leads from one to the other: an optimizer's small updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.ops import SgdUpdate
from actorflow.ops.registry import kernel
from actorflow.ops.together import Together
from actorflow.plan.together import _SMALL
from tests.support.effort import slow

OPTIMIZERS: dict[str, Callable[..., nn.Optimizer]] = {
    "sgd": lambda **how: nn.SGD(0.1, momentum=0.9, weight_decay=1e-2, **how),
    "nesterov": lambda **how: nn.SGD(0.1, momentum=0.9, nesterov=True, multipliers=nn.bias_multipliers, **how),
    "adam": lambda **how: nn.Adam(0.1, weight_decay=1e-2, **how),
    "rmsprop": lambda **how: nn.RMSProp(0.1, momentum=0.9, centered=True, **how),
    "adagrad": lambda **how: nn.Adagrad(nn.rates.StepDecay(0.1, 2, 0.5), **how),
}
CLIPS = {"nothing": None, "norm": nn.Clip(norm=0.5), "both": nn.Clip(value=0.1, norm=0.5)}
X = np.random.default_rng(0).standard_normal((4, 6)).astype("f")


OPTIONS: list[dict[str, Any]] = [{}, {"sequential": True}, {"memory_budget": 1 << 24}, {"libraries": ["numpy"]}]
#: Every fourth of them has each optimizer with each way to clip, and all options.
TRAINED = [
    (optimizer, clip, OPTIONS[(i + j // 4) % 4])
    for i in range(4)
    for j, (optimizer, clip) in enumerate(product(OPTIMIZERS, CLIPS))
]


class Network:
    """Some layers, one of whose weights is large, and what trains them."""

    def __init__(self, make: Callable[..., nn.Optimizer], clip: Any = None, **options: Any) -> None:
        self.graph = af.Graph("network", **options)
        self.x = y = self.graph.blob("x", X.shape)
        sizes = (6, 5, 200, 1 + _SMALL // 200, 3)
        for i, (n, m) in enumerate(pairwise(sizes)):
            weight = self.graph.variable(f"weight{i}", (m, n), init=nn.init.gaussian(std=0.2, seed=i))
            bias = self.graph.variable(f"bias{i}", (m,), init=nn.init.constant(0.1))
            y = ops.relu(ops.bias(ops.inner(y, weight), bias))
        self.loss = ops.mean(ops.square(y))
        self.updates = make(clip=clip).minimize(self.loss)

    def run(self) -> float:
        return float(self.graph.run_sync({self.x: X}, fetch=[self.loss, self.updates])[self.loss])

    def kinds(self) -> list[Counter[str]]:
        """What is computed together."""
        steps = self.graph.compile([self.loss, self.updates]).ops
        return [Counter(part.operation.kind for part in op.parts) for op in steps if op.operation.kind == "Together"]


@pytest.mark.parametrize(("optimizer", "clip", "options"), slow(TRAINED, but=TRAINED[::4]))
def test_updates_together_are_those_of_each_alone(optimizer: str, clip: str, options: dict[str, Any]) -> None:
    together, alone = (Network(OPTIMIZERS[optimizer], CLIPS[clip], fuse=fuse, **options) for fuse in (True, False))
    kinds, (update,) = together.kinds(), {op.operation.kind for op in together.updates.ops if "update" in op.name}
    assert kinds[-1] == {update: 7}
    assert kinds[:-1] == ([] if clip == "nothing" else [{"SquareSum": 7}, {"ScaleBy": 7}])
    assert not alone.kinds()
    for _ in range(4):
        assert together.run() == alone.run()
    for variable in together.graph.variables:
        np.testing.assert_array_equal(variable.value, alone.graph[variable.name].value)


def test_large_ones_and_those_of_other_optimizers_are_left_alone() -> None:
    network = Network(OPTIMIZERS["sgd"])
    own = [[network.graph[f"{kind}{i}"] for i in which for kind in ("weight", "bias")] for which in ((0, 1), (2, 3))]
    both = [OPTIMIZERS["sgd"]().minimize(network.loss, variables) for variables in own]
    plan = network.graph.compile(both)
    found = [{part.node.name for part in op.parts} for op in plan.ops if isinstance(op.operation, Together)]
    updates = [{op.name for op in of.ops if op.name.endswith("update")} for of in both]
    assert sorted(map(sorted, found)) == [sorted(names - {"sgd_2/weight2.update"}) for names in updates]


@dataclass(frozen=True)
class BrittleUpdate(SgdUpdate):
    """Fails for vectors of 200 elements, when it is told to."""


class Switch:
    on = False


@kernel(BrittleUpdate)
def _brittle_update(operation: BrittleUpdate, inputs: Any, outputs: Any) -> None:
    if Switch.on and inputs[0].shape == (200,):
        raise ArithmeticError("planted")
    for y, x in zip(outputs, (inputs[0], inputs[2]), strict=True):
        np.copyto(y, x)


class BrittleSGD(nn.SGD):
    def operation(self, factors: nn.Multipliers) -> SgdUpdate:
        return BrittleUpdate()


def test_an_error_is_that_of_the_part_and_each_has_its_calls() -> None:
    network = Network(lambda **how: BrittleSGD(0.1, **how))
    assert network.kinds() == [{"BrittleUpdate": 7}]
    network.run()
    Switch.on = True
    try:
        with pytest.raises(af.OpError, match=r"op 'sgd/bias1.update' .*planted") as caught:
            network.run()
        assert caught.value.op is network.graph["sgd/bias1.update"]
    finally:
        Switch.on = False
    network.run()
    first, second = (network.graph.engine.profile[network.graph[f"sgd/bias{i}.update"].id] for i in (0, 1))
    assert (first.calls, first.failed, second.calls, second.failed) == (2, 0, 2, 1)


def test_the_summary_names_all_of_them_briefly() -> None:
    network = Network(OPTIMIZERS["sgd"])
    lines = network.graph.compile([network.loss, network.updates]).summary().splitlines()
    (line,) = [line for line in lines if "Together" in line]
    assert "sgd/bias0.update" in line
    assert len(line) < 2000
