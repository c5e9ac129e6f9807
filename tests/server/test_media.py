"""Pictures and sounds over HTTP: where they may stand in a body, where they may come from, and what is computed for them."""

import asyncio
import base64
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import numpy as np
import pytest

import weft
from tests.engine.tiny_projectors import PROJECTORS, Projector, png_of, wav_of, write_tiny_projector
from tests.helpers import n_processing, wait_until
from tests.server.live import LiveServer
from tests.server.matchers import Json
from tests.server.test_watchdog import MOST_MS, Body, Case, filled, nobody_waits, watching
from weft.chat.request import Templates
from weft.server import create_app, executor
from weft.server.gateway import Gateway
from weft.server.json_request import max_body
from weft.server.media import reader
from weft.server.media.fetching import is_public
from weft.server.media.files import MAX_FILES, MediaFile
from weft.settings import Settings
from weft.work.threads import LONG_TEXT, Threads

Files = dict[Projector, tuple[Path, Path]]

N_PICTURE = 16
"""Places of a picture in the toy of LLaVA."""


class Host:
    """A server of files beside ours."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.may_go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _handler(host: Host) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            host.asked.append(self.path)
            match self.path.split("/"):
                case [_, "cat.png"]:
                    self._say(200, png_of(5))
                case [_, "large"]:
                    self._say(200, b"x" * (reader.MAX_FETCHED + 1))
                case [_, "slow"]:
                    self._say(200, b"")
                    host.may_go_on.wait(10)
                case [_, "to", *where]:
                    self._say(302, b"", "/".join(where).replace("HERE", host.url))
                case _:
                    self._say(404, b"no")

        def _say(self, status: int, body: bytes, location: str | None = None) -> None:
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location)
            if body:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            # Whoever has enough of it leaves.
            try:
                self.wfile.write(body)
                self.wfile.flush()
            except OSError:
                self.close_connection = True

    return Handler


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(host))
    host.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield host
    host.may_go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("projectors")
    return {projector: write_tiny_projector(projector, folder) for projector in PROJECTORS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `--media-path`, and things beside it."""
    outside = tmp_path_factory.mktemp("outside")
    folder = outside / "media"
    (folder / "below").mkdir(parents=True)
    for path in (folder / "a cat.png", folder / "below" / "cat.png", outside / "secret.png"):
        path.write_bytes(png_of(6))
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "inner.png").symlink_to(folder / "below" / "cat.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    os.mkfifo(folder / "pipe.png")
    return folder


class Client(httpx.AsyncClient):
    """A client on this event loop, which can ask several things at once."""

    app: Gateway


@asynccontextmanager
async def serving(paths: tuple[Path, Path] | None, **settings: Json) -> AsyncIterator[Client]:
    model, projector = (None, None) if paths is None else map(str, paths)
    engine = weft.Engine(model, mmproj=projector, n_slots=4, n_ctx=4096, kv_unified=True, n_threads=1)
    app = create_app(engine, Settings(**settings))
    await app.service.lifecycle.start()
    async with Client(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        client.app = app
        yield client
    await app.service.stop()


@pytest.fixture(scope="module")
async def seeing(files: Files, folder: Path, host: Host, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A server that reads pictures."""
    hosts = (f"127.0.0.1:{host.port}", "*")
    slots = str(tmp_path_factory.mktemp("slots"))
    where: Json = {"media_path": str(folder), "allow_media_urls": hosts, "slot_save_path": slots}
    async with serving(files["llava"], metrics=True, **where) as client:
        yield client


@pytest.fixture(scope="module")
async def hearing(files: Files) -> AsyncIterator[Client]:
    """A server that reads sounds."""
    async with serving(files["ultravox"]) as client:
        yield client


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


PICTURE = in_base64(png_of(1))


def picture(seed: int) -> Json:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{in_base64(png_of(seed))}"}}


def at(url: str) -> Json:
    return {"type": "image_url", "image_url": {"url": url}}


def sound(data: str, form: str = "wav") -> Json:
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def said(*content: Json, role: str = "user") -> Json:
    return {"role": role, "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]}


async def complete(client: httpx.AsyncClient, prompt: Json, **fields: Json) -> httpx.Response:
    return await client.post("/completion", json={"prompt": prompt, "n_predict": 2, "temperature": 0, **fields})


async def chat(client: httpx.AsyncClient, *messages: Json, path: str = "/v1/chat/completions", **fields: Json) -> httpx.Response:
    body = {"messages": list(messages), "max_tokens": 2, "temperature": 0, "verbose": True, **fields}
    return await client.post(path, json=body)


def refusal(answer: httpx.Response) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    return answer.status_code, error.get("param"), error["message"]


def prompt_of(answer: httpx.Response) -> str:
    told = answer.json()
    return str(told["__verbose"]["prompt"] if "choices" in told else told["prompt"])


def encoded(client: Client) -> tuple[int, int]:
    """How many pictures and sounds the projector has seen, and how many it need not see."""
    stats = client.app.service.engine.model.media_stats()
    return stats.n_encoded, stats.n_reused


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


@pytest.mark.parametrize(
    ("projector", "vision", "audio"), [("llava", True, False), ("ultravox", False, True), (None, False, False)]
)
async def test_the_server_tells_what_it_reads(files: Files, projector: Projector | None, vision: bool, audio: bool) -> None:
    async with serving(None if projector is None else files[projector]) as client:
        props = (await client.get("/props")).json()
        assert props["modalities"] == {"vision": vision, "video": False, "audio": audio}
        assert props["media_marker"] == "<__media__>"
        models = (await client.get("/v1/models")).json()
        reads = ["text", *["image"] * vision, *["audio"] * audio]
        assert models["data"][0]["architecture"] == {"input_modalities": reads, "output_modalities": ["text"]}
        [listed] = models["models"]
        assert listed["capabilities"] == ["completion", *["multimodal"] * (vision or audio), "embedding"]


@pytest.mark.parametrize(
    "data", [PICTURE, f"data:image/png;base64,{PICTURE}", PICTURE.rstrip("="), f"{PICTURE[:76]}\r\n{PICTURE[76:]}"]
)
@pytest.mark.parametrize("path", ["/completion", "/completions", "/v1/completions"])
async def test_a_prompt_has_a_picture_at_each_marker(seeing: Client, path: str, data: str) -> None:
    prompt = {"prompt_string": "one <__media__> two <__media__> three", "multimodal_data": [data, in_base64(png_of(2))]}
    answer = await seeing.post(path, json={"prompt": prompt, "max_tokens": 2, "verbose": True})
    assert answer.status_code == 200, answer.text
    assert [part.strip("▁ ") for part in prompt_of(answer).removeprefix("<s>").split("<__media__>")] == ["one", "two", "three"]
    text = (await seeing.post(path, json={"prompt": "one  two  three", "max_tokens": 2, "verbose": True})).json()
    n_text, n_all = (
        told["usage"]["prompt_tokens"] if "usage" in told else told["tokens_evaluated"] for told in (text, answer.json())
    )
    assert 2 * N_PICTURE <= n_all - n_text <= 2 * N_PICTURE + 12, "what begins a text stands after a picture too"


async def test_prompts_with_and_without_pictures_stand_in_one_list(seeing: Client) -> None:
    mixed = {"prompt_string": "a <__media__> b", "multimodal_data": [PICTURE]}
    answer = await complete(seeing, ["only a text", mixed, {"prompt_string": "no <__media__> here"}])
    assert [told["prompt"].count("<__media__>") for told in answer.json()] == [0, 1, 1]
    n_evaluated = [told["tokens_evaluated"] for told in answer.json()]
    n_spelt = len((await seeing.post("/tokenize", json={"content": "no <__media__> here", "add_special": True})).json()["tokens"])
    assert n_evaluated[1] > N_PICTURE
    assert n_evaluated[2] == n_spelt, "a text without data is a text"


@pytest.mark.parametrize(("marker", "data"), [("", [PICTURE]), ("<__media__>", []), ("<__media__><__media__>", [PICTURE])])
async def test_as_many_markers_as_pictures(seeing: Client, marker: str, data: Json) -> None:
    status, param, message = refusal(await complete(seeing, {"prompt_string": f"a {marker} b", "multimodal_data": data}))
    n_markers = marker.count("<")
    assert (status, param) == (400, "prompt")
    assert message.startswith(f"prompt_string has {n_markers} markers <__media__>, and multimodal_data has {len(data)} entries")


async def test_2024s_markers_name_pictures_by_their_ids(seeing: Client) -> None:
    images = [{"data": in_base64(png_of(2)), "id": 7}, {"data": PICTURE, "id": 12}]
    old = await complete(seeing, "one [img-12] two [img-7] and [img-12].", image_data=images)
    new = await complete(
        seeing,
        {
            "prompt_string": "one <__media__> two <__media__> and <__media__>.",
            "multimodal_data": [PICTURE, in_base64(png_of(2)), PICTURE],
        },
    )
    assert old.status_code == new.status_code == 200
    assert prompt_of(old) == prompt_of(new)
    assert new.json()["timings"]["prompt_n"] == 1, "it is the same prompt"


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        ("a [img-1]", [{"id": 2, "data": PICTURE}], "the prompt has no marker [img-2] for the image with this id"),
        ("[img-1][img-3]", [{"id": 1, "data": PICTURE}], "image_data has no image for the marker [img-3] of the prompt"),
        ("[img-1]", [{"id": 1, "data": PICTURE}] * 2, "image_data has several images with the same id"),
        ("[img-1]", [{"id": 1}], "image_data[0]: Object missing required field `data`"),
        ("[img-1]", {"id": 1}, "image_data: Expected `array`, got `object`"),
        ([1, 2], [{"id": 1, "data": PICTURE}], "image_data requires a prompt that is a string"),
        (
            "[img-1]" * 33,
            [{"id": 1, "data": PICTURE}],
            "the prompt has more than 32 image markers; at most 32 images are allowed",
        ),
    ],
)
async def test_2024s_markers_and_pictures_belong_together(seeing: Client, prompt: Json, images: Json, message: str) -> None:
    assert refusal(await complete(seeing, prompt, image_data=images)) == (400, "image_data", message)


async def embed(client: httpx.AsyncClient, **body: Json) -> httpx.Response:
    return await client.post("/embedding", json=body)


async def test_a_text_with_a_picture_has_a_vector_in_the_ways_of_today_and_of_2024(seeing: Client) -> None:
    of_today = {"prompt_string": "a <__media__> b", "multimodal_data": [PICTURE]}
    beside = await embed(seeing, content=["a text", of_today, {**of_today, "multimodal_data": [in_base64(png_of(9))]}])
    assert beside.status_code == 200
    text, seen, other = (one["embedding"][0] for one in beside.json())
    assert text != seen != other
    assert np.linalg.norm(seen) == pytest.approx(1, abs=1e-5)
    for name in ("content", "input"):
        (one,) = (await seeing.post("/embedding", json={name: of_today})).json()
        assert one["embedding"][0] == pytest.approx(seen, abs=1e-3)
    # The answer of then is that of one text.
    then = await embed(seeing, content="a [img-12] b", image_data=[{"data": PICTURE, "id": 12}])
    assert then.json() == {"embedding": pytest.approx(seen, abs=1e-3)}
    (openais,) = (await seeing.post("/v1/embeddings", json={"input": of_today})).json()["data"]
    assert openais["embedding"] == pytest.approx(seen, abs=1e-3)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"content": "[img-1]", "image_data": [{"id": 1, "data": "AAAA"}]}, "image_data", "image_data[0].data: cannot read"),
        ({"content": "[img-1]", "image_data": [{"id": 1, "data": "?"}]}, "image_data", "image_data[0].data: '?' is not base64"),
        (
            {"content": "[img-1]", "image_data": [{"id": 1, "data": "normalize is?"}]},
            "image_data",
            "image_data[0].data: 'normalize is?' is not base64",
        ),
        ({"content": "a", "image_data": [{"id": 1, "data": PICTURE}]}, "image_data", "the prompt has no marker [img-1]"),
        ({"content": ["a", "b"], "image_data": [{"id": 1, "data": PICTURE}]}, "image_data", "image_data requires"),
        ({"content": {"prompt_string": "a", "multimodal_data": [PICTURE]}}, "content", "prompt_string has 0 markers"),
        ({"input": {"prompt_string": "<__media__>", "multimodal_data": ["AAAA"]}}, "input", "multimodal_data[0]: cannot read"),
        (
            {"content": {"prompt_string": "<__media__>" * 33, "multimodal_data": [PICTURE] * 33}},
            "content",
            "there are 33 images and audio files",
        ),
    ],
)
async def test_what_is_no_picture_has_no_vector(seeing: Client, body: dict[str, Json], param: str, message: str) -> None:
    status, named, told = refusal(await embed(seeing, **body))
    assert (status, named) == (400, param)
    assert told.startswith(message)


async def test_a_text_that_pictures_make_too_long_is_refused_with_the_limit(seeing: Client) -> None:
    most = seeing.app.service.engine.embedding_stats().max_tokens
    image_data = [{"id": 1, "data": PICTURE}]
    assert (await embed(seeing, content="a" * (most - 20), image_data=[])).status_code == 200
    status, param, told = refusal(await embed(seeing, content="[img-1][img-1]" + "a" * (most - 20), image_data=image_data))
    assert (status, param) == (400, "content")
    assert f"it may have at most {most}" in told


async def test_a_model_that_reads_no_pictures_says_so_for_vectors_too() -> None:
    async with serving(None) as client:
        body: Json = {"content": "[img-1]", "image_data": [{"id": 1, "data": PICTURE}]}
        assert refusal(await embed(client, **body))[:2] == (501, None)


async def test_2024s_marker_without_pictures_is_a_text(seeing: Client) -> None:
    assert "[img-1]" in prompt_of(await complete(seeing, "a [img-1]"))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_a_chat_holds_pictures_and_what_spells_one_is_a_text(seeing: Client, path: str) -> None:
    content = ("what <__media__> is", picture(1), "and", picture(2), "?")
    answer = await chat(seeing, said(*content), path=path)
    assert answer.status_code == 200, answer.text
    plain = await chat(seeing, said("what <__media__> isand?"), path=path)
    n_more = answer.json()["usage"]["prompt_tokens"] - plain.json()["usage"]["prompt_tokens"]
    assert 2 * N_PICTURE <= n_more <= 2 * N_PICTURE + 12
    text = (await seeing.post("/apply-template", json={"messages": [said(*content)]})).json()["prompt"]
    assert "what <__media__> is<__media__>and<__media__>?" in text
    assert prompt_of(answer).replace("▁", " ").count("<__media__>") == 3


async def test_anthropics_messages_hold_pictures_as_every_chat_does(seeing: Client) -> None:
    plain, other = in_base64(png_of(1)), in_base64(png_of(2))
    image: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": plain}}
    result: Json = {"type": "tool_result", "tool_use_id": "t", "content": [image | {"source": image["source"] | {"data": other}}]}
    body: Json = {"max_tokens": 4, "messages": [{"role": "user", "content": [image, {"type": "text", "text": "and"}, result]}]}
    answer = await seeing.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    counted = (await seeing.post("/v1/messages/count_tokens", json={"messages": body["messages"]})).json()["input_tokens"]
    usage = answer.json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted > 2 * N_PICTURE
    result["content"][0]["source"]["data"] = "AAAA"
    refused = await seeing.post("/v1/messages", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("messages[0].content[2].content[0].source: ")


async def test_ollamas_prompts_and_messages_hold_pictures(seeing: Client) -> None:
    one, two = in_base64(png_of(1)), in_base64(png_of(2))
    how: Json = {"stream": False, "options": {"num_predict": 4, "temperature": 0}}
    message = {"role": "user", "content": "what is this", "images": [one, two]}
    chat = await seeing.post("/api/chat", json={"messages": [message], **how})
    generated = await seeing.post("/api/generate", json={"prompt": "what is this", "images": [one, two], **how})
    assert chat.status_code == generated.status_code == 200, chat.text
    assert chat.json()["message"]["content"] == generated.json()["response"]
    assert chat.json()["prompt_eval_count"] == generated.json()["prompt_eval_count"] > 2 * N_PICTURE
    assert "context" not in generated.json(), "a picture is no token"
    raw = await seeing.post("/api/generate", json={"prompt": "a [img-1] b [img-0]?", "images": [one, two], "raw": True, **how})
    before = await seeing.post("/api/generate", json={"prompt": "a", "images": [one, two], "raw": True, **how})
    assert raw.status_code == before.status_code == 200, raw.text
    assert raw.json()["prompt_eval_count"] > before.json()["prompt_eval_count"] > 2 * N_PICTURE
    refused = await seeing.post("/api/chat", json={"messages": [message | {"images": [one, "AAAA"]}], **how})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("messages[0].images[1]: ")
    refused = await seeing.post("/api/generate", json={"prompt": "a", "system": "b", "images": ["AAAA"], **how})
    assert refused.json()["error"].startswith("images[0]: ")


async def test_a_chat_holds_sounds(hearing: Client) -> None:
    answer = await chat(hearing, said("what is this", sound(in_base64(wav_of(1)))))
    assert answer.status_code == 200, answer.text
    assert prompt_of(answer).count("<__media__>") == 1
    status, param, message = refusal(await chat(hearing, said(sound(in_base64(wav_of(1)), "flac"))))
    assert (status, param) == (400, "messages")
    assert message == "messages[0].content[0].input_audio.format is 'flac'; it must be 'wav' or 'mp3'"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url"}, "messages[0].content[0].image_url.url must be given"),
        ({"type": "image_url", "image_url": {}}, "messages[0].content[0].image_url.url must be given"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "messages[0].content[0].input_audio.data must be given"),
        ({"type": "media"}, "messages[0].content[0]: parts of type 'media' are not supported, only text, image_url and "),
        ({"type": "video_url"}, "messages[0].content[0]: parts of type 'video_url' are not supported, only text, image_url"),
        (at("data:image/png,x"), "messages[0].content[0].image_url.url: 'data:image/png,x' is not a base64 data: URI"),
        (at("data:image/png;base64,a*b"), "messages[0].content[0].image_url.url: 'data:image/png;base64,a*b' is not base64"),
        (at("cat.png"), "messages[0].content[0].image_url.url: 'cat.png' is not base64; to refer to a file"),
        (at("ftp://a/b"), "messages[0].content[0].image_url.url: 'ftp://a/b' is not base64; to refer to a file"),
        (
            at("data:;base64,aGFsbG8="),
            "messages[0].content[0].image_url.url: cannot read the medium: it must be an image (PNG",
        ),
    ],
)
async def test_what_is_no_picture_is_refused_with_its_place(seeing: Client, part: Json, message: str) -> None:
    status, param, told = refusal(await chat(seeing, said(part)))
    assert (status, param, told[: len(message)]) == (400, "messages", message)


async def test_a_sound_is_no_picture(files: Files, seeing: Client, hearing: Client) -> None:
    url = f"data:image/png;base64,{in_base64(wav_of(1))}"
    status, param, _ = refusal(await chat(seeing, said(at(url))))
    assert (status, param) == (400, "messages")
    status, param, _ = refusal(await chat(hearing, said(sound(PICTURE))))
    assert (status, param) == (400, "messages")


async def test_what_the_model_does_not_read_is_refused_in_llama_servers_words(
    client: httpx.AsyncClient, seeing: Client, hearing: Client
) -> None:
    hint = "input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    assert refusal(await chat(client, said(picture(1)))) == (501, None, f"image {hint}")
    assert refusal(await chat(client, said(sound(""))))[0] == 400
    assert refusal(await chat(client, said(sound("YQ==")))) == (501, None, f"audio {hint}")
    assert refusal(await chat(hearing, said(picture(1)))) == (501, None, f"image {hint}")
    assert refusal(await chat(seeing, said(sound("YQ==")))) == (501, None, f"audio {hint}")
    data = {"prompt_string": "<__media__>", "multimodal_data": [PICTURE]}
    assert refusal(await complete(client, data)) == (501, None, f"multimodal {hint}")
    assert refusal(await complete(client, "[img-1]", image_data=[{"id": 1, "data": PICTURE}])) == (501, None, f"image {hint}")
    answer = await client.post("/apply-template", json={"messages": [said(picture(1))]})
    assert refusal(answer) == (501, None, f"image {hint}")


async def test_a_template_that_leaves_pictures_out_is_refused(files: Files) -> None:
    async with serving(files["llava"], chat_template="{% for m in messages[1:] %}{{ m.content }}{% endfor %}go") as client:
        status, param, message = refusal(await chat(client, said(picture(1)), said("b", picture(2))))
        assert (status, param, message) == (400, "messages", "the chat template leaves out 1 of 2 media parts")
        assert (await chat(client, said("a"), said("b", picture(2)))).status_code == 200


async def test_a_picture_stands_where_the_template_writes_it(files: Files) -> None:
    source = "{% for m in messages | reverse %}{{ m.content | trim | upper }}|{% endfor %}"
    async with serving(files["llava"], chat_template=source) as client:
        answer = await chat(client, said("a", picture(1)), said(picture(2), "b"))
        assert prompt_of(answer).replace("▁", "").endswith("<__media__>B|A<__media__>|")


async def test_a_template_that_takes_parts_alone_gets_a_picture_in_one(files: Files) -> None:
    source = "{% for m in messages %}{% for p in m.content if p.type == 'text' %}({{ p.text }}){% endfor %}{% endfor %}"
    async with serving(files["llava"], chat_template=source) as client:
        answer = await client.post("/apply-template", json={"messages": [said("a", picture(1), "b", "c"), said("d", "e")]})
        assert answer.json()["prompt"] == "(a<__media__>b\nc)(d)(e)"


async def test_an_answer_goes_on_with_a_message_that_has_a_picture(seeing: Client) -> None:
    answer = await chat(seeing, said("draw a cat"), said("here:", picture(1), "it is", role="assistant"))
    assert answer.status_code == 200, answer.text
    assert prompt_of(answer).replace("▁", " ").rstrip().endswith("it is")
    assert prompt_of(answer).count("<__media__>") == 1


@pytest.mark.parametrize("projector", PROJECTORS)
async def test_each_kind_of_model_says_two_turns(files: Files, projector: Projector) -> None:
    part = sound(in_base64(wav_of(3))) if projector == "ultravox" else picture(3)
    async with serving(files[projector]) as client:
        turns: list[Json] = []
        for text in ("what is this?", "and now?"):
            turns.append(said(text, part))
            answer = await chat(client, *turns, n=2)
            assert answer.status_code == 200, answer.text
            turns.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
        assert encoded(client)[0] == 1


async def test_branches_share_a_picture(seeing: Client) -> None:
    before = encoded(seeing)
    data = {"prompt_string": "shared by two <__media__> branches", "multimodal_data": [in_base64(png_of(50))]}
    first, second = (await complete(seeing, data, n=2, cache_prompt=False)).json()
    n_prompt = first["tokens_evaluated"]
    assert first["timings"]["prompt_n"] + second["timings"]["prompt_n"] == n_prompt
    assert encoded(seeing) == (before[0] + 1, before[1])


async def test_the_next_turn_computes_neither_the_picture_nor_what_was_said(seeing: Client) -> None:
    first = said("what is in this picture of two turns?", picture(51))
    before = encoded(seeing)
    one = (await chat(seeing, first, max_tokens=4)).json()
    reply = {"role": "assistant", "content": one["choices"][0]["message"]["content"]}
    two = (await chat(seeing, first, reply, said("and what else?"))).json()
    n_held = one["usage"]["prompt_tokens"]
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] >= n_held - 1
    assert two["timings"]["prompt_n"] == two["usage"]["prompt_tokens"] - two["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert encoded(seeing)[0] == before[0] + 1
    other = (await chat(seeing, said("what is in this picture of two turns?", picture(52)))).json()
    n_shared = other["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < n_shared < n_held - N_PICTURE, "another picture is another prompt"


async def test_what_was_encoded_is_counted(seeing: Client) -> None:
    before = await metrics(seeing)
    for text in ("a", "b"):
        await complete(seeing, {"prompt_string": f"{text}<__media__>.", "multimodal_data": [in_base64(png_of(53))]})
    after = await metrics(seeing)
    names = ['weft:media_total{source="encoded"}', 'weft:media_total{source="cached"}']
    assert [after[name] - before[name] for name in names] == [1, 1]
    assert after["weft:media_encode_seconds_total"] > before["weft:media_encode_seconds_total"]
    assert after["weft:media_bytes"] > before["weft:media_bytes"]
    # The projector of a few thousand numbers of 32 bits is there from the start.
    assert before["weft:projector_bytes"] == after["weft:projector_bytes"] > 10_000
    # The engine lets go of them after it has told the last token.
    while (await metrics(seeing))["weft:media_waiting_bytes"] > 0:  # noqa: ASYNC110 (nobody rings)
        await asyncio.sleep(0.001)


async def test_numbers_below_0_are_no_tokens_of_a_client(seeing: Client) -> None:
    await complete(seeing, {"prompt_string": "held <__media__>.", "multimodal_data": [in_base64(png_of(54))]})
    for path, body, param in (
        ("/detokenize", {"tokens": [5, -5]}, "tokens"),
        ("/tokenize", {"content": [5, -5]}, "content"),
        ("/completion", {"prompt": [5, -5]}, "prompt"),
        ("/v1/completions", {"prompt": [[5, -5]]}, "prompt"),
        ("/prefixes", {"prompt": [5, -5]}, "prompt"),
        ("/embedding", {"content": [5, -5]}, "content"),
        ("/completion", {"prompt": "a", "penalty_prompt": [-5], "repeat_penalty": 1.5}, "penalty_prompt"),
        ("/completion", {"prompt": "a", "logit_bias": [[-5, 1]]}, "logit_bias"),
    ):
        assert refusal(await seeing.post(path, json=body))[:2] == (400, param), path


async def test_the_cache_and_the_slots_tell_a_picture_by_its_marker(seeing: Client) -> None:
    service = seeing.app.service
    service.exposes_texts = True
    data = {"prompt_string": "told in a slot <__media__>.", "multimodal_data": [in_base64(png_of(55))]}
    running = asyncio.create_task(complete(seeing, data, n_predict=2000, ignore_eos=True, stream=True, id_slot=3))
    await wait_until(lambda: n_processing(service.engine) > 0)
    busy = [slot for slot in (await seeing.get("/slots")).json() if slot["is_processing"]]
    assert [slot["prompt"].replace("▁", " ").count("<__media__>") for slot in busy] == [1]
    assert (await running).status_code == 200
    service.exposes_texts = False
    texts = [node["text"] for node in (await seeing.get("/cache")).json()["nodes"]]
    assert any("slot" in text and "<__media__>" in text for text in texts)


async def test_a_slot_that_holds_a_picture_is_not_saved_and_can_be_erased(seeing: Client) -> None:
    data = {"prompt_string": "not to be saved <__media__>.", "multimodal_data": [in_base64(png_of(56))]}
    slot = (await complete(seeing, data, id_slot=1)).json()["id_slot"]
    answer = await seeing.post(f"/slots/{slot}?action=save", json={"filename": "a"})
    assert refusal(answer)[0] == 501
    assert answer.json()["error"]["type"] == "not_supported_error"
    assert (await seeing.post(f"/slots/{slot}?action=erase")).json()["n_erased"] > N_PICTURE


async def test_the_prompt_is_echoed_by_its_markers_and_without_probabilities(seeing: Client) -> None:
    body = {"prompt": {"prompt_string": "an echo <__media__> of", "multimodal_data": [PICTURE]}, "max_tokens": 1, "echo": True}
    text = (await seeing.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    assert text.startswith("an echo <__media__> of")
    assert refusal(await seeing.post("/v1/completions", json=body | {"logprobs": 1}))[:2] == (400, "logprobs")
    assert refusal(await seeing.post("/v1/completions", json=body | {"echo": False, "suffix": "b"}))[:2] == (400, "prompt")


async def test_a_system_prompt_stands_before_a_picture(files: Files) -> None:
    async with serving(files["llava"]) as client:
        data = {"prompt_string": "and <__media__>.", "multimodal_data": [PICTURE]}
        answer = await complete(
            client, data, system_prompt={"prompt": "what all prompts follow", "anti_prompt": "", "assistant_name": ""}
        )
        assert answer.status_code == 200, answer.text
        told = prompt_of(answer).replace("▁", " ")
        assert told.count("<s>") == 1
        assert told.index("what all prompts follow") < told.index("and") < told.index("<__media__>")


async def test_no_other_system_prompt_waits_for_a_picture(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(files["llava"]) as client:
        reader, is_there, may_go_on = client.app.service.media, asyncio.Event(), asyncio.Event()
        read = reader.read

        async def held(files: Sequence[MediaFile]) -> list[weft.Media]:
            is_there.set()
            await may_go_on.wait()
            return await read(files)

        monkeypatch.setattr(reader, "read", held)
        data = {"prompt_string": "<__media__>.", "multimodal_data": [PICTURE]}
        slow = asyncio.create_task(complete(client, data, system_prompt="the slow one"))
        await is_there.wait()
        assert (await complete(client, "a", system_prompt="a quick one")).status_code == 200
        assert (await client.post("/lora-adapters", json=[])).status_code == 200
        assert (await client.get("/props")).json()["system_prompt"] == "a quick one"
        may_go_on.set()
        answer = await slow
        assert answer.status_code == 200, answer.text
        assert (await client.get("/props")).json()["system_prompt"] == "the slow one"


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ({}, ""),
        ({"media_path": "/"}, "; to refer to a file, use a URL with file://"),
        ({"allow_media_urls": ("*",)}, "; to refer to a file, use a URL with http(s)://"),
        ({"media_path": "/", "allow_media_urls": ("*",)}, "; to refer to a file, use a URL with file:// or http(s)://"),
    ],
    ids=["neither", "files", "addresses", "both"],
)
async def test_whoever_names_no_file_is_told_how_files_may_be_named_here(files: Files, where: Json, hint: str) -> None:
    async with serving(files["llava"], **where) as client:
        message = refusal(await chat(client, said(at("cat.png"))))[2]
        assert message == f"messages[0].content[0].image_url.url: 'cat.png' is not base64{hint}"


@pytest.mark.parametrize("name", ["a%20cat.png", "below/cat.png", "inner.png", "below/../a cat.png"])
@pytest.mark.parametrize("head", ["file://", "file:", "FILE://"])
async def test_a_file_of_the_folder_is_read(seeing: Client, head: str, name: str) -> None:
    answer = await chat(seeing, said(at(f"{head}{name}")))
    assert answer.status_code == 200, answer.text


async def test_a_file_of_the_folder_may_be_named_by_its_whole_path(seeing: Client, folder: Path) -> None:
    for head in ("file://", "file://localhost"):
        assert (await chat(seeing, said(at(f"{head}{folder}/below/cat.png")))).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../secret.png",
            "below/../../secret.png",
            "..%2fsecret.png",
            "%2e%2e/secret.png",
            "link.png",
            "/etc/passwd",
            "loop.png",
        ),
        *("missing.png", "below", "", ".", "pipe.png", "a\0.png", "x" * 5000, "~/secret.png", "//etc/passwd"),
    ],
)
async def test_nothing_outside_of_the_folder_is_read(seeing: Client, name: str) -> None:
    status, param, message = refusal(await chat(seeing, said(at(f"file://{name}"))))
    assert (status, param) == (400, "messages")
    assert "is not a file in the folder of --media-path" in message


async def test_nothing_is_read_or_fetched_by_a_server_that_was_not_told_to(files: Files, host: Host) -> None:
    async with serving(files["llava"]) as client:
        n_asked = len(host.asked)
        told = "file:// URLs are not allowed unless --media-path is specified"
        assert told in refusal(await chat(client, said(at("file://cat.png"))))[2]
        assert "--allow-media-urls" in refusal(await chat(client, said(at(f"{host.url}/cat.png"))))[2]
        assert len(host.asked) == n_asked


async def test_addresses_stand_in_chats_alone(seeing: Client, host: Host) -> None:
    for url in (f"{host.url}/cat.png", "file://below/cat.png"):
        data = {"prompt_string": "<__media__>", "multimodal_data": [url]}
        assert refusal(await complete(seeing, data))[:2] == (400, "prompt")
        assert refusal(await complete(seeing, "[img-1]", image_data=[{"id": 1, "data": url}]))[:2] == (400, "image_data")


async def test_a_file_of_a_host_that_is_named_is_fetched(seeing: Client, host: Host) -> None:
    host.asked.clear()
    answer = await chat(seeing, said("fetched", at(f"{host.url}/cat.png#fragment")))
    assert answer.status_code == 200, answer.text
    assert host.asked == ["/cat.png"]
    answer = await chat(seeing, said("fetched", at(f"{host.url}/to/HERE/cat.png")))
    assert (answer.status_code, answer.json()["timings"]["prompt_n"]) == (200, 1)
    assert host.asked[1:] == ["/to/HERE/cat.png", "/cat.png"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/missing", "returned the status 404"),
        ("/large", f"has more than {reader.MAX_FETCHED} bytes"),
        ("/to/http://localhost:1/cat.png", "'localhost' is in a private network; allow it with --allow-media-urls"),
        ("/to/http://[::1]:1/cat.png", "'::1' is in a private network"),
        ("/to/file:///etc/passwd", "is not an http(s) URL"),
        ("/to/" * 5 + "cat.png", "it was redirected more than 3 times"),
    ],
)
async def test_what_cannot_be_fetched_is_said(seeing: Client, host: Host, path: str, told: str) -> None:
    if path.startswith("/to//to"):
        path = "/to/HERE/to/HERE/to/HERE/to/HERE/cat.png"
    status, param, message = refusal(await chat(seeing, said(at(f"{host.url}{path}"))))
    assert (status, param) == (400, "messages")
    assert message.startswith("messages[0].content[0].image_url.url: ")
    assert told in message


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://localhost:{port}/cat.png",
            "http://127.0.0.1/cat.png",
            "http://127.1:{port}/cat.png",
            "http://0.0.0.0:{port}/cat.png",
        ),
        *("http://2130706433:{port}/cat.png", "http://[::ffff:127.0.0.1]:{port}/cat.png", "http://169.254.169.254/latest"),
        *("http://10.0.0.1/", "http://a:b@127.0.0.1:{port}/cat.png", "http://127.0.0.1:{port}\\@example.org/", "http://"),
        *("http://127.0.0.1:99999/", "https:cat.png", "http://exa mple.org/", "http://bücher.example/a"),
    ],
)
async def test_no_private_host_is_asked_that_is_not_named(seeing: Client, host: Host, url: str) -> None:
    host.asked.clear()
    status, param, _ = refusal(await chat(seeing, said(at(url.format(port=host.port)))))
    assert (status, param, host.asked) == (400, "messages", [])


async def test_only_hosts_that_are_named_are_asked(files: Files, host: Host) -> None:
    async with serving(files["llava"], allow_media_urls=("localhost", f"127.0.0.1:{host.port + 1}")) as client:
        host.asked.clear()
        message = refusal(await chat(client, said(at(f"{host.url}/cat.png"))))[2]
        assert "'127.0.0.1' is not an allowed host for files; --allow-media-urls lists the allowed hosts" in message
        assert host.asked == []
        assert (await chat(client, said(at(f"http://LOCALHOST:{host.port}/cat.png")))).status_code == 200


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(("1.1.1.1", True), ("2606:4700:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False), ("192.168.0.1", False)),
        *(
            ("169.254.169.254", False),
            ("0.0.0.0", False),
            ("100.64.0.1", False),
            ("224.0.0.1", False),
            ("255.255.255.255", False),
        ),
        *(("::1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False), ("::ffff:1.1.1.1", True)),
        *(("64:ff9b::a00:1", False), ("2002:a00:1::", False), ("2001:0:1::", False), ("ff02::1", False), ("::", False)),
        *(("64:ff9b:1::a00:1", False), ("fec0::1", False), ("feff:ffff::1", False), ("::a00:1", False), ("::8.8.8.8", False)),
    ],
)
def test_an_address_is_public(address: str, public: bool) -> None:
    assert is_public(address) is public


async def test_a_slow_host_is_given_up(seeing: Client, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "FETCH_S", 0.3)
    began = time.monotonic()
    message = refusal(await chat(seeing, said(at(f"{host.url}/slow"))))[2]
    assert message == "messages[0].content[0].image_url.url: it was not received within 0.3 s"
    assert time.monotonic() - began < 5


async def test_only_so_many_files_are_fetched_at_once(seeing: Client, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "FETCH_S", 2)
    monkeypatch.setattr(reader, "MAX_FETCHES", 1)
    host.asked.clear()
    slow = asyncio.create_task(chat(seeing, said(at(f"{host.url}/slow"))))
    await wait_until(lambda: host.asked != [])
    answer = await chat(seeing, said(at(f"{host.url}/cat.png")))
    assert refusal(answer)[::2] == (429, "1 files are being fetched, which is the limit; try again later")
    assert answer.headers["retry-after"] == "1"
    assert (await slow).status_code == 400
    assert (await chat(seeing, said(at(f"{host.url}/cat.png")))).status_code == 200


async def test_only_so_many_bytes_wait_to_be_decoded(seeing: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, threads = threading.Event(), set()
    decode = reader._decode

    def slow(source: str, max_bytes: int, hint: str) -> bytes:
        threads.add(threading.current_thread().name)
        may_go_on.wait(20)
        return decode(source, max_bytes, hint)

    monkeypatch.setattr(reader, "_decode", slow)
    monkeypatch.setattr(executor, "MAX_WAITING", LONG_TEXT)
    first = asyncio.create_task(chat(seeing, said(picture(57))))
    await wait_until(lambda: threads != set())
    # That of a small one counts as if it were larger.
    assert (await metrics(seeing))["weft:media_waiting_bytes"] == LONG_TEXT
    answer = await chat(seeing, said(picture(58)))
    assert refusal(answer)[0] == 429
    assert " bytes of images and audio are waiting" in refusal(answer)[2]
    assert (await seeing.post("/tokenize", json={"content": "texts wait for no picture"})).status_code == 200
    may_go_on.set()
    assert (await first).status_code == 200
    assert (await metrics(seeing))["weft:media_waiting_bytes"] == 0
    assert all(name.startswith("weft-media") for name in threads), "never on the event loop"


async def test_a_request_has_only_so_many_pictures_of_so_many_bytes(
    seeing: Client, monkeypatch: pytest.MonkeyPatch, folder: Path, host: Host
) -> None:
    n = MAX_FILES + 1
    data = {"prompt_string": "<__media__>" * n, "multimodal_data": ["YQ=="] * n}
    assert refusal(await complete(seeing, data)) == (
        400,
        "prompt",
        f"there are {n} images and audio files; at most 32 are allowed",
    )
    size = len(png_of(1))
    monkeypatch.setattr(reader, "MAX_BYTES", 2 * size)
    assert (await chat(seeing, said(picture(1), picture(2)))).status_code == 200
    for third in (picture(3), at("file://below/cat.png"), at(f"{host.url}/cat.png")):
        status, param, message = refusal(await chat(seeing, said(picture(1), picture(2), third)))
        assert (status, param) == (400, "messages")
        assert message.startswith("messages[0].content[2].image_url.url: ")
        assert "bytes" in message


async def test_a_body_may_be_larger_where_pictures_are_read(seeing: Client, client: httpx.AsyncClient) -> None:
    assert max_body(seeing.app.service) > 32 << 20
    large = png_of(59, width=1400, height=1400)
    answer = await chat(seeing, said("large", at(f"data:image/png;base64,{in_base64(large)}")))
    assert answer.status_code == 200, answer.text
    assert (await chat(client, said("large", at(f"data:image/png;base64,{in_base64(large)}")))).status_code == 413


def _mutated(draw: random.Random, data: bytes) -> bytes:
    """The data a little wrong: bytes that are others, or are gone, or are there twice."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        place = draw.randrange(len(changed))
        match draw.randrange(5):
            case 0:
                changed[place] = draw.randrange(256)
            case 1:
                changed[place] ^= 1 << draw.randrange(8)
            case 2:
                del changed[max(place, 8) : place + draw.choice((1, 4, 100))]
            case 3:
                changed[place:place] = changed[place : place + draw.choice((1, 4, 100))]
            case 4 if draw.random() < 0.3:
                del changed[max(place, 8) :]
    # Most of what is in a head decides how the rest is read.
    for _ in range(draw.choice((0, 0, 1, 4))):
        changed[draw.randrange(min(len(changed), 48))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(changed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("projector", "data", "n"), [("llava", png_of(1), 240), ("ultravox", wav_of(1, seconds=0.2), 60)], ids=["png", "wav"]
)
async def test_damaged_files_are_refused_or_read_and_the_server_lives(
    files: Files, tmp_path: Path, projector: Projector, data: bytes, n: int
) -> None:
    draw = random.Random(projector)
    model, path = files[projector]
    statuses: list[int] = []
    flags = ("-m", str(model), "--mmproj", str(path), "-np", "2", "-c", "4096", "--kv-unified")
    with LiveServer(tmp_path / "log", *flags) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            for number in range(n):
                wrong = in_base64(_mutated(draw, data))
                answer = await complete(
                    client, {"prompt_string": f"{number} <__media__>.", "multimodal_data": [wrong]}, n_predict=1
                )
                assert answer.status_code in (200, 400), f"{number}: {answer.text}"
                if answer.status_code == 400:
                    assert answer.json()["error"]["param"] == "prompt", answer.text
                statuses.append(answer.status_code)
            good = {"prompt_string": "at last <__media__>.", "multimodal_data": [in_base64(data)]}
            assert (await complete(client, good)).status_code == 200
        assert len(server.worker_ids()) == 1
        assert "Traceback" not in server.log
    assert 5 <= statuses.count(400) <= n - 5, "some of them are still what they were"


@pytest.mark.timeout(120)
async def test_nobody_waits_for_the_largest_pictures(files: Files, tmp_path: Path) -> None:
    model, path = files["llava"]
    url = '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,'
    bodies: dict[str, Body] = {
        "no picture": filled(f"{url}§", "AAA", '"}}]}]}', 30 << 20),
        "a picture": lambda number: msgspec.json.encode(
            {
                "messages": [said(at(f"data:image/png;base64,{in_base64(png_of(int(number), width=2000, height=2000))}"))],
                "max_tokens": 1,
            }
        ),
        "many markers": filled('{"prompt": {"multimodal_data": [], "prompt_string": "§', "<__media__>", '"}}', 8 << 20),
        "many files": filled('{"prompt": {"prompt_string": "", "multimodal_data": [', '"§"', "]}}", 150_000),
    }
    flags = ("-m", str(model), "--mmproj", str(path), "-np", "2", "-c", "4096", "--kv-unified")
    # A body of 30 MB becomes one text while the interpreter is held, which takes some 10 ms.
    async with watching(tmp_path, *flags, most_ms=MOST_MS + 30) as watched:
        for name, body in bodies.items():
            route = "/completion" if name.startswith("many") else "/v1/chat/completions"
            await nobody_waits(watched, [Case(name, f"POST {route} HTTP/1.1\r\n", body)])


async def test_a_model_of_the_command_line_reads_with_its_projector(files: Files, tmp_path: Path, folder: Path) -> None:
    model, path = files["qwen2vl"]
    arguments = ("-m", str(model), "-mm", str(path), "--media-path", str(folder), "-np", "1", "-c", "2048")
    with LiveServer(tmp_path / "log", *arguments) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url) as client:
            answer = await chat(client, said(at("file://below/cat.png"), "what is it?"))
            assert answer.status_code == 200, answer.text


async def test_python_says_a_picture_in_a_chat(files: Files) -> None:
    model, path = files["llava"]
    async with weft.Engine(str(model), mmproj=str(path), n_slots=2, n_ctx=1024, n_threads=1) as engine:
        seen = await engine.read_media(png_of(1))
        messages: Sequence[Json] = [said("what is", {"type": "media", "media": seen}, "this?")]
        request, _ = await Templates(engine, Threads()).request(messages, {})
        assert isinstance(request.prompt, weft.MixedPrompt)
        assert [each.digest for each in request.prompt.media] == [seen.digest]
        assert "what is<__media__>this?" in await engine.apply_template(messages)
        assert (await engine.chat(messages, max_tokens=2)).choices[0].usage.n_predicted == 2
        with pytest.raises(weft.InvalidRequestError, match="have 1 media parts, but 0 were read; give them as parts of"):
            await engine.chat([said(picture(1))])
