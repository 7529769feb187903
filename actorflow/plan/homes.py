"""Places of the values that enter and leave bodies: a device, if the op that reads or makes them is there."""

from __future__ import annotations

from typing import Any

from actorflow.devices import device_kind
from actorflow.graph.flow import Loop, Switch
from actorflow.graph.nodes import Blob, Op
from actorflow.ops.function import Function
from actorflow.place import Place
from actorflow.plan.emitting import Emission


def taken_at(op: Op, position: int) -> Place:
    """Where an op with bodies takes an input: where all that reads it in there is, or else where it lives."""
    operation: Any = op.operation
    body, blob = operation.bodies[0], op.inputs[position]
    if isinstance(operation, Loop) and position < operation.carries:
        return given_at(op, position)
    if isinstance(operation, Emission):
        inside = [(body, blob)] if position >= len(operation.op.inputs) else []
    else:
        first, count = (1, operation.operands) if isinstance(operation, Switch) else (operation.given, 0)
        if first <= position < first + count:
            inside = [(each, each.parameters[position - first]) for each in operation.bodies]
        else:
            inside = [
                (each, stand_in)
                for each, reads in zip(operation.bodies, operation.reads, strict=True)
                for stand_in, at in zip(each.captured.values(), reads, strict=True)
                if at == position
            ]
    places = {place for body, blob in inside for place in _read_at(body, blob)}
    found = places.pop() if len(places) == 1 else blob.place if inside else Place(op.place.rank)
    return _here(op, found)


def given_at(op: Op, position: int) -> Place:
    """Where an op with bodies gives an output: where the bodies make it."""
    operation: Any = op.operation
    if not (isinstance(operation, Switch) or (isinstance(operation, Loop) and position < operation.carries)):
        return Place(op.place.rank)  # entries of arrays, or joined items
    given = [
        (body, body.outputs[position]) for body in operation.bodies[: None if isinstance(operation, Switch) else 1]
    ]
    places = {_made_at(body, blob) for body, blob in given if blob.producers}
    return _here(op, places.pop() if len(places) == 1 else _made_at(*given[0]))


def _here(op: Op, place: Place) -> Place:
    return place if place.rank == op.place.rank else Place(op.place.rank)


def _made_at(body: Any, blob: Blob) -> Place:
    if len(blob.producers) != 1:
        places = set() if blob.producers else _read_at(body, blob)
        return places.pop() if len(places) == 1 else blob.place
    (op,) = blob.producers
    return given_at(op, op.outputs.index(blob)) if isinstance(op.operation, Loop | Switch) else _runs_at(op)


def _read_at(body: Any, blob: Blob) -> set[Place]:
    return {
        taken_at(op, position) if isinstance(op.operation, Emission | Loop | Switch) else _runs_at(op)
        for op, position in body.readers(blob)
    }


def _runs_at(op: Op) -> Place:
    is_moved = isinstance(op.operation, Function) and (
        op.operation.is_async or not device_kind(op.place.kind).runs_functions
    )
    return Place(op.place.rank) if is_moved else op.place
