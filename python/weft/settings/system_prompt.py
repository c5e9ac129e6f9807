"""What every prompt follows, where a server has such a text: a file of it, and its names."""

import msgspec

__all__ = ["NO_SYSTEM_PROMPT", "SystemPrompt", "read_system_prompt"]


class SystemPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that all prompts of `/completion` follow, by the names that llama-server had for its parts in 2024."""

    prompt: str = ""
    """The text; an empty one is none."""
    anti_prompt: str = ""
    """What a user's turn begins with: it ends completions, and `/props` tells it as `user_name`."""
    assistant_name: str = ""
    """What the assistant's turn begins with, for clients that write the dialogue: `/props` tells it."""


class _Wrapped(msgspec.Struct):
    system_prompt: SystemPrompt


NO_SYSTEM_PROMPT = SystemPrompt()


def read_system_prompt(text: str) -> SystemPrompt:
    """A parser of a file of a system prompt: a JSON object with its parts, perhaps as `system_prompt` of another, or its text.

    Raises:
        ValueError: It begins like an object, and is none of these.
    """
    if not text.lstrip().startswith("{"):
        return SystemPrompt(prompt=text)
    try:
        names = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "system_prompt" in names:
            return msgspec.json.decode(text, type=_Wrapped).system_prompt
        if unknown := names.keys() - set(SystemPrompt.__struct_fields__):
            raise ValueError(f"there is no {min(unknown)!r}; it may have prompt, anti_prompt and assistant_name")
        return msgspec.json.decode(text, type=SystemPrompt)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no JSON object of a system prompt: {error}") from None
