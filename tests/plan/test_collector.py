"""The garbage collector is paused while much is made at once, and never left that way."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import actorflow as af
from actorflow.loop import at_once, collector_paused
from actorflow.runtime.build import building

SPEC = af.TensorSpec.of((1,))


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_runs_again_after_the_block() -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    graph = af.Graph("empty")
    with pytest.raises(af.GraphError, match="no ops to run"):
        graph.compile()
    assert gc.isenabled()


def test_what_the_application_turned_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


async def test_a_program_keeps_no_object_of_its_plan() -> None:
    """One number of the plan's that is kept holds the block of memory around it: a fifth of all for large graphs."""
    graph = af.Graph("long")
    y = graph.blob("x", (1,))
    for i in range(600):  # small numbers are there once for all
        y = graph.function(f"f{i}", np.negative, SPEC)(y)
    async with graph:
        await graph.run({"x": [1]})
        plan = graph.compile()
        of_plan = {id(number) for entry in [*plan.ops, *plan.slots] if (number := entry.index) > 256}
        program = at_once(building(plan, graph.engine.resources))
        kept = [actor.index for actor in program.ops]
        kept += [blob.slot for actor in program.ops for blob in (*actor.inputs, *actor.outputs)]
        assert len(of_plan) > 600
        assert not of_plan & set(map(id, kept))
