"""OpenAI's routes."""

from functools import partial

from litestar import Router, get, post
from litestar.params import JSONBody

from weft.server.awake import NEEDS_NO_MODEL
from weft.server.context import ContextDependency
from weft.server.errors import ERRORS, NOT_SUPPORTED
from weft.server.executor import Purpose
from weft.server.inference import embedding
from weft.server.inference.chat import count_tokens, submit_chat
from weft.server.openai import chat, completions, embeddings, models
from weft.server.openai.chat_schemas import ChatCompletion, CreateChatCompletion, InputTokens
from weft.server.openai.embeddings_schemas import CreateEmbedding, EmbeddingList
from weft.server.openai.schemas import CompletionObject, CreateCompletion, ModelCard, ModelList
from weft.server.request_fields import branches
from weft.server.routes import handlers_of, routes_of
from weft.server.streaming.responses import Answer, AwaitedChunks


@post("/v1/completions", status_code=200, responses=ERRORS | NOT_SUPPORTED, summary="Complete prompts")
async def create_completion(data: JSONBody[CreateCompletion], request_context: ContextDependency) -> Answer[CompletionObject]:
    """Continues one or several prompts with `n` branches each."""
    service, caller = request_context.service, request_context.caller
    if (other := request_context.event_formats.named(data.event_format, service.settings)) is not None:
        data = other.prepared(data, service.settings)
    size = branches.branches_size(data)
    parsed = await service.executor.run(Purpose.PROMPT, size, completions.submission, data, service.settings)
    generation = await service.submit(parsed)
    encoder = completions.CompletionEncoder(data, generation, service) if other is None else other.stream(generation)
    return await caller.respond(data, generation, encoder, service)


@post(["/v1/chat/completions", "/chat/completions"], status_code=200, responses=ERRORS | NOT_SUPPORTED, summary="Answer a chat")
async def create_chat_completion(
    data: JSONBody[CreateChatCompletion], request_context: ContextDependency
) -> Answer[ChatCompletion]:
    """Answers a chat with `n` branches."""
    service, caller = request_context.service, request_context.caller
    chat.check(data)
    generation = await submit_chat(data, service)
    return await caller.respond(data, generation, chat.ChatEncoder(data, generation, service), service)


@post(
    ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
    status_code=200,
    responses=ERRORS,
    summary="Count the tokens of a chat",
)
async def count_chat_tokens(data: JSONBody[CreateChatCompletion], request_context: ContextDependency) -> InputTokens:
    """Counts the prompt tokens of a chat; nothing is computed."""
    chat.check(data)
    return InputTokens(object="response.input_tokens", input_tokens=await count_tokens(data, request_context.service))


@post("/v1/embeddings", status_code=200, responses=ERRORS | NOT_SUPPORTED, summary="Embed texts")
async def create_embedding(data: JSONBody[CreateEmbedding], request_context: ContextDependency) -> Answer[EmbeddingList]:
    """Returns an embedding of each text."""
    service = request_context.service
    texts = embeddings.texts(data, service.pooling)
    write = embeddings.written(data, service.model_name)
    work = partial(
        embedding.embed, service, texts, write, name="input", normalize=data.embd_normalize, dimensions=data.dimensions
    )
    return Answer(AwaitedChunks(work, service.collected))


@get(["/v1/models", "/models"], responses=ERRORS, opt=NEEDS_NO_MODEL, summary="List models")
async def list_models(request_context: ContextDependency) -> ModelList:
    """Returns the served model, as a list of one."""
    return request_context.service.snapshot(models.models)


@get("/v1/models/{name:path}", responses=ERRORS, opt=NEEDS_NO_MODEL, summary="Describe a model")
async def retrieve_model(request_context: ContextDependency) -> ModelCard:
    """Returns the served model, under any name."""
    return request_context.service.snapshot(models.model)


def router() -> Router:
    """Returns the routes, for one application."""
    return routes_of("OpenAI", handlers_of(__name__))
