"""llama-server's own routes."""

from functools import partial

from litestar import Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, SkipValidation

from weft import InvalidRequest
from weft.server import prometheus
from weft.server.chat.format import size_of_chat
from weft.server.chat.schemas import ApplyTemplateResult, ChatFields
from weft.server.errors import ERRORS, NOT_SUPPORTED, NotSupportedError, SlotsBusyError
from weft.server.json_request import JsonRequest
from weft.server.llamacpp import metrics, translate
from weft.server.llamacpp.schemas import (
    CompletionBody,
    CompletionResult,
    DetokenizeBody,
    DetokenizeResult,
    Health,
    Properties,
    Slot,
    SlotActionBody,
    SlotErased,
    SlotRestored,
    SlotSaved,
    TokenizeBody,
    TokenizeResult,
)
from weft.server.service import Service, aside
from weft.server.slot_files import SlotFiles
from weft.server.stream import Answer, AwaitedAnswer, StreamedAnswer, WholeAnswer

__all__ = ["router"]

Here = NamedDependency[SkipValidation[Service]]


@post(["/completion", "/completions"], status_code=200, responses=ERRORS)
async def completion(data: JSONBody[CompletionBody], service: Here) -> Answer[CompletionResult | list[CompletionResult]]:
    """Continues a prompt `n` times."""
    generation = await service.submit(translate.submission(data, service.settings))
    if data.stream:
        form = translate.Stream(generation, service.engine, service.model_name)
        return Answer(StreamedAnswer(generation, form, service.settings.ping_s))
    whole = translate.Results(generation, service.engine, service.model_name, with_tokens=data.return_tokens is True)
    return Answer(WholeAnswer(generation, whole))


@post("/tokenize", status_code=200, responses=ERRORS)
async def tokenize(data: JSONBody[TokenizeBody], service: Here) -> TokenizeResult:
    """The tokens of a text."""
    pieces = translate.content(data, service.engine.model.n_vocab)
    tokens = await service.tokenize(pieces, add_special=data.add_special is True, parse_special=data.parse_special is not False)
    return await aside(len(tokens), translate.tokens, tokens, service.engine.model, with_pieces=data.with_pieces is True)


@post("/detokenize", status_code=200, responses=ERRORS)
async def detokenize(data: JSONBody[DetokenizeBody], service: Here) -> DetokenizeResult:
    """The text of tokens."""
    if data.tokens is None:
        raise InvalidRequest("tokens", "tokens must be given")
    return DetokenizeResult(await aside(len(data.tokens), service.engine.detokenize, data.tokens))


@post("/apply-template", status_code=200, responses=ERRORS)
async def apply_template(data: JSONBody[ChatFields], service: Here) -> ApplyTemplateResult:
    """The prompt that messages become."""
    return ApplyTemplateResult(await aside(size_of_chat(data), service.chat.text, data))


@get(["/health", "/v1/health"], responses=ERRORS)
async def health() -> Health:
    """200 once the model is loaded, 503 before."""
    return Health(status="ok")


@get("/slots", responses=ERRORS)
async def slots(service: Here, fail_on_no_slot: FromQuery[int] = 0) -> list[Slot]:
    """What each slot does; with `fail_on_no_slot=1` it is 503 where all are busy."""
    result = translate.slots(service.engine.stats(), service.engine.limits.n_ctx_slot)
    if fail_on_no_slot and all(slot.is_processing for slot in result):
        raise SlotsBusyError
    return result


@post("/slots/{id_slot:str}", status_code=200, responses=ERRORS | NOT_SUPPORTED)
async def slot_action(
    id_slot: FromPath[str],
    service: Here,
    data: JSONBody[SlotActionBody | None] = None,
    action: FromQuery[str | None] = None,
) -> Answer[SlotSaved | SlotRestored | SlotErased]:
    """Saves what a slot holds (`action=save`), lets it hold what was saved (`restore`), or forgets it (`erase`)."""
    asked = translate.slot_action(id_slot, action, data)
    return Answer(AwaitedAnswer(partial(_act, service.slot_files, asked)))


async def _act(files: SlotFiles, asked: translate.SlotAction) -> SlotSaved | SlotRestored | SlotErased:
    try:
        return await _do(files, asked)
    except InvalidRequest as error:
        raise translate.blame(error) from None


async def _do(files: SlotFiles, asked: translate.SlotAction) -> SlotSaved | SlotRestored | SlotErased:
    match asked.action:
        case translate.Action.SAVE:
            return translate.saved(asked, await files.save(asked.slot, asked.filename))
        case translate.Action.RESTORE:
            return translate.restored(asked, await files.restore(asked.slot, asked.filename))
        case translate.Action.ERASE:
            return SlotErased(asked.slot, await files.erase(asked.slot))


@get("/metrics", media_type=prometheus.CONTENT_TYPE, responses=ERRORS | NOT_SUPPORTED)
async def prometheus_metrics(service: Here) -> Response[str]:
    """Counters for Prometheus, in its text format."""
    if not service.settings.metrics:
        raise NotSupportedError("This server does not support metrics endpoint. Start it with `--metrics`")
    families = metrics.families(service.engine.stats(), service.tally)
    return Response(prometheus.write(families), media_type=prometheus.CONTENT_TYPE)


@get("/props", responses=ERRORS)
async def props(service: Here) -> Properties:
    """The server and its model."""
    engine = service.engine
    return translate.properties(engine, service.settings, service.model_name, service.build)


router = Router(
    path="/",
    route_handlers=[completion, tokenize, detokenize, apply_template, health, slots, slot_action, prometheus_metrics, props],
    request_class=JsonRequest,
    tags=["llama.cpp"],
)
