"""Models that keep state: sequences of requests, as Triton's clients send them."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.serve import Limits, create_app
from tests.serve.serving import Client, Gate, serve, ten_times, tensor, until
from tests.serve.test_clients import program


def sums(gate: Any = None, init: float = 100) -> af.Model:
    """Sums of what a sequence has sent, which its graph keeps."""
    graph = af.Graph("sums")
    x, total = graph.blob("x", ("batch", 1)), graph.state("total", ("batch", 1), init=init)
    y = total + (x if gate is None else graph.function("gate", gate, x.spec)(x))
    total.assign(y)
    return af.Model(graph, {"x": x}, {"y": y})


def smooth() -> af.Model:
    """A model as a file of ONNX has it: the state is an input and an output, with its rows on the second axis."""
    graph = af.Graph("smooth")
    x, before, rate = graph.blob("x", ("batch", 1)), graph.blob("h", (1, "batch")), graph.blob("rate", (), "int64")
    after = before * 0.5 + x.T * af.ops.cast(rate, "float32")
    return af.Model(graph, {"x": x, "h": before, "rate": rate}, {"y": after.T, "hn": after})


def step(value: float, sequence: Any = 7, **flags: Any) -> dict[str, Any]:
    parameters = {"sequence_id": sequence, **{f"sequence_{name}": each for name, each in flags.items()}}
    return {"inputs": [tensor("x", np.array([[value]], np.float32))], "parameters": parameters}


async def answers(served: Any, name: str, *steps: dict[str, Any]) -> list[Any]:
    found = [await served.infer(name, each) for each in steps]
    return [each.output("y").item() if each.status == 200 else (each.status, each.error) for each in found]


async def test_steps_of_a_sequence_go_on_from_each_other() -> None:
    async with serve({"sums": sums()}) as served:
        begun = await answers(
            served, "sums", step(1, start=True), step(2), step(5, "text", start=True), step(3, end=True)
        )
        assert begun == [101, 103, 105, 106]
        (over,) = await answers(served, "sums", step(1))
        assert over[0] == 400
        assert "there is no sequence 7: expected sequence_start" in over[1]
        assert await answers(served, "sums", step(1, "text"), step(1, "text", start=True)) == [106, 101]
        metadata = (await served.get("/v2/models/sums")).json
        assert [each["name"] for each in (*metadata["inputs"], *metadata["outputs"])] == ["x", "y"]
        assert (await served.get("/v2/models/sums/ready")).json["ready"]


async def test_states_and_fixed_inputs_are_named_for_models_of_files() -> None:
    given = {"state": {"h": "hn"}, "fixed": {"rate": 4}}
    async with serve({"smooth": smooth(), "other": ten_times()}, **given) as served:
        steps = step(2, start=True), step(0), step(0)
        assert await answers(served, "smooth", *steps) == [8, 4, 2]
        metadata = (await served.get("/v2/models/smooth")).json
        assert [each["name"] for each in (*metadata["inputs"], *metadata["outputs"])] == ["x", "y"]
        (hosted, _) = served.service.models
        assert hosted.unbatched is None
        other = await served.infer("other", {"inputs": [tensor("x", np.ones((2, 3), np.float32))]})
        assert other.status == 200
    with pytest.raises(af.GraphError, match="fixed: no model has an input 'rat'"):
        create_app({"smooth": smooth()}, state={"h": "hn"}, fixed={"rat": 4})
    with pytest.raises(af.GraphError, match="no output 'hm'"):
        create_app({"smooth": smooth()}, state={"h": "hm"}, fixed={"rate": 4})
    for wrong in ({"sequences": 0}, {"sequence_idle_s": -1}):
        with pytest.raises(af.GraphError, match="limits: sequence"):
            Limits(**wrong)


async def test_steps_of_different_sequences_share_frames_and_hold_up_nobody() -> None:
    gate = Gate()
    async with serve({"sums": sums(gate)}, limits=Limits(in_flight=1)) as served:
        first = asyncio.ensure_future(answers(served, "sums", step(1, 1, start=True)))
        await until(lambda: gate.inside == 1)
        others = [asyncio.ensure_future(answers(served, "sums", step(n, n, start=True))) for n in range(2, 9)]
        (hosted,) = served.service.models
        await until(lambda: hosted._batcher.statistics().waiting_rows == 7)
        gate.open.set()
        assert await asyncio.gather(first, *others) == [[100 + n] for n in range(1, 9)]
        assert hosted._batcher.statistics().frames == 2


async def test_a_client_that_hangs_up_leaves_its_sequence_where_it_was() -> None:
    gate = Gate()
    async with serve({"sums": sums(gate)}) as served:
        gate.open.set()
        assert await answers(served, "sums", step(1, start=True)) == [101]
        gate.open.clear()
        client = await Client.open(served.port)
        client.send("/v2/models/sums/infer", json.dumps(step(50)).encode())
        await until(lambda: gate.inside == 1)
        await client.hang_up()
        await until(lambda: gate.cancelled == 1)
        gate.open.set()
        assert await answers(served, "sums", step(2)) == [103]


async def test_what_is_no_step_is_refused_and_a_full_server_says_so() -> None:
    async with serve({"sums": sums()}, limits=Limits(sequences=2)) as served:
        rows = {"inputs": [tensor("x", np.ones((2, 1), np.float32))], "parameters": step(1, start=True)["parameters"]}
        refusals = await answers(
            served,
            "sums",
            step(1, 0),
            step(1, ""),
            step(1, -1),
            step(1, 1.5),
            step(1, True),
            step(1, start="yes"),
            rows,
            step(1, 1, start=True),
            step(1, 2, start=True),
            step(1, 7),
        )
        reasons = ["expected the parameter sequence_id"] * 2 + [
            "expected a number or a text as parameter sequence_id"
        ] * 3
        reasons += ["expected true or false as parameter sequence_start", "has 1 row, got 2"]
        for (status, error), why in zip(refusals[:7], reasons, strict=True):
            assert status == 400
            assert why in error
        # The sequence of two rows has begun all the same, and is the first of two.
        assert refusals[7] == 101
        assert refusals[8][0] == 503
        assert "2 are open" in refusals[8][1]
        assert refusals[9] == 101
        assert await answers(served, "sums", step(1, 1, end=True), step(1, 2, start=True)) == [102, 101]


async def test_an_idle_sequence_ends_and_is_not_remembered() -> None:
    async with serve({"sums": sums()}, limits=Limits(sequences=2, sequence_idle_s=0.02)) as served:
        (hosted,) = served.service.models
        for number in range(5):
            assert await answers(served, "sums", step(1, number + 1, start=True)) == [101]
            await until(lambda: hosted._batcher.statistics().sessions == 0)
        assert len(hosted._sequences) <= 2
        ((status, error),) = await answers(served, "sums", step(1, 5))
        assert (status, "it ends 0.02 s after its last one" in error) == (400, True)


async def test_the_metrics_count_sequences() -> None:
    pytest.importorskip("prometheus_client")
    async with serve({"sums": sums()}) as served:
        await answers(served, "sums", step(1, 1, start=True), step(1, 2, start=True))
        text = (await served.get("/metrics")).body.decode()
        assert 'actorflow_batch_sessions{batcher="0",graph="sums/1"} 2.0' in text


_TRITON = """
import sys
import numpy as np
import tritonclient.http as triton

with triton.InferenceServerClient(sys.argv[1]) as client:
    for sequence in 7, "seven":
        for number, value in enumerate((1, 2, 3)):
            x = triton.InferInput("x", [1, 1], "FP32")
            x.set_data_from_numpy(np.array([[value]], np.float32))
            result = client.infer(
                "sums", [x], sequence_id=sequence, sequence_start=number == 0, sequence_end=number == 2
            )
            print(result.as_numpy("y").item(), end=" ")
"""


async def test_the_client_for_triton_sends_sequences(tmp_path: Path) -> None:
    pytest.importorskip("rapidjson", reason="tritonclient is not installed")
    script = tmp_path / "triton.py"
    script.write_text(_TRITON, encoding="utf-8")
    async with serve({"sums": sums()}) as served:
        out = await program(sys.executable, str(script), f"127.0.0.1:{served.port}")
        assert out == b"101.0 103.0 106.0 101.0 103.0 106.0 "
        (hosted,) = served.service.models
        assert hosted._batcher is not None
        assert hosted._batcher.statistics().sessions == 0
