"""Files that PyTorch exports, with open axes, give what the modules give for inputs of several lengths."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import actorflow as af

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]


class Called(nn.Module):
    """A module of a function of its input and of other modules."""

    def __init__(self, function: Callable[..., Any], *parts: Any) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, *self.parts)


IMAGES, SEQUENCES = (2, 4, 12, 10), (2, 7, 16)
#: A module, the shape of its input, and its open axes.
MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...], tuple[int, ...]]] = {
    "network": (lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.BatchNorm2d(8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 5)), IMAGES, (0, 2, 3)),
    "decoder": (lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), nn.GroupNorm(2, 6), nn.SiLU(), nn.InstanceNorm2d(6, affine=True),
        nn.PReLU(6)), IMAGES, (0, 2, 3)),
    "unet": (lambda: Called(
        lambda x, a, b, c: c(torch.cat([F.interpolate(b(F.relu(a(x))[:, :, ::2, ::2]), scale_factor=2.0), a(x)], 1)),
        nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(12, 3, 1)), IMAGES, (0,)),
    "resized": (lambda: Called(lambda x: F.interpolate(
        F.max_pool2d(x, 2), size=x.shape[2:], mode="bilinear", align_corners=False) + x), IMAGES, (0, 2, 3)),
    "corners": (lambda: Called(lambda x: F.interpolate(x, size=(20, 17), mode="bilinear", align_corners=True)),
                IMAGES, (0,)),
    "shuffled": (lambda: nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)), IMAGES, (0, 2, 3)),
    "padded": (lambda: Called(lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect") + F.pad(x, (1, 2, 3, 0))),
                IMAGES, (0, 2)),
    "indices": (lambda: Called(lambda x: F.max_pool2d(x, 2, return_indices=True)), IMAGES, (0,)),
    "averaged": (lambda: Called(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
                IMAGES, (0,)),
    "unfolded": (lambda: Called(lambda x: F.unfold(x, 3, padding=1)), IMAGES, (0,)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.AvgPool3d(2)),
                (1, 2, 4, 6, 6), (0,)),
    "signals": (lambda: nn.Sequential(nn.Conv1d(7, 6, 3, padding=2, dilation=2), nn.BatchNorm1d(6), nn.MaxPool1d(2)),
                SEQUENCES, (0, 2)),
    "encoder": (lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, enable_nested_tensor=False), SEQUENCES, (0,)),
    "attention": (lambda: Called(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
                (2, 4, 7, 16), (0,)),
    "lstm": (lambda: Called(lambda x, m: m(x)[0], nn.LSTM(16, 8, 2, bidirectional=True, batch_first=True)),
                SEQUENCES, (0,)),
    "gru": (lambda: Called(lambda x, m: m(x)[0], nn.GRU(16, 8, bidirectional=True)), SEQUENCES, (1,)),
    "normal": (lambda: nn.LayerNorm(16), SEQUENCES, (0, 1)),
    "statistics": (lambda: Called(lambda x: torch.cat(
        [x.var(1, keepdim=True), x.std(1, keepdim=True), x.norm(dim=1, keepdim=True)], 1)), SEQUENCES, (0, 1)),
    "heads": (lambda: Called(lambda x: x.view(x.size(0), x.size(1), 4, 4).permute(0, 2, 1, 3).reshape(
        x.size(0) * 4, x.size(1), 4).mean(1)), SEQUENCES, (0, 1)),
    "windows": (lambda: Called(lambda x: x.view(x.size(0), x.size(1) // 2, 2, x.size(2) // 2, 2, 4).permute(
        0, 1, 3, 2, 4, 5).reshape(-1, 4, 4)), (2, 8, 6, 4), (0, 1, 2)),
    "positions": (lambda: Called(lambda x: x + torch.arange(x.size(1)).float().unsqueeze(-1) / x.size(1)),
                  SEQUENCES, (0, 1)),
    "expanded": (lambda: Called(lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1).flatten(0, 1)), SEQUENCES, (0, 1)),
    "scattered": (lambda: Called(lambda x: torch.zeros_like(x).scatter_add(1, torch.zeros_like(x).long() + 1, x)),
                  SEQUENCES, (0,)),
    "greatest": (lambda: Called(lambda x: (*torch.topk(x, 3, dim=1), x.amax(1), x.argmax(2))), SEQUENCES, (0,)),
    "rounded": (lambda: Called(lambda x: torch.remainder(x, 0.25) + torch.fmod(x, 0.25)), SEQUENCES, (0,)),
    "activations": (lambda: nn.Sequential(
        nn.GELU(), nn.ELU(), nn.SELU(), nn.CELU(), nn.Hardsigmoid(), nn.Softplus(), nn.Softsign(), nn.Mish(),
        nn.LeakyReLU(), nn.LogSigmoid(), nn.Tanhshrink(), nn.Softshrink(), nn.GLU(-1)), SEQUENCES, (0, 1)),
}  # fmt: skip


def exported(module: Any, x: Any, axes: Sequence[int] = (), **options: Any) -> bytes:
    """The file of a module."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        options |= {"opset_version": 17, "dynamic_axes": {"x": {axis: f"axis{axis}" for axis in axes}}}
        torch.onnx.export(module, (x,), file, dynamo=False, input_names=["x"], **options)
        logging.disable(logging.NOTSET)
    return file.getvalue()


@pytest.mark.parametrize("name", MODULES)
def test_exported_modules(name: str) -> None:
    make, shape, axes = MODULES[name]
    torch.manual_seed(0)
    module = make().eval()
    model = af.onnx.load(exported(module, torch.randn(*shape), axes))
    for more in (0, 2):
        x = torch.randn(*[n + more if axis in axes else n for axis, n in enumerate(shape)])
        with torch.no_grad():
            expected = module(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = model.run_sync({"x": x.numpy()})
        for got, want in zip(found.values(), [each.numpy() for each in expected], strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
