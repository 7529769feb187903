"""``python -m benchmarks.training.contender NAME CORES``: does the training steps that it reads orders for.

An order is a line of JSON, ``[task, batch, steps]``, and so is the answer, ``[ms, ms of the processor, ms in kernels,
loss]``, the times per step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from time import perf_counter, process_time
from typing import Any

import actorflow as af
from benchmarks.training.names import OURS, TORCH_LAST
from benchmarks.training.networks import Network, tensors
from benchmarks.training.tasks import MOMENTUM, RATE, TASKS, Task

#: Does some steps: (seconds in kernels, as far as they are told apart; loss after the steps).
Trained = Callable[[int], Awaitable[tuple[float, float]]]


async def serve(name: str, cores: int) -> None:
    """Read orders until there are no more."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS and Windows
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    tasks = {task.name: task for task in TASKS}
    async with AsyncExitStack() as stack:
        trainings: dict[tuple[str, int], Trained] = {}
        for line in sys.stdin:
            key = task, batch = tuple(json.loads(line)[:2])
            steps = json.loads(line)[2]
            if key not in trainings:
                make = _ours(stack) if name == OURS else _torch(name, cores)
                trainings[key] = make(tasks[task], batch)
            start, busy = perf_counter(), process_time()
            in_kernels, loss = await trainings[key](steps)
            figures = (perf_counter() - start, process_time() - busy, in_kernels)
            print(json.dumps([*(1e3 * seconds / steps for seconds in figures), loss]), flush=True)


def _ours(stack: AsyncExitStack) -> Callable[[Task, int], Trained]:
    def make(task: Task, batch: int) -> Trained:
        graph = af.Graph(task.name)
        x, y = graph.blob("x", (batch, *task.shape)), graph.blob("y", (batch,), "int64")
        loss = af.ops.softmax_loss(task.build()(x, training=True), y)
        updates = af.nn.SGD(RATE, momentum=MOMENTUM).minimize(loss)
        feeds = dict(zip((x, y), task.data(batch), strict=True))
        stack.push_async_callback(graph.aclose)

        async def train(steps: int) -> tuple[float, float]:
            before = _kernels_ns(graph)
            async with aclosing(graph.stream([feeds] * steps, fetch=[loss, updates], in_flight=1)) as results:
                async for result in results:
                    last = result[loss]
            return 1e-9 * (_kernels_ns(graph) - before), float(last)

        return train

    return make


def _kernels_ns(graph: af.Graph) -> int:
    return sum(profile.total_ns for profile in graph.engine.profile.values())


def _torch(name: str, cores: int) -> Callable[[Task, int], Trained]:
    import torch

    torch.set_num_threads(cores)
    memory_format = torch.channels_last if name == TORCH_LAST else torch.contiguous_format

    def make(task: Task, batch: int) -> Trained:
        weights = [_moved(torch, weight, memory_format) for weight in tensors(torch, _variables(task))]
        images, labels = (torch.from_numpy(array) for array in task.data(batch))
        # The network's functions take images as ours; what they permute them back to is of the format wanted.
        if images.ndim == 4:
            images = images.permute(0, 3, 1, 2).contiguous(memory_format=memory_format).permute(0, 2, 3, 1)
        optimizer = torch.optim.SGD(weights, RATE, MOMENTUM)

        def step() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(task.torch(Network(torch, weights), images), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        async def train(steps: int) -> tuple[float, float]:
            for _ in range(steps):
                last = step()
            return 0.0, float(last)

        return train

    return make


def _moved(torch: Any, weight: Any, memory_format: Any) -> Any:
    if weight.ndim != 4:
        return weight
    return weight.detach().contiguous(memory_format=memory_format).requires_grad_()


def _variables(task: Task) -> list[af.Variable]:
    """Variables of our network, with its initial values."""
    graph = af.Graph(task.name)
    task.build()(graph.blob("x", (1, *task.shape)), training=True)
    return list(graph.variables)


if __name__ == "__main__":
    af.run(serve(sys.argv[1], int(sys.argv[2])))
