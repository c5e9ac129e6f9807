"""Models of the hub: what is downloaded, kept and taken again, and what is said where that cannot be."""

import asyncio
import hashlib
import logging
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants

import weft
import weft.hub
from tests.helpers import names_in, wait_until
from tests.hub.fake_hub import PIECE, FakeHub
from weft.hub import Progress, folders

REPO = "user/model"
DATA = b"GGUF" + bytes(range(256)) * 256
"""A file of 16 pieces and a bit."""


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def blobs(tmp_path: Path) -> list[str]:
    return names_in(tmp_path / "hub" / "models--user--model" / "blobs")


def test_a_model_is_downloaded_once_and_found_again(hub: FakeHub) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA, "m-Q2_K.gguf": b"GGUF2"}
    path = weft.hub.model(REPO)
    assert path.name == "m-Q8_0.gguf"
    assert path.read_bytes() == DATA
    assert hub.n_sent == len(DATA)
    assert weft.hub.model(f"{REPO}:q8_0") == path
    assert hub.n_sent == len(DATA)


def test_it_lies_where_the_hubs_library_and_llama_cpp_find_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    path = weft.hub.model(REPO)
    folder = tmp_path / "hub" / "models--user--model"
    assert path == folder / "snapshots" / hub.commit(REPO) / "m-Q8_0.gguf"
    assert path.resolve() == folder / "blobs" / hashlib.sha256(DATA).hexdigest()
    assert (folder / "refs" / "main").read_text() == hub.commit(REPO)


def test_where_llama_cpps_variable_names_a_cache_it_is_there(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    assert weft.hub.model(REPO).is_relative_to(tmp_path / "llama")


def test_all_parts_of_a_split_model_are_brought(hub: FakeHub) -> None:
    parts = [f"Q4_K_M/m-Q4_K_M-0000{index}-of-00002.gguf" for index in (1, 2)]
    hub.repos[REPO] = dict.fromkeys(parts, DATA) | {"m-Q8_0.gguf": b"GGUF8", parts[1]: DATA + b"2"}
    told: list[Progress] = []
    path = weft.hub.model(REPO, on_progress=told.append)
    assert path.name == "m-Q4_K_M-00001-of-00002.gguf"
    assert path.with_name("m-Q4_K_M-00002-of-00002.gguf").read_bytes() == DATA + b"2"
    n = 2 * len(DATA) + 1
    assert (told[-1], hub.n_sent) == (Progress(parts[1], n, n), n)
    assert [one.n_bytes for one in told] == sorted(one.n_bytes for one in told)


def test_a_new_version_is_downloaded(hub: FakeHub) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    weft.hub.model(REPO)
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA + b"new"}
    assert weft.hub.model(REPO).read_bytes() == DATA + b"new"
    assert weft.hub.model(REPO, offline=True).read_bytes() == DATA + b"new"


