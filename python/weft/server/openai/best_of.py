"""Selection of the most likely completions."""

from collections.abc import Sequence

from weft.server.openai.schemas import Choice


class BestOf:
    """Selects the completions of each prompt with the highest mean logprob, in descending order.

    They are renumbered, so that the response does not reveal the others.
    """

    def __init__(self, n_selected: int, n_generated: int) -> None:
        """Selects `n_selected` of `n_generated` completions per prompt."""
        self._n_selected = n_selected
        self._n_generated = n_generated
        self._sums: dict[int, tuple[float, int]] = {}
        """Sum of logprobs and number of tokens of each branch, by index over all prompts."""

    @property
    def chooses(self) -> bool:
        """True if some completions are omitted."""
        return self._n_generated > self._n_selected

    def take(self, index: int, logprob: float) -> None:
        """Adds the logprob of a branch's next token."""
        total, n = self._sums.get(index, (0.0, 0))
        self._sums[index] = total + logprob, n + 1

    def select(self, choices: Sequence[Choice]) -> list[tuple[int, Choice]]:
        """Returns the selected choices in order, each with its original index."""
        by_index = {choice.index: choice for choice in choices}
        if not self.chooses:
            return sorted(by_index.items())
        selected: list[tuple[int, Choice]] = []
        for first in range(0, len(by_index), self._n_generated):
            branches = range(first, first + self._n_generated)
            best = sorted(branches, key=self._mean, reverse=True)[: self._n_selected]
            selected += [(index, by_index[index]) for index in best]
        for place, (index, choice) in enumerate(selected):
            choice.index = place
            # JSON has no infinity: a branch without tokens has no score.
            if index in self._sums:
                choice.score = self._mean(index)
        return selected

    def _mean(self, index: int) -> float:
        """Returns the mean logprob of a branch; minus infinity without tokens."""
        total, n = self._sums.get(index, (0.0, 0))
        return total / n if n else float("-inf")
