"""Placement: the device where each array lives, and copies to others.

An array lives on one device and stays there: operations are computed where their inputs live. `at` names another device
for what is made and recorded inside, and copies are recorded where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from actorflow.array.record.primitives import PART, Primitive
from actorflow.array.record.record import HOST, Input, Record, record
from actorflow.core import desk
from actorflow.devices import check_place
from actorflow.errors import PlaceError
from actorflow.place import Place

if TYPE_CHECKING:
    from actorflow.array.array import Array

_default: ContextVar[Place | None] = ContextVar("actorflow-array-place", default=None)
#: One object for each place, so that places are compared by identity.
_places: dict[Place, Place] = {HOST: HOST}


#: A copy on another device; its parameters are where it is from, and where it is to be.
TRANSFER = Primitive("to_device", lambda x, *_: x)


def place_of(device: Place | str) -> Place:
    """The place that a device is named by; an error if it is not a place, on another rank, or not there."""
    place = Place.parse(device)
    known = _places.get(place)
    if known is None:
        if place.rank:
            raise PlaceError(f"arrays live on this rank alone, got {str(place)!r}")
        check_place(place)
        known = _places.setdefault(place, place)
    return known


def default_place() -> Place:
    """The device where arrays are made: the CPU, unless `at` says otherwise."""
    return _default.get() or HOST


@contextmanager
def at(device: Place | str) -> Iterator[None]:
    """Have what is made and recorded inside live, and be computed, on a device.

    Arrays of other devices that are used inside are copied there, once for each operation that uses them; `to_device`
    copies one for good. Assignment and operators like ``+=`` leave an array where it is.

    Args:
        device: ``"cuda:0"``, ``"sim:0"``, ``"cpu"``, ...
    Raises:
        PlaceError, DeviceUnavailableError: if there is no such device.
    Example:
        >>> with xp.at("sim:0"):  # a simulated accelerator
        ...     x = xp.asarray([1.0, 2.0])
        >>> print(x.device, (x * 2).device, (x * 2).to_numpy())
        sim:0 sim:0 [2. 4.]
    """
    place = place_of(device)
    if place is not HOST:
        desk.placing = _placed
    token = _default.set(place)
    try:
        yield
    finally:
        _default.reset(token)


def home_of(node: Record) -> Place:
    """The device where the result of an operation on a record lives."""
    return _default.get() or node.place


def transfer(array: Array, place: Place) -> Array:
    """The array on a place; itself if it lives there, but in a dry run, which may stand for other arrays."""
    node = array._node
    return array if node.place is place and not node.evaluator.dry_run else _moved(node, place)


def accelerator_of(node: Record) -> Place | None:
    """The device that computes a record; None for the CPU. Copies to the CPU are the work of where they are from."""
    if node.place is not HOST:
        return node.place
    return node.params[0] if node.op is TRANSFER and node.params[0] is not HOST else None


def _moved(node: Record, place: Place) -> Array:
    if place is not HOST:
        desk.placing = _placed
    return record(
        TRANSFER, (node,), node.shape, node.dtype, (node.place, place), node.evaluator, work=node.size, place=place
    )


def _placed(op: Primitive, inputs: tuple[Input, ...], moves: bool) -> tuple[tuple[Input, ...], Place]:
    """The device where an operation is computed, and its inputs there. Random numbers are drawn on the CPU."""
    wanted = _default.get() if op.pure else HOST
    place: Place | None = None
    for each in inputs:
        if type(each) is Record:
            if place is None:
                place = each.place
            elif each.place is not place:
                break
    else:
        if place is None:
            return inputs, HOST  # made on the CPU, and copied by its maker
        if wanted is None or wanted is place or op is PART:
            return inputs, place
    if wanted is None:
        wanted = _common_place(op, inputs, moves)
    moved = [_moved(x, wanted)._node if type(x) is Record and x.place is not wanted else x for x in inputs]
    return tuple(moved), wanted


def _common_place(op: Primitive, inputs: tuple[Input, ...], moves: bool) -> Place:
    """The one device where arrays live, but for numbers on the CPU."""
    nodes = [each for each in inputs if type(each) is Record]
    numbers = [node.place is HOST and (moves or not node.shape) for node in nodes]
    places = list(dict.fromkeys([node.place for node, follows in zip(nodes, numbers, strict=True) if not follows]))
    if len(places) > 1:
        found = ", ".join(f"{node.dtype}{list(node.shape)} on {node.place}" for node in nodes)
        raise PlaceError(
            f"{op.name}: its arrays live on different devices ({found}): copy one, "
            f"x.to_device({str(places[0])!r}), or name a device for all, with at({str(places[0])!r}): ..."
        )
    return places[0]
