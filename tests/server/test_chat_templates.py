"""What chat templates may do, and what the built-in ones make of a chat."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.server.matchers import Json
from weft.chat import builtin, sandbox
from weft.chat.conversation import ChatMessage
from weft.chat.messages import for_template
from weft.chat.template import ChatTemplate
from weft.chat.template_terms import TemplateError, TooLongError

# Renderings of every template that llama.cpp knows by name, as llama.cpp renders them.
KNOWN = json.loads((Path(__file__).parent / "chat_templates.json").read_text(encoding="utf-8"))

HELLO: Json = [{"role": "user", "content": "Hello"}]

ASKS = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}
{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"""


def render(source: str, messages: Json = HELLO, *, add_generation_prompt: bool = True, **variables: Json) -> str:
    return ChatTemplate(source).render(messages, add_generation_prompt=add_generation_prompt, variables=variables)


@pytest.mark.parametrize("conversation", KNOWN["conversations"])
@pytest.mark.parametrize("name", KNOWN["renderings"])
def test_a_built_in_template_writes_its_format(name: str, conversation: str) -> None:
    messages = KNOWN["conversations"][conversation]
    assert render(builtin.source(name), messages) == KNOWN["renderings"][name][conversation]


def test_every_name_of_llama_cpp_is_there_and_a_family_stands_for_its_newest_format() -> None:
    assert set(builtin.names()) == {*KNOWN["renderings"], "mistral", "phi"}
    assert builtin.source("mistral") == builtin.source("mistral-v7")
    assert builtin.source("phi") == builtin.source("phi4")


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "phi4", "command-r", "zephyr", "deepseek3"])
def test_the_turn_of_the_assistant_begins_only_where_it_is_asked_for(name: str) -> None:
    closed = render(builtin.source(name), add_generation_prompt=False)
    opened = render(builtin.source(name))
    assert opened.startswith(closed)
    assert len(opened) > len(closed)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\na\n{% endif %}\nb", "a\nb"),
        ("  {% if true %}a{% endif %}", "a"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aHellob"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 'é'} | tojson(ensure_ascii=True) }}", '{"b": "\\u00e9"}'),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=True) }}", '{"a":2,"b":1}'),
        ("{{ strftime_now('%Y') }}", str(datetime.now().astimezone().year)),
        ("{{ messages[0]['role'] ~ 1 ~ none }}", "user1None"),
        ("{{ missing }}", ""),
        ("{{ tools is defined }} {{ documents is defined }} {{ add_generation_prompt }}", "False False True"),
        ("{{ messages[1:] | length }}{% for m in messages %}{{ loop.last }}{{ loop.length }}{% endfor %}", "0True1"),
        ("{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{%- macro show(m) %}[{{ m.content }}]{% endmacro %}{{ show(messages[0]) }}", "[Hello]"),
        ("{{ '%s-%02d' % ('a', 3) }}{{ '{:>3}'.format('b') }}{{ 'c'.ljust(3) }}|", "a-03  bc  |"),
        ("{{ messages[0].content.replace('l', 'LL') }} {{ 'ab' * 2 }} {{ 2 ** 10 }}", "HeLLLLo abab 1024"),
    ],
    ids=lambda value: value[:60],
)
def test_a_template_may_do_what_hugging_face_lets_it_do(source: str, text: str) -> None:
    assert render(source) == text


def test_a_template_sees_the_tokens_that_begin_and_end_a_text_and_what_else_it_is_given() -> None:
    template = ChatTemplate("{{ bos_token }}|{{ eos_token }}|{{ mood }}", bos_token="<s>", eos_token="</s>")
    assert template.render(HELLO, add_generation_prompt=True, variables={"mood": "calm"}) == "<s>|</s>|calm"


def test_a_template_sees_the_variables_of_llama_cpp_and_no_others() -> None:
    names = [
        *("tools", "documents", "functions", "xml_tools", "thinking", "add_generation_prompt"),
        *("preserve_thinking", "clear_thinking", "truncate_history_thinking", "drop_thinking"),
        *("reasoning_effort", "reasoning_strength"),
    ]
    shown = "".join(f"{{{{ '{name} ' if {name} is defined }}}}" for name in names)
    assert render(shown, add_generation_prompt=False) == ""
    assert render(shown) == "add_generation_prompt "
    assert render(shown, tools=[1], reasoning_effort="low", preserve_reasoning=True, add_generation_prompt=False) == (
        "tools preserve_thinking clear_thinking truncate_history_thinking drop_thinking reasoning_effort reasoning_strength "
    )
    flags = "{{ preserve_thinking }} {{ clear_thinking }} {{ truncate_history_thinking }} {{ drop_thinking }}"
    assert render(flags, preserve_reasoning=True) == "True False False False"
    assert render("{{ reasoning_strength }}", reasoning_effort="low") == "low"
    # What a request names itself counts.
    assert render(flags, preserve_reasoning=False, clear_thinking=False) == "False False True True"


def test_the_dates_are_llama_cpps() -> None:
    now = datetime.now().astimezone()
    assert render("{{ datetime }}|{{ date_string }}") == now.strftime("%b %d %Y|%d %b %Y")


THINKING = {
    "begins": "{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}",
    "ends": "{{ messages[0].content }}{% if not enable_thinking %}<think></think>{% endif %}",
    "renders": "{{ enable_thinking }}{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{% endfor %}",
}


@pytest.mark.parametrize("source", THINKING.values(), ids=THINKING)
def test_thinking_is_on_by_default_if_the_template_supports_it(source: str) -> None:
    assert ChatTemplate(source).supports_thinking
    assert render(source) == render(source, enable_thinking=True) != render(source, enable_thinking=False)


def test_thinking_is_off_by_default_if_the_template_only_mentions_it() -> None:
    source = "{{ enable_thinking }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert render(source) == "FalseHello"
    assert render(source, enable_thinking=True) == "TrueHello"


def test_tools_are_json_for_a_template_that_reads_them_as_functions_only() -> None:
    source = "{{ 'Functions: ' + functions }}"
    template = ChatTemplate(source)
    assert template.takes_tools
    assert render(source) == "Functions: "
    assert json.loads(render(source, tools=[{"type": "function"}]).removeprefix("Functions: ")) == [{"type": "function"}]
    assert render("{{ functions is defined }} {{ tools }}", tools=[1]) == "False [1]"


@pytest.mark.parametrize(
    ("source", "keeps"),
    [
        (ASKS, True),
        ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}", False),
        # A list of no parts is false.
        (
            ASKS.replace("{% for p", "{% if m.content %}{% for p").replace(
                "{% endfor %}{% endif %}", "{% endfor %}{% endif %}{% endif %}"
            ),
            False,
        ),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", True),
    ],
    ids=["reads", "text", "if-any", "parts"],
)
def test_parts_stay_a_list_where_llama_cpp_leaves_them_one(source: str, keeps: bool) -> None:
    assert ChatTemplate(source).keeps_parts is keeps


@pytest.mark.parametrize(
    ("shown", "keeps"),
    [
        ("m.reasoning_content", True),
        ("m.reasoning_content if not clear_thinking", True),
        ("m.reasoning_content if preserve_thinking", True),
        ("m.reasoning_content if loop.index > 3", False),
        ("m.content", False),
    ],
)
def test_a_template_keeps_earlier_reasoning_or_not(shown: str, keeps: bool) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ " + shown + " }}{% endfor %}")
    assert template.keeps_reasoning == keeps


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n{{ raise_exception('no such role') }}", "the chat template fails in line 2: no such role"),
        ("a\nb\n{{ messages[0].content + 1 }}", "the chat template fails in line 3: can only concatenate str"),
        ("{{ missing.of_what() }}", "the chat template fails in line 1: 'missing' is undefined"),
        ("\n{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "the chat template fails in line 2: maximum recursion depth"),
    ],
    ids=["refusal", "type", "undefined", "recursion"],
)
def test_a_failure_names_its_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError) as failed:
        render(source)
    assert str(failed.value).startswith(message)


def test_what_clients_leave_out_of_a_tool_adds_nothing_to_the_prompt() -> None:
    source = "{{ messages[0].tool.parameters.type }}|{{ 'a' + messages[0].description + 'b' }}"
    assert render(source) == "|ab"
    with pytest.raises(TemplateError, match="has no attribute 'description'"):
        render("{{ 1 + messages[0].description }}")


def test_what_is_no_template_names_its_line() -> None:
    with pytest.raises(TemplateError, match=r"the chat template has a syntax error in line 2: .*endfor"):
        ChatTemplate("a\n{% for m in messages %}\n")


NESTED = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
"""A list of 2⁶⁰ texts in 60 lists."""


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(1000000) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{% set a = m(n - 1) %}{% set b = m(n - 1) %}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * [1] }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ '%1000000000s' % 'a' }}",
        "{{ '%*s' % (1000000000, 'a') }}",
        "{{ '{:>1000000000}'.format('a') }}",
        "{{ '{:>{}}'.format('a', 1000000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{% for i in range(99999) %}{% for j in range(9) %}{{ 'a' * 1000 }}{% endfor %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ lipsum(100000) }}",
        "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
        "{% set l = [1] %}{% for i in range(99) %}{% set _ = l.extend(l) %}{% endfor %}",
        "{% set l = [1] %}{% for i in range(99) %}{% set _ = l.extend(l | map('string')) %}{% endfor %}",
        "{% set d = {} %}{% for i in range(99999) %}{% set _ = d.update({i: i}) %}{% set _ = d.update(d) %}{% endfor %}",
        "{{ ('a' * 1000000).join(range(1000) | map('string')) }}",
        "{{ range(1000) | join('a' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ '%1000000000s' | format('a') }}",
        *(
            NESTED + use
            for use in ("{{ ns.x | tojson }}", "{{ ns.x }}", "{{ ns.x ~ 'a' }}", "{{ ns.x | string }}", "{{ '%s' % ns.x }}")
        ),
        *(
            NESTED + use
            for use in ("{{ [ns.x] | join }}", "{{ ns.x | indent }}", "{{ '%s' | format(ns.x) }}", "{{ ns.x | safe }}")
        ),
        "{{ ('a\n' * 1000000) | indent(10000) }}",
        "{{ ('a' * 1000000) | wordwrap(1) }}",
        "{% set x = [] %}{% for _ in range(100) %}{{ x.extend('a' * 100000) }}{% endfor %}",
    ],
    ids=lambda source: source[:60],
)
def test_a_template_grows_not_without_end_and_reaches_nothing(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)
    assert HELLO == [{"role": "user", "content": "Hello"}]


MARKUP = "<b>&\"'"


@pytest.mark.parametrize(
    "source",
    [
        "{{ text | safe }}",
        "{{ text | escape }}",
        "{{ text | e }}",
        "{{ text | forceescape }}",
        "{{ text | urlize }}",
        "{{ (text | safe) + '' }}",
        "{{ ('' | safe) + text }}",
        "{{ ('%s' | safe) % text }}",
        "{{ ('{}' | safe).format(text) }}",
        "{{ ('x' | safe).replace('x', text) }}",
        "{{ ['' | safe, text] | join }}",
        "{{ '' ~ ('' | safe) ~ text }}",
        "{% autoescape true %}{{ text }}{% endautoescape %}",
        "{% autoescape true %}{% set shown %}{{ text }}{% endset %}{{ shown }}{% endautoescape %}",
        "{% autoescape true %}{% macro show() %}{{ text }}{% endmacro %}{{ show() }}{% endautoescape %}",
        "{% filter safe %}{{ text }}{% endfilter %}",
        "{% set shown | safe %}{{ text }}{% endset %}{{ shown ~ '' }}",
        "{% macro show() %}{{ caller() }}{% endmacro %}{% call show() %}{{ text }}{% endcall %}",
        "{% macro show() %}{{ text }}{% endmacro %}{{ show() + '' }}",
    ],
)
def test_no_filter_and_no_block_escapes_a_prompt(source: str) -> None:
    assert render(source, text=MARKUP) == MARKUP


def test_attributes_and_json_are_not_escaped() -> None:
    assert render("{{ {'a': text, 'b': none} | xmlattr }}", text="<&>") == ' a="<&>"'
    assert render("{{ {'a': text} | tojson | safe }}", text="<&>'") == '{"a": "<&>\'"}'


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages | map(attribute='role') | tojson }}", '["user"]'),
        ("{{ {'roles': messages | map(attribute='role')} | tojson }}", '{"roles": ["user"]}'),
        ("{{ [1, 2] | select('odd') | tojson(indent=1) }}", "[\n 1\n]"),
    ],
)
def test_the_result_of_a_filter_that_iterates_is_a_list_in_json(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% set l = [] %}{% set _ = l.append('a') %}{% set _ = l.extend(['b', 'c']) %}{{ l | join }}", "abc"),
        ("{% set l = ['b'] %}{% set _ = l.insert(0, 'a') %}{{ l.pop() }}{{ l.pop() }}{{ l | length }}", "ba0"),
        (
            "{% set n = namespace(ids=[]) %}{% for i in range(3) %}{% set _ = n.ids.append(i) %}{% endfor %}{{ n.ids }}",
            "[0, 1, 2]",
        ),
        ("{% set d = {'a': 1} %}{% set _ = d.update({'b': 2}) %}{{ d.pop('a') }}{{ d }}", "1{'b': 2}"),
        ("{% set d = {} %}{{ d.setdefault('a', []) }}{% set _ = d.a.append(1) %}{{ d }}", "[]{'a': [1]}"),
        ("{% set l = [3, 1, 2] %}{% set _ = l.sort() %}{% set _ = l.reverse() %}{{ l }}", "[3, 2, 1]"),
        ("{% set _ = messages.append(messages[0]) %}{{ messages | length }}", "2"),
        ("{% set _ = messages[0].update({'content': 'Bye'}) %}{{ messages[0].content }}", "Bye"),
        ("{% set _ = given.inner.append(1) %}{{ given }}", "{'inner': [1]}"),
    ],
)
def test_a_template_may_change_lists_and_dictionaries_and_the_callers_stay_as_they_are(source: str, text: str) -> None:
    given: Json = {"inner": []}
    assert render(source, given=given) == text
    assert HELLO == [{"role": "user", "content": "Hello"}]
    assert given == {"inner": []}


def test_a_template_that_works_long_in_few_turns_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_WORK_S", 0.0)
    with pytest.raises(TemplateError, match="exceeded 0 s of CPU time"):
        render("{% for i in range(9) %}{{ i }}{% endfor %}")
    assert render("{{ messages[0].content }}") == "Hello"


def test_a_text_is_rendered_as_far_as_it_may_be_long() -> None:
    template = ChatTemplate("{% for m in messages %}aaaa{% endfor %}{{ raise_exception('it goes on') }}")
    with pytest.raises(TooLongError) as raised:
        template.render(HELLO * 9, add_generation_prompt=False, max_size=7)
    assert raised.value.size == 8


@pytest.mark.parametrize(
    ("source", "takes_text", "takes_parts"),
    [
        ("{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}", True, False),
        ("{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}", True, False),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", True, False),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", False, True),
        ("{% for m in messages %}{% for p in m.content %}{{ p['text'] + '.' }}{% endfor %}{% endfor %}", False, True),
        (ASKS, True, True),
        ("{{ raise_exception('never') }}", True, False),
    ],
    ids=["adds", "shows", "quotes", "loops", "loops-and-adds", "asks", "refuses"],
)
def test_a_template_is_tried_out_for_what_it_takes(source: str, takes_text: bool, takes_parts: bool) -> None:
    template = ChatTemplate(source)
    assert (template.takes_text, template.takes_parts) == (takes_text, takes_parts)


@pytest.mark.parametrize(
    ("source", "takes_system"),
    [
        (builtin.source("chatml"), True),
        (builtin.source("gemma"), True),
        (builtin.source("yandex"), False),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}", False),
        ("{{ raise_exception('never') }}", True),
    ],
    ids=["chatml", "gemma", "yandex", "refuses", "refuses-all"],
)
def test_a_template_is_tried_out_for_messages_of_the_system(source: str, takes_system: bool) -> None:
    assert ChatTemplate(source).takes_system is takes_system


def test_results_have_the_names_of_their_calls_where_a_template_wants_them_also_where_ids_come_again_or_are_no_texts() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}<start_function_response>{{ m.name }};{% endfor %}")

    def called(name: str, number: object) -> ChatMessage:
        return ChatMessage(role="assistant", tool_calls=[{"id": number, "function": {"name": name, "arguments": "{}"}}])

    def tool_result(number: str | None) -> ChatMessage:
        return ChatMessage(role="tool", content="2", tool_call_id=number)

    for number, answered in (("1", "1"), (None, None), (["x"], "['x']")):
        messages = [called("a", number), tool_result(answered), called("b", number), tool_result(answered)]
        assert [message.get("name") for message in for_template(messages, template)] == [None, "a", None, "b"]
    assert for_template([tool_result("2")], template)[0].get("name") is None
