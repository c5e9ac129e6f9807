"""Offline jobs on a real Ray Data. `make ray` runs this; it is no part of `make test`."""

import json
from pathlib import Path

import pytest
import ray.data

from tests.ray.cluster import Cluster
from weft.ray.batch import Progress, complete, main
from weft.ray.rows import saved

SETTINGS = {"n_slots": 4, "n_ctx": 2048, "kv_unified": True}


def write_rows(file: Path, n: int) -> None:
    """Prompts of which each second begins alike, in an order in which none follows its like."""
    beginnings = ["The fox in the wood told a story. " * 8, "A ship sailed over the sea by night. " * 8]
    rows = [{"id": n, "prompt": f"{beginnings[n % 2]}It was number {n}.", "max_tokens": 2 + n % 3} for n in range(n)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Path:
    """Where answers go. Ray runs already, with what the served replicas leave of it."""
    return tmp_path / "answers"


def test_every_row_is_written_once_and_what_they_share_is_computed_once(folder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 40)
    values: list[str] = []
    progress = complete(
        tmp_path / "rows.jsonl",
        folder,
        replicas=2,
        num_cpus=0.25,
        batch_rows=10,
        options={"ignore_eos": True},
        on_progress=lambda progress: values.append(str(progress)),
        **SETTINGS,  # type: ignore[arg-type]
    )
    written = {one.id: one for one in saved(folder)}
    assert (progress.n_done, progress.n_failed, len(written)) == (40, 0, 40)
    assert all(written[n].n_predicted == 2 + n % 3 and len(written[n].texts) == 1 for n in range(40))
    assert progress.n_cached > 3 * progress.n_computed
    assert values[-1].startswith("40 of 40 rows")


def test_a_job_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 30)
    rows = ray.data.read_json(str(tmp_path / "rows.jsonl"), lines=True)

    def go_on(data: ray.data.Dataset) -> Progress:
        return complete(data, folder, num_cpus=0.25, batch_rows=8, **SETTINGS)  # type: ignore[arg-type]

    first = go_on(rows.filter(lambda row: row["id"] < 12))
    texts = {one.id: one.texts for one in saved(folder)}
    second, third = go_on(rows), go_on(rows)
    assert [(one.n_rows, one.n_skipped, one.n_done) for one in (first, second, third)] == [(12, 0, 12), (18, 12, 18), (0, 30, 0)]
    assert {one.id: one.texts for one in saved(folder) if one.id in texts} == texts


def test_a_row_that_cannot_be_answered_says_why_and_is_tried_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": "long", "prompt": "word " * 3000}, {"id": "short", "prompt": "word"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    asked = [str(tmp_path / "rows.jsonl"), str(folder), "--num-cpus", "0.25", "--engine", json.dumps(SETTINGS)]
    for _ in range(2):
        assert main([*asked, "--options", '{"max_tokens": 2}']) == 1
    errors = {one.id: one.error for one in saved(folder)}
    assert (errors["short"], "does not fit" in str(errors["long"])) == (None, True)
    assert "1 of 1 rows, 1 failed" in capsys.readouterr().out
