"""Fixtures of the page's tests: one Chromium and one server for each worker of pytest, and a context for each test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, async_playwright, expect

from tests.browser import launched
from tests.page.served import PageServer
from tests.page.writer import Writer

TIMEOUT_MS = 20_000
"""Deadline of each condition. A busy machine is slow, which no test notices."""

NewWriter = Callable[..., Awaitable[Writer]]
"""Opens a tab: `await new_writer(server, **options)`, in a context of its own unless `beside` names the writer of another tab."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(120))


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    async with async_playwright() as playwright, launched(playwright) as chromium:
        yield chromium


@pytest.fixture(scope="session")
async def shared_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PageServer]:
    async with PageServer(tmp_path_factory.mktemp("page") / "documents.sqlite") as server:
        yield server


@pytest.fixture
async def server(shared_server: PageServer) -> AsyncIterator[PageServer]:
    """The server without documents, whose engine writes stories as fast as it can."""
    yield shared_server
    shared_server.engine.reset()
    await shared_server.delete_documents()


@pytest.fixture
async def new_writer(browser: Browser) -> AsyncIterator[NewWriter]:
    """Opens tabs. At its end, no tab has thrown an error, violated its policy, or asked another host."""
    writers: list[Writer] = []

    async def start(server: PageServer, *, beside: Writer | None = None, **options: Any) -> Writer:  # noqa: ANN401
        context = await browser.new_context(**options) if beside is None else beside.page.context
        context.set_default_timeout(TIMEOUT_MS)
        writers.append(await Writer.start(context, server))
        return writers[-1]

    yield start
    try:
        for writer in writers:
            if not writer.page.is_closed():
                await writer.check()
    finally:
        for context in {writer.page.context for writer in writers}:
            await context.close()


@pytest.fixture
async def writer(server: PageServer, new_writer: NewWriter) -> Writer:
    """A tab without the page, for the shared server."""
    return await new_writer(server)
