"""A network, or a layer, at several places: copies of it, and equal first values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from actorflow import ops
from actorflow.errors import GraphError, ShapeError
from actorflow.graph.composite import Composite
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Initializer, as_blobs
from actorflow.nn.parallel.exchange import as_places
from actorflow.place import Place
from actorflow.spec import Length

#: Makes the loss, 0-d, of a network's top and the targets, as ``ops.softmax_loss`` does.
Loss = Callable[..., Blob]


def copies_of(kind: str, net: Composite, count: int) -> list[Composite]:
    """A network and copies of it, that will have variables of their own.

    Raises:
        GraphError: if it has been built: copies are made of what is only described.
    """
    check_not_built(kind, net)
    return [net, *(copy.deepcopy(net) for _ in range(count - 1))]


def check_not_built(kind: str, net: Composite) -> None:
    """Raises GraphError if a composite, or one of those in it, has been built."""
    if net.bottom or net.variables:
        raise GraphError(f"{kind}: composite {net.name!r} has been built: give it first, and build it for tests later")
    for child in net.children():
        check_not_built(kind, child)


def start_alike(scope: Graph) -> None:
    """Let the variables of a scope begin as if it were not there, so that they are alike in scopes beside it.

    Initializers draw by the variable's name; ``net/replica1/conv/weight`` draws as ``net/conv/weight``.
    """
    own = scope.name.rpartition("/")[2]
    for variable in scope.variables:
        init = variable._init
        if callable(init):
            rest = variable.name[len(scope.name) + 1 :]
            variable._init = _renamed(init, f"{own}/{rest}", rest)


def mark_replicas(first: Graph, scope: Graph) -> None:
    """Note which variables of a scope are copies of those of the first one, by their names."""
    twins = {variable.name.removeprefix(first.name): variable for variable in first.variables}
    for variable in scope.variables:
        variable.replica_of = twins.get(variable.name.removeprefix(scope.name))


def _renamed(init: Initializer, old: str, new: str) -> Initializer:
    return lambda spec, name: init(spec, name.removesuffix(old) + new)


def loss_of(kind: str, top: Blob | Sequence[Blob], loss: Loss | None, targets: Sequence[Blob]) -> Blob:
    """The loss of a network's top: ``loss(top, *targets)``, or the top itself.

    Raises:
        GraphError: if the top is several blobs and there is no loss; ShapeError if the loss is not 0-d.
    """
    found = as_blobs(top if loss is None else loss(top, *targets)) or ()
    if len(found) != 1:
        raise GraphError(f"{kind}: give loss=, a function of the top and the targets, or a net whose top is the loss")
    (blob,) = found
    if blob.shape:
        raise ShapeError(f"{kind}: the loss must be 0-d, blob {blob.name!r} is {blob.spec}")
    return blob


def share_of(loss: Blob, part: Any, whole: Any) -> Blob:
    """What a loss that is the mean of ``part`` rows adds to the mean of ``whole`` rows: nothing if it has none."""
    if not isinstance(part, Length):
        return ops.scale(loss, part / whole, name="share")
    root = loss.graph.root
    with root.at(loss.place), root.unique_subgraph("share"):
        counts: Sequence[Any] = (part, whole)
        rows, all_rows = (ops.sum(ops.fill(root, 1.0, (count,), "float64")) for count in counts)
        weight = ops.cast(rows / all_rows, loss.dtype)
        return ops.where(rows > 0.0, loss * weight, weight)  # the mean of no rows is nan


class Vectorize(Composite[Any]):
    """The same layer at several places, each on an input of its own.

    Bottom: for each bottom blob of the layer as many as there are places, in their order: ``x`` of all places, then
    ``labels`` of all places, for instance. Top: likewise.

    Args:
        layer: A composite: it is built at each place on the same variables, which live at the first one. Or a function
            that makes one: each place has variables of its own, which begin alike.
        places: Where it is built.
        name: Scope of its nodes; that of each place is ``replica0``, ``replica1``, ... in it.
    Attributes:
        layers: The composite at each place.
    Raises:
        GraphError: if there are no places, or ``layer`` makes no composite; PlaceError if a text is not a place.
    Source: Purine2 composite ``Vectorize``.

    Example:
        >>> graph = af.Graph("g")
        >>> inputs = [graph.blob(f"x{i}", ["batch", 3], place=f"sim:{i}") for i in range(2)]
        >>> layer = af.nn.parallel.Vectorize(af.nn.InnerProduct(2), ["sim:0", "sim:1"])
        >>> [str(blob.place) for blob in layer(*inputs)], len(graph.variables)  # one weight, one bias
        (['sim:0', 'sim:1'], 2)
    """

    def __init__(
        self, layer: Composite | Callable[[], Composite], places: Iterable[Place | str], name: str | None = None
    ) -> None:
        super().__init__(name)
        self.places = as_places("Vectorize", places)
        self.layers = [layer if isinstance(layer, Composite) else layer() for _ in self.places]
        for made in self.layers:
            if not isinstance(made, Composite):
                raise GraphError(f"Vectorize: layer must be a composite or make one, got {type(made).__name__}")

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """A multiple of the number of places, of bottom and of top blobs."""
        root, count = bottom[0].graph.root, len(self.places)
        if len(bottom) % count:
            raise GraphError(f"Vectorize takes bottom blobs for each of {count} places, got {len(bottom)}")
        tops: list[tuple[Blob, ...]] = []
        for i, (layer, place) in enumerate(zip(self.layers, self.places, strict=True)):
            with root.unique_subgraph(f"replica{i}") as scope, root.at(place):
                layer(*bottom[i::count], training=training)
            start_alike(scope)
            tops.append(layer.top)
        return [top for of_all in zip(*tops, strict=True) for top in of_all]
