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
        #: Raises `RuntimeError` in a function that it calls itself.
        self.run = context.run
        self.is_in = False

    def call(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Any:
        """Call a function, also in one that is called so."""
        if self.is_in:
            return function(*arguments)
        self.is_in = True
        try:
            return self.run(function, *arguments)
        finally:
            self.is_in = False


quiet = _Quiet()
