"""Types shared by the users of chat templates. Kept apart from the templates, which import all of Jinja."""

from typing import Any

MAX_SIZE = 32 * 1024 * 1024
"""Maximum characters or elements of a text or list in a template: several times the largest context."""

Message = dict[str, Any]
"""A message in the format of templates."""


class TemplateError(Exception):
    """A template cannot be compiled, or rejects its input. The message contains the line, if known."""


class TooLongError(Exception):
    """A rendered text exceeded its size limit. Rendering was stopped."""

    def __init__(self, size: int) -> None:
        self.size = size
        """Characters of the text when rendering stopped."""
        super().__init__(f"the text has {size} characters and more")
