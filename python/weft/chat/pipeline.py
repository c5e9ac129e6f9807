"""Turns chats into prompts and constraints with the served template, and determines how their answers are parsed."""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from weft import ContextOverflowError, Engine, InvalidConfigError, InvalidRequestError, Media, MixedPrompt
from weft.chat import builtin
from weft.chat.answer.call_format import NO_CALLS, CallFormat, ReasoningMarks
from weft.chat.answer.detect import AnswerFormat, detect_format
from weft.chat.answer.form import ChatForm
from weft.chat.answer.parts import PLAIN, AnswerForm
from weft.chat.call_grammar_cache import CallGrammarCache
from weft.chat.continuation import PartialAnswer, ReasoningForm, parse_partial_answer, render_partial_answer
from weft.chat.control_tokens import ControlTokenEscaper, ControlTokenSpellings, Segment, placeholder_characters
from weft.chat.conversation import ChatMessage, ChatRequest
from weft.chat.messages import check, content_text, for_template, media_parts
from weft.chat.output_constraint import OutputConstraint
from weft.chat.prompt_parts import ends_like, media_and_runs, n_common, n_positions
from weft.chat.request_options import ReasoningOptions, RequestedTools, budget_message, reasoning_options, requested_tools
from weft.chat.segment_tokenizer import SegmentTokenizer
from weft.chat.template_terms import MAX_SIZE, Message, TemplateError, TooLongError
from weft.chat.tool_descriptions import with_described_tools
from weft.chat.volatile import VolatileLines
from weft.fields.excerpt import excerpt
from weft.request import Request
from weft.settings.chat import ChatSettings

if TYPE_CHECKING:
    from weft.chat.template import ChatTemplate

N_CUT_MARKS = 2
"""Placeholder characters for the end of a partial answer, and for the beginning of its reasoning."""

_DEFAULT_VARIABLES = {"preserve_reasoning": True}
"""Default variables. Keeping earlier reasoning in the prompt preserves the cached prefix that contains it."""

logger = logging.getLogger(__name__)


class ChatPrompt(msgspec.Struct, frozen=True):
    """A prompt made of messages."""

    tokens: list[int] | MixedPrompt
    turn_ends: list[int]
    """Token positions where a later or edited turn may diverge; empty if the model can fork at any token."""
    answer: AnswerForm = PLAIN
    """How to parse an answer that no grammar constrains as a whole."""
    constraint: OutputConstraint | None = None
    """Constraint on the answer; None if it is unconstrained."""
    system_end: int | None = None
    """Token position of the end of the system message; None if it was not requested or is unknown."""
    n_volatile: int = 0
    """Number of volatile lines that were moved or removed from the system message."""

    cache_answers: bool = True
    """True to reuse the tokens that were generated for earlier answers which the chat contains."""

    @property
    def request_fields(self) -> dict[str, Any]:
        """Fields of a request for this prompt, other than the prompt itself."""
        return {"checkpoints_at": self.turn_ends, "cache_answers": self.cache_answers}

    def constrained(self, request: Request) -> Request:
        """Returns the request with the constraint on its answers.

        Raises:
            InvalidRequestError: The request has a grammar, and tools may be called.
        """
        return request if self.constraint is None else self.constraint.apply(request)

    def answer_to(self, request: Request) -> AnswerForm:
        """Returns how to parse the answers to a request, whose own grammar or schema may constrain the whole answer."""
        is_constrained = bool(request.grammar) or request.json_schema is not None
        return self.answer.constrained() if is_constrained and not request.grammar_lazy else self.answer


class _Chat(msgspec.Struct, frozen=True):
    """A chat request, prepared for rendering."""

    messages: list[ChatMessage]
    continued: ChatMessage | None
    """The message that the answer continues."""
    continued_part: str | None
    """The part of it that the answer continues, `content` or `reasoning_content`; None if the request does not name one."""
    opens_answer: bool
    """True if the prompt ends with the beginning of the assistant's turn."""
    variables: dict[str, object]
    tools: RequestedTools
    thinking: ReasoningOptions
    n_volatile: int
    """Number of volatile lines that were moved or removed from the system message."""

    @property
    def whole(self) -> list[ChatMessage]:
        """All messages, including the continued one."""
        return self.messages if self.continued is None else [*self.messages, self.continued]


