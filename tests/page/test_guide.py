"""The guide for writers has the names and keys of the page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "writing.md").read_text(encoding="utf-8")
SOURCES = ROOT / "web" / "src"
TEXTS = (SOURCES / "texts.ts").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"\*\*(.+?)\*\*", GUIDE)) - {"Bold"})
KEYS = sorted(set(re.findall(r"\b(?:(?:Ctrl|Alt|Shift)\+)+(?:Enter|arrows|F\d|\S)|\bF\d\b|\bDel\b", GUIDE)))

PARTS = {"Ctrl": "Mod", "↑": "ArrowUp", "↓": "ArrowDown", "←": "ArrowLeft", "→": "ArrowRight", "Del": "Delete"}
"""Parts of shown keys whose names differ in the sources."""


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_shown_by_the_page(name: str) -> None:
    assert f'"{name}"' in TEXTS


def source_name(key: str) -> str:
    """Returns the name of a shown key in the sources."""
    parts = [PARTS.get(part, part) for part in key.split("+")]
    return "+".join(part.lower() if len(part) == 1 else part for part in parts)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_is_that_of_an_action(key: str) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.ts"))
    directions = ("Up", "Down", "Left", "Right")
    shown = [key.replace("arrows", f"Arrow{each}") for each in directions] if key.endswith("arrows") else [key]
    assert [each for each in shown if f'"{source_name(each)}"' not in sources] == []
