"""The model is unloaded after some time without a request, and the next one loads it again."""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.adapters import write_adapter
from tests.engine import tiny_models
from tests.helpers import prompt_of, read_sse, wait_until
from tests.server.conftest import PROMPT, answers
from tests.server.live import LiveServer
from tests.server.matchers import Json
from tests.server.test_metrics import samples
from weft import _native
from weft.server import create_app
from weft.server.gateway import Gateway
from weft.settings import Settings
from weft.settings.system_prompt import SystemPrompt

AFTER_S = 0.15
GREEDY = {"n_predict": 8, "temperature": 0, "ignore_eos": True}
MISSING = weft.ModelLoadError("m.gguf", "the disk is gone")


class CountedEngine(weft.Engine):
    """Counts its loads, each of which waits for `hold`, and fails where a failure is left."""

    def __init__(self, lora: Sequence[str] = ()) -> None:
        super().__init__(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1, lora=lora)
        self.n_loads = 0
        self.failures: list[Exception] = []
        self.hold = threading.Event()
        self.hold.set()
        self.hold_sleep = asyncio.Event()
        self.hold_sleep.set()

    def _load(self, on_progress: Callable[[float], object] | None) -> _native.Engine:
        self.n_loads += 1
        assert self.hold.wait(20)
        if self.failures:
            raise self.failures.pop(0)
        return super()._load(on_progress)

    async def sleep(self) -> None:
        await super().sleep()
        await self.hold_sleep.wait()


class Sleeper:
    """A server in this process that falls asleep soon."""

    def __init__(self, client: httpx.AsyncClient, app: Gateway, engine: CountedEngine) -> None:
        self.client = client
        self.app = app
        self.engine = engine

    async def asleep(self) -> None:
        """Waits until the model is unloaded."""
        await wait_until(lambda: self.engine.is_asleep)

    async def complete(self, prompt: Json = PROMPT, **fields: Json) -> Json:
        answer = await self.client.post("/completion", json={"prompt": prompt, **GREEDY, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get(self, path: str) -> Json:
        return (await self.client.get(path)).raise_for_status().json()


@asynccontextmanager
async def sleeping(settings: dict[str, Any] | None = None, lora: Sequence[str] = ()) -> AsyncIterator[Sleeper]:
    """One that falls asleep as soon as it may."""
    engine = CountedEngine(lora)
    app = create_app(engine, Settings(**{"sleep_idle_s": 1, "metrics": True, **(settings or {})}))
    app.service.sleep.after_s = AFTER_S
    # Everything on one loop: many requests are to wait at once.
    transport = httpx.ASGITransport(cast("Any", app))
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await wait_until(lambda: app.service.lifecycle.refusal() is None)
        yield Sleeper(client, app, engine)


async def test_without_a_request_the_model_is_unloaded_and_the_next_one_loads_it_and_is_answered() -> None:
    async with sleeping() as server:
        awake = await server.get("/props")
        written = await server.complete()
        health, models, slots = [await server.get(path) for path in ("/health", "/v1/models", "/health?include_slots=1")]
        await server.asleep()
        assert awake["is_sleeping"] is False
        assert await server.get("/props") == awake | {"is_sleeping": True}
        assert [await server.get(path) for path in ("/health", "/health?include_slots=1")] == [health, slots]
        assert (await server.get("/models"))["models"] == models["models"]
        assert (await server.get("/v1/models/any"))["meta"] == models["data"][0]["meta"]
        assert server.engine.n_loads == 1
        assert (await server.complete())["content"] == written["content"]
        assert (server.engine.n_loads, (await server.get("/props"))["is_sleeping"]) == (2, False)
        await server.asleep()
        assert (await server.complete(stream=False))["content"] == written["content"]
        assert server.engine.n_loads == 3


async def test_whoever_asks_how_it_is_neither_wakes_it_nor_keeps_it_awake() -> None:
    async with sleeping({"api_keys": ("key",)}) as server:
        key = {"Authorization": "Bearer key"}
        paths = ("/health", "/props", "/v1/models", "/models", "/metrics", "/docs", "/openapi.json", "/", "/none")

        async def ask() -> set[int]:
            told = [(await server.client.get(path, headers=key)).status_code for path in paths]
            return {*told, (await server.client.get("/slots")).status_code}

        end = time.monotonic() + 10
        while not server.engine.is_asleep:
            assert await ask() == {200, 401, 404}
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert await ask() == {200, 401, 404}
        assert server.engine.n_loads == 1
        assert (await server.client.get("/slots", headers=key)).status_code == 200
        assert server.engine.n_loads == 2


async def test_a_stream_keeps_it_awake_and_one_that_finds_it_asleep_is_written() -> None:
    async with sleeping() as server:
        server.app.service.sleep.after_s = 0.02
        for n_loads in (1, 2):
            body = {"prompt": PROMPT, **GREEDY, "n_predict": 700, "stream": True}
            began = time.monotonic()
            async with server.client.stream("POST", "/completion", json=body) as answer:
                events = await read_sse(answer.aiter_lines())
            assert len(events) > 600
            assert time.monotonic() - began > 0.04, "it is long enough to mean something"
            assert server.engine.n_loads == n_loads
            await server.asleep()


@pytest.mark.parametrize(
    "body",
    [{"prompt": "a", "options": {"num_predict": 1}}, {"prompt": ""}, {"keep_alive": 0.01}],
    ids=["a prompt", "none", "soon"],
)
async def test_ollamas_keep_alive_unloads_it_sooner_and_only_once(body: Json) -> None:
    async with sleeping() as server:
        server.app.service.sleep.after_s = 60
        answer = await server.client.post("/api/generate", json={"keep_alive": 0, **body, "stream": False})
        assert answer.json()["done_reason"] == {"": "unload", "a": "length"}.get(body.get("prompt"), "load")
        await server.asleep()
        assert await server.get("/api/ps") == {"models": []}
        assert len((await server.get("/api/tags"))["models"]) == 1
        shown = await server.client.post("/api/show", json={"model": "a"})
        assert shown.json()["details"]["family"] == "llama"
        await server.complete()
        assert len((await server.get("/api/ps"))["models"]) == 1
        await asyncio.sleep(4 * 0.01)
        assert server.engine.is_running, "the next request says nothing of it"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": "a", "options": {"num_predict": 1}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "options": {"num_predict": 1}}),
        ("/api/embed", {"input": "a"}),
    ],
)
async def test_ollamas_durations_tell_how_long_the_model_took_to_load(path: str, body: Json) -> None:
    async with sleeping() as server:
        await server.asleep()
        server.engine.hold.clear()
        asked = asyncio.create_task(server.client.post(path, json={**body, "stream": False}))
        await asyncio.sleep(0.1)
        server.engine.hold.set()
        told = (await asked).json()
    assert told["total_duration"] >= told["load_duration"] >= 0.09 * 1e9


