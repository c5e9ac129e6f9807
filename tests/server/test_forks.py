"""Branches of requests that run are forked by whoever made them, into the same stream or into one of their own."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

import weft
from tests.server.conftest import PROMPT
from tests.server.live import LiveServer
from tests.server.matchers import Json
from tests.server.scripted import ScriptedStream, token
from tests.server.test_requests import ENDLESS, Running
from weft.server.inference.generation import Generation
from weft.server.inference.usage_counters import UsageCounters


def client_of(live: Any) -> httpx.AsyncClient:  # noqa: ANN401 (a live server)
    return httpx.AsyncClient(base_url=live.url, timeout=60)


async def test_the_first_event_says_by_which_id_the_request_is_found(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client:
        answer = await client.post("/completion", json={"prompt": PROMPT, "n_predict": 3, "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[0]["id"] == answer.headers["x-request-id"]
    assert not any("id" in event for event in events[1:])


async def test_forks_come_into_the_stream_of_their_request(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(8)
        url = f"/requests/{stream.id}/branches"
        made = await client.post(f"{url}/0/fork", json={"n": 2, "n_predict": 5})
        assert made.json() == {"indices": [1, 2]}, made.text
        while not {1, 2} <= stream.ends.keys():
            await stream.read(1)
        assert [stream.ends[index]["tokens_predicted"] for index in (1, 2)] == [5, 5]
        assert stream.ends[1]["generation_settings"]["n_predict"] == 5
        seeds = [stream.ends[index]["generation_settings"]["seed"] for index in (1, 2)]
        report = (await client.get(f"/requests/{stream.id}")).json()
        assert (report["n_branches"], report["n_finished"]) == (3, 2)
        assert [branch["state"] for branch in report["branches"]] == ["running", "finished", "finished"]
        seed = report["branches"][0]["params"]["seed"]
        assert seeds == [(seed + 1) % 2**32, (seed + 2) % 2**32]
        assert (await client.post(f"{url}/3/fork", json={})).status_code == 404


async def test_forks_get_a_stream_of_their_own(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(12)
        url = f"/requests/{stream.id}/branches/0/fork"
        body: Json = {"n": 3, "stream": True, "n_predict": 6, "temperature": 0, "at": {"token": 12}, "append": " But then"}
        forks = await client.post(url, json=body)
        assert forks.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in forks.text.splitlines() if line.startswith("data: ")]
        assert events[0]["id"] == forks.headers["x-request-id"] != stream.id
        ends = {event["index"]: event for event in events if event["stop"]}
        texts = ["".join(event["content"] for event in events if event["index"] == index) for index in range(3)]
        assert ends.keys() == {0, 1, 2}
        assert texts[0] == texts[1] == texts[2] != ""
        assert all((end["reason"], end["tokens_predicted"]) == ("length", 6) for end in ends.values())
        assert sum(end["tokens_computed"] for end in ends.values()) < 8, "fewer than 16 tokens are never shared"
        before = dict(stream.texts)
        await stream.read(4)
        assert stream.texts != before, "the branch goes on"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"at": {"token": 100_000}}, "at", id="beyond its end"),
        pytest.param({"at": {"byte": 100_000}}, "at", id="beyond its last byte"),
        pytest.param({"at": {}}, "at", id="nowhere"),
        pytest.param({"append": [10**6]}, "append", id="a token that there is not"),
        pytest.param({"at": {"token": 1, "byte": 1}}, "at", id="in two places"),
        pytest.param({"n": 0}, "n", id="none"),
        pytest.param({"n": 257}, "n", id="too many"),
        pytest.param({"grammar": "root ::= ("}, "grammar", id="no grammar"),
        pytest.param({"n_predict": -7}, "n_predict", id="no limit that there is"),
    ],
)
async def test_what_cannot_be_forked_is_refused(live: Any, body: Json, param: str) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(4)
        refused = await client.post(f"/requests/{stream.id}/branches/0/fork", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


@pytest.mark.parametrize("field", ["suffix_prompt", "beam_width", "distinct", "lora", "prompt", "tempreature"])
async def test_a_field_that_forks_do_not_have_is_refused_by_name(live: Any, field: str) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(1)
        refused = await client.post(f"/requests/{stream.id}/branches/0/fork", json={field: 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_a_byte_inside_a_token_is_refused_with_the_places_beside_it(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(30)
        refusals = []
        for byte in range(12):
            body: Json = {"at": {"byte": byte}, "stream": True, "n_predict": 1}
            answered = await client.post(f"/requests/{stream.id}/branches/0/fork", json=body)
            if answered.status_code == 400:
                refusals.append(answered.json()["error"]["message"])
        assert refusals
        assert all("the nearest positions are" in message for message in refusals)


ROUTES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me of a fox that went to the sea with a bear!"}]},
    "/v1/completions": {"prompt": "Once upon a time, a fox and a bear went to the sea. They"},
}


class Chunks:
    """A stream of OpenAI's that is being read."""

    def __init__(self, answer: httpx.Response) -> None:
        self.id = answer.headers["x-request-id"]
        self._lines = answer.aiter_lines()
        self.choices: dict[int, list[Json]] = {}
        self.predicted: dict[int, int] = {}
        """Tokens of the branches that have ended."""
        self.usage: Json = {}

    async def read(self, n_chunks: int | None = None) -> None:
        """Reads so many chunks, or all to the end."""
        async for line in self._lines:
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            self.usage = chunk["usage"] or self.usage
            for choice in chunk["choices"]:
                self.choices.setdefault(choice["index"], []).append(choice)
                if choice["finish_reason"] is not None:
                    self.predicted[choice["index"]] = chunk["timings"]["predicted_n"]
            n_chunks = None if n_chunks is None else n_chunks - 1
            if n_chunks == 0:
                return

    def pieces(self, index: int, kind: str = "content") -> list[str]:
        """What a branch was told, piece by piece."""
        told = [choice["text"] if "text" in choice else choice["delta"].get(kind) for choice in self.choices[index]]
        return [piece for piece in told if piece]


