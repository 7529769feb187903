"""Operators of ai.onnx.ml against ONNX Runtime: trees, linear models, and what prepares features."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.onnx.operators import learned

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
FEATURES = 5
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def random() -> np.random.Generator:
    return np.random.default_rng(3)


def made(
    operator: str, outputs: list[tuple[str, int]], x: Any, version: int = 3, more: Any = None, **attributes: Any
) -> bytes:
    """A file of one node; the number of rows is open."""
    given = {name: each for name, each in attributes.items() if each is not None}
    names = ["x", *(["more"] if more is not None else [])]
    node = helper.make_node(operator, names, [name for name, _ in outputs], domain="ai.onnx.ml", **given)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "learned",
        [helper.make_tensor_value_info("x", kind, ["n", *x.shape[1:]])],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs],
        [] if more is None else [numpy_helper.from_array(more, "more")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()  # type: ignore[no-any-return]


def compare(source: bytes, *feeds: Any, tolerance: float = 1e-5) -> None:
    """Check that a file gives what ONNX Runtime gives, for each of some feeds."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    model = af.onnx.load(source)
    with model.graph:
        for x in feeds:
            found, expected = model.run_sync({"x": x}), peer.run(None, {"x": x})
            for (name, mine), its in zip(found.items(), expected, strict=True):
                assert (mine.dtype, mine.shape) == (its.dtype, its.shape), name
                np.testing.assert_allclose(mine, its, rtol=tolerance, atol=tolerance, err_msg=name)


def rows(count: int, dtype: Any = "f", missing: bool = False) -> Any:
    x = random().integers(-3, 4, (count, FEATURES)).astype(dtype) / (2 if np.dtype(dtype).kind == "f" else 1)
    x = x.astype(dtype)
    if missing:
        x[::3, 1] = np.nan
    return x


def trees(prefix: str, targets: int, modes: Any = MODES[:1], positive: bool = False, count: int = 4) -> dict[str, Any]:
    """Some trees, in the words of the first versions."""
    draw = random()
    found: dict[str, list[Any]] = {}

    def add(name: str, value: Any) -> None:
        found.setdefault(name, []).append(value)

    for tree in range(count):
        leaves, places = tree + 2, [0]
        nodes: list[tuple[int, int] | None] = [None]
        while sum(each is None for each in nodes) < leaves:  # a leaf becomes a branch
            at = int(draw.choice([i for i in places if nodes[i] is None]))
            nodes[at] = (len(nodes), len(nodes) + 1)
            places += [len(nodes), len(nodes) + 1]
            nodes += [None, None]
        for i, below in enumerate(nodes):
            add("nodes_treeids", tree)
            add("nodes_nodeids", i)
            add("nodes_modes", "LEAF" if below is None else str(draw.choice(modes)))
            add("nodes_truenodeids", 0 if below is None else below[0])
            add("nodes_falsenodeids", 0 if below is None else below[1])
            add("nodes_featureids", 0 if below is None else int(draw.integers(FEATURES)))
            add("nodes_values", 0.0 if below is None else float(draw.integers(-3, 4)) / 2)
            add("nodes_missing_value_tracks_true", 0 if below is None else int(draw.integers(2)))
            if below is None:
                for target in range(targets):
                    add(f"{prefix}_treeids", tree)
                    add(f"{prefix}_nodeids", i)
                    add(f"{prefix}_ids", target)
                    weight = float(draw.standard_normal())
                    add(f"{prefix}_weights", abs(weight) / count if positive else weight)
    return found


