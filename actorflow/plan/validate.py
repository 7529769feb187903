"""Checks of a graph before it is planned, and the order in which its ops are planned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from actorflow.devices import check_place
from actorflow.errors import CycleError, DeviceUnavailableError, GraphError, PlaceError
from actorflow.graph.body import bodies_of, with_bodies
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Node, Op, State, Variable
from actorflow.ops.collective import AllReduce
from actorflow.ops.function import Function
from actorflow.place import Place
from actorflow.transport.base import Transport


def needed_ops(targets: Iterable[Blob | Op | Graph], fed: Collection[Blob] = ()) -> tuple[Op, ...]:
    """The ops that ``targets`` need, in order of creation: a blob needs its producers, a sub-graph all its ops.

    A variable needs nothing, as its value is there, and nor does a feed.
    """
    todo: list[Op] = []
    for target in targets:
        if isinstance(target, Graph):
            todo.extend(op for op in target.ops if op.graph.body is target.body)
        elif isinstance(target, Op):
            todo.append(target)
        elif not isinstance(target, Variable) and target not in fed:
            todo.extend(target.producers)
    found = set(todo)
    while todo:
        for blob in todo.pop().inputs:
            if not isinstance(blob, Variable) and blob not in fed:
                for producer in blob.producers:
                    if producer not in found:
                        found.add(producer)
                        todo.append(producer)
    return tuple(sorted(found, key=lambda op: op.id))


def states_of(targets: Iterable[Blob | Op | Graph], given: Mapping[Blob, Blob] | None = None) -> dict[Blob, Blob]:
    """Sources that sessions keep, with the blobs that give their next values: those given, and states in need.

    A state is in need if ``targets`` depend on it, or the next value of another one does.
    """
    pairs = dict(given or {})
    targets = [*targets]
    while True:
        wanted = [*targets, *pairs.values()]
        read = dict.fromkeys([*wanted, *(blob for op in needed_ops(wanted) for blob in op.inputs)])
        states = [blob for blob in read if isinstance(blob, State) and blob not in pairs]
        more: dict[Blob, Blob] = {state: state.following for state in states if state.following is not None}
        if not more:
            return pairs
        pairs |= more


def chosen(
    graph: Graph, targets: Sequence[Blob | Op | Graph] | None, fed: Collection[Blob] = ()
) -> tuple[tuple[Op, ...], tuple[Blob, ...]]:
    """The ops that targets need, and the blobs that are fetched; for None all ops, and the sinks.

    Args:
        graph: A root graph.
        targets: Blobs, ops and sub-graphs.
        fed: Blobs that are fed though ops write them; ops that nothing else needs are left out.
    """
    if targets is None:
        ops = tuple([op for op in graph.ops if op.graph.body is None])
        if fed:
            ops = needed_ops(
                [
                    op
                    for op in ops
                    if not op.outputs or any(isinstance(y, Variable) or not y.consumers for y in op.outputs)
                ],
                fed,
            )
        return ops, graph.sinks
    fetched = dict.fromkeys(target for target in targets if isinstance(target, Blob))
    return with_whole_groups(graph, needed_ops(targets, fed)), tuple(fetched)


def with_whole_groups(graph: Graph, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """All parts of the collectives that ``ops`` have a part of, and their inputs: the ranks compute them together."""
    groups = {op.operation.group for op in ops if isinstance(op.operation, AllReduce)}
    if not groups:
        return ops
    parts = [op for op in graph.ops if isinstance(op.operation, AllReduce) and op.operation.group in groups]
    more = needed_ops([*ops, *parts])
    return more if len(more) == len(ops) else with_whole_groups(graph, more)


def in_order(graph: Graph, ops: Collection[Op]) -> list[Op]:
    """Check each op's connections and sort topologically; ops that could run at once stay in order of creation."""
    waits = [1] * graph.size  # by id; an op that is not chosen waits for ever
    for op in ops:
        waits[op.id] = 0
    for op in ops:
        _check_connected(op)
        for blob in op.outputs:
            if not isinstance(blob, Variable):  # an op that reads one in this frame reads the value from before
                for consumer in blob.consumers:
                    waits[consumer.id] += 1
    ready = [op for op in ops if not waits[op.id]]
    ordered = []
    for op in ready:  # grows while it is read
        ordered.append(op)
        for blob in op.outputs:
            if isinstance(blob, Variable):
                continue
            for consumer in blob.consumers:
                left = waits[consumer.id] - 1
                waits[consumer.id] = left
                if not left:
                    ready.append(consumer)
    if len(ordered) < len(ops):
        done = set(ordered)
        raise CycleError(_find_cycle([op for op in ops if op not in done]), {op.name: op.site for op in ops})
    return ordered


