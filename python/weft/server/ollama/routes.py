"""Ollama's routes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from litestar.params import JSONBody

from weft import InvalidRequestError
from weft._native import CompactEmbeddings
from weft.chat.answer.parts import PLAIN
from weft.errors import NotSupportedError
from weft.server.api import Api
from weft.server.awake import arrived_ns
from weft.server.context import ServiceDependency, response_of
from weft.server.executor import Purpose
from weft.server.inference import embedding
from weft.server.inference.chat import submit_chat
from weft.server.inference.generation import Generation
from weft.server.inference.submission import Gap, SentPrompt, renaming, size_of
from weft.server.memory_budget import Reservation
from weft.server.ollama import answer, models, schemas, translate
from weft.server.request_fields import prompts, requests
from weft.server.service import Service
from weft.server.streaming.client_timeouts import n_body_bytes
from weft.server.streaming.json_chunks import json_list
from weft.server.streaming.responses import Answer, AwaitedChunks, ChunkedResponse

BodyT = TypeVar("BodyT", bound=schemas.GenerationFields)

RELEASE = "0.33.0"
"""Ollama release with these routes, from which clients derive supported features."""

ONE_MODEL = "this server serves one model; start it with -m or -hf for another"


api = Api("Ollama", answer.ERRORS)


@api.route("POST", "/api/generate", summary="Generate a completion")
async def generate(data: JSONBody[schemas.GenerateBody], service: ServiceDependency) -> Answer[schemas.GenerateAnswer]:
    """Continues a prompt: as the message of a chat, or unchanged with `raw`."""
    if not data.prompt:
        return _load_only(service, answer.generate_answer, data.keep_alive)
    arrived = arrived_ns()
    is_raw = bool(data.raw or data.suffix)
    parsed = await _parsed(data, translate.raw if is_raw else translate.generate_chat, service)
    if is_raw:
        generation = await _submit_raw(data, parsed, service)
    else:
        generation = await submit_chat(
            parsed.fields, service, rename=_rename_generate, context=data.context or (), more=parsed.more
        )
    encoder = answer.AnswerEncoder(
        parsed.fields, generation, service, answer.generate_answer, answer.RequestTimer(arrived), includes_context=not is_raw
    )
    return Answer(response_of(parsed.fields, generation, encoder, service))


@api.route("POST", "/api/chat", summary="Answer a chat")
async def chat(data: JSONBody[schemas.ChatBody], service: ServiceDependency) -> Answer[schemas.ChatAnswer]:
    """Answers a chat with the assistant's next message."""
    if not data.messages:
        return _load_only(service, answer.chat_answer, data.keep_alive)
    arrived = arrived_ns()
    parsed = await _parsed(data, translate.chat, service)
    generation = await submit_chat(parsed.fields, service, rename=translate.rename_parameter, more=parsed.more)
    encoder = answer.AnswerEncoder(parsed.fields, generation, service, answer.chat_answer, answer.RequestTimer(arrived))
    return Answer(response_of(parsed.fields, generation, encoder, service))


async def _parsed(
    data: BodyT, read: Callable[[BodyT, int], translate.ParsedRequest], service: Service
) -> translate.ParsedRequest:
    n_ctx = service.engine.limits.n_ctx_slot
    parsed = await service.executor.run(Purpose.PROMPT, n_body_bytes(), read, data, n_ctx)
    if parsed.fields.enable_thinking and not (await service.compiled_chat()).thinks:  # As in Ollama.
        raise InvalidRequestError("think", f'"{service.model_name}" does not support thinking; leave think out')
    _keep_alive(service, data.keep_alive)
    return parsed


_rename_generate = partial(translate.rename_parameter, is_chat=False)


async def _submit_raw(data: schemas.GenerateBody, parsed: translate.ParsedRequest, service: Service) -> Generation:
    """Submits a raw prompt or an infill."""
    fields = parsed.fields
    n_probs = ("top_logprobs", max(fields.top_logprobs or 0, 1)) if fields.logprobs else ("n_probs", None)
    with renaming(_rename_generate):
        sent = requests.submission(fields, service.settings, n_probs=n_probs)
        sent = msgspec.structs.replace(sent, template=msgspec.structs.replace(sent.template, **parsed.more))
        if data.suffix:
            sent = msgspec.structs.replace(sent, gap=Gap(suffix=[data.suffix], suffix_first=service.settings.spm_infill))
        if (prompt := translate.raw_prompt_with_images(data)) is not None:
            sent = msgspec.structs.replace(sent, prompts=[prompt])
        return await service.submit(sent, PLAIN)


