"""The program of a worker process: it calls a function for items that it is sent."""

from __future__ import annotations

import gc
import pickle
import signal
import socket
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from actorflow.errors import text_of
from actorflow.pipeline.processes.messages import Message, gathered, open_message, pack, reading


class Answer(NamedTuple):
    """Results of some items, or errors."""

    elapsed_ns: int  # of the calls together
    results: list[Any]  # one for each item; `gathered` on the way
    errors: dict[int, BaseException]  # in place of results, by index
    error: BaseException | None = None  # why there are no results at all


def serve(link: socket.socket) -> None:
    """Call for items as they come, until the other end is closed.

    The first message is the function, the others are lists of items; each gets its answer, the first one an empty one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one says when it ends
    with link:
        try:
            fn = _function(_receive(link))
            gc.freeze()  # nothing of what is there by now will ever be garbage
            _send(link, pack(Answer(0, [], {})))
            while True:
                _send(link, _answer(fn, _receive(link)))
        except (EOFError, ConnectionError):
            return


def _function(message: Message) -> Callable[[Any], Any]:
    try:
        fn: Callable[[Any], Any] = open_message(message)
    except BaseException as error:  # noqa: BLE001  each item gets it
        failure = _sendable(error)

        def fail(_: Any) -> Any:
            raise failure

        return fail
    return fn


def _answer(fn: Callable[[Any], Any], message: Message) -> list[memoryview]:
    try:
        items = open_message(message)
    except BaseException as error:  # noqa: BLE001  the loop gets it
        return pack(Answer(0, [], {}, _sendable(error)))
    results: list[Any] = []
    errors: dict[int, BaseException] = {}
    start = perf_counter_ns()
    for item in items:
        try:
            results.append(fn(item))
        except BaseException as error:  # noqa: BLE001  the loop gets it
            errors[len(results)] = _sendable(error)
            results.append(None)
    elapsed_ns = perf_counter_ns() - start
    try:
        return pack(Answer(elapsed_ns, gathered(results), errors))
    except BaseException:  # noqa: BLE001  some of the results cannot be sent; the others shall be
        for index, result in enumerate(results):
            try:
                pickle.dumps(result)
            except BaseException as error:  # noqa: BLE001  as above
                results[index], errors[index] = None, _sendable(error)
        return pack(Answer(elapsed_ns, results, errors))


def _sendable(error: BaseException) -> BaseException:
    """An error that survives the way back, and means the same there: some cannot be made again from their arguments."""
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  it was made here
        if isinstance(copy, BaseException):
            return error
    except BaseException:  # noqa: BLE001, S110  as above
        pass
    message = f"{type(error).__name__}: {text_of(error)}"
    kinds = (SystemExit, KeyboardInterrupt, Exception)
    kind = next((kind for kind in kinds if isinstance(error, kind)), BaseException)
    return RuntimeError(message) if kind is Exception else kind(message)


def _receive(link: socket.socket) -> Message:
    steps = reading()
    try:
        while True:
            memory = next(steps)
            while memory:
                count = link.recv_into(memory)
                if not count:
                    raise EOFError
                memory = memory[count:]
    except StopIteration as end:
        message: Message = end.value
        return message


def _send(link: socket.socket, parts: list[memoryview]) -> None:
    for part in parts:
        link.sendall(part)
