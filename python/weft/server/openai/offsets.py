"""Where tokens begin in a text."""

import codecs

__all__ = ["Offsets"]


class Offsets:
    """Where the tokens of one branch begin in its text, in characters.

    Counted over the tokens' own bytes, because what is shown with a token may be another's text, held back until then. A
    token that begins within a character begins where that character does.
    """

    def __init__(self, start: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = start

    def next(self, spelling: bytes) -> int:
        """The offset of the next token, given its bytes."""
        offset = self._n
        self._n += len(self._decoder.decode(spelling))
        return offset

    @property
    def end(self) -> int:
        """Where the text ends, of whole characters."""
        return self._n
