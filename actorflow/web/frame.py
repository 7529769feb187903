"""A page inside a frame, as notebooks show it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from urllib.parse import urlsplit, urlunsplit

from actorflow.web.guard import LOOPBACK


@dataclass(frozen=True, slots=True)
class Frame:
    """An object that a notebook shows as a page.

    Attributes:
        url: Address of the page.
        title: What is shown there.
        height: Of the frame in pixels; 0 for a link alone.
        hint: How to do better.
    """

    url: str
    title: str
    height: int = 600
    hint: str = ""

    def _repr_html_(self) -> str:
        url, title = escape(self.url), escape(self.title)
        link = f'<a href="{url}" target="_blank" rel="noopener noreferrer">graph {title}, live</a>'
        hint = f". To see it here, {escape(self.hint)}" if self.hint else ""
        if not self.height:
            return f"<p>{link}{hint}</p>"
        style = f"width: 100%; height: {self.height}px; border: 1px solid #8886; border-radius: 6px"
        return f'<iframe src="{url}" title="graph {title}, live" style="{style}"></iframe><p>{link}</p>'


def frame_url(url: str, ancestor: str) -> str:
    """The address for a frame inside a page of ``ancestor``, where both are on this machine under one name."""
    name, parts = urlsplit(ancestor.replace(":*", "")).hostname, urlsplit(url)
    if name not in LOOPBACK or parts.hostname not in LOOPBACK:
        return url
    written = f"[{name}]" if ":" in name else name
    return urlunsplit(parts._replace(netloc=f"{written}:{parts.port}"))
