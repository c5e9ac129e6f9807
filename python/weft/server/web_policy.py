"""Access rules for web pages: accepted `Host` headers, trusted origins, and the routes that pages of other origins may use.

A browser sends requests of any page to any server that its machine reaches, including one on loopback. A request of a page is
recognized by `Origin` and `Sec-Fetch-Site`, which browsers set and pages cannot change. Clients that are not browsers send
neither. No I/O here; docs/guides/security.md lists what the rules promise.
"""

import re
from collections.abc import Sequence
from contextvars import ContextVar
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from litestar.types import HTTPScope

from weft.fields.excerpt import truncate
from weft.server.errors import CrossOriginBodyError, CrossOriginError, MisdirectedRequestError
from weft.settings import Settings
from weft.settings.access import ANY_HOST, browser_origin

Headers = Sequence[tuple[bytes, bytes]]

ANY_ORIGIN = "*"
LOCALHOST = "localhost"
"""Entry of `--cors-origins` for every origin on the browser's own machine."""

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_OPEN = {
    "GET": frozenset(
        {
            *("/health", "/v1/health", "/props", "/metrics", "/models", "/v1/models", "/lora-adapters", "/tokenizer_info"),
            *("/api/tags", "/api/ps", "/api/version", "/", "/index.html", "/completion.js"),
            *("/docs", "/docs.css", "/docs.js", "/openapi.json"),
        }
    ),
    "POST": frozenset(
        {
            *("/completion", "/completions", "/infill", "/tokenize", "/detokenize", "/apply-template"),
            *("/embedding", "/embeddings", "/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/score", "/stream"),
            *("/v1/completions", "/v1/chat/completions", "/chat/completions", "/v1/embeddings"),
            *("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
            *("/v1/messages", "/v1/messages/count_tokens"),
            *("/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show"),
        }
    ),
}
"""Routes that answer pages of any origin, by method: they generate, tokenize or embed what the page itself sends, or describe the
server and its model. Every other route shows or changes what other clients wrote, and a new route counts as such until it is
listed here."""

_OPEN_FOLDER = "/v1/models/"
"""Paths below this one describe a model by its name."""

_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^\s\[\]:/?#@,]+?)\.?(?::(?P<port>[0-9]{0,5}))?")
"""A `Host` header in lower case: a name, an IPv4 address or an IPv6 address in brackets, then a port."""


class Sender(Enum):
    """Category of a request's origin."""

    OWN = "a client that is not a browser, a page of this server, or an address that the user typed"
    NAMED = "a page whose origin is named in --cors-origins"
    FOREIGN = "any other page"


_sender: ContextVar[Sender] = ContextVar("sender", default=Sender.OWN)


def is_trusted_sender() -> bool:
    """Returns whether the current task answers anything but a page whose origin is not named in `--cors-origins`."""
    return _sender.get() is not Sender.FOREIGN


def require_trusted_sender(what: str) -> None:
    """Refuses part of an open route to pages of other origins.

    Args:
        what: The part, as "the field system_prompt".

    Raises:
        CrossOriginError: the current task answers a page whose origin is not named in `--cors-origins`.
    """
    if not is_trusted_sender():
        raise CrossOriginError(what, None)


class _Authority(NamedTuple):
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: bytes) -> "_Authority | None":
        match = _AUTHORITY.fullmatch(text.decode("latin-1").strip().lower())
        if match is None:
            return None
        return cls(match["host"].strip("[]"), int(match["port"]) if match["port"] else None)


