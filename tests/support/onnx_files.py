"""ONNX files for tests: models of a few nodes, and the cases that the package onnx ships."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

Type = tuple[str, Sequence[Any] | None] | tuple[str, Sequence[Any] | None, Any]


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Type],
    outputs: Sequence[Type],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
    **options: Any,
) -> ModelProto:
    """A model of these nodes; inputs and outputs are (name, shape), or (name, shape, dtype).

    ONNX infers the type of an output whose shape is None.
    """
    graph = helper.make_graph(
        list(nodes),
        "test",
        [_info(*each) for each in inputs],
        [_info(*each) for each in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **options)
    if any(each[1] is None for each in outputs):
        made = onnx.shape_inference.infer_shapes(made, data_prop=True)
        del made.graph.value_info[:]
    return made


def _info(name: str, shape: Sequence[Any] | None, dtype: Any = "float32") -> onnx.ValueInfoProto:
    if shape is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


class Case(NamedTuple):
    """A case of the package onnx: a model, and what it gives for inputs."""

    name: str
    model: ModelProto
    runs: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


def cases(kind: str) -> Iterator[Case]:
    """The cases of a kind: "node", "simple", "pytorch-converted" or "pytorch-operator"."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of making the cases' own values
        found = load_model_tests(kind=kind)
    for case in found:
        if case.data_sets is None:
            proto, runs = _stored(case.model_dir)
        else:
            proto = case.model
            runs = [tuple([_array(each) for each in part] for part in run) for run in case.data_sets]
        yield Case(case.name, proto, runs, case.rtol, case.atol)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _stored(folder: str) -> tuple[ModelProto, list[tuple[list[Any], list[Any]]]]:
    proto, runs = onnx.load(os.path.join(folder, "model.onnx")), []
    for name in sorted(os.listdir(folder)):
        if name.startswith("test_data_set"):
            runs.append((_tensors(folder, name, "input"), _tensors(folder, name, "output")))
    return proto, runs


def _tensors(folder: str, name: str, kind: str) -> list[Any]:
    found = []
    while os.path.exists(path := os.path.join(folder, name, f"{kind}_{len(found)}.pb")):
        with open(path, "rb") as file:
            found.append(numpy_helper.to_array(TensorProto.FromString(file.read())))
    return found
