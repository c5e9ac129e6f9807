"""Moves or removes lines of the system message that change between requests, because they invalidate the cached prefix."""

import logging
import re
from collections.abc import Sequence

import msgspec

from weft.chat.conversation import ChatMessage, ContentPart
from weft.settings.volatile import MAX_LINE, LineRule

logger = logging.getLogger(__name__)

MAX_LINES = 10_000
"""Maximum lines of a message to check. The remaining lines are left unchanged."""


class VolatileLines:
    """Applies rules for volatile lines to the system message."""

    def __init__(self, rules: Sequence[LineRule]) -> None:
        self._rules = [(rule, re.compile(rule.pattern)) for rule in rules]
        self._logged: set[LineRule] = set()
        """Rules whose first match was logged."""

    def rearrange(self, messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], int]:
        """Returns the messages, and how many lines of the system message were moved or removed.

        Matching lines of the first message, if it is a system message, move to its end in their order, or are removed.
        """
        if not self._rules or not messages or messages[0].role not in ("system", "developer"):
            return list(messages), 0
        system, *rest = messages
        content, n_lines = self._content(system.content)
        return [msgspec.structs.replace(system, content=content) if n_lines else system, *rest], n_lines

    def without_volatile_lines(self, message: ChatMessage) -> ChatMessage:
        """Returns the system message without its volatile lines."""
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
            # Drop parts that are empty now.
            if not n_lines:
                parts.append(part)
            elif kept:
                parts.append(msgspec.structs.replace(part, text=kept))
        if all_moved or not parts:
            parts.append(ContentPart("text", "\n".join(all_moved)))
        return parts, n_all

    def _text(self, text: str) -> tuple[str, list[str], int]:
        """Returns the remaining text, the lines to move, and how many lines match."""
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
        """Returns True if the matching rule drops the line, False if it moves it; None if no rule matches."""
        if len(line) > MAX_LINE:
            return None
        rule = next((rule for rule, pattern in self._rules if pattern.fullmatch(line)), None)
        if rule is None:
            return None
        if rule not in self._logged:
            self._logged.add(rule)
            action = "removed from it" if rule.drops else "moved to its end"
            logger.info("lines of the system message that match %s are %s (--volatile-prompt-lines)", rule.pattern, action)
        return rule.drops