async def test_ollamas_keep_alive_keeps_it_no_longer_than_the_server_does() -> None:
    async with sleeping() as server:
        await server.client.post("/api/generate", json={"keep_alive": -1})
        await server.asleep()


async def test_a_thousand_at_once_load_it_once() -> None:
    async with sleeping() as server:
        await server.asleep()
        bodies = [{"content": f"text {number}"} for number in range(1000)]
        told = await asyncio.gather(*(server.client.post("/tokenize", json=body) for body in bodies))
        assert {answer.status_code for answer in told} == {200}
        assert [server.engine.detokenize(answer.json()["tokens"]).strip() for answer in told[::99]] == [
            body["content"] for body in bodies[::99]
        ]
        assert server.engine.n_loads == 2


async def test_a_request_that_comes_while_it_is_unloaded_waits_and_is_served() -> None:
    async with sleeping() as server:
        server.engine.hold_sleep.clear()
        await server.asleep()
        asked = asyncio.create_task(server.complete())
        await asyncio.sleep(0.05)
        assert (server.engine.n_loads, asked.done()) == (1, False)
        assert (await server.get("/props"))["is_sleeping"] is True
        server.engine.hold_sleep.set()
        assert (await asked)["content"]
        assert server.engine.n_loads == 2


async def test_who_leaves_while_it_is_loaded_takes_it_from_nobody() -> None:
    async with sleeping() as server:
        await server.asleep()
        server.engine.hold.clear()
        first = asyncio.create_task(server.complete())
        await wait_until(lambda: server.engine.n_loads == 2)
        second = asyncio.create_task(server.complete())
        await asyncio.sleep(0.02)
        first.cancel()
        await asyncio.sleep(0.02)
        assert (await server.get("/health"))["status"] == "ok"
        server.engine.hold.set()
        assert (await second)["content"]
        assert server.engine.n_loads == 2


async def test_with_nobody_left_who_woke_it_it_falls_asleep_again() -> None:
    async with sleeping() as server:
        await server.asleep()
        server.engine.hold.clear()
        only = asyncio.create_task(server.complete())
        await wait_until(lambda: server.engine.n_loads == 2)
        only.cancel()
        await asyncio.gather(only, return_exceptions=True)
        server.engine.hold.set()
        await wait_until(lambda: server.engine.is_running)
        await server.asleep()
        assert server.engine.n_loads == 2


