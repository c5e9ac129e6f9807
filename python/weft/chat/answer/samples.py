"""Renders sample messages with a chat template, to detect the format of its calls and reasoning."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from weft.chat.answer.tools import Tool
from weft.chat.conversation import ChatMessage
from weft.chat.messages import for_template
from weft.chat.template_terms import Message, TemplateError, TooLongError

if TYPE_CHECKING:
    from weft.chat.template import ChatTemplate

MAX_RENDERED = 256 * 1024
"""Maximum characters of a sample. The longest one of llama.cpp's templates has 15,000."""

MAX_RENDERING_S = 1.0
"""CPU time in seconds after which no further sample is rendered. Each takes 1 ms with most templates."""

CONTENT = "They are ready to be read."
REASONING = "Both of them must be looked up first."

_QUESTION = "Where are the places that I asked for?"
_PURPOSE = "Purpose of a sample tool."
_PARAMETERS = {
    "type": "object",
    "properties": {
        "place_name": {"type": "string", "description": "Name."},
        "day_count": {"type": "integer", "description": "Number."},
        "is_exact": {"type": "boolean", "description": "Choice."},
    },
    "required": ["place_name"],
}

CALLS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("find_sample_place", {"place_name": "Upper Town", "day_count": 37, "is_exact": True}),
    ("count_sample_days", {"place_name": "Lower Town"}),
)
"""Name and arguments of each sample call: several types of values, and a single argument."""

MARKUP = "a <b> & c\nd"

TOOLS: tuple[Tool, ...] = tuple(Tool(name, _PARAMETERS) for name, _ in CALLS)

CALL_IDS = ("smpl00001", "smpl00002")
"""Nine letters and digits, as Mistral's templates require."""

_MARK = re.compile(r"<[^<>\n]{1,128}>|\[/?[A-Za-z][A-Za-z_ ]{1,62}\]")
"""Matches a likely mark. Texts are not cut inside of one."""


class Sample(msgspec.Struct, frozen=True):
    """Rendered message of the assistant."""

    text: str
    """The part that a model generates, without the beginning and the end of the turn."""
    content: str = ""
    reasoning: str = ""
    n_calls: int = 0


class Samples(msgspec.Struct, frozen=True):
    """Rendered samples. None means that the template leaves out a part of the message."""

    header: str
    """Beginning of each turn of the assistant."""
    opened: str
    """Rest of the generation prompt, after the header."""
    tail: str
    """End of each turn."""
    content: Sample | None
    call: Sample | None
    two_calls: Sample | None
    markup_call: Sample | None
    """A call of the second tool with an argument that could be markup."""
    call_after_content: Sample | None
    """Content followed by a call. Also None if the template renders such content as reasoning."""
    reasoning: Sample | None
    """Reasoning followed by content."""
    call_after_reasoning: Sample | None

    @property
    def calls(self) -> Sequence[Sample]:
        """Samples with only calls."""
        return [sample for sample in (self.call, self.two_calls) if sample is not None]

    @property
    def with_reasoning(self) -> Sequence[Sample]:
        """Samples with reasoning."""
        return [sample for sample in (self.reasoning, self.call_after_reasoning) if sample is not None]


def render_samples(
    template: "ChatTemplate", end_marks: Sequence[str] = (), variables: Mapping[str, object] | None = None
) -> Samples | None:
    """Renders the samples. Returns None if the template rejects the simplest one.

    Args:
        template: The compiled template.
        end_marks: Spellings of the tokens that end generation.
        variables: Additional variables of the template.
    """
    deadline = time.thread_time() + MAX_RENDERING_S
    functions = [{"name": tool.name, "description": _PURPOSE, "parameters": tool.parameters} for tool in TOOLS]
    tools = [{"type": "function", "function": function} for function in functions]
    given = {"enable_thinking": True, "preserve_reasoning": True, **(variables or {}), "tools": tools}

    def render(*messages: ChatMessage, opens_answer: bool = False) -> str | None:
        if time.thread_time() > deadline:
            return None
        rendered = [_with_other_names(message) for message in for_template(messages, template)]
        try:
            return template.render(rendered, add_generation_prompt=opens_answer, variables=given, max_size=MAX_RENDERED)
        except (TemplateError, TooLongError):
            return None

    question = ChatMessage(role="user", content=_QUESTION)
    before, opened = render(question), render(question, opens_answer=True)
    if before is None or opened is None:
        return None

    def turn(content: str | None = "", reasoning: str | None = None, calls: Sequence[dict[str, Any]] = ()) -> str | None:
        if calls and not template.takes_calls:
            return None
        answer = ChatMessage(role="assistant", content=content, reasoning_content=reasoning, tool_calls=list(calls) or None)
        text = render(question, answer)
        shown = (content, reasoning, *(call["function"]["name"] for call in calls))
        return None if text is None or not _holds(text, shown) else text

    one, two = ([_call(nth, *call) for nth, call in enumerate(CALLS[:n_calls])] for n_calls in (1, 2))
    markup = [_call(0, CALLS[1][0], {"place_name": MARKUP})]

    call_content: str | None = ""
    call = turn(calls=one)
    if call is None:
        # Some templates render calls only if there is no content.
        call_content = None
        call = turn(None, calls=one)
    turns = {
        "content": turn(CONTENT),
        "call": call,
        "two_calls": None if call is None else turn(call_content, calls=two),
        "markup_call": None if call is None else turn(call_content, calls=markup),
        "call_after_content": None if call is None else turn(CONTENT, calls=one),
        "reasoning": turn(CONTENT, REASONING),
        "call_after_reasoning": None if call is None else turn(call_content, REASONING, one),
    }
    return _cut(turns, before, opened, end_marks)


