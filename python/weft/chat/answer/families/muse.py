"""Muse Glimmer: every message has a recipient, and a call is a message to a tool."""

from weft.chat.answer.arguments import Parameters, with_closing_mark
from weft.chat.answer.family import Family, ReasoningMarks
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import MAX_KEY, End, OneCall, Seq, Space, ToolName, current_tool
from weft.chat.answer.source import Reading, Source

__all__ = ["MUSE"]

_MESSAGE, _START = "<|message|>", "<|start|>assistant"


class _Recipient:
    """Recipient of a message. The call in the message repeats the name of the tool."""

    def read(self, source: Source) -> Reading:
        """Parses up to the mark that begins the message."""
        while (end := source.text.find(_MESSAGE, source.at)) < 0:
            if source.is_ended or len(source.text) - source.at > MAX_KEY:
                return False
            yield
        source.at = end
        return True

    def write(self, rules: Rules) -> str:
        """Returns the name of the tool."""
        return rules.literal(current_tool(rules).name)


MUSE = Family(
    name="Muse",
    is_of=lambda template: "<atem:function_calls>" in template and "<|eom|>" in template,
    calls=OneCall(
        Seq(
            " to=",
            _Recipient(),
            _MESSAGE,
            Space(),
            "<atem:function_calls>",
            Space("\n"),
            '<atem:invoke name="',
            ToolName(),
            '">',
            Space("\n"),
            with_closing_mark(Parameters('<atem:parameter name="', '">', "</atem:parameter>"), "</atem:invoke>"),
            End("\n</atem:function_calls>"),
        )
    ),
    # Only a message to a tool contains a call. A message to the user may quote one.
    triggers=(" to={tool}" + _MESSAGE,),
    patterns=(r"( to=NAMES<\|message\|>)",),
    between=f"<|eom|>{_START}",
    fillers=(_START, f" to=user{_MESSAGE}", "<|eom|>", "<|eot|>", _MESSAGE),
    lead=_START,
    content_start=f"to=user{_MESSAGE}",
    reasoning_marks=ReasoningMarks(f" to=self{_MESSAGE}", "<|eom|>"),
)
