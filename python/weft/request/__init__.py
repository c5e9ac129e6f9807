"""What a caller asks for."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias, TypedDict

from msgspec.structs import force_setattr

from weft._native import Media, MixedPrompt
from weft.fields.about import About, described
from weft.request.schema import JsonSchema, schema_text
from weft.request.thought import GrammarTrigger, Thought
from weft.sampling_fields import Sampling

__all__ = ["BranchOptions", "ForkOptions", "Prompt", "Request", "RequestOptions"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[str | int | Media | Sequence[int]] | MixedPrompt
"""What may be continued."""


class ForkOptions(TypedDict, total=False):
    """What forks of a branch may say, see `Stream.fork`; what they leave unsaid is the branch's."""

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
    thought: Thought | None
    context_shift: bool
    n_keep: int | None
    n_discard: int
    max_predict_ms: float | None
    n_indent: int


class BranchOptions(ForkOptions, total=False):
    """What one of `Request.branches` may say of itself; what it leaves unsaid is the request's."""

    suffix_prompt: str | Sequence[int] | None
    adapters: Sequence[tuple[int, float]] | None


@described
class Request(Sampling, frozen=True, kw_only=True):
    """One prompt, `n` completions. The defaults are llama-server's.

    Nothing is checked here: `Engine.generate` checks every field and raises `InvalidRequest` with the name of the first that is
    wrong.
    """

    prompt: Annotated[
        Prompt,
        About(
            "what is to be continued: at least one token. A string is tokenized with the special tokens that the "
            "model's vocabulary asks for, and the spelling of a control token in it is read as that token. A list may hold "
            "strings, token ids and media (`Engine.read_media`)"
        ),
    ]
    n: Annotated[int, About("how many completions, 1 to 256. The prompt is computed once for all", 1, 256)] = 1
    distinct: Annotated[
        bool,
        About(
            "whether no two of the `n` completions begin with the same token: the first tokens are drawn without replacement, by "
            "Gumbel top-k (Kool et al. 2019, arXiv 1903.06059), from what the samplers leave. Where they leave fewer than `n`, "
            "the last completions have no token, and end as texts do"
        ),
    ] = False
    diverse: Annotated[
        Literal["arithmetic", "beam"] | None,
        About(
            'how else the `n` completions are kept apart. "arithmetic": each is drawn as it would be alone, and together they '
            "are spread evenly over what the model could say (arithmetic sampling, Vilnis et al. 2022, arXiv 2210.15458): "
            'completion `i` has the code point `(u + i / n) mod 1`, with one `u` of the seed. "beam": whole texts are drawn '
            "without replacement (stochastic beam search, arXiv 1903.06059), with `beam_width` beams or, unsaid, `n`"
        ),
    ] = None
    beam_width: Annotated[
        int | None,
        About(
            "searches for the likeliest texts with so many beams, 2 to the number of slots, and tells the `n` best, at most as "
            "many, with their `Finished.score`. All beams are in slots together, and are forks of each other: a search computes "
            "the prompt, and at most one token for each beam and token. A temperature of 0, which would leave one text, is 1 "
            "here. None is no search",
            2,
        ),
    ] = None
    length_penalty: Annotated[
        float,
        About(
            "texts that a search finds are ranked by the sum of their tokens' log-probabilities, divided by their number raised "
            "to this: 1 is the mean, 0 the sum, and more is kinder to long texts. 1 where they are drawn",
            -10,
            10,
        ),
    ] = 1.0
    branches: Annotated[
        Sequence[BranchOptions],
        About(
            "completions that differ, at most 256: a mapping for each, with the fields of `BranchOptions` that are its own; "
            "the others are the request's. `n` is their number, or left out. What they share of the prompt is computed once for "
            "each set of adapters"
        ),
    ] = ()
    suffix_prompt: Annotated[
        str | Sequence[int] | None,
        About(
            "what follows the prompt, as a text or as token ids: a branch's own text. A text is tokenized as one that goes on: "
            "without the tokens that begin a text and without the space that some vocabularies put before one, its control "
            "tokens read where the prompt's are. The tokens of prompt and suffix are put one behind the other, so that both "
            "sides of the seam may be cut otherwise than in a text of both"
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        About("most tokens of one completion; None is until the context is full, 0 only computes the prompt", 0, 2**32 - 1),
    ] = None
    stop: Annotated[str | Sequence[str], About("strings that end a completion, or one; none of them is part of its text")] = ()
    seed: Annotated[
        int | None,
        About(
            "branch `i` draws from a generator seeded with `seed + i` (modulo 2³²), `0 ≤ seed < 2³²`; None is a random "
            "seed, reported by `Stream.seed`",
            0,
            2**32 - 1,
        ),
    ] = None
    penalty_prompt: Annotated[
        Sequence[int] | None,
        About(
            "what the penalties see in place of the prompt, at most as many tokens as a slot's context holds; None is the prompt"
        ),
    ] = None
    n_probs: Annotated[
        int,
        About(
            "reports the log-probabilities of each chosen token and of this many most likely ones, 0 to 1,000; 0 is off", 0, 1_000
        ),
    ] = 0
    post_sampling_probs: Annotated[bool, About("whether these are of what the samplers left, and not of what the model gave")] = (
        False
    )
    grammar: Annotated[str | None, About("a grammar in GBNF that every completion follows, from its rule `root`")] = None
    json_schema: Annotated[
        JsonSchema | None,
        About(
            "a JSON schema that every completion follows, as JSON text; not beside a grammar. A mapping is taken too, "
            "and a type whose values are to be written: a struct, a dataclass, a model of pydantic's"
        ),
    ] = None
    grammar_lazy: Annotated[
        bool,
        About(
            "whether the grammar, or the schema, waits for the first of `grammar_triggers`: until then nothing is held to, from "
            "then on every text follows it. It reads the text from where the trigger says on, at most 65,536 bytes before the "
            "token with which that is met; a token that would begin it with what it does not allow is not drawn"
        ),
    ] = False
    grammar_triggers: Annotated[
        Sequence[GrammarTrigger],
        About("what it waits for, one or more: at most 64 of 16,384 bytes together. The first that is met after a token counts"),
    ] = ()
    preserved_tokens: Annotated[
        Sequence[str],
        About(
            "texts that are one token each, at most 256 of 16,384 bytes together: where such a token is drawn it is shown, "
            "also where it is a control token or ends the text. A text that is no token of this model is passed over"
        ),
    ] = ()
    thought: Annotated[
        Thought | None, About("what of a completion is a thought, and how long that may be; None is nothing in particular")
    ] = None
    context_shift: Annotated[
        bool, About("where the context is full: drops the middle, computes what follows again and goes on, instead of ending")
    ] = False
    n_keep: Annotated[
        int | None,
        About(
            "tokens of the beginning that a shift keeps, besides the one that begins every text where the vocabulary "
            "asks for it, but never the last four of a context; None keeps the whole prompt"
        ),
    ] = 0
    n_discard: Annotated[int, About("tokens that a shift drops after these; 0 is half of them", 0, 2**32 - 1)] = 0
    priority: Annotated[
        int,
        About(
            "of requests that wait, and of prompts that are computed, those of the highest priority go first: -100 to "
            "100. Where no slot is free, the branch of lower priority that came last gives its own up for a while, and "
            "then goes on. One priority more counts as much as having come 1,000 turns earlier (a turn is the start of "
            "a branch, of whatever request), so that nobody waits for ever",
            -100,
            100,
        ),
    ] = 0
    max_token_gap_ms: Annotated[
        float | None,
        About(
            "the longest time, in milliseconds, between two tokens of its completions that others' prompts may cause, "
            "1 to 60,000; None leaves it to the engine's `max_token_gap_ms`",
            1,
            60_000,
        ),
    ] = None
    n_batch: Annotated[
        int | None,
        About("most tokens of the prompt that one step computes; None leaves it to the engine, which knows best", 1, 2**32 - 1),
    ] = None
    max_predict_ms: Annotated[
        float | None,
        About("ends a completion with the first new line that it shows later than so many milliseconds after its first token", 0),
    ] = None
    n_indent: Annotated[
        int,
        About(
            "ends a completion at a line, after its first, that is indented by fewer spaces and tabs than this; 0 is "
            "off. The rule is llama-server's: an empty line ends it too, and the text ends with the indentation",
            0,
            2**32 - 1,
        ),
    ] = 0
    adapters: Annotated[
        Sequence[tuple[int, float]] | None,
        About(
            "the adapters (LoRA) that prompt and completions are computed with, as pairs of an adapter's number in "
            "`Engine.adapters` and its scale; what is not named is off. None is what `Engine.set_adapters` said last, at "
            "first what `EngineConfig.lora` says. Requests with equal adapters share what is computed, others nothing. "
            "An activated one (aLoRA), of which there is at most one, counts from the last place of its invocation in the prompt "
            "on, and shares what is before that with the model alone; where the prompt lacks it, it is off"
        ),
    ] = None
    use_cache: Annotated[bool, About("whether what is cached of the prompt is used; otherwise all of it is computed")] = True
    prompt_logprobs: Annotated[
        int | None,
        About(
            "reports the log-probabilities of the prompt's tokens and of this many most likely ones in the place of "
            "each, 0 to 1,000: as `PromptLogprobs`, before the first token. With 0 or 1, what an earlier prompt was told of "
            "the tokens that it begins with is told again, and what is cached of them is used; with more, they are computed",
            0,
            1_000,
        ),
    ] = None
    prompt_logprobs_from: Annotated[
        int,
        About(
            "reports them of the tokens from this one on, below the prompt's length: what stands before it is taken from the "
            "cache, but for one token. Only beside `prompt_logprobs`",
            0,
            2**32 - 1,
        ),
    ] = 0
    report_progress: Annotated[bool, About("whether the stream tells how far the prompt is computed: as `Progress`")] = False
    snapshots_at: Annotated[
        Sequence[int],
        About(
            "where, in tokens of the prompt, a model whose memory cannot be cut keeps a snapshot besides at its end; "
            "in order, at most 16. A later prompt that has only the tokens up to there goes on from it. With a sliding "
            "window, what it sees at the end of any prompt is kept. Other models "
            "need none: see `Limits.forks_anywhere`"
        ),
    ] = ()
    keep_answers: Annotated[
        bool,
        About(
            "whether what was written for earlier requests with this, of the same owner, is computed in the tokens that it was "
            "written in, where the prompt spells it: then it is known, however the tokenizer would cut it"
        ),
    ] = False
    explain_cache: Annotated[
        bool,
        About(
            "whether `Stream.explanation`, once branch 0 has begun in a slot, and `Finished.explanation` of that branch tell why "
            "what is computed of the prompt has to be"
        ),
    ] = False
    owner: Annotated[
        str | None,
        About("whose request it is; None is whoever names nobody. What others sent or were told is in no explanation"),
    ] = None
    system_end: Annotated[
        int | None,
        About("the token of the prompt before which the system's message ends; None where there is none. Explanations name it"),
    ] = None
    slot: Annotated[
        int | None, About("the slot that branch 0 takes where that one is free, from 0; None leaves the choice to the engine")
    ] = None

    def __post_init__(self) -> None:
        # What is shorter to write means the same, and is one thing from here on.
        if isinstance(self.stop, str):
            force_setattr(self, "stop", (self.stop,))
        if isinstance(self.logit_bias, Mapping):
            force_setattr(self, "logit_bias", tuple(self.logit_bias.items()))
        if self.json_schema is not None and not isinstance(self.json_schema, str):
            force_setattr(self, "json_schema", schema_text(self.json_schema))

    @property
    def biases(self) -> Sequence[tuple[int, float]]:
        """`logit_bias` as pairs, whatever it was given as."""
        assert not isinstance(self.logit_bias, Mapping), "a request keeps pairs"
        return self.logit_bias

    @property
    def schema(self) -> str | None:
        """`json_schema` as JSON text, whatever it was given as."""
        assert self.json_schema is None or isinstance(self.json_schema, str), "a request keeps text"
        return self.json_schema


class RequestOptions(BranchOptions, total=False):
    """The fields of `Request` but the prompt, as keywords of `Engine.generate` and `Engine.complete`."""

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
    snapshots_at: Sequence[int]
    keep_answers: bool
    explain_cache: bool
    owner: str | None
    system_end: int | None
    slot: int | None
