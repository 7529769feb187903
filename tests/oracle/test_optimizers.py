"""Optimizers and rates against PyTorch, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from actorflow.nn import init, rates
from tests.oracle.comparison import examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test WITH=torch")

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

STEPS = 50
BATCH, FEATURES, CLASSES = 6, 7, 5
Make = Callable[..., Any]


CASES = {
    "sgd": (nn.SGD, torch.optim.SGD, {"rate": 0.3}, {"lr": 0.3}),
    "momentum": (nn.SGD, torch.optim.SGD, {"rate": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (
        nn.SGD,
        torch.optim.SGD,
        {"rate": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ),
    "adam": (nn.Adam, torch.optim.Adam, {"rate": 0.05}, {"lr": 0.05}),
    "adam with decay": (
        nn.Adam,
        torch.optim.Adam,
        {"rate": 0.02, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    ),
    "adam without memory": (nn.Adam, torch.optim.Adam, {"betas": (0.0, 0.0)}, {"betas": (0.0, 0.0)}),
    "adamw": (nn.AdamW, torch.optim.AdamW, {"rate": 0.02}, {"lr": 0.02}),
    "adamw with decay": (
        nn.AdamW,
        torch.optim.AdamW,
        {"rate": 0.02, "weight_decay": 0.3},
        {"lr": 0.02, "weight_decay": 0.3},
    ),
    "adagrad": (nn.Adagrad, torch.optim.Adagrad, {"rate": 0.1}, {"lr": 0.1}),
    "adagrad with decay": (
        nn.Adagrad,
        torch.optim.Adagrad,
        {"rate": 0.1, "eps": 1e-3, "weight_decay": 0.1, "initial": 0.5},
        {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    "rmsprop": (nn.RMSProp, torch.optim.RMSprop, {"rate": 0.01}, {"lr": 0.01}),
    "rmsprop with decay": (
        nn.RMSProp,
        torch.optim.RMSprop,
        {"rate": 0.01, "alpha": 0.9, "eps": 1e-5, "weight_decay": 0.1},
        {"lr": 0.01, "alpha": 0.9, "eps": 1e-5, "weight_decay": 0.1},
    ),
    "rmsprop with momentum": (
        nn.RMSProp,
        torch.optim.RMSprop,
        {"rate": 0.005, "momentum": 0.8},
        {"lr": 0.005, "momentum": 0.8},
    ),
    "rmsprop centered": (nn.RMSProp, torch.optim.RMSprop, {"centered": True}, {"centered": True}),
    "rmsprop with all": (
        nn.RMSProp,
        torch.optim.RMSprop,
        {"rate": 0.005, "momentum": 0.8, "centered": True, "weight_decay": 0.01},
        {"lr": 0.005, "momentum": 0.8, "centered": True, "weight_decay": 0.01},
    ),
}


class Regression:
    """Logistic regression, here and in torch, on the same new data in each step."""

    def __init__(self, dtype: str, optimizer: nn.Optimizer, make_theirs: Make) -> None:
        random = np.random.default_rng(0)
        self.random, self.dtype = random, dtype
        first_w, first_b = random.standard_normal((CLASSES, FEATURES)), random.standard_normal(CLASSES)
        self.graph = graph = af.Graph("regression")
        self.x, self.labels = graph.blob("x", (BATCH, FEATURES), dtype), graph.blob("labels", (BATCH,), "int64")
        self.w = graph.variable("w", (CLASSES, FEATURES), dtype, first_w)
        self.b = graph.variable("b", (CLASSES,), dtype, first_b)
        loss = ops.softmax_loss(ops.bias(ops.inner(self.x, self.w), self.b), self.labels)
        self.train = optimizer.minimize(loss, [self.w, self.b])
        kind = getattr(torch, dtype)
        self.their_w = torch.tensor(first_w, dtype=kind, requires_grad=True)
        self.their_b = torch.tensor(first_b, dtype=kind, requires_grad=True)
        self.theirs = make_theirs(self.their_w, self.their_b)

    def their_step(self, x: np.ndarray, labels: np.ndarray, clip: Callable[[Any], None]) -> None:
        scores = torch.tensor(x) @ self.their_w.T + self.their_b
        self.theirs.zero_grad()
        torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).backward()
        clip([self.their_w, self.their_b])
        self.theirs.step()

    def compare(
        self,
        tolerance: float,
        clip: Callable[[Any], object] = lambda _: None,
        after_step: Callable[[], object] = lambda: None,
    ) -> None:
        af.run(self._compare(tolerance, clip, after_step))

    async def _compare(self, tolerance: float, clip: Callable[[Any], object], after_step: Callable[[], object]) -> None:
        async with self.graph:
            for _ in range(STEPS):
                x = self.random.standard_normal((BATCH, FEATURES)).astype(self.dtype)
                labels = self.random.integers(0, CLASSES, BATCH)
                await self.graph.run({self.x: x, self.labels: labels}, fetch=[self.train])
                self.their_step(x, labels, clip)
                after_step()
                for ours, theirs in ((self.w, self.their_w), (self.b, self.their_b)):
                    np.testing.assert_allclose(
                        ours.value, theirs.detach().numpy(), rtol=tolerance, atol=tolerance, strict=True
                    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_fifty_steps_are_those_of_torch(case, dtype) -> None:
    make, make_theirs, settings, their_settings = CASES[case]
    regression = Regression(dtype, make(**settings), lambda *p: make_theirs(p, **their_settings))
    # What is divided by its own root amplifies rounding where gradients are nearly 0.
    regression.compare(1e-9 if dtype == "float64" else 1e-4 if case != "adam without memory" else 1e-2)


@pytest.mark.parametrize("case", ["momentum", "adamw with decay", "rmsprop with all"])
def test_multipliers_are_groups_of_parameters(case) -> None:
    make, make_theirs, settings, their_settings = CASES[case]

    def theirs(w: Any, b: Any) -> Any:
        groups = [{"params": [w]}, {"params": [b], "lr": 2 * their_settings["lr"], "weight_decay": 0.0}]
        return make_theirs(groups, **their_settings)

    Regression("float64", make(**settings, multipliers=nn.bias_multipliers), theirs).compare(1e-9)


@pytest.mark.parametrize("limits", [nn.Clip(value=0.05), nn.Clip(norm=0.3), nn.Clip(value=0.1, norm=0.2)])
@pytest.mark.parametrize("case", ["momentum", "adam"])
def test_gradients_are_clipped_as_by_torch(case, limits) -> None:
    make, make_theirs, settings, their_settings = CASES[case]

    def clip(parameters: Any) -> None:
        if limits.value is not None:
            torch.nn.utils.clip_grad_value_(parameters, limits.value)
        if limits.norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, limits.norm)

    regression = Regression("float64", make(**settings, clip=limits), lambda *p: make_theirs(p, **their_settings))
    regression.compare(1e-9, clip)


def test_a_policy_takes_the_steps_of_a_scheduler() -> None:
    settings, their_settings = CASES["adam"][2:]
    policy = rates.Warmup(rates.Cosine(settings["rate"], 60), 10, start=0.1)
    regression = Regression("float64", nn.Adam(policy), lambda *p: torch.optim.Adam(p, **their_settings))
    scheduler = scheduler_of(policy, regression.theirs)
    regression.compare(1e-9, after_step=scheduler.step)


# -- rates --------------------------------------------------------------------------------------------------------


def scheduler_of(policy: Any, optimizer: Any) -> Any:
    """Torch's scheduler for a policy."""
    schedulers = torch.optim.lr_scheduler
    match policy:
        case rates.StepDecay():
            return schedulers.StepLR(optimizer, policy.every, policy.factor)
        case rates.MultiStep():
            return schedulers.MultiStepLR(optimizer, list(policy.milestones), policy.factor)
        case rates.Poly():
            return schedulers.PolynomialLR(optimizer, policy.steps, policy.power)
        case rates.Cosine():
            return schedulers.CosineAnnealingLR(optimizer, policy.steps, policy.floor)
        case rates.Warmup():
            line = schedulers.LinearLR(optimizer, policy.start, 1.0, policy.steps)
            return schedulers.SequentialLR(optimizer, [line, scheduler_of(policy.policy, optimizer)], [policy.steps])
    raise AssertionError(policy)


