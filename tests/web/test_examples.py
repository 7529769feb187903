"""The page in the examples of FastAPI and Jupyter: real servers, a real browser, a real kernel."""

import asyncio
import importlib.util
import json
import re
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession

import actorflow as af
from actorflow.web import serve
from actorflow.web.server import frame_url
from tests.web.serving import HOST, uvicorned

JSON = {"Content-Type": "application/json"}
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def fastapi_service(digits_weights: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)  # it imports its neighbour
    monkeypatch.chdir(digits_weights.parent)
    return load("fastapi_service")


def load(name: str) -> ModuleType:
    """An example as a module of its own, whose graph no other loop has run."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestFastAPI:
    async def test_answers(self, fastapi_service: ModuleType) -> None:
        example = fastapi_service
        test = af.data.digits().test
        async with uvicorned(example.app) as port, ClientSession(f"http://{HOST}:{port}") as session:

            async def ask(image: Any) -> int:
                async with session.post("/classify", json={"image": (image[..., 0] * 255).tolist()}) as response:
                    assert response.status == 200
                    return int(np.argmax((await response.json())["probabilities"]))

            found = await asyncio.gather(*map(ask, test.images[:50]))
            assert np.count_nonzero(found == test.labels[:50]) >= 45
            async with session.post("/classify", json={"image": [[3]]}) as response:
                assert response.status == 422
            async with session.get("/graph/api/state") as response:
                assert 0 < (await response.json())["frames"]["finished"] < 50
            async with session.get("/graph/", headers={"Host": "evil.example"}) as response:
                assert response.status == 403

    async def test_who_hangs_up_is_not_computed(
        self, fastapi_service: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        example, arrived = fastapi_service, []
        run = example.batcher.run

        async def noted(*arguments: Any, **more: Any) -> Any:
            arrived.append(arguments)
            return await run(*arguments, **more)

        monkeypatch.setattr(example.batcher, "run", noted)
        image = json.dumps({"image": np.zeros((8, 8)).tolist()})
        async with uvicorned(example.app) as port, ClientSession(f"http://{HOST}:{port}") as session:
            example.model.graph.pause()  # no frame begins
            before = example.batcher.statistics().cancelled
            asked = [asyncio.create_task(session.post("/classify", data=image, headers=JSON)) for _ in range(3)]
            while len(arrived) < 3:
                await asyncio.sleep(0)
            for task in asked[1:]:
                task.cancel()
            while example.batcher.statistics().cancelled - before < 2:
                await asyncio.sleep(0)
            example.model.graph.resume()
            async with await asked[0] as response:
                assert response.status == 200

    @pytest.mark.browser
    @pytest.mark.slow
    async def test_the_page(self, new_page, fastapi_service: ModuleType) -> None:
        example = fastapi_service
        async with uvicorned(example.app) as port, ClientSession(f"http://{HOST}:{port}") as session:
            page = await new_page()
            await page.open(f"http://{HOST}:{port}/graph")  # FastAPI adds the slash
            assert await page.look("actorflow.nodes.length") == len(example.model.graph.nodes)
            async with session.post("/classify", json={"image": np.zeros((8, 8)).tolist()}) as response:
                assert response.status == 200
            await page.page.locator("#frames-finished", has_text=re.compile("^1$")).wait_for()
            await page.page.close()

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
    async def test_a_signal_ends_the_program(self, digits_weights: Path) -> None:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-W", "error", EXAMPLES / "fastapi_service.py", "--port", "0"]
        process = await asyncio.create_subprocess_exec(*command, cwd=digits_weights.parent, stdout=pipe, stderr=pipe)
        assert process.stderr is not None
        heard = b""
        while b"Uvicorn running" not in heard:
            line = await process.stderr.readline()
            assert line, heard
            heard += line
        process.send_signal(signal.SIGINT)
        _, rest = await process.communicate()
        assert b"Traceback" not in rest
        assert b"Application shutdown complete" in rest


class TestGraphInANotebook:
    def test_counts_and_ops_with_names_escaped(self) -> None:
        graph = af.Graph("<img src=x onerror=alert(1)>")
        x = graph.blob("<b>x", (2, 3))
        graph.function('"><script>', lambda x: x, x.spec)(x)
        shown = graph._repr_html_()
        assert "1 ops, 2 blobs, 0 variables (0 bytes); 0 frames finished, 0 failed" in shown
        assert "&lt;img src=x onerror=alert(1)&gt;" in shown
        assert set(re.findall(r"<(\w+)", shown)) == {"p", "b", "details", "summary", "table", "tr", "th", "td"}
        assert "float32[2, 3]" in shown

    def test_of_a_large_one_counts_alone(self, make_training_graph) -> None:
        graph, *_ = make_training_graph(blocks=40)
        shown = graph._repr_html_()
        assert f"{len(graph.ops)} ops" in shown
        assert "<table>" not in shown
        assert len(shown) < 500


class TestViewInANotebook:
    async def test_a_frame_for_the_origins_that_are_named(self, training) -> None:
        async with serve(training.graph, port=0, token="a&b", frame_ancestors=["http://localhost:8888"]) as view:
            # By the notebook's name for this machine: browsers keep the cookie from a frame of another site.
            assert f'<iframe src="http://localhost:{view.port}/?token=a%26b"' in view._repr_html_()
            assert "height: 300px" in view.show(height=300)._repr_html_()
            assert "token" not in repr(view)

    async def test_without_any_a_link_and_what_to_do(self, training) -> None:
        async with serve(training.graph, port=0) as view:
            shown = view._repr_html_()
            assert "<iframe" not in shown
            assert f'href="{view.url}"' in shown
            assert "frame_ancestors=[" in shown
            with pytest.raises(RuntimeError, match="frame_ancestors="):
                view.show()

    async def test_hostile_names_stay_text(self) -> None:
        graph = af.Graph('"><img src=x onerror=alert(1)>')
        async with serve(graph, port=0, frame_ancestors=["http://localhost:*"]) as view:
            assert set(re.findall(r"<(\w+)", view._repr_html_())) == {"iframe", "p", "a"}

    async def test_start_and_aclose(self, training) -> None:
        serving = serve(training.graph, port=0)
        view = await serving
        with pytest.raises(RuntimeError, match="has been started already"):
            await serving
        await view.aclose()
        await view.aclose()
        async with serve(training.graph, port=view.port) as again:
            assert again.port == view.port

    @pytest.mark.parametrize(
        ("url", "ancestor", "expected"),
        [
            ("http://127.0.0.1:1/?token=a", "http://localhost:8888", "http://localhost:1/?token=a"),
            ("http://127.0.0.1:1/", "http://[::1]:*", "http://[::1]:1/"),
            ("http://127.0.0.1:1/", "http://*.example.com:*", "http://127.0.0.1:1/"),
            ("http://10.0.0.1:1/", "http://localhost:8888", "http://10.0.0.1:1/"),
        ],
    )
    def test_the_frames_address(self, url, ancestor, expected) -> None:
        assert frame_url(url, ancestor) == expected

    @pytest.mark.browser
    @pytest.mark.slow
    async def test_browsers_frame_it_for_nobody_else(self, training, new_page) -> None:
        """One page may, one may not; the token's cookie works inside the frame."""

        async def frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = f"<!doctype html><link rel=icon href=data:,>{view._repr_html_()}".encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close"
            writer.write(f"{head}\r\n\r\n".encode() + body)
            writer.close()

        async with (
            await asyncio.start_server(frame, HOST, 0) as named,
            await asyncio.start_server(frame, HOST, 0) as other,
        ):
            ports = [server.sockets[0].getsockname()[1] for server in (named, other)]
            ancestors = [f"http://localhost:{ports[0]}"]
            async with serve(training.graph, port=0, token="open-sesame", frame_ancestors=ancestors) as view:
                page = await new_page()
                await page.page.goto(f"http://localhost:{ports[0]}/")
                inside = page.page.frame_locator("iframe")
                await inside.locator("#connection", has_text="Live").wait_for()
                await training.run()
                await inside.locator("#frames-finished", has_text=re.compile("^1$")).wait_for()
                await page.page.goto(f"http://localhost:{ports[1]}/")
                refused = page.page.frame_locator("iframe").locator("#connection")
                assert await refused.count() == 0
                assert any("frame-ancestors" in complaint for complaint in page.complaints)
                page.complaints.clear()


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel() -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "watch_in_jupyter.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    done = NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    outputs = {cell["id"]: cell.get("outputs", []) for cell in done["cells"]}
    (graph,), (view,), (end,) = outputs["graph"], outputs["view"], outputs["end"]
    assert "<b>graph notebook</b>" in graph["data"]["text/html"]
    assert re.search(r'<iframe src="http://localhost:\d+/"', view["data"]["text/html"])
    assert end["text"] == "after 200 steps the loss is below a tenth: True\n"
