"""Branches with different options: the fields of each branch override the body's."""

from typing import Any

import msgspec

from weft import InvalidRequestError
from weft.fields.excerpt import excerpt
from weft.fields.validation import message_with_path
from weft.server.request_fields.fields import BRANCH_NAMES, BranchFields, CompletionFields

MAX_BRANCHES = 256
"""Maximum branches per prompt."""

BRANCH_SIZE = 512
"""Cost of parsing a branch, in characters of tokenized text."""

_ALTERNATIVES = (
    ("n_predict", "max_completion_tokens", "max_tokens"),
    ("grammar", "json_schema", "response_format"),
)
"""Alternative names: a branch that sets one of them overrides all of the body's."""


def branches_size(body: CompletionFields) -> int:
    """Returns the cost of parsing the branches of a body, in characters of tokenized text."""
    return BRANCH_SIZE * min(len(body.branches or ()), MAX_BRANCHES)


def branch_bodies(body: CompletionFields) -> list[tuple[BranchFields, CompletionFields]]:
    """Returns each branch, and the body with the branch's fields applied; an empty list if branches do not differ.

    Raises:
        InvalidRequestError: A branch has a field that branches cannot have, or one of the wrong type, or `n` differs.
    """
    if not body.branches:
        return []
    if len(body.branches) > MAX_BRANCHES:
        raise InvalidRequestError("branches", f"branches has {len(body.branches)} entries; at most {MAX_BRANCHES} are allowed")
    for name in ("n_cmpl", "n"):
        if (n := getattr(body, name)) is not None and n != len(body.branches):
            raise InvalidRequestError(
                name, f"{name} is {n}, but branches has {len(body.branches)} entries; leave {name} out, or set it to their number"
            )
    branches = [_read(index, given) for index, given in enumerate(body.branches)]
    return [(branch, _body_of_branch(body, branch)) for branch in branches]


def _read(index: int, given: dict[str, Any]) -> BranchFields:
    for name in given:
        if name not in BRANCH_NAMES:
            message = f"branches[{index}] has {excerpt(name)}, which is not an option of a branch"
            raise InvalidRequestError("branches", message)
    try:
        return msgspec.convert(given, BranchFields, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError("branches", message_with_path(error, f"branches[{index}]")) from None


def _body_of_branch(body: CompletionFields, branch: BranchFields) -> CompletionFields:
    own = {name: value for name in BRANCH_NAMES if name != "suffix_prompt" and (value := getattr(branch, name)) is not None}
    for names in _ALTERNATIVES:
        if any(name in own for name in names):
            own = {**dict.fromkeys(names), **own}
    return msgspec.structs.replace(body, branches=None, n=None, n_cmpl=None, **own)
