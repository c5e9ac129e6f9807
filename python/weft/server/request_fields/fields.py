"""The fields of a completion, by llama-server's names and with its types."""

from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from weft.sampling_fields import Sampling

__all__ = [
    "BRANCH_NAMES",
    "FORK_NAMES",
    "BranchFields",
    "CompletionFields",
    "ForkFields",
    "LogitBias",
    "Prompt",
    "TextPrompt",
    "TriggerField",
]


class TextPrompt(msgspec.Struct):
    """llama-server's prompt with media: `<__media__>` in the text stands for the next of these, which are in base64."""

    prompt_string: str
    multimodal_data: list[str] | None = None


class TriggerField(msgspec.Struct):
    """llama-server's trigger of a lazy grammar: 0 is a token, 1 a word, 2 a pattern, 3 one for all of the text."""

    type: int
    value: str
    token: int | None = None


Prompt = str | TextPrompt | list[int | str | TextPrompt | list[int | str]]
"""One text, one list of tokens and texts, or a list of prompts."""

LogitBias = list[tuple[int | str, float | bool]] | dict[str, float | bool]
"""Pairs, or OpenAI's object; a text stands for each of its tokens, and `false` bans."""


_OF_THEIR_OWN_TYPE = {
    "samplers": str | list[str],  # Names in any of llama.cpp's spellings, as a list or with `;` between them, or its letters.
    "dry_sequence_breakers": list[str],
    "logit_bias": LogitBias,
}

if TYPE_CHECKING:

    class SamplingFields(msgspec.Struct, kw_only=True):
        """The fields of `Sampling`; only those that are asked for by name stand here."""

        samplers: str | list[str] | None = None
        dry_base: float | None = None
        dry_sequence_breakers: list[str] | None = None
        logit_bias: LogitBias | None = None
else:
    SamplingFields = msgspec.defstruct(
        "SamplingFields",
        [(name, _OF_THEIR_OWN_TYPE.get(name, hint) | None, None) for name, hint in get_type_hints(Sampling).items()],
        kw_only=True,
        module=__name__,
        namespace={"__doc__": "How a token is chosen, by the names of `Sampling`."},
    )


