"""Branches of one request that differ: what each says of itself, and the requests that they come to."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.errors import InvalidRequest
from weft.request import BranchOptions, ForkOptions, Request

__all__ = ["BRANCH_FIELDS", "FORK_FIELDS", "branch_requests", "fork_request"]

BRANCH_FIELDS = frozenset(BranchOptions.__optional_keys__)
"""What a branch may say; everything else is of the whole request."""

FORK_FIELDS = frozenset(ForkOptions.__optional_keys__)
"""What forks of a branch may say: what stands before them, and its adapters, are the branch's."""

_CONSTRAINTS = ("grammar", "json_schema")

_OF_PROMPTS: dict[str, Any] = {
    "prompt": (),
    "branches": (),
    "suffix_prompt": None,
    "adapters": None,
    "prompt_logprobs": None,
    "prompt_logprobs_from": 0,
    "report_progress": False,
    "snapshots_at": (),
    "explain_cache": False,
    "system_end": None,
    "slot": None,
    "seed": None,
}
"""What a request says of its prompt or of one branch alone, and what says nothing."""


def branch_requests(request: Request) -> list[Request]:
    """One request for each of `request.branches`: its own fields, and the request's where it says nothing.

    Branch `i` draws with the request's `seed + i`, unless it has a seed of its own.

    Raises:
        InvalidRequest: `branches` is no list of mappings, one has a field that no branch has, or `n` is another number.
    """
    branches = _checked(request.branches)
    if request.n not in (1, len(branches)):
        message = f"n is {request.n}, and there are {len(branches)} branches; leave n out, or give as many"
        raise InvalidRequest("n", message)
    seed = int.from_bytes(os.urandom(4)) if request.seed is None else request.seed
    alone = msgspec.structs.replace(request, branches=(), n=1)
    return [
        msgspec.structs.replace(alone, **{"seed": (seed + index) % 2**32, **_given(branch)})
        for index, branch in enumerate(branches)
    ]


def fork_request(request: Request, n: int, options: Mapping[str, Any]) -> Request:
    """What `n` forks of a branch of `request` are asked for that have options of their own.

    Raises:
        InvalidRequest: there is an option that forks do not have.
    """
    for name in options:
        if name not in FORK_FIELDS:
            known = ", ".join(sorted(FORK_FIELDS))
            raise InvalidRequest(name, f"{name} is nothing that forks have of their own; those are {known}")
    fields: dict[str, Any] = {**_OF_PROMPTS, "n": n, **_given(options)}
    return msgspec.structs.replace(request, **fields)


def _checked(branches: Any) -> Sequence[Mapping[str, Any]]:  # noqa: ANN401 (what a caller gave)
    if isinstance(branches, str | bytes | Mapping) or not isinstance(branches, Sequence):
        raise InvalidRequest("branches", "branches must be a sequence of mappings, one for each branch")
    for index, branch in enumerate(branches):
        if not isinstance(branch, Mapping):
            raise InvalidRequest("branches", f"branches[{index}] must be a mapping of fields to values")
        for name in branch:
            if name not in BRANCH_FIELDS:
                known = ", ".join(sorted(BRANCH_FIELDS))
                message = f"branches[{index}] has {name!r}, which no branch has of its own; those are {known}"
                raise InvalidRequest("branches", message)
    return branches


def _given(branch: Mapping[str, Any]) -> dict[str, Any]:
    """What it says; without a seed of its own, what comes of the request's. Its own constraint takes the place of either."""
    given = {name: value for name, value in branch.items() if name != "seed" or value is not None}
    return {**dict.fromkeys(_CONSTRAINTS), **given} if any(given.get(name) is not None for name in _CONSTRAINTS) else given
