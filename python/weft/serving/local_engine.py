"""Engine that runs the model of the settings in this process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from weft.demo import DEMO_MODEL
from weft.engine import Engine
from weft.serving.progress import bar
from weft.settings import Settings

if TYPE_CHECKING:
    from weft.hub.progress import Progress


def new_engine(
    settings: Settings, *, has_bar: bool = True, on_fetching: "Callable[[Progress], object]" = lambda _: None
) -> Engine:
    """Returns an engine for the settings, not started. Its model is a local file or a download.

    Args:
        settings: The settings.
        has_bar: True to show the progress of downloading and loading on the terminal.
        on_fetching: Called with the progress of the download, on another thread.
    """
    file = settings.source.name if settings.source is not None else Path(settings.model or DEMO_MODEL).name
    on_progress = bar(f"loading {file}") if has_bar else None
    if settings.source is None and settings.projector_source is None and settings.draft_source is None:
        return Engine(settings.model, config=settings.engine, on_progress=on_progress)
    from weft.serving.fetching import FetchingEngine  # noqa: PLC0415 (a local model needs no HTTP client)

    return FetchingEngine(settings, has_bar=has_bar, on_fetching=on_fetching, on_progress=on_progress)


def model_path(settings: Settings) -> Path:
    """Returns the path of the model's file, after downloading it if necessary.

    Raises:
        ModelLoadError: The model is not available.
    """
    if settings.source is None:
        return Path(settings.model or DEMO_MODEL)
    from weft import hub  # noqa: PLC0415 (a local model needs no HTTP client)

    return hub.find(replace(settings.source, wants_projector=False)).model


def model_name(settings: Settings) -> str:
    """Returns the name of the model, as configured, else of its source or its file."""
    return settings.model_name or str(settings.model or DEMO_MODEL).replace("\\", "/").rpartition("/")[2]
