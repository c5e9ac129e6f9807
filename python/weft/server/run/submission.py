"""What one HTTP request asks of the engine, before any of its texts is tokenized."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from weft import InvalidRequest, MixedPrompt, Request
from weft._native import Biases, TokenIds
from weft.infill import Snippet
from weft.server.run.media_files import MediaPrompt

__all__ = ["BranchAsked", "ForkAsked", "Gap", "Piece", "SentPrompt", "Submission", "each_branch", "size_of"]

_Read = TypeVar("_Read")
_Made = TypeVar("_Made")

Piece = str | int
"""A stretch of a prompt: text, or one token."""

SentPrompt = Sequence[Piece] | MediaPrompt | MixedPrompt
"""A prompt: its stretches, the same with pictures and sounds among them, or these tokenized already."""

SHORTEST = 4
"""What it costs to tokenize a text of no characters, in characters."""

_OF_BRANCH = re.compile(r"branches\[(\d+)\]: ")
"""What begins a message of what is wrong in one of several branches."""

PROMPT_SIZE = 32
"""What a prompt costs beside its text, in characters of it: a request is made of it, and queued."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """What follows each prompt is to be filled in before this; texts are not read for control tokens, but those of `begun`."""

    suffix: Sequence[Piece]
    begun: Sequence[Piece] = ()
    """What of the gap is filled already."""
    snippets: Sequence[Snippet] = ()
    """Pieces of other files."""
    suffix_first: bool = False

    @property
    def size(self) -> int:
        """Characters and tokens."""
        return size_of(self.suffix) + size_of(self.begun) + sum(len(one.filename) + len(one.text) for one in self.snippets)


class BranchAsked(msgspec.Struct, frozen=True, kw_only=True):
    """One branch of each prompt, where they differ."""

    template: Request
    """All but the prompt, the biases, what the penalties look at, and what follows the prompt."""
    logit_bias: Sequence[tuple[Piece, float]]
    penalty_prompt: Sequence[Piece] | None = None
    suffix: Sequence[Piece] = ()
    """What follows each prompt."""
    has_seed: bool = False
    """Whether the seed is its own."""
    sent_as: dict[str, str] = {}
    """As [`Submission.sent_as`], where the branch has names of its own."""

    @property
    def size(self) -> int:
        """Characters and tokens."""
        n_biases = len(self.logit_bias) if isinstance(self.logit_bias, Biases) else size_of([one for one, _ in self.logit_bias])
        return PROMPT_SIZE + n_biases + size_of(self.penalty_prompt or ()) + size_of(self.suffix)


class ForkAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Forks of one branch."""

    options: Mapping[str, Any]
    """Fields of a request, in the place of the branch's: all but the two that follow."""
    logit_bias: Sequence[tuple[Piece, float]] | None = None
    penalty_prompt: Sequence[Piece] | None = None
    n: int = 1
    at: int | None = None
    unit: Literal["token", "byte"] = "token"
    append: Sequence[Piece] = ()
    """What stands between the branch's text and theirs."""
    own_stream: bool = False

    @property
    def size(self) -> int:
        """Characters and tokens."""
        n_biases = 0
        if self.logit_bias is not None:
            biases = self.logit_bias
            n_biases = len(biases) if isinstance(biases, Biases) else size_of([one for one, _ in biases])
        return PROMPT_SIZE + n_biases + size_of(self.penalty_prompt or ()) + size_of(self.append)

    @property
    def looks_through_vocabulary(self) -> bool:
        """As [`Submission.looks_through_vocabulary`]."""
        options = self.options
        held = options.get("grammar") is not None or options.get("json_schema") is not None
        return held or options.get("dry_multiplier", 0) != 0


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One request like `template` for each prompt."""

    prompts: Sequence[SentPrompt]
    after: Sequence[int] = ()
    """Tokens that each prompt follows, those that begin every prompt included; none where it is a prompt of its own."""
    template: Request
    """All but the prompt, the biases, what the penalties look at, and the slot."""
    logit_bias: Sequence[tuple[Piece, float]]
    """A text stands for each of its tokens."""
    penalty_prompt: Sequence[Piece] | None = None
    """What the penalties see in place of the prompt. Its texts are not read for control tokens."""
    suffix: Sequence[Piece] = ()
    """What follows each prompt."""
    branches: Sequence[BranchAsked] = ()
    """The branches of each prompt, where they differ; as many as the template's `n`."""
    gap: Gap | None = None
    """What the prompts stand before, where the model is to write what is between."""
    slot: int | None
    """The slot that is wished for; any integer, counted around the slots there are."""
    sent_as: dict[str, str]
    """The body's names of fields of a request, where it may spell them otherwise."""
    stream: bool = False
    """Whether the answer is streamed."""
    reasoning_format: str = "none"
    """Where a thought goes, by llama-server's names."""
    n_volatile: int = 0
    """Lines of the system's message that `--volatile-prompt-lines` has moved or left out."""
    timings_per_token: bool = False
    """Whether each event of a stream says how long it took."""
    response_fields: Sequence[str] = ()
    """The paths of what a finished answer is to hold, where that is not all of it."""

    @property
    def size(self) -> int:
        """What it costs to submit it, in characters and tokens: of all prompts, biases and what the penalties look at."""
        biases = self.logit_bias
        n_biases = len(biases) if isinstance(biases, Biases) else size_of([piece for piece, _ in biases])
        n_behind = 0 if self.gap is None else self.gap.size * len(self.prompts)
        prompts = PROMPT_SIZE * len(self.prompts) + sum(map(size_of, self.prompts))
        n_branches = sum(branch.size for branch in self.branches) * len(self.prompts)
        return prompts + n_behind + n_biases + n_branches + size_of(self.penalty_prompt or ()) + size_of(self.suffix)

    @property
    def looks_through_vocabulary(self) -> bool:
        """Whether what is asked for has to be found in every piece: a grammar, a schema, or what breaks repetitions."""
        templates = [self.template, *(branch.template for branch in self.branches)]
        return any(asked.grammar is not None or asked.json_schema is not None or asked.dry_multiplier != 0 for asked in templates)

    def blame(self, error: InvalidRequest) -> InvalidRequest:
        """The same error, by the name that the body has for the field, or the branch that it is of."""
        names, place = self.sent_as, ""
        if self.branches and (of_branch := _OF_BRANCH.match(error.message)):
            names, place = self.branches[int(of_branch[1])].sent_as, of_branch[0]
        name = names.get(error.param, error.param)
        own = f"{place}{error.param} "
        told = f"{place}{name} {error.message.removeprefix(own)}" if error.message.startswith(own) else error.message
        return InvalidRequest(name, told)


def each_branch(branches: Sequence[_Read], read: Callable[[_Read], _Made]) -> list[_Made]:
    """What `read` makes of each of the branches of a body.

    Raises:
        InvalidRequest: what one of them asks for cannot be; of several, the message says which.
    """
    made = []
    for index, branch in enumerate(branches):
        try:
            made.append(read(branch))
        except InvalidRequest as error:
            if len(branches) == 1:
                raise
            raise InvalidRequest(error.param, f"branches[{index}]: {error.message}") from None
    return made


def size_of(pieces: SentPrompt) -> int:
    """Characters and tokens of a prompt: what it costs to tokenize it follows this."""
    if isinstance(pieces, TokenIds | MixedPrompt):
        return len(pieces)
    if isinstance(pieces, MediaPrompt):
        # What is no text was, or will be, worked on elsewhere.
        return sum(max(len(piece), SHORTEST) if isinstance(piece, str) else 1 for piece in pieces.pieces)
    return sum(max(len(piece), SHORTEST) if isinstance(piece, str) else 1 for piece in pieces)
