"""Access to the page: Host and Origin against a fixed list, tokens, and the headers that keep a page to itself."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from actorflow.web.http import Request, Response

#: Names of this machine to itself.
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
#: Keys that a cookie holds: of this page, and of others that are served on the same port.
_MOST_KEPT = 8
_KEPT = re.compile(r"[\w.~%-]{1,256}", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
# Nothing that could end the directive and begin another one may get through.
_ANCESTOR = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9*_.-]+|\[[0-9a-f:.]+\])(?::(?:\d+|\*))?", re.IGNORECASE)


def security_headers(frame_ancestors: Sequence[str] = ()) -> dict[str, str]:
    """Headers of every response.

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


class HostCheck:
    """Refuses (403) unless Host, and Origin where there is one, are known.

    This stops pages of other sites, which can reach a server on the loopback through the user's browser or by
    rebinding their own name to 127.0.0.1.

    Args:
        allowed_hosts: Known as they are, written as in the Host header: ``graphs.example.com``, ``10.0.0.5:8080``.
        own_names: Known at the port that the request arrived on, as 127.0.0.1, localhost and ::1 always are.
    Raises:
        ValueError: if one of ``allowed_hosts`` could not be in a Host header.
    """

    def __init__(self, allowed_hosts: Iterable[str], own_names: Iterable[str] = ()) -> None:
        self._extra = frozenset(host.lower() for host in _checked_hosts(allowed_hosts))
        self._own = LOOPBACK.union(name.lower() for name in own_names)

    def refusal(self, request: Request) -> Response | None:
        """Response that refuses the request; None if it may pass."""
        hosts, origins = request.values("host"), request.values("origin")
        problem = self.problem(hosts, origins, request.scheme, request.port)
        return None if problem is None else Response.of_text(403, f"this page is not served to {problem}")

    def problem(self, hosts: Sequence[str], origins: Sequence[str], scheme: str, port: int | None) -> str | None:
        """The host or the origin of a request that is not known, and how to allow it; None if all are."""
        if len(hosts) != 1 or not self._is_known(hosts[0], scheme, port):
            how = _how_to_allow(hosts[0]) if len(hosts) == 1 else ""
            return f"host {', '.join(hosts)!r}{how}"
        for origin in origins:
            scheme, _, authority = origin.partition("://")
            if scheme not in {"http", "https"} or not self._is_known(authority, scheme, port):
                how = _how_to_allow(authority) if scheme in {"http", "https"} else ""
                return f"origin {origin!r}{how}"
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


class TokenCheck:
    """Refuses (401) unless the request shows one of the tokens, as ``?token=`` or as a bearer, or has the cookie.

    A browser that shows it in the address gets a cookie, which scripts and other sites cannot use. It goes to every
    server of the host, whatever its port, so it is not a token, and none can be found from it: it is good for looking,
    at this page alone. All else needs the token in a header, as the page's own script sends it.

    The cookie keeps the keys of other pages on the port, as it is sent to all of them.

    Args:
        needed: Whether a request without one is refused, too.
    Raises:
        ValueError: if one is empty, or begins or ends with a space, which a header would lose.
    """

    def __init__(self, *tokens: str, needed: bool = True) -> None:
        for token in tokens:
            if not token or token != token.strip():
                raise ValueError("the token must not be empty, and have no spaces at its ends")
        self._tokens = tokens
        self._key = _key_of(tokens[0]) if needed else None

    def refusal(self, request: Request) -> Response | None:
        """Response that refuses the request; None if it may pass."""
        key = self._key
        if key is None or self.shown(request) or self._asked(request):
            return None
        if any(hmac.compare_digest(key, kept) for kept in _kept(request)):
            return None
        return Response.of_text(401, "open the address that the server printed, with its token")

    def shown(self, request: Request) -> str | None:
        """The token that a request shows as a bearer."""
        return self.known(bearer(request.value("authorization")))

    def headers(self, request: Request) -> dict[str, str]:
        """Headers that are added to the response: the cookie, if the address has a token."""
        if self._key is None or not self._asked(request):
            return {}
        kept = [self._key, *[other for other in _kept(request) if other != self._key]]
        secure = "; Secure" if request.scheme == "https" else ""
        return {
            "Set-Cookie": f"{_cookie(request)}={':'.join(kept[:_MOST_KEPT])}; HttpOnly; Path=/; SameSite=Lax{secure}"
        }

    def _asked(self, request: Request) -> bool:
        return any(name == "token" and self.known(value) for name, value in request.query)

    def known(self, shown: str) -> str | None:
        """The token that this is, if it is one."""
        given = shown.encode(errors="surrogateescape")
        return next((token for token in self._tokens if hmac.compare_digest(given, token.encode())), None)


def bearer(authorization: str) -> str:
    """The token in a header ``Authorization``; empty where its scheme is another one, or there is none."""
    scheme, _, token = authorization.partition(" ")
    return token if scheme.lower() == "bearer" else ""


def _key_of(token: str) -> str:
    """Key that is kept in place of a token. It is slow to compute, as someone might try tokens until one has it."""
    return hashlib.pbkdf2_hmac("sha256", token.encode(), b"actorflow: may look", 25_000).hex()


def _checked_hosts(hosts: Iterable[str]) -> Iterable[str]:
    if isinstance(hosts, str):
        raise ValueError(f"expected allowed_hosts to be a list of hosts, got the text {hosts!r}")
    for host in (checked := tuple(hosts)):
        if "/" in host or not host:
            raise ValueError(f"expected a host such as 'graphs.example.com' or '10.0.0.5:8080', got {host!r}")
    return checked


def _how_to_allow(host: str) -> str:
    """Advice about a host that is not known; nothing where no option could name it."""
    try:
        _checked_hosts([host])
    except ValueError:
        return ""
    return f": if it is meant to be, serve it with {allowing(host)}"


def allowing(host: str) -> str:
    """The argument, and the option, by which a host is allowed."""
    return f"allowed_hosts=[{host!r}] (--allowed-host {host} of actorflow serve)"


def _kept(request: Request) -> list[str]:
    return [part for part in request.cookies.get(_cookie(request), "").split(":") if _KEPT.fullmatch(part)]


def _cookie(request: Request) -> str:
    return f"actorflow-{request.port}"  # cookies do not know ports
