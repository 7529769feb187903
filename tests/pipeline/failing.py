"""User code that fails, apart from all that a test needs: processes import it, too."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

COUNT, AT = 7, 3  # items; an odd one of them, at which it happens


class OutcomeError(BaseException):
    """No Exception, as those of pytest.fail are none."""


class Unspeakable(Exception):  # noqa: N818  as above
    """Cannot be shown."""

    def __str__(self) -> str:
        raise OutcomeError("no text")

    __repr__ = __str__


class Leaving(SystemExit):
    """Ends the program, and cannot be pickled."""

    def __reduce__(self) -> Any:
        raise OutcomeError("no pickle")


KINDS: tuple[type[BaseException], ...] = (
    ValueError,
    Unspeakable,
    OutcomeError,
    asyncio.CancelledError,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    KeyboardInterrupt,
    SystemExit,
    Leaving,
)


class Fault:
    """Raises at one item while it is armed."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind
        self.is_armed = True

    def __call__(self, x: Any = AT) -> Any:
        if self.is_armed and x == AT:
            raise self.kind
        return x


class Judged:
    """Its truth value fails."""

    def __init__(self, fault: Fault, x: Any) -> None:
        self._fault, self._x = fault, x

    def __bool__(self) -> bool:
        self._fault(self._x)
        return True


class Opens:
    """Its `__iter__` fails."""

    def __init__(self, fault: Fault, x: Any) -> None:
        self._fault, self._x = fault, x

    def __iter__(self) -> Iterator[Any]:
        self._fault(self._x)
        return iter([self._x])


HERE = os.getpid()
#: Where an item fails on its way to a process and back.
ON_THE_WAY = ("packed here", "opened there", "called", "packed there", "opened here")


class Trouble:
    """An item that fails where it is told to, in which process ever."""

    def __init__(self, where: str, kind: type[BaseException], x: int, home: int = HERE) -> None:
        self.where, self.kind, self.x, self.home = where, kind, x, home

    def at(self, what: str) -> None:
        if self.where == f"{what} {'here' if os.getpid() == self.home else 'there'}":
            raise self.kind

    def __reduce__(self) -> Any:
        self.at("packed")
        return opened, (self.where, self.kind, self.x, self.home)


class Function:
    """Can be sent, and fails where it is made again."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        return made_again, (self.kind, HERE)

    def __call__(self, x: int) -> int:
        return x


def made_again(kind: type[BaseException], home: int) -> Any:
    if os.getpid() != home:
        raise kind
    return Function(kind)


def opened(where: str, kind: type[BaseException], x: int, home: int) -> Trouble:
    item = Trouble(where, kind, x, home)
    item.at("opened")
    return item


def called(item: Trouble) -> Trouble:
    if item.where == "called":
        raise item.kind
    return item


def judged(item: Trouble) -> Any:
    return Judged(Fault(item.kind), AT if item.where == "judged" else 0)


def iterated(item: Trouble) -> Any:
    return Opens(Fault(item.kind), AT) if item.where == "iterated" else [item]


def leave_when_asked(x: int) -> int:
    if x == AT:
        os._exit(3)
    return x
