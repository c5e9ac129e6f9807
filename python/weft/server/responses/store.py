"""What is kept of responses and conversations: in memory, bounded, and by the key that they were asked for with."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from sys import getsizeof
from weakref import ReferenceType

from weft.fields.shown import cut
from weft.server.errors import NoSuchItemError
from weft.server.responses.items import Item, decoded
from weft.server.responses.schemas import Conversation
from weft.server.responses.writing import Writing
from weft.server.run.pieces import filled, list_of_pieces
from weft.server.run.recording import Owner, Recording

__all__ = ["MAX_KEPT", "MAX_KEPT_BYTES", "Kept", "KeptConversation", "KeptItem", "Node", "Store"]

MAX_KEPT = 16_384
"""Most responses and conversations that are kept; those that were used least recently go first, of the key that has most."""

MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Most bytes that they come to. What several responses go on from is kept once."""

ITEM_BYTES = 512
"""What an item takes beside its JSON."""

TEXT_BYTES = 64
"""What a text of the metadata takes beside itself."""

PIECE_BYTES = 48
"""What a piece of its JSON takes beside itself."""

HELD_BYTES = 8
"""What it takes that a response or a conversation has an item, which others may have too."""

KEPT_BYTES = 4096
"""What a response or a conversation takes beside its JSON."""


class KeptItem:
    """An item, as JSON in pieces."""

    def __init__(self, name: str, *pieces: bytes) -> None:
        self.id = name
        self.pieces = pieces
        self.n_holders = 0
        """Nodes and conversations that have it."""

    @property
    def json(self) -> bytes:
        """The JSON as one; a copy where it is long."""
        return b"".join(self.pieces)

    @property
    def n_json(self) -> int:
        """Bytes of it."""
        return sum(map(len, self.pieces))

    @property
    def n_bytes(self) -> int:
        """What it takes."""
        return self.n_json + getsizeof(self.id) + ITEM_BYTES + PIECE_BYTES * len(self.pieces)


