"""What every request passes before the routes: rules for web pages, CORS, the prefix, the page, the engine's state, and keys."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from litestar import Request
from litestar.enums import HttpMethod
from litestar.exceptions import NotFoundException
from litestar.response.base import ASGIResponse
from litestar.types import HTTPScope, Message, Receive, Scope, Send

from weft.server.auth import Keys
from weft.server.cors import Cors
from weft.server.errors import (
    ClientLeftError,
    CrossOriginBodyError,
    CrossOriginError,
    Errors,
    InvalidKeyError,
    MisdirectedRequestError,
    StillLoadingError,
    TextsWaitingError,
)
from weft.server.page import PATHS, SCRIPT, page, script
from weft.server.run.patience import Patience
from weft.server.run.service import Service
from weft.server.seeds import waiting
from weft.server.static import Files
from weft.server.web_policy import Headers, WebPolicy
from weft.settings.keys import keys_of

__all__ = ["Front"]

PROBES = frozenset(("/health", "/v1/health"))
"""No file takes their place: a thread that looks for files may be busy, and who asks here must never wait."""

NO_PAGE = b"Ollama is running"
"""What stands at the root where there is neither a page nor a folder: clients of Ollama look there for whether it lives."""

BODILESS = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))
"""Methods of which no route reads a body."""

Next = Callable[[Scope, Receive, Send], Awaitable[None]]


class Front:
    """Answers a request itself, or lets the routes do so.

    The order is llama-server's: OPTIONS is answered without a key, because browsers show none; the page is there while the
    model is loaded; all else needs first an engine that runs and then a key. Only single-request batching's list of models
    says what the engine is about before it runs.
    """

    def __init__(self, service: Service, errors: Errors) -> None:
        settings = service.settings
        path = settings.api_prefix.strip("/")
        self.prefix = f"/{path}" if path else ""
        self._service = service
        self._errors = errors
        self._policy = WebPolicy(settings)
        self._cors = Cors(settings, self._policy)
        self._keys = Keys(keys_of(settings))
        self._settings = settings
        self._files = (
            Files(settings.static_path, service.aside, self.prefix) if settings.ui and settings.static_path is not None else None
        )

    def give_way(self, routes: Iterable[str]) -> None:
        """Takes the paths of the routes, for which nobody waits until a file is looked for that is not there."""
        if self._files is not None:
            self._files.give_way(routes)

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send, routes: Next) -> None:
        """Answers."""
        has_body = scope["method"] not in BODILESS
        timeout_s = self._service.settings.timeout_s
        with Patience(receive, send, timeout_s, has_body=has_body, n_announced=_content_length(scope)) as client:
            await self._answered(scope, client, routes)

    async def _answered(self, scope: HTTPScope, client: Patience, routes: Next) -> None:
        path = self._below_prefix(scope["path"])
        answer, is_open = await self._checked(scope, path)
        headers = list(scope["headers"])
        receive, send = client.receive, _with_headers(client.send, self._cors.headers(headers, is_open=is_open))
        if scope["method"] == "OPTIONS" and is_open:
            send = _with_headers(send, self._cors.preflight(headers))
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": HttpMethod.GET}, _without_body(send)
        if answer is not None:
            await answer(scope, receive, send)
        else:
            await routes({**scope, "path": path or ""}, receive, send)

    async def _checked(self, scope: HTTPScope, path: str | None) -> tuple[ASGIResponse | None, bool]:
        """Applies the rules for web pages, then answers what is no matter of the routes.

        Returns:
            The answer, or None for the routes to give it; and whether pages of any origin may read it.
        """
        sender = self._policy.sender(scope)
        self._policy.remember(sender)
        try:
            self._policy.check_host(scope)
            self._policy.check_body(scope, sender)
            if scope["method"] == "OPTIONS":
                self._policy.check_route(scope, path, sender)
                return ASGIResponse(media_type="text/html"), True
            if (answer := await self._answer(scope, path)) is not None:
                return answer, True
            self._policy.check_route(scope, path, sender)
        except (MisdirectedRequestError, CrossOriginBodyError, CrossOriginError) as error:
            return self._refused(scope, path, error), False
        except (ClientLeftError, TextsWaitingError) as error:  # Files are looked for on a thread that may have too much to do.
            return self._refused(scope, path, error), True
        return None, self._policy.is_open(scope, path)

    def _below_prefix(self, path: str) -> str | None:
        """What follows the prefix; None where the path has another beginning."""
        below = path.removeprefix(self.prefix)
        return below if path.startswith(self.prefix) and below.startswith("/") else None

    async def _answer(self, scope: HTTPScope, path: str | None) -> ASGIResponse | None:
        """The answer to what is no matter of the routes."""
        is_get = scope["method"] in ("GET", "HEAD")
        if is_get and path in (*PATHS, SCRIPT) and (answer := await self._page(path)) is not None:
            return answer
        if (refusal := self._service.refusal()) is not None:
            if is_get and path in waiting.PATHS and self._settings.compat == "srb" and self._keys.allow(path, scope["headers"]):
                return waiting.waiting(self._service)
            return self._refused(scope, path, refusal, _health_of_2024(refusal) if path in PROBES else {})
        if not self._keys.allow(path, scope["headers"]):
            return self._refused(scope, path, InvalidKeyError())
        self._keys.remember_owner(scope["headers"])
        if path is None:
            return self._refused(scope, path, NotFoundException())
        if is_get and path == "/" and not self._settings.ui and self._settings.static_path is None:
            return ASGIResponse(body=NO_PAGE, media_type="text/plain")
        if self._files is None or not is_get or path in PROBES:
            return None
        return await self._files.answer(path)

    async def _page(self, path: str) -> ASGIResponse | None:
        """A file of the folder, else what is ours: the page where there is no folder, and always the script."""
        if not self._settings.ui:
            return None
        found = None if self._files is None else await self._files.answer(path)
        if found is None and path == SCRIPT:
            return script()
        return page(self._settings) if self._files is None else found

    def _refused(
        self, scope: HTTPScope, path: str | None, error: Exception, also: Mapping[str, str] = MappingProxyType({})
    ) -> ASGIResponse:
        request = Request[Any, Any, Any]({**scope, "path": path or ""})
        return self._errors.response(request, error, also).to_asgi_response(None, request)


def _content_length(scope: HTTPScope) -> int | None:
    """The bytes that the head says the body has; None where it says none, or that the body comes in chunks."""
    told = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
    length = told.get(b"content-length", b"")
    return int(length) if length.isdigit() and b"transfer-encoding" not in told else None


def _health_of_2024(refusal: Exception) -> dict[str, str]:
    """What `/health` said of an engine that does not run when it had no error to tell."""
    return {"status": "loading model" if isinstance(refusal, StillLoadingError) else "error"}


def _with_headers(send: Send, headers: Headers) -> Send:
    """Adds headers to an answer."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return send_with_headers


def _without_body(send: Send) -> Send:
    """Sends the headers of an answer, its length among them, and of the body only that it has ended."""

    async def send_without_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            message["body"] = b""
        await send(message)

    return send_without_body
