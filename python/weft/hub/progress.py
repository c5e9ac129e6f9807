"""Progress of a download, as numbers and as a bar on a terminal."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.hub.failure import size_text

logger = logging.getLogger("weft")


class Progress(NamedTuple):
    """Progress of a download."""

    file: str
    """Name of the file that is being downloaded."""
    n_bytes: int
    """Bytes of all files of the model that are available, including earlier attempts."""
    n_total: int | None
    """Total bytes of all files; None if a server does not report it."""


@dataclass
class DownloadCounter:
    """Counts the downloaded bytes of all files of one model."""

    on_progress: Callable[[Progress], object] | None = None
    has_bar: bool = True
    """Allows a progress bar, on a terminal, unless `HF_HUB_DISABLE_PROGRESS_BARS` is set."""
    n_bytes: int = 0
    n_total: int | None = None

    def expect(self, name: str, sizes: Collection[int | None]) -> None:
        """Logs the beginning of a download of files with these sizes, whose total is known if all of them are."""
        self.n_total = None if None in sizes else sum(size or 0 for size in sizes)
        logger.info("downloading %s%s", name, "" if self.n_total is None else f", {size_text(self.n_total)}")

    def add(self, file: str, n: int) -> None:
        """Adds `n` bytes, which may be negative."""
        self.n_bytes += n
        if self.on_progress is not None:
            self.on_progress(Progress(file, self.n_bytes, self.n_total))

    def bar(self, file: str, n_existing: int, n_total: int | None) -> Any:  # noqa: ANN401 (tqdm's, whose types are loose)
        """Returns a progress bar for one file, as a context manager."""
        from huggingface_hub.utils import tqdm  # noqa: PLC0415

        # None disables the bar if there is no terminal.
        disable = None if self.has_bar else True
        return tqdm(  # type: ignore[no-untyped-call]
            desc=file, initial=n_existing, total=n_total, unit="B", unit_scale=True, disable=disable
        )
