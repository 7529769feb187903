"""Nodes with graphs inside: If, Loop and Scan become branches and loops of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto

from actorflow import ops
from actorflow.errors import GraphError
from actorflow.graph import flow
from actorflow.onnx import by_data
from actorflow.onnx.file import names_read
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers
from actorflow.onnx.values import Value, usual
from actorflow.spec import Length, TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob
    from actorflow.onnx.lowering import Lowering, Values

#: Operators with graphs inside, and what of them is refused.
OPERATORS = {
    "If": "",
    "Loop": "where data say how often it repeats, results whose number of entries the file does not declare",
    "Scan": "sequences of several lengths, or from their ends, of version 8",
}


class _DecidesError(Exception):
    """A loop's body says when to end."""


def lowered(
    lowering: Lowering, proto: NodeProto, inputs: Sequence[Value | None], values: Values
) -> Sequence[Value | None]:
    """Lower a node.

    Args:
        lowering: The walk that it is a part of.
        proto: The node.
        inputs: Values of its inputs.
        values: All values around it.
    """
    for value in values.values():
        if value is not None and value.make is not None:
            value.blob()  # here, and not in a part, which may not be computed
    function: Callable[..., Sequence[Value | None]] = {"If": _if, "Loop": _loop, "Scan": _scan}[proto.op_type]
    return function(lowering, proto, inputs, values)


def _graph(proto: NodeProto, name: str) -> GraphProto:
    found: GraphProto = next(a.g for a in proto.attribute if a.name == name and a.type == AttributeProto.GRAPH)
    return found


def is_squeeze(proto: NodeProto, made_by: Mapping[str, NodeProto]) -> bool:
    """Return whether an If is what PyTorch writes for ``x.squeeze(axis)``: it leaves an axis that is not of length 1.

    An open axis is taken for one of length 1, which is checked when its length is known.

    Args:
        proto: The node.
        made_by: The node that gives each tensor.
    """
    branches = [[node.op_type for node in _graph(proto, which).node] for which in ("then_branch", "else_branch")]
    if [*filter("Constant".__ne__, branches[0])] != ["Squeeze"] or branches[1] != ["Identity"]:
        return False
    equal = made_by.get(proto.input[0], NodeProto())
    sides = [made_by.get(each, NodeProto()) for each in equal.input]
    lengths = [side for side in sides if side.op_type == "Gather"]
    return (
        equal.op_type == "Equal"
        and sorted(side.op_type for side in sides) == ["Constant", "Gather"]
        and made_by.get(lengths[0].input[0], NodeProto()).op_type == "Shape"
    )


