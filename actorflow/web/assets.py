"""The files of the page, read once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from actorflow.web.exchange import Request, Response

# Fixed, as the system's table of types may call a module text/plain, which browsers then refuse to run.
_CONTENT_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page.

    Attributes:
        body: The content.
        content_type: What it is.
        etag: Of the content, in quotes.
    """

    body: bytes
    content_type: str
    etag: str

    async def answer(self, request: Request) -> Response:
        """The file, or 304 to a browser that has it."""
        headers = {"Cache-Control": "no-cache", "ETag": self.etag}
        known = {
            tag.strip().removeprefix("W/") for value in request.values("if-none-match") for tag in value.split(",")
        }
        if known & {self.etag, "*"}:
            return Response(304, headers=headers)
        return Response(200, [self.body], f"{self.content_type}; charset=utf-8", headers)


def read_assets() -> dict[str, Asset]:
    """The files by name."""
    assets = {}
    for file in resources.files("actorflow.web").joinpath("static").iterdir():
        content_type = _CONTENT_TYPES.get(file.name[file.name.rfind(".") :])
        if content_type is not None:
            body = file.read_bytes()
            assets[file.name] = Asset(body, content_type, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')
    return assets
