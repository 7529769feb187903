"""ONNX Runtime: computes what a model does forward as one op.

The page, batched runs, memory budgets of results, time limits and cancellation are as for any op; what ONNX Runtime
allocates meanwhile, and its copy of the weights, is counted in no budget.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from actorflow.devices.cpu import on_lane, stoppable
from actorflow.devices.team import team
from actorflow.errors import DTypeError, GraphError, ShapeError, require, text_of, whole
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec
from actorflow.threads import forget_in_child, held_at_fork

#: Operators for which ONNX Runtime 1.32 ends the process where some arrays have no elements.
FATAL_IF_EMPTY = frozenset({"ConvTranspose", "GRU", "LSTM", "Unique"})
#: ONNX Runtime writes nothing to the terminal: what it has to say of a failure is in the exception, too.
_SILENT = 4


def load_onnxruntime() -> Any:
    """The module.

    Raises:
        MissingExtraError: if it is not installed.
    """
    require("onnxruntime", extra="onnxruntime", purpose='backend="onnxruntime"')
    import onnxruntime

    return onnxruntime


class Settings(NamedTuple):
    """Options of ONNX Runtime; None for this package's defaults.

    Attributes:
        providers: Execution providers, by preference, as ``onnxruntime.InferenceSession`` takes them.
        session_options: An ``onnxruntime.SessionOptions``, used as it is.
        threads: Number of threads, whatever the lane may have.
    """

    providers: Sequence[Any] | None = None
    session_options: Any = None
    threads: int | None = None

    def check(self) -> None:
        """Check what can be checked before there is a model.

        Raises:
            TypeError, GraphError: naming the argument.
        """
        if self.threads is not None:
            whole("threads", self.threads, 1)
        options = load_onnxruntime().SessionOptions
        if self.session_options is not None and not isinstance(self.session_options, options):
            got = type(self.session_options).__name__
            raise TypeError(f"session_options must be an onnxruntime.SessionOptions, got {got}")
        if self.providers is not None:
            given = cast(object, self.providers)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise TypeError(f"providers must be a list, ['CPUExecutionProvider'], got {given!r}")
            known = load_onnxruntime().get_available_providers()
            for each in self.providers:
                name = each if isinstance(each, str) else each[0]
                if name not in known:
                    raise GraphError(f"onnxruntime has no provider {name!r} here, only {', '.join(known)}")


class Session:
    """A model, and the session of ONNX Runtime that computes it.

    The session has the threads that a lane of the graph may have if it is the only one. When it first runs, on a lane
    that may have others by then, or on the loop itself, it is made anew if that is another number; so it is in the
    child of a fork.

    Args:
        name: Name of the model, for messages.
        model: The model's bytes, or its file, for models whose weights are files beside it.
        inputs: Names of its inputs.
        outputs: Names of the outputs that are wanted.
        threads: Number of threads to begin with; by default, that of one lane more than there are now.
        folds: Whether what follows from constants alone is computed at once, and kept.
        loops: Whether the model has loops, whose turns may depend on what it is fed.
        takes_empty: Whether it may be fed arrays without elements: it has none of `FATAL_IF_EMPTY`.
        settings: The user's settings.
    Raises:
        GraphError: if ONNX Runtime cannot compute the model; it says why, and names the node.
    """

    def __init__(
        self,
        name: str,
        model: bytes | str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        threads: int | None = None,
        *,
        folds: bool = True,
        loops: bool = True,
        takes_empty: bool = False,
        settings: Settings | None = None,
    ) -> None:
        self.name = name
        self.loops = loops
        self.takes_empty = takes_empty
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._model = model
        self._module = load_onnxruntime()
        self._without = [] if folds else ["ConstantFolding"]
        self._settings = settings = settings or Settings()
        options = settings.session_options
        self._fixed = options.intra_op_num_threads if settings.threads is None and options else settings.threads
        self._threads = next((n for n in (self._fixed, threads) if n is not None), team.next_share)
        self._made = self._session()
        self._is_settled = False  # whether it has the threads of where it runs
        self._inherited: list[Any] = []  # of the parent of a fork, whose threads are not here to be ended
        self._making = held_at_fork(threading.Lock())
        forget_in_child(self)

    def forget_parent(self) -> None:
        """This is the child of a fork: it makes a session of its own."""
        self._inherited.append(self._made)
        self._threads, self._is_settled = -1, False

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for inputs, NumPy arrays both; computed by several threads at a time if they ask.

        Raises:
            Exception: what ONNX Runtime raises; it names the node.
            Stopped: if nobody waits for the result any more.
        """
        session = self._made if self._is_settled else self._settled()
        feeds = dict(zip(self.inputs, inputs, strict=True))
        found: list[Any]
        if on_lane():
            options = self._module.RunOptions()
            with stoppable(partial(setattr, options, "terminate", True)):
                found = session.run(self.outputs, feeds, options)
        else:  # where nothing can stop it
            found = session.run(self.outputs, feeds)
        return found

    def _settled(self) -> Any:
        """The session, with the threads that it may have here."""
        with self._making:
            if not self._is_settled:
                threads = self._fixed if self._fixed is not None else team.share if on_lane() else 1
                if threads != self._threads:
                    self._threads = threads
                    self._made = self._session()
                self._is_settled = True
        return self._made

    def _session(self) -> Any:
        options = self._settings.session_options
        if options is None:
            options = self._module.SessionOptions()
            options.log_severity_level = _SILENT
            # Threads that wait for its next run in a loop would take cores from other lanes.
            options.add_session_config_entry("session.force_spinning_stop", "1")
        options.intra_op_num_threads = self._threads
        try:
            providers = [*(self._settings.providers or ["CPUExecutionProvider"])]
            return self._module.InferenceSession(self._model, options, providers, disabled_optimizers=self._without)
        except MemoryError:
            raise
        except Exception as error:
            raise GraphError(f"onnxruntime cannot compute the model: {text_of(error).strip()}") from error

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class OnnxRuntime(Operation):
    """A model, or a part of one, computed by ONNX Runtime; see `actorflow.onnx.load`.

    Attributes:
        session: The model.
        takes: Types of the inputs.
        gives: Types of the outputs; those of which only a run knows all lengths are Python objects.
        objects: For each input that is a Python object, its dtype; for others None.
    """

    arguments = ("*inputs",)
    differentiable = False

    session: Session
    takes: tuple[TensorSpec, ...]
    gives: tuple[TensorSpec, ...]
    objects: tuple[np.dtype[Any] | None, ...] = ()

    @property
    def may_last(self) -> bool:
        return self.session.loops

    def check_arity(self, count: int) -> None:
        if count != len(self.takes):
            names = ", ".join(self.session.inputs) or "none"
            raise GraphError(f"{self} takes {len(self.takes)} inputs ({names}), got {count}")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        for name, spec, given in zip(self.session.inputs, self.takes, inputs, strict=True):
            if given.dtype != spec.dtype:
                raise DTypeError(f"{self}: {name} must be {spec}, got {given}")
            if given.shape != spec.shape:
                raise ShapeError(f"{self}: {name} must be {spec}, got {given}")
        return self.gives

    def compute(self, *inputs: Any) -> tuple[Any, ...]:
        if self.objects:
            pairs = zip(inputs, self.objects, strict=True)
            inputs = tuple([x if dtype is None else np.asarray(x, dtype) for x, dtype in pairs])
        if any(0 in x.shape for x in inputs):
            if all(0 in spec.shape for spec in self.gives):
                return tuple([np.empty(*spec) for spec in self.gives])
            if not self.session.takes_empty:
                raise GraphError(
                    f"{self}: ONNX Runtime ends the process where {', '.join(sorted(FATAL_IF_EMPTY))} get nothing; "
                    "feed at least one row and step, or load the model with backend='actorflow'"
                )
        found = self.session.run(inputs)
        for name, spec, array in zip(self.session.outputs, self.gives, found, strict=True):
            if spec.is_object:
                if not isinstance(array, np.ndarray):
                    raise GraphError(f"{self}: output {name} is a {type(array).__name__}, and only tensors can be had")
            elif array.shape != spec.shape or array.dtype != spec.dtype:
                raise ShapeError(f"{self}: output {name} must be {spec}, got {array.dtype}{list(array.shape)}")
        return tuple(found)

    def __str__(self) -> str:
        return f"{self.kind}({self.session.name})"
