"""Prompts for infilling (fill-in-the-middle)."""

from collections.abc import Sequence

import msgspec

from weft._native import Model, TokenIds
from weft.errors import ContextOverflowError, InvalidRequestError
from weft.request import RequestOptions
from weft.request.sampling import SamplingParams

__all__ = ["InfillOptions", "Snippet", "infill_tokens"]

REPOSITORY = "myproject\n"
"""Name of the repository in a prompt, as in llama-server."""

FILE = "filename\n"
"""Name of the file that has the gap, as in llama-server."""

SNIPPET = "\n\n--- snippet ---\n\n"
"""Separator before a snippet, if the vocabulary has no file separator token."""

N_CONTROL = 4
"""Control tokens in a prompt: prefix, suffix, middle, and BOS."""


class Snippet(msgspec.Struct, frozen=True):
    """An excerpt of another file, as context for infilling."""

    text: str
    filename: str = "tmp"


class InfillOptions(RequestOptions, total=False):
    """Options of `Engine.infill`."""

    sampling: SamplingParams | None
    """Sampling parameters; other options override them."""
    middle: str | Sequence[int]
    """Beginning of the text in the gap, which the model continues; it comes after the prefix in the prompt."""
    snippets: Sequence[Snippet]
    """Excerpts of other files, as context."""
    suffix_first: bool
    """Puts the suffix before the prefix, as some models require."""


def missing(vocabulary: Model) -> list[str]:
    """Returns the names of required control tokens that are not in the vocabulary; with none missing, infilling works."""
    return [name for name in ("prefix", "suffix", "middle") if name not in vocabulary.infill_tokens]


def infill_tokens(
    vocabulary: Model,
    prefix: Sequence[int],
    suffix: Sequence[int],
    *,
    middle: Sequence[int] = (),
    snippets: Sequence[Snippet] = (),
    n_batch: int,
    n_ctx: int,
    n_predict: int | None = None,
    suffix_first: bool = False,
) -> list[int]:
    """Returns the prompt after which a model generates the text between `prefix` and `suffix`, in llama-server's order.

    The prompt consists of the repository name and the snippets, each as a file, as in the training of code models
    (https://arxiv.org/abs/2409.12186); the BOS token; prefix with `middle`, and suffix, each after its control token; and the
    control token after which the model continues.

    Truncation: the last three quarters of `n_batch` tokens of the prefix are kept, and the first quarter of the suffix, less
    `middle`. The context before them is truncated at its beginning, so that all of it and twice `n_predict` tokens (or a
    sixteenth of `n_ctx` without a limit) fit in `n_ctx`. `n_batch` is limited to three quarters of `n_ctx`, which leaves room for
    the generated text.

    Args:
        vocabulary: The model's vocabulary.
        prefix: Tokens before the gap.
        suffix: Tokens after the gap.
        middle: Tokens at the beginning of the gap, which the model continues.
        snippets: Excerpts of other files.
        n_batch: Maximum tokens of prefix and suffix together.
        n_ctx: Maximum tokens of the prompt and the generated text together.
        n_predict: Maximum generated tokens; None is no limit.
        suffix_first: Puts the suffix before the prefix, as some models require.

    Raises:
        InvalidRequestError: The vocabulary has no infilling tokens.
        ContextOverflowError: `middle` alone fills the context.
    """
    if absent := missing(vocabulary):
        raise InvalidRequestError("prefix", f"the model does not support infill: its vocabulary has no {absent[0]} token")
    tokens = vocabulary.infill_tokens
    n_batch = min(n_batch, 3 * n_ctx // 4)
    if len(middle) >= n_ctx:
        raise ContextOverflowError(len(middle), n_ctx)
    before = _slice(prefix, max(0, len(prefix) - 3 * (n_batch // 4)), len(prefix))
    after = _slice(suffix, 0, max(0, n_batch // 4 - (2 + len(middle))))
    first = [tokens["prefix"], *before, *middle]
    second = [tokens["suffix"], *after]
    if suffix_first:
        first, second = second, first
    bos = [vocabulary.bos_token] if vocabulary.adds_bos and vocabulary.bos_token is not None else []
    room = n_ctx // 16 if n_predict is None else 2 * n_predict
    n_more = max(0, n_ctx - n_batch - max(room, 2 * N_CONTROL))
    more = _context_tokens(vocabulary, snippets, n_more)
    return [*more[max(0, len(more) - n_more) :], *bos, *first, *second, tokens["middle"]]


def _slice(tokens: Sequence[int], start: int, end: int) -> list[int]:
    return tokens.part(start, end) if isinstance(tokens, TokenIds) else list(tokens[start:end])


def _context_tokens(vocabulary: Model, snippets: Sequence[Snippet], n: int) -> list[int]:
    """Returns the prompt before prefix and suffix: repository, snippets and file name. Only its last `n` tokens are needed."""

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
