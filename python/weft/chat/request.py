"""From messages to a prompt, for Python."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import msgspec

from weft._native import Media
from weft.chat.conversation import ChatMessage, Conversation
from weft.chat.format import ChatFormat, ChatPrompt
from weft.errors import InvalidConfig, InvalidRequest
from weft.fields.place import placed
from weft.settings.chat import ChatSettings
from weft.work.threads import LONG_TEXT, For, Threads

if TYPE_CHECKING:
    from weft.engine import Engine

__all__ = ["ChatOptions", "Messages", "Templates"]

Made = TypeVar("Made")

Messages = Sequence[Mapping[str, Any] | ChatMessage]
"""What was said, by OpenAI's names: `{"role": "user", "content": "Hello"}`.

A part of a content that is a list may be a picture or a sound: `{"type": "media", "media": await engine.read_media(data)}`.
"""

MANY_MESSAGES = 64
"""More messages than this are worked on by another thread, as a long text is, whatever is in them."""


class ChatOptions(TypedDict, total=False):
    """How messages become a prompt."""

    template: str | None
    """The template, in Jinja, or the name of a built-in one; None is the model's, or ChatML where it has none."""
    variables: Mapping[str, Any]
    """Further variables of the template, such as `enable_thinking`."""
    add_generation_prompt: bool
    """Whether the assistant's turn begins at the end, which is the default."""
    tools: Sequence[Mapping[str, Any]] | None
    """The functions that may be called, in OpenAI's way."""
    tool_choice: str | Mapping[str, Any] | None
    """`none`, `auto`, `required`, or an object that names a function."""
    parallel_tool_calls: bool
    """Whether one answer may call several times, which is the default."""
    reasoning_format: str
    """Where a thought goes: `auto` and `deepseek` tell it apart, `none` leaves it in the content, `deepseek-legacy` does both."""
    enable_thinking: bool
    """Whether the model reasons before it answers; true by default if its template supports reasoning."""
    continue_final_message: bool | str
    """Whether the answer goes on with a last message that is the assistant's, which is the default, or with which part of it:
    `content` or `reasoning_content`."""


class Templates:
    """The chat templates of one engine. The last one that was asked for stays compiled."""

    def __init__(self, engine: "Engine", threads: Threads) -> None:
        self._engine = engine
        self._threads = threads
        self._last: tuple[str | None, ChatFormat] | None = None

    async def text(self, messages: Messages, **options: Unpack[ChatOptions]) -> str:
        """The prompt as a text, without the token that begins it.

        Raises:
            InvalidRequest: The messages or the template are not what they must be, or the template refuses the messages.
        """
        return await self._make(messages, options, lambda form, chat, _: form.text(chat))

    async def prompt(self, messages: Messages, **options: Unpack[ChatOptions]) -> ChatPrompt:
        """The prompt in tokens. What is said in messages is no control token, however it is spelt.

        Raises:
            InvalidRequest: The messages or the template are not what they must be, or the template refuses the messages.
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
            except InvalidConfig as error:
                raise InvalidRequest("template", error.message) from None

        return work() if _is_short(messages, options) else await self._threads.work(For.TEXT, work)

    def _format(self, template: str | None) -> ChatFormat:
        # Another thread may ask for another one meanwhile.
        last = self._last
        if last is None or last[0] != template:
            made = ChatFormat(self._engine, ChatSettings(chat_template=template))
            made.check_settings()
            made.compile()  # What the settings of this name, or the model's own.
            self._last = last = template, made
        return last[1]


def _is_short(messages: object, options: ChatOptions) -> bool:
    """Whether a chat is read, rendered and tokenized in no time worth another thread: it is some texts, all of them short."""
    if not isinstance(messages, Sequence):
        return True
    if len(messages) > MANY_MESSAGES or options.get("variables") or options.get("tools"):
        return False
    said = [value for message in messages if isinstance(message, Mapping) for value in message.values()]
    return len(said) >= len(messages) and all(isinstance(text, str) for text in said) and sum(map(len, said)) <= LONG_TEXT


def _conversation(messages: Messages, options: ChatOptions) -> tuple[Conversation, list[Media]]:
    """A chat, and its pictures and sounds in order."""
    if unknown := options.keys() - ChatOptions.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r}; there are {', '.join(ChatOptions.__annotations__)}")
    media: list[Media] = []
    # What is no list of messages is told so below.
    given = [_without_media(message, media) for message in messages] if isinstance(messages, list | tuple) else messages
    try:
        said = msgspec.convert(given, list[ChatMessage])
    except msgspec.ValidationError as error:
        raise InvalidRequest("messages", placed(error, "messages")) from None
    chat = Conversation(
        messages=said,
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
    """A message whose parts only tell that they are pictures and sounds, which are added to `media`."""
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
