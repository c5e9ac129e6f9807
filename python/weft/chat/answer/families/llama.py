"""Llama 3 and 4: JSON objects without preceding content, or a Python list of calls."""

from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import python_list
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Calls, Either, OneCall, Seq, Space

__all__ = ["LLAMA", "LLAMA_PYTHONIC"]

_OBJECT = OneCall(json_call(arguments="parameters", begins_with_name=True))

LLAMA = Family(
    name="Llama 3",
    is_of=lambda template: "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template),
    calls=Either(
        Calls(_OBJECT, Seq(Space(), ";", Space(" "))),
        Seq("<|python_tag|>", Space(), Calls(_OBJECT, Seq(Space(), ";", Space()))),
        n_written=2,
    ),
    triggers=("<|python_tag|>",),
    openings=("{",),
    patterns=(r"(<\|python_tag\|>)", r'BEGIN(\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"NAMES")'),
    between="",
)

LLAMA_PYTHONIC = Family(
    name="Llama (Python)",
    is_of=lambda template: "[func_name1(" in template or "[get_weather(" in template,
    calls=python_list(),
    openings=("[",),
    patterns=(r"BEGIN(\[\s*NAMES\()",),
)
"""Llama 3.2 and 4."""
