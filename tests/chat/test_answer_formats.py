"""The format of answers is proved by the chat template, and derived from it where no known family fits."""

import itertools
import json
import logging
from collections.abc import Sequence

import pytest

import weft
from tests.chat.families import FAMILIES, message_of
from tests.chat.gbnf import Grammar
from tests.chat.templates import BY_FAMILY, UNKNOWN, FormatTemplate, each
from weft.chat.answer import detect, samples
from weft.chat.answer.call_format import NO_CALLS, ReasoningMarks
from weft.chat.answer.detect import AnswerFormat, detect_format, reads_calls, reads_content, reads_reasoning
from weft.chat.answer.form import ChatForm
from weft.chat.answer.formats import FORMATS, GENERIC, HERMES, format_of
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.reader import ReasoningFormat
from weft.chat.answer.samples import Samples, render_samples
from weft.chat.answer.tools import Tool, ToolUse
from weft.chat.conversation import ChatMessage, ChatRequest
from weft.chat.messages import for_template
from weft.chat.pipeline import ChatPipeline
from weft.chat.template import ChatTemplate
from weft.settings.chat import ChatSettings

TEMPLATES = BY_FAMILY | UNKNOWN

by_template = pytest.mark.parametrize("name", TEMPLATES)
by_unknown = pytest.mark.parametrize("name", UNKNOWN)

