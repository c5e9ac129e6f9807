"""`echo`: the prompt before its completions, and what the model thought of each of its tokens."""

from collections.abc import Sequence
from typing import cast

from weft import Engine, PromptLogprobs
from weft import Logprobs as TokenLogprobs
from weft.server.openai.offsets import Offsets
from weft.server.openai.schemas import Logprobs
from weft.server.response_fields import token_logprobs
from weft.server.run.generation import Generation
from weft.server.run.submission import Piece

__all__ = ["Echo"]


class Echo:
    """The prompts of an answer as they are shown before each of their branches."""

    def __init__(self, generation: Generation, engine: Engine, *, with_top: bool) -> None:
        self._generation = generation
        self._engine = engine
        self._with_top = with_top
        self._told: dict[int, list[TokenLogprobs | None]] = {}
        self._texts: dict[int, str] = {}
        self._logprobs: dict[int, Logprobs] = {}

    def take(self, prompt: int, told: PromptLogprobs) -> None:
        """Takes a stretch of what the engine tells of a prompt's tokens; the stretches come in order."""
        self._told.setdefault(prompt, []).extend(told.logprobs)

    def text(self, prompt: int) -> str:
        """A prompt as it was sent, its tokens spelt out."""
        if prompt not in self._texts:
            self._texts[prompt] = "".join(map(self._spelt, self._generation.asked.prompts[prompt]))
        return self._texts[prompt]

    def _spelt(self, piece: Piece) -> str:
        return piece if isinstance(piece, str) else self._engine.detokenize([piece])

    def logprobs(self, prompt: int) -> Logprobs | None:
        """The lists of a prompt's tokens, once all of them were told; None where nothing was."""
        if prompt in self._told and prompt not in self._logprobs:
            self._logprobs[prompt] = self._lists(prompt, self._told[prompt])
        return self._logprobs.get(prompt)

    def _lists(self, prompt: int, told: Sequence[TokenLogprobs | None]) -> Logprobs:
        # The service has tokenized every prompt.
        tokens = cast("Sequence[int]", self._generation.requests[prompt].prompt)
        spellings = [self._engine.model.token_bytes(token) for token in tokens]
        shown = [None if one is None else token_logprobs(one, with_top=self._with_top) for one in told]
        return Logprobs(
            tokens=[spelling.decode(errors="replace") for spelling in spellings],
            token_logprobs=[None if token is None else token.logprob for token in shown],
            top_logprobs=[
                None if token is None else {top.token: top.logprob for top in reversed(token.top_logprobs)} for token in shown
            ],
            text_offset=self._offsets(spellings, len(self.text(prompt))),
            content=[],
        )

    @staticmethod
    def _offsets(spellings: Sequence[bytes], length: int) -> list[int]:
        """Where the tokens begin in the text that was sent: what the vocabulary put before it takes no place there."""
        offsets = Offsets()
        found = [offsets.next(spelling) for spelling in spellings]
        put_before = offsets.end - length
        return [max(offset - put_before, 0) for offset in found]
