"""Prompts for what belongs between two texts: fill in the middle."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from weft._native import TokenIds
from weft.errors import ContextOverflow, InvalidRequest

__all__ = ["Snippet", "infill_tokens"]

REPOSITORY = "myproject\n"
"""What a repository is called: llama-server's word for it."""

FILE = "filename\n"
"""What the file with the gap is called, likewise."""

SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before a snippet where the vocabulary has no token for files."""

N_CONTROL = 4
"""Control tokens around the texts, and the one that begins every prompt."""


class Snippet(msgspec.Struct, frozen=True):
    """A piece of another file that helps to fill the gap."""

    text: str
    filename: str = "tmp"


class Vocabulary(Protocol):
    """What is needed of a model."""

    @property
    def infill_tokens(self) -> Mapping[str, int]:
        """The control tokens of a text with a gap, by what follows each."""

    @property
    def adds_bos(self) -> bool:
        """Whether a text begins with `bos_token`."""

    @property
    def bos_token(self) -> int | None:
        """The token that begins a text."""

    def token_ids(self, text: str, /, *, add_special: bool, parse_special: bool) -> TokenIds:
        """The tokens of a text."""


def missing(vocabulary: Vocabulary) -> list[str]:
    """What of the control tokens the vocabulary lacks, without which no gap can be filled."""
    return [name for name in ("prefix", "suffix", "middle") if name not in vocabulary.infill_tokens]


def infill_tokens(
    vocabulary: Vocabulary,
    prefix: Sequence[int],
    suffix: Sequence[int],
    *,
    begun: Sequence[int] = (),
    snippets: Sequence[Snippet] = (),
    n_batch: int,
    n_ctx: int,
    n_predict: int | None = None,
    suffix_first: bool = False,
) -> list[int]:
    """The prompt after which a model writes what belongs between `prefix` and `suffix`, in llama-server's order.

    First the repository and the snippets, each as a file, as models of code were trained on them
    (https://arxiv.org/abs/2409.12186); then the token that begins a text; then prefix, `begun` and suffix, each behind its
    control token; and last the one after which the model goes on.

    Of the prefix at most the last three quarters of `n_batch` tokens are kept, of the suffix the first quarter, less `begun`; of
    what stands before them as much of its end as leaves that and twice `n_predict` in `n_ctx`, or a sixteenth of it where there
    is no limit. Where `n_ctx` is less than a third more than `n_batch`, three quarters of it take the place of `n_batch`, so that
    there is room to write.

    Args:
        vocabulary: The model.
        prefix: What stands before the gap.
        suffix: What stands behind it.
        begun: What of the gap is filled already.
        snippets: Pieces of other files.
        n_batch: Most tokens of prefix and suffix.
        n_ctx: Tokens that the prompt and what is written may have together.
        n_predict: Most tokens that are written, None where there is no limit.
        suffix_first: Puts the suffix before the prefix, as some models want it.

    Raises:
        InvalidRequest: The model has no control tokens for a gap.
        ContextOverflow: `begun` alone fills the context.
    """
    if lacks := missing(vocabulary):
        raise InvalidRequest("prefix", f"the model cannot fill gaps: its vocabulary has no token for the {lacks[0]}")
    tokens = vocabulary.infill_tokens
    n_batch = min(n_batch, 3 * n_ctx // 4)
    if len(begun) >= n_ctx:
        raise ContextOverflow(len(begun), n_ctx)
    before = _part(prefix, max(0, len(prefix) - 3 * (n_batch // 4)), len(prefix))
    after = _part(suffix, 0, max(0, n_batch // 4 - (2 + len(begun))))
    first = [tokens["prefix"], *before, *begun]
    second = [tokens["suffix"], *after]
    if suffix_first:
        first, second = second, first
    bos = [vocabulary.bos_token] if vocabulary.adds_bos and vocabulary.bos_token is not None else []
    room = n_ctx // 16 if n_predict is None else 2 * n_predict
    n_more = max(0, n_ctx - n_batch - max(room, 2 * N_CONTROL))
    more = _beside(vocabulary, snippets, n_more)
    return [*more[max(0, len(more) - n_more) :], *bos, *first, *second, tokens["middle"]]


def _part(tokens: Sequence[int], start: int, end: int) -> list[int]:
    return tokens.part(start, end) if isinstance(tokens, TokenIds) else list(tokens[start:end])


def _beside(vocabulary: Vocabulary, snippets: Sequence[Snippet], n: int) -> list[int]:
    """The repository, the snippets, and the name of the file with the gap, of which the last `n` tokens matter."""

    def read(text: str) -> list[int]:
        tokens = vocabulary.token_ids(text, add_special=False, parse_special=False)
        return tokens.part(max(0, len(tokens) - n), len(tokens))

    tokens = vocabulary.infill_tokens
    repository, file = tokens.get("repository"), tokens.get("file")
    found = [] if repository is None else [repository, *read(REPOSITORY)]
    for snippet in snippets:
        found += read(SNIPPET) if file is None else [file, *read(f"{snippet.filename}\n")]
        found += read(snippet.text)
    return found if file is None else [*found, file, *read(FILE)]
