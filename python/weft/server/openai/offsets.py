"""Character offsets of tokens."""

import codecs


class Offsets:
    """Character offsets of a branch's tokens in its text.

    Computed from the tokens' own bytes, because an event's text may include withheld text of earlier tokens. A token that begins
    within a character has that character's offset.
    """

    def __init__(self, start: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = start

    def next(self, spelling: bytes) -> int:
        """Returns the offset of the next token, given its bytes."""
        offset = self._n
        self._n += len(self._decoder.decode(spelling))
        return offset

    @property
    def end(self) -> int:
        """End of the text, counting complete characters."""
        return self._n
