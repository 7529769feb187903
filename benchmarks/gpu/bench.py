"""Shared by the parts of the benchmark: the place, the peers on it, and the checks of results."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import actorflow as af
from actorflow.devices import check_place
from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table, per

__all__ = ["ACTORFLOW", "CAPTURED", "TORCH", "Bench", "relative_error"]

ACTORFLOW, CAPTURED, TORCH = "actorflow", "actorflow, captured", "torch eager"
_CAN_CAPTURE = "capture" in inspect.signature(af.Graph).parameters


class _Check(NamedTuple):
    error: float
    tolerance: float

    @property
    def share(self) -> float:
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance else np.inf


@dataclass
class Bench:
    """A place, and what others compute with there.

    Attributes:
        harness: What it measures with.
        place: Where actorflow computes.
        xp: CuPy on a CUDA device, else NumPy, so that the whole of the benchmark can be tried without a GPU.
        bare: What rows of ``xp`` are called.
        stream: The one that ``xp`` works on.
        torch: PyTorch, if it is installed and can use the device.
        torch_device: Its name for the device.
        checks: What was compared with other results: the relative error found, and the one allowed.
    """

    harness: Harness
    place: af.Place
    xp: Any
    bare: str
    stream: AbstractContextManager[Any]
    torch: Any
    torch_device: str
    checks: dict[str, _Check] = field(default_factory=dict)

    @classmethod
    def open(cls, harness: Harness, place: str) -> Bench:
        """Look for the place and the peers.

        Raises:
            DeviceUnavailableError: if there is no such place.
        """
        parsed = af.Place.parse(place)
        check_place(parsed)
        if not _CAN_CAPTURE:
            harness.leave_out("captured segments: this version captures none")
        torch = harness.peer("torch")
        gc.freeze()  # what was imported stays: collections between the cases need not walk it
        if parsed.kind != "cuda":
            harness.leave_out(f"CuPy: it has no {place}; NumPy on the host stands in, and says nothing about speed")
            if torch is not None:
                torch.set_num_threads(1)  # or it waits long for cores that others use
            return cls(harness, parsed, np, "bare NumPy", nullcontext(), torch, "cpu")
        import cupy

        cupy.cuda.Device(parsed.device).use()
        if torch is not None:
            if torch.cuda.is_available():
                _forbid_tf32(torch)
                torch.backends.cudnn.benchmark = True
            else:
                harness.leave_out("torch: this build of it sees no CUDA device")
                torch = None
        return cls(harness, parsed, cupy, "bare CuPy", cupy.cuda.Stream(non_blocking=True), torch, place)

    def synchronize(self) -> None:
        """Block until all that was launched on the device has ended."""
        if self.xp is not np:
            self.xp.cuda.Device().synchronize()

    def case(self, count: int, unit_s: float, work: Callable[[], object]) -> Case:
        """A peer's case: the time of ``work()`` until the device has done it, per one of ``count``."""

        def synchronized() -> None:
            with self.stream:
                work()
            self.synchronize()

        return per(count, unit_s, synchronized)

    def graphs(self, name: str) -> dict[str, af.Graph]:
        """A graph for each way to run it: as it is, and captured."""
        graphs = {ACTORFLOW: af.Graph(name)}
        if self.place.kind == "cuda" and _CAN_CAPTURE:
            graphs[CAPTURED] = af.Graph(name, capture=True)
        return graphs

    def check(self, what: str, actual: Any, expected: Any, tolerance: float) -> None:
        """Note how far a result is from what is expected."""
        self.checks[what] = _Check(relative_error(af.to_numpy(actual), af.to_numpy(expected)), tolerance)

    def check_table(self) -> Table:
        """All that was checked."""
        rows = {f"{what} (within {check.tolerance:g})": [check.error] for what, check in self.checks.items()}
        worst = "worst, as a share of what is allowed"
        rows[worst] = [max(check.share for check in self.checks.values())]
        return Table(
            f"results on {self.place} against those of the CPU or a peer",
            "relative error",
            {name: Row(name, samples) for name, samples in rows.items()},
            budgets=[Budget("all results within what is allowed", worst, Relation.AT_MOST, 1.0)],
        )


def _forbid_tf32(torch: Any) -> None:
    """Have both sides in float32 throughout; CuPy uses no TF32 unless told to."""
    backends = torch.backends
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = False
    if hasattr(backends, "fp32_precision"):  # since 2.9, for each kind of operation; it must agree with the old names
        for settings in (backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn):
            settings.fp32_precision = "ieee"


def relative_error(actual: Any, expected: Any) -> float:
    """``|actual - expected| / |expected|`` in float64; infinite if one of the elements is not a number."""
    a, e = (np.asarray(x, dtype=np.float64) for x in (actual, expected))
    if a.shape != e.shape or not np.isfinite(a).all():
        return np.inf
    return float(np.linalg.norm((a - e).ravel()) / max(float(np.linalg.norm(e.ravel())), np.finfo(np.float64).tiny))
