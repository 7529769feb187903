"""Graphs and plans as text."""

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops

#: Tokens of Graphviz's language, as far as we write it.
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|[\w.]+|[{}\[\];=,]|\s+')


def tokens(dot: str) -> list[str]:
    """Split a text in Graphviz's language; fails where it is none."""
    found, position = [], 0
    while position < len(dot):
        match = TOKEN.match(dot, position)
        assert match is not None, dot[position : position + 40]
        position = match.end()
        if not match[0].isspace():
            found.append(match[0])
    return found


def unquoted(token: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), token[1:-1])


def labels(dot: str) -> list[str]:
    found = tokens(dot)
    return [unquoted(found[i + 2]) for i, token in enumerate(found) if token == "label"]


def edges(dot: str) -> set[tuple[str, str]]:
    found = tokens(dot)
    return {(found[i - 1], found[i + 1]) for i, token in enumerate(found) if token == "->"}


@pytest.fixture
def linear() -> af.Graph:
    graph = af.Graph("linear")
    x = graph.blob("x", (128, 10))
    with graph.subgraph("layer") as layer:
        w = layer.variable("w", (16, 10))
        with graph.at(lane="side"):
            y = ops.inner(x, w)
    ops.softmax(y)
    return graph


class TestSummary:
    def test_a_graph(self, linear: af.Graph) -> None:
        header, _, inner, softmax, total = [re.split(r"  +", line) for line in linear.summary().splitlines()]
        assert header == ["op", "operation", "place, lane", "inputs", "outputs"]
        assert inner == [
            "layer/inner",
            "Inner()",
            "cpu side",
            "x float32[128, 10], layer/w float32[16, 10]",
            "layer/inner/out float32[128, 16]",
        ]
        assert [*softmax[:2], *softmax[3:]] == [
            "softmax",
            "Softmax()",
            "layer/inner/out float32[128, 16]",
            "softmax/out float32[128, 16]",
        ]
        assert total == ["graph 'linear': 2 ops, 4 blobs, 1 variables (160 elements, 640 bytes)"]

    def test_an_empty_graph(self) -> None:
        assert af.Graph("g").summary().splitlines() == [
            "op  operation  place, lane  inputs  outputs",
            "--  ---------  -----------  ------  -------",
            "graph 'g': 0 ops, 0 blobs, 0 variables (0 elements, 0 bytes)",
        ]

    def test_a_sub_graph_shows_its_own(self, linear: af.Graph) -> None:
        lines = linear["layer"].summary().splitlines()
        assert len(lines) == 4
        assert lines[2].startswith("layer/inner")
        assert lines[3] == "graph 'layer': 1 ops, 2 blobs, 1 variables (160 elements, 640 bytes)"

    def test_a_plan(self, linear: af.Graph) -> None:
        x, y = linear.blob("a", 3), linear.blob("b", 3)
        for name in ("one", "two"):
            [x] >> linear.op(name, ops.Copy()) >> [y]
        [y] >> linear.function("look", len) >> []
        text = linear.compile([y, "look"]).summary()
        assert [line.split()[0] for line in text.splitlines()[2:6]] == ["one", "two", "sum", "look"]
        assert "sum of b" in text
        assert "numpy.Copy" in text
        assert "numpy.Sum" in text
        assert "look      function" in text
        assert text.splitlines()[-3:] == ["fed: a float32[3]", "fetched: b float32[3]", "updated: nothing"]

    def test_columns_are_aligned(self, linear: af.Graph) -> None:
        header, rule, *rows, _ = linear.summary().splitlines()
        starts = [match.start() for match in re.finditer(r"-+", rule)]
        assert [header[start:].split("  ")[0] for start in starts] == [
            "op",
            "operation",
            "place, lane",
            "inputs",
            "outputs",
        ]
        for row in rows:
            assert all(row[start - 2 : start] == "  " and row[start] != " " for start in starts[1:])

    def test_operations_with_arrays(self) -> None:
        @dataclass(frozen=True)
        class Filter(ops.Operation):
            taps: Any
            stride: int = 1

            def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
                return inputs

        graph = af.Graph("g")
        graph.apply(Filter(np.eye(2)), graph.blob("x", 3))
        assert str(graph["filter"].operation) == "Filter(taps=[[1. 0.] [0. 1.]])"
        assert len(graph.summary().splitlines()) == 4
        assert str(Filter(np.zeros(2), stride=2)) == "Filter(taps=[0. 0.], stride=2)"


class TestDot:
    def test_nodes_and_edges(self, linear: af.Graph) -> None:
        dot = linear.to_dot()
        assert tokens(dot)[:2] == ["digraph", '"linear"']
        ids = {node.name: f"n{node.id}" for node in linear.nodes}
        assert edges(dot) == {
            (ids["x"], ids["layer/inner"]),
            (ids["layer/w"], ids["layer/inner"]),
            (ids["layer/inner"], ids["layer/inner/out"]),
            (ids["layer/inner/out"], ids["softmax"]),
            (ids["softmax"], ids["softmax/out"]),
        }
        assert set(labels(dot)) == {
            "layer/inner\nInner()",
            "layer/inner/out\nfloat32[128, 16]",
            "layer/w\nfloat32[16, 10]",
            "softmax/out\nfloat32[128, 16]",
            "softmax\nSoftmax()",
            "x\nfloat32[128, 10]",
        }
        assert dot.count("style=bold") == 1
        assert dot.count("shape=box") == 2
        assert dot.count("shape=ellipse") == 4

    def test_a_sub_graph_has_no_edges_to_the_outside(self, linear: af.Graph) -> None:
        ids = {node.name: f"n{node.id}" for node in linear.nodes}
        assert edges(linear["layer"].to_dot()) == {
            (ids["layer/w"], ids["layer/inner"]),
            (ids["layer/inner"], ids["layer/inner/out"]),
        }

    @pytest.mark.parametrize(
        "name", ['a"b', "a\\", '\\"', "a -> b", "]; evil [", "<b>html</b>", "a\\nb", "ä€😀", "{|}", "// no", "%n"]
    )
    def test_hostile_names(self, name: str) -> None:
        graph = af.Graph(name.replace("/", "_"))
        ops.relu(graph.blob(name.replace("/", "_"), 3))
        name = name.replace("/", "_")
        dot = graph.to_dot()
        assert unquoted(tokens(dot)[1]) == name
        assert f"{name}\nfloat32[3]" in labels(dot)
        assert len(edges(dot)) == 2

    @given(st.text(st.characters(blacklist_characters="/"), min_size=1, max_size=10).filter(str.isprintable))
    def test_any_name(self, name: str) -> None:
        graph = af.Graph(name)
        graph.function(name, functools.partial(print, name))
        dot = graph.to_dot()
        assert unquoted(tokens(dot)[1]) == name
        assert labels(dot)[0].startswith(name + "\n")

    @pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
    def test_graphviz_reads_it(self, linear: af.Graph) -> None:
        linear.blob('"; } \\', 3)
        done = subprocess.run(
            ["dot", "-Tplain"], input=linear.to_dot(), capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\nnode") == 7
