"""Weft's routes for its cache."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.response.base import ASGIResponse

from weft.server.api import Api
from weft.server.auth import current_owner
from weft.server.cache_api import picture, translate
from weft.server.cache_api.schemas import CacheReport, PinBody, PinnedPrefix, PinnedPrefixes
from weft.server.context import ServiceDependency
from weft.server.errors import CONFLICT, NOT_FOUND, NoSuchItemError
from weft.server.executor import Purpose
from weft.server.inference.submission import Piece
from weft.server.service import Service
from weft.server.streaming.responses import Answer, AwaitedResponse

T = TypeVar("T")

PICTURE_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
"""A picture contains text of arbitrary clients; the policy forbids scripts and external resources in it."""


api = Api("Weft")


@api.route("POST", "/prefixes", summary="Pin a prefix", errors=CONFLICT)
async def pin(data: JSONBody[PinBody], service: ServiceDependency) -> Answer[PinnedPrefix]:
    """Computes a prompt and pins it until it is unpinned."""
    return Answer(AwaitedResponse(partial(_pin, service, translate.pieces(data))))


@api.route("GET", "/prefixes", summary="List pinned prefixes")
async def prefixes(service: ServiceDependency) -> Answer[PinnedPrefixes]:
    """Lists the pinned prefixes. The text is omitted for prefixes that only clients with other keys pinned."""
    return Answer(AwaitedResponse(partial(_prefixes, service)))


@api.route("DELETE", "/prefixes/{prefix_id:int}", summary="Unpin a prefix", errors=NOT_FOUND, status_code=204)
async def unpin(prefix_id: FromPath[int], service: ServiceDependency) -> None:
    """Unpins a prefix, so that it can be evicted."""
    async with service.cache_lock.acquire():
        was_pinned = await service.pins.unpin(prefix_id)
    if not was_pinned:
        raise NoSuchItemError(f"no pinned prefix has the id {prefix_id}")


@api.route("GET", "/cache", summary="Inspect the cache")
async def cache(
    service: ServiceDependency,
    limit: FromQuery[int | None] = None,
    format: FromQuery[str] = "json",  # noqa: A002 (the query's own word)
) -> Answer[CacheReport]:
    """Returns the cache's contents and capacity, with the `limit` most recently used nodes of the prefix tree.

    With `format=svg` or `format=dot`, a picture of it.
    """
    if format == "json":
        return Answer(AwaitedResponse(partial(_reported, service, translate.limit(limit), _encoded)))
    n = picture.n_drawn(limit, format)
    return Answer(AwaitedResponse(partial(_picture, service, n, format)))


async def _pin(service: Service, prompt: Sequence[Piece]) -> PinnedPrefix:
    tokens = await service.prompt_tokens(prompt)
    adapters = service.request_builder.adapters(None)
    return translate.pinned(await service.pins.pin(tokens, adapters, readers=[current_owner()]))


async def _prefixes(service: Service) -> msgspec.Raw:
    async with service.cache_lock.acquire():
        listed, hidden = await service.pins.all(), service.pins.hidden_ids(current_owner())
        report = partial(translate.prefixes, listed, service.engine.detokenize, hidden)
        return await service.executor.run_in_thread(Purpose.CACHE_QUERY, len(listed), lambda: _encoded(report()))


async def _picture(service: Service, limit: int, name: str) -> ASGIResponse:
    body = await _reported(service, limit, lambda report: picture.draw(report, name))
    return ASGIResponse(body=body, media_type=picture.FORMATS[name][0], headers=PICTURE_HEADERS)


async def _reported(service: Service, limit: int, write: Callable[[CacheReport], T]) -> T:
    async with service.cache_lock.acquire():
        nodes, n_nodes = await service.engine.recently_used(limit)
        stats = service.engine.stats()
        # Detokenized texts and their JSON are made on a worker thread.
        report = partial(translate.report, nodes, n_nodes, stats, service.engine.detokenize, current_owner())
        return await service.executor.run_in_thread(Purpose.CACHE_QUERY, len(nodes), lambda: write(report()))


def _encoded(result: PinnedPrefixes | CacheReport) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(result))
