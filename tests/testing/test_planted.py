"""Faults planted in engine, batcher, sessions, streams, pipelines, ranks, checkpoints and server: seeds find each."""

from __future__ import annotations

import re

import pytest

from tests.support.effort import slow
from tests.testing.planted import FAULTS, Planted, first_seed, plant
from tests.testing.simulated_programs import KINDS

#: Seeds under which a fault is to be found, and most events that are left of one.
SEEDS, STEPS = 20_000, 15


def failure(fault: Planted, seed: int) -> str:
    """What a program does under a seed, which does not hold what it promises."""
    try:
        KINDS[fault.kind].simulate(seed)
    except Exception as error:  # noqa: BLE001  it may be any
        return re.sub(r"0x[0-9a-f]+", "", repr(error))  # but for addresses
    pytest.fail("the fault is not found again")


#: One of each kind, which a few seeds find.
QUICK = [
    next(fault for fault in FAULTS if fault.kind == kind)
    for kind in ("budgets", "streams", "emissions", "batches", "sessions", "pipelines")
]


@pytest.mark.parametrize("fault", slow(FAULTS, but=QUICK), ids=str)
def test_it_is_found_replayed_and_shrunk(fault: Planted) -> None:
    with plant(fault):
        seed = first_seed(fault, SEEDS)
        assert seed is not None
        assert failure(fault, seed) == failure(fault, seed)
        assert len(KINDS[fault.kind].shrink(seed)) <= STEPS
