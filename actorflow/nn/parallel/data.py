"""Data parallel training: a network at several places, each on its share of the batch.

The copies begin with equal values; their gradients are added up over all places some at a time, as what each message
costs is paid a few times then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from actorflow import ops
from actorflow.errors import GraphError, ShapeError, whole
from actorflow.graph.composite import Composite
from actorflow.graph.gradient import gradient, trainable
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Initializer, Variable, as_blobs
from actorflow.nn.layers import Layer
from actorflow.nn.optim import Optimizer
from actorflow.nn.parallel.exchange import AllReduce, as_places, check_alike, moved, pieces_of, summed
from actorflow.ops.operation import same_numbers
from actorflow.place import Place
from actorflow.spec import Length

#: Makes the loss, 0-d, of a network's top and the targets, as ``ops.softmax_loss`` does.
Loss = Callable[..., Blob]


def copies_of(kind: str, net: Composite, count: int) -> list[Composite]:
    """A network and copies of it, with variables of their own; raises GraphError if it has been built."""
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
    """The loss of a top, ``loss(top, *targets)`` or the top itself; raises GraphError or ShapeError if it is none."""
    found = as_blobs(top if loss is None else loss(top, *targets)) or ()
    if len(found) != 1:
        raise GraphError(f"{kind}: give loss=, a function of the top and the targets, or a net whose top is the loss")
    (blob,) = found
    if blob.shape:
        raise ShapeError(f"{kind}: the loss must be 0-d, blob {blob.name!r} is {blob.spec}")
    return blob


def share_of(loss: Blob, part: Any, whole: Any) -> Blob:
    """Share of a loss, the mean of ``part`` rows, in the mean of ``whole`` rows: nothing if it has none."""
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


#: Bytes of the largest bucket, and of the smallest. What one collective costs besides copying and adding is small
#: beside what it takes for either; larger ones would leave less to be computed meanwhile.
BUCKET_BYTES, _FIRST_BYTES = 25 << 20, 1 << 20
_GROWTH = 4  # each bucket may be so many times as large as the one before


class BucketedAllReduce(Composite[Any]):
    """The sums of many tensors over several places, at each of them: one collective for several tensors.

    Bottom: for each tensor a blob at each place, in the order of the places. The tensors that are needed first come
    first, as the gradients of a network's front layers, which are computed last. Top: likewise.

    Tensors of one dtype that follow each other are copied into one bucket, reduced as one (`AllReduce`), and taken
    apart again, without copies on the CPU. The first bucket is small, as nothing is left to be computed while it is
    reduced; the others grow. Buckets of the first tensors overtake others. The result is that of an `AllReduce` for
    each tensor, but for rounding where the order in which ranks are added depends on the size of a message; it does not
    depend on timing. Where all places are of one rank, nothing is put into buckets.

    Args:
        places: How many there are.
        bucket_bytes: The most that a bucket holds, unless it is one tensor.
        average: Whether to divide by the number of places.
        names: A name for each tensor, which collectives and errors show; by default that of its first blob.
        name: Scope of its nodes.
    Raises:
        GraphError: if the bottom is not a blob for each place, or ``bucket_bytes`` not positive.
        ShapeError, DTypeError: when built, naming the tensor, if its blobs differ or are not numbers.
    Gradient: the sum of all places' gradients, at each of them.

    Example:
        >>> graph = af.Graph("g")
        >>> weight = [graph.blob(f"weight{i}", [2, 2], place=f"sim:{i}") for i in range(2)]
        >>> bias = [graph.blob(f"bias{i}", [2], place=f"sim:{i}") for i in range(2)]
        >>> sums = af.nn.parallel.BucketedAllReduce(2, average=True)(*weight, *bias)
        >>> [(str(blob.spec), str(blob.place)) for blob in sums]
        [('float32[2, 2]', 'sim:0'), ('float32[2, 2]', 'sim:1'), ('float32[2]', 'sim:0'), ('float32[2]', 'sim:1')]
    """

    def __init__(
        self,
        places: int,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        average: bool = False,
        names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        places = whole("BucketedAllReduce: places", places, 1)
        bucket_bytes = whole("BucketedAllReduce: bucket_bytes", bucket_bytes, 1)
        self.places = places
        self.bucket_bytes = bucket_bytes
        self.average = average
        self.names = names

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """A multiple of the number of places, of bottom and of top blobs."""
        count = self.places
        if len(bottom) % count:
            raise GraphError(f"BucketedAllReduce takes a blob at each of {count} places, got {len(bottom)}")
        tensors = [bottom[i : i + count] for i in range(0, len(bottom), count)]
        names = [blobs[0].name for blobs in tensors] if self.names is None else self.names
        if len(names) != len(tensors):
            raise GraphError(f"BucketedAllReduce has {len(names)} names for {len(tensors)} tensors")
        for name, blobs in zip(names, tensors, strict=True):
            check_alike(f"BucketedAllReduce of {name!r}", blobs)
            same_numbers(f"BucketedAllReduce of {name!r}", x=blobs[0].spec)
        one_rank = len({blob.place.rank for blob in bottom}) == 1
        buckets = [[i] for i in range(len(tensors))] if one_rank else self._buckets([t[0] for t in tensors])
        top: dict[int, Sequence[Blob]] = {}
        for left, bucket in zip(range(len(buckets), 0, -1), buckets, strict=True):
            more = f"+{len(bucket) - 1}" if len(bucket) > 1 else ""
            reduce = AllReduce(self.average, priority=left, name=names[bucket[0]].replace("/", ".") + more)
            sums = reduce(*[_joined(blobs) for blobs in zip(*[tensors[i] for i in bucket], strict=True)])
            parts = [_parted(y, [tensors[i][0] for i in bucket]) for y in (sums if count > 1 else [sums])]
            top |= dict(zip(bucket, zip(*parts, strict=True), strict=True))
        return [y for i in range(len(tensors)) for y in top[i]]

    def _buckets(self, tensors: Sequence[Blob]) -> list[list[int]]:
        found: list[list[int]] = []
        latest: dict[Any, tuple[list[int], int, int]] = {}  # by dtype: the bucket, its bytes, and the most of them
        for i, blob in enumerate(tensors):
            size_bytes = blob.spec.size_bytes
            bucket, before, limit = latest.get(blob.dtype, ([], 0, min(_FIRST_BYTES, self.bucket_bytes)))
            if bucket and before + size_bytes > limit:
                bucket, before, limit = [], 0, min(_GROWTH * limit, self.bucket_bytes)
            if not bucket:
                found.append(bucket)
            bucket.append(i)
            latest[blob.dtype] = bucket, before + size_bytes, limit
        return found


def _joined(blobs: Sequence[Blob]) -> Blob:
    if len(blobs) == 1:
        return blobs[0]
    with blobs[0].graph.root.at(blobs[0].place):
        return ops.concat(blobs, axis=None, name="join")


def _parted(x: Blob, like: Sequence[Blob]) -> Sequence[Blob]:
    if len(like) == 1:
        return [x]
    with x.graph.root.at(x.place):
        parts = ops.split(x, [blob.spec.size for blob in like])
        return [ops.reshape(part, blob.shape) for part, blob in zip(parts, like, strict=True)]


class ParameterServer:
    """Variables spread over places, so that each holds about as many bytes.

    A reader of a variable elsewhere gets its value by the edge, once per rank and frame; gradients are summed up
    where the variable lives, those of one rank first. An optimizer's update of a variable runs there as soon as that
    variable's gradient is complete, and the next frame's readers get the new value as soon as that update is done.

    Args:
        places: Where the variables live; the same variables go to the same places on every rank.
    Attributes:
        places: Where.
        size_bytes: Bytes that each place holds.
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
            optimizer: Updates the variables.
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
