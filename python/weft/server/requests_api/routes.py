"""Routes for active requests. A request is visible only to clients with the API key that created it."""

import asyncio
from functools import partial

import msgspec
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, SkipValidation

from weft.fields.excerpt import excerpt
from weft.server.api import Api, provided
from weft.server.auth import current_owner
from weft.server.context import ServiceDependency
from weft.server.errors import NOT_FOUND, NoSuchItemError
from weft.server.executor import Purpose
from weft.server.inference.generation import Generation
from weft.server.requests_api import translate
from weft.server.requests_api.forking import ForkEncoder
from weft.server.requests_api.forking import fork as fork_branch
from weft.server.requests_api.schemas import ForkBody, Forked, RequestReport, RequestsReport
from weft.server.service import Service
from weft.server.streaming.responses import Answer, AwaitedResponse, StreamedResponse

MAX_CANCELLED_PER_STEP = 1_000
"""Maximum branches cancelled before other tasks run."""


def generation(request_id: FromPath[str], service: ServiceDependency) -> Generation:
    """Returns the active request that a path names.

    Raises:
        NoSuchItemError: The caller has no such request.
    """
    found = service.find_generation(request_id, current_owner())
    if found is None:
        raise NoSuchItemError(f"no request {excerpt(request_id)} runs")
    return found


GenerationDependency = NamedDependency[SkipValidation[Generation]]


def branch(request_id: FromPath[str], index: FromPath[int], generation: GenerationDependency) -> tuple[int, int]:
    """Returns the prompt of the branch that a path names, and the branch's index within it.

    Raises:
        NoSuchItemError: The request has no such branch.
    """
    found = translate.branch_of(generation, index)
    if found is None:
        raise NoSuchItemError(f"the request {request_id} has no branch {index}")
    return found


BranchDependency = NamedDependency[SkipValidation[tuple[int, int]]]


api = Api("Weft", dependencies={"generation": provided(generation), "branch": provided(branch)})


@api.route("GET", "/requests", summary="List requests", needs_model=False)
async def requests(service: ServiceDependency) -> RequestsReport:
    """Returns the queued and running requests that were made with the same key."""
    generations = service.generations_of(current_owner())
    return translate.reports(generations, service.engine.slots if generations else ())


@api.route("GET", "/requests/{request_id:str}", summary="Inspect a request", errors=NOT_FOUND, needs_model=False)
async def request(
    generation: GenerationDependency, service: ServiceDependency, first: FromQuery[int] = 0
) -> Answer[RequestReport]:
    """Returns a request with its branches: state, text so far, and settings of each."""
    return Answer(AwaitedResponse(partial(_report, service, generation, first)))


@api.route(
    "DELETE", "/requests/{request_id:str}", summary="Cancel a request", errors=NOT_FOUND, needs_model=False, status_code=204
)
async def cancel(generation: GenerationDependency) -> None:
    """Cancels a request. Its unfinished branches end with the reason `cancelled`, and its client receives a response."""
    for nth, (prompt, branch_index) in enumerate(generation.unfinished()):
        if nth and nth % MAX_CANCELLED_PER_STEP == 0:
            await asyncio.sleep(0)
        generation.streams[prompt].cancel(branch_index)


@api.route(
    "DELETE",
    "/requests/{request_id:str}/branches/{index:int}",
    summary="Cancel a branch",
    errors=NOT_FOUND,
    needs_model=False,
    status_code=204,
)
async def cancel_branch(generation: GenerationDependency, branch: BranchDependency) -> None:
    """Cancels one branch, which ends with the reason `cancelled`. Has no effect on a finished branch."""
    prompt, branch_index = branch
    generation.streams[prompt].cancel(branch_index)


@api.route(
    "POST", "/requests/{request_id:str}/branches/{index:int}/fork", summary="Fork a branch", errors=NOT_FOUND, needs_model=False
)
async def fork(
    generation: GenerationDependency, branch: BranchDependency, service: ServiceDependency, data: JSONBody[ForkBody | None] = None
) -> Answer[Forked]:
    """Forks a branch: new branches continue its prompt, its text up to a position, and appended text.

    With `stream` the forks get their own stream, which is the response; otherwise they join the stream of the request.
    """
    parsed = translate.fork_submission(ForkBody() if data is None else data, service.settings)
    if not parsed.own_stream:
        return Answer(AwaitedResponse(partial(fork_branch, service, generation, branch, parsed)))
    own = await fork_branch(service, generation, branch, parsed)
    assert isinstance(own, Generation), "own_stream returns a generation"
    return Answer(StreamedResponse(own, ForkEncoder(own), service.settings.ping_s))


async def _report(service: Service, generation: Generation, first: int) -> msgspec.Raw:
    make = partial(translate.report, generation, service, service.engine.slots, first=first)
    n = min(translate.n_branches(generation), translate.MAX_REPORTED)
    # Detokenized texts and their JSON are made on a worker thread.
    return await service.executor.run_in_thread(Purpose.CACHE_QUERY, n, lambda: msgspec.Raw(msgspec.json.encode(make())))
