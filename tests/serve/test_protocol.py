"""The paths of the Open Inference Protocol, by what it says of requests and answers."""

import json
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import __version__
from actorflow.serve import Limits
from tests.serve.serving import Gate, binary_tensor, mixed, serve, ten_times, tensor, until

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


async def test_metadata_and_health() -> None:
    async with serve({"mixed": mixed(), "many": {"1": ten_times(), "2": ten_times()}}) as served:
        assert (await served.get("/v2")).json == {
            "name": "actorflow",
            "version": __version__,
            "extensions": ["binary_tensor_data", "generate", "model_repository", "parameters", "sequence"],
        }
        assert (await served.get("/v2/health/live")).json == {"live": True}
        assert (await served.get("/v2/health/ready")).json == {"ready": True}
        assert (await served.get("/v2/models")).json == {"models": ["mixed", "many"]}
        assert (await served.get("/v2/models/mixed")).json == {
            "name": "mixed",
            "versions": ["1"],
            "platform": "actorflow_graph",
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
                {"name": "flags", "datatype": "BOOL", "shape": [-1]},
                {"name": "small", "datatype": "INT8", "shape": [-1, 2]},
            ],
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
                {"name": "sum", "datatype": "INT8", "shape": [-1, 2]},
                {"name": "flipped", "datatype": "BOOL", "shape": [-1]},
            ],
        }
        assert (await served.get("/v2/models/many/versions/1")).json["versions"] == ["1", "2"]
        assert (await served.get("/v2/models/many/versions/2/ready")).json == {"name": "many", "ready": True}


async def test_inference_by_json_and_by_bytes() -> None:
    flags, small = np.array([True, False]), np.array([[1, -2], [3, 60]], np.int8)
    as_json = [tensor("small", small, "INT8"), tensor("x", ROWS), tensor("flags", flags, "BOOL")]
    as_bytes = [binary_tensor("small", small, "INT8"), tensor("x", ROWS), binary_tensor("flags", flags, "BOOL")]
    async with serve({"mixed": mixed()}) as served:
        for binary in (False, True):
            request = {"inputs": as_json, "parameters": {"binary_data_output": binary}, "id": "7", "other": None}
            by_json = await served.infer("mixed", request)
            request["inputs"] = as_bytes
            by_bytes = await served.infer("mixed", request, small.tobytes() + flags.tobytes())
            for answer in (by_json, by_bytes):
                assert answer.status == 200
                assert np.array_equal(answer.output("y"), 2 * ROWS)
                assert answer.output("sum").tolist() == [[2, -4], [6, 120]]
                assert answer.output("flipped").tolist() == [False, True]
            assert by_json.body == by_bytes.body
        assert by_json.headers["content-type"] == "application/octet-stream"
        head = json.loads(by_json.body[: int(by_json.headers["inference-header-content-length"])])
        assert head == {
            "model_name": "mixed",
            "model_version": "1",
            "id": "7",
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}},
                {"name": "sum", "datatype": "INT8", "shape": [2, 2], "parameters": {"binary_data_size": 4}},
                {"name": "flipped", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}},
            ],
        }


async def test_outputs_that_are_wanted() -> None:
    inputs = [tensor("x", ROWS), tensor("flags", np.ones(2, bool), "BOOL"), tensor("small", np.ones((2, 2)), "INT8")]
    inputs[2]["data"] = [1, 2, 3, 4]
    async with serve({"mixed": mixed()}) as served:
        wanted: list[Any] = [{"name": "sum"}, {"name": "y", "parameters": {"binary_data": False}}]
        request: dict[str, Any] = {"inputs": inputs, "outputs": wanted}
        answer = await served.infer("mixed", request)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["outputs"] == [
            {"name": "sum", "datatype": "INT8", "shape": [2, 2], "data": [2, 4, 6, 8]},
            {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [0, 2, 4, 6, 8, 10]},
        ]
        request["parameters"] = {"binary_data_output": True}
        answer = await served.infer("mixed", request)
        entries = json.loads(answer.body[: int(answer.headers["inference-header-content-length"])])["outputs"]
        assert [list(entry)[-1] for entry in entries] == ["parameters", "data"]
        assert answer.output("sum").tolist() == [[2, 4], [6, 8]]


