"""Lines of the system's message that change from one request to the next: what follows such a line is computed each time anew."""

import logging
import re
from collections.abc import Sequence

import msgspec

from weft.chat.conversation import ChatMessage, ContentPart
from weft.settings.volatile import MAX_LINE, LineRule

__all__ = ["VolatileLines"]

logger = logging.getLogger(__name__)

MAX_LINES = 10_000
"""Lines of one message that are looked at; what follows them stays as it is."""


class VolatileLines:
    """Rules for lines of the system's message."""

    def __init__(self, rules: Sequence[LineRule]) -> None:
        self._rules = [(rule, re.compile(rule.pattern)) for rule in rules]
        self._told: set[LineRule] = set()
        """Rules of which the log has heard that they match something."""

    def rearranged(self, messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], int]:
        """The messages, and how many lines of their beginning were moved or left out.

        Lines of the first message that a rule matches, where that is the system's, stand at its end, in their order.
        """
        if not self._rules or not messages or messages[0].role not in ("system", "developer"):
            return list(messages), 0
        told, *said = messages
        content, n_lines = self._content(told.content)
        return [msgspec.structs.replace(told, content=content) if n_lines else told, *said], n_lines

    def lasting(self, message: ChatMessage) -> ChatMessage:
        """The system's message without any of the lines that a rule matches."""
        if not self._rules:
            return message
        content, n_lines = self._content(message.content, moves=False)
        return msgspec.structs.replace(message, content=content) if n_lines else message

    def _content(
        self, content: str | list[ContentPart] | msgspec.UnsetType | None, *, moves: bool = True
    ) -> tuple[str | list[ContentPart] | msgspec.UnsetType | None, int]:
        if isinstance(content, str):
            kept, moved, n_lines = self._text(content)
            return "\n".join([*([kept] if kept else []), *(moved if moves else [])]), n_lines
        if not isinstance(content, list):
            return content, 0
        parts, all_moved, n_all = [], [], 0
        for part in content:
            kept, moved, n_lines = self._text(part.text) if part.type == "text" and part.text else ("", [], 0)
            all_moved += moved if moves else []
            n_all += n_lines
            # A part of which nothing is left is none.
            if not n_lines:
                parts.append(part)
            elif kept:
                parts.append(msgspec.structs.replace(part, text=kept))
        if all_moved or not parts:
            parts.append(ContentPart("text", "\n".join(all_moved)))
        return parts, n_all

    def _text(self, text: str) -> tuple[str, list[str], int]:
        """What stays of a text, the lines that move, and how many lines a rule matches."""
        lines = text.split("\n", MAX_LINES)
        kept, moved, n_lines = [], [], 0
        for nth, line in enumerate(lines):
            drops = None if nth == MAX_LINES else self._matches(line)
            if drops is None:
                kept.append(line)
                continue
            n_lines += 1
            if not drops:
                moved.append(line)
        return "\n".join(kept), moved, n_lines

    def _matches(self, line: str) -> bool | None:
        """Whether a rule leaves this line out; None where no rule matches it."""
        if len(line) > MAX_LINE:
            return None
        rule = next((rule for rule, pattern in self._rules if pattern.fullmatch(line)), None)
        if rule is None:
            return None
        if rule not in self._told:
            self._told.add(rule)
            place = "are left out" if rule.drops else "stand at its end"
            logger.info("lines of the system's message that match %s %s, as --volatile-prompt-lines says", rule.pattern, place)
        return rule.drops