async def found(client: httpx.AsyncClient, answering: "asyncio.Task[httpx.Response]") -> str:
    """The URL of the first branch of the one request that runs and is answered whole."""
    while True:
        assert not answering.done(), answering.result().text
        for one in (await client.get("/requests")).json()["requests"]:
            if one["n_running"] and not one["stream"]:
                return f"/requests/{one['id']}/branches/0"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("route", ROUTES)
async def test_forks_come_into_streams_of_openais_as_further_choices(live: Any, route: str) -> None:  # noqa: ANN401 (as above)
    body = {**ROUTES[route], "max_tokens": 2000, "ignore_eos": True, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    async with client_of(live) as client, client.stream("POST", route, json=body) as answer:
        stream = Chunks(answer)
        await stream.read(16)
        url = f"/requests/{stream.id}/branches"
        alike = await client.post(f"{url}/0/fork", json={"at": {"token": 4}})
        hotter = await client.post(f"{url}/0/fork", json={"n": 2, "n_predict": 5, "temperature": 1.5})
        assert (alike.json(), hotter.json()) == ({"indices": [1]}, {"indices": [2, 3]})
        while not (len(stream.choices.get(1, ())) > 12 and {2, 3} <= stream.predicted.keys()):
            await stream.read(1)
        for index in (0, 1):
            assert (await client.delete(f"{url}/{index}")).status_code == 204
        await stream.read()
    assert "".join(stream.pieces(1)[:8]).strip() in "".join(stream.pieces(0)), "it writes what its branch has written"
    reasons = {index: choices[-1]["finish_reason"] for index, choices in stream.choices.items()}
    assert reasons == {0: "cancelled", 1: "cancelled", 2: "length", 3: "length"}
    if "chat" in route:
        assert all(choices[0]["delta"] == {"role": "assistant", "content": None} for choices in stream.choices.values())
        assert not any("role" in choice["delta"] for choices in stream.choices.values() for choice in choices[1:])
    assert (stream.predicted[2], stream.predicted[3]) == (5, 5)
    assert stream.usage["completion_tokens"] == sum(stream.predicted.values())


@pytest.mark.parametrize("route", ROUTES)
async def test_a_fork_tells_the_likely_tokens_that_it_was_asked_for_and_its_branch_was_not(live: Any, route: str) -> None:  # noqa: ANN401 (as above)
    body = {**ROUTES[route], "max_tokens": 2000, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"logprobs": True} if "chat" in route else {"logprobs": 0}
    async with client_of(live) as client, client.stream("POST", route, json=body) as answer:
        stream = Chunks(answer)
        await stream.read(4)
        url = f"/requests/{stream.id}/branches"
        assert (await client.post(f"{url}/0/fork", json={"n_predict": 3, "n_probs": 2})).json() == {"indices": [1]}
        assert (await client.post(f"{url}/0/fork", json={"n_predict": 3})).json() == {"indices": [2]}
        while not {1, 2} <= stream.predicted.keys():
            await stream.read(1)
        assert (await client.delete(f"{url}/0")).status_code == 204
        await stream.read()
    told = {index: [one["logprobs"] for one in choices if one["logprobs"]] for index, choices in stream.choices.items()}
    n_likely = {index: {len(one["content"][0].get("top_logprobs", ())) for one in lists} for index, lists in told.items()}
    assert n_likely == {0: {0}, 1: {2}, 2: {0}}


@pytest.mark.parametrize("route", ROUTES)
async def test_forks_come_into_whole_answers_of_openais_as_further_choices(live: Any, route: str) -> None:  # noqa: ANN401 (as above)
    body = {**ROUTES[route], "max_tokens": 3000, "ignore_eos": True}
    async with client_of(live) as client:
        answering = asyncio.create_task(client.post(route, json=body))
        url = await found(client, answering)
        assert (await client.post(f"{url}/fork", json={"n": 2, "n_predict": 6})).json() == {"indices": [1, 2]}
        report_url = url.removesuffix("/branches/0")
        n_finished = 0
        while n_finished < 2:
            n_finished = (await client.get(report_url)).json()["n_finished"]
            await asyncio.sleep(0.01)
        await client.delete(url)
        answer = (await answering).json()
    told = [(choice["index"], choice["finish_reason"]) for choice in answer["choices"]]
    assert told == [(0, "cancelled"), (1, "length"), (2, "length")]
    assert all(choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == answer["timings"]["predicted_n"] > 12


async def test_a_fork_is_read_from_where_its_branch_was(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3000, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with LiveServer(tmp_path / "log", "-np", "4", "-c", "8192", "--kv-unified", "--chat-template", template) as server:
        await server.ready()
        async with client_of(server) as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
            stream = Chunks(answer)
            await stream.read(8)
            url = f"/requests/{stream.id}/branches"
            for index, asked in enumerate(({"append": "</think>\n\nOnce"}, {}), 1):
                made = await client.post(f"{url}/0/fork", json={"n_predict": 12, **asked})
                assert made.json() == {"indices": [index]}, made.text
            # One that is forked from a fork knows what that was forked from.
            while not len(stream.choices.get(1, ())) > 4:
                await stream.read(1)
            assert (await client.post(f"{url}/1/fork", json={"n_predict": 5})).json() == {"indices": [3]}
            while not {1, 2, 3} <= stream.predicted.keys():
                await stream.read(1)
            await client.delete(f"{url}/0")
            await stream.read()
    answers, thoughts = ([bool(stream.pieces(index, kind)) for index in range(4)] for kind in ("content", "reasoning_content"))
    assert (answers, thoughts) == ([False, True, False, True], [True, False, True, False])


class ForkedStream(ScriptedStream):
    """Whose branch 1 was forked after two tokens of branch 0."""

    def __init__(self, seam: tuple[str, int]) -> None:
        super().__init__([[token(0, "a"), token(0, "bc")]])
        self._seam = seam

    def forked_at(self, _index: int) -> tuple[int, int]:
        return 0, 2

    def fork_boundary(self, _index: int) -> tuple[str, int]:
        return self._seam


@pytest.mark.parametrize(("seam", "before"), [(("", 0), "abc+"), (("d", 0), "abcd+"), (("", 1), "ab+")])
async def test_a_fork_is_read_behind_what_its_branch_held_back_and_nothing_twice(seam: tuple[str, int], before: str) -> None:
    request, streams = weft.Request(prompt="a"), [ForkedStream(seam)]
    generation = Generation(cast("Any", SimpleNamespace(branches=())), [request], cast("Any", streams), UsageCounters())
    await generation.next_batches()
    generation.add_forks(0, [1], request, "+", requests_top_logprobs=False)
    assert generation.texts[0].before(1) == before


async def test_forks_that_would_read_too_much_again_do_not_come_into_a_chat(live: Any) -> None:  # noqa: ANN401 (as above)
    route = "/v1/chat/completions"
    async with client_of(live) as client:
        answering = asyncio.create_task(client.post(route, json={**ROUTES[route], "max_tokens": 3000, "ignore_eos": True}))
        url = await found(client, answering)
        body = {"n": 200, "n_predict": 1, "append": " and so on" * 40}
        refused = await client.post(f"{url}/fork", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        assert "set stream to true" in refused.json()["error"]["message"]
        assert (await client.post(f"{url}/fork", json={**body, "n": 2})).json() == {"indices": [1, 2]}
        await client.delete(url.removesuffix("/branches/0"))
        await answering


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("/v1/responses", {"input": "A story!", "max_output_tokens": 1500}),
        ("/v1/completions", {"prompt": PROMPT, "echo": True}),
        ("/v1/completions", {"prompt": PROMPT, "best_of": 2}),
        ("/v1/completions", {"prompt": [PROMPT, PROMPT]}),
    ],
    ids=["responses", "echo", "best_of", "two prompts"],
)
async def test_an_answer_that_has_no_room_for_forks_says_so(live: Any, route: str, asked: Json) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client:
        answering = asyncio.create_task(client.post(route, json={**asked, "max_tokens": 1500, "ignore_eos": True}))
        url = await found(client, answering)
        refused = await client.post(f"{url}/fork", json={})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
        own = await client.post(f"{url}/fork", json={"stream": True, "n_predict": 2})
        assert own.status_code == 200
        await client.delete(url.removesuffix("/branches/0"))
        await answering


async def test_a_branch_is_forked_by_nobody_else(tmp_path: Path) -> None:
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    with LiveServer(tmp_path / "log", "-np", "2", "-c", "8192", "--kv-unified", "--api-key", "one,two") as server:
        await server.ready()
        client = httpx.AsyncClient(base_url=server.url, timeout=60)
        async with client.stream("POST", "/completion", json=ENDLESS, headers=keys[0]) as answer:
            stream = Running(answer)
            await stream.read(4)
            url = f"/requests/{stream.id}/branches/0/fork"
            assert (await client.post(url, json={}, headers=keys[1])).status_code == 404
            assert (await client.post(url, json={"n_predict": 2}, headers=keys[0])).json() == {"indices": [1]}
        await client.aclose()