def test_a_cut_download_goes_on_where_it_was(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    hub.cuts = [3 * PIECE, 5 * PIECE]
    with caplog.at_level(logging.WARNING, "weft"):
        assert weft.hub.model(REPO).read_bytes() == DATA
    assert hub.n_sent == len(DATA)
    assert hub.ranges == [f"bytes={3 * PIECE}-", f"bytes={8 * PIECE}-"]
    assert "; resuming at 12.3 kB" in caplog.text


def test_a_server_that_only_cuts_is_given_up_and_what_came_is_kept(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    hub.cuts = [2 * PIECE, *[0] * 10]
    with pytest.raises(weft.ModelLoadError, match="cannot be reached: peer closed connection"):
        weft.hub.model(REPO)
    assert blobs(tmp_path) == [f"{hashlib.sha256(DATA).hexdigest()}.incomplete"]
    with pytest.raises(weft.ModelLoadError, match="it is not cached in "):
        weft.hub.model(REPO, offline=True)
    hub.cuts = []
    assert weft.hub.model(REPO).read_bytes() == DATA
    assert hub.n_sent == len(DATA)
    assert blobs(tmp_path) == [hashlib.sha256(DATA).hexdigest()]


def test_what_is_damaged_on_its_way_is_thrown_away(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    hub.damages = True
    with pytest.raises(weft.ModelLoadError, match=r"m-Q8_0.gguf was damaged in transfer: its SHA-256 is \w+, not \w+$"):
        weft.hub.model(REPO)
    assert blobs(tmp_path) == []
    hub.damages = False
    assert weft.hub.model(REPO).read_bytes() == DATA


def test_offline_takes_what_is_cached_and_asks_nobody(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    path = weft.hub.model(REPO)
    hub.asked.clear()
    assert weft.hub.model(REPO, offline=True) == path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert weft.hub.model(REPO) == path
    assert hub.asked == []


def test_offline_never_takes_a_split_model_of_which_a_part_is_missing(hub: FakeHub) -> None:
    parts = [f"m-0000{index}-of-00002.gguf" for index in (1, 2)]
    hub.repos[REPO] = {parts[0]: DATA, parts[1]: DATA + b"2"}
    weft.hub.model(REPO).with_name(parts[1]).unlink()
    with pytest.raises(weft.ModelLoadError, match=rf"in the cache .*, {parts[1]}, a part of the model, is missing; --off"):
        weft.hub.model(REPO, offline=True)


@pytest.mark.parametrize("is_down", [True, False], ids=["returned 503", "is not reached"])
def test_where_the_hub_does_not_answer_what_is_cached_is_taken_and_that_is_said(
    hub: FakeHub, is_down: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    path = weft.hub.model(REPO)
    if is_down:
        hub.status = 503
    else:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    with caplog.at_level(logging.WARNING, "weft"):
        assert weft.hub.model(REPO) == path
    assert "; using the cached files" in caplog.text
    with pytest.raises(weft.ModelLoadError, match=r"(returned 503 .*|cannot be reached: .*), and it is not cached$"):
        weft.hub.model("user/other")


TOKEN = r"-hft/--hf-token or HF_TOKEN"


@pytest.mark.parametrize(
    ("repo", "token", "why"),
    [
        ("user/none", None, rf"/user/none does not exist, or it requires a token \({TOKEN}\) \(404 Not Found\)"),
        ("user/none", "right", rf"/user/none does not exist, or the token of {TOKEN} has no access to it \(404 Not Found\)"),
        ("user/private", None, rf"/user/private does not exist, or it requires a token \({TOKEN}\) \(401 Unauthorized\)"),
        ("user/private", "wrong", rf"/user/private rejects the token of {TOKEN}"),
        (
            "user/gated",
            None,
            rf"access requires its owners' terms to be accepted at http.*/user/gated; then pass a token with {TOKEN}",
        ),
        (
            "user/gated",
            "right",
            r"access requires its owners' terms to be accepted .*/user/gated; and use a token of a user who has",
        ),
        ("user/private:Q2_K", "right", "it has no Q2_K; available are Q8_0"),
    ],
)
def test_what_the_hub_refuses_is_said_in_a_sentence(hub: FakeHub, repo: str, token: str | None, why: str) -> None:
    hub.repos |= {"user/private": {"m-Q8_0.gguf": DATA}, "user/gated": {"m-Q8_0.gguf": DATA}}
    hub.private["user/private"] = "right"
    hub.gated.add("user/gated")
    with pytest.raises(weft.ModelLoadError) as error:
        weft.hub.model(repo, token=token)
    assert re.fullmatch(f"cannot load the model {repo}: .*{why}", str(error.value))


@pytest.mark.parametrize("is_variable", [False, True])
def test_the_right_token_opens(hub: FakeHub, is_variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    hub.private[REPO] = "right"
    if is_variable:
        monkeypatch.setenv("HF_TOKEN", "right")
    assert weft.hub.model(REPO, token=None if is_variable else "right").read_bytes() == DATA
    assert hub.tokens == [None], "the server that the hub points to is shown none"


@pytest.mark.parametrize("repo", ["model", "a/b/c", "/b", "a/", "a/b:", "a/b:c/d", "../b", "a/b c", "a/" + "b" * 300])
def test_what_is_no_repository_is_told_so(repo: str) -> None:
    with pytest.raises(ValueError, match="is not USER/MODEL or USER/MODEL:QUANT"):
        weft.hub.model(repo)


def test_a_disk_without_room_is_said_before_anything_comes(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        weft.ModelLoadError, match=r"65\.5 kB of its 65\.5 kB must still be downloaded to .*, which has 1\.0 kB of free space"
    ):
        weft.hub.model(REPO)
    assert hub.n_sent == 0


def test_a_disk_that_fills_up_ends_it_and_the_rest_comes_later(hub: FakeHub) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PIECE, before[1]))
    try:
        with pytest.raises(weft.ModelLoadError, match=r"cannot write .*: File too large"):
            weft.hub.model(REPO)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert weft.hub.model(REPO).read_bytes() == DATA
    assert hub.ranges == [f"bytes={2 * PIECE}-"]


async def test_of_two_that_want_the_same_one_waits_and_it_comes_once(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    hub.hold = threading.Event()
    code = f"import weft.hub; print(weft.hub.model({REPO!r}))"
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    try:
        await wait_until(lambda: any(line.startswith("GET /cdn") for line in hub.asked), 120)
        with caplog.at_level(logging.INFO, "weft"):
            waiting = asyncio.create_task(asyncio.to_thread(weft.hub.model, REPO))
            await wait_until(lambda: "waiting for another process to download it" in caplog.text)
        hub.hold.set()
        ours = await waiting
        theirs, _ = await other.communicate()
    finally:
        if other.returncode is None:
            other.kill()
            await other.wait()
    assert ours == Path(theirs.decode().strip())
    assert ours.read_bytes() == DATA
    assert hub.n_sent == len(DATA)


def test_what_is_cached_is_listed_as_llama_cpp_does(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    from weft.cli.main import parse  # noqa: PLC0415

    parts = {f"m-Q6_K-0000{index}-of-00002.gguf": DATA + bytes([index]) for index in (1, 2)}
    hub.repos = {REPO: {"m-Q8_0.gguf": DATA, "mmproj-F16.gguf": DATA}, "a/b": parts, "a/half": parts}
    for named in (REPO, "a/b", "a/half"):
        path = weft.hub.model(named)
    path.unlink()
    weft.hub.model(REPO, file="mmproj-F16.gguf")
    hub.files["/x.gguf"] = DATA
    weft.hub.model(url=f"{hub.url}/x.gguf?secret=1")
    with pytest.raises(SystemExit) as ended:
        parse(["-cl"], {})
    assert ended.value.code == 0
    listed = f"number of models in cache: 3\n   1. a/b:Q6_K\n   2. user/model:Q8_0\n   3. {hub.url}/x.gguf\n"
    assert capsys.readouterr().out == listed


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.hub, "find_spec", lambda _: None)
    with pytest.raises(weft.ModelLoadError, match=r"require the package huggingface-hub: pip install huggingface-hub$"):
        weft.hub.model(REPO)


def test_a_server_that_names_paths_beside_the_cache_is_not_followed(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos[REPO] = {"../../../../evil.gguf": DATA}
    with pytest.raises(weft.ModelLoadError, match="a path outside the cache"):
        weft.hub.model(REPO)
    assert "evil.gguf" not in files_below(tmp_path)


def test_the_cache_is_where_the_hubs_library_has_it(tmp_path: Path) -> None:
    assert folders.hub_folder() == tmp_path / "hub"


def test_the_projector_beside_a_model_comes_with_it_where_it_is_wanted(hub: FakeHub) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA, "mmproj-F32.gguf": b"GGUF32", "mmproj-F16.gguf": b"GGUF16"}
    wanting, plain = weft.hub.Source(repo=REPO, wants_projector=True), weft.hub.Source(repo=REPO)
    model, projector = weft.hub.find(plain)
    assert (model.name, projector) == ("m-Q8_0.gguf", None)
    model, projector = weft.hub.find(wanting)
    assert projector is not None
    assert (model.read_bytes(), projector.read_bytes(), hub.n_sent) == (DATA, b"GGUF16", len(DATA) + 6)
    hub.asked.clear()
    assert weft.hub.find(weft.hub.Source(repo=REPO, wants_projector=True, offline=True)) == (model, projector)
    assert hub.asked == []


def test_a_repository_without_a_projector_gives_none(hub: FakeHub) -> None:
    hub.repos[REPO] = {"m-Q8_0.gguf": DATA}
    assert weft.hub.find(weft.hub.Source(repo=REPO, wants_projector=True)).projector is None
