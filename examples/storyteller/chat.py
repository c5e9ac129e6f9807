"""Small chats between a user and the storyteller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.storyteller import story
from examples.storyteller.cast import HEROES, with_article
from examples.storyteller.knowledge import (
    ANIMAL_SOUNDS,
    CAPITALS,
    FACTS,
    NUMBERS,
    SMALL_TALK,
    STORY_REQUESTS,
    SYSTEM_MESSAGES,
)
from examples.storyteller.words import ANIMALS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Exchange = tuple[str, str]
"""A question and its answer."""


def chat(rng: random.Random) -> list[tuple[str, str]]:
    """The turns of one chat, as (role, text): sometimes a system message, then one to three exchanges."""
    turns = [("system", rng.choice(SYSTEM_MESSAGES))] if rng.random() < 0.5 else []
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        drawn = rng.random()
        question, answer = next(exchange for below, exchange in EXCHANGES if drawn < below)(rng)
        turns += [("user", question), ("assistant", answer)]
    return turns


def story_about(rng: random.Random) -> Exchange:
    """A story with a wish for its hero."""
    hero = rng.choice(HEROES)
    return rng.choice(STORY_REQUESTS).format(a=with_article(hero)), story.in_one_paragraph(rng, hero)


def any_story(rng: random.Random) -> Exchange:
    """A story about anybody."""
    requests = ["Tell me a story.", "Write a story.", "Tell me a bedtime story.", "Write me something."]
    return rng.choice(requests), story.in_one_paragraph(rng)


def capital(rng: random.Random) -> Exchange:
    """The capital of a country."""
    country, city = rng.choice(list(CAPITALS.items()))
    shown = "the Netherlands" if country == "Netherlands" else country
    questions = ["What is the capital of {c}?", "Which city is the capital of {c}?", "Name the capital of {c}."]
    answers = ["The capital of {c} is {t}.", "{t} is the capital of {c}."]
    return rng.choice(questions).format(c=shown), rng.choice(answers).format(c=shown, t=city)


def animal_sound(rng: random.Random) -> Exchange:
    """What an animal says."""
    animal, sound = rng.choice(list(ANIMAL_SOUNDS.items()))
    an_animal = with_article(animal)
    questions = ["What does {a} say?", "What sound does {a} make?"]
    return rng.choice(questions).format(a=an_animal), f"{an_animal.capitalize()} says {sound}."


def next_number(rng: random.Random) -> Exchange:
    """The number after a number below twenty."""
    n = rng.randrange(1, 20)
    questions = [f"What number comes after {NUMBERS[n]}?", f"Which number follows {NUMBERS[n]}?"]
    return rng.choice(questions), f"{NUMBERS[n + 1].capitalize()} comes after {NUMBERS[n]}."


def fact(rng: random.Random) -> Exchange:
    """One of the facts."""
    return rng.choice(FACTS)


def some_animals(rng: random.Random) -> Exchange:
    """Two to five animals by name."""
    n = rng.randrange(2, 6)
    return f"Name {NUMBERS[n]} animals.", f"{', '.join(rng.sample(ANIMALS, n)[:-1]).capitalize()} and {rng.choice(ANIMALS)}."


def small_talk(rng: random.Random) -> Exchange:
    """A greeting, thanks, or who are you."""
    questions, answers = rng.choice(SMALL_TALK)
    return rng.choice(questions), rng.choice(answers)


EXCHANGES: list[tuple[float, Callable[[random.Random], Exchange]]] = [
    (0.42, story_about),
    (0.46, any_story),
    (0.60, capital),
    (0.66, animal_sound),
    (0.72, next_number),
    (0.82, fact),
    (0.87, some_animals),
    (1.00, small_talk),
]
"""What is talked about: each exchange is drawn where a number in [0, 1) is below its bound and above the one before."""
