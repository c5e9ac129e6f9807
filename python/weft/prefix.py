"""Files of prefixes: what was saved or loaded."""

from typing import Annotated

import msgspec

from weft.fields.about import About, described

__all__ = ["PrefixFile"]


@described
class PrefixFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that holds the computed state of a prefix."""

    path: Annotated[str, About("the file, as it was named")]
    n_tokens: Annotated[int, About("the prefix's length in tokens")]
    n_bytes: Annotated[int, About("the file's size")]
    ms: Annotated[float, About("milliseconds that it took to save or to load it, waiting for the engine included")]
