"""Choice of kernels and places for ops, and of the forms that they take their arrays in. Pure: nothing here runs.

The libraries that the user named come first, then the device's own. Where none of them has a kernel for the op as it
is, the arrays are converted: to another layout, then to a wider dtype. Where the device has none at all, the op moves
to the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from actorflow.devices import DeviceOptions, device_kind
from actorflow.errors import KernelNotFoundError
from actorflow.graph.nodes import Op
from actorflow.graph.options import Hints
from actorflow.ops import registry
from actorflow.ops.function import Function
from actorflow.ops.operation import Operation
from actorflow.place import Place

_HOST = Place()
_WIDER = {"bfloat16": ("float32", "float64"), "float16": ("float32", "float64"), "float32": ("float64",)}


class Choice(NamedTuple):
    """Kernel and place of an op, and the form in which it takes its arrays.

    Attributes:
        place: The place.
        kernel: The kernel; None for functions, which are their own.
        layout: Layout that its arrays are permuted to; None for the usual order of axes.
        dtype: Type that its arrays are cast to; None for their own dtype.
        note: Text that says how the choice differs from the user's wish; empty where it does not.
    """

    place: Place
    kernel: registry.Kernel | None
    layout: str | None = None
    dtype: np.dtype[Any] | None = None
    note: str = ""


class Selector:
    """Chooses for the ops of one graph.

    Args:
        hints: The user's preferences for the whole graph.
        options: Options of the graph's devices.
    """

    def __init__(self, hints: Hints | None, options: Mapping[Place, DeviceOptions]) -> None:
        self._hints = hints or Hints()
        self._options = options
        self._choices: dict[Any, Choice] = {}
        self._last: tuple[Operation, Place, np.dtype[Any], Hints | None, Choice] | None = None

    def choose(self, op: Op, operation: Operation, place: Place, dtype: np.dtype[Any]) -> Choice:
        """Choose how to compute ``operation``, the op's or one that the plan adds to it, on arrays of ``dtype``.

        Raises:
            KernelNotFoundError: naming the op, and listing the kernels of its operation, if neither the device
                nor the CPU has a kernel.
            MissingExtraError: if a library that the user asked for is not installed.
        """
        last = self._last
        if last is not None and last[0] is operation and last[1] is place and last[2] is dtype and last[3] is op.hints:
            return last[4]  # large graphs repeat themselves, and hashes of places take time
        key: Any = (operation.kind, place, dtype, op.hints, isinstance(operation, Function) and operation.is_async)
        choice = self._choices.get(key)
        if choice is None:
            try:
                choice = self._choose(operation, place, dtype, op.hints or self._hints)
            except KernelNotFoundError as error:
                raise KernelNotFoundError(f"op {op.name!r}: {error}\n  created at {op.site}") from None
            # A kernel that refused these parameters might take the next ones.
            if not any(registry.may_refuse(operation, kind) for kind in (place.kind, _HOST.kind)):
                self._choices[key] = choice
        self._last = (operation, place, dtype, op.hints, choice)
        return choice

    def _choose(self, operation: Operation, place: Place, dtype: np.dtype[Any], hints: Hints) -> Choice:
        forced = hints.force_cpu and not device_kind(place.kind).is_host
        if isinstance(operation, Function):
            if not forced and device_kind(place.kind).runs_functions and (place == _HOST or not operation.is_async):
                return Choice(place, None)
            what = "async functions run" if operation.is_async else "functions run"
            return Choice(Place(place.rank), None, note=f"{what} on the CPU, not on {place}")
        found = None if forced else self._find(operation, place, dtype, hints)
        if found is not None:
            return found
        host = Place(place.rank)
        if place != host:
            found = self._find(operation, host, dtype, hints)
        if found is None:
            libraries = [library for library, _ in self._libraries(place, hints)]
            raise registry.not_found(operation, place.kind, dtype, libraries)
        reason = "as asked for" if forced else f"no {place.kind} kernel"
        note = f"{operation.kind} runs on the CPU: {reason}"
        return found._replace(note=f"{note}; {found.note}" if found.note else note)

    def _find(self, operation: Operation, place: Place, dtype: np.dtype[Any], hints: Hints) -> Choice | None:
        libraries = list(self._libraries(place, hints))
        asked = [library for library, is_asked_for in libraries if is_asked_for]
        for target in (dtype, *[np.dtype(name) for name in _WIDER.get(dtype.name, ())]):
            for layout in (registry.USUAL, *operation.layouts):
                for library, is_asked_for in libraries:
                    kernel = registry.lookup(operation, place.kind, library, target, layout)
                    if kernel is None:
                        continue
                    notes = [] if is_asked_for or not asked else [f"no kernel of {' or '.join(asked)}"]
                    forms = [
                        *([layout] if layout != registry.USUAL else []),
                        *([str(target)] if target != dtype else []),
                    ]
                    if forms:
                        notes.append(f"its arrays are converted to {' and '.join(forms)}")
                    return Choice(
                        place,
                        kernel,
                        None if layout == registry.USUAL else layout,
                        None if target == dtype else target,
                        f"{operation.kind} by {library}: {', '.join(notes)}" if notes else "",
                    )
        return None

    def _libraries(self, place: Place, hints: Hints) -> Iterator[tuple[str, bool]]:
        """Loaded libraries to try on a place, and whether the user asked for each, which then must not be missing."""
        options = self._options.get(place)
        asked: tuple[str, ...] = ()
        if hints.libraries is not None:
            asked = tuple(library for library in hints.libraries if registry.is_library_of(library, place.kind))
        elif options is not None and options.libraries is not None:
            asked = options.libraries
        for library in asked:
            registry.load_library(place.kind, library)
            yield library, True
        for library in registry.load_libraries(place.kind, device_kind(place.kind).libraries):
            if library not in asked:
                yield library, False