async def test_a_load_that_fails_is_told_to_all_that_wait_and_the_next_request_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with sleeping() as server:
        await server.asleep()
        server.engine.failures = [MISSING]
        server.engine.hold.clear()
        asked = [asyncio.create_task(server.client.post("/completion", json={"prompt": "a"})) for _ in range(5)]
        await wait_until(lambda: server.engine.n_loads == 2)
        await asyncio.sleep(0.05)
        server.engine.hold.set()
        told = await asyncio.gather(*asked)
        error = {"code": 500, "message": "cannot load the model m.gguf: the disk is gone", "type": "server_error"}
        assert [(answer.status_code, answer.json()) for answer in told] == [(500, {"error": error})] * 5
        assert (await server.get("/health"))["status"] == "ok"
        assert [record.message for record in caplog.records if record.levelname == "ERROR" and "again" in record.message] == [
            "cannot load the model again: cannot load the model m.gguf: the disk is gone"
        ]
        assert (await server.complete())["content"]
        assert server.engine.n_loads == 3


async def test_what_cannot_be_unloaded_stays_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with sleeping() as server:

        async def fail(**_: object) -> None:
            raise RuntimeError("no copies")

        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "export_cache", fail)
            await wait_until(lambda: "the model stays loaded" in caplog.text)
            assert (await server.complete())["content"]
            assert server.engine.n_loads == 1
        await server.asleep()


async def test_what_cannot_be_unloaded_leaves_no_copies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with sleeping() as server:

        async def fail() -> None:
            raise RuntimeError("no sleep")

        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "sleep", fail)
            # Time for some of it to leave the context.
            for number in range(8):
                await server.complete(prompt_of(200, f"chat {number}"))
            await wait_until(lambda: "the model stays loaded" in caplog.text)
            assert await server.engine.export_cache() != []
            assert server.app.service.lifecycle._cache_exports == []
        await server.asleep()


async def test_what_fails_once_the_model_is_loaded_unloads_it_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with sleeping() as server:
        await server.asleep()

        async def fail(_: object) -> None:
            raise weft.InvalidConfigError("chat_template", "it is not good any more")

        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "import_cache", fail)
            assert (await server.client.post("/completion", json={"prompt": "a"})).status_code == 500
        assert (server.engine.n_loads, server.engine.is_asleep) == (2, True)
        assert "cannot load the model again" in caplog.text
        assert (await server.get("/props"))["is_sleeping"] is True
        assert (await server.complete())["content"]
        assert server.engine.n_loads == 3


async def test_what_was_set_survives(tmp_path: Path) -> None:
    adapters = [str(write_adapter(tmp_path / f"{seed}.gguf", seed=seed)) for seed in (1, 2)]
    system = SystemPrompt("A story of a fox and an owl, who meet in the wood by night and talk of the moon.", "User:", "Teller:")
    async with sleeping({"system_prompt": system, "alias": "teller"}, adapters) as server:
        await server.client.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}])
        for prompt in ("first", "second", "third"):
            await server.client.post("/prefixes", json={"prompt": f"{prompt}: {PROMPT} there was a girl who lived by the sea."})
        await server.client.delete(f"/prefixes/{(await server.get('/prefixes'))['prefixes'][2]['id']}")

        async def adapters_and_prefixes() -> list[Json]:
            adapters, listed = [await server.get(path) for path in ("/lora-adapters", "/prefixes")]
            # What all texts begin with is computed anew, with the adapters that are on by then.
            del listed["prefixes"][0]["adapters"]
            return [adapters, listed]

        before = await adapters_and_prefixes()
        assert len(before[1]["prefixes"]) == 3, "the system prompt and two others"
        written = await server.complete()
        for _ in range(2):
            await server.asleep()
            assert await adapters_and_prefixes() == before
            props = await server.get("/props")
            assert (props["model_alias"], props["user_name"], props["assistant_name"]) == ("teller", "User:", "Teller:")
            again = await server.complete()
            assert again["content"] == written["content"]
            assert again["timings"]["cache_n"] >= len(server.engine.tokenize(system.prompt)) - 1, "it was computed on waking"


