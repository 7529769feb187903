"""One account of the bytes that requests hold, with one limit for all of them."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from actorflow.serve.answers import RETRY, refused
from actorflow.threads import held_at_fork


class Account:
    """Bytes that all requests of a server hold: bodies, arrays read of them, pictures as they are decoded, answers.

    Attributes:
        limit_bytes: Most that they may hold.
        held_bytes: Bytes that they hold now.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = held_at_fork(threading.Lock())  # pictures are decoded in threads

    def move(self, size_bytes: int) -> bool:
        """Hold so many bytes more, or fewer; False, and nothing changed, where there is no room for them."""
        with self._lock:
            if size_bytes > max(self.limit_bytes - self.held_bytes, 0):
                return False
            self.held_bytes += size_bytes
            return True


class Share:
    """Bytes of an account that one request holds, until the end of the ``with`` block."""

    def __init__(self, account: Account) -> None:
        self.size_bytes = 0
        self._account = account

    def add(self, size_bytes: int) -> None:
        """Hold so many bytes more.

        Raises:
            Refused: with 503, where what others hold leaves no room for them.
        """
        if not self._account.move(size_bytes):
            raise refused(503, "the requests that are being answered have no room for another one", RETRY)
        self.size_bytes += size_bytes

    def keep(self, size_bytes: int) -> None:
        """Hold so many bytes in place of the others; raises as `add` does."""
        self.add(size_bytes - self.size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.keep(0)
