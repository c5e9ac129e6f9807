"""Built-in chat templates, with llama.cpp's names.

Each is a file in `templates`, written from the format's public description.
"""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

CHATML = "chatml"
"""Default for models without a template."""

_ALIASES = {"mistral": "mistral-v7", "phi": "phi4"}
"""A family's name selects its newest format."""


@cache
def names() -> tuple[str, ...]:
    """Returns all names, sorted."""
    stems = [entry.name.removesuffix(".jinja") for entry in _folder().iterdir() if entry.name.endswith(".jinja")]
    return tuple(sorted([*stems, *_ALIASES]))


def source(name: str) -> str:
    """Returns the Jinja source of a template, given one of [`names`]."""
    return _folder().joinpath(f"{_ALIASES.get(name, name)}.jinja").read_text(encoding="utf-8")


def _folder() -> Traversable:
    return files("weft.chat").joinpath("templates")
