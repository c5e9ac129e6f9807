"""An engine whose computing is done elsewhere: what it gives is what an engine gives."""

import asyncio
import gc
import json
from typing import NoReturn, cast

import httpx
import pytest

import weft
from tests.helpers import How, branches, collect, prompt_of, wait_until
from tests.remote.local_fleet import KEY, LocalFleet
from weft.config import EngineConfig
from weft.ray import replica as remote_replica
from weft.ray import stream as remote_stream
from weft.ray.digest import block_hashes, salt_of, unpack
from weft.ray.errors import NoReplicaError, ReplicaLostError
from weft.ray.remote import RemoteEngine

PROMPT = "Once upon a time,"


async def test_a_seeded_request_is_answered_as_by_an_engine_here(remote: RemoteEngine, engine: weft.Engine, how: How) -> None:
    asked = {"n": 3, "max_tokens": 12, "seed": 7, "stop": [" the"], "logprobs": 2}
    here = await branches(engine, how, PROMPT, **asked)  # type: ignore[arg-type]
    there = await branches(remote, how, PROMPT, **asked)  # type: ignore[arg-type]
    assert [(one.text, one.token_ids, one.finish_reason) for one in there] == [
        (one.text, one.token_ids, one.finish_reason) for one in here
    ]
    assert [[each.chosen.bytes for each in one.logprobs] for one in there] == [
        [each.chosen.bytes for each in one.logprobs] for one in here
    ]


async def test_log_probabilities_write_themselves_out_as_those_of_an_engine_here(
    remote: RemoteEngine, engine: weft.Engine
) -> None:
    async def values(by: weft.Engine) -> list[bytes]:
        stream, found = by.stream(PROMPT, max_tokens=3, temperature=0, logprobs=3, prompt_logprobs=1), []
        while events := await stream.next_batch(compact=True):
            for event in events:
                if isinstance(event, weft.PromptLogprobs):
                    found += [one.token_json(True, False) for one in event.logprobs if one is not None]  # type: ignore[attr-defined]
                if isinstance(event, weft.Token):
                    found.append(event.logprobs.completion_json(False))  # type: ignore[union-attr]
        return found

    assert await values(remote) == await values(engine) != []


async def test_what_begins_alike_is_computed_by_one_replica(remote: RemoteEngine, fleet: LocalFleet) -> None:
    prompt = prompt_of(300, "alike")
    first = await remote.complete(prompt, max_tokens=1)
    second = await remote.complete([*prompt, *prompt_of(20, "other end")], max_tokens=1)
    assert (first.n_computed, second.n_cached >= 256) == (300, True)
    assert len({name for name, _ in fleet.calls}) == 1


async def test_a_conversation_goes_on_where_it_was_written(remote: RemoteEngine, fleet: LocalFleet) -> None:
    prompt = prompt_of(100, "conversation")
    answer = (await remote.complete(prompt, max_tokens=60, ignore_eos=True, seed=1)).choices[0]
    await remote.complete([*prompt, *answer.token_ids, *prompt_of(10, "next turn")], max_tokens=1)
    assert len({name for name, _ in fleet.calls}) == 1


async def test_the_digest_of_a_replica_names_the_blocks_that_it_holds(remote: RemoteEngine, fleet: LocalFleet) -> None:
    prompt = prompt_of(200, "digest")
    await remote.complete(prompt, max_tokens=1)
    await fleet.look()
    digest = fleet.reports()[fleet.calls[0][0]].digest
    held = unpack(digest.device) | unpack(digest.host)
    assert set(block_hashes(prompt, salt=salt_of(KEY))) <= held
    assert digest.n_slots == 2


async def test_a_request_moves_where_its_replica_dies_before_it_has_answered(remote: RemoteEngine, fleet: LocalFleet) -> None:
    fleet.dying = dict.fromkeys("a", 1)
    answers = [await remote.complete(prompt_of(70, f"moved {n}"), max_tokens=4, ignore_eos=True) for n in range(6)]
    assert all(len(answer.choices[0].token_ids) == 4 for answer in answers)
    assert set(fleet.replicas) == {"b"}


async def test_a_stream_whose_replica_dies_ends_with_one_error(remote: RemoteEngine, fleet: LocalFleet) -> None:
    fleet.dying = dict.fromkeys("ab", 2)
    stream = remote.stream(PROMPT, max_tokens=200, ignore_eos=True)
    assert await stream.next_batch()
    with pytest.raises(ReplicaLostError, match="has died; retry the request"):
        await collect(stream)
    assert await stream.next_batch() == []


async def test_no_more_replicas_are_tried_than_there_may_be(remote: RemoteEngine, fleet: LocalFleet) -> None:
    fleet.dying = dict.fromkeys("ab", 0)
    fleet.replicas["c"] = fleet.replicas["a"]
    fleet.dying["c"] = 0
    with pytest.raises(ReplicaLostError, match="3 that were tried"):
        await remote.complete(PROMPT, max_tokens=2)
    assert len(fleet.calls) == remote_stream.MAX_TRIES == 3


