"""Checks an operation's gradient against finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import actorflow.ops.cpu  # noqa: F401  registers the kernels that `check_gradient` looks up
from actorflow.errors import GraphError, real, whole
from actorflow.graph.gradient import gradient
from actorflow.graph.graph import Graph
from actorflow.loop import run
from actorflow.ops.elementwise import add
from actorflow.ops.linalg import inner
from actorflow.ops.operation import Operation
from actorflow.ops.registry import find_kernel
from actorflow.ops.shaping import reshape

_Array = npt.NDArray[Any]


def check_gradient(
    operation: Operation,
    *inputs: npt.ArrayLike,
    wrt: Sequence[int] | None = None,
    step: float = 1e-5,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    seed: int = 0,
) -> None:
    """Compare an operation's gradient with central finite differences, in float64 on the CPU.

    The floating outputs are projected on random vectors to one scalar, whose gradient `af.gradient` builds. Keep the
    inputs small (two runs per element) and away from kinks, such as 0 for relu, by more than ``step``. Starts an event
    loop of its own: call it outside a running one.

    Args:
        operation: The function to check, of blobs.
        inputs: One array per argument; floating ones are used as float64.
        wrt: Positions of the inputs to differentiate by; the default is all floating ones.
        step: Change of an input element to each side.
        rtol: Allowed difference relative to the finite difference.
        atol: Allowed absolute difference.
        seed: Of the random projection.
    Raises:
        AssertionError: if an element differs by more; the message gives the worst one.
        GraphError: if there is nothing to differentiate, or the inputs do not fit the operation.

    Example:
        >>> af.testing.check_gradient(af.ops.Matmul(), np.ones([2, 3]), np.ones([3, 2]))
    """
    arrays = [_as_checked(value) for value in inputs]
    chosen = [i for i, array in enumerate(arrays) if array.dtype.kind == "f"] if wrt is None else list(wrt)
    if not chosen:
        raise GraphError(f"{operation}: no floating input to differentiate by")
    step, seed = real("step", step, above=0), whole("seed", seed, 0)
    rtol, atol = real("rtol", rtol, 0), real("atol", atol, 0)
    check = _Check(operation, arrays, chosen, seed)
    numeric, analytic = run(check.measure(step))
    for i, expected, actual in zip(chosen, numeric, analytic, strict=True):
        _compare(operation, i, expected, actual, rtol, atol)


def _as_checked(value: npt.ArrayLike) -> _Array:
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _compare(operation: Operation, position: int, expected: _Array, actual: _Array, rtol: float, atol: float) -> None:
    if not expected.size:
        return
    excess = np.nan_to_num(np.abs(actual - expected) - (atol + rtol * np.abs(expected)), nan=np.inf)
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    if excess[worst] > 0:
        argument = operation.arguments[min(position, len(operation.arguments) - 1)].lstrip("*")
        index = tuple(int(i) for i in worst)
        raise AssertionError(
            f"{operation}: the gradient of input {position} ({argument}) is wrong at {np.count_nonzero(excess > 0)} of "
            f"{excess.size} elements; worst at {index}: expected {expected[worst]:.9g} (finite difference), "
            f"got {actual[worst]:.9g}"
        )


class _Check:
    """One operation, with the scalar that stands for its outputs."""

    def __init__(self, operation: Operation, arrays: list[_Array], wrt: list[int], seed: int) -> None:
        self.operation = operation
        self.arrays = arrays
        self.wrt = wrt
        self.seed = seed
        # Frames of one graph draw different random numbers, the first frames of two graphs the same ones.
        self.fresh = find_kernel(operation, "cpu", np.dtype(np.float64)).random
        self._build()

    def _build(self) -> None:
        random = np.random.default_rng(self.seed)
        self.graph = Graph("check_gradient")
        self.blobs = [self.graph.blob(f"x{i}", a.shape, a.dtype) for i, a in enumerate(self.arrays)]
        checked = self.graph.op("checked", self.operation)
        checked(*self.blobs)
        terms = []
        for i, top in enumerate(checked.outputs):
            if top.dtype.kind == "f":
                size = top.spec.size
                weights = self.graph.variable(f"w{i}", (1, size), top.dtype, random.standard_normal((1, size)))
                terms.append(reshape(inner(reshape(top, (1, size)), weights), ()))
        if not terms:
            raise GraphError(f"{self.operation}: no floating output to differentiate")
        self.scalar = add(*terms)

    async def measure(self, step: float) -> tuple[list[_Array], list[_Array]]:
        """Finite differences and built gradients, one array per input of ``wrt``."""
        grads = gradient(self.scalar, [self.blobs[i] for i in self.wrt])
        async with self.graph:
            result = await self.graph.run(dict(zip(self.blobs, self.arrays, strict=True)), fetch=grads)
            analytic = [result[grad].copy() for grad in grads]
            if not self.fresh:
                return [await self._differences(i, step) for i in self.wrt], analytic
        return [await self._differences(i, step) for i in self.wrt], analytic

    async def _differences(self, position: int, step: float) -> _Array:
        slopes = np.empty_like(self.arrays[position])
        for index in np.ndindex(slopes.shape):
            up = await self._value(position, index, step)
            down = await self._value(position, index, -step)
            slopes[index] = (up - down) / (2 * step)
        return slopes

    async def _value(self, position: int, index: tuple[int, ...], change: float) -> float:
        if self.fresh:
            self._build()
        values = list(self.arrays)
        values[position] = values[position].copy()
        values[position][index] += change
        result = await self.graph.run(dict(zip(self.blobs, values, strict=True)), fetch=[self.scalar])
        if self.fresh:
            await self.graph.aclose()
        return float(result[self.scalar])
