"""The peers of ``benchmarks service``: its network by hand in NumPy, or in torch, a request at a time on threads.

``python -m benchmarks.service.peers numpy|torch WEIGHTS`` serves it like ``examples/service.py``, on any free port.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import web
from numpy.lib.stride_tricks import sliding_window_view

import actorflow as af
from benchmarks.machine import cores
from benchmarks.service.names import NUMPY, TORCH

_SERVICE = Path(__file__).parents[2] / "examples" / "service.py"
_Array = npt.NDArray[Any]
_Weights = dict[str, _Array]


def in_numpy(weights: _Weights) -> Callable[[_Array], _Array]:
    """The network, written by hand."""

    def conv(x: _Array, name: str) -> _Array:
        weight = weights[f"{name}/weight"]
        size = weight.shape[0]
        if size > 1:
            x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            x = sliding_window_view(x, (size, size), (1, 2)).transpose(0, 1, 2, 4, 5, 3)
            x = x.reshape(*x.shape[:3], -1)
        y: _Array = x @ weight.reshape(-1, weight.shape[-1]) + weights[f"{name}/bias"]
        return y

    def compute(image: _Array) -> _Array:
        x = np.maximum(conv(image / np.float32(255), "block0/conv0"), 0)
        x = np.maximum(conv(x, "block0/conv1"), 0)
        x = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))  # zeros, as nothing is below 0
        x = sliding_window_view(x, (3, 3), (1, 2))[:, ::2, ::2].max(axis=(-2, -1))
        x = np.maximum(conv(x, "block1/conv0"), 0)
        x = np.maximum(conv(x, "block1/conv1"), 0)
        scores = conv(x, "scores").mean(axis=(1, 2))
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        found: _Array = powers / powers.sum(axis=1, keepdims=True)
        return found

    return compute


def in_torch(weights: _Weights) -> Callable[[_Array], _Array]:
    """The network of torch's operations."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    tensors = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
    filters = {name: t.permute(3, 2, 0, 1).contiguous() for name, t in tensors.items() if t.ndim == 4}

    def conv(x: Any, name: str) -> Any:
        weight = filters[f"{name}/weight"]
        return functional.conv2d(x, weight, tensors[f"{name}/bias"], padding=weight.shape[-1] // 2)

    def compute(image: _Array) -> _Array:
        with torch.inference_mode():
            x = torch.from_numpy(image).permute(0, 3, 1, 2) / 255
            x = conv(conv(x, "block0/conv0").relu(), "block0/conv1").relu()
            x = functional.max_pool2d(x, 3, 2, ceil_mode=True)
            x = conv(conv(x, "block1/conv0").relu(), "block1/conv1").relu()
            found: _Array = conv(x, "scores").mean((2, 3)).softmax(1).numpy()
            return found

    return compute


def make_app(compute: Callable[[_Array], _Array], service: dict[str, Any]) -> web.Application:
    """A service that computes each request on one of as many threads as there are cores."""
    pool = ThreadPoolExecutor(cores())

    async def classify(request: web.Request) -> web.Response:
        image = await service["read_image"](request)
        found = await asyncio.get_running_loop().run_in_executor(pool, compute, image)
        return web.json_response({"probabilities": found[0].tolist()})

    app = web.Application(client_max_size=1 << 16)
    app.router.add_post("/classify", classify)
    app.router.add_get("/ping", service["ping"])
    return app


async def main(kind: str, path: str) -> None:
    from safetensors.numpy import load_file
    from threadpoolctl import threadpool_limits

    service = runpy.run_path(str(_SERVICE))
    weights = load_file(path)
    with threadpool_limits(1):  # requests side by side use the cores
        runner = web.AppRunner(make_app({NUMPY: in_numpy, TORCH: in_torch}[kind](weights), service))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    af.run(main(*sys.argv[1:]))