def _load_only(service: Service, shape: answer.Answer, keep_alive: float | str | None) -> Answer[Any]:
    """Answers a request without a prompt, which loads the model or unloads it."""
    is_unloaded = translate.keep_alive_s(keep_alive) == 0
    if is_unloaded and service.sleep.after_s is None:
        raise NotSupportedError("a request cannot unload the model; start the server with --sleep-idle-seconds")
    _keep_alive(service, keep_alive)
    return _json_answer(shape(service.model_name, answer.EMPTY, {"done_reason": "unload" if is_unloaded else "load"}))


def _json_answer(whole: object) -> Answer[Any]:
    return Answer(ChunkedResponse([msgspec.json.encode(whole)]))


def _keep_alive(service: Service, keep_alive: float | str | None) -> None:
    if (seconds := translate.keep_alive_s(keep_alive)) is not None:
        service.sleep.shorten_timeout(seconds)


@api.route("POST", "/api/embed", summary="Embed texts")
async def embed(data: JSONBody[schemas.EmbedBody], service: ServiceDependency) -> Answer[schemas.Embedded]:
    """Returns an embedding of each text."""
    translate.check_embedding(data, service.engine.limits.n_ctx_slot)
    _keep_alive(service, data.keep_alive)
    timer = answer.RequestTimer(arrived_ns())
    if not data.input:
        return _json_answer(schemas.Embedded(service.model_name, [], timer.total_ns, timer.load_ns, 0))
    write = _written(service, timer)
    texts = prompts.texts("input", [data.input] if isinstance(data.input, str) else [*data.input])
    make = partial(_embed, service, texts, write, name="input", dimensions=data.dimensions or None)
    return Answer(AwaitedChunks(partial(make, truncates=data.truncate is not False), service.collected))


@api.route("POST", "/api/embeddings", summary="Embed one text")
async def embeddings(data: JSONBody[schemas.EmbeddingsBody], service: ServiceDependency) -> Answer[schemas.OneEmbedded]:
    """Returns the embedding of one text."""
    translate.check_embedding(data, service.engine.limits.n_ctx_slot)
    _keep_alive(service, data.keep_alive)
    if not data.prompt:
        return _json_answer(schemas.OneEmbedded([]))
    texts = prompts.texts("prompt", data.prompt)
    work = partial(_embed, service, texts, lambda made: [b'{"embedding":%b}' % made.json(0)[1:-1]], name="prompt")
    return Answer(AwaitedChunks(work, service.collected))


async def _embed(
    service: Service,
    texts: Sequence[SentPrompt],
    write: embedding.Encoder,
    collected: Reservation,
    *,
    name: str,
    dimensions: int | None = None,
    truncates: bool = False,
) -> list[bytes]:
    """Computes one embedding per text and returns the JSON."""
    if service.pooling == "none":
        raise NotSupportedError("--pooling none computes no embedding of a whole text")
    if truncates:
        texts = await service.executor.run(Purpose.PROMPT, sum(map(size_of, texts)), embedding.truncated, service, texts)
    with renaming(_rename_generate):
        return await embedding.embed(service, texts, write, collected, name=name, dimensions=dimensions)


def _written(service: Service, timer: answer.RequestTimer) -> embedding.Encoder:
    """Returns a function that encodes the response."""

    def write(made: CompactEmbeddings) -> list[bytes]:
        rows = json_list(made.json(index)[1:-1] for index in range(len(made)))
        head = b'{"model":%b,"embeddings":' % msgspec.json.encode(service.model_name)
        tail = b',"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}'
        return [head, *rows, tail % (timer.total_ns, timer.load_ns, sum(made.n_tokens))]

    return write


@api.route("GET", "/api/tags", summary="List models", needs_model=False)
async def tags(service: ServiceDependency) -> schemas.ServedModels:
    """Returns the served model, as a list of one."""
    await service.compiled_chat()
    return service.snapshot(models.listed)


@api.route("POST", "/api/show", summary="Describe the model", needs_model=False)
async def show(service: ServiceDependency) -> schemas.ModelShown:
    """Returns the served model with its settings and metadata. The body is ignored."""
    await service.compiled_chat()
    return service.snapshot(models.shown)


@api.route("GET", "/api/ps", summary="List loaded models", needs_model=False)
async def ps(service: ServiceDependency) -> schemas.LoadedModels:
    """Returns the served model, or an empty list while it is unloaded."""
    return models.loaded(service)


@api.route("GET", "/api/version", summary="Read the version", needs_model=False)
async def version() -> schemas.Version:
    """Returns the Ollama release with these routes."""
    return schemas.Version(RELEASE)


@api.route(
    "POST",
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/blobs/{digest:str}",
    summary="Change models",
    needs_model=False,
)
async def change_models() -> None:
    """Refused: the server has a single model."""
    raise NotSupportedError(ONE_MODEL)


@api.route("DELETE", "/api/delete", summary="Delete a model", needs_model=False)
async def delete_model() -> None:
    """Refused: the server has a single model."""
    raise NotSupportedError(ONE_MODEL)
