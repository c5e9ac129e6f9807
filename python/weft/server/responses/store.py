"""In-memory store of responses and conversations, bounded in size and separated by owner."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import Literal, TypeVar
from weakref import ReferenceType

from weft.fields.excerpt import truncate
from weft.server.errors import NoSuchItemError
from weft.server.responses.items import Item, decoded
from weft.server.responses.schemas import Conversation
from weft.server.responses.writing import ResponseWriter
from weft.server.streaming.json_chunks import filled, list_of_pieces
from weft.server.streaming.recording import Owner, Recording

MAX_KEPT = 16_384
"""Maximum responses and conversations. Beyond it, the least recently used ones of the owner with the most are deleted."""

MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Maximum total size, in bytes. History that several responses share is counted once."""

ITEM_BYTES = 512
"""Overhead of an item, in bytes."""

TEXT_BYTES = 64
"""Overhead of a metadata text, in bytes."""

PIECE_BYTES = 48
"""Overhead of a chunk of JSON, in bytes."""

REFERENCE_BYTES = 8
"""Size of a reference from a response or conversation to an item, in bytes."""

ENTRY_BYTES = 4096
"""Overhead of a response or conversation, in bytes."""


class StoredItem:
    """An item, as JSON in chunks."""

    def __init__(self, name: str, *pieces: bytes) -> None:
        self.id = name
        self.pieces = pieces
        self.n_holders = 0
        """Nodes and conversations that contain it."""

    @property
    def json(self) -> bytes:
        """The JSON as one string, which copies it."""
        return b"".join(self.pieces)

    @property
    def n_json(self) -> int:
        """Size of the JSON, in bytes."""
        return sum(map(len, self.pieces))

    @property
    def n_bytes(self) -> int:
        """Memory of the item, in bytes."""
        return self.n_json + getsizeof(self.id) + ITEM_BYTES + PIECE_BYTES * len(self.pieces)


class Node:
    """The input and output that one response adds to its parent. Responses that continue it share it."""

    def __init__(self, parent: "Node | None", given: Sequence[StoredItem]) -> None:
        self.parent = parent
        self.given = given
        self.written: Sequence[StoredItem] = ()
        self.n_holders = 0
        """Responses and nodes that refer to it."""

    def path(self) -> "list[Node]":
        """Returns the nodes from the root to this one."""
        nodes = [self]
        while (parent := nodes[-1].parent) is not None:
            nodes.append(parent)
        return nodes[::-1]

    def items(self) -> list[StoredItem]:
        """Returns all items up to the end of this response."""
        return [item for node in self.path() for item in (*node.given, *node.written)]


class StoredResponse:
    """A stored response."""

    def __init__(self, owner: Owner, name: str, node: Node, *, in_background: bool) -> None:
        self.owner = owner
        self.id = name
        self.node = node
        self.in_background = in_background
        self.recording: ReferenceType[Recording] | None = None
        """The recorded events, while they can be read again."""
        self.writing: ResponseWriter | None = None
        """The builder of the response, until it has ended."""
        self.frame: bytes | None = None
        """The final JSON with a gap for its output, once the response has ended."""

    @property
    def n_bytes(self) -> int:
        """Memory without its items, in bytes."""
        return ENTRY_BYTES + len(self.frame or b"")

    def json(self) -> list[bytes]:
        """Returns the current state of the response as JSON in chunks."""
        if self.frame is not None:
            return filled(self.frame, list_of_pieces(item.pieces for item in self.node.written))
        assert self.writing is not None, "one of the two is there"
        return self.writing.body()


class StoredConversation:
    """A conversation and its items in order."""

    def __init__(self, owner: Owner, about: Conversation, items: list[StoredItem]) -> None:
        self.owner = owner
        self.id = about.id
        self.about = about
        self.items = items
        self.cached_node: Node | None = None
        """A node with the same items as the conversation, or None after changes other than new responses."""
        self.is_busy = False
        """True if a response that will be added is being generated."""

    def node(self) -> Node:
        """Returns the node that a response to this conversation continues."""
        if self.cached_node is None:
            self.cached_node = Node(None, list(self.items))
        return self.cached_node

    @property
    def n_bytes(self) -> int:
        """Memory without its items, in bytes."""
        return ENTRY_BYTES + sum(getsizeof(text) + TEXT_BYTES for pair in self.about.metadata.items() for text in pair)


Kind = TypeVar("Kind", StoredResponse, StoredConversation)