async def test_versions_of_a_model() -> None:
    graph = af.Graph("other")
    x = graph.blob("x", ("batch", 3))
    other = af.Model(graph, {"x": x}, {"y": af.ops.scale(x, -1.0)})
    async with serve({"model": {"old": ten_times(), "new": other}}) as served:
        request = {"inputs": [tensor("x", ROWS)]}
        for path, factor, version in (("model", -1, "new"), ("model/versions/old", 10, "old")):
            answer = await served.infer(path, request)
            assert answer.json["model_version"] == version
            assert np.array_equal(answer.output("y"), factor * ROWS)


async def test_a_graph_is_served_under_the_names_of_its_blobs() -> None:
    graph = af.Graph("plain")
    x = graph.blob("x", ("batch", 3))
    af.ops.scale(x, 2.0, name="twice")
    async with serve({"plain": graph}) as served:
        answer = await served.infer("plain", {"inputs": [tensor("x", ROWS)]})
        assert np.array_equal(answer.output("twice/out"), 2 * ROWS)


async def test_scalars_and_large_tensors() -> None:
    graph = af.Graph("scalars")
    x, many = graph.blob("x", ()), graph.blob("many", ("n", 5), "float64")
    model = af.Model(graph, {"x": x, "many": many}, {"y": af.ops.scale(x, 3.0), "more": af.ops.scale(many, 2.0)})
    values = np.random.default_rng(0).random((4_000, 5))
    async with serve({"scalars": model}) as served:
        inputs = [tensor("x", np.float32(2)), tensor("many", values, "FP64")]
        for binary in (False, True):
            answer = await served.infer("scalars", {"inputs": inputs, "parameters": {"binary_data_output": binary}})
            assert answer.output("y").item() == 6
            assert np.array_equal(answer.output("more"), 2 * values)
        nested = {**inputs[1], "data": values.tolist()}
        answer = await served.infer("scalars", {"inputs": [inputs[0], nested]})
        assert np.array_equal(answer.output("more"), 2 * values)


def changed(**entries: Any) -> dict[str, Any]:
    """A request whose one input is changed."""
    return {"inputs": [{**tensor("x", ROWS), **entries}]}


def without(name: str) -> dict[str, Any]:
    return {"inputs": [{key: value for key, value in tensor("x", ROWS).items() if key != name}]}


X = tensor("x", ROWS)


