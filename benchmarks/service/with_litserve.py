"""LitServe as a peer of ``benchmarks service``: ``python -m benchmarks.service.with_litserve PORT``."""

from __future__ import annotations

import os
import sys
from typing import Any

import litserve
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from benchmarks.machine import cores
from benchmarks.service.batching import MAX_ROWS, WEIGHTS
from benchmarks.service.peers import in_numpy

_Array = npt.NDArray[Any]


class Digits(litserve.LitAPI):  # type: ignore[misc]
    """The network by hand, on the requests that came within two milliseconds."""

    def setup(self, device: str) -> None:
        threadpool_limits(1)  # the workers, side by side, use the cores
        self.compute = in_numpy(load_file(os.environ[WEIGHTS]))

    # Without annotations: LitServe would have pydantic check what they say.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return np.asarray(request["image"], np.float32)

    def predict(self, x: _Array) -> _Array:
        return self.compute(x[..., None])

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        return {"probabilities": output.tolist()}


if __name__ == "__main__":
    api = Digits(max_batch_size=MAX_ROWS, batch_timeout=0.002, api_path="/classify")
    # Its docs, for many requests on a CPU: a worker per core, which exchange them by ZeroMQ.
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=cores(), fast_queue=True)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False, generate_client_file=False
    )
