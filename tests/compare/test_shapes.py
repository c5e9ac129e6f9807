"""Weft's answers look like llama-server's that were kept, but for what docs/reference/llama-server.md has a reason for."""

from pathlib import Path

import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.compare.cases import cases
from tests.compare.differences import Difference, differences
from tests.compare.exchange import Answer, Case, ask
from tests.compare.reasons import reason_for, reasons
from tests.compare.servers import flags, slot_files
from tests.compare.shapes import differences_of_shape, kept, written
from tests.server.conftest import answers
from weft.cli.main import parse
from weft.server import create_app

SERVERS = sorted({case.server for case in cases()})


def test_each_request_has_a_name_of_its_own_and_an_answer_that_is_kept() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) >= 200
    assert sorted(names) == sorted(kept()), "make compare ARGS=--shapes"


@pytest.mark.parametrize("server", SERVERS)
async def test_answers_have_the_fields_of_llama_servers(server: str, tmp_path: Path) -> None:
    shapes, given = kept(), reasons()
    found: list[Difference] = []
    files = slot_files(tmp_path, server) if server == "plain" else ()
    settings, _ = parse([*flags(tmp_path)[server], *files, "-t", "1"], {})
    engine = weft.Engine(settings.model, config=settings.engine)
    async with AsyncTestClient(create_app(engine, settings)) as client:
        await answers(client, 200)
        for case in cases():
            if case.server == server:
                found += differences_of_shape(case, shapes[case.name], await ask(client, case))
    assert [difference for difference in found if reason_for(difference, given) is None] == []


CASE = Case("plain", "POST", "/completion", "a case")


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [
        ({"a": 1, "b": [{"c": "x"}]}, {"a": 1, "b": [{"c": "x"}]}, []),
        ({"a": 1}, {"a": 2}, [("body.a", "value")]),
        ({"a": 1}, {"a": 1.0}, [("body.a", "type")]),
        ({"a": True}, {"a": 1}, [("body.a", "type")]),
        ({"a": None}, {"a": ""}, [("body.a", "type")]),
        ({"a": 1}, {}, [("body.a", "missing")]),
        ({}, {"a": 1}, [("body.a", "added")]),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, [("body.a.length", "value"), ("body.a[]", "value")]),
        ({"a": ["x", "y"]}, {"a": ["x"]}, [("body.a", "value")]),
        ({"temperature": 0.800000011920929}, {"temperature": 0.8}, []),
        ({"logprob": -1.0}, {"logprob": -1.1}, [("body.logprob", "value")]),
        ({"logprob": -1.0}, {"logprob": -1.02}, []),
        ({"top_probs": [{"token": "a", "prob": 0.1}]}, {"top_probs": [{"token": "b", "prob": 0.11}]}, []),
        (
            {"top_probs": [{"token": "a", "prob": 0.1}]},
            {"top_probs": [{"token": "b", "prob": 0.2}]},
            [("body.top_probs[].token", "value"), ("body.top_probs[].prob", "value")],
        ),
        ({"token": "a", "prob": 0.1}, {"token": "b", "prob": 0.1}, [("body.token", "value")]),
        ({"embedding": "AACAPwAAAEA="}, {"embedding": "ZmaGPwAAAEA="}, [("body.embedding[]", "value")]),
        ({"embedding": "AACAPwAAAEA="}, {"embedding": "ppuAPwAAAEA="}, []),
        ({"answer": {"created": 1}}, {"answer": {"created": 2}}, []),
        ({"answer": {"created": 1}}, {"answer": {"created": "2"}}, [("body.answer.created", "type")]),
    ],
    ids=str,
)
def test_differences_are_seen(theirs: object, ours: object, found: list[tuple[str, str]]) -> None:
    seen = differences(CASE, Answer(200, {}, theirs), Answer(200, {}, ours))
    assert [(difference.place, difference.kind) for difference in seen] == found


def test_another_status_is_the_only_difference() -> None:
    [seen] = differences(CASE, Answer(200, {}, {"a": 1}), Answer(400, {}, {"error": {}}))
    assert (seen.place, seen.theirs["status"], seen.ours["status"]) == ("status", 200, 400)


def test_events_are_compared_in_order_but_those_of_several_completions() -> None:
    first, second, end = ({"index": index, "content": text} for index, text in ((0, "a"), (1, "b"), (0, "")))
    stream = [first, second, end, "[DONE]"]
    mixed = [second, first, end, "[DONE]"]
    assert differences(CASE, Answer(200, {}, events=stream), Answer(200, {}, events=mixed)) == []
    turned = [end, second, first, "[DONE]"]
    seen = differences(CASE, Answer(200, {}, events=stream), Answer(200, {}, events=turned))
    assert [(found.place, found.kind) for found in seen] == [("events[].content", "value")] * 2
    cut = differences(CASE, Answer(200, {}, events=stream), Answer(200, {}, events=stream[:-1]))
    assert ("events.count", "value") in [(found.place, found.kind) for found in cut]
    assert differences(CASE, Answer(200, {}, events=stream), Answer(200, {}, {})) != []


def test_what_is_kept_has_the_shape_and_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shapes.json"
    monkeypatch.setattr("tests.compare.shapes.SHAPES", path)
    large = {"a": "said", **{f"f{number}": number for number in range(9)}}
    event = {"index": 1, "content": "said", "n": [1, 2], "settings": large}
    answers = {
        "whole": Answer(200, {}, {"a": "said", "b": [1.5, None], "large": {**large, "again": large}}),
        "stream": Answer(200, {}, events=[event, {"index": 0}, event, "[DONE]"]),
    }
    path.write_text(written(answers))
    assert "said" not in path.read_text()
    for name, answer in answers.items():
        assert differences_of_shape(CASE, kept()[name], answer) == []
    other = Answer(200, {}, {"a": 1, "b": [1.5, None], "large": {**large, "again": large | {"f3": "x"}}})
    assert [found.place for found in differences_of_shape(CASE, kept()["whole"], other)] == ["body.a", "body.large.again.f3"]
