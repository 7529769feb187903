"""Where the nodes of a graph are drawn: a layered layout in NumPy.

Longest-path layers, barycentre sweeps for the order inside each layer, then isotonic placement (pool adjacent
violators). Edges keep their length: there are no dummy nodes, a long edge merely weighs less (1 / span). Everything
here is pure and deterministic, and meant to run off the loop: about 0.05 s for 2,000 nodes, 0.15 s for 10,000.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["BLOB_SIZE", "OP_SIZE", "Layout", "LayoutCache", "layered"]

#: Width and height of an op's box and of a blob's pill, in world units (pixels at zoom 1).
OP_SIZE = (176.0, 46.0)
BLOB_SIZE = (144.0, 22.0)

_GAP_X = 26.0
_GAP_Y = 30.0
_MAX_GAP_Y = 260.0
_SLOPE = 0.07
_ORDER_SWEEPS = 12
_PLACE_SWEEPS = 9
_FREE_WEIGHT = 1e-3
_SPINE_WEIGHT = 10.0
_CONSTANT_DEPTH = 2  # of a blob whose writers read nothing: such an op is in layer 1

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class Layout(NamedTuple):
    """Places of all nodes.

    Attributes:
        x: Centre of each node, world units; 0 is the middle of the drawing.
        y: Centre of each node, growing in the direction of the data.
        layer: Layer of each node: even for blobs, odd for ops.
        back: Per edge, whether it closes a cycle and therefore does not go down a layer.
    """

    x: _Floats
    y: _Floats
    layer: _Ints
    back: _Bools


class LayoutCache:
    """Layouts by digest of the graph, the newest `limit` of them."""

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit
        self._layouts: dict[bytes, Layout] = {}

    def layered(self, is_op: _Bools, edges: _Ints, cut: _Bools) -> Layout:
        """`layered`, computed once per graph."""
        digest = hashlib.blake2b(len(is_op).to_bytes(8, "little"), digest_size=16)
        for array in (is_op, edges, cut):
            digest.update(np.ascontiguousarray(array).tobytes())
        key = digest.digest()
        found = self._layouts.pop(key, None) or layered(is_op, edges, cut)
        self._layouts[key] = found
        if len(self._layouts) > self._limit:
            del self._layouts[next(iter(self._layouts))]
        return found


def layered(is_op: _Bools, edges: _Ints, cut: _Bools) -> Layout:
    """Lay a bipartite graph out in layers.

    Args:
        is_op: Shape (nodes,): op or blob.
        edges: Shape (edges, 2): index of the writing and of the reading node; op to blob or blob to op.
        cut: Shape (edges,): edges to draw but not to layer, writes to variables.
    Returns:
        The layout. Nodes do not overlap; every edge that is not ``back`` goes down at least one layer.
    """
    depth, height, back = _longest_paths(is_op, edges, cut)
    down = edges[~back]
    layer = _pull_sources(depth, down)
    if not len(is_op):
        return Layout(np.zeros(0), np.zeros(0), layer, back)
    weights = np.where(_spines(depth, height, down), _SPINE_WEIGHT, 1.0) / (layer[down[:, 1]] - layer[down[:, 0]])
    rows = _Rows(layer, down, weights)
    spacing = np.where(np.arange(rows.count) % 2, OP_SIZE[0], BLOB_SIZE[0]) + _GAP_X
    x = rows.order(spacing)
    rows.place(x, spacing, np.square(height + 1.0))
    x -= (x.min() + x.max()) / 2
    return Layout(x, _heights(layer, x, down, rows.count)[layer], layer, back)


def _longest_paths(is_op: _Bools, edges: _Ints, cut: _Bools) -> tuple[_Ints, _Ints, _Bools]:
    """Length of the longest path to each node and from each node, and the edges that these paths leave out."""
    count = len(is_op)
    back = cut.copy()
    writers, readers = edges[:, 0].tolist(), edges[:, 1].tolist()
    leaving: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for edge in np.flatnonzero(~cut).tolist():
        leaving[writers[edge]].append(edge)
        missing[readers[edge]] += 1
    depth = is_op.astype(np.int64).tolist()  # blobs get even layers, ops odd ones
    ready = [node for node in range(count) if not missing[node]]
    placed = [False] * count
    order: list[int] = []
    next_stuck = 0
    while True:
        while ready:
            node = ready.pop()
            placed[node] = True
            order.append(node)
            for edge in leaving[node]:
                reader = readers[edge]
                if placed[reader]:
                    back[edge] = True
                    continue
                depth[reader] = max(depth[reader], depth[node] + 1)
                missing[reader] -= 1
                if not missing[reader]:
                    ready.append(reader)
        while next_stuck < count and placed[next_stuck]:
            next_stuck += 1
        if next_stuck == count:
            break
        # A cycle that the graph's checks have not refused yet: open it at its oldest node, and still draw it.
        ready.append(next_stuck)
    height = [0] * count
    for node in reversed(order):
        height[node] = max((height[readers[edge]] + 1 for edge in leaving[node] if not back[edge]), default=0)
    return np.array(depth, dtype=np.int64), np.array(height, dtype=np.int64), back


def _pull_sources(depth: _Ints, down: _Ints) -> _Ints:
    """Layers: the depths, but what depends on nothing (fed blobs, constants) sits directly above its first reader."""
    layer = depth.copy()
    is_written = np.zeros(len(depth), dtype=np.bool_)
    is_written[down[:, 1]] = True
    floats = ~is_written
    constant = np.ones(len(depth), dtype=np.bool_)
    constant[down[is_written[down[:, 0]], 1]] = False  # written by something that itself reads
    constant &= is_written & (depth == _CONSTANT_DEPTH)
    for group in (constant, floats):  # the blobs of constants first, as their ops follow them
        first = np.full(len(depth), np.iinfo(np.int64).max)
        np.minimum.at(first, down[:, 0], layer[down[:, 1]])
        moved = group & (first < np.iinfo(np.int64).max)
        layer[moved] = first[moved] - 1
    return layer


def _spines(depth: _Ints, height: _Ints, down: _Ints) -> _Bools:
    """Edges on which the longest paths through both ends go on; kept straight, so that a chain does not drift."""
    edges = np.arange(len(down))
    writer, reader = down[:, 0], down[:, 1]
    by_reader = np.lexsort((edges, -depth[writer], reader))
    by_writer = np.lexsort((edges, -height[reader], writer))
    best_in = np.zeros(len(down), dtype=np.bool_)
    best_out = np.zeros(len(down), dtype=np.bool_)
    best_in[by_reader[np.flatnonzero(np.diff(reader[by_reader], prepend=-1))]] = True
    best_out[by_writer[np.flatnonzero(np.diff(writer[by_writer], prepend=-1))]] = True
    return best_in & best_out


class _Side(NamedTuple):
    """What one layer's nodes are connected to on one side."""

    local: _Ints
    neighbours: _Ints
    weights: _Floats
    totals: _Floats
    free: _Bools


