"""Renders messages to prompts, for the Python API."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import msgspec

from weft._native import Media
from weft.chat.conversation import ChatMessage, Conversation
from weft.chat.format import ChatFormat, ChatPrompt
from weft.errors import InvalidConfigError, InvalidRequestError
from weft.fields.validation import message_with_path
from weft.settings.chat import ChatSettings
from weft.work.threads import LONG_TEXT, ThreadPool, Threads

if TYPE_CHECKING:
    from weft.engine import Engine

__all__ = ["ChatOptions", "Messages", "Templates"]

Made = TypeVar("Made")

Messages = Sequence[Mapping[str, Any] | ChatMessage]
"""Messages in OpenAI's format: `{"role": "user", "content": "Hello"}`.

If the content is a list, a part may be an image or audio: `{"type": "media", "media": await engine.read_media(data)}`.
"""

MANY_MESSAGES = 64
"""Chats with more messages are rendered in a worker thread, whatever their size."""


class ChatOptions(TypedDict, total=False):
    """Options of rendering messages to a prompt."""

    template: str | None
    """Jinja source of a template, or the name of a built-in one; None is the model's, or ChatML if it has none."""
    variables: Mapping[str, Any]
    """Additional variables of the template, such as `enable_thinking`."""
    add_generation_prompt: bool
    """True, the default, to end the prompt with the beginning of the assistant's turn."""
    tools: Sequence[Mapping[str, Any]] | None
    """Functions that the model may call, in OpenAI's format."""
    tool_choice: str | Mapping[str, Any] | None
    """`none`, `auto`, `required`, or an object that names a function."""
    parallel_tool_calls: bool
    """True, the default, if one answer may contain several calls."""
    reasoning_format: str
    """Where reasoning is returned: `auto` and `deepseek` separate it, `none` leaves it in the content, `deepseek-legacy` does
    both."""
    enable_thinking: bool
    """True to enable reasoning; the default is true if the template supports reasoning."""
    continue_final_message: bool | str
    """True, the default, if the answer continues a last message of the assistant; or the name of the part that it continues,
    `content` or `reasoning_content`."""


class Templates:
    """Chat templates of one engine. The most recent template stays compiled."""

    def __init__(self, engine: "Engine", threads: Threads) -> None:
        self._engine = engine
        self._threads = threads
        self._last: tuple[str | None, ChatFormat] | None = None

    async def text(self, messages: Messages, **options: Unpack[ChatOptions]) -> str:
        """Renders a prompt as text, without the token that begins it.

        Raises:
            InvalidRequestError: The messages or the template are invalid, or the template rejects the messages.
        """
        return await self._make(messages, options, lambda form, chat, _: form.text(chat))

    async def prompt(self, messages: Messages, **options: Unpack[ChatOptions]) -> ChatPrompt:
        """Renders and tokenizes a prompt. Text of messages never becomes a control token, whatever it contains.

        Raises:
            InvalidRequestError: The messages or the template are invalid, or the template rejects the messages.
        """
        return await self._make(messages, options, ChatFormat.prompt)

    async def _make(
        self, messages: Messages, options: ChatOptions, make: Callable[[ChatFormat, Conversation, list[Media]], Made]
    ) -> Made:
        template = options.get("template")

        def work() -> Made:
            chat, media = _conversation(messages, options)
            try:
                return make(self._format(template), chat, media)
            except InvalidConfigError as error:
                raise InvalidRequestError("template", error.message) from None

        return work() if _is_short(messages, options) else await self._threads.run(ThreadPool.TEXT, work)

    def _format(self, template: str | None) -> ChatFormat:
        # Another thread may replace it at any time.
        last = self._last
        if last is None or last[0] != template:
            made = ChatFormat(self._engine, ChatSettings(chat_template=template))
            made.check_settings()
            made.compile()  # `check_settings` compiles a named template, this the model's own.
            self._last = last = template, made
        return last[1]


def _is_short(messages: object, options: ChatOptions) -> bool:
    """Returns True if a chat is processed faster than a worker thread starts: it consists of a few short texts."""
    if not isinstance(messages, Sequence):
        return True
    if len(messages) > MANY_MESSAGES or options.get("variables") or options.get("tools"):
        return False
    texts = [value for message in messages if isinstance(message, Mapping) for value in message.values()]
    return len(texts) >= len(messages) and all(isinstance(text, str) for text in texts) and sum(map(len, texts)) <= LONG_TEXT


def _conversation(messages: Messages, options: ChatOptions) -> tuple[Conversation, list[Media]]:
    """Returns a chat, and its images and audio in order."""
    if unknown := options.keys() - ChatOptions.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r}; there are {', '.join(ChatOptions.__annotations__)}")
    media: list[Media] = []
    # A value that is not a list is rejected below.
    given = [_without_media(message, media) for message in messages] if isinstance(messages, list | tuple) else messages
    try:
        converted = msgspec.convert(given, list[ChatMessage])
    except msgspec.ValidationError as error:
        raise InvalidRequestError("messages", message_with_path(error, "messages")) from None
    chat = Conversation(
        messages=converted,
        add_generation_prompt=options.get("add_generation_prompt"),
        continue_final_message=options.get("continue_final_message"),
        chat_template_kwargs=options.get("variables"),
        tools=options.get("tools"),
        tool_choice=options.get("tool_choice"),
        parallel_tool_calls=options.get("parallel_tool_calls"),
        reasoning_format=options.get("reasoning_format"),
        enable_thinking=options.get("enable_thinking"),
    )
    return chat, media


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
