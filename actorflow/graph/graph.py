"""Graphs: the definition of a computation. The code that runs, shows or records it is imported when it is asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypedDict, Unpack, cast, overload

import numpy as np
import numpy.typing as npt

from actorflow.devices import DeviceOptions
from actorflow.errors import (
    GraphError,
    NotFiniteError,
    ShapeError,
    did_you_mean,
    flag,
    real,
    require,
    seconds,
    text,
    time_limit,
    whole,
)
from actorflow.graph import options
from actorflow.graph.nodes import Blob, Initializer, Node, Op, Site, State, Variable, as_blobs
from actorflow.graph.store import Store
from actorflow.interchange import as_array, to_numpy
from actorflow.ops.fills import Constant
from actorflow.ops.function import Emitting, Function, checked_specs
from actorflow.ops.operation import Operation
from actorflow.place import Place
from actorflow.spec import TensorSpec, rows_axis
from actorflow.threads import held_at_fork, in_thread
from actorflow.transport.base import Transport
from actorflow.transport.world import simulated_rank
from actorflow.transport.world import world as world_of_process

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from actorflow.checkpoint.weights import LoadedWeights
    from actorflow.graph.body import Body
    from actorflow.graph.cache import Cache
    from actorflow.plan.memory import Footprint
    from actorflow.plan.plan import Plan
    from actorflow.runtime.batched import Batcher
    from actorflow.runtime.engine import Engine
    from actorflow.runtime.model import Model
    from actorflow.runtime.pause import Pause
    from actorflow.runtime.program import Result
    from actorflow.runtime.stream import FrameStream
    from actorflow.runtime.taps import Tap
    from actorflow.trace.recording import Recording
    from actorflow.trace.statistics import GraphStatistics

    #: A target to fetch: a blob, an op (run it), a sub-graph (run all its ops), or a name.
    Target: TypeAlias = Blob | Op | "Graph" | str
    #: One of these, or several; None for the sinks.
    Fetch: TypeAlias = Target | Iterable[Target] | None

    class _Attempts(TypedDict, total=False):
        concurrency: int | None
        timeout: float | None
        retries: int
        backoff: float

    class _Calling(_Attempts, total=False):
        name: str | None

    class _Making(_Attempts, total=False):
        inputs: Blob | Sequence[Blob] | None
        emits: bool
        in_flight: int
        priority: int


#: Values for blobs, by blob or by name.
Feeds = Mapping[Any, npt.ArrayLike]  # a mapping's keys are invariant: "Blob | str" would refuse dict[Blob, ...]

_HOST = Place()
_making_engine = held_at_fork(threading.Lock(), is_outer=True)
#: Types of constants of Python numbers that are not NumPy's.
_USUAL = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


class _Defaults(NamedTuple):
    """Set by `Graph.at` and `Graph._made`; None where nothing was said.

    Attributes:
        of: The node that ops are made for: `Op.of`.
        site: `Node.site`.
    """

    place: Place | None = None
    lane: str | None = None
    hints: options.Hints | None = None
    name: str | None = None
    of: Op | Blob | None = None
    site: Site | None = None


class Interface(NamedTuple):
    """Names of a graph's inputs and outputs, if its file has given them."""

    inputs: dict[str, Blob]
    outputs: dict[str, Blob]


