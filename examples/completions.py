"""A service that writes on: a small transformer of letters, by the API for completions that OpenAI's clients know.

Start it with ``python examples/completions.py FILE`` on any plain text of some hundred thousand letters: it trains for
about a minute, and then serves. Ask it, and have the answer letter by letter, with

    curl -N http://127.0.0.1:8080/v1/completions -d '{"prompt": "The ", "max_tokens": 100, "stream": true}'

Any number of callers share frames. Each has its own place in the cache, which is free as soon as its answer ends, or
the caller hangs up.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
from aiohttp import web

import actorflow as af
from actorflow import nn, ops


class Transformer:
    """A transformer of letters, as layers that a graph for training and one for writing share."""

    def __init__(self, letters: int, most: int, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        small = nn.init.gaussian(std=0.02, seed=0)
        self.heads, self.most = heads, most
        self.embed = nn.Embedding(letters, width, weight_init=small, name="letters")
        self.places = nn.Embedding(most, width, weight_init=small, name="places")
        self.blocks = [
            (
                nn.LayerNorm(name=f"norm{i}"),
                nn.Linear(3 * width, weight_init=small, name=f"qkv{i}"),
                nn.Linear(width, weight_init=small, name=f"out{i}"),
                nn.LayerNorm(name=f"norm{i}_up"),
                nn.Linear(4 * width, activation="relu", weight_init=small, name=f"up{i}"),
                nn.Linear(width, weight_init=small, name=f"down{i}"),
            )
            for i in range(layers)
        ]
        self.norm = nn.LayerNorm(name="norm")
        self.scores = nn.Linear(letters, weight_init=small, name="scores")

    def __call__(self, tokens: af.Blob, positions: af.Blob, cache: af.Cache | None = None) -> af.Blob:
        """Scores of what follows each letter, (rows, time, letters)."""
        x = self.embed(tokens) + self.places(positions)
        for norm, qkv, out, norm_up, up, down in self.blocks:
            q, k, v = ops.split(qkv(norm(x)), 3, axis=-1)
            if cache is None:
                y = ops.attention(q, k, v, causal=True, heads=self.heads)
            else:
                y = cache.attention(q, k, v, heads=self.heads)
            x = x + out(y)
            x = x + down(up(norm_up(x)))
        return self.scores(self.norm(x))


class Writer:
    """The model, to be trained on windows of a text, and to write on what many callers have begun.

    Args:
        text: What it learns from.
        window: Letters of a window.
        most: Letters that a caller may have read and written; by default those of a window, whose places it learns.
        blocks: Blocks of the cache, of 4 letters each.
    """

    def __init__(
        self, text: str, window: int = 128, most: int | None = None, blocks: int = 2048, rate: float = 0.003
    ) -> None:
        most = window if most is None else most
        self.letters = sorted(set(text))
        self.codes = np.searchsorted(self.letters, list(text)).astype(np.int64)
        self.window, self.most = window, most
        # Products this small are not worth BLAS's threads, which wait for each other where other processes compute.
        self.graph = graph = af.Graph("writer", deterministic=True)
        model = Transformer(len(self.letters), most)
        self.read = graph.blob("read", ("batch", window), "int64")
        self.next = graph.blob("next", ("batch", window), "int64")
        scores = model(self.read, graph.constant(np.arange(window)))
        loss = ops.softmax_loss(ops.reshape(scores, (-1, len(self.letters))), ops.reshape(self.next, (-1,)))
        self.trainer = nn.Trainer(loss, nn.Adam(rate, clip=nn.Clip(norm=1.0)).minimize(loss))
        with graph.subgraph("writing"):
            self.tokens = graph.blob("tokens", ("row", "time"), "int64")
            self.seed = graph.blob("seed", ("row",), "int64")
            self.heat, self.top_p = graph.blob("temperature", ("row",)), graph.blob("top_p", ("row",))
            cache = graph.cache("cache", most=most, blocks=blocks, block=4)
            places = ops.expand_dims(cache.used, 1) + ops.cumsum(self.tokens * 0 + 1, axis=1) - 1
            scores = model(self.tokens, places, cache)
            drawn = ops.uniform_at(self.seed, places[:, -1])  # by seed and place alone: the same in any company
            chosen = ops.sample(scores[:, -1], drawn, temperature=self.heat, top_p=self.top_p)
            self.chosen = ops.expand_dims(chosen, 1, name="chosen")

    def windows(self, steps: int, batch: int):
        """Windows that begin anywhere, with the same windows one letter later."""
        random = np.random.default_rng(0)
        for _ in range(steps):
            rows = random.integers(0, len(self.codes) - self.window, (batch, 1)) + np.arange(self.window)
            yield {self.read: self.codes[rows], self.next: self.codes[rows + 1]}

    async def train(self, steps: int, batch: int = 32) -> list[float]:
        """The loss of each step."""
        async with contextlib.aclosing(self.trainer.steps(lambda _: self.windows(steps, batch))) as found:
            return [step.loss async for step in found]

    def batched(self, **options) -> af.Batcher:
        """What computes the steps of all callers; a frame has 1,024 letters at most, so that nobody waits for long."""
        return self.graph.batched(fetch=self.chosen, **{"max_rows": 64, "max_cells": 1024, **options})

    async def write(
        self,
        batcher: af.Batcher,
        prompt: str,
        length: int,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
        part: int = 64,
    ) -> AsyncIterator[str]:
        """Letters that follow a prompt, one by one; the prompt is read in parts."""
        codes = np.array([self.letters.index(letter) for letter in prompt])[np.newaxis]
        feeds = {self.seed: [seed], self.heat: [temperature], self.top_p: [top_p]}
        async with batcher.session(timeout=None) as session:
            while codes.shape[1] > part:
                await session.run({self.tokens: codes[:, :part], **feeds})
                codes = codes[:, part:]
            steps = session.iterate({self.tokens: codes, **feeds}, feedback={self.tokens: self.chosen}, limit=length)
            async for step in steps:
                yield self.letters[int(step[self.chosen][0, 0])]


WRITER = web.AppKey("writer", Writer)
BATCHER = web.AppKey("batcher", af.Batcher)


async def complete(request: web.Request) -> web.StreamResponse:
    """OpenAI's ``POST /v1/completions``, as far as it is of one prompt."""
    app = request.app
    try:
        asked = await request.json()
        prompt, stop = asked["prompt"], asked.get("stop") or ""
        length, stream = int(asked.get("max_tokens", 16)), bool(asked.get("stream", False))
        how = {name: float(asked.get(name, 1.0)) for name in ("temperature", "top_p")}
        how["seed"] = int(asked.get("seed", time.time_ns() % 2**32))
        unknown = sorted({*prompt} - {*app[WRITER].letters})
        if unknown or not prompt or not isinstance(stop, str) or not 0 < length <= app[WRITER].most - len(prompt):
            raise ValueError(f"letters {unknown}, {len(prompt)} of them, {length} more, at most {app[WRITER].most}")
    except (KeyError, TypeError, ValueError) as error:
        return web.json_response({"error": {"message": f"expected a prompt, got {error}"}}, status=400)
    head = {"id": f"cmpl-{how['seed']}", "object": "text_completion", "model": "letters", "created": int(time.time())}

    def answer(text: str, reason: str | None) -> dict:
        return {**head, "choices": [{"index": 0, "text": text, "finish_reason": reason, "logprobs": None}]}

    text, reason = "", "length"
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    try:
        # A caller that hangs up cancels this: the session ends with its block.
        async with contextlib.aclosing(app[WRITER].write(app[BATCHER], prompt, length, **how)) as letters:
            async for letter in letters:
                if stream and not response.prepared:
                    await response.prepare(request)
                text += letter
                if stop and text.endswith(stop):
                    reason = "stop"
                    break
                if stream:
                    await response.write(f"data: {json.dumps(answer(letter, None))}\n\n".encode())
    except (af.CacheFullError, af.QueueFullError, af.BatcherClosedError) as error:
        if not response.prepared:
            return web.json_response({"error": {"message": str(error)}}, status=503, headers={"Retry-After": "1"})
        raise
    if not stream:
        text = text.removesuffix(stop) if reason == "stop" else text
        used = {"prompt_tokens": len(prompt), "completion_tokens": len(text), "total_tokens": len(prompt) + len(text)}
        return web.json_response({**answer(text, reason), "usage": used})
    await response.write(f"data: {json.dumps(answer('', reason))}\n\ndata: [DONE]\n\n".encode())
    return response


