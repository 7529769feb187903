"""What `af.onnx.load` and `af.onnx.save` take, and what they say of anything else."""

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import actorflow as af
from tests.onnx.test_layouts import node, weights
from tests.support.onnx_files import model

PROTO = model([node("Relu", "x", "y")], [("x", (3,))], [("y", (3,))], {})
X = np.float32([-1, 0, 2])


@pytest.mark.together("form", ["proto", "bytes", "bytearray", "memoryview", "text", "path"])
def test_a_model_in_any_form(form: str, tmp_path: Path) -> None:
    path, contents = tmp_path / "relu.onnx", PROTO.SerializeToString()
    path.write_bytes(contents)
    given: Any = {
        "proto": PROTO, "bytes": contents, "bytearray": bytearray(contents), "memoryview": memoryview(contents),
        "text": str(path), "path": path,
    }[form]  # fmt: skip
    loaded = af.onnx.load(given)
    assert loaded.run_sync({"x": X})["y"].tolist() == [0, 0, 2]
    assert loaded.graph.name == {"proto": PROTO.graph.name, "text": "relu", "path": "relu"}.get(form, "onnx")


def test_a_proto_is_left_as_it_is() -> None:
    proto = model([node("Identity", "w", "v"), node("Mul", "x v", "a"), node("Reshape", "a s", "y")],
                  [("x", (1, 3))], [("y", (1, 3))], {"w": weights(3), "s": np.array([1, 3])})  # fmt: skip
    before = proto.SerializeToString()
    af.onnx.load(proto, trainable=True, axes={"x": {0: "batch"}})
    assert proto.SerializeToString() == before


def test_a_proto_whose_weights_are_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    proto = model([node("Mul", "x w", "y")], [("x", (3,))], [("y", (3,))], {"w": weights(3)})
    onnx.save(proto, path, save_as_external_data=True, size_threshold=0)
    with pytest.raises(af.GraphError, match="weights are in other files: give the path"):
        af.onnx.load(onnx.load(path, load_external_data=False))


@pytest.mark.together("source", [None, 3, io.BytesIO(), PROTO.graph, af.Graph("g")])
def test_what_is_no_source(source: Any) -> None:
    expected = (
        f"expected the path of an ONNX file, its contents as bytes, or an onnx.ModelProto, got {type(source).__name__}"
    )
    with pytest.raises(TypeError) as caught:
        af.onnx.load(source)
    assert str(caught.value) == expected


def test_what_is_no_argument(tmp_path: Path) -> None:
    given: Any
    with pytest.raises(TypeError, match="trainable must be True or False, got 'yes'"):
        given = {"trainable": "yes"}
        af.onnx.load(PROTO, **given)
    with pytest.raises(TypeError, match=r"axes must be a mapping, .*, got str"):
        given = {"axes": "batch"}
        af.onnx.load(PROTO, **given)
    with pytest.raises(af.GraphError, match="backend must be 'actorflow' or 'onnxruntime', got None"):
        given = {"backend": None}
        af.onnx.load(PROTO, **given)
    with pytest.raises(TypeError, match="expected a graph or a model, got int"):
        given = 3
        af.onnx.save(given, tmp_path / "x.onnx")


def refusal(*nodes: Any, outputs: Any = (("y", (3,)),), **options: Any) -> str:
    proto = model(list(nodes), [("x", (3,))], list(outputs), {"w": weights(3)})
    with pytest.raises(af.GraphError, match=r"these nodes cannot be loaded") as caught:
        af.onnx.load(proto, **options)
    return str(caught.value)


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="onnxruntime is not installed")
class TestTheOtherBackend:
    HINT = "\n  backend='onnxruntime' may compute it (--backend onnxruntime of the command line)"

    async def test_is_named_where_it_may_compute_the_nodes(self) -> None:
        drawn = node("RandomUniformLike", "x", "y")
        assert refusal(drawn).endswith(self.HINT)
        loaded = af.onnx.load(model([drawn], [("x", (3,))], [("y", (3,))], {}), backend="onnxruntime")
        async with loaded.graph:
            assert (await loaded.run({"x": X}))["y"].shape == (3,)

    def test_is_not_where_it_does_not_train(self) -> None:
        assert self.HINT not in refusal(node("RandomUniformLike", "x", "a"), node("Mul", "a w", "y"), trainable=True)
