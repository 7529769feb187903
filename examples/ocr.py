"""Read the text in pictures: trained networks in ONNX files find its lines, turn those upside down, and read them.

Run it with ``python examples/ocr.py PICTURE ...`` (``pip install '.[onnx,models,images]'``); without a picture it draws
one. The models are those of the package rapidocr-onnxruntime, whose code is not used. All pictures are read at the same
time: their lines are joined in batches, whichever picture they are from. With ``--backend onnxruntime`` each network is
one op, which ONNX Runtime computes.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont

import actorflow as af

#: Networks see pixels from -1 to 1, in the order blue, green, red.
BLACK = -1.0
DIRECTION_WIDTH, HEIGHT = 192, 48  # of a line
#: Lines are as wide as they are, but for multiples of this: each width has a plan of its own.
WIDTHS = 160
THRESHOLD, BOX_SCORE, GROWTH, SURE = 0.3, 0.5, 1.6, 0.9
LARGEST = 960


class Box(NamedTuple):
    """Rows and columns of a picture."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True)
class Line:
    """A line of text in a picture."""

    text: str
    score: float
    box: Box


# -- pictures and arrays -----------------------------------------------------------------------------------------------


def pixels_of(picture: Image.Image) -> np.ndarray:
    """Shape (height, width, 3), from -1 to 1, blue first."""
    return np.asarray(picture.convert("RGB"), np.float32)[..., ::-1] / 127.5 - 1


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Another size, by linear interpolation between the pixels' centres."""
    for axis, size in enumerate((height, width)):
        old = pixels.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
        before = at.astype(int)
        share = (at - before).astype(np.float32).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
        after = np.minimum(before + 1, old - 1)
        pixels = pixels.take(before, axis) * (1 - share) + pixels.take(after, axis) * share
    return pixels


def image(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """What networks are fed: shape (1, 3, height, width), with nothing on the right and at the bottom."""
    fed = np.zeros((1, 3, height, width), np.float32)
    fed[0, :, : pixels.shape[0], : pixels.shape[1]] = pixels.transpose(2, 0, 1)
    return fed


def scaled_to_line(pixels: np.ndarray, longest: int) -> np.ndarray:
    width = round(HEIGHT * pixels.shape[1] / pixels.shape[0])
    return resized(pixels, HEIGHT, min(max(width, 1), longest))


def rounded_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


# -- detection: regions of pixels that are text ------------------------------------------------------------------------


def regions(mask: np.ndarray) -> list[Box]:
    """Boxes around the pixels that touch each other, in eight directions."""
    boxes: list[Box] = []
    parents: list[int] = []

    def root(region: int) -> int:
        while parents[region] != region:
            region = parents[region]
        return region

    above: list[tuple[int, int, int]] = []  # runs of the row before: their begin, end and region
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(line.astype(np.int8), prepend=0, append=0)).tolist()
        runs = []
        for left, right in zip(edges[::2], edges[1::2], strict=True):
            touched = {root(region) for begin, end, region in above if begin <= right and left <= end}
            region = min(touched, default=len(parents))
            box = Box(row, left, row + 1, right)
            if not touched:
                parents.append(region)
                boxes.append(box)
            for other in touched:
                parents[other] = region
                box = around(box, boxes[other])
            boxes[region] = box
            runs.append((left, right, region))
        above = runs
    return [boxes[region] for region, parent in enumerate(parents) if region == parent]


def around(a: Box, b: Box) -> Box:
    return Box(min(a.top, b.top), min(a.left, b.left), max(a.bottom, b.bottom), max(a.right, b.right))


def lines_in(probabilities: np.ndarray, height: int, width: int) -> list[Box]:
    """Boxes of lines in a picture of that size, from the probability of each pixel of a smaller or larger one.

    The network marks the middle of a line, so a box grows by a share of its area over its perimeter.
    """
    found = []
    for box in regions(probabilities > THRESHOLD):
        tall, wide = box.bottom - box.top, box.right - box.left
        if min(tall, wide) < 3 or probabilities[box.top : box.bottom, box.left : box.right].mean() < BOX_SCORE:
            continue
        margin = tall * wide * GROWTH / (2 * (tall + wide))
        y, x = height / probabilities.shape[0], width / probabilities.shape[1]
        found.append(
            Box(
                max(0, round((box.top - margin) * y)),
                max(0, round((box.left - margin) * x)),
                min(height, round((box.bottom + margin) * y)),
                min(width, round((box.right + margin) * x)),
            )
        )
    return sorted(found)


# -- recognition: characters, step by step -----------------------------------------------------------------------------


def text_of(probabilities: np.ndarray, characters: Sequence[str]) -> tuple[str, float]:
    """The most probable character of each step, but for blanks (number 0) and repetitions; their mean probability."""
    best = probabilities.argmax(axis=1)
    kept = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
    text = "".join([characters[number - 1] for number in best[kept]])
    return text, float(probabilities.max(axis=1)[kept].mean()) if kept.any() else 0.0


