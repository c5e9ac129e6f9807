"""Models at addresses: what is downloaded, kept and taken again."""

import re
from pathlib import Path

import pytest

import weft
import weft.hub
from tests.hub.fake_hub import PIECE, FakeHub

DATA = b"GGUF" + bytes(range(256)) * 256


def incomplete(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "xdg").rglob("*.incomplete"))


def n_bodies(hub: FakeHub) -> int:
    """Whole files that were sent; to look at one costs at most a few pieces."""
    return hub.n_sent // len(DATA)


def test_a_model_is_downloaded_once(hub: FakeHub) -> None:
    hub.files["/some/m.gguf"] = DATA
    path = weft.hub.model(url=f"{hub.url}/some/m.gguf?download=true")
    assert path.name == "m.gguf"
    assert path.read_bytes() == DATA
    hub.asked.clear()
    assert weft.hub.model(url=f"{hub.url}/some/m.gguf?download=true") == path
    assert hub.asked == ["GET /some/m.gguf"], "one look at its version"
    hub.asked.clear()
    assert weft.hub.model(url=f"{hub.url}/some/m.gguf?download=true", offline=True) == path
    assert hub.asked == []


def test_another_address_is_another_file(hub: FakeHub) -> None:
    hub.files |= {"/a/m.gguf": DATA, "/b/m.gguf": DATA + b"b"}
    first, second = (weft.hub.model(url=f"{hub.url}/{folder}/m.gguf") for folder in "ab")
    assert (first.read_bytes(), second.read_bytes()) == (DATA, DATA + b"b")


def test_a_new_version_is_downloaded_and_its_rest_is_not_taken_for_the_olds(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["/m.gguf"] = DATA
    url = f"{hub.url}/m.gguf"
    # The first answer is looked at, the others break off.
    hub.cuts = [len(DATA), 2 * PIECE, *[0] * 10]
    with pytest.raises(weft.ModelLoadError):
        weft.hub.model(url=url)
    assert [path.stat().st_size for path in incomplete(tmp_path)] == [2 * PIECE]
    hub.cuts = []
    hub.files["/m.gguf"] = DATA[:4] + DATA[:3:-1]
    assert weft.hub.model(url=url).read_bytes() == DATA[:4] + DATA[:3:-1]
    assert hub.ranges == [f"bytes={2 * PIECE}-"] * 5, "but for those of the first version"
    assert incomplete(tmp_path) == []
    hub.files["/m.gguf"] = DATA
    assert weft.hub.model(url=url).read_bytes() == DATA


def test_a_cut_download_goes_on_in_the_next_start(hub: FakeHub) -> None:
    hub.files["/m.gguf"] = DATA
    hub.cuts = [len(DATA), 3 * PIECE, *[0] * 5]
    with pytest.raises(weft.ModelLoadError, match=r"cannot be reached: peer closed connection"):
        weft.hub.model(url=f"{hub.url}/m.gguf")
    hub.cuts, hub.ranges = [], []
    assert weft.hub.model(url=f"{hub.url}/m.gguf").read_bytes() == DATA
    assert hub.ranges == [f"bytes={3 * PIECE}-"]


def test_without_a_version_a_cut_download_begins_anew_and_a_whole_one_is_kept(hub: FakeHub) -> None:
    hub.files["/m.gguf"] = DATA
    hub.tells_version = False
    hub.cuts = [len(DATA), 3 * PIECE, *[0] * 5]
    with pytest.raises(weft.ModelLoadError):
        weft.hub.model(url=f"{hub.url}/m.gguf")
    hub.cuts, hub.ranges = [], []
    path = weft.hub.model(url=f"{hub.url}/m.gguf")
    assert (path.read_bytes(), hub.ranges) == (DATA, [])
    hub.files["/m.gguf"] = DATA + b"new"
    assert weft.hub.model(url=f"{hub.url}/m.gguf").read_bytes() == DATA


def test_all_parts_of_a_split_model_lie_together(hub: FakeHub) -> None:
    hub.files |= {f"/m-0000{index}-of-00003.gguf": DATA + bytes([index]) for index in (1, 2, 3)}
    path = weft.hub.model(url=f"{hub.url}/m-00001-of-00003.gguf?a=b")
    assert [path.with_name(f"m-0000{index}-of-00003.gguf").read_bytes()[-1] for index in (1, 2, 3)] == [1, 2, 3]


def test_where_the_server_is_down_what_is_cached_is_taken(hub: FakeHub) -> None:
    hub.files["/m.gguf"] = DATA
    path = weft.hub.model(url=f"{hub.url}/m.gguf")
    hub.status = 503
    assert weft.hub.model(url=f"{hub.url}/m.gguf") == path
    hub.status = 404
    with pytest.raises(weft.ModelLoadError, match=r"/m\.gguf returned 404 Not Found$"):
        weft.hub.model(url=f"{hub.url}/m.gguf")


def test_a_page_is_no_model_and_is_not_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["/m.gguf"] = b"<!doctype html>" + DATA
    with pytest.raises(weft.ModelLoadError, match=re.escape("a GGUF file; its content begins with b'<!doctype ht'")):
        weft.hub.model(url=f"{hub.url}/m.gguf")
    assert incomplete(tmp_path) == []


def test_offline_with_nothing_cached_is_said(hub: FakeHub) -> None:
    with pytest.raises(weft.ModelLoadError, match=r"it is not cached in .*, and --offline prevents its download"):
        weft.hub.model(url=f"{hub.url}/m.gguf", offline=True)


def test_a_message_tells_no_secret_of_an_address(hub: FakeHub) -> None:
    url = f"{hub.url.replace('://', '://user:secret@')}/m.gguf?key=secret"
    with pytest.raises(weft.ModelLoadError) as error:
        weft.hub.model(url=url)
    assert "secret" not in str(error.value)


def test_the_hubs_token_is_shown_to_the_hub_alone(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["/m.gguf"] = DATA
    weft.hub.model(url=f"{hub.url}/m.gguf", token="right")
    assert set(hub.tokens) == {"Bearer right"}
    hub.tokens.clear()
    weft.hub.model(url=f"{hub.url.replace('127.0.0.1', 'localhost')}/m.gguf", token="right")
    assert set(hub.tokens) == {None}


@pytest.mark.parametrize(
    "url", ["m.gguf", "ftp://a/m.gguf", "file:///m.gguf", "http:///m.gguf", "http://a", "http://a:x/m", "http://a/m b"]
)
def test_what_is_no_address_is_told_so(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a file, for example https://"):
        weft.hub.model(url=url)


@pytest.mark.parametrize("named", [{}, {"repo": "a/b", "url": "http://a/b"}, {"url": "http://a/b", "docker": "a"}])
def test_one_thing_is_named(named: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="name a repository, a URL"):
        weft.hub.model(**named)  # type: ignore[arg-type]
