"""Wrong arguments: each public call refuses them before it takes anything, whatever they are.

All public calls are found by their signatures. One that has a number among its arguments and is in none of the tables
here fails the test until it is listed, and so does a new argument of a call that runs something.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import actorflow as af
from actorflow.errors import flag, real, seconds, text, time_limit, whole
from actorflow.pipeline.calls.options import CallOptions
from actorflow.transport import LocalWorld
from actorflow.web.page import PageOptions
from tests.support.effort import slow

ROOMS = ("", "nn", "nn.init", "nn.rates", "nn.parallel", "pipeline", "data", "serve", "web", "devices", "transport")
ROOMS += ("testing", "onnx", "checkpoint", "trace")
#: Annotations of single numbers, after which it may say that None is allowed.
NUMBER = re.compile(r"(?P<kind>int|float)(?P<optional> \| None)?(?: \| Policy)?")


class OwnError(LookupError):
    """Raised by a value's own methods."""


class RaisesWhenCompared(int):
    """A whole number that raises when it is compared, as an array of one element per row may."""

    __hash__ = int.__hash__

    def _refuse(self, _: object) -> bool:
        raise OwnError("not to be compared")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # type: ignore[assignment]


class RaisesWhenTaken:
    """Of no type that is a number, and says so in ways that nobody expects."""

    def __index__(self) -> int:
        raise OwnError("no index")

    def __float__(self) -> float:
        raise OwnError("no float")

    def __eq__(self, other: object) -> bool:
        raise OwnError("not to be compared")

    __hash__ = object.__hash__

    def __lt__(self, other: object) -> bool:
        raise OwnError("not to be compared")

    def __repr__(self) -> str:
        raise OwnError("not to be shown")


class RaisesAsFloat(float):
    def __float__(self) -> float:
        raise OwnError("no float")


#: Values that are neither whole numbers nor real ones.
NOTHING = ("1", b"1", math.nan, np.float32("nan"), None, [1], object(), RaisesWhenTaken(), np.ones(2), 1j, True, "")
#: Values that are no whole numbers, and those that are no real ones.
WRONG: Mapping[str, tuple[Any, ...]] = {
    "int": (*NOTHING, 1.5, math.inf, -math.inf, Fraction(3, 2), np.float64(1)),
    "float": (*NOTHING, 10**400, RaisesAsFloat(1)),
}
#: Other forms of a right value.
FORMS: Mapping[str, tuple[Callable[[Any], Any], ...]] = {
    "int": (np.int64, np.uint32, RaisesWhenCompared),
    "float": (np.float64, np.float32, Fraction),
}


