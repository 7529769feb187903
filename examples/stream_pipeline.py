"""A pipeline: an async source, several frames of a graph in flight, a sink that sets the pace.

Run it with ``python examples/stream_pipeline.py``. The source is asked for the next block only when there is room for
another frame, so it is never further ahead of the sink than the frames in flight, however slow the sink is.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np

import actorflow as af

RATE_HZ, SAMPLES = 8_000, 2_000
BLOCKS, IN_FLIGHT = 12, 3
NOTES = {262: "C", 330: "E", 392: "G", 523: "C'"}


class Microphone:
    """Gives blocks of sound, a note each, as they come in.

    Attributes:
        given: How many so far.
    """

    def __init__(self) -> None:
        self.given = 0

    async def blocks(self) -> AsyncIterator[dict[str, Any]]:
        seconds = np.arange(SAMPLES) / RATE_HZ
        noise = np.random.default_rng(0)
        try:
            for number in range(BLOCKS):
                await asyncio.sleep(0.005)  # stands for the sound card
                self.given += 1
                tone = np.sin(2 * np.pi * list(NOTES)[number % len(NOTES)] * seconds)
                yield {"sound": (tone + noise.normal(0, 0.3, SAMPLES)).astype("float32")}
        finally:
            print("microphone off")  # when all is done, and as well when the sink gives up


async def name_of(hertz: np.ndarray) -> np.ndarray:
    """Ask a (pretended) service, which takes its time: blocks that are further back do not wait for it."""
    await asyncio.sleep(0.01)
    return np.array(NOTES[min(NOTES, key=lambda note: abs(note - float(hertz)))], dtype=object)


def make_graph() -> af.Graph:
    graph = af.Graph("tuner")
    sound = graph.blob("sound", (SAMPLES,))
    window = graph.variable("window", (SAMPLES,), init=np.hanning(SAMPLES).astype("float32"))
    hertz = graph.blob("hertz", (), "float64")
    note = graph.blob("note", (), object)

    def loudest(sound: np.ndarray) -> float:
        return int(np.abs(np.fft.rfft(sound)).argmax()) * RATE_HZ / SAMPLES

    [sound * window] >> graph.function("loudest", loudest) >> [hertz]
    [hertz] >> graph.function("name", name_of, concurrency=IN_FLIGHT) >> [note]
    return graph


async def main() -> None:
    microphone = Microphone()
    async with (
        make_graph() as graph,
        aclosing(graph.stream(microphone.blocks(), fetch=["hertz", "note"], in_flight=IN_FLIGHT)) as results,
    ):
        taken = 0
        async for result in results:
            taken += 1
            await asyncio.sleep(0.02)  # a sink that is slower than the source
            ahead = microphone.given - taken
            print(
                f"block {taken:2}: {float(result['hertz']):3.0f} Hz, {result['note']!s:2}  source ahead: {'*' * ahead}"
            )


af.run(main())
