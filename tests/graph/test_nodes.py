"""Blobs, ops and variables: connecting them, and what is checked when they are."""

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops


@pytest.fixture
def graph() -> Iterator[af.Graph]:
    graph = af.Graph("g")
    yield graph
    asyncio.run(graph.aclose())


class TestConnecting:
    @pytest.mark.parametrize("sequence", [list, tuple])
    def test_blobs_to_op_to_blobs(self, graph: af.Graph, sequence: Any) -> None:
        x, w, y = graph.blob("x", (2, 3)), graph.variable("w", (4, 3)), graph.blob("y", (2, 4))
        inner = graph.op("inner", ops.Inner())
        outputs = sequence([y])
        assert sequence([x, w]) >> inner >> outputs is outputs
        assert inner.inputs == (x, w)
        assert inner.outputs == (y,)
        assert x.consumers == w.consumers == [inner]
        assert y.producers == [inner]

    def test_single_blobs_need_no_list(self, graph: af.Graph) -> None:
        x, y = graph.blob("x", 3), graph.blob("y", 3)
        op = graph.op("copy", ops.Copy())
        assert x >> op is op
        assert op >> y is y

    def test_a_row_of_ops(self, graph: af.Graph) -> None:
        x, y, z = (graph.blob(name, 3) for name in "xyz")
        a, b = graph.op("a", ops.Copy()), graph.op("b", ops.Scale(2.0))
        [x] >> a >> [y] >> b >> [z]
        assert graph.run_sync({x: np.ones(3, "f")})[z].tolist() == [2, 2, 2]

    def test_outputs_may_come_first(self, graph: af.Graph) -> None:
        x, y = graph.blob("x", 3), graph.blob("y", 3)
        op = graph.op("copy", ops.Copy())
        op >> [y]
        assert not op.is_connected
        [x] >> op
        assert op.is_connected
        assert (op.inputs, op.outputs) == ((x,), (y,))

    def test_one_blob_twice(self, graph: af.Graph) -> None:
        x, y = graph.blob("x", 3), graph.blob("y", 3)
        op = graph.op("mul", ops.Multiply())
        [x, x] >> op >> [y]
        assert x.consumers == [op, op]
        assert graph.run_sync({x: [1, 2, 3]})[y].tolist() == [1, 4, 9]

    def test_calls_make_the_outputs(self, graph: af.Graph) -> None:
        x, w = graph.blob("x", (2, 3)), graph.variable("w", (4, 3))
        y = graph.op("inner", ops.Inner())(x, w)
        assert (y.name, y.shape, y.producers) == ("inner/out", (2, 4), [graph["inner"]])

    def test_calls_make_several_outputs(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        specs = [af.TensorSpec.of(3), af.TensorSpec.of((), "int64")]
        a, b = graph.function("f", lambda x: (x, 1), outputs=specs)(x)
        assert [(blob.name, blob.spec) for blob in (a, b)] == [("f/out0", specs[0]), ("f/out1", specs[1])]

    def test_calls_of_ops_without_inputs(self, graph: af.Graph) -> None:
        y = graph.op("fill", ops.Fill(2.0, af.TensorSpec.of(3)))()
        assert graph.run_sync()[y].tolist() == [2, 2, 2]


class TestMistakes:
    def test_op_to_op(self, graph: af.Graph) -> None:
        a, b = graph.op("a", ops.Copy()), graph.op("b", ops.Copy())
        with pytest.raises(af.GraphError, match=r"op 'a' cannot be connected to op 'b' directly: .* a >> \[y\] >> b"):
            graph.blob("x", 3) >> a >> b

    @pytest.mark.parametrize("thing", [3, "x", None, ["x"], [None], np.ones(3)])
    def test_what_is_no_blob(self, graph: af.Graph, thing: Any) -> None:
        op = graph.op("a", ops.Copy())
        with pytest.raises(TypeError, match=r"unsupported operand|not supported"):
            thing >> op
        with pytest.raises(TypeError, match=r"unsupported operand|not supported"):
            op >> thing
        assert op.inputs == op.outputs == ()

    @pytest.mark.parametrize(("thing", "kind"), [(np.ones(3), "ndarray"), ([], "list"), (1, "int")])
    def test_calls_with_what_is_no_blob(self, graph: af.Graph, thing: Any, kind: str) -> None:
        with pytest.raises(af.GraphError, match=rf"op 'a' \(Copy\(\)\) connects blobs, got {kind}"):
            graph.op("a", ops.Copy())(thing)
        with pytest.raises(af.GraphError, match=f"Copy: x must be a blob or an array, got {kind}"):
            ops.copy(thing)

    def test_blobs_of_another_graph(self, graph: af.Graph) -> None:
        other = af.Graph("other").blob("x", 3)
        op = graph.op("a", ops.Copy())
        message = r"op 'a' \(Copy\(\)\) is of graph 'g', blob 'x' of another one, 'other'"
        with pytest.raises(af.GraphError, match=message):
            [other] >> op
        with pytest.raises(af.GraphError, match=message):
            op >> [other]
        assert other.consumers == other.producers == []

    def test_deleted_blobs(self, graph: af.Graph) -> None:
        gone = graph.subgraph("part").blob("x", 3)
        graph.delete_subgraph("part")
        with pytest.raises(af.GraphError, match=r"op 'a' .* cannot be connected to blob 'part/x', which was deleted"):
            gone >> graph.op("a", ops.Copy())

    @pytest.mark.parametrize(
        ("operation", "count", "message"),
        [
            (ops.Inner(), 1, r"op 'a': Inner takes 2 \(x, weight\) inputs, got 1"),
            (ops.Copy(), 2, r"Copy takes 1 \(x\) inputs, got 2"),
            (ops.Sum(), 0, r"Sum takes at least 1 \(\*terms\) inputs, got 0"),
            (ops.Fill(0.0, af.TensorSpec.of(3)), 1, r"op 'a' \(Fill\(.*\)\) has its inputs already \(none\)"),
        ],
    )
    def test_number_of_inputs(self, graph: af.Graph, operation: ops.Operation, count: int, message: str) -> None:
        blobs = [graph.blob(f"x{i}", (2, 3)) for i in range(count)]
        with pytest.raises(af.GraphError, match=message):
            blobs >> graph.op("a", operation)
        assert all(blob.consumers == [] for blob in blobs)

    def test_shapes_of_inputs(self, graph: af.Graph) -> None:
        x, w = graph.blob("x", (2, 3)), graph.variable("w", (4, 5))
        op = graph.op("inner", ops.Inner())
        with pytest.raises(
            af.ShapeError, match=r"op 'inner': Inner: .*\(inputs: x float32\[2, 3\], w float32\[4, 5\]\)"
        ):
            [x, w] >> op
        assert (op.inputs, x.consumers, w.consumers) == ((), [], [])
        [x, graph.variable("v", (4, 3))] >> op  # it is still free

    def test_dtypes_of_inputs(self, graph: af.Graph) -> None:
        x, w = graph.blob("x", (2, 3)), graph.variable("w", (4, 3), "float64")
        with pytest.raises(af.DTypeError, match=r"op 'inner': Inner: weight must have x's dtype float32, got float64"):
            [x, w] >> graph.op("inner", ops.Inner())

    @pytest.mark.parametrize("outputs_first", [False, True])
    @pytest.mark.parametrize(
        ("shape", "dtype", "error"), [((3, 2), "float32", af.ShapeError), ((2, 3), "float64", af.DTypeError)]
    )
    def test_types_of_outputs(
        self, graph: af.Graph, shape: Any, dtype: str, error: type[Exception], outputs_first: bool
    ) -> None:
        x, y = graph.blob("x", (2, 3)), graph.blob("y", shape, dtype)
        op = graph.op("a", ops.Copy())
        if outputs_first:
            op >> [y]
        else:
            [x] >> op
        with pytest.raises(
            error, match=rf"op 'a' \(Copy\(\)\) gives float32\[2, 3\], blob 'y' is declared as {dtype}\[\d, \d\]"
        ):
            [x] >> op if outputs_first else op >> [y]
        assert (y.producers, x.consumers) == ([op], []) if outputs_first else ([], [op])

    def test_number_of_outputs(self, graph: af.Graph) -> None:
        x, y, z = (graph.blob(name, 3) for name in "xyz")
        with pytest.raises(af.GraphError, match=r"op 'a' \(Copy\(\)\) has 1 outputs, got 2 blobs"):
            [x] >> graph.op("a", ops.Copy()) >> [y, z]

    def test_one_output_twice(self, graph: af.Graph) -> None:
        y = graph.blob("y", 3)
        op = graph.function("f", lambda: (1, 2))
        with pytest.raises(af.GraphError, match=r"cannot write one blob twice: \['y', 'y'\]"):
            op >> [y, y]
        assert y.producers == []

    def test_connecting_twice(self, graph: af.Graph) -> None:
        x, y, z = (graph.blob(name, 3) for name in "xyz")
        op = graph.op("a", ops.Copy())
        [x] >> op >> [y]
        with pytest.raises(af.GraphError, match=r"op 'a' \(Copy\(\)\) has its inputs already \(x\)"):
            [z] >> op
        with pytest.raises(af.GraphError, match=r"op 'a' \(Copy\(\)\) has its outputs already \(y\)"):
            op >> [z]
        with pytest.raises(af.GraphError, match=r"has its outputs already \(y\)"):
            op()
        assert [node.name for node in graph.nodes] == ["x", "y", "z", "a"]

    def test_a_class_is_no_operation(self, graph: af.Graph) -> None:
        with pytest.raises(af.GraphError, match=r"op 'a': <class .*Copy'> is not an Operation: give an instance"):
            graph.op("a", ops.Copy)  # type: ignore[arg-type]
        with pytest.raises(
            af.GraphError, match=r"op 'a': <built-in .*> is not an Operation: graph\.function\(\) makes"
        ):
            graph.op("a", len)  # type: ignore[arg-type]
        with pytest.raises(af.GraphError, match=r"op 'a': 3 is not an Operation$"):
            graph.op("a", 3)  # type: ignore[arg-type]
        with pytest.raises(af.GraphError, match=r"op: <class .*is not an Operation: give an instance"):
            graph.apply(ops.Copy, graph.blob("x", 3))  # type: ignore[arg-type]
        assert "a" not in graph


class TestFunctions:
    def test_declared_outputs_are_checked_without_inputs_too(self, graph: af.Graph) -> None:
        f = graph.function("f", lambda: 1.0, outputs=af.TensorSpec.of(()))
        with pytest.raises(af.ShapeError, match=r"op 'f' .* gives float32\[\], blob 'y' is declared as float32\[2\]"):
            f >> [graph.blob("y", 2)]

    def test_undeclared_outputs_cannot_be_made(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        with pytest.raises(af.GraphError, match=r"op 'f' \(abs\) does not say what its outputs are: give outputs="):
            graph.function("f", abs)(x)

    def test_specs_made_without_a_check_are_checked(self, graph: af.Graph) -> None:
        y = graph.function("f", lambda: 1.0, outputs=af.TensorSpec((), "float64"))()  # type: ignore[arg-type]
        assert y.dtype == np.dtype("float64")
        with pytest.raises(af.ShapeError, match="every axis must be a non-negative integer or a name, got -1"):
            graph.function("g", lambda: 1.0, outputs=af.TensorSpec((-1,), np.dtype("f")))

    def test_outputs_that_are_no_specs(self, graph: af.Graph) -> None:
        with pytest.raises(
            af.GraphError, match=r"must be TensorSpec, got \(2, 3\): af\.TensorSpec\.of\(shape, dtype\)"
        ):
            graph.function("f", lambda: 1.0, outputs=[(2, 3)])  # type: ignore[list-item]

    @pytest.mark.together(
        ("fn", "words"),
        [
            (lambda: 1, r"\(\) cannot be called with 1 inputs: too many positional arguments"),
            (lambda a, b: 1, "missing a required argument: 'b'"),
            (lambda a, *, b: 1, "missing a required .*argument: 'b'"),
            (partial(lambda a, b: 1, 1, 2), "too many positional arguments"),
            (lambda *a: 1, None),
            (lambda a, b=1: 1, None),
            (np.exp, None),
            (len, None),
        ],
    )
    def test_a_function_takes_as_many_values_as_there_are_inputs(self, fn: Any, words: str | None) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (2,))
        op = graph.function("f", fn)
        if words is None:
            [x] >> op
        else:
            with pytest.raises(af.GraphError, match=f"op 'f': .*{words}"):
                [x] >> op

    def test_what_is_no_function(self, graph: af.Graph) -> None:
        with pytest.raises(af.GraphError, match="3 is not a function"):
            graph.function("f", 3)  # type: ignore[arg-type]


class TestVariables:
    @pytest.mark.parametrize(
        ("init", "expected"),
        [
            (0, [[0, 0], [0, 0]]),
            (2.5, [[2.5, 2.5], [2.5, 2.5]]),
            (np.float64(0.5), [[0.5, 0.5], [0.5, 0.5]]),
            ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
            (np.eye(2), [[1, 0], [0, 1]]),
            (lambda spec, name: np.full(spec.shape, len(name)), [[6, 6], [6, 6]]),
            (lambda spec, name: 7, [[7, 7], [7, 7]]),
            (af.nn.init.constant(3.0), [[3, 3], [3, 3]]),
        ],
    )
    def test_kinds_of_init(self, graph: af.Graph, init: Any, expected: Any) -> None:
        w = graph.variable("weight", (2, 2), init=init)
        assert w.value.dtype == np.float32
        assert w.value.tolist() == expected
        assert w.value.flags.c_contiguous

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float64", "complex64"])
    def test_zero_is_a_first_value_of_every_dtype(self, graph: af.Graph, dtype: str) -> None:
        value = graph.variable("w", 3, dtype).value
        assert value.dtype == dtype
        assert not value.any()

    def test_init_is_called_once_and_late(self, graph: af.Graph) -> None:
        calls: list[tuple[af.TensorSpec, str]] = []

        def init(spec: af.TensorSpec, name: str) -> float:
            calls.append((spec, name))
            return 0.0

        w = graph.subgraph("part").variable("w", 3, init=init)
        assert calls == []
        np.testing.assert_array_equal(w.value, w.value)
        assert calls == [(af.TensorSpec.of(3), "part/w")]

    def test_init_is_copied(self, graph: af.Graph) -> None:
        array = np.zeros(3, "f")
        w = graph.variable("w", 3, init=array)
        array[:] = 1
        assert w.value.tolist() == [0, 0, 0]

    def test_a_value_is_assigned_and_never_written_to(self, graph: af.Graph) -> None:
        w = graph.variable("w", 3)
        with pytest.raises(ValueError, match="read-only"):
            w.value[:] = 2
        w.value = w.value + 2
        assert w.value.tolist() == [2, 2, 2]

    @pytest.mark.parametrize(
        ("init", "error", "message"),
        [
            (np.zeros((3, 2)), af.ShapeError, r"init of variable 'w': expected shape \(2, 3\), got \(3, 2\)"),
            ([1, 2, 3], af.ShapeError, r"expected shape \(2, 3\), got \(3,\)"),
            (1j, af.DTypeError, "init of variable 'w': expected dtype float32, got complex128"),
            ("zero", af.DTypeError, "expected dtype float32, got <U4"),
            (None, af.DTypeError, "expected dtype float32, got None"),
        ],
    )
    def test_a_wrong_init_is_an_error_at_once(
        self, graph: af.Graph, init: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            graph.variable("w", (2, 3), init=init)
        assert "w" not in graph

    def test_a_wrong_result_of_init_is_an_error_at_the_first_use(self, graph: af.Graph) -> None:
        w = graph.variable("w", (2, 3), init=lambda spec, name: np.zeros(7))
        with pytest.raises(af.ShapeError, match=r"init of variable 'w': expected shape \(2, 3\), got \(7,\)"):
            _ = w.value

    def test_assigning_checks_and_copies(self, graph: af.Graph) -> None:
        w = graph.variable("w", (2,))
        array = np.ones(2, "f")
        w.value = array
        assert w.value is not array
        array[:] = 5
        assert w.value.tolist() == [1, 1]
        with pytest.raises(af.ShapeError, match=r"value of variable 'w': expected shape \(2,\), got \(3,\)"):
            w.value = np.zeros(3, "f")
        with pytest.raises(af.ShapeError, match=r"expected shape \(2,\), got \(\)"):
            w.value = 0  # type: ignore[assignment]
        with pytest.raises(af.DTypeError, match=r"expected dtype float32, got float64; convert it, array\.astype"):
            w.value = np.zeros(2)
        assert w.value.tolist() == [1, 1]

    def test_python_numbers_take_the_dtype(self, graph: af.Graph) -> None:
        rate = graph.variable("rate", ())
        rate.value = 0.1  # type: ignore[assignment]
        assert rate.value == np.float32(0.1)
        assert rate.value.shape == ()
        count = graph.variable("count", 2, "uint8")
        count.value = [1, 255]  # type: ignore[assignment]
        with pytest.raises(af.DTypeError, match="expected dtype uint8, got integers from 1 to 256"):
            count.value = [1, 256]  # type: ignore[assignment]
        assert count.value.tolist() == [1, 255]

    def test_a_value_before_the_first_use_replaces_init(self, graph: af.Graph) -> None:
        w = graph.variable("w", 2, init=lambda spec, name: pytest.fail("not needed"))
        w.value = [1, 2]  # type: ignore[assignment]
        assert w.value.tolist() == [1, 2]

    def test_strided_values_are_stored_in_order(self, graph: af.Graph) -> None:
        w = graph.variable("w", (2, 3))
        w.value = np.arange(6, dtype="f").reshape(3, 2).T
        assert w.value.flags.c_contiguous
        assert w.value.tolist() == [[0, 2, 4], [1, 3, 5]]

    def test_zero_sized(self, graph: af.Graph) -> None:
        assert graph.variable("w", (0, 3), init=1).value.shape == (0, 3)


class TestLooks:
    def test_repr(self, graph: af.Graph) -> None:
        x = graph.blob("x", (2, 3))
        assert repr(x) == "<Blob 'x' float32[2, 3] on cpu>"
        assert repr(graph.variable("w", (), "int8")) == "<Variable 'w' int8[] on cpu>"
        op = graph.op("s", ops.Scale(0.5), lane="side")
        assert re.fullmatch(r"<Op 's' Scale\(factor=0\.5\) on cpu, lane '?side'?>", repr(op))

    def test_site_is_the_users_line(self, graph: af.Graph) -> None:
        def build() -> af.Blob:
            return ops.flatten(graph.blob("x", (2, 3, 4)))

        y = build()
        for node in (graph["x"], y, y.producers[0]):
            assert node.site.filename == __file__
            assert node.site.function == "build"
            assert "ops.flatten" in Path(__file__).read_text(encoding="utf-8").splitlines()[node.site.line - 1]

    def test_nodes_are_keys_by_identity(self, graph: af.Graph) -> None:
        other = af.Graph("g")
        x, same_name = graph.blob("x", 3), other.blob("x", 3)
        assert len({x, same_name}) == 2
