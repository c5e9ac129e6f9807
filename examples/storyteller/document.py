"""Documents of the corpus: stories and chats, one JSON object per line."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class StoryDocument:
    """A story, one or two paragraphs of text."""

    text: str

    def to_json(self) -> str:
        """The document as one line."""
        return json.dumps({"kind": "story", "text": self.text})

    def plain(self) -> str:
        """Its text without any marks, for the tokenizer to learn from."""
        return self.text


@dataclass(frozen=True)
class ChatDocument:
    """A chat, as (role, text) with the roles system, user and assistant."""

    turns: list[tuple[str, str]]

    def to_json(self) -> str:
        """The document as one line."""
        return json.dumps({"kind": "chat", "turns": self.turns})

    def plain(self) -> str:
        """Its text without any marks, for the tokenizer to learn from."""
        return "\n".join(text for _, text in self.turns)


Document = StoryDocument | ChatDocument


def from_json(line: str) -> Document:
    """Reads what `to_json` wrote."""
    fields = json.loads(line)
    if fields["kind"] == "story":
        return StoryDocument(fields["text"])
    return ChatDocument([(role, text) for role, text in fields["turns"]])
