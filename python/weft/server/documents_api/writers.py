"""Writers of branches, which convert the events of the engine to text and tokens of nodes."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from weft import Finished, Token
from weft._native import Model
from weft.documents import branches, nodes
from weft.documents.branches import End, Growth, NodeId
from weft.documents.database import Database
from weft.documents.records import Alternative, DocumentKey, Node, Span
from weft.documents.spans import SpanBuilder, decode
from weft.errors import DocumentNotFoundError
from weft.server.documents_api.events import WrittenText, WrittenToken
from weft.server.inference.generation import Generation, end_reason, token_logprobs

Until = Literal["sentence", "paragraph"]
"""Unit of text after which a branch ends, unless another limit ends it earlier."""

_ENDS: Mapping[Until, re.Pattern[str]] = {
    "sentence": re.compile(r"\w[^\w\s]*?[.!?…]+[\"'”’»)\]]*(?=\s)"),  # noqa: RUF001 (quotes of texts)
    "paragraph": re.compile(r"\S(?=[^\S\n]*\n)"),
}
"""End of a sentence or paragraph, before white space."""

MAX_TAIL = 64
"""Characters before a token that are searched again for the end of a sentence."""


class BranchWriter:
    """The text of one branch that is being generated into a node."""

    def __init__(
        self,
        key: DocumentKey,
        node: Node,
        model: Model,
        hidden: frozenset[int],
        *,
        until: Until | None = None,
        lead: bytes = b"",
    ) -> None:
        """Creates a writer.

        Args:
            key: The document.
            node: The node.
            model: Model of the tokens.
            hidden: Control tokens of the model, which have no text.
            until: Where the branch ends.
            lead: Bytes of an incomplete character at the end of the prompt.
        """
        self.key = key
        self.node_id = node.id
        self.n_characters = len(node.text)
        """Length of the node's text."""
        self.end: End | None = None
        """End of the branch; None while it is running."""
        self.will_be_held = False
        """True from the beginning of a split of its node, until its text was taken for the last time."""
        self.is_held = False
        """True while the node is being split, so that text must not be stored under its id."""
        self.is_cut = False
        """True once the end of a sentence or paragraph was found; further tokens are ignored."""
        self._model = model
        self._hidden = hidden
        self._until = until
        self._lead = lead
        """Bytes of an incomplete character that the text does not have yet."""
        self._tail = ""
        self._whole = [node.text]
        """Pieces of the node's text, from its beginning."""
        self._builder = SpanBuilder(lead)
        self._unstored: list[str] = []
        self._spans: list[Span] = []
        self._is_end_stored = False

    def add(self, token: Token) -> tuple[str, list[Span]]:
        """Adds a token. Returns its text, and the spans that it completes."""
        if self.is_cut:
            return "", []
        known = token_logprobs(token)
        pairs = [] if known is None else known.pairs()
        top = tuple(Alternative(each, logprob, self._bytes(each)) for each, logprob in pairs[1:])
        data = self._bytes(token.token)
        text = self._cut(self._completed(data, token.text) if self._lead else token.text)
        self._builder.add(data, token.token, pairs[0][1] if pairs else None, top, text)
        return text, self._take(text)

    def finish(self, finished: Finished) -> tuple[str, list[Span]]:
        """Ends the branch. Returns its last text and spans."""
        reason = "stop" if self.is_cut else end_reason(finished)
        text = "" if self.is_cut else finished.text
        self._builder.add_text(text)
        spans = self._take(text)
        end_token = finished.stop_reason if isinstance(finished.stop_reason, int) else None
        last = self._builder.finish(end_token)
        self._spans += last
        self.end = End("done", reason, None, finished.usage.n_computed, finished.usage.n_cached)
        return text, [*spans, *last]

    def interrupt(self, error: str | None) -> None:
        """Ends the branch as interrupted, so that it can be resumed."""
        if self.end is None:
            self._spans += self._builder.finish(None)
            self.end = End("interrupted", error=error)

    @property
    def text(self) -> str:
        """Text of the node so far, including text that is not stored yet."""
        self._whole = ["".join(self._whole)]
        return self._whole[0]

    def move(self, node_id: int, n_characters: int) -> None:
        """Continues in another node, which has the text of the old one without its first characters."""
        self._whole = [self.text[n_characters:]]
        self.n_characters -= n_characters
        self.node_id = node_id

    @property
    def is_dirty(self) -> bool:
        """True if something must be stored."""
        return not self.is_held and bool(self._unstored or self._spans or (self.end is not None and not self._is_end_stored))

    def take(self) -> Growth:
        """Returns the text, tokens and end since the last call, to be stored."""
        growth = Growth(self.key.id, self.node_id, "".join(self._unstored), self._spans, self.end)
        self._unstored, self._spans = [], []
        self._is_end_stored = self.end is not None
        return growth

    def retry_end(self, error: str) -> None:
        """Replaces the end, which could not be stored, by an interruption."""
        self.end = End("interrupted", error=error)
        self._is_end_stored = False

    def _take(self, text: str) -> list[Span]:
        spans = self._builder.take()
        self._spans += spans
        if text:
            self._unstored.append(text)
            self._whole.append(text)
            self.n_characters += len(text)
        return spans

    def _completed(self, data: bytes, text: str) -> str:
        """Returns the text of a token with the character that the prompt began."""
        n = 0
        while n < len(data) and data[n] & 0xC0 == 0x80 and decode(self._lead + data[:n])[1] == self._lead + data[:n]:
            n += 1
        completed, rest = decode(self._lead + data[:n])
        if rest and n < len(data):  # Another character follows.
            completed, rest = "\ufffd", b""
        self._lead = rest
        # The engine decodes what it generates, so that each of these bytes alone is invalid.
        return completed + text[n:] if text.startswith("\ufffd" * n) else text

    def _cut(self, text: str) -> str:
        """Returns the text up to the end that was requested."""
        if self._until is None or not text:
            return text
        searched = self._tail + text
        found = _ENDS[self._until].search(searched)
        if found is None or found.end() < len(self._tail):
            self._tail = searched[-MAX_TAIL:]
            return text
        self.is_cut = True
        return searched[len(self._tail) : found.end()]

    def _bytes(self, token: int) -> bytes:
        return b"" if token in self._hidden else self._model.token_bytes(token)


