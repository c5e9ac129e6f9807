"""Derives the format of calls and reasoning from the samples of a chat template.

The sample with one call contains the text before, within and after a call. The sample with two calls separates the parts of each
call from the section around all calls. The result is an ordinary `CallFormat`, so parsing and grammars need no special case.
"""

import re

import msgspec

from weft.chat.answer.call_format import CallFormat, ReasoningMarks
from weft.chat.answer.grammar import Calls, End, Grammar, OneCall, Seq, Space
from weft.chat.answer.sample_forms import ID, MAX_MARK, CallForm, UnknownFormatError, form_of, literal
from weft.chat.answer.samples import CALL_IDS, CONTENT, REASONING, Samples, common_prefix, common_suffix

_FIRST_MARK = re.compile(r"\s*(<[^<>\n]+>|\[[^\[\]\n]+\])")
_LAST_MARK = re.compile(r"(<[^<>\n]+>|\[[^\[\]\n]+\])\s*\Z")

_DISTINCT = re.compile(r"[^\w\s{}\[\]()\",:;'.]")
"""Matches a character that a trigger must contain, because JSON and plain words also occur in content."""


class _Frame(msgspec.Struct, frozen=True):
    """The texts around calls."""

    section_start: str
    opening: str
    """The text before each call."""
    closing: str
    between: str
    section_end: str

    @property
    def is_list(self) -> bool:
        """True if the calls are elements of a JSON list."""
        is_bracketed = self.section_start.rstrip().endswith("[") and self.section_end.lstrip().startswith("]")
        return is_bracketed and self.between.strip() in ("", ",") and not self.opening and not self.closing

    @property
    def is_section(self) -> bool:
        """True if all calls are in one section."""
        return bool(self.section_start.strip())


def derive_reasoning_marks(samples: Samples) -> ReasoningMarks | None:
    """Returns the marks around reasoning; None if the template renders no reasoning, or no marks."""
    shown = samples.reasoning or samples.call_after_reasoning
    if shown is None:
        return None
    before, _, behind = shown.text.partition(REASONING)
    start, mark = before.strip(), _FIRST_MARK.match(behind)
    end = "" if mark is None else mark.group(1)
    if not end or max(len(start), len(end)) > MAX_MARK:
        return None
    if start:
        return ReasoningMarks(start, end)
    plain = samples.content or samples.call
    header = _LAST_MARK.search(samples.header)
    if plain is not None and plain.text.lstrip().startswith(end) and header is not None:
        # Each turn begins with reasoning, which is closed if it is empty.
        return ReasoningMarks(header.group(1), end)
    words = samples.opened.strip()
    return ReasoningMarks(words, end, start_is_text=True) if 0 < len(words) <= MAX_MARK else None


def derive_format(samples: Samples, reasoning_marks: ReasoningMarks | None) -> CallFormat | None:
    """Returns the format of the template's calls; None if their form is unknown."""
    if samples.call is None:
        return None
    try:
        return _call_format(samples, reasoning_marks)
    except UnknownFormatError:
        return None


def _call_format(samples: Samples, reasoning_marks: ReasoningMarks | None) -> CallFormat:
    assert samples.call is not None
    one = _without_reasoning(samples.call.text, samples, reasoning_marks)
    two = None if samples.two_calls is None else _without_reasoning(samples.two_calls.text, samples, reasoning_marks)
    form = form_of(one, "" if samples.markup_call is None else samples.markup_call.text)
    frame = _frame(form, one, two)
    calls, trigger = _block(form, frame, samples)
    before, behind = _around_content(samples, reasoning_marks)
    glue = _after_reasoning(samples, reasoning_marks, before)
    # A token that ends turns but does not end generation is generated as text.
    tail = samples.tail.strip()
    begins_calls = bool(tail) and tail in trigger
    ends_turns = bool(tail) and not begins_calls and tail != glue and (reasoning_marks is None or tail != reasoning_marks.end)
    fillers = (glue, before, behind, tail if begins_calls else "")
    if any(len(text) > MAX_MARK for text in (tail, *fillers, *msgspec.structs.astuple(frame))):
        raise UnknownFormatError
    return CallFormat(
        name="Derived",
        calls=calls,
        triggers=(trigger,),
        between="" if frame.is_section else frame.between,
        fillers=tuple(dict.fromkeys(filter(None, fillers))),
        stop_strings=(tail,) if ends_turns else (),
        lead=glue,
        content_start=before,
        content_end=behind,
        ends_reasoning=(trigger,),
    )


