"""OpenAI's routes."""

from functools import partial

from litestar.params import JSONBody

from weft.server.api import Api
from weft.server.context import CallerDependency, FormatsDependency, ServiceDependency
from weft.server.errors import NOT_SUPPORTED
from weft.server.executor import Purpose
from weft.server.inference import embedding
from weft.server.inference.chat import count_tokens, submit_chat
from weft.server.openai import chat, completions, embeddings, models, schemas
from weft.server.request_fields import branches
from weft.server.streaming.responses import Answer, AwaitedChunks

api = Api("OpenAI")


@api.route("POST", "/v1/completions", summary="Complete prompts", errors=NOT_SUPPORTED)
async def create_completion(
    data: JSONBody[schemas.CreateCompletion],
    service: ServiceDependency,
    caller: CallerDependency,
    event_formats: FormatsDependency,
) -> Answer[schemas.CompletionObject]:
    """Continues one or several prompts with `n` branches each."""
    data, other = event_formats.prepare(data, service.settings)
    size = branches.branches_size(data)
    parsed = await service.executor.run(Purpose.PROMPT, size, completions.submission, data, service.settings)
    generation = await service.submit(parsed)
    encoder = completions.CompletionEncoder(data, generation, service) if other is None else other.stream(generation)
    return await caller.respond(data, generation, encoder)


@api.route("POST", "/v1/chat/completions", "/chat/completions", summary="Answer a chat", errors=NOT_SUPPORTED)
async def create_chat_completion(
    data: JSONBody[schemas.CreateChatCompletion], service: ServiceDependency, caller: CallerDependency
) -> Answer[schemas.ChatCompletion]:
    """Answers a chat with `n` branches."""
    chat.check(data)
    generation = await submit_chat(data, service)
    return await caller.respond(data, generation, chat.ChatEncoder(data, generation, service))


@api.route("POST", "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", summary="Count the tokens of a chat")
async def count_chat_tokens(data: JSONBody[schemas.CreateChatCompletion], service: ServiceDependency) -> schemas.InputTokens:
    """Counts the prompt tokens of a chat; nothing is computed."""
    chat.check(data)
    return schemas.InputTokens(object="response.input_tokens", input_tokens=await count_tokens(data, service))


@api.route("POST", "/v1/embeddings", summary="Embed texts", errors=NOT_SUPPORTED)
async def create_embedding(data: JSONBody[schemas.CreateEmbedding], service: ServiceDependency) -> Answer[schemas.EmbeddingList]:
    """Returns an embedding of each text."""
    texts = embeddings.texts(data, service.pooling)
    write = embeddings.written(data, service.model_name)
    work = partial(
        embedding.embed, service, texts, write, name="input", normalize=data.embd_normalize, dimensions=data.dimensions
    )
    return Answer(AwaitedChunks(work, service.collected))


@api.route("GET", "/v1/models", "/models", summary="List models", needs_model=False)
async def list_models(service: ServiceDependency) -> schemas.ModelList:
    """Returns the served model, as a list of one."""
    return service.snapshot(models.models)


@api.route("GET", "/v1/models/{name:path}", summary="Describe a model", needs_model=False)
async def retrieve_model(service: ServiceDependency) -> schemas.ModelCard:
    """Returns the served model, under any name."""
    return service.snapshot(models.model)
