"""llama-server's own answer: what `/completion` says of a finished branch, and OpenAI's routes beside theirs in `__verbose`."""

from collections.abc import Sequence
from typing import cast

import msgspec

from weft import CacheExplanation, Engine, Finished, MixedPrompt, Token
from weft.server.response_fields.probabilities import CompletionProbability
from weft.server.response_fields.settings import GenerationSettings, generation_settings
from weft.server.response_fields.timings import Timings, timings
from weft.server.run.generation import Generation

__all__ = ["Branches", "CompletionResult", "told_score"]

STOP_TYPES = {"end": "eos", "stop": "word", "length": "limit", "context_full": "limit", "cancelled": "none"}


class CompletionResult(msgspec.Struct):
    """One finished branch: the last event of a stream, where `content` is empty, or the whole answer.

    `stop_type` is what llama-server says today, the three `stopped_` fields what it said in 2024.
    """

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopped_eos: bool
    stopped_limit: bool
    stopped_word: bool
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: Sequence[CompletionProbability] | msgspec.UnsetType = msgspec.UNSET
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET
    score: float | msgspec.UnsetType = msgspec.UNSET
    """With `beam_width`: what ranks the branch among the others, the greater the better."""


def told_score(finished: Finished) -> float | msgspec.UnsetType:
    """The score of a branch, where it has one."""
    return msgspec.UNSET if finished.score is None else finished.score


class Branches:
    """Numbers the branches of an answer over all its prompts, and describes the finished ones."""

    def __init__(self, generation: Generation, engine: Engine, model: str) -> None:
        self.generation = generation
        self.n = generation.requests[0].n
        self.n_prompt = [stream.n_prompt for stream in generation.streams]
        self._engine = engine
        self._model = model
        self._end_tokens = engine.model.end_tokens()
        self._prompts: dict[int, str] = {}

    def index(self, prompt: int, event: Token | Finished) -> int:
        """Which branch of the answer an event belongs to."""
        return prompt * self.n + event.index

    def result(
        self,
        prompt: int,
        finished: Finished,
        *,
        content: str = "",
        tokens: Sequence[int] = (),
        probabilities: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
    ) -> CompletionResult:
        """What is told of a branch at its end; its probabilities are JSON already."""
        usage = finished.usage
        stop_type = STOP_TYPES[finished.reason]
        return CompletionResult(
            index=self.index(prompt, finished),
            content=content,
            tokens=list(tokens),
            id_slot=-1 if finished.slot is None else finished.slot,
            stop=True,
            model=self._model,
            tokens_predicted=usage.n_predicted,
            tokens_evaluated=usage.n_prompt,
            generation_settings=self.settings(prompt, finished.index),
            prompt=self.prompt_text(prompt, finished.index),
            has_new_line=self.generation.has_new_line(prompt, finished.index),
            truncated=finished.truncated,
            stop_type=stop_type,
            stopped_eos=stop_type == "eos",
            stopped_limit=stop_type == "limit",
            stopped_word=stop_type == "word",
            stopping_word=finished.stop or "",
            tokens_cached=usage.n_held,
            timings=timings([usage]),
            completion_probabilities=cast("Sequence[CompletionProbability]", probabilities),
            cache_explanation=self.generation.explanation(prompt, finished),
            score=told_score(finished),
        )

    def slot(self, prompt: int) -> int:
        """The slot where a prompt is computed; -1 where it is in none any more."""
        request_id = self.generation.streams[prompt].request_id
        return next((slot.id for slot in self._engine.stats().slots if slot.request_id == request_id), -1)

    def settings(self, prompt: int, index: int) -> GenerationSettings:
        """The settings of one branch of a prompt, with its own seed."""
        generation = self.generation
        request = generation.branch(prompt, index)
        return generation_settings(
            request,
            seed=request.seed or 0,
            n_ctx=self._engine.limits.n_ctx_slot,
            model=self._model,
            end_tokens=self._end_tokens,
            stream=generation.asked.stream,
            timings_per_token=generation.asked.timings_per_token,
            reasoning_format=generation.asked.reasoning_format,
        )

    def prompt_text(self, prompt: int, index: int) -> str:
        """The prompt of a branch as the model saw it, special tokens included: the prompt, and what follows it in this branch."""
        suffix = self.generation.branch(prompt, index).suffix_prompt
        return self._shared_text(prompt) + (self._engine.detokenize(cast("Sequence[int]", suffix)) if suffix else "")

    def _shared_text(self, prompt: int) -> str:
        if prompt not in self._prompts:
            given = self.generation.requests[prompt].prompt
            # What came in parts was tokenized before.
            whole = cast("str | Sequence[int] | MixedPrompt", given)
            self._prompts[prompt] = whole if isinstance(whole, str) else self._engine.detokenize(whole)
        return self._prompts[prompt]
