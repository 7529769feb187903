"""Operations that all ranks of a group compute together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actorflow.errors import GraphError
from actorflow.ops.operation import Application, Grads, Operation, apply, same_numbers
from actorflow.spec import TensorSpec


@dataclass(frozen=True)
class AllReduce(Operation):
    """The sum (or the largest, or the least) of the tensors of several ranks, on each of them.

    There is one op of it per rank of ``ranks``, on that rank's host, and all of them make one collective: a plan has
    all of them or none. Its input and its output are that rank's tensors. The transport computes it, by its own
    collective; the result is the same to the last bit on all ranks. See `nn.parallel.AllReduce`, which makes these ops.

    Attributes:
        group: Name of the collective, the same on all its ops and no other's.
        ranks: The ranks that take part, ascending.
        operation: "sum", "max" or "min".
        priority: Ready collectives go in descending order of it. Gradients of front layers have a
            large one: they come last and are needed first.

    Raises:
        GraphError: if ``operation`` is not known, or ``ranks`` are not at least two, ascending.
        DTypeError: if ``x`` is not of numbers, or of complex ones, which have no order, for "max" and "min".
    Gradient (of sums; "max" and "min" have none): g, reduced likewise, for which the loss must depend on all outputs.
    Source: MPI ``Iallreduce``; Purine2 composite ``AllReduce``, which was a server per parameter.
    """

    group: str
    ranks: tuple[int, ...]
    operation: str = "sum"
    priority: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.operation not in ("sum", "max", "min"):
            raise GraphError(f"AllReduce: operation must be 'sum', 'max' or 'min', got {self.operation!r}")
        if len(self.ranks) < 2 or self.ranks[0] < 0 or list(self.ranks) != sorted(set(self.ranks)):
            raise GraphError(f"AllReduce: ranks must be at least two, ascending, got {self.ranks}")
        same_numbers("AllReduce", ordered=self.operation != "sum", x=inputs[0])
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        if self.operation != "sum":
            raise GraphError(f"AllReduce: operation {self.operation!r} has no gradient (op {op.name!r})")
        (g,) = grads
        # The ops of one collective are of one scope, and so are their gradients: that of this gradient alone.
        scope = g.graph.root.current_scope.name
        group = f"{scope}/{self.group.rpartition('/')[2]}"
        return [apply(AllReduce(group, self.ranks, self.operation, self.priority), g)]
