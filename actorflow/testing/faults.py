"""Planted failures, delays and replaced functions: what goes wrong seldom does so in a test, where and when it says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol, Self

from actorflow.actors.frame import Frame
from actorflow.actors.op import FunctionActor, KernelActor, OpActor
from actorflow.actors.stream import StreamFunctionActor, StreamKernelActor
from actorflow.actors.task import AsyncActor
from actorflow.errors import GraphError, seconds, whole
from actorflow.graph.flow import WithBodies
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Op
from actorflow.loop import Steps
from actorflow.ops.function import Emitting, Function
from actorflow.plan.plan import Plan, PlannedOp
from actorflow.runtime.build import Builder, building
from actorflow.runtime.engine import Engine
from actorflow.runtime.program import Program
from actorflow.runtime.resources import Resources
from actorflow.testing.clock import sleep_in_thread


def inject(
    graph: Graph,
    op: Op | str,
    *,
    error: Exception | Callable[[], Exception] | None = None,
    delay_s: float | None = None,
    frames: Collection[int] | None = None,
    times: int | None = None,
) -> Injection:
    """Make calls of an op late, or fail, or both, from the frames on that are started after this.

    It works for kernels, plain functions and async functions, and for each call, so that retries meet it, too. The
    delay comes first and is part of the call, so that the op's timeout sees it: an async function awaits it, a thread
    sleeps. It is measured on the loop's clock (`virtual_time_loop`). In a sequential graph it blocks the loop, and not
    on that clock. An op with a delay always runs on its lane. Results do not change otherwise, and a graph without
    injections runs as before.

    Args:
        graph: A root graph. `interleave` comes before this.
        op: The op, or its name.
        error: An exception that the call raises instead of doing its work, or a callable that makes one.
        delay_s: How long the call takes longer, in seconds; 0 gives way to others once.
        frames: Numbers of the frames that are struck (a graph's frames count from 0, see ``engine.next_number``);
            None strikes all.
        times: How many calls are struck at most.
    Returns:
        A handle that takes the injection back: a context manager, or call `Injection.remove`.
    Raises:
        GraphError: if there is no such op.
        ValueError: if there is neither an error nor a delay, or one that is negative.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [])
        >>> y = af.ops.exp(x, name="exp")
        >>> with af.testing.inject(graph, "exp", error=OSError("disk gone"), times=1) as injection:
        ...     try:
        ...         graph.run_sync({x: 0})
        ...     except af.OpError as error:
        ...         print(repr(error.__cause__))
        ...     print(graph.run_sync({x: 0})[y], injection.struck)
        OSError('disk gone')
        1.0 1
    """
    node = _op(graph, op)
    if error is None and delay_s is None:
        raise ValueError(f"op {node.name!r}: neither an error nor a delay to inject")
    delay_s = None if delay_s is None else seconds(f"op {node.name!r}: delay_s", delay_s)
    times = None if times is None else whole(f"op {node.name!r}: times", times, 0)
    return Injection(graph.engine, node, error, delay_s, frames, times)


def replace(graph: Graph, op: Op | str, by: Any) -> Replacement:
    """Have a function, or a value, in the place of an op's own, in the frames that are started from then on.

    The op keeps its name, inputs, outputs, ``timeout=`` and ``retries=``; its own work, a kernel, a function, a
    call of another graph, is done no more. Gradients stay as of the op's own work.

    Args:
        graph: A root graph.
        op: The op, or its name.
        by: A plain or async function of the op's inputs, as for `Graph.function`; anything else is the result: a list
            or tuple of values if there are several outputs.
    Returns:
        A handle that undoes the replacement: a context manager, or call its ``remove``.
    Raises:
        GraphError: if there is no such op; the message names the nearest one. If it emits, or has branches or loops.

    Example:
        >>> graph = af.Graph("service")
        >>> x = graph.blob("x", [])
        >>> price = graph.function("ask", lambda x: x * 2, x.spec)(x)
        >>> with af.testing.replace(graph, "ask", 7):
        ...     print(graph.run_sync({x: 1})[price])
        7.0
        >>> print(graph.run_sync({x: 1})[price])
        2.0
    """
    node = _op(graph, op)
    if isinstance(node.operation, Emitting | WithBodies):
        raise GraphError(f"op {node.name!r} is {node.operation.kind}, which computes parts of the graph: replace those")
    return Replacement(graph.engine, node, by if callable(by) else lambda *_: by)


def _op(graph: Graph, op: Op | str) -> Op:
    node = graph.resolve(op)
    if not isinstance(node, Op):
        raise GraphError(f"faults are for ops, got {node!r}")
    return node


class _Planted:
    """The change of an op by a test, until it is removed."""

    delay_s: float | None = None

    def __init__(self, engine: Engine, op: Op) -> None:
        self.op = op
        self._engine = engine
        self._set((*planted(engine), self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Strike no frame that is started from now on. Idempotent."""
        self._set([other for other in planted(self._engine) if other is not self])

    def applies(self, op: PlannedOp) -> bool:
        """See `Fault.applies`."""
        return self.op is op.node is op.site

    def strike(self, actor: OpActor, frame: Frame) -> None:
        """See `Fault.strike`."""

    def strike_later(self, actor: OpActor, frame: Frame) -> Callable[[], Awaitable[None]] | None:
        """See `Fault.strike_later`."""
        return None

    def _set(self, faults: Sequence[Fault]) -> None:
        # They are for ops as they are, each by itself.
        self._engine.build_with(FaultyBuild(tuple(faults)) if faults else building, fuse=not faults)


