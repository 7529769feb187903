"""Names in other libraries, and their counterparts here: for messages about missing names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from actorflow.errors import did_you_mean

_CONV = "af.nn.Conv(channels, kernel), for any number of spatial axes; images are NHWC"
_NORM = "af.nn.BatchNorm, for any number of axes"
_LINEAR = "af.nn.Linear(features), on the last axis; af.nn.InnerProduct(features) flattens images"
_JOIN = "layers are joined with >>: af.nn.Conv(8, 3) >> af.nn.Flatten() >> af.nn.InnerProduct(10)"
_COMPOSITE = "af.Composite: a subclass makes its ops in build()"
_LOSS = "af.ops.softmax_loss(scores, labels), or the layer af.nn.SoftmaxLoss"
_VARIABLE = "graph.variable(name, shape, init=...)"
_BLOB = "graph.blob(name, shape, dtype) in graphs; af.array.asarray(values) for lazy arrays"

_LAYERS = {
    **dict.fromkeys(["Dense", "LazyLinear"], _LINEAR),
    "Sequential": _JOIN,
    **dict.fromkeys(["Conv1d", "Conv2d", "Conv3d", "Conv1D", "Conv2D", "Conv3D", "LazyConv2d"], _CONV),
    **dict.fromkeys(
        ["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv2DTranspose"], "af.nn.ConvTranspose"
    ),
    **dict.fromkeys(["MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxPooling2D", "MaxPool"], 'af.nn.Pool("max", kernel)'),
    **dict.fromkeys(
        ["AvgPool1d", "AvgPool2d", "AvgPool3d", "AveragePooling2D", "AvgPool"], 'af.nn.Pool("average", kernel)'
    ),
    **dict.fromkeys(["AdaptiveAvgPool2d", "GlobalAveragePooling2D", "GlobalAvgPool2d"], "af.nn.GlobalAverage"),
    **dict.fromkeys(["AdaptiveMaxPool2d", "GlobalMaxPooling2D", "GlobalMaxPool2d"], "af.nn.GlobalMax"),
    **dict.fromkeys(["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormalization"], _NORM),
    "LayerNormalization": "af.nn.LayerNorm",
    "LocalResponseNorm": "af.nn.LRN",
    **dict.fromkeys(["Dropout1d", "Dropout2d", "Dropout3d"], "af.nn.Dropout"),
    **{
        name: f'af.nn.Activation("{kind}"), or af.ops.{kind}(x)'
        for names, kind in {
            **{each: each.lower() for each in ("ReLU", "Sigmoid", "Tanh", "ELU", "GELU", "Softplus")},
            "LeakyReLU": "leaky_relu",
            "SiLU Swish": "silu",
            "LogSoftmax": "log_softmax",
        }.items()
        for name in names.split()
    },
    **dict.fromkeys(["CrossEntropyLoss", "SparseCategoricalCrossentropy", "CategoricalCrossentropy"], _LOSS),
    "NLLLoss": "af.ops.nll_loss(log_probabilities, labels)",
    **dict.fromkeys(["MSELoss", "MeanSquaredError"], "af.ops.mse_loss(x, target)"),
    "L1Loss": "af.ops.l1_loss(x, target)",
    **dict.fromkeys(["SmoothL1Loss", "HuberLoss"], "af.ops.huber_loss(x, target)"),
    **dict.fromkeys(["BCELoss", "BinaryCrossentropy"], "af.ops.binary_cross_entropy(x, target)"),
    "BCEWithLogitsLoss": "af.ops.binary_cross_entropy_with_logits(x, target)",
    **dict.fromkeys(["Module", "Model"], _COMPOSITE),
    **dict.fromkeys(["ModuleList", "ModuleDict"], "a plain list in an attribute of an af.Composite"),
    "Parameter": _VARIABLE,
    **dict.fromkeys(["SimpleRNN", "RNNCell"], "af.nn.RNN, over whole sequences"),
    "GRUCell": "af.nn.GRU, over whole sequences",
    **dict.fromkeys(["MultiheadAttention", "Transformer"], "af.nn.MultiHeadAttention"),
    **dict.fromkeys(["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"], "af.nn.InstanceNorm"),
    "Identity": "nothing, connect the blob itself",
    "Reshape": "af.ops.reshape(x, shape), or the layer af.nn.Flatten",
    "functional": "af.ops",
    **dict.fromkeys(["losses", "activations"], "af.ops"),
    "initializers": "af.nn.init",
    "optimizers": "af.nn.SGD, af.nn.Adam and others",
    **dict.fromkeys(["RMSprop"], "af.nn.RMSProp"),
    **dict.fromkeys(["AdaGrad"], "af.nn.Adagrad"),
    "DataParallel": "af.nn.parallel.DataParallel",
}

_OPERATIONS = {
    **dict.fromkeys(
        ["conv1d", "conv2d", "conv3d", "convolution", "conv_general_dilated"],
        "af.ops.conv(x, weight), for any number of spatial axes; images are NHWC, weights (height, width, in, out)",
    ),
    **dict.fromkeys(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv2d_transpose"], "conv_transpose"),
    **dict.fromkeys(["max_pool1d", "max_pool2d", "max_pool3d"], "max_pool"),
    **dict.fromkeys(["avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool", "average_pool2d"], "average_pool"),
    **dict.fromkeys(["adaptive_avg_pool2d", "global_average_pool"], "global_average"),
    **dict.fromkeys(["dense", "fully_connected"], f"af.ops.inner(x, weight) and af.ops.bias, or the layer {_LINEAR}"),
    **dict.fromkeys(["cross_entropy", "softmax_cross_entropy", "sparse_softmax_cross_entropy_with_logits"], _LOSS),
    **dict.fromkeys(["smooth_l1_loss"], "huber_loss"),
    **dict.fromkeys(["mm", "bmm", "dot"], "matmul"),
    "mul": "multiply",
    "sub": "subtract",
    **dict.fromkeys(["div", "true_divide"], "divide"),
    "neg": "negative",
    "abs": "absolute",
    "pow": "power",
    "reduce_sum": "sum",
    "reduce_mean": "mean",
    **dict.fromkeys(["amax", "reduce_max"], "max"),
    **dict.fromkeys(["amin", "reduce_min"], "min"),
    **dict.fromkeys(["cat", "concatenate"], "concat"),
    **dict.fromkeys(["permute", "permute_dims", "swapaxes"], "transpose"),
    "view": "reshape",
    **dict.fromkeys(["clamp", "clip_by_value"], "clip"),
    **dict.fromkeys(["gather", "index_select"], "take"),
    "unsqueeze": "expand_dims",
    **dict.fromkeys(["astype", "to"], "cast"),
    "local_response_normalization": "lrn",
    "scaled_dot_product_attention": "attention",
    **dict.fromkeys(["interpolate", "upsample"], "resize"),
    "swish": "silu",
    **dict.fromkeys(["randn", "normal"], "gaussian"),
    "rand": "uniform",
    **dict.fromkeys(["zeros", "ones", "full"], "fill"),
    "constant": "af.ops.fill, or a variable that nothing updates",
}

_JOINED = "concat(arrays, axis=0)"
_ARRAYS = {
    **dict.fromkeys(["concatenate", "cat"], "concat"),
    **dict.fromkeys(["vstack", "row_stack", "append"], f"af.array.{_JOINED}"),
    **dict.fromkeys(["hstack", "column_stack"], "af.array.concat(arrays, axis=1)"),
    **dict.fromkeys(["dot", "inner", "mm", "bmm"], "x @ y, or af.array.matmul, vecdot, tensordot"),
    **dict.fromkeys(["random", "rand", "normal", "uniform"], "af.array.randn(shape), af.array.randb(shape)"),
    **dict.fromkeys(["copy", "clone", "ascontiguousarray"], "af.array.asarray(x, copy=True)"),
    **dict.fromkeys(["transpose", "swapaxes"], "af.array.permute_dims(x, axes), x.T, x.mT"),
    **dict.fromkeys(["ravel", "flatten", "view"], "x.reshape(-1), x.flatten()"),
    **dict.fromkeys(["amax", "nanmax"], "max"),
    **dict.fromkeys(["amin", "nanmin"], "min"),
    "absolute": "abs",
    "power": "pow",
    "true_divide": "divide",
    "mod": "remainder",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "conjugate": "conj",
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "arctan2": "atan2",
    "cumsum": "cumulative_sum",
    "cumprod": "cumulative_prod",
    "unique": "unique_values",
    "clamp": "clip",
    "split": "af.array.unstack(x), or parts: x[:n], x[n:]",
    **dict.fromkeys(["norm", "inv", "det", "svd", "solve"], "af.array.linalg"),
    **dict.fromkeys(["einsum", "dtype", "ndarray"], "af.ops.einsum(text, x, y), x.dtype, af.array.Array"),
    **dict.fromkeys(["Tensor", "tensor"], "af.array.asarray(values)"),
    **{name: f"af.array.nn.{name}(x)" for name in ("relu", "sigmoid", "softmax", "log_softmax")},
}

_ROOT = {
    **dict.fromkeys(["Tensor", "tensor"], _BLOB),
    "placeholder": "graph.blob(name, shape, dtype)",
    "variable": _VARIABLE,
    "op": "graph.op(name, operation)",
    "function": "graph.function(name, fn, outputs)",
    "Module": _COMPOSITE,
    **dict.fromkeys(["layers", "keras"], "af.nn"),
    **dict.fromkeys(["functional", "F"], "af.ops"),
    **dict.fromkeys(["numpy", "np", "jnp"], "af.array"),
    "optim": "af.nn.SGD, af.nn.Adam and others",
    "DataLoader": "af.data.Loader",
    "save": "graph.save(path), or af.save_checkpoint(graph, path) for its variables alone",
    **dict.fromkeys(["jit", "compile"], "graph.compile() shows the plan; af.to_graph makes a graph of a function"),
    **dict.fromkeys(["device", "cuda"], 'with graph.at("cuda:0"): ...'),
    "abs": "abs(x), or af.ops.absolute(x)",
    **dict.fromkeys(["while_", "while"], "while_loop"),
    **dict.fromkeys(["if_", "if"], "af.cond(predicate, then, otherwise); af.ops.where chooses each element"),
    **dict.fromkeys(["for", "fori_loop", "map_fn"], "af.scan(body, carry, xs)"),
    "no_grad": "nothing, gradients are ops that af.gradient makes",
    "backward": "af.gradient(loss, wrt)",
    "distributed": "af.world(), and places such as 1/cuda:0",
}

NO_VALUE = "a blob has no value while the graph is defined: result = graph.run_sync(feeds), then result[blob]"
#: By the module of its functions, the name here of a method of arrays elsewhere.
METHODS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "actorflow.ops": dict.fromkeys(
            ["item", "tolist", "numpy", "to_numpy", "eval", "detach", "cpu", "cuda"], NO_VALUE
        ),
        "actorflow.array": {
            **dict.fromkeys(["numpy", "cpu", "detach", "get"], "x.to_numpy()"),
            "cuda": 'x.to_device("cuda:0")',
            **dict.fromkeys(["to", "type", "float", "double", "half", "int", "long", "cast"], "x.astype(dtype)"),
            **dict.fromkeys(["view", "view_as", "ravel"], "x.reshape(shape), x.flatten()"),
            **dict.fromkeys(["clone", "copy"], "af.array.asarray(x, copy=True)"),
            **dict.fromkeys(["numel", "dim"], "x.size, x.ndim"),
            "t": "x.T",
            **dict.fromkeys(["permute", "swapaxes", "swapdims"], "x.transpose(axes), af.array.moveaxis(x, 0, 1)"),
            "unsqueeze": "af.array.expand_dims(x, axis=0)",
            **dict.fromkeys(["expand", "expand_as"], "af.array.broadcast_to(x, shape)"),
            **dict.fromkeys(["dot", "mm", "bmm"], "x @ y"),
            "conjugate": "af.array.conj(x)",
            "cumsum": "af.array.cumulative_sum(x)",
            "cumprod": "af.array.cumulative_prod(x)",
            **dict.fromkeys(["amax", "amin", "ptp"], "x.max(axis=0), x.min(axis=0)"),
            **dict.fromkeys(["clamp", "clip"], "af.array.clip(x, 0, 1)"),
            **dict.fromkeys(["trace", "diagonal", "norm", "inverse", "det"], "af.array.linalg"),
            **dict.fromkeys(["backward", "grad", "requires_grad", "requires_grad_"], "af.grad(function)"),
            **dict.fromkeys(["add_", "sub_", "mul_", "div_"], "x += y and the like"),
            **dict.fromkeys(["fill", "fill_", "zero_", "copy_"], "x[...] = value"),
            **{name: f"af.ops.{name}(x)" for name in ("relu", "sigmoid", "softmax", "log_softmax")},
        },
    }
)

#: By module, the counterpart of a foreign name: the name of an attribute of the same module, or advice.
HINTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "actorflow": _ROOT,
        "actorflow.nn": _LAYERS,
        "actorflow.ops": _OPERATIONS,
        "actorflow.array": _ARRAYS,
        "actorflow.array.linalg": {
            "norm": "vector_norm(x, axis=1, ord=2), or matrix_norm",
            "lstsq": "pinv(a) @ b",
            **dict.fromkeys(["dot", "inner"], "vecdot(x, y), or x @ y"),
        },
        "actorflow.onnx": {"export": "save", **dict.fromkeys(["import_model", "load_model"], "load")},
    }
)
#: Where a name that one of these modules lacks is looked for.
_HOMES = ("actorflow", "actorflow.nn", "actorflow.ops", "actorflow.data", "actorflow.pipeline", "actorflow.array")


def missing(module: str, name: str) -> NoReturn:
    """Raise the error of a module's attribute that is not there, with the name that may have been meant.

    ``from module import name`` drops the message of an AttributeError and says less; it gets an ImportError.
    """
    is_import = sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_") or (is_import and find_spec(f"{module}.{name}") is not None):
        raise AttributeError(text, name=name)  # a submodule, which is loaded next
    text += _hint(module, name)
    if is_import:
        raise ImportError(f"cannot import name {name!r} from {module!r}: {text}", name=module)
    raise AttributeError(text, name=name)


def in_graphs(name: str) -> str:
    """The function of blobs that NumPy's function of this name is, for a message; empty if there is none."""
    ours = name if name in _public("actorflow.ops", is_loaded=True) else _OPERATIONS.get(name, "")
    return f"; in graphs: af.ops.{ours}" if ours.isidentifier() else ""


