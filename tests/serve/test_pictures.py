"""Pictures as requests: what a model gets of a file, and what is refused."""

import asyncio
import struct
import sys
import threading
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

import actorflow as af
from actorflow.data.images import pixels_of
from actorflow.errors import DeviceError
from actorflow.serve import Limits
from tests.serve.serving import Client, serve, ten_times, until

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def file(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    content = BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def same(shape: Any, dtype: str = "float32") -> af.Model:
    """A model that gives back what it gets."""
    graph = af.Graph("same")
    x = graph.blob("x", shape, dtype)
    return af.Model(graph, {"x": x}, {"y": graph.function("same", lambda x: x, x.spec)(x)})


async def ask(model: af.Model, body: bytes, query: str = "", **limits: Any) -> Any:
    async with serve({"model": model}, limits=Limits(**limits)) as served:
        return await served.ask(f"/v2/models/model/image{query}", body)


@pytest.mark.together(
    ("shape", "axes"), [(("batch", "h", "w", 3), (0, 1, 2)), ((1, 3, "h", "w"), (2, 0, 1)), (("N", 5, 7, 3), (0, 1, 2))]
)
async def test_layouts(shape: Any, axes: Any) -> None:
    answer = await ask(same(shape), file(PIXELS))
    assert answer.status == 200
    expected = (PIXELS.transpose(axes) / np.float32(255))[None]
    assert np.array_equal(answer.output("y"), expected)
    answer = await ask(same(shape, "uint8"), file(PIXELS))
    assert np.array_equal(answer.output("y"), PIXELS.transpose(axes)[None])


async def test_mean_and_deviation() -> None:
    answer = await ask(same((1, 3, 5, 7)), file(PIXELS), "?mean=0.5,0.4,0.3&std=0.25")
    expected = (PIXELS.transpose(2, 0, 1)[None] / 255 - np.array([0.5, 0.4, 0.3]).reshape(3, 1, 1)) / 0.25
    assert np.allclose(answer.output("y"), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
async def test_sizes_and_channels(kind: str) -> None:
    grey = np.full((40, 60, 3), 51, np.uint8)
    answer = await ask(same(("batch", 1, 8, 8)), file(grey, kind))
    assert answer.output("y").shape == (1, 1, 8, 8)
    assert np.allclose(answer.output("y"), 0.2)


def huge() -> bytes:
    """A small file that says that it is a large picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.together(
    ("body", "query", "status", "message"),
    [
        (b"", "", 400, "expected a picture in the format JPEG or PNG"),
        (b"hello", "", 400, "expected a picture in the format JPEG or PNG"),
        (file(PIXELS, "BMP"), "", 400, "expected a picture in the format JPEG or PNG"),
        (file(PIXELS, "PPM"), "", 400, "expected a picture in the format JPEG or PNG"),
        (file(PIXELS)[:-30], "", 400, "it cannot be decoded"),
        (file(PIXELS)[:20], "", 400, "expected a picture in the format JPEG or PNG"),
        (huge(), "", 413, "expected a picture of at most 100 pixels"),
        (file(np.zeros((11, 10, 3), np.uint8)), "", 413, "expected a picture of at most 100 pixels, got 10 x 11"),
        (file(PIXELS), "?mean=1,2", 400, "expected mean to be one number or 3"),
        (file(PIXELS), "?mean=nan", 400, "expected mean to be one number or 3"),
        (file(PIXELS), "?mean=many", 400, "expected mean to be one number or 3"),
        (file(PIXELS), "?std=0", 400, "expected std to be other than 0"),
        (file(PIXELS), "?upright=maybe", 400, "expected upright to be true or false"),
        (file(PIXELS, "JPEG") + b"\xff\xda" * 128, "", 400, "in the format JPEG with at most 128 scans"),
    ],
    ids=range(14),
)
async def test_what_is_refused(body: bytes, query: str, status: int, message: str) -> None:
    answer = await ask(same((1, "h", "w", 3)), body, query, picture_pixels=100)
    assert answer.status == status
    assert message in answer.error


async def test_pictures_are_turned_as_they_are_shown() -> None:
    exif, content = Image.Exif(), BytesIO()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(content, "PNG", exif=exif)
    turned = np.rot90(PIXELS, -1)
    answer = await ask(same((1, "h", "w", 3), "uint8"), content.getvalue())
    assert np.array_equal(answer.output("y"), turned[None])
    answer = await ask(same((1, "h", "w", 3), "uint8"), content.getvalue(), "?upright=false")
    assert np.array_equal(answer.output("y"), PIXELS[None])


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
async def test_pixels_have_the_limit_of_bodies(dtype: str) -> None:
    picture = np.zeros((100, 100, 3), np.uint8)
    size = picture.size * np.dtype(dtype).itemsize
    assert (await ask(same((1, "h", "w", 3), dtype), file(picture), body_bytes=size)).status == 200
    answer = await ask(same((1, "h", "w", 3), dtype), file(picture), body_bytes=size - 1)
    assert answer.status == 413
    assert answer.error == f"expected a picture of at most {size - 1:,} bytes, got {size:,}"


async def test_room_for_pictures_is_taken_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And given back when they are, also where the client has gone, as a thread goes on."""
    sizes, go_on = [], threading.Event()
    service: Any = None

    def slow(image: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(service._account.held_bytes)
        assert go_on.wait(60)
        return pixels_of(image, *arguments, **options)

    monkeypatch.setattr("actorflow.serve.pictures.pixels_of", slow)
    monkeypatch.setattr("actorflow.serve.app.cores", lambda: 2)
    picture = np.zeros((300, 300, 3), np.uint8)
    body, need = file(picture), 300 * 300 * 16
    async with serve({"model": same((1, 8, 8, 3))}, limits=Limits(pending_bytes=need * 3 // 2)) as served:
        service = served.service
        client = await Client.open(served.port)
        client.send("/v2/models/model/image", body)
        await until(lambda: sizes)
        assert need <= sizes[0] <= need + 10_000
        answer = await served.ask("/v2/models/model/image", body)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        await client.hang_up()
        await until(lambda: service.in_flight == 0)
        assert service._account.held_bytes >= need
        go_on.set()
        await until(lambda: service._account.held_bytes == 0)
        assert (await served.ask("/v2/models/model/image", body)).status == 200


@pytest.mark.parametrize("shape", [("batch", 8, 8, 2), ("batch", 3), (2, 8, 8, 3), ("batch", 8, 8, "channels")])
async def test_models_that_take_no_pictures(shape: Any) -> None:
    answer = await ask(same(shape), file(PIXELS))
    assert answer.status == 400
    assert answer.error.startswith("model 'model' takes no pictures")
    assert (await ask(same((1, 8, 8, 3), "int32"), file(PIXELS))).status == 400
    assert (await ask(ten_times(), file(PIXELS))).status == 400
    assert (await ask(same((1, 5, 7, 3), "uint8"), file(PIXELS), "?std=2")).status == 400


def packed_texts(count: int, kind: bytes = b"zTXt") -> bytes:
    """A picture with texts that unpack to a megabyte each."""
    whole = file(PIXELS)
    data = b"key\0\0" + zlib.compress(bytes((1 << 20) - 1))
    one = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return whole[:33] + one * count + whole[33:]


async def test_what_unpacks_beside_pixels_counts() -> None:
    body = packed_texts(40)
    assert len(body) < 50_000
    assert (await ask(same((1, 5, 7, 3)), body)).status == 200
    assert (await ask(same((1, 5, 7, 3)), body, pending_bytes=20 << 20)).status == 503


async def test_a_client_that_hangs_up_within_a_picture() -> None:
    async with serve({"model": same((1, "h", "w", 3))}) as served:
        client = await Client.open(served.port)
        client.send("/v2/models/model/image", file(PIXELS)[:50], {"Content-Length": "1000"})
        await until(lambda: served.service.in_flight == 1)
        await client.hang_up()
        await until(lambda: served.service.in_flight == 0)
        await asyncio.sleep(0)
        assert served.service._account.held_bytes == 0


async def test_without_a_thread_to_decode_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(work: Any) -> Any:
        raise DeviceError("there is no thread")

    monkeypatch.setattr("actorflow.serve.pictures.in_thread", none)
    answer = await ask(same((1, "h", "w", 3)), file(PIXELS))
    assert (answer.status, answer.error, answer.headers["retry-after"]) == (503, "there is no thread", "1")


async def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    answer = await ask(same((1, "h", "w", 3)), file(PIXELS))
    assert answer.status == 501
    assert "pip install 'actorflow[images]'" in answer.error
