"""Requests whose branches or forks have different options."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.errors import InvalidRequestError
from weft.request import BranchOptions, Request
from weft.request.internal import InternalRequest
from weft.request.sampling_options import SamplingOptions

BRANCH_FIELDS = frozenset(BranchOptions.__optional_keys__)
"""Fields that a branch may set; all others apply to the whole request."""

FORK_FIELDS = frozenset(SamplingOptions.__optional_keys__)
"""Fields that a fork may set; prompt and adapters are the branch's."""

_CONSTRAINTS = ("grammar", "json_schema")

_OF_PROMPTS: dict[str, Any] = {
    "prompt": (),
    "branches": (),
    "suffix_prompt": None,
    "adapters": None,
    "prompt_logprobs": None,
    "prompt_logprobs_from": 0,
    "report_progress": False,
    "checkpoints_at": (),
    "explain_cache": False,
    "slot": None,
    "seed": None,
}
"""Fields of a request that concern its prompt or a single branch, with the values that unset them for forks."""


def branch_requests(request: Request) -> list[Request]:
    """Returns one request per entry of `request.branches`, with the fields of the request where the entry does not set them.

    Branch `i` uses the request's `seed + i`, unless it sets a seed.

    Raises:
        InvalidRequestError: `branches` is not a list of mappings, an entry has an unknown field, or `n` is not their number.
    """
    branches = _checked(request.branches)
    if request.n not in (1, len(branches)):
        message = f"n is {request.n}, but branches has {len(branches)} entries; leave n out, or set it to their number"
        raise InvalidRequestError("n", message)
    seed = int.from_bytes(os.urandom(4)) if request.seed is None else request.seed
    alone = msgspec.structs.replace(request, branches=(), n=1)
    return [
        msgspec.structs.replace(alone, **{"seed": (seed + index) % 2**32, **_given(branch)})
        for index, branch in enumerate(branches)
    ]


def fork_request(request: Request, n: int, options: Mapping[str, Any]) -> Request:
    """Returns the request for `n` forks of a branch of `request`, with their options.

    Raises:
        InvalidRequestError: An option is not available to forks.
    """
    for name in options:
        if name not in FORK_FIELDS:
            known = ", ".join(sorted(FORK_FIELDS))
            raise InvalidRequestError(name, f"{name} is not an option of a fork; the options are {known}")
    fields: dict[str, Any] = {**_OF_PROMPTS, "n": n, **_given(options)}
    if isinstance(request, InternalRequest):
        fields["system_end"] = None
    return msgspec.structs.replace(request, **fields)


def _checked(branches: Any) -> Sequence[Mapping[str, Any]]:  # noqa: ANN401 (not validated yet)
    if isinstance(branches, str | bytes | Mapping) or not isinstance(branches, Sequence):
        raise InvalidRequestError("branches", "branches must be a sequence of mappings, one for each branch")
    for index, branch in enumerate(branches):
        if not isinstance(branch, Mapping):
            raise InvalidRequestError("branches", f"branches[{index}] must be a mapping of fields to values")
        for name in branch:
            if name not in BRANCH_FIELDS:
                known = ", ".join(sorted(BRANCH_FIELDS))
                message = f"branches[{index}] has {name!r}, which is not an option of a branch; the options are {known}"
                raise InvalidRequestError("branches", message)
    return branches


def _given(branch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a branch, without a seed of None.

    Without a seed, the request's applies. A constraint of the branch replaces either constraint of the request.
    """
    given = {name: value for name, value in branch.items() if name != "seed" or value is not None}
    return {**dict.fromkeys(_CONSTRAINTS), **given} if any(given.get(name) is not None for name in _CONSTRAINTS) else given
