"""BentoML as a peer of ``benchmarks service``: ``bentoml serve benchmarks.service.with_bentoml:Digits``."""

from __future__ import annotations

import os

import bentoml
import numpy as np
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from benchmarks.machine import cores
from benchmarks.service.batching import MAX_ROWS, WEIGHTS
from benchmarks.service.peers import in_numpy


# Its docs: a worker per core, each of which makes batches of its own.
@bentoml.service(workers=cores(), metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Digits:
    """The network by hand, on as many requests as its dispatcher waits for."""

    def __init__(self) -> None:
        threadpool_limits(1)  # the workers, side by side, use the cores
        self.compute = in_numpy(load_file(os.environ[WEIGHTS]))

    # With less than its 60 s for an answer it sends clients away where others use the cores, too, and is no faster.
    @bentoml.api(batchable=True, max_batch_size=MAX_ROWS)
    def classify(self, image: np.ndarray) -> np.ndarray:
        """Probabilities of the classes, for each image."""
        return self.compute(image.astype(np.float32)[..., None])
