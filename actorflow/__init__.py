"""Numeric dataflow graphs on the application's own asyncio loop.

Every name is imported when it is first used: ``import actorflow`` itself is nearly free, and modules a program does not
use (such as the live page) are never loaded.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "actorflow does not run on a free-threaded Python: reference counts tell it which buffers nobody refers to, "
        "and there they do not; use the build with the GIL"
    )

if TYPE_CHECKING:
    from actorflow import array as array
    from actorflow import data as data
    from actorflow import devices as devices
    from actorflow import nn as nn
    from actorflow import onnx as onnx
    from actorflow import ops as ops
    from actorflow import pipeline as pipeline
    from actorflow import serve as serve
    from actorflow import testing as testing
    from actorflow import web as web
    from actorflow.array.transforms.grad import grad as grad
    from actorflow.array.transforms.grad import value_and_grad as value_and_grad
    from actorflow.array.transforms.to_graph import to_graph as to_graph
    from actorflow.checkpoint import Checkpoint as Checkpoint
    from actorflow.checkpoint import Checkpoints as Checkpoints
    from actorflow.checkpoint import load as load
    from actorflow.checkpoint import load_checkpoint as load_checkpoint
    from actorflow.checkpoint import load_checkpoint_sync as load_checkpoint_sync
    from actorflow.checkpoint import load_sync as load_sync
    from actorflow.checkpoint import load_weights as load_weights
    from actorflow.checkpoint import load_weights_sync as load_weights_sync
    from actorflow.checkpoint import save_checkpoint as save_checkpoint
    from actorflow.checkpoint import save_checkpoint_sync as save_checkpoint_sync
    from actorflow.checkpoint import save_weights as save_weights
    from actorflow.checkpoint import save_weights_sync as save_weights_sync
    from actorflow.errors import ActorflowError as ActorflowError
    from actorflow.errors import AxisError as AxisError
    from actorflow.errors import BatcherClosedError as BatcherClosedError
    from actorflow.errors import CacheFullError as CacheFullError
    from actorflow.errors import CheckpointError as CheckpointError
    from actorflow.errors import CycleError as CycleError
    from actorflow.errors import DataError as DataError
    from actorflow.errors import DeviceError as DeviceError
    from actorflow.errors import DeviceUnavailableError as DeviceUnavailableError
    from actorflow.errors import DTypeError as DTypeError
    from actorflow.errors import FeedError as FeedError
    from actorflow.errors import GraphError as GraphError
    from actorflow.errors import KernelNotFoundError as KernelNotFoundError
    from actorflow.errors import MissingExtraError as MissingExtraError
    from actorflow.errors import NotFiniteError as NotFiniteError
    from actorflow.errors import OpError as OpError
    from actorflow.errors import OpTimeoutError as OpTimeoutError
    from actorflow.errors import OutOfMemoryError as OutOfMemoryError
    from actorflow.errors import PeerFailedError as PeerFailedError
    from actorflow.errors import PeerLostError as PeerLostError
    from actorflow.errors import PipelineError as PipelineError
    from actorflow.errors import PlaceError as PlaceError
    from actorflow.errors import QueueFullError as QueueFullError
    from actorflow.errors import RaceError as RaceError
    from actorflow.errors import RunCancelledError as RunCancelledError
    from actorflow.errors import RunTimeoutError as RunTimeoutError
    from actorflow.errors import SessionClosedError as SessionClosedError
    from actorflow.errors import SessionsFullError as SessionsFullError
    from actorflow.errors import ShapeError as ShapeError
    from actorflow.errors import StageError as StageError
    from actorflow.errors import StageTimeoutError as StageTimeoutError
    from actorflow.errors import StallError as StallError
    from actorflow.errors import TransportError as TransportError
    from actorflow.graph.cache import Cache as Cache
    from actorflow.graph.composite import Chain as Chain
    from actorflow.graph.composite import Composite as Composite
    from actorflow.graph.emits import collect as collect
    from actorflow.graph.flow import cond as cond
    from actorflow.graph.flow import scan as scan
    from actorflow.graph.flow import switch as switch
    from actorflow.graph.flow import while_loop as while_loop
    from actorflow.graph.gradient import gradient as gradient
    from actorflow.graph.graph import Graph as Graph
    from actorflow.graph.nodes import Blob as Blob
    from actorflow.graph.nodes import Op as Op
    from actorflow.graph.nodes import State as State
    from actorflow.graph.nodes import Variable as Variable
    from actorflow.graph.options import FiniteCheck as FiniteCheck
    from actorflow.interchange import to_numpy as to_numpy
    from actorflow.loop import run as run
    from actorflow.place import Place as Place
    from actorflow.plan.plan import Plan as Plan
    from actorflow.runtime.batched import Batcher as Batcher
    from actorflow.runtime.model import Model as Model
    from actorflow.runtime.pause import Pause as Pause
    from actorflow.runtime.program import Result as Result
    from actorflow.runtime.sessions import Session as Session
    from actorflow.runtime.stream import FrameStream as FrameStream
    from actorflow.spec import TensorSpec as TensorSpec
    from actorflow.trace.statistics import GraphStatistics as GraphStatistics
    from actorflow.transport.world import world as world

__version__ = "0.1.0"

_SUBMODULES = ("array", "data", "devices", "nn", "onnx", "ops", "pipeline", "serve", "testing", "web")
_HOMES = {
    "loop": ("run",),
    "graph.graph": ("Graph",),
    "graph.nodes": ("Blob", "Op", "State", "Variable"),
    "graph.cache": ("Cache",),
    "graph.composite": ("Chain", "Composite"),
    "graph.options": ("FiniteCheck",),
    "place": ("Place",),
    "spec": ("TensorSpec",),
    "plan.plan": ("Plan",),
    "array.transforms.grad": ("grad", "value_and_grad"),
    "array.transforms.to_graph": ("to_graph",),
    "graph.emits": ("collect",),
    "graph.flow": ("cond", "scan", "switch", "while_loop"),
    "graph.gradient": ("gradient",),
    "checkpoint": (
        "Checkpoint",
        "Checkpoints",
        "load",
        "load_checkpoint",
        "load_checkpoint_sync",
        "load_sync",
        "load_weights",
        "load_weights_sync",
        "save_checkpoint",
        "save_checkpoint_sync",
        "save_weights",
        "save_weights_sync",
    ),
    "interchange": ("to_numpy",),
    "runtime.program": ("Result",),
    "runtime.batched": ("Batcher",),
    "runtime.model": ("Model",),
    "runtime.sessions": ("Session",),
    "runtime.stream": ("FrameStream",),
    "runtime.pause": ("Pause",),
    "trace.statistics": ("GraphStatistics",),
    "transport.world": ("world",),
}
__all__ = [
    "ActorflowError",
    "AxisError",
    "Batcher",
    "BatcherClosedError",
    "CacheFullError",
    "Blob",
    "Cache",
    "Chain",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "Composite",
    "CycleError",
    "DTypeError",
    "DataError",
    "DeviceError",
    "DeviceUnavailableError",
    "FeedError",
    "FiniteCheck",
    "FrameStream",
    "Graph",
    "GraphError",
    "GraphStatistics",
    "KernelNotFoundError",
    "MissingExtraError",
    "Model",
    "NotFiniteError",
    "Op",
    "OpError",
    "OpTimeoutError",
    "OutOfMemoryError",
    "Pause",
    "PeerFailedError",
    "PeerLostError",
    "Place",
    "PipelineError",
    "PlaceError",
    "Plan",
    "QueueFullError",
    "RaceError",
    "Result",
    "RunCancelledError",
    "RunTimeoutError",
    "Session",
    "SessionClosedError",
    "SessionsFullError",
    "ShapeError",
    "StageError",
    "StageTimeoutError",
    "StallError",
    "State",
    "TensorSpec",
    "TransportError",
    "Variable",
    "array",
    "collect",
    "cond",
    "data",
    "devices",
    "grad",
    "gradient",
    "load",
    "load_checkpoint",
    "load_checkpoint_sync",
    "load_sync",
    "load_weights",
    "load_weights_sync",
    "nn",
    "onnx",
    "ops",
    "pipeline",
    "run",
    "save_checkpoint",
    "save_checkpoint_sync",
    "save_weights",
    "save_weights_sync",
    "scan",
    "serve",
    "switch",
    "testing",
    "to_graph",
    "to_numpy",
    "value_and_grad",
    "web",
    "while_loop",
    "world",
    "__version__",
]
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_HOME_OF |= {name: "errors" for name in __all__ if name.endswith("Error")}


if not TYPE_CHECKING:  # for which any name would be one that is there

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        elif name in _SUBMODULES:
            return importlib.import_module(f"{__name__}.{name}")
        else:
            from actorflow.foreign import missing

            missing(__name__, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
