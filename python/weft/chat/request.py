"""Turns messages and options of the Python API into requests."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from weft._native import Media
from weft.chat.answer.parts import AnswerForm
from weft.chat.conversation import ChatMessage, ChatRequest
from weft.chat.pipeline import ChatPipeline
from weft.errors import InvalidConfigError, InvalidRequestError
from weft.fields.validation import message_with_path
from weft.request import Request, RequestOptions
from weft.settings.chat import ChatSettings
from weft.work.threads import LONG_TEXT, ThreadPool, Threads

if TYPE_CHECKING:
    from weft.engine import Engine

T = TypeVar("T")

Messages = Sequence[Mapping[str, Any] | ChatMessage]
"""Messages in OpenAI's format: `{"role": "user", "content": "Hello"}`.

If the content is a list, a part may be an image or audio: `{"type": "media", "media": await engine.read_media(data)}`.
"""

MANY_MESSAGES = 64
"""Chats with more messages are rendered in a worker thread, whatever their size."""


class TemplateOptions(TypedDict, total=False):
    """Options of rendering a chat. All except `chat_template` are fields of chat requests over HTTP."""

    chat_template: str | None
    """Jinja source of a template, or the name of a built-in one; None is the model's, or ChatML if it has none."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Additional variables of the template."""
    add_generation_prompt: bool | None
    """True, the default, to end the prompt with the beginning of the assistant's turn."""
    continue_final_message: bool | str | None
    """True, the default, if the answer continues a last message of the assistant; or the name of the part that it continues,
    `content` or `reasoning_content`."""
    tools: Sequence[Mapping[str, Any]] | None
    """Functions that the model may call, in OpenAI's format: `{"type": "function", "function": {"name", "description",
    "parameters", "strict"}}`."""
    tool_choice: str | Mapping[str, Any] | None
    """`none`, `auto`, `required`, or `{"type": "function", "function": {"name"}}`."""
    parallel_tool_calls: bool | None
    """True, the default, if one answer may contain several calls."""
    enable_thinking: bool | None
    """True to enable reasoning; the default is true if the template supports it."""
    reasoning_effort: str | None
    """The template's variable of this name; `none` disables reasoning."""
    reasoning_format: str | None
    """Where reasoning is returned: `auto` and `deepseek` separate it, `none` leaves it in the content, `deepseek-legacy` does
    both."""
    reasoning_budget_tokens: int | None
    """Maximum tokens of the reasoning; negative for no limit."""
    reasoning_budget_message: str | None
    """Text inserted at the end of reasoning whose budget is exhausted."""


class ChatOptions(TemplateOptions, RequestOptions, total=False):
    """Options of a chat: `TemplateOptions`, and the fields of a request."""


class Templates:
    """Chat templates of one engine. The most recent template stays compiled."""

    def __init__(self, engine: "Engine", threads: Threads) -> None:
        self._engine = engine
        self._threads = threads
        self._last: tuple[str | None, ChatPipeline] | None = None

    async def text(self, messages: Messages, options: TemplateOptions) -> str:
        """Renders a prompt as text, without the token that begins it.

        Raises:
            InvalidRequestError: The messages or the template are invalid, or the template rejects the messages.
        """
        return await self._make(messages, options, lambda pipeline, chat, _: pipeline.text(chat))

    async def request(self, messages: Messages, options: ChatOptions) -> tuple[Request, AnswerForm]:
        """Returns the request of a chat, and how to parse its answers.

        Text of messages never becomes a control token, whatever it contains.

        Raises:
            InvalidRequestError: The messages or the template are invalid, or the template rejects the messages.
            TypeError: There is no option of a name.
        """
        of_template: Any = {name: value for name, value in options.items() if name in TemplateOptions.__annotations__}
        fields: dict[str, Any] = {name: value for name, value in options.items() if name not in of_template}
        if unknown := fields.keys() - RequestOptions.__annotations__.keys():
            raise TypeError(f"unknown chat option {min(unknown)!r}")

        def work(pipeline: ChatPipeline, chat: ChatRequest, media: list[Media]) -> tuple[Request, AnswerForm]:
            prompt = pipeline.prompt(chat, media)
            request = prompt.constrained(Request(prompt=prompt.tokens, **{**prompt.request_fields, **fields}))
            return request, prompt.answer_to(request)

        return await self._make(messages, of_template, work)

    async def _make(
        self, messages: Messages, options: TemplateOptions, make: Callable[[ChatPipeline, ChatRequest, list[Media]], T]
    ) -> T:
        template = options.get("chat_template")

        def work() -> T:
            chat, media = _chat(messages, options)
            try:
                return make(self._pipeline(template), chat, media)
            except InvalidConfigError as error:
                raise InvalidRequestError(error.param, error.message) from None

        return work() if _is_short(messages, options) else await self._threads.run(ThreadPool.TEXT, work)

    def _pipeline(self, template: str | None) -> ChatPipeline:
        # Another thread may replace it at any time.
        last = self._last
        if last is None or last[0] != template:
            made = ChatPipeline(self._engine, ChatSettings(chat_template=template))
            made.check_settings()
            made.compile()  # `check_settings` compiles a named template, this the model's own.
            self._last = last = template, made
        return last[1]


def _is_short(messages: object, options: TemplateOptions) -> bool:
    """Returns True if a chat is processed faster than a worker thread starts: it consists of a few short texts."""
    if not isinstance(messages, Sequence):
        return True
    if len(messages) > MANY_MESSAGES or options.get("chat_template_kwargs") or options.get("tools"):
        return False
    texts = [value for message in messages if isinstance(message, Mapping) for value in message.values()]
    return len(texts) >= len(messages) and all(isinstance(text, str) for text in texts) and sum(map(len, texts)) <= LONG_TEXT


def _chat(messages: Messages, options: TemplateOptions) -> tuple[ChatRequest, list[Media]]:
    """Returns a chat, and its images and audio in order."""
    if unknown := options.keys() - TemplateOptions.__annotations__.keys():
        raise TypeError(f"unknown option {min(unknown)!r}; the options are {', '.join(TemplateOptions.__annotations__)}")
    media: list[Media] = []
    # A value that is not a list is rejected below.
    given = [_without_media(message, media) for message in messages] if isinstance(messages, list | tuple) else messages
    try:
        converted = msgspec.convert(given, list[ChatMessage])
    except msgspec.ValidationError as error:
        raise InvalidRequestError("messages", message_with_path(error, "messages")) from None
    fields: Any = {name: value for name, value in options.items() if name != "chat_template"}
    return ChatRequest(messages=converted, **fields), media


def _without_media(message: Any, media: list[Media]) -> Any:  # noqa: ANN401 (whatever the caller gave)
    """Moves the media of a message to `media`, and returns the message with parts that have only their type."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    parts = []
    for part in content:
        found = part.get("media") if isinstance(part, Mapping) and part.get("type") == "media" else None
        if isinstance(found, Media):
            media.append(found)
            parts.append({"type": "media"})
        else:
            parts.append(part)
    return {**message, "content": parts}
