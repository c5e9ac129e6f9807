"""Routes of responses and conversations."""

from functools import partial
from typing import NamedTuple

import msgspec
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, SkipValidation

from weft import InvalidRequestError
from weft.fields.excerpt import excerpt, truncate
from weft.fields.validation import check_range
from weft.server.api import Api, provided
from weft.server.context import CallerDependency
from weft.server.errors import CONFLICT, ERRORS, NOT_FOUND, NOT_SUPPORTED, NoSuchItemError
from weft.server.responses import schemas, translate
from weft.server.responses.service import ResponseService
from weft.server.responses.store import StoredConversation, StoredItem
from weft.server.streaming.responses import Answer, AwaitedResponse, ChunkedResponse

MAX_LISTED = 100
"""Maximum items of a list, as in OpenAI's API."""


ResponsesDependency = NamedDependency[SkipValidation[ResponseService]]


class Page(NamedTuple):
    """Pagination of a list."""

    after: str | None
    limit: int
    order: str

    def of(self, items: list[StoredItem]) -> schemas.ItemList:
        """Returns the page of a list."""
        ordered = items if self.order == "asc" else items[::-1]
        if self.after is not None:
            ordered = ordered[ordered.index(_item(ordered, self.after)) + 1 :]
        return _list(ordered[: self.limit], has_more=len(ordered) > self.limit)


def page(after: FromQuery[str | None] = None, limit: FromQuery[int] = 20, order: FromQuery[str] = "desc") -> Page:
    """Returns the pagination of a query."""
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order", f"order is {excerpt(order)}; it must be 'asc' or 'desc'")
    check_range("limit", limit, 1, MAX_LISTED)
    return Page(after, limit, order)


def found(conversation_id: FromPath[str], responses: ResponsesDependency, caller: CallerDependency) -> StoredConversation:
    """Returns the conversation that a path names.

    Raises:
        NoSuchItemError: The caller has no such conversation.
    """
    return responses.store.conversation(caller.owner, conversation_id)


PageDependency = NamedDependency[SkipValidation[Page]]
ConversationDependency = NamedDependency[SkipValidation[StoredConversation]]


api = Api("OpenAI", ERRORS | NOT_FOUND, dependencies={"page": provided(page), "found": provided(found)})


@api.route("POST", "/v1/responses", "/responses", summary="Create a response", errors=CONFLICT | NOT_SUPPORTED)
async def create(
    data: JSONBody[schemas.CreateResponse], responses: ResponsesDependency, caller: CallerDependency
) -> Answer[schemas.Response]:
    """Generates a response to the input, within its conversation if any."""
    return Answer(await responses.create(data, caller))


@api.route("GET", "/v1/responses/{response_id:str}", summary="Retrieve a response", needs_model=False)
async def retrieve(
    response_id: FromPath[str],
    responses: ResponsesDependency,
    caller: CallerDependency,
    stream: FromQuery[bool] = False,
    starting_after: FromQuery[int] = -1,
) -> Answer[schemas.Response]:
    """Returns the current state of a response, or with `stream` its events after number `starting_after`."""
    if stream:
        return Answer(responses.replay(response_id, caller, starting_after))
    return Answer(ChunkedResponse(responses.store.response(caller.owner, response_id).json()))


@api.route("DELETE", "/v1/responses/{response_id:str}", summary="Delete a response", needs_model=False)
async def forget(response_id: FromPath[str], responses: ResponsesDependency, caller: CallerDependency) -> schemas.Deleted:
    """Deletes a response; responses that continue it remain."""
    return await responses.delete(response_id, caller)


@api.route("POST", "/v1/responses/{response_id:str}/cancel", summary="Cancel a response", needs_model=False)
async def cancel(
    response_id: FromPath[str], responses: ResponsesDependency, caller: CallerDependency
) -> Answer[schemas.Response]:
    """Cancels a background response."""
    return Answer(ChunkedResponse(await responses.cancel(response_id, caller)))


@api.route("GET", "/v1/responses/{response_id:str}/input_items", summary="List input items", needs_model=False)
async def input_items(
    response_id: FromPath[str], responses: ResponsesDependency, caller: CallerDependency, page: PageDependency
) -> schemas.ItemList:
    """Returns the input items of a response, including the earlier conversation."""
    return page.of(responses.input_items(response_id, caller))