@pytest.mark.together(
    ("request_", "message"),
    [
        (b"", "expected JSON: Expecting value"),
        (b"hello", "expected JSON: Expecting value"),
        (b'{"inputs": [', "expected JSON"),
        (b"\xff{}", "expected JSON: 'utf-8' codec can't decode"),
        (b"[]", "expected a JSON object, got list"),
        (b'{"inputs": [NaN]}', "NaN is not a value of JSON"),
        (b"[" * 100_000, "nested too deep"),
        ({}, "expected a list of objects as inputs"),
        ({"inputs": [3]}, "expected a list of objects as inputs"),
        ({"inputs": []}, "model 'model' needs input 'x'"),
        ({"inputs": [X, X]}, "input 'x' is given twice"),
        ({"inputs": [X, {**X, "name": "X"}]}, "there is no input 'X', only 'x'; did you mean 'x'?"),
        ({"inputs": [{**X, "name": 3}]}, "there is no input '3'"),
        ({"inputs": [X], "id": 3}, "expected a string as id"),
        ({"inputs": [X], "parameters": []}, "expected an object as parameters of the request"),
        ({"inputs": [X], "parameters": {"binary_data_output": 1}}, "expected true or false"),
        ({"inputs": [X], "parameters": {"timeout": "soon"}}, "expected a number of microseconds"),
        ({"inputs": [X], "parameters": {"timeout": -1}}, "expected a number of microseconds"),
        ({"inputs": [X], "outputs": [{"name": "z"}]}, "there is no output 'z', only 'y'"),
        ({"inputs": [X], "outputs": [{"name": "y"}, {"name": "y"}]}, "output 'y' is given twice"),
        ({"inputs": [X], "outputs": {}}, "expected a list of objects as outputs"),
        (
            {"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
            "classification is not supported",
        ),
        (changed(parameters={"shared_memory_region": "r"}), "shared memory is not supported"),
        (changed(datatype="BYTES"), "expected datatype FP32, got 'BYTES'"),
        (changed(datatype="FP64"), "expected datatype FP32, got 'FP64'"),
        (changed(shape=[3, 2]), "expected shape [-1, 3], got [3, 2]"),
        (changed(shape=[-2, 3]), "expected a shape, a list of lengths"),
        (changed(shape=[3, 3]), "expected 9 values for shape [3, 3], got 6"),
        (changed(shape=[0, 3], data=[]), "needs at least 1 row, got none"),
        (changed(data=[1e39] * 6), "out of the range of FP32"),
        (changed(data=["a"] * 6), "expected numbers for FP32"),
        (changed(parameters={"binary_data_size": 24}), "expected either data or the parameter binary_data_size"),
        (without("data"), "expected either data or the parameter binary_data_size"),
        (without("shape"), "expected a shape, a list of lengths, got None"),
        (without("datatype"), "expected datatype FP32, got None"),
        (without("name"), "there is no input 'None'"),
    ],
    at_once=33,
)
async def test_requests_that_are_wrong(request_: Any, message: str) -> None:
    async with serve({"model": ten_times()}) as served:
        answer = await served.infer("model", request_)
        assert answer.status == 400
        assert message in answer.error
        assert (await served.infer("model", {"inputs": [X]})).status == 200


@pytest.mark.together(
    ("size", "binary", "message"),
    [
        (24, ROWS.tobytes()[:-1], "23 bytes of binary data are left, and binary_data_size is 24"),
        (24, ROWS.tobytes() + b"\0", "1 bytes of binary data belong to no input"),
        (23, ROWS.tobytes()[:-1], "expected 24 bytes of binary data for shape [2, 3], got 23"),
        (-1, ROWS.tobytes(), "24 bytes of binary data are left, and binary_data_size is -1"),
        (24.0, ROWS.tobytes(), "binary_data_size is 24.0"),
        (True, ROWS.tobytes(), "binary_data_size is True"),
        (10**30, ROWS.tobytes(), "24 bytes of binary data are left"),
    ],
)
async def test_binary_data_that_is_wrong(size: Any, binary: bytes, message: str) -> None:
    async with serve({"model": ten_times()}) as served:
        entry = {**binary_tensor("x", ROWS), "parameters": {"binary_data_size": size}}
        answer = await served.infer("model", {"inputs": [entry]}, binary)
        assert answer.status == 400
        assert message in answer.error


@pytest.mark.together("size", ["-1", "1e3", "", "²", "1 2", "9" * 5000, str(1 << 30), "0x10"])
async def test_sizes_of_json_that_are_wrong(size: str) -> None:
    async with serve({"model": ten_times()}) as served:
        answer = await served.ask(
            "/v2/models/model/infer", json.dumps({"inputs": [X]}).encode(), {"Inference-Header-Content-Length": size}
        )
        assert answer.status == 400
        assert "Inference-Header-Content-Length" in answer.error


async def test_paths_that_are_not_there() -> None:
    async with serve({"model": ten_times()}) as served:
        for path, message in (
            ("/", "there is nothing at '/'"),
            ("/v2/models/modl", "there is no model 'modl'; did you mean 'model'?"),
            ("/v2/models/model/versions/2", "model 'model' has no version '2': expected one of ['1']"),
            ("/v2/models/model/versions/2/ready", "has no version '2'"),
        ):
            answer = await served.get(path)
            assert answer.status == 404
            assert message in answer.error
        assert (await served.infer("none", {})).status == 404
        answer = await served.get("/v2/models/model/infer")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert answer.error == "Method Not Allowed: GET"


async def test_nan_in_a_result() -> None:
    """JSON cannot express it, binary data can."""
    async with serve({"model": ten_times()}) as served:
        rows = np.array([[np.nan, np.inf, -0.0]], np.float32)
        request: dict[str, Any] = {"inputs": [binary_tensor("x", rows)]}
        answer = await served.infer("model", request, rows.tobytes())
        assert answer.status == 400
        assert answer.error.startswith("output 'y' has NaN or infinities, which JSON cannot express: ask for binary")
        request["parameters"] = {"binary_data_output": True}
        answer = await served.infer("model", request, rows.tobytes())
        assert answer.output("y").tobytes() == (10 * rows).tobytes()


async def test_a_model_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The client is told what, but not where the program's files are; the log has no control characters."""

    def root(x: np.ndarray) -> np.ndarray:
        if (x < 0).any():
            raise ValueError("a negative number has no real root\nsecond line \x1b[2J\r\u202e")
        return np.sqrt(x)

    graph = af.Graph("roots")
    x = graph.blob("x", ("batch", 3))
    y = graph.function("root", root, x.spec)(x)
    async with serve({"roots": af.Model(graph, {"x": x}, {"y": y})}) as served:
        assert (await served.infer("roots", {"inputs": [tensor("x", ROWS)]})).status == 200
        answer = await served.infer("roots", {"inputs": [tensor("x", -ROWS)]})
        assert answer.status == 500
        assert answer.error.endswith("failed with ValueError: a negative number has no real root")
        (hosted,) = served.service.models
        assert hosted.answers == {200: 1, 500: 1}
    (record,) = [record for record in caplog.records if "model roots/1 failed" in record.getMessage()]
    assert r"second line \x1b[2J\r\u202e" in record.getMessage()
    assert __file__ in record.getMessage()
    assert all(each.isprintable() for each in record.getMessage().split("\n"))


async def test_lengths_that_do_not_fit_each_other() -> None:
    graph = af.Graph("pairs")
    a, b = graph.blob("a", ("batch", "n")), graph.blob("b", ("batch", "n"))
    model = af.Model(graph, {"a": a, "b": b}, {"sum": a + b})
    async with serve({"pairs": model}) as served:
        answer = await served.infer("pairs", {"inputs": [tensor("a", ROWS), tensor("b", ROWS.T)]})
        assert answer.status == 400
        assert "axis" in answer.error


@pytest.mark.parametrize("batched", [True, False])
class TestTimesAndQueues:
    async def test_the_time_of_a_request(self, batched: bool) -> None:
        gate = Gate()
        rows = ROWS[:1]
        async with serve({"model": gate.model(batched=batched)}) as served:
            request = {"inputs": [tensor("x", rows)], "parameters": {"timeout": 1000}}
            answer = await served.infer("model", request)
            assert answer.status == 504
            assert answer.error
            await until(lambda: gate.inside == 0)

    async def test_the_time_of_all_requests(self, batched: bool) -> None:
        limits = Limits(timeout_s=0.001)
        async with serve({"model": Gate().model(batched=batched)}, limits=limits) as served:
            for timeout_us in (0, 10**12):
                request = {"inputs": [tensor("x", ROWS[:1])], "parameters": {"timeout": timeout_us}}
                assert (await served.infer("model", request)).status == 504

    async def test_a_full_queue(self, batched: bool) -> None:
        gate = Gate()
        limits = Limits(queue_rows=2, in_flight=1)
        async with serve({"model": gate.model(batched=batched)}, limits=limits, max_rows=1) as served:
            clients = []
            for number in range(3):
                clients.append(await send(served, ROWS[:1]))
                await until(lambda n=number: waiting(served) == n)
                await until(lambda: gate.inside == 1)
            answer = await served.infer("model", {"inputs": [tensor("x", ROWS[:1])]})
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "queue_rows=2" in answer.error
            gate.open.set()
            assert [(await client.answer()).status for client in clients] == [200] * 3


async def send(served: Any, rows: np.ndarray) -> Any:
    from tests.serve.serving import Client

    client = await Client.open(served.port)
    client.send("/v2/models/model/infer", json.dumps({"inputs": [tensor("x", rows)]}).encode())
    return client


def waiting(served: Any) -> int:
    (hosted,) = served.service.models
    if hosted.unbatched is not None:
        return int(hosted._waiting)
    return int(hosted._batcher.statistics().waiting_rows)


async def test_more_rows_than_may_wait() -> None:
    async with serve({"model": ten_times()}, limits=Limits(queue_rows=4), max_rows=2) as served:
        rows = np.ones((5, 3), np.float32)
        answer = await served.infer("model", {"inputs": [tensor("x", rows)]})
        assert (answer.status, answer.error) == (413, "expected at most 4 rows, got 5: send them in parts")
        answer = await served.infer("model", {"inputs": [tensor("x", rows[:4])]})
        assert np.array_equal(answer.output("y"), 10 * rows[:4])


@pytest.mark.together(
    ("shape", "options", "why"),
    [
        (("batch", 3), {}, None),
        (("BATCH_SIZE", 3), {}, None),
        (("N", 3), {}, None),
        (("time", 3), {}, "its inputs begin with axis 'time', which may be no batch"),
        (("time", 3), {"batch_axis": "time"}, None),
        (("batch", 3), {"max_rows": 0}, "batched runs are turned off"),
        ((2, 3), {}, "does not begin with an open axis"),
    ],
)
async def test_which_models_are_batched(shape: Any, options: Any, why: str | None) -> None:
    """Rows of others must not change a result: an axis that may be no batch is none unless somebody says so."""
    graph = af.Graph("shaped")
    x = graph.blob("x", shape)
    async with serve({"model": af.Model(graph, {"x": x}, {"y": af.ops.scale(x, 2.0)})}, **options) as served:
        (hosted,) = served.service.models
        assert (hosted.unbatched is None) == (why is None)
        assert (why or "") in (hosted.unbatched or "")
        answer = await served.infer("model", {"inputs": [tensor("x", ROWS)]})
        assert np.array_equal(answer.output("y"), 2 * ROWS)


async def test_rows_of_several_requests_share_a_frame() -> None:
    gate = Gate()
    async with serve({"model": gate.model()}) as served:
        first = await send(served, ROWS)
        await until(lambda: gate.inside == 1)
        others = [await send(served, ROWS + n) for n in range(1, 9)]
        await until(lambda: waiting(served) + gate.rows == 18)
        gate.open.set()
        for n, client in enumerate([first, *others]):
            assert np.array_equal((await client.answer()).output("y"), ROWS + n)
        (hosted,) = served.service.models
        assert hosted.model.graph.engine.frames.finished < 9


async def test_requests_of_many_lengths_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.devices.memory._LITTLE_BYTES", 0)

    async def peak(lengths: list[int]) -> int:
        graph = af.Graph("lengths", fuse=False)
        x = graph.blob("x", ("batch", "n", 16))
        y = af.ops.softmax(af.ops.sort(af.ops.tanh(af.ops.scale(x, 2.0)), axis=1))
        model = af.Model(graph, {"x": x}, {"y": y, "sum": af.ops.sum(y, axis=(1, 2))})
        async with serve({"m": model}) as served:
            for n in lengths:
                rows = np.ones((1, n, 16), np.float32)
                request = {"inputs": [binary_tensor("x", rows)], "parameters": {"binary_data_output": True}}
                answer = await served.infer("m", request, rows.tobytes())
                assert answer.output("sum").round(3) == n
            memory: int = graph.statistics().memory[af.Place()].peak_bytes
        return memory

    assert await peak([*range(900, 1_500, 10)] * 2) <= 3 * await peak([1_490] * 3)