class WebPolicy:
    """Applies the rules, based on the request's head and the settings only."""

    def __init__(self, settings: Settings) -> None:
        self._origins = frozenset(map(browser_origin, settings.cors_origins))
        self._allowed_hosts = frozenset(settings.allowed_hosts)

    @property
    def allows_any_origin(self) -> bool:
        """True if open routes answer pages of every origin."""
        return ANY_ORIGIN in self._origins

    def names(self, origin: bytes) -> bool:
        """Returns whether an origin is named in the settings. `*` names none."""
        text = origin.decode("latin-1")
        return (text != ANY_ORIGIN and text in self._origins) or (LOCALHOST in self._origins and _is_local(text))

    def sender(self, scope: HTTPScope) -> Sender:
        """Returns the origin category of a request.

        `Sec-Fetch-Site: same-origin` also holds behind a proxy that replaces `Host`. Browsers omit the header on plain HTTP to
        other machines, and some old ones always: then `Origin` must match `Host`.
        """
        headers = list(scope["headers"])
        origin, site = header(headers, b"origin"), header(headers, b"sec-fetch-site")
        if origin is not None and self.names(origin):
            return Sender.NAMED
        if site == b"same-origin":
            return Sender.OWN
        is_own = origin is None or _is_same_origin(origin, header(headers, b"host"), scope["scheme"])
        return Sender.OWN if is_own and site in (None, b"none") else Sender.FOREIGN

    def remember(self, sender: Sender) -> None:
        """Stores the sender for the rest of the current task."""
        _sender.set(sender)

    def check_host(self, scope: HTTPScope) -> None:
        """Refuses a `Host` that may be an attacker's name for this machine (DNS rebinding).

        On a loopback address it must be an IP address, localhost, or allowed by the settings; on other addresses only where the
        settings allow some hosts. A request without `Host` does not come from a browser.

        Raises:
            MisdirectedRequestError: the host is not accepted.
        """
        # A unix socket has no address.
        address = _address((scope.get("server") or ("", None))[0])
        is_loopback = address is not None and address.is_loopback
        if ANY_HOST in self._allowed_hosts or not (self._allowed_hosts or is_loopback):
            return
        for name, value in scope["headers"]:
            if name == b"host" and not self._accepts(_Authority.parse(value)):
                raise MisdirectedRequestError(value.decode("latin-1"))

    def check_body(self, scope: HTTPScope, sender: Sender) -> None:
        """Refuses a foreign page's body that a browser sends without a preflight request.

        Raises:
            CrossOriginBodyError: the body is not JSON by its `Content-Type`.
        """
        if sender is not Sender.FOREIGN or scope["method"] != "POST":
            return
        given = (header(list(scope["headers"]), b"content-type") or b"").decode("latin-1")
        kind = given.partition(";")[0].strip().lower()
        if kind != "application/json" and not re.fullmatch(r"application/[\w.-]+\+json", kind):
            raise CrossOriginBodyError(given)

    def check_route(self, scope: HTTPScope, path: str | None, sender: Sender) -> None:
        """Refuses routes that are not open to a foreign page. `path` is without the prefix of the settings.

        Raises:
            CrossOriginError: the route is not open.
        """
        if sender is Sender.FOREIGN and not self.is_open(scope, path):
            origin = header(list(scope["headers"]), b"origin")
            raise CrossOriginError(
                truncate(path or scope["path"]), None if origin is None else truncate(origin.decode("latin-1"))
            )

    @staticmethod
    def is_open(scope: HTTPScope, path: str | None) -> bool:
        """Returns whether a route answers pages of any origin.

        A preflight request counts as the request that it announces, and OPTIONS that announces none as GET or POST.
        """
        methods: set[str] = {scope["method"]}
        if scope["method"] == "OPTIONS":
            announced = header(list(scope["headers"]), b"access-control-request-method")
            methods = {"GET", "POST"} if announced is None else {announced.decode("latin-1")}
        if "HEAD" in methods:
            methods = {"GET"}
        # Duplicate slashes lead to the same route.
        path = "/" + "/".join(step for step in (path or "").split("/") if step)
        if "GET" in methods and path.startswith(_OPEN_FOLDER):
            return True
        return any(path in _OPEN.get(method, ()) for method in methods)

    def _accepts(self, authority: _Authority | None) -> bool:
        if authority is None:
            return False
        host = authority.host
        return host in self._allowed_hosts or host == LOCALHOST or host.endswith(f".{LOCALHOST}") or _address(host) is not None


def header(headers: Headers, name: bytes) -> bytes | None:
    """Returns the value of the first header with this name, which is in lower case."""
    return next((value.strip() for given, value in headers if given == name), None)


def _is_same_origin(origin: bytes, host: bytes | None, scheme: str) -> bool:
    """Returns whether a request was sent to its own origin.

    A proxy may have terminated TLS, so that an origin with https fits a request over plain HTTP; not the other way round.
    """
    try:
        parts = urlsplit(origin.decode("latin-1").lower())
        port = parts.port
    except ValueError:
        return False
    if host is None or parts.scheme not in ("http", "https") or (scheme == "https" and parts.scheme != "https"):
        return False
    authority = _Authority.parse(host)
    default = 443 if parts.scheme == "https" else 80
    own = None if authority is None else (authority.host, authority.port or default)
    return own == ((parts.hostname or "").removesuffix("."), port or default)


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in _LOCAL_HOSTS
    except ValueError:
        return False


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
