"""Who may look: Host and Origin against a fixed list, a token, and the headers that keep a page to itself."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote, urlencode, urlsplit

from actorflow.web.exchange import Request, Response

__all__ = ["LOOPBACK", "HostGuard", "TokenGuard", "checked_ancestors", "security_headers"]

#: Names of this machine to itself.
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
# What could end the directive and begin another one must not get through.
_ANCESTOR = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9*_.-]+|\[[0-9a-f:.]+\])(?::(?:\d+|\*))?", re.IGNORECASE)


def security_headers(frame_ancestors: Sequence[str] = ()) -> dict[str, str]:
    """What every response carries.

    Args:
        frame_ancestors: Origins whose pages may show this one inside a frame.
    """
    allowed = " ".join(frame_ancestors) or "'none'"
    return {
        "Content-Security-Policy": (
            f"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {allowed}; object-src 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def checked_ancestors(origins: Iterable[str]) -> tuple[str, ...]:
    """Origins that may be named in a policy.

    Raises:
        ValueError: if one is no ``scheme://host`` or ``scheme://host:port``, where the port may be ``*``.
    """
    if isinstance(origins, str):
        raise ValueError(f"expected frame_ancestors to be a list of origins, got the text {origins!r}")
    checked = tuple(origins)
    for origin in checked:
        if not _ANCESTOR.fullmatch(origin):
            raise ValueError(f"expected an origin such as 'http://localhost:8888' in frame_ancestors, got {origin!r}")
    return checked


class HostGuard:
    """Refuses (403) unless Host, and Origin where there is one, are known.

    This stops pages of other sites, which can reach a server on the loopback through the user's browser or by
    rebinding their own name to 127.0.0.1.

    Args:
        allowed_hosts: Known as they are, written as in the Host header: ``graphs.example.com``, ``10.0.0.5:8080``.
        own_names: Known at the port that the request arrived on, as 127.0.0.1, localhost and ::1 always are.
    """

    def __init__(self, allowed_hosts: Iterable[str], own_names: Iterable[str] = ()) -> None:
        self._extra = frozenset(host.lower() for host in allowed_hosts)
        self._own = LOOPBACK.union(name.lower() for name in own_names)

    def refusal(self, request: Request) -> Response | None:
        """What is answered instead; None if the request may pass."""
        hosts = request.values("host")
        if len(hosts) != 1 or not self._is_known(hosts[0], request.scheme, request.port):
            return Response.of_text(403, f"this page is not served to host {', '.join(hosts)!r}")
        for origin in request.values("origin"):
            scheme, _, authority = origin.partition("://")
            if scheme not in {"http", "https"} or not self._is_known(authority, scheme, request.port):
                return Response.of_text(403, f"this page is not served to origin {origin!r}")
        return None

    def _is_known(self, authority: str, scheme: str, port: int | None) -> bool:
        if authority.lower() in self._extra:
            return True
        try:
            parts = urlsplit(f"//{authority}")
            name, own_port = parts.hostname, parts.port or _DEFAULT_PORTS.get(scheme)
        except ValueError:
            return False
        bare = "@" not in authority and not (parts.path or parts.query or parts.fragment)
        return bare and name in self._own and own_port == port


class TokenGuard:
    """Refuses (401) unless the request shows one of the tokens: ``?token=``, a cookie, or as a bearer.

    A browser that shows it in the address gets a cookie, which scripts and other sites cannot use, and is sent to the
    address without it, so that it stays out of the history and of what people copy.

    Args:
        tokens: They.
        needed: Whether a request without one is refused, too.
    Raises:
        ValueError: if one is empty.
    """

    def __init__(self, *tokens: str, needed: bool = True) -> None:
        if not all(tokens):
            raise ValueError("the token must not be empty")
        self._tokens = tokens
        self._needed = needed

    def refusal(self, request: Request) -> Response | None:
        """What is answered instead; None if the request may pass."""
        query = request.query
        asked = next((token for name, value in query if name == "token" and (token := self._known(value))), None)
        if asked is None or asked == self.shown(request):
            if self._needed and self.shown(request) is None:
                return Response.of_text(401, "open the address that the server printed, with its token")
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        secure = "; Secure" if request.scheme == "https" else ""
        # Relative, so that it is right behind a proxy too, and never the name of another host.
        headers = {
            "Location": f"./{request.target}{'?' if rest else ''}{rest}",
            "Set-Cookie": f"{_cookie(request)}={quote(asked, safe='')}; HttpOnly; Path=/; SameSite=Lax{secure}",
        }
        return Response(303, headers=headers)

    def shown(self, request: Request) -> str | None:
        """The token that a request shows in a cookie or as a bearer; of two, the bearer."""
        bearer = request.value("authorization").removeprefix("Bearer ")
        return self._known(bearer) or self._known(unquote(request.cookies.get(_cookie(request), "")))

    def _known(self, shown: str) -> str | None:
        """The token that this is, if it is one."""
        given = shown.encode(errors="surrogateescape")
        return next((token for token in self._tokens if hmac.compare_digest(given, token.encode())), None)


def _cookie(request: Request) -> str:
    return f"actorflow-{request.port}"  # cookies do not know ports
