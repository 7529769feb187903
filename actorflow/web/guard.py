"""Who may look: Host and Origin against a fixed list, and the headers that keep a page to itself."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

__all__ = ["SECURITY_HEADERS", "host_guard"]

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def host_guard(allowed_hosts: Iterable[str], own_names: Iterable[str] = ()) -> Middleware:
    """A middleware that answers 403 unless Host, and Origin where there is one, are known.

    This stops pages of other sites, which can reach a server on the loopback through the user's browser or by
    rebinding their own name to 127.0.0.1.

    Args:
        allowed_hosts: Known as they are, written as in the Host header: ``graphs.example.com``, ``10.0.0.5:8080``.
        own_names: Known at the port that the request arrived on, as 127.0.0.1, localhost and ::1 always are.
    """
    extra = frozenset(host.lower() for host in allowed_hosts)
    own = _LOOPBACK.union(name.lower() for name in own_names)

    def is_known(authority: str, scheme: str, port: int | None) -> bool:
        if authority.lower() in extra:
            return True
        try:
            parts = urlsplit(f"//{authority}")
            name, own_port = parts.hostname, parts.port or _DEFAULT_PORTS.get(scheme)
        except ValueError:
            return False
        bare = "@" not in authority and not (parts.path or parts.query or parts.fragment)
        return bare and name in own and own_port == port

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        port = _bound_port(request)
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not is_known(hosts[0], request.scheme, port):
            raise web.HTTPForbidden(text=f"403: this page is not served to host {', '.join(hosts)!r}\n")
        for origin in request.headers.getall("Origin", []):
            scheme, _, authority = origin.partition("://")
            if scheme not in {"http", "https"} or not is_known(authority, scheme, port):
                raise web.HTTPForbidden(text=f"403: this page is not served to origin {origin!r}\n")
        return await handler(request)

    return guard


def _bound_port(request: web.Request) -> int | None:
    address = request.transport.get_extra_info("sockname") if request.transport else None
    return address[1] if isinstance(address, tuple) else None