def _cut(turns: Mapping[str, str | None], before: str, opened: str, end_marks: Sequence[str]) -> Samples:
    """Removes the prompt and the end of the turn from the samples."""
    texts = [text for text in turns.values() if text is not None]
    n_before = min((common_prefix(before, text) for text in (*texts, opened)), default=len(before))
    header = opened[n_before:]
    if not header and len(texts) > 1:
        # The template has no generation prompt.
        header = texts[0][n_before:]
    for text in texts:
        header = header[: common_prefix(header, text[n_before:])]
    n_prompt = n_before + len(header)
    # The space after the end of a turn may depend on the message.
    answers = {name: text[n_prompt:].rstrip() for name, text in turns.items() if text is not None}
    # Some templates append a fixed message to the prompt.
    closing = _tail(answers)
    cut = {name: text.removesuffix(closing) for name, text in answers.items()}
    ended = {name: _until_end(text, end_marks) for name, text in cut.items()}
    written = _until_end(closing, end_marks)
    if written != closing and ended == cut:
        # The mark is part of the end of each turn: a model only generates the text up to it.
        answers, tail = {name: _until_end(text, end_marks) for name, text in answers.items()}, closing.removeprefix(written)
    else:
        answers, tail = ended, _tail(ended) or closing
    if answers.get("call_after_content", "").replace(CONTENT, REASONING) == answers.get("call_after_reasoning"):
        # The template renders content before a call as it renders reasoning, as gpt-oss's does.
        answers.pop("call_after_content", None)

    def sample(name: str, content: str = "", reasoning: str = "", n_calls: int = 0) -> Sample | None:
        if name not in answers:
            return None
        text = answers[name].removesuffix(tail)
        calls_at = max(text.rfind(name) for name, _ in CALLS)
        if calls_at >= 0 and header.strip() and (begin := text.find(header.strip(), calls_at)) >= 0:
            # Some templates begin another turn after the calls.
            text = text[:begin].rstrip().removesuffix(tail.strip())
        is_whole = _holds(text, (content, reasoning, *(name for name, _ in CALLS[:n_calls])))
        return Sample(text, content, reasoning, n_calls) if is_whole else None

    return Samples(
        header=header,
        opened=opened[n_prompt:],
        tail=tail,
        content=sample("content", CONTENT),
        call=sample("call", n_calls=1),
        two_calls=sample("two_calls", n_calls=2),
        markup_call=sample("markup_call"),
        call_after_content=sample("call_after_content", CONTENT, n_calls=1),
        reasoning=sample("reasoning", CONTENT, REASONING),
        call_after_reasoning=sample("call_after_reasoning", "", REASONING, n_calls=1),
    )


def _until_end(text: str, end_marks: Sequence[str]) -> str:
    """Returns the text before the first mark at which generation stops."""
    ends = [at for mark in end_marks if mark.strip() and (at := text.find(mark)) >= 0]
    return text[: min(ends)] if ends else text


def _tail(answers: Mapping[str, str]) -> str:
    """Returns the text that ends every turn."""
    content, call = answers.get("content"), answers.get("call")
    if content is not None and call is not None:
        return content[len(content) - common_suffix(content, call) :]
    return "" if content is None else content.partition(CONTENT)[2]


def common_prefix(left: str, right: str) -> int:
    """Returns the length of the common prefix of two texts, which never ends inside a mark."""
    n = _n_equal(left, right)
    return min(match.start() if (match := _mark_at(text, n)) else n for text in (left, right))


def common_suffix(left: str, right: str) -> int:
    """Returns the length of the common suffix of two texts, which never begins inside a mark."""
    n = _n_equal(left[::-1], right[::-1])
    return min(len(text) - match.end() if (match := _mark_at(text, len(text) - n)) else n for text in (left, right))


def _n_equal(left: str, right: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _mark_at(text: str, position: int) -> re.Match[str] | None:
    """Returns the mark that a position is inside of."""
    return next((match for match in _MARK.finditer(text) if match.start() < position < match.end()), None)


def _holds(text: str, parts: Sequence[str | None]) -> bool:
    """Returns True if a text contains all parts, in any order."""
    return all(part in text for part in parts if part)


def _call(nth: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": CALL_IDS[nth], "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _with_other_names(message: Message) -> Message:
    """Returns the message with its reasoning also under the other names that templates use."""
    reasoning = message.get("reasoning_content")
    return {"reasoning": reasoning, "thinking": reasoning, **message} if reasoning else message
