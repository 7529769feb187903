"""PipelineParallel parallel training: the stages of a network at several places, on parts of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from actorflow import ops
from actorflow.errors import GraphError, whole
from actorflow.graph.composite import Composite
from actorflow.graph.gradient import gradient, trainable
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Variable
from actorflow.nn.layers import Layer
from actorflow.nn.optim import Optimizer
from actorflow.nn.parallel.data import Loss, loss_of, share_of, start_alike
from actorflow.nn.parallel.exchange import as_places, moved, pieces_of, summed
from actorflow.place import Place

_SCHEDULES = ("gpipe", "1f1b")


class PipelineParallel(Layer):
    """A network cut into stages, each at a place of its own, which work on different parts of the batch at a time.

    Bottom: batches, of which the first is the first stage's input and the others are the targets of ``loss``. They are
    cut along their first axis into micro-batches. Top: the loss, 0-d, at the last place: the mean of the micro-batches'
    losses, weighted by their sizes. Gradients are summed up over the micro-batches, in their order, and each variable
    is updated once; the weights are those of the network on the whole batch, but for rounding.

    The dataflow decides when a stage computes a micro-batch: as soon as its input is there.

    Batch normalization takes the statistics of each micro-batch, and the first one moves the running ones.

    Args:
        stages: Composites of one bottom and one top blob each.
        places: Where each is, and its variables.
        micro_batches: How many parts a batch is cut into: as even as can be.
        loss: Makes the loss of the last top and the targets, ``loss(top, *targets)``; None if the top is the loss.
        schedule: "gpipe": a stage begins whatever it can, so its place holds values of all micro-batches for the way
            back. "1f1b": stage ``s`` of ``n`` begins a micro-batch once the one ``n - s`` before it has come back, so
            the place holds no more than ``n - s`` of them; one without variables begins whatever it can.
        name: Scope of its nodes; that of each micro-batch is ``micro0``, ``micro1``, ... in it.
    Attributes:
        outputs: The last stage's top for each micro-batch, of the latest build.
    Raises:
        GraphError: if there is not a place for each stage, ``micro_batches`` is not positive, or the schedule is
            unknown; PlaceError if a place is none.
    Source: Huang et al., GPipe, 2019; Narayanan et al., PipeDream, 2019 (1F1B).

    Example:
        >>> graph = af.Graph("g")
        >>> images, labels = graph.blob("images", [8, 16]), graph.blob("labels", [8], "int64")
        >>> stages = [af.nn.InnerProduct(32, activation="relu"), af.nn.InnerProduct(10)]
        >>> model = af.nn.parallel.PipelineParallel(stages, ["sim:0", "sim:1"], 4, loss=af.ops.softmax_loss)
        >>> loss = model(images, labels)
        >>> train = model.minimize(af.nn.SGD(0.1))
        >>> batch = {images: np.zeros([8, 16], "float32"), labels: np.zeros(8, "int64")}
        >>> result = graph.run_sync(batch, fetch=[loss, train])
        >>> round(af.to_numpy(result[loss]).item(), 4)  # log(10)
        2.3026
    """

    def __init__(
        self,
        stages: Sequence[Composite],
        places: Iterable[Place | str],
        micro_batches: int = 1,
        *,
        loss: Loss | None = None,
        schedule: str = "gpipe",
        name: str | None = None,
    ) -> None:
        super().__init__(name or "pipeline")
        self.places = as_places("PipelineParallel", places)
        self.stages = list(stages)
        if len(self.stages) != len(self.places):
            raise GraphError(
                f"PipelineParallel: give a place for each of {len(self.stages)} stages, got {len(self.places)}"
            )
        micro_batches = whole("PipelineParallel: micro_batches", micro_batches, 1)
        if schedule not in _SCHEDULES:
            raise GraphError(f"PipelineParallel: schedule must be one of {', '.join(_SCHEDULES)}, got {schedule!r}")
        self.micro_batches = micro_batches
        self.schedule = schedule
        self.outputs: list[Blob] = []
        self._loss = loss
        self._grads: dict[Variable, Blob] = {}

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """A batch and its targets; one top blob."""
        root, count = bottom[0].graph.root, self.micro_batches
        batches = list(zip(*[pieces_of("PipelineParallel", blob, count) for blob in bottom], strict=True))
        sizes = [blobs[0].shape[0] for blobs in batches]
        self.outputs = []
        grads: list[dict[Variable, Blob]] = []  # summed up to each micro-batch
        shares: list[Blob] = []
        for i, (blobs, size) in enumerate(zip(batches, sizes, strict=True)):
            with root.unique_subgraph(f"micro{i}") as scope:
                loss = self._forward(blobs, training, grads)
                with root.at(loss.place):
                    shares.append(share_of(loss, size, bottom[0].shape[0]) if count > 1 else loss)
                if training:
                    grads.append(self._backward(shares[-1], grads))
            start_alike(scope)
        if training:
            self._grads = grads[-1]
        return summed(shares, self.places[-1])

    def minimize(self, optimizer: Optimizer, wrt: Sequence[Variable] | None = None) -> Graph:
        """Build the updates by the gradients of the latest build in training.

        Args:
            optimizer: Updates the variables.
            wrt: The variables to train; the default is all that the loss can be differentiated by.
        Returns:
            The sub-graph with the updates; give it in ``fetch`` to train in that frame.
        Raises:
            GraphError: if it has not been built for training, or as for `Optimizer.descend`.
        """
        if not self._grads:
            raise GraphError(
                f"PipelineParallel {self.name!r} has no gradients: build it with training=True, on variables"
            )
        variables = list(self._grads if wrt is None else wrt)
        for variable in variables:
            if variable not in self._grads:
                raise GraphError(f"the loss of Pipeline {self.name!r} cannot be differentiated by {variable!r}")
        return optimizer.descend({variable: self._grads[variable] for variable in variables})

    def _forward(self, blobs: Sequence[Blob], training: bool, grads: Sequence[dict[Variable, Blob]]) -> Blob:
        x, *targets = blobs
        root = x.graph.root
        for i, (stage, place) in enumerate(zip(self.stages, self.places, strict=True)):
            with root.at(place):
                x = self._in_turn(moved(x, place), i, grads)
                y = stage(x, training=training)
            if not isinstance(y, Blob):
                raise GraphError(f"PipelineParallel: stage {stage.name!r} must have one top blob, got {len(stage.top)}")
            x = y
        self.outputs.append(x)
        with root.at(self.places[-1]):
            return loss_of("PipelineParallel", x, self._loss, targets)

    def _in_turn(self, x: Blob, stage: int, grads: Sequence[dict[Variable, Blob]]) -> Blob:
        """A stage's input, once the micro-batch that it has to wait for has come back."""
        before = len(grads) - (len(self.stages) - stage)
        if self.schedule != "1f1b" or before < 0:
            return x
        own = [grads[before][variable] for variable in self.stages[stage].variables if variable in grads[before]]
        return ops.dummy(x, *own, name="turn") if own else x

    def _backward(self, share: Blob, grads: Sequence[dict[Variable, Blob]]) -> dict[Variable, Blob]:
        root = share.graph.root
        variables = list(grads[-1] if grads else trainable(share))
        found: dict[Variable, Blob] = {}
        for variable, grad in zip(variables, gradient(share, variables), strict=True):
            with root.at(grad.place):
                found[variable] = ops.add(grads[-1][variable], grad, name="gathered") if grads else grad
        return found
