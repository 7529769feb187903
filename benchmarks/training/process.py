"""Contenders in processes of their own, seen from the benchmark."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

__all__ = ["Process", "Stepped"]

#: What would have NumPy's BLAS compute for another processor than this one, while torch's library heeds no such word.
_BLAS_SETTING = "OPENBLAS_CORETYPE"


class Stepped(NamedTuple):
    """Report of a contender on some steps.

    Attributes:
        wall_ms: Time of a step.
        processor_ms: Time of the processor for it, of all threads: what other programs take away is not in it.
        kernels_ms: Of it, the time in kernels; 0 from peers, which do not say.
        loss: After the steps.
    """

    wall_ms: float
    processor_ms: float
    kernels_ms: float
    loss: float


class Process:
    """One contender that waits to be told how many steps of which network to do."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(cls, name: str, cores: int) -> AsyncIterator[Process]:
        """Start the contender on some of the cores; it ends with the block."""
        threads = str(cores)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        environment.pop(_BLAS_SETTING, None)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.training.contender", name, threads),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        try:
            yield cls(name, process)
        finally:
            process.stdin.close()
            await process.wait()

    async def step(self, task: str, batch: int, steps: int) -> Stepped:
        """Have it do some steps.

        Raises:
            RuntimeError: if the process has ended; it has said why.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([task, batch, steps]).encode() + b"\n")
        await stdin.drain()
        answer = await stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name}: the process ended, with code {await self._process.wait()}")
        return Stepped(*json.loads(answer))
