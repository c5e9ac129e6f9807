"""Result of saving or loading a prefix file."""

from typing import Annotated

import msgspec

from weft.fields.meta import described

__all__ = ["PrefixFile"]


@described
class PrefixFile(msgspec.Struct, frozen=True, kw_only=True):
    """File with the computed state of a prefix."""

    path: Annotated[str, "path of the file, as given"]
    n_tokens: Annotated[int, "length of the prefix in tokens"]
    n_bytes: Annotated[int, "size of the file in bytes"]
    ms: Annotated[float, "milliseconds to save or load the file, including the wait for the engine"]