class _Rows:
    """The nodes of each layer with their neighbours above and below."""

    def __init__(self, layer: _Ints, edges: _Ints, weights: _Floats) -> None:
        self.count = int(layer.max()) + 1
        self.size = len(layer)
        by_layer = np.argsort(layer, kind="stable")
        starts = np.searchsorted(layer[by_layer], np.arange(self.count + 1))
        self.members = [by_layer[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
        local = np.empty(self.size, dtype=np.int64)
        local[by_layer] = np.arange(self.size) - starts[layer[by_layer]]
        self.above = self._sides(layer, local, edges[:, 1], edges[:, 0], weights)
        self.below = self._sides(layer, local, edges[:, 0], edges[:, 1], weights)

    def _sides(self, layer: _Ints, local: _Ints, own: _Ints, other: _Ints, weights: _Floats) -> list[_Side]:
        order = np.argsort(layer[own], kind="stable")
        own, other, weights = own[order], other[order], weights[order]
        bounds = np.searchsorted(layer[own], np.arange(self.count + 1)).tolist()
        sides = []
        for members, a, b in zip(self.members, bounds[:-1], bounds[1:], strict=True):
            totals = np.bincount(local[own[a:b]], weights[a:b], len(members))
            free = totals == 0
            sides.append(_Side(local[own[a:b]], other[a:b], weights[a:b], np.where(free, 1.0, totals), free))
        return sides

    def order(self, spacing: _Floats) -> _Floats:
        """Order each layer by the weighted mean of its neighbours; returns evenly spaced positions."""
        x = np.zeros(self.size)
        slots = []
        for members, step in zip(self.members, spacing.tolist(), strict=True):
            slots.append((np.arange(len(members)) - (len(members) - 1) / 2) * step)
            x[members] = slots[-1]
        wide = [row for row in range(self.count) if len(self.members[row]) > 1]
        for sweep in range(_ORDER_SWEEPS):
            sides, rows = (self.below, wide[::-1]) if sweep % 2 else (self.above, wide)
            for row in rows:
                members = self.members[row]
                wanted = _wanted(x, members, sides[row])
                x[members[np.argsort(wanted, kind="stable")]] = slots[row]
        return x

    def place(self, x: _Floats, spacing: _Floats, importance: _Floats) -> None:
        """Move nodes towards their neighbours, in place, keeping each layer's order and distances.

        Where nodes push each other, the less important gives way: a short side branch, not the long chain beside it.
        """
        ordered = [np.argsort(x[members], kind="stable") for members in self.members]
        for sweep in range(_PLACE_SWEEPS):
            sides, rows = (self.below, range(self.count - 1, -1, -1)) if sweep % 2 else (self.above, range(self.count))
            for row in rows:
                members, side, rank = self.members[row], sides[row], ordered[row]
                if not len(members):
                    continue
                wanted = _wanted(x, members, side)[rank]
                if len(members) > 1:
                    offsets = np.arange(len(members)) * spacing[row]
                    mass = (np.where(side.free, _FREE_WEIGHT, side.totals) * importance[members])[rank]
                    wanted = _isotonic(wanted - offsets, mass) + offsets
                x[members[rank]] = wanted


def _wanted(x: _Floats, members: _Ints, side: _Side) -> _Floats:
    """Weighted mean of the neighbours' positions; a node without any stays where it is."""
    means: _Floats = np.bincount(side.local, side.weights * x[side.neighbours], len(members)) / side.totals
    if side.free.any():
        means[side.free] = x[members[side.free]]
    return means


def _isotonic(values: _Floats, weights: _Floats) -> _Floats:
    """The non-decreasing sequence nearest to ``values`` by weighted least squares."""
    if (values[1:] >= values[:-1]).all():
        return values
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, mass in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while means and means[-1] > value:
            other = masses.pop()
            value = (means.pop() * other + value * mass) / (other + mass)
            mass += other
            size += sizes.pop()
        means.append(value)
        masses.append(mass)
        sizes.append(size)
    return np.repeat(means, sizes)


def _heights(layer: _Ints, x: _Floats, edges: _Ints, count: int) -> _Floats:
    """Centre of each layer; layers are further apart where edges between them run far sideways."""
    gaps = np.full(max(count - 1, 0), _GAP_Y)
    upper = layer[edges[:, 0]]
    direct = layer[edges[:, 1]] == upper + 1
    sideways = np.abs(x[edges[:, 0]] - x[edges[:, 1]])[direct]
    np.maximum.at(gaps, upper[direct], np.minimum(_SLOPE * sideways, _MAX_GAP_Y))
    pitch = (OP_SIZE[1] + BLOB_SIZE[1]) / 2 + gaps
    centres: npt.NDArray[Any] = np.concatenate([[0.0], np.cumsum(pitch)])
    return centres
