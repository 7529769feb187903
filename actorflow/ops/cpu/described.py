"""Kernels of operations that name a function of NumPy themselves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import elementwise
from actorflow.ops.operation import Operation
from actorflow.ops.registry import ANY, Kernel, KernelKey, kernel_maker
from actorflow.ops.rows import Elementwise


@kernel_maker("cpu", "numpy")
def make(operation: type[Operation], key: KernelKey) -> Kernel | None:
    """The kernel of an operation that has none registered."""
    key = key._replace(dtype=ANY)
    if issubclass(operation, Elementwise) and operation.function is not None:
        return Kernel(key, _mapping(operation), inplace=operation.aligned and operation.result is None)
    return None if operation.compute is Operation.compute else Kernel(key, _computed, returns=True)


def _mapping(kind: type[Elementwise]) -> Any:
    """A kernel of a function of NumPy; it does not warn of infinities and NaN."""
    function, has_parameters = kind.function, bool(fields(kind))

    def where_quiet(operation: Elementwise, inputs: list[Array], outputs: list[Array]) -> None:
        (operation.into if has_parameters else function)(*inputs, out=outputs[0])

    def compute(operation: Elementwise, inputs: list[Array], outputs: list[Array]) -> None:
        with np.errstate(all="ignore"):
            where_quiet(operation, inputs, outputs)

    marked: Any = compute
    quiet: Any = where_quiet
    if isinstance(function, np.ufunc) and not has_parameters:
        quiet.ufunc = function
    marked.where_quiet = quiet
    return elementwise(marked)


def _computed(operation: Operation, inputs: list[Array], _outputs: None) -> list[Array]:
    found: Any = operation.compute(*inputs)
    return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]