def missing_method(owner: type, module: str, name: str) -> NoReturn:
    """Raise the error of an object's attribute that is not there, with the name that may have been meant."""
    text = f"{owner.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(text, name=name)
    short = module.replace("actorflow", "af", 1)
    known = METHODS[module].get(name)
    function = name if name in sys.modules[module].__all__ else HINTS.get(module, {}).get(name, "")
    if known is not None:
        text += f"; here: {known}"
    elif function and " " not in function:
        text += f"; there is the function {function if '.' in function else f'{short}.{function}(x)'}"
    elif function:
        text += f"; here: {function}"
    else:
        text += did_you_mean(name, [each for each in dir(owner) if each[0] != "_"])
    raise AttributeError(text, name=name)


def _hint(module: str, name: str) -> str:
    short = module.replace("actorflow", "af", 1)
    ours = HINTS.get(module, {}).get(name)
    if ours is not None:
        return f"; here: {ours}" if " " in ours or "." in ours else f"; here: {short}.{ours}"
    for home in _HOMES:
        if home != module and name in _public(home, home in sys.modules):
            return f"; it is {home.replace('actorflow', 'af', 1)}.{name}"
    for home in ("actorflow.nn", "actorflow.ops", "actorflow"):
        if home != module and name in HINTS[home]:
            return _hint(home, name)
    return did_you_mean(name, _public(module, module in sys.modules))


@cache
def _public(module: str, is_loaded: bool) -> tuple[str, ...]:
    """Public names of a module; of one that is not loaded, read from its source, since asking must load nothing."""
    if is_loaded and "__all__" in vars(sys.modules[module]):
        return tuple(sys.modules[module].__all__)
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["__all__"]:
            return tuple(ast.literal_eval(statement.value))
    raise AssertionError(f"{module} has no __all__")
