"""What a slot holds is saved, restored and erased as llama-server does it, in one folder and nowhere else."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import names_in, prompt_of
from tests.server.conftest import answers
from tests.server.matchers import NUMBER, SOME_TEXT, Json, matching
from weft.server import create_app
from weft.settings import Settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
async def saving(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A server with two slots and a folder for what they hold."""
    engine = weft.Engine(n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(slot_save_path=str(folder)))) as client:
        await answers(client, 200)
        yield client


async def complete(client: httpx.AsyncClient, prompt: list[int], slot: int, n_predict: int = 4) -> Json:
    body = {"prompt": prompt, "id_slot": slot, "n_predict": n_predict, "ignore_eos": True, "return_tokens": True}
    answer = (await client.post("/completion", json=body)).raise_for_status().json()
    assert answer["id_slot"] == slot
    return answer


async def act(client: httpx.AsyncClient, slot: object, action: str, filename: object = None) -> httpx.Response:
    body = {} if filename is None else {"json": {"filename": filename}}
    return await client.post(f"/slots/{slot}", params={"action": action}, **body)  # type: ignore[arg-type]


def wrong(param: str | None, message: Json = SOME_TEXT) -> Json:
    return {"error": {"code": 400, "message": message, "type": "invalid_request_error", "param": param}}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("magic", "name"), [("ggsq", "a slot file of llama-server"), ("ggsn", "a session file of llama.cpp")], ids=["slot", "session"]
)
async def test_a_file_of_llama_cpps_is_refused_by_its_format_and_version(
    saving: httpx.AsyncClient, folder: Path, magic: str, name: str, version: int
) -> None:
    # llama.cpp writes its magic numbers as integers.
    start = int.from_bytes(magic.encode()).to_bytes(4, "little") + version.to_bytes(4, "little")
    (folder / "old.bin").write_bytes(start + bytes(100))
    answer = await act(saving, 0, "restore", "old.bin")
    expected = (
        rf"cannot restore old\.bin: it is {name}, format version {version}, .* only saved prefixes of Weft, versions 1 to 3.*"
    )
    assert (answer.status_code, answer.json()) == (400, wrong("filename", matching(expected)))


async def test_what_a_slot_held_is_restored_into_another(saving: httpx.AsyncClient, folder: Path) -> None:
    prompt = prompt_of(50, "restored")
    await complete(saving, prompt_of(30, "stays"), 0, n_predict=0)
    first = await complete(saving, prompt, 1)
    saved = await act(saving, 1, "save", "one.bin")
    assert saved.status_code == 200
    # The last token that was drawn was never computed.
    n_held = 50 + 4 - 1
    assert saved.json() == {
        "id_slot": 1,
        "filename": "one.bin",
        "n_saved": n_held,
        "n_written": (folder / "one.bin").stat().st_size,
        "timings": {"save_ms": NUMBER},
    }
    # The save ran in a slot too, and left what that holds.
    assert (await act(saving, 0, "save", "other.bin")).json()["n_saved"] == 30
    assert (await act(saving, 1, "erase")).json() == {"id_slot": 1, "n_erased": n_held}
    assert (await complete(saving, prompt, 1))["timings"]["prompt_n"] == 50
    assert (await act(saving, 1, "erase")).json() == {"id_slot": 1, "n_erased": n_held}
    restored = await act(saving, 0, "restore", "one.bin")
    assert restored.status_code == 200
    assert restored.json() == {
        "id_slot": 0,
        "filename": "one.bin",
        "n_restored": n_held,
        "n_read": saved.json()["n_written"],
        "timings": {"restore_ms": NUMBER},
    }
    continued = await complete(saving, [*prompt, *first["tokens"], 400], 0)
    assert (continued["timings"]["prompt_n"], continued["timings"]["cache_n"]) == (2, n_held)


async def test_an_erased_slot_computes_again(saving: httpx.AsyncClient) -> None:
    prompt = prompt_of(40, "erased")
    assert (await complete(saving, prompt, 0, n_predict=0))["timings"]["prompt_n"] == 40
    assert (await complete(saving, prompt, 0, n_predict=0))["timings"]["prompt_n"] == 1
    assert (await act(saving, 0, "erase")).json() == {"id_slot": 0, "n_erased": 40}
    assert (await complete(saving, prompt, 0, n_predict=0))["timings"]["prompt_n"] == 40