class TestTrees:
    @pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
    @pytest.mark.parametrize("modes", [MODES[:1], MODES])
    def test_regressor(self, aggregate: str, modes: Any) -> None:
        said = trees("target", 3, modes)
        source = made("TreeEnsembleRegressor", [("y", FLOAT)], rows(1), n_targets=3, aggregate_function=aggregate,
                      base_values=[0.5, 1.0, -2.0] if aggregate == "SUM" else None, **said)  # fmt: skip
        compare(source, rows(1), rows(50, missing=True), rows(0), rows(5000, missing=True))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("modes", [MODES[:1], MODES])
    def test_without_compiled_code(self, dtype: str, modes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        source = made("TreeEnsembleRegressor", [("y", FLOAT)], rows(1, dtype), n_targets=3, **trees("target", 3, modes))
        given = [rows(count, dtype, missing=True) for count in (0, 1, 40, 5000)]
        model = af.onnx.load(source)
        expected = [model.run_sync({"x": x})["y"] for x in given]
        monkeypatch.setattr(learned, "compiled", lambda name: None)
        for x, y in zip(given, expected, strict=True):
            np.testing.assert_array_equal(model.run_sync({"x": x})["y"], y)

    @pytest.mark.parametrize("is_share", [True, False])
    def test_one_score_without_compiled_code(self, is_share: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        operation, x = learned.OneScore((4, 9), 0.5, is_share), np.array([[0.5], [0.75], [-1], [np.nan]], "f")
        expected = operation.compute(x)
        monkeypatch.setattr(learned, "compiled", lambda name: None)
        for mine, its in zip(operation.compute(x), expected, strict=True):
            np.testing.assert_array_equal(mine, its, strict=True)

    def test_of_wider_numbers(self) -> None:
        x = rows(20, "float64")
        compare(made("TreeEnsembleRegressor", [("y", FLOAT)], x, n_targets=2, **trees("target", 2)), x)

    @pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
    @pytest.mark.parametrize("base", [None, [0.1, -0.2, 0.3]])
    def test_classifier(self, post: str, base: Any) -> None:
        said = trees("class", 3)
        source = made("TreeEnsembleClassifier", [("label", INT), ("y", FLOAT)], rows(1), post_transform=post,
                      classlabels_int64s=[7, 3, 5], base_values=base, **said)  # fmt: skip
        compare(source, rows(40))

    @pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
    @pytest.mark.parametrize("positive", [True, False])
    @pytest.mark.parametrize("base", [None, [0.25]])
    def test_classifier_of_two_by_one_score(self, post: str, positive: bool, base: Any) -> None:
        said = trees("class", 1, positive=positive)
        source = made("TreeEnsembleClassifier", [("label", INT), ("y", FLOAT)], rows(1), post_transform=post,
                      classlabels_int64s=[4, 9], base_values=base, **said)  # fmt: skip
        compare(source, rows(40))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_of_version_5(self, dtype: str) -> None:
        """One tree that asks whether a number is one of several, and one that compares."""
        numbers = {name: numpy_helper.from_array(np.array(each, dtype)) for name, each in {
            "nodes_splits": [0.0, 0.5, 1.0], "leaf_weights": [1.0, 2.0, 4.0, 8.0, 16.0],
            "membership_values": [2.0, 1.0, -1.0, np.nan],
        }.items()}  # fmt: skip
        x = rows(30, dtype, missing=True)
        x[:, 0] = np.floor(x[:, 0])  # ONNX Runtime looks for what a number is without its fraction
        source = made(
            "TreeEnsemble", [("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))], x, 5, n_targets=2,
            aggregate_function=1, tree_roots=[0, 2], leaf_targetids=[0, 1, 0, 1, 1],
            nodes_featureids=[0, 1, 2], nodes_modes=numpy_helper.from_array(np.array([6, 0, 3], np.uint8)),
            nodes_truenodeids=[1, 0, 3], nodes_trueleafs=[0, 1, 1],
            nodes_falsenodeids=[2, 1, 4], nodes_falseleafs=[1, 1, 1], **numbers,
        )  # fmt: skip
        compare(source, x, rows(1, dtype))

    def test_open_features_are_checked_in_each_run(self) -> None:
        source = onnx.load_from_string(made("TreeEnsembleRegressor", [("y", FLOAT)], rows(1), n_targets=1,
                                            **trees("target", 1)))  # fmt: skip
        source.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "features"
        model = af.onnx.load(source)
        assert model.run_sync({"x": rows(2)})["y"].shape == (2, 1)
        with pytest.raises(af.ShapeError, match=r"its trees ask for 5 features, got float32\[2, 3\]"):
            model.run_sync({"x": rows(2)[:, :3]})

    def test_what_is_refused(self) -> None:
        said = trees("target", 1)
        said["nodes_featureids"] = [each + FEATURES for each in said["nodes_featureids"]]
        why = r"TreeEnsembleRegressor 'TreeEnsembleRegressor_y': .*its trees ask for 10 features"
        with pytest.raises(af.GraphError, match=why):
            af.onnx.load(made("TreeEnsembleRegressor", [("y", FLOAT)], rows(1), n_targets=1, **said))
        names = trees("class", 2)
        text = made("TreeEnsembleClassifier", [("label", TensorProto.STRING), ("y", FLOAT)], rows(1),
                    classlabels_strings=["a", "b"], **names)  # fmt: skip
        with pytest.raises(af.GraphError, match="its labels are text"):
            af.onnx.load(text)


WEIGHTS = random().standard_normal(3 * FEATURES).tolist()
ONE, TWO = [("y", FLOAT)], [("label", INT), ("y", FLOAT)]
SUPPORT = {"coefficients": WEIGHTS[:2], "support_vectors": WEIGHTS[:10], "n_supports": 2, "rho": [0.5]}
THREE = {"coefficients": WEIGHTS, "intercepts": [1.0, -1.0, 0.5], "classlabels_ints": [5, 4, 9]}
PAIR = {"coefficients": WEIGHTS[:FEATURES], "intercepts": [0.1], "classlabels_ints": [5, 4]}
NAN = float("nan")
#: Operator, outputs, attributes.
SIMPLE: dict[str, tuple[str, list[tuple[str, int]], dict[str, Any]]] = {
    "regressor": ("LinearRegressor", ONE, {"coefficients": WEIGHTS, "intercepts": [1.0, 2.0, 3.0], "targets": 3}),
    "regressor of one": ("LinearRegressor", ONE, {"coefficients": WEIGHTS[:FEATURES]}),
    "scaler": ("Scaler", ONE, {"offset": WEIGHTS[:FEATURES], "scale": WEIGHTS[FEATURES : 2 * FEATURES]}),
    "scaler of one": ("Scaler", ONE, {"offset": [1.5], "scale": [2.0]}),
    "binarizer": ("Binarizer", ONE, {"threshold": 0.5}),
    "imputer": ("Imputer", ONE, {"imputed_value_floats": WEIGHTS[:FEATURES], "replaced_value_float": NAN}),
    "imputer of one": ("Imputer", ONE, {"imputed_value_floats": [9.0], "replaced_value_float": 1.0}),
    "vectorizer": ("FeatureVectorizer", ONE, {"inputdimensions": [FEATURES]}),
    "labels": ("LabelEncoder", ONE, {"keys_floats": [0.5, 1.0, NAN], "values_floats": [5.0, 6.0, 7.0], "version": 4}),
    "numbers": ("LabelEncoder", TWO[:1], {"keys_floats": [0.5, -1.0], "values_int64s": [5, 6], "default_int64": 3}),
    "linear kernel": (
        "SVMRegressor",
        ONE,
        {"coefficients": WEIGHTS[:FEATURES], "rho": [0.5], "kernel_params": [0.0] * 3},
    ),
}
for _each in ("MAX", "L1", "L2"):
    SIMPLE[f"norm {_each}"] = ("Normalizer", ONE, {"norm": _each})
for _each in ("LINEAR", "POLY", "RBF", "SIGMOID"):
    _more = {"kernel_type": _each, "kernel_params": [0.3, 0.2, 2.0], "one_class": int(_each == "SIGMOID")}
    SIMPLE[f"kernel {_each}"] = ("SVMRegressor", ONE, {**SUPPORT, **_more})
for _each in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
    SIMPLE[f"classifier {_each}"] = ("LinearClassifier", TWO, {**THREE, "post_transform": _each})
for _each in ("NONE", "LOGISTIC"):
    SIMPLE[f"classifier of two {_each}"] = ("LinearClassifier", TWO, {**PAIR, "post_transform": _each})


def _vectors(classes: int, kernel: str, post: str, shares: bool) -> dict[str, Any]:
    """A classifier of support vectors, in the words of ONNX."""
    per_class, draw = [3, 2, 4][:classes], random()
    pairs, count = classes * (classes - 1) // 2, sum(per_class)
    return {
        "kernel_type": kernel, "kernel_params": [0.3, 0.2, 2.0], "post_transform": post, "vectors_per_class": per_class,
        "support_vectors": draw.standard_normal(count * FEATURES).tolist(), "rho": draw.standard_normal(pairs).tolist(),
        "coefficients": draw.standard_normal((classes - 1) * count).tolist(), "classlabels_ints": [5, 2, 9][:classes],
        "prob_a": [-1.5, -0.7, -2.0][:pairs] if shares else None,
        "prob_b": [0.1, 0.3, -0.2][:pairs] if shares else None,
    }  # fmt: skip


for _count, _each, _shares in product((2, 3), ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"), (False, True)):
    _kernel = {"NONE": "RBF", "SOFTMAX": "POLY", "LOGISTIC": "LINEAR"}.get(_each, "SIGMOID")
    SIMPLE[f"vectors of {_count} {_each} {_shares}"] = ("SVMClassifier", TWO, _vectors(_count, _kernel, _each, _shares))
for _name, _weights in (("mixed", WEIGHTS[: 2 * FEATURES]), ("positive", np.abs(WEIGHTS[: 2 * FEATURES]).tolist())):
    _more = {"coefficients": _weights, "rho": [0.1], "classlabels_ints": [4, 3], "kernel_params": [0.0] * 3}
    SIMPLE[f"vectors of none {_name}"] = ("SVMClassifier", TWO, _more)
_more = {"coefficients": WEIGHTS[:FEATURES], "rho": [0.1], "classlabels_ints": [4], "kernel_params": [0.0] * 3}
SIMPLE["vectors of none, one class"] = ("SVMClassifier", TWO, {**_more, "post_transform": "LOGISTIC"})


@pytest.mark.parametrize("name", SIMPLE)
def test_models_and_features(name: str) -> None:
    operator, outputs, attributes = SIMPLE[name]
    x = rows(20, missing=name.startswith(("imputer", "labels")))
    x[3] = 0
    more = (rows(9, missing=True), x[:0]) if name.startswith("vectors") else ()
    compare(made(operator, outputs, x, **attributes), x, x[:1], *more, tolerance=1e-4)


def test_features_by_place() -> None:
    x = rows(6)
    compare(made("ArrayFeatureExtractor", [("y", FLOAT)], x, more=np.array([3, 0, 3])), x, x[:1])


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_one_hot(dtype: str) -> None:
    x = rows(7, "int64").astype(dtype)
    compare(made("OneHotEncoder", [("y", FLOAT)], x, cats_int64s=[2, -1, 0, 1]), x, x[:1])


def test_maps_are_refused_by_name() -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    ends = [helper.make_tensor_value_info("x", FLOAT, ["n", 2])]
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(INT, helper.make_tensor_type_proto(FLOAT, [])))
    graph = helper.make_graph([node], "maps", ends, [helper.make_value_info("y", kind)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    source = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(
        af.GraphError, match="ZipMap 'ZipMap_y': maps cannot be loaded: export the model with zipmap=False"
    ):
        af.onnx.load(source)
    with pytest.raises(af.GraphError, match="Output 'y': is of type sequence"):
        af.onnx.load(source, backend="onnxruntime")
