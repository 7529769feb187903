"""The live page that commands serve."""

from __future__ import annotations

import errno
from contextlib import AsyncExitStack

from actorflow.cli.app import DEFAULT_PORT
from actorflow.graph.graph import Graph


async def serve_page(stack: AsyncExitStack, graph: Graph, port: int | None, *, values: bool = False) -> str:
    """Serve the page of a graph until the stack is closed; returns its address.

    Args:
        port: 0 for any; None for the usual one if it is free and any other if not.
        values: Whether it can show values.
    Raises:
        OSError: if the port cannot be bound.
    """
    from actorflow.web import serve  # aiohttp is not loaded where no page is wanted

    try:
        view = await stack.enter_async_context(serve(graph, port=DEFAULT_PORT if port is None else port, values=values))
    except OSError as error:
        if port is not None or error.errno != errno.EADDRINUSE:
            raise
        view = await stack.enter_async_context(serve(graph, port=0, values=values))
    return view.url
