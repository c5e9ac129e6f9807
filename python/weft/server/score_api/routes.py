"""The route `/score`."""

from functools import partial

from litestar.params import JSONBody

from weft.server.api import Api
from weft.server.context import ServiceDependency
from weft.server.errors import NOT_SUPPORTED
from weft.server.score_api.schemas import ScoreBody, ScoreReport
from weft.server.score_api.scoring import score
from weft.server.streaming.responses import Answer, AwaitedChunks

api = Api("Weft")


@api.route("POST", "/score", summary="Score continuations", errors=NOT_SUPPORTED)
async def scores(data: JSONBody[ScoreBody], service: ServiceDependency) -> Answer[ScoreReport]:
    """Returns the likelihood of each of many continuations of a prompt, which is computed once."""
    return Answer(AwaitedChunks(partial(score, service, data), service.collected))
