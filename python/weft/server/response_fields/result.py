"""llama-server's result of a finished branch, in `/completion` and, as `__verbose`, in OpenAI's responses."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import msgspec

from weft import CacheExplanation, Engine, Finished, MixedPrompt, Token
from weft.server.inference.generation import Generation, end_reason, stop_string, token_logprobs
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.request_fields.fields import CompletionFields
from weft.server.response_fields.probabilities import CompletionProbability
from weft.server.response_fields.settings import GenerationSettings, generation_settings
from weft.server.response_fields.timings import Timings, timings
from weft.server.streaming.json_chunks import GAP, json_list

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
            self._engine,
            self._model,
            seed=request.seed or 0,
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


class BranchResults:
    """Texts, tokens and probabilities of unfinished branches, from which their results are made."""

    def __init__(self, data: CompletionFields, branches: Branches) -> None:
        self._branches = branches
        self._with_tokens = data.return_tokens is True
        self._post_sampling = data.post_sampling_probs is True
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._tokens: defaultdict[int, list[int]] = defaultdict(list)
        self._probabilities: defaultdict[int, list[bytes]] = defaultdict(list)
        """Encoded immediately, because encoding a million entries at the end would block the event loop."""

    def add(self, prompt: int, token: Token, *, with_probability: bool = True) -> int:
        """Adds a token of a branch. Returns the number of bytes by which memory use grew."""
        index = self._branches.index(prompt, token)
        self._texts[index].append(token.text)
        if self._with_tokens:
            self._tokens[index].append(token.token)
        n_bytes = TOKEN_BYTES + len(token.text)
        if with_probability and (logprobs := token_logprobs(token)) is not None:
            self._probabilities[index].append(logprobs.completion_json(self._post_sampling))
            n_bytes += len(self._probabilities[index][-1])
        return n_bytes

    def finish(self, prompt: int, finished: Finished) -> tuple[Any, list[bytes]]:
        """Returns the result of a branch, or the requested parts, with a gap for its probabilities; and the gap's contents."""
        index = self._branches.index(prompt, finished)
        probabilities = self._probabilities.pop(index, None)
        result = self._branches.result(
            prompt,
            finished,
            content="".join([*self._texts.pop(index, []), finished.text]),
            tokens=self._tokens.pop(index, []),
            probabilities=None if probabilities is None else GAP,
        )
        return projected(result, self._branches.generation), json_list(probabilities or ())


def projected(result: CompletionResult, generation: Generation) -> Any:  # noqa: ANN401 (a result, or parts of one)
    """Returns the parts of a result by requested path, or the whole result if there are no paths. Missing parts are omitted."""
    paths = generation.submission.response_fields
    if not paths:
        return result
    schema = result.generation_settings.json_schema
    of_schema = {} if isinstance(schema, msgspec.UnsetType) else generation.schema_parts.of(schema)
    parts = {path: of_schema[path] if path in of_schema else _part(result, path.split("/")) for path in paths}
    return {path: part for path, part in parts.items() if part is not msgspec.UNSET}


def _part(value: Any, keys: Sequence[str]) -> Any:  # noqa: ANN401 (any JSON)
    for key in keys:
        if isinstance(value, msgspec.Struct):
            value = getattr(value, _fields(type(value)).get(key, ""), msgspec.UNSET)
        elif isinstance(value, dict):
            value = value.get(key, msgspec.UNSET)
        else:  # Encoded lists cannot be indexed, and schemas are handled separately.
            return msgspec.UNSET
    return value


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the attributes of a struct by their JSON names."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
