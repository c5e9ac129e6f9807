"""The page's server in this process, over an engine that a test controls."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast

import httpx
import msgspec
from granian.constants import Interfaces
from granian.server.embed import Server

from tests.page.engine import WordEngine
from tests.server.live import free_port
from tests.server.matchers import Json
from weft.server import create_app
from weft.settings import Settings

__all__ = ["PageServer", "tree"]

TEXTS_S = 20
"""Deadline of changed texts, in seconds."""


class PageServer:
    """A server that can stop and start again, with the same documents and at the same address."""

    def __init__(self, documents: Path, /, *, is_loaded: bool = True, **settings: Any) -> None:  # noqa: ANN401 (settings)
        """Creates a server that does not run yet.

        Args:
            documents: File of the documents.
            is_loaded: Whether the model is loaded at once; otherwise when `engine.loaded` is set.
            settings: Settings of the server.
        """
        self.port = free_port()
        self.settings = {"alias": "scripted", "documents_path": str(documents)} | settings
        prefix = str(settings.get("api_prefix", ""))
        self.url = f"http://127.0.0.1:{self.port}{prefix}"
        keys = settings.get("api_keys", ())
        headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
        self.client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)
        self._is_loaded = is_loaded

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        await self.stop()

    async def start(self) -> None:
        """Starts with a new engine, which has forgotten everything."""
        self.engine = WordEngine()
        if self._is_loaded:
            self.engine.loaded.set()
        self._app = create_app(self.engine.as_engine(), Settings.of(self.settings))
        self._server = Server(self._app, address="127.0.0.1", port=self.port, interface=Interfaces.ASGI, log_enabled=False)
        self._task = asyncio.create_task(self._server.serve())
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.client.get("/health")
                    return
                except httpx.TransportError:
                    await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stops as a server does on SIGTERM: branches that are running are interrupted."""
        if self._task.done():
            return
        # As a worker does before it closes its connections, whose streams end with the engine.
        await self._app.service.stop_engine()
        self._server.stop()  # type: ignore[no-untyped-call]
        await self._task

    async def create(self, title: str, *nodes: Json, **more: Json) -> str:
        """Creates a document with nodes as in a JSON file of Weft; returns its id."""
        content = {"format": "weft document", "version": 1, "title": title, "folder": "", "settings": {}, "nodes": nodes}
        body = {"format": "json", "content": msgspec.json.encode(content | more).decode()}
        answer = await self.client.post("/documents/import", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def nodes(self, document: str) -> dict[int, Json]:
        """Returns the nodes of a document by id."""
        answer = await self.client.get(f"/documents/{document}/nodes", params={"limit": 10_000})
        return {node["id"]: node for node in answer.raise_for_status().json()["nodes"]}

    async def texts(self, document: str) -> list[str]:
        """Returns the texts of all nodes that are not in the trash, in the order of their ids."""
        return [node["text"] for node in (await self.nodes(document)).values() if not node["is_trashed"]]

    async def has_texts(self, document: str, expected: list[str]) -> None:
        """Waits until the nodes outside of the trash have these texts: the page shows a change before the server has it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TEXTS_S):
                while await self.texts(document) != expected:  # noqa: ASYNC110 (the server sends no event to a test)
                    await asyncio.sleep(0.05)
        assert await self.texts(document) == expected

    async def documents(self) -> dict[str, Json]:
        """Returns the documents by title."""
        answer = await self.client.get("/documents")
        return {each["title"]: each for each in answer.raise_for_status().json()["documents"]}

    async def delete_documents(self) -> None:
        """Deletes all documents."""
        answer = await self.client.get("/documents")
        for document in answer.json()["documents"]:
            await self.client.delete(f"/documents/{document['id']}")


def tree(*texts: str | Sequence[Any]) -> list[Json]:
    """Returns nodes of a JSON file: each text continues the one before, and a list is a branch beside what follows it."""
    made: list[Json] = []

    def add(texts: Sequence[Any], parent: int | None) -> None:
        for each in texts:
            if not isinstance(each, str):
                add(each, parent)
                continue
            node = {"id": len(made) + 1, "text": each} | ({} if parent is None else {"parent": parent})
            made.append(cast("Json", node))
            parent = node["id"]  # type: ignore[assignment]

    add(texts, None)
    return made
