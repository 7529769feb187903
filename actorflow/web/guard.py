"""Who may look: Host and Origin against a fixed list, a token, and the headers that keep a page to itself."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

__all__ = ["SECURITY_HEADERS", "host_guard", "token_guard"]

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


def token_guard(token: str) -> Middleware:
    """A middleware that answers 401 unless the request shows a token: ``?token=``, a cookie, or as a bearer.

    A browser that shows it in the address gets a cookie, which scripts and other sites cannot use, and is sent to the
    address without it, so that it stays out of the history and of what people copy.
    """
    if not token:
        raise ValueError("the token must not be empty")

    def is_right(shown: str | None) -> bool:
        return shown is not None and hmac.compare_digest(shown.encode(), token.encode())

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        cookie = f"actorflow-{_bound_port(request)}"  # cookies do not know ports
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if is_right(request.cookies.get(cookie)) or is_right(bearer):
            return await handler(request)
        if not is_right(request.query.get("token")):
            raise web.HTTPUnauthorized(text="401: open the address that the server printed, with its token\n")
        target = request.rel_url.without_query_params("token").raw_path_qs
        response = web.HTTPSeeOther("/" + target.lstrip("/"))  # two slashes would begin the name of another host
        response.set_cookie(cookie, token, httponly=True, samesite="Lax")
        raise response

    return guard


def _bound_port(request: web.Request) -> int | None:
    address = request.transport.get_extra_info("sockname") if request.transport else None
    return address[1] if isinstance(address, tuple) else None
