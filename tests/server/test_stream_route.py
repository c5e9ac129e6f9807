"""`/stream`: the prompt and each token on lines of their own."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import PROMPT, answers
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, finished, token
from tests.server.serving import serving
from weft import DecodeError, QueueFullError
from weft.cli.main import parse
from weft.server import create_app
from weft.server.compat import prompt_files
from weft.settings import Settings

BODY = {"prompt": PROMPT, "num_predict": 8, "temp": 0}


@pytest.fixture
async def keeping(tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, weft.Engine, Path]]:
    """A server with a folder for files."""
    engine = weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(slot_save_path=str(tmp_path)))) as client:
        await answers(client, 200)
        yield client, engine, tmp_path


async def lines(client: httpx.AsyncClient, body: dict[str, Any], path: str = "/stream") -> list[str]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("\n")
    return answer.text[:-1].split("\n")


async def test_the_prompt_comes_first_and_then_each_token(client: httpx.AsyncClient) -> None:
    whole = (await client.post("/completion", json={"prompt": PROMPT, "n_predict": 8, "temperature": 0})).json()
    told = await lines(client, BODY)
    assert told[0] == PROMPT
    assert len(told) == 1 + 8
    assert "".join(told[1:]) == whole["content"]


async def test_as_json_no_line_break_is_ambiguous() -> None:
    events = [token(0, "a\n"), token(0, "\n"), token(0, "b"), finished(0)]
    async with serving([events, []]) as client:
        answer = await client.post("/stream?format=ndjson", json=BODY | {"prompt": "one\ntwo"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in answer.text.splitlines()] == ["one\ntwo", "a\n", "\n", "b"]


async def test_what_is_not_said_is_32_tokens(client: httpx.AsyncClient) -> None:
    assert len(await lines(client, {"prompt": PROMPT, "temp": 0})) <= 1 + 32
    assert await lines(client, BODY | {"num_predict": 0}) == [PROMPT]


async def test_a_prompt_is_computed_in_pieces_of_its_batch(client: httpx.AsyncClient) -> None:
    assert await lines(client, BODY | {"n_batch": 2}) == await lines(client, BODY)


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({}, {"max_tokens": 32, "top_k": 7, "repeat_penalty": 1.5, "temperature": 0.5, "n_batch": None}),
        (
            {"num_predict": 64, "n_batch": 16, "top_k": 50, "top_p": 0.9, "repeat_penalty": 1.25, "temp": 0.7},
            {"max_tokens": 64, "n_batch": 16, "top_k": 50, "top_p": 0.9, "repeat_penalty": 1.25, "temperature": 0.7},
        ),
    ],
    ids=["the server's", "the request's"],
)
async def test_each_field_reaches_the_engine_and_what_is_unsaid_is_the_servers(body: Json, asked: Json) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    settings = parse(["--compat", "stream", "-k", "7", "-p", "1.5", "-T", "0.5"], {}).settings
    async with AsyncTestClient(create_app(engine.as_engine(), settings)) as client:
        await answers(client, 200)
        assert (await client.post("/stream", json={"prompt": "a"} | body)).status_code == 429
    [request] = engine.requests
    assert {name: getattr(request, name) for name in asked} == asked


async def test_an_error_in_mid_stream_is_the_last_line() -> None:
    async with serving([[token(0, "a")], DecodeError("boom")]) as client:
        told = await lines(client, BODY)
    assert told[:2] == [PROMPT, "a"]
    assert json.loads(told[2])["error"]["code"] == 500


async def test_a_prompt_with_a_number_is_kept_in_a_file_and_brought_back(
    keeping: tuple[httpx.AsyncClient, weft.Engine, Path],
) -> None:
    client, engine, folder = keeping
    prompt = PROMPT + " there was a fox who lived at the edge of a very large forest with an old and quiet owl."
    told = await lines(client, BODY | {"prompt": prompt, "cache": 42})
    assert [file.name for file in folder.iterdir()] == ["prompt-42.bin"]
    assert engine.stats().n_computed <= len(engine.tokenize(prompt)) + 1, "it was computed once"
    other = weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(other, Settings(slot_save_path=str(folder)))) as second:
        await answers(second, 200)
        assert await lines(second, BODY | {"prompt": prompt, "cache": 42}) == told
        assert other.stats().n_computed <= 1, "all of it came from the file"


async def test_a_file_may_be_brought_back_at_the_start(keeping: tuple[httpx.AsyncClient, weft.Engine, Path]) -> None:
    client, _, folder = keeping
    prompt = PROMPT + " there was a fox who lived at the edge of a very large forest with an old and quiet owl."
    told = await lines(client, BODY | {"prompt": prompt, "cache": 7})
    other = weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(other, Settings(restore_prompt=str(folder / "prompt-7.bin")))) as second:
        await answers(second, 200)
        assert await lines(second, BODY | {"prompt": prompt}) == told
        assert other.stats().n_computed <= 1, "all of it came from the file"


async def test_without_a_folder_no_prompt_is_kept(client: httpx.AsyncClient) -> None:
    answer = await client.post("/stream", json=BODY | {"cache": 1})
    assert answer.status_code == 501


async def test_the_server_of_that_document_needs_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # The body of the document, its words and numbers.
    body = {"num_predict": 64, "prompt": "Once upon a time", "n_batch": 16, "top_k": 50, "top_p": 0.9}
    body |= {"repeat_penalty": 1.5, "temp": 0.7, "cache": 42}
    file = tmp_path / "weft" / "prompts" / "prompt-42.bin"
    settings = parse(["--compat", "stream"], {}).settings
    for kept in (None, b"of another model"):
        if kept is not None:
            file.write_bytes(kept)
        engine = weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1)
        async with AsyncTestClient(create_app(engine, settings)) as client:
            await answers(client, 200)
            assert (await lines(client, body))[0] == body["prompt"]
            long = body | {"prompt": PROMPT + " there was a fox who lived at the edge of a very large forest.", "cache": 43}
            await lines(client, long)
        assert file.read_bytes() != kept
    restored = parse(["--compat", "stream", "-R", str(file.with_name("prompt-43.bin"))], {}).settings
    engine = weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine, restored)) as client:
        await answers(client, 200)
        await lines(client, long | {"cache": 0})
        assert engine.stats().n_computed <= 1, "all of it came from the file"


@pytest.mark.parametrize(
    ("limit", "kept"),
    [("MAX_FILES", ["prompt-1.bin", "prompt-4.bin"]), ("MAX_BYTES", ["prompt-1.bin", "prompt-4.bin"]), (None, None)],
)
async def test_of_its_own_files_those_that_were_used_last_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None, kept: list[str] | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "weft" / "prompts"
    engine = weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine, parse(["--compat", "stream"], {}).settings)) as client:
        await answers(client, 200)
        for number in (1, 2, 3):
            await lines(client, BODY | {"cache": number})
        names = [file.name for file in sorted(folder.iterdir())]
        assert names == ["prompt-1.bin", "prompt-2.bin", "prompt-3.bin"]
        [size] = {file.stat().st_size for file in folder.iterdir()}
        if limit is not None:
            monkeypatch.setattr(prompt_files, limit, 2 if limit == "MAX_FILES" else 2 * size)
        (folder / "notes.txt").write_text("of the user")
        # The first one is used again, so that the second one is the oldest.
        await lines(client, BODY | {"cache": 1})
        await lines(client, BODY | {"cache": 4})
        there = sorted(file.name for file in folder.iterdir())
        assert there == ["notes.txt", *(kept or [*names, "prompt-4.bin"])]
        monkeypatch.setattr(prompt_files, "MAX_BYTES", size - 1)
        await lines(client, BODY | {"cache": 5})
        assert sorted(file.name for file in folder.iterdir()) == ["notes.txt", "prompt-5.bin"], "one stays, however large"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        (BODY | {"num_predict": -1}, "num_predict"),
        (BODY | {"n_batch": 0}, "n_batch"),
        (BODY | {"cache": -1}, "cache"),
        (BODY | {"temp": "warm"}, "temp"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_refused_by_name(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    answer = await client.post("/stream", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_a_format_there_is_not_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/stream?format=xml", json=BODY)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "format")
