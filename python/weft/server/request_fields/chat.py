"""Fields of a chat, with the names of OpenAI (https://platform.openai.com/docs/api-reference/chat/create) and llama-server."""

from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec

from weft.chat.conversation import ChatRequest
from weft.server.request_fields.fields import CompletionFields
from weft.server.request_fields.unsupported import EMPTY, UnsupportedUnless

if TYPE_CHECKING:

    class _ChatFields(CompletionFields, ChatRequest, kw_only=True):
        """The fields of both."""
else:
    # Structs cannot have two bases with fields.
    _SHARED = ("reasoning_budget_tokens", "reasoning_budget_message", "thinking_budget_tokens")
    _ChatFields = msgspec.defstruct(
        "_ChatFields",
        [(name, hint, None) for name, hint in get_type_hints(ChatRequest).items() if name not in _SHARED],
        bases=(CompletionFields,),
        kw_only=True,
        module=__name__,
    )


class ChatFields(_ChatFields, kw_only=True):
    """A chat request. The fields of completions are accepted too; the `prompt` is rendered from the messages."""

    logprobs: bool | None = None
    top_logprobs: int | None = None

    # UnsupportedUnless: refused unless the value disables the feature.
    audio: Annotated[Any, EMPTY] = None
    modalities: Annotated[list[str] | None, UnsupportedUnless(lambda value: value in ([], ["text"]))] = None
    web_search_options: Annotated[Any, UnsupportedUnless(lambda _: False)] = None
