"""Tokenizes the segments of a prompt as if they were one text."""

from collections.abc import Iterable, Sequence
from functools import cached_property

from weft import ContextOverflowError, Engine, Media
from weft.chat.control_tokens import MediaPlaceholder, Segment, TextSegment

MARK = "\x02"
"""Prefix of a segment that continues a text. No vocabulary merges it with the characters that follow."""


class SegmentTokenizer:
    """Tokenizes segments.

    SentencePiece vocabularies add a space before each text, and after each control token. A segment that continues another one
    gets no such space: otherwise an escaped control token in a message would change the text around it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def tokens(self, segments: Iterable[Segment], media: Sequence[Media] = ()) -> list[int | Media]:
        """Returns the tokens and media of the segments, after the tokens that begin every text.

        The segment after an image or audio begins a text, as in llama.cpp.

        Raises:
            ContextOverflowError: The prompt does not fit in the context. The remaining segments are not tokenized.
        """
        tokens: list[int | Media] = list(self.opening)
        n_tokens, n_ctx = len(tokens), self._engine.limits.n_ctx_slot
        for segment in segments:
            if n_tokens >= n_ctx:
                raise ContextOverflowError(n_tokens, n_ctx, is_least=True)
            if isinstance(segment, MediaPlaceholder):
                tokens.append(media[segment.number])
                n_tokens += media[segment.number].n_tokens
                continue
            is_continuation = bool(tokens) and not isinstance(tokens[-1], Media) and tokens[-1] not in self.control_tokens
            added = self._tokenize_continuation(segment) if is_continuation else self._tokenize(segment)
            tokens += added
            n_tokens += len(added)
        return tokens

    def _tokenize_continuation(self, segment: TextSegment) -> list[int]:
        if not self._adds_space:
            return self._tokenize(segment)
        return self._tokenize(segment._replace(text=MARK + segment.text))[len(self._mark) :]

    def _tokenize(self, segment: TextSegment) -> list[int]:
        return self._engine.tokenize(segment.text, add_special=False, parse_special=segment.is_parsed)

    @cached_property
    def opening(self) -> list[int]:
        """The token that begins every text, if the vocabulary requires one."""
        return [token for token in self._engine.tokenize("")[:1] if token == self._engine.model.bos_token]

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """Ids of the model's control tokens."""
        return frozenset(self._engine.model.control_tokens())

    @cached_property
    def _mark(self) -> list[int]:
        return self._tokenize(TextSegment(MARK, is_parsed=False))

    @cached_property
    def _adds_space(self) -> bool:
        return self._engine.detokenize(self._mark) != MARK
