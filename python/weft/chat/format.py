"""From a chat to a prompt: the template that is served, and what it makes of messages."""

import logging
import sys
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from weft import ContextOverflow, Engine, InvalidConfig, InvalidRequest, Media, MixedPrompt
from weft.chat import builtin
from weft.chat.answer.detect import AnswerFormat, detect_format
from weft.chat.answer.family import Family, ThoughtMarks
from weft.chat.answer.form import FamilyForm
from weft.chat.answer.parts import PLAIN, AnswerForm, PlainForm
from weft.chat.call_grammar_cache import CallGrammarCache
from weft.chat.continuation import (
    BegunAnswer,
    ReasoningForm,
    cut_rendering,
    extend_prompt,
    parse_begun_answer,
    with_cut_marks,
)
from weft.chat.control_tokens import ControlTokenEscaper, ControlTokenSpellings, MediaPlaceholder, TextSegment, media_marks
from weft.chat.conversation import Chat, ChatMessage
from weft.chat.described import with_tools_told
from weft.chat.messages import check, content_text, for_template, media_parts
from weft.chat.output_constraint import OutputConstraint
from weft.chat.request_options import ReasoningOptions, RequestedTools, reasoning_options, requested_tools
from weft.chat.segment_tokenizer import SegmentTokenizer
from weft.chat.template_terms import MAX_SIZE, Message, TemplateError, TooLongError
from weft.chat.volatile import VolatileLines
from weft.fields.shown import shown
from weft.request import Request
from weft.settings.chat import ChatSettings

if TYPE_CHECKING:
    from weft.chat.template import ChatTemplate

__all__ = ["ChatFormat", "ChatPrompt"]

N_LIKE = 8
"""Messages at the end of a chat behind which prompts may part, where the model's memory cannot be cut."""

N_CUT_MARKS = 2
"""Characters that mark where a begun answer is cut, and its reasoning."""

MAX_CLOSING = 16
"""Tokens that close a turn, at most."""

_DEFAULT_VARIABLES = {"preserve_reasoning": True}
"""What templates are told unless somebody says otherwise: what is kept of earlier thoughts is in the cache as it was written."""

logger = logging.getLogger(__name__)


class ChatPrompt(msgspec.Struct, frozen=True):
    """A prompt made of messages."""

    tokens: list[int] | MixedPrompt
    turn_ends: list[int]
    """Where, in tokens, what a next or an edited turn has in common with it may end; empty where the model can do without."""
    answer: PlainForm | FamilyForm = PLAIN
    """How what follows it is to be read where nothing holds all of it."""
    held: OutputConstraint | None = None
    """What holds the answer to that; None is nothing."""
    system_end: int | None = None
    """Where, in tokens, the system's message ends, if that was asked for and it can be told."""
    n_volatile: int = 0
    """Lines of the system's message that stand elsewhere than they were sent, or nowhere."""

    def answer_to(self, request: Request) -> AnswerForm:
        """How what a request for it brings is to be read: a grammar or a schema may hold all that is said."""
        is_held = bool(request.grammar) or request.json_schema is not None
        return self.answer.held() if is_held and not request.grammar_lazy else self.answer


class _Chat(msgspec.Struct, frozen=True):
    """A chat as it is to be rendered."""

    messages: list[ChatMessage]
    continued: ChatMessage | None
    """The message that the answer goes on with."""
    continued_part: str | None
    """The part of that message that the answer continues, `content` or `reasoning_content`, where the request names it."""
    opens_answer: bool
    """Whether the assistant's turn begins at the end."""
    variables: dict[str, object]
    n_media: int
    """Pictures and sounds, those of the continued message among them."""
    asked: RequestedTools | None
    """The tools that are shown, and may be called."""
    thinking: ReasoningOptions
    n_volatile: int
    """Lines of the system's message that stand elsewhere than they were sent, or nowhere."""


