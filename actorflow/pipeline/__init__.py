"""Data pipelines on the application's own loop, made of the actors, credits and lanes that graphs are made of."""

from actorflow.pipeline.calls.options import Executor, Limiter, Skip
from actorflow.pipeline.loader import Feeding, live_loaders
from actorflow.pipeline.pipeline import Pipeline, concat, interleave, merge, source, zip_
from actorflow.pipeline.stages.collate import pad, stack, unstack
from actorflow.pipeline.stats import LoaderStats, StageSnapshot
from actorflow.pipeline.torch_data import torch_dataset

__all__ = [
    "Executor",
    "Feeding",
    "Limiter",
    "LoaderStats",
    "Pipeline",
    "Skip",
    "StageSnapshot",
    "concat",
    "interleave",
    "live_loaders",
    "merge",
    "pad",
    "source",
    "stack",
    "torch_dataset",
    "unstack",
    "zip_",
]
