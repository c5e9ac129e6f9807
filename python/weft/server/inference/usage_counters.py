"""Total usage of finished branches since the server's start."""

from weft import Usage


class UsageCounters:
    """Sums over branches that ran to their end. Cancelled branches are not counted."""

    def __init__(self) -> None:
        self.n_computed = 0
        """Prompt tokens that were computed."""
        self.n_predicted = 0
        """Generated tokens."""
        self.n_steps = 0
        """Generated tokens except the first of each branch, whose time counts as the prompt's."""
        self.prompt_ms = 0.0
        """Time from a start in a slot to the first token, in milliseconds."""
        self.predicted_ms = 0.0
        """Time from the first token to the last, in milliseconds."""
        self.n_tokens_max = 0
        """Length of the longest branch in tokens, including its prompt."""
        self.n_malformed_calls = 0
        """Malformed tool calls, which were returned as content."""

    def count_malformed_call(self) -> None:
        """Counts a malformed tool call."""
        self.n_malformed_calls += 1

    def add(self, usage: Usage) -> None:
        """Adds the usage of one branch."""
        self.n_computed += usage.n_computed
        self.n_predicted += usage.n_predicted
        self.n_steps += max(usage.n_predicted - 1, 0)
        self.prompt_ms += usage.prompt_ms
        self.predicted_ms += usage.predicted_ms
        self.n_tokens_max = max(self.n_tokens_max, usage.n_prompt + usage.n_predicted)

    @property
    def prompt_per_second(self) -> float:
        """Prompt tokens computed per second of their branches' own time, or 0."""
        return _per_second(self.n_computed, self.prompt_ms)

    @property
    def predicted_per_second(self) -> float:
        """Tokens generated per second of their branches' own time, or 0."""
        return _per_second(self.n_steps, self.predicted_ms)


def _per_second(n: int, ms: float) -> float:
    return 1000 * n / ms if ms > 0 else 0.0
