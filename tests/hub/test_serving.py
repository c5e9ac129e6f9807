"""A server whose model is named: it listens while the model comes, and says how far it is."""

import asyncio
import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import weft
from tests.engine.tiny_projectors import write_tiny_projector
from tests.helpers import wait_until
from tests.hub.fake_hub import PIECE, FakeHub
from tests.server.live import LiveServer
from tests.server.test_serve import shown_on_a_terminal
from weft.hub import Progress
from weft.serving import fetching
from weft.settings import Settings

REPO = "user/storyteller"
FILE = "storyteller-Q8_0.gguf"
DATA = Path(weft.DEMO_MODEL).read_bytes()


@pytest.fixture(autouse=True)
def _has_the_demo_model(hub: FakeHub) -> None:
    hub.repos[REPO] = {FILE: DATA}
    hub.files["/x.gguf"] = DATA


def health(server: LiveServer) -> dict[str, Any]:
    try:
        answer = httpx.get(f"{server.url}/health")
    except httpx.TransportError:
        return {}
    return {"code": answer.status_code, **answer.json()}


async def test_it_answers_503_with_the_progress_while_the_model_comes(hub: FakeHub, tmp_path: Path) -> None:
    hub.hold = threading.Event()
    with LiveServer(tmp_path / "log", "-hf", f"{REPO}:q8_0", "-np", "1") as server:
        await wait_until(lambda: health(server).get("download", {}).get("bytes", 0) >= len(DATA) // 2 - PIECE, 120)
        told = health(server)
        n_bytes = told["download"].pop("bytes")
        assert told == {
            "code": 503,
            "status": "loading model",
            "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"},
            "download": {"file": FILE, "total": len(DATA)},
        }
        assert 0 < n_bytes < len(DATA)
        hub.hold.set()
        await server.ready()
        assert server.get("/v1/models")["data"][0]["id"] == f"{REPO}:q8_0"
        log = server.log
    assert f"INFO downloading {REPO}: {FILE}, 3." in log
    assert "demo" not in log
    assert not [line for line in log.splitlines() if "HTTP" in line or "%" in line], "no request and no bar stands in the log"
    hub.asked.clear()
    with LiveServer(tmp_path / "log", "-hf", REPO, "--offline", "-np", "1") as server:
        await server.ready()
        assert f"INFO {REPO} is cached: " in server.log
    assert hub.asked == []


