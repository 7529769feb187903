"""Bodies of requests: received as they come, within limits, unpacked where they are compressed."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from actorflow.serve.account import Share
from actorflow.serve.answers import refused
from actorflow.serve.exchange import Exchange
from actorflow.serve.limits import Limits
from actorflow.web.http import Refused

#: Bytes that are unpacked at once.
_PIECE = 1 << 16
#: Binary data begins at a multiple of this in memory, as the memory of a bytearray does, so that it is used in place.
_ALIGNED = 16
#: The first bytes that a JSON text may have; what is packed by zlib or gzip begins otherwise.
_JSON = b"{ \t\r\n"


async def receive(http: web.Request | Exchange, limits: Limits, held: Share, head_bytes: int = 0) -> memoryview:
    """The whole body of a request, unpacked; what follows the first ``head_bytes`` is aligned in memory.

    Raises:
        Refused: with 413, if it is too large; with 415, if it is packed in an unknown way; with 400, if it is packed or
            sent wrongly; with 408, if it takes too long; with 503, if there is no room for it.
    """
    packed = http.headers.get("Content-Encoding", "identity").lower()
    if packed not in {"identity", "gzip", "deflate"}:
        text = f"expected a body that is packed by gzip or deflate, or not at all, got {packed[:100]!r}"
        raise refused(415, text, {"Accept-Encoding": "gzip, deflate"})
    if (http.content_length or 0) > limits.body_bytes:
        raise _too_large(limits)
    expected = http.headers.get("Expect", "").lower()
    if expected == "100-continue" and not isinstance(http, Exchange):
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        http.writer.output_size = 0
    pad = -head_bytes % _ALIGNED
    body = bytearray(pad)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            await _fill(body, http, packed != "identity", limits, held)
    except TimeoutError:
        raise refused(408, f"expected the whole body within {limits.body_timeout_s:g} s") from None
    except (HttpProcessingError, web.RequestPayloadError, zlib.error) as error:
        raise refused(400, f"the body cannot be read: {error}") from None
    return memoryview(body)[pad:]


async def _fill(body: bytearray, http: web.Request | Exchange, packed: bool, limits: Limits, held: Share) -> None:
    unpacker = None

    def take(part: bytes) -> None:
        if held.size_bytes + len(part) > limits.body_bytes:
            raise _too_large(limits)
        held.add(len(part))
        body.extend(part)

    async for chunk in http.content.iter_any():
        if packed and not held.size_bytes and unpacker is None and chunk[:1] not in _JSON:
            unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # else the server that we are in has unpacked it
        if unpacker is None:
            take(chunk)
            continue
        part = unpacker.decompress(chunk, _PIECE)
        while part:
            take(part)
            await asyncio.sleep(0)
            part = unpacker.decompress(unpacker.unconsumed_tail, _PIECE)
        if unpacker.unused_data:
            raise zlib.error("something follows the end of what is packed")
    if unpacker is not None and not unpacker.eof:
        raise zlib.error("what is packed has no end")


def _too_large(limits: Limits) -> Refused:
    return refused(413, f"expected a body of at most {limits.body_bytes:,} bytes")
