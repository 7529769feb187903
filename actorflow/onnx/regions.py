"""Regions of images, averaged or with their maximum, at one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from actorflow.errors import ShapeError
from actorflow.onnx.values import Array
from actorflow.ops.operation import Operation, same_dtype, savable
from actorflow.spec import TensorSpec


@savable
@dataclass(frozen=True)
class RoiAlign(Operation):
    """Regions of images, each cut into as many cells, with the average or maximum of points between the pixels.

    Attributes:
        size: Height and width of the result.
        mode: "avg" or "max".
        ratio: Number of points along each side of a cell; 0 for as many as it has pixels.
        scale: Factor from the regions' coordinates to those of the images.
        half_pixel: Whether pixels lie at halves.

    Source: He et al., Mask R-CNN, 2017; ONNX ``RoiAlign``.
    """

    arguments = ("x", "regions", "images")
    differentiable = False

    size: tuple[int, int]
    mode: str = "avg"
    ratio: int = 0
    scale: float = 1.0
    half_pixel: bool = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, regions, images = inputs
        same_dtype("RoiAlign", x=x, regions=regions)
        if len(x.shape) != 4 or len(regions.shape) != 2 or len(images.shape) != 1:
            raise ShapeError(f"RoiAlign: x must have 4 axes, regions 2 and images 1, got {x}, {regions} and {images}")
        return (TensorSpec((regions.shape[0], x.shape[1], *self.size), x.dtype),)

    def compute(self, *inputs: Any) -> Any:
        x, regions, images = inputs
        y = np.empty((len(regions), x.shape[1], *self.size), x.dtype)
        for i, (region, image) in enumerate(zip(regions, images, strict=True)):
            y[i] = self._cells(x[image], region * self.scale - (0.5 if self.half_pixel else 0.0))
        return y

    def _cells(self, image: Array, region: Array) -> Array:
        """The cells of one region: (channels, *size)."""
        begin, extent = region[1::-1], region[:1:-1] - region[1::-1]
        extent = extent if self.half_pixel else np.maximum(extent, 1.0)
        cell = extent / self.size
        counts = [self.ratio if self.ratio > 0 else max(int(np.ceil(each)), 0) for each in cell]
        along = []
        for axis in range(2):
            points = (np.arange(counts[axis]) + 0.5) / max(counts[axis], 1)
            places = begin[axis] + (np.arange(self.size[axis])[:, np.newaxis] + points) * cell[axis]
            along.append(_neighbours(places.reshape(-1), image.shape[1 + axis]))
        # By the four neighbours of each point: (channels, rows, row points, columns, column points).
        shape = (image.shape[0], self.size[0], counts[0], self.size[1], counts[1])
        parts = [
            (image[:, rows[:, np.newaxis], columns] * (of_rows[:, np.newaxis] * of_columns)).reshape(shape)
            for rows, of_rows in along[0]
            for columns, of_columns in along[1]
        ]
        if not all(counts):
            return np.zeros((image.shape[0], *self.size), image.dtype)
        if self.mode == "avg":
            return np.asarray(np.sum(parts, axis=0).mean(axis=(2, 4)))
        return np.asarray(np.max(parts, axis=0).max(axis=(2, 4)))


def _neighbours(places: Array, length: int) -> list[tuple[Array, Array]]:
    """The pixels before and after places along an axis, and their weights, which are 0 far outside."""
    outside = (places < -1) | (places > length)
    inside = np.clip(places, 0, length - 1)
    low = np.floor(inside).astype(np.intp)
    share = np.where(outside, 0, inside - low)
    return [(low, np.where(outside, 0, 1 - share)), (np.minimum(low + 1, length - 1), share)]
