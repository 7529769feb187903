"""The op that makes the first NaN: named in Python and on the page, with its frame, its line and what it read."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from tests.web.serving import by_aiohttp
from tests.web.test_control import STEER, command, socket_of

#: Ops that keep what is finite finite, whatever it is.
GENTLE = [ops.tanh, ops.sigmoid, ops.sin, ops.relu, ops.absolute, lambda x: ops.scale(x, 0.5)]
OPS = 500


class Planted:
    """A graph of 500 ops, of which one takes the logarithm of -1 in one of its frames.

    Each op reads one or two blobs of those before it; what is planted reads a blob of its own besides.
    """

    def __init__(self, seed: int, check: bool | af.FiniteCheck = True) -> None:
        random = Random(seed)
        self.graph = graph = af.Graph("planted", check_finite=check)
        self.bad_frame, chosen = random.randrange(1, 6), random.randrange(OPS - 20)
        self.is_bad_once = False  # else all frames after it are bad, too
        self.x, self.plant = graph.blob("x", (3,)), graph.blob("plant", (3,))
        blobs = [self.x]
        for number in range(OPS):
            scope = graph.subgraph(f"part{number // 50}") if number % 50 == 0 else scope  # noqa: F821
            with scope:
                if number == chosen:
                    blobs.append(ops.log(self.plant, name="planted"))
                    self.line = f"{__file__}:{blobs[-1].producers[0].site.line}"
                elif number % 3 == 0 and len(blobs) > 1:
                    blobs.append(ops.maximum(*random.sample(blobs[-40:], 2), name=f"op{number}"))
                else:
                    blobs.append(random.choice(GENTLE)(random.choice(blobs[-40:])))
        self.name = f"part{chosen // 50}/planted"
        self.last = ops.mean(ops.maximum(blobs[-1], graph[self.name].outputs[0]), name="loss")
        assert len(graph.ops) == OPS + 2

    def feeds(self) -> Any:
        for frame in range(8):
            is_bad = frame == self.bad_frame or (frame > self.bad_frame and not self.is_bad_once)
            plant = np.array([1.0, 2.0, -1.0 if is_bad else 3.0], "f")
            yield {self.x: np.array([0.5, -2.0, 3.0], "f"), self.plant: plant}


@pytest.mark.parametrize("seed", range(6))
async def test_a_planted_logarithm_is_named_with_its_frame(seed: int) -> None:
    planted = Planted(seed)
    planted.is_bad_once = True  # of those in flight, another could have failed after it
    async with planted.graph as graph:
        with pytest.raises(af.NotFiniteError) as caught:
            async for _ in graph.stream(planted.feeds(), fetch=planted.last, in_flight=1 + seed % 4):
                pass
        error = caught.value
        assert (error.op_name, error.frame) == (planted.name, planted.bad_frame)
        assert f"created at {planted.line}" in str(error)
        assert (error.inputs["plant"].minimum, error.inputs["plant"].maximum) == (-1, 2)
        assert error.results[0].nan == 1
        [failure] = [each for each in graph.engine.errors if each.frame == planted.bad_frame]
        assert failure.op_id == graph[planted.name].id
        assert failure.not_finite.inputs["plant"] == error.inputs["plant"]
        assert graph.engine.resources.kept_call.frame == planted.bad_frame


class TestControl:
    async def test_it_is_switched_between_the_frames_of_a_stream(self, served) -> None:
        planted = Planted(1, check=False)
        planted.bad_frame = 0
        async with (
            planted.graph as graph,
            served(graph, control=True, token=STEER) as client,
            socket_of(client) as told,
            aclosing(graph.stream(planted.feeds(), fetch=planted.last)) as stream,
        ):
            assert np.isnan((await anext(stream))[planted.last])
            content = await (await command(client, "check_finite")).json()
            assert content["check_finite"] == {"nan": True, "infinity": True, "pause": True}
            assert content["done"] == "set to pause at the first NaN"
            await told(lambda message: message["check_finite"])
            assert np.isnan((await anext(stream))[planted.last]), "one that had started is not looked at, or goes on"
            waiting = asyncio.ensure_future(anext(stream))
            message = await told(lambda message: message["kept"] and message["paused"])
            assert message["kept"]["op_id"] == graph[planted.name].id
            assert message["paused"]["reason"] == f"as op {planted.name!r} has made what is not finite"
            assert (await (await command(client, "check_finite", {"on": False})).json())["check_finite"] is None
            await command(client, "resume")
            await waiting
            for _ in range(3):
                await anext(stream)
            assert graph.paused is None
            await command(client, "check_finite", {"pause": False})
            with pytest.raises(af.NotFiniteError, match=planted.name):
                async for _ in stream:
                    pass

    async def test_what_the_program_looks_for_stays(self, training) -> None:
        training.graph.check_finite = af.FiniteCheck(infinity=False)
        async with by_aiohttp(training.graph, control=True, token=STEER) as client:
            await command(client, "check_finite", {"pause": True})
            assert training.graph.check_finite == af.FiniteCheck(infinity=False, pause=True)

    async def test_several_ranks_are_left_to_the_program(self, training, monkeypatch) -> None:
        async with by_aiohttp(training.graph, control=True, token=STEER) as client:
            monkeypatch.setattr(type(training.graph), "world", SimpleNamespace(size=2, rank=0))
            response = await command(client, "check_finite")
            assert (response.status, "several ranks" in await response.text()) == (409, True)
            assert training.graph.check_finite is None

    async def test_the_call_is_saved_and_runs_elsewhere(self, served, tmp_path: Path) -> None:
        planted = Planted(2)
        async with planted.graph as graph, served(graph, control=True, token=STEER) as client:
            response = await command(client, "call")
            assert (response.status, await response.text()) == (
                409,
                "409: no call is kept, as one that has made a NaN or an infinity\n",
            )
            with pytest.raises(af.NotFiniteError):
                async for _ in graph.stream(planted.feeds(), fetch=planted.last):
                    pass
            response = await command(client, "call", {"frame": planted.bad_frame + 1})
            assert response.status == 409
            response = await command(client, "call", {"frame": planted.bad_frame})
            assert response.status == 200
            assert response.headers["Cache-Control"] == "no-store"
            assert response.headers["Content-Disposition"] == f'attachment; filename="frame-{planted.bad_frame}.af"'
            (tmp_path / "call.af").write_bytes(await response.read())
        await again(tmp_path / "call.af", planted)


async def test_the_first_call_is_kept_of_frames_that_were_in_flight_together() -> None:
    graph = af.Graph("kept", check_finite=True)
    x = graph.blob("x", (2,))
    y = ops.log(x)
    async with graph:
        bad, kept = {x: np.array([1, -1], "f")}, []
        for _ in range(2):
            results = await asyncio.gather(*[graph.run(bad, fetch=y) for _ in range(3)], return_exceptions=True)
            assert {type(result) for result in results} == {af.NotFiniteError}
            kept.append(graph.engine.resources.kept_call.frame)
    assert kept == [0, 3]


async def again(path: Path, planted: Planted) -> None:
    """Run a call that was saved, as another process would."""
    async with await af.load(path) as call:
        assert [op.name for op in call.ops] == ["planted"]
        np.testing.assert_array_equal(call["plant"].value, np.array([1, 2, -1], "f"))
        call.check_finite = True
        with pytest.raises(af.NotFiniteError) as caught:
            await call.run()
        assert caught.value.frame == planted.bad_frame


async def test_a_call_that_cannot_be_saved_says_why() -> None:
    graph = af.Graph("objects", check_finite=True)
    x = graph.blob("x", ())
    made = graph.function("make", lambda x: {"a": x}, af.TensorSpec.of((), "object"))(x)
    graph.function("bad", lambda made: np.float32(np.nan), af.TensorSpec.of(()))(made)
    async with graph, by_aiohttp(graph, control=True, token=STEER) as client:
        with pytest.raises(af.NotFiniteError):
            await graph.run({x: 1})
        response = await command(client, "call")
        assert response.status == 409
        assert "cannot be made a graph" in await response.text()


@pytest.mark.browser
@pytest.mark.slow
class TestPage:
    @pytest.mark.parametrize(("seed", "pauses"), [(3, True), (4, False), (5, True)])
    async def test_the_op_is_marked_and_its_call_can_be_saved(
        self, page_of, tmp_path: Path, seed: int, pauses: bool
    ) -> None:
        planted = Planted(seed, check=False)
        graph = planted.graph
        async with (
            graph,
            page_of(graph, control=True, viewport={"width": 1400, "height": 900}, accept_downloads=True) as page,
        ):
            await page.page.select_option("#check-finite", "pause" if pauses else "fail")
            await page.until("actorflow.control.check_finite")
            assert graph.check_finite == af.FiniteCheck(pause=pauses)
            stream = graph.stream(planted.feeds(), fetch=planted.last)
            running = asyncio.create_task(consume(stream))
            await page.until("actorflow.found.length")
            found = await page.look("actorflow.found")
            assert [(each["name"], each["frame"]) for each in found] == [(planted.name, planted.bad_frame)]
            await page.page.locator("#tab-failures .badge").get_by_text("1", exact=True).wait_for()
            await page.page.locator("#legend").get_by_text("made what is not finite").wait_for()
            # It, or the closed scope that it is in, is marked.
            await page.until("Object.values(actorflow.marks).join() === 'NaN'")

            await page.show("failures")
            failure = page.page.locator("#failure-list li")
            assert f"frame {planted.bad_frame}" in await failure.inner_text()
            assert planted.line in await failure.inner_text()
            await failure.locator("button").first.click()
            await page.until(
                f"actorflow.selected === {planted.name!r} && actorflow.marks[actorflow.selected] === 'NaN'"
            )
            card = await page.page.locator("#node .found").inner_text()
            assert f"Not finite in frame {planted.bad_frame}" in card
            assert planted.line in card
            assert "plant: float32 3, min -1, max 2, mean 0.6667, std 1.247" in card
            assert "float32 3, 1 NaN, min 0, max 0.6931" in card
            red = await page.look(RED)
            assert red > 20, "its border is red in the picture"

            download = asyncio.create_task(page.page.wait_for_event("download"))
            await page.page.locator("#node .save-call").click()
            value = await download
            assert value.suggested_filename == f"frame-{planted.bad_frame}.af"
            await value.save_as(tmp_path / "call.af")
            if pauses:
                assert graph.paused is not None
                await page.page.locator("#control-note").get_by_text("has made what is not finite").wait_for()
                await page.page.select_option("#check-finite", "off")
                await page.until("!actorflow.control.check_finite")
                graph.resume()
                await running
            else:
                with pytest.raises(af.NotFiniteError):
                    await running
        await again(tmp_path / "call.af", planted)

    async def test_who_only_looks_saves_nothing(self, page_of) -> None:
        planted = Planted(2)
        async with planted.graph as graph, page_of(graph) as page:
            with pytest.raises(af.NotFiniteError):
                await consume(graph.stream(planted.feeds(), fetch=planted.last))
            await page.until("actorflow.found.length")
            await page.show("failures")
            await page.page.locator("#failure-list li").get_by_text(planted.name).first.wait_for()
            assert await page.page.locator(".save-call").count() == 0
            assert await page.page.locator("#check-finite").is_hidden()

    async def test_a_curve_says_from_where_on_it_is_nan(self, page_of) -> None:
        graph = af.Graph("curve")
        x = graph.blob("x", ())
        loss = graph.function("loss", lambda x: x, af.TensorSpec.of(()))(x)
        async with graph, page_of(graph) as page:
            await page.show("curves")
            said = page.page.locator("#curve-list .curve-head b")
            for value in (1.0, np.nan, 0.5):
                await graph.run({x: np.float32(value)}, fetch=loss)
            await said.get_by_text("1 not finite").wait_for()
            for value in (np.nan, np.inf):
                await graph.run({x: np.float32(value)}, fetch=loss)
            await said.get_by_text("not finite since frame 3").wait_for()
            everywhere = """document.querySelector('#curve-list canvas').getContext('2d')
                .getImageData(0, 0, 2000, 400).data"""
            assert await page.look(f"{COUNT_RED}({everywhere})") > 20


#: Pixels that have the red of failures.
COUNT_RED = """((data) => {
    const style = getComputedStyle(document.documentElement);
    const wanted = parseInt(style.getPropertyValue('--failed').trim().slice(1), 16);
    let count = 0;
    for (let k = 0; k < data.length; k += 4) count += data[k] * 65536 + data[k + 1] * 256 + data[k + 2] === wanted;
    return count;
})"""
RED = f"""(() => {{
    const [x, y] = actorflow.placeOf(actorflow.selected), canvas = document.getElementById('graph');
    const ratio = canvas.width / canvas.clientWidth;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d');
    copy.drawImage(canvas, 0, 0);
    return {COUNT_RED}(copy.getImageData((x - 90) * ratio, (y - 40) * ratio, 180 * ratio, 80 * ratio).data);
}})()"""


async def consume(stream: Any) -> None:
    async for _ in stream:
        pass
