"""Graphs: the definition of what is computed. Nothing here runs; see `actorflow.runtime.engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from actorflow.devices import DeviceOptions
from actorflow.errors import GraphError
from actorflow.graph.contents import Contents
from actorflow.graph.nodes import Attempts, Blob, Hints, Initializer, Node, Op, Variable
from actorflow.graph.options import Modes, attempts_of, device_options_of, hints_of, limit_of
from actorflow.graph.runnable import Runnable
from actorflow.graph.scopes import Scopes, checked_name
from actorflow.graph.store import Members
from actorflow.graph.traced import Traced
from actorflow.ops.function import Function, checked_specs
from actorflow.ops.operation import Operation
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.transport.base import Transport
from actorflow.transport.world import world as world_of_process

if TYPE_CHECKING:
    from actorflow.runtime.engine import Engine

_HOST = Place()


class _Defaults(NamedTuple):
    """What `Graph.at` sets; None where nothing was said."""

    place: Place | None = None
    lane: str | None = None
    hints: Hints | None = None


class Graph(Contents, Scopes, Runnable, Traced):
    """A bipartite graph of operations and blobs, or a part of one.

    ``with graph.subgraph("encoder"):`` names a scope: what is made inside goes there, by layers, by the functional form
    (``af.ops.softmax(y)``), and by ``graph.blob`` and the like. Scopes share the root's ops, blobs and variables; only
    the root can run.

    Args:
        name: Shown in errors, the live page and ``to_dot``.
        memory_budget: Most bytes that variables and intermediate values may take on each device. Frames and ops wait
            for memory; a graph that can never fit fails when it is compiled. What is fed and what was fetched is the
            application's and does not count.
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
            ``plan.summary()`` lists the segments, and `Engine.segments` says how often each was replayed.
        world: The ranks that run this graph together, each of which builds it (`actorflow.transport`); the default is
            that of the process, `actorflow.world`.

    Attributes:
        name: Full name, scopes joined by ``/``; the root's name is not part of its nodes' names.
        parent: The graph around a sub-graph, None for the root.
        root: The outermost graph.
        modes: The root's: how it runs.
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
        world: Transport | None = None,
    ) -> None:
        self.name = checked_name(name, "graph")
        self.parent: Graph | None = None
        self.root: Graph = self
        self._prefix = ""
        self._members = Members()  # shared with the sub-graphs, which have nothing of what follows
        self._last_function: Function | None = None
        self._defaults = [_Defaults()]
        self._scope_stack: list[Graph] = [self]
        self._engine: Engine | None = None
        self.modes = Modes(
            memory_budget,
            sequential,
            deterministic,
            dry_run,
            limit_of("stall_limit", stall_limit),
            limit_of("block_limit", block_limit),
            hints_of(libraries, force_cpu),
            device_options_of(devices or {}),
            capture,
            world,
        )

    @property
    def world(self) -> Transport:
        """The ranks that run this graph, and which of them this one is."""
        return self.root.modes.world or world_of_process()

    # -- building -----------------------------------------------------------------------------------------------

    def blob(
        self,
        name: str,
        shape: Iterable[int] | int,
        dtype: npt.DTypeLike = "float32",
        place: Place | str | None = None,
    ) -> Blob:
        """Make a blob.

        Args:
            name: Unique in this graph, or in the scope of the ``with`` block around the call.
            shape: Length of each axis.
            dtype: Type of the elements; ``object`` with shape ``()`` lets functions pass any Python object.
            place: Where it lives; the default is that of `at`.
        Raises:
            GraphError: if the name is taken or no name; `ShapeError`, `DTypeError`, `PlaceError` for the others.
        """
        scope = self._inmost
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
            init: First value: an array, a scalar for all elements, or a callable ``init(spec, name)`` (`af.nn.init`).
            place: Where it lives; the default is that of `at`.
        Raises:
            GraphError: as for `blob`.
        """
        scope = self._inmost
        full, spec = scope._full_name(name), TensorSpec.of(shape, dtype)
        members = self._members
        members.check_free(full)
        variable = Variable(scope, members.take_id(), full, self.root._place(place), spec, init)
        members.add(variable)
        return variable

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
        """
        if not isinstance(of, Variable) or of.graph.root is not self.root:
            raise GraphError(f"replica {name!r}: expected a variable of graph {self.root.name!r}, got {of!r}")
        first = of.replica_of or of
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
            operation: What it computes, an instance: ``af.ops.Inner()``.
            place: Where it runs; the default is that of `at`.
            lane: Name of the device's FIFO that it runs on. By default the one of `at`; without one, the plan keeps
                chains on a lane and spreads what is independent over as many lanes as there are cores.
            priority: Fire it, and what leads to it, before others that are ready, as if so many ops more followed it.
            timeout: Longest time of one call in seconds; past it the run fails with `OpTimeoutError`.
            retries: How often a failed call is repeated before its failure counts.
            backoff: Seconds before the first repetition; each further one waits twice as long, a day at most.
            libraries: Kernel libraries to prefer for it; the default is that of `at`, then the graph's.
            force_cpu: Compute on the CPU, wherever the arrays live.
        Raises:
            GraphError: if the name is taken or no name, or ``operation`` is no `Operation`.
        """
        attempts = attempts_of(timeout, retries, backoff)
        hints = hints_of(libraries, force_cpu)
        scope = self._inmost
        return scope._add_op(scope._full_name(name), operation, place, lane, attempts, priority, hints)

    def function(
        self,
        name: str,
        fn: Callable[..., Any],
        outputs: TensorSpec | Sequence[TensorSpec] | None = None,
        place: Place | str | None = None,
        lane: str | None = None,
        *,
        concurrency: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
        retries: int = 0,
        backoff: float = 0.0,
    ) -> Op:
        """Make an op of any plain or ``async def`` function.

        The function gets the inputs' arrays as positional arguments, which it must not change, and returns one value
        per output: the value itself for one output, a sequence for several, anything for none. A plain function runs
        on the CPU lane or, once it is known to be short, on the loop; a coroutine function runs on the loop as a task.
        On an accelerator that runs functions (CUDA, with CuPy arrays) a plain function launches its work on the op's
        stream; elsewhere functions run on the CPU, with NumPy arrays.

        Args:
            name: Unique in this graph, or in the scope of the ``with`` block around the call.
            fn: The function.
            outputs: Types of the outputs (`af.TensorSpec.of`); left out, the blobs connected by ``>>`` say them.
            place: Where it runs; the default is that of `at`.
            lane: As for `op`.
            concurrency: How many frames may be in an async function at once; by default as many as there are. They
                start in the order of the frames. A plain function has one frame at a time.
            priority: As for `op`.
            timeout: As for `op`.
            retries: As for `op`.
            backoff: As for `op`.
        """
        specs = (outputs,) if isinstance(outputs, TensorSpec) else None if outputs is None else tuple(outputs)
        operation = self.root._function(fn, specs, concurrency)
        attempts = attempts_of(timeout, retries, backoff)
        scope = self._inmost
        return scope._add_op(scope._full_name(name), operation, place, lane, attempts, priority)

    def apply(self, operation: Operation, *inputs: Blob, name: str | None = None) -> Any:
        """The functional form: make the op and its output blobs in the current scope, connected to ``inputs``.

        Args:
            operation: What is computed.
            inputs: The blobs it reads.
            name: Name of the op, made unique; the default is the operation's kind in lower case.
        Returns:
            The output blob, or a tuple of them; named ``<op>/out``, or ``<op>/out0``, ``<op>/out1``, ...
        """
        operation = _checked_operation(name, operation)
        root = self.root
        # Where its first input lives, unless `at` says otherwise.
        place = inputs[0].place if inputs and root._defaults[-1].place is None else None
        op = root.current_scope._add_op(self.unique_name(name or operation.kind.lower()), operation, place, None)
        return op(*inputs)

    @contextmanager
    def at(
        self,
        place: Place | str | None = None,
        lane: str | None = None,
        *,
        libraries: Sequence[str] | None = None,
        force_cpu: bool = False,
    ) -> Iterator[None]:
        """Default place, lane and kernel libraries of what is made inside the ``with`` block.

        What is not given stays as it is around the block. With no block around it, nodes are on the CPU, and an op of
        the functional form is where its first input lives.
        """
        root = self.root
        before = root._defaults[-1]
        root._defaults.append(
            _Defaults(
                before.place if place is None else Place.parse(place),
                lane or before.lane,
                hints_of(libraries, force_cpu) or before.hints,
            )
        )
        try:
            yield
        finally:
            root._defaults.pop()

    def prune(self, sinks: Iterable[Blob | Op | Graph | str]) -> None:
        """Delete every node of this graph that none of ``sinks`` needs.

        To run a part only, `run` with ``fetch`` is enough.

        Args:
            sinks: What is to be kept, with all that it needs: blobs, ops, sub-graphs or their names.
        Raises:
            GraphError: if one of them is not in this graph.
        """
        from actorflow.plan.validate import needed_ops  # the plan is built on graphs

        targets = [self.resolve(sink) for sink in sinks]
        ops = needed_ops(targets)
        keep: set[Node] = set(ops) | {target for target in targets if isinstance(target, Blob)}
        for op in ops:
            keep.update(op.inputs, op.outputs)
        self._members.delete(node for node in self.nodes if node not in keep)

    # -- looking ------------------------------------------------------------------------------------------------

    def budget_of(self, place: Place) -> int | None:
        """Most bytes that variables and intermediate values may take on a place; None for no limit."""
        modes = self.root.modes
        options = modes.devices.get(place)
        if options is not None and options.memory_budget is not None:
            return options.memory_budget
        return modes.memory_budget_bytes

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self.ops)} ops, {len(self.blobs)} blobs>"

    # -- bookkeeping of the root --------------------------------------------------------------------------------

    def _function(
        self, fn: Callable[..., Any], specs: tuple[TensorSpec, ...] | None, concurrency: int | None
    ) -> Function:
        """The operation; one object for ops in a row that do the same: large graphs are made in loops."""
        specs = None if specs is None else checked_specs(specs)
        last = self._last_function
        if last is None or last.fn is not fn or last.specs is not specs or last.concurrency != concurrency:
            last = self._last_function = Function(fn, specs, concurrency)
        return last

    def _place(self, place: Place | str | None) -> Place:
        return self._defaults[-1].place or _HOST if place is None else Place.parse(place)

    def _add_blob(self, scope: Graph, full: str, spec: TensorSpec, place: Place | str | None) -> Blob:
        members = self._members
        members.check_free(full)
        blob = Blob(scope, members.take_id(), full, self._place(place), spec)
        members.add(blob)
        return blob

    def _add_op(
        self,
        full: str,
        operation: object,
        place: Place | str | None,
        lane: str | None,
        attempts: Attempts | None = None,
        priority: int = 0,
        hints: Hints | None = None,
    ) -> Op:
        root, members = self.root, self._members
        checked = _checked_operation(full, operation)
        members.check_free(full)
        defaults = root._defaults[-1]
        where = root._place(place)
        lane, hints = lane or defaults.lane, hints or defaults.hints
        op = Op(self, members.take_id(), full, where, checked, lane, attempts, priority, hints)
        members.add(op)
        return op

    def _add_scope(self, parent: Graph, full: str) -> Graph:
        members = self._members
        members.check_free(full)
        scope = Graph.__new__(Graph)
        scope.name, scope.parent, scope.root, scope._prefix, scope._members = full, parent, self, full + "/", members
        members.scopes[full] = scope
        return scope


def _checked_operation(name: str | None, operation: object) -> Operation:
    if not isinstance(operation, Operation):
        hint = ""
        if isinstance(operation, type):
            hint = ": give an instance, not the class"
        elif callable(operation):
            hint = ": graph.function() makes ops of functions"
        raise GraphError(f"{'op' if name is None else f'op {name!r}'}: {operation!r} is no Operation{hint}")
    return operation
