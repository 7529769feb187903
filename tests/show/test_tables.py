"""Graphs and plans as text."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from tests.support.described import linear_graph


@pytest.fixture
def linear() -> af.Graph:
    return linear_graph()


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
