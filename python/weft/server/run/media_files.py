"""Pictures and sounds as a body has them, before they are read."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from weft import Media

__all__ = ["MAX_FILES", "MEDIA_MARKER", "MediaFile", "MediaPrompt", "UnreadableError"]


MEDIA_MARKER = "<__media__>"
"""What stands for a picture or a sound in a text, as llama.cpp spells it."""

MAX_FILES = 32
"""Pictures and sounds of one request."""


class MediaFile(msgspec.Struct, frozen=True, kw_only=True):
    """A picture or a sound in a body, or one that it names."""

    source: str
    """Base64, a `data:` URI, or an address."""
    param: str
    """The field that it is in."""
    place: str
    """Where it is in the body, as messages of errors tell it."""
    kind: Literal["image", "audio"] | None = None
    """What it must be; None is either."""
    may_be_address: bool = False
    """Whether it may be named, by `http:`, `https:` or `file:`, and need not be in the body."""


class UnreadableError(Exception):
    """A file cannot be had; the message says why."""


class MediaPrompt(msgspec.Struct, frozen=True):
    """A prompt of texts and of pictures and sounds."""

    pieces: Sequence[str | MediaFile | Media]

    @property
    def text(self) -> str:
        """What is told of it."""
        return "".join([piece if isinstance(piece, str) else MEDIA_MARKER for piece in self.pieces])

    def files(self) -> Iterator[MediaFile]:
        """What is still to be read of it, in order."""
        return (piece for piece in self.pieces if isinstance(piece, MediaFile))

    def read(self, media: Iterator[Media]) -> "MediaPrompt":
        """The same with the next of `media` in the place of each file."""
        return MediaPrompt([next(media) if isinstance(piece, MediaFile) else piece for piece in self.pieces])
