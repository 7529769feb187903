"""Any Python function as an operation, and checks of a function before and after it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any

from actorflow.errors import GraphError, text_of, whole
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

_ASYNC = inspect.CO_COROUTINE
_YIELDS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
#: Types of results of calls that have run nothing of the function's body.
NOT_RUN = frozenset([AsyncGeneratorType, CoroutineType, GeneratorType])


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Return whether calling it gives a coroutine: it, a `functools.partial`'s function, or an object's ``__call__``.

    A plain function that returns the coroutine of another one is not known by this.
    """
    if type(fn) is FunctionType and not fn.__dict__:  # what nearly all are, and asked for each op of large graphs
        return bool(fn.__code__.co_flags & _ASYNC)
    return _is(inspect.iscoroutinefunction, fn)


def check_runs(fn: Callable[..., Any], what: str) -> None:
    """Check that a call runs a function's body: calling a generator function only makes a generator.

    Args:
        fn: The function.
        what: Its purpose, for the message: ``"an op"``.
    Raises:
        GraphError: naming the one to use instead.
    """
    if type(fn) is FunctionType and not fn.__code__.co_flags & _YIELDS:
        return
    for kind, predicate, instead in (
        ("a generator function", inspect.isgeneratorfunction, "a function that returns its values"),
        ("an async generator function", inspect.isasyncgenfunction, "an async def function that returns its values"),
    ):
        if _is(predicate, fn):
            raise GraphError(
                f"{name_of(fn)} is {kind}, of which a call runs nothing: {what} needs {instead}. What yields one item "
                "after the other is an op that emits, graph.function(..., emits=True), a source of feeds, "
                "graph.stream(source()), or a stage of a pipeline, .flat_map()"
            )


def check_has_run(results: Sequence[object], specs: Sequence[TensorSpec], *, is_async: bool) -> None:
    """Check a function's result: a lambda that returns a coroutine is known by that alone.

    Coroutines that have not begun are closed, so that no warning says that they were never awaited.

    Args:
        results: The values.
        specs: Types of the outputs that they are for; () where the function has none. One of any Python objects takes
            generators, but no coroutines, which can be awaited only once.
        is_async: Whether the function is an async one, which has been awaited.
    Raises:
        GraphError: naming the one to use instead.
    """
    refused = None
    for position, result in enumerate(results):
        is_object = position < len(specs) and specs[position].is_object
        if isinstance(result, CoroutineType):
            if inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
                result.close()
            instead = "await it" if is_async else "use an async def function that awaits it, or a functools.partial"
            refused = refused or f"the coroutine {result.__qualname__!r}, which is not awaited: {instead}"
        elif isinstance(result, GeneratorType | AsyncGeneratorType) and not is_object:
            refused = refused or f"the generator {result.__qualname__!r}, of which nothing has run: return its values"
    if refused is not None:
        raise GraphError(f"the function returned {refused}")


def _is(predicate: Callable[[Any], bool], fn: Any) -> bool:
    while isinstance(fn, partial):
        fn = fn.func
    return predicate(fn) or predicate(getattr(type(fn), "__call__", None))  # noqa: B004  an object's own


def name_of(fn: Callable[..., Any]) -> str:
    """Name of a function, or of an object that can be called."""
    return text_of(fn, lambda fn: getattr(fn, "__qualname__", None) or " ".join(repr(fn).split()))


@dataclass(frozen=True, slots=True)
class Function(Operation):
    """A plain or ``async def`` function; it is its own kernel, on the CPU. See `Graph.function`.

    Attributes:
        fn: Called with the inputs' values.
        specs: Types of the outputs; None where the connected blobs say them.
        concurrency: Most frames that may be in an async function at once; None for any number.
    Example:
        >>> graph = af.Graph("example")
        >>> x = graph.blob("x", shape=2)
        >>> y = graph.apply(af.ops.Function(lambda x: x + 1, (x.spec,)), x)
        >>> print(graph.run_sync({x: [1, 2]})[y])
        [2. 3.]
    """

    arguments = ("*inputs",)
    differentiable = False

    fn: Callable[..., Any]
    specs: tuple[TensorSpec, ...] | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise GraphError(f"{self.fn!r} is not a function")
        self._check_kind()
        if self.concurrency is not None and whole("concurrency", self.concurrency, 1) > 1 and not self.is_async:
            raise GraphError(f"{self} is not async: its lane runs one call at a time, not {self.concurrency}")
        if self.specs is not None:
            object.__setattr__(self, "specs", checked_specs(self.specs))

    @property
    def is_async(self) -> bool:
        """True if it is a coroutine function, run as a task on the loop."""
        return is_coroutine_function(self.fn)

    def _check_kind(self) -> None:
        check_runs(self.fn, "an op")

    def check_arity(self, count: int) -> None:
        """Check that the function can be called with so many values, where its signature says so."""
        try:
            signature = inspect.signature(self.fn, follow_wrapped=False)
        except (TypeError, ValueError):  # one that is written in C may say nothing
            return
        try:
            signature.bind(*[None] * count)
        except TypeError as error:
            raise GraphError(f"{self}{signature} cannot be called with {count} inputs: {error}") from None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...] | None:
        return self.specs

    def __str__(self) -> str:
        return name_of(self.fn)


@dataclass(frozen=True, slots=True)
class Emitting(Function):
    """A generator function, plain or async, whose items are computed one after the other; see `Graph.function`.

    Attributes:
        fn, specs: As of `Function`; types are an item's.
        concurrency: One frame at a time.
        in_flight: Most items that are computed at once.
    Example:
        >>> graph = af.Graph("example")
        >>> x = graph.blob("x", shape=3)
        >>> def each(values):
        ...     yield from values
        >>> item = graph.apply(af.ops.Emitting(each, (af.TensorSpec.of([]),)), x)
        >>> squares = af.collect(item * item)
        >>> print(graph.run_sync({x: [1, 2, 3]})[squares])
        [1. 4. 9.]
    """

    concurrency: int | None = 1
    in_flight: int = 1

    @property
    def is_async(self) -> bool:
        """True if it is an async generator function."""
        return _is(inspect.isasyncgenfunction, self.fn)

    def _check_kind(self) -> None:
        if not self.is_async and not _is(inspect.isgeneratorfunction, self.fn):
            raise GraphError(f"{name_of(self.fn)} does not yield: emits=True needs a generator function, async or not")
        if self.concurrency != 1:
            raise GraphError(f"{self}: an op that emits takes one frame after the other; in_flight= is for its items")
        whole("in_flight", self.in_flight, 1)


def checked_specs(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Types of a function's outputs, normalized: one object for all functions of a type.

    Raises:
        GraphError, ShapeError, DTypeError: if they are not types.
    """
    for spec in specs:
        if not isinstance(spec, TensorSpec):
            raise GraphError(f"outputs of a function must be TensorSpec, got {spec!r}: af.TensorSpec.of(shape, dtype)")
    try:
        return _shared(specs)
    except TypeError:  # made without a check, of parts that have no hash
        return _normalized(specs)


def _normalized(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple([TensorSpec.of(spec.shape, spec.dtype) for spec in specs])


_shared = lru_cache(maxsize=1024)(_normalized)
