"""Sampling parameters of requests and of their branches."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec.structs import force_setattr

from weft.fields.meta import Range, described
from weft.request.reasoning import GrammarTrigger, ReasoningConfig
from weft.request.schema import JsonSchema, schema_text
from weft.sampling_fields import Sampling

__all__ = ["SamplingParams"]


@described
class SamplingParams(Sampling, frozen=True, kw_only=True):
    """Parameters of one completion: sampling, limits and constraints. The defaults are llama-server's.

    The constructor does not validate; requests do.
    """

    max_tokens: Annotated[
        int | None,
        "maximum tokens of one completion; None is the rest of the context, 0 only computes the prompt",
        Range(0, 2**32 - 1),
    ] = None
    stop: Annotated[str | Sequence[str], "stop string, or several; the text ends before it"] = ()
    seed: Annotated[
        int | None,
        "seed: branch `i` uses a generator seeded with `seed + i` (modulo 2³²), `0 ≤ seed < 2³²`; None is a random seed, "
        "reported by `Stream.seed`",
        Range(0, 2**32 - 1),
    ] = None
    penalty_prompt: Annotated[
        Sequence[int] | None,
        "tokens that the penalties use in place of the prompt, at most as many as a slot's context; None is the prompt",
    ] = None
    logprobs: Annotated[
        int | None,
        "number of top logprobs to report with each token's own, 0 to 1,000; 0 reports only that of the token, None none",
        Range(0, 1_000),
    ] = None
    post_sampling_probs: Annotated[bool, "report probabilities after the samplers, not those of the model"] = False
    grammar: Annotated[str | None, "GBNF grammar that every completion must match, starting at the rule `root`"] = None
    json_schema: Annotated[
        JsonSchema | None,
        "JSON schema that every completion must match, as JSON text; excludes `grammar`. Also a mapping, or a type to derive "
        "the schema from: a struct, a dataclass, a pydantic model",
    ] = None
    grammar_lazy: Annotated[
        bool,
        "activate the grammar, or the schema, only when one of `grammar_triggers` matches: text before it is unconstrained, "
        "and text after it must match. The grammar begins where the trigger specifies, at most 65,536 bytes before the token "
        "that completes the trigger; tokens that would begin it with invalid text are not sampled",
    ] = False
    grammar_triggers: Annotated[
        Sequence[GrammarTrigger],
        "triggers of a lazy grammar, 1 to 64, at most 16,384 bytes together. The first that matches after a token applies",
    ] = ()
    preserved_tokens: Annotated[
        Sequence[str],
        "texts of single tokens that are included in the output, even if they are control or end tokens; at most 256, of "
        "16,384 bytes together. A text that is not a single token of this model is ignored",
    ] = ()
    reasoning: Annotated[ReasoningConfig | None, "markers and budget of reasoning; None treats reasoning like other text"] = None
    context_shift: Annotated[
        bool, "when the context is full, drop tokens from the middle, compute the rest again and continue, instead of ending"
    ] = False
    n_keep: Annotated[
        int | None,
        "number of tokens at the beginning that a context shift keeps, in addition to a BOS token, but never the last four "
        "of a context; None keeps the whole prompt",
    ] = 0
    n_discard: Annotated[
        int, "number of tokens that a context shift drops; 0 is half of those after n_keep", Range(0, 2**32 - 1)
    ] = 0
    max_predict_ms: Annotated[
        float | None, "ends a completion at the first newline more than this many milliseconds after its first token", Range(0)
    ] = None
    n_indent: Annotated[
        int,
        "ends a completion at a line, after its first, that is indented by fewer spaces and tabs than this; 0 disables it. "
        "As in llama-server, an empty line ends it too, and the text ends with the indentation",
        Range(0, 2**32 - 1),
    ] = 0

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
