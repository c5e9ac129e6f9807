"""Generation requests."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias, TypedDict

from msgspec.structs import force_setattr

from weft._native import Media, MixedPrompt
from weft.fields.meta import FieldMeta, described
from weft.request.reasoning import GrammarTrigger, ReasoningConfig
from weft.request.schema import JsonSchema, schema_text
from weft.sampling_fields import Sampling

__all__ = ["BranchOptions", "ForkOptions", "Prompt", "Request", "RequestOptions"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[str | int | Media | Sequence[int]] | MixedPrompt
"""Any form of a prompt."""


class ForkOptions(TypedDict, total=False):
    """Options of forks (see `Stream.fork`); the branch has the defaults."""

    max_tokens: int | None
    stop: str | Sequence[str]
    seed: int | None
    samplers: Sequence[str]
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    tfs_z: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    penalize_nl: bool
    penalty_prompt: Sequence[int] | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    logit_bias: Sequence[tuple[int, float]] | Mapping[int, float]
    ignore_eos: bool
    n_probs: int
    post_sampling_probs: bool
    grammar: str | None
    json_schema: JsonSchema | None
    grammar_lazy: bool
    grammar_triggers: Sequence[GrammarTrigger]
    preserved_tokens: Sequence[str]
    reasoning: ReasoningConfig | None
    context_shift: bool
    n_keep: int | None
    n_discard: int
    max_predict_ms: float | None
    n_indent: int


class BranchOptions(ForkOptions, total=False):
    """Fields of one entry of `Request.branches`; the request has the defaults."""

    suffix_prompt: str | Sequence[int] | None
    adapters: Sequence[tuple[int, float]] | None


@described
class Request(Sampling, frozen=True, kw_only=True):
    """One prompt with `n` completions. The defaults are llama-server's.

    The constructor does not validate; `Engine.generate` does, and raises `InvalidRequestError` with the name of the first invalid
    field.
    """

    prompt: Annotated[
        Prompt,
        FieldMeta(
            "the prompt, at least one token. A string is tokenized with the special tokens that the model's vocabulary requires, "
            "and control tokens in it are parsed. A list may hold strings, token ids and media (`Engine.read_media`)"
        ),
    ]
    n: Annotated[int, FieldMeta("number of completions, 1 to 256. The prompt is computed once for all of them", 1, 256)] = 1
    distinct: Annotated[
        bool,
        FieldMeta(
            "whether each completion begins with a different token: first tokens are sampled without replacement from the "
            "distribution after the samplers, by Gumbel top-k (Kool et al. 2019, arXiv 1903.06059). If that has fewer than `n` "
            "tokens, the last completions are empty, with reason `end`"
        ),
    ] = False
    diverse: Annotated[
        Literal["arithmetic", "beam"] | None,
        FieldMeta(
            'how to diversify the `n` completions. "arithmetic": each has the distribution of an independent sample, and '
            "together "
            "they are spread evenly over the model's distribution (arithmetic sampling, Vilnis et al. 2022, arXiv 2210.15458): "
            'completion `i` uses the code point `(u + i / n) mod 1`, with one `u` derived from the seed. "beam": completions are '
            "sampled without replacement (stochastic beam search, arXiv 1903.06059) with `beam_width` beams, by default `n`"
        ),
    ] = None
    beam_width: Annotated[
        int | None,
        FieldMeta(
            "beam search with this many beams, 2 to the number of slots; returns the `n` best texts (`n` <= `beam_width`) with "
            "their `Finished.score`. All beams occupy slots concurrently and fork from each other: a search computes the prompt, "
            "and at most one token per beam and step. A temperature of 0 is replaced by 1. None disables the search",
            2,
        ),
    ] = None
    length_penalty: Annotated[
        float,
        FieldMeta(
            "exponent of the length in a beam search's ranking, which is the sum of the log-probabilities divided by the number "
            "of "
            "tokens raised to this: 1 is the mean, 0 the sum, and higher values favour long texts. Always 1 with stochastic "
            "beams",
            -10,
            10,
        ),
    ] = 1.0
    branches: Annotated[
        Sequence[BranchOptions],
        FieldMeta(
            "options of each completion, if they differ, at most 256: one mapping per branch with fields of `BranchOptions`; the "
            "request has the defaults. `n` must be their number or left out. The common prompt is computed once per adapter set"
        ),
    ] = ()
    suffix_prompt: Annotated[
        str | Sequence[int] | None,
        FieldMeta(
            "text or token ids after the prompt, for one branch. A string is tokenized without BOS and without the leading space "
            "that some vocabularies add; its control tokens are parsed if the prompt's are. Prompt and suffix are concatenated "
            "as "
            "tokens, so the tokens at the boundary may differ from those of the concatenated text"
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        FieldMeta("maximum tokens of one completion; None is the rest of the context, 0 only computes the prompt", 0, 2**32 - 1),
    ] = None
    stop: Annotated[str | Sequence[str], FieldMeta("stop string, or several; the text ends before it")] = ()
    seed: Annotated[
        int | None,
        FieldMeta(
            "seed: branch `i` uses a generator seeded with `seed + i` (modulo 2³²), `0 ≤ seed < 2³²`; None is a random seed, "
            "reported by `Stream.seed`",
            0,
            2**32 - 1,
        ),
    ] = None
    penalty_prompt: Annotated[
        Sequence[int] | None,
        FieldMeta(
            "tokens that the penalties use in place of the prompt, at most as many as a slot's context; None is the prompt"
        ),
    ] = None
    n_probs: Annotated[
        int,
        FieldMeta(
            "number of top logprobs to report with each token's log-probability, 0 to 1,000; 0 reports none",
            0,
            1_000,
        ),
    ] = 0
    post_sampling_probs: Annotated[bool, FieldMeta("report probabilities after the samplers, not those of the model")] = False
    grammar: Annotated[str | None, FieldMeta("GBNF grammar that every completion must match, starting at the rule `root`")] = None
    json_schema: Annotated[
        JsonSchema | None,
        FieldMeta(
            "JSON schema that every completion must match, as JSON text; excludes `grammar`. Also a mapping, or a type to derive "
            "the schema from: a struct, a dataclass, a pydantic model"
        ),
    ] = None
    grammar_lazy: Annotated[
        bool,
        FieldMeta(
            "activate the grammar, or the schema, only when one of `grammar_triggers` matches: text before it is unconstrained, "
            "and "
            "text after it must match. The grammar begins where the trigger specifies, at most 65,536 bytes before the token "
            "that "
            "completes the trigger; tokens that would begin it with invalid text are not sampled"
        ),
    ] = False
    grammar_triggers: Annotated[
        Sequence[GrammarTrigger],
        FieldMeta(
            "triggers of a lazy grammar, 1 to 64, at most 16,384 bytes together. The first that matches after a token applies"
        ),
    ] = ()
    preserved_tokens: Annotated[
        Sequence[str],
        FieldMeta(
            "texts of single tokens that are included in the output, even if they are control or end tokens; at most 256, of "
            "16,384 bytes together. A text that is not a single token of this model is ignored"
        ),
    ] = ()
    reasoning: Annotated[
        ReasoningConfig | None, FieldMeta("markers and budget of reasoning; None treats reasoning like other text")
    ] = None
    context_shift: Annotated[
        bool,
        FieldMeta(
            "when the context is full, drop tokens from the middle, compute the rest again and continue, instead of ending"
        ),
    ] = False
    n_keep: Annotated[
        int | None,
        FieldMeta(
            "number of tokens at the beginning that a context shift keeps, in addition to a BOS token, but never the last four "
            "of "
            "a context; None keeps the whole prompt"
        ),
    ] = 0
    n_discard: Annotated[
        int, FieldMeta("number of tokens that a context shift drops; 0 is half of those after n_keep", 0, 2**32 - 1)
    ] = 0
    priority: Annotated[
        int,
        FieldMeta(
            "scheduling priority, -100 to 100, of waiting requests and of prompts being computed; higher is first. If no slot is "
            "free, the most recent branch of a lower priority is preempted and continues later. To prevent starvation, one unit "
            "of priority is worth 1,000 admissions of branches, of any request",
            -100,
            100,
        ),
    ] = 0
    max_token_gap_ms: Annotated[
        float | None,
        FieldMeta(
            "maximum gap, in milliseconds, between two tokens of its completions while prompts of other requests are computed, "
            "1 to 60,000; None is the engine's `max_token_gap_ms`",
            1,
            60_000,
        ),
    ] = None
    n_batch: Annotated[
        int | None,
        FieldMeta("maximum prompt tokens per step; None lets the engine choose, which is recommended", 1, 2**32 - 1),
    ] = None
    max_predict_ms: Annotated[
        float | None,
        FieldMeta("ends a completion at the first newline more than this many milliseconds after its first token", 0),
    ] = None
    n_indent: Annotated[
        int,
        FieldMeta(
            "ends a completion at a line, after its first, that is indented by fewer spaces and tabs than this; 0 disables it. "
            "As "
            "in llama-server, an empty line ends it too, and the text ends with the indentation",
            0,
            2**32 - 1,
        ),
    ] = 0
    adapters: Annotated[
        Sequence[tuple[int, float]] | None,
        FieldMeta(
            "LoRA adapters for prompt and completions, as pairs of an adapter's index in `Engine.adapters` and its scale; "
            "adapters "
            "that are not listed are off. None is the set of `Engine.set_adapters`, initially of `EngineConfig.lora`. Requests "
            "share cached tokens only if their adapters are equal. An activated adapter (aLoRA), of which there is at most one, "
            "applies from its last invocation in the prompt, and shares the tokens before that with the base model; without an "
            "invocation it is off"
        ),
    ] = None
    use_cache: Annotated[bool, FieldMeta("reuse cached tokens of the prompt; False computes all of it")] = True
    prompt_logprobs: Annotated[
        int | None,
        FieldMeta(
            "number of top logprobs to report for each prompt token, 0 to 1,000, with the token's own: as `PromptLogprobs` "
            "events, "
            "before the first token. With 0 or 1, logprobs and cached tokens of earlier requests are reused; with more, the "
            "prompt "
            "is computed",
            0,
            1_000,
        ),
    ] = None
    prompt_logprobs_from: Annotated[
        int,
        FieldMeta(
            "first prompt token to report `prompt_logprobs` for, less than the prompt's length; all but one of the tokens "
            "before it "
            "may come from the cache. Requires `prompt_logprobs`",
            0,
            2**32 - 1,
        ),
    ] = 0
    report_progress: Annotated[bool, FieldMeta("report the progress of the prompt's computation, as `Progress` events")] = False
    checkpoints_at: Annotated[
        Sequence[int],
        FieldMeta(
            "positions in the prompt, in order, at most 16, where a recurrent or hybrid model stores a checkpoint, in addition "
            "to "
            "the end of the prompt. A later prompt that shares only the tokens up to there continues from it. With a sliding "
            "window, the window at the end of every prompt is kept. Other models need none: see `Limits.forks_anywhere`"
        ),
    ] = ()
    cache_answers: Annotated[
        bool,
        FieldMeta(
            "reuse the generated tokens of earlier requests with this option, of the same owner, where the prompt has their "
            "text: "
            "they are found in the cache even if the tokenizer would split the text differently"
        ),
    ] = False
    explain_cache: Annotated[
        bool,
        FieldMeta(
            "report the causes of cache misses in `Stream.explanation`, once branch 0 has started in a slot, and in that "
            "branch's "
            "`Finished.explanation`"
        ),
    ] = False
    owner: Annotated[
        str | None,
        FieldMeta("owner of the request; None is the anonymous owner. Explanations contain nothing of other owners' requests"),
    ] = None
    system_end: Annotated[
        int | None,
        FieldMeta("number of prompt tokens up to the end of the system message, for explanations; None if there is none"),
    ] = None
    slot: Annotated[int | None, FieldMeta("slot for branch 0 if it is free, from 0; None lets the engine choose")] = None

    def __post_init__(self) -> None:
        # Normalizes the shorthand forms.
        if isinstance(self.stop, str):
            force_setattr(self, "stop", (self.stop,))
        if isinstance(self.logit_bias, Mapping):
            force_setattr(self, "logit_bias", tuple(self.logit_bias.items()))
        if self.json_schema is not None and not isinstance(self.json_schema, str):
            force_setattr(self, "json_schema", schema_text(self.json_schema))

    @property
    def biases(self) -> Sequence[tuple[int, float]]:
        """`logit_bias` as pairs."""
        assert not isinstance(self.logit_bias, Mapping), "a request keeps pairs"
        return self.logit_bias

    @property
    def schema(self) -> str | None:
        """`json_schema` as JSON text."""
        assert self.json_schema is None or isinstance(self.json_schema, str), "a request keeps text"
        return self.json_schema


class RequestOptions(BranchOptions, total=False):
    """Fields of `Request` except the prompt, as keywords of `Engine.generate` and `Engine.complete`."""

    n: int
    distinct: bool
    diverse: Literal["arithmetic", "beam"] | None
    beam_width: int | None
    length_penalty: float
    branches: Sequence[BranchOptions]
    priority: int
    max_token_gap_ms: float | None
    n_batch: int | None
    use_cache: bool
    prompt_logprobs: int | None
    prompt_logprobs_from: int
    report_progress: bool
    checkpoints_at: Sequence[int]
    cache_answers: bool
    explain_cache: bool
    owner: str | None
    system_end: int | None
    slot: int | None
