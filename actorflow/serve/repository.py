"""Models that are loaded and unloaded while a server runs, by Triton's model repository extension of the protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from actorflow.errors import text_of, visible
from actorflow.loop import end, wait_out
from actorflow.serve.answers import refused
from actorflow.serve.models import Hosted, Models, opened_model
from actorflow.threads import in_thread

_log = logging.getLogger(__name__)

#: How often it is looked whether a version that was replaced has still something to do.
_LOOK_S = 0.05


class Repository:
    """Opens models and closes them; one that is replaced or unloaded ends what it has begun first.

    Args:
        models: The models.
        show: Called with a version that has taken the place of another one, for its page.
        end_streams: Called with a version that was unloaded, when its requests have been answered.
    """

    def __init__(
        self,
        models: Models,
        show: Callable[[Hosted], Awaitable[None]],
        end_streams: Callable[[Hosted], Awaitable[None]],
    ) -> None:
        self._models = models
        self._show = show
        self._end_streams = end_streams
        self._open: dict[Hosted, AsyncExitStack] = {}
        self._tasks: dict[asyncio.Task[None], Hosted | None] = {}  # and what they close
        self._turn: asyncio.Lock

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have the models that are served open inside the block."""
        self._turn = asyncio.Lock()
        try:
            for hosted in self._models:
                await self._enter(hosted)
            yield
        finally:
            tasks = [*self._tasks]
            for task in tasks:
                end(task)
            await wait_out(tasks)
            async with AsyncExitStack() as stack:
                for opened in self._open.values():
                    stack.push_async_callback(opened.aclose)
                self._open.clear()

    async def change(self, name: str, *, load: bool) -> None:
        """Load a model, all of its versions, anew or for the first time; or unload it.

        It is done to its end, whatever becomes of the caller.

        Raises:
            Refused: with 404, if there is no such model; with 400, if it cannot be loaded: what was served is served.
        """
        self._models.sources(name)  # or it is refused
        await asyncio.shield(self._start(self._load(name) if load else self._unload(name)))

    def _start(self, work: Awaitable[None], closes: Hosted | None = None) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks[task] = closes
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # seen, though its caller may have gone

    async def _enter(self, hosted: Hosted) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(hosted.opened())
        self._open[hosted] = stack

    async def _load(self, name: str) -> None:
        async with self._turn:
            before, made = self._models.served(name), dict[str, Hosted]()
            try:
                for version, source in self._models.sources(name).items():
                    model = await in_thread(lambda source=source: opened_model(source))  # type: ignore[misc]
                    old = before.get(version)
                    if old is not None and old.model.graph is model.graph:  # it was given itself: nothing is to be read
                        made[version] = old
                        continue
                    await wait_out(
                        [task for task, each in self._tasks.items() if each and each.model.graph is model.graph]
                    )
                    made[version] = hosted = self._models.hosted(name, version, model)
                    await self._enter(hosted)
                    await hosted.warm_up()
                self._models.serve(name, made)
            except BaseException as error:
                for hosted in made.values():
                    if hosted not in before.values() and hosted in self._open:
                        await self._open.pop(hosted).aclose()
                if not isinstance(error, Exception):
                    raise
                _log.warning("model %s cannot be loaded: %s", name, visible(text_of(error), lines=True))
                reason = f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]
                raise refused(400, f"model {name!r} cannot be loaded: {reason}") from None
            for version, hosted in made.items():
                old = before.get(version)
                if hosted is not old:
                    if old is not None:
                        hosted.follow(old)
                        self._start(self._close(old, [old], is_replaced=True), old)
                    await self._show(hosted)

    async def _unload(self, name: str) -> None:
        async with self._turn:
            versions = [*self._models.served(name).values()]
            for hosted in versions:
                self._start(self._close(hosted, versions), hosted)
            self._models.serve(name, {})

    async def _close(self, hosted: Hosted, asked: Sequence[Hosted], *, is_replaced: bool = False) -> None:
        """Close a version when no request to any of some is left; sequences and streams go on if it was replaced."""
        while any(each.in_flight for each in asked) or (is_replaced and hosted.sessions):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        await self._end_streams(hosted)
        hosted.leave()
        await self._open.pop(hosted).aclose()
