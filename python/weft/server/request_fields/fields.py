"""Fields of a completion, with llama-server's names and types."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import msgspec

from weft.chat.request_options import REASONING_FORMATS
from weft.sampling_fields import Sampling
from weft.server.request_fields.unsupported import EMPTY, UnsupportedUnless


class TextPrompt(msgspec.Struct):
    """llama-server's prompt with media: `<__media__>` in the text marks the position of the next file, which is in base64."""

    prompt_string: str
    multimodal_data: list[str] | None = None


class TriggerField(msgspec.Struct):
    """llama-server's trigger of a lazy grammar: 0 is a token, 1 a word, 2 a pattern, 3 a pattern for the whole text."""

    type: int
    value: str
    token: int | None = None


class PredictedText(msgspec.Struct):
    """A part of a predicted output."""

    text: str
    type: Literal["text"] = "text"


class Prediction(msgspec.Struct):
    """OpenAI's predicted output: text that the completions probably repeat."""

    content: str | list[PredictedText]
    type: Literal["content"] = "content"

    @property
    def text(self) -> str:
        """The whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


Prompt = str | TextPrompt | list[int | str | TextPrompt | list[int | str]]
"""One text, one list of tokens and texts, or a list of prompts."""

LogitBias = list[tuple[int | str, float | bool]] | dict[str, float | bool]
"""Pairs, or OpenAI's object; a text applies to each of its tokens, and `false` bans."""


_OWN_TYPES = {
    "samplers": str | list[str],  # Names in any of llama.cpp's spellings, as a list or separated by `;`, or its letters.
    "dry_sequence_breakers": list[str],
    "logit_bias": LogitBias,
}

if TYPE_CHECKING:

    class SamplingFields(msgspec.Struct, kw_only=True):
        """The fields of `Sampling`; declares only the fields that code accesses by attribute."""

        samplers: str | list[str] | None = None
        dry_base: float | None = None
        dry_sequence_breakers: list[str] | None = None
        logit_bias: LogitBias | None = None
else:
    SamplingFields = msgspec.defstruct(
        "SamplingFields",
        [(name, _OWN_TYPES.get(name, hint) | None, None) for name, hint in get_type_hints(Sampling).items()],
        kw_only=True,
        module=__name__,
        namespace={"__doc__": "Sampling parameters, with the names of `Sampling`."},
    )


def _is_reasoning_format(value: Any) -> bool:  # noqa: ANN401 (any JSON)
    """Returns whether llama.cpp's page may send it. It applies to chats; the text of a completion is never split."""
    return isinstance(value, str) and (not value or value in REASONING_FORMATS)


