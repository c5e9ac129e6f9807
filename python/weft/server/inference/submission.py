"""A parsed HTTP request for the engine, before its texts are tokenized."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec

from weft import InvalidRequestError, MixedPrompt, Request
from weft._native import Biases, TokenIds
from weft.infill import Snippet
from weft.server.media.files import MediaPrompt

_BranchT = TypeVar("_BranchT")
_T = TypeVar("_T")

Piece = str | int
"""Part of a prompt: text, or one token."""

SentPrompt = Sequence[Piece] | MediaPrompt | MixedPrompt
"""A prompt: pieces, pieces with images and audio among them, or tokens with media."""

MIN_TEXT_SIZE = 4
"""Cost of tokenizing an empty text, in characters."""

_OF_BRANCH = re.compile(r"branches\[(\d+)\]: ")
"""Prefix of messages about one of several branches."""

PROMPT_SIZE = 32
"""Cost of a prompt in addition to its text, in characters: a request is created and queued."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Infill: the text after the gap that follows each prompt. Only `middle` is parsed for special tokens."""

    suffix: Sequence[Piece]
    middle: Sequence[Piece] = ()
    """Existing beginning of the text in the gap."""
    snippets: Sequence[Snippet] = ()
    """Excerpts of other files."""
    suffix_first: bool = False

    @property
    def size(self) -> int:
        """Characters and tokens."""
        return size_of(self.suffix) + size_of(self.middle) + sum(len(one.filename) + len(one.text) for one in self.snippets)


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a completion."""

    template: Request
    """The request without prompt, biases, penalty prompt, suffix and slot."""
    logit_bias: Sequence[tuple[Piece, float]]
    """Biases by token or text; a text applies to each of its tokens."""
    penalty_prompt: Sequence[Piece] | None = None
    """Text that the penalties use in place of the prompt. It is not parsed for special tokens."""
    suffix: Sequence[Piece] = ()
    """Text after each prompt."""
    sent_as: dict[str, str]
    """Names in the body of request fields, where they differ."""

    @property
    def n_in_options(self) -> int:
        """Characters and tokens of the texts among them."""
        return _biases_size(self.logit_bias) + size_of(self.penalty_prompt or ()) + size_of(self.suffix)


class BranchSubmission(_Options, frozen=True, kw_only=True):
    """One branch of each prompt, if branches differ."""

    has_seed: bool = False
    """True if the request gives the branch its own seed."""


class ForkSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """Forks of one branch."""

    options: Mapping[str, Any]
    """Request fields that replace the branch's, except the two below."""
    logit_bias: Sequence[tuple[Piece, float]] | None = None
    penalty_prompt: Sequence[Piece] | None = None
    n: int = 1
    at: int | None = None
    unit: Literal["token", "byte"] = "token"
    append: Sequence[Piece] = ()
    """Text between the branch's text and the forks'."""
    own_stream: bool = False

    @property
    def size(self) -> int:
        """Characters and tokens."""
        return PROMPT_SIZE + _biases_size(self.logit_bias or ()) + size_of(self.penalty_prompt or ()) + size_of(self.append)

    @property
    def scans_vocabulary(self) -> bool:
        """See [`Submission.scans_vocabulary`]."""
        options = self.options
        is_constrained = options.get("grammar") is not None or options.get("json_schema") is not None
        return is_constrained or options.get("dry_multiplier", 0) != 0


