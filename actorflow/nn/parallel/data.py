"""Data parallel training: a network at several places, each on its share of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from actorflow.errors import GraphError, ShapeError, whole
from actorflow.graph.composite import Composite
from actorflow.graph.gradient import gradient, trainable
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Variable
from actorflow.nn.layers import Layer
from actorflow.nn.optim import Optimizer
from actorflow.nn.parallel.buckets import BUCKET_BYTES, BucketedAllReduce
from actorflow.nn.parallel.exchange import as_places, moved, pieces_of, summed
from actorflow.nn.parallel.replicas import Loss, copies_of, loss_of, mark_replicas, share_of, start_alike
from actorflow.place import Place


class ParameterServer:
    """Variables spread over places, so that each holds about as many bytes.

    A reader of a variable elsewhere gets its value by the edge, once per rank and frame; gradients are summed up
    where the variable lives, those of one rank first. An optimizer's update of a variable runs there as soon as that
    variable's gradient is complete, and the next frame's readers get the new value as soon as that update is done.

    Args:
        places: Where the variables live; the same variables go to the same places on every rank.
    Attributes:
        places: Where.
        size_bytes: What each place holds.
    Raises:
        GraphError: if there are no places; PlaceError if a text is not a place.
    Source: Li et al., Scaling distributed machine learning with the parameter server, 2014; Purine2's server at rank 0.

    Example:
        >>> graph = af.Graph("g")
        >>> net = af.nn.MLP(10, hidden=[32], name="net")
        >>> _ = net(graph.blob("x", ["batch", 64]))
        >>> server = af.nn.parallel.ParameterServer(["sim:0", "sim:1"])
        >>> server.hold(net.variables)
        >>> for variable in net.variables:
        ...     print(variable)
        <Variable 'net/hidden0/weight' float32[32, 64] on sim:0>
        <Variable 'net/hidden0/bias' float32[32] on sim:1>
        <Variable 'net/scores/weight' float32[10, 32] on sim:1>
        <Variable 'net/scores/bias' float32[10] on sim:1>
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
        """The sum of the gradients that all places have of each variable, where the variable lives.

        Example:
            >>> graph = af.Graph("g")
            >>> w = graph.variable("w", [2])
            >>> server = af.nn.parallel.ParameterServer(["sim:0"])
            >>> server.hold([w])
            >>> found = [graph.blob(f"found{i}", [2], place=f"sim:{i}") for i in range(2)]
            >>> server.gather({w: found})
            {<Variable 'w' float32[2] on sim:0>: <Blob 'w_1/sum/out' float32[2] on sim:0>}
        """
        found = {}
        for variable, grads in gradients.items():
            with variable.graph.root.unique_subgraph(variable.name.replace("/", ".")):
                found[variable] = summed(grads, variable.place)
        return found


_SCHEMES = ("allreduce", "server", "aggregate")


