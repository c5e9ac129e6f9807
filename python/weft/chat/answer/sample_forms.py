"""The forms in which chat templates write a call: how to locate it in a sample, and the grammar that reads it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from weft.chat.answer.arguments import Arguments, Keywords, Parameters, with_closing_mark
from weft.chat.answer.grammar import End, Grammar, Seq, Space, Text, ToolName, Word
from weft.chat.answer.layouts import json_call
from weft.chat.answer.samples import CALLS, MARKUP, common_prefix, common_suffix
from weft.chat.answer.source import Source

MAX_MARK = 128
"""Maximum characters of a derived mark."""

MAX_ID = 64
"""Maximum characters of a call's id."""

ID = "\ufffc"
"""Replaces the id of a call in a sample."""


class UnknownFormatError(Exception):
    """A sample has an unknown form."""


class CallSpan(msgspec.Struct, frozen=True):
    """The part of a sample that depends on one call: from its name or its object to the end of its arguments."""

    start: int
    end: int


class CallForm(msgspec.Struct, frozen=True):
    """A form of calls."""

    locate: Callable[[str, int, int], CallSpan]
    """Returns the position of the call with an index in a sample, starting at a position."""
    build: Callable[[str], Grammar]
    """Returns the grammar of a call, given the text that closes it."""


def literal(text: str) -> Iterator[Grammar]:
    """Yields the parts of a grammar for a text, in which line breaks are optional and an id may be any."""
    for part in re.split(rf"(\s*\n\s*|\s+\Z|{ID})", text):
        if part == ID:
            yield Word(r"[\w-]", f"[a-zA-Z0-9_-]{{1,{MAX_ID}}}", Source.give_id)
        elif part.isspace():
            yield Space(part)
        elif part:
            yield Text(part)


def form_of(sample: str, markup: str = "") -> CallForm:
    """Returns the form of the first call of a sample; `markup` is a sample with a value that could be markup.

    Raises:
        UnknownFormatError: The form is unknown.
    """
    for make in (_object_form, _key_form, _name_form, _keyword_form, partial(_element_form, markup=markup)):
        try:
            return make(sample)
        except UnknownFormatError:
            continue
    raise UnknownFormatError


def _object_form(sample: str) -> CallForm:
    """`{"name": "f", "arguments": {…}}`, with these or other keys."""

    def keys(value: Mapping[str, Any], nth: int) -> tuple[str | None, str | None]:
        name, arguments = CALLS[nth]
        return _key_of(value, name), _key_of(value, arguments)

    def locate(text: str, nth: int, start: int) -> CallSpan:
        return _object(text, start, lambda value: None not in keys(value, nth))[0]

    first = _object(sample, 0, lambda value: None not in keys(value, 0))[1]
    name_key, arguments_key = (str(key) for key in keys(first, 0))
    call = json_call(name_key, arguments_key, id_name=_key_of(first, ID) or "id")
    return CallForm(locate, lambda closing: _closed(call, closing))


def _key_form(sample: str) -> CallForm:
    """`{"f": {…}}`."""

    def locate(text: str, nth: int, start: int) -> CallSpan:
        name, arguments = CALLS[nth]
        return _object(text, start, lambda value: value == {name: arguments})[0]

    locate(sample, 0, 0)
    call = Seq("{", Space(), '"', ToolName(), '"', Space(), ":", Space(" "), Arguments(), End("}"))
    return CallForm(locate, lambda closing: _closed(call, closing))


def _name_form(sample: str) -> CallForm:
    """A name, a separator, and the arguments as an object."""

    def find(text: str, nth: int, start: int) -> tuple[CallSpan, str]:
        name, arguments = CALLS[nth]
        name_at = _find(text, name, start)
        span, _ = _object(text, name_at, lambda value: value == arguments)
        between = text[name_at + len(name) : span.start]
        if len(between) > MAX_MARK or name in between:
            raise UnknownFormatError
        return CallSpan(name_at, span.end), between

    _, between = find(sample, 0, 0)
    call = Seq(ToolName(), *literal(between), Space(), Arguments())
    return CallForm(lambda text, nth, start: find(text, nth, start)[0], lambda closing: _closed(call, closing))