class Replacement(_Planted):
    """Another function in the place of an op's own; see `replace`.

    Attributes:
        op: The op.

    Example:
        >>> graph = af.Graph("g")
        >>> y = af.ops.exp(graph.blob("x", []), name="exp")
        >>> replacement = af.testing.replace(graph, "exp", 3)
        >>> replacement.op is graph["exp"], graph.run_sync({"x": 0})[y].item()
        (True, 3.0)
        >>> replacement.remove()
        >>> graph.run_sync({"x": 0})[y].item()
        1.0
    """

    def __init__(self, engine: Engine, op: Op, fn: Callable[..., Any]) -> None:
        self.function = Function(fn)  # the plan knows the types of its outputs, with the lengths of open axes
        super().__init__(engine, op)


class Injection(_Planted):
    """One planted fault; see `inject`.

    Attributes:
        op: The op that it strikes.
        delay_s: How long it makes a call longer.
        struck: Calls that it has struck.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [])
        >>> y = af.ops.exp(x, name="exp")
        >>> injection = af.testing.inject(graph, "exp", delay_s=0.0)
        >>> _ = graph.run_sync({x: 0})
        >>> injection.remove()
        >>> _ = graph.run_sync({x: 0})
        >>> injection.op, injection.struck
        (<Op 'exp' Exp() on cpu, lane None>, 1)
    """

    def __init__(
        self,
        engine: Engine,
        op: Op,
        error: Exception | Callable[[], Exception] | None,
        delay_s: float | None,
        frames: Collection[int] | None,
        times: int | None,
    ) -> None:
        self.delay_s = delay_s
        self.struck = 0
        self._error = error
        self._frames = frames
        self._times = times
        self._lock = threading.Lock()
        super().__init__(engine, op)

    def strikes(self, number: int) -> bool:
        """True if it strikes a call in frame ``number`` that begins now. Any thread may call it."""
        if self._frames is not None and number not in self._frames:
            return False
        with self._lock:
            if self._times is not None and self.struck >= self._times:
                return False
            self.struck += 1
            return True

    def strike(self, actor: OpActor, frame: Frame) -> None:
        if self.strikes(frame.number):
            if self.delay_s is not None:
                _delay(actor, frame, self.delay_s)
            self._raise_error()

    def strike_later(self, actor: OpActor, frame: Frame) -> Callable[[], Awaitable[None]] | None:
        return self._strike_later if self.strikes(frame.number) else None

    async def _strike_later(self) -> None:
        if self.delay_s is not None:
            await asyncio.sleep(self.delay_s)
        self._raise_error()

    def _raise_error(self) -> None:
        if isinstance(self._error, Exception):
            raise self._error.with_traceback(None)
        if self._error is not None:
            raise self._error()


