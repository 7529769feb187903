"""The library computes on the threads that call it, several at once, on idle cores, and in the child of a fork."""

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
from actorflow.ops.registry import lookup
from actorflow.spec import TensorSpec
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
        assert threads() - running == set()  # one of an earlier test may end
    finally:
        found.set_threads(before)


def threads() -> set[Any]:
    """Threads of this process, those of C among them."""
    tasks = Path("/proc/self/task")
    return {*tasks.iterdir()} if tasks.exists() else {thread.ident for thread in threading.enumerate()}


def test_several_threads_are_in_one_primitive(by_default: None) -> None:
    """Each with its own memory objects: what one thread has set, no other one sets anew before it has computed."""
    operation, x, weight = Conv(pad=1), X[:, :4, :4, :8].copy(), WEIGHT[:, :, :8, :8].copy()
    images = [x * factor for factor in range(1, 5)]
    found = lookup(operation, "cpu", "onednn", x.dtype)
    assert found is not None
    function = found.bound(operation, [TensorSpec(each.shape, each.dtype) for each in (x, weight)]).function
    weight.flags.writeable = False
    expected = [np.empty_like(x) for _ in images]
    for image, y in zip(images, expected, strict=True):
        function(operation, [image, weight], [y])
    together = threading.Barrier(4)

    def many(i: int) -> int:
        """Number of results that are wrong."""
        together.wait()
        wrong = 0
        for _ in range(3_000):
            y = np.empty_like(x)
            function(operation, [images[i], weight], [y])
            wrong += not np.array_equal(y, expected[i])
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(many, range(4))] == [0] * 4


FORKED = """
import os
import warnings
import numpy as np
import actorflow as af
from actorflow.devices import team
from actorflow.ops.onednn import steps
warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks

graph = af.Graph("g", libraries=["onednn"])
x = graph.blob("x", (1, 28, 28, 64))
y = af.ops.conv(x, graph.constant(np.ones((3, 3, 64, 64), "f")), pad=1)
feeds = {x: np.ones((1, 28, 28, 64), "f")}
team.cores, steps.SHARED_NS, steps.Worth.judge = lambda: 2, 0, lambda *_: None
seen = []
compute = steps.Compute.__call__
steps.Compute.__call__ = lambda self, *arrays: [seen.append(self._primitive.threads), compute(self, *arrays)]


def results():
    # On several threads from the third time on, where OpenMP has them; a child has none of its parent's.
    seen.clear()
    found = [graph.run_sync(feeds)[y].tobytes() for _ in range(5)]
    assert steps.libdnnl().set_threads is None or 2 in seen, seen
    return {*found}


(expected,) = results()
child = os.fork()
if not child:
    os._exit(int(results() != {expected}))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("loaded")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_the_child_of_a_fork_computes() -> None:
    found = run_program("-c", FORKED)
    assert (found.returncode, found.stdout.split()) == (0, ["0"]), found.stderr
