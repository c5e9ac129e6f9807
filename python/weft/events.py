"""What a stream yields: plain data, which can be made by hand, compared, copied, pickled, and written by msgspec."""

from typing import Annotated, Any, Literal

import msgspec

from weft.fields.about import About, described

__all__ = ["Event", "Finished", "Logprob", "Logprobs", "Progress", "PromptLogprobs", "Token", "Usage"]

# The compiled engine makes them, with the fields by position and in this order. None of them can be part of a cycle, so that the
# garbage collector need not know of them.


@described
class Logprob(msgspec.Struct, frozen=True, gc=False):
    """One token with its log-probability."""

    token: Annotated[int, About("the token id")]
    bytes: Annotated[bytes, About("the bytes that the token stands for, perhaps no whole character")]
    logprob: Annotated[float, About("natural logarithm of its probability, 0 or less")]

    @property
    def text(self) -> str:
        """The bytes as text, U+FFFD for what is no UTF-8."""
        return self.bytes.decode(errors="replace")


@described
class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """Natural logarithms of probabilities under the model's own distribution, before bias, penalties and filters.

    Where `post_sampling_probs` asks for it, of what the samplers left instead: fewer tokens are listed where fewer were left.
    """

    chosen: Annotated[Logprob, About("of the token that was drawn, or that the prompt has there")]
    top: Annotated[
        tuple[Logprob, ...], About("of the `n_probs` most likely tokens, or of `prompt_logprobs` many, most likely first")
    ] = ()


@described
class Token(msgspec.Struct, frozen=True, gc=False):
    """One token of one branch."""

    index: Annotated[int, About("which branch, `0 <= index < n`")]
    token: Annotated[int, About("the token that was drawn; an end token is reported too")]
    text: Annotated[
        str,
        About(
            "text that became safe to show with this token. Empty while bytes are held back, because they are no whole "
            "character or might begin a stop string. The texts of a branch, with that of its `Finished` at the end, join to "
            "its whole answer."
        ),
    ]
    slot: Annotated[int, About("the slot that the branch runs in")]
    n_predicted: Annotated[int, About("tokens of this branch so far, this one included")]
    logprobs: Annotated[Logprobs | None, About("log-probabilities, where `n_probs` of the request is above 0")] = None


@described
class PromptLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities of a stretch of the prompt, where `Request.prompt_logprobs` asks for them.

    The stretches come in order, once for all branches, and before the first token.
    """

    start: Annotated[int, About("the stretch begins with this token of the prompt")]
    logprobs: Annotated[
        tuple[Logprobs | None, ...],
        About("of each token after all those before it; None for the prompt's first, which comes after nothing"),
    ]


@described
class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a prompt is computed, where `Request.report_progress` asks for it.

    Told when the request starts in a slot, and after each decode that computed a part of the prompt.
    """

    n_prompt: Annotated[int, About("the prompt's length in tokens")]
    n_cached: Annotated[int, About("of these, found computed")]
    n_processed: Annotated[int, About("computed by now, those that were found included")]
    ms: Annotated[float, About("milliseconds since the start in a slot")]


@described
class Usage(msgspec.Struct, frozen=True, gc=False):
    """What one branch cost.

    The branch that computed a prompt token counts it in `n_computed`, the others in `n_cached`: the branches' `n_computed` add up
    to what was really computed.
    """

    n_computed: Annotated[int, About("prompt tokens that this branch computed")]
    n_cached: Annotated[int, About("prompt tokens that this branch found computed")]
    n_predicted: Annotated[int, About("tokens drawn, an end token included")]
    n_held: Annotated[
        int,
        About(
            "tokens of the branch that were computed and in its context at its end. Those of the prompt and of the prediction"
            " but the last; fewer where the context was shifted."
        ),
    ]
    prompt_ms: Annotated[float, About("milliseconds from the start in a slot to the first token")]
    predicted_ms: Annotated[float, About("milliseconds from the first token to the last")]

    @property
    def n_prompt(self) -> int:
        """The prompt's length in tokens: `n_computed + n_cached`."""
        return self.n_computed + self.n_cached


@described
class EarlierRequest(msgspec.Struct, frozen=True, gc=False):
    """An earlier request of the same owner, from which a prompt differs."""

    request_id: Annotated[int, About("which one, as `Stream.request_id` counts them")]
    text: Annotated[str, About("what it has where the prompt has `ComputedStretch.here`; empty where it ends there")]
    is_in_answer: Annotated[bool, About("whether that is in what was written for it, not in its prompt")]


