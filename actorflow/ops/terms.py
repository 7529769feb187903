"""Sums and products of blobs, as gradients are built from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actorflow.ops.arithmetic import Multiply, Scale, Sum
from actorflow.ops.basic import filled
from actorflow.ops.broadcast import BroadcastTo, ReduceSum
from actorflow.ops.functional import apply, blob_of

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


def plus(*terms: Blob) -> Blob:
    """The sum of one or more blobs of one type."""
    y: Blob = terms[0] if len(terms) == 1 else apply(Sum(), *terms)
    return y


def times(a: Blob, b: Blob) -> Blob:
    """The product of two blobs."""
    return blob_of(Multiply(), a, b)


def scaled(x: Blob, factor: float) -> Blob:
    """A blob times a constant."""
    y: Blob = x if factor == 1 else apply(Scale(factor), x)
    return y


def total(x: Blob) -> Blob:
    """The sum of all elements, 0-d."""
    return blob_of(ReduceSum(), x)


def spread(x: Blob, like: Blob) -> Blob:
    """A blob repeated to the shape of another."""
    y: Blob = x if x.shape == like.shape else apply(BroadcastTo(like.shape), x)
    return y


def constant_like(value: float, like: Blob) -> Blob:
    """A constant of the type and place of a blob."""
    return filled(value, like.shape, like)
