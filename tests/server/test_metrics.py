"""`/metrics` is what Prometheus reads, and counts what was computed and what was shared."""

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from litestar.testing import AsyncTestClient
from prometheus_client.parser import text_string_to_metric_families

import weft
from tests.helpers import prompt_of, wait_until
from tests.server.conftest import answers
from tests.server.matchers import NUMBER
from weft.server import create_app
from weft.server.refusals import Reason
from weft.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

LLAMA_SERVERS = {
    "prompt_tokens": "counter",
    "prompt_tokens_cached": "counter",
    "prompt_seconds": "counter",
    "tokens_predicted": "counter",
    "tokens_predicted_seconds": "counter",
    "prompt_tokens_seconds": "gauge",
    "predicted_tokens_seconds": "gauge",
    "n_tokens_max": "counter",
    "n_busy_slots_per_decode": "gauge",
    "n_decode": "counter",
    "requests_processing": "gauge",
    "requests_deferred": "gauge",
    "kv_cache_usage_ratio": "gauge",
    "kv_cache_tokens": "gauge",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
}
OURS = {
    "media": "counter",
    "media_encode_seconds": "counter",
    "media_bytes": "gauge",
    "media_waiting_bytes": "gauge",
    "projector_bytes": "gauge",
    "embedding_texts": "counter",
    "embedding_tokens": "counter",
    "embedding_batches": "counter",
    "embedding_tokens_waiting": "gauge",
    "embedding_context_bytes": "gauge",
    "prompt_tokens": "counter",
    "branches_started": "counter",
    "branches_forked": "counter",
    "branches_cancelled": "counter",
    "branch_tokens_computed": "counter",
    "branch_tokens_shared": "counter",
    "preemptions": "counter",
    "draft_tokens": "counter",
    "draft_tokens_accepted": "counter",
    "draft_seconds": "counter",
    "adapter_changes": "counter",
    "adapter_bytes": "gauge",
    "cells": "gauge",
    "cells_used": "gauge",
    "cells_idle": "gauge",
    "cells_reached": "gauge",
    "sequence_ids": "gauge",
    "sequence_ids_used": "gauge",
    "pinned_prefixes": "gauge",
    "pinned_bytes": "gauge",
    "host_cache_bytes": "gauge",
    "host_cache_limit_bytes": "gauge",
    "host_cache_entries": "gauge",
    "tokens_offloaded": "counter",
    "tokens_reloaded": "counter",
    "tokens_evicted": "counter",
    "tokens_relocated": "counter",
    "step_seconds": "counter",
    "kernel_calls": "counter",
    "refused": "counter",
    "malformed_tool_calls": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
}
HISTOGRAMS = [f"weft:{name}" for name, kind in OURS.items() if kind == "histogram"]
STAGES = ("receive", "admit", "plan", "decode", "sample", "detokenize", "publish", "offload", "reload")


@pytest.fixture
async def metered() -> AsyncIterator[httpx.AsyncClient]:
    """A server with one slot, a store of 1 MiB, and `/metrics`."""
    engine = weft.Engine(n_slots=1, n_ctx=512, n_threads=1, cache_ram=1)
    async with AsyncTestClient(create_app(engine, Settings(metrics=True))) as client:
        await answers(client, 200)
        yield client


async def samples(client: httpx.AsyncClient) -> dict[str, float]:
    """The value of each sample, by its name and its label's value."""
    text = (await client.get("/metrics")).text
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_prometheus_reads_every_metric(metered: httpx.AsyncClient) -> None:
    answer = await metered.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 0 <= time.time() - int(answer.headers["process-start-time-unix"]) < 600
    families = list(text_string_to_metric_families(answer.text))
    assert {family.name: family.type for family in families} == {
        **{f"llamacpp:{name}": kind for name, kind in LLAMA_SERVERS.items()},
        **{f"weft:{name}": kind for name, kind in OURS.items()},
    }
    for family in families:
        assert family.documentation
        assert all(sample.value == NUMBER for sample in family.samples)
        if family.type != "histogram":
            assert all(sample.name == family.name + "_total" * (family.type == "counter") for sample in family.samples)