class _Rendered(NamedTuple):
    """Rendered prompt."""

    segments: Iterable[Segment]
    is_thinking: bool
    """True if the prompt ends within reasoning, which the answer continues."""
    reasoning_opening: str
    """The text with which the prompt begins that reasoning; empty if the chat's last message contains it."""
    has_partial_answer: bool
    """True if the prompt contains a partial answer."""


class ChatPipeline:
    """Turns chats into prompts, constraints and parsers of their answers, as one template of one engine defines them.

    Its methods block, so the event loop calls them on a worker thread unless a chat is short. They are thread-safe.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ChatSettings,
        on_unparsed_call: Callable[[], None] = lambda: None,
        *,
        source: str | None = None,
    ) -> None:
        """Selects the template: `source`, else the settings' template, else the model's. It is compiled later.

        Args:
            engine: The engine.
            settings: Settings of chats.
            on_unparsed_call: Called when text that looks like a call cannot be parsed.
            source: A template that overrides the others.
        """
        self._engine = engine
        self._source = source
        self._settings = settings
        self._volatile = VolatileLines(settings.volatile_prompt_lines)
        self._tokenizer = SegmentTokenizer(engine)
        self._on_unparsed_call = on_unparsed_call
        self._call_grammars = CallGrammarCache()
        self.is_compiled = False
        """True once `compile` has finished."""

    def check_settings(self) -> None:
        """Reads and compiles the template of the settings. The model must be loaded.

        Raises:
            InvalidConfigError: The template does not exist or is invalid, or the budget message contains the mark that ends
                reasoning.
        """
        if (name := self._from_settings[0]) is not None:
            try:
                _ = self.template
            except TemplateError as error:
                raise InvalidConfigError(name, str(error)) from error
        given = self._settings.chat_template_kwargs.get("enable_thinking")
        if not isinstance(given, bool | None):
            raise InvalidConfigError("chat_template_kwargs", f"enable_thinking is {excerpt(given)}; it must be a boolean")
        message = self._settings.reasoning_budget_message
        if message and (marks := self._reasoning_marks) is not None and marks.end in message:
            why = f"contains {excerpt(marks.end)}, which ends reasoning and is appended to the message"
            raise InvalidConfigError("reasoning_budget_message", f"{excerpt(message)} {why}")

    def compile(self) -> None:
        """Compiles the templates, which takes tens of milliseconds. Logs a warning if a template of the model is invalid."""
        if self.is_compiled:
            return
        try:
            _ = self._answer_format
        except TemplateError as error:
            logger.warning("%s; chats are refused until another one is given with --chat-template", error)
        _ = self._for_tools
        self.is_compiled = True

    @cached_property
    def _for_tools(self) -> "ChatPipeline | None":
        """Format of chats with tools, if the model's file has a separate template for them, as Hermes' and Command R's."""
        if (source := self.tool_use_source) is None or source == self.source:
            return None
        form = ChatPipeline(self._engine, self._settings, self._on_unparsed_call, source=source)
        try:
            _ = form.template
        except TemplateError as error:
            logger.warning("the template for tools is invalid: %s; chats with tools use the model's default template", error)
            return None
        return form

    def _form(self, data: ChatRequest) -> "ChatPipeline":
        """Returns the format for a chat, which may be the one for chats with tools."""
        form = self._for_tools if data.tools or data.functions else None
        return self if form is None else form

    def lasting(self, message: ChatMessage) -> ChatMessage:
        """Returns a system message without its volatile lines. Each prompt with this message begins with it."""
        return self._volatile.without_volatile_lines(message)

    @property
    def shows_tools(self) -> bool:
        """True if the template shows tools. If it does not, tools are described in words."""
        try:
            if self._call_format.takes_tools:
                return True
            return self._for_tools is not None and self._for_tools.shows_tools
        except TemplateError:
            return False

    @property
    def thinks(self) -> bool:
        """True if the format of the model's reasoning is known."""
        try:
            return self._reasoning_marks is not None
        except TemplateError:
            return False

    @property
    def source(self) -> str:
        """Jinja source of the template: the settings' template, else the model's, else ChatML."""
        given = self._source or self._from_settings[1]
        return given or self._engine.model.chat_template or self.tool_use_source or builtin.source(builtin.CHATML)

    @cached_property
    def tool_use_source(self) -> str | None:
        """Jinja source of the model's separate template for chats with tools; None if a setting replaces it."""
        if self._source or self._from_settings[1]:
            return None
        return self._engine.model.metadata().get("tokenizer.chat_template.tool_use") or None

    @cached_property
    def template(self) -> "ChatTemplate":
        """The compiled template."""
        from weft.chat.template import ChatTemplate  # noqa: PLC0415 (it takes all of Jinja)

        model = self._engine.model
        bos_token, eos_token = self._spelling(model.bos_token), self._spelling(model.eos_token)
        return ChatTemplate(self.source, bos_token=bos_token, eos_token=eos_token)

    def text(self, data: ChatRequest) -> str:
        """Renders the prompt as text, without the token that begins it.

        Raises:
            ContextOverflowError: The text does not fit in the context even if all tokens have the maximum length.
            InvalidRequestError: The messages are invalid, or the template rejects them.
        """
        if (form := self._form(data)) is not self:
            return form.text(data)
        return "".join([segment.text for segment in self._render(self._read(data)).segments])

    def prompt(self, data: ChatRequest, media: Sequence[Media] = (), *, with_system_end: bool = False) -> ChatPrompt:
        """Renders and tokenizes the prompt. Text of messages never becomes a control token or media, whatever it contains.

        Args:
            data: The chat.
            media: The images and audio of its parts, in order.
            with_system_end: True to compute where the system message ends.

        Raises:
            ContextOverflowError: The prompt does not fit in the context. Rendering and tokenization stop early.
            InvalidRequestError: The messages are invalid, or the template rejects them.
        """
        if (form := self._form(data)) is not self:
            return form.prompt(data, media, with_system_end=with_system_end)
        chat = self._read(data)
        if (n_media := _n_media(chat.whole)) != len(media):
            message = f"the messages have {n_media} media parts, but {len(media)} were read"
            raise InvalidRequestError("messages", f"{message}; give them as parts of type 'media', with the result of read_media")
        rendered = self._render(chat)
        parts = self._tokenizer.tokens(rendered.segments, media)
        turn_ends = self._turn_ends(chat, parts, media)
        answer, constraint = self._answer(chat, rendered)
        system_end = self._end_of(_n_system_messages(chat), chat, parts, media) if with_system_end else None
        tokens = (
            self._engine.model.tokenize_parts(media_and_runs(parts), add_special=False) if media else cast("list[int]", parts)
        )
        return ChatPrompt(
            tokens,
            turn_ends,
            answer,
            constraint,
            system_end=system_end,
            n_volatile=chat.n_volatile,
            cache_answers=self._settings.keep_chat_answers,
        )

    def _answer(self, chat: _Chat, rendered: _Rendered) -> tuple[AnswerForm, OutputConstraint | None]:
        """Returns how to parse the answers to a prompt, and the constraint on them."""
        call_format, marks = self._call_format, self._reasoning_marks
        if rendered.has_partial_answer and not rendered.is_thinking:
            # The prompt already contains the mark before the content, and a partial answer does not begin with a call.
            call_format = msgspec.structs.replace(call_format, content_start="", openings=())
        if marks is not None and chat.continued is not None:
            # The message of the client contains the first words.
            marks = msgspec.structs.replace(marks, start_is_text=False)
        has_format = bool(call_format.fillers or call_format.content_start)
        use = chat.tools.use
        if not use.tools and marks is None and not has_format:
            return PLAIN, None
        form = ChatForm(
            call_format if use.tools or has_format else NO_CALLS,
            marks,
            use,
            is_thinking=rendered.is_thinking,
            reasoning_opening=rendered.reasoning_opening,
            continues_reasoning=rendered.has_partial_answer and rendered.is_thinking,
            reasoning_format=chat.thinking.format,
            earlier=[str(call.get("id") or "") for message in chat.messages for call in message.tool_calls or ()],
            on_unparsed_call=self._on_unparsed_call,
        )
        thinking, settings = chat.thinking, self._settings
        ends = () if marks is None else (marks.end,)
        constraint = OutputConstraint(
            form,
            self._control_ids,
            thinking.budget,
            message=budget_message(thinking.budget_message, settings.reasoning_budget_message, ends),
            may_reason=thinking.is_on is not False,
            cache=self._call_grammars,
        )
        return PLAIN if self._settings.skip_chat_parsing else form, constraint

    @cached_property
    def _answer_format(self) -> AnswerFormat:
        """Format of answers. Detecting it takes as long as rendering ten short chats."""
        model = self._engine.model
        end_marks = [self._spelling(token) for token in (model.eos_token, *model.end_tokens())]
        return detect_format(self.template, [*filter(None, end_marks)], self._settings.chat_template_kwargs)

    @property
    def _call_format(self) -> CallFormat:
        return self._answer_format.call_format

    @property
    def _reasoning_marks(self) -> ReasoningMarks | None:
        return self._answer_format.reasoning_marks

    @cached_property
    def _control_ids(self) -> Mapping[str, int]:
        """Id of each control token by its spelling."""
        return {self._spelling(token): token for token in self._engine.model.control_tokens() if self._spelling(token)}

    def _read(self, data: ChatRequest) -> _Chat:
        n_messages, n_ctx = len(data.messages or ()), self._engine.limits.n_ctx_slot
        if n_messages >= n_ctx:
            # Rejected before any work: a message has at least one token.
            raise ContextOverflowError(n_messages, n_ctx, is_least=True)
        messages, n_volatile = self._volatile.rearrange(check(data.messages))
        is_continued = self._is_continued(data, messages)
        thinking = reasoning_options(data, self._settings)
        effort = {} if data.reasoning_effort in (None, "none") else {"reasoning_effort": data.reasoning_effort}
        enable = {} if thinking.is_on is None else {"enable_thinking": thinking.is_on}
        given = data.chat_template_kwargs or {}
        variables = {**_DEFAULT_VARIABLES, **self._settings.chat_template_kwargs, **effort, **enable, **given}
        return _Chat(
            messages=messages[:-1] if is_continued else messages,
            continued=messages[-1] if is_continued else None,
            continued_part=data.continue_final_message if isinstance(data.continue_final_message, str) else None,
            opens_answer=is_continued or data.add_generation_prompt is not False,
            variables=variables,
            tools=requested_tools(data),
            thinking=thinking,
            n_volatile=n_volatile,
        )

    def _is_continued(self, data: ChatRequest, messages: Sequence[ChatMessage]) -> bool:
        """Returns True if the last message is a partial answer."""
        is_assistant = messages[-1].role == "assistant"
        has_calls = bool(messages[-1].tool_calls or messages[-1].function_call)
        if data.continue_final_message:
            part = data.continue_final_message
            if part not in (True, "content", "reasoning_content"):
                why = f"continue_final_message is {excerpt(part)}; it must be a boolean, 'content' or 'reasoning_content'"
            elif data.add_generation_prompt:
                why = "continue_final_message and add_generation_prompt cannot both be true"
            elif not is_assistant:
                why = f"only an assistant's message can be continued; the last is of the role {messages[-1].role!r}"
            elif has_calls:
                why = "a message that calls tools cannot be continued; the results of its calls follow it"
            else:
                return True
            raise InvalidRequestError("continue_final_message", why)
        if not (is_assistant and self._settings.prefill_assistant) or has_calls:
            return False
        if len(messages) > 1 and messages[-2].role == "assistant":
            raise InvalidRequestError("messages", "the messages end with several assistant messages; only one can be continued")
        return True

    def _render(self, chat: _Chat) -> _Rendered:
        try:
            return self._render_segments(chat)
        except TemplateError as error:
            raise InvalidRequestError("messages", str(error)) from error

    def _render_segments(self, chat: _Chat) -> _Rendered:
        template, marks = self.template, self._reasoning_marks
        tools = chat.tools.shown
        is_shown = bool(tools) and self._call_format.takes_tools
        example = self._answer_format.example if tools and not is_shown else None
        n_each = _n_media(chat.whole), 0 if chat.continued is None else N_CUT_MARKS, int(example is not None)
        texts = msgspec.json.encode((chat.whole, chat.variables, tools)).decode() if any(n_each) else ""
        placeholders = iter(placeholder_characters(sum(n_each), template.source, texts))
        media, cut_marks, example_marks = ([*islice(placeholders, n)] for n in n_each)
        partial_answer = self._partial_answer(chat, media)
        messages = chat.messages if partial_answer is None else [*chat.messages, partial_answer.message()]
        if tools and not is_shown:
            # Text of clients is never parsed as control tokens, but the example must contain the model's.
            messages = with_described_tools(messages, tools, None if example is None else example_marks[0])
        rendered = for_template(messages, template, iter(media), self._call_format)
        n_messages = len(rendered)
        if partial_answer is not None:
            rendered.append(partial_answer.as_text())
        # Descriptions of tools may also spell control tokens.
        untrusted = [*rendered, *tools]
        escaper = ControlTokenEscaper(untrusted, self._spellings, template.source + "".join([*cut_marks, *example_marks]), media)
        escaped = escaper.messages[len(rendered) :]
        render = partial(self._render_text, variables={**chat.variables, "tools": escaped} if is_shown else chat.variables)
        shown = escaper.messages[:n_messages]
        if partial_answer is None:
            text = render(shown, opens_answer=chat.opens_answer)
            is_thinking = marks is not None and marks.is_open(text)
            form = self._reasoning_form
            if is_thinking and form is not None and chat.thinking.is_on is False:
                text, is_thinking = form.close_reasoning(text), False
        else:
            message = escaper.messages[n_messages]
            text = render_partial_answer(partial_answer, shown, message, cut_marks, render, form=self._reasoning_form)
            is_thinking = marks is not None and partial_answer.continues_reasoning
        for mark in example_marks:
            text = text.replace(mark, str(example))
        if len(text) > self._max_size:
            raise self._overflow(len(text))
        if lost := [mark for mark in media if mark not in text]:
            raise TemplateError(f"the chat template leaves out {len(lost)} of {len(media)} media parts")
        if self._tokenizer.opening:
            text = text.removeprefix(template.bos_token)
        opening = ""
        if is_thinking and marks is not None and partial_answer is None and not marks.start_is_text:
            opening = text[text.rindex(marks.start) :]
        return _Rendered(escaper.segments(text), is_thinking, opening, partial_answer is not None)

    def _render_text(self, messages: Sequence[Message], *, opens_answer: bool, variables: Mapping[str, object]) -> str:
        size = min(self._max_size, MAX_SIZE)
        try:
            return self.template.render(messages, add_generation_prompt=opens_answer, variables=variables, max_size=size)
        except TooLongError as error:
            raise self._overflow(error.size) from error

    @cached_property
    def _reasoning_form(self) -> ReasoningForm | None:
        """Format of the model's reasoning, even if its template only begins it."""
        default = ReasoningMarks("<think>", "</think>")
        marks = self._reasoning_marks or (default if default.start in self.template.source else None)
        return None if marks is None else ReasoningForm.of(marks, self.template.source, self.template.question)

    def _partial_answer(self, chat: _Chat, media: Sequence[str]) -> PartialAnswer | None:
        """Returns the partial answer of the chat's last message; None if there is nothing to continue."""
        if chat.continued is None:
            return None
        content = content_text(chat.continued.content, iter(media[_n_media(chat.messages) :]))
        reasoning = chat.continued.reasoning_content or ""
        marks = None if self._reasoning_form is None else self._reasoning_form.marks
        partial_answer = parse_partial_answer(content, reasoning, marks, part=chat.continued_part)
        return None if partial_answer.is_empty else partial_answer

    @property
    def _max_size(self) -> int:
        """Maximum characters that fit in the context: a character has at least a byte, and no token exceeds the longest piece."""
        longest = self._engine.model.longest_piece
        return sys.maxsize if longest is None else longest * self._engine.limits.n_ctx_slot

    def _overflow(self, size: int) -> ContextOverflowError:
        n_ctx = self._engine.limits.n_ctx_slot
        return ContextOverflowError(-(-size * n_ctx // self._max_size), n_ctx, is_least=True)

    def _turn_ends(self, chat: _Chat, parts: Sequence[int | Media], media: Sequence[Media]) -> list[int]:
        """Returns the token positions where messages end and a later prompt may diverge, if the template can render them.

        These are the ends of the system message, of all but the last message, and of all messages, and the last positions
        that look like them.
        """
        if self._engine.limits.forks_anywhere:
            return []
        numbers = {_n_system_messages(chat), len(chat.messages) - 1, len(chat.messages)}
        found = {self._end_of(n_messages, chat, parts, media) for n_messages in numbers}
        ends = {end for end in found if end is not None and 0 < end < sum(map(n_positions, parts))}
        if not media:
            ends.update(ends_like(ends, cast("Sequence[int]", parts), self._tokenizer.control_tokens))
        return sorted(ends)

    def _end_of(self, n_messages: int, chat: _Chat, parts: Sequence[int | Media], media: Sequence[Media]) -> int | None:
        """Returns the token position where the first messages of a rendered chat end, or None if it is unknown."""
        if n_messages < 1:
            return None
        messages = chat.messages[:n_messages]
        earlier = msgspec.structs.replace(chat, messages=messages, continued=None, opens_answer=False)
        try:
            return n_common(self._tokenizer.tokens(self._render_segments(earlier).segments, media), parts)
        except (TemplateError, ContextOverflowError):
            # Some templates reject a chat without a question, so they have no common prefix with one.
            return None

    @cached_property
    def _from_settings(self) -> tuple[str | None, str | None]:
        """Name of the setting that selects a template, and the template's source."""
        given, path = self._settings.chat_template, self._settings.chat_template_file
        if given and path:
            raise InvalidConfigError("chat_template_file", "chat_template names a template already; give one of the two")
        if path:
            try:
                return "chat_template_file", Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidConfigError("chat_template_file", f"the chat template {path} cannot be read: {error}") from error
        if not given:
            return None, None
        if given in builtin.names():
            return "chat_template", builtin.source(given)
        if "{" not in given:
            known = ", ".join(builtin.names())
            raise InvalidConfigError("chat_template", f"{given!r} is neither a Jinja template nor one of {known}")
        return "chat_template", given

    @cached_property
    def _spellings(self) -> ControlTokenSpellings:
        model = self._engine.model
        return ControlTokenSpellings([self._spelling(token) for token in model.control_tokens()])

    def _spelling(self, token: int | None) -> str:
        return "" if token is None else self._engine.model.token_bytes(token).decode(errors="ignore")


def _n_system_messages(chat: _Chat) -> int:
    """Returns the number of system messages at the beginning of a chat, 0 or 1."""
    return 1 if chat.messages and chat.messages[0].role in ("system", "developer") else 0


def _n_media(messages: Sequence[ChatMessage]) -> int:
    return sum(1 for _ in media_parts(messages))