class Store:
    """Stores responses and conversations. Owners cannot access each other's."""

    def __init__(self) -> None:
        self._all: OrderedDict[tuple[Owner, str], StoredResponse | StoredConversation] = OrderedDict()
        """From least to most recently used."""
        self._items: dict[tuple[Owner, str], dict[StoredItem, None]] = {}
        """Items by owner and id, in order of arrival, since clients may reuse ids."""
        self._n_bytes_by_owner: Counter[Owner] = Counter()
        """Memory by owner, in bytes."""

    @property
    def n_bytes(self) -> int:
        """Total memory, in bytes."""
        return self._n_bytes_by_owner.total()

    def __len__(self) -> int:
        """Returns the number of responses and conversations."""
        return len(self._all)

    def response(self, owner: Owner, name: str) -> StoredResponse:
        """Returns the response with this id.

        Raises:
            NoSuchItemError: It does not exist.
        """
        return self._find(owner, name, StoredResponse, "Response")

    def conversation(self, owner: Owner, name: str) -> StoredConversation:
        """Returns the conversation with this id.

        Raises:
            NoSuchItemError: It does not exist.
        """
        return self._find(owner, name, StoredConversation, "Conversation")

    def _find(self, owner: Owner, name: str, kind: type[Kind], noun: str) -> Kind:
        found = self._all.get((owner, name))
        if found is not None:
            self._all.move_to_end((owner, name))
        if not isinstance(found, kind):
            raise NoSuchItemError(f"{noun} with id '{truncate(name)}' not found.")
        return found

    def item(self, owner: Owner, name: str) -> Item | None:
        """Returns a copy of a stored item, or None."""
        found = self._last(owner, name)
        return None if found is None else decoded(b"[" + found.json + b"]")[0]

    def _last(self, owner: Owner, name: str) -> StoredItem | None:
        """Returns the latest item with this id, or None."""
        found = self._items.get((owner, name))
        return None if found is None else next(reversed(found))

    def deduplicate(self, owner: Owner, items: Sequence[StoredItem]) -> list[StoredItem]:
        """Returns the items with identical stored ones substituted, to save memory."""
        found = [(item, self._last(owner, item.id)) for item in items]
        return [item if kept is None or kept.n_json != item.n_json or kept.json != item.json else kept for item, kept in found]

    def keep(self, response: StoredResponse) -> None:
        """Stores a response that is being generated."""
        self._count_references(response.owner, response.node, 1)
        self._add(response)

    def finish(self, response: StoredResponse, frame: bytes, written: Sequence[StoredItem]) -> None:
        """Completes a stored response. Has no effect on the store if it was deleted meanwhile.

        Args:
            response: The response.
            frame: Its JSON with a gap for the output.
            written: Its output.
        """
        response.frame, response.writing = frame, None
        response.node.written = written
        if self._all.get((response.owner, response.id)) is not response:
            return
        self._hold_items(response.owner, written)
        self._n_bytes_by_owner[response.owner] += len(frame)
        self._enforce_limits()

    def keep_conversation(self, conversation: StoredConversation) -> None:
        """Stores a new conversation."""
        self._hold_items(conversation.owner, conversation.items)
        self._add(conversation)

    def add_items(self, conversation: StoredConversation, items: Sequence[StoredItem]) -> None:
        """Adds items to a conversation, unless it was deleted meanwhile."""
        if self._all.get((conversation.owner, conversation.id)) is conversation:
            conversation.items += items
            conversation.cached_node = None
            self._hold_items(conversation.owner, items)
            self._enforce_limits()

    def remove_item(self, conversation: StoredConversation, item: StoredItem) -> None:
        """Removes an item from a conversation."""
        conversation.items.remove(item)
        conversation.cached_node = None
        self._release_items(conversation.owner, [item])

    def change(self, conversation: StoredConversation, metadata: dict[str, str]) -> None:
        """Replaces the metadata of a conversation."""
        self._n_bytes_by_owner[conversation.owner] -= conversation.n_bytes
        conversation.about.metadata = metadata
        self._n_bytes_by_owner[conversation.owner] += conversation.n_bytes
        self._enforce_limits()

    def remove(self, thing: StoredResponse | StoredConversation) -> None:
        """Deletes a response or conversation. Nodes that others continue remain."""
        if self._all.pop((thing.owner, thing.id), None) is None:
            return
        self._n_bytes_by_owner[thing.owner] -= thing.n_bytes
        if isinstance(thing, StoredConversation):
            self._release_items(thing.owner, thing.items)
        else:
            self._count_references(thing.owner, thing.node, -1)

    def _add(self, thing: StoredResponse | StoredConversation) -> None:
        self._all[thing.owner, thing.id] = thing
        self._n_bytes_by_owner[thing.owner] += thing.n_bytes
        self._enforce_limits()

    def _count_references(self, owner: Owner, node: Node | None, n: Literal[1, -1]) -> None:
        """Adds or drops a reference to a node. The first one holds its items and its parent, the last one releases them."""
        change = self._hold_items if n == 1 else self._release_items
        while node is not None:
            node.n_holders += n
            if node.n_holders != max(n, 0):
                return
            change(owner, [*node.given, *node.written])
            node = node.parent

    def _hold_items(self, owner: Owner, items: Sequence[StoredItem]) -> None:
        self._n_bytes_by_owner[owner] += REFERENCE_BYTES * len(items)
        for item in items:
            item.n_holders += 1
            if item.n_holders == 1:
                self._n_bytes_by_owner[owner] += item.n_bytes
                self._items.setdefault((owner, item.id), {})[item] = None

    def _release_items(self, owner: Owner, items: Sequence[StoredItem]) -> None:
        self._n_bytes_by_owner[owner] -= REFERENCE_BYTES * len(items)
        for item in items:
            item.n_holders -= 1
            if item.n_holders == 0:
                self._n_bytes_by_owner[owner] -= item.n_bytes
                same = self._items[owner, item.id]
                del same[item]
                if not same:
                    del self._items[owner, item.id]

    def _enforce_limits(self) -> None:
        """Deletes the least recently used entries of the owner with the most until the limits hold."""
        idle: dict[Owner, Iterator[StoredResponse | StoredConversation]] = {}
        while self.n_bytes > MAX_KEPT_BYTES or len(self._all) > MAX_KEPT:
            taken = self._n_bytes_by_owner if self.n_bytes > MAX_KEPT_BYTES else Counter(owner for owner, _ in self._all)
            for owner, _ in taken.most_common():
                if (thing := next(idle.setdefault(owner, self._idle(owner)), None)) is not None:
                    self.remove(thing)
                    break
            else:
                return

    def _idle(self, owner: Owner) -> "Iterator[StoredResponse | StoredConversation]":
        """Yields an owner's entries that are not being generated, least recently used first."""
        for thing in [thing for thing in self._all.values() if thing.owner == owner]:
            if not (thing.frame is None if isinstance(thing, StoredResponse) else thing.is_busy):
                yield thing
