"""Rows of offline jobs: what is asked of each, and what is done."""

from pathlib import Path

import weft
from weft.ray.rows import Columns, OutputRow, answered, done_ids, save, saved

ROWS = [{"id": n, "prompt": f"Once upon a time, in a land of {n} foxes,", "max_tokens": n + 1, "seed": None} for n in range(5)]


async def test_each_row_is_answered_as_its_columns_ask(engine: weft.Engine) -> None:
    written = await answered(engine, ROWS, Columns(), {"max_tokens": 9, "ignore_eos": True, "n": 2})
    assert [one.id for one in written] == [0, 1, 2, 3, 4]
    assert [one.n_predicted for one in written] == [2, 4, 6, 8, 10]
    assert all(len(one.texts) == 2 and one.finish_reasons == ["length"] * 2 for one in written)


async def test_a_row_that_is_refused_says_so_and_the_others_are_answered(engine: weft.Engine) -> None:
    rows = [{"id": "bad", "prompt": ""}, {"id": "good", "prompt": "Once"}]
    bad, good = await answered(engine, rows, Columns(), {"max_tokens": 1, "temperature": 0})
    assert (good.error, good.n_predicted) == (None, 1)
    assert (bad.error is None) == (bad.n_predicted == 1)


def test_a_part_that_is_written_again_is_one(tmp_path: Path) -> None:
    part = [OutputRow(id=1, texts=["a"]), OutputRow(id="b", error="too long")]
    save(tmp_path, part)
    save(tmp_path, part)
    assert list(saved(tmp_path)) == part
    assert [file.suffix for file in tmp_path.iterdir()] == [".jsonl"]
    assert done_ids(tmp_path) == {1}


def test_of_a_row_that_was_tried_again_the_answer_counts(tmp_path: Path) -> None:
    save(tmp_path, [OutputRow(id=1, error="the engine has stopped"), OutputRow(id=2, texts=["b"])])
    save(tmp_path, [OutputRow(id=1, texts=["a"])])
    assert {one.id: one.texts for one in saved(tmp_path)} == {1: ["a"], 2: ["b"]}
    assert done_ids(tmp_path) == {1, 2}


def test_what_was_begun_and_not_ended_is_no_part(tmp_path: Path) -> None:
    (tmp_path / ".part-x.jsonl.1").write_text('{"id": 1', encoding="utf-8")
    assert done_ids(tmp_path) == set()
