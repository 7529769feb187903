"""Checkpoints: all that a graph's next frame depends on, in one file that is whole or not there.

A file has every variable by name, with shape and dtype (weights, optimizer states, running statistics, steps), the
number of the next frame, which random streams depend on, and the application's place in the data. Its
format is safetensors, which many tools read; the extra `checkpoint` brings the package that writes and reads it.

`save_checkpoint` and `load_checkpoint` are for single files, `Checkpoints` for a folder that keeps the last ones, also
those of several ranks; `save_weights` and `load_weights` for a network that others are to compute with. `Graph.save`
and `load` are for the graph itself, with its values: no program that makes it is needed any more.
"""

from actorflow.checkpoint.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_checkpoint_sync,
    save_checkpoint,
    save_checkpoint_sync,
)
from actorflow.checkpoint.folder import Checkpoints
from actorflow.checkpoint.graphs import load, load_sync
from actorflow.checkpoint.weights import LoadedWeights, load_weights, load_weights_sync, save_weights, save_weights_sync

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "LoadedWeights",
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
]
