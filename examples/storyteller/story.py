"""Writes one story from a plot and a cast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.storyteller.cast import Cast
from examples.storyteller.plots import PLOTS

if TYPE_CHECKING:
    import random


def tell(rng: random.Random, hero: str | None = None) -> list[str]:
    """The sentences of a story about `hero`, or about anybody."""
    cast = Cast(rng, hero)
    return [cast.say(beat.wordings) for beat in rng.choice(PLOTS) if beat.chance is None or rng.random() < beat.chance]


def in_one_paragraph(rng: random.Random, hero: str | None = None) -> str:
    """A story as an answer in a chat has it."""
    return " ".join(tell(rng, hero))


def on_a_page(rng: random.Random) -> str:
    """A story as a book has it: one or two paragraphs."""
    sentences = tell(rng)
    cut = rng.randrange(3, len(sentences) - 2)
    joint = "\n\n" if rng.random() < 0.35 else " "
    return " ".join(sentences[:cut]) + joint + " ".join(sentences[cut:])
