"""Learn a text letter by letter with an LSTM, then write some more of it.

Run it with ``python examples/lstm_text.py FILE``, on any plain text of some hundred thousand letters. As it is by
default it takes about a minute on a CPU.
"""

import argparse
from contextlib import aclosing
from pathlib import Path

import numpy as np

import actorflow as af
from actorflow import nn, ops


class Writer:
    """The model, to be trained on windows of the text, and once more for one letter at a time."""

    def __init__(self, text: str, window: int, batch: int, hidden: int, rate: float) -> None:
        self.letters = sorted(set(text))
        self.codes = np.searchsorted(self.letters, list(text)).astype(np.int64)
        self.window, self.batch = window, batch
        self.graph = af.Graph("text")
        model = nn.LSTMLanguageModel(len(self.letters), hidden=hidden)
        self.tokens = self.graph.blob("tokens", (window, batch), "int64")
        self.next = self.graph.blob("next", (window, batch), "int64")
        scores, *_ = model(self.tokens)
        loss = ops.softmax_loss(scores, self.next)
        self.trainer = nn.Trainer(loss, nn.Adam(rate, clip=nn.Clip(norm=1.0)).minimize(loss))
        with self.graph.subgraph("writing"):
            self.letter = self.graph.blob("letter", (1, 1), "int64")
            self.states = [self.graph.blob(name, (1, 1, hidden)) for name in ("hidden", "cell")]
            self.written = model(self.letter, *self.states, training=False)

    def windows(self, steps: int):
        """Windows that begin anywhere, with the same windows one letter later."""
        random = np.random.default_rng(0)
        for _ in range(steps):
            starts = random.integers(0, len(self.codes) - self.window, self.batch)
            rows = starts + np.arange(self.window)[:, np.newaxis]
            yield {self.tokens: self.codes[rows], self.next: self.codes[rows + 1]}

    async def write(self, length: int) -> str:
        """Letters drawn one after the other, each by the scores of those before."""
        random, code = np.random.default_rng(0), int(self.codes[0])
        states, text = [np.zeros(state.shape, np.float32) for state in self.states], self.letters[code]
        for _ in range(length - 1):
            feeds = {self.letter: np.array([[code]]), **dict(zip(self.states, states, strict=True))}
            result = await self.graph.run(feeds, fetch=list(self.written))
            scores, *states = (result[blob] for blob in self.written)
            weights = np.exp((scores[0, 0] - scores.max()).astype(np.float64) / 0.7)  # sharper than it has learned
            code = int(random.choice(len(self.letters), p=weights / weights.sum()))
            text += self.letters[code]
        return text


async def main() -> None:
    parser = argparse.ArgumentParser(description="Learn a text letter by letter with an LSTM.")
    parser.add_argument("file", type=Path, metavar="FILE", help="the text, in UTF-8")
    parser.add_argument("--steps", type=int, default=3_000, help="of training")
    parser.add_argument("--batch", type=int, default=32, help="windows per step")
    parser.add_argument("--window", type=int, default=50, help="letters per window")
    parser.add_argument("--hidden", type=int, default=128, help="length of the state")
    parser.add_argument("--rate", type=float, default=0.003, help="of Adam")
    parser.add_argument("--length", type=int, default=300, help="letters to write")
    options = parser.parse_args()
    try:
        text = options.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{options.file}: expected a text in UTF-8: {error}") from error
    if len(text) <= options.window + 1:
        raise SystemExit(f"{options.file}: expected more than {options.window + 1} letters, got {len(text)}")
    writer = Writer(text, options.window, options.batch, options.hidden, options.rate)
    async with writer.graph:
        async with aclosing(writer.trainer.steps(lambda _: writer.windows(options.steps))) as steps:
            async for step in steps:
                if step.number % max(1, options.steps // 10) == 0:
                    print(f"step {step.number:,} of {options.steps:,}: loss {step.loss:.3f}")
        print(await writer.write(options.length))


af.run(main())