def _keyword_form(sample: str) -> CallForm:
    """`f(key='value')`, as in Python."""

    def locate(text: str, nth: int, start: int) -> CallSpan:
        name, arguments = CALLS[nth]
        name_at = _find(text, f"{name}(", start)
        values = [_find(text, f"{key}=", name_at) + len(f"{key}=") for key in arguments]
        return CallSpan(name_at, _find(text, ")", max(values)) + 1)

    locate(sample, 0, 0)
    call = Seq(ToolName(), "(", with_closing_mark(Keywords(), ")"))
    return CallForm(locate, lambda closing: _closed(call, closing))


def _element_form(sample: str, *, markup: str) -> CallForm:
    """A name, and an element for each argument: its name, a separator, its value, and a closing text."""
    name, arguments = CALLS[0]
    name_end = _find(sample, name, 0) + len(name)
    elements = _elements(sample, name_end, arguments)
    before, between = sample[name_end : elements[0].key_at], sample[elements[0].end : elements[1].key_at]
    opening = before[len(before) - common_suffix(before, between) :].lstrip()
    between = between.removesuffix(opening)
    closing = between[: common_prefix(between, sample[elements[-1].end :])].rstrip()
    between = between.removeprefix(closing)
    middles = {element.key: sample[element.key_at + len(element.key) : element.value_at] for element in elements}
    text_middle, middle, *others = (middles[key] for key in arguments)
    parts = (opening, closing.strip(), text_middle, middle)
    is_regular = not between.strip() and all(0 < len(part) <= MAX_MARK for part in parts) and set(others) == {middle}
    if not is_regular or name in before:
        raise UnknownFormatError
    padding = "\n" if closing.startswith("\n") and text_middle.endswith("\n") and middle.endswith("\n") else ""
    before_markup, _, behind_markup = markup.partition(MARKUP)
    quote = before_markup[before_markup.rfind(text_middle) + len(text_middle) :] if text_middle in before_markup else ""
    quotes = None
    if quote and len(quote) <= MAX_MARK and (end := behind_markup.find(closing)) > 0:
        quotes = quote, behind_markup[:end]
    parameters = Parameters(
        opening,
        middle.removesuffix(padding),
        closing.removeprefix(padding),
        padding=padding,
        between=between,
        text_middle=text_middle.removesuffix(padding),
        is_python=any(sample[element.value_at : element.end] == "True" for element in elements),
        quotes=quotes,
    )

    def locate(text: str, nth: int, start: int) -> CallSpan:
        name, arguments = CALLS[nth]
        name_at = _find(text, name, start)
        end = _elements(text, name_at + len(name), arguments)[-1].end
        if not text.startswith(closing, end):
            raise UnknownFormatError
        end += len(closing)
        return CallSpan(name_at, end + len(between) if text.startswith(between, end) else end)

    def build(call_closing: str) -> Grammar:
        if not call_closing.strip():
            raise UnknownFormatError
        return Seq(ToolName(), *literal(before.removesuffix(opening)), with_closing_mark(parameters, call_closing))

    return CallForm(locate, build)


class _Element(msgspec.Struct, frozen=True):
    """Position of an argument in a sample."""

    key: str
    key_at: int
    value_at: int
    end: int
    """End of the value."""


def _elements(text: str, start: int, arguments: Mapping[str, Any]) -> list[_Element]:
    """Returns the arguments of a call in the order of the text."""
    elements: list[_Element] = []
    for key, value in sorted(arguments.items(), key=lambda each: _find(text, each[0], start)):
        key_at = _find(text, key, elements[-1].end if elements else start)
        written = str(value).lower() if isinstance(value, bool) and str(value) not in text else str(value)
        value_at = _find(text, written, key_at + len(key))
        elements.append(_Element(key, key_at, value_at, value_at + len(written)))
    return elements


def _closed(call: Grammar, closing: str) -> Grammar:
    return Seq(call, End(closing)) if closing.strip() else call


def _find(text: str, part: str, start: int) -> int:
    at = text.find(part, start)
    if at < 0:
        raise UnknownFormatError
    return at


def _key_of(value: Mapping[str, Any], wanted: object) -> str | None:
    return next((key for key, found in value.items() if found == wanted), None)


def _object(text: str, start: int, is_wanted: Callable[[Mapping[str, Any]], bool]) -> tuple[CallSpan, Mapping[str, Any]]:
    """Returns the first JSON object that satisfies a predicate, and its position."""
    at = text.find("{", start)
    while at >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            value, end = None, at
        if isinstance(value, dict) and is_wanted(value):
            return CallSpan(at, end), value
        at = text.find("{", at + 1)
    raise UnknownFormatError
