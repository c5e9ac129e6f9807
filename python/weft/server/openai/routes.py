"""OpenAI's routes."""

from litestar import Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, SkipValidation

from weft.server.errors import ERRORS
from weft.server.event_formats import EventFormats
from weft.server.json_request import JsonRequest
from weft.server.openai import translate
from weft.server.openai.schemas import CompletionObject, CreateCompletion, ModelCard, ModelList
from weft.server.service import Service
from weft.server.stream import Answer, StreamedAnswer, WholeAnswer

__all__ = ["router"]

Here = NamedDependency[SkipValidation[Service]]


@post("/v1/completions", status_code=200, responses=ERRORS)
async def completions(
    data: JSONBody[CreateCompletion], service: Here, event_formats: NamedDependency[SkipValidation[EventFormats]]
) -> Answer[CompletionObject]:
    """Continues a prompt, or several, `n` times each."""
    if (other := await event_formats.answer(data.event_format, data, service)) is not None:
        return other
    generation = await service.submit(translate.submission(data, service.settings))
    if not data.stream:
        return Answer(WholeAnswer(generation, translate.Whole(data, generation, service.model_name, service.build)))
    form = translate.Stream(data, generation, service.model_name, service.build)
    return Answer(StreamedAnswer(generation, form, service.settings.ping_s))


@get(["/v1/models", "/models"], responses=ERRORS)
async def models(service: Here) -> ModelList:
    """The one model that is served."""
    return translate.models(service.engine.model, service.model_name)


@get("/v1/models/{name:path}", responses=ERRORS)
async def model(service: Here) -> ModelCard:
    """The one model that is served, by whatever name."""
    return translate.model(service.engine.model, service.model_name)


router = Router(path="/", route_handlers=[completions, models, model], request_class=JsonRequest, tags=["OpenAI"])
