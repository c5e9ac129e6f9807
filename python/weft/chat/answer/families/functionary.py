"""Functionary."""

from weft.chat.answer.arguments import Arguments, BufferedArguments
from weft.chat.answer.families.shapes import name_first
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Either, End, Lookahead, OneCall, Optional, Seq, Space, Text, ToolName

__all__ = ["FUNCTIONARY_3_1", "FUNCTIONARY_3_2"]

FUNCTIONARY_3_1 = Family(
    name="Functionary 3.1",
    is_of=lambda template: "<function=" in template and "</function>" in template,
    calls=Seq("<function=", name_first(">"), End("</function>")),
    triggers=("<function=",),
    between="",
)
"""Also Llama 3 with custom tools."""

_RECIPIENT = Seq(ToolName(), Text("\n"), Either(Seq(Space(), Arguments()), Seq(BufferedArguments(), Lookahead(">>>"))))

FUNCTIONARY_3_2 = Family(
    name="Functionary 3.2",
    is_of=lambda template: ">>>all" in template or ">>>${recipient}" in template,
    calls=Seq(Optional(Text(">>>")), Either(OneCall(_RECIPIENT), Text("all\n"))),
    triggers=(">>>",),
    openings=("",),
    patterns=(r"(?:BEGIN|>>>)(NAMES\n)",),
    between=">>>",
    content_start="all\n",
)
