"""How far a download is, as numbers, and as a bar on a terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Progress", "Tally"]


class Progress(NamedTuple):
    """How far a download is."""

    file: str
    """The file that comes now."""
    n_bytes: int
    """What is there of all files of the model, in bytes, with what was there before."""
    n_total: int | None
    """What they take together; None where a server does not say."""


@dataclass
class Tally:
    """Counts the bytes of all files of one model."""

    n_total: int | None
    on_progress: Callable[[Progress], object] | None = None
    has_bar: bool = True
    """Whether a bar may be drawn. It is, where standard error is a terminal and `HF_HUB_DISABLE_PROGRESS_BARS` is not set."""
    n_bytes: int = 0

    def add(self, file: str, n: int) -> None:
        """So many bytes more are there, or fewer."""
        self.n_bytes += n
        if self.on_progress is not None:
            self.on_progress(Progress(file, self.n_bytes, self.n_total))

    def bar(self, file: str, n_there: int, n_total: int | None) -> Any:  # noqa: ANN401 (tqdm's, whose types are loose)
        """A bar for one file, to be entered and left."""
        from huggingface_hub.utils import tqdm  # noqa: PLC0415

        # None is: only on a terminal.
        disable = None if self.has_bar else True
        return tqdm(  # type: ignore[no-untyped-call]
            desc=file, initial=n_there, total=n_total, unit="B", unit_scale=True, disable=disable
        )
