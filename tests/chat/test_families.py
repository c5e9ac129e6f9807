"""What models write to think and to call, by family: read as a whole and in pieces, unbroken and broken."""

import json
import random
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import msgspec
import pytest

import weft
from tests.chat.families import DSML, FAMILIES, GET, TOOLS, WRITTEN, form_of, message_of
from tests.chat.gbnf import Grammar
from tests.helpers import ended_by
from tests.server.matchers import Json
from weft._native import schema_grammar
from weft.chat.answer.call_format import NO_CALLS as UNFORMATTED
from weft.chat.answer.call_format import CallFormat
from weft.chat.answer.form import ChatForm, reasoning_marks_of
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import OneCall, Seq
from weft.chat.answer.layouts import json_call
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.reader import MAX_TRIES, ChatReader, ReasoningFormat
from weft.chat.answer.source import MAX_HELD
from weft.chat.answer.tools import NO_TOOLS, Tool, ToolUse
from weft.chat.call_grammar_cache import MAX_CACHE_BYTES, CallGrammarCache
from weft.chat.output_constraint import OutputConstraint
from weft.chat.pipeline import ChatPrompt
from weft.chat.request_options import MAX_TOOLS
from weft.server.inference.usage_counters import UsageCounters
from weft.server.llamacpp import metrics

N_MUTATIONS = 1_000

MARKS = [chr(code) for code in range(0x4E00, 0x4E00 + 64)]
"""Characters that no family writes: each one that is put into an answer must come out of it once."""

NO_MARKS = re.compile(f"[^{MARKS[0]}-{MARKS[-1]}]+")

by_family = pytest.mark.parametrize("name", WRITTEN)


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "tools.md").read_text(encoding="utf-8")
BROKEN = Path(__file__).with_name("broken_answers.md").read_text(encoding="utf-8")


def test_every_family_is_tried_and_told_of() -> None:
    assert set(WRITTEN) == set(FAMILIES)
    formats, broken = rows(GUIDE, "| format | a tool call | models |"), rows(BROKEN, "| family | two calls |")
    assert set(formats) == set(FAMILIES)
    assert formats == broken, "both tables have the same families in the same order"
    assert f"{len(FAMILIES)} formats of model families" in " ".join(GUIDE.split())


def rows(page: str, head: str) -> list[str]:
    """First cells of a table."""
    table = page[page.index(head) :].partition("\n\n")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


def parts_of_message(message: ParsedMessage) -> tuple[str, str, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.calls]


@by_family
def test_calls_and_thoughts_are_told_apart_from_what_is_said(name: str) -> None:
    written = WRITTEN[name]
    message = message_of(form_of(name).reader(), written.text)
    assert parts_of_message(message) == (
        written.content,
        written.thought,
        [("get_weather", written.arguments), ("get", "{}")],
    )
    assert len({call.id for call in message.calls}) == 2


@by_family
def test_pieces_make_the_whole_wherever_it_is_cut(name: str) -> None:
    text = WRITTEN[name].text
    form = form_of(name)
    whole = parts_of_message(message_of(form.reader(), text))
    for cut in range(1, len(text)):
        assert parts_of_message(message_of(form.reader(), text[:cut], text[cut:])) == whole
    assert parts_of_message(message_of(form.reader(), *text)) == whole


@by_family
def test_arguments_are_told_as_they_come(name: str) -> None:
    text = WRITTEN[name].text
    until_rome = text[: text.index("Rome", text.index("city")) + 2]
    reader = form_of(name).reader()
    message = ParsedMessage()
    for part in reader.read(until_rome):
        message.add(part)
    [call] = message.calls
    assert call.name == "get_weather"
    # A value that is an element of its own may be held back by as much as could close it.
    assert re.fullmatch(r'\{"city": "(Ro)?', call.arguments)


@by_family
def test_a_name_that_is_no_tool_is_content(name: str) -> None:
    text = WRITTEN[name].text.replace("get_weather", "got_weather")
    message = message_of(form_of(name).reader(), text)
    assert "got_weather" in message.content
    assert "got_weather" not in [call.name for call in message.calls]


def mutated(text: str, rng: random.Random) -> str:
    """A text with some of what goes wrong in models: characters lost, doubled, swapped, cut off or put in."""
    characters = list(text)
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(characters))
        length = rng.choice((1, 1, 2, 5, 20))
        match rng.randrange(5):
            case 0:
                del characters[place : place + length]
            case 1:
                characters[place:place] = characters[place : place + length]
            case 2:
                other = rng.randrange(len(characters))
                characters[place], characters[other] = characters[other], characters[place]
            case 3:
                del characters[place:]
            case _:
                characters[place:place] = rng.choice(('"', "}", "{", "\\", "\n", "<", ">", "'", ",", "]", "[", "\x07", "</"))
        characters = characters or ["x"]
    for mark in rng.sample(MARKS, rng.randrange(1, 6)):
        characters.insert(rng.randrange(len(characters) + 1), mark)
    return "".join(characters)


def in_pieces(text: str, rng: random.Random) -> list[str]:
    pieces, start = [], 0
    while start < len(text):
        end = start + rng.choice((1, 2, 3, 7, 40))
        pieces.append(text[start:end])
        start = end
    return pieces


@by_family
def test_nothing_is_lost_of_broken_answers_and_nothing_is_told_twice(name: str) -> None:
    rng = random.Random(f"broken {name}")
    n_calls, n_marks, n_lost, n_twice, wrong = Counter[int](), 0, 0, 0, []
    for _ in range(N_MUTATIONS):
        text = mutated(WRITTEN[name].text, rng)
        form = form_of(name, ToolUse(TOOLS, is_parallel=rng.random() < 0.8), is_thinking=rng.random() < 0.1)
        message = message_of(form.reader(), *in_pieces(text, rng))
        out = message.content + message.reasoning + "".join(call.name + call.arguments for call in message.calls)
        put_in, told_of = Counter(NO_MARKS.sub("", text)), Counter(NO_MARKS.sub("", out))
        if put_in != told_of:
            wrong.append(text)
        n_calls[min(len(message.calls), 2)] += 1
        n_marks += put_in.total()
        n_lost += (put_in - told_of).total()
        n_twice += (told_of - put_in).total()
        assert parts_of_message(message) == parts_of_message(message_of(form.reader(), text)), text
    assert not wrong
    row = f"| {name} | {n_calls[2]} | {n_calls[1]} | {n_calls[0]} | {n_marks:,} | {n_lost} | {n_twice} |"
    assert f"\n{row}\n" in BROKEN, f"tests/chat/broken_answers.md must have this row: {row}"


@by_family
def test_arguments_that_end_are_json(name: str) -> None:
    rng = random.Random(f"ended {name}")
    for _ in range(200):
        text = mutated(WRITTEN[name].text, rng)
        message = message_of(form_of(name).reader(), text)
        for call in message.calls[:-1]:
            if call.arguments.endswith("}"):
                assert isinstance(json.loads(call.arguments), dict)


@by_family
def test_one_call_is_told_where_one_is_asked_for(name: str) -> None:
    written = WRITTEN[name]
    form = form_of(name, ToolUse(TOOLS, is_parallel=False))
    message = message_of(form.reader(), written.text)
    assert [(call.name, call.arguments) for call in message.calls] == [("get_weather", written.arguments)]


