"""Composites for several places: devices of one machine, or of several machines.

A parallel scheme is a graph like any other: ops and blobs with places. Nothing here runs or knows of messages; the plan
makes a copy, or a message between ranks, of each edge that leads from one place to another.

`CopyTo`, `Distribute`, `Scatter`, `Gather`, `Aggregate`, `AllReduce` and `BucketedAllReduce` move blobs, `Vectorize`
builds a layer at several places; `DataParallel` and `PipelineParallel` train a network at several places,
`ParameterServer` spreads variables over them.
"""

from actorflow.nn.parallel.data import BucketedAllReduce, DataParallel, ParameterServer, Vectorize
from actorflow.nn.parallel.exchange import Aggregate, AllReduce, CopyTo, Distribute, Gather, Scatter
from actorflow.nn.parallel.pipeline import PipelineParallel

__all__ = [
    "Aggregate",
    "AllReduce",
    "BucketedAllReduce",
    "Gather",
    "CopyTo",
    "DataParallel",
    "Distribute",
    "ParameterServer",
    "PipelineParallel",
    "Scatter",
    "Vectorize",
]
