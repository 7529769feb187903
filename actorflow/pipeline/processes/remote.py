"""The program of a worker process: it calls a function for items that it is sent, and messages between processes.

A message is the length of the pickle and the number of buffers, the length of each, the pickle, the buffers. Small
arrays are a part of the pickle: each then has memory of its own where it arrives. Large ones are neither copied into
the pickle nor out of it (pickle protocol 5, out-of-band buffers).
"""

from __future__ import annotations

import gc
import pickle
import random
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Generator
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import text_of
from actorflow.graph.nodes import PACKAGE

#: Pickle and buffers, as they came.
Message = tuple[memoryview, list[memoryview]]

_HEAD = struct.Struct("<QI")
_LARGE = 1 << 15  # bytes from which an array is not copied into the pickle


class _Rows(NamedTuple):
    """Small arrays of one shape and dtype, stacked: pickling each takes several times as long."""

    rows: npt.NDArray[Any]


def gathered(values: list[Any]) -> Any:
    """The values themselves, or their form in a message if they are small arrays of one form."""
    first = values[0] if values else None
    if type(first) is not np.ndarray or not first.ndim or first.dtype.hasobject or first.nbytes >= _LARGE:
        return values
    dtype, shape = first.dtype, first.shape
    for value in values:
        if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
            return values
    return _Rows(np.stack(values))


def scattered(values: Any) -> list[Any]:
    """The values that were gathered; each array has memory of its own."""
    if isinstance(values, _Rows):
        return [row.copy() for row in values.rows]
    items: list[Any] = values
    return items


def pack(value: Any) -> list[memoryview]:
    """A message, as memory to be sent in this order; it refers to the value's arrays, and does not copy large ones."""
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < _LARGE:
            return True
        buffers.append(memory)
        return False

    body = pickle.dumps(value, 5, buffer_callback=is_small)
    sizes = struct.pack(f"<{len(buffers)}Q", *[buffer.nbytes for buffer in buffers])
    return [memoryview(_HEAD.pack(len(body), len(buffers)) + sizes), memoryview(body), *buffers]


def reading() -> Generator[memoryview, None, Message]:
    """Read one message: yields memory to be filled with the bytes that come next."""
    head = bytearray(_HEAD.size)
    yield memoryview(head)
    size, count = _HEAD.unpack(head)
    sizes = bytearray(8 * count)
    if count:
        yield memoryview(sizes)
    parts = []
    for length in (size, *struct.unpack(f"<{count}Q", sizes)):
        part = np.empty(length, np.uint8).data
        yield part
        parts.append(part)
    return parts[0], parts[1:]


def open_message(message: Message) -> Any:
    """The value in a message; its large arrays are the message's buffers."""
    body, buffers = message
    return pickle.loads(body, buffers=buffers)  # noqa: S301  both processes are this program


_CAUSES = 10  # most causes of an error that are sent with it


class Answer(NamedTuple):
    """Results of some items, or errors."""

    elapsed_ns: int  # of the calls together
    results: list[Any]  # one for each item; `gathered` on the way
    errors: dict[int, BaseException]  # in place of results, by index; `_Sent` on the way
    error: BaseException | None = None  # why there are no results at all


class Task(NamedTuple):
    """The first message to a process."""

    fn: Callable[[Any], Any]
    seed: int  # of the global generators of `random` and NumPy, which a fork server's children would share


class _Sent(Exception):  # noqa: N818  it stands for the error on its way
    """An error with its traceback and its causes, which pickle forgets. It arrives as the error itself."""

    def __init__(self, error: BaseException, known: dict[int, _Sent | None] | None = None) -> None:
        known = {} if known is None else known
        known[id(error)] = None  # to those that it stands behind itself
        for one in (error.__cause__, error.__context__):
            if one is not None and id(one) not in known and len(known) < _CAUSES:
                known[id(one)] = _Sent(one, known)
        around = [known.get(id(one)) for one in (error.__cause__, error.__context__)]
        frames = traceback.extract_tb(error.__traceback__)
        while frames and frames[0].filename.startswith(PACKAGE):
            del frames[0]
        self._parts = (_sendable(error), "".join(frames.format()), *around, error.__suppress_context__)

    def __reduce__(self) -> Any:
        return _received, self._parts


def _received(
    error: BaseException,
    lines: str,
    cause: BaseException | None,
    context: BaseException | None,
    suppress_context: bool,
) -> BaseException:
    # Not by assignment, which the error's class may refuse; a frozen dataclass does.
    for name, value in (("__cause__", cause), ("__context__", context), ("__suppress_context__", suppress_context)):
        BaseException.__dict__[name].__set__(error, value)
    if lines:
        vars(error).setdefault("__notes__", []).append(f"in a worker process:\n{lines.rstrip()}")
    return error


def serve(link: socket.socket) -> None:
    """Call for items as they come, until the other end is closed.

    The first message is a `Task`, the others are lists of items; each gets its answer, the first one an empty one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one says when it ends
    with link:
        try:
            fn = _function(_receive(link))
            gc.freeze()  # no object that is there by now will ever be garbage
            _send(link, pack(Answer(0, [], {})))
            while True:
                _send(link, _answer(fn, _receive(link)))
        except (EOFError, ConnectionError):
            return


def _function(message: Message) -> Callable[[Any], Any]:
    try:
        task: Task = open_message(message)
    except BaseException as error:  # noqa: BLE001  each item gets it
        failure, lines = error, error.__traceback__

        def fail(_: Any) -> Any:
            raise failure.with_traceback(lines)

        return fail
    random.seed(task.seed)
    np.random.seed(task.seed)  # noqa: NPY002  the function may draw from it
    return task.fn


def _answer(fn: Callable[[Any], Any], message: Message) -> list[memoryview]:
    try:
        items = open_message(message)
    except BaseException as error:  # noqa: BLE001  the loop gets it
        return pack(Answer(0, [], {}, _Sent(error)))
    results: list[Any] = []
    errors: dict[int, BaseException] = {}
    start = perf_counter_ns()
    for item in items:
        try:
            results.append(fn(item))
        except BaseException as error:  # noqa: BLE001  the loop gets it
            errors[len(results)] = _Sent(error)
            results.append(None)
    elapsed_ns = perf_counter_ns() - start
    try:
        return pack(Answer(elapsed_ns, gathered(results), errors))
    except BaseException:  # noqa: BLE001  some of the results cannot be sent; the others shall be
        for index, result in enumerate(results):
            try:
                pickle.dumps(result)
            except BaseException as error:  # noqa: BLE001  as above
                results[index], errors[index] = None, _Sent(error)
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
