"""``actorflow serve``: its arguments, and real processes that signals end."""

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.cli import main
from actorflow.cli.serve import _sources
from actorflow.cli.source import SourceOptions, open_model, open_models
from actorflow.errors import GraphError
from tests.serve.serving import GRACE_S, Answer, Client, tensor
from tests.support.effort import slow

ROOT = Path(__file__).parents[2]
ROWS = np.arange(3, dtype=np.float32).reshape(1, 3)


def ten_times(x: Any) -> Any:
    return 10 * x


posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


class TestSources:
    @pytest.mark.parametrize("name", ["slow", "twice", "GRAPH"])
    def test_attributes_of_modules(self, name: str) -> None:
        model = open_model(f"tests.serve.programs:{name}")
        assert isinstance(model, af.Model)
        assert [*model.inputs] == ["x"]

    def test_modules_of_the_current_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "found_here.py").write_text("from tests.serve.programs import GRAPH\nclass A:\n    graph = GRAPH\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        assert open_model("found_here:A.graph").graph.name == "twice"

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("model", "expected a file .onnx or .af, or module:attribute"),
            ("model.txt", "expected a file .onnx or .af, or module:attribute"),
            (":x", "expected a file .onnx or .af, or module:attribute"),
            ("tests.serve.programs:", "expected a file .onnx or .af, or module:attribute"),
            ("tests.serve.none:x", "there is no module 'tests.serve.none'"),
            ("nowhere.at.all:x", "there is no module 'nowhere'"),
            ("tests.serve.programs:none", "has no attribute 'none'"),
            ("tests.serve.programs:number", "expected an af.Model or an af.Graph, got int"),
            ("tests.serve.programs:NUMBER", "expected an af.Model or an af.Graph, got int"),
        ],
    )
    def test_what_is_no_model(self, source: str, message: str) -> None:
        with pytest.raises(GraphError, match=f"^{re.escape(source)}: .*{re.escape(message)}"):
            open_model(source)

    def test_a_module_that_lacks_another_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "lacking.py").write_text("import not_there_at_all\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
            open_model("lacking:x")

    def test_options_are_for_the_files_of_their_kind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("onnx", reason="onnx is not installed")
        pytest.importorskip("safetensors", reason="safetensors is not installed")
        graph = af.Graph("own")
        x = graph.blob("x", (1, 3))
        af.onnx.save(af.Model(graph, {"x": x}, {"y": af.ops.relu(x)}), tmp_path / "relu.onnx")
        graph.function("own", ten_times, x.spec)(x)
        graph.save_sync(tmp_path / "own.af")
        monkeypatch.chdir(tmp_path)
        options = SourceOptions(axes={"x": {0: "batch"}}, functions=["tests.serve.test_command:ten_times"])
        opened = _sources(["relu.onnx", "v/2=own.af", "p=tests.serve.programs:slow"], options)
        assert {name: [*versions] for name, versions in opened.items()} == {"relu": ["1"], "v": ["2"], "p": ["1"]}
        assert str(opened["relu"]["1"]().outputs["y"].spec) == "float32[batch, 3]"
        with pytest.raises(GraphError, match=r"own\.af: axes are for files \.onnx alone"):
            _sources(["own.af"], options)
        with pytest.raises(GraphError, match=r"relu\.onnx: functions are for files \.af alone"):
            _sources(["relu.onnx"], options)

    def test_limits_are_for_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("onnx", reason="onnx is not installed")
        pytest.importorskip("safetensors", reason="safetensors is not installed")
        graph = af.Graph("relu")
        x = graph.blob("x", ("batch", 3))
        y = af.ops.relu(x)
        af.onnx.save(af.Model(graph, {"x": x}, {"y": y}), tmp_path / "relu.onnx")
        graph.save_sync(tmp_path / "relu.af")
        monkeypatch.chdir(tmp_path)
        limits = {"memory_budget": 1 << 30, "max_plans": 5}
        models = open_models(["relu.onnx", "relu.af", "tests.serve.programs:slow"], SourceOptions(limits=limits))
        for model in models[:2]:
            assert model.graph.options.memory_budget_bytes == 1 << 30
            assert model.graph.options.max_plans == 5
        with pytest.raises(GraphError, match=r"max_plans is for files \.onnx or \.af alone"):
            open_models(["tests.serve.programs:slow"], SourceOptions(limits={"max_plans": 5}))

    def test_a_backend_is_for_onnx(self) -> None:
        with pytest.raises(GraphError, match="a backend is for files"):
            open_models(["tests.serve.programs:slow"], SourceOptions(backend="onnxruntime"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "the following arguments are required: MODEL"),
        (["x", "--max-wait", "soon"], 2, "expected a time in seconds, got 'soon'"),
        (["x", "--timeout", "-1"], 2, "expected a time in seconds, got '-1'"),
        (["x", "--timeout", "inf"], 2, "expected a time in seconds, got 'inf'"),
        (["x", "--port", "65536"], 2, "expected a port"),
        (["x", "--max-body", "0"], 2, "expected a whole number of at least 1"),
        (["x", "--state", "h"], 2, "expected NAME=VALUE, got 'h'"),
        (["x", "--fixed", "rate=fast"], 2, "expected NAME=NUMBER, got 'rate=fast'"),
        (["x", "--share", "x/1=all"], 2, "expected NAME=NUMBER, got 'x/1=all'"),
        (["tests.serve.programs:twice", "--share", "twice/2=1"], 1, "shares: there is no version 'twice/2'"),
        (["tests.serve.programs:twice", "--state", "h=hn"], 1, "state: no model has an input 'h'"),
        (["x"], 1, "x: expected a file .onnx or .af, or module:attribute"),
        (["tests.serve.programs:slow", "--host", "0.0.0.0"], 2, "which others can reach, needs a token"),
        (["a b=tests.serve.programs:slow"], 2, "in names and versions, got 'a b'"),
        (["m=tests.serve.programs:slow", "m=tests.serve.programs:twice"], 1, "has two versions '1'"),
        (["tests.serve.programs:slow", "--batch-axis", "time"], 1, "cannot be fed in batches"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACTORFLOW_TOKEN", raising=False)
    assert main(["serve", *arguments]) == code
    assert message in capsys.readouterr().err


def test_states_and_fixed_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("actorflow.cli.serve.serve", lambda options: given.append(options.app) or 0)
    pairs = ["--state", "h0=hn", "--state", "c0=cn", "--fixed", "rate=16000", "--fixed", "scale=-0.5"]
    pairs += ["--share", "x/1=9", "--share", "x/2=1", "--feedback", "n=next", "--until", "done", "--limit", "5"]
    assert main(["serve", "x", *pairs]) == 0
    assert given[0]["state"] == {"h0": "hn", "c0": "cn"}
    assert given[0]["fixed"] == {"rate": 16000, "scale": -0.5}
    assert given[0]["shares"] == {"x/1": 9, "x/2": 1}
    assert [given[0][name] for name in ("feedback", "until", "limit")] == [{"n": "next"}, "done", 5]


class Process:
    """A server in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, said: list[str]) -> None:
        self.process = process
        self.port = port
        self.said = said

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(GRACE_S):
            return (await self.process.stdout.readline()).decode().rstrip()

    async def ask(self, path: str, body: bytes | None = None, **headers: str) -> Answer:
        client = await Client.open(self.port)
        client.send(path, body, headers)
        return await client.answer()

    async def end(self) -> int:
        async with asyncio.timeout(GRACE_S):
            return await self.process.wait()


@asynccontextmanager
async def started(*arguments: str, **environment: str) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "actorflow", "serve", *arguments, "--port", "0"],
        stdout=pipe,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    server = Process(process, 0, [])
    try:
        while not (line := await server.line()).startswith("serving on "):
            assert line, server.said
            server.said.append(line)
        server.port = int(line.removesuffix("/v2").rpartition(":")[2])
        yield server
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # the pipe's end may come later than the process's


@posix_only
async def test_names_versions_and_a_token() -> None:
    models = [
        "slow=tests.serve.programs:slow",
        "pair/1=tests.serve.programs:twice",
        "pair/b=tests.serve.programs:GRAPH",
        "sums=tests.serve.programs:sums",
    ]
    async with started(*models, "--no-page", ACTORFLOW_TOKEN="secret") as server:
        assert server.said == [f"model {label}, in batched runs" for label in ("slow/1", "pair/1", "pair/b", "sums/1")]
        assert (await server.ask("/v2")).status == 401
        token = {"Authorization": "Bearer secret"}
        assert (await server.ask("/v2/models", **token)).json == {"models": ["slow", "pair", "sums"]}
        assert (await server.ask("/v2/models/pair", **token)).json["versions"] == ["1", "b"]
        assert (await server.ask("/graph/slow/", **token)).status == 404
        request = {"inputs": [tensor("x", ROWS[:1])], "parameters": {"sequence_id": 1, "sequence_start": True}}
        assert (await server.ask("/v2/models/sums/infer", json.dumps(request).encode(), **token)).status == 200
        server.process.send_signal(signal.SIGINT)
        assert await server.line() == "ending, when 0 requests in flight have an answer, with 1 session open"
        assert await server.line() == "1 answer in all, 0 requests without one"
        assert await server.end() == 0


@posix_only
@pytest.mark.parametrize("clients", [8, *slow([64])])
async def test_a_signal_under_load_loses_nothing(clients: int) -> None:
    """Each client asks on one connection until it is sent away; what the server has answered, they have got."""
    async with started("model=tests.serve.programs:slow") as server:
        outcomes: Counter[Any] = Counter()
        enough = asyncio.Event()

        async def ask_on(number: int) -> None:
            client = await Client.open(server.port)
            rows = ROWS + number
            text = json.dumps({"inputs": [tensor("x", rows)]}).encode()
            try:
                while True:
                    client.send("/v2/models/model/infer", text, {"Connection": "keep-alive"})
                    try:
                        head = await client.reader.readuntil(b"\r\n\r\n")
                    except (asyncio.IncompleteReadError, ConnectionError) as error:
                        outcomes["cut off" if getattr(error, "partial", b"") else "gone"] += 1
                        return
                    length = re.search(rb"Content-Length: (\d+)", head)
                    assert length is not None
                    body = json.loads(await client.reader.readexactly(int(length[1])))
                    status = int(head.split()[1])
                    outcomes[status] += 1
                    if status != 200:
                        assert status == 503, body
                        return
                    assert body["outputs"][0]["data"] == (10 * rows).reshape(-1).tolist()
                    if outcomes[200] == 20 * clients:
                        enough.set()
            finally:
                await client.hang_up()

        async with asyncio.timeout(4 * GRACE_S), asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(ask_on(number))
            await enough.wait()
            server.process.send_signal(signal.SIGTERM)
        assert outcomes[503] + outcomes["gone"] == clients
        assert re.fullmatch(r"ending, when \d+ requests? in flight ha(s|ve) an answer", await server.line())
        assert await server.line() == f"{outcomes[200]:,} answers in all, 0 requests without one"
        assert await server.end() == 0


@pytest.mark.slow
@posix_only
async def test_a_second_signal_ends_it_at_once() -> None:
    async with started("model=tests.serve.programs:endless") as server:
        client = await Client.open(server.port)
        client.send("/v2/models/model/infer", json.dumps({"inputs": [tensor("x", ROWS)]}).encode())
        assert await server.line() == "computing"
        server.process.send_signal(signal.SIGTERM)
        assert await server.line() == "ending, when 1 request in flight has an answer"
        assert (await server.ask("/v2/health/ready")).status == 503
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == -signal.SIGTERM
        await client.hang_up()


@pytest.mark.slow
@posix_only
async def test_an_end_that_takes_too_long() -> None:
    async with started("model=tests.serve.programs:endless", "--drain", "0.01") as server:
        client = await Client.open(server.port)
        client.send("/v2/models/model/infer", json.dumps({"inputs": [tensor("x", ROWS)]}).encode())
        assert await server.line() == "computing"
        server.process.send_signal(signal.SIGTERM)
        assert await server.line() == "ending, when 1 request in flight has an answer"
        assert await server.line() == "0 answers in all, 1 request without one"
        assert await server.end() == 1
        await client.hang_up()
