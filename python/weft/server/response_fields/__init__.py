"""What all dialects report in the same words: llama-server's timings, probabilities, settings, and its whole answer."""

from weft.server.response_fields.probabilities import (
    CompletionProbability,
    TokenLogprob,
    TokenLogprobs,
    TokenProb,
    TokenProbability,
    TokenProbs,
    completion_probability,
    token_logprobs,
    token_probs,
)
from weft.server.response_fields.progress import PromptProgress, Running
from weft.server.response_fields.projection import projected
from weft.server.response_fields.result import Branches, CompletionResult
from weft.server.response_fields.settings import GenerationSettings, generation_settings
from weft.server.response_fields.timings import Timings, timings

__all__ = [
    "Branches",
    "CompletionProbability",
    "CompletionResult",
    "GenerationSettings",
    "PromptProgress",
    "Running",
    "Timings",
    "TokenLogprob",
    "TokenLogprobs",
    "TokenProb",
    "TokenProbability",
    "TokenProbs",
    "completion_probability",
    "generation_settings",
    "projected",
    "timings",
    "token_logprobs",
    "token_probs",
]
