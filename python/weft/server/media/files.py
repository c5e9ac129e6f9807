"""Images and audio in request bodies, before they are read."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from weft import Media

MEDIA_MARKER = "<__media__>"
"""Placeholder for an image or audio in a text, as in llama.cpp."""

MAX_FILES = 32
"""Maximum images and audio files of a request."""


class MediaFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image or audio file in a body, or a URL of one."""

    source: str
    """Base64, a `data:` URI, or a URL."""
    param: str
    """Field that contains it."""
    location: str
    """Location in the body, for error messages."""
    kind: Literal["image", "audio"] | None = None
    """Required kind; None for either."""
    may_be_address: bool = False
    """True if `http:`, `https:` and `file:` URLs are accepted."""


class UnreadableError(Exception):
    """A file is unavailable or malformed; the message has the reason."""


class MediaPrompt(msgspec.Struct, frozen=True):
    """A prompt of text, images and audio."""

    pieces: Sequence[str | MediaFile | Media]

    @property
    def text(self) -> str:
        """Text with a placeholder for each image or audio file."""
        return "".join([piece if isinstance(piece, str) else MEDIA_MARKER for piece in self.pieces])

    def files(self) -> Iterator[MediaFile]:
        """Returns the files that have not been read yet, in order."""
        return (piece for piece in self.pieces if isinstance(piece, MediaFile))

    def read(self, media: Iterator[Media]) -> "MediaPrompt":
        """Returns the prompt with each file replaced by the next item of `media`."""
        return MediaPrompt([next(media) if isinstance(piece, MediaFile) else piece for piece in self.pieces])
