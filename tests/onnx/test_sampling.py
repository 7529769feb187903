"""GridSample and Resize as ONNX Runtime and PyTorch compute them, where ONNX's own evaluator does otherwise."""

from itertools import product

import numpy as np
import pytest

import actorflow as af
from tests.onnx.test_layouts import node
from tests.support.onnx_files import model, results
from tests.support.onnx_open import runtimes

CASES = [*product(["nearest", "linear", "cubic"], ["zeros", "border", "reflection"], [0, 1])]


@pytest.mark.together(("mode", "padding", "aligned"), CASES, at_once=9)
def test_places_inside_beside_and_nowhere(mode: str, padding: str, aligned: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 2, 4, 5)).astype(np.float32)
    grid = (1.5 * random.standard_normal((1, 3, 6, 2))).astype(np.float32)
    grid[0, 0, :4] = [[np.nan, 0.1], [0.1, np.nan], [np.inf, 0.2], [-np.inf, np.nan]]  # which count as -1
    nodes = [node("GridSample", "x g", "y", mode=mode, padding_mode=padding, align_corners=aligned)]
    proto = model(nodes, [("x", x.shape), ("g", grid.shape)], [("y", (1, 2, 3, 6))], opset=20)
    (found,) = results(af.onnx.load(proto.SerializeToString()), {"x": x, "g": grid})
    (wanted,) = runtimes(proto, {"x": x, "g": grid}) or ()
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.together("mode", ["nearest", "linear", "cubic"], at_once=30)
@pytest.mark.together("scale", [0.36, 0.6, 1.0, 1.7, 2.0])
@pytest.mark.together("length", ["known", "open"])
def test_aligned_corners_by_a_fraction(mode: str, scale: float, length: str) -> None:
    """The last element of the result is the last one of the input."""
    x = np.arange(26, dtype=np.float32).reshape(1, 1, 1, 26) ** 1.5
    scales = {"none": np.zeros(0, np.float32), "scales": np.array([1, 1, 1, scale], np.float32)}
    nodes = [node("Resize", "x none scales", "y", mode=mode, coordinate_transformation_mode="align_corners")]
    shape = (1, 1, 1, 26 if length == "known" else "n")
    proto = model(nodes, [("x", shape)], [("y", (1, 1, 1, None))], scales)
    if length == "open" and not scale.is_integer():
        with pytest.raises(af.GraphError, match="halves, quarters"):
            af.onnx.load(proto.SerializeToString())
        return
    loaded = af.onnx.load(proto.SerializeToString())
    (found,) = results(loaded, {"x": x})
    (wanted,) = runtimes(proto, {"x": x}) or ()
    assert found["y"][..., -1] == x[..., -1]
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_images_of_integers_of_any_size(dtype: str) -> None:
    """ONNX Runtime computes with numbers of 32 bits, and cuts off: what is next to an integer may be the one below."""
    scales = {"none": np.zeros(0, "f4"), "scales": np.array([1, 1, 2, 0.5], "f4")}
    nodes = [node("Resize", "x none scales", "y", mode="linear")]
    file = model(nodes, [("x", ("n", 3, "h", "w"), dtype)], [("y", ("n", 3, None, None), dtype)], scales)
    feeds = [{"x": np.random.default_rng(0).integers(-90, 90, (n, 3, 6, 8)).astype(dtype)} for n in (1, 2)]
    for fed, found in zip(feeds, results(af.onnx.load(file.SerializeToString()), *feeds), strict=True):
        (want,) = runtimes(file, fed) or ()
        assert found["y"].dtype == want.dtype
        np.testing.assert_allclose(found["y"].astype(int), want.astype(int), rtol=0, atol=1)
