"""Which ops fire as one in tests: as always, none, two at a time, or all that ever may, from the first frame on.

Or as many as may if all of them take time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actorflow.actors.op import FOREVER_NS
from actorflow.runtime import tapes
from actorflow.runtime.tapes import Limits

_ANY = 1 << 80
LIMITS = {
    "off": Limits(frames=FOREVER_NS),
    "two": Limits(frames=0, ops=2, tape_ns=_ANY, short_ns=_ANY),
    "all": Limits(frames=0, tape_ns=_ANY, short_ns=_ANY),
    "chains": Limits(frames=0, short_ns=-1, chain_ns=_ANY),
}
#: For all tests, by the environment variable ``ACTORFLOW_TEST_TAPES``.
CHOSEN = LIMITS.get(os.environ.get("ACTORFLOW_TEST_TAPES", ""), Limits())

#: For tests that must pass whichever ops fire as one.
EACH = pytest.mark.parametrize("limits", LIMITS)


@contextmanager
def limited(name: str) -> Iterator[None]:
    """Have programs that are made in a ``with`` block keep these limits; for tests of many examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tapes, "LIMITS", LIMITS[name])
        yield
