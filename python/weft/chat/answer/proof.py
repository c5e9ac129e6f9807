"""Verifies a format: parsing the samples of a chat template must return the messages that were rendered."""

import json

from weft.chat.answer.call_format import NO_CALLS, CallFormat, ReasoningMarks
from weft.chat.answer.form import ChatForm
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.samples import CALLS, TOOLS, Sample, Samples
from weft.chat.answer.tools import ToolUse

_USE = ToolUse(TOOLS)


class _UnparsedCallError(Exception):
    """Text that looks like a call could not be parsed."""


def _raise_unparsed_call() -> None:
    raise _UnparsedCallError


def reads_calls(call_format: CallFormat, reasoning_marks: ReasoningMarks | None, samples: Samples) -> bool:
    """Returns True if parsing returns exactly the calls of the samples."""
    return samples.call is not None and all(_is_read(call_format, reasoning_marks, samples, sample) for sample in samples.calls)


def reads_content(call_format: CallFormat, reasoning_marks: ReasoningMarks | None, samples: Samples) -> bool:
    """Returns True if parsing returns the content without its marks, with and without a call.

    Samples within reasoning are skipped.
    """
    shown = [sample for sample in (samples.content, samples.call_after_content) if sample is not None]
    return all(
        _is_read(call_format, reasoning_marks, samples, sample)
        for sample in shown
        if not _is_within(reasoning_marks, samples, sample)
    )


def reads_reasoning(call_format: CallFormat, reasoning_marks: ReasoningMarks, samples: Samples) -> bool:
    """Returns True if parsing separates the reasoning from the content. With `NO_CALLS`, only the reasoning is compared."""
    return all(_is_read(call_format, reasoning_marks, samples, sample) for sample in samples.with_reasoning)


def _is_read(call_format: CallFormat, reasoning_marks: ReasoningMarks | None, samples: Samples, sample: Sample) -> bool:
    begins_in_words = reasoning_marks is not None and reasoning_marks.start_is_text
    is_open = reasoning_marks is not None and reasoning_marks.is_open(samples.header)
    is_thinking = is_open or (begins_in_words and bool(sample.reasoning))
    form = ChatForm(call_format, reasoning_marks, _USE, is_thinking=is_thinking, on_unparsed_call=_raise_unparsed_call)
    message = ParsedMessage()
    text = sample.text
    for end in call_format.stop_strings:
        text = text.partition(end)[0]
    try:
        reader = form.reader()
        for part in (*reader.read(text), *reader.end()):
            message.add(part)
    except _UnparsedCallError:
        return False
    words = reasoning_marks.start if reasoning_marks is not None and begins_in_words else ""
    if message.thought.removeprefix(words).strip() != sample.reasoning:
        return False
    if call_format is NO_CALLS:
        return True
    calls = [(call.name, _decoded(call.arguments)) for call in message.calls]
    return message.content.strip() == sample.content and calls == list(CALLS[: sample.n_calls])


def _is_within(reasoning_marks: ReasoningMarks | None, samples: Samples, sample: Sample) -> bool:
    """Returns True if the template renders content within reasoning.

    Some templates, such as Nemotron v2's, render the last answer after the beginning of reasoning in the generation prompt.
    """
    before = samples.header + sample.text.partition(sample.content)[0]
    return reasoning_marks is not None and reasoning_marks.is_open(before)


def _decoded(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
