"""Files of prefixes: what was saved or loaded."""

import msgspec

__all__ = ["PrefixFile"]


class PrefixFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that holds the computed state of a prefix."""

    path: str
    """The file, as it was named."""
    n_tokens: int
    """The prefix's length in tokens."""
    n_bytes: int
    """The file's size."""
    ms: float
    """Milliseconds that it took to save or to load it, waiting for the engine included."""