async def test_the_page_lists_every_metric_of_ours_and_its_label(metered: httpx.AsyncClient) -> None:
    shown = re.findall(r"^\| (`weft:.*?) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = [name for row in shown for name in re.findall(r"`(.*?)`", row)]
    families = text_string_to_metric_families((await metered.get("/metrics")).text)
    samples = [sample for family in families for sample in family.samples if sample.name.startswith("weft:")]
    # One entry for each metric, by the names of its labels; a histogram is listed by the name of its family.
    exposed = {sample.name + "".join(f"{{{label}}}" for label in sample.labels) for sample in samples}
    assert sorted(told) == sorted(
        {*(name for name in exposed if "_bucket{" not in name and not name.endswith(("_sum", "_count"))), *HISTOGRAMS}
    )


async def test_the_page_lists_every_metric_of_llama_server_and_every_label(metered: httpx.AsyncClient) -> None:
    page = PAGE.read_text(encoding="utf-8")
    families = text_string_to_metric_families((await metered.get("/metrics")).text)
    samples = [sample for family in families for sample in family.samples]
    rows = re.findall(r"^\| (`llamacpp:.*?) \| .+ \|$", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(.*?)`", row)]
    # The parser adds the suffix of counters, which llama-server omits here.
    exposed = {sample.name.replace("n_tokens_max_total", "n_tokens_max") for sample in samples}
    assert sorted(listed) == sorted(name for name in exposed if name.startswith("llamacpp:"))
    reasons = page[page.index("| reason | cause |") : page.index("## Metrics of llama-server")]
    assert re.findall(r"^\| `(\w+)` \|", reasons, re.MULTILINE) == [reason.value for reason in Reason]
    labels = {value for sample in samples for name, value in sample.labels.items() if name not in ("le", "position")}
    assert labels - set(re.findall(r"`(\w+)`", page)) == set()


async def test_what_is_computed_and_shared_is_counted(metered: httpx.AsyncClient) -> None:
    prompt = prompt_of(300, "counted")

    async def complete(prompt: list[int], n_predict: int) -> None:
        await metered.post("/completion", json={"prompt": prompt, "n_predict": n_predict, "ignore_eos": True})

    await complete(prompt, 8)
    await complete(prompt, 1)
    await complete(prompt_of(300, "between"), 1)
    await complete([*prompt, 400], 1)
    counted = await samples(metered)
    n_cached = 299 + 300
    assert counted["llamacpp:prompt_tokens_total"] == counted["weft:prompt_tokens_total computed"] == 300 + 1 + 300 + 1
    assert counted["llamacpp:prompt_tokens_cached_total"] == n_cached
    sources = [counted[f"weft:prompt_tokens_total {source}"] for source in ("device_cache", "host_cache", "awaited")]
    assert sum(sources) == n_cached
    # The second prompt had no room beside the first.
    assert sources[1] >= 300
    assert counted["llamacpp:tokens_predicted_total"] == 8 + 1 + 1 + 1
    assert counted["llamacpp:requests_processing"] == counted["llamacpp:requests_deferred"] == 0
    assert counted["llamacpp:kv_cache_tokens"] == counted["weft:cells_used"]
    assert counted["llamacpp:kv_cache_usage_ratio"] == counted["weft:cells_used"] / counted["weft:cells"]
    assert counted["weft:cells"] == 512
    assert 0 < counted["weft:host_cache_bytes"] <= counted["weft:host_cache_limit_bytes"] == 2**20
    assert counted["weft:tokens_offloaded_total"] >= counted["weft:tokens_reloaded_total"] >= 300
    assert counted["weft:step_seconds_total decode"] > 0
    assert counted["weft:step_seconds_total offload"] > 0
    assert {f"weft:step_seconds_total {stage}" for stage in STAGES} <= counted.keys()


async def test_what_is_pinned_is_counted_until_it_is_let_go(metered: httpx.AsyncClient) -> None:
    before = await samples(metered)
    pinned = (await metered.post("/prefixes", json={"prompt": prompt_of(100, "pinned")})).json()
    during = await samples(metered)
    await metered.delete(f"/prefixes/{pinned['id']}")
    after = await samples(metered)
    told = [(of["weft:pinned_prefixes"], of["weft:pinned_bytes"]) for of in (before, during, after)]
    assert told == [(0, 0), (1, pinned["n_bytes"]), (0, 0)]


async def test_what_nobody_uses_takes_no_memory_and_vectors_take_some_from_the_first_on(metered: httpx.AsyncClient) -> None:
    await metered.post("/completion", json={"prompt": "Once", "n_predict": 2})
    before = await samples(metered)
    parts = ("adapter", "embedding_context", "media", "media_waiting", "projector", "pinned")
    assert {before[f"weft:{part}_bytes"] for part in parts} == {0}
    await metered.post("/embedding", json={"content": "Once"})
    after = await samples(metered)
    assert [part for part in parts if after[f"weft:{part}_bytes"] > 0] == ["embedding_context"]


async def test_operations_of_our_own_kernels_are_counted(metered: httpx.AsyncClient) -> None:
    before, compute = await samples(metered), (await metered.get("/props")).json()["compute"]
    await metered.post("/completion", json={"prompt": prompt_of(30, "by kernels"), "n_predict": 4})
    after = await samples(metered)
    for kernel in ("attention", "products"):
        name = f"weft:kernel_calls_total {kernel}"
        is_ours = f"{kernel} by weft" in compute and not (kernel == "products" and "laid out for AMX" in compute)
        assert (after[name] > before[name]) == is_ours


async def test_with_llama_cpps_kernels_nothing_of_ours_is_counted() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=512, n_threads=1, kernels="llama.cpp")
    async with AsyncTestClient(create_app(engine, Settings(metrics=True))) as client:
        await answers(client, 200)
        before = await samples(client)
        await client.post("/completion", json={"prompt": prompt_of(30, "without kernels"), "n_predict": 4})
        after = await samples(client)
    for kernel in ("attention", "products"):
        assert after[f"weft:kernel_calls_total {kernel}"] == before[f"weft:kernel_calls_total {kernel}"]


async def test_what_was_refused_is_counted_by_its_reason(metered: httpx.AsyncClient) -> None:
    before = await samples(metered)
    await metered.post("/completion", json={"n": "many"})
    await metered.get("/nothing")
    after = await samples(metered)
    assert {
        name: after[name] - before[name] for name in after if name.startswith("weft:refused_total") and after[name] > before[name]
    } == {
        "weft:refused_total invalid_field": 1,
        "weft:refused_total no_route": 1,
    }


async def test_before_anything_ran_every_average_is_0(metered: httpx.AsyncClient) -> None:
    counted = await samples(metered)
    for name in ("prompt_tokens_seconds", "predicted_tokens_seconds", "n_tokens_max_total", "n_busy_slots_per_decode"):
        assert counted[f"llamacpp:{name}"] == 0


async def test_times_are_those_of_the_finished_branches(metered: httpx.AsyncClient) -> None:
    timings = []
    for body in (
        {"n_predict": 12},
        {"n_predict": 5, "n": 2},
        {"n_predict": 3, "prompt": [prompt_of(50, "a"), prompt_of(40, "b")]},
    ):
        answer = await metered.post("/completion", json={"prompt": prompt_of(30, "timed"), "ignore_eos": True} | body)
        results = answer.json() if isinstance(answer.json(), list) else [answer.json()]
        timings += [result["timings"] for result in results]
    streamed = await metered.post("/completion", json={"prompt": prompt_of(60, "c"), "n_predict": 2, "stream": True})
    timings.append(json.loads(streamed.text.removesuffix("\n\n").rpartition("data: ")[2])["timings"])

    def total(name: str) -> float:
        return sum(float(timing[name]) for timing in timings)

    counted = await samples(metered)
    assert len(timings) == 6
    n_steps = sum(timing["predicted_n"] - 1 for timing in timings)
    assert counted["llamacpp:prompt_seconds_total"] == pytest.approx(total("prompt_ms") / 1000)
    assert counted["llamacpp:tokens_predicted_seconds_total"] == pytest.approx(total("predicted_ms") / 1000)
    assert counted["llamacpp:prompt_tokens_seconds"] == pytest.approx(1000 * total("prompt_n") / total("prompt_ms"))
    assert counted["llamacpp:predicted_tokens_seconds"] == pytest.approx(1000 * n_steps / total("predicted_ms"))
    assert counted["llamacpp:n_tokens_max_total"] == 60 + 2, "prometheus_client reads every counter under this ending"
    assert re.search(
        r"^# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 62\.0$", (await metered.get("/metrics")).text, re.MULTILINE
    )
    # One slot, and never an empty decode.
    assert counted["llamacpp:n_busy_slots_per_decode"] == 1


async def test_busy_slots_are_averaged_over_the_decodes() -> None:
    async with AsyncTestClient(create_app(weft.Engine(n_slots=4, n_ctx=512, n_threads=1), Settings(metrics=True))) as client:
        await answers(client, 200)
        body = {"prompt": "One day", "n_predict": 40, "ignore_eos": True, "n": 4}
        await client.post("/completion", json=body)
        assert 3 < (await samples(client))["llamacpp:n_busy_slots_per_decode"] <= 4


async def test_without_its_flag_it_is_not_supported(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.status_code == 501
    message = "This server does not support metrics endpoint. Start it with `--metrics`"
    assert answer.json() == {"error": {"code": 501, "message": message, "type": "not_supported_error"}}
    assert (await client.get("/props")).json()["endpoint_metrics"] is False


async def test_with_its_flag_props_say_so(metered: httpx.AsyncClient) -> None:
    assert (await metered.get("/props")).json()["endpoint_metrics"] is True


def buckets(text: str, name: str) -> dict[str, float]:
    """The cumulative counts of a histogram, by upper bound."""
    return {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"weft:{name}_bucket"
    }


async def test_histograms_count_branches_tokens_and_lengths(metered: httpx.AsyncClient) -> None:
    body = {"prompt": prompt_of(30, "counted"), "n_predict": 5, "n": 3, "ignore_eos": True}
    await metered.post("/completion", json=body)
    text, counted = (await metered.get("/metrics")).text, await samples(metered)
    for name, n in {
        "time_to_first_token_seconds": 3,
        "inter_token_latency_seconds": 3 * 4,
        "request_queue_time_seconds": 3,
        "e2e_request_latency_seconds": 3,
        "request_prompt_tokens": 3,
        "request_generation_tokens": 3,
    }.items():
        cumulative = list(buckets(text, name).values())
        assert counted[f"weft:{name}_count"] == n == cumulative[-1]
        assert cumulative == sorted(cumulative)
    assert counted["weft:request_prompt_tokens_sum"] == 3 * 30
    assert counted["weft:request_generation_tokens_sum"] == 3 * 5
    lengths = buckets(text, "request_prompt_tokens")
    assert (lengths["20.0"], lengths["50.0"], lengths["+Inf"]) == (0, 3, 3)
    assert "0.001" in buckets(text, "time_to_first_token_seconds")


async def test_histograms_continue_after_the_model_was_unloaded() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=512, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(metrics=True, sleep_idle_s=1))) as client:
        await answers(client, 200)
        body = {"prompt": "Once", "n_predict": 2, "ignore_eos": True}
        await client.post("/completion", json=body)
        before = await samples(client)
        await wait_until(lambda: engine.is_asleep)
        asleep = await samples(client)
        await client.post("/completion", json=body)
        after = await samples(client)
    name = "weft:e2e_request_latency_seconds_count"
    assert (before[name], asleep[name], after[name]) == (1, 1, 2)
    assert asleep["weft:cells"] == 0
