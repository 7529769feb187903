"""Clients of others drive the server: NVIDIA's for Triton, and curl."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from aiohttp import ClientSession, TCPConnector

from tests.serve.serving import GRACE_S, binary_tensor, mixed, serve, ten_times, tensor

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
CLIENTS = 100


async def program(*arguments: str, given: bytes | None = None) -> bytes:
    """What a program writes, that must end well."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(4 * GRACE_S):
            out, err = await process.communicate(given)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out


async def test_the_client_for_triton() -> None:
    pytest.importorskip("rapidjson", reason="tritonclient is not installed")
    async with serve({"mixed": mixed()}) as served:
        script = Path(__file__).with_name("triton_clients.py")
        assert await program(sys.executable, str(script), f"127.0.0.1:{served.port}") == b"all as expected\n"
        (hosted,) = served.service.models
        assert hosted.answers[200] == 12 + 16 + CLIENTS
        assert hosted.answers[400] == 2
        assert hosted.model.graph.engine.frames.finished < hosted.answers[200]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl(tmp_path: Path) -> None:
    async with serve({"model": ten_times()}, token="secret") as served:
        url = f"http://127.0.0.1:{served.port}"
        token = ["-sS", "-H", "Authorization: Bearer secret"]
        metadata = json.loads(await program("curl", *token, f"{url}/v2/models/model"))
        assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
        request = json.dumps({"inputs": [tensor("x", ROWS)]})
        answer = json.loads(await program("curl", *token, f"{url}/v2/models/model/infer", "-d", request))
        assert answer["outputs"][0]["data"] == [0, 10, 20, 30, 40, 50]
        head = json.dumps(
            {"inputs": [binary_tensor("x", ROWS)], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
        )
        length = f"Inference-Header-Content-Length: {len(head)}"
        sent = [*token, "-H", length, "--data-binary", "@-", f"{url}/v2/models/model/infer"]
        out = await program("curl", *sent, given=head.encode() + ROWS.tobytes())
        assert out.endswith((10 * ROWS).tobytes())
        status = ["-o", str(tmp_path / "body"), "-w", "%{http_code}"]
        assert await program("curl", "-sS", *status, f"{url}/v2") == b"401"
        assert json.loads((tmp_path / "body").read_text())["error"].startswith("expected the server's token")
        rows = np.zeros((1 << 18, 3), np.float32)  # so long that curl asks before it sends it
        head = json.dumps({"inputs": [binary_tensor("x", rows)]})
        sent[4] = f"Inference-Header-Content-Length: {len(head)}"
        assert b"send them in parts" in await program("curl", *sent, given=head.encode() + rows.tobytes())


async def test_100_clients_at_once() -> None:
    async with serve({"model": ten_times()}) as served, ClientSession(connector=TCPConnector(limit=0)) as session:

        async def ask(number: int) -> None:
            rows = ROWS + number
            for _ in range(3):
                request = {"inputs": [tensor("x", rows)]}
                url = f"http://127.0.0.1:{served.port}/v2/models/model/infer"
                async with session.post(url, json=request) as response:
                    assert response.status == 200
                    (output,) = (await response.json())["outputs"]
                    assert output["data"] == (10 * rows).reshape(-1).tolist()

        await asyncio.gather(*map(ask, range(CLIENTS)))
        (hosted,) = served.service.models
        assert hosted.answers == {200: 3 * CLIENTS}
        assert hosted.model.graph.engine.frames.finished < CLIENTS
