"""Operations of documents, which the routes call. Each publishes the events of its changes."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec

from weft.documents import catalog, nodes, structure
from weft.documents.branches import NodeId
from weft.documents.catalog import DocumentChange
from weft.documents.database import Database
from weft.documents.formats import SavedDocument
from weft.documents.library import Documents
from weft.documents.nodes import Content, NodeChange, Stored
from weft.documents.records import Document, DocumentKey, Limits, Node
from weft.errors import NotSupportedError, WeftError
from weft.server.documents_api import prompts
from weft.server.documents_api.availability import documents_path, off_reason
from weft.server.documents_api.events import (
    DocumentChanged,
    DocumentDeleted,
    NodesChanged,
    NodesDeleted,
    TokensWritten,
    WrittenText,
)
from weft.server.documents_api.feed import Feed, Feeds
from weft.server.documents_api.reports import Continued, NodesReport, NotResumed, Resumed
from weft.server.documents_api.schemas import ContinueBody, TextPosition
from weft.server.documents_api.storing import BranchStore
from weft.server.documents_api.writers import BranchWriter, Writing
from weft.server.errors import ServerError, describe
from weft.server.executor import Purpose
from weft.server.inference.generation import Generation
from weft.server.request_fields.fields import Prompt
from weft.server.service import Service
from weft.settings import Settings
from weft.tree.saved import ModelIdentity, identity

logger = logging.getLogger(__name__)

Given = ParamSpec("Given")
Made = TypeVar("Made")

STOP_S = 5.0
"""Maximum time that running branches have to store their last text when the server stops, in seconds."""


class DocumentService:
    """The documents of all owners, and the branches that write into them."""

    def __init__(self, service: Service, *, has_keys: bool) -> None:
        """Creates the operations. The file is opened at its first use.

        Args:
            service: The server's services.
            has_keys: Whether the server has API keys.
        """
        self.off_reason = off_reason(service.settings, has_keys=has_keys)
        """Reason why the server offers no documents, or None if it does."""
        self.has_keys = has_keys
        self._service = service
        self.limits = _limits(service.settings)
        """Quotas of each owner."""
        self._file: Documents | None = None
        self._feeds = Feeds()
        self._writings: dict[asyncio.Task[None], Writing] = {}
        self._store = BranchStore(lambda: self.file, lambda key, node: self._publish_nodes(key, [node]), self._cancel)
        self._identity: tuple[object, ModelIdentity] | None = None
        service.at_stop.append(self._feeds.close)
        if self.off_reason is not None and service.settings.documents:
            logger.info("%s", self.off_reason)

    @property
    def file(self) -> Documents:
        """The documents in their file.

        Raises:
            NotSupportedError: The server offers no documents.
        """
        if self.off_reason is not None:
            raise NotSupportedError(self.off_reason)
        if self._file is None:
            self._file = Documents(Database(documents_path(self._service.settings), self.limits), None)
        return self._file

    def feed(self, owner: str | None) -> Feed:
        """Returns the events of an owner."""
        return self._feeds.of(owner)

    async def run(self, work: Callable[Concatenate[Database, Given], Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
        """Runs a function of the file, which includes all text that branches have written before this call."""
        return await self._store.run(work, *args, **kwargs)

    # Documents

    async def create(self, owner: str | None, change: DocumentChange) -> Document:
        """Creates a document."""
        return self._publish(owner, await self.run(catalog.create, owner, change))

    async def change(self, key: DocumentKey, change: DocumentChange) -> Document:
        """Changes a document."""
        return self._publish(key.digest, await self.run(catalog.change, key, change))

    async def add(self, owner: str | None, document: SavedDocument) -> Document:
        """Creates a document with nodes."""
        return self._publish(owner, await self.file.add(owner, document))

    async def read(self, key: DocumentKey) -> SavedDocument:
        """Returns a whole document."""
        await self._store.store()
        return await self.file.read(key)

    async def duplicate(self, key: DocumentKey, title: str | None, folder: str | None) -> Document:
        """Creates a document with the settings and nodes of another one."""
        copy = await self.read(key)
        copy.title = copy.title if title is None else title
        copy.folder = copy.folder if folder is None else folder
        return await self.add(key.digest, copy)

    async def delete(self, key: DocumentKey) -> None:
        """Deletes a document permanently, and cancels its branches."""
        await self.run(catalog.delete, key)
        self._cancel(self._store.writers_of(key.id))
        self.feed(key.digest).publish(DocumentDeleted(key.id))

    def _publish(self, owner: str | None, document: Document) -> Document:
        self.feed(owner).publish(DocumentChanged(document))
        return document

    # Nodes

    async def nodes(self, key: DocumentKey, *, after: int, limit: int) -> NodesReport:
        """Returns a part of a document's nodes, with the position in the stream of events from which they change."""
        cursor = self.feed(key.digest).cursor
        found = await self.run(nodes.nodes, key, after=after, limit=limit)
        return NodesReport(nodes=found, next=found[-1].id if len(found) == limit else None, cursor=cursor)

    async def node(self, key: DocumentKey, node_id: int) -> Stored:
        """Returns a node with its tokens."""
        return await self.run(nodes.node, key, node_id)

    async def add_node(self, key: DocumentKey, parent: int | None, content: Content, index: int | None) -> Node:
        """Creates a node."""
        [made] = self._publish_nodes(key, await self.run(nodes.create, key, parent, [content], index))
        return made

    async def change_node(self, key: DocumentKey, node_id: int, change: NodeChange) -> tuple[Node, bool]:
        """Changes a node; see `weft.documents.nodes.change`."""
        node, is_sibling = await self.run(nodes.change, key, node_id, change)
        self._publish_nodes(key, [node])
        return node, is_sibling

    async def move(self, key: DocumentKey, node_id: int, parent: int | None, index: int | None) -> Sequence[Node]:
        """Moves a node with its descendants."""
        return self._publish_nodes(key, await self.run(structure.move, key, node_id, parent, index))

    async def delete_node(self, key: DocumentKey, node_id: int) -> Sequence[int]:
        """Deletes a node with its descendants permanently, and cancels their branches."""
        gone = await self.run(structure.delete, key, node_id)
        self._cancel(writer for writer in self._store.writers_of(key.id) if writer.node_id in set(gone))
        self.feed(key.digest).publish(NodesDeleted(key.id, gone))
        return gone

    async def merge(self, key: DocumentKey, node_id: int) -> tuple[Sequence[Node], int]:
        """Joins a node with its only child."""
        changed, gone = await self.run(structure.merge, key, node_id)
        self._publish_nodes(key, changed)
        self.feed(key.digest).publish(NodesDeleted(key.id, [gone]))
        return changed, gone

    async def split(self, key: DocumentKey, node_id: int, at: TextPosition) -> Sequence[Node]:
        """Splits a node; a branch that writes it continues in the new child."""
        offset = prompts.position(await self.node(key, node_id), at)

        async def run() -> Sequence[Node]:
            with self._store.holding(NodeId(key.id, node_id)) as writer:
                changed = await self.run(structure.split, key, node_id, offset)
                self._store.follow_split(writer, changed)
            return self._publish_nodes(key, changed)

        # The writer must follow the split, also if the client disconnects.
        return await asyncio.shield(asyncio.create_task(run()))

    def _publish_nodes(self, key: DocumentKey, changed: Sequence[Node]) -> Sequence[Node]:
        current = [self._current(key, node) for node in changed]
        if current:
            self.feed(key.digest).publish(NodesChanged(key.id, current))
        return current

    def _current(self, key: DocumentKey, node: Node) -> Node:
        """Returns a node with the text that its branch has written since the node was read."""
        writer = self._store.writer(NodeId(key.id, node.id))
        return node if writer is None or node.state != "running" else msgspec.structs.replace(node, text=writer.text)

    # Branches

    async def continue_node(self, key: DocumentKey, node_id: int, body: ContinueBody) -> Continued:
        """Starts branches that write into new nodes below a node, and returns the nodes."""
        source = prompts.source_of(body, await self.run(nodes.path, key, node_id))
        submitted = await self._submit(body, source)
        return await _finished(submitted, self._start(key, node_id, submitted, source.at))

    async def resume(self, key: DocumentKey, node_id: int, prompt: Prompt | None = None) -> Continued:
        """Continues an interrupted node with the parameters of its branch, and a prompt in place of the nodes above it."""
        path = await self.run(nodes.path, key, node_id)
        body, source = prompts.resumed(path, prompt)
        submitted = await self._submit(body, source)
        return await _finished(submitted, self._restart(key, node_id, submitted))

    async def resume_all(self, key: DocumentKey, given: Mapping[str, Prompt]) -> Resumed:
        """Resumes all interrupted nodes of a document, except those in the trash, with the prompts that are given by node."""
        resumed: list[Continued] = []
        failed: list[NotResumed] = []
        for node_id in await self.run(nodes.interrupted, key):
            try:
                resumed.append(await self.resume(key, node_id, given.get(str(node_id))))
            except (WeftError, ServerError) as error:
                failed.append(NotResumed(node=node_id, message=str(error)))
        return Resumed(resumed=resumed, failed=failed)

    async def model_digest(self) -> str | None:
        """Returns the digest of the model, or None before it was loaded."""
        if self._service.engine.is_running:
            return (await self._model_identity()).digest
        return None if self._identity is None else self._identity[1].digest

    async def _model_identity(self) -> ModelIdentity:
        engine_model = self._service.engine.model
        if self._identity is None or self._identity[0] is not engine_model:
            self._identity = (engine_model, await self._service.executor.run_in_thread(Purpose.PROMPT, 0, identity, engine_model))
        return self._identity[1]

    async def _submit(self, body: ContinueBody, source: prompts.Source) -> "_Submitted":
        model, engine_model = await self._model_identity(), self._service.engine.model
        prompt = await self._service.executor.run(Purpose.PROMPT, source.size, prompts.make, engine_model, source, model.digest)
        generation = await self._service.submit(prompts.submission(body, self._service.settings, prompt.tokens))
        return _Submitted(body, prompt, model, generation)

    async def _start(self, key: DocumentKey, node_id: int, submitted: "_Submitted", at: int) -> Continued:
        body, prompt, model, generation = submitted
        contents = [
            Content(
                text=prompt.start_text,
                spans=prompt.start,
                model=model.name,
                digest=model.digest,
                parameters=prompts.parameters(body, index, generation.branch(0, index).seed or 0),
                state="running",
            )
            for index in range(generation.requests[0].n)
        ]
        with self._store.holding(NodeId(key.id, node_id)) as writer:
            changed, made = await self.run(structure.add_branches, key, node_id, at, contents)
            self._store.follow_split(writer, changed)
        return self._write(key, submitted, made, self._publish_nodes(key, changed))

    async def _restart(self, key: DocumentKey, node_id: int, submitted: "_Submitted") -> Continued:
        model = submitted.model
        return self._write(key, submitted, [await self.run(nodes.restart, key, node_id, model.name, model.digest)], [])

    async def stop(self, key: DocumentKey, node_id: int) -> Node:
        """Stops the branch that writes a node, which keeps its text. Returns the node; it may end a moment later."""
        stored = await self.run(nodes.node, key, node_id)
        if (writer := self._store.writer(NodeId(key.id, node_id))) is not None:
            self._cancel([writer])
        return self._current(key, stored.node)

    def _write(self, key: DocumentKey, submitted: "_Submitted", made: Sequence[Node], changed: Sequence[Node]) -> Continued:
        """Starts to write the branches of a request into nodes."""
        body, prompt, _, generation = submitted
        self._publish_nodes(key, made)
        model = self._service.engine.model
        hidden = frozenset(model.control_tokens())
        writers = {
            index: BranchWriter(key, node, model, hidden, until=body.until, lead=prompt.lead) for index, node in enumerate(made)
        }
        self._store.add(writers.values())
        writing = Writing(generation, writers)
        # Runs in its own context, independent of the request, whose client may disconnect.
        task = asyncio.create_task(self._run(key, writing), context=Context())
        self._writings[task] = writing
        task.add_done_callback(self._writings.pop)
        return Continued(
            nodes=made,
            changed=changed,
            request=generation.id,
            n_prompt=len(prompt.tokens),
            n_retokenized=prompt.n_retokenized,
        )

    async def _run(self, key: DocumentKey, writing: Writing) -> None:
        feed = self.feed(key.digest)

        def publish(texts: Sequence[WrittenText]) -> None:
            shown = [text for text in texts if not self._store.is_held(NodeId(key.id, text.node))]
            if shown:
                feed.publish(TokensWritten(key.id, shown))

        error: str | None = None
        try:
            async with self._service.sleep.request():
                await writing.run(publish)
        except Exception as failure:  # noqa: BLE001 (the nodes report it)
            error = describe(failure).message
        finally:
            for writer in writing.writers.values():
                writer.interrupt(error)

    def _cancel(self, writers: Iterable[BranchWriter]) -> None:
        chosen = {id(writer) for writer in writers}
        for writing in self._writings.values():
            for index, writer in writing.writers.items():
                if id(writer) in chosen:
                    writing.generation.streams[0].cancel(index)

    async def close(self) -> None:
        """Stores the last text of all branches, after the engine has stopped, and closes the file."""
        self._feeds.close()
        if self._writings:
            _, running = await asyncio.wait(self._writings, timeout=STOP_S)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if self._file is not None:
            await self._store.close()
            await self._file.close()


def _limits(settings: Settings) -> Limits:
    given = {name: getattr(settings, f"documents_{name}") for name in Limits.__struct_fields__}
    return Limits(**{name: value for name, value in given.items() if value is not None})


class _Submitted(NamedTuple):
    """A request whose branches have no nodes yet."""

    body: ContinueBody
    prompt: prompts.Prompt
    model: ModelIdentity
    generation: Generation


async def _finished(submitted: _Submitted, work: Coroutine[Any, Any, Continued]) -> Continued:
    """Runs work to its end, also if the client disconnects; after a failure it cancels the request."""

    async def run() -> Continued:
        try:
            return await work
        except BaseException:
            submitted.generation.close()
            raise

    return await asyncio.shield(asyncio.create_task(run()))
