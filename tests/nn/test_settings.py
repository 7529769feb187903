"""Settings of layers, models, initializers, rates and optimizers that are out of range."""

import pytest

import actorflow as af
from actorflow import nn
from actorflow.nn import init, rates


@pytest.mark.together(
    ("make", "message"),
    [
        (lambda: nn.Conv(0, 3), "Conv: outputs must be at least 1, got 0"),
        (lambda: nn.Conv(5, 3, groups=2), "Conv: channels, 5, must be a multiple of groups, got 2"),
        (lambda: nn.ConvTranspose(4, 3, groups=0), "ConvTranspose: groups must be at least 1, got 0"),
        (lambda: nn.Conv(1, 3, activation="mish"), "Conv: activation must be one of relu, sigmoid, tanh, softmax"),
        (lambda: nn.Activation("mish"), "Activation: activation must be one of relu, .*, got 'mish'"),
        (lambda: nn.Pool("median", 2), "Pool: kind must be 'max' or 'average', got 'median'"),
        (lambda: nn.Dropout(1.0), "Dropout: rate must be at least 0 and less than 1, got 1.0"),
        (lambda: nn.Dropout(0.5, seed=-1), r"Dropout: seed must be from 0 to 18446744073709551615, got -1"),
        (lambda: nn.NINBlock(3, ()), "NINBlock: channels must name at least one"),
        (lambda: nn.NIN(10, ()), "NIN: widths must name at least one"),
        (lambda: nn.BatchNorm(1.5), "BatchNorm: momentum must be from 0 to 1, got 1.5"),
        (lambda: nn.BatchNorm(epsilon=-1), "BatchNorm: epsilon must not be negative, got -1"),
        (lambda: nn.LayerNorm(0), "LayerNorm: axes must be at least 1, got 0"),
        (lambda: nn.LayerNorm(epsilon=-1), "LayerNorm: epsilon must not be negative, got -1"),
        (lambda: nn.RMSNorm(-1), "RMSNorm: epsilon must not be negative, got -1"),
        (lambda: nn.GRU(1, 0), "GRU: layers must be at least 1, got 0"),
        (lambda: nn.LSTM(0), "LSTM: hidden must be at least 1, got 0"),
        (lambda: nn.LSTMCell(0), "LSTMCell: hidden must be at least 1, got 0"),
        (lambda: nn.NIN(10, (4, 4), kernels=(3, 4)), r"NIN: kernels must be odd, .* each of 2 blocks, got \[3, 4\]"),
        (lambda: nn.NIN(10, (4, 4), kernels=(3,)), r"NIN: kernels must be odd, .* each of 2 blocks, got \[3\]"),
        (lambda: nn.NIN(10, (4, 4), pools=("max",) * 2), "NIN: pools must be one for all or for each of 1 poolings"),
        (lambda: nn.LeNet(10, (4, 4)), r"LeNet: widths must be 3 numbers, got \(4, 4\)"),
        (lambda: nn.VGG(size=12), "VGG: size must be one of 11, 13, 16, 19, got 12"),
        (lambda: nn.ResNet(size=20), "ResNet: size must be one of 18, 34, 50, 101, 152, got 20"),
        (lambda: nn.MobileNetV3(size="tiny"), "MobileNetV3: size must be one of large, small, got 'tiny'"),
        (lambda: nn.Embedding(0, 3), "Embedding: count must be at least 1, got 0"),
        (lambda: nn.Inception(1, 1, 1, 1, 1, 0), "Conv: outputs must be at least 1, got 0"),
        (lambda: rates.Fixed(-1), "Fixed: rate must not be negative, got -1"),
        (lambda: rates.StepDecay(0.1, 0), "StepDecay: every must be at least 1, got 0"),
        (lambda: rates.MultiStep(0.1, (3, 2)), r"MultiStep: milestones must be ascending, got \(3, 2\)"),
        (lambda: rates.Poly(0.1, 10, -1), "Poly: power must not be negative, got -1"),
        (lambda: rates.Cosine(0.1, 10, float("nan")), "Cosine: floor must be a number, got nan"),
        (lambda: rates.Warmup(rates.Fixed(1), 0), "Warmup: steps must be at least 1, got 0"),
        (lambda: nn.Adam(0.1, betas=(0.9, 1.0)), "Adam: beta2 must be at least 0 and less than 1, got 1.0"),
        (lambda: nn.AdamW(0.1, eps=-1), "AdamW: eps must not be negative, got -1"),
        (lambda: nn.AdamW(weight_decay=-1), "AdamW: weight_decay must not be negative, got -1"),
        (lambda: nn.Adagrad(initial=-1), "Adagrad: initial must not be negative, got -1"),
        (lambda: nn.RMSProp(alpha=1.5), "RMSProp: alpha must be at least 0 and less than 1, got 1.5"),
        (lambda: nn.SGD(0.1, nesterov=True), "SGD: nesterov needs a momentum, got 0"),
        (lambda: nn.SGD(0.1, clip=nn.Clip(norm=0.0)), "SGD: clip.norm must be positive, got 0.0"),
        (lambda: nn.SGD(0.1, clip=nn.Clip(value=-1.0)), "SGD: clip.value must be positive, got -1.0"),
        (lambda: init.gaussian(-1), "gaussian: std must not be negative, got -1"),
        (lambda: init.he(-3), "he: seed must be at least 0, got -3"),
        (lambda: init.he(fan="inwards"), "he: fan must be one of in, out, average, got 'inwards'"),
        (
            lambda: init.xavier(distribution="cauchy"),
            "distribution must be one of uniform, normal, got .cauchy.",
        ),
        (lambda: init.bernoulli(1.5), "bernoulli: probability must be from 0 to 1, got 1.5"),
        (lambda: init.uniform(1, 0), "uniform: high must be at least 1, got 0"),
        (lambda: nn.SGD(-1.0), "rate must not be negative"),
        (lambda: nn.SGD(float("nan")), "rate must be a number, got nan"),
        (lambda: nn.SGD(0.1, momentum=1.0), "momentum must be at least 0 and less than 1, got 1.0"),
        (lambda: nn.SGD(0.1, weight_decay=-0.1), "weight_decay must not be negative, got -0.1"),
    ],
)
def test_settings_out_of_range_are_errors(make, message) -> None:
    with pytest.raises(af.GraphError, match=message):
        make()
