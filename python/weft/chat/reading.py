"""Reads the segments of a prompt as tokens, as if they were one text."""

from collections.abc import Iterable, Sequence
from functools import cached_property

from weft import ContextOverflow, Engine, Media
from weft.chat.control_tokens import MediaPlaceholder, TextSegment

__all__ = ["SegmentTokenizer"]

MARK = "\x02"
"""Stands before a text that goes on from another. No vocabulary has a piece of it and what follows."""


class SegmentTokenizer:
    """Makes tokens of segments.

    SentencePiece's vocabularies put a space before each text, and after each control token in it. A segment that goes on from
    another one begins no text, so it gets none: what a message says would else be changed around the spelling of a control token.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def tokens(
        self, opening: Sequence[int], segments: Iterable[TextSegment | MediaPlaceholder], media: Sequence[Media] = ()
    ) -> list[int | Media]:
        """The tokens of segments that follow some others, and the media among them.

        What follows a picture or a sound begins a text, as in llama.cpp.

        Raises:
            ContextOverflow: there are more than fit, by which the rest is not read.
        """
        tokens: list[int | Media] = list(opening)
        n_tokens, n_ctx = len(tokens), self._engine.limits.n_ctx_slot
        for segment in segments:
            if n_tokens >= n_ctx:
                raise ContextOverflow(n_tokens, n_ctx, is_least=True)
            if isinstance(segment, MediaPlaceholder):
                tokens.append(media[segment.number])
                n_tokens += media[segment.number].n_tokens
                continue
            goes_on = bool(tokens) and not isinstance(tokens[-1], Media) and tokens[-1] not in self.control_tokens
            read = self._going_on(segment) if goes_on else self._read(segment)
            tokens += read
            n_tokens += len(read)
        return tokens

    def _going_on(self, segment: TextSegment) -> list[int]:
        if not self._puts_space:
            return self._read(segment)
        return self._read(segment._replace(text=MARK + segment.text))[len(self._mark) :]

    def _read(self, segment: TextSegment) -> list[int]:
        return self._engine.tokenize(segment.text, add_special=False, parse_special=segment.is_parsed)

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """Tokens that are no text."""
        return frozenset(self._engine.model.control_tokens())

    @cached_property
    def _mark(self) -> list[int]:
        return self._read(TextSegment(MARK, is_parsed=False))

    @cached_property
    def _puts_space(self) -> bool:
        return self._engine.detokenize(self._mark) != MARK
