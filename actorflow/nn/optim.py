"""Optimizers: updates of variables as ops of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from actorflow import ops
from actorflow.errors import GraphError, flag, real, shown, text
from actorflow.graph.composite import Composite
from actorflow.graph.gradient import gradient, trainable
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Variable
from actorflow.nn.rates import Policy
from actorflow.ops import AdagradUpdate, AdamUpdate, RmsPropUpdate, SgdUpdate
from actorflow.ops.nn.updates import state_spec
from actorflow.ops.operation import savable
from actorflow.spec import TensorSpec


class Multipliers(NamedTuple):
    """Factors on an optimizer's settings for one variable.

    Example:
        >>> rates = {True: af.nn.Multipliers(rate=0), False: af.nn.Multipliers()}
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [2])
        >>> w, frozen = graph.variable("w", [2], init=1), graph.variable("frozen", [2], init=1)
        >>> loss = af.ops.sum(x * w * frozen)
        >>> optimizer = af.nn.SGD(1.0, multipliers=lambda variable: rates[variable is frozen])
        >>> train = optimizer.minimize(loss)
        >>> _ = graph.run_sync({x: [1, 1]}, fetch=train)
        >>> w.value, frozen.value
        (array([0., 0.], dtype=float32), array([1., 1.], dtype=float32))
    """

    rate: float = 1.0
    decay: float = 1.0


#: Gives the factors of a variable.
ChooseMultipliers = Callable[[Variable], Multipliers]


def bias_multipliers(variable: Variable) -> Multipliers:
    """Twice the rate and no decay for vectors (biases), as in Caffe's and Purine2's networks.

    Example:
        >>> graph = af.Graph("g")
        >>> weight, bias = graph.variable("weight", [4, 3]), graph.variable("bias", [4])
        >>> af.nn.bias_multipliers(weight)
        Multipliers(rate=1.0, decay=1.0)
        >>> af.nn.bias_multipliers(bias)
        Multipliers(rate=2.0, decay=0.0)
        >>> optimizer = af.nn.SGD(0.1, multipliers=af.nn.bias_multipliers)
    """
    return Multipliers(2.0, 0.0) if len(variable.shape) == 1 else Multipliers()


def layer_multipliers(
    layers: Mapping[Composite, Multipliers], base: ChooseMultipliers = lambda _: Multipliers()
) -> ChooseMultipliers:
    """Factors for the variables of some layers, in addition to others.

    The example is of Purine2's NIN, which learns its last layer at a tenth of the rate, and biases at twice the rate
    and without decay.

    Args:
        layers: Layers or models, by which the factors of their variables are multiplied.
        base: Factors of all variables.
    Raises:
        GraphError: when it is used, if one of the layers has no variables, or has not been built.

    Example:
        >>> graph = af.Graph("g")
        >>> net = af.nn.NIN(10)
        >>> scores = net(graph.blob("images", ["batch", 32, 32, 3]))
        >>> slow = {net.scores: af.nn.Multipliers(rate=0.1)}
        >>> optimizer = af.nn.SGD(0.1, multipliers=af.nn.layer_multipliers(slow, af.nn.bias_multipliers))
    """

    def choose(variable: Variable) -> Multipliers:
        rate, decay = base(variable)
        for layer, factors in layers.items():
            variables = layer.variables
            if not variables:
                raise GraphError(f"layer {layer.name!r} has no variables: build it before the optimizer's updates")
            if variable in variables:
                rate, decay = rate * factors.rate, decay * factors.decay
        return Multipliers(rate, decay)

    return choose


class Clip(NamedTuple):
    """Limits on gradients.

    Attributes:
        value: Bound on the absolute value of each element; None for none.
        norm: Bound on the norm of all gradients together, applied after the other; None for none. No update can be
            made before all gradients are there.

    Example:
        >>> graph = af.Graph("g")
        >>> x, w = graph.blob("x", [2]), graph.variable("w", [2])
        >>> optimizer = af.nn.SGD(1.0, clip=af.nn.Clip(norm=5))
        >>> train = optimizer.minimize(af.ops.sum(x * w))
        >>> _ = graph.run_sync({x: [30, 40]}, fetch=train)
        >>> w.value
        array([-3., -4.], dtype=float32)
    """

    value: float | None = None
    norm: float | None = None


class Optimizer(ABC):
    """Base of the optimizers.

    A subclass gives one update by `operation`. The operation's arguments are ``weight``, ``grad``, ``rate``,
    ``step`` (how many steps were taken before) and, under names of its own, the variable's states, which it gives back
    behind the weight.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        weight_decay: Coefficient of the weight decay, not negative.
        clip: Limits on gradients.
        multipliers: Gives the factors on rate and decay of each variable; the default is 1 and 1 for all. See
            `bias_multipliers`, `layer_multipliers`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.

    Example:
        >>> class SlowSGD(af.nn.Optimizer):  # with the update of another optimizer, a tenth as fast
        ...     def __init__(self, rate):
        ...         super().__init__(rate / 10, 0.0, None, None, "slow")
        ...
        ...     def operation(self, factors):
        ...         return af.ops.SgdUpdate(0.0, 0.0, False, factors.rate)
    """

    def __init__(
        self,
        rate: float | Policy,
        weight_decay: float,
        clip: Clip | None,
        multipliers: ChooseMultipliers | None,
        name: str,
    ) -> None:
        kind = type(self).__name__
        limits = Clip() if clip is None else clip
        if not isinstance(limits, Clip):
            raise TypeError(f"{kind}: clip must be an af.nn.Clip, got {shown(clip)}")
        for what, limit in limits._asdict().items():
            if limit is not None:
                real(f"{kind}: clip.{what}", limit, above=0, finite=False)
        self.weight_decay = real(f"{kind}: weight_decay", weight_decay, 0)
        self.clip = limits
        self.multipliers = multipliers or (lambda _: Multipliers())
        self.name = text(f"{kind}: name", name)
        self._first_rate = rate if callable(rate) else real(f"{kind}: rate", rate, 0)
        self._rate: Variable | None = None

    @abstractmethod
    def operation(self, factors: Multipliers) -> ops.Operation:
        """One update of a variable that has these factors."""

    def arguments(self, operation: Any) -> Sequence[str]:
        """Names of the operation's inputs, in order."""
        names: Sequence[str] = operation.arguments
        return names

    def state_spec(self, weight: TensorSpec) -> TensorSpec:
        """Type of the states of a variable."""
        return state_spec(weight)

    def first_state(self, name: str) -> float:
        """First value of a state."""
        return 0.0

    @property
    def rate(self) -> Variable:
        """The learning rate, a 0-d float64 variable of the graph; assign ``rate.value`` between frames to change it.

        Raises:
            GraphError: before the first `minimize`, which makes it, or if a policy gives the rate (then it is the blob
                ``rate`` of the result of `minimize`).

        Example:
            >>> graph = af.Graph("g")
            >>> w = graph.variable("w", [], init=1)
            >>> optimizer = af.nn.SGD(0.5)
            >>> train = optimizer.minimize(w * w)
            >>> optimizer.rate.value
            array(0.5)
            >>> optimizer.rate.value = 0.05
        """
        if callable(self._first_rate):
            raise GraphError(f"{type(self).__name__}: the rate follows {self._first_rate}: it is not a variable")
        if self._rate is None:
            raise GraphError("the rate is a variable of the graph that is trained: call minimize() first")
        return self._rate

    def minimize(self, loss: Blob, wrt: Sequence[Variable] | None = None) -> Graph:
        """Build the gradient of a loss and an update of each variable.

        An update runs as soon as its variable's gradient is there, unless ``clip.norm`` makes all wait for all. Those
        of small variables are one step of the plan, for which all their gradients have to be there.

        Called again, it trains another loss of the same graph at the same rate, with states, and steps, of its own.

        Args:
            loss: Shape (), floating.
            wrt: The variables to train; the default is all that ``loss`` can be differentiated by.
        Returns:
            The sub-graph with all of it; give it in ``fetch`` to train in that frame.
        Raises:
            GraphError: if there is nothing to train, one of ``wrt`` is not a variable, or the optimizer has its rate in
                another graph; and as for `af.gradient`.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch", 2])
            >>> body, head = af.nn.InnerProduct(8, name="body"), af.nn.InnerProduct(1, name="head")
            >>> loss = af.ops.mean(head(body(x)) ** 2)
            >>> train = af.nn.SGD(0.1).minimize(loss, wrt=head.variables)  # the body is frozen
            >>> weights = [body.variables[0], head.variables[0]]
            >>> before = [weight.value for weight in weights]
            >>> _ = graph.run_sync({x: [[1, 2]]}, fetch=[loss, train])
            >>> [np.array_equal(weight.value, old) for weight, old in zip(weights, before)]
            [True, False]
        """
        variables = list(trainable(loss) if wrt is None else wrt)
        if not variables:
            none = f"loss {loss.name!r} depends on no variable that could be trained"
            raise GraphError(none if wrt is None else "wrt= is empty: it has the variables to train")
        self._check(loss.graph.root, variables)
        with self._whole(loss.graph.root), loss.graph.root.unique_subgraph(self.name) as scope:
            self._build(scope, [dict(zip(variables, gradient(loss, variables), strict=True))])
        return scope

    def descend(self, *gradients: Mapping[Variable, Blob]) -> Graph:
        """Build an update of each variable by a gradient that is there; `minimize` without the gradient's part.

        Args:
            gradients: The gradient of each variable. With several mappings they are of copies of one network, their
                variables in the same order: all take the factors of the first one's, and ``clip.norm`` bounds each
                copy's gradients together.
        Returns:
            The sub-graph with the updates; give it in ``fetch`` to train in that frame.
        Raises:
            GraphError: if there is nothing to train, a key is not a variable, the copies differ in how many they have,
                or the optimizer has its rate in another graph.

        Example:
            >>> graph = af.Graph("g")
            >>> w = graph.variable("w", [2], init=[1, 2])
            >>> given = graph.blob("given", [2])
            >>> train = af.nn.SGD(0.1).descend({w: given})
            >>> _ = graph.run_sync({given: [10, 10]}, fetch=train)
            >>> w.value
            array([0., 1.], dtype=float32)
        """
        variables = [variable for copy in gradients for variable in copy]
        if not variables:
            raise GraphError("descend() needs at least one variable with its gradient")
        for copy in gradients:
            if len(copy) != len(gradients[0]):
                raise GraphError(f"copies of a network have as many variables, got {[len(copy) for copy in gradients]}")
        root = variables[0].graph.root
        self._check(root, variables)
        with self._whole(root), root.unique_subgraph(self.name) as scope:
            self._build(scope, gradients)
        return scope

    def _whole(self, root: Graph) -> AbstractContextManager[None]:
        return root._store.all_or_nothing(partial(setattr, self, "_rate", self._rate))

    def _check(self, root: Graph, variables: Sequence[Variable]) -> None:
        for variable in variables:
            if not isinstance(variable, Variable):
                raise GraphError(f"only variables can be trained, not {variable!r}; by its name it is graph[NAME]")
        if self._rate is not None and self._rate.graph.root is not root:
            raise GraphError(
                f"this optimizer has its rate in graph {self._rate.graph.root.name!r} and cannot train {root.name!r}"
            )

    def _build(self, scope: Graph, gradients: Sequence[Mapping[Variable, Blob]]) -> None:
        operations = [self.operation(self.multipliers(variable)) for variable in gradients[0]]
        value, norm = self.clip
        clipped = [list(copy.values()) for copy in gradients]
        if value is not None:
            clipped = [[ops.clip(grad, -value, value) for grad in grads] for grads in clipped]
        if norm is not None:
            clipped = [ops.clip_by_global_norm(grads, norm) for grads in clipped]
        common = self._common(scope, any("step" in self.arguments(operation) for operation in operations))
        firsts: list[Sequence[Variable]] = []
        for copy, grads in zip(gradients, clipped, strict=True):
            for i, (variable, grad, operation) in enumerate(zip(copy, grads, operations, strict=True)):
                states = self._update(scope, operation, {"weight": variable, "grad": grad, **common})
                if copy is gradients[0]:
                    firsts.append(states)
                for state, first in zip(states, firsts[i], strict=True):
                    state.is_state = True
                    state.replica_of = first if state is not first else None

    def _common(self, scope: Graph, counts: bool) -> dict[str, Blob]:
        policy = self._first_rate
        if not callable(policy):
            if self._rate is None:
                self._rate = scope.variable("rate", (), "float64", policy, "cpu")
                self._rate.is_state = True
            if not counts:
                return {"rate": self._rate}
            step = self._step(scope)
            [step] >> scope.function("count", _next, place="cpu") >> [step]
            return {"rate": self._rate, "step": step}
        step = self._step(scope)
        rate = scope.blob("rate", (), "float64", "cpu")
        [step] >> scope.function("schedule", _Schedule(policy), place="cpu") >> [rate, step]
        return {"rate": rate, "step": step}

    def _step(self, scope: Graph) -> Variable:
        step = scope.variable("step", (), "int64", 0, "cpu")
        step.is_state = True
        return step

    def _update(self, scope: Graph, operation: ops.Operation, blobs: dict[str, Blob]) -> Sequence[Variable]:
        weight = blobs["weight"]
        name = weight.name.replace("/", ".")
        spec = self.state_spec(weight.spec)
        with scope.root.at(weight.place):
            states = {
                state: scope.variable(f"{name}.{state}", spec.shape, spec.dtype, self.first_state(state))
                for state in self.arguments(operation)
                if state not in ("weight", "grad", "rate", "step")
            }
            inputs = [(blobs | states)[argument] for argument in self.arguments(operation)]
            with scope._made(of=weight):
                inputs >> scope.op(f"{name}.update", operation) >> [weight, *states.values()]
        return tuple(states.values())


