"""Trainings that can be done by any number of ranks, which compute the same but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af
from actorflow import data, nn, ops
from actorflow.nn import rates
from actorflow.nn.parallel import DataParallel, PipelineParallel
from actorflow.transport.base import Transport

__all__ = ["EPOCHS", "SCHEMES", "STEPS", "Training"]

SCHEMES = ("whole batches", "shares", "server", "stages")
COUNT, BATCH, FEATURES, CLASSES, EPOCHS = 130, 24, 5, 3, 3
STEPS = EPOCHS * (COUNT // BATCH)

_random = np.random.default_rng(3)
X = _random.standard_normal((COUNT, FEATURES))
LABELS = (X.sum(axis=1) > 0).astype(np.int64) + (X[:, 0] > 1)


class Training:
    """One rank of a training.

    Args:
        world: The ranks.
        scheme: Data parallel with batches that are cut, or with each rank's own share of the data; with a parameter
            server; or in stages, with dropout, on as many ranks as there are.
        folder: Where its checkpoints are.
    """

    def __init__(self, world: Transport, scheme: str, folder: Path | None, **settings: Any) -> None:
        self.graph = af.Graph("training", world=world, deterministic=True)
        size = world.size
        places = [f"{rank}/cpu" for rank in range(size)]
        with self.graph.at(place="0/cpu"):
            if scheme == "shares":
                loss, train = self._shares(places)
                x, labels = self.inputs[world.rank], self.inputs[size + world.rank]
                sampler = data.Sampler(COUNT, 5, world.rank, size)
                self.feeds = data.Loader({x: X, labels: LABELS}, BATCH // size, sampler=sampler)
            else:
                x = self.graph.blob("x", (BATCH, FEATURES), "float64")
                labels = self.graph.blob("labels", BATCH, "int64")
                loss, train = self._whole(scheme, places, x, labels)
                self.feeds = data.Loader({x: X, labels: LABELS}, BATCH, seed=5)
        self.checkpoints = None if folder is None else af.Checkpoints(self.graph, folder)
        self.trainer = nn.Trainer(loss, train, checkpoints=self.checkpoints, **settings)

    def _shares(self, places: Sequence[str]) -> tuple[af.Blob, af.Graph]:
        share = BATCH // len(places)
        graph = self.graph
        xs = [graph.blob(f"x{i}", (share, FEATURES), "float64", place) for i, place in enumerate(places)]
        ys = [graph.blob(f"labels{i}", share, "int64", place) for i, place in enumerate(places)]
        self.inputs = [*xs, *ys]
        model = DataParallel(nn.MLP(CLASSES, (7,)), places, loss=ops.softmax_loss, split=False)
        loss = model(*self.inputs)
        return loss, model.minimize(nn.Adam(rates.Warmup(rates.Cosine(0.05, 20), 3), clip=nn.Clip(norm=1.0)))

    def _whole(self, scheme: str, places: Sequence[str], x: af.Blob, labels: af.Blob) -> tuple[af.Blob, af.Graph]:
        model: Any
        if scheme == "stages":
            stages = [
                nn.InnerProduct(7, activation="tanh", name="first"),
                nn.Dropout(0.3, name="second"),
                nn.InnerProduct(6, activation="tanh", name="third"),
                nn.InnerProduct(CLASSES, name="fourth"),
            ]
            at = [places[i % len(places)] for i in range(len(stages))]
            model = PipelineParallel(stages, at, micro_batches=2, loss=ops.softmax_loss)
        else:
            kind = "server" if scheme == "server" else "allreduce"
            model = DataParallel(nn.MLP(CLASSES, (7,)), places, scheme=kind, loss=ops.softmax_loss)
        loss = model(x, labels)
        return loss, model.minimize(nn.SGD(rates.StepDecay(0.1, 6, 0.5), momentum=0.9, weight_decay=1e-3))

    async def run(self, until: int | None = None) -> list[float]:
        """Go on from the last checkpoint, if there is one; returns the losses."""
        losses = []
        async with self.graph:
            if self.checkpoints is not None:
                await self.trainer.resume()
            self.begun = self.trainer.number
            async with aclosing(self.trainer.steps(self.feeds, EPOCHS, until=until)) as steps:
                async for step in steps:
                    losses.append(step.loss)
        return losses

    def values(self) -> dict[str, np.ndarray]:
        """Values of this rank's variables, copies under the name of what they are copies of."""
        found: dict[str, np.ndarray] = {}
        for variable in self.graph.variables:
            if variable.place.rank == self.graph.world.rank:
                name = (variable if variable.replica_of is None else variable.replica_of).name
                if name in found:
                    np.testing.assert_array_equal(found[name], variable.value)
                found[name] = variable.value
        return found
