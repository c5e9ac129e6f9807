"""Answers whose parts a test writes down: for what a tiny model never says."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from tests.server.matchers import Json
from weft.chat.answer.parts import Part
from weft.chat.pipeline import ChatPipeline


class SaidForm:
    """Reads each text of a script as the parts that stand for it, and at the end those of `None`."""

    is_cut = False

    def __init__(self, parts: Mapping[str | None, Sequence[Part]]) -> None:
        self._parts = parts

    def reader(self) -> "SaidForm":
        return self

    def read(self, text: str) -> list[Part]:
        return list(self._parts[text])

    def end(self, *, is_truncated: bool = False) -> list[Part]:
        return list(self._parts.get(None, ()))


def answers_are_read(monkeypatch: pytest.MonkeyPatch, parts: Mapping[str | None, Sequence[Part]]) -> None:
    """Lets every chat's answer be read so."""
    prompt = ChatPipeline.prompt

    def with_form(*args: Json, **more: Json) -> Json:
        return msgspec.structs.replace(prompt(*args, **more), answer=SaidForm(parts))

    monkeypatch.setattr(ChatPipeline, "prompt", with_form)
