"""Headless Chromium of the system, driven by Playwright."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Playwright

__all__ = ["launched"]

QUIET = [
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
"""Chromium asks no host of its own accord, and resolves no name."""


@asynccontextmanager
async def launched(playwright: Playwright) -> AsyncIterator[Browser]:
    """Runs Chromium without a window and without its sandbox, which root may not use."""
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    assert found, "the tests need Chromium or Chrome; on Debian: apt install chromium"
    browser = await playwright.chromium.launch(executable_path=found[0], args=QUIET, chromium_sandbox=False)
    try:
        yield browser
    finally:
        await browser.close()