def check_places(ops: Collection[Op], fetched: Iterable[Blob], world: Transport) -> None:
    """Check that all ranks are there, and the devices of this one, and that each body is on the rank of its op.

    Raises:
        PlaceError, DeviceUnavailableError: naming the node and the line that created it.
    """
    seen: set[Place] = set()
    last: Place | None = None
    for nodes in chain(((op, *op.inputs, *op.outputs) for op in ops), [fetched]):
        for node in nodes:
            if node.place is not last:  # hashes of many equal places would take most of the time
                last = node.place
                if last not in seen:
                    seen.add(last)
                    _check_place(node, world)
    if world.size > 1:
        for op in ops:
            for each in with_bodies([*chain.from_iterable(body.ops for body in bodies_of(op))]):
                if each.place.rank != op.place.rank:
                    there = f"`with graph.at('{each.place.rank}/cpu')`"
                    raise PlaceError(
                        f"op {each.name!r} is on rank {each.place.rank}, but op {op.name!r}, which computes it as a "
                        f"branch or a loop says, is on rank {op.place.rank}, and either has one rank: make all of it "
                        f"in {there}, where it may read what other ranks have, and they what it gives; created at "
                        f"{each.site}"
                    )


def _check_place(node: Node, world: Transport) -> None:
    place = node.place
    try:
        if place.rank >= world.size:
            ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
            raise PlaceError(
                f"place {str(place)!r} is on rank {place.rank}, but this program has {ranks}: "
                f"start it with mpiexec -n {place.rank + 1}"
            )
        if place.rank == world.rank:
            check_place(place)
    except (PlaceError, DeviceUnavailableError) as error:
        kind = "op" if isinstance(node, Op) else "blob"
        raise type(error)(f"{kind} {node.name!r}: {error}; created at {node.site}") from None


def _check_connected(op: Op) -> None:
    if not op.is_connected:
        try:
            op.operation.check_arity(0)
        except GraphError:
            raise GraphError(
                f"op {op.name!r} ({op.operation}) is missing its inputs "
                f"({', '.join(op.operation.arguments)}): connect them, [blobs] >> op; created at {op.site}"
            ) from None
    if not op.outputs and op.expects_outputs:
        raise GraphError(
            f"op {op.name!r} ({op.operation}) is missing its output blobs: connect them, op >> [blobs]; "
            f"created at {op.site}"
        )
    if not op.inputs and not op.outputs and not isinstance(op.operation, Function):
        raise GraphError(f"op {op.name!r} ({op.operation}) has neither inputs nor outputs; created at {op.site}")
    store = op.graph._store
    if not store.has_lost_nodes:
        return
    for blob in (*op.inputs, *op.outputs):
        if store.has_lost(blob):
            raise GraphError(f"op {op.name!r} ({op.operation}) is connected to blob {blob.name!r}, which was deleted")


def _find_cycle(stuck: Sequence[Op]) -> list[str]:
    """Names along a cycle among ops of which each waits for another one of them."""
    waiting = set(stuck)
    path: list[Op] = []
    position: dict[Op, int] = {}
    op = stuck[0]
    through: list[Blob] = []
    while op not in position:
        position[op] = len(path)
        path.append(op)
        op, blob = next(
            (producer, blob)
            for blob in op.inputs
            if not isinstance(blob, Variable)
            for producer in blob.producers
            if producer in waiting
        )
        through.append(blob)
    start = position[op]
    names = [op.name]
    for producer, blob in zip(reversed(path[start:]), reversed(through[start:]), strict=True):
        # `through[i]` lies between `path[i]`, its reader, and the next one on the path, its writer.
        names += [blob.name, producer.name]
    return names
