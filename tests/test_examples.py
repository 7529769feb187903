"""The examples work."""

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_linear() -> None:
    command = [sys.executable, "-W", "error", EXAMPLES / "linear.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "(128, 16)\n[1. 1. 1.]\n"


async def test_service_answers_many_clients_and_shows_its_graph() -> None:
    service = load("service")
    features = np.eye(service.FEATURES, dtype="float32")
    async with TestServer(service.make_app()) as server, ClientSession() as session:

        async def ask(row: int) -> list[float]:
            async with session.post(server.make_url("/classify"), json={"features": features[row].tolist()}) as answer:
                assert answer.status == 200
                return (await answer.json())["probabilities"]

        rows = [n % service.FEATURES for n in range(20)]
        answers = await asyncio.gather(*[ask(row) for row in rows])
        weights = service.make_graph()["weights"].value
        for row, answer in zip(rows, answers, strict=True):
            scores = np.exp(weights[:, row])
            assert answer == pytest.approx(scores / scores.sum(), abs=1e-4)
        async with session.get(server.make_url("/graph/")) as page:
            assert page.status == 200
        async with session.post(server.make_url("/classify"), json={"features": [1, 2]}) as answer:
            assert answer.status == 400
            assert "features" in await answer.text()
