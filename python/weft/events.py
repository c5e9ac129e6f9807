"""Events of a stream: plain data that can be constructed, compared, copied, pickled, and encoded by msgspec."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from weft.fields.meta import described

__all__ = ["Event", "FinishReason", "Finished", "Logprob", "Logprobs", "Progress", "PromptLogprobs", "Token", "Usage"]

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]
"""Why generation of a branch ended."""

# The compiled engine constructs them with positional fields, in this order. They cannot be part of a reference cycle, so the
# garbage collector does not need to track them.


@described
class Logprob(msgspec.Struct, frozen=True, gc=False):
    """One token with its log-probability."""

    token: Annotated[int, "the token id"]
    bytes: Annotated[bytes, "bytes of the token, possibly not a complete character"]
    logprob: Annotated[float, "natural logarithm of its probability, 0 or less"]

    @property
    def text(self) -> str:
        """The bytes decoded as UTF-8, with U+FFFD for invalid sequences."""
        return self.bytes.decode(errors="replace")


@described
class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities (natural) under the model's own distribution, before bias, penalties and filters.

    With `post_sampling_probs`, under the distribution after the samplers; `top` is then shorter if they leave fewer tokens.
    """

    chosen: Annotated[Logprob, "the sampled token, or the prompt's token at this position"]
    top: Annotated[tuple[Logprob, ...], "the `logprobs` (or `prompt_logprobs`) most likely tokens, most likely first"] = ()


@described
class Token(msgspec.Struct, frozen=True, gc=False):
    """One token of one branch."""

    index: Annotated[int, "index of the branch, `0 <= index < n`"]
    token: Annotated[int, "the sampled token id; end tokens are included"]
    text: Annotated[
        str,
        "text that this token completes. Empty while bytes are held back because they are not a complete character or may "
        "begin a stop string. The texts of a branch, followed by that of its `Finished`, form its complete text.",
    ]
    slot: Annotated[int, "slot in which the branch runs"]
    n_predicted: Annotated[int, "generated tokens of this branch so far, including this one"]
    logprobs: Annotated[Logprobs | None, "log-probabilities, if the request has `logprobs`"] = None


@described
class PromptLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities of a range of prompt tokens, if `Request.prompt_logprobs` is set.

    Ranges come in order, once for all branches, and before the first token.
    """

    start: Annotated[int, "position of the first token of the range in the prompt"]
    logprobs: Annotated[
        tuple[Logprobs | None, ...],
        "one entry per token, given all tokens before it; None for the first token of the prompt",
    ]


@described
class Progress(msgspec.Struct, frozen=True, gc=False):
    """Progress of a prompt's computation, if `Request.report_progress` is set.

    Sent when the request starts in a slot, and after each decode that computed a part of the prompt.
    """

    n_prompt: Annotated[int, "prompt length in tokens"]
    n_cached: Annotated[int, "prompt tokens that were reused from the cache"]
    n_processed: Annotated[int, "prompt tokens that are available so far, cached or computed"]
    ms: Annotated[float, "milliseconds since the request started in a slot"]


@described
class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts and timings of one branch.

    Each computed prompt token counts in `n_computed` of the branch that computed it, and in `n_cached` of the others, so the sum
    of `n_computed` over all branches is the number of tokens that were actually computed.
    """

    n_computed: Annotated[int, "prompt tokens that this branch computed"]
    n_cached: Annotated[int, "prompt tokens that this branch reused"]
    n_predicted: Annotated[int, "generated tokens, including an end token"]
    n_context: Annotated[
        int,
        "tokens in the branch's context at its end: those of the prompt and all generated tokens but the last; fewer if the"
        " context was shifted.",
    ]
    prompt_ms: Annotated[float, "milliseconds from the start in a slot to the first token"]
    predicted_ms: Annotated[float, "milliseconds from the first token to the last"]
    n_drafted: Annotated[int, "tokens that speculative decoding drafted for this branch"] = 0
    n_draft_accepted: Annotated[int, "drafted tokens that were generated"] = 0

    @property
    def n_prompt(self) -> int:
        """Prompt length in tokens: `n_computed + n_cached`."""
        return self.n_computed + self.n_cached


@described
class EarlierRequest(msgspec.Struct, frozen=True, gc=False):
    """An earlier request of the same owner from which a prompt diverges."""

    request_id: Annotated[int, "id of the request, see `Stream.request_id`"]
    text: Annotated[str, "its text at the position of `ComputedRange.here`; empty if it ends there"]
    is_in_answer: Annotated[bool, "True if that text was generated, False if it is in the prompt"]