def with_stacks(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> Sequence[NodeProto]:
    """Nodes in which a list that a Loop appends to each time, and that is stacked behind it, is a result of the Loop.

    That is how PyTorch writes lists. What `ConcatFromSequence` reads is then an array with an entry for each time.

    Args:
        nodes: The nodes of a graph.
        outputs: Names of the tensors that are read afterwards.
    """
    empty = {node.output[0] for node in nodes if node.op_type == "SequenceEmpty"}
    if not empty:
        return nodes
    reads = Counter([*outputs, *[name for node in nodes for name in names_read(node)]])
    stacked = {
        node.input[0]
        for node in nodes
        if node.op_type == "ConcatFromSequence" and _number(node, "new_axis", 0) and reads[node.input[0]] == 1
    }
    found: list[NodeProto] = []
    for node in nodes:
        gone = [i for i, name in enumerate(node.input) if name in empty and node.op_type == "Loop" and reads[name] == 1]
        for i in reversed(gone):
            node = _with_stack(node, i, stacked)
        found.append(node)
    left = {*outputs, *[name for node in found for name in names_read(node)]}
    return [node for node in found if not (node.op_type == "SequenceEmpty" and node.output[0] not in left)]


def _with_stack(loop: NodeProto, position: int, stacked: Container[str]) -> NodeProto:
    """A loop that gives what it appends to one of its carried values, if it does no more with that."""
    changed = NodeProto()
    changed.CopyFrom(loop)
    body = _graph(changed, "body")
    given, made, whole = body.input[position], body.output[position - 1], loop.output[position - 2]
    appends = [node for node in body.node if made.name in node.output]
    uses = Counter(name for node in body.node for name in (*names_read(node), *node.output))
    uses.update(output.name for output in body.output)
    if (
        whole not in stacked
        or [node.op_type for node in appends] != ["SequenceInsert"]
        or appends[0].input[0] != given.name
        or len(appends[0].input) != 2
        or (uses[given.name], uses[made.name]) != (1, 2)
    ):
        return loop
    value = ValueInfoProto(name=appends[0].input[1])
    for each, item in ((body.node, appends[0]), (body.input, given), (body.output, made)):
        each.remove(item)
    body.output.append(value)
    del changed.input[position], changed.output[position - 2]
    changed.output.append(whole)
    return changed


def _number(proto: NodeProto, name: str, default: Any = None) -> Any:
    found = next((each for each in proto.attribute if each.name == name), None)
    if found is None:
        return default
    return [*found.ints] if found.type == AttributeProto.INTS else found.i


def _if(lowering: Lowering, proto: NodeProto, inputs: Sequence[Value | None], values: Values) -> Sequence[Value | None]:
    condition = inputs[0]
    assert condition is not None

    types: list[list[TensorSpec]] = []
    objects: set[int] = set()

    def branch(graph: GraphProto) -> Callable[[], list[Blob]]:
        def computed() -> list[Blob]:
            made = lowering.part(graph, [], values, len(proto.output))
            types.append([value.blob().spec for value in made])
            return [by_data.as_object(value) if i in objects else value.blob() for i, value in enumerate(made)]

        return computed

    branches = [branch(_graph(proto, which)) for which in ("else_branch", "then_branch")]
    index = by_data.number(condition, "bool")
    try:
        blobs = flow._switch("if", index, branches, [], ("otherwise", "then"))
    except GraphError:
        if len(types) < 2 or types[0] == types[1]:
            raise
        objects.update(i for i, (one, other) in enumerate(zip(*types, strict=True)) if one != other)
        blobs = flow._switch("if", index, branches, [], ("otherwise", "then"))
    return [_usual(lowering, blob) for blob in blobs]


def _loop(
    lowering: Lowering, proto: NodeProto, inputs: Sequence[Value | None], values: Values
) -> Sequence[Value | None]:
    """Lower a Loop; carried values whose types change are Python objects."""
    types: list[tuple[TensorSpec, TensorSpec]] = []
    objects: set[int] = set()
    while True:
        types.clear()
        try:
            return _repeated(lowering, proto, inputs, values, objects, types)
        except GraphError:
            changing = {i for i, (begin, made) in enumerate(types) if begin != made}
            if changing <= objects:
                raise
            objects |= changing


def _repeated(
    lowering: Lowering,
    proto: NodeProto,
    inputs: Sequence[Value | None],
    values: Values,
    objects: Container[int],
    types: list[tuple[TensorSpec, TensorSpec]],
) -> Sequence[Value | None]:
    """As `_loop`; adds the type that each carried value begins with, and the one that the body gives."""
    body, graph = _graph(proto, "body"), lowering.graph
    count, go_on, *start = [*inputs, None, None][: max(2, len(inputs))]
    if any(value is None for value in start):
        raise Refused("one of its values to begin with is left out")
    carried = [
        by_data.as_object(each) if i in objects else each.blob() for i, each in enumerate(start) if each is not None
    ]
    true, zero = lowering.constant(np.array(True)), graph.constant(np.int64(0))
    limit = None if count is None or count.numbers is None else count.numbers.reshape(-1)[0]
    limit = limit if limit is None or isinstance(limit, Length) else max(0, int(limit))
    begins = None if go_on is None else go_on.known

    def computed(number: Blob, carried: Sequence[Blob]) -> tuple[Value, list[Blob]]:
        """Whether to go on, and all else that the body gives."""
        # Whenever it is computed, the last word was to go on.
        given = [_usual(lowering, number), true, *[_usual(lowering, blob) for blob in carried]]
        condition, *others = lowering.part(body, given, values, 1 + len(carried))
        made = [
            by_data.as_object(each) if i < len(carried) and carried[i].spec.is_object else each.blob()
            for i, each in enumerate(others)
        ]
        types[:] = [(begin.spec, each.spec) for begin, each in zip(carried, made, strict=False)]
        if any(begin != each for begin, each in types):
            raise GraphError("what is carried on is of another type")
        return condition, made

    def step(state: Sequence[Blob], _: Sequence[Blob]) -> tuple[list[Blob], list[Blob]]:
        condition, made = computed(state[0], state[1:])
        if condition.known is None or not condition.known.reshape(-1)[0]:
            raise _DecidesError
        return [state[0] + 1, *made[: len(carried)]], made[len(carried) :]

    if limit is not None and (go_on is None or (begins is not None and bool(begins.reshape(-1)[0]))):
        try:
            last, taken = flow._scan("loop", step, [zero, *carried], [], limit, False)
            return [_usual(lowering, blob) for blob in (*last[1:], *taken)]
        except _DecidesError:
            pass
    length = _declared_length(lowering, proto, len(carried))
    begin = graph.constant(np.array(True)) if go_on is None else by_data.number(go_on, "bool")
    most = None if count is None else by_data.number(count, "int64")

    def condition_of(number: Blob, condition: Blob, *_: Blob) -> Blob:
        # A copy, as a condition that is carried is not computed.
        return ops.copy(condition) if most is None else ops.logical_and(condition, number < most)

    def following(number: Blob, _: Blob, *values: Blob) -> tuple[list[Blob], list[Blob]]:
        condition, made = computed(number, values)
        return [number + 1, by_data.number(condition, "bool"), *made[: len(carried)]], made[len(carried) :]

    begins_with = [zero, begin, *carried]
    last, taken = flow._repeated("loop", condition_of, following, begins_with, length, exact=length is not None)
    return [_usual(lowering, blob) for blob in (*last[2:], *taken)]


def _declared_length(lowering: Lowering, proto: NodeProto, carries: int) -> Any:
    """How often a loop is computed whose data say it, by what the file says of its results; None if it gives none.

    Raises:
        Refused: if the file does not say it.
    """
    taken = proto.output[carries:]
    if not taken:
        return None
    for each in taken:
        declared = lowering.declared.get(each)
        if declared is not None and declared.shape:
            return declared.shape[0]
    raise Refused("how often it repeats depends on data, and with it the length of what it gives")


def _scan(
    lowering: Lowering, proto: NodeProto, inputs: Sequence[Value | None], values: Values
) -> Sequence[Value | None]:
    body, count = _graph(proto, "body"), _number(proto, "num_scan_inputs")
    if lowering.opsets[""] < 9:
        return _scan_of_batches(lowering, proto, body, count, inputs, values)
    given = [value.blob() for value in inputs if value is not None]
    start, scanned = given[: len(given) - count], given[len(given) - count :]
    gives = len(body.output) - len(start)
    axes = _number(proto, "scan_input_axes") or [0] * count
    backward = _number(proto, "scan_input_directions") or [0] * count
    axes_out = _number(proto, "scan_output_axes") or [0] * gives
    backward_out = _number(proto, "scan_output_directions") or [0] * gives
    entries = [_to_front(blob, axis, is_back) for blob, axis, is_back in zip(scanned, axes, backward, strict=True)]
    last, taken = _scanned(lowering, body, start, entries, values)
    results = [
        _from_front(blob, axis, is_back) for blob, axis, is_back in zip(taken, axes_out, backward_out, strict=True)
    ]
    return [_usual(lowering, blob) for blob in (*last, *results)]


def _scanned(
    lowering: Lowering, body: GraphProto, start: Sequence[Blob], entries: Sequence[Blob], values: Values
) -> tuple[list[Blob], list[Blob]]:
    def step(carried: Sequence[Blob], given: Sequence[Blob]) -> tuple[list[Blob], list[Blob]]:
        inner = [_usual(lowering, blob) for blob in (*carried, *given)]
        made = [value.blob() for value in lowering.part(body, inner, values, len(start))]
        return made[: len(start)], made[len(start) :]

    return flow._scan("scan", step, start, entries, entries[0].shape[0], False)


def _scan_of_batches(
    lowering: Lowering,
    proto: NodeProto,
    body: GraphProto,
    count: int,
    inputs: Sequence[Value | None],
    values: Values,
) -> Sequence[Value | None]:
    """A Scan of version 8, which has a row for each sequence of a batch."""
    lengths, *rest = inputs
    if lengths is not None or any(_number(proto, "directions") or []):
        raise Refused("sequences of several lengths, or from their ends, of a Scan of version 8 are not supported")
    given = [value.blob() for value in rest if value is not None]
    first = len(given) - count

    def of_one(_: Sequence[Blob], row: Sequence[Blob]) -> tuple[list[Blob], list[Blob]]:
        last, taken = _scanned(lowering, body, row[:first], row[first:], values)
        return [], [*last, *taken]

    _, taken = flow._scan("batch", of_one, [], given, given[0].shape[0], False)
    return [_usual(lowering, blob) for blob in taken]


def _to_front(blob: Blob, axis: int, is_back: int) -> Blob:
    axis %= len(blob.shape)
    order = (axis, *[i for i in range(len(blob.shape)) if i != axis])
    moved: Blob = ops.transpose(blob, order) if axis else blob
    return ops.flip(moved, 0) if is_back else moved


def _from_front(blob: Blob, axis: int, is_back: int) -> Blob:
    rank = len(blob.shape)
    axis %= rank
    turned: Blob = ops.flip(blob, 0) if is_back else blob
    order = [*range(1, rank)]
    order.insert(axis, 0)
    return ops.transpose(turned, order) if axis else turned


@lowers("ConcatFromSequence")  # of what `with_stacks` has made an array
def _stacked(node: Node) -> Value:
    x = node.x
    return node.usual(_from_front(x.blob(), node.attribute("axis"), 0))


def _usual(lowering: Lowering, blob: Blob) -> Value:
    return Value(lowering.graph, TensorSpec(blob.shape, blob.dtype), blobs={usual(len(blob.shape)): blob})


def inside(value: Value | None) -> Value | None:
    """The value as it is in a part: what is made of it there is not there outside."""
    if value is None:
        return None
    copied = Value(value.graph, value.spec, known=value.known, lengths=value.lengths, blobs={**value.blobs})
    copied.trained = value.trained
    return copied
