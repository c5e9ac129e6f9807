"""What those know of chat templates who compile none: compiling takes all of Jinja, which is loaded once a server runs."""

from typing import Any

__all__ = ["MAX_SIZE", "Message", "TemplateError", "TooLongError"]

MAX_SIZE = 32 * 1024 * 1024
"""Longest text or list that a template may make: some times what fits in the largest context there is."""

Message = dict[str, Any]
"""A message as a template sees it."""


class TemplateError(Exception):
    """A template cannot be compiled, or refuses what it is given. The message names the line."""


class TooLongError(Exception):
    """A rendering was longer than it was allowed to be. It ends there."""

    def __init__(self, size: int) -> None:
        self.size = size
        """Characters of the text when it was ended."""
        super().__init__(f"the text has {size} characters and more")