class CompletionFields(SamplingFields, kw_only=True):
    """Fields of a completion, in llama-server's spelling. `None` takes the server's default."""

    prompt: Prompt | None = None
    suffix_prompt: str | list[int | str] | None = None
    """What follows the prompt: a text that goes on where it ends, or tokens; a branch's own, most of all."""
    stream: bool | None = None
    n: int | None = None
    distinct: bool | None = None
    """Whether no two completions begin with the same token."""
    diverse: str | None = None
    """`arithmetic` spreads the completions over what could be said, `beam` draws whole texts without replacement."""
    beam_width: int | None = None
    """Beams of a search for the likeliest texts, of which the `n` best are told."""
    length_penalty: float | None = None
    """What their scores are divided by: their number of tokens, raised to this."""
    branches: list[dict[str, Any]] | None = None
    """In place of `n`: an object for each branch, with the fields that are its own; `BranchFields` are those that may be."""
    n_cmpl: int | None = None
    """llama-server's name for `n`, which it prefers."""
    n_predict: int | None = None
    """The limit; -1 is none. Of its three names, this one counts first and `max_tokens` last."""
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    """-1 and 2³² − 1 are any."""
    priority: int | None = None
    """-100 to 100: of requests that wait, the highest go first. (vLLM has the field too, but there the lowest go first.)"""
    max_token_gap_ms: float | None = None
    """The longest pause of the stream that others' prompts may cause, in milliseconds, 1 to 60,000; 0 or less is the server's."""
    t_max_predict_ms: float | None = None
    """A limit of time from the first token on, which ends a completion at its next line; 0 or less is none."""
    n_indent: int | None = None
    penalty_prompt: str | list[int | str] | None = None
    """What the penalties see in place of the prompt; text is not read for control tokens."""

    grammar: str | None = None
    json_schema: Any = None
    """A JSON schema, which may be any JSON."""
    response_format: dict[str, Any] | None = None
    """OpenAI's way to ask for JSON; llama-server takes its `schema` beside `json_object` too."""
    grammar_lazy: bool | None = None
    """Whether what is to be followed waits for one of the triggers."""
    grammar_triggers: list[TriggerField] | None = None
    preserved_tokens: list[str] | None = None
    """Texts that are one token each, and are shown also where they are control tokens."""

    reasoning_budget_tokens: int | None = None
    """Most tokens of a thought; below 0 is no limit."""
    thinking_budget_tokens: int | None = None
    """llama-server's other name for it."""
    reasoning_budget_message: str | None = None
    """What is said before the end of a thought whose budget is used up."""
    reasoning_budget_start_tag: str | None = None
    """What begins a thought, and what ends one: a chat's template says so, and a body for other prompts."""
    reasoning_budget_end_tags: list[str] | None = None
    reasoning_budget_end_tag: str | None = None
    generation_prompt: str | None = None
    """The end of the prompt that is the answer's beginning, which says whether a thought has begun in it."""

    n_keep: int | None = None
    """Tokens of the prompt that a shift of the context keeps; -1 keeps all."""
    n_discard: int | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = None
    """The slot that is wished for; -1 is none in particular, any other integer wraps around the slots there are."""

    lora: Any = None
    """The adapters that are on, as `[{"id", "scale"}]`; those that are not named are off, and `[]` leaves them to the server."""

    n_probs: int | None = None
    logprobs: int | None = None
    """OpenAI's name for `n_probs`."""
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: str | list[str] | None = None
    """What a finished answer is to hold, as paths like `generation_settings/n_predict`; none is all of it."""
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    explain_cache: bool | None = None
    """Whether the answer tells why what was computed of the prompt had to be: `cache_explanation`."""
    verbose: bool | None = None
    """Whether OpenAI's answers hold llama-server's own beside them, as `__verbose`."""
    sse_ping_interval: int | None = None
    """Seconds of silence after which a stream carries a comment; 0 or less is never."""

    backend_sampling: bool | None = None
    """Where tokens are drawn, in llama-server: on the device or beside it. Here Weft draws them, and they are the same."""

    # What follows is refused unless it asks for nothing.
    anti_prompt: Any = None
    assistant_name: Any = None
    best_of: Any = None
    image_data: Any = None
    n_cache_reuse: int | None = None
    parse_tool_calls: Any = None
    reasoning_format: Any = None
    service_tier: str | None = None
    store: bool | None = None
    system_prompt: Any = None
    t_max_prompt_ms: float | None = None
    tools: Any = None


BRANCH_NAMES = (
    "suffix_prompt",
    *(field.name for field in msgspec.structs.fields(SamplingFields)),
    *("n_predict", "max_completion_tokens", "max_tokens", "stop", "seed", "t_max_predict_ms", "n_indent", "penalty_prompt"),
    *("grammar", "json_schema", "response_format", "grammar_lazy", "grammar_triggers", "preserved_tokens"),
    *("n_keep", "n_discard", "lora", "n_probs"),
)
"""Fields of a completion that each branch may have of its own."""

FORK_NAMES = tuple(name for name in BRANCH_NAMES if name not in ("suffix_prompt", "lora"))
"""Fields that forks of a branch may have of their own."""

if TYPE_CHECKING:

    class ForkFields(CompletionFields):
        """What forks say of themselves; what they leave unsaid is their branch's. It has the fields of `FORK_NAMES` alone."""

    class BranchFields(CompletionFields):
        """What one branch says of itself; what it leaves unsaid is the body's. It has the fields of `BRANCH_NAMES` alone."""
else:
    _HINTS = get_type_hints(CompletionFields)
    BranchFields = msgspec.defstruct(
        "BranchFields",
        [(name, _HINTS[name], None) for name in BRANCH_NAMES],
        kw_only=True,
        module=__name__,
        namespace={"__doc__": "What one branch says of itself; what it leaves unsaid is the body's."},
    )
    ForkFields = msgspec.defstruct(
        "ForkFields",
        [(name, _HINTS[name], None) for name in FORK_NAMES],
        kw_only=True,
        module=__name__,
        namespace={"__doc__": "What forks say of themselves; what they leave unsaid is their branch's."},
    )
