"""The likeliest of several completions."""

from collections.abc import Sequence

from weft.server.openai.schemas import Choice

__all__ = ["BestOf"]


class BestOf:
    """Of each prompt's completions tells those whose tokens have the highest mean log-probability, the best one first.

    What is told is numbered anew, so that nothing shows that more was written.
    """

    def __init__(self, n_told: int, n_written: int) -> None:
        """`n_written` completions of each prompt are there, of which `n_told` are told."""
        self._n_told = n_told
        self._n_written = n_written
        self._sums: dict[int, tuple[float, int]] = {}
        """Of each branch by its index over all prompts: the sum over its tokens, and how many they are."""

    @property
    def chooses(self) -> bool:
        """Whether some of what is written is not told."""
        return self._n_written > self._n_told

    def take(self, index: int, logprob: float) -> None:
        """Takes the log-probability of the next token of a branch."""
        total, n = self._sums.get(index, (0.0, 0))
        self._sums[index] = total + logprob, n + 1

    def told(self, choices: Sequence[Choice]) -> list[tuple[int, Choice]]:
        """What is told, in order, each with its own index among all that were written."""
        by_index = {choice.index: choice for choice in choices}
        if not self.chooses:
            return sorted(by_index.items())
        told: list[tuple[int, Choice]] = []
        for first in range(0, len(by_index), self._n_written):
            branches = range(first, first + self._n_written)
            best = sorted(branches, key=self._mean, reverse=True)[: self._n_told]
            told += [(index, by_index[index]) for index in best]
        for place, (index, choice) in enumerate(told):
            choice.index = place
            # JSON has no infinity: what has no token has no score.
            if index in self._sums:
                choice.score = self._mean(index)
        return told

    def _mean(self, index: int) -> float:
        """A branch that has not drawn a token is worth nothing."""
        total, n = self._sums.get(index, (0.0, 0))
        return total / n if n else float("-inf")
