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
        names = sandbox.variables_of(source)
        self._takes_functions = "functions" in names and "tools" not in names
        """Whether the template reads the tools as JSON from `functions`, as firefunction-v2's does."""
        self.takes_tools = "tools" in names or self._takes_functions
        """Whether it shows tools."""
        as_text, as_parts = _said(_SAID), _said([{"type": "text", "text": _SAID}])
        self.takes_parts = self._shows(_SAID, as_parts) and not self._shows_raw(as_parts)
        """Whether the content of a message may be a list of parts."""
        self.takes_text = self._shows(_SAID, as_text) or not self.takes_parts
        """Whether it may be a text."""
        likely = as_text if self.takes_text else as_parts
        told = _told(_TOLD if self.takes_text else [{"type": "text", "text": _TOLD}])
        self.takes_system = self._shows(_TOLD, told + likely) or not self._shows(_SAID, likely)
        """Whether there may be a message of the system."""
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
    def question(self) -> str:
        """The prompt of one question, with `enable_thinking`."""
        return self._attempt(self._likely)

    @cached_property
    def supports_thinking(self) -> bool:
        """Whether `enable_thinking` is true by default: if it changes how answers begin, or reasoning is rendered."""
        on, off = (self._attempt(self._likely, {"enable_thinking": is_on}) for is_on in (True, False))
        if on.rpartition(_SAID)[2] != off.rpartition(_SAID)[2]:
            return True
        reasoning = "reasoning of an answer"
        return reasoning in self._attempt(
            [*self._likely, {"role": "assistant", "content": "done", "reasoning_content": reasoning}]
        )

    @cached_property
    def keeps_parts(self) -> bool:
        """Whether parts stay a list: they do, as in llama.cpp, unless the template takes texts and never reads a list of none."""
        if self.takes_text and self.takes_parts:
            parts = sandbox.WatchedList()
            self._attempt(_said(parts))
            return parts.is_read
        return self.takes_parts

    @cached_property
    def takes_results(self) -> bool:
        """Whether it renders messages of the role `tool`."""
        shown, answer = "result of a call", {"role": "assistant", "content": "done"}
        content: object = shown if self.takes_text else [{"type": "text", "text": shown}]
        return shown in self._attempt([*self._likely, answer, {"role": "tool", "tool_call_id": "call00001", "content": content}])

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
        """Renders messages with llama.cpp's variables.

        Args:
            messages: The messages.
            add_generation_prompt: Whether the turn of the assistant begins at the end. The variable is undefined otherwise.
            variables: Further variables, `tools` among them. `enable_thinking` is true by default if the template supports it,
                and `preserve_reasoning` and `reasoning_effort` are passed by the other names, too, that templates have for them.
            max_size: Most characters of the text.

        Raises:
            TooLongError: the text would be longer.
            TemplateError: the template refuses the messages, or fails.
        """
        passed = variables or {}
        given: dict[str, object] = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            **_dates(),
            **_other_names(passed),
            **(self._functions(passed.get("tools")) if self._takes_functions else {}),
            **passed,
            "messages": messages,
        }
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
            raise TemplateError(f"the chat template fails{place}: {cut(str(error)) or type(error).__name__}") from error

    @staticmethod
    def _functions(tools: object) -> dict[str, object]:
        return {"functions": json.dumps(tools, ensure_ascii=False, indent=2) if tools else ""}

    def _shows(self, text: str, messages: Sequence[Message]) -> bool:
        return text in self._attempt(messages)

    def _shows_raw(self, messages: Sequence[Message]) -> bool:
        """Whether a list of parts is written as it stands: by a template that knows no lists."""
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
    """Variables for the current date, in llama.cpp's formats."""
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
