"""A web service with FastAPI: requests of many clients are computed together, by one graph that is shown at /graph/.

Start it with ``python examples/fastapi_service.py`` (``pip install fastapi uvicorn websockets``), ask it with

    curl -H 'Content-Type: application/json' -d '{"image": [[0, 0, 5, 13, 9, 1, 0, 0], ...]}' http://127.0.0.1:8000/classify

(eight rows of eight grey values from 0 to 255), and look at http://127.0.0.1:8000/graph/. The network and its training
are those of examples/service.py, which does the same with aiohttp.
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from service import SIZE, make_model, train

import actorflow as af

WEIGHTS = Path("digits.safetensors")

model = make_model()
batcher = model.graph.batched(fetch=[model.probabilities], buckets=(1, 8, 32))
page = af.web.asgi(model.graph)

Row = Annotated[list[float], Field(min_length=SIZE, max_length=SIZE)]


class Question(BaseModel):
    """Body of a request."""

    image: Annotated[list[Row], Field(min_length=SIZE, max_length=SIZE)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the weights before the first request; close the page and the graph after the last one."""
    if not WEIGHTS.exists():
        await train(WEIGHTS)
    await af.load_weights(model.graph["digits"], WEIGHTS)
    async with model.graph, batcher:
        yield
        await page.aclose()


app = FastAPI(lifespan=lifespan)
app.mount("/graph", page)


@app.post("/classify")
async def classify(question: Question, request: Request) -> dict[str, list[float]]:
    """Probability of each digit."""
    image = np.array(question.image, np.float32).reshape(1, SIZE, SIZE, 1)
    try:
        result = await af.web.unless_gone(request, batcher.run({model.images: image}, timeout=5))
    except (af.QueueFullError, TimeoutError) as error:
        raise HTTPException(503, "too busy, try again", {"Retry-After": "1"}) from error
    return {"probabilities": result[model.probabilities][0].tolist()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    # A browser that no longer reads would hold the end up for ever.
    uvicorn.run(app, port=parser.parse_args().port, timeout_graceful_shutdown=2)
