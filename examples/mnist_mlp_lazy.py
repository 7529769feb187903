"""Minerva's perceptron in array code: it reads like NumPy, and runs as a dataflow graph, within a memory budget.

Run it with ``python examples/mnist_mlp_lazy.py DIR``. DIR holds the four IDX files of Fashion-MNIST or MNIST, with or
without .gz; nothing is downloaded. With ``--numpy`` the same code runs on NumPy's arrays, for comparison.
"""

import argparse
import time
from itertools import count, islice
from pathlib import Path

import numpy as np

import actorflow as af

RATE = 0.1


def forward(xp, images, weights):
    """Activations of the hidden layer, and scores of the classes."""
    hidden = xp.maximum(images @ weights["w1"] + weights["b1"], 0.0)
    return hidden, hidden @ weights["w2"] + weights["b2"]


def step(xp, images, targets, weights):
    """One step of training, its gradients by hand, as in Minerva's example; gives the loss."""
    hidden, scores = forward(xp, images, weights)
    exp = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
    chances = exp / xp.sum(exp, axis=1, keepdims=True)
    loss = -xp.sum(xp.log(xp.sum(chances * targets, axis=1))) / images.shape[0]
    dscores = (chances - targets) / images.shape[0]
    dhidden = dscores @ weights["w2"].T * xp.astype(hidden > 0.0, xp.float32)
    weights["w2"] -= RATE * (hidden.T @ dscores)
    weights["b2"] -= RATE * xp.sum(dscores, axis=0)
    weights["w1"] -= RATE * (images.T @ dhidden)
    weights["b1"] -= RATE * xp.sum(dhidden, axis=0)
    return loss


def train(xp, data, steps, batch):
    """Train, and give the accuracy on the test images."""
    classes = len(data.classes)
    rng = np.random.default_rng(0)
    size = int(np.prod(data.train.images.shape[1:]))
    shapes = {"w1": (size, 256), "b1": (256,), "w2": (256, classes), "b2": (classes,)}
    weights = {
        name: xp.asarray(rng.normal(0, 0.05 if len(shape) > 1 else 0, shape).astype("float32"))
        for name, shape in shapes.items()
    }
    batches = (part for epoch in count() for part in data.train.shuffled(batch, np.random.default_rng((0, epoch))))
    for number, part in enumerate(islice(batches, steps), 1):
        images = xp.asarray(part.images.reshape(batch, size))
        targets = xp.asarray(np.eye(classes, dtype=np.float32)[part.labels])
        loss = step(xp, images, targets, weights)
        if number % max(1, steps // 10) == 0:
            print(f"step {number:,} of {steps:,}: loss {float(loss):.3f}")
    right = xp.asarray(0)
    for part in data.test.in_order(batch):
        _, scores = forward(xp, xp.asarray(part.images.reshape(batch, size)), weights)
        guesses = xp.argmax(scores[: part.valid, :], axis=1)
        right = right + xp.sum(xp.astype(guesses == xp.asarray(part.labels[: part.valid]), xp.int64))
    return int(right) / len(data.test)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a perceptron on Fashion-MNIST or MNIST in array code.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the IDX files are")
    parser.add_argument("--steps", type=int, default=4_680, help="of training; 468 are an epoch of the whole set")
    parser.add_argument("--batch", type=int, default=128, help="images per step")
    parser.add_argument("--budget", type=int, default=64, metavar="MIB", help="memory for all arrays")
    parser.add_argument("--numpy", action="store_true", help="run the same code on NumPy's arrays")
    options = parser.parse_args()
    try:
        data = af.data.fashion_mnist(options.directory).standardized()
    except af.DataError as error:
        raise SystemExit(str(error)) from error
    start = time.perf_counter()
    with af.array.session(memory_budget=options.budget * 2**20) as session:
        accuracy = train(np if options.numpy else af.array, data, options.steps, options.batch)
    elapsed_s = time.perf_counter() - start
    print(f"{elapsed_s:.1f} s, at most {session.memory.pool.peak_bytes / 2**20:.0f} MiB in arrays of the session")
    print(f"{accuracy:.1%} of {len(data.test):,} test images recognized")


main()
