"""``actorflow serve``: models over HTTP until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from actorflow.cli.source import SourceOptions, check_options, kind_of, open_model
from actorflow.cli.terminal import count_text
from actorflow.errors import ActorflowError, GraphError
from actorflow.loop import run
from actorflow.runtime.model import Model

if TYPE_CHECKING:
    from aiohttp import web

_CONNECTIONS = 1024  # most connections that one process serves


class ServeOptions(NamedTuple):
    """Arguments of the command."""

    models: Sequence[str]
    host: str
    port: int
    source: SourceOptions
    drain_s: float
    keep_alive_s: float
    limits: Mapping[str, Any]  # limits that are given
    app: Mapping[str, Any]  # other arguments of `actorflow.serve.create_app`


def serve(options: ServeOptions) -> int:
    """Serve models until SIGTERM or Ctrl-C; a second one ends the process at once.

    Returns:
        0 after a signal if nothing was lost; 1 if requests had no answer when the time was over; 2 if a name, the
        token or a number is wrong.
    Raises:
        ActorflowError: if a model cannot be opened or served.
        OSError: if a file cannot be read or the address cannot be bound.
    """
    from actorflow.serve import Limits, create_app

    models = _sources(options.models, options.source)
    try:
        limits = Limits(**options.limits)
        app = create_app(models, limits=limits, own_names=[options.host], **options.app)
        return run(_serve(app, options))
    except ValueError as error:
        if isinstance(error, ActorflowError):
            raise
        print(f"actorflow serve: error: {error}", file=sys.stderr)
        return 2


def _sources(given: Sequence[str], options: SourceOptions) -> dict[str, dict[str, Callable[[], Model]]]:
    """Openers by name, version: ``NAME=MODEL``, ``NAME/VERSION=MODEL``, else by their files' or attributes' names."""
    labels = [each.rpartition("=") for each in given]
    check_options([source for _, _, source in labels], options)
    models: dict[str, dict[str, Callable[[], Model]]] = {}
    for label, equals, source in labels:
        own = Path(source).stem if kind_of(source) in {".onnx", ".af"} else source.rpartition(":")[2]
        name, _, version = (label if equals else own).partition("/")
        versions = models.setdefault(name, {})
        if (version or "1") in versions:
            raise GraphError(f"model {name!r} has two versions {version or '1'!r}: name them, NAME/VERSION=MODEL")
        versions[version or "1"] = partial(open_model, source, options)
    return models


async def _serve(app: web.Application, options: ServeOptions) -> int:
    from actorflow.serve import Server
    from actorflow.serve.app import SERVICE

    service = app[SERVICE]
    async with Server(
        app, options.host, options.port, max_connections=_CONNECTIONS, keep_alive_s=options.keep_alive_s
    ) as server:
        for hosted in service.models:
            how = "in batched runs" if hosted.unbatched is None else f"each request by itself: {hosted.unbatched}"
            print(f"model {hosted.label}, {how}", flush=True)
            if hosted.page is not None:
                print(f"  live at {server.url}{hosted.page}", flush=True)
        print(f"serving on {server.url}/v2", flush=True)
        gc.freeze()  # modules and graphs stay: a full collection, tens of ms long, need not look at them again
        with _first_signal() as stop:
            await stop.wait()
            waiting = count_text(service.in_flight, "request")
            sessions = sum(hosted.sessions for hosted in service.models)
            kept = f", with {count_text(sessions, 'session')} open" if sessions else ""
            print(
                f"ending, when {waiting} in flight {'has' if waiting == '1 request' else 'have'} an answer{kept}",
                flush=True,
            )
            lost = await server.drain(options.drain_s)
        answers = sum(sum(hosted.answers.values()) for hosted in service.models)
        print(f"{count_text(answers, 'answer')} in all, {count_text(lost, 'request')} without one", flush=True)
    return 1 if lost else 0


@contextmanager
def _first_signal() -> Iterator[asyncio.Event]:
    """An event that the first SIGTERM or Ctrl-C inside the ``with`` block sets; the second ends the process at once."""
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield stop
        return
    loop = asyncio.get_running_loop()

    def note(number: int) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C still ends the program, less gracefully
        for number in numbers:
            loop.add_signal_handler(number, note, number)
    try:
        yield stop
    finally:
        with contextlib.suppress(NotImplementedError):
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
