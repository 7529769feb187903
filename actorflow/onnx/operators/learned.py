"""Operators of ai.onnx.ml, as scikit-learn, LightGBM and XGBoost are exported, on arrays of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from actorflow import ops
from actorflow.errors import ShapeError
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import as_type, mapped
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers
from actorflow.onnx.values import Array, Value
from actorflow.ops.cpu.buffers import compiled, is_plain, plain
from actorflow.ops.cpu.kept import kept
from actorflow.ops.operation import Application, Grads, Operation, savable
from actorflow.ops.registry import kernel
from actorflow.spec import Length, TensorSpec

_ML = "ai.onnx.ml:"
#: By the number or the name of a transformation: what becomes of scores along the last axis.
_TRANSFORMS: dict[str | int, Callable[[Any], Any]] = {
    "NONE": lambda x: x, "SOFTMAX": ops.softmax, "LOGISTIC": ops.sigmoid,
    "SOFTMAX_ZERO": lambda x: ops.where(ops.equal(x, 0.0), 0.0, ops.softmax(x)),
}  # fmt: skip
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_COMPARE: tuple[Callable[..., Any], ...] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal
)  # fmt: skip
_AGGREGATES: dict[str | int, str] = {
    "SUM": "sum", "AVERAGE": "mean", "MIN": "min", "MAX": "max", 0: "mean", 1: "sum", 2: "min", 3: "max"
}  # fmt: skip
#: Types of numbers that compiled code compares and adds up.
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))
#: Aggregates in the order of the numbers that compiled code knows them by.
_HOW = ("sum", "mean", "min", "max")
#: Numbers of leaves that are added up at a time.
_AT_A_TIME = 1 << 20


def _transformed(x: Any, how: str | int) -> Any:
    how = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[how] if isinstance(how, int) else how
    if how not in _TRANSFORMS:
        raise Refused(f"post_transform {how} is not supported")
    return _TRANSFORMS[how](x)


def _floats(node: Node, value: Value) -> Any:
    """Rows of an input, as floating-point numbers."""
    blob = value.blob()
    blob = ops.reshape(blob, (1, *blob.shape)) if value.rank == 1 else blob
    return blob if blob.dtype.kind == "f" else as_type(blob, np.dtype(np.float32))


def _row(node: Node, numbers: Sequence[float] | None, count: int = 1) -> Any:
    return constant(node.graph, np.asarray(numbers or [0.0] * count, np.float32))


def _labels(node: Node) -> Array:
    """The labels of classes, which must be numbers if they are asked for."""
    texts = node.attribute("classlabels_strings") or []
    if texts and node.wants(0):
        raise Refused("its labels are text")
    return np.asarray(
        [*range(len(texts))] or node.attribute("classlabels_int64s") or node.attribute("classlabels_ints")
    )


# -- trees -------------------------------------------------------------------------------------------------------------


class _Nodes(NamedTuple):
    """Nodes of all trees in one numbering, leaves among them, which lead to themselves."""

    feature: Array
    split: Array
    mode: Array
    missing: Array  # whether NaN goes the way of true
    children: Array  # (nodes, 2): where false and true lead
    roots: Array
    weights: Array  # (nodes, targets)


@savable
@dataclass(frozen=True)
class Trees(Operation):
    """Values of the leaves that rows end in: sums, means, least or largest numbers of all trees.

    Attributes:
        depth: Most decisions from a root to a leaf.
        modes: How nodes compare, as numbers of `_COMPARE`.
        aggregate: How the numbers of the trees become one.
        features: Number of features that they ask for.
    """

    arguments = ("x", "nodes", "split", "roots", "weights")  # of nodes: the other columns of `_Nodes` side by side
    differentiable = False

    depth: int
    modes: tuple[int, ...]
    aggregate: str
    features: int

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, weights = inputs[0], inputs[-1]
        if len(x.shape) != 2:
            raise ShapeError(f"{self}: rows of features are needed, got {x}")
        given: Any = x.shape[1]
        if not isinstance(given, Length) and given < self.features:
            raise ShapeError(f"{self}: its trees ask for {self.features} features, got {x}")
        return (TensorSpec((x.shape[0], weights.shape[1]), weights.dtype),)

    def compute(self, *inputs: Any) -> Any:
        x, *_, roots, weights = inputs
        found = np.empty((len(x), weights.shape[1]))
        step, tables = max(1, _AT_A_TIME // weights[roots].size), _unpacked(*inputs[1:])
        added = (np.add, np.add, np.minimum, np.maximum)[_HOW.index(self.aggregate)]
        for start in range(0, len(x), step):
            said = weights.take(self._ends(x[start : start + step], tables), axis=0).astype(np.float64)
            found[start : start + step] = added.accumulate(said, axis=1)[:, -1]  # in the order of the trees
        if self.aggregate == "mean":
            found /= len(roots)
        elif added is not np.add:
            found[np.isinf(found)] = 0  # no leaf has said anything
        return found.astype(weights.dtype, copy=False)

    def _ends(self, x: Array, nodes: _Nodes) -> Array:
        """The leaf of each tree that each row ends in."""
        feature, split, mode, missing, children, roots, _ = nodes
        row, pairs = np.arange(len(x))[:, np.newaxis], children.reshape(-1)
        at, flat = np.broadcast_to(roots, (len(x), len(roots))), x.reshape(-1)
        for _ in range(self.depth):
            value = flat.take(feature.take(at) + row * x.shape[1])
            at = pairs.take(2 * at + self._goes(value, split.take(at), mode.take(at), missing.take(at)))
        return at

    def _goes(self, value: Array, split: Array, mode: Array, missing: Array) -> Array:
        """Whether the way of true is taken, for nodes side by side."""
        goes: Array = _COMPARE[self.modes[0]](value, split)
        for each in self.modes[1:]:
            goes = np.where(mode == each, _COMPARE[each](value, split), goes)
        return goes | (missing & np.isnan(value)) if value.dtype.kind == "f" else goes


def _bound(operation: Trees, specs: Sequence[TensorSpec]) -> Callable[..., list[Array]]:
    """Compiled code for trees, where there is one for numbers of these types."""
    module, dtype = compiled("trees"), specs[-1].dtype
    if module is None or specs[0].dtype not in _WIDE or dtype not in _WIDE:
        return lambda operation, inputs, _: [operation.compute(*inputs)]
    forest, how, make = kept(operation).derived("trees"), _HOW.index(operation.aggregate), partial(_forest, module)

    def compute(_: Trees, inputs: list[Array], outputs: None) -> list[Array]:
        found = forest.of(inputs[1:], make).of(plain(inputs[0]), how)
        return [found if dtype == found.dtype else found.astype(dtype)]

    return compute


@kernel(Trees, returns=True, keeps=True, bind=_bound)
def _rows_of_trees(operation: Trees, inputs: list[Array], _outputs: None) -> list[Array]:
    return _bound(operation, [TensorSpec(each.shape, each.dtype) for each in inputs])(operation, inputs, None)


def _unpacked(nodes: Array, split: Array, roots: Array, weights: Array) -> _Nodes:
    feature, mode, missing = np.ascontiguousarray(nodes.T[:3])
    return _Nodes(feature, split, mode, missing != 0, np.ascontiguousarray(nodes[:, 3:]), roots, weights)


def _forest(module: Any, *tables: Array) -> Any:
    """The same trees for compiled code."""
    trees = _unpacked(*tables)
    nodes = np.empty(len(trees.feature), module.NODE)
    columns = (trees.split, trees.feature, *trees.children.T, trees.mode, trees.missing)
    for name, each in zip(module.NODE["names"], columns, strict=True):
        nodes[name] = each
    is_leaf = (trees.children == np.arange(len(nodes))[:, np.newaxis]).all(axis=1)
    nodes["how"][is_leaf] = nodes["missing"][is_leaf] = 0
    return module.Forest(nodes, trees.roots.astype(np.int32), np.ascontiguousarray(trees.weights, np.float64))


def _depth(nodes: _Nodes) -> int:
    """Most decisions from a root to a leaf."""
    at, depth = nodes.roots, 0
    while True:
        below = nodes.children[at]
        found = np.zeros(len(nodes.feature), bool)
        found[below[below != at[:, np.newaxis]]] = True
        at = np.flatnonzero(found)
        if not at.size:
            return depth
        depth += 1
        if depth > len(nodes.feature):
            raise Refused("its trees have a cycle")


def _trees(node: Node, nodes: _Nodes, aggregate: str) -> Any:
    x = _floats(node, node.x)
    count = len(nodes.feature)
    for name, places in (("nodes", nodes.children), ("roots", nodes.roots)):
        if places.size and (places.min() < 0 or places.max() >= count):
            raise Refused(f"{name} are not among its {count} nodes")
    if nodes.mode.size and not 0 <= nodes.mode.min() <= nodes.mode.max() < len(_COMPARE):
        raise Refused("its nodes decide in ways that are not known")
    if not nodes.roots.size or nodes.feature.min() < 0:
        raise Refused("it has no trees, or they ask for features of negative numbers")
    modes = tuple(sorted({*nodes.mode[(nodes.children != np.arange(count)[:, None]).any(axis=1)].tolist()}))
    how = Trees(_depth(nodes), modes or (0,), aggregate, 1 + int(nodes.feature.max()))
    table = np.column_stack((nodes.feature, nodes.mode, nodes.missing, nodes.children)).astype(np.int64)
    tables = table, nodes.split, nodes.roots, nodes.weights
    return node.graph.apply(how, x, *[constant(node.graph, each) for each in tables])


def _numbers(node: Node, name: str, kind: Any = None) -> Array:
    """An attribute, or that of its name with ``_as_tensor``, as an array."""
    given = node.attribute(name)
    given = given or node.attribute(f"{name}_as_tensor")
    return np.asarray([] if given is None else given, kind)


def _unsaid(aggregate: str, shape: tuple[int, int], kind: Any) -> Array:
    """Value of leaves for targets that they have none for."""
    return np.full(shape, {"min": np.inf, "max": -np.inf}.get(aggregate, 0), kind)


def _by_ids(node: Node, prefix: str, aggregate: str) -> tuple[_Nodes, Array]:
    """Trees of the first versions, whose nodes have numbers in each tree; and the targets that their leaves have."""
    keys = [*zip(node.attribute("nodes_treeids"), node.attribute("nodes_nodeids"), strict=True)]
    places = {key: i for i, key in enumerate(keys)}
    own, names = np.arange(len(keys)), node.attribute("nodes_modes")
    is_leaf = np.asarray([name == "LEAF" for name in names])
    ways = []
    for name in ("nodes_falsenodeids", "nodes_truenodeids"):
        ids = zip(keys, node.attribute(name), is_leaf, own, strict=True)
        ways.append([i if leaf else places[tree, n] for (tree, _), n, leaf, i in ids])
    children = np.asarray(ways, np.int64).T
    roots = sorted({*own.tolist()} - {*children[~is_leaf].reshape(-1).tolist()})
    targets = _numbers(node, f"{prefix}_ids", np.int64)
    weights = _numbers(node, f"{prefix}_weights")
    kind = (
        np.float64
        if weights.dtype == np.float64 and node.attribute(f"{prefix}_weights_as_tensor") is not None
        else np.float32
    )
    labels = node.attribute("classlabels_strings") or node.attribute("classlabels_int64s") or ()
    wide = len(labels) or int(node.attribute("n_targets") or 0)
    spend(len(keys), wide)
    table = _unsaid(aggregate, (len(keys), wide), kind)
    at = [
        places[key]
        for key in zip(node.attribute(f"{prefix}_treeids"), node.attribute(f"{prefix}_nodeids"), strict=True)
    ]
    table[at, targets] = 0
    np.add.at(table, (np.asarray(at), targets), weights.astype(kind))
    missing = _numbers(node, "nodes_missing_value_tracks_true", bool)
    split = _numbers(node, "nodes_values")
    exact = (
        np.float64 if node.attribute("nodes_values_as_tensor") is not None and split.dtype == np.float64 else np.float32
    )
    modes = np.asarray([0 if name == "LEAF" else _MODES.index(name) for name in names], np.int64)
    missing = missing if missing.size else np.zeros(len(keys), bool)
    feature = np.where(is_leaf, 0, node.attribute("nodes_featureids"))
    return _Nodes(feature, split.astype(exact), modes, missing, children, np.asarray(roots), table), targets


@lowers(f"{_ML}TreeEnsembleRegressor", limits="post_transform PROBIT")
def _tree_regressor(node: Node) -> Value:
    aggregate = _AGGREGATES[node.attribute("aggregate_function", "SUM")]
    y = as_type(_trees(node, _by_ids(node, "target", aggregate)[0], aggregate), np.dtype(np.float32))
    base = _numbers(node, "base_values", np.float32).tolist()
    return node.usual(_transformed(y + _row(node, base) if base else y, node.attribute("post_transform")))


@lowers(f"{_ML}TreeEnsembleClassifier", limits="post_transform PROBIT, labels that are text")
def _tree_classifier(node: Node) -> list[Value | None]:
    nodes, classes = _by_ids(node, "class", "sum")
    labels, base = _labels(node), _numbers(node, "base_values", np.float32).tolist()
    post, is_one = node.attribute("post_transform"), len(labels) == 2 and len({*classes.tolist()}) == 1
    if is_one:  # what is said of the other class follows from that
        nodes = nodes._replace(weights=nodes.weights[:, classes[:1]])
    y = as_type(_trees(node, nodes, "sum"), np.dtype(np.float32))
    if not is_one:
        return _classified(node, y + _row(node, base) if base else y, labels, post)
    if base:
        y = y + _row(node, base[-1:])
    is_share = bool((nodes.weights >= 0).all()) and len(base) != 2
    return _one_score(node, y, labels, post, 0.5 if is_share else 0.0, is_share=is_share)


def _classified(node: Node, scores: Any, labels: Array, post: str) -> list[Value | None]:
    """The labels of the largest scores, and all scores."""
    return [_label(node, labels, ops.argmax(scores, 1)), node.usual(_transformed(scores, post))]


def _label(node: Node, labels: Array, place: Any) -> Value | None:
    """The label at a place for each row; None if nobody asks for it."""
    return node.usual(ops.take(constant(node.graph, labels), place)) if node.wants(0) else None


@savable
@dataclass(frozen=True)
class OneScore(Operation):
    """The label that a score decides between two, and the scores of both.

    Attributes:
        labels: The labels; the second one is that of scores above the border.
        border: The border.
        is_share: Whether the other class has what is left of 1, or the score with the other sign.
    """

    labels: tuple[int, int]
    border: float
    is_share: bool

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        return TensorSpec((x.shape[0],), np.dtype(np.int64)), TensorSpec((x.shape[0], 2), x.dtype)

    def compute(self, *inputs: Any) -> Any:
        (x,) = inputs
        if (module := compiled("trees")) is not None and x.dtype == np.float32 and is_plain(x):
            return module.of_one(x, *self.labels, self.border, self.is_share)
        scores = np.multiply(x, x.dtype.type((-1, 1)))
        scores[:, 0] += self.is_share
        return np.array(self.labels).take(scores[:, 1] > self.border), scores

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        other, own = ops.split(grads[1], 2, axis=1)
        return [own - other]


def _one_score(node: Node, y: Any, labels: Array, post: str, border: float, *, is_share: bool) -> list[Value | None]:
    """The label that one score (rows, 1) decides between two, and the scores of both."""
    a, b = labels.tolist()
    label, scores = node.graph.apply(OneScore((a, b), border, is_share and post != "LOGISTIC"), y)
    return [node.usual(label) if node.wants(0) else None, node.usual(_transformed(scores, post))]


@lowers(f"{_ML}TreeEnsemble", limits="post_transform PROBIT")
def _tree_ensemble(node: Node) -> Value:
    count = len(node.attribute("nodes_featureids"))
    leaves = np.asarray(node.attribute("leaf_weights"))
    splits, modes = np.asarray(node.attribute("nodes_splits")), np.asarray(node.attribute("nodes_modes"), np.int64)
    ways = []
    for name in ("false", "true"):
        is_leaf = np.asarray(node.attribute(f"nodes_{name}leafs"), np.int64)
        ways.append(np.asarray(node.attribute(f"nodes_{name}nodeids"), np.int64) + count * is_leaf)
    total, own = count + len(leaves), np.arange(count, count + len(leaves))
    kinds: tuple[Any, ...] = (np.int64, splits.dtype, np.int64, bool, np.int64, np.int64)
    missing = node.attribute("nodes_missing_value_tracks_true") or [0] * count
    given: tuple[Any, ...] = (node.attribute("nodes_featureids"), splits, modes, missing, *ways)
    columns = [np.asarray(each, kind) for each, kind in zip(given, kinds, strict=True)]
    more = [np.zeros(0, kind) for kind in kinds]
    if (modes == _MODES.index("BRANCH_MEMBER")).any():
        table = [[*each] for each in zip(*map(np.ndarray.tolist, columns), strict=True)]
        _spell_out(table, np.asarray(node.attribute("membership_values")), count, total)
        columns, more = (
            [np.array([row[i] for row in part], kind) for i, kind in enumerate(kinds)]
            for part in (table[:count], table[count:])
        )
    extra = len(more[0])  # nodes that members became, behind the leaves
    ends = (*[np.zeros(len(own), kind) for kind in kinds[:4]], own, own)
    columns = [np.concatenate(each) for each in zip(columns, ends, more, strict=True)]
    wide = int(node.attribute("n_targets") or 1)
    spend(total + extra, wide)
    aggregate = _AGGREGATES[int(node.attribute("aggregate_function", 1))]
    weights = _unsaid(aggregate, (total + extra, wide), leaves.dtype)
    weights[own, node.attribute("leaf_targetids")] = leaves
    roots = np.asarray(node.attribute("tree_roots"), np.int64)
    nodes = _Nodes(columns[0], columns[1], columns[2], columns[3], np.stack(columns[4:], axis=1), roots, weights)
    y = _trees(node, nodes, aggregate)
    return node.usual(_transformed(y, int(node.attribute("post_transform", 0))))


def _spell_out(table: list[list[Any]], members: Array, count: int, total: int) -> None:
    """Have a node that asks whether a number is one of several ask for one after the other."""
    parts = iter(np.split(members, np.flatnonzero(np.isnan(members))))
    for row in table[:count]:
        if _MODES[row[2]] != "BRANCH_MEMBER":
            continue
        wanted = [each for each in next(parts).tolist() if each == each] or [np.nan]
        row[2], last = _MODES.index("BRANCH_EQ"), row
        row[1] = wanted[0]
        for value in wanted[1:]:
            nxt = [row[0], value, row[2], row[3], last[4], row[5]]
            last[4] = total + len(table) - count
            table.append(nxt)
            last = nxt


# -- linear models, and what prepares features -------------------------------------------------------------------------


@lowers(f"{_ML}LinearRegressor", limits="post_transform PROBIT")
def _linear_regressor(node: Node) -> Value:
    targets = int(node.attribute("targets", 1))
    y = _products(node, targets, node.attribute("intercepts"))
    return node.usual(_transformed(y, node.attribute("post_transform")))


def _products(node: Node, count: int, intercepts: Sequence[float] | None) -> Any:
    """Rows times the coefficients of so many outputs."""
    weight = np.asarray(node.attribute("coefficients"), np.float32).reshape(count, -1)
    x = as_type(_floats(node, node.x), np.dtype(np.float32))
    return ops.inner(x, constant(node.graph, weight)) + _row(node, intercepts, count)


@lowers(f"{_ML}LinearClassifier", limits="post_transform PROBIT, labels that are text")
def _linear_classifier(node: Node) -> list[Value | None]:
    labels, intercepts = _labels(node), node.attribute("intercepts")
    features = node.x.shape[-1]
    count = len(intercepts) if intercepts else len(node.attribute("coefficients")) // int(features)
    y, post = _products(node, count, intercepts), node.attribute("post_transform")
    if count == 1 and len(labels) == 2:
        return _one_score(node, y, labels, post, 0.0, is_share=True)
    return _classified(node, y, labels, post)


@lowers(f"{_ML}SVMRegressor", limits="post_transform other than NONE")
def _svm_regressor(node: Node) -> Value:
    if node.attribute("post_transform", "NONE") != "NONE":
        raise Refused("post_transform is not supported")
    coefficients, rho = np.asarray(node.attribute("coefficients"), np.float32), node.attribute("rho")
    x = _kernels(node, int(node.attribute("n_supports", 0)))
    y = ops.inner(x, constant(node.graph, coefficients.reshape(1, -1))) + _row(node, rho)
    return node.usual(ops.where(y > 0.0, 1.0, y.constant_like(-1.0)) if node.attribute("one_class", 0) else y)


def _kernels(node: Node, count: int) -> Any:
    """The kernel of each of so many support vectors with each row; the rows themselves if there are none."""
    x = as_type(_floats(node, node.x), np.dtype(np.float32))
    if not count:
        return x
    support = np.asarray(node.attribute("support_vectors"), np.float32).reshape(count, -1)
    gamma, offset, degree = node.attribute("kernel_params") or (0.0, 0.0, 0.0)
    kind = node.attribute("kernel_type", "LINEAR")
    if kind == "RBF":
        return ops.exp(ops.sum(ops.square(ops.expand_dims(x, 1) - constant(node.graph, support)), 2) * -gamma)
    x = ops.inner(x, constant(node.graph, support))
    if kind == "LINEAR":
        return x
    x = x * gamma + offset
    return ops.tanh(x) if kind == "SIGMOID" else x**degree


@lowers(f"{_ML}SVMClassifier", limits="post_transform PROBIT, labels that are text")
def _svm_classifier(node: Node) -> list[Value | None]:
    labels, post = _labels(node), node.attribute("post_transform")
    coefficients, rho = (np.asarray(node.attribute(name), np.float32) for name in ("coefficients", "rho"))
    count, per_class = len(labels), node.attribute("vectors_per_class") or []
    x = _kernels(node, sum(per_class))
    if not sum(per_class):
        scores = ops.inner(x, constant(node.graph, coefficients.reshape(count, -1))) + float(rho[0])
        if count != 2 or node.attribute("prob_a"):
            return _classified(node, scores, labels, post if count > 1 or post == "PROBIT" else "NONE")
        best, place = ops.max(scores, 1), ops.argmax(scores, 1)
        is_second = best >= 0.5 if (coefficients >= 0).all() else best > 0
        place = ops.where(is_second, place.constant_like(1), place)
        return [_label(node, labels, place), node.usual(_transformed(scores, post))]
    edges, table = np.cumsum([0, *per_class]), coefficients.reshape(count - 1, -1)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    weight, votes = np.zeros((len(pairs), table.shape[1]), "f"), np.zeros((count, len(pairs)), "f")
    for n, (i, j) in enumerate(pairs):
        for own, other in ((i, j - 1), (j, i)):
            part = slice(edges[own], edges[own + 1])
            weight[n, part] = table[other, part]
        votes[[i, j], n] = 1, -1  # of the first, where the score is above 0
    scores = ops.inner(x, constant(node.graph, weight)) + constant(node.graph, rho[: len(pairs)])
    won = ops.inner(ops.cast(scores > 0, "float32"), constant(node.graph, votes))
    place = ops.argmax(won + constant(node.graph, (votes < 0).sum(axis=1).astype("f")), 1)
    if node.attribute("prob_a"):
        a, b = (constant(node.graph, np.asarray(node.attribute(f"prob_{c}")[: len(pairs)], "f")) for c in "ab")
        shares = ops.clip(ops.sigmoid(-(scores * a + b)), 1e-7, 1 - 1e-7)
        scores = node.graph.apply(Coupled(count), shares)
    elif count == 2:
        post, second = ("NONE", 1.0 - scores) if post.startswith("SOFTMAX") else (post, -scores)
        scores = ops.concat([second, scores], axis=1)
    return [_label(node, labels, place), node.usual(_transformed(scores, post))]


@savable
@dataclass(frozen=True)
class Coupled(Operation):
    """Probabilities of classes, from those of the first of each two: Wu, Lin and Weng, 2004, method 2.

    Attributes:
        classes: Number of classes.
    """

    arguments = ("pairs",)
    differentiable = False

    classes: int

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec((inputs[0].shape[0], self.classes), inputs[0].dtype),)

    def compute(self, *inputs: Any) -> Any:
        (pairs,) = inputs
        count, (i, j) = self.classes, np.triu_indices(self.classes, 1)
        r = np.zeros((len(pairs), count, count), pairs.dtype)
        r[:, i, j], r[:, j, i] = pairs, 1 - pairs
        q = -r * r.swapaxes(1, 2)
        q[:, range(count), range(count)] = np.square(r).sum(axis=1)
        found = np.full((len(pairs), count), 1 / count, pairs.dtype)
        at = np.arange(len(pairs))
        for _ in range(100):
            p, q_at = found[at], q[at]
            qp = (q_at @ p[:, :, np.newaxis])[:, :, 0]
            sums = (p * qp).sum(axis=1)
            is_open = (
                np.abs(qp - sums[:, np.newaxis]).max(axis=1) >= 0.005 / count
            )  # as libsvm: a row of NaN is shared out evenly
            at, p, q_at, qp, sums = (each[is_open] for each in (at, p, q_at, qp, sums))
            if not at.size:
                break
            for n in range(count):
                own = q_at[:, n, n]
                step = (sums - qp[:, n]) / own
                more = (1 + step)[:, np.newaxis]
                p[:, n] += step
                sums = (sums + step * (step * own + 2 * qp[:, n])) / (1 + step) ** 2
                qp = (qp + step[:, np.newaxis] * q_at[:, n]) / more
                p /= more
            found[at] = p
        return found


@lowers(f"{_ML}Scaler")
def _scaler(node: Node) -> Value:
    x = as_type(node.x.blob(), np.dtype(np.float32))
    offset, scale = node.attribute("offset"), node.attribute("scale")
    x = x - _row(node, offset) if offset else x
    return node.usual(x * _row(node, scale) if scale else x)


@lowers(f"{_ML}Normalizer")
def _normalizer(node: Node) -> Value:
    x = as_type(node.x.blob(), np.dtype(np.float32))
    kind = node.attribute("norm", "MAX")
    if kind == "L2":
        norm = ops.sqrt(ops.sum(ops.square(x), -1, keepdims=True))
    else:
        norm = ops.max(x, -1, keepdims=True) if kind == "MAX" else ops.sum(ops.absolute(x), -1, keepdims=True)
    return node.usual(ops.where(ops.equal(norm, 0.0), x, x / norm))


@lowers(f"{_ML}ArrayFeatureExtractor")
def _features(node: Node) -> Value:
    x, places = node.x.blob(), node.value(1).blob()
    x = ops.reshape(x, (1, *x.shape)) if node.x.rank == 1 else x
    return node.usual(ops.take(x, ops.reshape(places, (-1,)), len(x.shape) - 1))


@lowers(f"{_ML}Binarizer")
def _binarizer(node: Node) -> Value:
    return mapped(node, lambda x: ops.cast(x > node.attribute("threshold", 0.0), x.dtype), node.x)


@lowers(f"{_ML}Imputer")
def _imputer(node: Node) -> Value:
    x = node.x.blob()
    kind = "float" if x.dtype.kind == "f" else "int64"
    wanted, instead = node.attribute(f"replaced_value_{kind}"), node.attribute(f"imputed_value_{kind}s")
    is_missing = ops.isnan(x) if wanted is None or wanted != wanted else ops.equal(x, wanted)
    return node.usual(ops.where(is_missing, constant(node.graph, np.asarray(instead, x.dtype)), x))


@lowers(f"{_ML}FeatureVectorizer")
def _vectorizer(node: Node) -> Value:
    parts = [_floats(node, node.value(i)) for i in range(len(node.inputs))]
    return node.usual(ops.concat([as_type(each, np.dtype(np.float32)) for each in parts], axis=1))


def _places(node: Node, x: Any, known: Array) -> tuple[Any, Any]:
    """For each element, where it is among known ones, and whether it is."""
    spend(*x.shape, known.size, size=1)
    equal = ops.equal(ops.expand_dims(x, -1), constant(node.graph, known.astype(x.dtype)))
    if known.dtype.kind == "f" and np.isnan(known).any():
        equal = ops.logical_or(
            equal, ops.logical_and(ops.isnan(ops.expand_dims(x, -1)), constant(node.graph, np.isnan(known)))
        )
    return ops.argmax(ops.cast(equal, "int32"), -1), ops.any(equal, -1)


@lowers(f"{_ML}OneHotEncoder", limits="text")
def _one_hot_encoder(node: Node) -> Value:
    known = node.attribute("cats_int64s")
    if not known or not node.attribute("zeros", 1):
        raise Refused("categories are text" if not known else "it fails for other numbers, zeros=0")
    x = node.x.blob()
    x = as_type(x, np.dtype(np.int64)) if x.dtype.kind == "f" else x
    places, is_known = _places(node, x, np.asarray(known))
    hot = ops.one_hot(places, len(known), "float32")
    return node.usual(hot * ops.cast(ops.expand_dims(is_known, -1), "float32"))


@lowers(f"{_ML}LabelEncoder", limits="text")
def _label_encoder(node: Node) -> Value:
    keys, values = (_first(node, f"{what}_", ("tensor", "int64s", "floats")) for what in ("keys", "values"))
    default = node.attribute("default_tensor")
    if default is None:
        default = node.attribute("default_int64" if values.dtype.kind == "i" else "default_float")
    if keys.dtype.kind in "OSUT" or values.dtype.kind in "OSUT" or not keys.size:
        raise Refused("text cannot be loaded")
    places, is_known = _places(node, node.x.blob(), keys)
    found = ops.take(constant(node.graph, values), places)
    return node.usual(ops.where(is_known, found, constant(node.graph, np.asarray(default, values.dtype).reshape(()))))


def _first(node: Node, prefix: str, names: Iterable[str]) -> Array:
    """The first attribute of these that is given, as ONNX's numbers are."""
    for name in names:
        given = node.attribute(prefix + name)
        if given is not None and len(given):
            return np.asarray(given, {"int64s": np.int64, "floats": np.float32}.get(name))
    raise Refused("text cannot be loaded")
