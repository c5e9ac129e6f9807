"""Storing of the text that branches write, ordered with all other reads and changes of the documents."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Concatenate, ParamSpec, TypeVar

from weft.documents import branches
from weft.documents.branches import Growth, NodeId
from weft.documents.database import Database
from weft.documents.library import Documents
from weft.documents.records import DocumentKey, Node
from weft.errors import DocumentConflictError, NotSupportedError, WeftError
from weft.server.documents_api.writers import BranchWriter, StoredGrowth, store

logger = logging.getLogger(__name__)

Given = ParamSpec("Given")
Made = TypeVar("Made")

STORE_S = 0.25
"""Interval at which the text of running branches is stored, in seconds. With the time of the transaction it stays below 0.5 s."""

RETRY_S = 5.0
"""Interval between attempts after storing has failed, in seconds."""

FULL_MESSAGE = "the quota of bytes is used up"
"""Error of branches that were stopped because their owner's documents may not grow."""


class BranchStore:
    """The file of the documents and the branches that are being written. Each read of the file includes their text."""

    def __init__(
        self,
        file: Callable[[], Documents],
        on_end: Callable[[DocumentKey, Node], object],
        cancel: Callable[[Iterable[BranchWriter]], object],
    ) -> None:
        """Creates a store without branches.

        Args:
            file: Returns the file, or raises an error if the server offers no documents.
            on_end: Called with each node whose branch has ended, once that is stored.
            cancel: Cancels branches whose text cannot be stored.
        """
        self._file = file
        self._on_end = on_end
        self._cancel = cancel
        self._writers: dict[NodeId, BranchWriter] = {}
        """Writers by their node, until their end is stored."""
        self._storing: asyncio.Task[None] | None = None
        self._is_failing = False
        """True after text could not be stored, until some is stored again."""

    def writer(self, node: NodeId) -> BranchWriter | None:
        """Returns the writer of a node, or None if no branch writes it."""
        return self._writers.get(node)

    def writers_of(self, document_id: str) -> list[BranchWriter]:
        """Returns the writers of a document."""
        return [writer for writer in self._writers.values() if writer.key.id == document_id]

    def add(self, writers: Iterable[BranchWriter]) -> None:
        """Adds writers, whose text is stored from now on until their ends."""
        self._writers |= {NodeId(writer.key.id, writer.node_id): writer for writer in writers}
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_regularly(), context=Context())

    async def run(self, work: Callable[Concatenate[Database, Given], Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
        """Runs a function of the file, which includes all text that branches have written before this call."""
        growths = [(writer.key, writer.take()) for writer in self._writers.values() if writer.is_dirty]
        for writer in self._writers.values():
            writer.is_held = writer.is_held or writer.will_be_held
        # Runs to its end, also if the caller is cancelled: the writers no longer have this text.
        return await asyncio.shield(asyncio.create_task(self._stored(growths, lambda database: work(database, *args, **kwargs))))

    def is_held(self, node: NodeId) -> bool:
        """Returns whether a node is being split, so that its text is published later."""
        writer = self._writers.get(node)
        return writer is not None and writer.is_held

    @contextmanager
    def holding(self, node: NodeId) -> "Iterator[BranchWriter | None]":
        """Stores the text of a node's writer with the next call of `run`, and no later text until the end of the block."""
        writer = self._writers.get(node)
        if writer is None:
            yield None
            return
        if writer.is_held:
            raise DocumentConflictError(f"node {node.node_id} is being split; try again")
        writer.will_be_held = True
        try:
            yield writer
        finally:
            writer.is_held = writer.will_be_held = False

    def follow_split(self, writer: BranchWriter | None, changed: Sequence[Node]) -> None:
        """Lets a writer continue in the new child of its node."""
        if writer is None or len(changed) < 2:
            return
        del self._writers[NodeId(writer.key.id, writer.node_id)]
        writer.move(changed[1].id, len(changed[0].text))
        self._writers[NodeId(writer.key.id, writer.node_id)] = writer

    async def _store_regularly(self) -> None:
        """Stores the text of running branches at intervals until all have ended."""
        while self._writers:
            await asyncio.sleep(RETRY_S if self._is_failing else STORE_S)
            try:
                await self.store()
            except WeftError as error:
                self._report_failure(error)

    def _report_failure(self, error: WeftError) -> None:
        if not self._is_failing:
            logger.error("text of branches cannot be stored, which is tried again: %s", error)
        self._is_failing = True

    async def _stored(self, growths: Sequence[tuple[DocumentKey, Growth]], work: Callable[[Database], Made]) -> Made:
        """Stores text of branches and runs `work`, in this order and without other work between."""
        result, stored = await self._file().run(_store_and_run, growths, work)
        if isinstance(stored, WeftError):
            self._report_failure(stored)
            self._interrupt({NodeId(growth.document_id, growth.node_id) for _, growth in growths}, stored)
        else:
            self._is_failing = self._is_failing and not growths
            self._handle(stored, growths)
        if isinstance(result, BaseException):
            raise result
        return result

    def _handle(self, stored: StoredGrowth, growths: Sequence[tuple[DocumentKey, Growth]]) -> None:
        for key, node in stored.ended:
            self._on_end(key, node)
        for _, growth in growths:
            if growth.end is not None:
                self._writers.pop(NodeId(growth.document_id, growth.node_id), None)
        self._interrupt(set(stored.full), NotSupportedError(FULL_MESSAGE))

    def _interrupt(self, full: set[NodeId], error: WeftError) -> None:
        """Ends branches whose text cannot be stored."""
        chosen = [writer for node in full if (writer := self._writers.get(node)) is not None]
        for writer in chosen:
            writer.retry_end(str(error))
        self._cancel(chosen)

    async def store(self) -> None:
        """Stores the text that branches have written so far."""
        await self.run(_nothing)

    async def close(self) -> None:
        """Stores the last text of branches that have ended."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
        if not self._writers:
            return
        try:
            await self.store()
        except WeftError as error:
            logger.error("text of branches cannot be stored: %s", error)


def _nothing(_: Database) -> None:
    pass


def _store_and_run(
    database: Database,
    growths: Sequence[tuple[DocumentKey, Growth]],
    work: Callable[[Database], Made],
) -> tuple[Made | BaseException, StoredGrowth | WeftError]:
    """Stores text and runs work; errors of both are returned, since one must not hide the other."""
    stored: StoredGrowth | WeftError = StoredGrowth([], [])
    if database.exists and not database.is_claimed:
        _claim(database)
    if growths:
        try:
            stored = store(database, growths)
        except WeftError as error:
            stored = error
    try:
        result = work(database)
        if database.exists and not database.is_claimed:  # The work has created the file.
            _claim(database)
        return result, stored
    except Exception as error:  # noqa: BLE001 (raised by the caller)
        return error, stored


def _claim(database: Database) -> None:
    """Takes the lock of the file, and interrupts branches that an earlier server was writing.

    Raises:
        DocumentsBusyError: Another server uses the file.
    """
    database.claim()
    branches.interrupt(database)
