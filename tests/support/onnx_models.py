"""ONNX models for tests: trained ones, those of the onnx wheel with weights of chance, and torch's exports."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper


def reading(name: str) -> Path:
    """One of the three trained models of rapidocr_onnxruntime, ``det``, ``cls`` or ``rec``; skips the test without."""
    found = find_spec("rapidocr_onnxruntime")  # not imported, as it needs more than its files
    if found is None or found.origin is None:
        pytest.skip("rapidocr_onnxruntime is not installed: pip install 'actorflow[models]'")
    (path,) = Path(found.origin).with_name("models").glob(f"*_{name}_infer.onnx")
    return path


#: Models of the onnx wheel, without their weights.
LIGHT = sorted(path.stem for path in (Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


def light(name: str, seed: int = 0) -> Any:
    """A model of the onnx wheel with weights of chance, of a size that keeps values about as they are."""
    model = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light" / f"{name}.onnx")
    model.ir_version = 4  # the first whose initializers need not be inputs
    graph, rng = model.graph, np.random.default_rng(seed)
    shapes = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    uses = {tensor: (node.op_type, place) for node in graph.node for place, tensor in enumerate(node.input)}
    filled = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    for node in filled:
        graph.node.remove(node)
        graph.initializer.remove(next(each for each in graph.initializer if each.name == node.input[0]))
        graph.input.remove(next(each for each in graph.input if each.name == node.input[0]))
        operator, place = uses[node.output[0]]
        shape = tuple(shapes[node.input[0]].tolist())
        if operator == "BatchNormalization" and place in (1, 4):  # scale and variance
            values = rng.uniform(0.5, 1.5, shape)
        elif len(shape) > 1:
            transposed = operator == "Gemm" and not _attribute(model, node.output[0], "transB")
            fan_in = shape[0] if transposed else np.prod(shape[1:])
            values = rng.normal(0.0, np.sqrt(2 / fan_in), shape)
        else:
            values = rng.normal(0.5, 0.1, shape)
        graph.initializer.append(numpy_helper.from_array(values.astype("f"), node.output[0]))
    return model


def _attribute(model: Any, weight: str, name: str) -> Any:
    (node,) = [node for node in model.graph.node if weight in node.input]
    return next((onnx.helper.get_attribute_value(each) for each in node.attribute if each.name == name), 0)


def exported(
    module: Any, inputs: Mapping[str, Any], open_axes: Mapping[str, Mapping[int, str]], *, folded: bool = True
) -> bytes:
    """What torch exports of a module in inference mode, for inputs by name.

    Args:
        module: The module.
        inputs: Examples.
        open_axes: Names of axes, by the names of inputs and of the output, ``y``.
        folded: Whether batch normalizations become part of the convolutions before them.
    """
    import torch

    written = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is the old one, and of lengths that it takes as constants
        torch.onnx.export(
            module.eval(),
            tuple([torch.as_tensor(each) for each in inputs.values()]),
            written,
            input_names=[*inputs],
            output_names=["y"],
            dynamic_axes={name: dict(axes) for name, axes in open_axes.items()},
            opset_version=17,
            training=torch.onnx.TrainingMode.EVAL if folded else torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=folded,
            dynamo=False,
        )
    return written.getvalue()


def resnet18(classes: int = 10, seed: int = 0) -> Any:
    """ResNet-18 in torch, as torchvision has it, with normalizations as if it had been trained."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels_in: int, channels: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(channels)
            self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(channels)
            self.downsample = None
            if stride != 1 or channels_in != channels:
                self.downsample = nn.Sequential(
                    nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
                )

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            sizes = (64, 64, 128, 256, 512)
            self.layers = nn.Sequential(
                *[
                    nn.Sequential(Block(before, after, 1 if before == after else 2), Block(after, after, 1))
                    for before, after in pairwise(sizes)
                ]
            )
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(512, classes)

        def forward(self, x: Any) -> Any:
            x = self.layers(self.maxpool(torch.relu(self.bn1(self.conv1(x)))))
            return self.fc(torch.flatten(self.avgpool(x), 1))

    torch.manual_seed(seed)
    module = ResNet()
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.running_mean.normal_(0.0, 0.1)
            each.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(each.weight, 0.5, 1.5)
            nn.init.normal_(each.bias, 0.0, 0.1)
    return module.eval()


def encoder(seed: int = 0) -> Any:
    """A small transformer encoder in torch: two layers of four heads, over words by their numbers."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.output = nn.Linear(32, 96), nn.Linear(32, 32)
            self.norms = nn.ModuleList([nn.LayerNorm(32), nn.LayerNorm(32)])
            self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x: Any) -> Any:
            batch, time, _ = x.shape
            parts = self.inputs(self.norms[0](x)).reshape(batch, time, 3, 4, 8).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
            x = x + self.output(mixed.transpose(1, 2).reshape(batch, time, 32))
            return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 32)
            self.layers = nn.Sequential(Layer(), Layer())
            self.scores = nn.Linear(32, 7)

        def forward(self, words: Any) -> Any:
            return self.scores(self.layers(self.embedding(words)))

    torch.manual_seed(seed)
    return Encoder().eval()


def gru(seed: int = 0) -> Any:
    """A GRU in both directions in torch, and scores of each step."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(8, 16, 2, batch_first=True, bidirectional=True)
            self.scores = nn.Linear(32, 5)

        def forward(self, x: Any) -> Any:
            return self.scores(self.gru(x)[0])

    torch.manual_seed(seed)
    return Net().eval()