class CompletionFields(SamplingFields, kw_only=True):
    """Fields of a completion, with llama-server's names. `None` selects the server's default."""

    prompt: Prompt | None = None
    suffix_prompt: str | list[int | str] | None = None
    """Text or tokens after the prompt; mostly set per branch."""
    stream: bool | None = None
    n: int | None = None
    distinct: bool | None = None
    """Begins all completions with different tokens."""
    diverse: str | None = None
    """`arithmetic` spreads the completions over the distribution; `beam` samples whole texts without replacement."""
    beam_width: int | None = None
    """Number of beams in a search for the most likely texts, of which the `n` best are returned."""
    length_penalty: float | None = None
    """Exponent of the length by which scores are divided."""
    branches: list[dict[str, Any]] | None = None
    """Alternative to `n`: an object with options for each branch; see `BranchFields` for the allowed ones."""
    n_cmpl: int | None = None
    """llama-server's name for `n`, which has priority."""
    n_predict: int | None = None
    """Maximum tokens; -1 is unlimited. Of the three names, this one has the highest priority and `max_tokens` the lowest."""
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    """-1 and 2³² - 1 select a random seed."""
    priority: int | None = None
    """-100 to 100; higher values are scheduled first (in vLLM, lower values are)."""
    max_token_gap_ms: float | None = None
    """Maximum pause of the stream while other prompts are computed, in milliseconds, 1 to 60,000; values up to 0 select the
    server's."""
    speculative_n_max: int | None = msgspec.field(default=None, name="speculative.n_max")
    """Maximum drafted tokens per step, 0 to 64; 0 disables speculative decoding, values below 0 select the server's."""
    speculative_type: str | None = msgspec.field(default=None, name="speculative.type")
    """`none` disables speculative decoding; any other name selects the server's type."""
    prediction: Prediction | None = None
    """Text that the completions probably repeat, such as a file to be edited: drafts are taken from it."""
    t_max_predict_ms: float | None = None
    """Time limit from the first token on, in milliseconds, after which a completion ends at the next line; values up to 0 disable
    it."""
    n_indent: int | None = None
    penalty_prompt: str | list[int | str] | None = None
    """Text that the penalties use in place of the prompt; not parsed for special tokens."""

    grammar: str | None = None
    json_schema: Any = None
    """A JSON schema, as any JSON value."""
    response_format: dict[str, Any] | None = None
    """OpenAI's structured output; llama-server also accepts `schema` with `json_object`."""
    grammar_lazy: bool | None = None
    """Applies the constraint only after one of the triggers."""
    grammar_triggers: list[TriggerField] | None = None
    preserved_tokens: list[str] | None = None
    """Texts that are single tokens and are output even if they are control tokens."""

    reasoning_budget_tokens: int | None = None
    """Maximum tokens of reasoning; negative is unlimited."""
    thinking_budget_tokens: int | None = None
    """llama-server's alternative name."""
    reasoning_budget_message: str | None = None
    """Text inserted at the end of reasoning whose budget is exhausted."""
    reasoning_budget_start_tag: str | None = None
    """Markers of reasoning. Chat templates define them; other prompts must provide them here."""
    reasoning_budget_end_tags: list[str] | None = None
    reasoning_budget_end_tag: str | None = None
    generation_prompt: str | None = None
    """End of the prompt that begins the answer, possibly opening the reasoning."""

    n_keep: int | None = None
    """Prompt tokens that a context shift keeps; -1 keeps all."""
    n_discard: int | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = None
    """Preferred slot; -1 for any, other integers are taken modulo the number of slots."""

    lora: Any = None
    """Active adapters, as `[{"id", "scale"}]`; unlisted ones are inactive, and `[]` uses the server's set."""

    n_probs: int | None = None
    logprobs: int | None = None
    """OpenAI's name for `n_probs`."""
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: str | list[str] | None = None
    """Fields that a complete response includes, as paths like `generation_settings/n_predict`; all if empty."""
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    explain_cache: bool | None = None
    """Adds `cache_explanation` to the response: which prompt tokens had to be computed, and why."""
    verbose: bool | None = None
    """Adds llama-server's result to OpenAI's responses, as `__verbose`."""
    sse_ping_interval: int | None = None
    """Seconds of silence after which a stream sends a comment; values up to 0 disable it."""

    backend_sampling: bool | None = None
    """In llama-server, samples on the device or on the host. Ignored: Weft's samplers give the same result."""

    # UnsupportedUnless: refused unless the value disables the feature.
    anti_prompt: Annotated[Any, EMPTY] = None
    assistant_name: Annotated[Any, EMPTY] = None
    best_of: Annotated[Any, UnsupportedUnless(lambda value: value == 1)] = None
    image_data: Annotated[Any, EMPTY] = None
    n_cache_reuse: Annotated[int | None, UnsupportedUnless(lambda value: value == 0)] = None
    parse_tool_calls: Annotated[Any, UnsupportedUnless(lambda value: value is False)] = None
    reasoning_format: Annotated[Any, UnsupportedUnless(_is_reasoning_format)] = None
    service_tier: Annotated[str | None, UnsupportedUnless(lambda value: value in ("auto", "default"))] = None
    store: Annotated[bool | None, UnsupportedUnless(lambda value: value is False)] = None
    system_prompt: Annotated[Any, EMPTY] = None
    t_max_prompt_ms: Annotated[float | None, UnsupportedUnless(lambda value: value <= 0)] = None
    tools: Annotated[Any, EMPTY] = None


BRANCH_NAMES = (
    "suffix_prompt",
    *(field.name for field in msgspec.structs.fields(SamplingFields)),
    *("n_predict", "max_completion_tokens", "max_tokens", "stop", "seed", "t_max_predict_ms", "n_indent", "penalty_prompt"),
    *("grammar", "json_schema", "response_format", "grammar_lazy", "grammar_triggers", "preserved_tokens"),
    *("n_keep", "n_discard", "lora", "n_probs"),
)
"""Fields of a completion that each branch may set."""

FORK_NAMES = tuple(name for name in BRANCH_NAMES if name not in ("suffix_prompt", "lora"))
"""Fields that forks of a branch may set."""

WRITING_NAMES = (
    *BRANCH_NAMES,
    *("n", "branches", "distinct", "diverse", "beam_width", "length_penalty", "priority", "max_token_gap_ms", "prediction"),
    *("speculative_n_max", "speculative_type", "cache_prompt"),
)
"""Fields of a completion for branches that the server writes into a document."""

if TYPE_CHECKING:

    class WritingFields(CompletionFields):
        """Options of branches that the server writes into a document. Only the fields of `WRITING_NAMES` exist."""

    class ForkFields(CompletionFields):
        """Options of forks; missing ones are the branch's. Only the fields of `FORK_NAMES` exist."""

    class BranchFields(CompletionFields):
        """Options of one branch; missing ones are the body's. Only the fields of `BRANCH_NAMES` exist."""
else:

    def _subset(name: str, fields: Iterable[str], about: str) -> type[msgspec.Struct]:
        hints = get_type_hints(CompletionFields)
        names = {field.name: field.encode_name for field in msgspec.structs.fields(CompletionFields)}
        options = [(field, hints[field], msgspec.field(default=None, name=names[field])) for field in fields]
        return msgspec.defstruct(name, options, kw_only=True, module=__name__, namespace={"__doc__": about})

    WritingFields = _subset(
        "WritingFields", WRITING_NAMES, "Options of branches that the server writes into a document, as of a completion."
    )
    BranchFields = _subset("BranchFields", BRANCH_NAMES, "Options of one branch; missing ones are the body's.")
    ForkFields = _subset("ForkFields", FORK_NAMES, "Options of forks; missing ones are the branch's.")
