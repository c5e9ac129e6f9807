"""Engine that downloads its model, projector or draft model on start, without blocking the event loop."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from weft import hub
from weft.engine import Engine
from weft.errors import InvalidConfigError, ModelLoadError
from weft.hub.failure import size_text
from weft.hub.progress import Progress
from weft.settings import Settings

logger = logging.getLogger("weft")

T = TypeVar("T")

LOG_EVERY_S = 10.0
"""Log interval of a download's progress, in seconds, without a terminal."""


class FetchingEngine(Engine):
    """An engine that downloads its model, or the projector or draft model of a local model, on start.

    Args:
        settings: Settings with the source of the model, of the projector or of the draft model.
        has_bar: Shows a progress bar on the terminal.
        on_fetching: Called with the progress of the download, on another thread.
        on_progress: Called with the loaded fraction, after the download.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        has_bar: bool,
        on_fetching: Callable[[Progress], object],
        on_progress: Callable[[float], object] | None,
    ) -> None:
        self._sources = settings.source, settings.projector_source, settings.draft_source
        name = settings.model if settings.source is None else settings.source.name
        super().__init__(name, config=settings.engine, on_progress=on_progress)
        self._has_bar = has_bar
        self._on_fetching = on_fetching
        self._logged_at = time.monotonic()
        self._has_files = False

    @property
    def has_files(self) -> bool:
        """True if all files have been downloaded."""
        return self._has_files

    async def start(self) -> None:
        """Downloads missing files and loads the model.

        Raises:
            ModelLoadError: The model cannot be downloaded, or is not a model that Weft can run.
            InvalidConfigError: The projector or the draft model cannot be downloaded; settings contradict each other, or do not
                fit the model or the memory.
            EngineStoppedError: The engine was closed meanwhile.
        """
        model, others = await _run_on_daemon_thread(self._fetch)
        if model is not None:
            self._path = str(model)
        self._config = msgspec.structs.replace(self._config, **{name: str(path) for name, path in others.items()})
        self._has_files = True
        await super().start()

    def _fetch(self) -> tuple[Path | None, dict[str, Path]]:
        """Returns the local paths of the model, and of other files by their settings. Runs on the download thread."""
        # Routes the library's log records to the root handlers.
        library = logging.getLogger("huggingface_hub")
        import huggingface_hub  # noqa: F401, PLC0415 (importing it configures its logging)

        for handler in list(library.handlers):
            library.removeHandler(handler)
        library.propagate = True
        find = partial(hub.find, on_progress=self._on_progress_of_download, has_bar=self._has_bar)
        source, projector_source, draft_source = self._sources
        found = None if source is None else find(source)
        others = {} if found is None or found.projector is None else {"mmproj": found.projector}
        for setting, given, what, other in (
            ("mmproj", "mmproj_url", "projector", projector_source),
            ("draft_model", "draft_hf_repo", "draft model", draft_source),
        ):
            if other is None:
                continue
            try:
                others[setting] = find(other).model
            except ModelLoadError as error:
                raise InvalidConfigError(given, f"cannot load the {what} {error.path}: {error.reason}") from None
        return None if found is None else found.model, others

    def _on_progress_of_download(self, progress: Progress) -> None:
        self._on_fetching(progress)
        now = time.monotonic()
        if now - self._logged_at < LOG_EVERY_S or sys.stderr.isatty():
            return
        self._logged_at = now
        total = "" if progress.n_total is None else f" of {size_text(progress.n_total)}"
        logger.info("downloading %s: %s%s", progress.file, size_text(progress.n_bytes), total)


async def _run_on_daemon_thread(work: Callable[[], T]) -> T:
    """Returns the result of `work`, run on a daemon thread, so that the process can exit without waiting for it."""
    done: Future[T] = Future()

    def run() -> None:
        if not done.set_running_or_notify_cancel():
            return
        # From here on, cancelling the caller does not change `done`.
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 (raised in the awaiting task)
            done.set_exception(error)

    threading.Thread(target=run, name="weft-download", daemon=True).start()
    return await asyncio.wrap_future(done)
