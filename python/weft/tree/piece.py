"""Content of a node: its tokens, text and log-probabilities."""

from collections.abc import Sequence

import msgspec

from weft._native import Model
from weft.events import Finished, FinishReason, Logprobs, Token, Usage
from weft.tree.token_boundary import align_tokens

NODE_BYTES = 1_024
TOKEN_BYTES = 192
CHARACTER_BYTES = 6
LOGPROB_BYTES = 144
"""Estimated sizes in bytes: upper bounds, both in memory and in a file."""


class Piece(msgspec.Struct, frozen=True):
    """Content of one node, without its ancestors' content."""

    tokens: tuple[int, ...]
    """Tokens, without an end token and a stop string's tokens."""
    text: str
    """Text, without a stop string that ended it.

    An incomplete character at the end, as `max_tokens` may cause, is not included; `engine.detokenize(node.path)` has it.
    """
    logprobs: tuple[Logprobs | None, ...]
    """One entry per token; None if it was not sampled, or without `logprobs`."""
    finish_reason: FinishReason | None = None
    """Finish reason, as `Finished.finish_reason`; None if it was not generated."""
    stop_reason: str | int | None = None
    """Stop string or end token that ended it."""
    usage: Usage | None = None
    """Token counts and timings; None if it was not generated, was cancelled, or was loaded."""

    @property
    def n_bytes(self) -> int:
        """Estimated size in bytes, as for the tree's `max_bytes`."""
        return NODE_BYTES + len(self.text) * CHARACTER_BYTES + sum(map(_token_bytes, self.logprobs))

    @classmethod
    def from_tokens(cls, tokens: Sequence[int], text: str, known: Sequence[Logprobs | None] = ()) -> "Piece":
        """Creates the content of a node that was not generated. `known` are log-probabilities of the first tokens."""
        unknown = (None,) * (len(tokens) - len(known))
        return cls(tuple(tokens), text, (*known, *unknown))


def _token_bytes(logprobs: Logprobs | None) -> int:
    if logprobs is None:
        return TOKEN_BYTES
    return TOKEN_BYTES + sum(LOGPROB_BYTES + 2 * len(each.bytes) for each in (logprobs.chosen, *logprobs.top))


class PieceBuilder:
    """Collects the tokens of a branch that is being generated, and builds the content of its node."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._logprobs: list[Logprobs | None] = []
        self._texts: list[str] = []
        self.n_bytes = NODE_BYTES
        """Estimated size in bytes so far."""

    def add(self, event: Token) -> int:
        """Adds a token. Returns its estimated size in bytes."""
        self._tokens.append(event.token)
        self._logprobs.append(event.logprobs)
        self._texts.append(event.text)
        n_bytes = _token_bytes(event.logprobs) + len(event.text) * CHARACTER_BYTES
        self.n_bytes += n_bytes
        return n_bytes

    def finished_piece(self, model: Model, end: Finished) -> Piece:
        """Returns the content of a finished branch, without an end token and a stop string's tokens."""
        text = "".join(self._texts) + end.text
        tokens = self._tokens
        if isinstance(end.stop_reason, int) and tokens:
            shown = model.token_bytes(tokens[-1]).decode(errors="replace")
            if not self._texts[-1].endswith(shown):
                tokens = tokens[:-1]
        piece = self._piece(model, tokens, text)
        return msgspec.structs.replace(piece, finish_reason=end.finish_reason, stop_reason=end.stop_reason, usage=end.usage)

    def partial_piece(self, model: Model) -> Piece | None:
        """Returns the text emitted so far as a node's content; None if it is empty."""
        text = "".join(self._texts)
        return msgspec.structs.replace(self._piece(model, self._tokens, text), finish_reason="cancelled") if text else None

    def _piece(self, model: Model, tokens: Sequence[int], text: str) -> Piece:
        n_kept, rest = align_tokens(model, tokens, text)
        return Piece.from_tokens([*tokens[:n_kept], *rest], text, self._logprobs[:n_kept])
