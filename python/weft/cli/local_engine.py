"""Engine of a command that runs a model in its own process."""

import msgspec

from weft.demo import DEMO_MODEL
from weft.engine import Engine
from weft.serving.fetching import FetchingEngine
from weft.serving.progress import bar
from weft.settings import Settings

__all__ = ["model_name", "new_engine"]


def new_engine(settings: Settings, **changes: object) -> Engine:
    """Returns an engine for the settings, not started: with a local model or one that it downloads.

    Args:
        settings: The settings.
        **changes: Engine settings with priority over `settings`.
    """
    config = msgspec.structs.replace(settings.engine, **changes) if changes else settings.engine
    source, projector = settings.source, settings.projector_source
    on_progress = bar(f"loading {model_name(settings)}")
    if source is None and projector is None:
        return Engine(settings.model, config=config, on_progress=on_progress)
    return FetchingEngine(
        source or settings.model,
        projector,
        config=config,
        has_bar=True,
        on_fetching=lambda _: None,
        on_progress=on_progress,
    )


def model_name(settings: Settings) -> str:
    """Returns the name of the model, as configured, else of its source or its file."""
    return settings.model_name or str(settings.model or DEMO_MODEL).replace("\\", "/").rpartition("/")[2]
