"""Calls in which NumPy warns of nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

import numpy as np


class _Quiet(threading.local):
    """Calls functions where nothing warns of infinities and the like; far quicker than `np.errstate`."""

    def __init__(self) -> None:
        context = copy_context()
        context.run(np.seterr, all="ignore")
        self.run: Callable[..., Any] = context.run

    def call(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Any:
        """Call a function that may be, or make, such a call itself: a context is entered once."""
        run, self.run = self.run, _called
        try:
            return run(function, *arguments)
        finally:
            self.run = run


def _called(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


quiet = _Quiet()
