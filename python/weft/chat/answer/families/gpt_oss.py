"""gpt-oss: every message has a channel, and a call is a message to a tool."""

from weft.chat.answer.arguments import Arguments
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Either, End, Grammar, OneCall, Optional, Row, Space, Text, ToolName

__all__ = ["GPT_OSS"]

_CHANNEL = Either(Text("commentary"), Text("analysis"), n_written=2)
_KIND = Either(Row(" ", "<|constrain|>", "json"), Row(Space(), Optional(Text("<|constrain|>")), "json"), Space())


def _call(*header: Grammar | str) -> Grammar:
    return OneCall(Row(*header, _KIND, "<|message|>", Arguments(), Optional(End("<|call|>"))))


GPT_OSS = Family(
    name="gpt-oss",
    is_of=lambda template: "<|channel|>" in template,
    calls=Either(
        _call("<|channel|>", _CHANNEL, " to=functions.", ToolName()),
        _call(Optional(Text("<|start|>assistant "), is_written=True), "to=functions.", ToolName(), "<|channel|>", _CHANNEL),
        n_written=2,
    ),
    triggers=("<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.", "<|start|>assistant to=functions."),
    openings=("to=functions.",),
    patterns=(
        r"(<\|channel\|>(?:commentary|analysis) to=functions\.)",
        r"(<\|start\|>assistant to=functions\.)",
        r"BEGIN(to=functions\.)",
    ),
    fillers=(
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    ),
    between="<|start|>assistant",
    lead="<|start|>assistant",
    before="<|channel|>final<|message|>",
)
