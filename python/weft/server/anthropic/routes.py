"""Anthropic's routes."""

from typing import Annotated

from litestar.params import HeaderParameter, JSONBody

from weft.server.anthropic.answer import MessageEncoder
from weft.server.anthropic.errors import ERRORS
from weft.server.anthropic.schemas import CountTokens, CreateMessage, MessageObject, TokensCounted
from weft.server.anthropic.translate import check_version, parse
from weft.server.api import Api
from weft.server.context import ServiceDependency, response_of
from weft.server.executor import Purpose
from weft.server.inference import chat as chats
from weft.server.streaming.client_timeouts import n_body_bytes
from weft.server.streaming.responses import Answer

Version = Annotated[str | None, HeaderParameter(name="anthropic-version")]


api = Api("Anthropic", ERRORS)


@api.route("POST", "/v1/messages", summary="Create a message")
async def create_message(
    data: JSONBody[CreateMessage], service: ServiceDependency, version: Version = None
) -> Answer[MessageObject]:
    """Answers a chat with the assistant's next message."""
    check_version(version)
    chat = await service.executor.run(Purpose.PROMPT, n_body_bytes(), parse, data, service.chat.lasting)
    generation = await chats.submit_chat(chat.fields, service, rename=chat.rename_parameter)
    if (marked := chat.marked) is not None:
        chats.pin_prefix(marked.fields, generation, service, key=marked.key, seconds=marked.seconds)
    return Answer(response_of(chat.fields, generation, MessageEncoder(data, generation, service), service))


@api.route("POST", "/v1/messages/count_tokens", summary="Count the tokens of a message")
async def count_tokens(data: JSONBody[CountTokens], service: ServiceDependency, version: Version = None) -> TokensCounted:
    """Counts the prompt tokens of a chat; nothing is generated."""
    check_version(version)
    chat = await service.executor.run(Purpose.PROMPT, n_body_bytes(), parse, data)
    return TokensCounted(await chats.count_tokens(chat.fields, service, rename=chat.rename_parameter))
