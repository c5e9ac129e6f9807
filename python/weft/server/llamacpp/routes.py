"""llama-server's own routes."""

from functools import partial

import msgspec
from litestar import Response
from litestar.params import FromPath, FromQuery, JSONBody

from weft import InvalidRequestError
from weft.errors import NotSupportedError
from weft.server.api import Api
from weft.server.context import Caller, CallerDependency, FormatsDependency, ServiceDependency
from weft.server.errors import NOT_SUPPORTED, SlotsBusyError
from weft.server.executor import Purpose
from weft.server.inference import embedding as run
from weft.server.inference.chat import rendered_text
from weft.server.inference.submission import Submission
from weft.server.llamacpp import completion as dialect
from weft.server.llamacpp import embeddings, metrics, properties, schemas, tokens
from weft.server.llamacpp import slots as places
from weft.server.request_fields import branches
from weft.server.request_fields.chat import ChatFields
from weft.server.response_fields.result import CompletionResult
from weft.server.streaming.event_formats import EventFormat
from weft.server.streaming.responses import Answer, AwaitedChunks, AwaitedResponse, ChunkedResponse
from weft.server.web_policy import is_trusted_sender, require_trusted_sender

api = Api("llama.cpp")


@api.route("POST", "/completion", "/completions", summary="Complete a prompt", errors=NOT_SUPPORTED)
async def completion(
    data: JSONBody[schemas.CompletionBody],
    service: ServiceDependency,
    caller: CallerDependency,
    completion_formats: FormatsDependency,
) -> Answer[CompletionResult | list[CompletionResult]]:
    """Continues a prompt with `n` branches."""
    data, other = completion_formats.prepare(data, service.settings)
    size = branches.branches_size(data)
    parsed = await service.executor.run(Purpose.PROMPT, size, dialect.submission, data, service.settings)
    common = service.common_prompt
    if (new := dialect.system_prompt(data)) is None:
        if not is_trusted_sender():
            # Without the common system prompt: the response would reveal it and its stop strings, which other clients set.
            return await _answer(data, parsed, caller, other)
        return await _answer(data, dialect.with_system_prompt(parsed, common.current, common.tokens), caller, other)
    require_trusted_sender("the field system_prompt")
    # Media are decoded before the lock on the system prompt is taken.
    parsed = await service.with_media_read(parsed)
    async with common.changed(new) as tokens:
        return await _answer(data, dialect.with_system_prompt(parsed, new, tokens), caller, other)


@api.route("POST", "/infill", summary="Fill a gap", errors=NOT_SUPPORTED)
async def infill(
    data: JSONBody[schemas.InfillBody], service: ServiceDependency, caller: CallerDependency
) -> Answer[CompletionResult | list[CompletionResult]]:
    """Fills the gap between two texts with `n` branches."""
    size = branches.branches_size(data)
    parsed = await service.executor.run(Purpose.PROMPT, size, dialect.infill, data, service.settings)
    return await _answer(data, parsed, caller)


async def _answer(
    data: schemas.CompletionBody | schemas.InfillBody, parsed: Submission, caller: Caller, other: EventFormat | None = None
) -> Answer[CompletionResult | list[CompletionResult]]:
    generation = await caller.service.submit(parsed)
    encoder = dialect.CompletionEncoder(data, generation, caller.service) if other is None else other.stream(generation)
    return await caller.respond(data, generation, encoder)


@api.route("POST", "/tokenize", summary="Tokenize a text", purpose=Purpose.TEXT)
async def tokenize(data: JSONBody[schemas.TokenizeBody], service: ServiceDependency) -> Answer[schemas.TokenizeResult]:
    """Returns the tokens of a text."""
    pieces = tokens.content(data, service.engine.model.n_vocab)
    ids = await service.tokenize(pieces, add_special=tokens.adds_special(data), parse_special=data.parse_special is not False)
    report = (ids, service.engine.model)
    written = await service.executor.run(Purpose.TEXT, len(ids), tokens.tokens, *report, with_pieces=data.with_pieces is True)
    return Answer(ChunkedResponse(written))


@api.route("POST", "/detokenize", summary="Detokenize tokens", purpose=Purpose.TEXT)
async def detokenize(data: JSONBody[schemas.DetokenizeBody], service: ServiceDependency) -> Answer[schemas.DetokenizeResult]:
    """Returns the text of tokens."""
    if data.tokens is None:
        raise InvalidRequestError("tokens", "tokens must be given")
    written = await service.executor.run(Purpose.TEXT, len(data.tokens), tokens.text, data.tokens, service.engine.model)
    return Answer(ChunkedResponse(written))


@api.route("GET", "/tokenizer_info", summary="Describe the tokenizer")
async def tokenizer_info(service: ServiceDependency) -> schemas.TokenizerInfo:
    """Returns the tokenizer's properties, for clients that count tokens."""
    return tokens.tokenizer_info(service)


@api.route("POST", "/embedding", "/embeddings", summary="Embed texts", errors=NOT_SUPPORTED)
async def embedding(
    data: JSONBody[schemas.EmbeddingBody], service: ServiceDependency
) -> Answer[list[schemas.TextEmbedding] | schemas.OneEmbedding]:
    """Returns an embedding of each text, or of each token without pooling."""
    name, texts = embeddings.texts(data)
    form = embeddings.form(data, len(texts), service.engine.embedding_stats().pooling)
    work = partial(run.embed, service, texts, form, name=name, normalize=data.embd_normalize)
    return Answer(AwaitedChunks(work, service.collected))


