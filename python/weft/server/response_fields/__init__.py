"""Response fields that all APIs share: llama-server's timings, probabilities, settings and full result."""

from weft.server.response_fields.probabilities import (
    CompletionProbability,
    TokenProbability,
    completion_probability,
    token_probability,
    top_logprobs_by_text,
)
from weft.server.response_fields.progress import PromptProgress, RunningTimings
from weft.server.response_fields.projection import projected
from weft.server.response_fields.result import Branches, CompletionResult, branch_score
from weft.server.response_fields.settings import GenerationSettings, generation_settings
from weft.server.response_fields.texts_usage import TextsUsage
from weft.server.response_fields.timings import Timings, timings

__all__ = [
    "Branches",
    "CompletionProbability",
    "CompletionResult",
    "GenerationSettings",
    "PromptProgress",
    "RunningTimings",
    "TextsUsage",
    "Timings",
    "TokenProbability",
    "branch_score",
    "completion_probability",
    "generation_settings",
    "projected",
    "timings",
    "token_probability",
    "top_logprobs_by_text",
]
