"""Servers that batch requests, as peers of ``benchmarks service``: they start many processes, and all end together.

``python -m benchmarks.service.batching litserve|bentoml WEIGHTS`` serves on any free port until SIGTERM, or the end of
its standard input: whoever started it is gone then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import actorflow as af
from benchmarks.service.names import BENTOML, LITSERVE

__all__ = ["MAX_ROWS", "WEIGHTS"]

MAX_ROWS = 32
#: Variable of the environment by which workers learn where the weights are.
WEIGHTS = "ACTORFLOW_BENCHMARK_WEIGHTS"
_READY = {LITSERVE: "/health", BENTOML: "/readyz"}
_POLL_S = 0.05


def _command(kind: str, port: str) -> list[str]:
    if kind == LITSERVE:
        return ["-m", "benchmarks.service.with_litserve", port]
    return ["-m", "bentoml", "serve", "benchmarks.service.with_bentoml:Digits", "--host", "127.0.0.1", "--port", port]


async def _answers(port: int, path: str) -> bool:
    """Whether a request gets status 200."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" % path.encode())
        head = await reader.readline()
        writer.close()
    except OSError:
        return False
    return head.startswith(b"HTTP/1.1 200 ")


def _end(pid: int) -> None:
    """End a process and all that came of it, which is in sessions of its own and may outlive it."""
    import psutil

    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        process.kill()


async def main(kind: str, weights: str) -> None:
    if os.getpid() != os.getpgrp():
        os.setsid()  # what ends the benchmark's group must not end this, which ends the server
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin, stop.set)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *_command(kind, str(port)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, WEIGHTS: weights},
    )
    try:
        while not (stop.is_set() or process.returncode is not None or await _answers(port, _READY[kind])):
            await asyncio.sleep(_POLL_S)
        if process.returncode is None:
            print(f"serving on http://127.0.0.1:{port}/", flush=True)
            await stop.wait()
    finally:
        if process.returncode is None:
            _end(process.pid)
        await process.wait()


if __name__ == "__main__":
    af.run(main(*sys.argv[1:]))
