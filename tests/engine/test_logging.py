"""What the engine and llama.cpp say goes to Python's logging."""

import logging

import pytest

import weft
from tests.helpers import wait_until


async def test_a_load_is_heard_by_who_wants_to_debug_and_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="weft"):
        async with weft.Engine(n_slots=1, n_ctx=256, n_threads=1):
            await wait_until(lambda: {record.name for record in caplog.records} == {"weft", "weft.llama_cpp"})
    assert {record.levelname for record in caplog.records} <= {"DEBUG", "INFO"}
    assert all(record.getMessage() for record in caplog.records)


async def test_a_load_is_silent_for_who_does_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="weft"):
        async with weft.Engine(n_slots=1, n_ctx=256, n_threads=1) as engine:
            await engine.complete("A fox", max_tokens=1)
    assert caplog.records == []