def _without_reasoning(text: str, samples: Samples, reasoning_marks: ReasoningMarks | None) -> str:
    """Returns a sample without leading empty reasoning, and with the ids of its calls replaced."""
    for call_id in CALL_IDS:
        text = text.replace(call_id, ID)
    text = text.lstrip()
    if reasoning_marks is None:
        return text
    if text.startswith(reasoning_marks.start) or reasoning_marks.is_open(samples.header):
        return text.partition(reasoning_marks.end)[2]
    return text.removeprefix(reasoning_marks.end)


def _around_content(samples: Samples, reasoning_marks: ReasoningMarks | None) -> tuple[str, str]:
    """Returns the marks around content."""
    if samples.content is None:
        return "", ""
    before, _, behind = _without_reasoning(samples.content.text, samples, reasoning_marks).partition(CONTENT)
    return before.strip(), behind.strip()


def _after_reasoning(samples: Samples, reasoning_marks: ReasoningMarks | None, content_start: str) -> str:
    """Returns the text between reasoning and the mark that begins content."""
    if samples.reasoning is None or reasoning_marks is None:
        return ""
    between = samples.reasoning.text.partition(REASONING)[2].partition(CONTENT)[0]
    return between.partition(reasoning_marks.end)[2].strip().removesuffix(content_start).strip()


def _frame(form: CallForm, one: str, two: str | None) -> _Frame:
    """Returns the texts around calls, given samples of one and of two calls."""
    span = form.locate(one, 0, 0)
    before, behind = one[: span.start], one[span.end :]
    if two is None:
        frame = _Frame(before, "", "", "", behind.rstrip())
        return frame if frame.is_list else _Frame("", before, behind.rstrip(), "", "")
    left = form.locate(two, 0, 0)
    right = form.locate(two, 1, left.end)
    middle = two[left.end : right.start]
    opening = before[len(before) - common_suffix(before, middle) :].lstrip()
    middle = middle.removesuffix(opening)
    closing = behind[: common_prefix(behind, middle)].rstrip()
    frame = _Frame(
        section_start=before.removesuffix(opening),
        opening=opening,
        closing=closing,
        between=middle.removeprefix(closing),
        section_end=behind.removeprefix(closing).rstrip(),
    )
    if two[: left.start] != before or (frame.between.strip() and not frame.is_list):
        raise UnknownFormatError
    return frame


def _block(form: CallForm, frame: _Frame, samples: Samples) -> tuple[Grammar, str]:
    """Returns the grammar of a block of calls, and its trigger."""
    section_start, section_end = frame.section_start, frame.section_end
    call: Grammar = OneCall(Seq(*literal(frame.opening), form.build(frame.closing)))
    if frame.is_list:
        section_start, section_end = section_start.rstrip()[:-1], section_end.lstrip()[1:]
        call = Seq("[", Space(), Calls(call, Seq(Space(), ",", Space(" "))), End("]"))
    elif frame.is_section:
        call = Calls(call, Space(frame.between))
    beginning = (section_start if frame.is_section else frame.opening).partition(ID)[0].strip()
    line = beginning.partition("\n")[0]
    trigger = beginning if line in f"{samples.header}{samples.tail}" else line
    if _DISTINCT.search(trigger) is None:
        raise UnknownFormatError
    return Seq(*literal(section_start.lstrip()), call, *([End(section_end)] if section_end.strip() else [])), trigger
