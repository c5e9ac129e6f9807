"""Models of a registry of images: what is asked of it, downloaded, kept and taken again."""

import hashlib
import re
from pathlib import Path

import pytest

import weft
import weft.hub
from tests.hub.fake_hub import PIECE, FakeHub
from weft.hub import Progress

DATA = b"GGUF" + bytes(range(256)) * 256
DIGEST = hashlib.sha256(DATA).hexdigest()
MODEL = "ai/smollm2:135M-Q4_0"


@pytest.fixture(autouse=True)
def _registry(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DOCKER_REGISTRY", f"{hub.url}/")
    hub.images[MODEL] = DATA


def test_an_image_is_downloaded_once_with_a_token_from_where_the_registry_says(hub: FakeHub) -> None:
    told: list[Progress] = []
    path = weft.hub.model(docker=MODEL, on_progress=told.append)
    assert (path.name, path.read_bytes()) == (f"{DIGEST}.gguf", DATA)
    assert hub.asked == [
        "GET /v2/ai/smollm2/manifests/135M-Q4_0",
        "GET /grants",
        "GET /v2/ai/smollm2/manifests/135M-Q4_0",
        f"GET /v2/ai/smollm2/blobs/sha256:{DIGEST}",
        f"GET /layers/{DIGEST}",
    ]
    assert hub.grants == ["scope=repository%3Aai%2Fsmollm2%3Apull&service=registry.docker.io"]
    assert hub.tokens == [None], "the token is for the registry alone"
    assert told[-1] == Progress(MODEL, len(DATA), len(DATA))
    hub.asked.clear()
    assert weft.hub.model(docker=MODEL) == path
    assert [asked for asked in hub.asked if "manifests" not in asked] == ["GET /grants"]
    hub.asked.clear()
    assert weft.hub.model(docker=MODEL, offline=True) == path
    assert hub.asked == []
    assert weft.hub.cached() == [f"docker.io/{MODEL}"]
    assert weft.hub.model(docker=f"docker.io/{MODEL}") == path


@pytest.mark.parametrize(
    ("named", "meant"),
    [("m", "ai/m:latest"), ("m:Q8_0", "ai/m:Q8_0"), ("a/m", "a/m:latest"), ("a/b--c/m:x.y", "a/b--c/m:x.y")],
)
def test_what_a_name_leaves_out(hub: FakeHub, named: str, meant: str) -> None:
    hub.images[meant] = DATA
    assert weft.hub.model(docker=named).read_bytes() == DATA
    assert weft.hub.cached() == [f"docker.io/{meant}"]


def test_a_tag_may_come_to_mean_another_file(hub: FakeHub) -> None:
    old = weft.hub.model(docker=MODEL)
    hub.images[MODEL] = DATA + b"new"
    new = weft.hub.model(docker=MODEL)
    assert (new.read_bytes(), old.is_file()) == (DATA + b"new", True)
    assert weft.hub.model(docker=MODEL, offline=True) == new


def test_a_cut_download_goes_on_and_does_so_in_the_next_start(hub: FakeHub) -> None:
    hub.cuts = [3 * PIECE, PIECE, *[0] * 5]
    with pytest.raises(weft.ModelLoadError, match=r"cannot be reached: peer closed connection"):
        weft.hub.model(docker=MODEL)
    assert hub.ranges == [f"bytes={n * PIECE}-" for n in (3, 4, 4, 4, 4, 4)]
    with pytest.raises(weft.ModelLoadError, match=r"it is not cached in .*, and --offline prevents its download"):
        weft.hub.model(docker=MODEL, offline=True)
    hub.cuts, hub.ranges = [], []
    assert weft.hub.model(docker=MODEL).read_bytes() == DATA
    assert hub.ranges == [f"bytes={4 * PIECE}-"]


def test_a_token_that_runs_out_on_the_way_is_replaced(hub: FakeHub) -> None:
    hub.cuts, hub.lasts = [3 * PIECE, 2 * PIECE], 1
    told: list[Progress] = []
    assert weft.hub.model(docker=MODEL, on_progress=told.append).read_bytes() == DATA
    assert len(hub.grants) == 3
    assert hub.ranges == [f"bytes={n * PIECE}-" for n in (3, 5)]
    assert told[-1].n_bytes == len(DATA), "no byte is counted twice"


def test_what_has_another_hash_is_thrown_away(hub: FakeHub, tmp_path: Path) -> None:
    hub.damages = True
    with pytest.raises(weft.ModelLoadError, match=rf"was damaged in transfer: its SHA-256 is \w+, not {DIGEST}"):
        weft.hub.model(docker=MODEL)
    assert [path.name for path in (tmp_path / "xdg").rglob("*") if path.is_file()] == ["lock"]
    hub.damages = False
    assert weft.hub.model(docker=MODEL).read_bytes() == DATA


@pytest.mark.parametrize(("locked", "name", "said"), [(True, MODEL, "401"), (False, "ai/none", "404")])
def test_what_is_not_there_and_what_may_not_be_read_is_told(hub: FakeHub, locked: bool, name: str, said: str) -> None:
    hub.locked = locked
    why = rf"/v2/ai/\w+ has no such image, or requires a login, which is not supported \({said} \w+"
    with pytest.raises(weft.ModelLoadError, match=why):
        weft.hub.model(docker=name)


def test_where_the_registry_is_down_what_is_cached_is_taken(hub: FakeHub) -> None:
    path = weft.hub.model(docker=MODEL)
    hub.status = 503
    assert weft.hub.model(docker=MODEL) == path
    with pytest.raises(weft.ModelLoadError, match="returned 503"):
        weft.hub.model(docker="ai/other")


def test_a_tag_whose_note_is_damaged_is_as_if_it_were_not_there(hub: FakeHub) -> None:
    path = weft.hub.model(docker=MODEL)
    [note] = path.parent.glob("*.tag")
    for damaged in (b"", b"\n", b"../x\n", b"\xff\n", b"cut"):
        note.write_bytes(damaged)
        with pytest.raises(weft.ModelLoadError, match="it is not cached in"):
            weft.hub.model(docker=MODEL, offline=True)
    assert weft.hub.model(docker=MODEL) == path
    assert weft.hub.model(docker=MODEL, offline=True) == path
    assert sorted(each.name for each in path.parent.iterdir()) == sorted([path.name, note.name, "lock"])


@pytest.mark.parametrize("asked", ["realm=", "realm", 'realm="https://[x/"'])
def test_a_registry_that_does_not_say_where_tokens_are_is_told(hub: FakeHub, asked: str) -> None:
    hub.challenge = f"Bearer {asked}"
    with pytest.raises(weft.ModelLoadError, match=re.escape(f"requires a token, but names no valid issuer: {asked!r}")):
        weft.hub.model(docker=MODEL)


def test_where_tokens_are_may_have_a_query_of_its_own(hub: FakeHub) -> None:
    hub.challenge = f'Bearer realm="{hub.url}/grants?account=a",service="s"'
    assert weft.hub.model(docker=MODEL).read_bytes() == DATA
    assert hub.grants == ["account=a&scope=repository%3Aai%2Fsmollm2%3Apull&service=s"]


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({"layers": []}, "no layer of the image is a GGUF file"),
        ({"layers": [{"mediaType": "gguf", "digest": "sha256:../../x"}]}, "'sha256:../../x', which is not a SHA-256"),
        ({"layers": [{"mediaType": "gguf", "digest": f"sha256:{'a' * 64}"}] * 2}, "2 layers of the image are GGUF files"),
        ({"layers": 7}, "does not return a manifest: Expected `array`, got `int`"),
    ],
)
def test_a_manifest_without_one_model_is_told(hub: FakeHub, manifest: object, why: str) -> None:
    hub.manifests["ai/m:latest"] = manifest
    with pytest.raises(weft.ModelLoadError, match=re.escape(why)):
        weft.hub.model(docker="m")


def test_a_registry_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DOCKER_REGISTRY", "docker.io")
    with pytest.raises(weft.ModelLoadError, match=r"WEFT_DOCKER_REGISTRY is 'docker\.io', which is not a URL"):
        weft.hub.model(docker=MODEL)


@pytest.mark.parametrize("name", ["", "Ai/m", "m:", "a//m", "../m", "m:../x", "m@sha256:1", "a/b/c/d/m", "http://a/m"])
def test_what_is_no_image_is_told_so(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape("is not [REPO/]MODEL[:TAG] in lowercase")):
        weft.hub.model(docker=name)
