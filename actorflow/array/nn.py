"""Operations of neural networks on arrays: functional forms of `actorflow.ops`, which take blobs and arrays alike."""

# In rows, which the formatter would give a line for each name.
# fmt: off
# isort: off
from actorflow.ops import (
    accuracy, attention, average_pool, batch_norm, bias, binary_cross_entropy, binary_cross_entropy_with_logits, conv,
    conv_transpose, dropout, elu, embedding, gelu, global_average, global_max, group_norm, gru, hinge_loss, huber_loss,
    inner, instance_norm, l1_loss, layer_norm, leaky_relu, log_softmax, lrn, lstm, max_pool, mse_loss, nll_loss,
    one_hot, relu, resize, rms_norm, rnn, rotary, scan, sigmoid, silu, softmax, softmax_loss, softplus,
)

__all__ = [
    "accuracy", "attention", "average_pool", "batch_norm", "bias", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "conv", "conv_transpose", "dropout", "elu", "embedding", "gelu",
    "global_average", "global_max", "group_norm", "gru", "hinge_loss", "huber_loss", "inner", "instance_norm",
    "l1_loss", "layer_norm", "leaky_relu", "log_softmax", "lrn", "lstm", "max_pool", "mse_loss", "nll_loss", "one_hot",
    "relu", "resize", "rms_norm", "rnn", "rotary", "scan", "sigmoid", "silu", "softmax", "softmax_loss", "softplus",
]
