"""The nodes of a graph: blobs hold tensors, ops compute them; ``>>`` connects the two."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from actorflow.errors import ActorflowError, DTypeError, GraphError, PlaceError, ShapeError, text_of
from actorflow.graph.options import Attempts, Hints
from actorflow.interchange import as_array, read_only, to_numpy
from actorflow.ops.elementwise import Copy
from actorflow.ops.fills import Constant, Fill, Numbers, check_number
from actorflow.ops.function import Function
from actorflow.ops.operation import Operation, inferred, spec_of
from actorflow.ops.operators import Operators
from actorflow.ops.rows import with_constants
from actorflow.place import Place
from actorflow.spec import TensorSpec, may_equal
from actorflow.threads import held_at_fork

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph

_Blobs = TypeVar("_Blobs", bound="Blob | Sequence[Blob]")

#: Locks held while first values are computed, one for each variable: a thread may need what another one computes.
_drawing: dict[Variable, Any] = {}
#: Where the library's own lines are, which errors leave out.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Programs of this package's own, whose lines are users' lines.
_COMMANDS = os.path.join(PACKAGE, "cli") + os.sep

#: ``init(spec, name)`` returns the first value of a variable; `name` lets an unseeded initializer differ per variable.
Initializer = Callable[[TensorSpec, str], npt.ArrayLike]


class Site(NamedTuple):
    """The line of user code that created a node."""

    filename: str
    line: int
    function: str

    @classmethod
    def caller(cls, depth: int = 4) -> Site:
        """The innermost line outside this package, for a node that is being made."""
        # A frame looked at costs an object. The first ones belong to `Node`, its subclass and the graph.
        frame = sys._getframe(depth)
        while (code := frame.f_code).co_filename.startswith(PACKAGE) and frame.f_back is not None:
            if code.co_filename.startswith(_COMMANDS):
                break
            frame = frame.f_back
        return _site(code.co_filename, frame.f_lineno, code.co_name)

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.function}"


@lru_cache(maxsize=4096)
def _site(filename: str, line: int, function: str) -> Site:
    """One object for all that one line makes: large graphs are made in loops."""
    return Site(filename, line, function)


class Node:
    """Base of blobs and ops.

    Attributes:
        graph: The graph or sub-graph that the node was created in.
        id: Position in the order of creation in the root graph; never used again after a deletion.
        name: Full name, scopes joined by ``/``.
        place: Where it lives.
        site: The line of user code that created it.
    """

    __slots__ = ("graph", "id", "name", "place", "site")

    def __init__(self, graph: Graph, node_id: int, name: str, place: Place) -> None:
        self.graph = graph
        self.id = node_id
        self.name = name
        self.place = place
        self.site = graph.root._defaults[-1].site or Site.caller()


class Blob(Node, Operators):
    """A tensor slot of known shape and dtype.

    With several producers its value is their sum, added up in the order in which they were connected.

    Attributes:
        spec: Shape and dtype.
        consumers: Ops that read it, once per argument.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 3])
        >>> y = (x - 1) / 2  # operators make ops, and their blobs
        >>> y
        <Blob 'divide/out' float32[batch, 3] on cpu>
        >>> y[:, 0].spec.shape, y.T.spec.shape
        ((batch,), (3, batch))
        >>> [op.name for op in y.producers], [op.name for op in x.consumers]
        (['divide'], ['subtract'])
    """

    __slots__ = ("_producers", "consumers", "spec")

    def __init__(self, graph: Graph, node_id: int, name: str, place: Place, spec: TensorSpec) -> None:
        super().__init__(graph, node_id, name, place)
        self.spec = spec
        self._producers: Op | list[Op] | None = None  # bare where there is one, as nearly always: large graphs feel it
        self.consumers: list[Op] = []

    @property
    def producers(self) -> list[Op]:
        """Ops that write it, in the order in which they were connected.

        Example:
            >>> graph = af.Graph("g")
            >>> a, b, total = (graph.blob(name, [2]) for name in ("a", "b", "total"))
            >>> _ = [a] >> graph.op("first", af.ops.Copy()) >> [total]
            >>> _ = [b] >> graph.op("second", af.ops.Copy()) >> [total]
            >>> [op.name for op in total.producers]  # so that its value is their sum
            ['first', 'second']
            >>> graph.run_sync({a: [1, 2], b: [10, 20]})[total]
            array([11., 22.], dtype=float32)
        """
        producers = self._producers
        return [] if producers is None else [producers] if isinstance(producers, Op) else [*producers]

    @property
    def has_several_producers(self) -> bool:
        """True if its value is a sum."""
        return type(self._producers) is list

    def _set_producers(self, producers: list[Op]) -> None:
        self._producers = producers if len(producers) > 1 else producers[0] if producers else None

    def _add_producer(self, op: Op) -> None:
        producers = self._producers
        if producers is None:
            self._producers = op
        elif isinstance(producers, Op):
            self._producers = [producers, op]
        else:
            producers.append(op)

    def apply_operation(self, operation: Operation, inputs: Sequence[Any], name: str | None) -> Any:
        """Make an op in the graph's current scope; see `actorflow.ops.operation.apply`."""
        inputs = with_constants(operation, inputs)
        names = operation.arguments
        for i, blob in enumerate(inputs):
            spec_of(operation.kind, names[min(i, len(names) - 1)].lstrip("*"), blob)
        return self.graph.root.apply(operation, *inputs, name=name)

    def constant_like(self, value: Any, shape: tuple[int, ...] = ()) -> Blob:
        """A blob that is a number everywhere, of the dtype and on the place of this one.

        Raises:
            DTypeError: if the dtype cannot have that value.
        """
        check_number(value, self.name, self.spec)
        root = self.graph.root
        with root.at(self._beside):
            if shape:
                made: Blob = root.apply(Fill(value, TensorSpec(shape, self.dtype)))
            else:
                made = root.apply(Constant(np.full((), value, self.dtype)), name="number")
        return made

    def literal(self, value: Any) -> Blob:
        """The constant of an array, or of a value that follows from lengths, on the place of this blob."""
        root = self.graph.root
        if not isinstance(value, Numbers):
            return root.constant(value, place=self._beside)
        with root.at(self._beside):
            made: Blob = root.apply(value)
            return made

    @property
    def _beside(self) -> Place:
        """Where a constant goes that an op reads with this blob: on its place, or that of ops on another rank now."""
        default = self.graph.root._defaults[-1].place
        return self.place if default is None or default.rank == self.place.rank else default

    def new_seed(self) -> int:
        """A seed that follows from the name, another one for each op that reads the blob."""
        return zlib.crc32(f"{self.name}:{len(self.consumers)}".encode())

    def all_or_nothing(self) -> AbstractContextManager[None]:
        """A context that removes the nodes made inside, if it fails."""
        return self.graph.root._store.all_or_nothing()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.spec} on {self.place}>"


