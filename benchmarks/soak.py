"""Does the memory of a server stay what it was under all that clients do? ``python -m benchmarks.soak --minutes 10``

The server runs in a process of its own, whose resident memory is shown at 1, 5 and 10 minutes and at the end. Its
clients get answers 200 to arrays of 120 lengths and to pictures, 400, 500, 503 and 504, hang up, and do not read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from aiohttp import ClientError, ClientSession, ClientTimeout

import actorflow as af

_ROOT = Path(__file__).parents[1]
_LENGTHS, _FEATURES, _CLIENTS = 120, 64, 12
_ROWS = 32
_MARKS_MIN = (1, 5, 10)
_HEAD = "Inference-Header-Content-Length"
#: A row of this many numbers is 8 MB.
_LONG = 2_000_000


async def _slow(x: Any) -> Any:
    await asyncio.sleep(0.05)
    return x


def _no_negative(x: Any) -> Any:
    if (x < 0).any():
        raise ValueError("expected no negative numbers")
    return x.sum(axis=1)


def _models() -> dict[str, af.Model]:
    lengths, slow, failing, pictures = (af.Graph(name) for name in ("lengths", "slow", "failing", "pictures"))
    x = lengths.blob("x", ("batch", "length", _FEATURES))
    y = slow.blob("x", ("batch", _FEATURES))
    z = failing.blob("x", ("batch", _LONG))
    p = pictures.blob("x", ("batch", "height", "width", 3))
    return {
        "lengths": af.Model(lengths, {"x": x}, {"y": af.ops.relu(x * 2.0 + 1.0)}),
        "slow": af.Model(slow, {"x": y}, {"y": slow.function("slow", _slow, y.spec)(y)}),
        "failing": af.Model(
            failing,
            {"x": z},
            {"y": failing.function("sum", _no_negative, af.TensorSpec.of(("batch",)))(z), "x": z * 1.0},
        ),
        "pictures": af.Model(pictures, {"x": p}, {"y": af.ops.mean(p, axis=(1, 2))}),
    }


async def _serve() -> None:
    limits = af.serve.Limits(queue_rows=2 * _ROWS, pending_bytes=256 << 20, in_flight=1)
    app = af.serve.create_app(_models(), limits=limits, max_rows=_ROWS)
    async with af.serve.Server(app, port=0) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # until the parent says so, or ends


class Load:
    """What clients do, at random, until they are told to end."""

    def __init__(self, session: ClientSession, url: str) -> None:
        self.answers: Counter[str] = Counter()
        self._session = session
        self._url = url
        self._files = _pictures()
        self._kinds: list[Callable[[random.Random], Awaitable[None]]] = [
            *[self._length] * 12, self._wrong, self._nothing, self._fails, self._late, self._hangs_up, self._unread,
            self._many, *[self._picture] * 3,
        ]  # fmt: skip

    async def client(self, seed: int) -> None:
        """One client after another."""
        drawn = random.Random(seed)
        while True:
            with suppress(ClientError, ConnectionError, asyncio.TimeoutError):
                await drawn.choice(self._kinds)(drawn)

    async def _infer(self, model: str, body: bytes, **headers: str) -> None:
        async with self._session.post(f"{self._url}/v2/models/{model}/infer", data=body, headers=headers) as response:
            await response.read()
            self.answers[str(response.status)] += 1

    async def _binary(self, model: str, shape: tuple[int, ...], value: float = 1.0, **parameters: Any) -> None:
        body, size = _binary(shape, value, **parameters)
        await self._infer(model, body, **{_HEAD: size})

    async def _length(self, drawn: random.Random) -> None:
        shape = (drawn.randint(1, 4), 8 * drawn.randint(1, _LENGTHS), _FEATURES)
        await self._binary("lengths", shape, binary_data_output=True)

    async def _wrong(self, drawn: random.Random) -> None:
        wrong = (b"{", b"[" * 1000, b'{"inputs": []}', b'{"inputs": [{"name": "x", "data": [[1]], "shape": [9]}]}')
        await self._infer("slow", drawn.choice(wrong))

    async def _nothing(self, drawn: random.Random) -> None:
        head = b'{"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": ['
        await self._infer("slow", head + drawn.choice((b"[],", b"[[]],", b"0,")) * 300_000 + b"0]}]}")

    async def _fails(self, drawn: random.Random) -> None:
        await self._binary("failing", (1, _LONG), -1.0)

    async def _late(self, drawn: random.Random) -> None:
        await self._binary("slow", (1, _FEATURES), timeout=1000)

    async def _many(self, drawn: random.Random) -> None:
        await asyncio.gather(*[self._binary("slow", (_ROWS, _FEATURES)) for _ in range(5)])

    async def _hangs_up(self, drawn: random.Random) -> None:
        model, shape = drawn.choice([("slow", (1, _FEATURES)), ("failing", (1, _LONG))])
        with suppress(TimeoutError):
            async with asyncio.timeout(drawn.random() * 0.1):
                await self._binary(model, shape)
        self.answers["hung up"] += 1

    async def _unread(self, drawn: random.Random) -> None:
        body, size = _binary((1, _LONG), 1.0, binary_data_output=True)
        url = f"{self._url}/v2/models/failing/infer"
        async with self._session.post(url, data=body, headers={_HEAD: size}) as response:
            await asyncio.sleep(drawn.random())
            response.close()
        self.answers["unread"] += 1

    async def _picture(self, drawn: random.Random) -> None:
        async with self._session.post(
            f"{self._url}/v2/models/pictures/image", data=drawn.choice(self._files)
        ) as response:
            await response.read()
            self.answers[f"picture {response.status}"] += 1


def _binary(shape: tuple[int, ...], value: float, **parameters: Any) -> tuple[bytes, str]:
    """A request with binary data, and the size of its JSON."""
    data = np.full(shape, value, np.float32).tobytes()
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [entry], "parameters": parameters}).encode()
    return head + data, str(len(head))


def _pictures() -> list[bytes]:
    from PIL import Image

    files = []
    for side, kind in ((32, "PNG"), (200, "JPEG"), (900, "PNG"), (1500, "JPEG"), (3900, "PNG")):
        content = BytesIO()
        Image.new("RGB", (side, side), "red").save(content, kind)
        files.append(content.getvalue())
    return [*files, files[1][:200], b"no picture"]


async def soak(minutes: float) -> list[tuple[float, float]]:
    """Run the load; returns minutes and the server's memory in MB at each mark, the last at the end."""
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.soak",
        "--serve",
        cwd=_ROOT,
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert server.stdout is not None
    found: list[tuple[float, float]] = []
    try:
        url = (await server.stdout.readline()).decode().strip()
        statm = Path(f"/proc/{server.pid}/statm")
        async with ClientSession(timeout=ClientTimeout(120)) as session:
            load, start = Load(session, url), perf_counter()
            clients = [asyncio.create_task(load.client(seed)) for seed in range(_CLIENTS)]
            marks = sorted({mark for mark in _MARKS_MIN if mark < minutes} | {minutes / 2, minutes})
            for mark in marks:
                await asyncio.sleep(max(start + 60 * mark - perf_counter(), 0))
                found.append((mark, int(statm.read_text().split()[1]) * 4096 / 1e6))
                answers = ", ".join(f"{count} {kind}" for kind, count in sorted(load.answers.items()))
                print(f"{mark:g} min: {found[-1][1]:.0f} MB; {answers}", flush=True)
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)
            async with session.get(f"{url}/v2/health/ready") as response:
                print(f"ready: {response.status == 200}", flush=True)
    finally:
        server.terminate()
        await server.wait()
    return found


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    af.run(_serve() if options.serve else _print(options.minutes))


async def _print(minutes: float) -> None:
    await soak(minutes)


if __name__ == "__main__":
    main()