@described
class ComputedStretch(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A stretch of a prompt that was computed, and why."""

    start: Annotated[int, About("its first token")]
    end: Annotated[int, About("the first token after it")]
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
            "no_snapshot",
            "grouped",
            "media",
            "computing",
            "unfinished",
        ],
        About("why it was computed; docs/explained.md says what each word means"),
    ]
    at: Annotated[int, About("the token of the prompt where the cause is: where texts part, else the first of the stretch")]
    byte: Annotated[int, About("the same place, in bytes of the prompt as its tokens spell it; pictures and sounds have none")]
    character: Annotated[int, About("and in characters")]
    before: Annotated[str, About("the end of what is before that place, a few tokens")]
    here: Annotated[str, About("the beginning of what is after it, some tokens more")]
    earlier: Annotated[
        EarlierRequest | None,
        About("the earlier request that told the cause; None where there is none, or it is another owner's"),
    ] = None
    evicted_for: Annotated[
        Literal["pool", "store", "erased", "failed"] | None,
        About(
            'what was evicted had to go for: "pool": cells or an id. "store": bytes of the store. "erased": somebody erased it. '
            '"failed": a decode failed. None where that is not remembered, or nothing was evicted.'
        ),
    ] = None
    evicted_s: Annotated[float | None, About("how long before the request started, in seconds")] = None


@described
class CacheExplanation(msgspec.Struct, frozen=True, gc=False):
    """Why what was computed of a prompt had to be, where `Request.explain_cache` asks for it."""

    request_id: Annotated[int, About("which request, as `Stream.request_id` counts them")]
    n_prompt: Annotated[int, About("the prompt's length in tokens")]
    n_found: Annotated[int, About("of these, found computed")]
    n_awaited: Annotated[int, About("of those, what another request was computing, and this one waited for")]
    computed: Annotated[tuple[ComputedStretch, ...], About("all others, stretch by stretch; none where nothing was computed")]
    n_volatile: Annotated[
        int, About("over HTTP, lines of the system's message that `--volatile-prompt-lines` has moved or left out")
    ] = 0

    @property
    def short(self) -> str:
        """One line without any text of a prompt: `found=4012/4100; differs=4012-4100@4012`."""
        awaited = f"; awaited={self.n_awaited}" if self.n_awaited else ""
        stretches = "".join(f"; {one.cause}={one.start}-{one.end}@{one.at}" for one in self.computed)
        volatile = f"; volatile_lines={self.n_volatile}" if self.n_volatile else ""
        return f"found={self.n_found}/{self.n_prompt}{awaited}{stretches}{volatile}"


@described
class Finished(msgspec.Struct, frozen=True):
    """The end of one branch: exactly one per branch, after its last token."""

    index: Annotated[int, About("which branch, `0 <= index < n`")]
    reason: Annotated[
        Literal["end", "stop", "length", "context_full", "cancelled"],
        About(
            'why it ended. "end": the model drew an end token. "stop": the text reached a stop string. "length": a limit of '
            'the request was reached: `max_tokens`, `max_predict_ms` or `n_indent`. "context_full": the context was full '
            'before that. "cancelled": it alone was cancelled, by `Stream.cancel`.'
        ),
    ]
    usage: Annotated[Usage, About("what it cost")]
    slot: Annotated[int | None, About("the slot that the branch ran in; None where it was cancelled before it was in one")]
    stop: Annotated[str | None, About('the stop string, which is not part of the text, where the reason is "stop"')] = None
    text: Annotated[
        str,
        About(
            "the end of the text, where it was held back in case a stop string followed and no token came to show it; else "
            "empty. That happens where a grammar allows nothing more and the model has no end token, and where the context "
            "was full before its time, since pinned prefixes take the rest of it."
        ),
    ] = ""
    truncated: Annotated[
        bool, About("whether the context was full: tokens were dropped to go on, or there was no room for another one")
    ] = False
    made: Annotated[
        Any, About("what a request to pin or to save a prefix made, a `Prefix` or a `SavedPrefix`; None for a completion")
    ] = None
    explanation: Annotated[
        CacheExplanation | None,
        About("why what was computed of the prompt had to be, in branch 0 where `Request.explain_cache` asks for it"),
    ] = None
    score: Annotated[
        float | None,
        About(
            "what ranks the text among those that a search has found: the natural logarithm of its probability, under what the "
            "samplers leave, divided by its tokens raised to `Request.length_penalty`; where texts are drawn, that logarithm. "
            "None where nothing was searched, and where fewer texts were found than are told"
        ),
    ] = None


Event = Token | Finished | Progress | PromptLogprobs
"""What a stream yields."""
