"""Generation requests."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from weft._native import Media, MixedPrompt
from weft.fields.meta import Range, described
from weft.request.sampling import SamplingParams
from weft.request.sampling_options import SamplingOptions

__all__ = ["BranchOptions", "Prompt", "Request", "RequestOptions"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[str | int | Media | Sequence[int]] | MixedPrompt
"""Any form of a prompt."""


class BranchOptions(SamplingOptions, total=False):
    """Fields of one entry of `Request.branches`; the request has the defaults."""

    suffix_prompt: str | Sequence[int] | None
    adapters: Sequence[tuple[int, float]] | None


@described
class Request(SamplingParams, frozen=True, kw_only=True):
    """One prompt with `n` completions. The defaults are llama-server's.

    The constructor does not validate; `Engine.stream` does, and raises `InvalidRequestError` with the name of the first invalid
    field.
    """

    prompt: Annotated[
        Prompt,
        "the prompt, at least one token. A string is tokenized with the special tokens that the model's vocabulary requires, "
        "and control tokens in it are parsed. A list may hold strings, token ids and media (`Engine.read_media`)",
    ]
    n: Annotated[int, "number of completions, 1 to 256. The prompt is computed once for all of them", Range(1, 256)] = 1
    distinct: Annotated[
        bool,
        "whether each completion begins with a different token: first tokens are sampled without replacement from the "
        "distribution after the samplers, by Gumbel top-k (Kool et al. 2019, arXiv 1903.06059). If that has fewer than `n` "
        'tokens, the last completions are empty, with the finish reason "stop"',
    ] = False
    diverse: Annotated[
        Literal["arithmetic", "beam"] | None,
        'how to diversify the `n` completions. "arithmetic": each has the distribution of an independent sample, and '
        "together "
        "they are spread evenly over the model's distribution (arithmetic sampling, Vilnis et al. 2022, arXiv 2210.15458): "
        'completion `i` uses the code point `(u + i / n) mod 1`, with one `u` derived from the seed. "beam": completions are '
        "sampled without replacement (stochastic beam search, arXiv 1903.06059) with `beam_width` beams, by default `n`",
    ] = None
    beam_width: Annotated[
        int | None,
        "beam search with this many beams, 2 to the number of slots; returns the `n` best texts (`n` <= `beam_width`) with "
        "their `Finished.score`. All beams occupy slots concurrently and fork from each other: a search computes the prompt, "
        "and at most one token per beam and step. A temperature of 0 is replaced by 1. None disables the search",
        Range(2),
    ] = None
    length_penalty: Annotated[
        float,
        "exponent of the length in a beam search's ranking, which is the sum of the log-probabilities divided by the number "
        "of tokens raised to this: 1 is the mean, 0 the sum, and higher values favor long texts. Always 1 with stochastic "
        "beams",
        Range(-10, 10),
    ] = 1.0
    branches: Annotated[
        Sequence[BranchOptions],
        "options of each completion, if they differ, at most 256: one mapping per branch with fields of `BranchOptions`; the "
        "request has the defaults. `n` must be their number or left out. The common prompt is computed once per adapter set",
    ] = ()
    suffix_prompt: Annotated[
        str | Sequence[int] | None,
        "text or token ids after the prompt, for one branch. A string is tokenized without BOS and without the leading space "
        "that some vocabularies add; its control tokens are parsed if the prompt's are. Prompt and suffix are concatenated "
        "as tokens, so the tokens at the boundary may differ from those of the concatenated text",
    ] = None
    priority: Annotated[
        int,
        "scheduling priority, -100 to 100, of waiting requests and of prompts being computed; higher is first. If no slot is "
        "free, the most recent branch of a lower priority is preempted and continues later. To prevent starvation, one unit "
        "of priority is worth 1,000 admissions of branches, of any request",
        Range(-100, 100),
    ] = 0
    max_token_gap_ms: Annotated[
        float | None,
        "maximum gap, in milliseconds, between two tokens of its completions while prompts of other requests are computed, "
        "1 to 60,000; None is the engine's `max_token_gap_ms`",
        Range(1, 60_000),
    ] = None
    n_batch: Annotated[
        int | None, "maximum prompt tokens per step; None lets the engine choose, which is recommended", Range(1, 2**32 - 1)
    ] = None
    adapters: Annotated[
        Sequence[tuple[int, float]] | None,
        "LoRA adapters for prompt and completions, as pairs of an adapter's index in `Engine.adapters` and its scale; "
        "adapters that are not listed are off. None is the set of `Engine.set_adapters`, initially of `EngineConfig.lora`. "
        "Requests share cached tokens only if their adapters are equal. An activated adapter (aLoRA), of which there is at "
        "most one, applies from its last invocation in the prompt, and shares the tokens before that with the base model; "
        "without an invocation it is off",
    ] = None
    max_draft: Annotated[
        int | None,
        "maximum drafted tokens of a completion in one step of speculative decoding, 0 to 64; 0 disables it, and None is the"
        " engine's `max_draft`. Drafts never change the text where `Engine.is_repeatable` is True",
        Range(0, 64),
    ] = None
    prediction: Annotated[
        str | Sequence[int] | None,
        "text or token ids that the completions probably repeat, such as a file to be edited: drafts are taken from it",
    ] = None
    use_cache: Annotated[bool, "reuse cached tokens of the prompt; False computes all of it"] = True
    prompt_logprobs: Annotated[
        int | None,
        "number of top logprobs to report for each prompt token, 0 to 1,000, with the token's own: as `PromptLogprobs` "
        "events, before the first token. With 0 or 1, logprobs and cached tokens of earlier requests are reused; with more, "
        "the prompt is computed",
        Range(0, 1_000),
    ] = None
    prompt_logprobs_from: Annotated[
        int,
        "first prompt token to report `prompt_logprobs` for, less than the prompt's length; all but one of the tokens before "
        "it may come from the cache. Requires `prompt_logprobs`",
        Range(0, 2**32 - 1),
    ] = 0
    report_progress: Annotated[bool, "report the progress of the prompt's computation, as `Progress` events"] = False
    checkpoints_at: Annotated[
        Sequence[int],
        "positions in the prompt, in order, at most 16, where a recurrent or hybrid model stores a checkpoint, in addition "
        "to the end of the prompt. A later prompt that shares only the tokens up to there continues from it. With a sliding "
        "window, the window at the end of every prompt is kept. Other models need none: see `Limits.forks_anywhere`",
    ] = ()
    cache_answers: Annotated[
        bool,
        "reuse the generated tokens of earlier requests with this option, where the prompt has their text: they are found in "
        "the cache even if the tokenizer would split the text differently",
    ] = False
    explain_cache: Annotated[
        bool,
        "report the causes of cache misses in `Stream.explanation`, once branch 0 has started in a slot, and in that "
        "branch's `Finished.explanation`",
    ] = False
    slot: Annotated[int | None, "slot for branch 0 if it is free, from 0; None lets the engine choose"] = None


class RequestOptions(BranchOptions, total=False):
    """Fields of `Request` except the prompt, as keywords of `Engine.stream` and `Engine.complete`."""

    n: int
    distinct: bool
    diverse: Literal["arithmetic", "beam"] | None
    beam_width: int | None
    length_penalty: float
    branches: Sequence[BranchOptions]
    priority: int
    max_token_gap_ms: float | None
    n_batch: int | None
    max_draft: int | None
    prediction: str | Sequence[int] | None
    use_cache: bool
    prompt_logprobs: int | None
    prompt_logprobs_from: int
    report_progress: bool
    checkpoints_at: Sequence[int]
    cache_answers: bool
    explain_cache: bool
    slot: int | None