# -- the networks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batches:
    """A network of one input and one output, which sees the lines of all that ask at the same time together."""

    model: af.Model
    batcher: af.Batcher

    async def ask(self, line: np.ndarray) -> np.ndarray:
        (fed,), (found,) = self.model.inputs.values(), self.model.outputs.values()
        return (await self.batcher.run({fed: line}))[found][0]


@dataclass(frozen=True)
class Reader:
    """The three networks, on the loop that runs, and the characters that the recognizer tells apart."""

    detector: af.Model
    director: Batches
    recognizer: Batches
    characters: Sequence[str]

    async def read(self, picture: Image.Image) -> list[Line]:
        """The lines of a picture, from top to bottom."""
        pixels = pixels_of(picture)
        boxes = await self._detect(pixels)
        crops = [pixels[box.top : box.bottom, box.left : box.right] for box in boxes]
        texts = await asyncio.gather(*[self._read(crop) for crop in crops])
        return [Line(text, score, box) for (text, score), box in zip(texts, boxes, strict=True) if text]

    async def _detect(self, pixels: np.ndarray) -> list[Box]:
        height, width, _ = pixels.shape
        scale = min(1.0, LARGEST / max(height, width))
        smaller = resized(pixels, max(1, round(height * scale)), max(1, round(width * scale)))
        tall, wide, _ = smaller.shape
        (name,), fed = self.detector.inputs, image(smaller, rounded_up(tall, 32), rounded_up(wide, 32))
        (probabilities,) = (await self.detector.run({name: fed})).values()
        # A thread for what is Python, so that others are not held up.
        return await asyncio.to_thread(lines_in, probabilities[0, 0, :tall, :wide], height, width)

    async def _read(self, crop: np.ndarray) -> tuple[str, float]:
        line = scaled_to_line(crop, DIRECTION_WIDTH)
        upright, turned = await self.director.ask(image(line, HEIGHT, DIRECTION_WIDTH))
        if turned > max(upright, SURE):
            crop = crop[::-1, ::-1]
        line = scaled_to_line(crop, longest=20 * HEIGHT)
        probabilities = await self.recognizer.ask(image(line, HEIGHT, rounded_up(line.shape[1], WIDTHS)))
        return text_of(probabilities, self.characters)


def padded(requests: Sequence[Any]) -> list[Any]:
    """Lines of one frame, all as wide as the widest."""
    widest = max(fed.shape[3] for feeds in requests for fed in feeds.values())
    return [
        {blob: np.pad(fed, ((0, 0), (0, 0), (0, 0), (0, widest - fed.shape[3]))) for blob, fed in feeds.items()}
        for feeds in requests
    ]


@asynccontextmanager
async def reader(folder: Path, backend: Any) -> AsyncIterator[Reader]:
    """The three networks of a folder, until the block ends."""
    async with AsyncExitStack() as stack:
        models = []
        for part in ("det", "cls", "rec"):
            (path,) = folder.glob(f"*_{part}_infer.onnx")
            models.append(af.onnx.load(path, backend=backend))
            await stack.enter_async_context(models[-1].graph)
        said = {each.key: each.value for each in onnx.load(path).metadata_props}
        detector, director, recognizer = models
        yield Reader(
            detector,
            Batches(director, await stack.enter_async_context(director.batched(max_rows=6))),
            Batches(recognizer, await stack.enter_async_context(recognizer.batched(max_rows=6, pad=padded))),
            [*said["character"].split("\n"), " "],
        )


def models_folder() -> Path:
    found = find_spec("rapidocr_onnxruntime")  # not imported, as its own code is not needed
    if found is None or found.origin is None:
        raise SystemExit("no models: pip install 'actorflow[models]', or name a folder of them with --models")
    return Path(found.origin).with_name("models")


def drawn(lines: Sequence[str], size: int = 32) -> Image.Image:
    """A picture of lines of text."""
    font = ImageFont.load_default(size)
    picture = Image.new("RGB", (640, 2 * size * len(lines) + size), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(picture).text((size, size + 2 * size * number), line, "black", font)
    return picture


async def main(pictures: Sequence[Path], folder: Path, backend: Any) -> None:
    given = [Image.open(path) for path in pictures] or [drawn(["Dataflow graphs", "that read 1234 lines"])]
    async with reader(folder, backend) as read_by:
        for number, lines in enumerate(await asyncio.gather(*[read_by.read(picture) for picture in given])):
            print(pictures[number] if pictures else "a picture of its own")
            for line in lines:
                print(f"  {line.text}  ({line.score:.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", type=Path)
    parser.add_argument("--models", type=Path, help="a folder with files *_det_infer.onnx, *_cls_... and *_rec_...")
    parser.add_argument("--backend", choices=("actorflow", "onnxruntime"), default="actorflow")
    options = parser.parse_args()
    af.run(main(options.pictures, options.models or models_folder(), options.backend))
