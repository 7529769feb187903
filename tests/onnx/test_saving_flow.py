"""Branches and loops as ONNX files: what they compute there, and here again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnxruntime import InferenceSession

import actorflow as af

Made = tuple[dict[str, af.Blob], dict[str, af.Blob], list[dict[str, Any]], list[str]]


def cond(graph: af.Graph) -> Made:
    x, weight = graph.blob("x", [3]), graph.variable("weight", [3], init=np.array([0.5, -2, 3], np.float32))

    def then() -> Any:
        return x * weight, x

    y, z = af.cond(af.ops.sum(x) > 0, then, lambda: (x - 1, weight * 2))
    return {"x": x}, {"y": y, "z": z}, [{"x": [1, 2, 3]}, {"x": [-1, 0, -2]}], ["If"]


def switch(graph: af.Graph) -> Made:
    x, kind = graph.blob("x", [2]), graph.blob("kind", [], "int32")
    y = af.switch(kind, [af.ops.exp, lambda x: x, af.ops.negative, lambda x: x * x], x)
    return {"x": x, "kind": kind}, {"y": y}, [{"x": [1, 2], "kind": kind} for kind in range(4)], ["If"]


def one_branch(graph: af.Graph) -> Made:
    x, kind = graph.blob("x", [2]), graph.blob("kind", [], "int64")
    return {"x": x, "kind": kind}, {"y": af.switch(kind, [af.ops.exp], x)}, [{"x": [1, 2], "kind": 0}], ["If"]


def scan(graph: af.Graph, reverse: bool = False) -> Made:
    x, scale = graph.blob("x", ["n", 2]), graph.blob("scale", [2])

    def body(carry: Any, row: Any) -> Any:
        total, before = carry
        return (total + row * scale, row), (total, {"products": row * before})

    (total, _), (sums, taken) = af.scan(body, (np.zeros(2, np.float32), np.ones(2, np.float32)), x, reverse=reverse)
    feeds = [{"x": np.arange(2.0 * n).reshape(n, 2), "scale": [2, 3]} for n in (1, 4)]
    outputs = {"total": total, "sums": sums, "products": taken["products"]}
    return {"x": x, "scale": scale}, outputs, feeds, ["Scan"]


def times(graph: af.Graph) -> Made:
    x = graph.blob("x", [2])
    last, taken = af.scan(lambda y, _: (y * 2 + 1, y), x, length=5)
    return {"x": x}, {"last": last, "taken": taken}, [{"x": [1, 2]}], ["Loop"]


def newton(graph: af.Graph, limit: int | None = None) -> Made:
    x = graph.blob("x", [3])

    def step(y: Any, error: Any) -> Any:
        new = (y + x / y) / 2
        return new, af.ops.max(af.ops.absolute(new - y))

    root, error = af.while_loop(lambda y, error: error > 1e-3, step, (x, np.float32(1)), limit=limit)
    return {"x": x}, {"root": root, "error": error}, [{"x": [1, 4, 100]}, {"x": [2, 2, 2]}], ["Loop"]


def images(graph: af.Graph) -> Made:
    """Convolutions inside, whose axes are in another order there."""
    x = graph.blob("x", [1, 6, 6, 2])
    y = af.cond(af.ops.sum(x) > 0, lambda: af.nn.Conv(2, 3, pad=1)(x), lambda: x * 2)
    y, _ = af.scan(lambda y, _: (af.nn.Conv(2, 3, pad=1)(y) + y, None), y, length=2)
    feeds = [{"x": sign * np.random.default_rng(0).random((1, 6, 6, 2), np.float32)} for sign in (1, -1)]
    return {"x": x}, {"y": y}, feeds, ["If", "Loop"]


def nested(graph: af.Graph) -> Made:
    x = graph.blob("x", ["n"])

    def body(total: Any, value: Any) -> Any:
        small = af.while_loop(lambda v: v > 1, lambda v: v / 2 + total * 0, value)
        return af.cond(small > 0.6, lambda: total + small, lambda: total - value), small

    total, smalls = af.scan(body, np.float32(0), x)
    return {"x": x}, {"total": total, "smalls": smalls}, [{"x": [5, 0.25, 9, 3]}], ["Scan"]


@pytest.mark.together(
    "build",
    [
        cond,
        switch,
        one_branch,
        scan,
        lambda graph: scan(graph, reverse=True),
        times,
        newton,
        lambda graph: newton(graph, limit=3),
        images,
        nested,
    ],
)
def test_what_is_saved_computes_the_same(build: Callable[[af.Graph], Made], tmp_path: Path) -> None:
    graph = af.Graph("flow")
    inputs, outputs, feeds, kinds = build(graph)
    path = tmp_path / "flow.onnx"
    af.onnx.save(af.Model(graph, inputs, outputs), path)
    assert [node.op_type for node in onnx.load(path).graph.node if node.op_type in {"If", "Loop", "Scan"}] == kinds
    session, again = InferenceSession(path), af.onnx.load(path)
    for fed in feeds:
        given = {name: np.asarray(value, inputs[name].dtype) for name, value in fed.items()}
        expected = graph.run_sync({inputs[name]: value for name, value in given.items()}, fetch=[*outputs.values()])
        theirs = dict(zip(outputs, session.run([*outputs], given), strict=True))
        ours = again.run_sync(given)
        for name, blob in outputs.items():
            np.testing.assert_allclose(theirs[name], expected[blob], 1e-5, 1e-6)
            np.testing.assert_allclose(ours[name], expected[blob], 1e-5, 1e-6)


def test_what_onnx_does_not_have_is_named(tmp_path: Path) -> None:
    graph = af.Graph("flow")
    x = graph.blob("x", [3])
    y = af.cond(af.ops.sum(x) > 0, lambda: af.ops.cumprod(x, 0), lambda: x)
    _, taken = af.scan(lambda y, _: (y, y), x, length=2, reverse=True)
    with pytest.raises(af.GraphError, match="cannot be saved as ONNX") as caught:
        af.onnx.save(af.Model(graph, {"x": x}, {"y": y, "taken": taken}), tmp_path / "flow.onnx")
    assert "from the last to the first" in str(caught.value)
    assert "CumProd" in str(caught.value)
    assert not [*tmp_path.iterdir()]


#: As PyTorch writes a list that a loop appends to, and that is stacked behind it.
LIST = """
<ir_version: 8, opset_import: ["": 17]>
lists (float[batch, time, 3] x, float[batch, 3] h0) => (float[batch, time, 3] y, float[batch, 3] last) {
    shape = Shape (x)
    one = Constant <value_int: int = 1> ()
    count = Gather (shape, one)
    go = Constant <value: tensor = bool {1}> ()
    none = SequenceEmpty ()
    last, items = Loop (count, go, h0, none) <body: graph = step (
        int64 t, bool going, float[b, c] h, seq(float[b, c]) some
    ) => (bool on, float[b, c] h2, seq(float[b, c]) more) {
        on = Identity (going)
        part = Gather <axis: int = 1> (x, t)
        h2 = Add (h, part)
        square = Mul (h2, h2)
        more = SequenceInsert (some, square)
    }>
    y = ConcatFromSequence <axis: int = 1, new_axis: int = 1> (items)
}
"""


def check_file(text: str, *feeds: dict[str, Any]) -> af.Model:
    """Check that a model gives what ONNX Runtime gives, and return it."""
    proto = onnx.parser.parse_model(text).SerializeToString()
    model, session = af.onnx.load(proto), InferenceSession(proto, providers=["CPUExecutionProvider"])
    for fed in feeds:
        found = model.run_sync(fed)
        for name, want in zip(found, session.run(None, fed), strict=True):
            assert type(found[name]) is type(want)
            for got, each in zip(*[x if isinstance(x, list) else [x] for x in (found[name], want)], strict=True):
                np.testing.assert_allclose(got, each, rtol=1e-6)
                assert (got.dtype, got.shape) == (each.dtype, each.shape)
    return model


@pytest.mark.together(
    "old, new",
    [
        ("", ""),
        ("y = Concat", "wide = ConcatFromSequence <axis: int = 1> (items)\n y = Concat"),
        (
            "more = SequenceInsert (some, square)",
            "z = Constant <value_int: int = 0> () more = SequenceInsert (some, square, z)",
        ),
        (
            "square = Mul (h2, h2)",
            "size = SequenceLength (some)\n n = Cast <to: int = 1> (size)\n square = Mul (h2, n)",
        ),
        ("y = Concat", "z = Constant <value_int: int = 0> ()\n first = SequenceAt (items, z)\n y = Concat"),
        ("more = SequenceInsert (some, square)", "all = SequenceInsert (some, square)\n more = Identity (all)"),
    ],
)
def test_lists_of_loops(old: str, new: str) -> None:
    assert old in LIST
    given = [np.random.default_rng(0).normal(size=(*shape, 3)).astype(np.float32) for shape in ((2, 5), (1, 1))]
    check_file(LIST.replace(old, new) if old else LIST, *[{"x": x, "h0": x[:, 0]} for x in given])


def test_a_state_that_grows() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        grown (float[1] x, int64 count, bool gives) => (float[n] y, int64 size, float total) {
            y = Loop (count, , x) <body: graph = step (int64 t, bool going, float[m] s) => (bool on, float[k] more) {
                on = Identity (going)
                last = Constant <value: tensor = int64[1] {-1}> ()
                end = Gather (s, last)
                next = Add (end, x)
                more = Concat <axis: int = 0> (s, next)
            }>
            size = Size (y)
            total = If (gives) <
                then_branch: graph = all () => (float[a] z) { z = Mul (y, y) },
                else_branch: graph = one () => (float[1] z) { z = Identity (x) }
            >
        }
    """.replace("float total", "float[b] total")
    x = np.array([2], np.float32)
    check_file(text, *[{"x": x, "count": np.array(n), "gives": np.array(n > 1)} for n in (0, 1, 4)])


