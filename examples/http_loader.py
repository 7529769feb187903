"""Load from a web server that is slow and fails now and then, with bounds on requests, time and failures.

Run it with ``python examples/http_loader.py``. It serves the records itself, on the loop that the loader runs on: some
requests fail at first, some hang, and some records are broken for good.
"""

import asyncio
import collections

import aiohttp
import numpy as np
from aiohttp import web

import actorflow as af

RECORDS, BATCH = 200, 16


class Server:
    """Gives records; every fifth request fails, every 40th record hangs the first time, every 50th is broken."""

    def __init__(self) -> None:
        self.requests: collections.Counter[int] = collections.Counter()

    async def record(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        self.requests[number] += 1
        await asyncio.sleep(0.002)
        if number % 40 == 20 and self.requests[number] == 1:
            await asyncio.sleep(60)
        if number % 5 == 3 and self.requests[number] == 1:
            raise web.HTTPServiceUnavailable
        if number % 50 == 49:
            return web.Response(body=b"not a record")
        return web.Response(body=np.full(8, number, dtype="float32").tobytes())


def parse(body: bytes) -> np.ndarray:
    if len(body) != 32:
        raise ValueError(f"expected 32 bytes, got {len(body)}")
    return np.frombuffer(body, dtype="float32")


async def main() -> None:
    server = Server()
    application = web.Application()
    application.router.add_get("/{number}", server.record)
    runner = web.AppRunner(application, shutdown_timeout=0.1)  # some requests hang
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]

    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:

        async def fetch(number: int) -> bytes:
            async with session.get(f"/{number}") as response:
                response.raise_for_status()
                return await response.read()

        loader = (
            af.pipeline.source(range(RECORDS), shuffle=True, seed=0)
            .map(fetch, concurrency=16, timeout=0.5, retries=3, backoff=0.001)
            .map(parse, on_error=0.1)  # broken records are left out, up to a tenth of all
            .batch(BATCH)
            .prefetch(2)
        )
        total = 0.0
        async with loader:
            async for batch in loader:
                total += float(batch[:, 0].sum())
        fetched, parsed = loader.stats()["fetch"], loader.stats()["parse"]
        print(f"sum of the records: {total:.0f}")
        print(f"{fetched.retried} requests repeated, {fetched.timed_out} of them after a timeout")
        print(f"{parsed.skipped} of {RECORDS} records left out: {loader.skips[0].error}")
    await runner.cleanup()


if __name__ == "__main__":
    af.run(main())
