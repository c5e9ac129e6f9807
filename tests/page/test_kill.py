"""A server that is killed while branches are written and text is typed.

`python -m tests.page.test_kill` is that server. Its branches wait for words that the test allows through its standard input, so
that none of them can end before the server is killed.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx
from granian.constants import Interfaces
from granian.server.embed import Server
from playwright.async_api import expect

import weft.documents
from tests.page.conftest import NewWriter
from tests.page.engine import ANIMALS, LIKELY, WordEngine, story
from tests.page.served import tree
from tests.server.live import environ, free_port
from weft.server import create_app
from weft.settings import Settings

DEADLINE_S = 20

N_STORED = 12
"""Words of each branch that are in the file before the server is killed."""

N_WRITTEN = 20
"""Words of each branch when the server is killed."""


class KilledServer:
    """A server in a process of its own, over an engine whose branches write as many words as the test allows."""

    def __init__(self, documents: Path) -> None:
        self.documents = documents
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.AsyncClient(base_url=self.url, timeout=30)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self.kill()

    async def start(self) -> None:
        """Starts the server, whose branches may not write yet."""
        self._run()
        async with asyncio.timeout(DEADLINE_S):
            while not await self._answers():
                assert self.process.poll() is None, "the server ended"
                await asyncio.sleep(0.02)

    def _run(self) -> None:
        command = [sys.executable, "-m", "tests.page.test_kill", "--port", str(self.port), "--documents", str(self.documents)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ(), text=True)

    async def _answers(self) -> bool:
        try:
            return (await self.client.get("/health")).status_code == 200
        except httpx.TransportError:
            return False

    def allow(self, n_words: int) -> None:
        """Lets each branch write this many words in all."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{n_words}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Ends the process with SIGKILL."""
        self.process.kill()
        with self.process:
            pass

    async def nodes(self, document: str) -> dict[int, Any]:
        """Returns the nodes as the server reports them."""
        answer = await self.client.get(f"/documents/{document}/nodes")
        return {node["id"]: node for node in answer.raise_for_status().json()["nodes"]}

    async def stored(self, document: str) -> list[str]:
        """Returns the texts in the file, without the server, which would store the latest text to answer."""
        async with weft.documents.open(self.documents) as documents:
            return [node.text for node in await documents.nodes(document)]

    async def has_stored(self, document: str, expected: list[str]) -> None:
        """Waits until the file has these texts, without a request that lets the server store them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                while await self.stored(document) != expected:  # noqa: ASYNC110 (no event announces it)
                    await asyncio.sleep(0.05)
        assert await self.stored(document) == expected


def words(index: int, n: int) -> str:
    """Returns the first words of a branch."""
    engine = WordEngine()
    return engine.detokenize(engine.tokenize(story("", index))[:n])


async def test_a_killed_server_loses_no_stored_text_and_one_key_continues_its_branches(
    tmp_path: Path, new_writer: NewWriter
) -> None:
    async with KilledServer(tmp_path / "documents.sqlite") as server:
        settings = {"memory": "A memory.", "author_note": {"text": "[A note.]", "depth": 0, "unit": "lines"}}
        nodes = tree("Once upon a time", [" Dear diary,"])
        content = {"format": "weft document", "version": 1, "settings": settings, "nodes": nodes}
        body = {"format": "json", "content": json.dumps(content)}
        document = (await server.client.post("/documents/import", json=body)).raise_for_status().json()["id"]
        writer = await new_writer(server)
        await writer.open(document, 1)
        await writer.to_end()
        await writer.page.get_by_role("combobox", name="Branches").select_option("× 8")
        await writer.page.get_by_role("combobox", name="Until").select_option("512 tokens")
        await writer.text.focus()
        await writer.press("Control+Enter")
        await expect(writer.page.get_by_role("button", name="Stop all").first).to_be_visible()

        # The user types beside the branches, and what the page reports as saved is in the file.
        await writer.row("Dear diary").click()
        await writer.shows("Once upon a time Dear diary,")
        await writer.to_end()
        await writer.write(" the lamp")
        await writer.saved()
        texts = ["Once upon a time", " Dear diary, the lamp"]
        assert (await server.stored(document))[:2] == texts

        # Nothing but time lets the server store the text of branches.
        server.allow(N_STORED)
        await server.has_stored(document, [*texts, *(words(index, N_STORED) for index in range(8))])

        # The server is killed while branches write and the user types.
        server.allow(N_WRITTEN)
        await writer.write(" went out")
        server.kill()
        await writer.write(" at nine.")
        await expect(writer.save_state).to_have_text("Offline: kept in this browser")
        found = await server.stored(document)
        assert " Dear diary, the lamp went out".startswith(found[1])
        assert found[1].startswith(texts[1])
        for index, text in enumerate(found[2:]):
            assert text.startswith(words(index, N_STORED))
            assert words(index, N_WRITTEN).startswith(text)

        await server.start()
        await writer.reload()
        await writer.shows("Once upon a time Dear diary, the lamp went out at nine.")
        await writer.saved()
        kept = await server.nodes(document)
        assert [node["text"] for node in kept.values()] == [texts[0], " Dear diary, the lamp went out at nine.", *found[2:]]
        assert [node["state"] for node in kept.values()] == ["done", "done", *["interrupted"] * 8]

        # One key continues all branches where they ended, with the prompts that they had.
        await writer.text.focus()
        async with writer.page.expect_response("**/resume") as resuming:
            await writer.press("Alt+r")
        resumed = (await (await resuming.value).json())["resumed"]
        prompt = "A memory.\nOnce upon a time\n[A note.]\n"
        assert [each["n_prompt"] for each in resumed] == [len(WordEngine().tokenize(prompt + text)) for text in found[2:]]
        await expect(writer.page.get_by_role("button", name="Stop all").first).to_be_visible()
        server.allow(3)
        expected = [*found[2:]]
        more = words(0, 3)
        await server.has_stored(document, [texts[0], kept[2]["text"], *(text + more for text in expected)])
        assert {node["state"] for node in (await server.nodes(document)).values() if node["id"] > 2} == {"running"}


async def serve(port: int, documents: Path) -> None:
    """Serves until the standard input ends, as it does when the test ends."""
    engine = WordEngine()
    # The same tokens in each process, as of a model.
    for index in range(len(ANIMALS)):
        engine.tokenize(story("", index))
    for word in LIKELY:
        engine.tokenize(word)
    engine.hold()
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(alias="scripted", documents_path=str(documents)))
    server = Server(app, address="127.0.0.1", port=port, interface=Interfaces.ASGI, log_enabled=False)
    serving = asyncio.create_task(server.serve())

    def read() -> None:
        if line := sys.stdin.readline():
            engine.hold(int(line))
        else:
            serving.cancel()

    asyncio.get_running_loop().add_reader(sys.stdin, read)
    await asyncio.gather(serving, return_exceptions=True)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--documents", type=Path, required=True)
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.documents))


if __name__ == "__main__":
    main()
