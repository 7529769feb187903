"""Train on images from disk: the loader reads, decodes, augments and batches on the loop that the graph runs on.

Run it with ``python examples/async_loader.py DIR`` (``pip install '.[images]'`` for Pillow), where DIR has a folder of
images for each class; without DIR it makes some itself. The loader is all there is between the files and
``graph.stream``; at the end it says how much of the time the graph was busy, and which stage would have to be wider.
"""

import argparse
import io
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import actorflow as af

SIZE, WARM_UP = 32, 4


def read(example: tuple[Path, int]) -> tuple[bytes, int]:
    path, label = example
    return path.read_bytes(), label


def decode(example: tuple[bytes, int]) -> tuple[np.ndarray, int]:
    data, label = example
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE))), label


def augment(example: tuple[int, tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.int64]:
    """Mirror half of the images and shift all; by the example's number, so that a resumed run does the same."""
    number, (pixels, label) = example
    rng = np.random.default_rng(number)
    if rng.integers(2):
        pixels = pixels[:, ::-1]
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)), mode="edge")
    top, left = rng.integers(0, 9, 2)
    pixels = padded[top : top + SIZE, left : left + SIZE]
    return pixels.astype(np.float32) / 255, np.int64(label)


def make_images(folder: Path, per_class: int = 400) -> None:
    """Noise, brighter in one half: the left one or the right one."""
    rng = np.random.default_rng(0)
    for name, half in (("dark_left", slice(16, 32)), ("dark_top", slice(0, 16))):
        (folder / name).mkdir()
        for i in range(per_class):
            pixels = rng.integers(0, 100, (SIZE, SIZE, 3), dtype=np.uint8)
            if name == "dark_left":
                pixels[:, half] += 120
            else:
                pixels[half] += 120
            Image.fromarray(pixels).save(folder / name / f"{i}.jpg")


def make_loader(folder: Path, batch: int) -> tuple[Any, list[str]]:
    if not folder.is_dir():
        raise SystemExit(f"{folder}: expected a directory with a folder of images for each class")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    examples = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
        if path.suffix in (".jpg", ".jpeg", ".png")
    ]
    if len(examples) < batch:
        raise SystemExit(f"{folder}: expected at least {batch} images, in a folder for each class, got {len(examples)}")
    loader = (
        af.pipeline.source(examples, shuffle=True, seed=0)
        .map(read, concurrency=2)
        .map(decode, concurrency=2)
        .enumerate()
        .map(augment, concurrency=2)
        .batch(batch, drop_last=True)
        .prefetch(4, size_bytes=64 << 20)
    )
    return loader, classes


def make_graph(classes: int, batch: int, width: int) -> tuple[af.Graph, Any, Any, Any, Any]:
    graph = af.Graph("images")
    images = graph.blob("images", (batch, SIZE, SIZE, 3))
    labels = graph.blob("labels", (batch,), "int64")
    network = af.Chain(
        af.nn.Conv(width, 5, pad=2, activation="relu"),
        af.nn.Pool("max", 3, stride=2),
        af.nn.Conv(width, 3, pad=1, activation="relu"),
        af.nn.Conv(classes, 1),
        af.nn.GlobalAverage(),
    )
    loss = af.ops.softmax_loss(network(images), labels)
    train = af.nn.SGD(rate=0.05, momentum=0.9).minimize(loss)
    return graph, images, labels, loss, train


def busy_share(graph: af.Graph, first: int) -> float:
    """Share of the time, from a call on to the last, in which at least one op ran."""
    calls = graph.recording()
    recent = slice(max(first - calls.lost, 0), None)
    order = np.argsort(calls.start_ns[recent])
    starts, ends = calls.start_ns[recent][order], np.maximum.accumulate(calls.end_ns[recent][order])
    idle_ns = np.maximum(starts[1:] - ends[:-1], 0).sum()
    return 1 - idle_ns / (ends[-1] - starts[0])


async def train(folder: Path, epochs: int, batch: int, width: int) -> None:
    loader, classes = make_loader(folder, batch)
    graph, images, labels, loss, update = make_graph(len(classes), batch, width)
    loader = loader.repeat(epochs)
    async with loader, graph:
        losses, warm = [], 0
        feeds = loader.feed(images, labels)
        async with aclosing(graph.stream(feeds, fetch=[loss, update], in_flight=2)) as results:
            async for result in results:
                losses.append(float(result[loss]))
                if len(losses) == WARM_UP:  # kernels are measured, buffers and threads are made
                    warm = graph.statistics().calls
        first, last = np.mean(losses[:5]), np.mean(losses[-5:])
        print(f"{len(losses)} batches of {', '.join(classes)}: loss {first:.3f} -> {last:.3f}")
        if len(losses) > WARM_UP:
            print(f"the graph was busy {busy_share(graph, warm):.1%} of the time")
        print(loader.stats())
        print(f"What holds the loader up: {loader.bottleneck()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a folder of images for each class")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--width", type=int, default=64, help="channels of the convolutions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if options.folder is None:
            make_images(Path(made))
        af.run(train(options.folder or Path(made), options.epochs, options.batch, options.width))


if __name__ == "__main__":
    main()
