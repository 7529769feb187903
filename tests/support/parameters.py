"""Operations with other parameters: any that a file may have, one or several of them changed, and what becomes of them.

As a program it tries some, drawn from a seed, each with little processor time and memory, and says what is wrong:
``python -m tests.support.parameters LIBRARY SEED FIRST COUNT``. It is killed by the first that takes longer, which is
the last line that it has written.
"""

from __future__ import annotations

import random
import resource
import sys
import warnings
from dataclasses import fields, replace
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.checkpoint.values import check_fits, hints_of
from actorflow.ops.operation import inferred
from actorflow.ops.registry import find_kernel, load_library
from actorflow.spec import TensorSpec
from tests.operations import samples

#: Integers that parameters become: small ones, and such that no work may be in proportion to.
SMALL, HUGE = (-7, -3, -2, -1, 0, 1, 2, 3, 5), (2_000, 1 << 20, 1 << 31, 1 << 40, 1 << 62, 1 << 100)
FLOATS = (0.0, -1.0, 0.5, 1.5, 1e300, float("nan"), float("inf"))
#: Bytes that results may have: work may be in proportion to them.
MOST_BYTES = 1 << 22
#: Elements of an input.
_MOST_ELEMENTS = 20_000
#: Processor time that one may take, to the next second, and memory beside what there is.
LIMIT_S, LIMIT_BYTES = 2, 1 << 30

Case = tuple[ops.Operation, list[Any]]


def cases() -> list[Case]:
    """Operations of all kinds that have parameters, and their inputs."""
    found = [(sample.operation, sample.inputs()) for _, sample in samples()]
    small = [(own, inputs) for own, inputs in found if sum(x.size for x in inputs) <= _MOST_ELEMENTS]
    return [(own, inputs) for own, inputs in small if parameters(own)]


def parameters(operation: ops.Operation) -> list[str]:
    """Names of an operation's parameters."""
    return [field.name for field in fields(operation) if field.init]


def changed(draw: random.Random, value: Any) -> Any:
    """A value of some type in the place of another one."""
    kind = type(value)
    if kind is bool:
        return not value
    if kind is int or isinstance(value, np.integer):
        return draw.choice([draw.choice(SMALL), draw.choice(HUGE), -draw.choice(HUGE), value + draw.randint(-2, 2)])
    if kind is float:
        return draw.choice(FLOATS)
    if kind is tuple:
        if not value or draw.random() < 0.2:
            other = draw.choice([value[:-1], value[::-1], (*value, *value[-1:]), value * 2, ()])
            return draw.choice([other, draw.choice(SMALL), draw.choice(HUGE), None])
        if draw.random() < 0.3:  # all of them alike
            other = changed(draw, value[0])
            return (other,) * len(value)
        at = draw.randrange(len(value))
        return (*value[:at], changed(draw, value[at]), *value[at + 1 :])
    if value is None:
        return draw.choice([*SMALL, *HUGE, (0,), (-1,), (0, 0), (0, 1), (1 << 40,)])
    if kind is TensorSpec:
        shape = changed(draw, value.shape)
        return TensorSpec(shape, value.dtype) if isinstance(shape, tuple) else value
    if isinstance(value, ops.Operation):
        return varied(draw, value, 1)
    return value


def varied(draw: random.Random, operation: Any, most: int) -> Any:
    """The operation with some of its parameters changed; ValueError for what no file may have."""
    names = parameters(operation)
    chosen = draw.sample(names, draw.randint(1, min(most, len(names))))
    other = {name: changed(draw, getattr(operation, name)) for name in chosen}
    for name, value in other.items():
        check_fits(value, hints_of(type(operation))[name])
    return replace(operation, **other)


def windowed(draw: random.Random) -> Case:
    """A pooling or convolution of a few pixels, with windows and borders that are small or not."""

    def each(*among: int) -> Any:
        return draw.choice([draw.choice(among), tuple(draw.choice(among) for _ in range(2))])

    sizes, x = (1, 2, 3, 2_000, 1 << 20, 1 << 30), np.ones((1, 6, 6, 2), "f")
    kernel, stride = each(*sizes), each(*sizes)
    pads = [n + less for n in sizes for less in (-1, 0)]
    pad = draw.choice([0, each(*pads), kernel - 1 if isinstance(kernel, int) else tuple(n - 1 for n in kernel)])
    dilation = draw.choice([1, each(*sizes)])
    if draw.random() < 0.7:
        made: Any = draw.choice([ops.AveragePool, ops.MaxPool])
        more = {"return_indices": draw.random() < 0.5} if made is ops.MaxPool else {"count_pad": draw.random() < 0.5}
        return made(kernel, stride, pad, draw.random() < 0.5, dilation=dilation, **more), [x]
    groups = draw.choice([1, 2])
    weight = np.ones((*draw.choice([(1, 1), (2, 3)]), 2 // groups, 4), "f")
    return ops.Conv(stride, pad, dilation, groups), [x, weight]


def what_is_wrong(operation: ops.Operation, inputs: list[Any], libraries: tuple[str, ...]) -> str | None:
    """Compute an operation that may be refused; None if that is right, or all that comes of it."""
    try:
        operation.check_arity(len(inputs))
        specs = inferred(operation, [TensorSpec(x.shape, x.dtype) for x in inputs])
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  of whatever type: a file is refused for it
        return None
    if specs is None or sum(spec.size_bytes for spec in specs) > MOST_BYTES:
        return None
    kernel = find_kernel(operation, "cpu", (inputs[0] if inputs else specs[0]).dtype, libraries=libraries)
    more = [3] if kernel.random else []
    try:
        with np.errstate(all="ignore"):
            if kernel.returns:
                found = kernel.function(operation, [*inputs], None, *more)
                kernel.check(found, specs)
            else:
                kernel.function(operation, [*inputs], [np.empty(*spec) for spec in specs], *more)
    except MemoryError:
        raise
    except (af.GraphError, IndexError, ValueError, np.linalg.LinAlgError) as error:
        # Values may be wrong, as an index is that a smaller axis does not have; types must not.
        if "index" in str(error) or "labels must be" in str(error) or "indices must be" in str(error):
            return None
        return f"{type(error).__name__}: {error}"
    return None


def limit(seconds: int | None) -> None:
    """Leave the process so much processor time from now on; None for any."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = resource.RLIM_INFINITY if seconds is None else int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def try_some(library: str, seed: int, first: int, count: int) -> None:
    """Try some; each is written down before it is computed, and what is wrong with it behind it."""
    known, libraries = cases(), tuple(dict.fromkeys((library, "numpy")))
    for each in libraries:
        load_library("cpu", each)
    for number in range(first, count):
        draw = random.Random(f"{seed} {number}")
        try:
            if number % 4:
                operation, inputs = draw.choice(known)
                operation = varied(draw, operation, 3)
            else:
                operation, inputs = windowed(draw)
        except (af.GraphError, ValueError):
            continue
        types = ", ".join(str(TensorSpec(x.shape, x.dtype)) for x in inputs)
        print(number, f"{operation!r:.300} of {types}", flush=True)
        limit(LIMIT_S)
        wrong = what_is_wrong(operation, inputs, libraries)
        limit(None)
        if wrong is not None:
            print(f"WRONG: {wrong}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("error")
    with open("/proc/self/statm") as pages:
        memory_bytes = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes + LIMIT_BYTES, resource.RLIM_INFINITY))
    try_some(sys.argv[1], *map(int, sys.argv[2:]))
