"""Routes of responses and conversations."""

from functools import partial
from typing import NamedTuple

import msgspec
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, FromQuery, JSONBody, SkipValidation

from weft import InvalidRequestError
from weft.fields.excerpt import excerpt, truncate
from weft.server.api import Api
from weft.server.context import ContextDependency, RequestContext
from weft.server.errors import CONFLICT, ERRORS, NOT_FOUND, NOT_SUPPORTED, NoSuchItemError
from weft.server.responses import schemas, translate
from weft.server.responses.store import StoredConversation, StoredItem
from weft.server.streaming.responses import Answer, AwaitedResponse, ChunkedResponse

MAX_LISTED = 100
"""Maximum items of a list, as in OpenAI's API."""


class Page(NamedTuple):
    """Pagination of a list."""

    after: str | None
    limit: int
    order: str

    def of(self, items: list[StoredItem]) -> schemas.ItemList:
        """Returns the page of a list."""
        ordered = items if self.order == "asc" else items[::-1]
        if self.after is not None:
            ordered = ordered[ordered.index(_found(ordered, self.after)) + 1 :]
        return _list(ordered[: self.limit], has_more=len(ordered) > self.limit)


def page(after: FromQuery[str | None] = None, limit: FromQuery[int] = 20, order: FromQuery[str] = "desc") -> Page:
    """Returns the pagination of a query."""
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order", f"order is {excerpt(order)}; it must be 'asc' or 'desc'")
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidRequestError("limit", f"limit is {limit}; it must be 1 to {MAX_LISTED}")
    return Page(after, limit, order)


PageDependency = NamedDependency[SkipValidation[Page]]


api = Api("OpenAI", ERRORS | NOT_FOUND, dependencies={"page": Provide(page, sync_to_thread=False)})


@api.route("POST", "/v1/responses", "/responses", summary="Create a response", errors=CONFLICT | NOT_SUPPORTED)
async def create(data: JSONBody[schemas.CreateResponse], request_context: ContextDependency) -> Answer[schemas.Response]:
    """Generates a response to the input, within its conversation if any."""
    return Answer(await request_context.response_service.create(data, request_context.caller))


@api.route("GET", "/v1/responses/{response_id:str}", summary="Retrieve a response", needs_model=False)
async def retrieve(
    response_id: FromPath[str],
    request_context: ContextDependency,
    stream: FromQuery[bool] = False,
    starting_after: FromQuery[int] = -1,
) -> Answer[schemas.Response]:
    """Returns the current state of a response, or with `stream` its events after number `starting_after`."""
    response_service, caller = request_context.response_service, request_context.caller
    if stream:
        return Answer(response_service.replay(response_id, caller, starting_after))
    return Answer(ChunkedResponse(response_service.store.response(caller.owner, response_id).json()))


@api.route("DELETE", "/v1/responses/{response_id:str}", summary="Delete a response", needs_model=False)
async def forget(response_id: FromPath[str], request_context: ContextDependency) -> schemas.Deleted:
    """Deletes a response; responses that continue it remain."""
    return await request_context.response_service.delete(response_id, request_context.caller)


@api.route("POST", "/v1/responses/{response_id:str}/cancel", summary="Cancel a response", needs_model=False)
async def cancel(response_id: FromPath[str], request_context: ContextDependency) -> Answer[schemas.Response]:
    """Cancels a background response."""
    return Answer(ChunkedResponse(await request_context.response_service.cancel(response_id, request_context.caller)))


@api.route("GET", "/v1/responses/{response_id:str}/input_items", summary="List input items", needs_model=False)
async def input_items(response_id: FromPath[str], request_context: ContextDependency, page: PageDependency) -> schemas.ItemList:
    """Returns the input items of a response, including the earlier conversation."""
    return page.of(request_context.response_service.input_items(response_id, request_context.caller))


@api.route("POST", "/v1/responses/input_tokens", "/responses/input_tokens", summary="Count the tokens of a response")
async def count(data: JSONBody[schemas.CountBody], request_context: ContextDependency) -> schemas.InputTokens:
    """Counts the prompt tokens that a response would have; nothing is generated."""
    n_tokens = await request_context.response_service.count_tokens(data, request_context.caller)
    return schemas.InputTokens("response.input_tokens", n_tokens)


