"""How does a web service fare under load: how long do others wait, and what do its clients get beside other servers?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table
from benchmarks.service.names import BENTOML, CLIENTS, LITSERVE, NUMPY, PING, TORCH, ask

__all__ = ["measure"]

_ROOT = Path(__file__).parents[2]
_SERVICE = _ROOT / "examples" / "service.py"
_PING_EVERY_S = 0.005
#: How long a server's clients ask before it counts.
_WARM_UP_S = 1.0

IDLE, LOADED, WITHOUT = "idle service", f"{CLIENTS} clients run the graph", f"{CLIENTS} clients run no graph"
OURS, BY_NUMPY, BY_TORCH = "actorflow, batched", "NumPy on a thread per core", "torch on a thread per core"
BY_LITSERVE, BY_BENTOML = "LitServe, NumPy on batches", "BentoML, NumPy on batches"


@dataclass(frozen=True)
class _Contender:
    """How a server is started, and what its clients ask for."""

    command: list[str]
    load: str = "classify"


async def measure(harness: Harness) -> list[Table]:
    """Times of ``examples/service.py`` under load, its server, load and pings in three processes; and beside peers."""
    seconds = harness.pick(3000, 200) / 1000
    with TemporaryDirectory() as folder:
        weights = str(Path(folder) / "digits.safetensors")
        ours = [str(_SERVICE), "--port", "0", "--weights", weights]
        async with _server(ours) as port:
            pings = await _of_pings(harness, port, seconds)
        by_hand, batching = ["-m", "benchmarks.service.peers"], ["-m", "benchmarks.service.batching"]
        servers = {OURS: _Contender(ours), BY_NUMPY: _Contender([*by_hand, NUMPY, weights])}
        if harness.peer("torch"):
            servers[BY_TORCH] = _Contender([*by_hand, TORCH, weights])
        if harness.peer("litserve"):
            servers[BY_LITSERVE] = _Contender([*batching, LITSERVE, weights])
        if harness.peer("bentoml"):
            servers[BY_BENTOML] = _Contender([*batching, BENTOML, weights], "classify a batch of one")
        return [pings, *await _of_peers(harness, servers, seconds)]


async def _of_pings(harness: Harness, port: int, seconds: float) -> Table:
    async def loaded(load: str) -> float:
        async with _load(port, load, seconds):
            return await _ping_ms(port, seconds)

    cases: dict[str, Case] = {
        IDLE: lambda: _ping_ms(port, seconds),
        WITHOUT: lambda: loaded("healthz"),
        LOADED: lambda: loaded("classify"),
    }
    budget = Budget("within 5 ms of idle", LOADED, Relation.MORE, 5.0, IDLE)
    title = "a ping beside requests that come as fast as they are answered"
    return await harness.compare(title, "ms, p99", cases, reference=IDLE, budgets=[budget])


async def _of_peers(harness: Harness, servers: dict[str, _Contender], seconds: float) -> list[Table]:
    """Requests that the same clients get answered, and how fast."""
    answers: dict[str, list[float]] = {name: [] for name in servers}

    async def served(name: str, server: _Contender) -> float:
        # Started anew, since some keep a core busy while they wait for requests.
        async with _server(server.command) as port:
            async with _load(port, server.load, min(seconds, _WARM_UP_S)):
                pass
            async with _load(port, server.load, seconds) as report:
                pass
        answers[name].append(report["p99_ms"])
        return float(1e6 * report["seconds"] / report["requests"])

    cases: dict[str, Case] = {name: partial(served, name, server) for name, server in servers.items()}
    budgets = [
        Budget("at least 3x the requests of LitServe's batching", OURS, Relation.BELOW, 3.0, BY_LITSERVE),
        Budget("at least 3x the requests of BentoML's batching", OURS, Relation.BELOW, 3.0, BY_BENTOML),
    ]
    title = f"the same network behind other servers, {CLIENTS} clients, some of which hang up"
    table = await harness.compare(title, "us per request", cases, reference=OURS, budgets=budgets, warm_up=0)
    rows = {name: Row(name, found) for name, found in answers.items()}
    return [table, Table(f"{title}: answers", "ms, p99", rows, OURS)]


@asynccontextmanager
async def _server(command: list[str]) -> AsyncIterator[int]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=_ROOT, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        line = b""
        while not line.startswith(b"serving on "):
            line = await process.stdout.readline()
            if not line:
                raise RuntimeError(f"{' '.join(command)}: the server failed")
        yield int(line.decode().rstrip("/\n").rpartition(":")[2])
    finally:
        with suppress(ProcessLookupError):  # it failed, and has said why
            process.terminate()
        await process.wait()


@asynccontextmanager
async def _load(port: int, load: str, seconds: float) -> AsyncIterator[dict[str, float]]:
    """Clients at work from now on until shortly after the block; gives what they report, when they are done."""
    command = [sys.executable, "-m", "benchmarks.service.clients", str(port), load, str(seconds)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, stdout=pipe)
    report: dict[str, float] = {}
    try:
        assert process.stdout is not None
        await process.stdout.readline()  # all have had an answer
        yield report
        line = await process.stdout.readline()
        if await process.wait():
            raise RuntimeError("the clients failed: there was no load")
        report.update(json.loads(line))
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ping_ms(port: int, seconds: float) -> float:
    """Ping for so long; the 99th percentile of the time to the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        await ask(reader, writer, PING)
        times.append(perf_counter() - start)
        await asyncio.sleep(_PING_EVERY_S)
    writer.close()
    await writer.wait_closed()
    return float(np.percentile(times, 99)) * 1e3
