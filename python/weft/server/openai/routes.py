"""OpenAI's routes."""

from litestar import Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, SkipValidation

from weft.server import body
from weft.server.errors import ERRORS
from weft.server.openai import translate
from weft.server.openai.schemas import CompletionObject, CreateCompletion, ModelList
from weft.server.service import Service
from weft.server.stream import Answer, StreamedAnswer, WholeAnswer

__all__ = ["router"]

Here = NamedDependency[SkipValidation[Service]]


@post("/v1/completions", status_code=200, responses=ERRORS)
async def completions(data: JSONBody[CreateCompletion], service: Here) -> Answer[CompletionObject]:
    """Continues a prompt, or several, `n` times each."""
    template = translate.template(data, service.settings, service.engine)
    generation = await service.submit(body.prompts_of(data.prompt), template)
    if not data.stream:
        return Answer(WholeAnswer(generation, translate.Whole(generation, service.model_name, service.build)))
    include_usage = data.stream_options is not None and data.stream_options.include_usage is True
    form = translate.Stream(generation, service.model_name, service.build, include_usage=include_usage)
    return Answer(StreamedAnswer(generation, form, service.settings.ping_s))


@get(["/v1/models", "/models"], responses=ERRORS)
async def models(service: Here) -> ModelList:
    """The one model that is served."""
    return translate.models(service.engine.model, service.model_name)


router = Router(path="/", route_handlers=[completions, models], tags=["OpenAI"])
