"""Units that devices compute: records of one accelerator that lead to each other, as a graph."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.engine.compiling import Compiled, Computation
from actorflow.array.engine.units import Group, StepUnit
from actorflow.array.record.placement import accelerator_of
from actorflow.array.record.record import Record, bytes_of
from actorflow.errors import OpError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.engine.memory import Memory
    from actorflow.array.engine.service import Service


class DeviceUnit(StepUnit):
    """Records that one device computes; also those that copy its arrays to the CPU.

    The thread that runs it only hands it to the devices; it ends when these have computed it.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.claimed_bytes = sum([bytes_of(node) for node in group.nodes])
        place = accelerator_of(group.nodes[0])
        assert place is not None
        self._place = place
        self._computation = Computation(
            place,
            self._steps,
            [node.place for node in group.nodes],
            [
                (TensorSpec(x.shape, x.dtype), x.place if isinstance(x, Record) else place)
                if x.shape or isinstance(x, Record)
                else x
                for x in self.reads
            ],
            tuple(group.produced),
        )
        self._is_handed_over = self._is_refused = False
        self._begun_ns = 0

    # -- with the session's lock held ---------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        return self.evaluator.devices.memory(self._place)

    def begin(self) -> int:
        if not self.is_last_resort:
            return self.claimed_bytes
        return self.evaluator.devices.peak_bytes(self._computation, self._place)

    def allocate(self) -> bool:
        return True

    def return_share(self, share: tuple[int, int]) -> bool:
        self._is_taken = self._is_handed_over
        return not self._is_handed_over

    def end_share(self, share: tuple[int, int]) -> bool:
        return self._is_refused

    def end(self) -> None:
        errors = {i: self._error(*self._failed[i], self._place) for i in self._produced if i in self._failed}
        for i in self._produced:
            if i not in errors:
                self._count(self._results[i])
        self.note(failed=bool(errors))
        self.hand_over(self._results, errors)

    def _count(self, value: Any) -> None:
        if isinstance(value, tuple):
            for each in value:
                self._count(each)
        elif isinstance(value, np.ndarray):
            self.evaluator.memory.count(value)
        else:
            self.memory.count(value)

    # -- in any thread ------------------------------------------------------------------------------------------

    def compute(self, share: tuple[int, int]) -> None:
        self._begun_ns = perf_counter_ns()
        self._is_handed_over = True
        try:
            self.evaluator.devices.submit(self.compute_on)
        except Exception as error:  # noqa: BLE001  no thread could be started for the service
            self._failed = dict.fromkeys(self._produced, (len(self._steps) - 1, error))
            self._is_refused = True

    # -- on the devices' loop -----------------------------------------------------------------------------------

    async def compute_on(self, service: Service) -> None:
        """Compute it, and tell the session."""
        if not await self._compute(service, self._computation) and len(self._produced) > 1:
            for i in self._produced:  # the failure may concern only some of them
                await self._compute(service, replace(self._computation, results=(i,)))
        self.elapsed_ns = perf_counter_ns() - self._begun_ns
        self.evaluator.take_back(self)

    async def _compute(self, service: Service, computation: Computation) -> bool:
        """Compute some of the results; return whether that went well."""
        failed: tuple[int, BaseException]
        try:
            values = await service.compute(computation, self._values)
        except OpError as error:
            failed = self._recorded(service.compiled(computation), error)
        except BaseException as error:  # noqa: BLE001  raised to all who ask for the value
            failed = computation.results[0], error
        else:
            self._results.update(zip(computation.results, values, strict=True))
            for i in computation.results:
                self._failed.pop(i, None)
            return True
        self._failed.update(dict.fromkeys(computation.results, failed))
        return False

    def _recorded(self, compiled: Compiled, error: OpError) -> tuple[int, BaseException]:
        """The step that an op was made for, and why it failed."""
        return compiled.steps.get(error.op.name, len(self._steps) - 1), error.__cause__ or error