async def test_a_request_that_nobody_takes_ends_with_an_error(
    remote: RemoteEngine, fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.deaf = {"a", "b"}
    monkeypatch.setattr("weft.ray.remote.ACCEPT_TIMEOUT_S", 0.05)
    with pytest.raises(NoReplicaError, match="no replica accepted the request"):
        await remote.complete(PROMPT, max_tokens=2)


@pytest.mark.parametrize("leave", ["close", "drop", "cancel"])
async def test_whoever_leaves_frees_the_slot_at_the_replica(remote: RemoteEngine, fleet: LocalFleet, leave: str) -> None:
    stream = remote.stream(PROMPT, ignore_eos=True, context_shift=True)
    assert await stream.next_batch()
    replica = fleet.replicas[fleet.calls[0][0]]
    assert replica.pressure()["busy_slots"] == 0.5
    match leave:
        case "close":
            stream.close()
        case "drop":
            del stream
            gc.collect()
        case "cancel":
            stream.cancel(0)
    await wait_until(lambda: replica.pressure()["busy_slots"] == 0)


async def test_what_a_replica_refuses_is_raised_as_here(remote: RemoteEngine) -> None:
    with pytest.raises(weft.InvalidRequestError) as raised:
        await remote.complete(PROMPT, temperature=float("nan"))
    assert raised.value.param == "temperature"
    with pytest.raises(weft.ContextOverflowError):
        remote.stream(prompt_of(3000, "too long"))


async def test_branches_at_replicas_are_not_forked(remote: RemoteEngine) -> None:
    stream = remote.stream(PROMPT, max_tokens=20)
    with pytest.raises(weft.NotSupportedError, match="branch 0 runs on a replica"):
        await stream.fork(0, n=2)
    assert (stream.forked_at(0), stream.fork_boundary(0)) == (None, ("", 0))
    with pytest.raises(weft.InvalidRequestError, match="index is -1; it must be 0 or more"):
        stream.forked_at(-1)
    with pytest.raises(weft.InvalidRequestError, match="index is -1; it must be 0 or more"):
        stream.fork_boundary(-1)
    await stream.aclose()


async def test_why_a_prompt_is_computed_is_told_by_its_replica_before_any_event(remote: RemoteEngine, fleet: LocalFleet) -> None:
    fleet.spoken.clear()
    stream = remote.stream(prompt_of(20, "explained"), max_tokens=3, explain_cache=True)
    before = stream.explanation
    await wait_until(lambda: stream.explanation is not None)
    values = stream.explanation
    fleet.spoken.set()
    [end] = [event for event in await collect(stream) if isinstance(event, weft.Finished)]
    assert before is None
    assert values is not None
    assert (values.n_prompt, values, stream.explanation) == (20, end.explanation, end.explanation)


class Silent:
    """A stream that gives nothing, and knows why its prompt is computed when it is asked for the third time."""

    def __init__(self) -> None:
        self._known = iter([None, None, "why"])

    @property
    def explanation(self) -> str | None:
        return next(self._known)

    async def next_batch(self, *, compact: bool) -> NoReturn:
        assert compact
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_replica_waits_for_events_no_longer_than_until_it_knows_why_a_prompt_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_replica, "LIVES_EVERY_S", 3_600.0)
    monkeypatch.setattr(remote_replica, "EXPLAINS_WITHIN_S", 0.001)
    stream = Silent()
    async with asyncio.timeout(30):
        assert await remote_replica._next_events(cast("weft.Stream", stream), needs_explanation=True) is None
    with pytest.raises(StopIteration):
        _ = stream.explanation


async def test_who_does_not_ask_why_waits_for_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_replica, "LIVES_EVERY_S", 0.02)
    monkeypatch.setattr(remote_replica, "EXPLAINS_WITHIN_S", 0.001)
    stream = Silent()
    assert await remote_replica._next_events(cast("weft.Stream", stream), needs_explanation=False) is None
    assert stream.explanation is None


async def test_slots_of_all_replicas_are_counted_through(remote: RemoteEngine, fleet: LocalFleet) -> None:
    assert remote.limits.n_slots == 4
    slots = {(await remote.complete(PROMPT, max_tokens=1, slot=slot)).choices[0].index: slot for slot in range(4)}
    assert [name for name, _ in fleet.calls] == ["a", "a", "b", "b"]
    assert slots == {0: 3}
    stream = remote.stream(PROMPT, ignore_eos=True, slot=3, context_shift=True)
    first = await stream.__anext__()
    assert isinstance(first, weft.Token)
    assert first.slot == 3
    await fleet.look()
    busy = [slot for slot in remote.stats().slots if slot.is_processing]
    assert [(slot.id, slot.request_id) for slot in busy] == [(3, stream.request_id)]
    assert [slot.id for slot in remote.stats().slots] == [0, 1, 2, 3]


async def test_a_pinned_prefix_is_pinned_in_every_replica(remote: RemoteEngine, fleet: LocalFleet) -> None:
    prefix = await remote.pin(prompt_of(50, "pinned"))
    assert [prefix.n_tokens, len(await remote.prefixes())] == [50, 1]
    for replica in fleet.replicas.values():
        _, nodes, _ = await replica.nodes(10)
        assert any(node.is_pinned for node in nodes)
    assert await remote.unpin(prefix)
    assert not await remote.unpin(prefix)
    for replica in fleet.replicas.values():
        _, nodes, _ = await replica.nodes(10)
        assert not any(node.is_pinned for node in nodes)


