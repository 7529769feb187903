"""Units that devices compute: records of one accelerator that lead to each other, as a graph."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.engine.chains import names_of, steps_of
from actorflow.array.engine.compiling import Compiled, Job
from actorflow.array.engine.units import Error, Unit
from actorflow.array.record.node import Node, bytes_of
from actorflow.array.record.placement import accelerator_of
from actorflow.errors import OpError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.engine.memory import Memory
    from actorflow.array.engine.service import Service


class PlacedUnit(Unit):
    """Records that one device computes; also those that copy its arrays to the CPU.

    The thread that runs it only hands it to the devices; it ends when these have computed it.

    Args: as for `Unit`.
    """

    def __init__(
        self, nodes: list[Node], produced: dict[int, Node], same: dict[Node, Node], twins: dict[Node, list[Node]]
    ) -> None:
        reads, self._steps = steps_of(nodes, same)
        super().__init__(nodes, produced, twins, reads)
        self.claimed_bytes = sum([bytes_of(node) for node in nodes])
        place = accelerator_of(nodes[0])
        assert place is not None
        self._place = place
        self._job = Job(
            place,
            self._steps,
            [node.place for node in nodes],
            [(TensorSpec(x.shape, x.dtype), x.place) if isinstance(x, Node) else x for x in reads],
            tuple(produced),
        )
        self._results: dict[int, Any] = {}
        self._is_taken = self._is_handed_over = self._is_refused = False
        self._begun_ns = 0

    # -- with the evaluator's lock held ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return names_of(self._steps)

    @property
    def memory(self) -> Memory:
        return self.evaluator.devices.memory(self._place)

    def begin(self) -> int:
        return self.evaluator.devices.peak_bytes(self._job, self._place) if self.is_last_resort else self.claimed_bytes

    def allocate(self) -> bool:
        return True

    @property
    def has_shares(self) -> bool:
        return not self._is_taken

    def take_share(self) -> tuple[int, int]:
        self._is_taken = True
        return 0, 1

    def return_share(self, share: tuple[int, int]) -> bool:
        self._is_taken = self._is_handed_over
        return not self._is_handed_over

    def end_share(self, share: tuple[int, int]) -> bool:
        return self._is_refused

    def end(self) -> None:
        errors = {i: self._error(*self._failed[i]) for i in self._produced if i in self._failed}
        for i in self._produced:
            if i not in errors:
                self._count(self._results[i])
        self.note(failed=bool(errors))
        self.hand_over(self._results, errors)

    def finish(self) -> None:
        self._results = {}
        super().finish()

    def _count(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self.evaluator.memory.count(value)
        else:
            self.memory.count(value)

    def _error(self, step: int, cause: BaseException) -> Error:
        inputs = [TensorSpec(*self._type(position)) for position in self._steps[step].arguments]
        return self.explain(step, self._steps[step].op.name, inputs, cause, self._place)

    def _type(self, position: int) -> tuple[tuple[int, ...], Any]:
        first = len(self._values)
        if position >= first:
            return self._steps[position - first].shape, self._steps[position - first].dtype
        value = self._values[position]
        return ((), np.dtype(object)) if isinstance(value, tuple) else (value.shape, value.dtype)

    # -- in any thread ------------------------------------------------------------------------------------------

    def compute(self, share: tuple[int, int]) -> None:
        self._begun_ns = perf_counter_ns()
        self._is_handed_over = True
        try:
            self.evaluator.devices.submit(self.compute_on)
        except Exception as error:  # noqa: BLE001  there is no service, as no thread can be started: no results
            self._failed = dict.fromkeys(self._produced, (len(self._steps) - 1, error))
            self._is_refused = True

    # -- on the devices' loop -----------------------------------------------------------------------------------

    async def compute_on(self, service: Service) -> None:
        """Compute it, and tell the evaluator."""
        if not await self._compute(service, self._job) and len(self._produced) > 1:
            for i in self._produced:  # what failed may not concern all of them
                await self._compute(service, self._job.with_results((i,)))
        self.elapsed_ns = perf_counter_ns() - self._begun_ns
        self.evaluator.take_back(self)

    async def _compute(self, service: Service, job: Job) -> bool:
        """Compute some of the results; whether that went well."""
        failed: tuple[int, BaseException]
        try:
            values = await service.compute(job, self._values)
        except OpError as error:
            failed = self._recorded(service.compiled(job), error)
        except BaseException as error:  # noqa: BLE001  whoever asks for the value gets it
            failed = job.results[0], error
        else:
            self._results.update(zip(job.results, values, strict=True))
            for i in job.results:
                self._failed.pop(i, None)
            return True
        self._failed.update(dict.fromkeys(job.results, failed))
        return False

    def _recorded(self, compiled: Compiled, error: OpError) -> tuple[int, BaseException]:
        """The step that an op was made for, and why it failed."""
        steps = compiled.steps.get(error.op.name, ())
        return steps[-1] if steps else len(self._steps) - 1, error.__cause__ or error
