"""The library computes on the threads that call it, several at once, and in the child of a fork."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorflow.ops.nn.conv import Conv
from actorflow.ops.onednn.library import libdnnl
from tests.support.warm import run_program

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((1, 28, 28, 64)).astype("f")
WEIGHT = RANDOM.standard_normal((3, 3, 64, 64)).astype("f")


def test_threads_of_openmp_are_neither_used_nor_set(compute: Any) -> None:
    found = libdnnl()
    if found.set_threads is None:
        pytest.skip("this library was made for one thread")
    before = found.get_threads()
    found.set_threads(7)
    try:
        running = threads()
        compute(Conv(pad=1), X, WEIGHT)
        assert found.get_threads() == 7
        assert threads() == running
    finally:
        found.set_threads(before)


def threads() -> int:
    """Threads of this process, those of C among them."""
    tasks = Path("/proc/self/task")
    return len([*tasks.iterdir()]) if tasks.exists() else threading.active_count()


def test_several_threads_are_in_one_primitive(compute: Any) -> None:
    operation, images = Conv(pad=1), [X * factor for factor in range(1, 9)]
    WEIGHT.flags.writeable = False
    expected = [compute(operation, image, WEIGHT)[0] for image in images]
    together = threading.Barrier(4)

    def some(first: int) -> list[np.ndarray]:
        together.wait()
        return [compute(operation, image, WEIGHT)[0] for image in images[first:] + images[:first]]

    with ThreadPoolExecutor(4) as pool:
        for first, found in enumerate(pool.map(some, range(4))):
            for mine, its in zip(found, expected[first:] + expected[:first], strict=True):
                np.testing.assert_array_equal(mine, its)


FORKED = """
import os
import warnings
import numpy as np
import actorflow as af
warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks

graph = af.Graph("g", libraries=["onednn"])
x = graph.blob("x", (1, 28, 28, 64))
y = af.ops.conv(x, graph.constant(np.ones((3, 3, 64, 64), "f")), pad=1)
feeds = {x: np.ones((1, 28, 28, 64), "f")}
expected = graph.run_sync(feeds)[y]
child = os.fork()
if not child:
    os._exit(int(not (graph.run_sync(feeds)[y] == expected).all()))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("loaded")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_the_child_of_a_fork_computes() -> None:
    found = run_program("-c", FORKED)
    assert (found.returncode, found.stdout.split()) == (0, ["0"]), found.stderr
