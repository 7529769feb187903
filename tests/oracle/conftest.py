"""Fixtures that the comparisons with PyTorch share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def single_thread() -> Iterator[None]:
    """So small arrays take many times as long when torch spreads them over cores that are in use."""
    import torch  # tests are skipped where it is missing

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
