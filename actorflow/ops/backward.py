"""The backward pass, one for graphs, lazy arrays and compositions: from results to their sources."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any


class Backward:
    """Gradients of values, from gradients of results.

    It knows steps, which are operations that were applied, by their ``operation``, ``inputs`` and ``outputs``. The
    operation is None of a step that only hands its input on.

    Args:
        path: Values that gradients are wanted of, or that lead to such.
        through: Gives the gradients of a step's inputs, None for zero: called with the step, the gradients of its
            outputs, and which inputs' gradients are wanted.
        total: Gives the gradient of a value from several: those that it begins with, then those that steps which read
            it have given, in the order of the walk. Each comes with its step, or None.
    """

    def __init__(
        self,
        path: Container[Any],
        through: Callable[[Any, list[Any], list[bool]], Sequence[Any]],
        total: Callable[[Any, list[tuple[Any, Any]]], Any],
    ) -> None:
        self._path = path
        self._through = through
        self._total = total
        self._terms: dict[Any, list[tuple[Any, Any]]] = {}
        self._grads: dict[Any, Any] = {}

    def seed(self, value: Any, grad: Any) -> None:
        """Begin with the gradient of a result, or one of several."""
        self._terms.setdefault(value, []).append((None, grad))

    def walk(self, steps: Iterable[Any]) -> None:
        """Go through steps, the last one first: each after all that read its outputs."""
        path = self._path
        for step in steps:
            kind = step.operation
            wanted = [x in path and (kind is None or not kind.is_constant(i)) for i, x in enumerate(step.inputs)]
            grads = [self.grad(y) if y in path else None for y in step.outputs] if any(wanted) else []
            if any(g is not None for g in grads):
                for x, g, is_wanted in zip(step.inputs, self._through(step, grads, wanted), wanted, strict=True):
                    if is_wanted and g is not None:
                        self._terms.setdefault(x, []).append((step, g))

    def grad(self, value: Any) -> Any:
        """The whole gradient of a value, all of whose readers have been walked through; None if it is zero."""
        if value not in self._grads:
            terms = self._terms.pop(value, [])
            self._grads[value] = self._total(value, terms) if len(terms) > 1 else terms[0][1] if terms else None
        return self._grads[value]
