"""The page of fields tells every field, and names only tests that there are."""

import re
import runpy
from pathlib import Path

import msgspec
import pytest

from weft.chat.conversation import ChatMessage
from weft.server.llamacpp.schemas import CompletionBody, DetokenizeBody, InfillBody, SlotActionBody, TokenizeBody
from weft.server.llamacpp.vectors_schemas import EmbeddingBody, RerankBody
from weft.server.openai.chat_schemas import CreateChatCompletion
from weft.server.openai.embeddings_schemas import CreateEmbedding
from weft.server.openai.schemas import CreateCompletion
from weft.server.seeds.schemas import StreamBody

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "fields.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "body",
    [
        CompletionBody,
        InfillBody,
        CreateCompletion,
        CreateChatCompletion,
        ChatMessage,
        TokenizeBody,
        DetokenizeBody,
        SlotActionBody,
        StreamBody,
        EmbeddingBody,
        RerankBody,
        CreateEmbedding,
    ],
    ids=lambda body: body.__name__,
)
def test_every_field_has_its_line(body: type[msgspec.Struct]) -> None:
    missing = [field.encode_name for field in msgspec.structs.fields(body) if f"`{field.encode_name}`" not in PAGE]
    assert missing == []


def test_the_table_of_how_tokens_are_chosen_is_up_to_date() -> None:
    page = runpy.run_path(str(TESTS.parent / "scripts" / "field_table.py"))["page"]
    assert page(PAGE) == PAGE, "scripts/field_table.py"


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`((?:server|engine)/test_\w+)(?:::(test_\w+))?`", PAGE)
    assert len(named) > 50
    for file, test in named:
        source = (TESTS / f"{file}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE) or not test, f"{file}::{test}"
