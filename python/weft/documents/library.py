"""Asynchronous access to a file of documents, which a separate thread reads and writes."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from weft.documents import catalog, nodes
from weft.documents.catalog import DocumentChange
from weft.documents.database import Database
from weft.documents.formats import ParsedFile, SavedDocument, export, parse
from weft.documents.formats.registry import ExportFormat, ImportFormat
from weft.documents.formats.saved import saved
from weft.documents.nodes import Content, Stored
from weft.documents.owners import key_digest
from weft.documents.records import Document, DocumentKey, ImportedDocument, Limits, Node
from weft.documents.search import Hit, Page, search
from weft.work.threads import WorkerPool

if TYPE_CHECKING:
    from weft.documents.trees import DocumentTree
    from weft.engine import Engine
    from weft.tree import Tree

Given = ParamSpec("Given")
Made = TypeVar("Made")

PAGE = 1_000
"""Nodes that are read or written in one transaction, in some ten milliseconds, so that running branches are stored meanwhile."""

MAX_TREE_BYTES = 1024 * 1024 * 1024
"""Maximum size of the tree of a document, as `weft.Tree` estimates it."""


class Documents:
    """Documents of one owner in one SQLite file. Created by `weft.documents.open`.

        async with weft.documents.open("stories.sqlite") as documents:
            document = await documents.create("The fox")
            node = await documents.add_node(document.id, None, "There was a fox.")
            made = await documents.tree(document.id, engine)
            await made.nodes[node.id].extend(n=4, max_tokens=32)
            await documents.add_tree(made.tree, "The fox, continued")

    The methods may be called on any event loop. The file is created with the first document.
    """

    def __init__(self, database: Database, digest: str | None) -> None:
        self._database = database
        self._digest = digest
        self._thread = WorkerPool("documents", n_threads=1)
        self._converter = WorkerPool("documents-formats", n_threads=1)

    async def run(self, work: Callable[Concatenate[Database, Given], Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
        """Runs a function of the file on its thread, and returns the result. Calls run in their order.

        Raises:
            DocumentFileError: The file cannot be read or written.
        """
        return await self._thread.run(partial(work, self._database, *args, **kwargs))

    async def convert(self, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
        """Runs a conversion of a whole document on another thread, and returns the result."""
        return await self._converter.run(partial(work, *args, **kwargs))

    async def list(self) -> list[Document]:
        """Returns all documents, the last changed first."""
        return await self.run(catalog.documents, self._digest)

    async def create(self, title: str = "", *, folder: str = "") -> Document:
        """Creates an empty document.

        Raises:
            DocumentsFullError: A quota is used up.
            DocumentFileError: The file cannot be created.
        """
        return await self.run(catalog.create, self._digest, DocumentChange(title=title, folder=folder))

    async def delete(self, document_id: str) -> None:
        """Deletes a document permanently.

        Raises:
            DocumentNotFoundError: It does not exist.
        """
        await self.run(catalog.delete, self._key(document_id))

    async def nodes(self, document_id: str) -> "Sequence[Node]":
        """Returns all nodes of a document, in the order of their creation.

        Raises:
            DocumentNotFoundError: It does not exist.
        """
        return [each.node for each in await self._stored(self._key(document_id))]

    async def add_node(self, document_id: str, parent: int | None, text: str) -> Node:
        """Adds a node with a text after the last child of another node, or at the top of the document.

        Raises:
            DocumentNotFoundError: The document or the parent does not exist.
            DocumentsFullError: A quota is used up.
        """
        [made] = await self.run(nodes.create, self._key(document_id), parent, [Content(text=text)])
        return made

    async def search(self, query: str, *, document_id: str | None = None, limit: int = 100) -> "Sequence[Hit]":
        """Returns nodes that contain a text, regardless of case and diacritics, at most about `limit`."""
        hits: list[Hit] = []
        page = Page([], 0)
        while page.next is not None and len(hits) < limit:
            page = await self.run(search, self._digest, query, document_id=document_id, after=page.next, limit=limit - len(hits))
            hits += page.hits
        return hits

    async def tree(
        self,
        document_id: str,
        engine: "Engine",
        *,
        max_nodes: int | None = None,
        max_bytes: int = MAX_TREE_BYTES,
    ) -> "DocumentTree":
        """Returns a `weft.Tree` with the nodes of a document. Later changes of either do not affect the other.

        Tokens are kept if they are of the engine's model; other text is tokenized.

        Args:
            document_id: The document.
            engine: A running engine.
            max_nodes: Limit of the tree; the default is the quota of a document.
            max_bytes: Limit of the tree.

        Raises:
            DocumentNotFoundError: It does not exist.
            InvalidRequestError: It has no text, or several nodes at the top.
            TreeFullError: It exceeds a limit.
        """
        from weft.documents.trees import to_tree  # noqa: PLC0415 (the file alone does not need the engine)

        read = await self.read(self._key(document_id))
        n = self._database.limits.max_nodes if max_nodes is None else max_nodes
        return await self.convert(to_tree, read, engine, max_nodes=n, max_bytes=max_bytes)

    async def add_tree(self, tree: "Tree", title: str = "") -> Document:
        """Creates a document with the nodes of a tree.

        Raises:
            DocumentsFullError: A quota is used up.
        """
        from weft.documents.trees import of_tree  # noqa: PLC0415 (as above)

        return await self.add(self._digest, of_tree(tree, title))

    async def export(self, document_id: str, name: ExportFormat, node_id: int | None = None) -> bytes:
        """Returns the file of a document in a format, or, of a format of one text, the path to a node.

        Raises:
            DocumentNotFoundError: It does not exist.
            InvalidRequestError: It has no such node.
        """
        return await self.convert(export, name, await self.read(self._key(document_id)), node_id)

    async def import_file(self, data: bytes, name: ImportFormat) -> ImportedDocument:
        """Creates a document from a file. The `notes` of the result state what of the file does not apply.

        Raises:
            InvalidRequestError: The file does not have this format.
            DocumentsFullError: A quota is used up.
        """
        parsed = await self.convert(parse, name, data)
        return imported(await self.add(self._digest, parsed.document), parsed)

    async def read(self, key: DocumentKey) -> SavedDocument:
        """Returns a whole document.

        Raises:
            DocumentNotFoundError: It does not exist.
        """
        document = await self.run(catalog.document, key)
        return await self.convert(saved, document, await self._stored(key))

    async def add(self, digest: str | None, document: SavedDocument) -> Document:
        """Creates a document with nodes. While they are added, and after a failure, it is in the trash.

        Raises:
            DocumentsFullError: A quota is used up; the document was deleted again.
        """
        change = DocumentChange(
            title=document.title, folder=document.folder, settings=document.settings or None, is_trashed=bool(document.nodes)
        )
        made = await self.run(catalog.create, digest, change)
        key = DocumentKey(digest, made.id)
        try:
            ids: dict[int | None, int | None] = {None: None}
            ids |= {node.id: nth for nth, node in enumerate(document.nodes, 1)}
            for first in range(0, len(document.nodes), PAGE):
                placed = [
                    (ids[node.parent], float(first + nth), node.content())
                    for nth, node in enumerate(document.nodes[first : first + PAGE])
                ]
                await self.run(_add, key, placed)
        except BaseException:
            await self.run(catalog.delete, key)
            raise
        return await self.run(catalog.change, key, DocumentChange(is_trashed=False)) if document.nodes else made

    async def close(self) -> None:
        """Closes the file. Idempotent."""
        await self._thread.run(self._database.close)
        self._thread.close()
        self._converter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _stored(self, key: DocumentKey) -> "Sequence[Stored]":
        found: list[Stored] = []
        while page := await self.run(nodes.stored_page, key, after=found[-1].node.id if found else 0, limit=PAGE):
            found += page
        return found

    def _key(self, document_id: str) -> DocumentKey:
        return DocumentKey(self._digest, document_id)


def _add(database: Database, key: DocumentKey, placed: "Sequence[tuple[int | None, float, Content]]") -> None:
    with database.transaction():
        nodes.add(database, catalog.locate(database, key), placed)


def imported(document: Document, parsed: ParsedFile) -> ImportedDocument:
    """Returns a document that was created from a file, with the notes on the file."""
    return ImportedDocument(**msgspec.structs.asdict(document), notes=list(parsed.notes))


def open_documents(path: str | os.PathLike[str], *, api_key: str | None = None, limits: Limits | None = None) -> Documents:
    """Returns the documents in a file, which is created with the first one.

    A server may use the same file; clients that follow its events do not learn of changes that are made here.

    Args:
        path: Path of the file.
        api_key: API key whose documents are accessed; None accesses documents made without keys.
        limits: Quotas.
    """
    return Documents(Database(path, limits), None if api_key is None else key_digest(api_key))
