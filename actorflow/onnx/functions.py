"""Functions of files: a call becomes the nodes of what it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import ModelProto, NodeProto, inliner

from actorflow.errors import GraphError

#: Bytes that calls may become, about, of any file, and for each byte of its functions besides: two calls in a function
#: that is called twice are four, and so on.
_FREE, _TIMES = 1 << 25, 8
#: Bytes of a node besides those that are written.
_NODE = 500

_Key = tuple[str, str, str]


def inlined(model: ModelProto) -> ModelProto:
    """A model without functions of its own.

    Raises:
        GraphError: if that is far larger; it names the function.
    """
    if not model.functions:
        return model
    own = {
        (each.domain, each.name, each.overload): sum([_NODE + node.ByteSize() for node in each.node])
        for each in model.functions
    }
    most = _FREE + _TIMES * sum(own.values())
    bodies = {(each.domain, each.name, each.overload): each.node for each in model.functions}
    whole: dict[_Key, int] = {}

    def size(key: _Key) -> int:
        if key not in whole:
            whole[key] = most  # until it is known: one that calls itself has no end
            whole[key] = own[key] + sum(map(size, _called(bodies[key], own)))
        return whole[key]

    total = 0
    for key in _called(model.graph.node, own):
        total += size(key)
        if total > most:
            raise GraphError(f"the calls of function {key[1]!r} and others become more than {most} bytes of nodes")
    return inliner.inline_local_functions(model)


def _called(nodes: Iterable[NodeProto], known: Iterable[_Key]) -> Iterator[_Key]:
    """The functions that nodes call, and graphs inside of them, once for each call."""
    for node in nodes:
        key = (node.domain, node.op_type, node.overload)
        if key in known:
            yield key
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _called(graph.node, known)
