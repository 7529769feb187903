"""Variables spread over places, which gather their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from actorflow.graph.nodes import Blob, Variable
from actorflow.nn.parallel.moving import as_places
from actorflow.nn.parallel.reducing import summed
from actorflow.place import Place


class ParameterServer:
    """Variables spread over places, so that each holds about as many bytes.

    Whoever reads a variable elsewhere gets its value by the edge, once per rank and frame; gradients are summed up
    where the variable lives, those of one rank first. An optimizer's update of a variable runs there as soon as that
    variable's gradient is complete, and the next frame's readers get the new value as soon as that update is done.

    ::

        server = nn.parallel.ParameterServer(["0/cpu", "1/cpu"])
        server.hold(net.variables)
        train = optimizer.descend(server.gather({weight: grads_of_all_places}))

    Args:
        places: Where the variables live; the same variables go to the same places on every rank.
    Attributes:
        places: Where.
        size_bytes: What each place holds.
    Raises:
        GraphError: if there are no places; PlaceError if one is none.
    Source: Li et al., Scaling distributed machine learning with the parameter server, 2014; Purine2's server at rank 0.
    """

    def __init__(self, places: Iterable[Place | str]) -> None:
        self.places = tuple(dict.fromkeys(as_places("ParameterServer", places)))
        self.size_bytes = dict.fromkeys(self.places, 0)

    def hold(self, variables: Iterable[Variable]) -> None:
        """Take variables, before the graph runs: each goes where the least is, the largest ones first."""
        for variable in sorted(variables, key=lambda variable: (-variable.spec.size_bytes, variable.id)):
            place = min(self.places, key=self.size_bytes.__getitem__)
            self.size_bytes[place] += variable.spec.size_bytes
            variable.place = place

    def gather(self, gradients: Mapping[Variable, Sequence[Blob]]) -> dict[Variable, Blob]:
        """The sum of the gradients that all places have of each variable, where the variable lives."""
        found = {}
        for variable, grads in gradients.items():
            with variable.graph.root.unique_subgraph(variable.name.replace("/", ".")):
                found[variable] = summed(grads, variable.place)
        return found
