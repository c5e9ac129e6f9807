"""`echo`: the prompt before its completions, with the logprobs of its tokens."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

from weft import Engine, MixedPrompt, PromptLogprobs
from weft._native import CompactLogprobs, TokenIds
from weft.server.inference.generation import Generation, prompt_logprobs
from weft.server.inference.submission import Piece
from weft.server.media.files import MediaPrompt
from weft.server.openai.logprob_lists import LogprobLists, Offsets
from weft.server.openai.schemas import Logprobs
from weft.server.response_fields.probabilities import top_logprobs_by_text


class Echo:
    """The prompts of a response, as shown before each of their branches."""

    def __init__(self, generation: Generation, engine: Engine, *, with_top: bool) -> None:
        self._generation = generation
        self._engine = engine
        self._with_top = with_top
        self._received: dict[int, tuple[LogprobLists, Offsets]] = {}
        """Logprobs of each prompt received so far, and the offsets of its next tokens."""
        self._texts: dict[int, str] = {}

    def take(self, prompt: int, event: PromptLogprobs) -> int:
        """Adds logprobs of consecutive tokens of a prompt. Returns their size in bytes."""
        # The service has tokenized every prompt.
        tokens = cast("Sequence[int]", self._generation.requests[prompt].prompt)
        if prompt not in self._received:
            # Characters that the tokenizer put before the text are not part of it.
            n_put_before = len(self._engine.detokenize(tokens)) - len(self.text(prompt))
            self._received[prompt] = LogprobLists(), Offsets(-max(n_put_before, 0))
        lists, offsets = self._received[prompt]
        places = range(event.start, event.start + len(event.logprobs))
        return lists.add(self._lists(offsets, [tokens[place] for place in places], prompt_logprobs(event)))

    def text(self, prompt: int) -> str:
        """Returns a prompt as it was sent, with tokens as text."""
        if prompt not in self._texts:
            pieces = self._generation.submission.prompts[prompt]
            if isinstance(pieces, MediaPrompt):
                self._texts[prompt] = pieces.text
            elif isinstance(pieces, TokenIds | MixedPrompt):
                self._texts[prompt] = self._engine.detokenize(pieces)
            else:
                self._texts[prompt] = self._decode_pieces(pieces)
        return self._texts[prompt]

    def _decode_pieces(self, pieces: Sequence[Piece]) -> str:
        texts = []
        for is_text, event in groupby(pieces, key=lambda piece: isinstance(piece, str)):
            alike: list[Any] = list(event)
            # Consecutive tokens are decoded together, as a character may span several.
            texts.append("".join(alike) if is_text else self._engine.detokenize(alike))
        return "".join(texts)

    def logprobs(self, prompt: int) -> LogprobLists | None:
        """Returns the logprobs of a prompt's tokens once complete, or None if they were not requested."""
        return self._received[prompt][0] if prompt in self._received else None

    def _lists(self, offsets: Offsets, tokens: Sequence[int], logprobs: Sequence[CompactLogprobs | None]) -> Logprobs:
        spellings = [self._engine.model.token_bytes(token) for token in tokens]
        return Logprobs(
            tokens=[spelling.decode(errors="replace") for spelling in spellings],
            token_logprobs=[None if one is None else one.chosen.logprob for one in logprobs],
            top_logprobs=[None if one is None else top_logprobs_by_text(one) if self._with_top else {} for one in logprobs],
            text_offset=[max(offsets.next(spelling), 0) for spelling in spellings],
            content=[],
        )
