"""``actorflow demo``: train a small network, watched live in a browser."""

from __future__ import annotations

import asyncio
import errno
import time
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from actorflow import nn
from actorflow.cli.interrupts import cancel_on_interrupt
from actorflow.cli.report import time_table
from actorflow.cli.training import Training
from actorflow.data import Dataset, digits, fashion_mnist
from actorflow.graph.graph import Graph
from actorflow.loop import run

_USUAL_PORT = 8080


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line.

    Attributes:
        data: ``digits`` or ``fashion-mnist``.
        data_dir: Directory of the Fashion-MNIST files.
        epochs: How often to go through the train images.
        batch: Images per step.
        seed: Of weights, dropout, order and the digits' split.
        port: Of the page; 0 for any, None for the usual one if it is free and any other if not.
        web: Whether to serve the page.
        serve: Whether to go on serving it after the training.
    """

    data: str
    data_dir: Path | None
    epochs: int
    batch: int
    seed: int
    port: int | None
    web: bool
    serve: bool


def demo(options: Options) -> int:
    """Load the images, train, test, and show where the time went.

    Returns:
        0.
    Raises:
        DataError, MissingExtraError: if the images cannot be loaded.
        OSError: if the page's port cannot be bound.
        KeyboardInterrupt: after Ctrl-C, when everything has been closed.
    """
    console = Console(highlight=False, soft_wrap=True)
    data = _load(options)
    training = Training(data.standardized(), epochs=options.epochs, batch=options.batch, seed=options.seed)
    height, width = data.train.images.shape[1:3]
    console.print(
        f"{data.name}: {len(data.train):,} train and {len(data.test):,} test images of {height}x{width}; "
        f"network of {training.weight_count:,} weights; seed {options.seed}"
    )
    try:
        run(_run(options, training, console))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # nothing but Ctrl-C cancels it
    return 0


def _load(options: Options) -> Dataset:
    if options.data == "digits":
        return digits(seed=options.seed)
    assert options.data_dir is not None
    return fashion_mnist(options.data_dir)


async def _run(options: Options, training: Training, console: Console) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(cancel_on_interrupt())
        await stack.enter_async_context(training.graph)
        if options.web:
            url = await _serve(stack, training.graph, options.port)
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


async def _serve(stack: AsyncExitStack, graph: Graph, port: int | None) -> str:
    from actorflow.web import serve  # aiohttp is not loaded where no page is wanted

    try:
        view = await stack.enter_async_context(serve(graph, port=_USUAL_PORT if port is None else port))
    except OSError as error:
        if port is not None or error.errno != errno.EADDRINUSE:
            raise
        view = await stack.enter_async_context(serve(graph, port=0))
    return view.url