async def test_a_slot_that_holds_nothing_is_not_saved(saving: httpx.AsyncClient, folder: Path) -> None:
    await act(saving, 0, "erase")
    answer = await act(saving, 0, "save", "nothing.bin")
    assert (answer.status_code, answer.json()) == (400, wrong("id_slot", "slot 0 is empty"))
    assert not (folder / "nothing.bin").exists()
    assert (await act(saving, 0, "erase")).json() == {"id_slot": 0, "n_erased": 0}


@pytest.mark.parametrize("slot", ["2", "-1", "first", "999999999999", "1.0", "%C2%B2"])
@pytest.mark.parametrize("action", ["save", "restore", "erase"])
async def test_a_slot_there_is_not_is_refused(saving: httpx.AsyncClient, slot: str, action: str) -> None:
    await complete(saving, prompt_of(20, "saved"), 0)
    assert (await act(saving, 0, "save", "a.bin")).status_code == 200
    answer = await act(saving, slot, action, "a.bin")
    assert (answer.status_code, answer.json()) == (400, wrong("id_slot"))


@pytest.mark.parametrize("action", ["", "load", "SAVE"])
async def test_an_action_there_is_not_is_refused(saving: httpx.AsyncClient, action: str) -> None:
    answer = await act(saving, 0, action, "a.bin")
    assert answer.status_code == 400
    assert answer.json() == wrong("action", f"the action is {action!r}; it must be one of save, restore, erase")
    assert (await saving.post("/slots/0", json={"filename": "a.bin"})).status_code == 400


NAMES = [
    "", ".", "..", "../a.bin", "..\\a.bin", "/etc/passwd", "a/b", "a\\b", "a..b", "a.bin.", "a.bin ", " a.bin", "a\0.bin",
    "a\n.bin", "a\x7f.bin", "a\x85.bin", "a:b", "a*b", "a?b", 'a"b', "a<b", "a>b", "a|b", "a\u2215b", "a\u2216b",
    "\uff0e\uff0e", "a\ufeffb", "a\ufffdb", "NUL", "nul.bin", "COM1", "lpt9.bin", "a" * 256, "é" * 128,
]  # fmt: skip


@pytest.mark.parametrize("action", ["save", "restore"])
@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_a_name_that_could_lead_elsewhere_is_refused(
    saving: httpx.AsyncClient, folder: Path, action: str, name: str
) -> None:
    await complete(saving, prompt_of(20, "names"), 0)
    before = names_in(folder)
    answer = await act(saving, 0, action, name)
    assert (answer.status_code, answer.json()) == (400, wrong("filename"))
    assert names_in(folder) == before


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_a_name_must_be_given(saving: httpx.AsyncClient, action: str) -> None:
    for answer in (await act(saving, 0, action), await saving.post("/slots/0", params={"action": action}, json={})):
        assert (answer.status_code, answer.json()) == (400, wrong("filename", "filename must be given"))
    assert (await act(saving, 0, action, 5)).json() == wrong("filename")


@pytest.mark.parametrize("action", ["save", "restore"])
@pytest.mark.parametrize("to", ["outside", "the folder above", "a folder", "nothing outside"])
async def test_a_link_that_leads_elsewhere_is_refused(
    saving: httpx.AsyncClient, folder: Path, tmp_path: Path, action: str, to: str
) -> None:
    outside = tmp_path / "outside.bin"
    outside.write_bytes(b"mine")
    within = folder / "within"
    within.mkdir(exist_ok=True)
    targets = {"outside": outside, "the folder above": folder.parent, "a folder": within, "nothing outside": tmp_path / "new.bin"}
    link = folder / f"link {action} {to}"
    link.symlink_to(targets[to])
    await complete(saving, prompt_of(20, "links"), 0)
    answer = await act(saving, 0, action, link.name)
    assert (answer.status_code, answer.json()) == (400, wrong("filename"))
    assert outside.read_bytes() == b"mine"
    assert not (tmp_path / "new.bin").exists()
    assert str(tmp_path) not in answer.text