def planted(engine: Engine) -> tuple[Fault, ...]:
    """The faults planted in the programs that an engine makes."""
    return engine.build.injections if isinstance(engine.build, FaultyBuild) else ()


class Fault(Protocol):
    """A fault that strikes calls of ops."""

    delay_s: float | None

    def applies(self, op: PlannedOp) -> bool:
        """True if calls of an op of a plan may be struck; one that the plan inserted bears another op's name."""

    def strike(self, actor: OpActor, frame: Frame) -> None:
        """Apply the injection to a call. Called by the loop's or the lane's thread."""

    def strike_later(self, actor: OpActor, frame: Frame) -> Callable[[], Awaitable[None]] | None:
        """As `strike`, for a call of an async function: an awaitable that comes before its work, or None."""


class _Faulty(OpActor):
    """Actor that injections strike where it does its work, whatever its kind."""

    __slots__ = ()

    injections: list[Fault]

    def strike(self, frame: Frame) -> None:
        """Called on the loop's or the lane's thread."""
        for injection in self.injections:
            injection.strike(self, frame)


def _struck(kind: type[Any], method: str) -> type[Any]:
    """A kind of actor that injections strike where it does its work: in a method."""
    work = getattr(kind, method)

    def strike_first(actor: _Faulty, frame: Frame) -> None:
        actor.strike(frame)
        work(actor, frame)

    fields = {"__slots__": ("injections",), method: strike_first}
    return type(f"_Faulty{kind.__name__}", (_Faulty, kind), fields)


class _FaultyAsync(_Faulty, AsyncActor):
    __slots__ = ("injections",)

    def coroutine(self, frame: Frame) -> Coroutine[Any, Any, Any]:
        strikes = [strike for injection in self.injections if (strike := injection.strike_later(self, frame))]
        if not strikes:
            return super().coroutine(frame)
        return self._struck(strikes, [frame.values[blob.slot] for blob in self.inputs])

    async def _struck(self, strikes: list[Callable[[], Awaitable[None]]], inputs: list[Any]) -> Any:
        for strike in strikes:
            await strike()
        return await self.fn(*inputs)


def _delay(actor: OpActor, frame: Frame, delay_s: float) -> None:
    if asyncio._get_running_loop() is None:
        sleep_in_thread(frame.loop, actor.lane, delay_s)
    else:
        time.sleep(delay_s)


class _FaultyBuilder(Builder):
    kernel_kind = _struck(KernelActor, "compute")
    function_kind = _struck(FunctionActor, "compute")
    async_kind = _FaultyAsync
    stream_kernel_kind = _struck(StreamKernelActor, "launch")
    stream_function_kind = _struck(StreamFunctionActor, "launch")

    injections: tuple[Fault, ...] = ()

    def __init__(self, plan: Plan, resources: Resources) -> None:
        super().__init__(plan, resources)
        for each in [each for each in self.injections if isinstance(each, Replacement)]:
            for op in plan.ops:
                if each.applies(op):
                    op.operation, op.kernel = each.function, None

    def may_be_captured(self, op: PlannedOp) -> bool:
        return not any(injection.applies(op) for injection in self.injections)

    def op_actor(self, op: PlannedOp, index: int) -> OpActor:
        actor = super().op_actor(op, index)
        if not isinstance(actor, _Faulty):
            return actor  # a copy between devices
        faulty: Any = actor  # whose slots mypy does not see through _Faulty
        faulty.injections = [injection for injection in self.injections if injection.applies(op)]
        if any(injection.delay_s is not None for injection in faulty.injections):
            actor.inline_ns = -1
        return actor


class FaultyBuild:
    """Makes plans ready to run with faults."""

    def __init__(self, injections: tuple[Fault, ...]) -> None:
        self.injections = injections

    def __call__(self, plan: Plan, resources: Resources) -> Steps[Program]:
        return building(plan, resources, type("_Builder", (_FaultyBuilder,), {"injections": self.injections}))