TOOLS = (
    Tool("get_weather", {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool("find", {"type": "object", "properties": {"what": {"type": "string"}}}),
)
USE = ToolUse(TOOLS, is_required=True)
SHOWN = [
    {"type": "function", "function": {"name": tool.name, "description": "", "parameters": tool.parameters}} for tool in TOOLS
]
CALLS = [("get_weather", {"city": "New York", "days": 3}), ("find", {"what": "the way to it"})]
SAID = "I look for it."
THOUGHT = "Where is it?"
QUESTION = ChatMessage(role="user", content="How is it there?")


def compiled(given: FormatTemplate) -> ChatTemplate:
    return ChatTemplate(given.source, bos_token=given.bos, eos_token=given.eos)


def detected(given: FormatTemplate) -> AnswerFormat:
    return detect_format(compiled(given), (given.eos,))


def rendered(template: ChatTemplate, *messages: ChatMessage, opens_answer: bool = False) -> str:
    return template.render(
        for_template(messages, template),
        add_generation_prompt=opens_answer,
        variables={"tools": SHOWN, "enable_thinking": True, "preserve_reasoning": True},
    )


def answer(given: FormatTemplate, content: str, thought: str, n_calls: int) -> str:
    """Returns the answer of a model: the template's rendering behind the prompt, up to the end token."""
    template = compiled(given)
    calls = [
        {"id": f"call{nth}0000", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for nth, (name, arguments) in enumerate(CALLS[:n_calls])
    ]
    said = ChatMessage(role="assistant", content=content, reasoning_content=thought or None, tool_calls=calls or None)
    prompt = rendered(template, QUESTION, opens_answer=True)
    whole = rendered(template, QUESTION, said)
    assert whole.startswith(prompt)
    return whole.removeprefix(prompt).removesuffix(given.eos)


def cases(given: FormatTemplate) -> list[tuple[str, str, int]]:
    """Content, reasoning and the number of calls of the messages that a template writes."""
    has_two = "m.tool_calls[0]" not in given.calls
    thoughts = ["", THOUGHT] if given.thought else [""]
    found = []
    for thought, n_calls in itertools.product(thoughts, [0, 1, 2] if has_two else [0, 1]):
        contents = [SAID] if n_calls == 0 else ["", SAID] if given.has_content_with_calls else [""]
        found += [(content, thought, n_calls) for content in contents]
    return found


def read(form: ChatForm, *pieces: str) -> tuple[str, str, list[tuple[str, object]]]:
    message = message_of(form.reader(), *pieces)
    calls = [(call.name, json.loads(call.arguments)) for call in message.calls]
    return message.content.strip(), message.reasoning.strip(), calls


def test_each_family_has_a_template() -> None:
    assert set(BY_FAMILY) == {each.name for each in FORMATS}


@pytest.mark.parametrize("name", BY_FAMILY)
def test_a_family_is_proved_by_its_template(name: str) -> None:
    found = detected(BY_FAMILY[name])
    assert (found.call_format.name, found.call_format.takes_tools) == (name, True)


def rendered_samples(given: FormatTemplate) -> Samples:
    found = render_samples(compiled(given), (given.eos,))
    assert found is not None
    return found


def assert_proved(given: FormatTemplate, name: str) -> Samples:
    """Checks that a template has the family of a name, and that this family reads all that the template writes."""
    found, shown = detected(given), rendered_samples(given)
    assert (found.call_format.name, found.call_format.takes_tools) == (name, True)
    assert reads_calls(found.call_format, found.reasoning_marks, shown)
    assert reads_content(found.call_format, found.reasoning_marks, shown)
    assert found.reasoning_marks is None or reads_reasoning(found.call_format, found.reasoning_marks, shown)
    return shown


@pytest.mark.parametrize("name", BY_FAMILY)
def test_a_template_proves_that_its_family_reads_content_and_reasoning(name: str) -> None:
    given = BY_FAMILY[name]
    shown = assert_proved(given, name)
    assert shown.content is not None
    assert (shown.call_after_content is not None) == given.has_content_with_calls
    assert len(shown.with_reasoning) == (2 if given.thought else 0)


def test_content_before_a_call_that_is_written_as_reasoning_is_no_content() -> None:
    given = BY_FAMILY["gpt-oss"]
    as_reasoning = "(m.reasoning_content or (m.content if m.tool_calls else ''))"
    shown = render_samples(ChatTemplate(given.source.replace("m.reasoning_content", as_reasoning)), (given.eos,))
    assert shown is not None
    assert shown.call_after_content is None
    assert shown.content is not None
    assert reads_content(FAMILIES["gpt-oss"], ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>"), shown)


def test_an_answer_that_a_template_writes_within_the_reasoning_of_the_prompt_proves_nothing() -> None:
    opened = "{% if not (m is defined and m.tool_calls) %}<think>\n{# </think> #}{% endif %}"
    given = BY_FAMILY["Nemotron"]._replace(thought=None, header=f"<A>{opened}")
    shown = assert_proved(given, "Nemotron")
    assert shown.content is not None
    assert shown.content.text.startswith("<think>")


@pytest.mark.parametrize("mark", ["RESPONSE", "TEXT"])
@pytest.mark.parametrize("named", ["RESPONSE", "TEXT"])
@pytest.mark.parametrize("has_calls", [True, False])
def test_of_families_with_the_same_calls_the_one_that_reads_the_content_is_chosen(
    mark: str, named: str, *, has_calls: bool
) -> None:
    given = BY_FAMILY["Command R7B"]
    before, behind = f"<|START_{{{{ '{mark}' }}}}|>", f"<|END_{{{{ '{mark}' }}}}|>"
    calls = given.calls if has_calls else ""
    found = detected(given._replace(before=before, behind=behind, calls=f"{{# <|START_ACTION|><|START_{named}|> #}}{calls}"))
    # Without calls only the marks in the template name a family.
    is_text = mark == "TEXT" and (has_calls or named == "TEXT")
    assert found.call_format.name == ("Cohere 2 MoE" if is_text else "Command R7B")


LEAKING = {
    "content": BY_FAMILY["Hermes"]._replace(before="<say>", behind="</say>"),
    "reasoning": BY_FAMILY["Hermes"]._replace(next_message="{% if not m.tool_calls %}<say>{% endif %}"),
}
"""Templates with the calls of a known family and other marks."""


@pytest.mark.parametrize("given", LEAKING.values(), ids=LEAKING)
def test_a_derived_family_is_preferred_to_one_that_leaves_marks_in_the_content(given: FormatTemplate) -> None:
    assert format_of(given.source) is HERMES
    assert_proved(given, "Derived")
    found = detected(given)
    for content, thought, n_calls in cases(given):
        text = answer(given, content, thought, n_calls)
        assert read(ChatForm(found.call_format, found.reasoning_marks, USE), text) == (content, thought, CALLS[:n_calls])


def test_calls_are_read_where_no_family_reads_the_content() -> None:
    given = BY_FAMILY["Hermes"]._replace(before="{{ '<say>' if m.tool_calls else '<tell>' }}")
    found = detected(given)
    assert (found.call_format, found.call_format.takes_tools) == (HERMES, True)
    assert not reads_content(found.call_format, found.reasoning_marks, rendered_samples(given))


@by_template
def test_what_a_template_writes_is_read_back(name: str) -> None:
    given = TEMPLATES[name]
    found = detected(given)
    for content, thought, n_calls in cases(given):
        text = answer(given, content, thought, n_calls)
        form = ChatForm(found.call_format, found.reasoning_marks, USE)
        for end in found.call_format.stop_strings:
            text = text.partition(end)[0]
        right = (content, thought, CALLS[:n_calls])
        assert read(form, text) == right, text
        assert read(form, *text) == right, text
        for cut in range(1, len(text)):
            assert read(form, text[:cut], text[cut:]) == right, (text[:cut], text[cut:])


@by_unknown
def test_a_derived_family_takes_tools_as_the_template_shows_them(name: str) -> None:
    found = detected(UNKNOWN[name])
    assert (found.call_format.name, found.call_format.takes_tools, found.example) == ("Derived", True, None)
    thought = UNKNOWN[name].thought
    assert thought is None or (
        found.reasoning_marks is not None and (found.reasoning_marks.start, found.reasoning_marks.end) == thought
    )


@by_unknown
def test_a_derived_grammar_allows_what_the_template_writes(name: str) -> None:
    given = UNKNOWN[name]
    found = detected(given)
    for _, _, n_calls in [case for case in cases(given) if case[0] == "" and case[1] == ""]:
        rules = Rules(TOOLS, {}, is_parallel=True)
        grammar = Grammar(rules.text(ChatForm(found.call_format, found.reasoning_marks, USE).write(rules)))
        text = answer(given, "", "", n_calls).strip()
        assert grammar.allows(text), text
        assert not grammar.begins(text.replace("get_weather", "got_weather"))


def test_the_ids_that_a_model_gives_are_those_of_its_calls() -> None:
    given = UNKNOWN["names and objects in a section"]
    found = detected(given)
    message = message_of(ChatForm(found.call_format, found.reasoning_marks, USE).reader(), answer(given, "", "", 2))
    assert [call.id for call in message.calls] == ["call00000", "call10000"]


def test_a_value_that_could_be_markup_stands_between_marks_of_its_own() -> None:
    value = "{% if '<' in v %}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}"
    arguments = f'{{% for k, v in f.arguments.items() %}}<with name="{{{{ k }}}}">{value}</with>{{% endfor %}}'
    given = FormatTemplate(
        each(f'<act name="{{{{ f.name }}}}">{arguments}</act>').replace("'<' in v", "v is string and '<' in v")
    )
    found = detected(given)
    text = '<act name="find"><with name="what"><![CDATA[a </with> & <b>]]></with></act>'
    for pieces in ([text], list(text)):
        assert read(ChatForm(found.call_format, found.reasoning_marks, USE), *pieces) == (
            "",
            "",
            [("find", {"what": "a </with> & <b>"})],
        )


def test_marks_that_are_only_spoken_of_do_not_choose_a_family() -> None:
    given = UNKNOWN["objects in a section"]._replace(
        tools="Write no <tool_call>, no [TOOL_CALLS] and no <|python_tag|>. {{ tools | tojson }}"
    )
    found = detected(given)
    assert found.call_format.name == "Derived"
    assert read(ChatForm(found.call_format, found.reasoning_marks, USE), answer(given, "", "", 2))[2] == CALLS


@pytest.mark.parametrize("end", ["<|end|>", "<|eot|>"])
def test_the_end_of_a_turn_is_no_mark_of_reasoning(end: str) -> None:
    given = BY_FAMILY["Hermes"]._replace(thought=None, eos=end, header=f"<A>{{{{ '{end}' if false else '' }}}}")
    assert detected(given).reasoning_marks is None


def test_reasoning_that_a_prompt_begins_in_words_has_them() -> None:
    words = "I think about it first:\n"
    given = UNKNOWN["a list in tags"]._replace(thought=("", "\n[ANSWER]\n"))
    source = given.source.removesuffix("{% endif %}") + words + "{% endif %}"
    found = detect_format(ChatTemplate(source, bos_token=given.bos, eos_token=given.eos), (given.eos,))
    assert found.reasoning_marks is not None
    assert (found.reasoning_marks.start, found.reasoning_marks.end) == ("I think about it first:", "[ANSWER]")
    form = ChatForm(found.call_format, found.reasoning_marks, USE, is_thinking=True)
    text = f"{THOUGHT}\n[ANSWER]\n{SAID}"
    for pieces in ([text], list(text)):
        assert read(form, *pieces) == (SAID, f"{words}{THOUGHT}", [])


def test_a_thought_that_each_turn_begins_is_told_from_one_that_is_not_there() -> None:
    given = UNKNOWN["elements"]
    opened = given.source.replace("<A>", "<A><think:x>").replace("<think:x>{{ m.reasoning", "{{ m.reasoning")
    source = opened.replace("{% if m.reasoning_content %}", "{% if not m.reasoning_content %}</think:x>{% else %}")
    found = detect_format(ChatTemplate(source, bos_token=given.bos, eos_token=given.eos), (given.eos,))
    assert found.reasoning_marks is not None
    assert (found.reasoning_marks.start, found.reasoning_marks.end) == ("<think:x>", "</think:x>")
    assert found.call_format.takes_tools


@pytest.mark.parametrize("is_derived", [True, False])
@pytest.mark.parametrize("space", ["", "\n"])
def test_the_end_of_reasoning_is_dropped_only_where_an_answer_begins_with_it(space: str, *, is_derived: bool) -> None:
    given = UNKNOWN["a list in tags"] if is_derived else BY_FAMILY["Hermes"]
    source = given.source.replace("{% if m.reasoning_content %}", "{% if not m.reasoning_content %}</think>{% else %}")
    found = detect_format(ChatTemplate(source, bos_token=given.bos, eos_token=given.eos), (given.eos,))
    assert found.reasoning_marks is not None
    assert found.reasoning_marks.end == "</think>"
    assert found.call_format.takes_tools
    form = ChatForm(found.call_format, found.reasoning_marks, USE)
    said = "It is </think>, which ends it.</think>"
    call = answer(given, "", "", 1)
    cases = {
        f"{space}</think>{space}{said}": (said, "", []),
        said: (said, "", []),
        f"{space}</think>{space}</think>{said}": (f"</think>{said}", "", []),
        f"<think>{THOUGHT}</think>{said}": (said, THOUGHT, []),
        f"</think>{call}": ("", "", CALLS[:1]),
        f"</think><think>{THOUGHT}</think>{said}": (said, THOUGHT, []),
        "</thin": ("</thin", "", []),
        f"{space}</think>": ("", "", []),
    }
    for text, right in cases.items():
        assert read(form, text) == right, text
        assert read(form, *text) == right, text
        for cut in range(1, len(text)):
            assert read(form, text[:cut], text[cut:]) == right, (text[:cut], text[cut:])


def test_the_end_of_reasoning_stays_where_reasoning_does() -> None:
    thought = ReasoningMarks("<think>", "</think>")
    for form in (
        ChatForm(HERMES, thought, USE, reasoning_format=ReasoningFormat.IN_CONTENT),
        ChatForm(HERMES, thought, USE).constrained(),
        ChatForm(HERMES, thought, USE, is_thinking=True),
    ):
        text = "</think></think>Yes" if form.is_thinking else "</think>Yes"
        for pieces in ([text], list(text)):
            assert read(form, *pieces) == ("</think>Yes", "", [])


UNREADABLE = {
    "encoded arguments": FormatTemplate(
        each('<act>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson | tojson }}}</act>')
    ),
    "no mark": FormatTemplate(each("{{ f.name }} with {{ f.arguments }}", " and ")),
    "reversed": FormatTemplate(each("<act>{{ f.arguments | tojson }} for {{ f.name | reverse }}{{ f.name }}</act>")),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_tools_are_described_where_calls_cannot_be_read(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = detected(UNREADABLE[name])
    assert (found.call_format, found.call_format.takes_tools) == (GENERIC, False)
    [record] = caplog.records
    assert "tools are described in words" in record.message


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{{ raise_exception('no') }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.tool_calls }}{% endfor %}{{ tools }}",
        "{{ messages }}{{ tools }}",
        "{{ messages | tojson }}{{ tools | tojson }}",
        "{{ 'x' * 300000 }}{{ tools }}{{ messages }}",
        "{% for n in range(90000) %}{{ messages[0].content }}{% endfor %}{{ tools }}",
    ],
    ids=["empty", "refuses", "content", "python calls", "python", "json", "long", "slow"],
)
def test_no_template_keeps_the_format_from_being_found(source: str) -> None:
    found = detect_format(ChatTemplate(source))
    assert found.call_format.takes_tools is False


def test_few_short_chats_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    render = ChatTemplate.render

    def counted(template: ChatTemplate, *args: object, **options: object) -> str:
        text = render(template, *args, **options)  # type: ignore[arg-type]
        sizes.append(len(text))
        return text

    template = compiled(UNKNOWN["elements"])
    monkeypatch.setattr(ChatTemplate, "render", counted)
    detect_format(template, ("</s>",))
    assert 0 < len(sizes) <= 10
    assert max(sizes) < 2_000


def test_no_more_is_rendered_once_the_time_for_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_RENDERING_S", -1.0)
    assert samples.render_samples(compiled(UNKNOWN["elements"])) is None
    assert detected(BY_FAMILY["Mistral"]).call_format.name == "Mistral", "the marks of the template remain"


def test_an_error_of_ours_leaves_the_family_by_its_marks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(detect, "render_samples", fail)
    assert detected(BY_FAMILY["Mistral"]).call_format.name == "Mistral"
    [record] = caplog.records
    assert "chat template" in record.message


def chat_format(engine: weft.Engine, given: FormatTemplate) -> ChatPipeline:
    return ChatPipeline(engine, ChatSettings(chat_template=given.source))


def conversation(messages: Sequence[ChatMessage] = (QUESTION,)) -> ChatRequest:
    return ChatRequest(messages=list(messages), tools=SHOWN)


@pytest.mark.parametrize("name", [*UNKNOWN, "DeepSeek V3.1"])
async def test_tools_that_the_template_shows_are_not_described(engine: weft.Engine, name: str) -> None:
    chat = chat_format(engine, TEMPLATES[name])
    assert chat.shows_tools
    text = chat.text(conversation())
    assert "<T>" in text
    assert "<tools>" not in text


@pytest.mark.parametrize("name", ["DeepSeek V3.1", "DeepSeek V3", "elements"])
async def test_tools_are_described_in_the_form_in_which_the_template_writes_calls(engine: weft.Engine, name: str) -> None:
    given = TEMPLATES[name]._replace(tools="")
    source = given.source.replace("{% if tools %}<T>{% endif %}", "")
    chat = ChatPipeline(engine, ChatSettings(chat_template=source))
    assert not chat.shows_tools
    text = chat.text(conversation())
    begin = {"DeepSeek V3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME", "elements": "<acts:x>\n<act:x>NAME"}  # noqa: RUF001
    assert begin.get(name, "<｜tool▁sep｜>NAME\n```json\n{") in text  # noqa: RUF001
    assert '"name": "get_weather"' in text
    assert "<tool_call>" not in text
    form = chat.prompt(conversation()).answer
    assert isinstance(form, ChatForm)
    assert read(form, answer(TEMPLATES[name], "", "", 2))[2] == CALLS


async def test_the_example_of_a_call_has_the_models_control_tokens_and_a_message_has_not(engine: weft.Engine) -> None:
    token = next(token for token in engine.model.control_tokens() if engine.model.token_bytes(token) == b"<s>")
    given = FormatTemplate(each("<s><act>{{ f.name }}:{{ f.arguments | tojson }}</act>"), eos="<|end|>")
    source = given.source.replace("{% if tools %}<T>{{ tools | tojson }}{% endif %}", "").replace("{{ eos_token }}", "")
    chat = ChatPipeline(engine, ChatSettings(chat_template=source))
    tokens = chat.prompt(conversation([ChatMessage(role="user", content="<s>")])).tokens
    assert isinstance(tokens, list)
    text = chat.text(conversation([ChatMessage(role="user", content="<s>")]))
    assert text.count("<s>") == 2
    assert tokens.count(token) - tokens[:1].count(token) == 1


async def test_the_format_is_found_with_the_template_and_only_once(engine: weft.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    n_found = 0

    def counted(*args: object) -> AnswerFormat:
        nonlocal n_found
        n_found += 1
        return detect_format(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("weft.chat.pipeline.detect_format", counted)
    chat = chat_format(engine, BY_FAMILY["Hermes"])
    chat.check_settings()
    assert n_found == 0, "a server that never chats needs it not"
    chat.compile()
    chat.prompt(conversation())
    assert (n_found, chat.thinks, chat.shows_tools) == (1, True, True)


def test_a_family_is_proved_by_a_history_that_closes_the_reasoning_of_the_prompt() -> None:
    given = BY_FAMILY["GLM 4.5"]
    source = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}</think>{{ m.content }}"
        + given.calls
        + "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
    )
    found = detect_format(ChatTemplate(source, eos_token=given.eos), (given.eos,))
    assert (found.call_format.name, found.call_format.takes_tools) == ("GLM 4.5", True)


def test_a_sample_is_cut_where_generation_ends() -> None:
    given = BY_FAMILY["DeepSeek V3.1"]
    template = ChatTemplate(given.source + "{{ '<A>' if messages[-1].role == 'assistant' else '' }}", eos_token=given.eos)
    found = samples.render_samples(template, (given.eos,))
    assert found is not None
    assert found.call is not None
    assert found.call.text.endswith("<｜tool▁calls▁end｜>")  # noqa: RUF001


def test_a_message_that_ends_every_prompt_is_no_part_of_a_call() -> None:
    given = BY_FAMILY["Command R"]._replace(header="<|CHATBOT_TOKEN|>")
    source = given.source.replace(
        "{% if add_generation_prompt %}", "<S>Write an action.{{ eos_token }}{% if add_generation_prompt %}"
    )
    found = detect_format(ChatTemplate(source, eos_token=given.eos), (given.eos,))
    assert (found.call_format.name, found.call_format.takes_tools) == ("Command R", True)


def test_reasoning_that_begins_and_ends_with_one_mark_is_read() -> None:
    form = ChatForm(NO_CALLS, ReasoningMarks("%%", "%%"))
    message = ParsedMessage()
    reader = form.reader()
    for part in (*reader.read("%%why%%so"), *reader.end()):
        message.add(part)
    assert (message.reasoning, message.content) == ("why", "so")
