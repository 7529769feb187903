"""Units that devices compute: records of one accelerator that lead to each other, as a graph."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.compiling import Job
from actorflow.array.placement import accelerator_of
from actorflow.array.records import Node, failure
from actorflow.array.units import Error, Unit
from actorflow.errors import OpError, OutOfMemoryError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.memory import Memory
    from actorflow.array.service import Service

__all__ = ["PlacedUnit"]


class PlacedUnit(Unit):
    """Records that one device computes; also those that copy its arrays to the CPU.

    The thread that runs it only hands it to the session's devices; it ends when these have computed it.

    Args: as for `Unit`.
    """

    def __init__(
        self, nodes: list[Node], produced: dict[int, Node], same: dict[Node, Node], twins: dict[Node, list[Node]]
    ) -> None:
        super().__init__(nodes, produced, same, twins, is_chain=False)
        place = accelerator_of(nodes[0])
        assert place is not None
        self._place = place
        self._job = Job(
            place,
            self._steps,
            [node.place for node in nodes],
            [(TensorSpec(x.shape, x.dtype), x.place) if type(x) is Node else x for x in self.reads],  # type: ignore[misc]
            tuple(produced),
        )
        self._is_handed_over = False
        self._begun_ns = 0

    # -- with the session's lock held ---------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        return self.session.devices.memory(self._place)

    @property
    def most_bytes(self) -> int:
        """Bytes that it takes on its device at its peak; only where that is limited."""
        return self.session.devices.peak_bytes(self._job, self._place) if self.memory.is_limited else 0

    def gather(self) -> int:
        super().gather()
        self._reused = {}
        return self.most_bytes

    @property
    def allocates(self) -> bool:
        return True

    def begin(self) -> bool:
        self._left = 1
        return True

    def return_share(self, share: tuple[int, int]) -> bool:
        return not self._is_handed_over and super().return_share(share)

    def end_share(self, share: tuple[int, int]) -> bool:  # noqa: ARG002  the devices say when it has ended
        return False

    def _count(self, i: int, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self.session.memory.count(value)
        else:
            self.memory.count(value)

    # -- in any thread ------------------------------------------------------------------------------------------

    def run(self, share: tuple[int, int]) -> None:  # noqa: ARG002  it has only one
        self._begun_ns = perf_counter_ns()
        self._is_handed_over = True
        self.session.hand_over(self)

    # -- on the devices' loop -----------------------------------------------------------------------------------

    async def compute(self, service: Service) -> None:
        """Compute it, and tell the session."""
        try:
            values = await service.compute(self._job, self._values)
            self._results = dict(zip(self._produced, values, strict=True))
        except OutOfMemoryError as error:
            self._failed = dict.fromkeys(self._produced, error)
        except OpError as error:
            self._failed = dict.fromkeys(self._produced, self._recorded(service, error))
        except BaseException as error:  # noqa: BLE001  whoever asks for the value gets it
            self._failed = dict.fromkeys(self._produced, error)
        self.elapsed_ns = perf_counter_ns() - self._begun_ns
        self.session.take_back(self)

    def _recorded(self, service: Service, error: OpError) -> Error:
        """The error of the record that an op was made for."""
        cause = error.__cause__
        if isinstance(cause, OutOfMemoryError):
            return cause
        steps = service.compiled(self._job).steps.get(error.op.name, ())
        return self._error(steps[-1] if steps else len(self._steps) - 1, cause or error)

    def _error(self, step: int, cause: BaseException) -> Error:
        if isinstance(cause, OpError | OutOfMemoryError):
            return cause
        inputs = [self._spec(position) for position in self._steps[step].arguments]
        return failure(self._steps[step].op.name, self._steps[step].origin, inputs, cause, self._place)
