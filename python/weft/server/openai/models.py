"""The served model, in the formats of OpenAI, Anthropic and llama-server."""

from datetime import UTC, datetime

import msgspec

from weft.server.openai.schemas import Architecture, ModelCard, ModelList, ModelMeta, ModelName
from weft.server.service import Service


def model(service: Service) -> ModelCard:
    """Returns the model in OpenAI's format."""
    served = service.engine.model
    meta = ModelMeta(
        vocab_type=served.vocab_type,
        n_vocab=served.n_vocab,
        n_ctx=service.engine.limits.n_ctx_slot,
        n_ctx_train=served.n_ctx_train,
        n_embd=served.n_embd,
        n_params=served.n_params,
        size=served.size_bytes,
        ftype=service.quantization,
    )
    now = datetime.now(UTC).replace(microsecond=0)
    reads = {"text": True, "image": served.modalities.vision, "audio": served.modalities.audio}
    return ModelCard(
        id=service.model_name,
        aliases=list(service.settings.aliases),
        tags=list(service.settings.tags),
        object="model",
        created=int(now.timestamp()),
        owned_by="weft",
        meta=meta,
        architecture=Architecture([kind for kind, is_read in reads.items() if is_read], ["text"]),
        engine_state=service.state if service.settings.compat == "srb" else msgspec.UNSET,
        display_name=service.model_name,
        created_at=now.isoformat().replace("+00:00", "Z"),
    )


def models(service: Service) -> ModelList:
    """Returns the list of the one model in OpenAI's and llama-server's formats."""
    name = service.model_name
    return ModelList(
        object="list",
        data=[model(service)],
        models=[
            ModelName(
                name=name,
                model=name,
                tags=list(service.settings.tags),
                capabilities=list(service.capabilities),
            )
        ],
        first_id=name,
        last_id=name,
    )