class Written(NamedTuple):
    """Text that branches have written."""

    texts: list[WrittenText]
    cut: list[int]
    """Indices of branches that reached the end that was requested, and must be cancelled."""


def absorb(writers: Mapping[int, BranchWriter], events: Sequence[object]) -> Written:
    """Adds the events of one step to the writers of their branches, by index."""
    texts: dict[int, WrittenText] = {}
    cut: list[int] = []
    for event in events:
        if not isinstance(event, Token | Finished) or (writer := writers.get(event.index)) is None or writer.end is not None:
            continue
        start, was_cut = writer.n_characters, writer.is_cut
        text, spans = writer.add(event) if isinstance(event, Token) else writer.finish(event)
        if writer.is_cut and not was_cut:
            cut.append(event.index)
        if text or spans:
            written = texts.setdefault(event.index, WrittenText(writer.node_id, start, "", []))
            written.text += text
            written.tokens = [*written.tokens, *filter(None, map(WrittenToken.of, spans))]
    return Written(list(texts.values()), cut)


class StoredGrowth(NamedTuple):
    """Result of storing the text of branches."""

    full: list[NodeId]
    """Nodes of owners whose quota is used up."""
    ended: list[tuple[DocumentKey, Node]]
    """Nodes whose branches have ended."""


def store(database: Database, growths: Sequence[tuple[DocumentKey, Growth]]) -> StoredGrowth:
    """Stores the text of branches. Called on the thread of the documents."""
    full = branches.write(database, [growth for _, growth in growths])
    ended: list[tuple[DocumentKey, Node]] = []
    for key, growth in growths:
        if growth.end is not None:
            try:
                ended.append((key, nodes.node(database, key, growth.node_id).node))
            except DocumentNotFoundError:
                continue  # It was deleted meanwhile.
    return StoredGrowth(full, ended)


class Writing:
    """One request that writes into several nodes."""

    def __init__(self, generation: Generation, writers: Mapping[int, BranchWriter]) -> None:
        self.generation = generation
        self.writers = writers
        """Writers by the index of their branch."""

    async def run(self, publish: Callable[[Sequence[WrittenText]], object]) -> None:
        """Reads the stream until all branches have ended.

        Args:
            publish: Called with the text of each step.

        Raises:
            Exception: The stream failed; unfinished branches must be interrupted.
        """
        try:
            while batches := await self.generation.next_batches():
                written = absorb(self.writers, [event for _, events in batches for event in events])
                if written.texts:
                    publish(written.texts)
                for index in written.cut:
                    self.generation.streams[0].cancel(index)
        finally:
            self.generation.close()
