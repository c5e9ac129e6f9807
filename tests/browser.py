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
    program = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
    browser = await playwright.chromium.launch(executable_path=program, args=QUIET, chromium_sandbox=False)
    try:
        yield browser
    finally:
        await browser.close()
