"""Characters, places and things of one story."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.storyteller.words import (
    ANIMALS,
    FEELINGS,
    GIRLS,
    HOMES,
    LOST,
    MORALS,
    NAMES,
    PEOPLE,
    SOUNDS,
    THINGS,
    TRAITS,
    WEATHER,
    WILDS,
)

if TYPE_CHECKING:
    import random

HEROES = ANIMALS + PEOPLE
BOYS_ONLY = ("boy", "young prince", "fisherman")
GIRLS_ONLY = ("girl", "young princess")


def with_article(phrase: str) -> str:
    """The phrase after "a" or "an"."""
    return ("an " if phrase[0] in "aeiou" or phrase.startswith("honest") else "a ") + phrase


class Cast:
    """The people, places and things of one story, drawn once, so that every sentence agrees with the others."""

    def __init__(self, rng: random.Random, hero: str | None = None) -> None:
        """Draws the cast from `rng`; `hero` is one of `HEROES`, or None to draw that too."""
        self._rng = rng
        self.name, self.friend_name = rng.sample(NAMES, 2)
        self.hero = hero or rng.choice(HEROES)
        if self.hero in BOYS_ONLY and self.name in GIRLS:
            self.name = rng.choice([name for name in NAMES if name not in GIRLS and name != self.friend_name])
        if self.hero in GIRLS_ONLY and self.name not in GIRLS:
            self.name = rng.choice([name for name in NAMES if name in GIRLS and name != self.friend_name])
        self.friend = rng.choice([animal for animal in ANIMALS if animal != self.hero])
        self.trait, self.friend_trait = rng.sample(TRAITS, 2)
        self.home = rng.choice(HOMES)
        self.wild, self.wild2 = rng.sample(WILDS, 2)
        self.thing, self.gift = rng.sample(THINGS, 2)
        self.lost = rng.choice(LOST)

    def say(self, wordings: tuple[str, ...] | list[str]) -> str:
        """One of the wordings, filled in."""
        return self._fill(self._rng.choice(wordings))

    def _fill(self, wording: str) -> str:
        she = self.name in GIRLS
        sub, obj, pos = ("she", "her", "her") if she else ("he", "him", "his")
        # "A brave young princess" would be one adjective too many.
        hero = self.hero if self.hero.startswith(("young", "old", "little")) else f"{self.trait} {self.hero}"
        return wording.format(
            a_hero=with_article(hero),
            name=self.name,
            friend=self.friend,
            friend_name=self.friend_name,
            a_friend=with_article(f"{self.friend_trait} {self.friend}"),
            place=self.home,
            wild=self.wild,
            wild2=self.wild2,
            thing=self.thing,
            a_thing=with_article(self.thing),
            gift=self.gift,
            a_gift=with_article(self.gift),
            lost=self.lost,
            own="hers" if she else "his",
            sub=sub,
            Sub=sub.capitalize(),
            obj=obj,
            pos=pos,
            sound=self._rng.choice(SOUNDS),
            moral=self._rng.choice(MORALS),
            weather=self._rng.choice(WEATHER),
            sad=self._feeling("sad", pos),
            glad=self._feeling("glad", pos),
            afraid=self._feeling("afraid", pos),
        )

    def _feeling(self, mood: str, pos: str) -> str:
        return self._rng.choice(FEELINGS[mood]).replace("{pos}", pos)
