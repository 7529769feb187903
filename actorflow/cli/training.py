"""The demo's graph, and what is done with it: train an epoch, count right answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow import nn, ops
from actorflow.data import Batch, Dataset
from actorflow.graph import Graph
from actorflow.node import Blob

__all__ = ["Step", "Training"]

#: Frames that overlap: while one is updating the weights of its first layers, the next is waiting for its images.
_IN_FLIGHT = 2


class Step(NamedTuple):
    """What one step of the training gave."""

    loss: float
    accuracy: float
