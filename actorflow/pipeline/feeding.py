"""Items of a loader as feeds of a graph."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from actorflow.errors import PipelineError, shown
from actorflow.graph.nodes import Blob
from actorflow.pipeline.calls.boundary import caught
from actorflow.pipeline.stages.stage import calling_site

if TYPE_CHECKING:
    from actorflow.pipeline.loader import Loader


class Feeding:
    """The feeds that `Pipeline.feed` gives, epoch after epoch. It knows its place as its loader does.

    Args:
        loader: Gives the items.
        blobs: What their parts are fed to.
        parts: What their parts are fed to, by key.

    Attributes:
        name: What errors call it, as they name stages.
        kind: As above.
        site: The line of user code that made it.

    Raises:
        PipelineError: unless either is given.
    """

    name = kind = "feed"

    def __init__(self, loader: Loader[Any], blobs: tuple[Blob | str, ...], parts: Mapping[str, Blob | str]) -> None:
        if bool(blobs) == bool(parts):
            raise PipelineError("feed: expected either blobs for the parts of tuples, or blobs by key for mappings")
        self.loader = loader
        self._blobs = blobs
        self._parts = dict(parts)
        self.site = calling_site()
        loader.fed_by(self)

    @property
    def blobs(self) -> tuple[Blob | str, ...]:
        """What is fed."""
        return self._blobs or tuple(self._parts.values())

    def __aiter__(self) -> AsyncIterator[dict[Any, Any]]:
        return _Feeds(self, aiter(self.loader))

    def state_dict(self) -> dict[str, Any]:
        """As `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)

    def feed_of(self, item: Any) -> dict[Any, Any]:
        """The feed that is made of an item.

        Raises:
            PipelineError: if its parts do not correspond to the blobs.
        """
        if self._parts:
            if not hasattr(type(item), "keys"):
                raise PipelineError(f"feed: expected items that are mappings, got {type(item).__name__}")
            missing = [key for key in self._parts if key not in item]
            if missing:
                raise PipelineError(f"feed: an item has no {missing[0]!r}; it has {', '.join(map(shown, item.keys()))}")
            return {blob: item[key] for key, blob in self._parts.items()}
        if len(self._blobs) == 1:
            return {self._blobs[0]: item}
        if not isinstance(item, tuple | list) or len(item) != len(self._blobs):
            got = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
            raise PipelineError(f"feed: expected items of {len(self._blobs)} parts, a tuple, got {got}")
        return dict(zip(self._blobs, item, strict=True))


class _Feeds(AsyncIterator[dict[Any, Any]]):
    def __init__(self, feeding: Feeding, items: AsyncIterator[Any]) -> None:
        self._feeding = feeding
        self._items: Any = items
        self._number = 0

    async def __anext__(self) -> dict[Any, Any]:
        item = await anext(self._items)
        number = self._number
        self._number += 1
        try:
            return self._feeding.feed_of(item)
        except BaseException as error:
            raise caught(self._feeding, error, number, item) from error

    async def aclose(self) -> None:
        await self._items.aclose()
