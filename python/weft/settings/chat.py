"""Settings of chats and infilling."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import or_
from typing import Any

from weft.settings.flags import FlagAlias, parsed
from weft.settings.system_prompt import SystemPrompt, read_system_prompt
from weft.settings.values import boolean, file, file_text, json_object, on_off_auto, one_of, unset_at, whole
from weft.settings.volatile import LineRule, all_rules, rules


def _thinking(text: str) -> dict[str, Any]:
    choice = on_off_auto(text)
    return {} if choice == "auto" else {"enable_thinking": choice == "on"}


def _effort(text: str) -> dict[str, Any]:
    return {} if text == "default" else {"reasoning_effort": text}


def _preserving(text: str) -> dict[str, Any]:
    return {"preserve_reasoning": boolean(text)}


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """Settings of chats and infilling."""

    chat_template: str | None = None
    chat_template_file: str | None = parsed(None, file)
    chat_template_kwargs: Mapping[str, Any] = parsed(
        {},
        json_object,
        join=or_,
        also=(
            FlagAlias(("-rea", "--reasoning"), _thinking, env="LLAMA_ARG_REASONING"),
            FlagAlias(("--reasoning-effort",), _effort, env="LLAMA_ARG_REASONING_EFFORT"),
            FlagAlias((), _preserving, env="LLAMA_ARG_REASONING_PRESERVE"),
            FlagAlias((), json_object, env="LLAMA_CHAT_TEMPLATE_KWARGS"),
        ),
    )
    reasoning_format: str = parsed("auto", one_of("none", "deepseek", "deepseek-legacy", "auto"))
    skip_chat_parsing: bool = False
    reasoning_budget: int | None = parsed(None, unset_at(-1, whole(0), "(the default) sets no limit"))
    reasoning_budget_message: str = ""
    prefill_assistant: bool = True
    volatile_prompt_lines: tuple[LineRule, ...] = parsed((), rules, join=all_rules)
    keep_chat_answers: bool = True
    spm_infill: bool = False
    system_prompt: SystemPrompt | None = parsed(None, file_text(read_system_prompt))  # noqa: RUF009 (it cannot be changed)
