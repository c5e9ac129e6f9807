"""What a caller asks for."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec
from msgspec.structs import force_setattr

from weft.schema import JsonSchema, schema_text

__all__ = ["SAMPLERS", "Request", "RequestOptions"]

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama-server's chain, with tail-free sampling after top-k."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, `n` completions. The defaults are llama-server's.

    Nothing is checked here: `Engine.generate` checks every field and raises `InvalidRequest` with the name of the first that is
    wrong.
    """

    prompt: str | Sequence[int]
    """What is to be continued: at least one token. A string is tokenized with the special tokens that the model's vocabulary asks
    for, and the spelling of a control token in it is read as that token."""
    n: int = 1
    """How many completions, 1 to 256. The prompt is computed once for all."""
    max_tokens: int | None = None
    """Most tokens of one completion; None is until the context is full, 0 only computes the prompt."""
    stop: str | Sequence[str] = ()
    """Strings that end a completion, or one; none of them is part of its text."""
    seed: int | None = None
    """Branch `i` draws from a generator seeded with `seed + i` (modulo 2³²), `0 ≤ seed < 2³²`; None is a random seed, reported by
    `Completions.seed`."""
    samplers: Sequence[str] = SAMPLERS
    """The chain that narrows the candidates down, in order: names of `SAMPLERS`, `adaptive_p` and `infill`, repeats allowed. A
    step that is not named has no effect. llama-server's other spellings (`top-k`, `topk`, `typical_p`, `nucleus`, `temp`) and
    llama.cpp's letters, one by one, are read too."""
    temperature: float = 0.8
    """Divides the logits before the draw; 0 or less takes the most likely token."""
    dynatemp_range: float = 0.0
    """The temperature moves by up to this much around `temperature`, the higher the more uncertain the model is; 0 is off."""
    dynatemp_exponent: float = 1.0
    """Bends the way from uncertainty to temperature."""
    top_k: int = 40
    """Keeps the k most likely tokens; 0 or less keeps all."""
    top_p: float = 0.95
    """Keeps the smallest set of most likely tokens whose probabilities sum to this; 1 keeps all."""
    min_p: float = 0.05
    """Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all."""
    typical_p: float = 1.0
    """Keeps the tokens that are about as surprising as the average one, up to this sum of probabilities; 1 keeps all."""
    top_n_sigma: float = -1.0
    """Keeps tokens whose logits are at most this many standard deviations below the greatest; 0 or less keeps all."""
    tfs_z: float = 1.0
    """Cuts off the tail of the distribution where its curve has become flat; 1 keeps all."""
    xtc_probability: float = 0.0
    """How often the most likely tokens are taken away: 0 is never, 1 always."""
    xtc_threshold: float = 0.1
    """All but the least likely of the tokens that are at least so likely are taken away; above 0.5 is off."""
    min_keep: int = 0
    """Fewest tokens that a filter leaves."""
    repeat_penalty: float = 1.0
    """Divides (or, where negative, multiplies) the logits of tokens seen in the window; 1 is off."""
    repeat_last_n: int = 64
    """Window of the three penalties in tokens; 0 is off, -1 is the whole context."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token seen in the window."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token for each time it is seen in the window."""
    penalize_nl: bool = True
    """Whether the penalties count newlines too."""
    penalty_prompt: Sequence[int] | None = None
    """What the penalties see in place of the prompt, at most as many tokens as a slot's context holds; None is the prompt."""
    dry_multiplier: float = 0.0
    """Strength of the penalty on tokens that would go on with a repetition; 0 is off."""
    dry_base: float = 1.75
    """Raised to the length of the repetition beyond `dry_allowed_length`; below 1 is off."""
    dry_allowed_length: int = 2
    """Repetitions of up to so many tokens are free."""
    dry_penalty_last_n: int = 64
    """Window in tokens in which repetitions are looked for; 0 is off, -1 the whole context."""
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    """Texts at which a repetition ends."""
    mirostat: int = 0
    """1 and 2 let that version of Mirostat take the place of the chain."""
    mirostat_tau: float = 5.0
    """Mirostat's aim, in bits of surprise per token."""
    mirostat_eta: float = 0.1
    """How fast Mirostat learns."""
    adaptive_target: float = -1.0
    """Prefers tokens about as likely as this, 0 to 1, where `samplers` names `adaptive_p`; below 0 is off."""
    adaptive_decay: float = 0.9
    """How long the adaptive target remembers, 0 to 0.99: about 1 / (1 - decay) tokens."""
    logit_bias: Sequence[tuple[int, float]] | Mapping[int, float] = ()
    """Added to the logits of these tokens; minus infinity bans a token. At most as many as the vocabulary has
    pieces. A mapping of tokens is taken too."""
    ignore_eos: bool = False
    """Bans every end token."""
    n_probs: int = 0
    """Reports the log-probabilities of each chosen token and of this many most likely ones, 0 to 1,000; 0 is off."""
    post_sampling_probs: bool = False
    """Whether these are of what the samplers left, and not of what the model gave."""
    grammar: str | None = None
    """A grammar in GBNF that every completion follows, from its rule `root`."""
    json_schema: JsonSchema | None = None
    """A JSON schema that every completion follows, as JSON text; not beside a grammar. A mapping is taken
    too, and a type whose values are to be written: a struct, a dataclass, a model of pydantic's."""
    context_shift: bool = False
    """Where the context is full: drops the middle, computes what follows again and goes on, instead of ending."""
    n_keep: int | None = 0
    """Tokens of the beginning that a shift keeps, besides the one that begins every text where the vocabulary asks for it, but
    never the last four of a context; None keeps the whole prompt."""
    n_discard: int = 0
    """Tokens that a shift drops after these; 0 is half of them."""
    priority: int = 0
    """Of requests that wait, and of prompts that are computed, those of the highest priority go first: -100 to 100. Where no slot
    is free, the branch of lower priority that came last gives its own up for a while, and then goes on. One priority more counts
    as much as having come 1,000 turns earlier (a turn is the start of a branch, of whatever request), so that nobody waits
    for ever."""
    max_token_gap_ms: float | None = None
    """The longest time, in milliseconds, between two tokens of its completions that others' prompts may cause, 1 to 60,000; None
    leaves it to the engine's `max_token_gap_ms`."""
    max_predict_ms: float | None = None
    """Ends a completion with the first new line that it shows later than so many milliseconds after its first token."""
    n_indent: int = 0
    """Ends a completion at a line, after its first, that is indented by fewer spaces and tabs than this; 0 is off. The rule is
    llama-server's: an empty line ends it too, and the text ends with the indentation."""
    use_cache: bool = True
    """Whether what is cached of the prompt is used; otherwise all of it is computed."""
    prompt_logprobs: int | None = None
    """Reports the log-probabilities of the prompt's tokens and of this many most likely ones in the place of each, 0 to 1,000: as
    `PromptLogprobs`, before the first token. All of the prompt is computed for it."""
    report_progress: bool = False
    """Whether the stream tells how far the prompt is computed: as `Progress`."""
    snapshots_at: Sequence[int] = ()
    """Where, in tokens of the prompt, a model whose memory cannot be cut keeps a snapshot besides at its end; in order, at most
    16. A later prompt that has only the tokens up to there goes on from it. Other models need none: see
    `Limits.forks_anywhere`."""
    slot: int | None = None
    """The slot that branch 0 takes where that one is free, from 0; None leaves the choice to the engine."""

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


class RequestOptions(TypedDict, total=False):
    """The fields of `Request` but the prompt, as keywords of `Engine.generate` and `Engine.complete`."""

    n: int
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
    context_shift: bool
    n_keep: int | None
    n_discard: int
    priority: int
    max_token_gap_ms: float | None
    max_predict_ms: float | None
    n_indent: int
    use_cache: bool
    prompt_logprobs: int | None
    report_progress: bool
    snapshots_at: Sequence[int]
    slot: int | None
