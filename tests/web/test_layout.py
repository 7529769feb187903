"""The layered layout: its promises hold for any graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.web.layout import BLOB_SIZE, OP_SIZE, Layout, LayoutCache, layered


def arrays(is_op, edges, cut=None):
    edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return np.array(is_op, dtype=np.bool_), edges, np.zeros(len(edges), np.bool_) if cut is None else np.array(cut)


@st.composite
def bipartite(draw, cyclic=False):
    """Ops at odd places, blobs at even ones; edges run forward unless ``cyclic``."""
    ops = draw(st.integers(0, 12))
    is_op = [i % 2 == 1 for i in range(2 * ops + draw(st.integers(0, 4)))]
    count = len(is_op)
    edges = []
    for op in range(1, count, 2):
        readable, writable = range(0, count if cyclic else op, 2), range(0 if cyclic else op + 1, count, 2)
        edges += [(blob, op) for blob in draw(st.lists(st.sampled_from(readable), max_size=4))]
        if writable:
            edges += [(op, blob) for blob in draw(st.lists(st.sampled_from(writable), max_size=3, unique=True))]
    cut = draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    return arrays(is_op, edges, np.array(cut, dtype=np.bool_))


def check(layout: Layout, is_op, edges, cut) -> None:
    down = edges[~layout.back]
    assert (layout.layer[down[:, 1]] > layout.layer[down[:, 0]]).all()
    assert (layout.y[down[:, 1]] > layout.y[down[:, 0]]).all()
    assert (layout.layer % 2 == is_op).all()
    assert layout.back[cut].all()
    width = np.where(is_op, OP_SIZE[0], BLOB_SIZE[0])
    for layer in np.unique(layout.layer):
        members = np.flatnonzero(layout.layer == layer)
        members = members[np.argsort(layout.x[members])]
        assert len(set(layout.y[members])) == 1
        assert (np.diff(layout.x[members]) > width[members[1:]]).all(), "nodes overlap"
    levels = np.unique(layout.y)
    assert (np.diff(levels) >= (OP_SIZE[1] + BLOB_SIZE[1]) / 2).all()


@given(bipartite())
def test_acyclic_graphs_flow_down_without_overlaps(graph) -> None:
    layout = layered(*graph)
    check(layout, *graph)
    assert (layout.back == graph[2]).all(), "only what was asked for is cut"


@given(bipartite(cyclic=True))
def test_cycles_are_opened_not_refused(graph) -> None:
    check(layered(*graph), *graph)


@given(bipartite())
def test_same_graph_same_layout(graph) -> None:
    first, second = layered(*graph), layered(*graph)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_layers_are_longest_paths() -> None:
    # 0 -> [1] -> 2 -> [3] -> 4 and 0 -> [3]: the short way does not lift op 3.
    layout = layered(*arrays([False, True, False, True, False], [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]))
    assert layout.layer.tolist() == [0, 1, 2, 3, 4]


def test_what_depends_on_nothing_sits_above_its_first_reader() -> None:
    # A weight (5) and a constant ([6] -> 7) are read by op 3 only.
    is_op = [False, True, False, True, False, False, True, False]
    layout = layered(*arrays(is_op, [(0, 1), (1, 2), (2, 3), (3, 4), (5, 3), (6, 7), (7, 3)]))
    assert layout.layer[5] == layout.layer[7] == layout.layer[3] - 1
    assert layout.layer[6] == layout.layer[7] - 1


def test_update_of_a_variable_is_drawn_back() -> None:
    layout = layered(*arrays([False, True], [(0, 1), (1, 0)], [False, True]))
    assert layout.back.tolist() == [False, True]
    assert layout.layer.tolist() == [0, 1]


def test_a_chain_is_straight() -> None:
    count = 41
    is_op = [i % 2 == 1 for i in range(count)]
    layout = layered(*arrays(is_op, [(i, i + 1) for i in range(count - 1)]))
    assert (layout.x == 0).all()


def test_side_branches_do_not_bend_the_main_chain() -> None:
    # Each op of the chain has two short side branches, as in the backward part of a network.
    is_op, edges, chain = [False], [], [0]
    for _ in range(30):
        blob = chain[-1]
        for branch in range(3):
            op, out = len(is_op), len(is_op) + 1
            is_op += [True, False]
            edges += [(blob, op), (op, out)]
            if branch == 1:
                chain += [op, out]
    layout = layered(*arrays(is_op, edges))
    assert np.ptp(layout.x[chain]) < OP_SIZE[0]


def test_few_crossings_are_left_in_a_crossed_ladder() -> None:
    # Two chains whose nodes are created in alternating order: swapped at every other step.
    is_op, edges, tips = [False, False], [], [0, 1]
    for step in range(20):
        for k in (0, 1) if step % 2 else (1, 0):
            op, out = len(is_op), len(is_op) + 1
            is_op += [True, False]
            edges += [(tips[k], op), (op, out)]
            tips[k] = out
    layout = layered(*arrays(is_op, edges))
    sides = {}
    for a, b in edges:
        sides[a] = sides.get(a, layout.x[a] > 0)
        assert sides.setdefault(b, layout.x[b] > 0) == sides[a], "the chains cross"


@pytest.mark.parametrize("count", [0, 1])
def test_graphs_without_edges(count: int) -> None:
    layout = layered(*arrays([False] * count, []))
    assert layout.x.tolist() == [0.0] * count


def test_ten_thousand_nodes() -> None:
    rng = np.random.default_rng(0)
    is_op, edges, blobs = [False] * 10, [], list(range(10))
    while len(is_op) < 10_000:
        op = len(is_op)
        is_op += [True, False]
        edges += [(blob, op) for blob in rng.choice(blobs[-80:], 2).tolist()] + [(op, op + 1)]
        blobs.append(op + 1)
    graph = arrays(is_op, edges)
    check(layered(*graph), *graph)


def test_the_cache_keeps_the_newest_layouts() -> None:
    cache = LayoutCache(limit=2)
    graphs = [arrays([False] * count, []) for count in (1, 2, 3)]
    first = cache.layered(*graphs[0])
    cache.layered(*graphs[1])
    assert cache.layered(*graphs[0]) is first
    cache.layered(*graphs[2])
    assert cache.layered(*graphs[0]) is first, "what was used last stays"
    other = arrays([False, True], [(0, 1)])
    assert cache.layered(*other) is not cache.layered(other[0], other[1], np.array([True]))