def test_an_open_axis_of_a_state_that_grows() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        grown (float[n] x, int64 count, bool more) => (float[m] y) {
            go = Constant <value: tensor = bool {1}> ()
            y = Loop (count, go, x) <body: graph = step (int64 t, bool going, float[k] s) => (bool on, float[j] wider) {
                on = Identity (more)
                wider = Concat <axis: int = 0> (s, x)
            }>
        }
    """
    feeds = [(n, count, more) for n in (1, 2) for count in (0, 1, 3) for more in (True, False)]
    check_file(
        text, *[{"x": np.ones(n, np.float32), "count": np.array(c), "more": np.array(more)} for n, c, more in feeds]
    )


def test_branches_inside_of_different_types() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        chosen (float[n] x, bool p, bool q) => (float[k] y, float[k] z) {
            y = If (p) <
                then_branch: graph = outer () => (float[k] some) {
                    some = If (q) <
                        then_branch: graph = two () => (float[k] a) { a = Concat <axis: int = 0> (x, x) },
                        else_branch: graph = one () => (float[k] b) { b = Neg (x) }
                    >
                },
                else_branch: graph = other () => (float[1] c) { c = ReduceSum (x) }
            >
            z = Mul (y, y)
        }
    """
    x = np.array([2, 3], np.float32)
    check_file(text, *[{"x": x, "p": np.array(p), "q": np.array(q)} for p in (True, False) for q in (True, False)])


