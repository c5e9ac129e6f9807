"""Chat template: detects which messages it supports, and renders them to text."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property

import jinja2

from weft.chat import sandbox
from weft.chat.template_terms import MAX_SIZE, Message, TemplateError, TooLongError
from weft.fields.excerpt import truncate

_USER_TEXT = "what the user says"
_SYSTEM_TEXT = "what the system says"
_CALLED_TOOL = "what_is_called"


class ChatTemplate:
    """Compiled Jinja template, whose features are detected by rendering samples."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compiles the template.

        Args:
            source: The template, in Jinja.
            bos_token: Spelling of the token that begins a text.
            eos_token: Spelling of the token that ends a text.

        Raises:
            TemplateError: The template has a syntax error, or is nested too deeply.
        """
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        try:
            self._template = sandbox.compile_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template has a syntax error in line {error.lineno}: {error.message}") from error
        except (RecursionError, SyntaxError, MemoryError) as error:
            # Raised while compiling the Python code that Jinja generates.
            raise TemplateError(f"the chat template is nested too deep: {error}") from error
        names = sandbox.variables_of(source)
        self._takes_functions = "functions" in names and "tools" not in names
        """True if the template reads the tools as JSON from `functions`, as firefunction-v2's does."""
        self.takes_tools = "tools" in names or self._takes_functions
        """True if the template renders tools."""
        as_text, as_parts = _message("user", _USER_TEXT), _message("user", [{"type": "text", "text": _USER_TEXT}])
        self.takes_parts = self._shows(_USER_TEXT, as_parts) and not self._shows_raw(as_parts)
        """True if the content of a message may be a list of parts."""
        self.takes_text = self._shows(_USER_TEXT, as_text) or not self.takes_parts
        """True if the content of a message may be a text."""
        question = as_text if self.takes_text else as_parts
        system = _message("system", _SYSTEM_TEXT if self.takes_text else [{"type": "text", "text": _SYSTEM_TEXT}])
        self.takes_system = self._shows(_SYSTEM_TEXT, system + question) or not self._shows(_USER_TEXT, question)
        """True if the template supports a system message."""
        self._question = question
        self.takes_calls = "tool_calls" in source or _CALLED_TOOL in self._attempt(self._calling("{}"))
        """True if the template renders calls and their results."""

    @cached_property
    def wants_objects(self) -> bool:
        """True if the arguments of a call should be an object, not its JSON text. Objects are preferred if both are supported."""
        key, value = "argument of a call", "value of an argument"
        rendered = self._attempt(self._calling({key: value}))
        # A template that only supports text writes an object as Python's repr.
        return key in rendered and value in rendered and f"'{key}'" not in rendered

    @cached_property
    def question(self) -> str:
        """Prompt of one question, with `enable_thinking`."""
        return self._attempt(self._question)

    @cached_property
    def supports_thinking(self) -> bool:
        """Default of `enable_thinking`: True if it changes how answers begin, or if the template renders reasoning."""
        on, off = (self._attempt(self._question, {"enable_thinking": is_on}) for is_on in (True, False))
        if on.rpartition(_USER_TEXT)[2] != off.rpartition(_USER_TEXT)[2]:
            return True
        reasoning = "reasoning of an answer"
        return reasoning in self._attempt(
            [*self._question, {"role": "assistant", "content": "done", "reasoning_content": reasoning}]
        )

    @cached_property
    def keeps_parts(self) -> bool:
        """True if parts stay a list: as in llama.cpp, unless the template supports text and does not iterate over the list."""
        if self.takes_text and self.takes_parts:
            parts = sandbox.WatchedList()
            self._attempt(_message("user", parts))
            return parts.is_read
        return self.takes_parts

    @cached_property
    def takes_results(self) -> bool:
        """True if the template renders messages of the role `tool`."""
        shown, answer = "result of a call", {"role": "assistant", "content": "done"}
        content: object = shown if self.takes_text else [{"type": "text", "text": shown}]
        return shown in self._attempt(
            [*self._question, answer, {"role": "tool", "tool_call_id": "call00001", "content": content}]
        )

    @cached_property
    def keeps_reasoning(self) -> bool:
        """True if the template renders the reasoning of earlier answers, given `preserve_reasoning`."""
        reasoning = "reasoning of the first answer"
        first, last = (
            {"role": "assistant", "content": "done", "reasoning_content": text} for text in (reasoning, "and of the last")
        )
        chat = [*self._question, first, *self._question, last, *self._question]
        return reasoning in self._attempt(chat, {"preserve_reasoning": True, "enable_thinking": True})

    def _calling(self, arguments: object) -> Sequence[Message]:
        function = {"name": _CALLED_TOOL, "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call00001", "name": _CALLED_TOOL, "content": "done"}
        return [*self._question, calling, result]

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None = None,
        max_size: int = MAX_SIZE,
    ) -> str:
        """Renders messages with llama.cpp's variables.

        Args:
            messages: The messages.
            add_generation_prompt: True to end the prompt with the beginning of the assistant's turn. If false, the variable is
                undefined.
            variables: Additional variables, such as `tools`. `enable_thinking` is true by default if the template supports it.
                `preserve_reasoning` and `reasoning_effort` are also passed by the other names that templates use.
            max_size: Maximum characters of the text.

        Raises:
            TooLongError: The text exceeds `max_size`.
            TemplateError: The template rejects the messages, or fails.
        """
        passed = variables or {}
        given: dict[str, object] = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            **_dates(),
            **_other_names(passed),
            **passed,
            "messages": messages,
        }
        if self._takes_functions:
            tools = passed.get("tools")
            given.setdefault("functions", json.dumps(tools, ensure_ascii=False, indent=2) if tools else "")
        if "enable_thinking" not in passed:
            given["enable_thinking"] = self.supports_thinking
        if add_generation_prompt:
            given["add_generation_prompt"] = True
        try:
            return sandbox.render(self._template, given, max_size)
        except TooLongError:
            raise
        except Exception as error:
            line = _line_of(error)
            place = "" if line is None else f" in line {line}"
            raise TemplateError(f"the chat template fails{place}: {truncate(str(error)) or type(error).__name__}") from error

    def _shows(self, text: str, messages: Sequence[Message]) -> bool:
        return text in self._attempt(messages)

    def _shows_raw(self, messages: Sequence[Message]) -> bool:
        """Returns True if a list of parts is rendered as its JSON or repr, by a template that does not support lists."""
        parts = messages[0]["content"]
        rendered = self._attempt(messages)
        return str(parts) in rendered or json.dumps(parts) in rendered

    def _attempt(self, messages: Sequence[Message], variables: Mapping[str, object] | None = None) -> str:
        passed = {"enable_thinking": True, **(variables or {})}
        try:
            return self.render(messages, add_generation_prompt=True, variables=passed)
        except (TemplateError, TooLongError):
            return ""


def _dates() -> dict[str, str]:
    """Returns the variables for the current date, in llama.cpp's formats."""
    now = datetime.now().astimezone()
    return {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}


def _other_names(variables: Mapping[str, object]) -> dict[str, object]:
    """Returns `preserve_reasoning` and `reasoning_effort` by the other names that templates use, as in llama.cpp."""
    others: dict[str, object] = {}
    if isinstance(keeps := variables.get("preserve_reasoning"), bool):
        others |= {"preserve_thinking": keeps}
        others |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keeps)
    if effort := variables.get("reasoning_effort"):
        others["reasoning_strength"] = effort
    return others


def _message(role: str, content: object) -> list[Message]:
    return [{"role": role, "content": content}]


def _line_of(error: Exception) -> int | None:
    """Returns the line of the template where an error was raised. Jinja's frames have the file name `<template>`."""
    line = None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
