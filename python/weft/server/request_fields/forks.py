"""Options of forks, which override the options of their branch."""

from typing import Any

from weft.request.branches import FORK_FIELDS
from weft.server.inference.submission import ForkSubmission
from weft.server.request_fields.fields import FORK_NAMES, CompletionFields, ForkFields
from weft.server.request_fields.prompts import logit_bias, penalty_prompt
from weft.server.request_fields.requests import template
from weft.settings import Settings

_OTHER_NAMES = {
    "n_predict": ("max_tokens",),
    "max_completion_tokens": ("max_tokens",),
    "t_max_predict_ms": ("max_predict_ms",),
    "grammar": ("grammar", "json_schema"),
    "json_schema": ("grammar", "json_schema"),
    "response_format": ("grammar", "json_schema"),
}
"""Request fields that a body names differently."""


def fork_submission(own: ForkFields, settings: Settings) -> ForkSubmission:
    """Returns the options that a body sets for forks, as request fields.

    Raises:
        InvalidRequestError: A field is invalid.
    """
    given = {name: value for name in FORK_NAMES if (value := getattr(own, name)) is not None}
    parsed = template(CompletionFields(**given), settings, n=1)
    changed = {field for name in given for field in _OTHER_NAMES.get(name, (name,))} & FORK_FIELDS
    options: dict[str, Any] = {name: getattr(parsed, name) for name in changed}
    if own.n_probs is not None:
        options["logprobs"] = own.n_probs or None
    options.pop("logit_bias", None)
    options.pop("penalty_prompt", None)
    return ForkSubmission(
        options=options,
        logit_bias=None if own.logit_bias is None else logit_bias(own.logit_bias),
        penalty_prompt=None if own.penalty_prompt is None else penalty_prompt(own.penalty_prompt),
    )
