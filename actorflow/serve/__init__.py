"""Models over HTTP by the Open Inference Protocol, with batched runs, the live page and metrics.

::

    app = af.serve.create_app({"digits": model})
    async with af.serve.Server(app, port=8080) as server:
        ...

    app.mount("/models", af.serve.asgi({"digits": model}))  # FastAPI, Starlette
"""

from actorflow.serve.app import create_app
from actorflow.serve.asgi import asgi
from actorflow.serve.limits import Limits
from actorflow.serve.server import Server

__all__ = ["Limits", "Server", "asgi", "create_app"]
