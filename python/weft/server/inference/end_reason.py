"""Finish reasons in the finer terms that llama-server and Anthropic report."""

from typing import Literal

from weft import Finished

EndReason = Literal["end", "stop", "length", "context_full", "cancelled"]
"""`stop` by whether an end token or a stop string ended the text, and `length` by whether the context was full."""


def end_reason(finished: Finished) -> EndReason:
    """Returns why a branch ended."""
    if finished.finish_reason == "stop":
        return "end" if stop_string(finished) is None else "stop"
    return "context_full" if finished.is_context_full else finished.finish_reason


def stop_string(finished: Finished) -> str | None:
    """Returns the stop string that ended a branch, or None."""
    return finished.stop_reason if isinstance(finished.stop_reason, str) else None