@api.route("POST", "/v1/responses/input_tokens", "/responses/input_tokens", summary="Count the tokens of a response")
async def count(
    data: JSONBody[schemas.CountBody], responses: ResponsesDependency, caller: CallerDependency
) -> schemas.InputTokens:
    """Counts the prompt tokens that a response would have; nothing is generated."""
    n_tokens = await responses.count_tokens(data, caller)
    return schemas.InputTokens("response.input_tokens", n_tokens)


@api.route("POST", "/v1/responses/compact", summary="Compact a conversation", errors=NOT_SUPPORTED)
async def compact(
    data: JSONBody[schemas.CompactBody], responses: ResponsesDependency, caller: CallerDependency
) -> Answer[schemas.CompactedResponse]:
    """Summarizes a conversation, so that it can be continued with a shorter prompt."""
    return Answer(AwaitedResponse(partial(responses.compact, data, caller)))


@api.route("POST", "/v1/conversations", summary="Create a conversation", needs_model=False)
async def create_conversation(
    data: JSONBody[schemas.ConversationBody], responses: ResponsesDependency, caller: CallerDependency
) -> schemas.Conversation:
    """Creates a conversation, to which responses can be added."""
    translate.check_metadata(data.metadata)
    return responses.create_conversation(await responses.new_items(data.items or [], caller), data.metadata or {}, caller)


@api.route("GET", "/v1/conversations/{conversation_id:str}", summary="Retrieve a conversation", needs_model=False)
async def conversation(found: ConversationDependency) -> schemas.Conversation:
    """Returns a conversation, without its items."""
    return found.about


@api.route("POST", "/v1/conversations/{conversation_id:str}", summary="Update a conversation", needs_model=False)
async def change(
    found: ConversationDependency, data: JSONBody[schemas.MetadataBody], responses: ResponsesDependency
) -> schemas.Conversation:
    """Replaces the metadata of a conversation."""
    translate.check_metadata(data.metadata)
    responses.store.change(found, data.metadata or {})
    return found.about


@api.route("DELETE", "/v1/conversations/{conversation_id:str}", summary="Delete a conversation", needs_model=False)
async def forget_conversation(found: ConversationDependency, responses: ResponsesDependency) -> schemas.Deleted:
    """Deletes a conversation; its responses remain."""
    responses.store.remove(found)
    return schemas.Deleted(found.id, "conversation.deleted", deleted=True)


@api.route("POST", "/v1/conversations/{conversation_id:str}/items", summary="Add items", needs_model=False)
async def add_items(
    found: ConversationDependency, data: JSONBody[schemas.ItemsBody], responses: ResponsesDependency, caller: CallerDependency
) -> schemas.ItemList:
    """Adds items to a conversation."""
    made = await responses.new_items(data.items, caller, found.items)
    responses.store.add_items(found, made)
    return _list(made, has_more=False)


@api.route("GET", "/v1/conversations/{conversation_id:str}/items", summary="List items", needs_model=False)
async def list_items(found: ConversationDependency, page: PageDependency) -> schemas.ItemList:
    """Returns the items of a conversation."""
    return page.of(found.items)


@api.route("GET", "/v1/conversations/{conversation_id:str}/items/{item_id:str}", summary="Retrieve an item", needs_model=False)
async def item(found: ConversationDependency, item_id: FromPath[str]) -> Answer[dict[str, str]]:
    """Returns one item of a conversation."""
    return Answer(ChunkedResponse(_item(found.items, item_id).pieces))


@api.route("DELETE", "/v1/conversations/{conversation_id:str}/items/{item_id:str}", summary="Remove an item", needs_model=False)
async def remove_item(
    found: ConversationDependency, item_id: FromPath[str], responses: ResponsesDependency
) -> schemas.Conversation:
    """Removes an item from a conversation."""
    responses.store.remove_item(found, _item(found.items, item_id))
    return found.about


def _item(items: list[StoredItem], item_id: str) -> StoredItem:
    if (found := next((item for item in items if item.id == item_id), None)) is None:
        raise NoSuchItemError(f"Item with id '{truncate(item_id)}' not found.")
    return found


def _list(items: list[StoredItem], *, has_more: bool) -> schemas.ItemList:
    return schemas.ItemList(
        object="list",
        data=[msgspec.Raw(item.json) for item in items],
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
        has_more=has_more,
    )