POLICIES = st.one_of(
    st.builds(rates.StepDecay, st.floats(0.01, 1), st.integers(1, 20), st.floats(0.1, 1)),
    st.builds(
        rates.MultiStep,
        st.floats(0.01, 1),
        st.lists(st.integers(1, 60), max_size=4, unique=True).map(lambda found: tuple(sorted(found))),
        st.floats(0.1, 1),
    ),
    st.builds(rates.Poly, st.floats(0.01, 1), st.integers(1, 80), st.floats(0.5, 3)),
    st.builds(rates.Cosine, st.floats(0.01, 1), st.integers(STEPS, 80), st.floats(0, 0.01)),  # torch's rises again
)


@examples(30)
@given(POLICIES | st.builds(rates.Warmup, POLICIES, st.integers(1, 20), st.floats(0.01, 1)))
def test_a_policy_gives_the_rates_of_a_scheduler(policy) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=getattr(policy, "policy", policy).rate)
    scheduler = scheduler_of(policy, optimizer)
    for step in range(STEPS):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(policy(step), rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


# -- initializers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7), (3, 3, 4, 6), (5, 4, 6), (2, 3, 4, 5, 6)])
def test_fans_are_torchs(shape) -> None:
    """A weight here is (out, in) or (*kernel, in, out), there (out, in) or (out, in, *kernel)."""
    there = shape if len(shape) == 2 else (shape[-1], shape[-2], *shape[:-2])
    fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(there))
    assert init.fans(shape) == (fan_in, fan_out)
