"""Lines of a system message that change: they stand at its end, or nowhere, so that what is before them stays known."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import answers
from tests.server.matchers import Json
from weft.chat.conversation import ChatMessage, ContentPart
from weft.chat.volatile import MAX_LINES, VolatileLines
from weft.server import create_app
from weft.settings import Settings
from weft.settings.volatile import MAX_LINE, MAX_PATTERN, MAX_RULES, PRESETS, LineRule, all_rules, rules

DATE = LineRule("Today is .*")
HEADER = LineRule("x-id: .*", drops=True)


def rearranged(*given: LineRule, content: str | list[ContentPart], role: str = "system") -> tuple[str, int]:
    messages = [ChatMessage(role=role, content=content), ChatMessage(role="user", content="Today is mine.")]
    (first, second), n_lines = VolatileLines(given).rearrange(messages)
    assert second == messages[1], "only the system's message is looked at"
    parts = first.content
    assert isinstance(parts, str | list)
    return parts if isinstance(parts, str) else "|".join(part.text or "" for part in parts), n_lines


@pytest.mark.parametrize(
    ("content", "expected", "n_lines"),
    [
        ("One.\nTwo.", "One.\nTwo.", 0),
        ("Today is Monday.\nOne.\nTwo.", "One.\nTwo.\nToday is Monday.", 1),
        ("One.\nToday is Monday.\nTwo.\nToday is Friday.", "One.\nTwo.\nToday is Monday.\nToday is Friday.", 2),
        ("x-id: 17\nOne.", "One.", 1),
        ("x-id: 17\nToday is Monday.", "Today is Monday.", 2),
        ("One. Today is Monday.", "One. Today is Monday.", 0),
        ("x-id: 17", "", 1),
        ("", "", 0),
    ],
)
def test_lines_that_match_from_end_to_end_stand_at_the_end_or_nowhere(content: str, expected: str, n_lines: int) -> None:
    assert rearranged(DATE, HEADER, content=content) == (expected, n_lines)


def test_parts_are_looked_at_each_and_lines_stand_after_the_last() -> None:
    parts = [ContentPart("text", text) for text in ("x-id: 17", "Today is Monday.\nOne.", "Two.")]
    assert rearranged(DATE, HEADER, content=parts) == ("One.|Two.|Today is Monday.", 2)
    assert rearranged(DATE, HEADER, content=parts[:1]) == ("", 1)


def test_messages_of_others_and_long_lines_stay() -> None:
    assert rearranged(DATE, content="Today is Monday.\nOne.", role="user") == ("Today is Monday.\nOne.", 0)
    long = f"Today is {'x' * MAX_LINE}\nOne."
    assert rearranged(DATE, content=long) == (long, 0)
    many = "\n" * MAX_LINES + "Today is Monday."
    assert rearranged(DATE, content=many) == (many, 0)


def test_a_rule_is_told_to_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    lines = VolatileLines([DATE])
    with caplog.at_level(logging.INFO, "weft.chat.volatile"):
        for _ in range(3):
            lines.rearrange([ChatMessage(role="system", content="Today is Monday.")])
    assert [record.getMessage() for record in caplog.records] == [
        "lines of the system message that match Today is .* are moved to its end (--volatile-prompt-lines)"
    ]


def test_presets_and_patterns_are_rules() -> None:
    assert rules("drop:x-id: .*") == (HEADER,)
    assert rules("Today is .*") == (DATE,)
    assert rules("claude-code") == PRESETS["claude-code"]
    header = "x-anthropic-billing-header: cc_version=2.0.1; cch=a1b2c;"
    assert rearranged(*rules("claude-code"), content=f"{header}\nYou help.\nToday's date: 2025-11-23\nBe brief.") == (
        "You help.\nBe brief.\nToday's date: 2025-11-23",
        2,
    )
    assert rearranged(*rules("opencode"), content="Today's date is 2025-11-23.\nYou help.") == (
        "You help.\nToday's date is 2025-11-23.",
        1,
    )
    for preset in PRESETS.values():
        assert all(rules(str(rule)) == (rule,) for rule in preset), "a preset keeps to the bounds of what is given"


@pytest.mark.parametrize(
    "text",
    [
        *("", "drop:", "a" * (MAX_PATTERN + 1), "[a", "a{5000000000}", "a*b*c*", "a{0,200}a{0,200}a{0,200}b"),
        *(
            "(a+)+b",
            "(a*){2,}",
            "(.*)*",
            "(x{1,}y)*",
            "((a+))+b",
            "(a{1,30}){1,30}b",
            "(a?){40}a{40}",
            "((((a?){300}){300}){300}){300}",
        ),
        *("(a|ab|b)*c", "(a|ab|b){25}c", "(?i)(?:ka|\u212aa)*b"),
        *(r"(a)\1", "(?=a)b", "(?<!a)b", "(a)?(?(1)b|c)"),
    ],
)
def test_a_pattern_that_might_take_long_is_refused(text: str) -> None:
    message = r"a pattern (has|may not use) |the pattern .* in too many ways|is neither a valid regular expression nor one of "
    with pytest.raises(ValueError, match=message):
        rules(text)


@pytest.mark.parametrize(
    "text",
    [r"(?:\d{1,3}\.){3}\d{1,3}", r"\s*(Mon|Tues|Wednes)day, .*", "(?:foo|bar)*", "(?:ab)*", r"[\w-]+: [^;]*;?", r"id=\(a+\)+"],
)
def test_a_pattern_that_takes_no_time_is_taken(text: str) -> None:
    [rule] = rules(text)
    lines = VolatileLines([rule])
    begun = time.perf_counter()
    for letters in ("a", "fo", "foobar", "ab", " ", "1.", "Mon", "a: "):
        lines.rearrange([ChatMessage(role="system", content=(letters * MAX_LINE)[: MAX_LINE - 1] + "!")])
    assert time.perf_counter() - begun < 1


def test_rules_add_up_and_are_bounded() -> None:
    assert all_rules((DATE,), (DATE, HEADER)) == (DATE, HEADER)
    many = tuple(LineRule(f"line {n}") for n in range(MAX_RULES))
    with pytest.raises(ValueError, match=f"at most {MAX_RULES}"):
        all_rules(many, (DATE,))


@asynccontextmanager
async def serving(*given: LineRule) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(weft.Engine(n_slots=2, n_ctx=2048, n_threads=1), Settings(volatile_prompt_lines=given))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        yield client


async def n_found(client: httpx.AsyncClient, *days: str) -> list[Json]:
    """What is told of chats that differ in the first line of their system message."""
    explanations = []
    for day in days:
        system = f"Today is {day}.\nYou are a friend who tells long stories of dogs and cats to children in the evening."
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Tell me one."}]
        body = {"messages": messages, "max_tokens": 1, "explain_cache": True}
        explanations.append((await client.post("/v1/chat/completions", json=body)).json()["cache_explanation"])
    return explanations


async def test_a_day_that_changes_leaves_what_is_before_it_known() -> None:
    async with serving(DATE) as client:
        _, second = await n_found(client, "Monday", "Friday")
    async with serving() as client:
        _, plain = await n_found(client, "Monday", "Friday")
    assert second["n_volatile"] == 1
    assert plain["n_volatile"] == 0
    assert plain["n_found"] == 0 < second["n_found"]
    assert second["n_found"] > second["n_prompt"] // 2
    assert second["computed"][0]["cause"] == "system_changed"
