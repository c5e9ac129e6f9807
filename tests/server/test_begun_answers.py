"""A begun answer is the template's own rendering of the last message, cut where the answer continues."""

import msgspec
import pytest

from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from weft import InvalidRequestError
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.pipeline import ChatPipeline, ChatPrompt
from weft.server.request_fields.chat import ChatFields
from weft.settings import Settings

QUESTION: Json = {"role": "user", "content": "Why?"}

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

TRIMMED = PLAIN.replace("m.content", "m.content | trim")

CHANNELS = """{% for m in messages %}{% if m.role == 'assistant' %}{% if m.reasoning_content %}<|turn|><|start_think|>
{{- m.reasoning_content }}<|end_think|>{% endif %}<|turn|><|text|>{{ m.content }}<|end_text|>{% else %}<|user|>{{ m.content }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}<|turn|>{% endif %}"""

THINKS = """{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}
{%- set thought = m.reasoning_content or (parts[0].split('<think>')[-1] if parts | length > 1 else '') %}
{%- if thought or loop.last %}<think>
{{ thought.strip() }}
</think>

{% endif %}{{ parts[-1].lstrip() }}{% else %}{{ m.content }}{% endif %}</s>{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""

OPENS = """{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</s>{% endfor %}
{%- if add_generation_prompt %}<assistant><think>
{% endif %}"""

WRAPS = """{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<text>{{ m.content }}</text>
{%- else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{# <think></think> #}"""

OPENS_ANY = """{% for m in messages %}<{{ m.role }}>{{ '<think>\n' if m.role == 'assistant' }}{{ m.content }}</s>{% endfor %}
{%- if add_generation_prompt %}<assistant><think>
{% endif %}{# </think> #}"""

REFUSES = """{% if messages[-1].role != 'user' %}{{ raise_exception('no') }}{% endif %}""" + PLAIN

ASKED = "<user>Why?</s><assistant>"

OPENED = "<user>Why?</s><assistant><think>\n"

PARTS = """{% for m in messages %}<{{ m.role }}>{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


def prompt_of(source: str, *messages: Json, engine: ScriptedEngine | None = None, **fields: Json) -> tuple[str, ChatPrompt]:
    form = ChatPipeline((engine or ScriptedEngine()).as_engine(), Settings(chat_template=source))
    chat = msgspec.convert({"messages": [QUESTION, *messages], **fields}, ChatFields)
    return form.text(chat), form.prompt(chat)


def partial_answer(content: Json = "", **message: Json) -> Json:
    return {"role": "assistant", "content": content, **message}


@pytest.mark.parametrize(
    ("source", "message", "fields", "text"),
    [
        (PLAIN, partial_answer("Hel"), {}, "<user>Why?</s><assistant>Hel"),
        (PLAIN, partial_answer("Hel "), {}, "<user>Why?</s><assistant>Hel "),
        (
            PLAIN,
            partial_answer([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            {},
            "<user>Why?</s><assistant>a\nb",
        ),
        (TRIMMED, partial_answer(" Hel\n"), {}, "<user>Why?</s><assistant>Hel\n"),
        (PARTS, partial_answer("Hel"), {}, "<user>[Why?]<assistant>[Hel"),
        (REFUSES, partial_answer("Hel"), {}, "<user>Why?</s><assistant>Hel"),
        (CHANNELS, partial_answer("Hel"), {}, "<|user|>Why?<|turn|><|text|>Hel"),
        (
            CHANNELS,
            partial_answer("Hel", reasoning_content="Hm"),
            {},
            "<|user|>Why?<|turn|><|start_think|>Hm<|end_think|><|turn|><|text|>Hel",
        ),
        (
            CHANNELS.replace("reasoning_content", "reasoning"),
            partial_answer("Hel", reasoning_content="Hm"),
            {},
            "<|user|>Why?<|turn|><|start_think|>Hm<|end_think|><|turn|><|text|>Hel",
        ),
        (
            "{# You have access to the following functions in JSONSchema format #}" + PLAIN,
            partial_answer("I'm "),
            {},
            f"{ASKED}I'm ",
        ),
        (CHANNELS, partial_answer(reasoning_content="Hm "), {}, "<|user|>Why?<|turn|><|start_think|>Hm "),
        (
            CHANNELS,
            partial_answer("Hel", reasoning_content="Hm"),
            {"continue_final_message": "reasoning_content"},
            "<|user|>Why?<|turn|><|start_think|>Hm",
        ),
        (
            CHANNELS,
            partial_answer(reasoning_content="Hm"),
            {"continue_final_message": "content"},
            "<|user|>Why?<|turn|><|start_think|>Hm<|end_think|><|turn|><|text|>",
        ),
        (OPENS, partial_answer(reasoning_content="Hm"), {"continue_final_message": "content"}, f"{OPENED}Hm\n</think>\n\n"),
        (THINKS, partial_answer("Hel"), {}, "<user>Why?</s><assistant><think>\n\n</think>\n\nHel"),
        (THINKS, partial_answer("Hel", reasoning_content="Hm"), {}, "<user>Why?</s><assistant><think>\nHm\n</think>\n\nHel"),
        (THINKS, partial_answer("<think>done</think>Hello"), {}, "<user>Why?</s><assistant><think>\ndone\n</think>\n\nHello"),
        (THINKS, partial_answer("<think>done</think>"), {}, "<user>Why?</s><assistant><think>\ndone\n</think>\n\n"),
        (THINKS, partial_answer("<think></think>Hel"), {}, "<user>Why?</s><assistant><think>\n\n</think>\n\nHel"),
        (THINKS, partial_answer("<think>"), {}, "<user>Why?</s><assistant><think>\n"),
        (OPENS, partial_answer("<think>"), {}, "<user>Why?</s><assistant><think>\n"),
        (THINKS, partial_answer("<think>still"), {}, "<user>Why?</s><assistant><think>\nstill"),
        (THINKS, partial_answer("<think>\nI'm"), {}, "<user>Why?</s><assistant><think>\nI'm"),
        (OPENS, partial_answer("Hel"), {}, "<user>Why?</s><assistant>Hel"),
        (OPENS, partial_answer("Hel", reasoning_content="Hm"), {}, "<user>Why?</s><assistant><think>\nHm\n</think>\n\nHel"),
        (OPENS, partial_answer("<think>done</think>Hello"), {}, "<user>Why?</s><assistant><think>\ndone\n</think>\n\nHello"),
        (OPENS, partial_answer(reasoning_content="Hm"), {}, "<user>Why?</s><assistant><think>\nHm"),
        (WRAPS, partial_answer("Hel"), {}, "<user>Why?<assistant><text>Hel"),
        (WRAPS, partial_answer("Hel", reasoning_content="Hm"), {}, "<user>Why?<assistant><think>Hm</think><text>Hel"),
        (OPENS_ANY, partial_answer("Hel"), {}, "<user>Why?</s><assistant><think>\n\n</think>\n\nHel"),
        (OPENS_ANY, partial_answer("Hel", reasoning_content="Hm"), {}, "<user>Why?</s><assistant><think>\nHm\n</think>\n\nHel"),
        (PLAIN, partial_answer("Hel", reasoning_content="Hm"), {}, "<user>Why?</s><assistant>Hel"),
        (PLAIN, partial_answer("<think>still"), {}, "<user>Why?</s><assistant><think>still"),
        (PLAIN, partial_answer(), {}, "<user>Why?</s><assistant>"),
    ],
)
def test_the_prompt_is_the_templates_rendering_up_to_where_the_answer_continues(
    source: str, message: Json, fields: Json, text: str
) -> None:
    assert prompt_of(source, message, **fields)[0] == text


def test_content_that_occurs_before_is_not_taken_for_the_begun_answer() -> None:
    text, _ = prompt_of(PLAIN, partial_answer("Why?"), QUESTION, partial_answer("Why?"))
    assert text == "<user>Why?</s><assistant>Why?</s><user>Why?</s><assistant>Why?"
    text, _ = prompt_of(CHANNELS, partial_answer("Why?", reasoning_content="Why?"))
    assert text == "<|user|>Why?<|turn|><|start_think|>Why?<|end_think|><|turn|><|text|>Why?"


@pytest.mark.parametrize(
    ("message", "answer", "reasoning", "content"),
    [
        (partial_answer("<think>still"), " thinking</think>Yes.", " thinking", "Yes."),
        (partial_answer(reasoning_content="I'm"), " thinking</think>Yes.", " thinking", "Yes."),
        (partial_answer("<think>done</think>Hello"), " there.", "", " there."),
        (partial_answer("<think>done</think>"), "Hello.", "", "Hello."),
        (partial_answer("Hel"), "lo <b>", "", "lo <b>"),
        (partial_answer(), "<think> new </think>Yes.", "new", "Yes."),
    ],
)
def test_an_answer_is_read_from_where_it_was_begun(message: Json, answer: str, reasoning: str, content: str) -> None:
    _, prompt = prompt_of(THINKS, message)
    reader, written = prompt.answer.reader(), ParsedMessage()
    for part in [*reader.read(answer), *reader.end()]:
        written.add(part)
    assert (written.reasoning, written.content) == (reasoning, content)


class Marked(ScriptedEngine):
    """An engine with one control token, spelt `<s>`."""

    def __init__(self) -> None:
        super().__init__()
        self.model.control_tokens = lambda: [5]
        self.model.token_bytes = lambda _: b"<s>"
        self.plain: list[str] = []

    def tokenize(self, text: str, **options: bool) -> list[int]:
        if not options.get("parse_special", True):
            self.plain.append(text)
        return super().tokenize(text)


@pytest.mark.parametrize("source", [PLAIN, TRIMMED, CHANNELS, THINKS, OPENS, REFUSES, WRAPS])
@pytest.mark.parametrize(
    "message",
    [
        partial_answer("<s>Hel<s>"),
        partial_answer("a", reasoning_content="<s>"),
        partial_answer("<s>", reasoning_content="<s>Hm"),
        partial_answer("<think><s>"),
    ],
)
def test_control_tokens_in_a_begun_answer_are_text(source: str, message: Json) -> None:
    engine = Marked()
    text, _ = prompt_of(source.replace("</s>", "</e>"), message, engine=engine)
    assert engine.plain.count("<s>") == text.count("<s>")
    assert text.count("<s>") <= str(message).count("<s>")
    assert max(text) < "\U000f0000", "no mark is left"


def test_every_private_character_in_the_chat_is_refused_as_before() -> None:
    every = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    with pytest.raises(InvalidRequestError, match="private-use"):
        prompt_of(PLAIN, partial_answer(every))
    assert prompt_of(PLAIN, partial_answer(every[2:]))[0].endswith(every[2:])