class Argument(NamedTuple):
    """A public call and one of its numbers."""

    label: str
    name: str
    kind: str
    optional: bool

    def __str__(self) -> str:
        return f"{self.label}({self.name})"


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All public functions, constructors and methods of the package, by their names without that of the package."""
    seen: set[Any] = set()
    for room in ROOMS:
        module = importlib.import_module(f"actorflow.{room}".rstrip("."))
        for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
            found = getattr(module, name)
            label = f"{room}.{name}".lstrip(".")
            is_ours = str(getattr(found, "__module__", "")).startswith("actorflow.")
            if not callable(found) or not is_ours or found in seen or found.__module__ == "actorflow.errors":
                continue
            seen.add(found)
            if not inspect.isclass(found):
                yield label, found
            elif not issubclass(found, BaseException):
                for member in ["__init__", *[each for each in dir(found) if not each.startswith("_")]]:
                    method = inspect.getattr_static(found, member)
                    method = getattr(method, "__func__", method)
                    if inspect.isfunction(method) and (method not in seen or member == "__init__"):
                        seen.add(method)
                        yield (label if member == "__init__" else f"{label}.{member}"), method


def numbers() -> list[Argument]:
    """All arguments of public calls that are a single number, those of options behind ``**`` among them."""
    found = []
    for label, function in public():
        for name, annotation in annotations_of(function).items():
            match = NUMBER.fullmatch(annotation)
            if match is not None:
                found.append(Argument(label, name, match["kind"], bool(match["optional"])))
    return found


def annotations_of(function: Callable[..., Any]) -> dict[str, str]:
    """Annotations of arguments, as texts."""
    found: dict[str, str] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = str(parameter.annotation)
        for options in (CallOptions, PageOptions):
            if annotation == f"Unpack[{options.__name__}]":
                hints = options.__annotations__.items()
                found |= {name: getattr(hint, "__forward_arg__", hint) for name, hint in hints}
                break
        else:
            found[parameter.name] = annotation
    return found


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (lambda: whole("n", 1.5), "TypeError: n must be a whole number, got 1.5"),
        (lambda: whole("n", 0, 1), "GraphError: n must be at least 1, got 0"),
        (lambda: whole("n", 9, 0, 8), "GraphError: n must be from 0 to 8, got 9"),
        (lambda: whole("n", -(10**5000), 0), "GraphError: n must be at least 0, got <int that cannot be shown"),
        (lambda: whole("n", 0, 1, error=af.PipelineError), "PipelineError: n must be at least 1, got 0"),
        (
            lambda: whole("n", RaisesWhenTaken()),
            "TypeError: n must be a whole number, got <RaisesWhenTaken that cannot",
        ),
        (lambda: real("r", "1"), "TypeError: r must be a number, got '1'"),
        (lambda: real("r", math.nan), "GraphError: r must be a number, got nan"),
        (lambda: real("r", math.inf), "GraphError: r must be finite, got inf"),
        (lambda: real("r", -1, 0), "GraphError: r must not be negative, got -1"),
        (lambda: real("r", 0, above=0), "GraphError: r must be positive, got 0"),
        (lambda: real("r", 1, 2), "GraphError: r must be at least 2, got 1"),
        (lambda: real("r", 2, 0, 1), "GraphError: r must be from 0 to 1, got 2"),
        (lambda: real("r", 1, 0, below=1), "GraphError: r must be at least 0 and less than 1, got 1"),
        (lambda: real("r", 0, above=0, below=1), "GraphError: r must be more than 0 and less than 1, got 0"),
        (lambda: seconds("t", None), "TypeError: t must be a time in seconds, got None"),
        (lambda: time_limit("t", -1), "GraphError: t must not be negative, got -1"),
        (lambda: time_limit("t", 0, positive=True), "GraphError: t must be positive, got 0"),
        (lambda: flag("f", "no"), "TypeError: f must be True or False, got 'no'"),
        (lambda: text("s", b"s"), "TypeError: s must be a text, got b's'"),
    ],
)
def test_what_is_wrong_is_said(check: Callable[[], object], expected: str) -> None:
    with pytest.raises((af.ActorflowError, TypeError)) as refused:
        check()
    assert f"{refused.type.__name__}: {refused.value}".startswith(expected)


def test_numbers_come_back_as_plain_ones() -> None:
    for number in (np.int64(3), RaisesWhenCompared(3), np.array(3)):
        assert type(whole("n", number, 1, 5)) is int
    for number in (np.float32(0.5), Fraction(1, 2), np.int64(1), 1):
        assert type(real("r", number, 0, 1)) is float
    assert flag("f", np.True_) is True
    assert [time_limit("t", t) for t in (None, math.inf, 1e10, 0, np.float64(2))] == [None, None, None, 0, 2]


# -- calls that make something -----------------------------------------------------------------------------------------


def source() -> Any:
    return af.pipeline.source(range(6))


def graph_of(*, is_open: bool = True, **options: Any) -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("g", **options)
    x = graph.blob("x", ("batch",) if is_open else (1,))
    return graph, x, graph.apply(af.ops.Scale(2.0), x, name="y")


def with_graph(method: str, **arguments: Any) -> Callable[[], tuple[Callable[..., Any], dict[str, Any]]]:
    """A method of a graph of its own."""
    return lambda: (getattr(graph_of()[0], method), dict(arguments))


def of_trainer() -> af.nn.Trainer:
    graph = af.Graph("g")
    loss = af.ops.square(graph.blob("x", ()) - graph.variable("w", (), init=1))
    return af.nn.Trainer(loss, af.nn.SGD(0.1).minimize(loss))


def trainer() -> tuple[Callable[..., Any], dict[str, Any]]:
    graph = af.Graph("g")
    loss = af.ops.square(graph.variable("w", (), init=1))
    train = af.nn.SGD(0.1).minimize(loss)
    return lambda **given: af.nn.Trainer(loss, train, **given), {"in_flight": 2, "every": 3}


def googlenet_loss() -> tuple[Callable[..., Any], dict[str, Any]]:
    graph = af.Graph("g")
    scores, labels = graph.blob("scores", ("batch", 3)), graph.blob("labels", ("batch",), "int64")
    return lambda weight: af.nn.GoogLeNet.loss(None, scores, labels, weight=weight), {"weight": 0.5}  # type: ignore[arg-type]


def application() -> Any:
    return af.serve.create_app({"g": graph_of()[0]})


def split() -> af.data.Split:
    return af.data.Split(np.zeros((4, 1), np.float32), np.arange(4) // 2)


class SmallOptimizer(af.nn.Optimizer):
    def operation(self, factors: Any) -> Any:
        raise NotImplementedError


CALLS: dict[str, Any] = {
    # Right numbers of each call, and what else it needs.
    "Graph": (af.Graph, {"name": "g", "memory_budget": 1 << 20, "stall_limit": 9.0, "block_limit": 9.0}),
    "Graph.batched": with_graph("batched", max_rows=4, max_wait=0.5, queue_rows=8, in_flight=2),
    "Graph.function": with_graph("function", name="f", fn=asyncio.sleep, concurrency=2, priority=1, timeout=1.0),
    "Graph.op": with_graph(
        "op", name="o", operation=af.ops.Scale(2.0), priority=1, timeout=1.0, retries=1, backoff=0.5
    ),
    "Graph.stream": with_graph("stream", feeds=[], in_flight=2),
    "Graph.tap": lambda: (
        lambda **given: graph_of()[0].tap("x", **given),
        {"every": 2, "interval": 0.5, "in_a_row": 2},
    ),
    "Graph.instrument": with_graph("instrument", min_us=1.0, max_calls=3),
    "Place": (af.Place, {"rank": 1, "device": 2, "kind": "sim"}),
    "Checkpoints": lambda: (lambda **given: af.Checkpoints(graph_of()[0], "unused", **given), {"keep": 2}),
    "nn.GRU": (af.nn.GRU, {"hidden": 2, "layers": 2}),
    "nn.LSTM": (af.nn.LSTM, {"hidden": 2, "layers": 2}),
    "nn.RNN": (af.nn.RNN, {"hidden": 2, "layers": 2}),
    "nn.LSTMCell": (af.nn.LSTMCell, {"hidden": 2, "seed": 1}),
    "nn.LRN": (af.nn.LRN, {"alpha": 0.5, "beta": 0.5, "size": 3, "k": 1.0}),
    "nn.MLP": (af.nn.MLP, {"classes": 3, "dropout": 0.5, "seed": 1}),
    "nn.NIN": (af.nn.NIN, {"classes": 3, "dropout": 0.5, "seed": 1}),
    "nn.NIN.cifar10": (af.nn.NIN.cifar10, {"classes": 3, "width": 4, "dropout": 0.5, "seed": 1}),
    "nn.VGG": (af.nn.VGG, {"classes": 3, "size": 11, "width": 2, "hidden": 4, "dropout": 0.5, "seed": 1}),
    "nn.AlexNet": (af.nn.AlexNet, {"classes": 3, "hidden": 4, "dropout": 0.5, "seed": 1}),
    "nn.LeNet": (af.nn.LeNet, {"classes": 3, "seed": 1}),
    "nn.GoogLeNet": (af.nn.GoogLeNet, {"classes": 3, "dropout": 0.5, "seed": 1}),
    "nn.GoogLeNet.loss": googlenet_loss,
    "nn.ResNet": (af.nn.ResNet, {"classes": 3, "size": 18, "width": 4, "seed": 1}),
    "nn.MobileNetV3": (af.nn.MobileNetV3, {"classes": 3, "dropout": 0.5, "seed": 1}),
    "nn.LSTMLanguageModel": (
        af.nn.LSTMLanguageModel,
        {"vocabulary": 5, "features": 4, "hidden": 4, "layers": 2, "dropout": 0.5, "seed": 1},
    ),
    "nn.Inception": (
        af.nn.Inception,
        {"one": 1, "three": 1, "five": 1, "three_reduce": 1, "five_reduce": 1, "pool_proj": 1},
    ),
    "nn.SGD": (af.nn.SGD, {"rate": 0.5, "momentum": 0.5, "weight_decay": 0.5}),
    "nn.Adagrad": (af.nn.Adagrad, {"rate": 0.5, "eps": 0.5, "weight_decay": 0.5, "initial": 0.5}),
    "nn.Adam": (af.nn.Adam, {"rate": 0.5, "eps": 0.5, "weight_decay": 0.5}),
    "nn.AdamW": (af.nn.AdamW, {"rate": 0.5, "eps": 0.5, "weight_decay": 0.5}),
    "nn.RMSProp": (af.nn.RMSProp, {"rate": 0.5, "alpha": 0.5, "eps": 0.5, "weight_decay": 0.5, "momentum": 0.5}),
    "nn.Optimizer": (
        SmallOptimizer,
        {"rate": 0.5, "weight_decay": 0.5, "clip": None, "multipliers": None, "name": "small"},
    ),
    "nn.BatchNorm": (af.nn.BatchNorm, {"momentum": 0.5, "epsilon": 0.5}),
    "nn.GroupNorm": (af.nn.GroupNorm, {"groups": 2, "epsilon": 0.5}),
    "nn.InstanceNorm": (af.nn.InstanceNorm, {"epsilon": 0.5}),
    "nn.LayerNorm": (af.nn.LayerNorm, {"axes": 1, "epsilon": 0.5}),
    "nn.RMSNorm": (af.nn.RMSNorm, {"epsilon": 0.5}),
    "nn.Conv": (af.nn.Conv, {"channels": 4, "kernel": 3, "groups": 2}),
    "nn.ConvTranspose": (af.nn.ConvTranspose, {"channels": 4, "kernel": 3, "groups": 2}),
    "nn.Dropout": (af.nn.Dropout, {"rate": 0.5, "seed": 1}),
    "nn.Embedding": (af.nn.Embedding, {"count": 3, "features": 2}),
    "nn.InnerProduct": (af.nn.InnerProduct, {"features": 3}),
    "nn.Linear": (af.nn.Linear, {"features": 3}),
    "load": lambda: (partial(af.load, saved()), {"memory_budget": 9, "max_plans": 2}),
    "load_sync": lambda: (partial(asyncio.to_thread, af.load_sync, saved()), {"memory_budget": 9, "max_plans": 2}),
    "nn.MultiHeadAttention": (af.nn.MultiHeadAttention, {"heads": 2, "kv_heads": 1}),
    "nn.Softmax": (af.nn.Softmax, {"axis": 1}),
    "nn.Progress": (af.nn.Progress, {"epochs": 2, "steps": 3}),
    "nn.Trainer": trainer,
    "nn.Trainer.epochs": lambda: (lambda **given: anext(of_trainer().epochs([], **given), None), {"epochs": 1}),
    "nn.Trainer.fit": lambda: (lambda **given: of_trainer().fit([], **given), {"epochs": 1}),
    "nn.Trainer.steps": lambda: (lambda **given: of_trainer().steps([], **given), {"epochs": 1, "until": 3}),
    "nn.init.gaussian": (af.nn.init.gaussian, {"std": 0.5, "mean": 0.5, "seed": 1}),
    "nn.init.uniform": (af.nn.init.uniform, {"low": 0.5, "high": 1.5, "seed": 1}),
    "nn.init.bernoulli": (af.nn.init.bernoulli, {"probability": 0.5, "seed": 1}),
    "nn.init.xavier": (af.nn.init.xavier, {"seed": 1, "gain": 0.5}),
    "nn.init.he": (af.nn.init.he, {"seed": 1, "slope": 0.5}),
    "nn.rates.Fixed": (af.nn.rates.Fixed, {"rate": 0.5}),
    "nn.rates.StepDecay": (af.nn.rates.StepDecay, {"rate": 0.5, "every": 2, "factor": 0.5}),
    "nn.rates.MultiStep": (af.nn.rates.MultiStep, {"rate": 0.5, "milestones": (1, 2), "factor": 0.5}),
    "nn.rates.Poly": (af.nn.rates.Poly, {"rate": 0.5, "steps": 2, "power": 0.5}),
    "nn.rates.Cosine": (af.nn.rates.Cosine, {"rate": 0.5, "steps": 2, "floor": 0.5}),
    "nn.rates.Warmup": (af.nn.rates.Warmup, {"policy": af.nn.rates.Fixed(0.5), "steps": 2, "start": 0.5}),
    "nn.parallel.AllReduce": (af.nn.parallel.AllReduce, {"priority": 1}),
    "nn.parallel.BucketedAllReduce": (af.nn.parallel.BucketedAllReduce, {"places": 2, "bucket_bytes": 64}),
    "nn.parallel.DataParallel": lambda: (
        lambda **given: af.nn.parallel.DataParallel(af.nn.Flatten(), ["cpu"], **given),
        {"bucket_bytes": 64},
    ),
    "nn.parallel.PipelineParallel": lambda: (
        lambda **given: af.nn.parallel.PipelineParallel([af.nn.Flatten()], ["cpu"], **given),
        {"micro_batches": 2},
    ),
    "nn.parallel.Scatter": (af.nn.parallel.Scatter, {"places": ["cpu"], "axis": 1}),
    "nn.parallel.Gather": (af.nn.parallel.Gather, {"place": "cpu", "axis": 1}),
    "pipeline.Limiter": (af.pipeline.Limiter, {"limit": 2}),
    **{
        f"pipeline.Pipeline.{name}": lambda name=name: (
            lambda **given: getattr(source(), name)(len, **given),
            {"concurrency": 2, "timeout": 1.0, "retries": 1, "backoff": 0.5, "buffer": 2},
        )
        for name in ("map", "filter", "flat_map")
    },
    "pipeline.Pipeline.batch": lambda: (source().batch, {"size": 2, "concurrency": 2}),
    "pipeline.Pipeline.cache": lambda: (source().cache, {"size_bytes": 99}),
    "pipeline.Pipeline.enumerate": lambda: (source().enumerate, {"start": 2}),
    "pipeline.Pipeline.iter_sync": lambda: (
        lambda **given: asyncio.to_thread(lambda: list(source().iter_sync(**given))),
        {"ahead": 2},
    ),
    "pipeline.Pipeline.prefetch": lambda: (source().prefetch, {"count": 2, "size_bytes": 99}),
    "pipeline.Pipeline.repeat": lambda: (source().repeat, {"times": 2}),
    "pipeline.Pipeline.shard": lambda: (source().shard, {"rank": 1, "world": 2}),
    "pipeline.Pipeline.shuffle": lambda: (source().shuffle, {"size": 2, "seed": 1}),
    "pipeline.Pipeline.skip": lambda: (source().skip, {"count": 2}),
    "pipeline.Pipeline.take": lambda: (source().take, {"count": 2}),
    "pipeline.Pipeline.to": lambda: (source().to, {"place": "cpu", "in_flight": 2}),
    "pipeline.interleave": lambda: (lambda **given: af.pipeline.interleave(source(), **given), {"block": 2}),
    "pipeline.pad": (af.pipeline.pad, {"multiple": 2}),
    "pipeline.source": (af.pipeline.source, {"data": range(3), "seed": 1}),
    "data.Augmentation": (af.data.Augmentation, {"steps": [], "seed": 1}),
    "data.Blocks": (af.data.Blocks, {"count": 8, "offset": 1, "interval": 4, "block": 2}),
    "data.Blocks.rows": lambda: (af.data.Blocks(8).rows, {"epoch": 1}),
    "data.Crop": (af.data.Crop, {"size": 2, "padding": 1, "fill": 0.5}),
    "data.Draws": (af.data.Draws, {"seed": 1, "epoch": 1, "rows": np.arange(2), "stream": 1}),
    "data.Draws.uniform": lambda: (af.data.Draws(1, 1, np.arange(2)).uniform, {"columns": 2}),
    "data.ImageFiles": (af.data.ImageFiles, {"paths": [], "size": 2, "shorter": 3, "channels": 3}),
    "data.Loader": (af.data.Loader, {"columns": {"x": np.arange(4)}, "size": 2, "seed": 1, "concurrency": 2}),
    "data.Mirror": (af.data.Mirror, {"probability": 0.5}),
    "data.Sampler": (af.data.Sampler, {"count": 4, "seed": 1, "offset": 1, "interval": 2}),
    "data.Sampler.rows": lambda: (af.data.Sampler(4).rows, {"epoch": 1}),
    "data.Split.in_order": lambda: (split().in_order, {"size": 2}),
    "data.Split.shuffled": lambda: (split().shuffled, {"size": 2, "rng": np.random.default_rng(0)}),
    "data.digits": (af.data.digits, {"seed": 1, "test_share": 0.5}),
    "data.stratified_split": (
        af.data.stratified_split,
        {"images": np.zeros((4, 1)), "labels": np.arange(4) // 2, "test_share": 0.5, "rng": np.random.default_rng(0)},
    ),
    "serve.Limits": (
        af.serve.Limits,
        {"body_bytes": 9, "pending_bytes": 9, "picture_pixels": 9, "queue_rows": 9, "in_flight": 2}
        | {"body_timeout_s": 0.5, "timeout_s": 0.5, "warm_up_s": 0.5},
    ),
    "serve.Server": lambda: (
        lambda **given: af.serve.Server(application(), **given),
        {"port": 80, "max_connections": 9},
    ),
    "serve.create_app": lambda: (
        lambda **given: af.serve.create_app({"g": graph_of()[0]}, **given),
        {"max_rows": 2, "max_wait": 0.5},
    ),
    "web.serve": lambda: (lambda **given: af.web.serve(graph_of()[0], **given), {"port": 80}),
    "web.create_app": lambda: (lambda **given: af.web.create_app(graph_of()[0], **given), {"max_clients": 2}),
    "web.asgi": lambda: (lambda **given: af.web.asgi(graph_of()[0], **given), {"max_clients": 2}),
    "devices.CudaOptions": (af.devices.CudaOptions, {"memory_budget": 9}),
    "devices.DeviceOptions": (af.devices.DeviceOptions, {"memory_budget": 9}),
    "devices.SimOptions": (
        af.devices.SimOptions,
        {"memory_budget": 9, "latency_s": 0.5, "bandwidth": 0.5, "kernel_s": 0.5, "memory_bandwidth": 0.5}
        | {"memory_bytes": 9},
    ),
    "transport.LocalWorld": (LocalWorld, {"size": 2, "seed": 1, "liveness_s": 0.5}),
    "testing.check_gradient": lambda: (
        lambda **given: asyncio.to_thread(af.testing.check_gradient, af.ops.Scale(2.0), np.ones(2), **given),
        {"step": 0.5, "rtol": 0.5, "atol": 0.5, "seed": 1},
    ),
    "testing.inject": lambda: (
        lambda **given: af.testing.inject(graph_of()[0], "y", **given),
        {"delay_s": 0.5, "times": 2},
    ),
    "testing.interleave": lambda: (lambda **given: af.testing.interleave(graph_of()[0], **given), {"seed": 1}),
}


@cache
def saved() -> Path:
    """A file of a graph."""
    path = Path(tempfile.mkdtemp()) / "g.af"
    atexit.register(shutil.rmtree, path.parent)
    with ThreadPoolExecutor(1) as thread:  # where no loop runs
        thread.submit(graph_of()[0].save_sync, path).result()
    return path


#: Numbers of public calls that are not checked here, by what begins so, and why not.
ELSEWHERE = {
    "Batcher.run": "it runs: see below",
    "Graph.cancel": "it runs: see below",
    "Graph.run": "it runs: see below",
    "Graph.step": "it runs: see below",
    "Graph.warm_up": "it runs: see below",
    "Model.run": "Graph.run, with names",
    "Model.warm_up": "Graph.warm_up, with names",
    "Checkpoints.": "tests/checkpoint has folders",
    "pipeline.Pipeline.state_dict": "tests/pipeline/test_resume.py has places",
    "data.Batches.state_dict": "tests/pipeline/test_resume.py has places",
    "data.image_label": "tests/data/test_lmdb.py has databases",
    "data.image_folder": "of ImageFiles",
    "data.read_i": "of ImageFiles, and files of tests/data",
    "onnx.load": "as load, and needs the package onnx: tests/onnx/test_files.py",
    "onnx.save": "needs the package onnx: tests/onnx/test_export.py",
    "serve.Server.drain": "a server that listens: tests/serve",
    "testing.check_": "conformance suites: they run for seconds",
    "nn.init.constant": "any value that an array may be filled with",
    "nn.Mean.add": "any number, NaN as well",
    "pipeline.pad.value": "any value that an array may be filled with",
    "data.Draws.below": "any number of them",
    "web.serve.max_clients": "as that of web.create_app",
    "world": "of the process, as that of LocalWorld",
    # Made by the package, not by users.
    "Blob": "by Graph.blob",
    "Variable": "by Graph.variable",
    "Op": "by Graph.op",
    "FrameStream": "by Graph.stream",
    "Checkpoint": "by load_checkpoint",
    "GraphStatistics": "by Graph.statistics",
    "Result.rows": "slices, as those of arrays",
    "pipeline.LoaderStats": "by Pipeline.stats",
    "pipeline.StageSnapshot": "by Pipeline.stats",
    "data.Feed": "by loaders",
    "web.View": "by web.serve",
    "testing.Injection": "by inject",
    # What devices and transports are asked by the package.
    "devices.": "by the runtime",
    "transport.": "by the runtime",
}


def is_elsewhere(argument: Argument) -> bool:
    whole_name = f"{argument.label}.{argument.name}"
    if argument.label in CALLS and whole_name not in ELSEWHERE:
        return False
    return any(whole_name.startswith(start) for start in ELSEWHERE)


CHECKED = [argument for argument in numbers() if not is_elsewhere(argument)]


def test_numbers_are_found() -> None:
    assert len(CHECKED) > 150
    assert {argument.label for argument in CHECKED} == set(CALLS)


@pytest.mark.any_loop
@pytest.mark.parametrize("argument", CHECKED, ids=str)
async def test_a_number_is_a_number(argument: Argument) -> None:
    for wrong in WRONG[argument.kind]:
        if wrong is None and (argument.optional or argument.name == "seed"):  # which may be left to names everywhere
            continue
        call, arguments = made(argument.label)
        with pytest.raises((af.ActorflowError, TypeError), match=r"must be|expected"):
            await done(call(**{**arguments, argument.name: wrong}))
    call, arguments = made(argument.label)
    await done(call(**arguments))
    right = arguments.get(argument.name)
    for form in FORMS[argument.kind] if right is not None else ():
        call, arguments = made(argument.label)
        await done(call(**{**arguments, argument.name: form(right)}))


def made(label: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    given = CALLS[label]
    call, arguments = given() if callable(given) else given
    return call, dict(arguments)


async def done(outcome: Any) -> None:
    """Wait for what a call has begun, and close what it has made."""
    async with asyncio.timeout(60):  # only what hangs takes so long
        if inspect.isawaitable(outcome) and not hasattr(outcome, "__aenter__"):
            outcome = await outcome
    if inspect.isasyncgen(outcome):
        await outcome.aclose()
    elif inspect.isgenerator(outcome):
        outcome.close()


# -- calls that run, or that change a graph ----------------------------------------------------------------------------


class OtherResultError(Exception):
    """A call has taken its arguments, and they mean something else."""


def give(actual: Any, expected: Any) -> None:
    if actual != expected:
        raise OtherResultError(actual)


class Bench:
    """A graph that doubles rows, and what calls of it need."""

    def __init__(self) -> None:
        self.graph = af.Graph("bench")
        self.x = self.graph.blob("x", ("batch",))
        self.y = self.graph.apply(af.ops.Scale(2.0), self.x, name="y")
        self.w = self.graph.variable("w", (1,))
        self.model = af.Model(self.graph, {"x": self.x}, {"y": self.y})
        self.count = 0

    def name(self) -> str:
        """A name that no node has."""
        self.count += 1
        return f"node{self.count}"

    async def batched(self, **options: Any) -> None:
        async with self.graph.batched(**options) as batcher:
            result = await batcher.run({self.x: [1.0, 2.0, 3.0]})
            give([each.tolist() for each in result.values()], [[2, 4, 6]])

    async def ask(self, **request: Any) -> None:
        async with self.graph.batched(fetch=self.y) as batcher:
            try:
                give((await batcher.run(**request))[self.y].tolist(), [2])
            finally:
                assert (await batcher.run({self.x: [3.0]}))[self.y].tolist() == [6]
                assert batcher.statistics().waiting_rows == 0

    async def stream(self, **options: Any) -> None:
        give([[*result.values()] async for result in self.graph.stream(**options)], [[[2]], [[4]]])

    async def in_flight(self, frames: Any) -> None:
        stream = self.graph.stream([{self.x: [1.0]}] * 5, fetch=self.y)
        await anext(stream)
        try:
            stream.in_flight = frames
        finally:
            assert len([result async for result in stream]) == 4

    async def paused(self, method: str, **arguments: Any) -> None:
        self.graph.pause(arguments.pop("reason", "")) if method == "pause" else self.graph.pause()
        waiting = asyncio.ensure_future(self.graph.run({self.x: [1.0]}))
        try:
            if method == "step":
                self.graph.step(**arguments)
                await waiting
        finally:
            self.graph.resume()
            await waiting

    async def cancel(self, **arguments: Any) -> None:
        stream = self.graph.stream([{self.x: [1.0]}] * 3)
        await anext(stream)
        try:
            self.graph.cancel(**arguments)
        finally:
            await stream.aclose()

    async def tap(self, *targets: Any, **arguments: Any) -> None:
        tap = self.graph.tap(*targets, **arguments)
        async with tap:
            await self.graph.run({self.x: [1.0]})

    async def pipeline(self, method: str, **options: Any) -> None:
        stage = getattr(source(), method)(**options)
        async with stage:
            give([item async for item in stage], [*range(method == "filter", 6)])


#: What each runs, with right arguments.
RUNS: dict[str, tuple[Callable[..., Any], Callable[[Bench], dict[str, Any]]]] = {
    "Graph.run": (
        lambda b, **given: b.graph.run(**given),
        lambda b: {"feeds": {b.x: [1.0]}, "fetch": b.y, "timeout": 60, "atomic": False},
    ),
    "Graph.warm_up": (
        lambda b, **given: b.graph.warm_up(**given),
        lambda b: {"fetch": b.y, "axes": {"batch": 1}, "timeout": 60},
    ),
    "Graph.compile": (lambda b, **given: b.graph.compile(**given), lambda b: {"fetch": b.y, "axes": {"batch": 1}}),
    "Graph.memory_cost": (
        lambda b, **given: b.graph.memory_cost(**given),
        lambda b: {"fetch": b.y, "axes": {"batch": 1}},
    ),
    "Graph.stream": (
        Bench.stream,
        lambda b: {"feeds": [{b.x: [1.0]}, {b.x: [2.0]}], "fetch": b.y, "in_flight": 2, "atomic": False},
    ),
    "FrameStream.in_flight": (Bench.in_flight, lambda b: {"frames": 2}),
    "Graph.batched": (
        Bench.batched,
        lambda b: (
            {"fetch": b.y, "max_rows": 2, "max_wait": 0.0, "buckets": [2], "queue_rows": 8, "key": None}
            | {"pad": None, "in_flight": 2, "isolate": True, "axis": "batch"}
        ),
    ),
    "Batcher.run": (Bench.ask, lambda b: {"feeds": {b.x: [1.0]}, "priority": 1, "timeout": 60}),
    "Graph.pause": (lambda b, **given: b.paused("pause", **given), lambda b: {"reason": "a look"}),
    "Graph.step": (lambda b, **given: b.paused("step", **given), lambda b: {"frames": 1}),
    "Graph.cancel": (Bench.cancel, lambda b: {"frame": None, "reason": "by hand"}),
    "Graph.tap": (
        lambda b, targets, **given: b.tap(targets, **given),
        lambda b: {"targets": b.y, "every": 1, "interval": 0.0, "in_a_row": 1, "trace": False},
    ),
    "Graph.blob": (
        lambda b, **given: b.graph.blob(**given),
        lambda b: {"name": b.name(), "shape": (1,), "dtype": "float32", "place": "cpu"},
    ),
    "Graph.variable": (
        lambda b, **given: b.graph.variable(**given),
        lambda b: {"name": b.name(), "shape": (1,), "dtype": "float32", "init": 1.0, "place": "cpu"},
    ),
    "Graph.op": (
        lambda b, **given: b.graph.op(**given)(b.x),
        lambda b: (
            {"name": b.name(), "operation": af.ops.Scale(2.0), "place": "cpu", "lane": "main", "priority": 1}
            | {"timeout": 60, "retries": 1, "backoff": 0.0, "libraries": ["numpy"], "force_cpu": False}
        ),
    ),
    "Graph.function": (
        lambda b, **given: b.graph.function(**given),
        lambda b: (
            {"name": b.name(), "fn": np.negative, "outputs": af.TensorSpec.of((1,)), "place": "cpu"}
            | {"lane": "main", "inputs": [b.w], "concurrency": 1, "priority": 1, "timeout": 60, "retries": 1}
            | {"backoff": 0.0}
        ),
    ),
    "Model.run": (
        lambda b, **given: b.model.run(**given),
        lambda b: {"inputs": {"x": [1.0]}, "fetch": "y", "timeout": 60},
    ),
    "Model.warm_up": (lambda b, **given: b.model.warm_up(**given), lambda b: {"axes": {"batch": 1}, "timeout": 60}),
    **{
        f"pipeline.Pipeline.{method}": (
            lambda b, method=method, **given: b.pipeline(method, **given),
            lambda b, fn=fn: (
                {"fn": fn, "name": "stage", "concurrency": 2, "ordered": True, "executor": "thread"}
                | {"timeout": 60, "retries": 1, "backoff": 0.0, "on_error": "raise", "buffer": 2}
                | {"limiter": af.pipeline.Limiter(1)}
            ),
        )
        for method, fn in {"map": abs, "filter": abs, "flat_map": lambda item: [item]}.items()
    },
}
#: Refusals: errors that say what is wrong, or what a value's own methods raise.
REFUSALS = (af.ActorflowError, TypeError, ValueError, TimeoutError, OwnError)
#: What any argument may be given.
ANYTHING = (*NOTHING, 1.5, math.inf, -math.inf, 10**400, 10**30, -1, 0, {}, len)
ANYTHING += (RaisesWhenCompared(1), RaisesAsFloat(1))


def arguments_that_run() -> list[tuple[str, str]]:
    """All arguments of what runs, by signature; a public function is found under its name."""
    functions = dict(public())
    found = []
    for label, (_, right) in RUNS.items():
        names = [*annotations_of(functions[label])][1:] if label in functions else [*right(Bench())]
        found += [(label, name) for name in names]
    return found


@pytest.mark.any_loop
@pytest.mark.parametrize("is_warm", [True, *slow([False])], ids=["warm", "first"])
@pytest.mark.parametrize(("label", "name"), arguments_that_run(), ids=lambda each: each)
async def test_what_is_refused_leaves_nothing_behind(label: str, name: str, is_warm: bool) -> None:
    call, right = RUNS[label]
    assert name in right(Bench()), f"{label} has a new argument: say in RUNS what is right for it"
    for wrong in ANYTHING:
        bench = Bench()
        async with bench.graph:
            if is_warm:
                await limited(call(bench, **right(bench)))
            nodes = bench.graph.nodes
            try:
                await limited(call(bench, **{**right(bench), name: wrong}))
            except REFUSALS:
                assert bench.graph.nodes == nodes
            except OtherResultError:
                pass
            await limited(call(bench, **right(bench)))
            assert (await limited(bench.graph.run({bench.x: [3.0]}, fetch=bench.y)))[bench.y].tolist() == [6]
            engine = bench.graph.engine
            assert not engine.running
            assert not engine.queue.closed
            assert not engine.resources._claim.count
            assert asyncio.all_tasks() == {asyncio.current_task()}


async def limited(outcome: Any) -> Any:
    try:
        async with asyncio.timeout(60) as limit:  # only what hangs takes so long
            return await outcome if inspect.isawaitable(outcome) else outcome
    except TimeoutError:
        if limit.expired():
            pytest.fail("it hangs")
        raise
