"""Minerva's perceptron in array code: it reads like NumPy, and runs as a dataflow graph, within a memory budget.

Run it with ``python examples/mnist_mlp_lazy.py DIR``. DIR holds the four IDX files of Fashion-MNIST or MNIST, with or
without .gz; nothing is downloaded. With ``--numpy`` it runs on NumPy's arrays, for comparison; its gradients are then
written by hand, as in Minerva's example.
"""

import argparse
import time
from itertools import count, islice
from pathlib import Path

import numpy as np

import actorflow as af
import actorflow.array as xp

RATE = 0.1


def forward(space, images, weights):
    """Activations of the hidden layer, and scores of the classes; of either kind of arrays."""
    hidden = space.maximum(images @ weights["w1"] + weights["b1"], 0.0)
    return hidden, hidden @ weights["w2"] + weights["b2"]


def loss_of(weights, images, labels):
    """The loss, which is made small."""
    _, scores = forward(xp, images, weights)
    return xp.nn.softmax_loss(scores, labels)


loss_and_slopes = af.value_and_grad(loss_of, cache=True)


def step(images, labels, weights):
    """One step of training; gives the loss."""
    images, labels = xp.asarray(images), xp.asarray(labels)
    loss, slopes = loss_and_slopes(weights, images, labels)
    for name, slope in slopes.items():
        weights[name] -= RATE * slope
    return loss


def step_by_hand(images, labels, weights):
    """The same on NumPy's arrays."""
    hidden, scores = forward(np, images, weights)
    exp = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    chances = exp / np.sum(exp, axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.mean(np.log(chances[rows, labels]))
    chances[rows, labels] -= 1.0
    dscores = chances / np.float32(len(labels))
    dhidden = dscores @ weights["w2"].T * (hidden > 0.0)
    slopes = {
        "w1": images.T @ dhidden,
        "b1": np.sum(dhidden, axis=0),
        "w2": hidden.T @ dscores,
        "b2": np.sum(dscores, axis=0),
    }
    for name, slope in slopes.items():
        weights[name] -= RATE * slope
    return loss


def train(data, steps, batch, by_hand):
    """Train, and give the accuracy on the test images."""
    classes = len(data.classes)
    rng = np.random.default_rng(0)
    size = int(np.prod(data.train.images.shape[1:]))
    shapes = {"w1": (size, 256), "b1": (256,), "w2": (256, classes), "b2": (classes,)}
    space = np if by_hand else xp
    weights = {
        name: space.asarray(rng.normal(0, 0.05 if len(shape) > 1 else 0, shape).astype("float32"))
        for name, shape in shapes.items()
    }
    batches = (part for epoch in count() for part in data.train.shuffled(batch, np.random.default_rng((0, epoch))))
    for number, part in enumerate(islice(batches, steps), 1):
        images = part.images.reshape(batch, size)
        loss = (step_by_hand if by_hand else step)(images, part.labels, weights)
        if number % max(1, steps // 10) == 0:
            print(f"step {number:,} of {steps:,}: loss {float(loss):.3f}")
    right = 0
    for part in data.test.in_order(batch):
        _, scores = forward(space, space.asarray(part.images.reshape(batch, size)), weights)
        guesses = space.argmax(scores[: part.valid, :], axis=1)
        right += int(space.sum(guesses == space.asarray(part.labels[: part.valid])))
    return right / len(data.test)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a perceptron on Fashion-MNIST or MNIST in array code.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the IDX files are")
    parser.add_argument("--steps", type=int, default=4_680, help="of training; 468 are an epoch of the whole set")
    parser.add_argument("--batch", type=int, default=128, help="images per step")
    parser.add_argument("--budget", type=int, default=64, metavar="MIB", help="memory for all arrays")
    parser.add_argument("--numpy", action="store_true", help="use NumPy's arrays, and gradients written by hand")
    options = parser.parse_args()
    try:
        data = af.data.fashion_mnist(options.directory).standardized()
    except af.DataError as error:
        raise SystemExit(str(error)) from error
    start = time.perf_counter()
    with xp.session(memory_budget=options.budget * 2**20) as session:
        accuracy = train(data, options.steps, options.batch, options.numpy)
    elapsed_s = time.perf_counter() - start
    memory = "" if options.numpy else f", at most {session.peak_bytes / 2**20:.0f} MiB in arrays"
    print(f"{elapsed_s:.1f} s{memory}")
    print(f"{accuracy:.1%} of {len(data.test):,} test images recognized")


main()
