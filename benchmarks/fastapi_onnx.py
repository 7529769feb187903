"""How does a FastAPI service of an ONNX network fare beside one that runs onnxruntime on Starlette's threads?

The servers, and the clients of one at a time, are processes of their own; servers take turns. A server is started by
``python -m benchmarks.fastapi_onnx serve NETWORK FILE CONTENDER``, its clients by ``... ask NETWORK PORT SECONDS``.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import numpy.typing as npt

import actorflow as af
from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table
from benchmarks.service.names import ask

__all__ = ["measure"]

_ROOT = Path(__file__).parents[1]
_CLIENTS = 50
_PIXELS, _FEATURES = 96, 1536
_Array = npt.NDArray[Any]

RESNET, PERCEPTRON = "resnet18", "perceptron"
_TITLES = {
    RESNET: f"ResNet-18, {_PIXELS}x{_PIXELS}x3, {_CLIENTS} clients",
    PERCEPTRON: f"perceptron of four layers of {_FEATURES}, {_CLIENTS} clients",
}
BATCHED, ALONE = "actorflow, batched", "actorflow, each by itself"
TWO, FORTY = "onnxruntime, 2 threads", "onnxruntime, 40 threads"


async def measure(harness: Harness) -> list[Table]:
    """Requests, their latencies, and processor time of the server, of two networks."""
    found = [harness.peer(name) for name in ("fastapi", "uvicorn", "onnx", "onnxruntime")]
    if None in found:
        return []
    with TemporaryDirectory() as folder:
        return [table for network in _TITLES for table in await _of_network(harness, network, folder)]


async def _of_network(harness: Harness, network: str, folder: str) -> list[Table]:
    file, seconds = Path(folder, f"{network}.onnx"), harness.pick(3000, 100) / 1000
    file.write_bytes({RESNET: _resnet18, PERCEPTRON: _perceptron}[network]())
    reports: dict[str, list[dict[str, float]]] = {name: [] for name in (BATCHED, ALONE, TWO, FORTY)}

    async def load(name: str, port: str) -> float:
        async with _process("ask", network, port, str(seconds)) as line:
            reports[name].append(json.loads(line))
        return reports[name][-1]["us"]

    title, rounds = _TITLES[network], harness.rounds
    async with AsyncExitStack() as stack:
        cases: dict[str, Case] = {}
        for name in reports:
            line = await stack.enter_async_context(_process("serve", network, str(file), name))
            cases[name] = partial(load, name, line.split()[-1])
        budgets = _budgets(1.0 if network == RESNET else 1 / 3)
        tables = [await harness.compare(title, "us per request", cases, reference=TWO, budgets=budgets)]
    for key, unit in (("p50", "ms, p50"), ("p99", "ms, p99"), ("processor", "us of processor per request")):
        rows = {name: Row(name, [each[key] for each in found[-rounds:]]) for name, found in reports.items()}
        tables.append(Table(f"{title}: {unit}", unit, rows, TWO, () if key == "p50" else _budgets(1.0)))
    return tables


def _budgets(limit: float) -> list[Budget]:
    return [Budget(f"at most {limit:.2g} of {other}", BATCHED, Relation.TIMES, limit, other) for other in (TWO, FORTY)]


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[str]:
    """Start one of this module; gives its first line."""
    command = [sys.executable, "-m", "benchmarks.fastapi_onnx", *arguments]
    process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(arguments)}: ended with code {await process.wait()}, and has said why")
        yield line.decode()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _resnet18() -> bytes:
    from benchmarks.inference import onnx_networks
    from benchmarks.inference.tasks import Task

    task = Task("resnet18", _TITLES[RESNET], ("batch", _PIXELS, _PIXELS, 3), lambda: af.nn.ResNet(size=18), 0)  # type: ignore[arg-type]
    _, _, _, layers = task.graph()
    return onnx_networks.resnet18(onnx_networks.Network(layers.variables, task.shape))


def _perceptron() -> bytes:
    from benchmarks.inference.onnx_networks import Network

    layers = af.nn.MLP(_FEATURES, (_FEATURES,) * 3)
    layers(af.Graph("perceptron").blob("x", ("batch", _FEATURES)), training=False)
    net = Network(layers.variables, ("batch", _FEATURES))  # type: ignore[arg-type]
    y = net.linear("x")
    for _ in range(3):
        y = net.linear(net.node("Relu", y))
    return net.finish(y)


def _serve(network: str, file: str, contender: str) -> None:
    """Serve a network until the process is ended."""
    import uvicorn
    from fastapi import FastAPI, Request

    async def main() -> None:
        app = FastAPI()
        async with AsyncExitStack() as stack:
            infer = await _opened(file, contender, stack)

            @app.post("/scores")
            async def scores(request: Request) -> dict[str, int]:
                return {"best": int((await infer(_read(network, await request.body()))).argmax())}

            @app.get("/processor")
            async def processor() -> float:
                return process_time()

            server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_keep_alive=300))
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            print("serving on", server.servers[0].sockets[0].getsockname()[1], flush=True)
            await serving

    af.run(main())


def _read(network: str, body: bytes) -> _Array:
    """The row of a request."""
    if network == PERCEPTRON:
        return np.frombuffer(body, np.float32).reshape(1, _FEATURES)
    pixels = np.frombuffer(body, np.uint8).reshape(1, 3, _PIXELS, _PIXELS)
    return pixels / np.float32(255)


async def _opened(file: str, contender: str, stack: AsyncExitStack) -> Callable[[_Array], Awaitable[_Array]]:
    """Open a file as a contender does; gives what computes one row."""
    if contender in (BATCHED, ALONE):
        model = af.onnx.load(file)
        (name,) = model.outputs
        await stack.enter_async_context(model.graph)
        run = model.run if contender == ALONE else (await stack.enter_async_context(model.batched(max_rows=32))).run

        async def ours(x: _Array) -> _Array:
            return (await run({"x": x}))[name]

        return ours

    import onnxruntime
    from anyio import to_thread
    from starlette.concurrency import run_in_threadpool

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # requests side by side use the cores
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    to_thread.current_default_thread_limiter().total_tokens = 2 if contender == TWO else 40

    async def theirs(x: _Array) -> _Array:
        found: _Array = (await run_in_threadpool(session.run, None, {"x": x}))[0]
        return found

    return theirs


async def _ask(network: str, port: int, seconds: float) -> None:
    """Clients that ask again as soon as they have an answer; prints what they got."""
    numbers = np.random.default_rng(0)
    row: _Array = numbers.standard_normal(_FEATURES, np.float32)
    if network == RESNET:
        row = numbers.integers(0, 256, (3, _PIXELS, _PIXELS), np.uint8)
    head = f"POST /scores HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {row.nbytes}\r\n\r\n"
    request, times = head.encode() + row.tobytes(), list[float]()

    async def processor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        return float(await ask(reader, writer, b"GET /processor HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ask(reader, writer, request)
        await begun.wait()
        end = perf_counter() + seconds
        while (start := perf_counter()) < end:
            await ask(reader, writer, request)
            times.append(perf_counter() - start)
        writer.close()
        await writer.wait_closed()

    begun = asyncio.Barrier(_CLIENTS + 1)
    watcher = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(client())
        await begun.wait()
        before, start = await processor(*watcher), perf_counter()
    count, elapsed = len(times), perf_counter() - start
    used = await processor(*watcher) - before
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    figures = {"us": 1e6 * elapsed / count, "p50": p50, "p99": p99, "processor": 1e6 * used / count}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", network, file, contender]:
            _serve(network, file, contender)
        case ["ask", network, port, seconds]:
            af.run(_ask(network, int(port), float(seconds)))