async def test_a_prefix_keeps_its_number_and_no_other_gets_it() -> None:
    async with sleeping() as server:

        async def pin(prompt: str) -> int:
            return int((await server.client.post("/prefixes", json={"prompt": prompt})).raise_for_status().json()["id"])

        async def listed() -> list[int]:
            return [each["id"] for each in (await server.get("/prefixes"))["prefixes"]]

        ids = [await pin(f"number {number} {PROMPT}") for number in range(4)]
        assert (await server.client.delete(f"/prefixes/{ids[1]}")).status_code == 204
        kept = [ids[0], ids[2], ids[3]]
        await server.asleep()
        assert await listed() == kept
        new = await pin("another one")
        assert new not in ids
        assert (await server.client.delete(f"/prefixes/{ids[1]}")).status_code == 404
        assert (await server.client.delete(f"/prefixes/{ids[2]}")).status_code == 204
        assert await listed() == [ids[0], ids[3], new]
        await server.asleep()
        assert await listed() == [ids[0], ids[3], new]
        for number in (ids[0], ids[3], new):
            assert (await server.client.delete(f"/prefixes/{number}")).status_code == 204
        assert await listed() == []
        assert [(await server.client.delete(f"/prefixes/{number}")).status_code for number in (*ids, new, 77)] == [404] * 6


async def test_what_was_cached_in_memory_is_not_computed_again() -> None:
    async with sleeping() as server:
        # Time for all of it to leave the context.
        server.app.service.sleep.after_s = 0.6
        prompts = [prompt_of(200, f"chat {number}") for number in range(8)]
        shared = prompt_of(150, "shared")
        for prompt in (*prompts, *([*shared, *prompt_of(30, f"branch {number}")] for number in range(3))):
            await server.complete(prompt)
        for _ in range(2):
            await server.asleep()
            assert (await samples(server.client))["weft:host_cache_bytes"] == 0
            for prompt in prompts[2:]:
                told = await server.complete(prompt)
                assert told["timings"]["prompt_n"] == 1
        assert (await server.complete([*shared, 7, 8]))["timings"]["prompt_n"] <= 2


async def test_copies_take_no_more_than_what_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async with weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1) as engine:
        assert await engine.export_cache() == []
        trunk = prompt_of(60, "trunk")
        prompts = [[*trunk, *prompt_of(60, f"leaf {number}")] for number in range(10)]
        for prompt in prompts:
            await engine.complete(prompt, max_tokens=1)
        await wait_until(lambda: engine.stats().host_cache.n_entries > 10)
        copies = await engine.export_cache()
        assert 1 < len(copies) < len(prompts)
        assert sum(copy.n_bytes for copy in copies) <= engine.stats().host_cache.n_bytes
        assert copies[0].tokens[:120] == prompts[-1], "the last one that was used is the first"
        allowed = iter([True, True, False])
        assert len(await engine.export_cache(should_continue=lambda: next(allowed))) == 2
        monkeypatch.setattr("weft.work.cache.free_memory_bytes", lambda: 2 * copies[0].n_bytes)
        assert len(await engine.export_cache()) == 1


async def test_a_request_that_comes_while_copies_are_made_keeps_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sleeping() as server:
        copying, go_on = asyncio.Event(), asyncio.Event()
        real = server.engine.export_cache

        async def export_cache(*, should_continue: Callable[[], bool]) -> Any:  # noqa: ANN401 (what the engine returns)
            copying.set()
            await go_on.wait()
            return await real(should_continue=should_continue)

        monkeypatch.setattr(server.engine, "export_cache", export_cache)
        await server.complete()
        await copying.wait()
        asked = asyncio.create_task(server.complete())
        await asyncio.sleep(0.02)
        assert not asked.done()
        go_on.set()
        assert (await asked)["content"]
        assert server.engine.n_loads == 1
        await server.asleep()


async def test_what_is_counted_goes_on_and_what_there_is_is_nothing_meanwhile() -> None:
    async with sleeping() as server:
        await server.complete(n_predict=5)
        before = await samples(server.client)
        await server.asleep()
        meanwhile = await samples(server.client)
        assert {name for name in before if meanwhile[name] < before[name]} == {
            "weft:cells", "weft:cells_used", "weft:cells_idle", "weft:cells_reached", "weft:sequence_ids",
            "weft:sequence_ids_used", "weft:host_cache_limit_bytes", "weft:host_cache_bytes", "weft:host_cache_entries",
            "llamacpp:kv_cache_tokens", "llamacpp:kv_cache_usage_ratio", "llamacpp:n_busy_slots_per_decode",
        } & {name for name, value in before.items() if value}  # fmt: skip
        await server.complete(n_predict=3)
        after = await samples(server.client)
        assert after["llamacpp:tokens_predicted_total"] == before["llamacpp:tokens_predicted_total"] + 3
        assert after["weft:prompt_tokens_total computed"] > before["weft:prompt_tokens_total computed"]
        assert after["llamacpp:n_decode_total"] < 3 * before["llamacpp:n_decode_total"]
        kernels = "weft:kernel_calls_total products"
        stats = server.engine.stats()
        assert after[kernels] <= stats.n_kernel_products, "they are the process's, and not counted twice"
        await server.asleep()
        assert (await samples(server.client))["llamacpp:tokens_predicted_total"] == after["llamacpp:tokens_predicted_total"]