@savable
@dataclass(frozen=True)
class _Schedule:
    """Gives the rate of a step, and the number of the next one."""

    policy: Policy

    def __call__(self, step: Any) -> tuple[np.float64, np.int64]:
        rate = self.policy(int(step))
        return np.float64(real(f"{self.policy} at step {step}: rate", rate, 0)), _next(step)


@savable
def _next(step: Any) -> np.int64:
    return np.int64(step + 1)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum and weight decay; the formula is that of `ops.SgdUpdate`.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        momentum: Share of the last step that is taken again, at least 0 and less than 1.
        weight_decay: Coefficient of the L2 penalty, not negative.
        nesterov: Whether the gradient counts as that of the point which the momentum leads to.
        clip: Limits on gradients.
        multipliers: Gives the factors on rate and decay of each variable; the default is 1 and 1 for all. See
            `bias_multipliers`, `layer_multipliers`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Purine2 ``Update``.

    Example:
        >>> graph = af.Graph("g")
        >>> x, w = graph.blob("x", [2]), graph.variable("w", [2])
        >>> loss = af.ops.sum(af.ops.square(w - x))
        >>> optimizer = af.nn.SGD(0.1, momentum=0.5)
        >>> train = optimizer.minimize(loss)
        >>> for _ in range(50):
        ...     result = graph.run_sync({x: [1, 2]}, fetch=[loss, train])
        >>> w.value.round(3)
        array([1., 2.], dtype=float32)
        >>> optimizer.rate.value = 0.01  # between frames
    """

    def __init__(
        self,
        rate: float | Policy,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "sgd",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        self.momentum = real("SGD: momentum", momentum, 0, below=1)
        self.nesterov = flag("SGD: nesterov", nesterov)
        if nesterov and not self.momentum:
            raise GraphError("SGD: nesterov needs a momentum, got 0")

    def operation(self, factors: Multipliers) -> SgdUpdate:
        return SgdUpdate(self.momentum, self.weight_decay * factors.decay, factors.rate, self.nesterov)

    def state_spec(self, weight: TensorSpec) -> TensorSpec:
        return weight


class Adam(Optimizer):
    """Adam: steps divided by a running root mean square of the gradients; the formula is that of `ops.AdamUpdate`.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        betas: Decays of the means of the gradients and of their squares, each at least 0 and less than 1.
        eps: Keeps the division from blowing up, not negative.
        weight_decay: Coefficient of the L2 penalty, not negative.
        clip, multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Kingma and Ba, Adam: a method for stochastic optimization, 2015.

    Example:
        >>> graph = af.Graph("g")
        >>> w = graph.variable("w", [2], init=[1, -100])
        >>> train = af.nn.Adam(0.5).minimize(af.ops.sum(w * w))
        >>> _ = graph.run_sync(fetch=train)
        >>> w.value  # the first step is as long as the rate, however large the gradient
        array([  0.5, -99.5], dtype=float32)
    """

    _decoupled = False

    def __init__(
        self,
        rate: float | Policy = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "adam",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        kind = type(self).__name__
        beta1, beta2 = betas
        self.betas = (real(f"{kind}: beta1", beta1, 0, below=1), real(f"{kind}: beta2", beta2, 0, below=1))
        self.eps = real(f"{kind}: eps", eps, 0)

    def operation(self, factors: Multipliers) -> AdamUpdate:
        return AdamUpdate(*self.betas, self.eps, self.weight_decay * factors.decay, self._decoupled, factors.rate)


class AdamW(Adam):
    """Adam with a weight decay that is apart from the gradient: weights shrink by ``rate * weight_decay`` a step.

    Args:
        rate, betas, eps: As in `Adam`.
        weight_decay: The decay, not negative.
        clip, multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019.

    Example:
        >>> graph = af.Graph("g")
        >>> w = graph.variable("w", [], init=1)
        >>> train = af.nn.AdamW(0.1, weight_decay=0.5).minimize(0 * w)
        >>> _ = graph.run_sync(fetch=train)
        >>> w.value  # shrunk by 0.1 * 0.5 of itself, without any gradient
        array(0.95, dtype=float32)
    """

    _decoupled = True

    def __init__(
        self,
        rate: float | Policy = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "adamw",
    ) -> None:
        super().__init__(rate, betas, eps, weight_decay, clip=clip, multipliers=multipliers, name=name)


class Adagrad(Optimizer):
    """Adagrad: steps divided by the root of the sum of all squared gradients; see `ops.AdagradUpdate`.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        eps: Keeps the division from blowing up, not negative.
        weight_decay: Coefficient of the L2 penalty, not negative.
        initial: First value of the sums, not negative.
        clip, multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Duchi, Hazan and Singer, Adaptive subgradient methods for online learning, 2011.

    Example:
        >>> graph = af.Graph("g")
        >>> w = graph.variable("w", [], init=1)
        >>> train = af.nn.Adagrad(0.1).minimize(2 * w)
        >>> for _ in range(2):
        ...     _ = graph.run_sync(fetch=train)
        >>> round(w.value.item(), 4)  # 1 - 0.1 - 0.1 / sqrt(2)
        0.8293
    """

    def __init__(
        self,
        rate: float | Policy = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        initial: float = 0.0,
        *,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "adagrad",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        self.eps = real("Adagrad: eps", eps, 0)
        self.initial = real("Adagrad: initial", initial, 0)

    def operation(self, factors: Multipliers) -> AdagradUpdate:
        return AdagradUpdate(self.eps, self.weight_decay * factors.decay, factors.rate)

    def first_state(self, name: str) -> float:
        return self.initial


class RMSProp(Optimizer):
    """RMSProp: steps divided by a running root mean square of the gradients; see `ops.RmsPropUpdate`.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        alpha: Decay of the mean of the squares, at least 0 and less than 1.
        eps: Keeps the division from blowing up, not negative.
        weight_decay: Coefficient of the L2 penalty, not negative.
        momentum: Share of the last step that is taken again, at least 0 and less than 1.
        centered: Whether to divide by the standard deviation instead of the root mean square.
        clip, multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Tieleman and Hinton, Lecture 6.5, 2012.

    Example:
        >>> graph = af.Graph("g")
        >>> w = graph.variable("w", [], init=1)
        >>> train = af.nn.RMSProp(0.1, alpha=0.75).minimize(2 * w)
        >>> _ = graph.run_sync(fetch=train)
        >>> round(w.value.item(), 4)  # 1 - 0.1 / sqrt(1 - 0.75)
        0.8
    """

    def __init__(
        self,
        rate: float | Policy = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        *,
        centered: bool = False,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "rmsprop",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        self.alpha = real("RMSProp: alpha", alpha, 0, below=1)
        self.eps = real("RMSProp: eps", eps, 0)
        self.momentum = real("RMSProp: momentum", momentum, 0, below=1)
        self.centered = flag("RMSProp: centered", centered)

    def operation(self, factors: Multipliers) -> RmsPropUpdate:
        decay = self.weight_decay * factors.decay
        return RmsPropUpdate(self.alpha, self.eps, decay, self.momentum, self.centered, factors.rate)

    def arguments(self, operation: Any) -> Sequence[str]:
        return (*operation.arguments[:-1], *operation.more)