@api.route("POST", "/v1/responses/compact", summary="Compact a conversation", errors=NOT_SUPPORTED)
async def compact(data: JSONBody[schemas.CompactBody], request_context: ContextDependency) -> Answer[schemas.CompactedResponse]:
    """Summarizes a conversation, so that it can be continued with a shorter prompt."""
    return Answer(AwaitedResponse(partial(request_context.response_service.compact, data, request_context.caller)))


@api.route("POST", "/v1/conversations", summary="Create a conversation", needs_model=False)
async def create_conversation(
    data: JSONBody[schemas.ConversationBody], request_context: ContextDependency
) -> schemas.Conversation:
    """Creates a conversation, to which responses can be added."""
    response_service, caller = request_context.response_service, request_context.caller
    translate.check_metadata(data.metadata)
    return response_service.create_conversation(
        await response_service.new_items(data.items or [], caller), data.metadata or {}, caller
    )


@api.route("GET", "/v1/conversations/{conversation_id:str}", summary="Retrieve a conversation", needs_model=False)
async def conversation(conversation_id: FromPath[str], request_context: ContextDependency) -> schemas.Conversation:
    """Returns a conversation, without its items."""
    return _conversation(request_context, conversation_id).about


@api.route("POST", "/v1/conversations/{conversation_id:str}", summary="Update a conversation", needs_model=False)
async def change(
    conversation_id: FromPath[str], data: JSONBody[schemas.MetadataBody], request_context: ContextDependency
) -> schemas.Conversation:
    """Replaces the metadata of a conversation."""
    translate.check_metadata(data.metadata)
    found = _conversation(request_context, conversation_id)
    request_context.response_service.store.change(found, data.metadata or {})
    return found.about


@api.route("DELETE", "/v1/conversations/{conversation_id:str}", summary="Delete a conversation", needs_model=False)
async def forget_conversation(conversation_id: FromPath[str], request_context: ContextDependency) -> schemas.Deleted:
    """Deletes a conversation; its responses remain."""
    request_context.response_service.store.remove(_conversation(request_context, conversation_id))
    return schemas.Deleted(conversation_id, "conversation.deleted", deleted=True)


@api.route("POST", "/v1/conversations/{conversation_id:str}/items", summary="Add items", needs_model=False)
async def add_items(
    conversation_id: FromPath[str], data: JSONBody[schemas.ItemsBody], request_context: ContextDependency
) -> schemas.ItemList:
    """Adds items to a conversation."""
    response_service = request_context.response_service
    found = _conversation(request_context, conversation_id)
    made = await response_service.new_items(data.items, request_context.caller, found.items)
    response_service.store.add_items(found, made)
    return _list(made, has_more=False)


@api.route("GET", "/v1/conversations/{conversation_id:str}/items", summary="List items", needs_model=False)
async def list_items(
    conversation_id: FromPath[str], request_context: ContextDependency, page: PageDependency
) -> schemas.ItemList:
    """Returns the items of a conversation."""
    return page.of(_conversation(request_context, conversation_id).items)


@api.route("GET", "/v1/conversations/{conversation_id:str}/items/{item_id:str}", summary="Retrieve an item", needs_model=False)
async def item(
    conversation_id: FromPath[str], item_id: FromPath[str], request_context: ContextDependency
) -> Answer[dict[str, str]]:
    """Returns one item of a conversation."""
    return Answer(ChunkedResponse(_found(_conversation(request_context, conversation_id).items, item_id).pieces))


@api.route("DELETE", "/v1/conversations/{conversation_id:str}/items/{item_id:str}", summary="Remove an item", needs_model=False)
async def remove_item(
    conversation_id: FromPath[str], item_id: FromPath[str], request_context: ContextDependency
) -> schemas.Conversation:
    """Removes an item from a conversation."""
    found = _conversation(request_context, conversation_id)
    request_context.response_service.store.remove_item(found, _found(found.items, item_id))
    return found.about


def _conversation(request_context: RequestContext, conversation_id: str) -> StoredConversation:
    return request_context.response_service.store.conversation(request_context.caller.owner, conversation_id)


def _found(items: list[StoredItem], item_id: str) -> StoredItem:
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