CHOICES = Tool(
    "choose",
    {
        "type": "object",
        "properties": {
            "word": {"type": "string", "enum": ["a", "b c"]},
            "maybe": {"anyOf": [{"type": "string", "enum": ["5", "x"]}, {"type": "null"}]},
            "number": {"type": "integer", "minimum": 1, "maximum": 20},
            "exact": {"type": "boolean"},
            "note": {"type": "string", "maxLength": 4},
        },
        "required": ["word", "maybe"],
    },
)
"""What is drawn of it ends soon."""

FREELY: Json = {"max_tokens": 512, "temperature": 9.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7, "n": 16}
"""Whatever the grammar lets a model write is about as likely as all else, so lists of calls end."""

CHOSEN: Json = {"word": ["a", "b c"], "maybe": ["5", "x", None], "number": range(1, 21), "exact": [True, False]}


@by_family
@pytest.mark.parametrize("is_parallel", [True, False])
async def test_what_the_grammar_holds_a_model_to_is_read_as_calls(engine: weft.Engine, name: str, is_parallel: bool) -> None:
    use = ToolUse((CHOICES, GET), is_required=True, is_parallel=is_parallel)
    form = form_of(name, use)
    rules = Rules(use.tools, {}, is_parallel=is_parallel)
    grammar = rules.text(form.write(rules))
    answer = await engine.complete("Once upon a time,", grammar=grammar, **FREELY)
    ended = [branch.text for branch in answer.choices if ended_by(branch) == "end"]
    assert ended
    for text in ended:
        message = message_of(form.reader(), text)
        assert message.content == ""
        assert message.calls
        assert is_parallel or len(message.calls) == 1
        for call in message.calls:
            arguments = json.loads(call.arguments)
            assert isinstance(arguments, dict)
            if call.name == "choose":
                assert arguments.keys() >= {"word", "maybe"}
                assert isinstance(arguments.pop("note", ""), str)
                assert all(value in CHOSEN[key] for key, value in arguments.items())


THOUGHT = "<think>\nHm.\n</think>\n\nYes. "


@pytest.mark.parametrize(
    ("reasoning_format", "content", "thought"),
    [
        (ReasoningFormat.SEPARATE, "Yes. ", "Hm."),
        (ReasoningFormat.IN_CONTENT, THOUGHT, ""),
        (ReasoningFormat.BOTH, THOUGHT, "Hm."),
    ],
    ids=["apart", "in content", "both"],
)
def test_thoughts_go_where_they_are_wanted(reasoning_format: ReasoningFormat, content: str, thought: str) -> None:
    for pieces in ([THOUGHT], list(THOUGHT)):
        message = message_of(form_of("Hermes", reasoning_format=reasoning_format).reader(), *pieces)
        assert (message.content, message.reasoning) == (content, thought)


def test_a_thought_that_the_prompt_begins_is_one() -> None:
    message = message_of(form_of("Hermes", is_thinking=True).reader(), *"Hm.\n</think>\n\nYes.")
    assert (message.content, message.reasoning) == ("Yes.", "Hm.")


def test_what_looks_like_a_call_in_a_thought_is_thought() -> None:
    text = '<think>\nI write <tool_call>{"name": "get"}</tool_call>\n</think>\nYes.'
    message = message_of(form_of("Hermes").reader(), text)
    assert (message.content, message.reasoning) == ("Yes.", 'I write <tool_call>{"name": "get"}</tool_call>')
    assert message.calls == []


def test_a_call_ends_a_thought_that_kimi_leaves_open() -> None:
    text = WRITTEN["Kimi K2"].text.replace("</think>I look.", "")
    for pieces in ([text], list(text)):
        message = message_of(form_of("Kimi K2").reader(), *pieces)
        assert (message.reasoning, message.content) == ("Rome?", "")
        assert [call.name for call in message.calls] == ["get_weather", "get"]
    held = message_of(form_of("Kimi K2").constrained().reader(), text)
    assert (held.reasoning, held.calls) == (text.removeprefix("<think>"), [])
    request = OutputConstraint(form_of("Kimi K2"), {}, None).apply(weft.Request(prompt="a"))
    assert request.reasoning is not None
    assert request.reasoning.ends == ("</think>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    required = OutputConstraint(form_of("Kimi K2", ToolUse(TOOLS, is_required=True)), {}, None).apply(weft.Request(prompt="a"))
    assert required.reasoning is not None
    assert required.reasoning.ends == ("</think>",)


@pytest.mark.parametrize(
    ("request_", "is_held"),
    [
        (weft.Request(prompt="a"), False),
        (weft.Request(prompt="a", json_schema={}), True),
        (weft.Request(prompt="a", grammar='root ::= "a"'), True),
        (
            weft.Request(
                prompt="a", grammar='root ::= "a"', grammar_lazy=True, grammar_triggers=(weft.GrammarTrigger("word", "a"),)
            ),
            False,
        ),
    ],
    ids=["free", "schema", "grammar", "lazy grammar"],
)
def test_an_answer_that_is_held_to_a_grammar_is_read_so(request_: weft.Request, is_held: bool) -> None:
    reader = ChatPrompt([], [], form_of("Hermes")).answer_to(request_).reader()
    message = message_of(reader, '{"tag": "<think>"}')
    assert message.reasoning == ("" if is_held else '"}')


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "get", "arguments": {"a": "x\ny"}}', '{"a": "x\\ny"}'),
        ('{"arguments": {"a": [1, {"b": null}]}, "name": "get"}', '{"a": [1, {"b": null}]}'),
        ('{"name": "get"}', "{}"),
        ('{"id": "1", "name": "get", "parameters": {}}', "{}"),
        ('{"type": "function", "name": "get", "arguments": {}}', "{}"),
        ('{"name": "get", "arguments": {"a": "\\q"}}', '{"a": "\\\\q"}'),
    ],
)
def test_a_call_may_be_written_in_several_ways(written: str, arguments: str) -> None:
    for pieces in ([written], list(written)):
        message = message_of(form_of("Hermes").reader(), "<tool_call>", *pieces, "</tool_call>")
        assert message.content == ""
        assert [(call.name, call.arguments) for call in message.calls] == [("get", arguments)]


def test_a_literal_of_python_becomes_json() -> None:
    text = "[get_weather(city='it\\'s \"here\" \\x41', exact=True, days=-1.5e3, units={'a': [None, (1, 2,)], 'b': {}})]"
    for pieces in ([text], list(text)):
        [call] = message_of(form_of("Llama (Python)").reader(), *pieces).calls
        assert json.loads(call.arguments) == {
            "city": 'it\'s "here" A',
            "exact": True,
            "days": -1500,
            "units": {"a": [None, [1, 2]], "b": {}},
        }


def test_values_of_elements_have_the_types_of_the_schema() -> None:
    elements = {"city": "12", "days": "12", "exact": "True", "units": '{"a": 1}', "more": "free text"}
    text = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in elements.items())
    [call] = message_of(form_of("Qwen3 Coder").reader(), f"<function=get_weather>\n{text}</function>").calls
    assert json.loads(call.arguments) == {"city": "12", "days": 12, "exact": True, "units": {"a": 1}, "more": "free text"}


TEXT_OR_NONE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
TEXT_OR_NUMBER = {"type": ["string", "integer"]}