async def test_what_is_no_file_is_refused(saving: httpx.AsyncClient, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "subfolder").mkdir()
    await complete(saving, prompt_of(20, "no file"), 0)
    for name in ("pipe", "subfolder"):
        for action in ("save", "restore"):
            answer = await act(saving, 0, action, name)
            assert (answer.status_code, answer.json()) == (400, wrong("filename", f"{name!r} is not a regular file"))


def write_what_does_not_fit(folder: Path, model_path: Path) -> None:
    good = (folder / "good.bin").read_bytes()
    (folder / "short.bin").write_bytes(good[:-5])
    (folder / "flipped.bin").write_bytes(good[:-500] + bytes([good[-500] ^ 1]) + good[-499:])
    (folder / "model.bin").symlink_to(folder / "model.gguf")
    (folder / "model.gguf").write_bytes(model_path.read_bytes())


async def test_a_file_that_does_not_fit_is_refused_without_telling_where_it_is(
    saving: httpx.AsyncClient, folder: Path, model_path: Path
) -> None:
    await complete(saving, prompt_of(30, "does not fit"), 0)
    await act(saving, 0, "save", "good.bin")
    write_what_does_not_fit(folder, model_path)
    await act(saving, 1, "erase")
    for name in ("short.bin", "flipped.bin", "model.bin", "no such.bin"):
        answer = await act(saving, 1, "restore", name)
        assert (answer.status_code, answer.json()) == (400, wrong("filename")), name
        assert str(folder) not in answer.text
        assert (await act(saving, 1, "erase")).json()["n_erased"] == 0


async def test_a_folder_that_cannot_be_written_is_our_error(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(slot_save_path=str(folder)))) as client:
        await answers(client, 200)
        await complete(client, prompt_of(20, "gone"), 0)
        answer = await act(client, 0, "save", "a.bin")
    assert answer.status_code == 500
    assert answer.json() == {
        "error": {"code": 500, "message": "cannot save a.bin: No such file or directory", "type": "server_error"}
    }


async def test_without_a_folder_saving_is_not_supported_and_erasing_is(client: httpx.AsyncClient) -> None:
    message = "This server does not support slots action. Start it with `--slot-save-path`"
    for action in ("save", "restore"):
        answer = await act(client, 0, action, "a.bin")
        assert answer.status_code == 501
        assert answer.json() == {"error": {"code": 501, "message": message, "type": "not_supported_error"}}
    assert (await act(client, 0, "erase")).status_code == 200


@pytest.mark.parametrize(("wished", "slot"), [(0, 0), (1, 1), (2, 0), (7, 1), (-3, 1)])
async def test_the_slot_that_is_wished_for_is_taken(saving: httpx.AsyncClient, path: str, wished: int, slot: int) -> None:
    prompt = prompt_of(20, f"wished {path} {wished}")
    body = {"prompt": prompt, "max_tokens": 1, "id_slot": wished}
    await saving.post(path, json=body)
    held = (await act(saving, slot, "erase")).json()["n_erased"]
    assert held == 20


async def test_a_model_whose_own_file_has_changed_is_the_servers_fault(model_path: Path, tmp_path: Path) -> None:
    model = Path(shutil.copy(model_path, tmp_path / "model.gguf"))
    folder = tmp_path / "slots"
    folder.mkdir()
    settings = Settings(slot_save_path=str(folder))
    async with AsyncTestClient(create_app(weft.Engine(model, n_slots=1, n_ctx=512, n_threads=1), settings)) as client:
        await answers(client, 200)
        await complete(client, prompt_of(30, "changed"), 0)
        os.utime(model, (0, 0))
        answer = await act(client, 0, "save", "one.bin")
        assert answer.status_code == 500
        assert answer.json() == {
            "error": {
                "code": 500,
                "message": matching(".*model.gguf: it has changed since it was loaded"),
                "type": "server_error",
            }
        }
        assert (await client.get("/health")).status_code == 200
    assert names_in(folder) == []