@api.route("POST", "/rerank", "/reranking", "/v1/rerank", "/v1/reranking", summary="Rank texts", errors=NOT_SUPPORTED)
async def rerank(
    data: JSONBody[schemas.RerankBody], service: ServiceDependency
) -> Answer[schemas.RankedList | list[schemas.RankedByTei]]:
    """Ranks texts by relevance to a query, most relevant first."""
    query, name, texts = embeddings.texts_to_rank(data)
    write = embeddings.ranking(data, texts, service.model_name)
    return Answer(AwaitedChunks(partial(run.rank, service, query, texts, write, name=name), service.collected))


@api.route("POST", "/apply-template", summary="Render a chat", errors=NOT_SUPPORTED, purpose=Purpose.TEXT)
async def apply_template(data: JSONBody[ChatFields], service: ServiceDependency) -> schemas.ApplyTemplateResult:
    """Renders messages to a prompt. `<__media__>` replaces images and audio, and no file is fetched."""
    return schemas.ApplyTemplateResult(await rendered_text(data, service))


@api.route("GET", "/health", "/v1/health", summary="Check health", needs_model=False)
async def health(
    service: ServiceDependency, include_slots: FromQuery[str | None] = None, fail_on_no_slot: FromQuery[str | None] = None
) -> schemas.Health:
    """Returns 200 once the model is loaded, and 503 before.

    As in llama-server of 2024, `include_slots` adds the slots, and `fail_on_no_slot` returns 503 if all are busy. With either,
    the status reflects busy slots too.
    """
    include, fail = _is_on(include_slots), _is_on(fail_on_no_slot)
    if include:
        require_trusted_sender("include_slots")
    report = places.health(service, include_slots=include and service.settings.slots_endpoint, is_2024=include or fail)
    if fail and not report.slots_idle:
        raise SlotsBusyError(report)
    return report


@api.route("GET", "/slots", summary="List slots", errors=NOT_SUPPORTED)
async def slots(
    service: ServiceDependency, fail_on_no_slot: FromQuery[str | None] = None
) -> list[schemas.Slot | schemas.FullSlot]:
    """Returns the state of each slot; with `fail_on_no_slot=1`, 503 if all are busy."""
    if not service.settings.slots_endpoint:
        raise NotSupportedError("This server does not support slots endpoint. Start it with `--slots`")
    listed = places.slots(service)
    if _is_on(fail_on_no_slot) and all(slot.is_processing for slot in listed):
        raise SlotsBusyError
    return listed


def _is_on(given: str | None) -> bool:
    """Returns whether a query parameter is enabled; its name without a value suffices."""
    return given not in (None, "0", "false")


@api.route("POST", "/slots/{id_slot:str}", summary="Save, restore or erase a slot", errors=NOT_SUPPORTED)
async def slot_action(
    id_slot: FromPath[str],
    service: ServiceDependency,
    data: JSONBody[schemas.SlotActionBody | None] = None,
    action: FromQuery[str | None] = None,
) -> Answer[schemas.SlotSaved | schemas.SlotRestored | schemas.SlotErased]:
    """Saves a slot to a file (`action=save`), restores it from a file (`restore`), or erases it (`erase`)."""
    slot, filename = places.slot_number(id_slot, action), None if data is None else data.filename
    return Answer(AwaitedResponse(partial(places.act, service.slot_files, slot, action, filename)))


@api.route("GET", "/metrics", summary="Read metrics", errors=NOT_SUPPORTED, needs_model=False, media_type=metrics.CONTENT_TYPE)
async def prometheus_metrics(service: ServiceDependency) -> Response[bytes]:
    """Returns metrics in Prometheus' text format."""
    if not service.settings.metrics:
        raise NotSupportedError("This server does not support metrics endpoint. Start it with `--metrics`")
    text = metrics.exposition(metrics.collect(service))
    started = {"process-start-time-unix": str(service.started_s)}
    return Response(text, media_type=metrics.CONTENT_TYPE, headers=started)


@api.route("GET", "/props", summary="Describe the server", needs_model=False)
async def props(service: ServiceDependency) -> schemas.Properties:
    """Returns the properties of the server and its model."""
    await service.compiled_chat()
    report = msgspec.structs.replace(service.snapshot(properties.properties), is_sleeping=not service.sleep.is_awake)
    if is_trusted_sender():
        return report
    # Other clients may have set these texts.
    return msgspec.structs.replace(report, system_prompt="", user_name="", assistant_name="")


@api.route("POST", "/props", summary="Change properties", errors=NOT_SUPPORTED, needs_model=False)
async def set_props(service: ServiceDependency) -> schemas.PropertiesSet:
    """Has no effect, as in llama-server: no property can be changed at runtime."""
    if not service.settings.props_endpoint:
        raise NotSupportedError("This server does not support changing global properties. Start it with `--props`")
    return schemas.PropertiesSet(success=True)


@api.route("GET", "/lora-adapters", summary="List adapters")
async def lora_adapters(service: ServiceDependency) -> list[schemas.LoraAdapter]:
    """Returns the loaded adapters with their default scales."""
    return properties.lora_adapters(service)


@api.route("POST", "/lora-adapters", summary="Set default adapters")
async def set_lora_adapters(data: JSONBody[list[schemas.LoraScale]], service: ServiceDependency) -> schemas.LoraScalesSet:
    """Sets the default adapter set; adapters that are not listed are inactive.

    The system prompt, if any, is computed for it before the response.
    """
    result = properties.set_lora_adapters(service, data)
    await service.common_prompt.follow_adapters()
    return result
