"""The gateway before the routes: rules for web pages, CORS, path prefix, static files, engine state, and API keys."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, cast

from litestar import Litestar, Request
from litestar.enums import HttpMethod, ScopeType
from litestar.exceptions import NotFoundException
from litestar.response.base import ASGIResponse
from litestar.types import HTTPScope, LifeSpanReceive, LifeSpanScope, LifeSpanSend, Message, Receive, Scope, Send

from weft.server.auth import Keys
from weft.server.awake import served_while_loading
from weft.server.built_page import ASSETS, BuiltPage
from weft.server.compat import single_request_batching as srb
from weft.server.cors import Cors
from weft.server.errors import ErrorResponses, InvalidKeyError, ServerError, StillLoadingError
from weft.server.page import DOCS, DOCS_FOLDER, PATHS, SCRIPT, docs_file, parallel_page, script
from weft.server.refusals import Reason
from weft.server.request_line import RequestLine
from weft.server.service import Service
from weft.server.static import Files
from weft.server.streaming.client_timeouts import ClientTimeouts
from weft.server.web_policy import WebPolicy
from weft.settings import Settings
from weft.settings.keys import keys_of

PROBES = frozenset(("/health", "/v1/health"))
"""Files never shadow these paths: a probe must not wait for the thread that reads the folder."""

NO_PAGE = b"Ollama is running"
"""Response at the root without a page or folder. Ollama clients check liveness there."""

BODILESS = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))
"""Methods whose body no route reads."""


class Gateway:
    """ASGI application of a server: answers a request itself, or forwards it to the routes.

    Litestar's middleware does not see requests without a route, so what must hold for every request is here. The order is
    llama-server's: OPTIONS needs no key, because browsers send none with it; the pages are served while the model loads;
    everything else requires a running engine first and then a key. While the model loads, routes marked with
    `SERVED_WHILE_LOADING` require only a key. With `--compat srb`, the model list also reports the engine's state before the
    engine runs.
    """

    def __init__(self, service: Service, errors: ErrorResponses, litestar: Litestar) -> None:
        settings = service.settings
        self.service = service
        self.litestar = litestar
        """The routes."""
        self._prefix = prefix_of(settings)
        self._errors = errors
        self._policy = WebPolicy(settings)
        self._cors = Cors(settings, self._policy)
        self._keys = Keys(keys_of(settings))
        self._settings = settings
        self._served_while_loading = served_while_loading(litestar.routes)
        self._files = (
            Files(settings.static_path, service.executor, self._prefix, (route.path for route in litestar.routes))
            if settings.ui and settings.static_path is not None
            else None
        )
        self._built_page = (
            BuiltPage(service.executor) if settings.ui and self._files is None and settings.compat != "parallel" else None
        )

    async def __call__(self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend) -> None:
        """Handles one request, or the application's lifespan."""
        if scope["type"] != ScopeType.HTTP:
            await self.litestar(scope, receive, send)
            return
        scope, receive = cast("HTTPScope", scope), cast("Receive", receive)
        if "litestar_app" in scope:  # Litestar appends a slash to paths below a mount.
            scope = cast("HTTPScope", {**scope, "path": scope["path"].rstrip("/") or "/"})
        has_body = scope["method"] not in BODILESS
        timeout_s = self.service.settings.timeout_s
        with RequestLine(scope, self.service.refusals) as line:
            send = line.watch_status(cast("Send", send))
            with ClientTimeouts(receive, send, timeout_s, has_body=has_body, n_announced=_content_length(scope)) as client:
                await self._answer_client(scope, client)

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """Returns a context manager that starts the engine in the background, and closes it at the end."""
        return self.litestar.lifespan()

    async def _answer_client(self, scope: HTTPScope, client: ClientTimeouts) -> None:
        path = self._below_prefix(scope["path"])
        answer, is_open = await self._checked(scope, path)
        headers, is_head = list(scope["headers"]), scope["method"] == "HEAD"
        more = self._cors.headers(headers, is_open=is_open)
        if scope["method"] == "OPTIONS" and is_open:
            more = [*more, *self._cors.preflight(headers)]
        if is_head:
            scope = {**scope, "method": HttpMethod.GET}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *more]
            elif message["type"] == "http.response.body" and is_head:  # The headers stay, including the length.
                message["body"] = b""
            await client.send(message)

        if answer is not None:
            await answer(scope, client.receive, send)
        else:
            await self.litestar({**scope, "path": path or ""}, client.receive, send)

    async def _checked(self, scope: HTTPScope, path: str | None) -> tuple[ASGIResponse | None, bool]:
        """Applies the rules for web pages, then answers requests that need no route.

        Returns:
            The response, or None if a route must produce it; and whether pages of any origin may read it.
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
        except ServerError as error:  # Also of a file's lookup, whose worker thread may be overloaded.
            return self._refused(scope, path, error), error.reason not in (Reason.WRONG_HOST, Reason.CROSS_ORIGIN)
        return None, self._policy.is_open(scope, path)

    def _below_prefix(self, path: str) -> str | None:
        """Returns the path without the configured prefix, or None if it has another beginning."""
        below = path.removeprefix(self._prefix)
        return below if path.startswith(self._prefix) and below.startswith("/") else None

    def _is_served_while_loading(self, scope: HTTPScope, path: str | None) -> bool:
        paths = self._served_while_loading.get("GET" if scope["method"] == "HEAD" else scope["method"])
        return paths is not None and paths.fullmatch(path or "") is not None

    async def _answer(self, scope: HTTPScope, path: str | None) -> ASGIResponse | None:
        """Returns the response to a request that needs no route, or None."""
        is_get = scope["method"] in ("GET", "HEAD")
        if is_get and path is not None and (answer := await self._public_file(scope, path)) is not None:
            return answer
        refusal = self.service.lifecycle.refusal()
        if refusal is not None and not (isinstance(refusal, StillLoadingError) and self._is_served_while_loading(scope, path)):
            if is_get and path in srb.MODEL_PATHS and self._settings.compat == "srb" and self._keys.allow(path, scope["headers"]):
                return srb.waiting_models(self.service)
            # `/health` has these fields in llama-server of 2024.
            health = {"status": "loading model" if isinstance(refusal, StillLoadingError) else "error"}
            return self._refused(scope, path, refusal, health if path in PROBES else {})
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

    async def _public_file(self, scope: HTTPScope, path: str) -> ASGIResponse | None:
        """Returns a file that needs no key: of the folder, or else (without a folder) of a built-in page."""
        if self._built_page is not None and (path in PATHS or path.startswith(ASSETS)):
            return await self._built_page.answer(path, scope["headers"])
        if path not in (*PATHS, SCRIPT, *DOCS, DOCS_FOLDER):
            return None
        found = None if self._files is None else await self._files.answer(path)
        if found is not None:
            return found
        if path in DOCS or path == DOCS_FOLDER:
            return docs_file(path)
        if not self._settings.ui:
            return None
        if path == SCRIPT:
            return script()
        return parallel_page() if self._files is None else None

    def _refused(
        self, scope: HTTPScope, path: str | None, error: Exception, also: Mapping[str, str] = MappingProxyType({})
    ) -> ASGIResponse:
        request = Request[Any, Any, Any]({**scope, "path": path or ""})
        return self._errors.response(request, error, also).to_asgi_response(None, request)


def prefix_of(settings: Settings) -> str:
    """Returns the path below which the routes are served, without a slash at its end."""
    prefix = settings.api_prefix.strip("/")
    return f"/{prefix}" if prefix else ""


def _content_length(scope: HTTPScope) -> int | None:
    """Returns the body length that the headers announce, or None if there is none or the body is chunked."""
    lengths = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
    length = lengths.get(b"content-length", b"")
    return int(length) if length.isdigit() and b"transfer-encoding" not in lengths else None
