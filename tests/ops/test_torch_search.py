"""A search for calls of torch's kernels that harm the process or give something else than NumPy's."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

from tests.ops.torch_search import FAULTS, draw, start
from tests.support.effort import FULL

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no memory can be fenced"),
    pytest.mark.skipif(
        find_spec("torch") is None and not os.environ.get("CI"), reason="torch is not installed: make test WITH=torch"
    ),
]

#: Draws of each search, of three or four operations each.
DRAWS = 2_000 if FULL else 20
#: What the searches run with; each takes seconds to import torch.
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "older processor": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
if FULL:
    ENVIRONMENTS |= {"threads": {}, "one thread": {"OMP_NUM_THREADS": "1"}}


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_torch_harms_nothing(environment: dict[str, str]) -> None:
    found = start(len(environment), 0, DRAWS, **environment)  # another seed for each
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS if FULL else ["writes", "is wrong"])
def test_what_is_planted_is_found_and_named(fault: str) -> None:
    found = start(0, 0, 1, fault)
    assert found
    assert all(line.endswith(tuple(map(str, draw(0, 0)))) for line in found)
