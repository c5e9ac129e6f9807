"""Reads the stretches of a prompt as tokens, as if they were one text."""

from collections.abc import Iterable, Sequence
from functools import cached_property

from weft import ContextOverflow, Engine, Media
from weft.chat.disguise import MediaPlace, Stretch

__all__ = ["StretchReader"]

MARK = "\x02"
"""Stands before a text that goes on from another. No vocabulary has a piece of it and what follows."""


class StretchReader:
    """Makes tokens of stretches.

    SentencePiece's vocabularies put a space before each text, and after each control token in it. A stretch that goes on from
    another one begins no text, so it gets none: what a message says would else be changed around the spelling of a control token.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def tokens(
        self, opening: Sequence[int], stretches: Iterable[Stretch | MediaPlace], media: Sequence[Media] = ()
    ) -> list[int | Media]:
        """The tokens of stretches that follow some others, and the media among them.

        What follows a picture or a sound begins a text, as in llama.cpp.

        Raises:
            ContextOverflow: there are more than fit, by which the rest is not read.
        """
        tokens: list[int | Media] = list(opening)
        n_tokens, n_ctx = len(tokens), self._engine.limits.n_ctx_slot
        for stretch in stretches:
            if n_tokens >= n_ctx:
                raise ContextOverflow(n_tokens, n_ctx, is_least=True)
            if isinstance(stretch, MediaPlace):
                tokens.append(media[stretch.number])
                n_tokens += media[stretch.number].n_tokens
                continue
            goes_on = bool(tokens) and not isinstance(tokens[-1], Media) and tokens[-1] not in self.control_tokens
            read = self._going_on(stretch) if goes_on else self._read(stretch)
            tokens += read
            n_tokens += len(read)
        return tokens

    def _going_on(self, stretch: Stretch) -> list[int]:
        if not self._puts_space:
            return self._read(stretch)
        return self._read(stretch._replace(text=MARK + stretch.text))[len(self._mark) :]

    def _read(self, stretch: Stretch) -> list[int]:
        return self._engine.tokenize(stretch.text, add_special=False, parse_special=stretch.is_parsed)

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """Tokens that are no text."""
        return frozenset(self._engine.model.control_tokens())

    @cached_property
    def _mark(self) -> list[int]:
        return self._read(Stretch(MARK, is_parsed=False))

    @cached_property
    def _puts_space(self) -> bool:
        return self._engine.detokenize(self._mark) != MARK