class _Rendered(NamedTuple):
    """What a chat became."""

    segments: Iterable[TextSegment | MediaPlaceholder]
    is_thinking: bool
    """Whether the answer goes on with a thought that the prompt begins."""
    thought_opening: str
    """How the prompt begins that thought; empty where the chat's last message did."""
    is_begun: bool
    """Whether the prompt contains a begun answer."""


def _unheard() -> None:
    """Where nobody counts."""


class ChatFormat:
    """How the served model's chats are written."""

    def __init__(
        self, engine: Engine, settings: ChatSettings, unread: Callable[[], None] = _unheard, *, source: str | None = None
    ) -> None:
        """Takes the model's template, unless the settings have another.

        Args:
            engine: The engine.
            settings: How chats are written.
            unread: Called where a call could not be read.
            source: A template to take in place of both.
        """
        self._engine = engine
        self._source = source
        self._settings = settings
        self._volatile = VolatileLines(settings.volatile_prompt_lines)
        self._tokenizer = SegmentTokenizer(engine)
        self._unread = unread
        self._call_grammars = CallGrammarCache()
        self.is_compiled = False
        """Whether `compile` was called to its end."""

    def check_settings(self) -> None:
        """Reads and compiles the template that the settings name, once the model is loaded.

        Raises:
            InvalidConfig: there is no such template, or it is none, or the message of a budget ends a thought itself.
        """
        if (name := self._from_settings[0]) is not None:
            try:
                _ = self.template
            except TemplateError as error:
                raise InvalidConfig(name, str(error)) from error
        given = self._settings.chat_template_kwargs.get("enable_thinking")
        if not isinstance(given, bool | None):
            raise InvalidConfig("chat_template_kwargs", f"enable_thinking is {shown(given)}; it must be a boolean")
        message = self._settings.reasoning_budget_message
        if message and self._thought is not None and self._thought.end in message:
            why = f"contains {shown(self._thought.end)}, which ends the thoughts of this model and is written after the message"
            raise InvalidConfig("reasoning_budget_message", f"{shown(message)} {why}")

    def compile(self) -> None:
        """Compiles the templates, in some hundredths of a second. Logs once if a template of the model is invalid."""
        if self.is_compiled:
            return
        try:
            _ = self._answer_format
        except TemplateError as error:
            logger.warning("%s; chats are refused until another one is given with --chat-template", error)
        _ = self._for_tools
        self.is_compiled = True

    @cached_property
    def _for_tools(self) -> "ChatFormat | None":
        """Format of chats with tools, if the model's file has a separate template for them, as Hermes' and Command R's."""
        if (source := self.tool_use_source) is None or source == self.source:
            return None
        form = ChatFormat(self._engine, self._settings, self._unread, source=source)
        try:
            _ = form.template
        except TemplateError as error:
            logger.warning("the template for tools is invalid: %s; chats with tools use the model's default template", error)
            return None
        return form

    def _form(self, data: Chat) -> "ChatFormat":
        """The format of this chat."""
        form = self._for_tools if data.tools or data.functions else None
        return self if form is None else form

    def lasting(self, told: ChatMessage) -> ChatMessage:
        """What a message of the system begins with in each prompt, though lines of it change: it without those."""
        return self._volatile.lasting(told)

    @property
    def shows_tools(self) -> bool:
        """Whether the template shows tools; where it does not, they are described in words."""
        try:
            if self._family.takes_tools:
                return True
            return self._for_tools is not None and self._for_tools.shows_tools
        except TemplateError:
            return False

    @property
    def thinks(self) -> bool:
        """Whether the template knows thoughts."""
        try:
            return self._thought is not None
        except TemplateError:
            return False

    @property
    def source(self) -> str:
        """The template, in Jinja: of the settings, else the model's, else ChatML."""
        given = self._source or self._from_settings[1]
        return given or self._engine.model.chat_template or self.tool_use_source or builtin.source(builtin.CHATML)

    @cached_property
    def tool_use_source(self) -> str | None:
        """The template that the model's file has for chats with tools, in Jinja; the settings' template replaces it."""
        if self._source or self._from_settings[1]:
            return None
        return self._engine.model.metadata().get("tokenizer.chat_template.tool_use") or None

    @cached_property
    def template(self) -> "ChatTemplate":
        """The template, compiled."""
        from weft.chat.template import ChatTemplate  # noqa: PLC0415 (it takes all of Jinja)

        model = self._engine.model
        bos_token, eos_token = self._spelling(model.bos_token), self._spelling(model.eos_token)
        return ChatTemplate(self.source, bos_token=bos_token, eos_token=eos_token)

    def text(self, data: Chat) -> str:
        """The prompt as a text that is tokenized as every prompt is: without the token that begins it.

        Raises:
            ContextOverflow: it could not fit, were all of its tokens as long as they can be.
            InvalidRequest: the messages are not what they must be, or the template refuses them.
        """
        if (form := self._form(data)) is not self:
            return form.text(data)
        return "".join([segment.text for segment in self._segments(self._read(data)).segments])

    def prompt(self, data: Chat, media: Sequence[Media] = (), *, with_system_end: bool = False) -> ChatPrompt:
        """The prompt in tokens. What is said in messages is no control token, and no picture, however it is spelt.

        Args:
            data: The chat.
            media: What its parts are that are pictures or sounds, in order.
            with_system_end: Whether to tell where the system's message ends.

        Raises:
            ContextOverflow: it does not fit; not all of it was rendered, or tokenized, by then.
            InvalidRequest: the messages are not what they must be, or the template refuses them.
        """
        if (form := self._form(data)) is not self:
            return form.prompt(data, media, with_system_end=with_system_end)
        chat = self._read(data)
        if chat.n_media != len(media):
            message = f"the messages have {chat.n_media} pictures and sounds, of which {len(media)} were read"
            raise InvalidRequest("messages", f"{message}; give them as parts of type 'media', with what read_media returns")
        rendered = self._segments(chat)
        parts = self._tokens(rendered.segments, media)
        turn_ends = self._turn_ends(chat, parts, media)
        answer, held = self._answer(chat, rendered)
        system_end = self._end_of(_n_told(chat), chat, parts, media) if with_system_end else None
        tokens = self._engine.model.tokenize_parts(_runs(parts), add_special=False) if media else cast("list[int]", parts)
        return ChatPrompt(tokens, turn_ends, answer, held, system_end=system_end, n_volatile=chat.n_volatile)

    def _answer(self, chat: _Chat, rendered: _Rendered) -> tuple[PlainForm | FamilyForm, OutputConstraint | None]:
        """How what follows a prompt is to be read, and what holds it to that."""
        family, thought = self._family, self._thought
        if rendered.is_begun and not rendered.is_thinking:
            # The prompt already contains the mark before the content, and a begun answer does not begin with a call.
            family = msgspec.structs.replace(family, before="", openings=())
        if thought is not None and chat.continued is not None:
            # The client has given the first words.
            thought = msgspec.structs.replace(thought, is_begun_in_words=False)
        has_format = bool(family.fillers or family.before)
        use = None if chat.asked is None else chat.asked.use
        if use is None and thought is None and not has_format:
            return PLAIN, None
        form = FamilyForm(
            family if use is not None or has_format else None,
            thought,
            use,
            is_thinking=rendered.is_thinking,
            thought_opening=rendered.thought_opening,
            continues_thought=rendered.is_begun and rendered.is_thinking,
            reasoning_format=chat.thinking.format,
            earlier=[str(call.get("id") or "") for message in chat.messages for call in message.tool_calls or ()],
            unread=self._unread,
        )
        may_reason = chat.thinking.is_on is not False
        held = OutputConstraint(form, self._control_ids, chat.thinking.budget, may_reason=may_reason, cache=self._call_grammars)
        return PLAIN if self._settings.skip_chat_parsing else form, held

    @cached_property
    def _answer_format(self) -> AnswerFormat:
        """The format of answers. To detect it takes as long as rendering ten short chats."""
        return detect_format(self.template, self._end_marks, self._settings.chat_template_kwargs)

    @property
    def _family(self) -> Family:
        return self._answer_format.family

    @property
    def _thought(self) -> ThoughtMarks | None:
        return self._answer_format.thought

    @cached_property
    def _end_marks(self) -> Sequence[str]:
        """The spellings of the tokens that end a text."""
        model = self._engine.model
        return tuple(filter(None, (self._spelling(token) for token in (model.eos_token, *model.end_tokens()))))

    @cached_property
    def _control_ids(self) -> Mapping[str, int]:
        """The id of each control token by its spelling."""
        return {self._spelling(token): token for token in self._engine.model.control_tokens() if self._spelling(token)}

    def _read(self, data: Chat) -> _Chat:
        self._check_number(data.messages or ())
        messages, n_volatile = self._volatile.rearranged(check(data.messages))
        is_continued = self._is_continued(data, messages)
        thinking = self._thinking(data)
        effort = {} if data.reasoning_effort in (None, "none") else {"reasoning_effort": data.reasoning_effort}
        wish = {} if thinking.is_on is None else {"enable_thinking": thinking.is_on}
        given = data.chat_template_kwargs or {}
        variables = {**_DEFAULT_VARIABLES, **self._settings.chat_template_kwargs, **effort, **wish, **given}
        return _Chat(
            messages=messages[:-1] if is_continued else messages,
            continued=messages[-1] if is_continued else None,
            continued_part=data.continue_final_message if isinstance(data.continue_final_message, str) else None,
            opens_answer=is_continued or data.add_generation_prompt is not False,
            variables=variables,
            n_media=sum(1 for _ in media_parts(messages)),
            asked=requested_tools(data),
            thinking=thinking,
            n_volatile=n_volatile,
        )

    def _thinking(self, data: Chat) -> ReasoningOptions:
        asked = reasoning_options(data, self._settings.reasoning_format)
        given = (data.chat_template_kwargs or {}).get("enable_thinking", asked.is_on)
        if not isinstance(given, bool | None):
            message = f"chat_template_kwargs.enable_thinking is {shown(given)}; it must be a boolean"
            raise InvalidRequest("chat_template_kwargs", message)
        is_on = self._settings.chat_template_kwargs.get("enable_thinking") if given is None else given
        return msgspec.structs.replace(asked, is_on=is_on if isinstance(is_on, bool) else None)

    def _check_number(self, messages: Sequence[ChatMessage]) -> None:
        """Refuses more messages than the context has tokens, before anything is done with each: none is less than a token."""
        n_ctx = self._engine.limits.n_ctx_slot
        if len(messages) >= n_ctx:
            raise ContextOverflow(len(messages), n_ctx, is_least=True)

    def _is_continued(self, data: Chat, messages: Sequence[ChatMessage]) -> bool:
        """Whether the last message is a beginning of the answer."""
        said_by_assistant = messages[-1].role == "assistant"
        has_called = bool(messages[-1].tool_calls or messages[-1].function_call)
        if data.continue_final_message:
            if data.continue_final_message not in (True, "content", "reasoning_content"):
                message = f"is {shown(data.continue_final_message)}; it must be a boolean, 'content' or 'reasoning_content'"
                raise InvalidRequest("continue_final_message", f"continue_final_message {message}")
            if data.add_generation_prompt:
                message = "continue_final_message and add_generation_prompt cannot both be true"
                raise InvalidRequest("continue_final_message", message)
            if not said_by_assistant:
                message = f"only an assistant's message can be continued; the last is of the role {messages[-1].role!r}"
                raise InvalidRequest("continue_final_message", message)
            if has_called:
                message = "a message that calls tools cannot be continued; the results of its calls follow it"
                raise InvalidRequest("continue_final_message", message)
            return True
        if not (said_by_assistant and self._settings.prefill_assistant) or has_called:
            return False
        if len(messages) > 1 and messages[-2].role == "assistant":
            raise InvalidRequest("messages", "there are two or more assistant messages at the end; one can be continued")
        return True

    def _segments(self, chat: _Chat) -> _Rendered:
        try:
            return self._rendered(chat)
        except TemplateError as error:
            raise InvalidRequest("messages", str(error)) from error

    def _rendered(self, chat: _Chat) -> _Rendered:
        template, thought = self.template, self._thought
        tools = [] if chat.asked is None else chat.asked.shown
        is_shown = bool(tools) and self._family.takes_tools
        example = self._answer_format.example if tools and not is_shown else None
        n_cut_marks = 0 if chat.continued is None else N_CUT_MARKS
        n_marks = chat.n_media + n_cut_marks + (example is not None)
        marks = media_marks(n_marks, f"{template.source}{_all_texts(chat)}") if n_marks else []
        media, cut_marks = marks[: chat.n_media], marks[chat.n_media : chat.n_media + n_cut_marks]
        example_marks = marks[chat.n_media + n_cut_marks :]
        begun = self._begun_answer(chat, media)
        said = chat.messages if begun is None else [*chat.messages, begun.message()]
        if tools and not is_shown:
            # Text of clients is never parsed as control tokens, but the example has those of the model.
            said = with_tools_told(said, tools, None if example is None else example_marks[0])
        messages = for_template(said, template, iter(media), self._family)
        n_messages = len(messages)
        if begun is not None:
            messages.append(begun.as_text())
        # What a tool is said to do may spell control tokens too.
        told = [*messages, *({"tools": [tool]} for tool in tools)]
        escaper = ControlTokenEscaper(told, self._spellings, template.source + "".join([*cut_marks, *example_marks]), media)
        escaped = [tool for message in escaper.messages[len(messages) :] for tool in message["tools"]]
        render = partial(self._rendered_text, variables={**chat.variables, "tools": escaped} if is_shown else chat.variables)
        shown = escaper.messages[:n_messages]
        if begun is None:
            text = render(shown, opens_answer=chat.opens_answer)
            is_thinking = thought is not None and _is_open(text, thought)
            form = self._reasoning_form
            if is_thinking and form is not None and chat.thinking.is_on is False:
                text, is_thinking = form.closed(text), False
        else:
            text = self._begun_text(begun, shown, escaper.messages[n_messages], cut_marks, render)
            is_thinking = thought is not None and begun.continues_reasoning
        for mark in example_marks:
            text = text.replace(mark, str(example))
        if len(text) > self._max_size:
            raise self._overflow(len(text))
        if lost := [mark for mark in media if mark not in text]:
            raise TemplateError(f"the chat template leaves out {len(lost)} of {len(media)} pictures and sounds")
        if self._adds_bos:
            text = text.removeprefix(template.bos_token)
        opening = ""
        if is_thinking and thought is not None and begun is None and not thought.is_begun_in_words:
            opening = text[text.rindex(thought.start) :]
        return _Rendered(escaper.segments(text), is_thinking, opening, begun is not None)

    def _rendered_text(self, messages: Sequence[Message], *, opens_answer: bool, variables: Mapping[str, object]) -> str:
        size = min(self._max_size, MAX_SIZE)
        try:
            return self.template.render(messages, add_generation_prompt=opens_answer, variables=variables, max_size=size)
        except TooLongError as error:
            raise self._overflow(error.size) from error

    def _begun_text(
        self, begun: BegunAnswer, shown: Sequence[Message], message: Message, cut_marks: Sequence[str], render: Callable[..., str]
    ) -> str:
        """Renders the prompt of a begun answer, and appends what the template leaves out."""
        cut, reasoning_mark = cut_marks
        whole = [*shown[:-1], with_cut_marks(shown[-1], begun, cut, reasoning_mark)]
        try:
            rendered = cut_rendering(render(whole, opens_answer=False), begun, cut, reasoning_mark)
        except TemplateError:
            # Some templates refuse a chat that ends with the assistant.
            rendered = None
        form = self._reasoning_form
        if rendered is not None and rendered.is_whole:
            before = rendered.text.removesuffix(str(message["content"]).lstrip())
            # Some templates open the reasoning before any answer.
            if begun.continues_reasoning or form is None or not form.is_open(before):
                return rendered.text
        earlier = shown[:-1]
        if shown[-1].get("tool_calls"):
            # The answer is a part of the turn that calls.
            earlier = [*earlier, {**shown[-1], "content": ""}]
        prompt = render(earlier, opens_answer=True)
        return extend_prompt(prompt, message, begun, form, None if rendered is None else rendered.text)

    @cached_property
    def _reasoning_form(self) -> ReasoningForm | None:
        """How the model writes reasoning, also if its template only ever begins it."""
        default = ThoughtMarks("<think>", "</think>")
        marks = self._thought or (default if default.start in self.template.source else None)
        return None if marks is None else ReasoningForm.of(marks, self.template.source, self.template.question)

    def _begun_answer(self, chat: _Chat, media: Sequence[str]) -> BegunAnswer | None:
        """The answer that the chat's last message begins; None where there is nothing to continue."""
        if chat.continued is None:
            return None
        n_before = sum(1 for _ in media_parts(chat.messages))
        content = content_text(chat.continued.content, iter(media[n_before:]))
        reasoning = chat.continued.reasoning_content or ""
        marks = None if self._reasoning_form is None else self._reasoning_form.marks
        begun = parse_begun_answer(content, reasoning, marks, part=chat.continued_part)
        return None if begun.is_empty else begun

    @property
    def _max_size(self) -> int:
        """Most characters that fit in the context: a character is a byte or more, and a token no more than the longest piece."""
        longest = self._engine.model.longest_piece
        return sys.maxsize if longest is None else longest * self._engine.limits.n_ctx_slot

    def _overflow(self, size: int) -> ContextOverflow:
        n_ctx = self._engine.limits.n_ctx_slot
        return ContextOverflow(-(-size * n_ctx // self._max_size), n_ctx, is_least=True)

    def _tokens(self, segments: Iterable[TextSegment | MediaPlaceholder], media: Sequence[Media]) -> list[int | Media]:
        return self._tokenizer.tokens(self._opening, segments, media)

    def _turn_ends(self, chat: _Chat, parts: Sequence[int | Media], media: Sequence[Media]) -> list[int]:
        """Where messages end behind which prompts may part, as far as the template can render them.

        Those are the system's, all but the last, all, and the last [`N_LIKE`] whose ends look like those.
        """
        if self._engine.limits.forks_anywhere:
            return []
        numbers = {_n_told(chat), len(chat.messages) - 1, len(chat.messages)}
        told = {self._end_of(n_messages, chat, parts, media) for n_messages in numbers}
        ends = {end for end in told if end is not None and 0 < end < sum(map(_n_places, parts))}
        if not media:
            ends.update(_ends_like(ends, cast("Sequence[int]", parts), self._tokenizer.control_tokens))
        return sorted(ends)

    def _end_of(self, n_messages: int, chat: _Chat, parts: Sequence[int | Media], media: Sequence[Media]) -> int | None:
        """Where the first messages of a chat end that was rendered to these parts; None where there are none, or nobody knows."""
        if n_messages < 1:
            return None
        messages = chat.messages[:n_messages]
        n_media = sum(1 for _ in media_parts(messages))
        earlier = msgspec.structs.replace(chat, messages=messages, continued=None, opens_answer=False, n_media=n_media)
        try:
            return _n_common(self._tokens(self._rendered(earlier).segments, media), parts)
        except (TemplateError, ContextOverflow):
            # Some templates render no chat without a question, and so share no beginning with one.
            return None

    @cached_property
    def _from_settings(self) -> tuple[str | None, str | None]:
        """The setting that names a template, and the template."""
        given, path = self._settings.chat_template, self._settings.chat_template_file
        if given and path:
            raise InvalidConfig("chat_template_file", "chat_template names a template already; give one of the two")
        if path:
            try:
                return "chat_template_file", Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidConfig("chat_template_file", f"the chat template {path} cannot be read: {error}") from error
        if not given:
            return None, None
        if given in builtin.names():
            return "chat_template", builtin.source(given)
        if "{" not in given:
            known = ", ".join(builtin.names())
            raise InvalidConfig("chat_template", f"{given!r} is no template in Jinja and none of {known}")
        return "chat_template", given

    @cached_property
    def _spellings(self) -> ControlTokenSpellings:
        model = self._engine.model
        return ControlTokenSpellings([self._spelling(token) for token in model.control_tokens()])

    def _spelling(self, token: int | None) -> str:
        return "" if token is None else self._engine.model.token_bytes(token).decode(errors="ignore")

    @cached_property
    def _opening(self) -> list[int]:
        """The token that begins every text, where the vocabulary asks for it."""
        return [token for token in self._engine.tokenize("")[:1] if token == self._engine.model.bos_token]

    @property
    def _adds_bos(self) -> bool:
        return bool(self._opening and self.template.bos_token)


def _ends_like(ends: Collection[int], tokens: Sequence[int], control: Container[int]) -> list[int]:
    """The last places that follow what closes a turn: a note that moves through a chat, as it grows, parts prompts there.

    That are the tokens before all of these ends, from the last control token on where there is one.
    """
    if len(ends) < 2:
        return []
    before = [tokens[max(0, end - MAX_CLOSING) : end] for end in ends]
    n_closing = 0
    while n_closing < min(map(len, before)) and len({each[-1 - n_closing] for each in before}) == 1:
        n_closing += 1
        if before[0][-n_closing] in control:
            break
    if not n_closing:
        return []
    # Bytes are searched fast.
    closing, text = array("i", before[0][-n_closing:]).tobytes(), array("i", tokens).tobytes()
    size = array("i").itemsize
    found: list[int] = []
    at = len(text)
    while len(found) < N_LIKE and (at := text.rfind(closing, 0, at)) >= 0:
        if at % size == 0 and at + len(closing) < len(text):
            found.append((at + len(closing)) // size)
        at += len(closing) - 1
    return found


def _n_told(chat: _Chat) -> int:
    """Messages of the system that a chat begins with: one or none."""
    return 1 if chat.messages and chat.messages[0].role in ("system", "developer") else 0


def _all_texts(chat: _Chat) -> str:
    """All that is said, in which a character that nobody says can be found."""
    messages = [*chat.messages, *([] if chat.continued is None else [chat.continued])]
    tools = None if chat.asked is None else chat.asked.shown
    return msgspec.json.encode((messages, chat.variables, tools)).decode()


def _runs(parts: Sequence[int | Media]) -> list[Media | list[int]]:
    """The same, tokens that stand together as a list."""
    runs: list[Media | list[int]] = []
    for is_media, run in groupby(parts, key=lambda part: isinstance(part, Media)):
        alike = list(run)
        runs += cast("list[Media]", alike) if is_media else [cast("list[int]", alike)]
    return runs


def _is_open(text: str, thought: ThoughtMarks) -> bool:
    """Whether a prompt ends with the beginning of a thought."""
    return text.rstrip().endswith(thought.start)


def _n_places(part: int | Media) -> int:
    return part.n_tokens if isinstance(part, Media) else 1


def _n_common(left: Sequence[int | Media], right: Sequence[int | Media]) -> int:
    """How many places two prompts begin with in common."""
    pairs = takewhile(lambda pair: _is_same(*pair), zip(left, right, strict=False))
    return sum(_n_places(part) for part, _ in pairs)


def _is_same(one: int | Media, other: int | Media) -> bool:
    if isinstance(one, Media) or isinstance(other, Media):
        return isinstance(one, Media) and isinstance(other, Media) and one.digest == other.digest
    return one == other
