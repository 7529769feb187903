"""A web service with FastAPI that answers each request with a run of one graph, and shows the graph at /graph/.

Start it with ``python examples/fastapi_service.py`` (``pip install fastapi uvicorn websockets``), ask it with

    curl -H 'Content-Type: application/json' -d '{"values": [3, 1, 2]}' http://127.0.0.1:8000/softmax

and look at http://127.0.0.1:8000/graph/. A larger service is examples/service.py, with aiohttp.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field

import actorflow as af

SIZE = 3
graph = af.Graph("softmax")
values = graph.blob("values", (1, SIZE))
probabilities = af.ops.softmax(values, name="probabilities")
page = af.web.asgi(graph)


class Question(BaseModel):
    """Body of a request."""

    values: Annotated[list[float], Field(min_length=SIZE, max_length=SIZE)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Plan the graph before the first request; close the page and the graph after the last one."""
    async with graph:
        await graph.run({values: np.zeros(values.shape, np.float32)})
        yield
        await page.aclose()


app = FastAPI(lifespan=lifespan)
app.mount("/graph", page)


@app.post("/softmax")
async def softmax(question: Question) -> dict[str, list[float]]:
    """Probabilities in proportion to e to the power of each value."""
    result = await graph.run({values: np.array([question.values], np.float32)})
    return {"probabilities": result[probabilities][0].tolist()}


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    # A browser that no longer reads would hold the end up for ever.
    uvicorn.run(app, port=port, timeout_graceful_shutdown=2)