class Variable(Blob):
    """A blob whose value outlives the frame: weights, optimizer state, running statistics.

    Ops that read it in a frame see the value from before the frame's updates. An op that writes it gives the
    value for the next frame; the write replaces the array and never changes it in place, so an array once read
    from `value` stays as it was.

    Attributes:
        replica_of: The variable on another place that this one is kept equal to; None if it is not a copy. A checkpoint
            without a value for it gives it that of the other.
        is_state: Whether only a training needs it, as an optimizer's rate, steps and moments: weights are saved without
            it.

    Example:
        >>> graph = af.Graph("sums")
        >>> x = graph.blob("x", [2])
        >>> total = graph.variable("total", [2])
        >>> _ = [total, x] >> graph.op("add", af.ops.Sum()) >> [total]
        >>> for _ in range(3):
        ...     _ = graph.run_sync({x: [1, 10]})
        >>> total.value
        array([ 3., 30.], dtype=float32)
        >>> total.value = 0, 0  # between frames
    """

    __slots__ = ("_init", "_value", "is_state", "replica_of")

    is_variable = True

    def __init__(
        self, graph: Graph, node_id: int, name: str, place: Place, spec: TensorSpec, init: Initializer | npt.ArrayLike
    ) -> None:
        super().__init__(graph, node_id, name, place, spec)
        self._init: Initializer | npt.ArrayLike = init if callable(init) else np.array(self._initial(init))
        self._value: Any = None
        self.replica_of: Variable | None = None
        self.is_state = False

    @property
    def value(self) -> npt.NDArray[Any]:
        """The current value, a NumPy array that cannot be written to; of a variable on an accelerator, a copy.

        The first access computes the initial value. Of a graph that several ranks run, a variable's value is on the
        rank of its place alone.

        Assigning checks shape and dtype and keeps a copy; frames already running go on with the old value. As for
        feeds, an array's dtype is only widened, and Python numbers take the variable's.

        Raises:
            ShapeError, DTypeError: if the assigned or initial value does not fit.
            PlaceError: if it is on another rank.

        Example:
            >>> graph = af.Graph("g")
            >>> w = graph.variable("w", [2], init=1)
            >>> w.value
            array([1., 1.], dtype=float32)
            >>> w.value = [2, 3]
            >>> w.value = [1, 2, 3]
            Traceback (most recent call last):
                ...
            actorflow.errors.ShapeError: value of variable 'w': expected shape (2,), got (3,)
            More: actorflow docs shapes
        """
        rank = self.graph.world.rank
        if self.place.rank != rank:
            raise PlaceError(f"the value of variable {self.name!r} is on rank {self.place.rank}, this is rank {rank}")
        held = self.held
        return read_only(held) if type(held) is np.ndarray else to_numpy(held)

    @value.setter
    def value(self, value: npt.ArrayLike) -> None:
        self._value = np.array(as_array(value, self.spec, f"value of variable {self.name!r}"), order="C", copy=True)

    @property
    def held(self) -> Any:
        """The current value where it is: the array itself, of the host or of the device that it was computed on.

        Example:
            >>> graph = af.Graph("g")
            >>> w = graph.variable("w", [2], place="sim:0", init=[1, 2])
            >>> y = w + 1
            >>> _ = graph.run_sync()
            >>> w.held, w.value
            (<SimArray float32[2] on sim:0>, array([1., 2.], dtype=float32))
        """
        if self._value is None:
            try:
                with _drawing.setdefault(self, held_at_fork(RLock(), is_outer=True)):
                    self._draw()
            finally:
                _drawing.pop(self, None)
        return self._value

    def _draw(self) -> None:
        if self._value is not None:  # another thread was quicker
            return
        try:
            initial = self._init(self.spec, self.name) if callable(self._init) else self._init
            array = self._initial(initial)
        except (ActorflowError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the user's own function may raise anything
            what = f"{type(error).__name__}: {text_of(error)}"
            raise GraphError(
                f"the init of variable {self.name!r} failed with {what}\n  created at {self.site}"
            ) from error
        first = np.array(np.broadcast_to(array, self.shape), order="C", copy=True)
        if self._value is None:  # it may have been assigned meanwhile
            self._value = first

    def _initial(self, initial: npt.ArrayLike) -> npt.NDArray[Any]:
        """An initial value, checked: an array of the variable's type, or a scalar for all elements."""
        spec = self.spec if np.ndim(initial) else TensorSpec((), self.dtype)
        return as_array(initial, spec, f"init of variable {self.name!r}", narrow=True)

    def commit(self, value: Any) -> Any:
        """Replace the value by an array of the right type without a copy; for the runtime. Returns the old one."""
        old, self._value = self._value, value
        return old

    def assign(self, blob: Blob) -> Op:
        """Have a blob's value be that of the variable from the next frame on; returns the op that writes it.

        Raises:
            ShapeError, DTypeError: if the blob is of another type.
            GraphError: if the two are of different graphs.

        Example:
            >>> graph = af.Graph("g")
            >>> total = graph.variable("total", [2])
            >>> _ = total.assign(total + graph.blob("x", [2]))
            >>> for _ in range(3):
            ...     _ = graph.run_sync({"x": [1, 10]})
            >>> total.value
            array([ 3., 30.], dtype=float32)
        """
        root = self.graph.root
        op = root.op(root.unique_name("assign"), Copy(), place=self.place)
        with root._store.all_or_nothing():
            _ = [blob] >> op >> [self]
        return op


class State(Blob):
    """A source with a row per session, which goes on from step to step; made by `Graph.state`.

    Sessions of a batcher feed it their rows, and take the next ones from the blob assigned to it. A run by itself has
    it fed as any source.

    Attributes:
        init: The row that a session begins with, without the axis of the rows.
        following: The blob that gives the next rows; None before `assign`.

    Example:
        >>> graph = af.Graph("sums")
        >>> x = graph.blob("x", ["row"])
        >>> total = graph.state("total", ["row"], init=100)
        >>> y = total + x
        >>> total.assign(y)
        >>> async def main():
        ...     async with graph, graph.batched() as batcher, batcher.session() as session:
        ...         for value in 1, 2, 3:
        ...             result = await session.run({x: [value]})
        ...         return result[y]
        >>> af.run(main())
        array([106.], dtype=float32)
    """

    __slots__ = ("following", "init")

    def __init__(
        self, graph: Graph, node_id: int, name: str, place: Place, spec: TensorSpec, init: npt.NDArray[Any]
    ) -> None:
        super().__init__(graph, node_id, name, place, spec)
        self.init = init
        self.following: Blob | None = None

    def assign(self, blob: Blob) -> None:
        """Have a blob's rows be the rows of the state from the next step on.

        Raises:
            ShapeError, DTypeError: if the blob is of another type.
            GraphError: if the state has one already, or the two are of different graphs.
        """
        root = self.graph.root
        if not isinstance(root.resolve(blob), Blob):
            raise GraphError(f"state {self.name!r} must be assigned a blob, got {blob!r}")
        if self.following is not None:
            raise GraphError(f"state {self.name!r} is assigned {self.following.name!r} already")
        if blob.dtype != self.dtype:
            raise DTypeError(f"state {self.name!r} is {self.spec}, and blob {blob.name!r} is {blob.spec}")
        if blob.shape != self.shape:
            raise ShapeError(f"state {self.name!r} is {self.spec}, and blob {blob.name!r} is {blob.spec}")
        self.following = blob
        root._store.revision += 1


class Op(Node):
    """An operation placed on a lane, between the blobs that it reads and writes.

    Connect it by ``[x, w] >> op >> [y]``, or call it, ``y = op(x, w)``, to have the output blobs made.

    Attributes:
        operation: The mathematics that it computes.
        lane: Name of the FIFO of its device that it runs on; None leaves the choice to the plan.
        attempts: Its timeout and retries, if it has any.
        hints: Kernels that the user prefers, if any.
        priority: Number of ops by which the path behind it counts as longer, where ready ops compete.
        of: The op whose gradient it helps to compute, or the variable that it updates for an optimizer; else None.
        inputs: Blobs it reads, empty before they are connected.
        outputs: Blobs it writes.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [2, 3])
        >>> w = graph.variable("w", [4, 3])
        >>> inner = graph.op("inner", af.ops.Inner(), lane="compute")
        >>> y = inner(x, w)
        >>> y
        <Blob 'inner/out' float32[2, 4] on cpu>
        >>> inner.inputs
        (<Blob 'x' float32[2, 3] on cpu>, <Variable 'w' float32[4, 3] on cpu>)
    """

    __slots__ = (
        "_inferred",
        "attempts",
        "hints",
        "inputs",
        "is_connected",
        "lane",
        "of",
        "operation",
        "outputs",
        "own",
        "priority",
    )

    def __init__(
        self,
        graph: Graph,
        node_id: int,
        name: str,
        place: Place,
        operation: Operation,
        lane: str | None,
        attempts: Attempts | None,
        priority: int,
        hints: Hints | None = None,
        of: Op | Blob | None = None,
    ) -> None:
        super().__init__(graph, node_id, name, place)
        self.hints = hints
        self.of = of
        self.operation = operation
        self.lane = lane
        self.attempts = attempts
        self.priority = priority
        self.inputs: tuple[Blob, ...] = ()
        self.outputs: tuple[Blob, ...] = ()
        self.is_connected = not operation.arguments  # whether the inputs have been
        self.own: Operation | None = None  # a copy for kernels that keep weights with it: several ops may share one
        self._inferred: tuple[TensorSpec, ...] | None = None
        if isinstance(operation, Function):  # its outputs are declared, and do not follow from its inputs
            self._inferred = operation.infer()
        elif self.is_connected:
            self._infer()

    def __call__(self, *inputs: Blob) -> Blob:
        """Connect the inputs and make the outputs: one blob, or a tuple of them.

        For type checkers a call gives one blob; `outputs` of the op is a tuple, however many there are.

        Raises:
            GraphError: if the inputs do not fit (`ShapeError`, `DTypeError`), or are connected already.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [4, 2])
            >>> split = graph.op("split", af.ops.Split((1, 3)))
            >>> split(x)
            (<Blob 'split/out0' float32[1, 2] on cpu>, <Blob 'split/out1' float32[3, 2] on cpu>)
        """
        made: Blob = self._or_undo(self._call, inputs)
        return made

    def _call(self, inputs: Sequence[Blob]) -> Any:
        self._check_no_outputs()
        if inputs or not self.is_connected:
            self._connect_inputs(inputs)
        if self._inferred is None:
            raise GraphError(f"{self._where()} does not say what its outputs are: give outputs= or connect blobs by >>")
        graph, name = self.graph, f"{self.name}/out"
        if len(self._inferred) == 1:
            output = graph.root._add_blob(graph, name, self._inferred[0], self.place)
            self._set_outputs((output,))
            return output
        outputs = [graph.root._add_blob(graph, f"{name}{i}", spec, self.place) for i, spec in enumerate(self._inferred)]
        self._set_outputs(tuple(outputs))
        return self.outputs

    def __rrshift__(self, inputs: Blob | Sequence[Blob]) -> Op:
        blobs = as_blobs(inputs)
        if blobs is None:
            return NotImplemented
        self._or_undo(self._connect_inputs, blobs)
        return self

    def __rshift__(self, outputs: _Blobs) -> _Blobs:
        if isinstance(outputs, Op):
            raise GraphError(
                f"op {self.name!r} cannot be connected to op {outputs.name!r} directly: "
                "put the blob between them, a >> [y] >> b"
            )
        blobs = as_blobs(outputs)
        if blobs is None:
            return NotImplemented
        self._or_undo(self._connect_outputs, blobs)
        return outputs

    def hides(self, blob: Blob) -> bool:
        """Return whether an output is for gradients alone, so that it is no result of the graph."""
        saved = self.operation.saved if getattr(self.operation, "saves", True) else 0
        return bool(saved) and blob in self.outputs[-saved:]

    @property
    def expects_outputs(self) -> bool:
        """True if the operation has outputs; a function may have none."""
        return bool(self._inferred)

    def _or_undo(self, connect: Callable[[Sequence[Blob]], Any], blobs: Sequence[Blob]) -> Any:
        """Make a connection; one that fails leaves the graph as it was.

        An op that has no other connection leaves the graph then: in ``graph.op(...)(x)`` it was made for this one, and
        its name is free for another try. A later connection that succeeds brings it back.
        """
        store = self.graph._store
        if store.has_lost(self):
            store.put_back(self)
        first_id, scopes = store.next_id, len(store.scopes)
        before = self.inputs, self.outputs, self.is_connected, self._inferred
        try:
            return connect(blobs)
        except BaseException:
            store.undo(first_id, scopes)
            if before[:2] == ((), ()):
                store.withdraw(self)
            self.inputs, self.outputs, self.is_connected, self._inferred = before
            raise

    def _where(self) -> str:
        return f"op {self.name!r} ({self.operation})"

    def _connect_inputs(self, blobs: Sequence[Blob]) -> None:
        if self.is_connected:
            given = ", ".join(blob.name for blob in self.inputs) or "none"
            raise GraphError(f"{self._where()} has its inputs already ({given})")
        self._check_blobs(blobs)
        try:
            self.operation.check_arity(len(blobs))
        except GraphError as error:
            raise GraphError(f"op {self.name!r}: {error}") from None
        body = self.graph.body
        if body is not None:
            blobs = [body.own(blob) for blob in blobs]
        else:
            self._check_outside(blobs)
        self.inputs = tuple(blobs)
        if not isinstance(self.operation, Function):  # which has said them already
            self._infer()
        self._check_outputs(self.outputs)
        self.is_connected = True
        for blob in blobs:
            blob.consumers.append(self)
        self.graph._store.revision += 1

    def _infer(self) -> None:
        try:
            self._inferred = inferred(self.operation, [blob.spec for blob in self.inputs])
        except GraphError as error:
            inputs = ", ".join(f"{blob.name} {blob.spec}" for blob in self.inputs)
            raise type(error)(f"op {self.name!r}: {error} (inputs: {inputs})") from None

    def _check_no_outputs(self) -> None:
        if self.outputs:
            given = ", ".join(blob.name for blob in self.outputs)
            raise GraphError(f"{self._where()} has its outputs already ({given})")

    def _connect_outputs(self, blobs: Sequence[Blob]) -> None:
        self._check_no_outputs()
        self._check_blobs(blobs)
        self._check_outside(blobs)
        if len(set(map(id, blobs))) != len(blobs):
            raise GraphError(f"{self._where()} cannot write one blob twice: {[blob.name for blob in blobs]}")
        self._check_outputs(blobs)
        self._set_outputs(tuple(blobs))

    def _set_outputs(self, blobs: tuple[Blob, ...]) -> None:
        self.outputs = blobs
        for blob in blobs:
            blob._add_producer(self)
        self.graph._store.revision += 1

    def _check_blobs(self, blobs: Sequence[object]) -> None:
        root = self.graph.root
        for blob in blobs:
            if not isinstance(blob, Blob):
                raise GraphError(f"{self._where()} connects blobs, got {type(blob).__name__}")
            if blob.graph.root is not root:
                raise GraphError(
                    f"{self._where()} is of graph {root.name!r}, "
                    f"blob {blob.name!r} of another one, {blob.graph.root.name!r}"
                )
            if root._store.has_lost(blob):
                raise GraphError(f"{self._where()} cannot be connected to blob {blob.name!r}, which was deleted")

    def _check_outside(self, blobs: Sequence[Blob]) -> None:
        for blob in blobs:
            if blob.graph.body is not self.graph.body:
                inside = blob.graph.body or self.graph.body
                assert inside is not None
                raise GraphError(
                    f"{self._where()} cannot be connected to blob {blob.name!r}: one of them is a part of "
                    f"{inside.scope.name!r}, which is computed by an op of its own, and gives what it returns"
                )

    def _check_outputs(self, blobs: Sequence[Blob]) -> None:
        if self._inferred is None or not blobs:
            return
        if len(blobs) != len(self._inferred):
            raise GraphError(f"{self._where()} has {len(self._inferred)} outputs, got {len(blobs)} blobs")
        for blob, spec in zip(blobs, self._inferred, strict=True):
            fits = may_equal(blob.shape, spec.shape)
            if not fits or blob.dtype != spec.dtype:
                kind = DTypeError if fits else ShapeError
                raise kind(f"{self._where()} gives {spec}, blob {blob.name!r} is declared as {blob.spec}")

    def __repr__(self) -> str:
        return f"<Op {self.name!r} {self.operation} on {self.place}, lane {self.lane!r}>"


def as_blobs(value: Any) -> tuple[Blob, ...] | None:
    """A blob or a sequence of blobs as a tuple; None for anything else."""
    if isinstance(value, Blob):
        return (value,)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        blobs = tuple(value)
        if all(isinstance(blob, Blob) for blob in blobs):
            return blobs
    return None
