"""Nemotron: a list of calls between tags."""

from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import listed
from weft.chat.answer.family import Family

__all__ = ["NEMOTRON"]

NEMOTRON = Family(
    name="Nemotron",
    is_of=lambda template: "<TOOLCALL>" in template,
    calls=listed("<TOOLCALL>", "</TOOLCALL>", json_call()),
    triggers=("<TOOLCALL>",),
)
