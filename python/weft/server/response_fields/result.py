"""llama-server's result of a finished branch, in `/completion` and, as `__verbose`, in OpenAI's responses."""

from collections.abc import Sequence
from typing import cast

import msgspec

from weft import CacheExplanation, Engine, Finished, MixedPrompt, Token
from weft.server.inference.end_reason import end_reason, stop_string
from weft.server.inference.generation import Generation
from weft.server.response_fields.probabilities import CompletionProbability
from weft.server.response_fields.settings import GenerationSettings, generation_settings
from weft.server.response_fields.timings import Timings, timings

STOP_TYPES = {"end": "eos", "stop": "word", "length": "limit", "context_full": "limit", "cancelled": "none"}


class CompletionResult(msgspec.Struct):
    """A finished branch: the last event of a stream, where `content` is empty, or the complete response.

    `stop_type` is llama-server's current field; the three `stopped_` fields are from 2024.
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
    """With `beam_width`: the branch's rank score; higher is better."""


def branch_score(finished: Finished) -> float | msgspec.UnsetType:
    """Returns the score of a branch, or UNSET."""
    return msgspec.UNSET if finished.score is None else finished.score


class Branches:
    """Numbers the branches of a response over all prompts, and builds the results of finished ones."""

    def __init__(self, generation: Generation, engine: Engine, model: str) -> None:
        self.generation = generation
        self.n = generation.requests[0].n
        self.n_prompt = [stream.n_prompt for stream in generation.streams]
        self._engine = engine
        self._model = model
        self._end_tokens = engine.model.end_tokens()
        self._prompts: dict[int, str] = {}

    def index(self, prompt: int, event: Token | Finished) -> int:
        """Returns the index in the response of an event's branch."""
        return prompt * self.n + event.index

    def result(
        self,
        prompt: int,
        finished: Finished,
        *,
        content: str = "",
        tokens: Sequence[int] = (),
        probabilities: msgspec.Raw | None = None,
    ) -> CompletionResult:
        """Returns the result of a branch at its end. `probabilities` is encoded JSON."""
        usage = finished.usage
        stop_type = STOP_TYPES[end_reason(finished)]
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
            truncated=finished.is_truncated,
            stop_type=stop_type,
            stopped_eos=stop_type == "eos",
            stopped_limit=stop_type == "limit",
            stopped_word=stop_type == "word",
            stopping_word=stop_string(finished) or "",
            tokens_cached=usage.n_context,
            timings=timings([usage]),
            completion_probabilities=cast("Sequence[CompletionProbability]", probabilities or msgspec.UNSET),
            cache_explanation=self.generation.explanation(prompt, finished),
            score=branch_score(finished),
        )

    def slot(self, prompt: int) -> int:
        """Returns the slot in which a prompt is being computed, or -1."""
        request_id = self.generation.streams[prompt].request_id
        return next((slot.id for slot in self._engine.stats().slots if slot.request_id == request_id), -1)

    def settings(self, prompt: int, index: int) -> GenerationSettings:
        """Returns the settings of a branch, with its own seed."""
        generation = self.generation
        request = generation.branch(prompt, index)
        return generation_settings(
            request,
            seed=request.seed or 0,
            n_ctx=self._engine.limits.n_ctx_slot,
            model=self._model,
            end_tokens=self._end_tokens,
            stream=generation.submission.stream,
            timings_per_token=generation.submission.timings_per_token,
            reasoning_format=generation.submission.reasoning_format,
        )

    def prompt_text(self, prompt: int, index: int) -> str:
        """Returns the prompt of a branch including special tokens: the shared prompt and the branch's suffix."""
        suffix = self.generation.branch(prompt, index).suffix_prompt
        return self._shared_text(prompt) + (self._engine.detokenize(cast("Sequence[int]", suffix)) if suffix else "")

    def _shared_text(self, prompt: int) -> str:
        if prompt not in self._prompts:
            given = self.generation.requests[prompt].prompt
            # Prompts given in parts were tokenized before.
            whole = cast("str | Sequence[int] | MixedPrompt", given)
            self._prompts[prompt] = whole if isinstance(whole, str) else self._engine.detokenize(whole)
        return self._prompts[prompt]
