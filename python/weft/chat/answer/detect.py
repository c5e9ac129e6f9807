"""Detects the format of answers: a known format that parses the chat template's samples, or one derived from them."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from weft.chat.answer.call_format import NO_CALLS, CallFormat, ReasoningMarks
from weft.chat.answer.derive import derive_format, derive_reasoning_marks
from weft.chat.answer.form import ChatForm, reasoning_marks_of
from weft.chat.answer.formats import FORMATS, GENERIC, format_of
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.samples import CALLS, TOOLS, Sample, Samples, render_samples
from weft.chat.answer.tools import ToolUse

if TYPE_CHECKING:
    from weft.chat.template import ChatTemplate

_USE = ToolUse(TOOLS)

N_PROOFS = 2
"""Number of proofs in addition to calls: content and reasoning."""

logger = logging.getLogger(__name__)


class AnswerFormat(msgspec.Struct, frozen=True):
    """The format of answers, and how the prompt introduces tools."""

    call_format: CallFormat
    """Its `takes_tools` is true only if the template renders tools and the format parses its calls."""
    reasoning_marks: ReasoningMarks | None
    example: str | None = None
    """A call in the template's format, for descriptions of tools in words."""


def detect_format(
    template: "ChatTemplate", end_marks: Sequence[str] = (), variables: Mapping[str, object] | None = None
) -> AnswerFormat:
    """Detects the format of a template. It renders up to ten short chats, which takes about 10 ms.

    The format whose marks occur in the template is tried first, then the other formats, then a derived one. A format is rejected
    if its reader does not return the calls of the samples. Among the remaining ones, the first is preferred that also parses
    content and reasoning.

    Args:
        template: The compiled template.
        end_marks: Spellings of the tokens that end generation.
        variables: Additional variables of the template.
    """
    named = format_of(template.source)
    try:
        samples = render_samples(template, end_marks, variables)
        if samples is not None:
            return _format(template, named, samples)
    except Exception:
        # A bug in the derivation must not disable chats.
        logger.exception("the format of calls could not be derived from the chat template")
    call_format = named if named is not None and template.takes_tools else GENERIC
    return AnswerFormat(call_format, _marks_in(template.source, named))


def _format(template: "ChatTemplate", named: CallFormat | None, samples: Samples) -> AnswerFormat:
    reasoning_marks = _reasoning_marks(named, template.source, samples)
    if samples.call is None:
        marked = [call_format for call_format in FORMATS if call_format.is_in(template.source)]
        call_format = max(marked, key=lambda call_format: _n_proofs(call_format, reasoning_marks, samples), default=GENERIC)
    else:
        proved = _proved(named, reasoning_marks, samples)
        if proved is None and template.takes_tools:
            logger.warning(
                "the format of calls in the chat template is unknown; tools are described in words, in the generic format"
            )
        call_format = proved or GENERIC
    if call_format is GENERIC or template.takes_tools:
        return AnswerFormat(call_format, reasoning_marks)
    return AnswerFormat(msgspec.structs.replace(call_format, takes_tools=False), reasoning_marks, _example(call_format, samples))


def _example(call_format: CallFormat, samples: Samples) -> str | None:
    """Returns a call in the template's format, without preceding reasoning."""
    if samples.call is None:
        return None
    text = samples.call.text
    starts = [at for trigger in call_format.triggers if (at := text.find(trigger)) >= 0]
    arguments = json.dumps(CALLS[0][1])
    return text[min(starts, default=0) :].strip().replace(CALLS[0][0], "NAME").replace(arguments, '{"ARGUMENT": "VALUE"}')


def _marks_in(source: str, named: CallFormat | None) -> ReasoningMarks | None:
    return (named and named.reasoning_marks) or reasoning_marks_of(source)


def _reasoning_marks(named: CallFormat | None, source: str, samples: Samples) -> ReasoningMarks | None:
    """Returns the marks around reasoning: those in the template if they parse the samples, else others that do."""
    by_marks = _marks_in(source, named)
    if not samples.with_reasoning:
        return by_marks
    known = (by_marks, *(call_format.reasoning_marks for call_format in FORMATS), derive_reasoning_marks(samples))
    return next((marks for marks in known if marks is not None and reads_reasoning(NO_CALLS, marks, samples)), None)


def _proved(named: CallFormat | None, reasoning_marks: ReasoningMarks | None, samples: Samples) -> CallFormat | None:
    """Returns the format that parses most of the samples, and at least their calls.

    A derived format must parse all samples. It is then preferred to a known format that does not.
    """
    known, n_most = None, -1
    for call_format in _candidates(named, samples):
        n_proofs = _n_proofs(call_format, reasoning_marks, samples)
        if n_proofs == N_PROOFS:
            return call_format
        if n_proofs > n_most:
            known, n_most = call_format, n_proofs
    derived = derive_format(samples, reasoning_marks)
    is_derived = derived is not None and _n_proofs(derived, reasoning_marks, samples) == N_PROOFS
    return derived if is_derived else known


def _n_proofs(call_format: CallFormat, reasoning_marks: ReasoningMarks | None, samples: Samples) -> int:
    """Returns how many proofs a format passes in addition to calls, up to `N_PROOFS`; -1 if it does not parse the calls."""
    if samples.calls and not reads_calls(call_format, reasoning_marks, samples):
        return -1
    return reads_content(call_format, reasoning_marks, samples) + (
        reasoning_marks is None or reads_reasoning(call_format, reasoning_marks, samples)
    )


def _candidates(named: CallFormat | None, samples: Samples) -> Iterator[CallFormat]:
    """Yields the formats that may fit the samples, likely ones first."""
    assert samples.call is not None
    text = samples.call.text
    if named is not None:
        yield named
    for call_format in FORMATS:
        begins = any(trigger in text for trigger in call_format.triggers) or text.lstrip().startswith(
            call_format.openings or ("\0",)
        )
        if call_format is not named and begins:
            yield call_format


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
    unparsed: list[None] = []
    form = ChatForm(call_format, reasoning_marks, _USE, is_thinking=is_thinking, on_unparsed_call=lambda: unparsed.append(None))
    message = ParsedMessage()
    text = sample.text
    for end in call_format.stop_strings:
        text = text.partition(end)[0]
    reader = form.reader()
    for part in (*reader.read(text), *reader.end()):
        message.add(part)
    words = reasoning_marks.start if reasoning_marks is not None and begins_in_words else ""
    if unparsed or message.reasoning.removeprefix(words).strip() != sample.reasoning:
        return False
    calls = [(call.name, _decoded(call.arguments)) for call in message.calls]
    is_alike = message.content.strip() == sample.content and calls == list(CALLS[: sample.n_calls])
    return call_format is NO_CALLS or is_alike


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
