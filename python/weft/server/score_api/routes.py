"""The route `/score`."""

from functools import partial

from litestar import Router, post
from litestar.params import JSONBody

from weft.server.context import ContextDependency
from weft.server.errors import ERRORS, NOT_SUPPORTED
from weft.server.routes import routes_of
from weft.server.run.scoring import score
from weft.server.score_api import translate
from weft.server.score_api.schemas import ScoreBody, ScoreReport
from weft.server.streaming.responses import Answer, AwaitedChunks

__all__ = ["router"]


@post("/score", status_code=200, responses=ERRORS | NOT_SUPPORTED)
async def scores(data: JSONBody[ScoreBody], request_context: ContextDependency) -> Answer[ScoreReport]:
    """Returns the likelihood of each of many continuations of a prompt, which is computed once."""
    service = request_context.service
    write = partial(translate.written, data, service.model_name)
    return Answer(AwaitedChunks(partial(score, service, translate.score_request(data), write), service.collected))


def router() -> Router:
    """Returns the routes, for one application."""
    return routes_of("Weft", [scores])
