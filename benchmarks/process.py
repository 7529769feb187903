"""Contenders in processes of their own, seen from the benchmark."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["Process"]

#: What would have NumPy's BLAS compute for another processor than this one, while torch's library heeds no such word.
_BLAS_SETTING = "OPENBLAS_CORETYPE"
#: Bytes of an answer.
_LONGEST_LINE = 1 << 20


class Process:
    """One contender that waits for orders, one line of JSON each, and answers each with another."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(cls, module: str, name: str, cores: int) -> AsyncIterator[Process]:
        """Start ``python -m MODULE NAME CORES``, for a contender on some of the cores; it ends with the block."""
        threads = str(cores)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        environment.pop(_BLAS_SETTING, None)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, name, threads),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            env=environment,
        )
        assert process.stdin is not None
        try:
            yield cls(name, process)
        finally:
            process.stdin.close()
            await process.wait()

    async def ask(self, *order: Any) -> Any:
        """The answer to an order.

        Raises:
            RuntimeError: if the process has ended; it has said why.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        await stdin.drain()
        answer = await stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name}: the process ended, with code {await self._process.wait()}")
        return json.loads(answer)
