"""Reasons for differences from llama-server's answers, read from the tables of docs/reference/llama-server.md."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compare.differences import Difference, matches

__all__ = ["PAGE", "Reason", "reason_for", "reasons"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "llama-server.md"

KINDS = ("added", "missing", "type", "value")


@dataclass(frozen=True)
class Reason:
    """A row of the page: which differences it is about, and why they are there."""

    requests: tuple[str, ...]
    """Patterns for the names of cases."""
    places: tuple[str, ...]
    kinds: tuple[str, ...]
    why: str

    def explains(self, difference: Difference) -> bool:
        """Whether the row is about this difference."""
        return (
            difference.kind in self.kinds
            and any(matches(difference.case, pattern) for pattern in self.requests)
            and any(matches(difference.place, pattern) for pattern in self.places)
        )


def reasons() -> list[Reason]:
    """The rows of all tables of the page."""
    return list(_rows(PAGE.read_text(encoding="utf-8")))


def _rows(page: str) -> Iterator[Reason]:
    if lost := re.findall(r"\n\n(\| `.*)", page):
        raise ValueError(f"this row stands in no table: {lost[0]}")
    for table in re.findall(r"^\| requests \| field \| difference \| reason \|\n\|[- |]+\|\n((?:\|.*\n)+)", page, re.MULTILINE):
        for row in table.splitlines():
            requests, places, kinds, why = (cell.strip() for cell in row.removeprefix("|").removesuffix("|").split(" | "))
            named = tuple(kinds.split(", "))
            if not why or not set(named) <= set(KINDS):
                raise ValueError(f"this row does not say how and why answers differ: {row}")
            yield Reason(_spelt(requests), _spelt(places), named, why)


def _spelt(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def reason_for(difference: Difference, among: Sequence[Reason]) -> Reason | None:
    """The first row that is about a difference."""
    return next((reason for reason in among if reason.explains(difference)), None)