@pytest.mark.parametrize("name", ["Qwen3 Coder", "GLM 4.5", "DeepSeek V3.2", "MiniMax M2", "Seed OSS"])
@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        (TEXT_OR_NONE, '"Rome"', '"Rome"'),
        (TEXT_OR_NONE, "Rome", '"Rome"'),
        (TEXT_OR_NONE, "null", "null"),
        (TEXT_OR_NONE, "5", '"5"'),
        (TEXT_OR_NONE, "true", '"true"'),
        (TEXT_OR_NONE, "1e400", '"1e400"'),
        (TEXT_OR_NUMBER, "5", "5"),
        (TEXT_OR_NUMBER, '"5"', '"5"'),
        (TEXT_OR_NUMBER, "5.5", '"5.5"'),
        ({"enum": ["a", None]}, '"a"', '"a"'),
        ({"$ref": "#/$defs/name"}, '"a"', '"a"'),
        ({"type": "number"}, "7", "7"),
        ({"type": "number"}, "1e400", "1e400"),
        ({"type": "array"}, "[" * 5_000 + "]" * 5_000, json.dumps("[" * 5_000 + "]" * 5_000)),
        ({}, "5", "5"),
    ],
)
def test_a_value_that_may_be_a_text_or_not_is_read_as_it_is_held_to(name: str, schema: Json, written: str, value: str) -> None:
    properties = {"city": schema, "days": {"type": "integer"}}
    tool = Tool("get_weather", {"type": "object", "properties": properties, "$defs": {"name": {"type": "string"}}})
    text = WRITTEN[name].text.replace("Rome<", f"{written}<").replace("Rome\n<", f"{written}\n<")
    text = text.replace('"city" string="true"', '"city" string="false"')
    [call, _] = message_of(form_of(name, ToolUse((tool, GET))).reader(), text).calls
    assert call.arguments == f'{{"city": {value}, "days": 3}}'


@pytest.mark.parametrize(
    ("earlier", "numbers", "ids"),
    [
        ([], (0, 1), ["get_weather:0", "get:1"]),
        (["functions.get_weather:0"], (0, 1), ["get_weather:1", "get:2"]),
        (["functions.get_weather:0"], (1, 2), ["get_weather:1", "get:2"]),
        (["functions.get_weather:0", "functions.get:1"], (0, 1), ["get_weather:2", "get:3"]),
        (["functions.get_weather:1"], (0, 1), ["get_weather:2", "get:2"]),
        (["", "functions.get_weather:0"], (5, 6), ["get_weather:5", "get:6"]),
    ],
)
def test_calls_of_a_chat_are_numbered_on(earlier: list[str], numbers: tuple[int, int], ids: list[str]) -> None:
    text = WRITTEN["Kimi K2"].text.replace("weather:0", f"weather:{numbers[0]}").replace("get:1", f"get:{numbers[1]}")
    form = ChatForm(FAMILIES["Kimi K2"], None, ToolUse(TOOLS), earlier=earlier)
    for pieces in ([text], list(text)):
        found = [call.id for call in message_of(form.reader(), *pieces).calls]
        assert found == [f"functions.{one}" for one in ids]
        assert not set(found) & set(earlier)


def test_a_held_back_call_has_an_end() -> None:
    endless = '<tool_call>{"arguments": {"a": "' + "x" * 200_000
    message = message_of(form_of("Hermes").reader(), *(endless[start : start + 100] for start in range(0, len(endless), 100)))
    assert message.content == endless


@pytest.mark.parametrize("end", ["", "}", "x"])
@pytest.mark.parametrize("step", [1, 100, 70_000])
def test_little_is_read_again_of_what_was_held_back_for_long(end: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    begin = ChatReader._begin

    def counted(reader: ChatReader) -> None:
        begin(reader)
        assert reader._source is not None
        begun.append(len(reader._source.text))

    monkeypatch.setattr(ChatReader, "_begin", counted)
    text = '<tool_call>{"arguments": {"a": "' + '<tool_call>{\\"arguments\\": {\\"a\\": \\"' * 1_600 + end
    assert len(text) < MAX_HELD
    reader = form_of("Hermes").reader()
    parts = [reader.read(text[start : start + step]) for start in range(0, len(text), step)]
    parts.append(reader.read('" ' + "x" * (MAX_HELD - len(text))))
    parts.append(reader.read("y" + WRITTEN["Hermes"].text.partition("</think>")[2]))
    parts.append(reader.end())
    message = ParsedMessage()
    for part in chain.from_iterable(parts):
        message.add(part)
    assert message.content.startswith(text)
    assert [call.name for call in message.calls] == ["get_weather", "get"]
    assert len(begun) <= MAX_TRIES + 3


def read_truncated(form: ChatForm, *pieces: str) -> ParsedMessage:
    """Reads an answer that was cut off behind these pieces."""
    reader, message = form.reader(), ParsedMessage()
    for part in [*chain.from_iterable(map(reader.read, pieces)), *reader.end(is_truncated=True)]:
        message.add(part)
    return message


@by_family
def test_a_truncated_call_is_no_content_wherever_it_is_cut(name: str) -> None:
    written = WRITTEN[name]
    form = form_of(name)
    n_named = 0
    for cut in range(len(written.text) + 1):
        whole = read_truncated(form, written.text[:cut])
        assert parts_of_message(whole) == parts_of_message(read_truncated(form, *written.text[:cut]))
        for said, all_said in ((whole.content, written.content), (whole.reasoning, written.thought)):
            # A single letter may begin a mark or a word.
            ends = (said.strip(), said.strip()[:-1].strip()) if said[-1:].isalnum() else (said.strip(),)
            assert all_said.startswith(ends), written.text[:cut]
        for call, (tool, arguments) in zip(whole.calls, [("get_weather", written.arguments), ("get", "{}")], strict=False):
            assert call.name == tool
            assert arguments.startswith(call.arguments), written.text[:cut]
        n_named = max(n_named, len(whole.calls))
    assert n_named == 2


def test_the_whole_calls_of_a_truncated_answer_are_reported() -> None:
    text = WRITTEN["Generic"].text
    for cut in range(text.rindex("<tool_call>") + 1, text.rindex("get") + 3):
        message = read_truncated(form_of("Generic"), text[:cut])
        assert parts_of_message(message) == ("I look.", "", [("get_weather", '{"city": "Rome", "days": 3}')])


def test_a_truncated_text_that_cannot_become_a_call_is_content() -> None:
    for name, text in (
        ("Hermes", "I write <tool_call> and so on"),
        ("Hermes", "if a < b"),
        ("FireFunction", "half of"),
        ("Llama 3", '{"city": "Rome'),
        ("Llama (Python)", "[1, 2"),
        ("Qwen3 Coder", "A <b> and a <function of"),
        ("Functionary 3.2", "all\nI get"),
    ):
        for pieces in ([text], list(text)):
            message = read_truncated(form_of(name), *pieces)
            assert (message.content, message.calls) == (text.removeprefix("all\n"), [])


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ("12", '{"days": 12'),
        ('{"a": [1, {"b', '{"days": {"a": [1, {"b'),
        ("[1, 2]</para", '{"days": [1, 2]'),
        ("tr", '{"days": '),
        ("{'a': Tru", '{"days": {"a": '),
    ],
)
def test_the_beginning_of_a_value_is_reported_as_the_beginning_of_json(value: str, arguments: str) -> None:
    text = f"<tool_call>\n<function=get_weather>\n<parameter=days>\n{value}"
    for pieces in ([text], list(text)):
        [call] = read_truncated(form_of("Qwen3 Coder"), *pieces).calls
        assert call.arguments == arguments


