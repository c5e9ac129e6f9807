"""`/props`: properties of the server and its model. No I/O here."""

import msgspec

from weft import InvalidRequestError, Model
from weft.chat.template_terms import TemplateError
from weft.server.llamacpp import schemas
from weft.server.media.files import MEDIA_MARKER
from weft.server.request_fields import requests
from weft.server.response_fields.settings import GenerationSettings, generation_settings
from weft.server.service import Service

MAX_ID = 2**32 - 1
"""Largest adapter id that the engine can represent."""


def properties(service: Service) -> schemas.Properties:
    """Returns the server's properties and default request settings."""
    model, limits, settings = service.engine.model, service.engine.limits, service.settings
    common = service.common_prompt.current
    # llama.cpp's first multi-user server had names for both; the user's was its reverse prompt.
    user, assistant = (next(iter(settings.stop), "User:"), "Assistant:") if settings.compat == "parallel" else ("", "")
    params = default_settings(service)
    return schemas.Properties(
        default_generation_settings=schemas.DefaultSettings(**msgspec.structs.asdict(params), params=params),
        total_slots=limits.n_slots,
        n_ctx=limits.n_ctx,
        model_alias=service.model_name,
        model_path=model.path,
        model_ftype=service.quantization,
        modalities=schemas.Modalities(vision=model.modalities.vision, video=False, audio=model.modalities.audio),
        media_marker=MEDIA_MARKER,
        chat_template=service.chat.source,
        chat_template_caps=_capabilities(service),
        bos_token=spelling(model, model.bos_token) or "",
        eos_token=spelling(model, model.eos_token) or "",
        build_info=service.build,
        is_sleeping=False,
        endpoint_slots=settings.slots_endpoint,
        endpoint_props=settings.props_endpoint,
        endpoint_metrics=settings.metrics,
        ui=settings.ui,
        ui_settings={},
        cors_proxy_enabled=False,
        system_prompt=common.prompt,
        user_name=common.anti_prompt or user,
        assistant_name=common.assistant_name or assistant,
        compute=service.engine.compute.summary,
        repeatable=service.engine.is_repeatable,
        speculation=service.engine.no_speculation_reason or "on",
        repeatable_embeddings=service.engine.embeddings_are_repeatable,
        pooling=service.engine.embedding_stats().pooling,
        chat_template_tool_use=service.chat.tool_use_source or msgspec.UNSET,
    )


def default_settings(service: Service) -> GenerationSettings:
    """Returns the settings of a request without fields."""
    request = requests.template(schemas.CompletionBody(), service.settings)
    request = msgspec.structs.replace(request, adapters=service.request_builder.adapters(None))
    return generation_settings(
        request,
        service.engine,
        service.model_name,
        seed=requests.RANDOM_SEED if request.seed is None else request.seed,
        reasoning_format=service.settings.reasoning_format,
    )


def lora_adapters(service: Service) -> list[schemas.LoraAdapter]:
    """Returns the loaded adapters."""
    return [
        schemas.LoraAdapter(
            adapter.id,
            adapter.path,
            adapter.scale,
            adapter.task_name,
            adapter.prompt_prefix,
            service.engine.detokenize(adapter.invocation) if adapter.invocation else msgspec.UNSET,
            adapter.invocation or msgspec.UNSET,
        )
        for adapter in service.engine.adapters
    ]


def set_lora_adapters(service: Service, scales: list[schemas.LoraScale]) -> schemas.LoraScalesSet:
    """Sets the default adapter scales. The last entry for an adapter applies."""
    if wrong := [each.id for each in scales if not 0 <= each.id <= MAX_ID]:
        message = f"id is {wrong[0]}; {'it must be 0 or more' if wrong[0] < 0 else 'no adapter has this id'}"
        raise InvalidRequestError("id", message)
    try:
        service.engine.set_adapters(list({each.id: each.scale for each in scales}.items()))
    except InvalidRequestError as error:
        raise InvalidRequestError("id", error.message.replace("adapters", "the list", 1)) from None
    return schemas.LoraScalesSet(success=True)


def _capabilities(service: Service) -> dict[str, bool]:
    """Returns the template's capabilities by llama-server's names; empty if the template is invalid."""
    try:
        template = service.chat.template
    except TemplateError:
        return {}
    return {
        "supports_string_content": template.takes_text,
        "supports_typed_content": template.takes_parts,
        "supports_system_role": template.takes_system,
        "supports_reasoning_effort": "reasoning_effort" in template.source,
        "supports_preserve_reasoning": template.keeps_reasoning,
        # Templates without tools receive their descriptions as text.
        "supports_tools": template.takes_tools,
        "supports_tool_calls": template.takes_calls,
        "supports_parallel_tool_calls": template.takes_calls,
        "supports_object_arguments": template.takes_calls and template.wants_objects,
    }


def spelling(model: Model, token: int | None) -> str | None:
    """Returns the text of a token; None if the vocabulary does not have it."""
    return None if token is None else model.token_bytes(token).decode(errors="replace")
