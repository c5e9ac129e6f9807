"""Replicas on a real Ray, asked over HTTP. `make ray` runs this; it is no part of `make test`."""

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml
from openai import OpenAI
from ray.serve.schema import ServeDeploySchema

import weft.ray
from tests.ray.cluster import Cluster, wait_until
from weft.errors import InvalidConfigError
from weft.ray.application import _NOT_HERE
from weft.settings import table

PROMPT = "Once upon a time,"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": PROMPT, "n_predict": 4, "n_probs": 2}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "n": 3, "logprobs": 2}),
        ("/v1/messages", {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
        ("/api/chat", {"model": "storyteller", "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 4}}),
        ("/v1/embeddings", {"input": ["a fox", "a dog"]}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_every_dialect_is_answered(cluster: Cluster, path: str, body: dict[str, object]) -> None:
    answer = cluster.client.post(path, json=body)
    assert answer.status_code == 200, answer.text


def test_the_official_client_reads_a_stream(cluster: Cluster) -> None:
    client = OpenAI(base_url=f"{cluster.url}/v1", api_key="none")
    chunks = list(
        client.chat.completions.create(
            model="storyteller", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=40, stream=True
        )
    )
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert len(chunks) > 3


def test_a_seeded_text_is_the_same_at_every_replica(cluster: Cluster) -> None:
    body = {"prompt": PROMPT, "n_predict": 24, "seed": 5}
    answers = [cluster.client.post("/completion", json={**body, "id_slot": slot}) for slot in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 8, [answer.text for answer in answers]
    assert [answer.json()["id_slot"] for answer in answers] == list(range(8))
    assert len({answer.json()["content"] for answer in answers}) == 1


def test_prompts_go_where_what_they_begin_with_is_computed(cluster: Cluster) -> None:
    n_cached = n_prompt = 0
    for turn in range(4):
        for system in range(4):
            prompt = f"{system} is the number of the fox. " * 24 + f"And then, in year {turn},"
            timings = cluster.client.post("/completion", json={"prompt": prompt, "n_predict": 8}).json()["timings"]
            if turn:
                n_cached += timings["cache_n"]
                n_prompt += timings["cache_n"] + timings["prompt_n"]
    assert n_cached / n_prompt > 0.9


def test_responses_go_on_where_the_ones_before_were_written(cluster: Cluster) -> None:
    """Several at once, each as soon as the one before has ended: no digest has told of it by then."""
    values = "The fox and the owl told each other of the wood. " * 12

    def call_replica(number: int) -> None:
        body = {"input": f"{number}. {values}", "max_output_tokens": 32}
        before = cluster.client.post("/v1/responses", json=body).json()
        for turn in range(3):
            body = {"input": f"And then, {turn}?", "previous_response_id": before["id"], "max_output_tokens": 32}
            answer = cluster.client.post("/v1/responses", json=body).json()
            n_before = before["usage"]["input_tokens"]
            n_cached.append(answer["usage"]["input_tokens_details"]["cached_tokens"] / n_before)
            before = answer

    n_cached: list[float] = []
    with ThreadPoolExecutor(4) as askers:
        list(askers.map(call_replica, range(4)))
    assert len(n_cached) == 12
    assert min(n_cached) > 0.9


def test_what_one_engine_tells_all_replicas_tell_together(cluster: Cluster) -> None:
    assert cluster.client.get("/props").json()["total_slots"] == 8
    wait_until(lambda: len(cluster.client.get("/slots").json()) == 8, 10)
    assert cluster.client.get("/cache").status_code == 200
    cells = "weft:cells 8192"
    wait_until(lambda: cells in cluster.client.get("/metrics").text, 10)


def test_an_error_of_a_replica_is_that_of_one_server(cluster: Cluster) -> None:
    answer = cluster.client.post("/completion", json={"prompt": PROMPT, "grammar": "root ::= ("})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "grammar")


def test_a_client_who_leaves_frees_the_slot_of_the_replica(cluster: Cluster) -> None:
    body = {"prompt": PROMPT, "n_predict": -1, "ignore_eos": True, "stream": True}
    with cluster.client.stream("POST", "/completion", json=body) as answer:
        # Who lets go of the lines has left.
        lines = answer.iter_lines()
        next(lines)
        wait_until(lambda: cluster.n_busy() == 1, 10)
    wait_until(lambda: cluster.n_busy() == 0, 10)


def test_a_request_that_runs_tells_why_its_prompt_is_computed(cluster: Cluster) -> None:
    body = {"prompt": "Why is this computed?", "n_predict": -1, "ignore_eos": True, "stream": True, "explain_cache": True}
    with cluster.client.stream("POST", "/completion", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        next(lines)
        # Behind it Ray tells a number of its own.
        own, *_ = answer.headers.get_list("x-request-id")
        url = f"/requests/{own}"
        report = cluster.client.get(url).json()
        assert cluster.client.delete(f"{url}/branches/0").status_code == 204
        *_, end = lines
    values = json.loads(end.removeprefix("data: "))["cache_explanation"]
    assert (report["n_finished"], report["cache_explanation"]) == (0, values)


def test_a_replica_that_is_killed_is_started_again(cluster: Cluster) -> None:
    killed = cluster.processes("replica")[0]
    cluster.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(cluster.processes("replica")) == 2 and killed not in cluster.processes("replica"), 60)
    wait_until(lambda: len(cluster.client.get("/slots").json()) == 8, 30)


def test_replicas_that_go_lose_no_token(cluster: Cluster) -> None:
    n_tokens = 3_000
    ends: list[tuple[str, int]] = []

    def write(number: int) -> None:
        body = {"prompt": f"{number}. {PROMPT}", "n_predict": n_tokens, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{cluster.url}/completion", json=body, timeout=120) as answer:
            frames = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
        ends.append((frames[-1].get("stop_type", "none"), sum(len(frame.get("tokens") or ()) for frame in frames)))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    wait_until(lambda: cluster.n_busy() == 8, 20)
    before = set(cluster.processes("replica"))
    began = time.monotonic()
    cluster.deploy(replicas=1)
    for writer in writers:
        writer.join()
    assert {end for end, _ in ends} == {"limit"}, time.monotonic() - began
    assert {n for _, n in ends} == {n_tokens}
    wait_until(lambda: len(before & set(cluster.processes("replica"))) <= 1, 60)


def test_their_number_follows_the_load(cluster: Cluster) -> None:
    cluster.deploy(replicas="1-3", up_after_s=1, down_after_s=1)
    wait_until(lambda: len(cluster.processes("replica")) == 1, 60)
    is_over = threading.Event()

    def ask_on(number: int) -> None:
        while not is_over.is_set():
            body = {"prompt": f"{number}. {PROMPT}", "n_predict": 500, "ignore_eos": True}
            assert httpx.post(f"{cluster.url}/completion", json=body, timeout=120).status_code == 200

    askers = [threading.Thread(target=ask_on, args=(number,)) for number in range(12)]
    for asker in askers:
        asker.start()
    try:
        wait_until(lambda: len(cluster.processes("replica")) == 3, 150)
    finally:
        is_over.set()
        for asker in askers:
            asker.join()
    wait_until(lambda: len(cluster.processes("replica")) == 1, 90)


def test_their_number_follows_the_cells_that_are_taken(cluster: Cluster) -> None:
    cluster.deploy(replicas="1-2", n_slots=16, n_ctx=2048, up_after_s=1, down_after_s=1)
    wait_until(lambda: len(cluster.processes("replica")) == 1, 60)
    is_over = threading.Event()

    def ask_on(number: int) -> None:
        while not is_over.is_set():
            body = {"prompt": [5 + number] * 560, "n_predict": 80, "ignore_eos": True}
            assert httpx.post(f"{cluster.url}/completion", json=body, timeout=120).status_code == 200

    # Three find room and three wait: six of sixteen slots, and nine tenths of the cells.
    askers = [threading.Thread(target=ask_on, args=(number,)) for number in range(6)]
    for asker in askers:
        asker.start()
    try:
        wait_until(lambda: len(cluster.processes("replica")) == 2, 60)
    finally:
        is_over.set()
        for asker in askers:
            asker.join()
    wait_until(lambda: len(cluster.processes("replica")) == 1, 90)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_slotz": 4}, "did you mean n_slots"),
        ({"n_slots": 0}, "n_slots is 0"),
        ({"replicas": "4-2"}, "replicas is '4-2'"),
        ({"slot_save_path": "/tmp"}, "slot_save_path does not apply to replicas"),
    ],
)
def test_what_replicas_cannot_do_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, InvalidConfigError), match=message):
        weft.ray.build(**settings)  # type: ignore[arg-type]


def test_texts_are_read_as_on_the_command_line() -> None:
    assert weft.ray.app({"n_slots": "6", "flash_attention": "on", "replicas": "2-3", "num_cpus": "0.5"}) is not None
    assert set(_NOT_HERE) <= set(table())


def test_the_file_for_serve_deploy_is_one() -> None:
    file = yaml.safe_load((Path(__file__).parent.parent.parent / "deploy" / "ray-serve.yaml").read_text(encoding="utf-8"))
    (application,) = ServeDeploySchema.model_validate(file).applications
    assert application.import_path == "weft.ray:app"
    assert weft.ray.app(application.args) is not None
