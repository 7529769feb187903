"""The live view: a page inside the application's own process that shows a graph as it runs.

::

    async with af.web.serve(graph, port=8080) as view:
        print(view.url)
        ...

    view = await af.web.serve(graph, frame_ancestors=["http://localhost:8888"])  # in a notebook

    app.add_subapp("/graph", af.web.create_app(graph))  # aiohttp
    app.mount("/graph", af.web.asgi(graph))  # FastAPI, Starlette
"""

from actorflow.web.api import collector
from actorflow.web.asgi import asgi, unless_gone
from actorflow.web.page import PageOptions
from actorflow.web.server import View, create_app, serve

__all__ = ["PageOptions", "View", "asgi", "collector", "create_app", "serve", "unless_gone"]
