"""Builds the engine's requests from submissions: tokenizes texts and checks lengths, on the calling thread."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from weft import BranchOptions, ContextOverflowError, Engine, InvalidRequestError, Media, MixedPrompt, Request
from weft._native import Biases, Model, TokenIds
from weft.errors import NotSupportedError
from weft.infill import infill_tokens, missing
from weft.request.branches import BRANCH_FIELDS
from weft.server.inference.submission import ForkSubmission, Gap, Piece, SentPrompt, Submission, pieces_of
from weft.server.media.files import MediaPrompt
from weft.work.threads import LONG_TEXT

logger = logging.getLogger(__name__)

MAX_PROMPT_LOGPROBS = 1 << 20
"""Maximum logprobs of a request's prompts (about 60 MB of JSON). All are kept in memory until the prompts have been computed."""

Adapters = Sequence[tuple[int, float]] | None


class RequestBuilder:
    """Builds requests for one engine. Its methods block while they tokenize; they are thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def requests(self, submission: Submission, owner: str | None) -> list[Request]:
        """Returns the request of each prompt.

        Raises:
            ContextOverflowError: A prompt cannot fit.
            InvalidRequestError: A field is out of range.
            NotSupportedError: The model does not support infill.
        """
        limit = self._engine.limits.max_queue
        if len(submission.prompts) > limit:
            raise InvalidRequestError(
                "prompt", f"there are {len(submission.prompts)} prompts; at most {limit}, the size of the queue, are allowed"
            )
        template = msgspec.structs.replace(
            submission.template,
            logit_bias=self._biases(submission.logit_bias),
            penalty_prompt=self._penalty_prompt(submission.penalty_prompt),
            adapters=self.adapters(submission.template.adapters),
            slot=None if submission.slot is None else submission.slot % self._engine.limits.n_slots,
            owner=owner,
            # The log shows it even if the body does not request it.
            explain_cache=submission.template.explain_cache or logger.isEnabledFor(logging.DEBUG),
        )
        requests = [
            self._with_branches(msgspec.structs.replace(template, prompt=prompt), submission, sent)
            for prompt, sent in zip(self._prompts(submission), submission.prompts, strict=True)
        ]
        if template.prompt_logprobs is not None:
            n_tokens = sum(len(request.prompt) for request in requests)
            if (n := n_tokens * (1 + max(template.prompt_logprobs, 0))) > MAX_PROMPT_LOGPROBS:
                requested = f"prompt_logprobs requests {n} log-probabilities of {n_tokens} tokens"
                error = InvalidRequestError("prompt_logprobs", f"{requested}; at most {MAX_PROMPT_LOGPROBS} are allowed")
                raise submission.rename_parameter(error)
        return requests

    def fork_options(self, sent: SentPrompt, submission: ForkSubmission) -> tuple[dict[str, Any], list[int]]:
        """Returns the options of forks of a prompt's branch, and the tokens to append to the text before them."""
        options = {**submission.options}
        if submission.logit_bias is not None:
            options["logit_bias"] = self._biases(submission.logit_bias)
        if submission.penalty_prompt is not None:
            options["penalty_prompt"] = self._penalty_prompt(submission.penalty_prompt)
        return options, self._tokens_on(submission.append, parse_special=_reads_special(sent))

    def adapters(self, requested: Adapters) -> Adapters:
        """Returns every loaded adapter with its scale, with the requested scales applied, or None if none are loaded.

        The result fixes the scales for all prompts of a request, even if the server's scales change meanwhile, and is part of the
        response.
        """
        loaded = self._engine.adapters
        if requested is None:
            return [(adapter.id, adapter.scale) for adapter in loaded] or None
        scales = dict(requested)
        # The engine refuses unknown adapters.
        return [*((adapter.id, scales.pop(adapter.id, 0.0)) for adapter in loaded), *scales.items()]

    def prompt(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Returns the tokens of a prompt.

        Raises:
            ContextOverflowError: The prompt cannot fit.
        """
        self.check_length(pieces)
        return self.tokens(pieces)

    def check_length(self, pieces: SentPrompt) -> None:
        """Refuses a prompt that cannot fit even if its tokens were as long as possible, before tokenizing it.

        Raises:
            ContextOverflowError: The prompt cannot fit.
        """
        n_ctx = self._engine.limits.n_ctx_slot
        n_least = _n_least(pieces, self._engine.model)
        if n_least >= n_ctx:
            raise ContextOverflowError(n_least, n_ctx, is_least=_has_text(pieces))

    def tokens(self, pieces: Sequence[Piece], *, add_special: bool = True, parse_special: bool = True) -> Sequence[int]:
        """Returns the tokens of texts and tokens. Opening tokens are added only if the first piece is text."""
        if isinstance(pieces, TokenIds):
            return pieces
        if len(pieces) == 1 and isinstance(text := pieces[0], str) and len(text) > LONG_TEXT:
            return self._engine.model.token_ids(text, add_special=add_special, parse_special=parse_special)
        tokens: list[int] = []
        for position, piece in enumerate(pieces):
            if isinstance(piece, int):
                tokens.append(piece)
            else:
                opens = add_special and position == 0
                tokens += self._engine.tokenize(piece, add_special=opens, parse_special=parse_special)
        return tokens

    def _tokens_on(self, pieces: Sequence[Piece], *, parse_special: bool) -> list[int]:
        """Returns the tokens of text that follows a prompt."""
        tokens: list[int] = []
        for piece in pieces:
            tokens += [piece] if isinstance(piece, int) else self._engine.model.tokenize_on(piece, parse_special=parse_special)
        return tokens

    def _prompts(self, submission: Submission) -> Iterable[Sequence[int] | MixedPrompt]:
        if submission.gap is not None:
            prefixes = [prompt for prompt in submission.prompts if not isinstance(prompt, MediaPrompt | MixedPrompt)]
            return self._around_gap(prefixes, submission.gap, submission.template.max_tokens)
        for prompt in submission.prompts:
            self.check_length(prompt)
        return (self._prompt(prompt, submission.after) for prompt in submission.prompts)

    def _prompt(self, pieces: SentPrompt, after: Sequence[int]) -> Sequence[int] | MixedPrompt:
        if isinstance(pieces, MixedPrompt):
            return pieces
        if isinstance(pieces, MediaPrompt):
            parts = cast("Sequence[str | Media]", pieces.pieces)
            return self._engine.model.tokenize_parts([list(after), *parts], add_special=not after)
        return [*after, *self.tokens(pieces, add_special=False)] if after else self.tokens(pieces)

    def _around_gap(self, prefixes: Sequence[Sequence[Piece]], gap: Gap, n_predict: int | None) -> Iterator[Sequence[int]]:
        """Yields infill prompts for the prefixes, truncated where they are too long."""
        model = self._engine.model
        if absent := missing(model):
            message = "".join(f"{name} token is missing. " for name in absent)
            raise NotSupportedError(f"Infill is not supported by this model: {message}")
        plain = partial(self.tokens, add_special=False, parse_special=False)
        suffix, middle = plain(gap.suffix), self.tokens(gap.middle, add_special=False)
        for prefix in prefixes:
            yield infill_tokens(
                model,
                plain(prefix),
                suffix,
                middle=middle,
                snippets=gap.snippets,
                n_batch=self._engine.config.n_batch,
                n_ctx=self._engine.limits.n_ctx_slot,
                n_predict=n_predict,
                suffix_first=gap.suffix_first,
            )

    def _with_branches(self, request: Request, submission: Submission, sent: SentPrompt) -> Request:
        """Adds the suffix prompt and, if they differ, the branches."""
        # If a prompt was given as tokens, text after it is not parsed for special tokens either.
        parse_special = _reads_special(sent)

        def suffix(pieces: Sequence[Piece]) -> Sequence[int] | None:
            return self._tokens_on(pieces, parse_special=parse_special) or None

        if submission.suffix:
            request = msgspec.structs.replace(request, suffix_prompt=suffix(submission.suffix))
        if not submission.branches:
            return request
        branches = [
            msgspec.structs.replace(
                branch.template,
                logit_bias=request.logit_bias if branch.logit_bias is submission.logit_bias else self._biases(branch.logit_bias),
                penalty_prompt=request.penalty_prompt
                if branch.penalty_prompt is submission.penalty_prompt
                else self._penalty_prompt(branch.penalty_prompt),
                adapters=self.adapters(branch.template.adapters),
                suffix_prompt=suffix(branch.suffix),
                seed=branch.template.seed if branch.has_seed else None,
            )
            for branch in submission.branches
        ]
        seed = int.from_bytes(os.urandom(4)) if request.seed is None else request.seed
        own = tuple(cast("BranchOptions", {name: getattr(one, name) for name in BRANCH_FIELDS}) for one in branches)
        return msgspec.structs.replace(request, seed=seed, branches=own)

    def _biases(self, biases: Sequence[tuple[Piece, float]]) -> Sequence[tuple[int, float]]:
        n_vocab = self._engine.model.n_vocab
        if len(biases) > n_vocab:
            raise InvalidRequestError("logit_bias", f"there are {len(biases)} biases; the vocabulary has {n_vocab} tokens")
        if isinstance(biases, Biases):
            # Encodes here on the worker thread; the result is cached for the event loop.
            biases.json()
            return biases
        result = [
            (token, bias) for piece, bias in biases for token in self.tokens([piece], add_special=False, parse_special=False)
        ]
        if len(result) > n_vocab:
            message = f"there are biases of {len(result)} tokens; the vocabulary has {n_vocab} tokens"
            raise InvalidRequestError("logit_bias", message)
        return self._biases(Biases(result)) if len(result) > LONG_TEXT else result

    def _penalty_prompt(self, pieces: Sequence[Piece] | None) -> Sequence[int] | None:
        if pieces is None:
            return None
        tokens = self.tokens(pieces, add_special=False, parse_special=False)
        if len(tokens) > LONG_TEXT:
            tokens = tokens if isinstance(tokens, TokenIds) else TokenIds(tokens)
            # As in `_biases`.
            tokens.json()
        return tokens


def _reads_special(sent: SentPrompt) -> bool:
    """Returns whether text after a prompt is parsed for special tokens, as it is if the prompt has text itself."""
    return isinstance(sent, MediaPrompt) or _has_text(sent)


def _has_text(prompt: SentPrompt) -> bool:
    return not isinstance(prompt, TokenIds | MixedPrompt) and any(isinstance(piece, str) for piece in pieces_of(prompt))


def _n_least(pieces: SentPrompt, model: Model) -> int:
    """Returns a lower bound for the number of tokens. If the longest token is known, characters are counted in place of bytes."""
    if isinstance(pieces, TokenIds | MixedPrompt):
        return len(pieces)
    longest = model.longest_piece

    def least(text: str) -> int:
        return model.least_tokens(text) if longest is None else -(-len(text) // longest)

    return sum(
        least(piece) if isinstance(piece, str) else piece.n_tokens if isinstance(piece, Media) else 1
        for piece in pieces_of(pieces)
    )
