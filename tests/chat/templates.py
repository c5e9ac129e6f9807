"""Chat templates that write calls and reasoning as each family does, and some as no family does."""

from typing import NamedTuple

# ruff: noqa: RUF001 (the models' own characters)


class FormatTemplate(NamedTuple):
    """The parts of a template that differ between families."""

    calls: str
    """Writes `message.tool_calls`, in Jinja."""
    bos: str = "<s>"
    eos: str = "</s>"
    thought: tuple[str, str] | None = None
    """The marks around reasoning."""
    before: str = ""
    """The text before content."""
    behind: str = ""
    header: str = "<A>"
    """Begins a turn of the assistant."""
    next_message: str = ""
    """The text between reasoning and content or calls."""
    has_content_with_calls: bool = True
    tools: str = "{{ tools | tojson }}"
    end: str = "{{ eos_token }}"
    """Ends a turn."""

    @property
    def source(self) -> str:
        """The template, in Jinja."""
        start, end = self.thought or ("", "")
        reasoning = f"{{% if m.reasoning_content %}}{start}{{{{ m.reasoning_content }}}}{end}{self.next_message}{{% endif %}}"
        content = f"{{% if m.content %}}{self.before}{{{{ m.content }}}}{self.behind}{{% endif %}}"
        if not self.has_content_with_calls:
            content = f"{{% if not m.tool_calls %}}{content}{{% endif %}}"
        calls = f"{{% if m.tool_calls %}}{self.calls}{{% endif %}}"
        return (
            f"{{{{ bos_token }}}}{{% if tools %}}<T>{self.tools}{{% endif %}}"
            "{% for m in messages %}"
            f"{{% if m.role == 'assistant' %}}{self.header}{reasoning if self.thought else ''}{content}{calls}{self.end}"
            "{% else %}<U>{{ m.content }}{{ eos_token }}{% endif %}"
            "{% endfor %}"
            f"{{% if add_generation_prompt %}}{self.header}{{% endif %}}"
        )


def each(call: str, between: str = "") -> str:
    """Writes each call."""
    separator = f"{{% if not loop.last %}}{between}{{% endif %}}" if between else ""
    return f"{{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}{separator}{{% endfor %}}"


def elements(opening: str, middle: str, closing: str, between: str = "") -> str:
    """Writes each argument."""
    value = "{{ v if v is string else v | tojson }}"
    return f"{{% for k, v in f.arguments.items() %}}{opening}{{{{ k }}}}{middle}{value}{closing}{between}{{% endfor %}}"


NAME, ARGUMENTS = "{{ f.name }}", "{{ f.arguments | tojson }}"
OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
PARAMETERS = OBJECT.replace('"arguments"', '"parameters"')
THINK = ("<think>", "</think>")

_BARE = (
    "{{ f.name }}{{ '{' }}{% for k, v in f.arguments | dictsort %}{{ k }}:"
    "{% if v is string %}QUOTE{{ v }}QUOTE{% else %}{{ v | tojson }}{% endif %}{% if not loop.last %},{% endif %}{% endfor %}}"
)
_KEYWORDS = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}="
    "{% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}{% if not loop.last %}, {% endif %}{% endfor %})"
)
_JSON_KEYWORDS = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ ', ' if not loop.first }}{{ k }}={{ v | tojson }}{% endfor %})"
)
_FUNCTION = f"<function={NAME}>\n{elements('<parameter=', '>', '</parameter>', chr(10))}</function>"
_INVOKE = f'<invoke name="{NAME}">\n{elements("<parameter name=" + chr(34), chr(34) + ">", "</parameter>", chr(10))}</invoke>\n'
_DSML = "｜DSML｜"


def _dsml(block: str) -> str:
    is_text = "{{ 'true' if v is string else 'false' }}"
    parameter = elements(f'<{_DSML}parameter name="', f'" string="{is_text}">', f"</{_DSML}parameter>", "\n")
    invoke = f'<{_DSML}invoke name="{NAME}">\n{parameter}</{_DSML}invoke>\n'
    return f"\n\n<{_DSML}{block}>\n{each(invoke)}</{_DSML}{block}>"


