"""The example of completions: it learns, answers by OpenAI's API, streams, and frees places of those that hang up."""

import asyncio
import importlib.util
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web

from tests.serve.serving import until
from tests.serve.test_clients import program

TEXT = "the cat sat on the mat. the dog sat on the log. " * 40


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "completions.py"
    spec = importlib.util.spec_from_file_location("completions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def served(example: ModuleType, **options: Any) -> AsyncIterator[tuple[str, Any, Any]]:
    writer = example.Writer(TEXT, window=16, **{"most": 64, "blocks": 256, **options})
    app = example.make_app(writer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/completions", writer, app[example.BATCHER]
    finally:
        await runner.cleanup()


async def test_each_draws_what_it_would_draw_alone(example: ModuleType) -> None:
    writer = example.Writer(TEXT, window=16, most=64, blocks=256)
    async with writer.graph, writer.batched() as batcher:

        async def write(seed: int, **options: Any) -> str:
            how = {"temperature": 0.9, "top_p": 0.95, **options}
            async with aclosing(writer.write(batcher, "the cat sat", 12, seed=seed, **how)) as letters:
                return "".join([letter async for letter in letters])

        alone = [await write(seed) for seed in range(4)]
        assert len({*alone}) == 4
        assert await asyncio.gather(*[write(seed) for seed in range(4)]) == alone
        assert await write(2, part=4) == alone[2]  # a prompt that is read in parts
        assert await write(1, temperature=0) == await write(2, temperature=0)


async def test_answers_whole_and_letter_by_letter(example: ModuleType) -> None:
    async with served(example) as (url, _, batcher), ClientSession() as client:
        asked = {"prompt": "the ", "max_tokens": 9, "seed": 3, "temperature": 0.5}
        async with client.post(url, json=asked) as response:
            whole = await response.json()
        assert whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13}
        assert whole["choices"][0]["finish_reason"] == "length"
        async with client.post(url, json={**asked, "stream": True}) as response:
            assert response.content_type == "text/event-stream"
            lines = (await response.text()).split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        parts = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]
        text = whole["choices"][0]["text"]
        assert [part["text"] for part in parts] == [*text, ""]
        assert [part["finish_reason"] for part in parts] == [None] * 9 + ["length"]
        async with client.post(url, json={**asked, "stop": text[3]}) as response:
            stopped = (await response.json())["choices"][0]
        assert stopped["finish_reason"] == "stop"
        assert stopped["text"] == text[: text.index(text[3])]
        for wrong in ({"prompt": ""}, {"prompt": "THE"}, {**asked, "max_tokens": 61}, {}):
            async with client.post(url, json=wrong) as response:
                assert response.status == 400
        assert (batcher.statistics().sessions, batcher.statistics().blocks) == (0, 0)


async def test_a_caller_that_hangs_up_frees_its_place_one_step_later_at_most(example: ModuleType) -> None:
    async with served(example, most=4096, blocks=1024) as (url, _, batcher), ClientSession() as client:
        async with client.post(url, json={"prompt": "t", "max_tokens": 4000, "stream": True}) as response:
            await response.content.readline()
            assert batcher.statistics().sessions == 1
        response.close()
        await until(lambda: batcher.statistics().sessions == 0)
        frames = batcher.statistics().frames
        assert batcher.statistics().blocks == 0
        assert frames < 4000
        await asyncio.sleep(0)
        assert batcher.statistics().frames == frames


async def test_curl_shows_letters_as_they_come(example: ModuleType) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    async with served(example) as (url, *_):
        body = json.dumps({"prompt": "the ", "max_tokens": 3, "stream": True})
        out = await program(curl, "-sN", url, "-d", body)
        assert out.count(b"data: {") == 4
        assert out.endswith(b"data: [DONE]\n\n")


@pytest.mark.slow
async def test_it_learns_in_a_minute(example: ModuleType) -> None:
    writer = example.Writer(TEXT, window=32, blocks=256, rate=0.01)
    async with writer.graph:
        losses = await writer.train(200, batch=16)
        assert np.mean(losses[-10:]) < 0.5 < losses[0]
        async with writer.batched() as batcher:
            async with aclosing(writer.write(batcher, "the cat ", 15, temperature=0)) as letters:
                assert "".join([letter async for letter in letters]) == "sat on the mat."
