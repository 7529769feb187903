"""Graphs and plans in Graphviz's language, and as SVG."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from tests.support.described import linear_graph

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
    return linear_graph()


class TestGraph:
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

    @pytest.mark.together(
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


def attributes(dot: str) -> dict[str, dict[str, str]]:
    """The attributes of each node, by the first line of its label."""
    found = {}
    for block in re.findall(r"^\s*[ns]\d+ \[(.*)\];$", dot, re.MULTILINE):
        parts = tokens(block)
        pairs = {
            parts[i - 1]: unquoted(parts[i + 1]) if parts[i + 1][0] == '"' else parts[i + 1]
            for i, part in enumerate(parts)
            if part == "="
        }
        found[pairs["label"].partition("\n")[0]] = pairs
    return found


def training() -> af.Graph:
    """Two lanes, a sum, a variable with an update."""
    graph = af.Graph("training")
    x = graph.blob("x", (2, 2))
    w = graph.variable("w", (2, 2))
    with graph.at(lane="one"):
        product = ops.inner(x, w, name="product")
    term = graph.blob("term", (2, 2))
    [product] >> graph.op("left", ops.Copy(), lane="two") >> [term]
    [product] >> graph.op("right", ops.Copy(), lane="two") >> [term]
    [term] >> graph.op("update", ops.Copy(), lane="two") >> [w]
    return graph


class TestPlan:
    def test_steps_are_within_their_lanes(self) -> None:
        graph = training()
        dot = graph.compile([graph["term"], "update"]).to_dot()
        clusters = re.findall(r"subgraph cluster_\d+ \{\n(.*?)\n  \}", dot, re.DOTALL)
        lanes = {}
        for cluster in clusters:
            lane = re.search(r'label="(.*)";$', cluster.partition("\n")[0])
            assert lane is not None
            lanes[lane[1]] = {label.partition("\n")[0] for label in labels(cluster.partition("\n")[2])}
        assert lanes["cpu one"] == {"product"}
        assert lanes["cpu two"] >= {"left", "right", "update"}
        assert set().union(*lanes.values()) == {"product", "left", "right", "sum of term", "update"}

    def test_values_and_what_becomes_of_them(self) -> None:
        graph = training()
        dot = graph.compile([graph["term"], "update"]).to_dot()
        found = attributes(dot)
        assert found["x"]["style"] == "dashed"
        assert found["term"]["peripheries"] == "2"
        assert found["w"]["style"] == "bold"
        assert found["product"]["label"].splitlines() == ["product", "numpy.Inner"]
        assert dot.count("[style=dashed, constraint=false]") == 1, "from the update to the variable"

    def test_every_step_is_connected_as_planned(self) -> None:
        plan = training().compile()
        assert {edge for edge in edges(plan.to_dot()) if edge[0][0] != edge[1][0]} == {
            *[(f"s{slot}", f"n{op.index}") for op in plan.ops for slot in op.inputs],
            *[(f"n{op.index}", f"s{slot}") for op in plan.ops for slot in op.outputs],
        }


class TestTimes:
    async def test_what_took_longest_is_reddest(self) -> None:
        graph = training()
        async with graph:
            for _ in range(3):
                await graph.run({"x": np.ones((2, 2), "float32")})
            profile = graph.engine.profile
            for op in graph.ops:
                profile[op.id].total_ns = 1_000_000 if op.name == "product" else 250_000
            dot, plan = graph.to_dot(times=True), graph.compile().to_dot(times=True)
            share = 1_000_000 / sum(one.total_ns for one in profile.values())
            for unasked in (graph.to_dot(), graph.compile().to_dot()):
                assert " calls" not in unasked
        for found in (attributes(dot), attributes(plan)):
            assert found["product"]["fillcolor"] == "#f05a3c"
            assert found["left"]["fillcolor"] == "#fbd6ce"
            assert found["product"]["style"] == "filled"
            assert found["product"]["label"].splitlines()[-1] == f"3 calls, 1 ms, {share:.1%}"
            assert "fillcolor" not in found["x"]
            assert found["w"]["style"] == "bold"

    async def test_calls_of_a_blob(self) -> None:
        """A sum belongs to the blob whose terms it adds."""
        graph = training()
        async with graph:
            await graph.run({"x": np.ones((2, 2), "float32")})
            assert attributes(graph.to_dot(times=True))["term"]["label"].splitlines()[-1].startswith("1 call, ")

    async def test_failed_calls(self) -> None:
        graph, left = af.Graph("flaky"), [ValueError("first"), ValueError("second")]

        def flaky(x: object) -> object:
            if left:
                raise left.pop()
            return x

        x = graph.blob("x", ())
        y = graph.function("flaky", flaky, af.TensorSpec.of(()), retries=1, backoff=0)(x)
        graph.function("steady", lambda x: x, af.TensorSpec.of(()))(y)
        async with graph:
            with pytest.raises(af.OpError):
                await graph.run({x: 1.0})
            for dot in (graph.to_dot(times=True), graph.compile().to_dot(times=True)):
                found = attributes(dot)
                assert found["flaky"]["label"].splitlines()[-1] == "0 calls, 2 failed"
                assert "fillcolor" not in found["steady"]
            await graph.run({x: 1.0})
            for dot in (graph.to_dot(times=True), graph.compile().to_dot(times=True)):
                found = attributes(dot)
                assert found["flaky"]["label"].splitlines()[-1].startswith("1 call, 2 failed, ")
                assert re.match(r"1 call, [\d.]+ \w+, ", found["steady"]["label"].splitlines()[-1])

    def test_nothing_has_run(self) -> None:
        graph = training()
        assert graph.to_dot(times=True) == graph.to_dot()
        assert "filled" not in graph.compile().to_dot(times=True)


class TestSvg:
    """By a program ``dot`` of our own: that of Graphviz is not everywhere."""

    @pytest.fixture
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "dot"
        path.write_text(
            f"#!{sys.executable}\nimport sys\ntext = sys.stdin.buffer.read().decode()\n"
            "if 'broken' in text:\n    sys.exit('no such thing: ' + text.split()[1])\n"
            "assert sys.argv[1:] == ['-Tsvg']\n"
            "sys.stdout.buffer.write(f'<svg>{text}</svg>'.encode())\n",
            encoding="utf-8",
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return path

    @pytest.mark.skipif(os.name == "nt", reason="a script is not a program")
    def test_it_is_given_the_text(self, program: Path, linear: af.Graph) -> None:
        linear.blob("ä€😀", 3)
        assert linear.to_svg() == f"<svg>{linear.to_dot()}</svg>"
        plan = linear.compile()
        assert plan.to_svg() == f"<svg>{plan.to_dot()}</svg>"

    @pytest.mark.skipif(os.name == "nt", reason="a script is not a program")
    def test_it_fails(self, program: Path) -> None:
        graph = af.Graph("broken")
        with pytest.raises(af.GraphError, match=f'{program} failed with exit code 1: no such thing: "broken"'):
            graph.to_svg()

    def test_it_is_not_there(self, linear: af.Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(af.MissingExtraError, match="needs Graphviz, whose program 'dot' is not on the PATH"):
            linear.to_svg()

    @pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
    def test_graphviz_draws_it(self) -> None:
        graph = training()
        graph.blob('"; } \\ <b>&', 3)
        for svg in (graph.to_svg(), graph.compile().to_svg()):
            assert svg.rstrip().endswith("</svg>")
            assert "<b>" not in svg