async def test_an_engine_that_dies_on_waking_is_found_dead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with sleeping() as server:
        await server.asleep()

        async def die(_: object) -> None:
            assert server.engine._native is not None
            server.engine._native.stop()
            raise weft.EngineStoppedError

        monkeypatch.setattr(server.engine, "import_cache", die)
        assert (await server.client.post("/completion", json={"prompt": "a"})).status_code == 503
        await wait_until(lambda: "the engine has died" in caplog.text)
        assert (await server.client.get("/health")).status_code == 503


@pytest.mark.parametrize("is_loading", [False, True])
async def test_a_server_that_is_stopped_wakes_no_more(is_loading: bool) -> None:
    async with sleeping() as server:
        await server.asleep()
        server.engine.hold.clear()
        asked = [asyncio.create_task(server.client.post("/completion", json={"prompt": "a"})) for _ in range(is_loading)]
        await wait_until(lambda: server.engine.n_loads == 1 + is_loading)
        await server.app.service.stop_engine()
        told = [await task for task in asked]
        told.append(await server.client.post("/completion", json={"prompt": "a"}))
        assert {(answer.status_code, answer.json()["error"]["message"]) for answer in told} == {(503, "the engine has stopped")}
        assert server.engine.n_loads == 1 + is_loading
        server.engine.hold.set()


async def test_without_the_flag_it_never_sleeps() -> None:
    engine = CountedEngine()
    app = create_app(engine, Settings())
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        await client.post("/completion", json={"prompt": "a", "n_predict": 1})
        assert app.service.sleep._timer is None
        await asyncio.sleep(2 * AFTER_S)
        assert (await client.get("/props")).json()["is_sleeping"] is False


def threads_of_engine(server: LiveServer) -> list[str]:
    """The names of the threads that the engine has started, sorted; Python's and the web server's come and go."""
    tasks = Path(f"/proc/{server.worker_id()}/task").iterdir()
    names = sorted((task / "comm").read_text().strip() for task in tasks)
    return [name for name in names if name.startswith("weft-") and name != "weft-log"]


async def test_asleep_it_holds_neither_the_models_memory_nor_its_threads_and_a_signal_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_models, "_N_FF", 65_536)
    tiny_models.write_tiny_model("attention", tmp_path / "m.gguf")
    n_bytes = (tmp_path / "m.gguf").stat().st_size
    assert n_bytes > 90_000_000
    flags = ("-m", str(tmp_path / "m.gguf"), "-c", "512", "-np", "1", "--no-mmap", "--sleep-idle-seconds", "1")
    with LiveServer(tmp_path / "log", *flags) as server:
        await server.ready()

        async def ask() -> Json:
            async with httpx.AsyncClient(timeout=30) as client:
                body = {"prompt": "abc", "n_predict": 4, "temperature": 0}
                return (await client.post(f"{server.url}/completion", json=body)).raise_for_status().json()["content"]

        def is_sleeping() -> bool:
            return bool(server.get("/props")["is_sleeping"])

        written = await ask()
        awake = server.memory_bytes()

        async def fall_asleep() -> None:
            await wait_until(is_sleeping)
            await wait_until(lambda: awake - server.memory_bytes() > 0.9 * n_bytes)

        await fall_asleep()
        assert await ask() == written
        threads = threads_of_engine(server)
        assert "weft-worker" in threads
        for _ in range(2):
            await fall_asleep()
            await wait_until(lambda: threads_of_engine(server) == [])
            assert await ask() == written
            await wait_until(lambda: threads_of_engine(server) == threads)
            assert server.memory_bytes() < awake + n_bytes / 4
        await wait_until(is_sleeping)
        signalled = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0
        assert time.monotonic() - signalled < 2
        log = server.log
    assert "INFO no request for 1 s: unloading the model; the next request loads it again" in log
    assert log.count("INFO loaded the model again in") == 3
    assert "ERROR" not in log
    assert "WARNING" not in log
