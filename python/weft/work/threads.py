"""Threads for what would hold the event loop up."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import ParamSpec, TypeVar

from weft._native import Cancellation

__all__ = ["LONG_TEXT", "For", "Threads"]

Made = TypeVar("Made")
Given = ParamSpec("Given")

LONG_TEXT = 8_192
"""Texts of more characters, or so many tokens, are worked on by another thread: they would hold the event loop up."""

N_THREADS = 4
"""For each purpose at most; they start when they are first needed."""


class For(Enum):
    """What a thread is for. Nothing waits for what is done for another purpose."""

    LIFE = "life"
    """The loading of the model, and the end of the worker."""
    LOOK = "look"
    """A question that the worker answers after its step."""
    ERASE = "erase"
    """The same for a slot that is to be erased, which is asked again as long as something runs there."""
    FILE = "file"
    """A prefix that is written or read; a disk may be slow."""
    TEXT = "text"
    """A long text that is tokenized, or a chat that is rendered."""
    MEDIA = "media"
    """A picture or a sound that is decoded."""


class Threads:
    """The threads of one engine. asyncio's own are everybody's: whoever fills those would keep the engine from what it needs."""

    def __init__(self) -> None:
        self._pools = {purpose: ThreadPoolExecutor(N_THREADS, thread_name_prefix=f"weft-{purpose.value}") for purpose in For}

    async def work(self, purpose: For, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
        """Does work on another thread.

        If the caller is cancelled, work that waits for a thread is not begun, and the tokenizing of a long text is stopped.
        """
        cancellation = Cancellation()
        job = partial(cancellation.run, partial(work, *args, **kwargs))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pools[purpose], job)
        finally:
            cancellation.cancel()
