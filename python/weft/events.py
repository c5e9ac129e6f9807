"""What a stream yields: plain data, which can be made by hand, compared, copied, pickled, and written by msgspec."""

from typing import Any, Literal

import msgspec

__all__ = ["Event", "Finished", "Logprob", "Logprobs", "Progress", "PromptLogprobs", "Token", "Usage"]

# The compiled engine makes them, with the fields by position and in this order. None of them can be part of a cycle, so that the
# garbage collector need not know of them.


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """One token with its log-probability."""

    token: int
    """The token id."""
    bytes: bytes
    """The bytes that the token stands for, perhaps no whole character."""
    logprob: float
    """Natural logarithm of its probability, 0 or less."""

    @property
    def text(self) -> str:
        """The bytes as text, U+FFFD for what is no UTF-8."""
        return self.bytes.decode(errors="replace")


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """Natural logarithms of probabilities under the model's own distribution, before bias, penalties and filters.

    Where `post_sampling_probs` asks for it, of what the samplers left instead: fewer tokens are listed where fewer were left.
    """

    chosen: Logprob
    """Of the token that was drawn, or that the prompt has there."""
    top: tuple[Logprob, ...] = ()
    """Of the `n_probs` most likely tokens, or of `prompt_logprobs` many, most likely first."""


class Token(msgspec.Struct, frozen=True, gc=False):
    """One token of one branch."""

    index: int
    """Which branch, `0 <= index < n`."""
    token: int
    """The token that was drawn; an end token is reported too."""
    text: str
    """Text that became safe to show with this token.

    Empty while bytes are held back, because they are no whole character or might begin a stop string. The texts of a branch, with
    that of its `Finished` at the end, join to its whole answer."""
    slot: int
    """The slot that the branch runs in."""
    n_predicted: int
    """Tokens of this branch so far, this one included."""
    logprobs: Logprobs | None = None
    """Log-probabilities, where `n_probs` of the request is above 0."""


class PromptLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities of a stretch of the prompt, where `Request.prompt_logprobs` asks for them.

    The stretches come in order, once for all branches, and before the first token.
    """

    start: int
    """The stretch begins with this token of the prompt."""
    logprobs: tuple[Logprobs | None, ...]
    """Of each token after all those before it; None for the prompt's first, which comes after nothing."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a prompt is computed, where `Request.report_progress` asks for it.

    Told when the request starts in a slot, and after each decode that computed a part of the prompt.
    """

    n_prompt: int
    """The prompt's length in tokens."""
    n_cached: int
    """Of these, found computed."""
    n_processed: int
    """Computed by now, those that were found included."""
    ms: float
    """Milliseconds since the start in a slot."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What one branch cost.

    The branch that computed a prompt token counts it in `n_computed`, the others in `n_cached`: the branches' `n_computed` add up
    to what was really computed.
    """

    n_computed: int
    """Prompt tokens that this branch computed."""
    n_cached: int
    """Prompt tokens that this branch found computed."""
    n_predicted: int
    """Tokens drawn, an end token included."""
    n_held: int
    """Tokens of the branch that were computed and in its context at its end.

    Those of the prompt and of the prediction but the last; fewer where the context was shifted."""
    prompt_ms: float
    """Milliseconds from the start in a slot to the first token."""
    predicted_ms: float
    """Milliseconds from the first token to the last."""

    @property
    def n_prompt(self) -> int:
        """The prompt's length in tokens: `n_computed + n_cached`."""
        return self.n_computed + self.n_cached


class Finished(msgspec.Struct, frozen=True):
    """The end of one branch: exactly one per branch, after its last token."""

    index: int
    """Which branch, `0 <= index < n`."""
    reason: Literal["end", "stop", "length", "context_full"]
    """Why it ended.

    "end": the model drew an end token. "stop": the text reached a stop string. "length": a limit of the request was reached:
    `max_tokens`, `max_predict_ms` or `n_indent`. "context_full": the context was full before that."""
    usage: Usage
    """What it cost."""
    slot: int
    """The slot that the branch ran in."""
    stop: str | None = None
    """The stop string, which is not part of the text, where the reason is "stop"."""
    text: str = ""
    """The end of the text, where it was held back in case a stop string followed and no token came to show it; else empty.

    That happens where a grammar allows nothing more and the model has no end token, and where the context was full before its
    time, since pinned prefixes take the rest of it."""
    truncated: bool = False
    """Whether the context was full: tokens were dropped to go on, or there was no room for another one."""
    made: Any = None
    """What a request to pin or to save a prefix made, a `Prefix` or a `SavedPrefix`; None for a completion."""


Event = Token | Finished | Progress | PromptLogprobs
"""What a stream yields."""
