"""What all chunks and choices of one answer have in common, in either of OpenAI's shapes."""

import time
import uuid
from collections.abc import Sequence

from weft import Finished, Token
from weft import Usage as BranchUsage
from weft.server.generation import Generation
from weft.server.openai.schemas import PromptTokensDetails, Usage

__all__ = ["FINISH_REASONS", "About"]

FINISH_REASONS = {"end": "stop", "stop": "stop", "length": "length", "context_full": "length"}


class About:
    """One answer: what it is called, and what its branches cost."""

    def __init__(self, prefix: str, generation: Generation, model: str, build: str) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = model
        self.build = build
        self.n = generation.requests[0].n
        self._n_prompt = [stream.n_prompt for stream in generation.streams]
        self._usages: list[list[BranchUsage]] = [[] for _ in generation.streams]

    def index(self, prompt: int, event: Token | Finished) -> int:
        """Counts the branches of all prompts."""
        return prompt * self.n + event.index

    def finish(self, prompt: int, finished: Finished) -> None:
        """Takes the end of a branch."""
        self._usages[prompt].append(finished.usage)

    @property
    def usages(self) -> Sequence[BranchUsage]:
        """The usage of every branch that has finished."""
        return [usage for usages in self._usages for usage in usages]

    def usage(self) -> Usage:
        """The sums, once every branch has finished."""
        # What the branches of one prompt computed adds up to what was computed of it; the rest was there before.
        cached = sum(
            max(n_prompt - sum(usage.n_computed for usage in usages), 0)
            for n_prompt, usages in zip(self._n_prompt, self._usages, strict=True)
        )
        prompt_tokens = sum(self._n_prompt)
        completion_tokens = sum(usage.n_predicted for usage in self.usages)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )
