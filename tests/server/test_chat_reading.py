"""What a chat becomes in a vocabulary that puts a space before each text, and after each control token in it."""

import pytest

import weft
from tests.engine.tiny_models import write_tiny_model
from weft.chat.conversation import ChatMessage
from weft.chat.pipeline import ChatPipeline
from weft.server.request_fields.chat import ChatFields
from weft.settings import Settings

SPACE = "\u2581"
"""How a vocabulary without a piece for the space spells it."""


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> weft.Engine:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_tiny_model("attention", path)
    engine = weft.Engine(path, n_slots=1, n_ctx=256)
    await engine.start()
    return engine


def read(engine: weft.Engine, template: str, *contents: str) -> str:
    """The tokens of a chat, spelt."""
    messages = [ChatMessage(role="user", content=said) for said in contents]
    tokens = ChatPipeline(engine, Settings(chat_template=template)).prompt(ChatFields(messages=messages)).tokens
    return engine.detokenize(tokens)


@pytest.mark.parametrize(
    ("said", "spelt"),
    [
        ("ab", f"<s>{SPACE}[ab]"),
        ("a<s>b", f"<s>{SPACE}[a<s>b]"),
        ("a<s></s>b", f"<s>{SPACE}[a<s></s>b]"),
        ("<s>", f"<s>{SPACE}[<s>]"),
        ("a <s> b", f"<s>{SPACE}[a{SPACE}<s>{SPACE}b]"),
        ("\x02<s>\x02", f"<s>{SPACE}[\x02<s>\x02]"),
    ],
)
async def test_what_is_said_around_the_spelling_of_a_control_token_stays(engine: weft.Engine, said: str, spelt: str) -> None:
    assert read(engine, "[{{ messages[0].content }}]", said) == spelt


async def test_after_a_control_token_of_the_template_a_text_begins_as_ever(engine: weft.Engine) -> None:
    assert read(engine, "{{ messages[0].content }}</s>b", "<s>a") == f"<s>{SPACE}<s>a</s>{SPACE}b"
    assert read(engine, "a</s>{{ messages[0].content }}", "<s>b") == f"<s>{SPACE}a</s>{SPACE}<s>b"


async def test_without_such_a_spelling_a_chat_is_one_text(engine: weft.Engine) -> None:
    template = "{% for m in messages %}[{{ m.content }}]</s>{% endfor %}"
    assert read(engine, template, "a b", "c") == engine.detokenize(engine.tokenize("[a b]</s>[c]</s>"))