def test_what_is_no_call_is_counted() -> None:
    counts: list[str] = []
    form = ChatForm(FAMILIES["Hermes"], None, ToolUse(TOOLS), on_unparsed_call=lambda: counts.append("one"))
    for text in ("<tool_call>{}</tool_call>", "<tool_call>", f"{WRITTEN['Hermes'].text}</tool_call>", "{"):
        message_of(form.reader(), text)
    assert counts == ["one"] * 2
    tally = UsageCounters()
    tally.count_malformed_call()
    assert b"\nweft:malformed_tool_calls_total 1.0\n" in metrics.exposition(metrics.of_branches(tally))


NO_CALLS = {
    "Llama (Python)": '[get_weather("Paris")]',
    "LFM2": '<|tool_call_start|>[get_weather("Paris")]<|tool_call_end|>',
    "Qwen3 Coder": '<tool_call>\n<function=get_weather>\n{"city": "Paris"}\n</function>\n</tool_call>',
    "Seed OSS": '<seed:tool_call>\n<function=get_weather>\n{"city": "Paris"}\n</function>\n</seed:tool_call>',
    "GLM 4.5": "<tool_call>get_weather is a tool",
    "MiniMax M2": '<minimax:tool_call><invoke name="get_weather">{"city": "Paris"}</invoke></minimax:tool_call>',
    "DeepSeek V3.2": f'<{DSML}function_calls><{DSML}invoke name="get_weather">{{"city": "Paris"}}</{DSML}invoke>',
    "Functionary 3.2": "get_weather\nis a tool",
}


