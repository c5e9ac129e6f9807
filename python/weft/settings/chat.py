"""Settings of chats and infilling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.settings.flags import FlagAlias, flag
from weft.settings.system_prompt import SystemPrompt, read_system_prompt
from weft.settings.values import boolean, file, file_text, json_object, merged, on_off_auto, one_of, unset_at, whole
from weft.settings.volatile import LineRule, all_rules, rules

__all__ = ["ChatSettings"]


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

    chat_template: str | None = flag(
        None,
        "--chat-template TEMPLATE",
        env="LLAMA_ARG_CHAT_TEMPLATE",
        help="Jinja text of the chat template, or the name of a built-in one (default: the model's)",
    )
    chat_template_file: str | None = flag(
        None, "--chat-template-file FNAME", parse=file, env="LLAMA_ARG_CHAT_TEMPLATE_FILE", help="file of the chat template"
    )
    chat_template_kwargs: Mapping[str, Any] = flag(
        {},
        "--chat-template-kwargs JSON",
        parse=json_object,
        join=merged,
        also=(
            FlagAlias(("-rea", "--reasoning"), _thinking, env="LLAMA_ARG_REASONING"),
            FlagAlias(("--reasoning-effort",), _effort, env="LLAMA_ARG_REASONING_EFFORT"),
            FlagAlias(("--reasoning-preserve",), value={"preserve_reasoning": True}),
            FlagAlias(("--no-reasoning-preserve",), value={"preserve_reasoning": False}),
            FlagAlias((), _preserving, env="LLAMA_ARG_REASONING_PRESERVE"),
            FlagAlias((), json_object, env="LLAMA_CHAT_TEMPLATE_KWARGS"),
        ),
        env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
        help="JSON object of template variables; --reasoning on|off sets enable_thinking, true by default if the template"
        " supports it, --reasoning-effort sets reasoning_effort, --[no-]reasoning-preserve sets preserve_reasoning, true by"
        " default",
    )
    reasoning_format: str = flag(
        "auto",
        "--reasoning-format FORMAT",
        parse=one_of("none", "deepseek", "deepseek-legacy", "auto"),
        env="LLAMA_ARG_THINK",
        help="where reasoning is returned: none leaves it in content, deepseek and auto move it to reasoning_content,"
        " deepseek-legacy does both (default: auto)",
    )
    skip_chat_parsing: bool = flag(
        False,
        constants={"--skip-chat-parsing": True, "--no-skip-chat-parsing": False},
        env="LLAMA_ARG_SKIP_CHAT_PARSING",
        help="leave reasoning and tool calls in content, unparsed (default: parse them)",
    )
    reasoning_budget: int | None = flag(
        None,
        "--reasoning-budget N",
        parse=unset_at(-1, whole(0), "(the default) sets no limit"),
        env="LLAMA_ARG_THINK_BUDGET",
        help="maximum tokens of reasoning; 0 ends it immediately (default: -1, no limit)",
    )
    reasoning_budget_message: str = flag(
        "",
        "--reasoning-budget-message TEXT",
        env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
        help="text appended before the end of reasoning when its budget is used up (default: none)",
    )
    prefill_assistant: bool = flag(
        True,
        constants={"--prefill-assistant": True, "--no-prefill-assistant": False},
        env="LLAMA_ARG_PREFILL_ASSISTANT",
        help="continue a last message of the assistant, or treat it as complete (default: continue it)",
    )
    volatile_prompt_lines: tuple[LineRule, ...] = flag(
        (),
        "--volatile-prompt-lines REGEX",
        parse=rules,
        join=all_rules,
        env="WEFT_VOLATILE_PROMPT_LINES",
        help="regular expression of whole lines of a chat's system message to move to its end, so that the text before them"
        " stays cached when they change; with the prefix drop: they are removed. claude-code and opencode are the rules for"
        " these clients; may be given several times (default: none)",
    )
    keep_chat_answers: bool = flag(
        True,
        constants={"--keep-answers": True, "--no-keep-answers": False},
        env="WEFT_KEEP_ANSWERS",
        help="for an earlier answer that a chat sends back, reuse the tokens that were generated, or those of the tokenizer"
        " (default: the generated tokens)",
    )
    spm_infill: bool = flag(
        False,
        constants={"--spm-infill": True},
        help="put the text after a gap before the text in front of it, as some models require (default: after it)",
    )
    system_prompt: SystemPrompt | None = flag(  # noqa: RUF009 (it cannot be changed)
        None,
        "-spf, --system-prompt-file FNAME",
        parse=file_text(read_system_prompt),
        help="file of a text before every prompt of /completion, or of JSON with prompt, anti_prompt and assistant_name"
        " (default: none)",
    )
