"""Weft's own routes to requests that run. A request belongs to the key that made it: to any other it is not there."""

import asyncio
from functools import partial

import msgspec
from litestar import Router, delete, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, SkipValidation

from weft.server.auth import current_owner
from weft.server.awake import NEEDS_NO_MODEL
from weft.server.errors import ERRORS, NOT_FOUND, NoSuchItemError
from weft.server.json_request import JsonRequest
from weft.server.requests_api import translate
from weft.server.requests_api.schemas import RequestReport, RequestsReport
from weft.server.run.aside import Purpose
from weft.server.run.generation import Generation
from weft.server.run.service import Service
from weft.server.run.stream import Answer, AwaitedAnswer

__all__ = ["router"]

Here = NamedDependency[SkipValidation[Service]]

MAX_AT_ONCE = 1_000
"""Branches that are cancelled before others have their turn."""


@get("/requests", responses=ERRORS, opt=NEEDS_NO_MODEL)
async def requests(service: Here) -> RequestsReport:
    """The requests that run or wait, and were made with the same key."""
    generations = service.generations_of(current_owner())
    return translate.reports(generations, service.engine.slots if generations else ())


@get("/requests/{request_id:str}", responses=ERRORS | NOT_FOUND, opt=NEEDS_NO_MODEL)
async def request(request_id: FromPath[str], service: Here, first: FromQuery[int] = 0) -> Answer[RequestReport]:
    """One of them: its branches, what each has written so far, and how."""
    generation = _found(service, request_id)
    return Answer(AwaitedAnswer(partial(_report, service, generation, first)))


@delete("/requests/{request_id:str}", responses=ERRORS | NOT_FOUND, opt=NEEDS_NO_MODEL)
async def cancel(request_id: FromPath[str], service: Here) -> None:
    """Ends a request: each branch that has not ended does so with the reason `cancelled`, and its client is answered."""
    generation = _found(service, request_id)
    for nth, (prompt, place) in enumerate(generation.unfinished()):
        if nth and nth % MAX_AT_ONCE == 0:
            await asyncio.sleep(0)
        generation.streams[prompt].cancel(place)


@delete("/requests/{request_id:str}/branches/{index:int}", responses=ERRORS | NOT_FOUND, opt=NEEDS_NO_MODEL)
async def cancel_branch(request_id: FromPath[str], index: FromPath[int], service: Here) -> None:
    """Ends one branch with the reason `cancelled`; the others go on. Nothing happens where it has ended."""
    generation = _found(service, request_id)
    found = translate.branch_of(generation, index)
    if found is None:
        raise NoSuchItemError(f"the request {request_id} has no branch {index}")
    prompt, place = found
    generation.streams[prompt].cancel(place)


def _found(service: Service, request_id: str) -> Generation:
    generation = service.find_generation(request_id, current_owner())
    if generation is None:
        raise NoSuchItemError(f"no request {request_id!r} runs")
    return generation


async def _report(service: Service, generation: Generation, first: int) -> msgspec.Raw:
    make = partial(translate.report, generation, service, service.engine.slots, first=first)
    n = min(generation.requests[0].n * len(generation.streams), translate.MAX_TOLD)
    # Neither hundreds of texts nor their JSON are the event loop's work.
    return await service.aside.elsewhere(Purpose.SIGHT, n, lambda: msgspec.Raw(msgspec.json.encode(make())))


router = Router(path="/", route_handlers=[requests, request, cancel, cancel_branch], request_class=JsonRequest, tags=["Weft"])
