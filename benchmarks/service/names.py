"""What ``benchmarks service`` and the processes that it starts say to each other."""

from __future__ import annotations

import asyncio

__all__ = ["BENTOML", "CLIENTS", "LITSERVE", "NUMPY", "PING", "TORCH", "ask"]

CLIENTS = 200
NUMPY, TORCH, LITSERVE, BENTOML = "numpy", "torch", "litserve", "bentoml"
PING = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Send a request and read the answer, whose body it gives.

    Raises:
        RuntimeError: if it is not one of status 200.
    """
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"expected status 200, got {head.splitlines()[0]!r}")
    length = head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length))