@described
class ComputedRange(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A range of prompt tokens that were computed, with the cause of the cache miss."""

    start: Annotated[int, "first token of the range"]
    end: Annotated[int, "end of the range (exclusive)"]
    cause: Annotated[
        Literal[
            "last_token",
            "awaited",
            "cache_unused",
            "never_seen",
            "new",
            "differs",
            "retokenized",
            "beginning",
            "system_changed",
            "bos",
            "too_short",
            "other_adapters",
            "evicted",
            "not_restored",
            "window",
            "no_checkpoint",
            "grouped",
            "media",
            "computing",
            "unfinished",
        ],
        "cause of the cache miss; the guide on cache misses describes each value",
    ]
    at: Annotated[int, "prompt token at which the cause lies: where texts diverge, else the first of the range"]
    byte: Annotated[int, "the same position as a byte offset in the text of the prompt's tokens, without media"]
    character: Annotated[int, "the same position as a character offset"]
    before: Annotated[str, "text of the few tokens before that position"]
    here: Annotated[str, "text of the tokens after that position, somewhat longer"]
    earlier: Annotated[
        EarlierRequest | None,
        "the earlier request that the cause refers to; None if there is none, or if another owner sent it",
    ] = None
    evicted_for: Annotated[
        Literal["device", "host", "erased", "failed"] | None,
        'why the range was evicted. "device": cells or a sequence id were needed. "host": the host cache was full. '
        '"erased": a client erased it. "failed": a decode failed. None if unknown, or if nothing was evicted.',
    ] = None
    evicted_s: Annotated[float | None, "seconds from the eviction to the start of the request"] = None


@described
class CacheExplanation(msgspec.Struct, frozen=True, gc=False):
    """Causes of the cache misses of a prompt, if `Request.explain_cache` is set."""

    request_id: Annotated[int, "id of the request, see `Stream.request_id`"]
    n_prompt: Annotated[int, "prompt length in tokens"]
    n_found: Annotated[int, "prompt tokens that were reused"]
    n_awaited: Annotated[int, "reused tokens that another request was computing, for which this one waited"]
    computed: Annotated[tuple[ComputedRange, ...], "ranges of all other tokens; empty if nothing was computed"]
    n_volatile: Annotated[int, "over HTTP: lines of the system message that `--volatile-prompt-lines` moved or removed"] = 0

    @property
    def short(self) -> str:
        """One-line summary without prompt text: `found=4012/4100; differs=4012-4100@4012`."""
        awaited = f"; awaited={self.n_awaited}" if self.n_awaited else ""
        stretches = "".join(f"; {one.cause}={one.start}-{one.end}@{one.at}" for one in self.computed)
        volatile = f"; volatile_lines={self.n_volatile}" if self.n_volatile else ""
        return f"found={self.n_found}/{self.n_prompt}{awaited}{stretches}{volatile}"


@described
class Finished(msgspec.Struct, frozen=True):
    """The end of one branch: sent exactly once per branch, after its last token."""

    index: Annotated[int, "index of the branch, `0 <= index < n`"]
    finish_reason: Annotated[
        FinishReason,
        '"stop": the model sampled an end token, or the text reached a stop string. "length": the limit `max_tokens`, '
        "`max_predict_ms` or `n_indent` was reached, or the context was full. "
        '"cancelled": the branch was cancelled by `Stream.cancel`.',
    ]
    usage: Annotated[Usage, "token counts and timings"]
    slot: Annotated[int | None, "slot in which the branch ran; None if it was cancelled before it had one"]
    stop_reason: Annotated[
        str | int | None,
        'stop string, which is not part of the text, or end token that ended the branch, if the finish reason is "stop". '
        "None if a grammar allows no further token and the model has no end token",
    ] = None
    text: Annotated[
        str,
        "rest of the text that was held back as the possible start of a stop string, if no later token released it; else "
        "empty. Occurs if a grammar allows no further token and the model has no end token, and if pinned prefixes leave too "
        "little context.",
    ] = ""
    is_context_full: Annotated[bool, 'True if the finish reason is "length" because the context was full'] = False
    is_truncated: Annotated[bool, "True if the context was full, so that tokens were dropped to continue or generation ended"] = (
        False
    )
    result: Annotated[
        Any, "result of a request to pin or save a prefix, a `Prefix` or a `SavedPrefix`; None for a completion"
    ] = None
    explanation: Annotated[
        CacheExplanation | None,
        "causes of cache misses, for branch 0 if `Request.explain_cache` is set",
    ] = None
    score: Annotated[
        float | None,
        "rank of a beam search result: the natural logarithm of its probability under the samplers' distribution, divided by "
        "the number of its tokens raised to `Request.length_penalty`; with stochastic beams, that logarithm. None without a "
        "search, and for branches for which the search found no text",
    ] = None


Event = Token | Finished | Progress | PromptLogprobs
"""Any event of a stream."""