@pytest.mark.parametrize(("name", "text"), NO_CALLS.items(), ids=NO_CALLS)
def test_arguments_that_cannot_be_read_make_no_call_without_any(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        message = message_of(form_of(name).reader(), *pieces)
        assert (message.content, message.calls) == (text, [])


CUT_CALLS = {
    "Llama (Python)": "[get(",
    "Qwen3 Coder": "<tool_call>\n<function=get>\n</func",
    "GLM 4.5": "<tool_call>get\n",
    "Functionary 3.2": "get\n",
}


@pytest.mark.parametrize(("name", "text"), CUT_CALLS.items(), ids=CUT_CALLS)
def test_a_call_without_arguments_needs_no_closing_where_all_ends(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        message = message_of(form_of(name).reader(), *pieces)
        assert (message.content, [(call.name, call.arguments) for call in message.calls]) == ("", [("get", "{}")])


@by_family
async def test_the_engine_waits_for_the_calls_of_each_family(engine: weft.Engine, name: str) -> None:
    for use in (ToolUse(TOOLS), ToolUse((GET,), is_parallel=False)):
        request = OutputConstraint(form_of(name, use), {}, None).apply(weft.Request(prompt="Once upon a time,", max_tokens=2))
        assert request.grammar_lazy
        assert request.grammar_triggers
        answer = await engine.complete(request)
        assert answer.choices[0].finish_reason == "length"


@by_family
def test_a_trigger_is_where_a_call_begins(name: str) -> None:
    form = form_of(name, ToolUse(TOOLS))
    request = OutputConstraint(form, {}, None).apply(weft.Request(prompt="a"))
    text = WRITTEN[name].text
    found = []
    for trigger in request.grammar_triggers:
        pattern = re.escape(trigger.value) if trigger.kind == "word" else trigger.value
        if match := re.search(pattern, text):
            found.append(text[match.start(1) if match.lastindex else match.start() :])
    assert found
    assert any(message_of(form_of(name).reader(), begun).content == "" for begun in found)


def found_by(request: weft.Request, text: str) -> str | None:
    """From where on the grammar holds a text; None where no trigger is in it."""
    found = []
    for trigger in request.grammar_triggers:
        pattern = re.escape(trigger.value) if trigger.kind == "word" else trigger.value
        if match := re.search(pattern, text):
            found.append(match.start(1) if match.lastindex else match.start())
    return text[min(found) :] if found else None


@by_family
def test_what_is_read_as_a_call_was_held_to_one(name: str) -> None:
    form = form_of(name, ToolUse(TOOLS))
    request = OutputConstraint(form, {}, None).apply(weft.Request(prompt="a"))
    rng = random.Random(f"held {name}")
    n_called = 0
    for _ in range(N_MUTATIONS):
        text = mutated(WRITTEN[name].text, rng)
        if message_of(form.reader(), text).calls:
            n_called += 1
            assert found_by(request, text) is not None, text
    assert n_called > N_MUTATIONS // 20


SPELLINGS = [
    ("Qwen3 Coder", "<tool_call>\n<function=get>\n</function>\n</tool_call>"),
    ("Qwen3 Coder", "<function=get>\n</function>"),
    ("Qwen3 Coder", "<function=get>\n</function>\n</tool_call>"),
    ("Command R", 'Action:```json\n[{"tool_name": "get", "parameters": {}}]\n```'),
    ("Llama 3", '<|python_tag|>{"name": "get", "parameters": {}}'),
    ("Llama 3", '{"type": "function", "name": "get", "parameters": {}}'),
    ("Llama 3", '{\n  "name" : "get", "parameters": {}}'),
    ("Llama (Python)", "[ get()]"),
    ("gpt-oss", "<|channel|>analysis to=functions.get <|constrain|>json<|message|>{}"),
    ("gpt-oss", "<|start|>assistant to=functions.get<|channel|>commentary <|constrain|>json<|message|>{}"),
    ("gpt-oss", "to=functions.get<|channel|>commentary <|constrain|>json<|message|>{}"),
]


@pytest.mark.parametrize("use", [ToolUse((GET,)), ToolUse((GET,), is_required=True)], ids=["auto", "required"])
@pytest.mark.parametrize(("name", "text"), SPELLINGS)
def test_a_call_is_held_to_however_it_is_spelt(name: str, text: str, use: ToolUse) -> None:
    form = form_of(name, use)
    request = OutputConstraint(form, {}, None).apply(weft.Request(prompt="a"))
    if not use.is_required:
        assert found_by(request, text) == text
        assert found_by(request, f"\n {text}") == text
    assert Grammar(request.grammar or "").allows(text)
    message = message_of(form.reader(), text)
    assert (message.content, [call.name for call in message.calls]) == ("", ["get"])


def test_an_object_is_a_call_where_it_begins_as_one() -> None:
    form = form_of("Llama 3", ToolUse(TOOLS))
    request = OutputConstraint(form, {}, None).apply(weft.Request(prompt="a"))
    for text in (
        '{"parameters": {}, "name": "get"}',
        '{"id": "1", "name": "get", "parameters": {}}',
        '{"name": "getter", "parameters": {}}',
    ):
        assert found_by(request, text) is None
        assert message_of(form.reader(), text).content == text


@by_family
async def test_as_many_tools_with_names_as_long_as_may_be_are_looked_for(engine: weft.Engine, name: str) -> None:
    for length in (64, 128):
        many = tuple(Tool(f"{nth}-tool".rjust(length, "a"), {"type": "object", "properties": {}}) for nth in range(MAX_TOOLS))
        form = form_of(name, ToolUse(many))
        request = OutputConstraint(form, {}, None).apply(weft.Request(prompt="Once upon a time,", max_tokens=1))
        answer = await engine.complete(request)
        assert answer.choices[0].finish_reason == "length"
        called = WRITTEN[name].text.replace("get_weather", many[7].name)
        assert found_by(request, called) is not None


async def test_a_model_says_what_it_likes_until_it_calls_and_then_calls_a_tool(engine: weft.Engine) -> None:
    # A word that the model says soon stands for the mark that a model of this family would begin a call with.
    the = CallFormat("the", Seq("the", OneCall(json_call())), between=" and ")
    form = ChatForm(the, None, ToolUse(TOOLS, is_parallel=False))
    request = OutputConstraint(form, {}, None).apply(weft.Request(prompt="Once upon a time,", max_tokens=256, n=4, seed=1))
    answer = await engine.complete(request)
    for text in answer.texts:
        assert "the" in text
        message = message_of(form.reader(), text)
        assert message.content == text[: text.index("the")].rstrip()
        [call] = message.calls
        assert call.name in ("get", "get_weather")
        assert isinstance(json.loads(call.arguments), dict)


def held_to(name: str, **parameters: Json) -> str:
    """The grammar of the calls of one strict tool with these parameters."""
    use = ToolUse((Tool("f", {"type": "object", **parameters}, is_strict=True),), is_required=True)
    return OutputConstraint(form_of(name, use), {}, None).apply(weft.Request(prompt="a")).grammar or ""


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("Hermes", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "the parameters of the tool f: "),
        ("Hermes", {"properties": {"a": {"pattern": "(?=a)", "type": "string"}}}, "the parameters of the tool f: "),
        ("Qwen3 Coder", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "the parameters of the tool f: "),
        *(
            (name, {"properties": properties, **more}, f"cannot enforce {word!r} of its schema")
            for name in ("Qwen3 Coder", "LFM2")
            for properties, more, word in (
                ({"a": {}}, {"anyOf": [{"required": ["a"]}]}, "anyOf"),
                ({"a": {}, "b": {}}, {"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
                ({"a": {}, "b": {}}, {"minProperties": 1}, "minProperties"),
                ({"a": {}}, {"required": ["b"]}, "required: b"),
                ({"a": False}, {}, "false"),
                ({"a": {"items": {"$ref": "#/properties/b"}}, "b": {"type": "string"}}, {}, "$ref: #/properties/b"),
            )
        ),
        *(
            ("Gemma 4", {"properties": {"a": schema}}, f"cannot enforce {word!r} of its schema")
            for word, schema in (
                ("maxLength", {"type": "string", "maxLength": 3}),
                ("minItems", {"type": "array", "items": {}, "minItems": 1}),
                ("oneOf", {"oneOf": [{"type": "string"}, {"type": "integer"}]}),
                ("minProperties", {"type": "object", "properties": {"b": {}}, "minProperties": 1}),
                ("$ref: #", {"items": {"$ref": "#"}, "type": "array"}),
                ("additionalProperties", {"type": "object", "additionalProperties": {"type": "integer"}}),
            )
        ),
        ("Qwen3 Coder", {"additionalProperties": {"type": "integer"}}, "cannot enforce 'additionalProperties' of its schema"),
        *(
            (
                name,
                {"properties": {"a": {"type": "string", **more}}, **shared},
                f"cannot enforce {next(iter(more))!r} of its schema",
            )
            for name in ("Qwen3 Coder", "Seed OSS", "GLM 4.5", "MiniMax M2", "DeepSeek V3.2")
            for more, shared in (
                ({"maxLength": 3}, {}),
                ({"pattern": "^a$"}, {}),
                ({"format": "date"}, {}),
                ({"anyOf": [{"type": "string", "maxLength": 3}]}, {}),
                ({"allOf": [{"maxLength": 3}]}, {}),
                ({"not": {"const": "a"}}, {}),
                ({"$ref": "#/$defs/b"}, {"$defs": {"b": {"type": "string", "maxLength": 3}}}),
            )
        ),
        (
            "Qwen3 Coder",
            {"properties": {"a": {"type": "string", "enum": ["b", "c</parameter>"]}}},
            "has an argument 'a', which the format of this model's calls cannot express",
        ),
        (
            "Qwen3 Coder",
            {"properties": {"a>b": {}}},
            "has an argument 'a>b', which the format of this model's calls cannot express",
        ),
        ("LFM2", {"properties": {"a b": {}}}, "has an argument 'a b', which the format of this model's calls cannot express"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused(name: str, parameters: Json, said: str) -> None:
    with pytest.raises(weft.InvalidRequestError) as refused:
        held_to(name, **parameters)
    assert refused.value.param == "tools"
    assert said in refused.value.message


@by_family
@pytest.mark.parametrize(
    "schema",
    [{"anyOf": 5}, {"oneOf": True}, {"type": 5}, {"enum": 5}]
    + [{"type": "string", word: listed} for word, listed in (("enum", []), ("enum", "abc"), ("enum", None), ("anyOf", []))],
    ids=json.dumps,
)
def test_what_is_no_schema_is_refused(name: str, schema: Json) -> None:
    use = ToolUse((Tool("f", {"type": "object", "properties": {"a": schema}}),))
    with pytest.raises(weft.InvalidRequestError) as refused:
        OutputConstraint(form_of(name, use), {}, None)
    assert refused.value.param == "tools"
    assert "the parameters of the tool f: " in refused.value.message


def test_an_argument_that_is_one_text_is_held_to_it() -> None:
    grammar = Grammar(held_to("Qwen3 Coder", properties={"a": {"type": "string", "const": "x"}}, required=["a"]))
    call = "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>"
    assert grammar.allows(call)
    assert not grammar.begins(call.replace("x", "y"))


@pytest.mark.parametrize("name", ["Qwen3 Coder", "Seed OSS", "GLM 4.5", "MiniMax M2", "DeepSeek V3.2"])
@pytest.mark.parametrize(
    "value", ['"a{closing}b"', '{{"a": "\\"{closing}"}}', '["{closing}", "{closing}"]', "5", '"\n{closing}"']
)
def test_what_closes_a_value_may_stand_in_a_text_of_its_json(name: str, value: str) -> None:
    tool = Tool("get_weather", {"type": "object", "properties": {"city": {}, "days": {"type": "integer"}}})
    closing = next(mark for mark in ("</parameter>", "</arg_value>", f"</{DSML}parameter>") if mark in WRITTEN[name].text)
    written = value.format(closing=closing)
    text = WRITTEN[name].text.replace("Rome<", f"{written}<").replace("Rome\n<", f"{written}\n<")
    text = text.replace('"city" string="true"', '"city" string="false"')
    form = form_of(name, ToolUse((tool, GET)))
    for pieces in ([text], list(text)):
        calls = message_of(form.reader(), *pieces).calls
        assert [call.name for call in calls] == ["get_weather", "get"]
        assert calls[0].arguments == f'{{"city": {written}, "days": 3}}' or "\n" in written


def test_a_text_that_a_model_is_held_to_ends_where_it_is_read_to_end() -> None:
    for name, closing in (("Qwen3 Coder", "</parameter>"), ("Seed OSS", "</parameter>"), ("GLM 4.5", "</arg_value>")):
        tool = Tool("get_weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
        form = form_of(name, ToolUse((tool,), is_required=True, is_parallel=False))
        grammar = Grammar(OutputConstraint(form, {}, None).apply(weft.Request(prompt="a")).grammar or "")
        text = WRITTEN[name].text
        begun = text[text.index("<tool_call>") if "<tool_call>" in text else text.index("<seed:tool_call>") :]
        begun = begun[: begun.index("Rome")]
        assert grammar.begins(f"{begun}Rome{closing}")
        assert not grammar.begins(f"{begun}Rome{closing} and more{closing}")


_HALF = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>"


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        # What closes a value stands twice.
        ("Qwen3 Coder", f"{_HALF}\n</parameter>\n</function>\n</tool_call>", "", ['{"city": "Rome"}']),
        (
            "Qwen3 Coder",
            f"{_HALF}\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            ['{"city": "Rome", "days": 3}'],
        ),
        # A required argument is missing, or they are in another order.
        (
            "Qwen3 Coder",
            "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            ['{"days": 3}'],
        ),
        # Something is said before, between and behind calls.
        ("Qwen3 Coder", f"One.\n{_HALF}\n</function>\n</tool_call>\nTwo.", "One.Two.", ['{"city": "Rome"}']),
        (
            "Hermes",
            f"One. {WRITTEN['Generic'].text.removeprefix('I look.')} Two.",
            "One.Two.",
            ['{"city": "Rome", "days": 3}', "{}"],
        ),
        ("Apertus", 'A<|tools_prefix|>[{"get": {}}]<|tools_suffix|>B', "AB", ["{}"]),
        # A mark is spoken of.
        (
            "Gemma 4",
            "I write <|tool_call> and <|tool_call>call: and so on.",
            "I write <|tool_call> and <|tool_call>call: and so on.",
            [],
        ),
        ("Hermes", "I write <tool_call> and so on.", "I write <tool_call> and so on.", []),
        # A long text of several lines with quotes.
        (
            "Gemma 4",
            '<|tool_call>call:get_weather{city:<|"|>a "b"\n\\n {c: [1, 2]}<|"|>,days:3}<tool_call|>',
            "",
            [json.dumps({"city": 'a "b"\n\\n {c: [1, 2]}', "days": 3})],
        ),
        # A thought is left open.
        ("Apertus", '<|inner_prefix|>Hm.<|tools_prefix|>[{"get": {}}]<|tools_suffix|>', "", ["{}"]),
        # Calls in parallel whose block is closed late, or never.
        (
            "Kimi K2",
            WRITTEN["Kimi K2"].text.removesuffix("<|tool_calls_section_end|>"),
            "I look.",
            ['{"city": "Rome", "days": 3}', "{}"],
        ),
    ],
)
def test_what_others_lose_is_told(name: str, text: str, content: str, calls: list[str]) -> None:
    for pieces in ([text], list(text)):
        message = message_of(form_of(name).reader(), *pieces)
        assert (message.content, [call.arguments for call in message.calls]) == (content, calls)


def spelt(name: str, text: str) -> str:
    """What Gemma 4 writes as the family of this name, which has other marks, writes it."""
    marks = {'<|"|>': "<escape>", "<|tool_call>": "<start_function_call>", "<tool_call|>": "<end_function_call>"}
    for theirs, ours in marks.items() if name == "FunctionGemma" else ():
        text = text.replace(theirs, ours)
    return text


gemmas = pytest.mark.parametrize("name", ["Gemma 4", "FunctionGemma"])


@gemmas
def test_arguments_of_gemma_are_read_however_deep_they_are(name: str) -> None:
    text = spelt(
        name,
        '<|tool_call>call:get_weather{units:{a:[<|"|>x<|"|>,true,null,-1.5],<|"|>b c<|"|>:{}}, "days" : 3,'
        'city:<|"|>it\'s "<|\\<|"|>}<tool_call|>',
    )
    for pieces in ([text], list(text)):
        [call] = message_of(form_of(name).reader(), *pieces).calls
        units = {"a": ["x", True, None, -1.5], "b c": {}}
        assert json.loads(call.arguments) == {"units": units, "days": 3, "city": "it's \"<|\\"}


NESTED: Json = {
    "properties": {
        "z": {"type": "array", "items": {"type": "object", "properties": {"k": {"enum": ["a", 1]}}, "required": ["k"]}},
        "b": {"type": ["string", "null"]},
        "a": {"type": "integer", "minimum": 3},
    },
    "required": ["z"],
    "additionalProperties": False,
}


@gemmas
def test_gemma_is_held_to_schemas(name: str) -> None:
    grammar = Grammar(held_to(name, **NESTED))
    for arguments in (
        "z:[]",
        'a:3,b:<|"|>x<|"|>,z:[{k:<|"|>a<|"|>},{k:1}]',
        "b:null,z:[]",
    ):
        assert grammar.allows(spelt(name, f"<|tool_call>call:f{{{arguments}}}<tool_call|>")), arguments
    for arguments in ("}", "a:2,", "b:5", "z:[{}", "z:[{k:2", "z:[],a", 'b:"'):
        assert not grammar.begins(spelt(name, f"<|tool_call>call:f{{{arguments}")), arguments
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
    list_of = Grammar(held_to(name, properties={"a": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": node}}))
    assert list_of.allows(spelt(name, "<|tool_call>call:f{a:{next:{next:{v:1},v:2},v:3}}<tool_call|>"))
    assert not list_of.begins(spelt(name, "<|tool_call>call:f{a:{next:{}"))
    free = Grammar(held_to(name, properties={"a": {}}))
    assert free.allows(spelt(name, '<|tool_call>call:f{a:{b:[<|"|>x<|"|>,1,{c:null}]}}<tool_call|>'))


def test_what_an_answer_ends_with_is_no_part_of_it() -> None:
    for use, ends in ((ToolUse(TOOLS), ["a", "<start_function_response>"]), (ToolUse(()), ["a"])):
        request = OutputConstraint(form_of("FunctionGemma", use), {"<start_function_response>": 7}, None).apply(
            weft.Request(prompt="a", stop="a")
        )
        assert (request.stop, "<start_function_response>" in request.preserved_tokens) == (ends, True)


def test_words_are_pythons_where_calls_are() -> None:
    properties = {"a": {"type": "boolean"}, "b": {"enum": [None, "null", "true"]}, "true": {}}
    grammar = Grammar(held_to("LFM2", properties=properties, required=["a", "b", "true"]))
    assert grammar.allows('<|tool_call_start|>[f(a=True, b=None, true=[False, "false"])]<|tool_call_end|>')
    assert grammar.allows('<|tool_call_start|>[f(a=False, b="null", true=None)]<|tool_call_end|>')
    # Some models write JSON's words within Python's calls, and Python's quotes.
    assert grammar.allows("<|tool_call_start|>[f(a=true, b='null', true={'a': [false, null]})]<|tool_call_end|>")
    assert not grammar.begins("<|tool_call_start|>[f(a=TRUE")


def test_arguments_are_held_to_their_schema() -> None:
    words = {"properties": {"a": {"type": "string", "enum": ["x", "y"]}}, "required": ["a"]}
    assert '"x" | "y"' in held_to("Qwen3 Coder", **words)
    assert '"\\"x\\"" | "\\"y\\""' in held_to("Hermes", **words)
    assert """("\\"x\\"" | "'x'") | ("\\"y\\"" | "'y'")""" in held_to("LFM2", **words)


def test_the_grammar_of_the_same_tools_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def written(schema: str) -> str:
        read.append(schema)
        return schema_grammar(schema)

    monkeypatch.setattr("weft.chat.answer.gbnf.schema_grammar", written)
    cache, request = CallGrammarCache(), weft.Request(prompt="a")
    schema = msgspec.structs.replace(request, json_schema={"const": "said"})
    first = OutputConstraint(form_of("Hermes"), {}, None, cache=cache)
    n_read = len(read)
    said = first.apply(schema).grammar
    again = OutputConstraint(form_of("Hermes"), {}, None, cache=cache)
    assert 0 < n_read < len(read) == n_read + 1
    assert again.apply(request) == OutputConstraint(form_of("Hermes"), {}, None).apply(request)
    assert again.apply(schema).grammar == said

    others = OutputConstraint(form_of("Hermes", ToolUse(TOOLS[:1])), {}, None, cache=cache)
    assert others.apply(request).grammar != again.apply(request).grammar


def test_the_cache_of_call_grammars_is_bounded_in_bytes() -> None:
    cache = CallGrammarCache()
    for n in range(40):
        tool = Tool("act", {"type": "object", "description": f"{n}" + "a" * (MAX_CACHE_BYTES // 32)})
        cache.rules(form_of("Hermes", ToolUse((tool,))), {})
        assert cache.n_bytes <= MAX_CACHE_BYTES
    many = [Tool(f"act{n}", {"type": "object", "description": "a" * (MAX_CACHE_BYTES // 32)}) for n in range(32)]
    cache.rules(form_of("Hermes", ToolUse(tuple(many))), {})
    assert cache.n_bytes > MAX_CACHE_BYTES
    cache.rules(form_of("Hermes"), {})
    assert 0 < cache.n_bytes <= MAX_CACHE_BYTES


ONE_CALL = [
    # No line breaks within a call, and some elsewhere.
    ("GLM 4.5", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>", '{"city": "Rome"}'),
    (
        "GLM 4.5",
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>"
            "<arg_key>days</arg_key><arg_value>3</arg_value>\n</tool_call>\n"
        ),
        '{"city": "Rome", "days": 3}',
    ),
    ("Ling 3", "<tool_call>get\n\n</tool_call><|role_end|>", "{}"),
    ("Laguna", "<tool_call>get</tool_call></assistant>", "{}"),
    (
        "Qwen3 Coder",
        "<tool_call><function=get_weather><parameter=city>Rome</parameter></function></tool_call>",
        '{"city": "Rome"}',
    ),
    ("Hermes", '<tool_call>{"name": "get", "arguments": {}}</tool_call>', "{}"),
    ("Hermes", '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>\n', "{}"),
    # Arguments in another order than the schema's, as Python's literals, and a text that could be something else.
    (
        "Qwen3 Coder",
        (
            "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n"
            "<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>\n"
        ),
        '{"days": 3, "city": "Rome"}',
    ),
    (
        "Seed OSS",
        (
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>None</parameter>\n<parameter=exact>True</parameter>\n"
            "<parameter=units>{'a': [None, False], 'b': \"it's\"}</parameter>\n</function>\n</seed:tool_call>"
        ),
        '{"city": "None", "exact": true, "units": {"a": [null, false], "b": "it\'s"}}',
    ),
    # An id, first, in the middle and last.
    ("Mistral", '[TOOL_CALLS]get_weather[CALL_ID]Ab3456789[ARGS]{"city": "Rome"}', '{"city": "Rome"}'),
    (
        "Mistral (lists)",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "Ab3456789"}]',
        '{"city": "Rome"}',
    ),
    ("Command R7B", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get", "parameters": {}}\n]<|END_ACTION|>', "{}"),
    (
        "Command R",
        'Action: ```json\n[\n    {\n        "tool_name": "get",\n        "parameters": {}\n    }\n]\n```',
        "{}",
    ),
    # Python's quotes, and JSON's words.
    (
        "LFM2",
        "<|tool_call_start|>[get_weather(city='Rome\nin \"Italy\"', exact=true, units={'a': None})]<|tool_call_end|>",
        '{"city": "Rome\\nin \\"Italy\\"", "exact": true, "units": {"a": null}}',
    ),
    (
        "Gemma 4",
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,exact:true}<tool_call|><|tool_response>',
        '{"city": "Rome", "exact": true}',
    ),
    ("Kimi K2", "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{}", "{}"),
    (
        "Kimi K2",
        "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "{}",
    ),
    # A type of what is sent, or none.
    ("gpt-oss", "<|channel|>commentary to=functions.get<|message|>{}", "{}"),
    ("gpt-oss", "<|channel|>analysis to=functions.get json<|message|>{}<|call|>", "{}"),
    ("gpt-oss", "to=functions.get<|channel|>commentary <|constrain|>json<|message|>{}", "{}"),
    (
        "DeepSeek V4",
        f'<{DSML}tool_calls>\n<{DSML}invoke name="get">\n\n</{DSML}invoke>\n</{DSML}tool_calls>',
        "{}",
    ),
]
"""Calls as templates and models write them, each with its arguments."""


@pytest.mark.parametrize(("name", "text", "arguments"), ONE_CALL)
def test_a_call_is_read_and_allowed_in_each_form_that_models_write(name: str, text: str, arguments: str) -> None:
    form = form_of(name)
    for pieces in ([text], list(text)):
        message = message_of(form.reader(), *pieces)
        assert (message.content, [json.loads(call.arguments) for call in message.calls]) == ("", [json.loads(arguments)])
    for required in (False, True):
        use = ToolUse(TOOLS, is_required=required)
        request = OutputConstraint(form_of(name, use), {}, None).apply(weft.Request(prompt="a"))
        assert Grammar(request.grammar or "").allows(text)
    begun = found_by(OutputConstraint(form, {}, None).apply(weft.Request(prompt="a")), text)
    assert begun == text


@by_family
def test_the_grammar_allows_what_the_family_writes(name: str) -> None:
    request = OutputConstraint(form_of(name), {}, None).apply(weft.Request(prompt="a"))
    begun = found_by(request, WRITTEN[name].text)
    assert begun is not None
    assert Grammar(request.grammar or "").allows(begun)


@pytest.mark.parametrize(
    ("schema", "is_strict", "value", "is_allowed"),
    [
        ({"type": ["string", "null"]}, False, "any text", True),
        ({"type": ["string", "null"]}, True, "any text", True),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, True, "any text", True),
        ({}, True, "any text", True),
        ({"type": ["string", "null"], "maxLength": 3}, True, "any text", False),
        ({"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}, False, "any text", False),
        ({"type": ["integer", "null"]}, False, "any text", False),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}, True, "2", False),
    ],
)
def test_a_text_needs_no_quotes_where_a_value_may_be_any_text(
    schema: Json, is_strict: bool, value: str, is_allowed: bool
) -> None:
    tool = Tool("f", {"type": "object", "properties": {"a": schema}}, is_strict=is_strict)
    for name, call in (
        ("Qwen3 Coder", "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"),
        ("GLM 4.5", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
    ):
        form = form_of(name, ToolUse((tool,), is_required=True))
        grammar = Grammar(OutputConstraint(form, {}, None).apply(weft.Request(prompt="a")).grammar or "")
        assert grammar.allows(call.format(value)) == is_allowed
        if is_allowed:
            [read] = message_of(form.reader(), call.format(value)).calls
            assert json.loads(read.arguments) == {"a": value}


def test_arguments_of_elements_may_come_in_any_order_and_the_required_ones_must_come() -> None:
    properties = {name: {"type": "integer"} for name in "abcdefg"}
    schema: Json = {"type": "object", "properties": properties, "required": ["b", "d"]}
    use = ToolUse((Tool("f", schema), Tool("g", {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]})))
    grammar = Grammar(OutputConstraint(form_of("Seed OSS", use), {}, None).apply(weft.Request(prompt="a")).grammar or "")

    def call(name: str, order: str) -> str:
        given = "".join(f"<parameter={each}>1</parameter>\n" for each in order)
        return f"<seed:tool_call>\n<function={name}>\n{given}</function>\n</seed:tool_call>"

    for name, order in (("f", "abcdefg"), ("f", "gdab"), ("f", "bd"), ("g", "ab"), ("g", "ba"), ("g", "b")):
        assert grammar.allows(call(name, order)), order
    for name, order in (("f", "abcefg"), ("f", "bdd"), ("f", ""), ("g", "a"), ("g", "bb")):
        assert not grammar.allows(call(name, order)), order


OPEN_THOUGHTS = ["Qwen3 Coder", "GLM 4.5", "Ling 3", "Laguna", "DeepSeek V3.2", "DeepSeek V4", "Cohere 2 MoE", "Command R7B"]
OPEN_THOUGHTS += ["Kimi K3", "MiniMax M3", "Seed OSS", "MiniMax M2", "Kimi K2", "Apertus", "DeepSeek V3.1", "DeepSeek V3"]
"""Families whose calls end a thought that was not closed."""


def open_thought(name: str) -> tuple[ChatForm, str]:
    """A form whose answers begin in a thought, and a call of its family."""
    text = WRITTEN[name].text
    form = form_of(name, is_thinking=True)
    if form.reasoning_marks is None:
        form = ChatForm(FAMILIES[name], reasoning_marks_of("<think></think>"), ToolUse(TOOLS), is_thinking=True)
    assert form.reasoning_marks is not None
    begins = [at for mark in form.implicit_ends if (at := text.find(mark)) >= 0 and mark in FAMILIES[name].triggers]
    return form, text[min(begins) :]


@pytest.mark.parametrize("name", OPEN_THOUGHTS)
def test_a_call_ends_a_thought_that_is_left_open(name: str) -> None:
    form, call = open_thought(name)
    for thought in ("", "Rome, I think.\n"):
        text = thought + call
        for pieces in ([text], list(text)):
            message = message_of(form.reader(), *pieces)
            assert (message.reasoning, message.content) == (thought.strip(), "")
            assert [(one.name, one.arguments) for one in message.calls] == [
                ("get_weather", WRITTEN[name].arguments),
                ("get", "{}"),
            ]
    request = OutputConstraint(form, {}, None).apply(weft.Request(prompt="a"))
    assert request.reasoning is not None
    assert any(call.startswith(end) for end in request.reasoning.ends)


@pytest.mark.parametrize("name", OPEN_THOUGHTS)
def test_a_thought_that_speaks_of_a_call_goes_on(name: str) -> None:
    form, call = open_thought(name)
    assert form.reasoning_marks is not None
    mark = next(end for end in form.implicit_ends if call.startswith(end))
    text = f"I could write {mark} here. {form.reasoning_marks.end}{call}"
    for pieces in ([text], list(text)):
        message = message_of(form.reader(), *pieces)
        assert (message.reasoning, message.content) == (f"I could write {mark} here.", "")
        assert [one.name for one in message.calls] == ["get_weather", "get"]


def test_an_element_without_its_outer_tag_ends_no_thought() -> None:
    form = form_of("Qwen3 Coder", is_thinking=True)
    text = "I write <function=get>\n</function>.\n</think>\n\nYes."
    for pieces in ([text], list(text)):
        message = message_of(form.reader(), *pieces)
        assert parts_of_message(message) == ("Yes.", "I write <function=get>\n</function>.", [])


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("Gemma 4", "<|channel>thought\n<channel|>Yes.<|channel>thought\n<channel|><channel|>", "Yes."),
        ("gpt-oss", '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>', '{"a": 1}'),
        ("gpt-oss", "<|channel|>commentary to=assistant<|channel|>final<|message|>Yes.<|end|>", "Yes."),
        ("gpt-oss", "<|channel|>commentary<|channel|>final<|message|>Yes.", "Yes."),
        ("Ling 3", "Yes.<|role_end|>", "Yes."),
        ("Laguna", "Yes.</assistant>", "Yes."),
        ("Command R", "<|CHATBOT_TOKEN|>Yes.<|END_OF_TURN_TOKEN|>", "Yes."),
        ("Command R7B", "<|START_RESPONSE|>Yes.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "Yes."),
        ("Cohere 2 MoE", "<|START_TEXT|>Yes.<|END_TEXT|>", "Yes."),
    ],
)
@pytest.mark.parametrize("use", [ToolUse(TOOLS), NO_TOOLS], ids=["tools", "no tools"])
def test_marks_of_the_format_are_no_content(name: str, text: str, content: str, use: ToolUse) -> None:
    form = ChatForm(FAMILIES[name], form_of(name).reasoning_marks, use)
    for pieces in ([text], list(text)):
        message = message_of(form.reader(), *pieces)
        assert parts_of_message(message) == (content, "", [])


TO_OTHERS = [
    "<|channel|>commentary to={} <|constrain|>json<|message|>",
    "<|channel|>analysis to={} code<|message|>",
    "<|start|>assistant to={}<|channel|>commentary<|message|>",
    " to={}<|channel|>commentary json<|message|>",
]


@pytest.mark.parametrize("header", TO_OTHERS)
def test_what_gpt_oss_sends_to_others_leaks_no_marks(header: str) -> None:
    sent = header.format("browser.search") + '{"query": "Rome"}'
    final = "<|start|>assistant<|channel|>final<|message|>Yes."
    for text, alone, more in (
        (sent, "", ""),
        (f"{sent}<|call|>{final}", "Yes.", "Yes."),
        (f"{sent}<|end|>{final}", "Yes.", "Yes."),
    ):
        for pieces in ([text], list(text)):
            dropped = message_of(ChatForm(FAMILIES["gpt-oss"], form_of("gpt-oss").reasoning_marks).reader(), *pieces)
            assert parts_of_message(dropped) == (alone, "", [])
            # Where tools are offered this is a call of one that there is not.
            counts: list[int] = []
            marks = form_of("gpt-oss").reasoning_marks
            form = ChatForm(FAMILIES["gpt-oss"], marks, ToolUse(TOOLS), on_unparsed_call=lambda: counts.append(1))  # noqa: B023
            assert parts_of_message(message_of(form.reader(), *pieces)) == (f'browser.search {{"query": "Rome"}}{more}', "", [])
            assert counts == [1]


@pytest.mark.parametrize(
    ("reasoning_format", "content", "thought"),
    [
        (ReasoningFormat.SEPARATE, "Yes.", "Hm."),
        (ReasoningFormat.IN_CONTENT, "<think>\nHm.\n</think>\n\nYes.", ""),
        (ReasoningFormat.BOTH, "<think>\nHm.\n</think>\n\nYes.", "Hm."),
    ],
    ids=["apart", "in content", "both"],
)
def test_a_thought_that_stays_in_the_content_has_the_mark_that_the_prompt_wrote(
    reasoning_format: ReasoningFormat, content: str, thought: str
) -> None:
    marks = reasoning_marks_of("<think></think>")
    form = ChatForm(UNFORMATTED, marks, is_thinking=True, reasoning_opening="<think>\n", reasoning_format=reasoning_format)
    text = "Hm.\n</think>\n\nYes."
    for pieces in ([text], list(text)):
        message = message_of(form.reader(), *pieces)
        assert (message.content, message.reasoning) == (content, thought)


def test_a_thought_that_is_continued_keeps_the_space_that_it_begins_with() -> None:
    marks = reasoning_marks_of("<think></think>")
    form = ChatForm(UNFORMATTED, marks, is_thinking=True, continues_reasoning=True)
    for pieces in ([" thinking.</think>Yes."], list(" thinking.</think>Yes.")):
        message = message_of(form.reader(), *pieces)
        assert (message.content, message.reasoning) == ("Yes.", " thinking.")