async def test_vectors_are_those_of_an_engine_here(remote: RemoteEngine, engine: weft.Engine) -> None:
    there, here = await remote.embed(["a fox", "a dog"]), await engine.embed(["a fox", "a dog"])
    assert (there.vectors.tolist(), there.n_tokens) == (here.vectors.tolist(), here.n_tokens)


async def test_a_reader_who_reads_nothing_is_ended(remote: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_stream, "MAX_BEHIND", 20)
    monkeypatch.setattr(remote_stream, "PATIENCE_S", 0.0)
    stream = remote.stream(PROMPT, ignore_eos=True, context_shift=True)
    await wait_until(lambda: stream.feed.error is not None)  # type: ignore[attr-defined]
    with pytest.raises(weft.SlowConsumerError):
        await stream.next_batch()


async def test_a_replica_whose_worker_is_gone_is_not_well(fleet: LocalFleet) -> None:
    fleet.replicas["a"].check_health()
    await fleet.replicas["a"].close()
    with pytest.raises(weft.EngineStoppedError):
        fleet.replicas["a"].check_health()


async def test_an_engine_that_is_closed_ends_what_is_open() -> None:
    engine = RemoteEngine(LocalFleet({}), None, EngineConfig(), KEY)
    await engine.close()
    assert not engine.is_running
    with pytest.raises(weft.EngineStoppedError):
        engine.stream(PROMPT)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": PROMPT, "n_predict": 4, "logprobs": 2}),
        ("/v1/completions", {"prompt": [PROMPT, "The fox"], "max_tokens": 4, "n": 2, "logprobs": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
        ("/v1/messages", {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
        ("/api/generate", {"model": "storyteller", "prompt": "Hi", "options": {"num_predict": 4}}),
        ("/v1/embeddings", {"input": ["a fox", "a dog"]}),
        ("/tokenize", {"content": "a fox"}),
        ("/score", {"prompt": "The sky is", "continuations": [" dark", " blue"]}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_routes_answer_over_replicas(client: httpx.AsyncClient, path: str, body: dict[str, object]) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "path", ["/slots", "/props", "/metrics", "/cache", "/health", "/v1/models", "/requests", "/lora-adapters"]
)
async def test_what_is_told_of_one_engine_is_told_of_all_replicas(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    if path == "/slots":
        assert [slot["id"] for slot in answer.json()] == [0, 1, 2, 3]
    if path == "/metrics":
        buckets = [line.split()[0] for line in answer.text.splitlines() if "_bucket{" in line]
        assert len(set(buckets)) == len(buckets) > 0


async def test_an_error_of_a_replica_names_the_field_of_the_body(client: httpx.AsyncClient) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "response_format": schema}
    answer = await client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


async def test_a_stream_over_http_whose_replica_dies_ends_with_one_error(client: httpx.AsyncClient, fleet: LocalFleet) -> None:
    fleet.dying = dict.fromkeys("ab", 3)
    body = {"prompt": PROMPT, "n_predict": 500, "ignore_eos": True, "stream": True}
    answer = await client.post("/v1/completions", json={**body, "max_tokens": 500})
    frames = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    errors = [frame for frame in frames if "error" in frame]
    assert len(errors) == 1
    assert json.loads(errors[0])["error"]["code"] == 503


async def test_what_is_for_a_replica_that_is_gone_is_refused(remote: RemoteEngine, fleet: LocalFleet) -> None:
    stream = remote.stream(PROMPT, slot=0, max_tokens=3)
    fleet.replicas["a"], gone = fleet.replicas["b"], fleet.replicas["a"]
    with pytest.raises(ReplicaLostError, match="the replica a has died"):
        await stream.next_batch()
    with pytest.raises(ReplicaLostError):
        await fleet.call_replica("c", "info")
    fleet.replicas["a"] = gone


async def test_a_replica_that_stands_still_is_taken_for_dead(
    remote: RemoteEngine, fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_stream, "SILENT_S", 0.2)
    stream = remote.stream(PROMPT, max_tokens=2_000, ignore_eos=True, context_shift=True)
    assert await stream.next_batch()
    fleet.still = {"a", "b"}
    with pytest.raises(ReplicaLostError, match="has died"):
        await collect(stream)


async def test_a_stream_that_waits_long_is_not_taken_for_dead(
    remote: RemoteEngine, fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.ray.replica.LIVES_EVERY_S", 0.05)
    monkeypatch.setattr(remote_stream, "SILENT_S", 0.3)
    running = [remote.stream(PROMPT, ignore_eos=True, context_shift=True, slot=slot) for slot in (0, 1)]
    for stream in running:
        assert await stream.next_batch()
    waiting = remote.stream(PROMPT, max_tokens=2, slot=0)
    await asyncio.sleep(1)
    for stream in running:
        stream.close()
    assert [event for event in await collect(waiting) if isinstance(event, weft.Finished)]
