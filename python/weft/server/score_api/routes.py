"""The route `/score`."""

from functools import partial

from litestar import Router, post
from litestar.params import JSONBody

from weft.server.context import ContextDependency
from weft.server.errors import ERRORS, NOT_SUPPORTED
from weft.server.routes import routes_of
from weft.server.score_api.schemas import ScoreBody, ScoreReport
from weft.server.score_api.scoring import score
from weft.server.streaming.responses import Answer, AwaitedChunks


@post("/score", status_code=200, responses=ERRORS | NOT_SUPPORTED, summary="Score continuations")
async def scores(data: JSONBody[ScoreBody], request_context: ContextDependency) -> Answer[ScoreReport]:
    """Returns the likelihood of each of many continuations of a prompt, which is computed once."""
    service = request_context.service
    return Answer(AwaitedChunks(partial(score, service, data), service.collected))


def router() -> Router:
    """Returns the routes, for one application."""
    return routes_of("Weft", [scores])
