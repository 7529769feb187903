"""What does the runtime cost on an accelerator, and does it compute the same there?"""

from __future__ import annotations

import actorflow as af
from actorflow.data import cifar10
from benchmarks.gpu import arrays, chains, operations, training, transfers
from benchmarks.gpu.bench import Bench
from benchmarks.harness import Harness, Table, UnavailableError

__all__ = ["measure"]

_PLACE = "cuda:0"


async def measure(harness: Harness) -> list[Table]:
    """Chains, lazy arrays, copies beside compute, each operation, and a training, all against bare CuPy and torch.

    Raises:
        UnavailableError: if there is no such place or data; the message says what was looked for.
    """
    try:
        bench = Bench.open(harness, harness.place or _PLACE)
        data = None if harness.data is None else cifar10(harness.data)
    except af.DeviceUnavailableError as error:
        raise UnavailableError(f"the benchmark of the GPU needs one: {error}") from error
    except af.DataError as error:
        raise UnavailableError(f"the training needs CIFAR-10: {error}") from error
    tables = [
        *await chains.measure(bench),
        *await arrays.measure(bench),
        *await transfers.measure(bench),
        *await operations.measure(bench),
        *await training.measure(bench, data),
    ]
    return [bench.check_table(), *tables]
