"""Bodies of requests: received as they come, within limits, unpacked where they are compressed."""

from __future__ import annotations

import asyncio
import zlib
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from actorflow.serve.answers import RETRY, refused
from actorflow.serve.limits import Limits
from actorflow.web.http import Refused

#: Bytes that are unpacked at once.
_PIECE = 1 << 16
#: Binary data begins at a multiple of this in memory, as the memory of a bytearray does, so that it is used in place.
_ALIGNED = 16
#: The first bytes that a JSON text may have; what is packed by zlib or gzip begins otherwise.
_JSON = b"{ \t\r\n"


class Intake:
    """Room for the bodies of all requests that are being answered.

    Attributes:
        held_bytes: What they have now.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held_bytes = 0


class Body:
    """The body of one request, which takes its room inside the ``with`` block."""

    def __init__(self, http: web.Request, intake: Intake) -> None:
        self._http = http
        self._intake = intake
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._intake.held_bytes -= self._size

    async def receive(self, head_bytes: int = 0) -> memoryview:
        """The whole body, unpacked; what follows the first ``head_bytes`` is aligned in memory.

        Raises:
            Refused: with 413, if it is too large; with 415, if it is packed in an unknown way; with 400, if it is
                packed or sent wrongly; with 408, if it takes too long; with 503, if the bodies of others leave no room.
        """
        http, limits = self._http, self._intake.limits
        packed = http.headers.get("Content-Encoding", "identity").lower()
        if packed not in {"identity", "gzip", "deflate"}:
            text = f"expected a body that is packed by gzip or deflate, or not at all, got {packed[:100]!r}"
            raise refused(415, text, {"Accept-Encoding": "gzip, deflate"})
        if (http.content_length or 0) > limits.body_bytes:
            raise self._too_large()
        expected = http.headers.get("Expect", "").lower()
        if expected == "100-continue":
            await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            http.writer.output_size = 0
        pad = -head_bytes % _ALIGNED
        body = bytearray(pad)
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                await self._fill(body, packed != "identity")
        except TimeoutError:
            raise refused(408, f"expected the whole body within {limits.body_timeout_s:g} s") from None
        except (HttpProcessingError, web.RequestPayloadError, zlib.error) as error:
            raise refused(400, f"the body cannot be read: {error}") from None
        return memoryview(body)[pad:]

    async def _fill(self, body: bytearray, packed: bool) -> None:
        unpacker = None
        async for chunk in self._http.content.iter_any():
            if packed and not self._size and unpacker is None and chunk[:1] not in _JSON:
                unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # else the server that we are in has unpacked it
            if unpacker is None:
                self._take(body, chunk)
                continue
            part = unpacker.decompress(chunk, _PIECE)
            while part:
                self._take(body, part)
                await asyncio.sleep(0)
                part = unpacker.decompress(unpacker.unconsumed_tail, _PIECE)
            if unpacker.unused_data:
                raise zlib.error("something follows the end of what is packed")
        if unpacker is not None and not unpacker.eof:
            raise zlib.error("what is packed has no end")

    def _take(self, body: bytearray, part: bytes) -> None:
        intake = self._intake
        self._size += len(part)
        intake.held_bytes += len(part)
        if self._size > intake.limits.body_bytes:
            raise self._too_large()
        if intake.held_bytes > intake.limits.pending_bytes:
            raise refused(503, "the requests that are being answered have no room for another one", RETRY)
        body += part

    def _too_large(self) -> Refused:
        return refused(413, f"expected a body of at most {self._intake.limits.body_bytes:,} bytes")