def test_places_and_parts_of_sequences() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        places (float[n] x, int64 at, int64[k] sizes, float[unread] z) => (
            seq(float) none, seq(float) more, seq(float) parts
        ) {
            none = SequenceEmpty ()
            two = SequenceConstruct (x, x)
            y = Neg (x)
            more = SequenceInsert (two, y, at)
            parts = SplitToSequence (x, sizes)
        }
    """
    x = np.arange(3, dtype=np.float32)
    fed = [{"x": x, "at": np.array(at), "sizes": np.array([3, 0]), "z": x} for at in (-2, -1, 0, 2)]
    model = check_file(text, *fed)
    with pytest.raises(af.OpError, match="a sequence of 2 tensors has no place -3"):
        model.run_sync(fed[0] | {"at": np.array(-3)})
    for sizes in ([1, 1], [4, -1]):
        with pytest.raises(af.OpError, match="length 3 cannot be split into parts of size"):
            model.run_sync(fed[0] | {"sizes": np.array(sizes)})


def test_sequences_are_fed_and_given() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        fed (seq(float[n]) parts, float[3] x) => (seq(float[n]) more, int64 size, float[m] first) {
            zero = Constant <value: tensor = int64 {0}> ()
            size = SequenceLength (parts)
            more = SequenceInsert (parts, x, zero)
            first = SequenceAt (parts, zero)
        }
    """
    model, x = af.onnx.load(onnx.parser.parse_model(text).SerializeToString()), np.arange(3, dtype=np.float32)
    found = model.run_sync({"parts": [x[:1], x[:2]], "x": x})
    part = x[:1]
    part.flags.writeable = False  # a view of what may still be written
    kept = model.run_sync({"parts": [part], "x": x})["more"][1]
    x[:] = 9
    assert kept.tolist() == [0]
    assert [each.tolist() for each in found["more"]] == [[0, 1, 2], [0], [0, 1]]
    assert (found["size"], found["first"].tolist()) == (2, [0])
    for parts, why in ((x, "expected a sequence, a list of arrays, got ndarray"), ([], "has no place 0")):
        with pytest.raises(af.OpError, match=why):
            model.run_sync({"parts": parts, "x": x})
    with pytest.raises(af.GraphError, match="Input 'parts': is of type sequence, and only tensors"):
        af.onnx.load(onnx.parser.parse_model(text).SerializeToString(), backend="onnxruntime")