class Submission(_Options, frozen=True, kw_only=True):
    """Requests for several prompts that share `template`."""

    prompts: Sequence[SentPrompt]
    after: Sequence[int] = ()
    """Tokens before each prompt, including the opening tokens; empty if prompts stand alone."""
    branches: Sequence[BranchSubmission] = ()
    """The branches of each prompt, if they differ; as many as the template's `n`."""
    gap: Gap | None = None
    """Gap after the prompts, for infill."""
    slot: int | None
    """Preferred slot: any integer, modulo the number of slots."""
    stream: bool = False
    """True if the response is streamed."""
    reasoning_format: str = "none"
    """Where reasoning is returned, by llama-server's names."""
    n_volatile: int = 0
    """Lines of the system message that `--volatile-prompt-lines` moved or removed."""
    timings_per_token: bool = False
    """True if each event of a stream includes timings."""
    response_fields: Sequence[str] = ()
    """Paths of the fields that a complete response includes; empty for all."""

    @property
    def size(self) -> int:
        """Cost of submitting, in characters and tokens of prompts, biases, branches and penalty prompts."""
        n_behind = 0 if self.gap is None else self.gap.size * len(self.prompts)
        prompts = PROMPT_SIZE * len(self.prompts) + sum(map(size_of, self.prompts))
        n_branches = sum(PROMPT_SIZE + branch.n_in_options for branch in self.branches) * len(self.prompts)
        return prompts + n_behind + n_branches + self.n_in_options

    @property
    def scans_vocabulary(self) -> bool:
        """True if submitting reads the whole vocabulary, as for a grammar, a schema, or DRY sampling."""
        templates = [self.template, *(branch.template for branch in self.branches)]
        return any(
            template.grammar is not None or template.json_schema is not None or template.dry_multiplier != 0
            for template in templates
        )

    def rename_parameter(self, error: InvalidRequestError) -> InvalidRequestError:
        """Returns the error with the body's name of the field, which may be a branch's."""
        names, location = self.sent_as, ""
        if self.branches and (of_branch := _OF_BRANCH.match(error.message)):
            names, location = self.branches[int(of_branch[1])].sent_as, of_branch[0]
        return renamed(error, names, location)


def renamed(error: InvalidRequestError, names: Mapping[str, str], location: str = "") -> InvalidRequestError:
    """Returns the error with the body's name of the parameter, also where its message begins with `location` and the name."""
    own, name = f"{location}{error.param} ", names.get(error.param, error.param)
    message = f"{location}{name} {error.message.removeprefix(own)}" if error.message.startswith(own) else error.message
    return InvalidRequestError(name, message)


Rename = Callable[[InvalidRequestError], InvalidRequestError]
"""Returns an error about a field under the name that the client's API gives to the field."""


@contextmanager
def renaming(rename: Rename) -> Iterator[None]:
    """Renames the fields of errors that the block raises."""
    try:
        yield
    except InvalidRequestError as error:
        raise rename(error) from None


def unchanged(error: InvalidRequestError) -> InvalidRequestError:
    """Returns the error itself, for bodies that name the parameters as chats do."""
    return error


def each_branch(branches: Sequence[_BranchT], read: Callable[[_BranchT], _T]) -> list[_T]:
    """Applies `read` to each branch of a body.

    Raises:
        InvalidRequestError: A branch is invalid. With several branches, the message includes its index.
    """
    made = []
    for index, branch in enumerate(branches):
        try:
            made.append(read(branch))
        except InvalidRequestError as error:
            if len(branches) == 1:
                raise
            raise InvalidRequestError(error.param, f"branches[{index}]: {error.message}") from None
    return made


def size_of(pieces: SentPrompt) -> int:
    """Returns characters plus tokens of a prompt, an estimate for the cost of tokenizing it."""
    if isinstance(pieces, TokenIds | MixedPrompt):
        return len(pieces)
    # Media are decoded elsewhere.
    return sum(max(len(piece), MIN_TEXT_SIZE) if isinstance(piece, str) else 1 for piece in pieces_of(pieces))


def pieces_of(prompt: Sequence[Piece] | MediaPrompt) -> Sequence[object]:
    """Returns the parts of a prompt that has not been tokenized."""
    return prompt.pieces if isinstance(prompt, MediaPrompt) else prompt


def _biases_size(biases: Sequence[tuple[Piece, float]]) -> int:
    return len(biases) if isinstance(biases, Biases) else size_of([piece for piece, _ in biases])
