"""Wrong arguments: each public call refuses them before it takes anything, whatever they are.

All public calls are found by their signatures. One that has a number among its arguments and is in none of the tables
here fails the test until it is listed, and so does a new argument of a call that runs something.
"""

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
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import actorflow as af
from actorflow.errors import flag, real, seconds, text, time_limit, whole
from actorflow.pipeline.calls.options import CallOptions
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


@pytest.mark.together(
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
    at_once=20,
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


def called(**given: Any) -> af.Blob:
    other, x, _ = graph_of()
    graph = af.Graph("around")
    return graph.call(other, {x: graph.blob("x", ("batch",))}, **given)


async def works() -> None:
    """A program that is simulated."""


async def breaks() -> None:
    """One that fails."""
    raise OSError


def of_trainer() -> af.nn.Trainer:
    graph = af.Graph("g")
    loss = af.ops.square(graph.blob("x", ()) - graph.variable("w", (), init=1))
    return af.nn.Trainer(loss, af.nn.SGD(0.1).minimize(loss))


def trainer(**given: Any) -> af.nn.Trainer:
    graph = af.Graph("g")
    loss = af.ops.square(graph.variable("w", (), init=1))
    return af.nn.Trainer(loss, af.nn.SGD(0.1).minimize(loss), **given)


def googlenet_loss(weight: float) -> af.Blob:
    graph = af.Graph("g")
    scores, labels = graph.blob("scores", ("batch", 3)), graph.blob("labels", ("batch",), "int64")
    return af.nn.GoogLeNet.loss(None, scores, labels, weight=weight)  # type: ignore[arg-type]


class SmallOptimizer(af.nn.Optimizer):
    def operation(self, factors: Any) -> Any:
        raise NotImplementedError


#: What methods are called of.
OWNERS: dict[str, Callable[[], Any]] = {
    "Graph": lambda: graph_of()[0],
    "pipeline.Pipeline": source,
    "data.Blocks": lambda: af.data.Blocks(8),
    "data.Draws": lambda: af.data.Draws(1, 1, np.arange(2)),
    "data.Sampler": lambda: af.data.Sampler(4),
    "data.Split": lambda: af.data.Split(np.zeros((4, 1), np.float32), np.arange(4) // 2),
}
#: What is called for a name where it needs more than arguments of one call.
CALLS: dict[str, Callable[..., Any]] = {
    "Graph.tap": lambda **given: graph_of()[0].tap("x", **given),
    "Checkpoints": lambda **given: af.Checkpoints(graph_of()[0], "unused", **given),
    "load": lambda **given: af.load(saved(), **given),
    "load_sync": lambda **given: asyncio.to_thread(af.load_sync, saved(), **given),
    "nn.GoogLeNet.loss": googlenet_loss,
    "scan": lambda **given: af.scan(lambda c, _: (c, None), graph_of()[1], **given),
    "while_loop": lambda **given: af.while_loop(lambda i, x: i > 0, lambda i, x: (i, x), (1, graph_of()[1]), **given),
    "nn.Optimizer": SmallOptimizer,
    "nn.Trainer": trainer,
    "nn.Trainer.epochs": lambda **given: anext(of_trainer().epochs([], **given), None),
    "nn.Trainer.fit": lambda **given: of_trainer().fit([], **given),
    "nn.Trainer.steps": lambda **given: of_trainer().steps([], **given),
    "nn.parallel.DataParallel": lambda **given: af.nn.parallel.DataParallel(af.nn.Flatten(), ["cpu"], **given),
    "nn.parallel.PipelineParallel": lambda **given: af.nn.parallel.PipelineParallel(
        [af.nn.Flatten()], ["cpu"], **given
    ),
    **{
        f"pipeline.Pipeline.{name}": lambda name=name, **given: getattr(source(), name)(len, **given)
        for name in ("map", "filter", "flat_map")
    },
    "pipeline.Pipeline.iter_sync": lambda **given: asyncio.to_thread(lambda: list(source().iter_sync(**given))),
    "pipeline.interleave": lambda **given: af.pipeline.interleave(source(), **given),
    "serve.Server": lambda **given: af.serve.Server(af.serve.create_app({"g": graph_of()[0]}), **given),
    "serve.create_app": lambda **given: af.serve.create_app({"g": graph_of()[0]}, **given),
    "web.serve": lambda **given: af.web.serve(graph_of()[0], **given),
    "web.create_app": lambda **given: af.web.create_app(graph_of()[0], **given),
    "web.asgi": lambda **given: af.web.asgi(graph_of()[0], **given),
    "testing.check_gradient": lambda **given: asyncio.to_thread(
        af.testing.check_gradient, af.ops.Scale(2.0), np.ones(2), **given
    ),
    "testing.inject": lambda **given: af.testing.inject(graph_of()[0], "y", **given),
    "testing.interleave": lambda **given: af.testing.interleave(graph_of()[0], **given),
    "testing.simulate": lambda **given: asyncio.to_thread(af.testing.simulate, works, **given),
    "testing.shrink": lambda **given: asyncio.to_thread(af.testing.shrink, breaks, **given),
    "Graph.call": lambda **given: called(**given),
}
#: What else calls need, and right numbers of them where `USUAL` ones are not.
NEEDED: dict[str, dict[str, Any]] = {
    "Graph": {"name": "g"},
    "Graph.cache": {"name": "c"},
    "Graph.batched": {"max_rows": 4, "queue_rows": 8, "max_sessions": 4},
    "Graph.function": {"name": "f", "fn": asyncio.sleep, "in_flight": 1},
    "testing.simulate": {"seed": 1},
    "testing.shrink": {"seed": 1},
    "Graph.op": {"name": "o", "operation": af.ops.Scale(2.0)},
    "Graph.stream": {"feeds": []},
    "Place": {"kind": "sim"},
    "nn.LRN": {"size": 3},
    "nn.VGG": {"size": 11},
    "nn.ResNet": {"size": 18},
    "nn.Trainer.epochs": {"epochs": 1},
    "nn.Trainer.fit": {"epochs": 1},
    "nn.Optimizer": {"clip": None, "multipliers": None, "name": "small"},
    "nn.Conv": {"channels": 4, "kernel": 3},
    "nn.ConvTranspose": {"channels": 4, "kernel": 3},
    "nn.MultiHeadAttention": {"kv_heads": 1},
    "nn.init.uniform": {"high": 1.5},
    "nn.rates.MultiStep": {"milestones": (1, 2)},
    "nn.rates.Warmup": {"policy": af.nn.rates.Fixed(0.5)},
    "nn.parallel.Scatter": {"places": ["cpu"]},
    "nn.parallel.Gather": {"place": "cpu"},
    "pipeline.Pipeline.shard": {"rank": 1},
    "pipeline.Pipeline.to": {"place": "cpu"},
    "pipeline.source": {"data": range(3)},
    "data.Augmentation": {"steps": []},
    "data.Blocks": {"count": 8, "offset": 1, "interval": 4, "seed": None},
    "data.Crop": {"size": 2},
    "data.Draws": {"rows": np.arange(2)},
    "data.ImageFiles": {"paths": [], "size": 2, "channels": 3},
    "data.Loader": {"columns": {"x": np.arange(4)}},
    "data.Sampler": {"count": 4, "offset": 1},
    "data.Split.shuffled": {"rng": np.random.default_rng(0)},
    "data.stratified_split": {
        "images": np.zeros((4, 1)), "labels": np.arange(4) // 2, "rng": np.random.default_rng(0)
    },
}  # fmt: skip
USUAL = {"int": 2, "float": 0.5}


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
    "Batcher.expire": "called by its sessions",
    "Batcher.note_failure": "called by its sessions",
    "Batcher.iterate": "it runs, without an end if there is no limit: tests/runtime/test_sessions.py",
    "Batcher.run": "it runs: see below",
    "Batcher.session": "it runs: see below",
    "Session": "made by Batcher.session, and runs: see below",
    "State": "made by Graph.state",
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
    "onnx.Network": "needs a file: tests/onnx/test_runtime.py",
    "onnx.load": "as load, and needs the package onnx: tests/onnx/test_files.py",
    "onnx.save": "needs the package onnx: tests/onnx/test_saving.py",
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
    "Cache": "by Graph.cache",
    "Variable": "by Graph.variable",
    "Op": "by Graph.op",
    "FrameStream": "by Graph.stream",
    "Checkpoint": "by load_checkpoint",
    "GraphStatistics": "by Graph.statistics",
    "pipeline.LoaderStats": "by Pipeline.stats",
    "pipeline.StageSnapshot": "by Pipeline.stats",
    "data.Feed": "by loaders",
    "web.View": "by web.serve",
    "testing.Injection": "by inject",
    "testing.Simulated": "by simulate",
    # What devices and transports are asked by the package.
    "devices.": "by the runtime",
    "transport.": "by the runtime",
}


#: Calls that are checked though what they belong to is not.
NONETHELESS = {"Checkpoints", "testing.check_gradient", "transport.LocalWorld"}
NONETHELESS |= {f"devices.{name}Options" for name in ("Cuda", "Device", "Sim")}


def is_elsewhere(argument: Argument) -> bool:
    is_named = any(f"{argument.label}.{argument.name}".startswith(start) for start in ELSEWHERE)
    return is_named and argument.label not in NONETHELESS


CHECKED = [argument for argument in numbers() if not is_elsewhere(argument)]


def test_numbers_are_found() -> None:
    assert len(CHECKED) > 150
    assert {*CALLS, *NEEDED} <= {argument.label for argument in CHECKED}


@pytest.mark.any_loop
@pytest.mark.together("argument", CHECKED, ids=str, at_once=8)
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
    """What is called, and right arguments: its numbers, and what it needs."""
    owner, _, name = label.rpartition(".")
    call = CALLS.get(label) or (getattr(OWNERS[owner](), name) if owner in OWNERS else attrgetter(label)(af))
    usual = {each.name: USUAL[each.kind] for each in CHECKED if each.label == label}
    return call, usual | NEEDED.get(label, {})


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

    async def session(self, **options: Any) -> None:
        async with self.graph.batched(fetch=self.y) as batcher, batcher.session(**options) as session:
            give((await session.run({self.x: [1.0]}))[self.y].tolist(), [2])

    async def step(self, **request: Any) -> None:
        async with self.graph.batched(fetch=self.y) as batcher, batcher.session() as session:
            try:
                give((await session.run(**request))[self.y].tolist(), [2])
            finally:
                assert (await session.run({self.x: [3.0]}))[self.y].tolist() == [6]

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


#: How calls are run that are not just awaited.
THROUGH: dict[str, Callable[..., Any]] = {
    "Graph.stream": Bench.stream,
    "FrameStream.in_flight": Bench.in_flight,
    "Graph.batched": Bench.batched,
    "Batcher.run": Bench.ask,
    "Batcher.session": Bench.session,
    "Session.run": Bench.step,
    "Graph.pause": lambda b, **given: b.paused("pause", **given),
    "Graph.step": lambda b, **given: b.paused("step", **given),
    "Graph.cancel": Bench.cancel,
    "Graph.tap": lambda b, targets, **given: b.tap(targets, **given),
    "Graph.op": lambda b, **given: b.graph.op(**given)(b.x),
    **{
        f"pipeline.Pipeline.{method}": lambda b, method=method, **given: b.pipeline(method, **given)
        for method in ("map", "filter", "flat_map")
    },
}
#: Right arguments of what is run.
RUNS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "Graph.run": lambda b: {"feeds": {b.x: [1.0]}, "fetch": b.y, "timeout": 60, "atomic": False, "partial": False},
    "Graph.warm_up": lambda b: {"fetch": b.y, "axes": {"batch": 1}, "timeout": 60},
    "Graph.compile": lambda b: {"fetch": b.y, "axes": {"batch": 1}},
    "Graph.memory_cost": lambda b: {"fetch": b.y, "axes": {"batch": 1}},
    "Graph.stream": lambda b: (
        {"feeds": [{b.x: [1.0]}, {b.x: [2.0]}], "fetch": b.y, "in_flight": 2, "atomic": False, "partial": False}
    ),
    "FrameStream.in_flight": lambda b: {"frames": 2},
    "Graph.batched": lambda b: (
        {"fetch": b.y, "max_rows": 2, "max_wait": 0.0, "buckets": [2], "queue_rows": 8, "key": None}
        | {"pad": None, "in_flight": 2, "isolate": True, "axis": "batch", "state": None, "fixed": None}
        | {"max_sessions": 4, "max_cells": 64, "feeds": None}
    ),
    "Batcher.run": lambda b: {"feeds": {b.x: [1.0]}, "priority": 1, "timeout": 60},
    "Batcher.session": lambda b: {"key": "mine", "weight": 2, "state": None, "priority": 1, "timeout": 60, "ttl": 60},
    "Session.run": lambda b: {"feeds": {b.x: [1.0]}, "priority": 1, "timeout": 60},
    "Graph.pause": lambda b: {"reason": "a look"},
    "Graph.step": lambda b: {"frames": 1},
    "Graph.cancel": lambda b: {"frame": None, "reason": "by hand"},
    "Graph.tap": lambda b: {"targets": b.y, "every": 1, "interval": 0.0, "in_a_row": 1, "trace": False},
    "Graph.blob": lambda b: {"name": b.name(), "shape": (1,), "dtype": "float32", "place": "cpu"},
    "Graph.variable": lambda b: {"name": b.name(), "shape": (1,), "dtype": "float32", "init": 1.0, "place": "cpu"},
    "Graph.op": lambda b: (
        {"name": b.name(), "operation": af.ops.Scale(2.0), "place": "cpu", "lane": "main", "priority": 1}
        | {"timeout": 60, "retries": 1, "backoff": 0.0, "libraries": ["numpy"], "force_cpu": False}
    ),
    "Graph.function": lambda b: (
        {"name": b.name(), "fn": np.negative, "outputs": af.TensorSpec.of((1,)), "place": "cpu", "backoff": 0.0}
        | {"lane": "main", "inputs": [b.w], "concurrency": 1, "priority": 1, "timeout": 60, "retries": 1}
        | {"emits": False, "in_flight": 1}
    ),
    "Model.run": lambda b: {"inputs": {"x": [1.0]}, "fetch": "y", "timeout": 60, "partial": False},
    "Model.warm_up": lambda b: {"axes": {"batch": 1}, "timeout": 60},
    **{
        f"pipeline.Pipeline.{method}": lambda b, fn=fn: (
            {"fn": fn, "name": "stage", "concurrency": 2, "ordered": True, "executor": "thread"}
            | {"timeout": 60, "retries": 1, "backoff": 0.0, "on_error": "raise", "buffer": 2}
            | {"limiter": af.pipeline.Limiter(1)}
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
    for label, right in RUNS.items():
        names = [*annotations_of(functions[label])][1:] if label in functions else [*right(Bench())]
        found += [(label, name) for name in names]
    return found


@pytest.mark.any_loop
@pytest.mark.parametrize("is_warm", [True, *slow([False])], ids=["warm", "first"])
@pytest.mark.parametrize(("label", "name"), arguments_that_run(), ids=lambda each: each)
async def test_what_is_refused_leaves_nothing_behind(label: str, name: str, is_warm: bool) -> None:
    call, right = THROUGH.get(label) or awaited(label), RUNS[label]
    assert name in right(Bench()), f"{label} has a new argument: say in RUNS what is right for it"
    values = [*ANYTHING]
    while values:
        bench, is_same = Bench(), True
        async with bench.graph:
            if is_warm:
                await limited(call(bench, **right(bench)))
            while values and is_same:  # until one is taken, in short
                nodes = bench.graph.nodes
                is_same = False
                try:
                    await limited(call(bench, **{**right(bench), name: values.pop()}))
                except REFUSALS:
                    assert bench.graph.nodes == nodes
                    is_same = is_warm
                except OtherResultError:
                    pass
                await limited(call(bench, **right(bench)))
                assert (await limited(bench.graph.run({bench.x: [3.0]}, fetch=bench.y)))[bench.y].tolist() == [6]
                engine = bench.graph.engine
                assert not engine.running
                assert not engine.queue.closed
                assert not engine.resources.dispatcher.claims
                assert asyncio.all_tasks() == {asyncio.current_task()}


def awaited(label: str) -> Callable[..., Any]:
    """A method of the graph or of the model."""
    owner, name = label.lower().split(".")
    return lambda b, **given: getattr(getattr(b, owner), name)(**given)


async def limited(outcome: Any) -> Any:
    try:
        async with asyncio.timeout(60) as limit:  # only what hangs takes so long
            return await outcome if inspect.isawaitable(outcome) else outcome
    except TimeoutError:
        if limit.expired():
            pytest.fail("it hangs")
        raise
