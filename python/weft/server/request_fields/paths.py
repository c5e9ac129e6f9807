"""`response_fields`: what of a finished answer is wanted, by paths like `generation_settings/n_predict`."""

from collections.abc import Sequence

from weft import InvalidRequest
from weft.server.request_fields.fields import CompletionFields

__all__ = ["MAX_PATHS", "MAX_PATH_CHARACTERS", "paths"]

MAX_PATHS = 256
"""More than there are fields: each is looked up at the end of each branch."""

MAX_PATH_CHARACTERS = 256
"""Longest path, in characters."""


def paths(body: CompletionFields) -> Sequence[str]:
    """The paths of the fields that a finished answer is to hold; none is all of it.

    Raises:
        InvalidRequest: there are too many, or one is too long.
    """
    fields = body.response_fields or []
    fields = [fields] if isinstance(fields, str) else fields
    if len(fields) > MAX_PATHS:
        raise InvalidRequest("response_fields", f"response_fields has {len(fields)} paths; at most {MAX_PATHS} are taken")
    if (longest := max(map(len, fields), default=0)) > MAX_PATH_CHARACTERS:
        message = f"response_fields has a path of {longest} characters; at most {MAX_PATH_CHARACTERS} are taken"
        raise InvalidRequest("response_fields", message)
    return fields
