"""`response_fields`: selects parts of a complete response by paths like `generation_settings/n_predict`."""

from collections.abc import Sequence

from weft import InvalidRequestError
from weft.server.request_fields.fields import CompletionFields

MAX_PATHS = 256
"""Maximum paths, above the number of fields: each path is resolved at the end of each branch."""

MAX_PATH_CHARACTERS = 256
"""Maximum length of a path, in characters."""

MAX_NESTED = 8
"""Maximum nesting of paths, which bounds how often a part of the response is repeated."""


def paths(body: CompletionFields) -> Sequence[str]:
    """Returns the paths of the fields that a complete response includes; empty for all.

    Raises:
        InvalidRequestError: There are too many paths, one is too long, or they are nested too deeply.
    """
    fields = body.response_fields or []
    fields = [fields] if isinstance(fields, str) else fields
    if len(fields) > MAX_PATHS:
        raise InvalidRequestError("response_fields", f"response_fields has {len(fields)} paths; at most {MAX_PATHS} are allowed")
    if (longest := max(map(len, fields), default=0)) > MAX_PATH_CHARACTERS:
        message = f"response_fields has a path of {longest} characters; at most {MAX_PATH_CHARACTERS} are allowed"
        raise InvalidRequestError("response_fields", message)
    if (n_nested := _n_nested(fields)) > MAX_NESTED:
        nested = f"{n_nested} nested paths, such as a, a/b and a/b/c"
        message = f"response_fields has {nested}; at most {MAX_NESTED} are allowed, since each repeats the content of the next"
        raise InvalidRequestError("response_fields", message)
    return fields


def _n_nested(paths: Sequence[str]) -> int:
    """Returns the length of the longest chain of paths of which each is a prefix of the next."""
    n_nested = 0
    outer: list[list[str]] = []
    # By components: as strings, `a-b` would sort between `a` and `a/b`.
    for steps in sorted(path.split("/") for path in set(paths)):
        while outer and steps[: len(outer[-1])] != outer[-1]:
            outer.pop()
        outer.append(steps)
        n_nested = max(n_nested, len(outer))
    return n_nested
