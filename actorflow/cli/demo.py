"""``actorflow demo``: train a small network, watched live in a browser."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from actorflow import nn, ops
from actorflow.cli.terminal import run_until_interrupt, serve_page
from actorflow.data import Dataset, digits, fashion_mnist
from actorflow.errors import DataError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob

_IN_FLIGHT = 2  # steps that overlap: the next one starts on the layers whose weights the one before has updated
_RATE = 0.02  # learning rate of the first step


class Training:
    """A network with its loss and updates, and the images that it learns from.

    Args:
        epochs: How often to go through the train images; the learning rate falls linearly to 0 until the end.
    Attributes:
        graph: The whole of it: forward and backward part, updates, and the network once more for testing.
    Raises:
        DataError: if there are fewer train images than a batch takes.
    """

    def __init__(self, data: Dataset, *, epochs: int, batch: int, seed: int) -> None:
        if batch > len(data.train):
            raise DataError(f"expected at most {len(data.train):,} images per batch, all that there are, got {batch:,}")
        self.data = data  # the images, shape (count, height, width, channels), and labels
        # The same result on any number of cores; and products as small as these gain little from BLAS threads, but lose
        # much when something else wants the cores, since each waits for its slowest thread.
        self.graph = Graph(data.name, deterministic=True)
        self.steps_per_epoch = len(data.train) // batch  # full batches in the train images
        self._batch = batch
        self._epochs = epochs
        self._seed = seed  # of weights, dropout and the order of the images
        self._images = self.graph.blob("images", (batch, *data.train.images.shape[1:]))
        self._labels = self.graph.blob("labels", (batch,), "int64")
        network = nn.NIN(len(data.classes), seed=seed)
        scores = network(self._images, training=True)
        loss = ops.softmax_loss(scores, self._labels, name="loss")
        accuracy = ops.accuracy(scores, self._labels)
        rate = nn.rates.Poly(_RATE, epochs * self.steps_per_epoch)
        updates = nn.SGD(rate, momentum=0.9, weight_decay=1e-4).minimize(loss)
        self._trainer = nn.Trainer(loss, updates, {"accuracy": accuracy}, in_flight=_IN_FLIGHT)
        with self.graph.subgraph("test"):
            self._test_scores: Blob = network(self._images, training=False)
        self.weight_count = sum(variable.spec.size for variable in network.variables)

    def steps(self) -> AsyncGenerator[nn.Step, None]:
        """Train on each image once an epoch, in random order; images that fill no batch are left out.

        Cancellation: the steps in flight are cancelled; each weight keeps its old or its new value.
        """
        return self._trainer.steps(self._feeds, self._epochs)

    async def test(self) -> int:
        """Count the test images that are recognized."""
        batches = list(self.data.test.in_order(self._batch))
        feeds: Iterator[dict[Any, Any]] = ({self._images: batch.images} for batch in batches)
        results = self.graph.stream(feeds, fetch=[self._test_scores], in_flight=_IN_FLIGHT)
        right = 0
        counted = iter(batches)
        async for result in results:
            batch = next(counted)
            answers = result[self._test_scores].argmax(axis=1)
            right += int(np.count_nonzero((answers == batch.labels)[: batch.valid]))
        return right

    def _feeds(self, epoch: int) -> Iterator[dict[Any, Any]]:
        for batch in self.data.train.shuffled(self._batch, np.random.default_rng((self._seed, epoch))):
            yield {self._images: batch.images, self._labels: batch.labels}


def time_table(graph: Graph, elapsed_s: float) -> Table:
    """Table of where the time went: calls, total and share per kind of operation; failed calls if any."""
    ops: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    called = graph.statistics().ops
    for op in graph.ops:
        if op.name in called:
            kind, found = op.operation.kind, called[op.name]
            ops[kind] += 1
            calls[kind] += found.calls
            failed[kind] += found.failed
            total_ns[kind] += found.total_ns
    in_ops_s = total_ns.total() / 1e9
    table = Table(
        title="where the time went",
        caption=f"{in_ops_s:.2f} s in operations, {elapsed_s:.2f} s by the clock",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("operation")
    failures = ["failed"] if failed.total() else []
    for header in ("ops", "calls", *failures, "total", "mean", "share"):
        table.add_column(header, justify="right")
    for kind, spent_ns in total_ns.most_common():
        table.add_row(
            kind,
            f"{ops[kind]}",
            f"{calls[kind]:,}",
            *[f"{failed[kind]:,}" if failed[kind] else "" for _ in failures],
            f"{spent_ns / 1e9:.2f} s",
            f"{spent_ns / 1e3 / max(calls[kind], 1):,.0f} us",
            f"{spent_ns / max(total_ns.total(), 1):.1%}",
        )
    return table


@dataclass(frozen=True)
class DemoOptions:
    """Arguments of the command line."""

    data_dir: Path | None  # directory of the Fashion-MNIST files; None for the digits
    epochs: int  # how often to go through the train images
    batch: int  # images per step
    seed: int  # of weights, dropout, order and the digits' split
    port: int | None  # of the page; 0 for any, None for the usual one if it is free and any other if not
    web: bool  # whether to serve the page
    values: bool  # whether the page can show values
    serve: bool  # whether to go on serving it after the training


def demo(options: DemoOptions) -> int:
    """Load the images, train, test, and show where the time went."""
    console = Console(highlight=False, soft_wrap=True)
    data = digits(seed=options.seed) if options.data_dir is None else fashion_mnist(options.data_dir)
    training = Training(data.standardized(), epochs=options.epochs, batch=options.batch, seed=options.seed)
    height, width = data.train.images.shape[1:3]
    console.print(
        f"{data.name}: {len(data.train):,} train and {len(data.test):,} test images of {height}x{width}; "
        f"network of {training.weight_count:,} weights; seed {options.seed}"
    )
    run_until_interrupt(_run(options, training, console))
    return 0


async def _run(options: DemoOptions, training: Training, console: Console) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(training.graph)
        if options.web:
            url = await serve_page(stack, training.graph, options.port, values=options.values)
            console.print(f"live page: {url}")
        started = time.perf_counter()
        with nn.Progress(options.epochs, training.steps_per_epoch, console) as progress:
            async with aclosing(training.steps()) as steps:
                async for step in steps:
                    progress.advance(step)
        right = await training.test()
        elapsed_s = time.perf_counter() - started
        console.print(time_table(training.graph, elapsed_s))
        count = len(training.data.test)
        console.print(f"test accuracy {right / count:.4f} ({right:,} of {count:,} images), {elapsed_s:.1f} s")
        if options.web and options.serve:
            console.print("serving the page until Ctrl-C")
            await asyncio.Event().wait()
