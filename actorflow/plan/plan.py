"""Plans: a graph checked and put in order, with kernels, places, lanes and slots chosen. Pure: nothing here runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actorflow.errors import GraphError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Node, Op, Variable
from actorflow.graph.options import FiniteCheck
from actorflow.ops.registry import Kernel
from actorflow.ops.step import Step
from actorflow.place import Place
from actorflow.plan.memory import Footprint, footprint
from actorflow.plan.ranks import Identity
from actorflow.spec import Lengths, TensorSpec


@dataclass(slots=True)
class Slot:
    """Place in a frame for one value.

    Attributes:
        index: Position in the frame.
        blob: The blob that it is the value, a term, an update or a copy of.
        spec: Type of the value: the blob's, unless it is converted for a kernel.
        place: Where the value is.
        consumers: Indices of the ops that wait for it, once per argument.
        is_fed: The value comes from the application.
        is_fetched: The value goes to the application.
        updates: The variable whose new value it is.
        readers: Number of readers; the last one gives its buffer back.
        is_constant: The value is there before the first frame, and stays: no reader gives it back or is told of it.
    """

    index: int
    blob: Blob
    spec: TensorSpec
    place: Place
    consumers: list[int]
    is_fed: bool = False
    is_fetched: bool = False
    updates: Variable | None = None
    readers: int = 0
    is_constant: bool = False


@dataclass(slots=True, kw_only=True)
class PlannedOp(Step):
    """One step of a plan, on slots; its site is the node whose state it shows: the op, or the blob that is copied, say.

    Attributes:
        index: Position in the order of the plan, a topological one.
        node: The op, which errors name; for a step that the plan inserted, the op that it was inserted for.
        place: Where it runs.
        kernel: The chosen kernel; None for functions, which are their own, and for transfers, which devices do.
        waits: Number of messages that it waits for.
        lane: The lane of its device that it runs on when it is not short; None before it is chosen.
        parts: The steps that it computes by one call; it has the node of the last one. Their positions are the sites of
            the steps of its operation.
        bodies: Plans of the parts of the graph that it computes by itself; the error of a branch for other
            lengths.
    """

    site: Node = field(repr=False)
    index: int
    node: Op
    place: Place
    kernel: Kernel | None
    waits: int = 0
    lane: str | None = None
    parts: tuple[PlannedOp, ...] = ()
    bodies: tuple[Plan | GraphError, ...] = ()


@dataclass(slots=True)
class Plan:
    """Order, kernels, places and values of a selection of a graph's ops.

    Attributes:
        graph: The root graph.
        ops: In a topological order.
        roots: Indices of the ops that read nothing that an op writes, in the order in which they are fired.
        slots: All values of a frame.
        feeds: Slot of each blob that must be fed.
        fetches: Slot of each blob that is returned.
        reads: Slot of each variable that is read or awaited.
        updates: Variables that the plan writes.
        notes: Texts that say how the plan differs from the user's wishes, each with the names of its ops.
        segments: Indices of the ops that are launched as one.
        identity: Digest that all ranks must agree on, if messages are exchanged among them; see `actorflow.plan.ranks`.
        folded: Steps that are computed once, when the program is built, on the host; in a topological order, too. Their
            indices are positions in this list.
        lengths: Lengths of the open axes that it was made for.
        tapped: Slot of each blob whose value is kept for taps, and not returned.
        check: The check of its ops' results; None for none.
        is_partial: Whether a failure is confined to the ops that depend on its op; see `Graph.run`.
        per_item: Blobs that are returned for each item of an op that emits, and not once in a frame.
        results: Of a body, the slots of its outputs.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [4])
        >>> w = graph.variable("w", [4])
        >>> _ = [w, x] >> graph.op("add", af.ops.Sum()) >> [w]
        >>> plan = graph.compile()
        >>> [step.node.name for step in plan.ops], [blob.name for blob in plan.feeds], [w.name for w in plan.updates]
        (['add'], ['x'], ['w'])
    """

    graph: Graph
    ops: list[PlannedOp]
    roots: list[int]
    slots: list[Slot]
    feeds: dict[Blob, int]
    fetches: dict[Blob, int]
    reads: dict[Variable, int]
    updates: tuple[Variable, ...]
    notes: dict[str, list[str]]
    segments: Sequence[tuple[int, ...]] = ()
    identity: Identity | None = None
    folded: Sequence[PlannedOp] = ()
    lengths: Lengths = ()
    check: FiniteCheck | None = None
    is_partial: bool = False
    tapped: Mapping[Blob, int] = field(default_factory=dict)
    per_item: Sequence[Blob] = ()
    results: Sequence[int] = ()

    def footprint(self, place: Place | None = None) -> Footprint:
        """Memory that one frame takes, on one place or on all together.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [2, 3])
            >>> y = af.ops.sort(af.ops.softmax(x)) + 1
            >>> graph.compile().footprint().peak_bytes
            48
        """
        return footprint(self.ops, self.slots, place)

    def summary(self) -> str:
        """A table of a frame's steps: op, kernel, place and lane, inputs and outputs; then feeds and fetches.

        The ops that are computed once, before the first frame, are listed as constants.

        Example:
            >>> graph = af.Graph("g", libraries=["numpy"])
            >>> x = graph.blob("x", [2, 3])
            >>> y = af.ops.softmax(x)
            >>> print(graph.compile().summary())
            op       kernel         place, lane  inputs           outputs
            -------  -------------  -----------  ---------------  -------------------------
            softmax  numpy.Softmax  cpu main     x float32[2, 3]  softmax/out float32[2, 3]
            fed: x float32[2, 3]
            fetched: softmax/out float32[2, 3]
            updated: nothing
        """
        from actorflow.show.tables import plan_table

        return plan_table(self)

    def to_dot(self, *, times: bool = False) -> str:
        r"""The plan in Graphviz's language: a frame around the steps of each lane, values between them.

        Variables are bold, and a dashed edge leads from an update to the value it replaces; a feed has a dashed
        border, a constant a dotted one, a fetched blob a double one.

        Args:
            times: Colour steps by the times of their calls so far, as `Graph.to_dot` does.

        Example:
            >>> graph = af.Graph("g", libraries=["numpy"])
            >>> y = af.ops.exp(graph.blob("x", [2]))
            >>> print(graph.compile().to_dot())
            digraph "g" {
              rankdir=LR;
              subgraph cluster_0 {
                label="cpu main";
                n0 [shape=box, label="exp\nnumpy.Exp"];
              }
              s0 [shape=ellipse, style=dashed, label="x\nfloat32[2]"];
              s1 [shape=ellipse, peripheries=2, label="exp/out\nfloat32[2]"];
              s0 -> n0;
              n0 -> s1;
            }
        """
        from actorflow.show.dot import plan_dot

        return plan_dot(self, times=times)

    def to_svg(self, *, times: bool = False) -> str:
        """The picture that Graphviz draws of `to_dot`; waits for its program.

        Raises:
            MissingExtraError: if Graphviz is not installed.
        """
        from actorflow.show.dot import plan_dot, to_svg

        return to_svg(plan_dot(self, times=times))
