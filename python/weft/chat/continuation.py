"""Continuation of a partial answer: the rendered last message, cut after its content or its reasoning."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from weft.chat.answer.call_format import ReasoningMarks
from weft.chat.conversation import ChatMessage
from weft.chat.template_terms import Message, TemplateError

_ON_LINES = "<think>"
"""Start mark of reasoning that most models put on separate lines."""


class ReasoningForm(msgspec.Struct, frozen=True):
    """How a model writes its reasoning."""

    marks: ReasoningMarks
    opening: str
    """Start mark, including the line break after it."""
    closing: str
    """End mark, including the line breaks around it."""

    @classmethod
    def of(cls, marks: ReasoningMarks, source: str, prompt: str) -> Self:
        """Finds the form in the source of a template and in a prompt, which may begin the reasoning."""
        is_open = marks.is_open(prompt)
        if is_open:
            has_lines = prompt.endswith("\n")
        else:
            is_usual = marks.start == _ON_LINES and marks.start in source and marks.start + marks.end not in source
            has_lines = is_usual or re.search(re.escape(marks.start) + r"(?:\n|\\n)", source) is not None
        before = behind = "\n" if has_lines and (is_open or marks.start == _ON_LINES) else ""
        if marks.start == _ON_LINES:
            behind *= 2
        return cls(marks, marks.start + ("\n" if has_lines else ""), before + marks.end + behind)

    def close_reasoning(self, prompt: str) -> str:
        """Closes the reasoning that a prompt begins, so that it is empty."""
        return prompt.rstrip().removesuffix(self.marks.start) + self.opening + self.closing

    def strip_empty_reasoning(self, text: str) -> str:
        """Removes empty reasoning at the beginning of a text."""
        start, end = re.escape(self.marks.start), re.escape(self.marks.end)
        return re.sub(rf"\A{start}\s*(?:{end}\s*)?", "", text)


class PartialAnswer(msgspec.Struct, frozen=True):
    """The text that an answer continues."""

    content: str
    reasoning: str
    continues_reasoning: bool
    """True if the answer continues the reasoning. The content is empty then."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to continue."""
        return not (self.content or self.reasoning or self.continues_reasoning)

    def message(self) -> ChatMessage:
        """Returns the answer as the last message of the chat."""
        return ChatMessage(role="assistant", content=self.content, reasoning_content=self.reasoning or None)

    def as_text(self) -> Message:
        """Returns the answer as two texts, independent of the template's format."""
        return {"role": "assistant", "content": self.content, "reasoning_content": self.reasoning}


def parse_partial_answer(content: str, reasoning: str, marks: ReasoningMarks | None, *, part: str | None) -> PartialAnswer:
    """Separates the reasoning of a partial answer from its content.

    Args:
        content: The content of the message, which may begin with reasoning between its marks.
        reasoning: The reasoning of the message, if it is separate.
        marks: The marks around the model's reasoning; None if it has none.
        part: The part to continue, `content` or `reasoning_content`. None continues the content if there is any, otherwise the
            reasoning.
    """
    partial = content.lstrip()
    if not reasoning and marks is not None and partial.startswith(marks.start):
        reasoning, end, rest = partial.removeprefix(marks.start).partition(marks.end)
        if not end:
            return PartialAnswer("", reasoning.lstrip(), continues_reasoning=True)
        if part != "reasoning_content":
            return PartialAnswer(rest.lstrip(), reasoning.strip(), continues_reasoning=False)
    if part == "reasoning_content" or (part is None and reasoning and not content):
        return PartialAnswer("", reasoning, continues_reasoning=True)
    return PartialAnswer(content, reasoning, continues_reasoning=False)


