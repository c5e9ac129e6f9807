"""Collects the results of branches for complete responses."""

from collections import defaultdict
from typing import Any

from weft import Finished, Token
from weft.server.inference.generation import token_logprobs
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.request_fields.fields import CompletionFields
from weft.server.response_fields.projection import projected
from weft.server.response_fields.result import Branches
from weft.server.streaming.json_chunks import GAP, json_list


class BranchResults:
    """Texts, tokens and probabilities of unfinished branches, from which their results are made."""

    def __init__(self, data: CompletionFields, branches: Branches) -> None:
        self._branches = branches
        self._with_tokens = data.return_tokens is True
        self._post_sampling = data.post_sampling_probs is True
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._tokens: defaultdict[int, list[int]] = defaultdict(list)
        self._probabilities: defaultdict[int, list[bytes]] = defaultdict(list)
        """Encoded immediately, because encoding a million entries at the end would block the event loop."""

    def add(self, prompt: int, token: Token, *, with_probability: bool = True) -> int:
        """Adds a token of a branch. Returns the number of bytes by which memory use grew."""
        index = self._branches.index(prompt, token)
        self._texts[index].append(token.text)
        if self._with_tokens:
            self._tokens[index].append(token.token)
        n_bytes = TOKEN_BYTES + len(token.text)
        if with_probability and (logprobs := token_logprobs(token)) is not None:
            self._probabilities[index].append(logprobs.completion_json(self._post_sampling))
            n_bytes += len(self._probabilities[index][-1])
        return n_bytes

    def finish(self, prompt: int, finished: Finished) -> tuple[Any, list[bytes]]:
        """Returns the result of a branch, or the requested parts, with a gap for its probabilities; and the gap's contents."""
        index = self._branches.index(prompt, finished)
        probabilities = self._probabilities.pop(index, None)
        result = self._branches.result(
            prompt,
            finished,
            content="".join([*self._texts.pop(index, []), finished.text]),
            tokens=self._tokens.pop(index, []),
            probabilities=None if probabilities is None else GAP,
        )
        return projected(result, self._branches.generation), json_list(probabilities or ())
