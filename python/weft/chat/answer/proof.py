"""Verifies a family: parsing the samples of a chat template must return the messages that were rendered."""

import json

from weft.chat.answer.family import Family, ReasoningMarks
from weft.chat.answer.form import FamilyForm
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.samples import CALLS, TOOLS, Sample, Samples
from weft.chat.answer.tools import ToolUse

__all__ = ["reads_calls", "reads_content", "reads_reasoning"]

_USE = ToolUse(TOOLS)


class _UnparsedCallError(Exception):
    """Text that looks like a call could not be parsed."""


def _raise_unparsed_call() -> None:
    raise _UnparsedCallError


def reads_calls(family: Family, reasoning_marks: ReasoningMarks | None, samples: Samples) -> bool:
    """Returns True if parsing returns exactly the calls of the samples."""
    return samples.call is not None and all(_is_read(family, reasoning_marks, samples, sample) for sample in samples.calls)


def reads_content(family: Family, reasoning_marks: ReasoningMarks | None, samples: Samples) -> bool:
    """Returns True if parsing returns the content without its marks, with and without a call.

    Samples within reasoning are skipped.
    """
    shown = [sample for sample in (samples.content, samples.call_after_content) if sample is not None]
    return all(
        _is_read(family, reasoning_marks, samples, sample) for sample in shown if not _is_within(reasoning_marks, samples, sample)
    )


def reads_reasoning(family: Family | None, reasoning_marks: ReasoningMarks, samples: Samples) -> bool:
    """Returns True if parsing separates the reasoning from the content. Without a family, only the reasoning is compared."""
    return all(_is_read(family, reasoning_marks, samples, sample) for sample in samples.with_reasoning)


def _is_read(family: Family | None, reasoning_marks: ReasoningMarks | None, samples: Samples, sample: Sample) -> bool:
    is_thinking = samples.is_open(reasoning_marks) or (
        reasoning_marks is not None and reasoning_marks.start_is_text and bool(sample.reasoning)
    )
    form = FamilyForm(family, reasoning_marks, _USE, is_thinking=is_thinking, on_unparsed_call=_raise_unparsed_call)
    message = ParsedMessage()
    text = _until_end(family, sample.text)
    try:
        reader = form.reader()
        for part in (*reader.read(text), *reader.end()):
            message.add(part)
    except _UnparsedCallError:
        return False
    words = reasoning_marks.start if reasoning_marks is not None and reasoning_marks.start_is_text else ""
    if message.thought.removeprefix(words).strip() != sample.reasoning:
        return False
    if family is None:
        return True
    calls = [(call.name, _decoded(call.arguments)) for call in message.calls]
    return message.content.strip() == sample.content and calls == list(CALLS[: sample.n_calls])


def _is_within(reasoning_marks: ReasoningMarks | None, samples: Samples, sample: Sample) -> bool:
    """Returns True if the template renders content within reasoning.

    Some templates, such as Nemotron v2's, render the last answer after the beginning of reasoning in the generation prompt.
    """
    before = f"{samples.header}{sample.text.partition(sample.content)[0]}".rstrip()
    return reasoning_marks is not None and bool(reasoning_marks.start) and before.endswith(reasoning_marks.start)


def _until_end(family: Family | None, text: str) -> str:
    """Returns the text before the first stop string of the family."""
    for end in () if family is None else family.stop_strings:
        text = text.partition(end)[0]
    return text


def _decoded(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
