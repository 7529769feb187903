"""Tests in this folder compute on a CUDA device, and are marked so."""

from __future__ import annotations

from types import ModuleType

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the tests below this folder alone."""
    item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def cupy() -> ModuleType:
    """CuPy; test modules must not import it themselves, since they are collected without it, too."""
    return __import__("cupy")
