"""System prompt file: a text before every prompt, with the names of the speakers."""

import msgspec


class SystemPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text before all prompts of `/completion`, with the field names of llama-server in 2024."""

    prompt: str = ""
    """The text; empty for none."""
    anti_prompt: str = ""
    """Beginning of a user's turn: ends completions, and is `user_name` in `/props`."""
    assistant_name: str = ""
    """Beginning of the assistant's turn, for clients that format the dialogue; exposed in `/props`."""


class _Wrapped(msgspec.Struct):
    system_prompt: SystemPrompt


NO_SYSTEM_PROMPT = SystemPrompt()


def read_system_prompt(text: str) -> SystemPrompt:
    """Parses a system prompt file: a plain text, or a JSON object with its parts, possibly nested under `system_prompt`.

    Raises:
        ValueError: The text begins with `{`, but is not such an object.
    """
    if not text.lstrip().startswith("{"):
        return SystemPrompt(prompt=text)
    try:
        names = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "system_prompt" in names:
            return msgspec.json.decode(text, type=_Wrapped).system_prompt
        if unknown := names.keys() - set(SystemPrompt.__struct_fields__):
            raise ValueError(f"unknown key {min(unknown)!r}; the keys are prompt, anti_prompt and assistant_name")
        return msgspec.json.decode(text, type=SystemPrompt)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not a JSON object of a system prompt: {error}") from None