async def test_a_signal_ends_a_download_and_the_next_start_goes_on_with_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.hold = threading.Event()
    with LiveServer(tmp_path / "log", "-mu", f"{hub.url}/x.gguf", "-np", "1") as server:
        await wait_until(lambda: health(server).get("download", {}).get("bytes", 0) >= len(DATA) // 2 - PIECE, 120)
        signalled = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        await wait_until(lambda: server.process.poll() is not None)
        assert time.monotonic() - signalled < 2
        assert (server.process.returncode, "ERROR" in server.log) == (0, False)
    hub.hold.set()
    with LiveServer(tmp_path / "log", "-mu", f"{hub.url}/x.gguf", "-np", "1") as server:
        await server.ready()
        assert server.get("/v1/models")["data"][0]["id"] == "x.gguf"
    [begins] = hub.ranges
    assert int(begins.removeprefix("bytes=").removesuffix("-")) > len(DATA) // 4


@pytest.mark.parametrize(
    ("named", "model"),
    [(["-hf", f"{REPO}:q8_0"], f"{REPO}:q8_0"), (["-hf", REPO, "-hff", FILE], REPO), (["-mu", "/x.gguf?token=secret"], "x.gguf")],
    ids=["repository", "file", "address"],
)
async def test_a_model_has_its_name_and_its_state_from_the_start_on(
    hub: FakeHub, tmp_path: Path, named: list[str], model: str
) -> None:
    told: list[tuple[str, str]] = []

    def tell() -> str:
        try:
            [card] = server.get("/v1/models")["data"]
        except httpx.TransportError:
            return ""
        if not told or told[-1] != (card["id"], card["engine_state"]):
            told.append((card["id"], card["engine_state"]))
        return str(card["engine_state"])

    hub.hold = threading.Event()
    flag, where, *more = named
    with LiveServer(tmp_path / "log", "--compat", "srb", flag, where.replace("/x", f"{hub.url}/x"), *more, "-np", "1") as server:
        await wait_until(lambda: tell() == "INIT" and "download" in health(server), 120)
        hub.hold.set()
        await wait_until(lambda: tell() == "READY", 120)
    assert [(name, state) for name, state in told if state != "LOADING"] == [(model, "INIT"), (model, "READY")]
    assert {name for name, _ in told} == {model}


def test_an_engine_says_when_its_model_is_here_whatever_its_progress_told(hub: FakeHub) -> None:
    engine = fetching.FetchingEngine(
        Settings(model_url=f"{hub.url}/x.gguf", engine=weft.EngineConfig(n_slots=1, n_ctx=256, n_threads=1, tuned=False)),
        has_bar=False,
        on_fetching=lambda progress: None,
        on_progress=lambda _: seen.append(engine.has_files),
    )
    seen = [engine.has_files]

    async def start() -> None:
        async with engine:
            pass

    asyncio.run(start())
    assert seen[0] is False
    assert set(seen[1:]) == {True}


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (["-hf", "user/none"], "ERROR cannot load the model user/none: http://"),
        (["-hf", f"{REPO}:Q2_K"], f"ERROR cannot load the model {REPO}:Q2_K: it has no Q2_K; available are Q8_0"),
        (["-hf", REPO, "--offline"], f"ERROR cannot load the model {REPO}: it is not cached in "),
    ],
    ids=["no repository", "no quantisation", "offline"],
)
def test_what_cannot_be_had_ends_it_with_the_reason_last(named: list[str], why: str, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", *named) as server:
        assert server.process.wait(20) == 1
    assert why in server.log.splitlines()[-1]
    assert "Traceback" not in server.log


def test_a_projector_that_cannot_be_had_ends_it_and_is_called_one(hub: FakeHub, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "-mmu", f"{hub.url}/none.gguf") as server:
        assert server.process.wait(20) == 1
    said = f" ERROR -mmu/--mmproj-url: cannot load the projector {hub.url}/none.gguf: {hub.url}/none.gguf returned 404 Not Found"
    assert server.log.splitlines()[-1].endswith(said)


async def test_an_image_is_served_by_its_name(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DOCKER_REGISTRY", hub.url)
    hub.images["ai/storyteller:Q8_0"] = DATA
    with LiveServer(tmp_path / "log", "-dr", "storyteller:Q8_0", "-np", "1") as server:
        await server.ready()
        assert server.get("/v1/models")["data"][0]["id"] == "storyteller:Q8_0"
        assert "INFO downloading ai/storyteller:Q8_0, 3." in server.log


async def sees(server: LiveServer) -> bool:
    await server.ready()
    vision: bool = server.get("/props")["modalities"]["vision"]
    return vision


async def test_a_repositorys_projector_comes_with_its_model_unless_it_is_not_wanted(hub: FakeHub, tmp_path: Path) -> None:
    model, projector = write_tiny_projector("llava", tmp_path)
    hub.repos["user/seeing"] = {"m-F32.gguf": model.read_bytes(), "mmproj-m-F32.gguf": projector.read_bytes()}
    hub.files["/mmproj.gguf"] = projector.read_bytes()
    flags = ("-np", "1", "-c", "1024")
    with LiveServer(tmp_path / "log", "-hf", "user/seeing", "--no-mmproj", *flags) as server:
        assert not await sees(server)
    assert not [asked for asked in hub.asked if "mmproj" in asked]
    with LiveServer(tmp_path / "log", "-hf", "user/seeing", *flags) as server:
        assert await sees(server)
        assert "INFO its projector is mmproj-m-F32.gguf" in server.log
    hub.asked.clear()
    with LiveServer(tmp_path / "log", "-hf", "user/seeing", "--offline", *flags) as server:
        assert await sees(server)
    assert hub.asked == []
    with LiveServer(tmp_path / "log", "-m", str(model), "-mmu", f"{hub.url}/mmproj.gguf", *flags) as server:
        assert await sees(server)
        assert server.get("/v1/models")["data"][0]["id"] == model.name


async def test_a_terminal_sees_the_bar_of_the_hubs_library() -> None:
    shown = await shown_on_a_terminal("-hf", REPO, n_columns=100)
    assert f"{FILE}: 100%" in shown
    assert f"\rloading {REPO} [{'#' * 30}] 100%" in shown


def test_without_a_terminal_the_log_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetching, "LOG_EVERY_S", 0)
    told: list[Progress] = []
    engine = fetching.FetchingEngine(Settings(hf_repo=REPO), has_bar=False, on_fetching=told.append, on_progress=None)
    with caplog.at_level(logging.INFO, "weft"):
        engine._on_progress_of_download(Progress(FILE, 1_500_000, 3_000_000_000))
        engine._on_progress_of_download(Progress(FILE, 2_000_000, None))
    assert [record.message for record in caplog.records] == [
        f"downloading {FILE}: 1.5 MB of 3.0 GB",
        f"downloading {FILE}: 2.0 MB",
    ]
    assert len(told) == 2