def _glm(line: str = "\n") -> str:
    return f"<tool_call>{NAME}{line}{elements('<arg_key>', f'</arg_key>{line}<arg_value>', '</arg_value>', line)}</tool_call>"


_M3 = "]<]minimax[>["
_SEP = "<|sep|>"
_TYPE = "{{ 'string' if v is string else 'boolean' if v is boolean else 'number' }}"
_WITH_ID = OBJECT[:-1] + ', "id": "{{ c.id }}"}'

_COMMAND_R7B = FormatTemplate(
    "<|START_ACTION|>[\n"
    + each(
        '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
        ",\n",
    )
    + "\n]<|END_ACTION|>",
    bos="<BOS_TOKEN>",
    eos="<|END_OF_TURN_TOKEN|>",
    thought=("<|START_THINKING|>", "<|END_THINKING|>"),
    before="<|START_RESPONSE|>",
    behind="<|END_RESPONSE|>",
    has_content_with_calls=False,
)

BY_FAMILY: dict[str, FormatTemplate] = {
    "Hermes": FormatTemplate(each(f"\n<tool_call>\n{OBJECT}\n</tool_call>"), bos="", eos="<|im_end|>", thought=THINK),
    "Qwen3 Coder": FormatTemplate(
        each(
            f"\n<tool_call>\n<function={NAME}>\n{elements('<parameter=', '>' + chr(10), chr(10) + '</parameter>', chr(10))}"
            "</function>\n</tool_call>"
        ),
        bos="",
        eos="<|im_end|>",
        thought=THINK,
    ),
    "Seed OSS": FormatTemplate(
        each(f"\n<seed:tool_call>\n{_FUNCTION}\n</seed:tool_call>"),
        bos="<seed:bos>",
        eos="<seed:eos>",
        thought=("<seed:think>", "</seed:think>"),
    ),
    "GLM 4.5": FormatTemplate(each("\n" + _glm()), bos="[gMASK]<sop>", eos="<|user|>", thought=THINK),
    "Ling 3": FormatTemplate(each("\n" + _glm()), bos="<|startoftext|>", eos="<|role_end|>", thought=THINK, end="<|role_end|>"),
    "Laguna": FormatTemplate(each(_glm("")), bos="", eos="</assistant>", thought=THINK, end="</assistant>"),
    "MiniMax M2": FormatTemplate(
        f"\n<minimax:tool_call>\n{each(_INVOKE)}</minimax:tool_call>", bos="]~!b[", eos="[e~[", thought=THINK
    ),
    "MiniMax M3": FormatTemplate(
        f"{_M3}<tool_call>\n"
        + each(
            f'{_M3}<invoke name="{NAME}">{{% for k, v in f.arguments.items() %}}{_M3}<{{{{ k }}}}>'
            f"{{{{ v if v is string else v | tojson }}}}{_M3}</{{{{ k }}}}>{{% endfor %}}{_M3}</invoke>\n"
        )
        + f"{_M3}</tool_call>",
        bos="]~!b[",
        eos="[e~[",
        thought=("<mm:think>", "</mm:think>"),
    ),
    "DeepSeek V3.2": FormatTemplate(
        _dsml("function_calls"), bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>", thought=THINK
    ),
    "DeepSeek V4": FormatTemplate(_dsml("tool_calls"), bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>", thought=THINK),
    "DeepSeek V3.1": FormatTemplate(
        "<｜tool▁calls▁begin｜>"
        + each(f"<｜tool▁call▁begin｜>{NAME}<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>")
        + "<｜tool▁calls▁end｜>",
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        thought=THINK,
    ),
    "DeepSeek V3": FormatTemplate(
        "<｜tool▁calls▁begin｜>"
        + each(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>", "\n")
        + "<｜tool▁calls▁end｜>",
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        thought=THINK,
    ),
    "Kimi K2": FormatTemplate(
        "<|tool_calls_section_begin|>"
        + each(
            f"<|tool_call_begin|>functions.{NAME}:{{{{ loop.index0 }}}}<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>"
        )
        + "<|tool_calls_section_end|>",
        bos="[BOS]",
        eos="<|im_end|>",
        thought=THINK,
    ),
    "Kimi K3": FormatTemplate(
        f"<|open|>response{_SEP}<|close|>response{_SEP}<|open|>tools{_SEP}"
        + each(
            f'<|open|>call tool="{NAME}" index="{{{{ loop.index }}}}"{_SEP}{{% for k, v in f.arguments.items() %}}'
            f'<|open|>argument key="{{{{ k }}}}" type="{_TYPE}"'
            f"{_SEP}{{{{ v if v is string else v | tojson }}}}<|close|>argument{_SEP}{{% endfor %}}<|close|>call{_SEP}"
        )
        + f"<|close|>tools{_SEP}",
        bos="[BOS]",
        eos="<|end_of_msg|>",
        thought=(f"<|open|>think{_SEP}", f"<|close|>think{_SEP}"),
        before=f"<|open|>response{_SEP}",
        behind=f"<|close|>response{_SEP}",
        end=f"<|close|>message{_SEP}{{{{ eos_token }}}}",
    ),
    "Muse": FormatTemplate(
        each(
            f' to={NAME}<|message|><atem:function_calls>\n<atem:invoke name="{NAME}">\n'
            + elements('<atem:parameter name="', '">', "</atem:parameter>", "\n")
            + "</atem:invoke>\n</atem:function_calls>",
            "<|eom|><|start|>assistant",
        ),
        bos="<|begin_of_text|>",
        eos="<|eot|>",
        thought=(" to=self<|message|>", "<|eom|>"),
        next_message="<|start|>assistant",
        before=" to=user<|message|>",
        header="<|start|>assistant",
        has_content_with_calls=False,
    ),
    "gpt-oss": FormatTemplate(
        f"{{% set f = m.tool_calls[0].function %}}<|start|>assistant to=functions.{NAME}"
        f"<|channel|>commentary json<|message|>{ARGUMENTS}",
        bos="<|startoftext|>",
        eos="<|return|>",
        thought=("<|channel|>analysis<|message|>", "<|end|>"),
        before="<|channel|>final<|message|>",
        has_content_with_calls=False,
    ),
    "Gemma 4": FormatTemplate(
        each(f"<|tool_call>call:{_BARE}<tool_call|>".replace("QUOTE", '<|"|>')),
        bos="<bos>",
        eos="<turn|>",
        thought=("<|channel>thought\n", "<channel|>"),
    ),
    "FunctionGemma": FormatTemplate(
        each(f"<start_function_call>call:{_BARE}<end_function_call>".replace("QUOTE", "<escape>")) + "<start_function_response>",
        bos="<bos>",
        eos="<end_of_turn>",
    ),
    "Llama 3": FormatTemplate(
        f"{{% set f = m.tool_calls[0].function %}}{PARAMETERS}{{% set tag = '<|python_tag|>' %}}",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        has_content_with_calls=False,
    ),
    "Llama (Python)": FormatTemplate(
        f"{{% set form = '[func_name1(params_name1=params_value1)]' %}}[{each(_KEYWORDS, ', ')}]",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        has_content_with_calls=False,
    ),
    "LFM2": FormatTemplate(
        f"<|tool_call_start|>[{each(_KEYWORDS, ', ')}]<|tool_call_end|>", bos="<|startoftext|>", eos="<|im_end|>", thought=THINK
    ),
    "Mistral": FormatTemplate(each(f"[TOOL_CALLS]{NAME}[ARGS]{ARGUMENTS}"), thought=("[THINK]", "[/THINK]")),
    "Mistral (lists)": FormatTemplate(f"[TOOL_CALLS][{each(_WITH_ID, ', ')}]"),
    "Command R7B": _COMMAND_R7B,
    "Cohere 2 MoE": _COMMAND_R7B._replace(before="<|START_TEXT|>", behind="<|END_TEXT|>"),
    "Command R": FormatTemplate(
        "Action: ```json\n["
        + each('\n    {\n        "tool_name": "{{ f.name }}",\n        "parameters": {{ f.arguments | tojson }}\n    }', ",")
        + "\n]\n```",
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        has_content_with_calls=False,
    ),
    "Granite": FormatTemplate(f"<|tool_call|>[{each(OBJECT, ', ')}]", bos="", eos="<|end_of_text|>", thought=THINK),
    "Apertus": FormatTemplate(
        "<|tools_prefix|>[" + each('{"{{ f.name }}": {{ f.arguments | tojson }}}', ", ") + "]<|tools_suffix|>",
        eos="<|assistant_end|>",
        thought=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "Nemotron": FormatTemplate(f"<TOOLCALL>[{each(OBJECT, ', ')}]</TOOLCALL>", eos="<SPECIAL_12>", thought=THINK),
    "FireFunction": FormatTemplate(
        f" functools[{each(OBJECT, ', ')}]", bos="<|begin_of_text|>", eos="<|eot_id|>", has_content_with_calls=False
    ),
    "Functionary 3.1": FormatTemplate(
        each(f"<function={NAME}>{ARGUMENTS}</function>"), bos="<|begin_of_text|>", eos="<|eot_id|>"
    ),
    "Functionary 3.2": FormatTemplate(
        each(f">>>{NAME}\n{ARGUMENTS}"), bos="<|begin_of_text|>", eos="<|eot_id|>", before=">>>all\n"
    ),
}
"""A template for each family that is known."""

UNKNOWN: dict[str, FormatTemplate] = {
    "names and objects in a section": FormatTemplate(
        "<|acts|>" + each(f"<|act|>{{{{ c.id }}}}<|act:name|>{NAME}<|act:with|>{ARGUMENTS}<|act:end|>") + "<|acts:end|>",
        thought=("<|muse|>", "<|mused|>"),
        before="<|say|>",
        behind="<|said|>",
        header="<|begin|>assistant",
        next_message="<|begin|>assistant",
        has_content_with_calls=False,
    ),
    "objects in a section": FormatTemplate("\n<acts>\n" + each(f"{OBJECT}\n") + "</acts>", thought=THINK),
    "a list in tags": FormatTemplate(f"\n<acts>[{each(OBJECT, ', ')}]</acts>", thought=THINK),
    "an object behind a mark": FormatTemplate(f"{{% set f = m.tool_calls[0].function %}}<|act|>{OBJECT}"),
    "objects with other keys": FormatTemplate(
        each('<act>{"tool": "{{ f.name }}", "input": {{ f.arguments | tojson }}}</act>'), thought=("<plan>", "</plan>")
    ),
    "objects in objects": FormatTemplate(each(f'<act>{{"type": "function", "function": {OBJECT}}}</act>', "\n")),
    "objects by name": FormatTemplate("<acts>[" + each('{"{{ f.name }}": {{ f.arguments | tojson }}}', ", ") + "]</acts>"),
    "keywords": FormatTemplate(f"<|acts|>[{each(_JSON_KEYWORDS, ', ')}]<|acts:end|>"),
    "elements": FormatTemplate(
        "<acts:x>\n"
        + each(
            f"<act:x>{NAME}<sep:x>\n{elements('<key:x>', '</key:x>' + chr(10) + '<value:x>', '</value:x>', chr(10))}</act:x>\n"
        )
        + "</acts:x>",
        thought=("<think:x>", "</think:x>"),
    ),
    "elements with names as attributes": FormatTemplate(
        each(f'<act name="{NAME}">' + elements('<with name="', '">', "</with>") + "</act>", "\n"), thought=THINK
    ),
    "padded elements": FormatTemplate(
        each(f"<act={NAME}>\n" + elements("<with=", ">\n", "\n</with>", "\n") + "</act>", "\n"), thought=("[PLAN]", "[/PLAN]")
    ),
}
"""Templates that write calls as no family does."""
