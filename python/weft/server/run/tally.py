"""What the finished branches cost in all, since the server's start."""

from collections.abc import Iterable

from weft import Finished, Usage

__all__ = ["Tally"]


class Tally:
    """Sums over the branches that reached their end; one that was cancelled is in none of them."""

    def __init__(self) -> None:
        self.n_computed = 0
        """Prompt tokens that were computed."""
        self.n_predicted = 0
        """Tokens that were drawn."""
        self.n_steps = 0
        """Of these, all but the first of each branch: those that the time of the prediction was spent on."""
        self.prompt_ms = 0.0
        """Milliseconds from a start in a slot to the first token."""
        self.predicted_ms = 0.0
        """Milliseconds from the first token to the last."""
        self.n_tokens_max = 0
        """Tokens of the longest branch, its prompt among them."""
        self.n_unread_calls = 0
        """Calls of tools that were written so that they could not be read, and were told as content."""

    def count_unread_call(self) -> None:
        """Takes one call that could not be read."""
        self.n_unread_calls += 1

    def watch(self, ended: Iterable[Finished]) -> None:
        """Takes what finished branches cost."""
        for finished in ended:
            self.add(finished.usage)

    def add(self, usage: Usage) -> None:
        """Takes what one branch cost."""
        self.n_computed += usage.n_computed
        self.n_predicted += usage.n_predicted
        self.n_steps += max(usage.n_predicted - 1, 0)
        self.prompt_ms += usage.prompt_ms
        self.predicted_ms += usage.predicted_ms
        self.n_tokens_max = max(self.n_tokens_max, usage.n_prompt + usage.n_predicted)

    @property
    def prompt_per_second(self) -> float:
        """Prompt tokens computed per second of their branches' own time; 0 where nothing was computed."""
        return _per_second(self.n_computed, self.prompt_ms)

    @property
    def predicted_per_second(self) -> float:
        """Tokens drawn per second of their branches' own time; 0 where nothing was drawn."""
        return _per_second(self.n_steps, self.predicted_ms)


def _per_second(n: int, ms: float) -> float:
    return 1000 * n / ms if ms > 0 else 0.0
