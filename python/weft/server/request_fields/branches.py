"""The branches of a body that differ: what each says of itself, in the place of what the body says."""

from typing import Any

import msgspec

from weft import InvalidRequest
from weft.fields.place import placed
from weft.fields.shown import shown
from weft.server.request_fields.fields import BRANCH_NAMES, BranchFields, CompletionFields

__all__ = ["MAX_BRANCHES", "branch_bodies", "branches_size"]

MAX_BRANCHES = 256
"""Most branches of one prompt."""

BRANCH_SIZE = 512
"""What it costs to read a branch, in characters of a text that is tokenized."""

_TOGETHER = (
    ("n_predict", "max_completion_tokens", "max_tokens"),
    ("grammar", "json_schema", "response_format"),
)
"""Names of which a branch that gives one means none of the body's others."""


def branches_size(body: CompletionFields) -> int:
    """What it costs to read the branches of a body, in characters of a text that is tokenized."""
    return BRANCH_SIZE * min(len(body.branches or ()), MAX_BRANCHES)


def branch_bodies(body: CompletionFields) -> list[tuple[BranchFields, CompletionFields]]:
    """Each branch, and the body as it would be for that branch alone. None where the branches do not differ.

    Raises:
        InvalidRequest: a branch has a field that is none of its own, or of the wrong type; or `n` is another number.
    """
    if not body.branches:
        return []
    if len(body.branches) > MAX_BRANCHES:
        raise InvalidRequest("branches", f"branches has {len(body.branches)} branches; it may have {MAX_BRANCHES}")
    for name in ("n_cmpl", "n"):
        if (n := getattr(body, name)) is not None and n != len(body.branches):
            raise InvalidRequest(
                name, f"{name} is {n}, and there are {len(body.branches)} branches; leave it out, or give as many"
            )
    branches = [_read(index, given) for index, given in enumerate(body.branches)]
    return [(branch, _alone(body, branch)) for branch in branches]


def _read(index: int, given: dict[str, Any]) -> BranchFields:
    for name in given:
        if name not in BRANCH_NAMES:
            message = (
                f"branches[{index}] has {shown(name)}, which no branch has of its own; it is the whole request's, or nobody's"
            )
            raise InvalidRequest("branches", message)
    try:
        return msgspec.convert(given, BranchFields, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest("branches", placed(error, f"branches[{index}]")) from None


def _alone(body: CompletionFields, branch: BranchFields) -> CompletionFields:
    own = {name: value for name in BRANCH_NAMES if name != "suffix_prompt" and (value := getattr(branch, name)) is not None}
    for names in _TOGETHER:
        if any(name in own for name in names):
            own = {**dict.fromkeys(names), **own}
    return msgspec.structs.replace(body, branches=None, n=None, n_cmpl=None, **own)
