"""FireFunction: a list of calls after a keyword."""

from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import listed
from weft.chat.answer.family import Family

__all__ = ["FIREFUNCTION"]

FIREFUNCTION = Family(
    name="FireFunction",
    is_of=lambda template: "functools[" in template,
    calls=listed("functools", "", json_call()),
    triggers=("functools[",),
)
