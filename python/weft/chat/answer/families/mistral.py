"""Mistral, Devstral and Magistral."""

from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import json_list, name_first
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import CallWord, Either, Optional, Seq, Space
from weft.chat.answer.source import short_id

__all__ = ["MISTRAL", "MISTRAL_LIST"]

_ID = Optional(Seq("[CALL_ID]", CallWord()), is_written=True)

_QUOTED_ID = r'"\"" [a-zA-Z0-9]{9} "\""'

MISTRAL = Family(
    name="Mistral",
    is_of=lambda template: "[TOOL_CALLS]" in template,
    calls=Seq(
        "[TOOL_CALLS]",
        Space(),
        Either(name_first(_ID, "[ARGS]"), json_list(json_call()), name_first()),
    ),
    triggers=("[TOOL_CALLS]",),
    between="",
    make_id=short_id,
)
"""Also Devstral and Magistral. Models from before 2025 write a list, and are `MISTRAL_LIST`."""

MISTRAL_LIST = Family(
    name="Mistral (lists)",
    is_of=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" not in template,
    calls=Seq(
        "[TOOL_CALLS]",
        Space(),
        Either(json_list(json_call(writes_id_last=_QUOTED_ID)), name_first(_ID, "[ARGS]"), name_first()),
    ),
    triggers=("[TOOL_CALLS]",),
    between="",
    make_id=short_id,
)
