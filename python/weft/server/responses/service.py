"""Operations of the responses API: generating responses, storing them, and continuing stored ones."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from weakref import ref

import msgspec
from litestar.response.base import ASGIResponse

from weft import ContextOverflowError, Finished, InvalidRequestError, Token
from weft.chat.answer.parts import Content
from weft.chat.messages import media_parts
from weft.fields.excerpt import excerpt, truncate
from weft.server.context import Caller, response_of
from weft.server.errors import ConversationBusyError, NoSuchItemError
from weft.server.executor import Purpose
from weft.server.inference.chat import count_tokens, submit_chat
from weft.server.inference.generation import Generation
from weft.server.inference.submission import renamed
from weft.server.memory_budget import TOKEN_BYTES, Reservation
from weft.server.request_fields.chat import ChatFields
from weft.server.responses import items, schemas, translate
from weft.server.responses.events import offset_after
from weft.server.responses.items import Item, Message, Reference
from weft.server.responses.store import MAX_KEPT_BYTES, Node, Store, StoredConversation, StoredItem, StoredResponse
from weft.server.responses.writing import ResponseWriter, usage
from weft.server.service import Service
from weft.server.streaming.client_timeouts import n_body_bytes
from weft.server.streaming.recording import GRACE_S, KEPT_S, Owner, RecordingResponse
from weft.server.streaming.responses import ChunkedResponse, CollectedResponse

logger = logging.getLogger(__name__)

MAX_ONE_BYTES = MAX_KEPT_BYTES // 4
"""Maximum size of the input of a stored response, in bytes."""

_NAMES = {"response_format": "text", "json_schema": "text", "messages": "input", "max_completion_tokens": "max_output_tokens"}
"""Body names of chat fields."""


class _ParsedRequest(NamedTuple):
    """A parsed body, with the conversation that it continues."""

    chat: ChatFields
    removed: list[schemas.Transformation]
    given: list[StoredItem]
    """New input items."""
    all_items: list[Item]
    """New and earlier items."""
    node: Node | None
    """The response that is continued."""
    n_earlier: int
    """Size of the earlier items, in bytes."""


class ResponseService:
    """The responses and conversations of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.store = Store()

    async def create(self, data: schemas.CreateResponse, caller: Caller) -> ASGIResponse:
        """Starts a response.

        Returns:
            The HTTP response.

        Raises:
            WeftError: As [`submit_chat`].
            ConversationBusyError: Another response is being generated for the conversation.
            NoSuchItemError: The conversation or a referenced item does not exist.
        """
        translate.check(data)
        conversation = self._conversation(data, caller.owner)
        if conversation is None:
            return await self._create(data, caller, None)
        if conversation.is_busy:
            raise ConversationBusyError(conversation.id)
        conversation.is_busy = True
        try:
            return await self._create(data, caller, conversation)
        except BaseException:
            conversation.is_busy = False
            raise

    async def _create(
        self, data: schemas.CreateResponse, caller: Caller, conversation: StoredConversation | None
    ) -> ASGIResponse:
        parsed = await self._parse(data, caller.owner)
        keeps = data.store is not False
        if keeps or conversation is not None:
            if (n_bytes := sum(item.n_bytes for item in parsed.given)) > MAX_ONE_BYTES:
                message = f"the input has {n_bytes} bytes; at most {MAX_ONE_BYTES} can be stored"
                raise InvalidRequestError("input", f"{message}. Send it with store set to false, and without a conversation")
            whole = "the stored response" if conversation is None else "the conversation"
            _check_ids("input", [*(() if parsed.node is None else parsed.node.items()), *parsed.given], whole)
        if data.background and data.max_output_tokens is None and self._service.settings.n_predict is None:
            # With context shifting, an abandoned background response would continue forever.
            parsed.chat.max_completion_tokens = self._service.engine.limits.n_ctx
        generation = await self._generate(data, parsed)
        within = None if conversation is None else conversation.id
        response = translate.response(data, self._service.settings, self._service.model_name, within, parsed.removed)
        node = Node(parsed.node, self.store.deduplicate(caller.owner, parsed.given))
        kept = StoredResponse(caller.owner, response.id, node, in_background=data.background is True)
        collected = Reservation(self._service.collected)
        writing = ResponseWriter(
            response,
            generation,
            data,
            collected=collected,
            on_end=partial(self._store_ended, kept, conversation, keeps=keeps),
        )
        # At close, however the generation ends and even if it was never read.
        generation.at_close(writing.cancel)
        generation.at_close(collected.release)
        if keeps:
            kept.writing = writing
            self.store.keep(kept)
        answer = response_of(parsed.chat, generation, writing, self._service)
        name = caller.conversation or (response.id if data.background else None)
        if name is None or isinstance(answer, CollectedResponse):
            return answer
        try:
            recorded = await caller.recorded(answer, name, grace_s=None if data.background else GRACE_S)
        except BaseException:
            # The client does not receive its id, so the response would be inaccessible.
            self.store.remove(kept)
            raise
        kept.recording = ref(recorded.recording)
        return recorded if data.stream else ChunkedResponse(writing.body())

    async def _generate(self, data: schemas.ResponseFields, parsed: _ParsedRequest) -> Generation:
        chat = await self._truncated(parsed) if data.truncation == "auto" else parsed.chat
        return await submit_chat(chat, self._service, rename=_rename_parameter, n_more=parsed.n_earlier)

    async def _truncated(self, parsed: _ParsedRequest) -> ChatFields:
        """Returns the chat without the oldest turns that do not fit the context; at least the last turn remains."""
        if any(media_parts(parsed.chat.messages or ())):
            raise InvalidRequestError("truncation", "truncation is not supported for input with images or audio; leave it out")
        n_ctx = self._service.engine.limits.n_ctx_slot
        n_most = n_ctx - min(parsed.chat.max_completion_tokens or 1, n_ctx // 2)
        begins = translate.turns(parsed.chat)
        fewest, most = 0, len(begins) - 1
        while fewest < most:
            middle = (fewest + most) // 2
            if await self._fits(translate.without(parsed.chat, begins, middle), parsed, n_most):
                most = middle
            else:
                fewest = middle + 1
        return translate.without(parsed.chat, begins, fewest)

    async def _fits(self, chat: ChatFields, parsed: _ParsedRequest, n_most: int) -> bool:
        try:
            return await count_tokens(chat, self._service, rename=_rename_parameter, n_more=parsed.n_earlier) <= n_most
        except ContextOverflowError:
            return False

    def _store_ended(
        self, kept: StoredResponse, conversation: StoredConversation | None, writing: ResponseWriter, *, keeps: bool
    ) -> None:
        """Stores a response that has ended."""
        written = [StoredItem(item.id or "", *pieces) for item, pieces in zip(writing.items, writing.output, strict=True)]
        if kept.in_background:
            cost = writing.response.usage
            n_tokens = 0 if cost is msgspec.UNSET else cost.output_tokens
            logger.info("a response in the background has ended: %s, %d predicted", writing.response.status, n_tokens)
        if keeps:
            self.store.finish(kept, writing.frame(), written)
        if conversation is not None:
            conversation.is_busy = False
            if writing.response.status in ("completed", "incomplete"):
                continues = keeps and conversation.node() is kept.node.parent
                self.store.add_items(conversation, [*kept.node.given, *written])
                if continues:
                    conversation.cached_node = kept.node

    async def _parse(self, data: schemas.ResponseFields, owner: Owner) -> _ParsedRequest:
        conversation, node = self._conversation(data, owner), self._previous(data, owner)
        if conversation is not None:
            node = conversation.node()
        earlier = [] if node is None else node.items()
        n_earlier = sum(item.n_json for item in earlier)
        work, size = self._service.executor.run, n_body_bytes()
        read = await work(Purpose.PROMPT, size, items.read, data.input if data.input is not None else [])
        n_ctx = self._service.engine.limits.n_ctx_slot
        if (n_items := len(earlier) + len(read)) >= n_ctx and data.truncation != "auto":
            # Checked before processing each item: every item has at least one token.
            raise ContextOverflowError(n_items, n_ctx, is_least=True)
        given = [self._resolved(item, owner) for item in read]
        return await work(Purpose.PROMPT, size + n_earlier, _translated, data, given, earlier, node)

    def _conversation(self, data: schemas.ResponseFields, owner: Owner) -> StoredConversation | None:
        name = translate.conversation_id(data)
        return None if name is None else self.store.conversation(owner, name)

    def _previous(self, data: schemas.ResponseFields, owner: Owner) -> Node | None:
        if data.previous_response_id is None:
            return None
        try:
            previous = self.store.response(owner, data.previous_response_id)
        except NoSuchItemError:
            message = f"Previous response with id '{truncate(data.previous_response_id)}' not found."
            raise InvalidRequestError("previous_response_id", message) from None
        if previous.frame is None:
            message = f"the response {data.previous_response_id} is still being generated; continue from it when it has ended"
            raise InvalidRequestError("previous_response_id", message)
        return previous.node

    def _resolved(self, item: Item | Reference, owner: Owner) -> Item:
        if not isinstance(item, Reference):
            return item
        if (found := self.store.item(owner, item.id)) is None:
            raise NoSuchItemError(f"Item with id '{truncate(item.id)}' not found.")
        return found

    async def count_tokens(self, data: schemas.CountBody, caller: Caller) -> int:
        """Returns the number of prompt tokens that a response would have."""
        translate.check(data)
        parsed = await self._parse(data, caller.owner)
        return await count_tokens(parsed.chat, self._service, rename=_rename_parameter, n_more=parsed.n_earlier)

    async def compact(self, data: schemas.CompactBody, caller: Caller) -> schemas.CompactedResponse:
        """Summarizes a conversation, so that it can be continued with a shorter prompt."""
        translate.check(data)
        parsed = await self._parse(data, caller.owner)
        parsed = parsed._replace(chat=translate.compaction(data, parsed.chat))
        generation = await self._generate(data, parsed)
        texts: list[str] = []
        cost: schemas.Usage | None = None
        try:
            with Reservation(self._service.collected) as collected:
                while batches := await generation.next_batches():
                    for event in (event for _, events in batches for event in events if isinstance(event, Token | Finished)):
                        texts += [part.text for part in generation.parsers.read(event) if isinstance(part, Content)]
                        collected.grow(TOKEN_BYTES + len(event.text))
                        if isinstance(event, Finished):
                            cost = usage(generation.streams[0].n_prompt, event)
        finally:
            generation.close()
        assert cost is not None, "a stream ends with its branch's end"
        stay = [item for item in parsed.all_items if isinstance(item, Message) and item.role == "user"]
        return schemas.CompactedResponse(
            id=items.new_id("resp"),
            object="response.compaction",
            created_at=int(time.time()),
            output=[msgspec.Raw(msgspec.json.encode(item)) for item in [*stay, items.compacted("".join(texts))]],
            usage=cost,
        )

    def replay(self, name: str, caller: Caller, starting_after: int) -> RecordingResponse:
        """Returns the events of a response after the one with this number.

        Raises:
            InvalidRequestError: Some of the events are not stored.
            NoSuchItemError: The response does not exist.
        """
        kept = self.store.response(caller.owner, name)
        recording = None if kept.recording is None else kept.recording()
        if recording is None:
            message = (
                "the events of this response are not stored: only those of a response with background or with the header"
                f" X-Conversation-Id, for {KEPT_S:g} s after its end; retrieve it without stream"
            )
            raise InvalidRequestError("stream", message)
        return RecordingResponse(recording, offset_after(recording, starting_after))

    async def cancel(self, name: str, caller: Caller) -> list[bytes]:
        """Cancels a background response. Has no effect if it has ended."""
        kept = self.store.response(caller.owner, name)
        if not kept.in_background:
            message = "only a background response can be cancelled; close the connection of another one"
            raise InvalidRequestError("background", message)
        await self._stop(kept)
        return kept.json()

    async def delete(self, name: str, caller: Caller) -> schemas.Deleted:
        """Deletes a response; cancels it first if it runs in the background."""
        kept = self.store.response(caller.owner, name)
        if kept.in_background:
            await self._stop(kept)
        self.store.remove(kept)
        return schemas.Deleted(name, "response", deleted=True)

    async def _stop(self, kept: StoredResponse) -> None:
        if kept.writing is not None:
            kept.writing.cancel()
        if kept.recording is not None and (recording := kept.recording()) is not None and not recording.is_ended:
            await recording.stop()

    def input_items(self, name: str, caller: Caller) -> list[StoredItem]:
        """Returns all input of a response in order: the earlier conversation, and its own input."""
        node = self.store.response(caller.owner, name).node
        return [*(() if node.parent is None else node.parent.items()), *node.given]

    async def new_items(
        self, given: Sequence[dict[str, object]], caller: Caller, before: Sequence[StoredItem] = ()
    ) -> list[StoredItem]:
        """Parses items to be added to a conversation after `before`.

        Raises:
            InvalidRequestError: An item is invalid, or the items are too large.
            NoSuchItemError: A referenced item is not stored.
        """
        read = await self._service.executor.run(Purpose.PROMPT, n_body_bytes(), partial(items.read, given, "items"))
        made = [_kept(self._resolved(item, caller.owner)) for item in read]
        if (n_bytes := sum(item.n_bytes for item in made)) > MAX_ONE_BYTES:
            raise InvalidRequestError("items", f"the items have {n_bytes} bytes; at most {MAX_ONE_BYTES} can be stored")
        _check_ids("items", [*before, *made], "the conversation")
        return self.store.deduplicate(caller.owner, made)

    def create_conversation(self, made: list[StoredItem], metadata: dict[str, str], caller: Caller) -> schemas.Conversation:
        """Creates a conversation."""
        about = schemas.Conversation(items.new_id("conv"), "conversation", int(time.time()), metadata)
        self.store.keep_conversation(StoredConversation(caller.owner, about, made))
        return about


def _kept(item: Item) -> StoredItem:
    return StoredItem(item.id or "", msgspec.json.encode(item))


def _check_ids(field: str, all_of_it: Sequence[StoredItem], whole: str) -> None:
    """Refuses duplicate ids in a conversation or response, which would break pagination by id."""
    ids: set[str] = set()
    for item in all_of_it:
        if item.id in ids:
            raise InvalidRequestError(field, f"{field}: the id {excerpt(item.id)} would occur twice in {whole}")
        ids.add(item.id)


def _translated(
    data: schemas.ResponseFields, given: list[Item], earlier: Sequence[StoredItem], node: Node | None
) -> _ParsedRequest:
    before = items.decoded(b"[" + b",".join(item.json for item in earlier) + b"]")
    all_items = [*before, *given]
    if not all_items and data.instructions is None:
        raise InvalidRequestError("input", "input must be given")
    messages, removed = items.messages(all_items)
    chat = translate.chat(data, items.system_first(messages, data.instructions))
    n_earlier = sum(item.n_json for item in earlier)
    return _ParsedRequest(chat, removed, [_kept(item) for item in given], all_items, node, n_earlier)


_rename_parameter = partial(renamed, names=_NAMES)