class DataParallel(Layer):
    """A network at several places, each on its share of the batch; trained as one network on the whole batch.

    Bottom: batches, of which the first is the network's input and the others are the targets of ``loss``. Each is cut
    along its first axis into a share for each place; with ``split=False`` give them in shares instead: the inputs of
    all places, then the targets of all places, ... Top: the loss, 0-d, at the first place: the mean of all places'
    losses, weighted by their shares, so that a loss that is the mean over samples is the mean over the whole batch.

    Three schemes share the weights. All give the same weights as one place with the whole batch, but for rounding:

    - ``"allreduce"``: each place has variables of its own, which begin alike and stay alike. Gradients are summed by
      `BucketedAllReduce`, one collective for several variables, those of front layers first.
    - ``"server"``: variables are spread over ``servers`` (`ParameterServer`), read from there and updated there.
    - ``"aggregate"``: likewise, all of them at the first of ``servers``.

    An update runs as soon as its variable's gradient is reduced, and the next frame's first layers as soon as they are
    updated: frames in flight hide what is sent behind what is computed.

    Batch normalization takes the statistics of each place's share, not of the whole batch. With ``"allreduce"`` each
    place has running statistics of its own, else the first place alone moves them. Dropout draws for each place.

    Args:
        net: Any composite. With ``"allreduce"`` it must not have been built yet: the places after the first have copies
            of it.
        places: Where it is built; a place may be named more than once.
        scheme: "allreduce", "server" or "aggregate".
        loss: Makes the loss of the network's top and of the targets, ``loss(top, *targets)``; None if the top is the
            loss. The network gets all of the bottom then.
        servers: Where the variables live in the other schemes; the default is ``places``.
        split: Whether the bottom is whole batches.
        bucket_bytes: The most gradients that one collective of scheme "allreduce" sums, unless it is of one variable.
        name: Scope of its nodes; that of each place is ``replica0``, ``replica1``, ... in it.
    Attributes:
        replicas: The network at each place; ``net`` itself is the first.
        outputs: The network's top at each place, of the latest build.
        losses: The loss at each place, of the latest build.
    Raises:
        GraphError: if the scheme is unknown, there are no places, or ``net`` has been built; PlaceError if a place is
            none.
    Source: Purine2 composite ``DataParallel``.

    Example:
        >>> graph = af.Graph("g")
        >>> images, labels = graph.blob("images", [8, 16]), graph.blob("labels", [8], "int64")
        >>> net = af.nn.MLP(10, hidden=[32])
        >>> model = af.nn.parallel.DataParallel(net, ["sim:0", "sim:1"], loss=af.ops.softmax_loss)
        >>> loss = model(images, labels)
        >>> train = model.minimize(af.nn.SGD(0.1, momentum=0.9))
        >>> batch = {images: np.zeros([8, 16], "float32"), labels: np.zeros(8, "int64")}
        >>> result = graph.run_sync(batch, fetch=[loss, train])
        >>> round(af.to_numpy(result[loss]).item(), 4)  # log(10)
        2.3026
    """

    def __init__(
        self,
        net: Composite,
        places: Iterable[Place | str],
        *,
        scheme: str = "allreduce",
        loss: Loss | None = None,
        servers: Iterable[Place | str] | None = None,
        split: bool = True,
        bucket_bytes: int = BUCKET_BYTES,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if scheme not in _SCHEMES:
            raise GraphError(f"DataParallel: scheme must be one of {', '.join(_SCHEMES)}, got {scheme!r}")
        self.places = as_places("DataParallel", places)
        count = len(self.places)
        self._server: ParameterServer | None = None
        if scheme == "allreduce":
            if servers is not None:
                raise GraphError("DataParallel: scheme 'allreduce' has no servers")
            self.replicas = copies_of("DataParallel", net, count)
        else:
            self.replicas = [net] * count
            held_at = as_places("DataParallel", self.places if servers is None else servers)
            self._server = ParameterServer(held_at if scheme == "server" else held_at[:1])
        self.split = split
        self.bucket_bytes = whole("DataParallel: bucket_bytes", bucket_bytes, 1)
        self.outputs: list[tuple[Blob, ...]] = []
        self.losses: list[Blob] = []
        self._loss = loss
        self._shares: list[Blob] = []  # losses, weighted, of the latest build in training
        self._scopes: list[Graph] = []  # of the replicas, with their variables

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """Batches, or their shares; one top blob."""
        root, count = bottom[0].graph.root, len(self.places)
        shares = self._cut(bottom)
        sizes = [blobs[0].shape[0] for blobs in shares]
        whole = bottom[0].shape[0] if self.split else sum(sizes)
        self.outputs, self.losses, terms, scopes = [], [], [], []
        for i, (net, place, blobs, size) in enumerate(zip(self.replicas, self.places, shares, sizes, strict=True)):
            with root.unique_subgraph(f"replica{i}") as scope, root.at(place):
                loss = self._built(net, blobs, training)
                terms.append(share_of(loss, size, whole) if count > 1 else loss)
            start_alike(scope)
            self.losses.append(loss)
            scopes.append(scope)
        if not self._scopes:
            self._scopes = scopes
            for scope in scopes[1:]:
                mark_replicas(scopes[0], scope)
            if self._server is not None:
                own = set(scopes[0].variables)
                self._server.hold(variable for variable in trainable(terms[0]) if variable in own)
        if training:
            self._shares = terms
        return summed(terms, self.places[0])

    def minimize(self, optimizer: Optimizer, wrt: Sequence[Variable] | None = None) -> Graph:
        """Build the gradients of the latest build in training, their sums over places, and the updates.

        Args:
            optimizer: What updates the variables.
            wrt: The variables to train, of ``net``; the default is all that the loss can be differentiated by.
        Returns:
            The sub-graph with all of it; give it in ``fetch`` to train in that frame.
        Raises:
            GraphError: if it has not been built for training, or as for `Optimizer.minimize`.
        """
        if not self._shares:
            raise GraphError(f"DataParallel {self.name!r}: build it for training first, then call minimize()")
        variables = list(trainable(self._shares[0]) if wrt is None else wrt)
        root = self._shares[0].graph.root
        with root._store.all_or_nothing(), root.unique_subgraph("train") as scope:
            if self._server is None:
                optimizer.descend(*self._all_reduced(variables))
            else:
                grads = [gradient(share, variables) for share in self._shares]
                of_each = dict(zip(variables, zip(*grads, strict=True), strict=True))
                optimizer.descend(self._server.gather(of_each))
        return scope

    def _cut(self, bottom: Sequence[Blob]) -> list[tuple[Blob, ...]]:
        count = len(self.places)
        for blob in bottom:
            if not blob.shape:
                raise ShapeError(f"DataParallel: a bottom blob has shape (batch, ...), {blob.name!r} is {blob.spec}")
        if not self.split:
            if len(bottom) % count:
                raise GraphError(f"DataParallel takes bottom blobs for each of {count} places, got {len(bottom)}")
            return [tuple(bottom[i::count]) for i in range(count)]
        pieces = [pieces_of("DataParallel", blob, count) for blob in bottom]
        return [
            tuple(moved(piece, place) for piece in of_place)
            for of_place, place in zip(zip(*pieces, strict=True), self.places, strict=True)
        ]

    def _built(self, net: Composite, blobs: Sequence[Blob], training: bool) -> Blob:
        inputs, targets = (blobs[:1], blobs[1:]) if self._loss is not None else (blobs, ())
        top = net(*inputs, training=training)
        self.outputs.append(net.top)
        return loss_of("DataParallel", top, self._loss, targets)

    def _all_reduced(self, variables: Sequence[Variable]) -> list[dict[Variable, Blob]]:
        """The variables of each replica, with the gradients of the whole batch."""
        twins = [[self._twin(variable, scope) for variable in variables] for scope in self._scopes]
        grads = [gradient(share, own) for share, own in zip(self._shares, twins, strict=True)]
        names = [variable.name for variable in variables]
        reduce = BucketedAllReduce(len(twins), bucket_bytes=self.bucket_bytes, names=names, name="gradients")
        reduce(*[term for terms in zip(*grads, strict=True) for term in terms])
        return [dict(zip(own, reduce.top[i :: len(twins)], strict=True)) for i, own in enumerate(twins)]

    def _twin(self, variable: Variable, scope: Graph) -> Variable:
        """The variable of a replica that corresponds to one of the first."""
        first = self._scopes[0]
        if scope is first:
            return variable
        prefix = first.name + "/"
        rest = variable.name.removeprefix(prefix)
        found = scope[rest] if variable.name.startswith(prefix) and rest in scope else None
        if not isinstance(found, Variable):
            raise GraphError(
                f"variable {variable.name!r} has no copy in {scope.name!r}: with scheme 'allreduce' variables belong "
                f"to composites that are attributes of the network {self.replicas[0].name!r}, or of those"
            )
        return found
