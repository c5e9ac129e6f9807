"""Description of a tool-call format. `formats` is the table of the known ones."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from weft.chat.answer.grammar import Grammar, Seq, Text
from weft.chat.answer.source import CallId, call_id


class ReasoningMarks(msgspec.Struct, frozen=True):
    """Marks around reasoning."""

    start: str
    end: str
    start_is_text: bool = False
    """True if `start` is not a mark but the first words of the reasoning, which the prompt contains."""

    def is_open(self, prompt: str) -> bool:
        """Returns True if a prompt ends with the beginning of reasoning."""
        return prompt.rstrip().endswith(self.start)


class CallFormat(msgspec.Struct, frozen=True):
    """Format of an assistant's turn: its tool calls, and the marks around content and reasoning.

    `ChatReader` parses answers with it, and `ChatForm` writes the grammar that constrains a model to it.
    """

    name: str
    calls: Grammar
    """Grammar of a block of calls; `layouts` has the usual ones, `grammar` and `arguments` their parts."""
    template_marks: tuple[str | tuple[str, ...], ...] = ()
    """Texts that identify the format in the source of a template: any of these alternatives, of a tuple all of its texts. By
    default, `triggers`."""
    foreign_mark: str | None = None
    """Text that no template of the format contains, although `template_marks` match."""
    triggers: tuple[str, ...] = ()
    """Texts that begin a block anywhere in an answer. `{tool}` is replaced with the name of each tool. By default, the text with
    which `calls` begins, unless there are `openings`."""
    openings: tuple[str, ...] = ()
    """Texts that begin a block only before any content."""
    patterns: tuple[str, ...] = ()
    """Regular expressions, in Rust syntax, for the start of a block, which is the first group. `BEGIN` matches the beginning of
    the content, `NAMES` the name of a tool. Without patterns, each of `triggers` begins a block."""
    between: str = "\n"
    """Text between two blocks."""
    stop_strings: tuple[str, ...] = ()
    """Stop strings of answers that may call tools: the text after them belongs to another turn."""
    make_id: CallId = call_id
    """Creates the ids of calls that have none in the answer."""
    notes: Grammar | None = None
    """Grammar that is parsed if one of `note_marks` or `openings` does not begin a call, even if no tools may be called."""
    note_marks: tuple[str, ...] = ()
    """Texts that begin `notes`."""
    fillers: tuple[str, ...] = ()
    """Marks of the format, which are dropped from the content."""
    lead: str = ""
    """Optional text between reasoning and a block."""
    content_start: str = ""
    """Mark before content."""
    content_end: str = ""
    """Mark after content."""
    ends_reasoning: tuple[str, ...] = ()
    """Marks of calls or of the format that end unclosed reasoning."""
    reasoning_marks: ReasoningMarks | None = None
    """Marks around reasoning, for templates that do not contain them as one text."""
    write_calls: Callable[[Sequence[Mapping[str, Any]]], str] | None = None
    """Writes calls with `name` and `arguments` as text, for templates that do not render them; None uses the generic format."""
    takes_tools: bool = True
    """True if the format's templates render tools. Otherwise tools are described in words."""

    def __post_init__(self) -> None:
        if isinstance(self.calls, Seq) and not (self.triggers or self.openings):
            force_setattr(self, "triggers", tuple(part.text for part in self.calls.parts[:1] if isinstance(part, Text)))
        if not self.template_marks:
            force_setattr(self, "template_marks", self.triggers)

    def is_in(self, template: str) -> bool:
        """Returns True if the source of a template has the marks of this format."""
        return (self.foreign_mark is None or self.foreign_mark not in template) and any(
            all(mark in template for mark in ((marks,) if isinstance(marks, str) else marks)) for marks in self.template_marks
        )


NO_CALLS = CallFormat("None", Seq())
"""Format of answers without calls, and without marks around content."""


def json_call_text(function: Mapping[str, Any]) -> str:
    """Returns a call as a JSON object."""
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": {text}}}'


def json_list_text(functions: Sequence[Mapping[str, Any]]) -> str:
    """Returns calls as a JSON list."""
    return f"[{', '.join(map(json_call_text, functions))}]"


def python_list_text(functions: Sequence[Mapping[str, Any]]) -> str:
    """Returns calls as a list of Python calls with keyword arguments."""
    return f"[{', '.join(map(_python_call, functions))}]"


def _python_call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    values = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    keywords = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{function['name']}({', '.join(keywords)})"
