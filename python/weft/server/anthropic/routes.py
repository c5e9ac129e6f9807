"""Anthropic's routes."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, cast

from litestar import Router, post
from litestar.params import HeaderParameter, JSONBody

from weft import MixedPrompt
from weft.server.anthropic import answer
from weft.server.anthropic.errors import ERRORS, failure
from weft.server.anthropic.schemas import CountTokens, CreateMessage, MessageObject, TokensCounted
from weft.server.anthropic.translate import MarkedPrefix, check_version, parse
from weft.server.context import ContextDependency
from weft.server.routes import routes_of
from weft.server.run import chat as chats
from weft.server.run.client_timeouts import n_body_bytes
from weft.server.run.executor import Purpose
from weft.server.run.generation import Generation
from weft.server.run.service import Service
from weft.server.run.stream import Answer, CollectedResponse, StreamedResponse

__all__ = ["router"]


Version = Annotated[str | None, HeaderParameter(name="anthropic-version")]


@post("/v1/messages", status_code=200, responses=ERRORS)
async def create_message(
    data: JSONBody[CreateMessage], request_context: ContextDependency, version: Version = None
) -> Answer[MessageObject]:
    """Answers a chat."""
    service = request_context.service
    check_version(version)
    chat = await service.executor.run(Purpose.PROMPT, n_body_bytes(), parse, data, service.chat.lasting)
    generation = await chats.submit_chat(chat.fields, service, rename=chat.rename_parameter)
    if chat.marked is not None:
        _pin_prefix(chat.marked, generation, service)
    if not data.stream:
        return Answer(CollectedResponse(generation, answer.ResponseBuilder(data, generation, service), service.collected))
    written = answer.ChunkEncoder(data, generation, service)
    return Answer(StreamedResponse(generation, written, service.settings.ping_s, ping=answer.PING, failure=failure))


def _pin_prefix(marked: MarkedPrefix, generation: Generation, service: Service) -> None:
    """Pins the marked prefix: the tokens that this prompt shares with a prompt of the marked parts only."""
    prompt, size = generation.requests[0].prompt, n_body_bytes()

    async def prefix() -> Sequence[int]:
        if isinstance(prompt, MixedPrompt):
            return []
        whole = cast("Sequence[int]", prompt)
        empty = await service.executor.run_in_thread(Purpose.TEXT, size, service.chat.prompt, marked.fields)
        pairs = zip(cast("list[int]", empty.tokens), whole, strict=False)
        return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]

    adapters = service.adapters(None)
    service.auto_pinner.keep(marked.key + repr(adapters).encode(), marked.seconds, prefix, adapters)


@post("/v1/messages/count_tokens", status_code=200, responses=ERRORS)
async def count_tokens(data: JSONBody[CountTokens], request_context: ContextDependency, version: Version = None) -> TokensCounted:
    """Counts the prompt tokens of a chat; nothing is generated."""
    service = request_context.service
    check_version(version)
    chat = await service.executor.run(Purpose.PROMPT, n_body_bytes(), parse, data)
    return TokensCounted(await chats.count_tokens(chat.fields, service, rename=chat.rename_parameter))


def router() -> Router:
    """Returns the routes, for one application."""
    return routes_of("Anthropic", [create_message, count_tokens])