class Node:
    """What one response adds to what was said before: its input, and then its output. Responses that go on from it share it."""

    def __init__(self, parent: "Node | None", given: Sequence[KeptItem]) -> None:
        self.parent = parent
        self.given = given
        self.written: Sequence[KeptItem] = ()
        self.n_holders = 0
        """Responses and nodes that need it."""

    def path(self) -> "list[Node]":
        """The nodes from the first one to this."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def items(self) -> list[KeptItem]:
        """All that was said up to the end of this response."""
        return [item for node in self.path() for item in (*node.given, *node.written)]


class Kept:
    """A response that is kept."""

    def __init__(self, owner: Owner, name: str, node: Node, *, in_background: bool) -> None:
        self.owner = owner
        self.id = name
        self.node = node
        self.in_background = in_background
        self.recording: ReferenceType[Recording] | None = None
        """Its events, as long as they can be read again."""
        self.writing: Writing | None = None
        """What writes it, until it has ended."""
        self.frame: bytes | None = None
        """Its JSON with a gap for its output, once nothing more will change."""

    @property
    def n_bytes(self) -> int:
        """What it takes beside its items."""
        return KEPT_BYTES + len(self.frame or b"")

    def told(self) -> list[bytes]:
        """The response as JSON in pieces, as far as it is written."""
        if self.frame is not None:
            return filled(self.frame, list_of_pieces(item.pieces for item in self.node.written))
        assert self.writing is not None, "one of the two is there"
        return self.writing.told()


class KeptConversation:
    """A conversation: what was said in it, in order."""

    def __init__(self, owner: Owner, about: Conversation, items: list[KeptItem]) -> None:
        self.owner = owner
        self.id = about.id
        self.about = about
        self.items = items
        self._node: Node | None = None
        """A node up to which all was said that the items are, until they are changed otherwise than by a response."""
        self.is_busy = False
        """Whether a response is being written that will be added to it."""

    def node(self) -> Node:
        """What a response goes on from."""
        if self._node is None:
            self._node = Node(None, list(self.items))
        return self._node

    def went_on(self, node: Node) -> None:
        """A response was added."""
        self._node = node

    def was_changed(self) -> None:
        """The items are not those of the node any more."""
        self._node = None

    @property
    def n_bytes(self) -> int:
        """What it takes beside its items."""
        return KEPT_BYTES + sum(getsizeof(text) + TEXT_BYTES for pair in self.about.metadata.items() for text in pair)


class Store:
    """Everything that is kept; what is one's is never found by another."""

    def __init__(self) -> None:
        self._all: OrderedDict[tuple[Owner, str], Kept | KeptConversation] = OrderedDict()
        """The least recently used first."""
        self._items: dict[tuple[Owner, str], dict[KeptItem, None]] = {}
        """Every item by its id. Clients give ids too: those of one id are in the order in which they came."""
        self._taken: Counter[Owner] = Counter()
        """What all of it takes, by whose it is."""

    @property
    def n_bytes(self) -> int:
        """What all of it takes."""
        return self._taken.total()

    def __len__(self) -> int:
        """How many responses and conversations there are."""
        return len(self._all)

    def response(self, owner: Owner, name: str) -> Kept:
        """The response of this id.

        Raises:
            NoSuchItemError: there is none.
        """
        found = self._used(owner, name)
        if not isinstance(found, Kept):
            raise NoSuchItemError(f"Response with id '{cut(name)}' not found.")
        return found

    def conversation(self, owner: Owner, name: str) -> KeptConversation:
        """The conversation of this id.

        Raises:
            NoSuchItemError: there is none.
        """
        found = self._used(owner, name)
        if not isinstance(found, KeptConversation):
            raise NoSuchItemError(f"Conversation with id '{cut(name)}' not found.")
        return found

    def item(self, owner: Owner, name: str) -> Item | None:
        """A copy of an item that is kept in some response or conversation."""
        found = self._last(owner, name)
        return None if found is None else decoded(b"[" + found.json + b"]")[0]

    def _last(self, owner: Owner, name: str) -> KeptItem | None:
        """The item of an id; of several the one that came last."""
        found = self._items.get((owner, name))
        return None if found is None else next(reversed(found))

    def _used(self, owner: Owner, name: str) -> Kept | KeptConversation | None:
        found = self._all.get((owner, name))
        if found is not None:
            self._all.move_to_end((owner, name))
        return found

    def known(self, owner: Owner, items: Sequence[KeptItem]) -> list[KeptItem]:
        """The same items; those that are kept already, word for word, are not held twice."""
        found = [(item, self._last(owner, item.id)) for item in items]
        return [item if kept is None or kept.n_json != item.n_json or kept.json != item.json else kept for item, kept in found]

    def keep(self, response: Kept) -> None:
        """Keeps a response that is being written."""
        self._hold(response.owner, response.node)
        self._add(response)

    def finish(self, response: Kept, frame: bytes, written: Sequence[KeptItem]) -> None:
        """Takes the end of a response that is kept, with a gap for its output; nothing where it was deleted meanwhile."""
        response.frame, response.writing = frame, None
        response.node.written = written
        if self._all.get((response.owner, response.id)) is not response:
            return
        self._take(response.owner, written)
        self._taken[response.owner] += len(frame)
        self._make_room()

    def keep_conversation(self, conversation: KeptConversation) -> None:
        """Keeps a new conversation."""
        self._take(conversation.owner, conversation.items)
        self._add(conversation)

    def add_items(self, conversation: KeptConversation, items: Sequence[KeptItem]) -> None:
        """Adds to a conversation; nothing where it was deleted meanwhile."""
        if self._all.get((conversation.owner, conversation.id)) is conversation:
            conversation.items += items
            conversation.was_changed()
            self._take(conversation.owner, items)
            self._make_room()

    def remove_item(self, conversation: KeptConversation, item: KeptItem) -> None:
        """Takes an item out of a conversation."""
        conversation.items.remove(item)
        conversation.was_changed()
        self._give_back(conversation.owner, [item])

    def change(self, conversation: KeptConversation, metadata: dict[str, str]) -> None:
        """Changes what is told again of a conversation."""
        self._taken[conversation.owner] -= conversation.n_bytes
        conversation.about.metadata = metadata
        self._taken[conversation.owner] += conversation.n_bytes
        self._make_room()

    def remove(self, thing: Kept | KeptConversation) -> None:
        """Forgets a response or a conversation. What others go on from stays."""
        if self._all.pop((thing.owner, thing.id), None) is None:
            return
        self._taken[thing.owner] -= thing.n_bytes
        if isinstance(thing, KeptConversation):
            self._give_back(thing.owner, thing.items)
        else:
            self._release(thing.owner, thing.node)

    def _add(self, thing: Kept | KeptConversation) -> None:
        self._all[thing.owner, thing.id] = thing
        self._taken[thing.owner] += thing.n_bytes
        self._make_room()

    def _hold(self, owner: Owner, node: Node) -> None:
        """Counts a node, and what it goes on from, where nobody has held it before."""
        holding: Node | None = node
        while holding is not None:
            holding.n_holders += 1
            if holding.n_holders > 1:
                return
            self._take(owner, [*holding.given, *holding.written])
            holding = holding.parent

    def _release(self, owner: Owner, node: Node) -> None:
        """Gives a node back, and what only it goes on from."""
        released: Node | None = node
        while released is not None:
            released.n_holders -= 1
            if released.n_holders:
                return
            self._give_back(owner, [*released.given, *released.written])
            released = released.parent

    def _take(self, owner: Owner, items: Sequence[KeptItem]) -> None:
        self._taken[owner] += HELD_BYTES * len(items)
        for item in items:
            item.n_holders += 1
            if item.n_holders == 1:
                self._taken[owner] += item.n_bytes
                self._items.setdefault((owner, item.id), {})[item] = None

    def _give_back(self, owner: Owner, items: Sequence[KeptItem]) -> None:
        self._taken[owner] -= HELD_BYTES * len(items)
        for item in items:
            item.n_holders -= 1
            if item.n_holders == 0:
                self._taken[owner] -= item.n_bytes
                same = self._items[owner, item.id]
                del same[item]
                if not same:
                    del self._items[owner, item.id]

    def _make_room(self) -> None:
        """Forgets what was used least recently of whoever has most."""
        idle: dict[Owner, Iterator[Kept | KeptConversation]] = {}
        while self.n_bytes > MAX_KEPT_BYTES or len(self._all) > MAX_KEPT:
            taken = self._taken if self.n_bytes > MAX_KEPT_BYTES else Counter(owner for owner, _ in self._all)
            for owner, _ in taken.most_common():
                if (thing := next(idle.setdefault(owner, self._idle(owner)), None)) is not None:
                    self.remove(thing)
                    break
            else:
                return

    def _idle(self, owner: Owner) -> "Iterator[Kept | KeptConversation]":
        """What is one's and nobody is writing, the least recently used first."""
        for thing in [thing for thing in self._all.values() if thing.owner == owner]:
            is_written = thing.frame is None if isinstance(thing, Kept) else thing.is_busy
            if not is_written:
                yield thing
