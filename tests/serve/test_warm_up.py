"""Servers are ready when their models are warm: what first requests would wait for is there."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.ops.linalg import Inv
from actorflow.runtime.model import Model
from actorflow.serve import Limits, Server, create_app
from actorflow.serve.app import SERVICE
from actorflow.serve.models import Hosted
from tests.serve.serving import Gate, Served, serve, ten_times, tensor

ROWS = np.ones((1, 3), np.float32)
REQUEST = {"inputs": [tensor("x", ROWS)]}


class Held:
    """Takes the place of `Model.warm_up`, which lasts until it may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = asyncio.Event()
        self.axes: list[Any] = []
        held = self

        async def warm_up(model: Model, *, axes: Mapping[str, int] | None = None, timeout: float | None = None) -> bool:
            held.axes.append(axes)
            await held.may_end.wait()
            return True

        monkeypatch.setattr(Model, "warm_up", warm_up)


def lengths(hosted: Hosted) -> list[Any]:
    return sorted(dict(key[2]).get("batch") for key in hosted.model.graph.engine._programs)


async def test_ready_when_all_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    app = create_app({"one": ten_times(), "two": ten_times()}, max_rows=4)
    async with Server(app, port=0) as server:
        served = Served(server, app)
        assert (await served.get("/v2/health/live")).status == 200
        for path in ("health", "models/one", "models/two"):
            answer = await served.get(f"/v2/{path}/ready")
            assert (answer.status, answer.json["ready"]) == (503, False)
        assert (await served.infer("one", REQUEST)).output("y").tolist() == [[10] * 3]
        held.may_end.set()
        await served.service.warming
        assert held.axes == [{"batch": 1}, {"batch": 4}] * 2
        for path in ("health", "models/one", "models/two"):
            answer = await served.get(f"/v2/{path}/ready")
            assert (answer.status, answer.json["ready"]) == (200, True)


@pytest.mark.together(("rows", "plans"), [(4, [1, 4]), (1, [1]), (0, [1])])
async def test_the_plans_of_one_row_and_of_the_most(rows: int, plans: list[int]) -> None:
    async with serve({"model": ten_times()}, max_rows=rows) as served:
        (hosted,) = served.service.models
        assert lengths(hosted) == plans
        assert hosted.cold is None
        made = {*hosted.model.graph.engine._programs.values()}
        assert (await served.infer("model", REQUEST)).status == 200
        assert made == {*hosted.model.graph.engine._programs.values()}


async def test_fixed_lengths() -> None:
    graph = af.Graph("fixed")
    y = af.ops.scale(graph.blob("x", (1, 3)), 10.0)
    async with serve({"model": af.Model(graph, {"x": graph["x"]}, {"y": y, "again": y})}) as served:
        assert graph.engine.frames.finished == 2
        assert len(graph.engine._programs) == 1
        assert (await served.infer("model", REQUEST)).status == 200


async def test_lengths_that_are_not_known() -> None:
    graph = af.Graph("words")
    af.ops.scale(graph.blob("x", ("batch", "words")), 10.0)
    async with serve({"model": graph}) as served:
        (hosted,) = served.service.models
        assert (hosted.is_warm, hosted.cold) == (True, "lengths of words come with the requests")
        assert not graph.engine.frames.started


async def test_functions_are_not_called() -> None:
    gate = Gate()
    async with serve({"model": gate.model()}) as served:
        (hosted,) = served.service.models
        assert hosted.is_warm
        assert "planned, and not run" in (hosted.cold or "")
        assert not gate.inside
        assert not hosted.model.graph.engine.frames.started


async def test_a_failure_is_named(caplog: pytest.LogCaptureFixture) -> None:
    graph = af.Graph("inverse")
    x = graph.blob("x", ("batch", 3, 3))
    y = graph.op("invert", Inv())(x)
    with caplog.at_level(logging.WARNING):
        async with serve({"model": af.Model(graph, {"x": x}, {"y": y}), "fine": ten_times()}) as served:
            assert (await served.get("/v2/health/ready")).json == {"ready": True}
            eye = np.eye(3, dtype=np.float32)[None]
            assert (await served.infer("model", {"inputs": [tensor("x", eye)]})).status == 200
            assert [hosted.cold is None for hosted in served.service.models] == [False, True]
    assert "model model/1 takes requests, though it has failed on zeros: OpError: op 'invert'" in caplog.text


async def test_too_little_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    Held(monkeypatch)
    with caplog.at_level(logging.WARNING):
        async with serve({"model": ten_times()}, limits=Limits(warm_up_s=0.001)) as served:
            assert (await served.get("/v2/health/ready")).json == {"ready": True}
    assert "model model/1 takes requests, though it was not warm after 0.001 s" in caplog.text


async def test_none_is_wanted() -> None:
    async with serve({"model": ten_times()}, limits=Limits(warm_up_s=0)) as served:
        (hosted,) = served.service.models
        assert hosted.is_warm
        assert not hosted.model.graph.engine.frames.started


async def test_the_end_while_they_are_warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    app = create_app({"model": ten_times()})
    async with Server(app, port=0) as server:
        await Served(server, app).get("/v2/health/live")
        assert held.axes
    assert app[SERVICE].warming.cancelled()
