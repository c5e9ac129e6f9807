"""A chat template: what it takes, and the text that it makes of messages."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property

import jinja2

from weft.chat import sandbox
from weft.chat.template_terms import MAX_SIZE, Message, TemplateError, TooLongError
from weft.fields.shown import cut

__all__ = ["ChatTemplate"]

_SAID = "what the user says"
_TOLD = "what the system says"
_CALLED = "what_is_called"


class ChatTemplate:
    """A template in Jinja, compiled and tried out once."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compiles the template.

        Args:
            source: The template.
            bos_token: How the token that begins a text is spelt.
            eos_token: How the token that ends a text is spelt.

        Raises:
            TemplateError: it is no template.
        """
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        try:
            self._template = sandbox.compile_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
        except (RecursionError, SyntaxError, MemoryError) as error:
            # Of the Python that Jinja makes of it.
            raise TemplateError(f"the chat template is nested too deep: {error}") from error
        as_text, as_parts = _said(_SAID), _said([{"type": "text", "text": _SAID}])
        self.takes_parts = self._shows(_SAID, as_parts) and not self._shows_raw(as_parts)
        """Whether the content of a message may be a list of parts."""
        self.takes_text = self._shows(_SAID, as_text) or not self.takes_parts
        """Whether it may be a text."""
        likely = as_text if self.takes_text else as_parts
        told = _told(_TOLD if self.takes_text else [{"type": "text", "text": _TOLD}])
        self.takes_system = self._shows(_TOLD, told + likely) or not self._shows(_SAID, likely)
        """Whether there may be a message of the system."""
        self.takes_tools = "tools" in sandbox.variables_of(source)
        """Whether it shows tools."""
        self._likely = likely
        self.takes_calls = "tool_calls" in source or _CALLED in self._attempt(self._calling("{}"))
        """Whether it shows what an assistant called, and what came of it."""

    @cached_property
    def wants_objects(self) -> bool:
        """Whether the arguments of a call are to be an object, and not the text of its JSON, where it takes both."""
        key, value = "argument of a call", "value of an argument"
        rendered = self._attempt(self._calling({key: value}))
        # A template that knows texts alone writes an object as Python does.
        return key in rendered and value in rendered and f"'{key}'" not in rendered

    @cached_property
    def keeps_thoughts(self) -> bool:
        """Whether it shows what was thought before earlier answers, where it is told to keep that."""
        thought = "what was thought first"
        first, last = ({"role": "assistant", "content": "done", "reasoning_content": told} for told in (thought, "and at last"))
        chat = [*self._likely, first, *self._likely, last, *self._likely]
        return thought in self._attempt(chat, {"preserve_reasoning": True, "enable_thinking": True})

    def _calling(self, arguments: object) -> Sequence[Message]:
        function = {"name": _CALLED, "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call00001", "name": _CALLED, "content": "done"}
        return [*self._likely, calling, result]

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None = None,
        max_size: int = MAX_SIZE,
    ) -> str:
        """The text that messages become.

        Args:
            messages: The messages.
            add_generation_prompt: Whether the turn of the assistant is to begin at the end.
            variables: What the template may look at besides. It sees `preserve_reasoning` and `reasoning_effort` by the other
                names, too, that templates have for them.
            max_size: Most characters of the text.

        Raises:
            TooLongError: the text would be longer.
            TemplateError: the template refuses the messages, or fails.
        """
        given = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "tools": None,
            "documents": None,
            **_dates(),
            **_other_names(variables or {}),
            **(variables or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return sandbox.render(self._template, given, max_size)
        except TooLongError:
            raise
        except Exception as error:
            line = _line_of(error)
            place = "" if line is None else f" in line {line}"
            raise TemplateError(f"the chat template fails{place}: {cut(str(error)) or type(error).__name__}") from error

    def _shows(self, text: str, messages: Sequence[Message]) -> bool:
        return text in self._attempt(messages)

    def _shows_raw(self, messages: Sequence[Message]) -> bool:
        """Whether a list of parts is written as it stands: by a template that knows no lists."""
        parts = messages[0]["content"]
        rendered = self._attempt(messages)
        return str(parts) in rendered or json.dumps(parts) in rendered

    def _attempt(self, messages: Sequence[Message], variables: Mapping[str, object] | None = None) -> str:
        try:
            return self.render(messages, add_generation_prompt=True, variables=variables)
        except (TemplateError, TooLongError):
            return ""


def _dates() -> dict[str, str]:
    """Today, in the two ways that llama.cpp tells templates beside `strftime_now`."""
    now = datetime.now().astimezone()
    return {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}


def _other_names(variables: Mapping[str, object]) -> dict[str, object]:
    """What templates call `preserve_reasoning` and `reasoning_effort`, as llama.cpp knows it."""
    others: dict[str, object] = {}
    if isinstance(keeps := variables.get("preserve_reasoning"), bool):
        others |= {"preserve_thinking": keeps}
        others |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keeps)
    if effort := variables.get("reasoning_effort"):
        others["reasoning_strength"] = effort
    return others


def _said(content: object) -> list[Message]:
    return [{"role": "user", "content": content}]


def _told(content: object) -> list[Message]:
    return [{"role": "system", "content": content}]


def _line_of(error: Exception) -> int | None:
    """The line of the template where an error was raised: Jinja makes a frame of its file of each."""
    line = None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