async def models(request: web.Request) -> web.Response:
    """OpenAI's ``GET /v1/models``."""
    return web.json_response({"object": "list", "data": [{"id": "letters", "object": "model", "owned_by": "you"}]})


async def run_graph(app: web.Application) -> AsyncIterator[None]:
    """Take requests while the service runs."""
    async with app[WRITER].graph, app[WRITER].batched() as app[BATCHER]:
        yield
        await app[BATCHER].aclose()  # whoever waits is sent away


def make_app(writer: Writer) -> web.Application:
    """The service, to be run with ``handler_cancellation=True``."""
    app = web.Application(client_max_size=1 << 16)
    app[WRITER] = writer
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/v1/models", models)
    app.add_subapp("/graph", af.web.create_app(writer.graph))
    app.cleanup_ctx.append(run_graph)
    return app


async def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model that writes on, by OpenAI's API for completions.")
    parser.add_argument("file", type=Path, metavar="FILE", help="the text that it learns from, in UTF-8")
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    try:
        text = options.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{options.file}: expected a text in UTF-8: {error}") from error
    writer = Writer(text)
    print(f"training on {len(writer.codes):,} letters, {len(writer.letters)} different ones", flush=True)
    losses = await writer.train(options.steps)
    print(f"loss {losses[0]:.2f} at first, {np.mean(losses[-20:]):.2f} in the end", flush=True)
    stop = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # Windows
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(make_app(writer), handler_cancellation=True, shutdown_timeout=10)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", options.port).start()
        print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}/v1/completions", flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    af.run(main())
