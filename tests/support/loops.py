"""Kinds of event loops that tests run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_factories() -> dict[str, LoopFactory]:
    """Makers of loops by the name of their kind."""
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:  # Windows
        return factories
    return {**factories, "uvloop": uvloop.new_event_loop}