def render_partial_answer(
    partial: PartialAnswer,
    messages: Sequence[Message],
    answer: Message,
    cut_marks: Sequence[str],
    render: Callable[..., str],
    *,
    form: ReasoningForm | None,
) -> str:
    """Renders the prompt of a partial answer, and appends what the template leaves out.

    Args:
        partial: The partial answer without escaping.
        messages: The chat in the template's format, with the partial answer as its last message.
        answer: The partial answer as `content` and `reasoning_content`, with escaped control tokens.
        cut_marks: Characters that the chat does not contain: for the end of the answer, and for the beginning of its reasoning.
        render: Renders messages.
        form: How the model writes reasoning; None if it has none.
    """
    cut, reasoning_mark = cut_marks
    *earlier, last = messages
    try:
        text = render([*earlier, _with_cut_marks(last, partial, cut, reasoning_mark)], opens_answer=False)
    except TemplateError:
        # Some templates reject a chat that ends with the assistant.
        text = ""
    rendered = None
    if (end := text.rfind(cut)) >= 0:
        has_reasoning = not partial.reasoning or partial.continues_reasoning or reasoning_mark in text[:end]
        rendered = text[:end].replace(reasoning_mark, "").replace(cut, "")
        # Some templates begin reasoning before every answer.
        before = rendered.removesuffix(str(answer["content"]).lstrip())
        if has_reasoning and (partial.continues_reasoning or form is None or not form.marks.is_open(before)):
            return rendered
    if last.get("tool_calls"):
        # The answer belongs to the turn that calls.
        earlier = [*earlier, {**last, "content": ""}]
    return _extended(render(earlier, opens_answer=True), answer, partial, form, rendered)


def _with_cut_marks(message: Message, partial: PartialAnswer, cut: str, reasoning_mark: str) -> Message:
    """Marks in the last message where the prompt is cut and where the reasoning begins.

    A mark is a character that the chat does not contain. After a text it also keeps the template from trimming the text's end.
    """

    def marked(text: str) -> str:
        if partial.continues_reasoning:
            return text + cut
        stripped = text.lstrip()
        return f"{text[: len(text) - len(stripped)]}{reasoning_mark}{stripped}"

    result: dict[str, Any] = dict(message)
    for name in ("reasoning_content", "reasoning", "thinking"):
        if name in result:
            result[name] = marked(result[name])
    content = result["content"]
    if isinstance(content, list):
        parts = [{**part, "thinking": marked(part["thinking"])} if "thinking" in part else dict(part) for part in content]
        texts = [part for part in parts if "text" in part]
        if texts and not partial.continues_reasoning:
            texts[-1]["text"] += cut
        result["content"] = parts
    elif not partial.continues_reasoning:
        result["content"] = content + cut
    return result


def _extended(prompt: str, message: Message, partial: PartialAnswer, form: ReasoningForm | None, rendered: str | None) -> str:
    """Appends a partial answer to a prompt, with the reasoning or the whole message that the template leaves out.

    Args:
        prompt: A prompt that begins the assistant's turn, and perhaps the reasoning.
        message: The partial answer as `content` and `reasoning_content`, with escaped control tokens.
        partial: The partial answer without escaping.
        form: How the model writes reasoning; None if it has none, which leaves the reasoning out.
        rendered: The template's rendering without the reasoning, up to where the answer continues; None if there was none.
    """
    content, reasoning = str(message["content"]), str(message["reasoning_content"])
    if form is None:
        return prompt + content if rendered is None else rendered
    is_open = form.marks.is_open(prompt)
    opening = "" if is_open else form.opening
    if partial.continues_reasoning:
        return f"{prompt}{opening}{reasoning}"
    if not (is_open or reasoning):
        return prompt + content
    turn = prompt.rstrip().removesuffix(form.marks.start) if is_open else prompt
    # The rest includes the marks around the content, and perhaps empty reasoning.
    rest = rendered[len(turn) :] if rendered is not None and rendered.startswith(turn) else content
    return f"{prompt}{opening}{reasoning}{form.closing}{form.strip_empty_reasoning(rest)}"
