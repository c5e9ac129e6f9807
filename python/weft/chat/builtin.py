"""Chat templates that can be asked for by name: those that llama.cpp knows, by its names.

Each is a file in `templates`, written from the format's public description.
"""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["CHATML", "names", "source"]

CHATML = "chatml"
"""What a model without a template gets."""

_ALIASES = {"mistral": "mistral-v7", "phi": "phi4"}
"""A family's name stands for its newest format here."""


@cache
def names() -> tuple[str, ...]:
    """Every name, in order."""
    stems = [entry.name.removesuffix(".jinja") for entry in _folder().iterdir() if entry.name.endswith(".jinja")]
    return tuple(sorted([*stems, *_ALIASES]))


def source(name: str) -> str:
    """The template of a name that is among [`names`], in Jinja."""
    return _folder().joinpath(f"{_ALIASES.get(name, name)}.jinja").read_text(encoding="utf-8")


def _folder() -> Traversable:
    return files("weft.chat").joinpath("templates")
