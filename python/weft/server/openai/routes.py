"""OpenAI's routes."""

from functools import partial

from litestar import Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, SkipValidation

from weft.server import request_fields
from weft.server.awake import NEEDS_NO_MODEL
from weft.server.errors import ERRORS, NOT_SUPPORTED
from weft.server.openai import chat, completions, embeddings, models
from weft.server.openai.chat_schemas import ChatCompletion, CreateChatCompletion, InputTokens
from weft.server.openai.embeddings_schemas import CreateEmbedding, EmbeddingList
from weft.server.openai.schemas import CompletionObject, CreateCompletion, ModelCard, ModelList
from weft.server.routes import routes_of
from weft.server.run import embedding
from weft.server.run.caller import Caller
from weft.server.run.chat import count_tokens, submit_chat
from weft.server.run.event_formats import EventFormats
from weft.server.run.executor import Purpose
from weft.server.run.service import Service
from weft.server.run.stream import Answer, AwaitedChunks, CollectedResponse, StreamedResponse

__all__ = ["router"]

ServiceDependency = NamedDependency[SkipValidation[Service]]
CallerDependency = NamedDependency[SkipValidation[Caller]]


@post("/v1/completions", status_code=200, responses=ERRORS | NOT_SUPPORTED)
async def create_completion(
    data: JSONBody[CreateCompletion],
    service: ServiceDependency,
    caller: CallerDependency,
    event_formats: NamedDependency[SkipValidation[EventFormats]],
) -> Answer[CompletionObject]:
    """Continues one or several prompts, `n` times each."""
    if (other := event_formats.named(data.event_format, service.settings)) is not None:
        data = other.prepared(data, service.settings)
    size = request_fields.branches_size(data)
    parsed = await service.executor.run(Purpose.PROMPT, size, completions.submission, data, service.settings)
    generation = await service.submit(parsed)
    if not data.stream:
        return Answer(CollectedResponse(generation, completions.ResponseBuilder(data, generation, service), service.collected))
    form = completions.ChunkEncoder(data, generation, service) if other is None else other.stream(generation)
    stream = StreamedResponse(generation, form, request_fields.ping_s(data, service.settings))
    return Answer(await caller.resumable(stream))


@post(["/v1/chat/completions", "/chat/completions"], status_code=200, responses=ERRORS | NOT_SUPPORTED)
async def create_chat_completion(
    data: JSONBody[CreateChatCompletion], service: ServiceDependency, caller: CallerDependency
) -> Answer[ChatCompletion]:
    """Answers a chat `n` times."""
    chat.check(data)
    generation = await submit_chat(data, service)
    if not data.stream:
        return Answer(CollectedResponse(generation, chat.ResponseBuilder(data, generation, service), service.collected))
    form = chat.ChunkEncoder(data, generation, service)
    stream = StreamedResponse(generation, form, request_fields.ping_s(data, service.settings))
    return Answer(await caller.resumable(stream))


@post(["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"], status_code=200, responses=ERRORS)
async def count_chat_tokens(data: JSONBody[CreateChatCompletion], service: ServiceDependency) -> InputTokens:
    """Counts the prompt tokens of a chat; nothing is computed."""
    chat.check(data)
    return InputTokens(object="response.input_tokens", input_tokens=await count_tokens(data, service))


@post("/v1/embeddings", status_code=200, responses=ERRORS | NOT_SUPPORTED)
async def create_embedding(data: JSONBody[CreateEmbedding], service: ServiceDependency) -> Answer[EmbeddingList]:
    """Computes embeddings of texts."""
    texts = embeddings.texts(data, service.engine.embedding_stats().pooling)
    write = embeddings.written(data, service.model_name)
    work = partial(
        embedding.embed, service, texts, write, name="input", normalize=data.embd_normalize, dimensions=data.dimensions
    )
    return Answer(AwaitedChunks(work, service.collected))


@get(["/v1/models", "/models"], responses=ERRORS, opt=NEEDS_NO_MODEL)
async def list_models(service: ServiceDependency) -> ModelList:
    """The served model."""
    return service.snapshot(models.models)


@get("/v1/models/{name:path}", responses=ERRORS, opt=NEEDS_NO_MODEL)
async def retrieve_model(service: ServiceDependency) -> ModelCard:
    """The served model, under any name."""
    return service.snapshot(models.model)


def router() -> Router:
    """Returns the routes, for one application."""
    return routes_of(
        "OpenAI",
        [
            create_completion,
            create_chat_completion,
            count_chat_tokens,
            create_embedding,
            list_models,
            retrieve_model,
        ],
    )
