"""Request fields that all APIs share, since llama-server accepts its own sampling fields on OpenAI's routes too.

Null is equivalent to a missing field, and unknown fields are ignored. A field for an unsupported feature is refused by name
unless its value disables the feature.
"""

from weft.infill import Snippet
from weft.server.request_fields.adapters import refuse_adapters
from weft.server.request_fields.branches import branches_size
from weft.server.request_fields.constraint import Constraint, constraint
from weft.server.request_fields.fields import CompletionFields, ForkFields, LogitBias, Prompt, TextPrompt
from weft.server.request_fields.forks import fork_submission
from weft.server.request_fields.media import chat_files, with_images
from weft.server.request_fields.neutral import refuse, refuse_unsupported
from weft.server.request_fields.paths import paths
from weft.server.request_fields.prompts import pieces, texts
from weft.server.request_fields.reasoning import reasoning, refuse_unmarked_reasoning
from weft.server.request_fields.requests import RANDOM_SEED, first_given, n_completions, ping_s, submission, template
from weft.settings.system_prompt import SystemPrompt

__all__ = [
    "RANDOM_SEED",
    "CompletionFields",
    "Constraint",
    "ForkFields",
    "LogitBias",
    "Prompt",
    "Snippet",
    "SystemPrompt",
    "TextPrompt",
    "branches_size",
    "chat_files",
    "constraint",
    "first_given",
    "fork_submission",
    "n_completions",
    "paths",
    "pieces",
    "ping_s",
    "reasoning",
    "refuse",
    "refuse_adapters",
    "refuse_unmarked_reasoning",
    "refuse_unsupported",
    "submission",
    "template",
    "texts",
    "with_images",
]
