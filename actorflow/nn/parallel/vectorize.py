"""The same layer at several places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob
from actorflow.nn.parallel.moving import as_places
from actorflow.nn.parallel.replicas import start_alike
from actorflow.place import Place


class Vectorize(Composite):
    """The same layer at several places, each on an input of its own.

    Bottom: for each bottom blob of the layer as many as there are places, in their order: ``x`` of all places, then
    ``labels`` of all places, say. Top: likewise.

    Args:
        layer: A composite: it is built at each place on the same variables, which live at the first one. Or a function
            that makes one: each place has variables of its own, which begin alike.
        places: Where it is built.
        name: Scope of its nodes; that of each place is ``replica0``, ``replica1``, ... in it.
    Attributes:
        layers: The composite at each place.
    Raises:
        GraphError: if there are no places, or ``layer`` makes no composite; PlaceError if a place is none.
    Source: Purine2 composite ``Vectorize``.
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