class Graph:
    """A bipartite graph of operations and blobs, or a part of one.

    ``with graph.subgraph("encoder"):`` names a scope: nodes made inside go there, by layers, by the functional form
    (``af.ops.softmax(y)``), and by ``graph.blob`` and the like. Scopes share the root's ops, blobs and variables; only
    the root can run. Leaving ``async with graph:`` closes it (`aclose`).

    Args:
        name: Shown in errors, the live page and ``to_dot``.
        memory_budget: Most bytes that variables and intermediate values may take on each device. Frames and ops wait
            for memory; a graph that can never fit fails when it is compiled. Values fed and fetched are the
            application's and do not count.
        sequential: Run one op after the other on the loop, in the order of the plan, for debugging.
        deterministic: Keep BLAS on one thread, so that no sum depends on how many cores were free.
        dry_run: Check, plan and take feeds, but compute nothing: results are `TensorSpec`.
        stall_limit: Seconds without progress after which a frame fails with `StallError`; None never.
        block_limit: Seconds of a blocked event loop after which the op that blocks it is logged, with its stack.
        libraries: Kernel libraries to prefer, best first (``["cudnn", "cupy"]``); where none of them has a kernel, the
            device's own libraries are tried, then the CPU's. Each such choice is logged once and noted in
            ``plan.summary()``.
        force_cpu: Compute on the CPU, wherever the arrays live.
        devices: Options by place: ``{"sim:0": af.devices.SimOptions(latency_s=1e-5)}``.
        capture: Launch ops that follow each other on a lane of an accelerator as one, where they are the same in each
            frame: captured once, then replayed (CUDA graphs). Ops with functions, views, random numbers, a timeout or
            retries are launched by themselves, and so is everything under a memory budget or in a sequential graph.
            ``plan.summary()`` lists the segments, and `statistics` says how often each was replayed.
        fuse: Compute elementwise ops of one shape that follow each other, and the reductions of their values, in one
            pass over memory where that is quicker: on accelerators, on the CPU from values of 8 MiB on and for those
            oneDNN computes with a product. Values inside that are neither fetched nor read elsewhere are not in memory
            then. Results of elementwise ops are the same to the bit; ``plan.summary()`` lists the ops joined.
        world: The ranks that run this graph together, each of which builds it (`actorflow.transport`); the default is
            that of the process, `actorflow.world`.
        trace_capacity: Number of newest calls that the graph keeps for `recording` and the live page, rounded up to a
            power of two; each takes 32 bytes.
        max_plans: Number of plans that the graph keeps, one for each different ``fetch`` and lengths of open axes; what
            was used least recently goes first.
        check_finite: Look at the results of each op: the first that has a NaN or an infinity where its inputs
            have none fails with `NotFiniteError`, which says what they are. `FiniteCheck` says more exactly what to
            look for, and lets the graph pause instead. Nothing is fused or captured meanwhile; see `check_finite`.

    Attributes:
        name: Full name, scopes joined by ``/``; the root's name is not part of its nodes' names.
        parent: The graph around a sub-graph, None for the root.
        body: The branch, or body of a loop, that a sub-graph is or lies in; None for the graph that frames compute.
        root: The outermost graph.
        options: The root's: how it runs.

    Example:
        >>> graph = af.Graph("line")
        >>> x = graph.blob("x", ["batch", 2])
        >>> w = graph.variable("w", [1, 2], init=[[1.0, 10.0]])
        >>> y = af.ops.inner(x, w)
        >>> result = graph.run_sync({x: [[1, 2], [3, 4]]})
        >>> result[y]
        array([[21.],
               [43.]], dtype=float32)
    """

    def __init__(
        self,
        name: str,
        *,
        memory_budget: int | None = None,
        sequential: bool = False,
        deterministic: bool = False,
        dry_run: bool = False,
        stall_limit: float | None = None,
        block_limit: float | None = None,
        libraries: Sequence[str] | None = None,
        force_cpu: bool = False,
        devices: Mapping[Place | str, DeviceOptions] | None = None,
        capture: bool = False,
        fuse: bool = True,
        world: Transport | None = None,
        trace_capacity: int = 1 << 16,
        max_plans: int = 64,
        check_finite: bool | options.FiniteCheck = False,
    ) -> None:
        self.name = _checked_name(name, "graph")
        self.parent: Graph | None = None
        self.body: Body | None = None
        self.root: Graph = self
        self._prefix = ""
        self._store = Store()  # shared with the sub-graphs, which have none of the following
        self._last_function: Function | None = None
        self._defaults = [_Defaults()]
        self._scope_stack: list[Graph] = [self]
        self._engine: Engine | None = None
        self._first_frame = 0  # where its engine begins to count: a file says it
        self._interface: Interface | None = None  # likewise
        self.options = options.GraphOptions(
            None if memory_budget is None else whole("memory_budget", memory_budget, 0),
            flag("sequential", sequential),
            flag("deterministic", deterministic),
            flag("dry_run", dry_run),
            time_limit("stall_limit", stall_limit, positive=True),
            time_limit("block_limit", block_limit, positive=True),
            options.hints_of(libraries, force_cpu),
            options.device_options_of(devices or {}),
            flag("capture", capture),
            flag("fuse", fuse),
            world or simulated_rank.get(),
            1 << (whole("trace_capacity", trace_capacity, 1, 1 << 32) - 1).bit_length(),
            whole("max_plans", max_plans, 1),
        )
        self._check_finite = options.finite_check_of(check_finite)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self.ops)} ops, {len(self.blobs)} blobs>"

    # -- building -----------------------------------------------------------------------------------------------------

    def blob(
        self,
        name: str,
        shape: Iterable[int | str] | int | str,
        dtype: npt.DTypeLike = "float32",
        place: Place | str | None = None,
    ) -> Blob:
        """Make a blob.

        Args:
            name: Unique in this graph, or in the scope of the ``with`` block around the call.
            shape: Length of each axis; a name, such as ``"batch"``, opens it: its length comes with the feeds, and
                equal names are equal lengths.
            dtype: Type of the elements; ``object`` with shape ``()`` lets functions pass any Python object.
            place: Where it lives; the default is that of `at`.
        Raises:
            GraphError: if the name is taken or no name; `ShapeError`, `DTypeError`, `PlaceError` for the others.

        Example:
            >>> graph = af.Graph("g")
            >>> graph.blob("images", ["batch", 28, 28, 1], "uint8")
            <Blob 'images' uint8[batch, 28, 28, 1] on cpu>
            >>> with graph.subgraph("labels"):
            ...     graph.blob("true", ["batch"], "int64")
            <Blob 'labels/true' int64[batch] on cpu>
        """
        scope = self._innermost
        return self.root._add_blob(scope, scope._full_name(name), TensorSpec.of(shape, dtype), place)

    def variable(
        self,
        name: str,
        shape: Iterable[int] | int,
        dtype: npt.DTypeLike = "float32",
        init: Initializer | npt.ArrayLike = 0,
        place: Place | str | None = None,
    ) -> Variable:
        """Make a variable: a blob whose value outlives the frame.

        Args:
            name: Unique in this graph, or in the scope of the ``with`` block around the call.
            shape: Length of each axis.
            dtype: Type of the elements.
            init: First value: an array, a scalar for all elements, or a callable ``init(spec, name)`` (`af.nn.init`),
                which a run calls in a thread where the variables that it reads first are large.
            place: Where it lives; the default is that of `at`.
        Raises:
            GraphError: as for `blob`.

        Example:
            >>> graph = af.Graph("g")
            >>> zeros = graph.variable("bias", [3])
            >>> given = graph.variable("scale", 2, init=[0.5, 2.0])
            >>> drawn = graph.variable("weight", [3, 2], init=af.nn.init.he(seed=0))
            >>> given.value
            array([0.5, 2. ], dtype=float32)
        """
        scope = self._innermost
        full, spec = scope._full_name(name), TensorSpec.of(shape, dtype)
        if spec.axes:
            raise ShapeError(f"variable {full!r}: its value outlives frames, so no axis can be open, got {spec}")
        store = self._store
        store.check_free(full)
        while scope.body is not None:  # its value outlives a call of the body, which reads it as from outside
            assert scope.parent is not None
            scope = scope.parent
        variable = Variable(scope, store.take_id(), full, self.root._place(place), spec, init)
        store.add(variable)
        return variable

    def state(
        self,
        name: str,
        shape: Iterable[int | str] | int | str,
        dtype: npt.DTypeLike = "float32",
        init: npt.ArrayLike = 0,
        place: Place | str | None = None,
    ) -> State:
        """Make a state: a source with a row for each session of a batcher, which `State.assign` gives the next value.

        Args:
            name: Unique in this graph, or in the scope of the ``with`` block around the call.
            shape: Length of each axis; exactly one is open, wherever it stands: that of the rows, ``("row", 128)``.
            dtype: Type of the elements.
            init: The first value of a session: an array of the other axes, or a scalar for all elements.
            place: Where it lives; the default is that of `at`.
        Raises:
            ShapeError: if not exactly one axis is open. DTypeError: if ``init`` is of another dtype.
            GraphError: as for `blob`; in a branch or a loop, which read states from outside.

        Example:
            >>> graph = af.Graph("g")
            >>> graph.state("hidden", [2, "row", 128])
            <State 'hidden' float32[2, row, 128] on cpu>
        """
        scope = self._innermost
        full, spec = scope._full_name(name), TensorSpec.of(shape, dtype)
        if scope.body is not None:
            raise GraphError(f"state {full!r}: make it outside of the branch or loop, which can read it from there")
        _, row = rows_axis(spec, f"state {full!r}")
        given = row if np.ndim(init) else TensorSpec((), row.dtype)
        array = as_array(init, given, f"init of state {full!r}", narrow=True)
        store = self._store
        store.check_free(full)
        first = np.array(np.broadcast_to(array, row.shape), order="C")
        made = State(scope, store.take_id(), full, self.root._place(place), spec, first)
        store.add(made)
        return made

    def cache(
        self,
        name: str,
        most: int,
        blocks: int,
        *,
        block: int = 16,
        axis: str = "row",
        place: Place | str | None = None,
    ) -> Cache:
        """Make a cache: keys and values of each session's tokens, in blocks from one pool; see `Cache.attention`.

        Args:
            name: Begins the names of its sources, ``name_used`` and the like.
            most: Number of positions that a session may have.
            blocks: Number of blocks of all sessions together. A step that finds too few waits, or is refused, as
                `Batcher.session` says.
            block: Number of positions of a block. Of the last one of a session half is not in use on average.
            axis: Name of the axis of the rows.
            place: Where it lives; the default is that of `at`.
        Raises:
            GraphError: if a number is not positive, or the name is none.

        Example:
            >>> graph = af.Graph("g")
            >>> graph.cache("cache", most=1024, blocks=512).used
            <Cached 'cache_used' int64[row] on cpu>
        """
        from actorflow.graph.cache import Cache

        sizes = whole("most", most, 1), whole("blocks", blocks, 1), whole("block", block, 1)
        scope = self._innermost
        return Cache(scope, scope._full_name(text("name", name)), *sizes, text("axis", axis), self.root._place(place))

    def constant(
        self,
        value: npt.ArrayLike,
        dtype: npt.DTypeLike | None = None,
        name: str | None = None,
        place: Place | str | None = None,
    ) -> Blob:
        """Make a blob of one value in all frames, which is neither fed nor trained nor part of a checkpoint.

        Args:
            value: A number, an array of any library, which is copied, or nested lists of numbers.
            dtype: Type of the elements; the default is that of an array, and NumPy's for Python numbers, but for
                float32 and complex64.
            name: Name of the op that it comes from, made unique; the blob is ``<name>/out``.
            place: Where it lives; the default is that of `at`.
        Returns:
            Blob of the shape of ``value``.
        Raises:
            ShapeError, DTypeError: if ``value`` is not an array of numbers, text or bytes, or not one of ``dtype``.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> mean = graph.constant([1.0, 2.0], name="mean")
            >>> mean
            <Blob 'mean/out' float32[2] on cpu>
            >>> centred = x - mean
            >>> graph.run_sync({x: [1, 1]})[centred]
            array([ 0., -1.], dtype=float32)
        """
        operation = Constant(_constant_array(value, dtype))
        with self._innermost as scope:
            return scope._add_op(self._name_of(operation, name), operation, place, None)()

    def replica(self, name: str, of: Blob, place: Place | str | None = None) -> Variable:
        """Make a copy of a variable at another place, that the program keeps equal to it: by updates that are the same.

        It is of the same type and begins alike. A checkpoint that was saved with fewer copies gives it the value of the
        first; one that was saved with more can do without this one.

        Args:
            name: Unique in this graph.
            of: The variable.
            place: Where it lives; the default is that of `at`.
        Raises:
            GraphError: as for `variable`; if ``of`` is a variable of another graph.

        Example:
            >>> graph = af.Graph("g")
            >>> weight = graph.variable("weight", [2], init=[1.0, 2.0])
            >>> copy = graph.replica("copy", weight, "sim:0")
            >>> copy.replica_of is weight, str(copy.place)
            (True, 'sim:0')
            >>> copy.value
            array([1., 2.], dtype=float32)
        """
        if not isinstance(of, Variable) or of.graph.root is not self.root:
            raise GraphError(f"replica {name!r}: expected a variable of graph {self.root.name!r}, got {of!r}")
        first = of if of.replica_of is None else of.replica_of
        init = first._init
        begins = (lambda spec, _: init(spec, first.name)) if callable(init) else init
        copy = self.variable(name, of.shape, of.dtype, begins, place)
        copy.replica_of, copy.is_state = first, first.is_state
        return copy

    def op(
        self,
        name: str,
        operation: Operation,
        place: Place | str | None = None,
        lane: str | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        retries: int = 0,
        backoff: float = 0.0,
        libraries: Sequence[str] | None = None,
        force_cpu: bool = False,
    ) -> Op:
        """Make an op: an operation, placed on a lane of a device. Connect it with ``>>`` or by calling it.

        Args:
            name: Unique in this graph, or in the scope of the ``with`` block around the call.
            operation: The operation, an instance: ``af.ops.Inner()``.
            place: Where it runs; the default is that of `at`.
            lane: Name of the device's FIFO that it runs on. By default the one of `at`; without one, the plan keeps
                chains on a lane and spreads independent ops over as many lanes as there are cores.
            priority: Fire it, and ops that lead to it, before other ready ops, as if this many more ops followed it.
            timeout: Longest time of one call in seconds; past it the run fails with `OpTimeoutError`.
            retries: Number of times that a failed call is repeated before its failure counts.
            backoff: Seconds before the first repetition; each further one waits twice as long, a day at most.
            libraries: Kernel libraries to prefer for it; the default is that of `at`, then the graph's.
            force_cpu: Compute on the CPU, wherever the arrays live.
        Raises:
            GraphError: if the name is taken or no name, or ``operation`` is not an `Operation`.

        Example:
            >>> graph = af.Graph("g")
            >>> a, b, joined = graph.blob("a", [1]), graph.blob("b", [2]), graph.blob("joined", [3])
            >>> op = graph.op("join", af.ops.Concat(axis=0), priority=1)
            >>> _ = [a, b] >> op >> [joined]
            >>> graph.run_sync({a: [1], b: [2, 3]})[joined]
            array([1., 2., 3.], dtype=float32)
        """
        attempts, priority = options.attempts_of(timeout, retries, backoff), whole("priority", priority)
        hints = options.hints_of(libraries, force_cpu)
        scope = self._innermost
        return scope._add_op(scope._full_name(name), operation, place, lane, attempts, priority, hints)

    @overload
    def function(self, fn: Callable[..., Any], /) -> Op: ...

    @overload
    def function(
        self,
        name: str,
        fn: Callable[..., Any],
        outputs: TensorSpec | Sequence[TensorSpec] | None = None,
        place: Place | str | None = None,
        lane: str | None = None,
        **options: Unpack[_Making],
    ) -> Op: ...

    @overload
    def function(
        self,
        name: str | None = None,
        *,
        outputs: TensorSpec | Sequence[TensorSpec] | None = None,
        place: Place | str | None = None,
        lane: str | None = None,
        **options: Unpack[_Making],
    ) -> Callable[[Callable[..., Any]], Op]: ...

    def function(
        self,
        name: str | Callable[..., Any] | None = None,
        fn: Callable[..., Any] | None = None,
        outputs: TensorSpec | Sequence[TensorSpec] | None = None,
        place: Place | str | None = None,
        lane: str | None = None,
        *,
        inputs: Blob | Sequence[Blob] | None = None,
        concurrency: int | None = None,
        emits: bool = False,
        in_flight: int = 1,
        priority: int = 0,
        timeout: float | None = None,
        retries: int = 0,
        backoff: float = 0.0,
    ) -> Any:
        """Make an op of any plain or ``async def`` function, by a call or as a decorator.

        ``graph.function("double", fn, outputs=spec)`` makes an op; so do ``@graph.function`` and
        ``@graph.function(outputs=spec)`` above a function, whose name then is that of the op: connect it with ``>>``,
        or call it with blobs.

        The function gets the inputs' arrays as positional arguments, which it must not change, and returns one value
        per output: the value itself for one output, a sequence for several, anything for none. A plain function runs
        on the CPU lane or, once it is known to be short, on the loop; a coroutine function runs on the loop as a task.
        On an accelerator that runs functions (CUDA, with CuPy arrays) a plain function launches its work on the op's
        stream; elsewhere functions run on the CPU, with NumPy arrays.

        Args:
            name: Unique in this graph, or in the scope of the ``with`` block around the call; a decorator's default is
                the name of the function.
            fn: The function, which gets read-only arrays; left out, a decorator is returned.
            outputs: Types of the outputs (`af.TensorSpec.of`); left out, the blobs connected by ``>>`` say them.
            place: Where it runs; the default is that of `at`.
            lane: As for `op`.
            inputs: Blobs to connect at once: by ``op(*inputs)`` if ``outputs`` are given, else by ``inputs >> op``.
            concurrency: Most frames in an async function at once; by default as many as there are. They
                start in the order of the frames. A plain function has one frame at a time.
            emits: Whether it is a generator function, plain or async, whose items are computed one after the other:
                ``outputs`` are the types of an item, and all ops that follow are computed once per item, in order, up
                to where `actorflow.collect` joins the items into a value of the frame; `stream` gives a result for each
                item of blobs that are not joined. The generator is asked for an item when there is room, closed if the
                frame fails or is cancelled.
            in_flight: Most items of an op that emits that are computed at once. With more than 1 it must not change
                an array that it has given. In a stream as many are computed ahead, or 16 if they are quick.
            priority, timeout, retries, backoff: As for `op`. An op that emits has no retries, and its ``timeout``
                is how long it may take to give an item, or to end.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["n"])
            >>> @graph.function(inputs=x, outputs=af.TensorSpec.of([]), retries=2)
            ... def norm(values):
            ...     return np.linalg.norm(values)
            >>> graph.run_sync({x: [3, 4]})["norm/out"]
            array(5., dtype=float32)

            An async one runs on the loop, with as many frames in it at once as ``concurrency`` says:

            >>> async def look_up(values):
            ...     return values + 1
            >>> op = graph.function("look_up", look_up, af.TensorSpec.of(["n"]), concurrency=8)
            >>> graph.run_sync({x: [3, 4]}, fetch=op(x))["look_up/out"]
            array([4., 5.], dtype=float32)
        """
        if fn is None:
            settings: dict[str, Any] = {
                "outputs": outputs,
                "place": place,
                "lane": lane,
                "inputs": inputs,
                "concurrency": concurrency,
                "emits": emits,
                "in_flight": in_flight,
            }
            settings |= {"priority": priority, "timeout": timeout, "retries": retries, "backoff": backoff}
            if callable(name):
                return self._decorated(None, settings, name)
            return partial(self._decorated, name, settings)
        specs = (outputs,) if isinstance(outputs, TensorSpec) else None if outputs is None else tuple(outputs)
        blobs = None if inputs is None else as_blobs(inputs)
        if blobs is None and inputs is not None:
            raise GraphError(f"inputs of a function must be blobs, got {inputs!r}")
        attempts, priority = options.attempts_of(timeout, retries, backoff), whole("priority", priority)
        in_flight = whole("in_flight", in_flight, 1)
        if flag("emits", emits):
            if (attempts is not None and attempts.retries) or concurrency is not None:
                raise GraphError(
                    f"op {name!r}: an op that emits has no retries=, as items would come twice, and no concurrency=, "
                    "as it takes one frame after the other"
                )
            operation: Function = Emitting(fn, specs, in_flight=in_flight)
        elif in_flight != 1:
            raise GraphError(f"op {name!r}: in_flight= is for an op that emits; frames overlap by concurrency=")
        else:
            operation = self.root._function(fn, specs, concurrency)
        scope = self._innermost
        op = scope._add_op(scope._full_name(name), operation, place, lane, attempts, priority)
        if blobs is not None:
            blobs >> op if specs is None else op(*blobs)
        return op

    def _decorated(self, name: str | None, settings: dict[str, Any], fn: Callable[..., Any]) -> Op:
        name = getattr(fn, "__name__", type(fn).__name__) if name is None else name
        op: Op = self.function(name, fn, **settings)
        return op

    @overload
    def call(
        self, other: Model, feeds: Mapping[Any, Any], *, fetch: Fetch = None, **options: Unpack[_Calling]
    ) -> dict[str, Blob]: ...

    @overload
    def call(
        self, other: Graph, feeds: Mapping[Any, Any], *, fetch: Target | None = None, **options: Unpack[_Calling]
    ) -> Blob: ...

    @overload
    def call(
        self, other: Graph, feeds: Mapping[Any, Any], *, fetch: Iterable[Target], **options: Unpack[_Calling]
    ) -> Blob | tuple[Blob, ...]: ...

    def call(
        self,
        other: Graph | Model,
        feeds: Mapping[Any, Any],
        *,
        fetch: Fetch = None,
        name: str | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
        retries: int = 0,
        backoff: float = 0.0,
    ) -> Any:
        """Make an op that runs another graph, or a model: a frame of that inside each frame of this one.

        The other graph keeps its variables, its memory budget and all its settings, and can be run by itself, too; its
        variables belong to whoever runs it. Frames start there in the order of the frames here. A frame that is
        cancelled or times out here does so there; an error names the op in either graph, with both lines. Open axes
        have the lengths of their feeds. A gradient by what it is fed computes it once more, in this graph, on the
        values that its variables have then: none of them may be updated by it, and nothing random be read.

        Args:
            other: A graph, or a model, which is called by the names of its inputs and outputs.
            feeds: Blobs of this graph, numbers or arrays, for all sources that are needed there, as for `run`.
            fetch: Blobs, ops and sub-graphs to compute there, as for `run`, or for `Model.run`.
            name: Name of the op, made unique; the default is the name of the other graph.
            concurrency: Most frames that overlap there; by default as many as there are.
            timeout, retries, backoff: As for `op`.
        Returns:
            The blob that is fetched, or a tuple of several; of a model a dict of blobs by name.
        Raises:
            GraphError: if a source is missing, or the other graph is this one, or calls it; `ShapeError`, `DTypeError`
                if a feed does not fit.

        Example:
            >>> scale = af.Graph("scale")
            >>> values = scale.blob("values", ["n"])
            >>> scaled = values * scale.variable("factor", [], init=3.0)
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["rows"])
            >>> y = graph.call(scale, {values: x + 1})
            >>> y
            <Blob 'scale/out' float32[rows] on cpu>
            >>> graph.run_sync({x: [1, 2]})[y]
            array([6., 9.], dtype=float32)
        """
        from actorflow.runtime.call import call

        attempts = options.attempts_of(timeout, retries, backoff)
        return call(self, other, feeds, fetch, name, concurrency, attempts)

    def apply(self, operation: Operation, *inputs: Blob, name: str | None = None) -> Any:
        """The functional form: make the op and its output blobs in the current scope, connected to ``inputs``.

        Args:
            operation: The operation, an instance.
            inputs: The blobs it reads.
            name: Name of the op, made unique; the default is the operation's kind in lower case.
        Returns:
            The output blob, or a tuple of them; named ``<op>/out``, or ``<op>/out0``, ``<op>/out1``, ...

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2, 3])
            >>> graph.apply(af.ops.Transpose(axes=(1, 0)), x, name="turned")
            <Blob 'turned/out' float32[3, 2] on cpu>
        """
        operation = _checked_operation(name, operation)
        root = self.root
        # Where its first input lives, unless `at` says otherwise.
        place = inputs[0].place if inputs and root._defaults[-1].place is None else None
        op = root.current_scope._add_op(self._name_of(operation, name), operation, place, None)
        return op(*inputs)

    def _name_of(self, operation: Operation, name: str | None) -> str:
        own, common = name or operation.kind.lower(), self.root._defaults[-1].name
        if common is None:
            return self.unique_name(own)
        bare = self.current_scope._full_name(common)
        is_first = name is None and operation.arguments and self._store.find(bare) is None
        return bare if is_first else self.unique_name(f"{common}.{own}")

    def prune(self, sinks: Iterable[Blob | Op | Graph | str]) -> None:
        """Delete every node of this graph that none of ``sinks`` needs.

        To run a part only, `run` with ``fetch`` is enough.

        Args:
            sinks: Blobs, ops, sub-graphs or their names, which are kept with all that they need.
        Raises:
            GraphError: if one of them is not in this graph.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> wanted, other = af.ops.exp(x), af.ops.sqrt(x)
            >>> graph.prune([wanted])
            >>> [op.name for op in graph.ops]
            ['exp']
        """
        from actorflow.graph.body import bodies_of, with_bodies
        from actorflow.plan.validate import needed_ops, states_of  # the plan is built on graphs

        targets = [self.resolve(sink) for sink in sinks]
        states = states_of(targets)
        ops = [*with_bodies(needed_ops([*targets, *states.values()]))]
        keep: set[Node] = {*ops, *states, *states.values(), *[each for each in targets if isinstance(each, Blob)]}
        for op in ops:
            keep.update(op.inputs, op.outputs)
            keep.update(blob for body in bodies_of(op) for blob in (*body.inputs, *body.outputs))
        self._store.delete(node for node in self.nodes if node not in keep)

    # -- scopes -------------------------------------------------------------------------------------------------------

    def subgraph(self, name: str) -> Graph:
        """Make a sub-graph: a scope whose nodes' names start with its name.

        ``with graph.subgraph("encoder"):`` has all nodes made in ``graph`` go there: layers, those the functional form
        makes, and blobs, variables, ops, functions and further sub-graphs as well.

        Raises:
            GraphError: if the name is taken or no name.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> with graph.subgraph("encoder"):
            ...     y = af.ops.relu(x)
            >>> y
            <Blob 'encoder/relu/out' float32[2] on cpu>
            >>> graph["encoder"].ops
            (<Op 'encoder/relu' Relu() on cpu, lane None>,)
        """
        scope = self._innermost
        return self.root._add_scope(scope, scope._full_name(name))

    def unique_subgraph(self, name: str) -> Graph:
        """Make a sub-graph in the current scope; a taken name gets a number.

        Example:
            >>> graph = af.Graph("g")
            >>> [graph.unique_subgraph("block").name for _ in range(3)]
            ['block', 'block_1', 'block_2']
        """
        scope = self.root.current_scope
        return self.root._add_scope(scope, self.unique_name(name))

    def unique_name(self, name: str) -> str:
        """A free name in the current scope, relative to the root: ``name``, else ``name_1``, ``name_2``, ...

        Example:
            >>> graph = af.Graph("g")
            >>> _ = graph.blob("x", [2])
            >>> graph.unique_name("x"), graph.unique_name("y")
            ('x_1', 'y')
        """
        return self._store.free_name(self.current_scope._full_name(name))

    def delete_subgraph(self, name: str) -> None:
        """Delete a sub-graph with all its nodes.

        Ops outside that read one of its blobs are then missing inputs, which the next compile reports.

        Raises:
            GraphError: if there is no such sub-graph.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> with graph.subgraph("head"):
            ...     _ = af.ops.relu(x)
            >>> graph.delete_subgraph("head")
            >>> [node.name for node in graph.nodes]
            ['x']
        """
        self._store.delete_scope(self._full_name(name))

    def __enter__(self) -> Self:
        self.root._scope_stack.append(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.root._scope_stack.pop()

    @property
    def current_scope(self) -> Graph:
        """The scope that nodes are made in: of the innermost ``with`` block, else the root.

        Example:
            >>> graph = af.Graph("g")
            >>> with graph.subgraph("encoder"):
            ...     print(graph.current_scope.name)
            encoder
        """
        return self.root._scope_stack[-1]

    @contextmanager
    def at(
        self,
        place: Place | str | None = None,
        lane: str | None = None,
        *,
        libraries: Sequence[str] | None = None,
        force_cpu: bool = False,
        name: str | None = None,
    ) -> Iterator[None]:
        """Default place, lane and kernel libraries of ops made inside the ``with`` block.

        With ``name="head"``, functional forms call the ops that they make inside so, too: the first one ``head``,
        others and constants ``head.bias`` and so on.

        Options not given stay as around the block. With no block around it, nodes are on the CPU, and an op of
        the functional form is where its first input lives.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> with graph.at("sim:0", name="head"):
            ...     y = af.ops.relu(x)
            >>> y
            <Blob 'head/out' float32[2] on sim:0>
            >>> af.to_numpy(graph.run_sync({x: [-1, 1]})[y])  # a fetched value stays where it was computed
            array([0., 1.], dtype=float32)
        """
        root = self.root
        before = root._defaults[-1]
        root._defaults.append(
            _Defaults(
                before.place if place is None else Place.parse(place),
                before.lane if lane is None else text("lane", lane),
                options.hints_of(libraries, force_cpu) or before.hints,
                name or before.name,
                before.of,
                before.site,
            )
        )
        try:
            yield
        finally:
            root._defaults.pop()

    @contextmanager
    def _made(self, **said: Any) -> Iterator[None]:
        """Nodes made inside the ``with`` block have these fields of `_Defaults`."""
        defaults = self.root._defaults
        defaults.append(defaults[-1]._replace(**said))
        try:
            yield
        finally:
            defaults.pop()

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def world(self) -> Transport:
        """The ranks that run this graph, and which of them this one is."""
        return self.root.options.world or world_of_process()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of this graph and its sub-graphs, in order of creation."""
        nodes = self._store.nodes.values()
        return tuple(nodes) if self.parent is None else tuple(n for n in nodes if n.name.startswith(self._prefix))

    @property
    def ops(self) -> tuple[Op, ...]:
        """All ops, in order of creation."""
        return tuple([node for node in self.nodes if isinstance(node, Op)])

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All blobs, variables included, in order of creation."""
        return tuple([node for node in self.nodes if isinstance(node, Blob)])

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, in order of creation."""
        return tuple(node for node in self.nodes if isinstance(node, Variable))

    @property
    def sources(self) -> tuple[Blob, ...]:
        """Blobs that must be fed: neither variables nor written by an op, nor those of branches and loops.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> y = x * graph.variable("w", [2])
            >>> graph.sources, graph.sinks
            ((<Blob 'x' float32[2] on cpu>,), (<Blob 'multiply/out' float32[2] on cpu>,))
        """
        return tuple(b for b in self.blobs if not b.producers and not isinstance(b, Variable) and b.graph.body is None)

    @property
    def sinks(self) -> tuple[Blob, ...]:
        """Blobs that are fetched by default: written by an op, read by none, and not variables."""
        return tuple(
            b
            for b in self.nodes
            if isinstance(b, Blob)
            and not b.consumers
            and b.producers
            and not isinstance(b, Variable)
            and b.graph.body is None
            and not b.producers[0].hides(b)
        )

    @property
    def revision(self) -> int:
        """Counts the changes of the structure."""
        return self._store.revision

    @property
    def size(self) -> int:
        """One more than the largest `Node.id`."""
        return self._store.next_id

    def budget_of(self, place: Place) -> int | None:
        """Most bytes that variables and intermediate values may take on a place; None for no limit."""
        of_device = self.root.options.devices.get(place)
        if of_device is not None and of_device.memory_budget is not None:
            return of_device.memory_budget
        return self.root.options.memory_budget_bytes

    def resolve(self, target: object) -> Blob | Op | Graph:
        """The node or sub-graph that ``target`` is or names.

        Raises:
            GraphError: if there is none of that name, or it belongs to another graph.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> graph.resolve("x") is x
            True
        """
        found = self._find(target)
        if found is not None:
            return found
        if isinstance(target, str):
            near = did_you_mean(target, self._names())
            raise GraphError(f"graph {self.name!r} has no blob, op or sub-graph named {target!r}{near}")
        if isinstance(target, Graph):
            raise GraphError(f"{target.name!r} is not a part of graph {self.root.name!r}")
        if isinstance(target, Blob | Op):
            raise GraphError(f"{target!r} is not in graph {self.root.name!r}")
        raise GraphError(f"expected a blob, an op, a sub-graph or a name, got {target!r}")

    def __getitem__(self, name: str) -> Blob:
        """The node or sub-graph of a name, as `resolve` gives it; for type checkers a blob, as it mostly is."""
        return cast(Blob, self.resolve(name))

    def __contains__(self, target: object) -> bool:
        return self._find(target) is not None

    __iter__ = None  # or Python would ask for graph[0], graph[1], ...: iterate over `nodes`, `ops` or `blobs`

    # -- showing ------------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """A table of the ops: name, operation, place and lane, types of inputs and outputs.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> _ = af.ops.relu(x)
            >>> print(graph.summary())
            op    operation  place, lane  inputs        outputs
            ----  ---------  -----------  ------------  -------------------
            relu  Relu()     cpu auto     x float32[2]  relu/out float32[2]
            graph 'g': 1 ops, 2 blobs, 0 variables (0 elements, 0 bytes)
        """
        from actorflow.show.tables import graph_table

        return graph_table(self)

    def to_dot(self, *, times: bool = False) -> str:
        r"""The graph in Graphviz's language: ops as boxes, blobs as ellipses, variables in bold.

        Args:
            times: Colour ops that were called, the redder the more of the time it took, and say how often and how long.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> _ = af.ops.relu(x)
            >>> print(graph.to_dot())
            digraph "g" {
              rankdir=LR;
              n0 [shape=ellipse, label="x\nfloat32[2]"];
              n2 [shape=ellipse, label="relu/out\nfloat32[2]"];
              n1 [shape=box, label="relu\nRelu()"];
              n0 -> n1;
              n1 -> n2;
            }
        """
        from actorflow.show.dot import graph_dot

        return graph_dot(self, times=times)

    def to_svg(self, *, times: bool = False) -> str:
        """The picture that Graphviz draws of `to_dot`; waits for its program.

        Raises:
            MissingExtraError: if Graphviz is not installed.
        """
        from actorflow.show.dot import graph_dot, to_svg

        return to_svg(graph_dot(self, times=times))

    def _repr_html_(self) -> str:
        from actorflow.show.tables import graph_html

        return graph_html(self)

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine that runs this graph, made on first use; `statistics` gives its figures."""
        root = self.root
        if root._engine is None:
            from actorflow.runtime.engine import Engine  # the runtime is built on graphs

            with _making_engine:
                if root._engine is None:  # nobody was quicker
                    Engine(root)
        assert root._engine is not None
        return root._engine

    def compile(self, fetch: Fetch = None, *, axes: Mapping[str, int] | None = None) -> Plan:
        """Check the graph and plan how it runs; `run` does this by itself when the graph has changed.

        Args:
            fetch: As for `run`.
            axes: Length of each open axis, by its name; the plan for these lengths is then ready for `run`.
        Raises:
            ShapeError: if lengths do not fit.
            GraphError: for a cycle (`CycleError`), an op with missing inputs or outputs, ...
            KernelNotFoundError: if a device has no kernel for an operation.
            DeviceUnavailableError: if a place names a device that is not there.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch", 2])
            >>> y = af.ops.sum(af.ops.exp(x), 1)
            >>> plan = graph.compile(axes={"batch": 32})
            >>> [blob.name for blob in plan.feeds], [blob.name for blob in plan.fetches]
            (['x'], ['reducesum/out'])
        """
        return self._runnable().plan(targets_of(fetch), axes)

    async def warm_up(
        self, fetch: Fetch = None, *, axes: Mapping[str, int] | None = None, timeout: float | None = None
    ) -> bool:
        """Prepare all that first runs would wait for: plans, threads, kernels.

        Zeros are fed and the results dropped, unless the part has functions of yours, updates of variables, random
        numbers, or ops on other ranks, of which a run would be felt: it is planned only.

        Args:
            fetch: As for `run`.
            axes: As for `compile`; call it once for each set of lengths that is to be expected.
            timeout: Longest time in seconds.
        Returns:
            Whether it was computed.
        Raises:
            TimeoutError: after ``timeout``; plans ready by then stay so.
            ActorflowError: as `compile` and `run`.
        Cancellation: as for `run`.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch", 2])
            >>> y = af.ops.exp(x)
            >>> async def main():
            ...     async with graph:
            ...         return [await graph.warm_up(axes={"batch": rows}) for rows in (1, 8)]
            >>> asyncio.run(main())
            [True, True]
        """
        return await self._runnable().warm_up(targets_of(fetch), axes, time_limit("timeout", timeout))

    def memory_cost(self, fetch: Fetch = None, *, axes: Mapping[str, int] | None = None) -> Footprint:
        """Memory of the variables and of one frame; printing it shows the largest values.

        Args:
            fetch: As for `run`.
            axes: As for `compile`.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch", 1000])
            >>> w = graph.variable("w", [10, 1000])
            >>> y = af.ops.inner(x, w)
            >>> print(graph.memory_cost(axes={"batch": 32}))
            variables: 40,000 bytes
            one frame: 1,280 bytes at its peak, 1,280 if nothing were given back
            held at the peak, op 'inner':
                        1,280  inner/out
        """
        return self.compile(fetch, axes=axes).footprint()

    async def run(
        self,
        feeds: Feeds | None = None,
        *,
        fetch: Fetch = None,
        timeout: float | None = None,
        atomic: bool = False,
        partial: bool = False,
    ) -> Result:
        """Run one frame of the graph and return the values fetched.

        Calls may overlap; each has its own frame, and variables order them: a frame reads a weight when the frames
        started before it have updated that weight.

        Args:
            feeds: Arrays for the `sources`, by blob or by name. They are used without a copy, and never changed: do not
                change them before `run` returns. An array's dtype is only widened (float64 is not taken for float32),
                Python numbers take that of the blob. A blob that ops write may be fed, too: ops that nothing else
                needs are not run then, and nor need their sources be fed.
            fetch: Blobs whose values are returned, and ops or sub-graphs to run besides: one, its name, or several of
                these; only the ops they need are run. A variable gives its value before the frame's updates. By default
                everything is run and the `sinks` are returned.
            timeout: Longest time of the run in seconds; it goes on while the graph is paused.
            atomic: Commit all variables' updates together at the end of the run, or none of them.
            partial: Go on if an op fails, without ops depending on it: the result has all other values and errors of
                the rest, by name, in `Result.errors`. Variables whose updates depend on the op keep their values. An
                op's ``timeout`` counts when its call has ended, and ops are not joined into one pass.
        Returns:
            The fetched values, by blob or by name.
        Raises:
            FeedError, ShapeError, DTypeError: if the feeds do not fit.
            GraphError, KernelNotFoundError, DeviceError: as for `compile`.
            OpError: if an op fails; the first failure wins, the rest of the frame is cancelled, and the graph stays
                usable. With ``partial`` it is raised by ``result[y]``.
            RunTimeoutError: after ``timeout``, listing the ops the run waited for.
            RunCancelledError: if `cancel` has ended the run.
            StallError: after the graph's ``stall_limit`` without progress, likewise.
        Cancellation: returns promptly. Async functions are cancelled and awaited; a kernel that runs in a thread ends
        there by itself, and its result is dropped. Variables keep either their old or their new value.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["n"])
            >>> squares, total = x * x, af.ops.sum(x)
            >>> async def main():
            ...     async with graph:  # stops the graph's threads at the end
            ...         runs = graph.run({x: [1, 2, 3]}), graph.run({"x": [4]}, fetch=total)
            ...         first, second = await asyncio.gather(*runs)
            ...     return first[squares].tolist(), first[total].item(), second[total].item()
            >>> asyncio.run(main())
            ([1.0, 4.0, 9.0], 6.0, 4.0)
        """
        if timeout is not None:
            timeout = time_limit("timeout", timeout)
        if atomic is not False:
            atomic = flag("atomic", atomic)
        if partial is not False:
            partial = self._partial(partial, atomic)
        engine = self._runnable() if self.parent is not None or self._engine is None else self._engine
        return await engine.run(feeds, None if fetch is None else targets_of(fetch), timeout, atomic, partial)

    def _partial(self, partial: bool, atomic: bool) -> bool:
        """Check that the graph can go on without ops that fail."""
        if flag("partial", partial) and atomic:
            raise GraphError("partial=True keeps what does not depend on a failure, atomic=True keeps all or nothing")
        if partial and self.world.size > 1:
            raise GraphError(f"graph {self.root.name!r} runs on {self.world.size} ranks: partial=True is for one")
        return partial

    def run_sync(self, feeds: Feeds | None = None, *, fetch: Fetch = None, partial: bool = False) -> Result:
        """`run` for scripts: starts an event loop, runs one frame, and closes the loop.

        Several threads may call it at once, as those of Flask and Django do: their frames overlap on one loop, and each
        gets its own result. Ctrl-C cancels the frame.

        Raises:
            RuntimeError: inside a running event loop; use ``await graph.run(...)`` there.
            GraphError: if the graph is paused, as it could not be resumed; if it is in use on a loop of the program,
                or by a run whose op calls this.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> y = x + 1
            >>> graph.run_sync({x: [1, 2]})[y]
            array([2., 3.], dtype=float32)
        """
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("graph.run_sync() inside a running event loop would block it: use await graph.run(...)")
        if self.paused is not None:
            raise GraphError(f"graph {self.name!r} is {self.paused}: run_sync() would wait for ever, resume() it first")
        return self._runnable().turns.run(self.run(feeds, fetch=fetch, partial=partial))

    def stream(
        self,
        feeds: AsyncIterable[Feeds] | Iterable[Feeds],
        *,
        fetch: Fetch = None,
        in_flight: int = 1,
        atomic: bool = False,
        partial: bool = False,
    ) -> FrameStream:
        """Run one frame per feed and yield the results in order.

        Args:
            feeds: Feeds as for `run`, from an iterable or an async iterable. The next one is asked for when there is
                room for a further frame, so a slow consumer slows its source down.
            fetch: As for `run`.
            in_flight: Most frames that overlap; the attribute of this name of the returned stream changes it.
            atomic, partial: As for `run`.
        Returns:
            An async generator of results.
        Raises:
            OpError, FeedError, ...: as for `run`, at the result that it belongs to; later frames are then cancelled.
        Leaving the ``async for`` early cancels the frames in flight and closes an async generator that gives the feeds
        (use ``contextlib.aclosing`` for that to happen at once).

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> y = x * x
            >>> async def main():
            ...     async with graph:
            ...         feeds = ({x: number} for number in range(5))
            ...         return [result[y].item() async for result in graph.stream(feeds, in_flight=3)]
            >>> asyncio.run(main())
            [0.0, 1.0, 4.0, 9.0, 16.0]
        """
        from actorflow.runtime.stream import FrameStream

        partial = self._partial(partial, flag("atomic", atomic))
        return FrameStream(self._runnable(), feeds, targets_of(fetch), in_flight, atomic, partial)

    def batched(
        self,
        *,
        fetch: Fetch = None,
        max_rows: int = 32,
        max_wait: float = 0.002,
        buckets: Sequence[int] | None = None,
        queue_rows: int = 1024,
        key: Callable[[dict[Any, Any]], Hashable] | None = None,
        pad: Callable[[list[dict[Any, Any]]], Sequence[Mapping[Any, Any]]] | None = None,
        in_flight: int = 2,
        isolate: bool = True,
        axis: str | None = None,
        state: Mapping[Any, Any] | None = None,
        fixed: Mapping[Any, npt.ArrayLike] | None = None,
        max_sessions: int = 1024,
        max_cells: int | None = None,
        feeds: Fetch = None,
    ) -> Batcher:
        """Compute the requests of many callers in few frames, each caller's rows beside those of others.

        While no frame is in flight, waiting requests go at once: all that came in one turn of the loop. While
        some are, and fewer than ``in_flight``, a further one starts when ``max_rows`` rows wait, or when the oldest
        request has waited for ``max_wait``. So a request that comes alone never waits for company, and under load full
        frames follow each other. A frame takes requests in their order as long as they fit as a whole; one of more than
        ``max_rows`` rows is computed in several frames and put together again.

        A request whose feed is wrong is refused before it joins others. Where an op fails for a frame of several
        requests, each half of them is computed again, and so on, until those are found that it fails for: they alone
        get the error. Functions are then called more than once for the same rows. It is not done where that would
        update a variable twice.

        Leaving the block refuses further requests and waits for all that are there. Where it is left by an error or a
        cancellation, and in `Batcher.aclose`, the frames are cancelled instead, and the callers get
        `BatcherClosedError`; as they do if the graph is closed.

        Args:
            fetch: As for `run`; each blob must have one row for each row that is fed, along its first axis.
            max_rows: Most rows of a frame.
            max_wait: Longest time in seconds that a request waits for company while another frame runs.
            buckets: Numbers of rows that frames are padded to, ascending, by repeating the last row; the results of
                these rows are dropped. There is one plan per bucket then, instead of one per number of rows. With a
                single bucket no row's result depends on its company, to the bit, at the same place of a frame. It does
                depend in its last bits on that place, and on the length of the frame, as BLAS rounds otherwise there:
                some 1e-6 of its size in float32.
            queue_rows: Number of rows that may wait; a request that finds no room gets `QueueFullError` at once.
            key: Called with a request's arrays by blob; only requests with equal values share a frame. Without it and
                ``pad`` those do whose other open axes have the same lengths.
            pad: Called with the arrays by blob of each request of a frame, whatever the lengths of their other open
                axes are; returns feeds with the same numbers of rows, and with the same lengths in these axes. A
                request of more than ``max_rows`` rows has frames of its own then, as its rows must have one length.
            in_flight: Most frames that overlap.
            isolate: Whether to look for the requests that an op fails for; otherwise all of their frame get the error.
            axis: Name of the open axis that is batched; None for the one that the sources begin with.
            state: Sources that sessions keep, each with the blob that gives its next value, beside the states that
                `state` has made. They have the axis of the rows wherever they like, and begin with zeros.
            fixed: Feeds that are the same for all requests, of sources without open axes.
            max_sessions: Most sessions that are open, see `Batcher.session`.
            max_cells: Most rows of a frame times the lengths of their other open axes, so that long requests, as what a
                model of language reads first, do not hold up others; a single row may have more. None for any number.
            feeds: Blobs that requests feed although ops write them; these ops are left out, see `run`.
        Returns:
            An async context manager that takes requests; `Batcher.run` says how.
        Raises:
            GraphError: if a source or a result has no rows, if results would depend on the rows of other callers, or
                if a number is out of its range.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch", 2])
            >>> y = af.ops.sum(x, 1)
            >>> async def main():
            ...     async with graph, graph.batched(fetch=y, max_rows=8) as batcher:
            ...         requests = [batcher.run({x: [[i, i]]}) for i in range(3)]
            ...         results = await asyncio.gather(*requests)
            ...         return [result[y].tolist() for result in results], batcher.statistics().frames
            >>> asyncio.run(main())  # three callers, one frame
            ([[0.0], [2.0], [4.0]], 1)
        """
        from actorflow.runtime.batched import Batcher, BatchOptions
        from actorflow.runtime.rows import Rows

        how = max_rows, max_wait, buckets or (), queue_rows, key, pad, in_flight, isolate, max_sessions, max_cells
        axis = None if axis is None else text("axis", axis)
        kept, same = [{} if each is None else each for each in (state, fixed)]
        rows = Rows(self._runnable(), targets_of(fetch), axis, kept, same, targets_of(feeds) or ())
        return Batcher(rows, BatchOptions(*how))

    def trim(self) -> None:
        """Give memory that no frame needs back to the system; the next run takes longer.

        It drops the free buffers of all devices that the graph has opened, its plans with the constants that they have
        computed, and scratch memory of kernels. All of it is made again when it is needed. The C library is
        asked to give back free memory, where it has a function for that (glibc).

        Example:
            >>> graph = af.Graph("g")
            >>> y = af.ops.sort(af.ops.sort(graph.blob("x", [1000])))
            >>> _ = graph.run_sync({"x": [0] * 1000})
            >>> graph.trim()
        """
        self.engine.trim()

    async def aclose(self) -> None:
        """Cancel the frames in flight and the runs that wait for the end of a pause, wait for their threads, and stop
        the lanes. A later `run` starts anew: the graph is not paused any more.
        """
        if self.root._engine is not None:
            await self.root._engine.aclose()

    async def __aenter__(self) -> Self:
        from actorflow.runtime.engine import prepared

        with suppress(Exception):  # the first run tries again, and raises it
            await prepared()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    # -- control: on the thread of the loop that the graph runs on ----------------------------------------------------

    @property
    def paused(self) -> Pause | None:
        """Reason of a pause and number of waiting runs; None if the graph is not paused."""
        return self.engine.queue.pause

    @property
    def streams(self) -> list[FrameStream]:
        """The streams that run, oldest first.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> y = x + 1
            >>> async def main():
            ...     async with graph:
            ...         async for _ in graph.stream([{x: 1}, {x: 2}]):
            ...             graph.streams[0].finish()  # by whoever finds it
            ...         return graph.streams
            >>> af.run(main())
            []
        """
        return self.engine.streams

    @property
    def check_finite(self) -> options.FiniteCheck | None:
        """The check of the results of ops; None for none. Set it at any time: it is for frames that start.

        It may be set, as in `Graph`: to a bool, or a `FiniteCheck`.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> y = af.ops.log(x)
            >>> graph.check_finite = True
            >>> graph.run_sync({x: [1, -1]})
            Traceback (most recent call last):
                ...
            actorflow.errors.NotFiniteError: op 'log' (Log()) failed with FloatingPointError: invalid value...
        """
        return self.root._check_finite

    @check_finite.setter
    def check_finite(self, check: bool | options.FiniteCheck | None) -> None:
        self.root._check_finite = options.finite_check_of(check)

    def _check_here(self) -> options.FiniteCheck | None:
        """The check that a run of the caller makes of the results of its ops; None for no check."""
        check = self.root._check_finite
        if check is None and options.NUMPYS is not None and options.NUMPYS.get(None) is None:
            return None
        return options.with_numpys(check)

    @property
    def not_finite(self) -> NotFiniteError | None:
        """The first finding of ``FiniteCheck(pause=True)`` since the graph was last resumed; None for none.

        Example:
            >>> graph = af.Graph("g", check_finite=af.FiniteCheck(pause=True))
            >>> x = graph.blob("x", [2])
            >>> y = af.ops.log(x)
            >>> async def main():
            ...     async with graph:
            ...         result = await graph.run({x: [1, -1]})  # warns, and ends well
            ...         found = graph.not_finite
            ...         return result[y].tolist(), found.op_name, found.results[0].nan, graph.paused.reason
            >>> af.run(main())
            ([0.0, nan], 'log', 1, "as op 'log' has made what is not finite")
        """
        return self.engine.not_finite

    def pause(self, reason: str = "") -> None:
        """Start no further frame. Those in flight go on to their end; runs and streams wait, in their order.

        Time goes on: a ``timeout`` of a run that waits ends it; ``stall_limit`` does not count while the graph is
        paused. A snapshot for a checkpoint can still be taken. On several ranks it holds the frames of this one; those
        of the others wait for its messages, as many as they have in flight.

        Args:
            reason: Shown to those who ask why nothing starts.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> y = x + 1
            >>> async def main():
            ...     async with graph:
            ...         graph.pause("look at the weights")
            ...         runs = [asyncio.create_task(graph.run({x: i})) for i in range(2)]
            ...         graph.step()  # one frame
            ...         await runs[0]
            ...         print(graph.paused.reason, "-", graph.paused.waiting, "waits")
            ...         graph.resume()
            ...         return (await runs[1])[y].item()
            >>> asyncio.run(main())
            look at the weights - 1 waits
            2.0
        """
        self._runnable().queue.close(text("reason", reason))

    def resume(self) -> None:
        """Start frames again, those that have waited first and in their order."""
        self._runnable().queue.open()

    def step(self, frames: int = 1) -> None:
        """Let ``frames`` more frames of a paused graph start: of waiting runs and streams, in turn, or of later ones.

        Raises:
            GraphError: if the graph is not paused, or for less than 1.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> y = x + 1
            >>> async def main():
            ...     async with graph:
            ...         graph.pause()
            ...         graph.step(2)
            ...         results = [await graph.run({x: number}) for number in range(2)]
            ...         return [result[y].item() for result in results], graph.paused.steps
            >>> af.run(main())
            ([1.0, 2.0], 0)
        """
        self._runnable().queue.step(whole("frames", frames, 1))

    def cancel(self, frame: int | None = None, *, reason: str = "by Graph.cancel") -> list[int]:
        """End frames in flight. Their callers get `RunCancelledError` at once; a stream ends with that.

        Calls under way are treated as when the task that awaits a run is cancelled: async functions are cancelled, a
        kernel in a thread ends by itself, variables keep their old or their new value.

        Args:
            frame: Number of the frame; None for all. Runs that wait for their plan, or for the end of a pause, have no
                frame yet, and go on waiting.
            reason: Said in the error, behind "was cancelled".
        Returns:
            Numbers of the frames.
        Raises:
            GraphError: if there is no such frame in flight.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> @graph.function(inputs=x, outputs=x.spec)
            ... async def never(value):
            ...     await asyncio.Event().wait()
            >>> async def main():
            ...     async with graph:
            ...         run = asyncio.create_task(graph.run({x: 1}))
            ...         await asyncio.sleep(0)  # it starts
            ...         print(graph.cancel(reason="as the client has gone"))
            ...         try:
            ...             await run
            ...         except af.RunCancelledError as error:
            ...             print(error)
            >>> asyncio.run(main())
            [0]
            frame 0 of graph 'g' was cancelled as the client has gone; variables updated before: none
        """
        number = None if frame is None else whole("frame", frame)
        return self._runnable().cancel_frames(number, text("reason", reason))

    def tap(
        self, *targets: Blob | Op | str, every: int = 1, interval: float = 0.0, in_a_row: int = 1, trace: bool = False
    ) -> Tap:
        """Look at values while frames of other callers compute them: an async iterator of `Result`.

        A frame that is sampled keeps these values to its end, as if they were fetched too, so they are not joined with
        what follows them; all other frames run as if nobody looked. Nothing is computed that a run does not need: a
        sample has those of the values that its frame had. No frame is sampled while a sample waits to be taken out.

        Args:
            targets: Blobs, variables among them, and ops, for their outputs.
            every: Sample every so many frames, at most.
            interval: Seconds between the starts of frames that are sampled, at least.
            in_a_row: How many frames that follow each other to sample each time, for changes from one to the next.
            trace: Whether the statistics of the samples go to the graph's trace, see `save_trace`.
        Raises:
            GraphError: if the graph has no such node, there is no target, or the graph runs on several ranks.
            GraphError: if ``every`` or ``in_a_row`` is below 1 or ``interval`` is negative.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> hidden = x * 10
            >>> y = hidden + 1
            >>> async def main():
            ...     async with graph, graph.tap(hidden) as tap:
            ...         result = await graph.run({x: 2}, fetch=y)  # any caller's
            ...         sample = await anext(tap)
            ...         return result[y].item(), sample[hidden].item()
            >>> asyncio.run(main())
            (21.0, 20.0)
        """
        engine = self._runnable()
        every, in_a_row = whole("every", every, 1), whole("in_a_row", in_a_row, 1)
        interval_s, trace = seconds("interval", interval), flag("trace", trace)
        if self.world.size > 1:
            raise GraphError(f"graph {self.name!r} runs on {self.world.size} ranks: taps are for graphs of one process")
        blobs: dict[Blob, None] = {}
        for target in targets:
            node = self.resolve(target)
            if isinstance(node, Graph):
                raise GraphError(f"tap: {node.name!r} is a sub-graph: name its blobs or ops")
            blobs |= dict.fromkeys([node] if isinstance(node, Blob) else node.outputs)
        if not blobs:
            raise GraphError(f"tap: graph {self.name!r} has no values to look at: name blobs or ops with outputs")
        return engine.tap(tuple(blobs), every, interval_s, in_a_row, trace)

    # -- recording ----------------------------------------------------------------------------------------------------

    def statistics(self) -> GraphStatistics:
        """Figures of this moment, of the whole root graph: frames, calls and times by op, memory by place.

        To be called on the thread of the loop that the graph runs on, if that runs. They are kept when the graph is
        closed, but for those of devices.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> y = af.ops.exp(x)
            >>> for _ in range(3):
            ...     _ = graph.run_sync({x: [1, 2]})
            >>> graph.statistics().frames
            FrameStatistics(started=3, in_flight=0, finished=3, failed=0, cancelled=0)
            >>> graph.statistics().ops["exp"].calls
            3
        """
        from actorflow.trace.statistics import statistics_of

        return statistics_of(self.root)

    def recording(self) -> Recording:
        """The newest calls as arrays, of the whole root graph, failed ones among them: as many as ``trace_capacity``.

        To be called on the thread of the loop that the graph runs on, if that runs.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> y = af.ops.exp(x)
            >>> _ = graph.run_sync({x: [1, 2]})
            >>> recording = graph.recording()
            >>> recording
            <Recording of graph 'g': 1 calls of 1 nodes>
            >>> recording.names, recording.frame.tolist()
            (['exp'], [0])
        """
        from actorflow.trace.recording import TraceCopy

        return TraceCopy.of(self.root).recording()

    async def save_trace(self, path: str | PathLike[str]) -> None:
        """Save the newest calls for trace viewers (ui.perfetto.dev, chrome://tracing) and ``actorflow trace``.

        The calls are those that have ended by now; the file is written in a thread.

        Args:
            path: Where to; a name that ends in ``.gz`` gives a gzipped file, an eighth of the size.
        Raises:
            OSError: if the file cannot be written.
        Cancellation: returns at once; the file is written to its end.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> y = af.ops.exp(x)
            >>> async def main():
            ...     async with graph:
            ...         await graph.run({x: [1, 2]})
            ...         await graph.save_trace("run.json.gz")
            >>> asyncio.run(main())  # then: actorflow trace run.json.gz
        """
        from actorflow.trace.recording import TraceCopy

        snapshot = TraceCopy.of(self.root)
        await in_thread(lambda: snapshot.recording().save(path))

    def save_trace_sync(self, path: str | PathLike[str]) -> None:
        """`save_trace` for scripts.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2])
            >>> y = af.ops.exp(x)
            >>> _ = graph.run_sync({x: [1, 2]})
            >>> graph.save_trace_sync("run.json")  # then: actorflow trace run.json
        """
        self.recording().save(path)

    def instrument(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        min_us: float = 100.0,
        max_calls: int = 128,
        nest_streams: bool = False,
    ) -> None:
        """Make OpenTelemetry spans from now on: one per frame, and below it one per call that took its time.

        A frame's span is below the one that is current where `run` is called, such as a request's. Calls have theirs
        when the frame has ended, from the times in the trace. Those of async functions are there while they run, so
        that spans that such a function makes are below its own; spans that a plain function makes are below the
        frame's. A failed call has a span, however short, and so has each that is repeated; its exception is
        recorded there, and in the frame's if that fails as well. A sub-graph stands for its root.

        Each frame of a stream is the root of a trace of its own, with a link to the span that is current where its
        feed came from, as a stream may have very many.

        Args:
            tracer_provider: Whose spans; the default is the global one.
            min_us: Calls that took fewer microseconds have no span, unless they are async functions.
            max_calls: Most calls of a frame that have a span, the longest ones; 0 for frames alone.
            nest_streams: Put frames of streams below the current span, as those of `run` are.
        Raises:
            MissingExtraError: without the package opentelemetry-api.
            GraphError: for a negative number.

        Example:
            >>> from opentelemetry.sdk.trace import TracerProvider
            >>> from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            >>> from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
            >>> provider, exporter = TracerProvider(), InMemorySpanExporter()
            >>> provider.add_span_processor(SimpleSpanProcessor(exporter))
            >>> graph = af.Graph("g")
            >>> y = af.ops.exp(graph.blob("x", []))
            >>> graph.instrument(provider, min_us=0)
            >>> _ = graph.run_sync({"x": 1})
            >>> [span.name for span in exporter.get_finished_spans()]
            ['exp', 'run g']
        """
        min_us, max_calls = real("min_us", min_us, 0), whole("max_calls", max_calls, 0)
        nest_streams = flag("nest_streams", nest_streams)
        require("opentelemetry.trace", extra="otel", purpose="graph.instrument()")
        from actorflow import __version__
        from actorflow.trace.spans import Instrumentation

        self.root.engine.instrumentation = Instrumentation(
            self.root, __version__, tracer_provider, min_us=min_us, max_calls=max_calls, nest_streams=nest_streams
        )

    def uninstrument(self) -> None:
        """Make no spans of frames that start from now on."""
        self.root.engine.instrumentation = None

    # -- files --------------------------------------------------------------------------------------------------------

    async def save(
        self,
        path: str | PathLike[str],
        *,
        fetch: Fetch | Mapping[str, Target] = None,
        inputs: Mapping[str, Blob | str] | None = None,
    ) -> None:
        """Save the graph to a file, while it runs: `actorflow.load` makes it again, in any process.

        The file has the graph's structure and its variables' values after all frames started before this, so what is
        loaded computes what this graph would compute next, to the bit. It is written in a thread, and replaces one of
        its name only when it is whole. No code is in it: functions, and operations that are not this package's, are
        named there, so they must be found by their names in a module. ``actorflow docs files`` lists the rest.

        Args:
            path: The file, ``.af`` by custom.
            fetch: Blobs that the file is to compute, as for `run`: it has only the nodes they need, and their names
                as those of outputs. With a mapping the outputs have its names. By default all of the
                graph is saved.
            inputs: Names of the blobs that are fed, for `Model.of`; by default their own.
        Raises:
            CheckpointError: if the file cannot be written, or has no form for functions, operations, or settings: all
                of them are named, with the lines that created the ops.
            GraphError: if the graph is not complete, as for `compile`; if this is a part of a graph; if a frame started
                before fails or is cancelled, so that updates may be missing; if the graph is changed meanwhile.
            MissingExtraError: if safetensors is not installed.
        Cancellation: once the file is being written, that is done to its end before CancelledError is raised.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("scale")
            >>> x = graph.blob("x", ["n"])
            >>> w = graph.variable("w", [], init=3.0)
            >>> y = x * w
            >>> async def main():
            ...     await graph.save("scale.af", fetch={"scaled": y}, inputs={"values": x})
            ...     model = af.Model.of(await af.load("scale.af"))
            ...     async with model.graph:
            ...         return await model.run({"values": [1, 2]})
            >>> asyncio.run(main())
            {'scaled': array([3., 6.], dtype=float32)}
        """
        from actorflow.checkpoint.graphs import save_graph

        await save_graph(self, path, fetch, inputs)

    async def _swap(self, source: Any, names: Mapping[str, Variable], strict: bool) -> LoadedWeights:
        from actorflow.checkpoint.weights import swap

        return await swap(self, source, names, strict)

    def save_sync(
        self,
        path: str | PathLike[str],
        *,
        fetch: Fetch | Mapping[str, Target] = None,
        inputs: Mapping[str, Blob | str] | None = None,
    ) -> None:
        """`save` for scripts.

        Raises:
            RuntimeError: inside a running event loop; use ``await graph.save(...)`` there.
            GraphError: as for `save`, and if frames are in flight.

        Example:
            >>> graph = af.Graph("scale")
            >>> y = graph.blob("x", ["n"]) * graph.variable("w", [], init=3.0)
            >>> graph.save_sync("scale.af")
            >>> af.load_sync("scale.af").run_sync({"x": [1, 2]})[y.name]
            array([3., 6.], dtype=float32)
        """
        from actorflow.checkpoint.graphs import save_graph_sync

        save_graph_sync(self, path, fetch, inputs)

    # -- internals ----------------------------------------------------------------------------------------------------

    def _runnable(self) -> Engine:
        if self.parent is not None:
            raise GraphError(
                f"{self.name!r} is a sub-graph: run its root {self.root.name!r}, with fetch=[...] for this part of it"
            )
        return self._engine or self.engine

    def _find(self, target: object) -> Blob | Op | Graph | None:
        if isinstance(target, str):
            return self._store.find(self._prefix + target)
        if target is self.root:
            return self.root
        found = self._store.find(target.name) if isinstance(target, Blob | Op | Graph) else None
        return found if found is target else None

    def _names(self) -> list[str]:
        store, prefix = self._store, self._prefix
        return [name.removeprefix(prefix) for name in (*store.nodes, *store.scopes) if name.startswith(prefix)]

    @property
    def _innermost(self) -> Graph:
        """The scope that new nodes of this graph go to: the current one, if it lies in this graph."""
        current = self.root._scope_stack[-1]
        return current if self.parent is None or current.name.startswith(self._prefix) else self

    def _full_name(self, name: object) -> str:
        if self.parent is not None and not self._exists:
            raise GraphError(f"sub-graph {self.name!r} was deleted: nothing can be made in it")
        return self._prefix + _checked_name(name, "node")

    @property
    def _exists(self) -> bool:
        return self.parent is None or self._store.scopes.get(self.name) is self

    def _place(self, place: Place | str | None) -> Place:
        return self._defaults[-1].place or _HOST if place is None else Place.parse(place)

    def _function(
        self, fn: Callable[..., Any], specs: tuple[TensorSpec, ...] | None, concurrency: int | None
    ) -> Function:
        """The operation; one object for ops in a row that do the same: large graphs are made in loops."""
        specs = None if specs is None else checked_specs(specs)
        last = self._last_function
        if last is None or last.fn is not fn or last.specs is not specs or last.concurrency is not concurrency:
            last = self._last_function = Function(fn, specs, concurrency)
        return last

    def _add_blob(self, scope: Graph, full: str, spec: TensorSpec, place: Place | str | None) -> Blob:
        store = self._store
        store.check_free(full)
        blob = Blob(scope, store.take_id(), full, self._place(place), spec)
        store.add(blob)
        return blob

    def _add_op(
        self,
        full: str,
        operation: object,
        place: Place | str | None,
        lane: str | None,
        attempts: options.Attempts | None = None,
        priority: int = 0,
        hints: options.Hints | None = None,
    ) -> Op:
        root, store = self.root, self._store
        lane = None if lane is None else text("lane", lane)
        checked = _checked_operation(full, operation)
        store.check_free(full)
        defaults = root._defaults[-1]
        where = root._place(place)
        lane, hints = lane or defaults.lane, hints or defaults.hints
        op = Op(self, store.take_id(), full, where, checked, lane, attempts, priority, hints, defaults.of)
        store.add(op)
        return op

    def _add_scope(self, parent: Graph, full: str) -> Graph:
        store = self._store
        store.check_free(full)
        scope = Graph.__new__(Graph)
        scope.name, scope.parent, scope.root, scope._prefix, scope._store = full, parent, self, full + "/", store
        scope.body = parent.body
        store.scopes[full] = scope
        return scope


def _constant_array(value: Any, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value) if isinstance(value, int | float | complex | list | tuple) else to_numpy(value)
    except GraphError:
        raise
    except ValueError as error:  # rows of different lengths
        raise ShapeError(f"constant: {error}") from error
    if dtype is None:
        kind = array.dtype if hasattr(value, "dtype") else _USUAL.get(array.dtype, array.dtype)
    else:
        kind = TensorSpec.of((), dtype).dtype
    return as_array(array, TensorSpec(array.shape, kind), "constant", narrow=True)


def root_of(graph: Graph) -> Graph:
    """The graph that a graph is a part of, or itself.

    Raises:
        TypeError: if it is none.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"expected a Graph, got {graph!r:.80} of {type(graph).__name__}")
    return graph.root


def _checked_operation(name: str | None, operation: object) -> Operation:
    if not isinstance(operation, Operation):
        hint = ""
        if isinstance(operation, type):
            hint = ": give an instance, not the class"
        elif callable(operation):
            hint = ": graph.function() makes ops of functions"
        raise GraphError(f"{'op' if name is None else f'op {name!r}'}: {operation!r} is not an Operation{hint}")
    return operation


def _checked_name(name: object, what: str) -> str:
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
        raise GraphError(f"{name!r} cannot name a {what}: a name is printable, not empty and has no '/'")
    return name


def targets_of(fetch: Fetch) -> tuple[Target, ...] | None:
    """The targets of ``fetch`` as a tuple; None for the sinks."""
    if fetch is None:
        return None
    if type(fetch) is list or (isinstance(fetch, Iterable) and not isinstance(fetch, str)):
        return tuple(fetch)
    return (fetch,)
