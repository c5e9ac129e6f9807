"""The one model that is served, as OpenAI and as llama-server list it."""

import time
from collections.abc import Sequence

from weft import Model
from weft.server.openai.schemas import ModelCard, ModelList, ModelMeta, ModelName
from weft.settings import Settings

__all__ = ["model", "models"]


def model(served: Model, name: str, settings: Settings) -> ModelCard:
    """The one model that is served, as OpenAI describes it."""
    meta = ModelMeta(
        vocab_type=served.vocab_type,
        n_vocab=served.n_vocab,
        n_ctx_train=served.n_ctx_train,
        n_embd=served.n_embd,
        n_params=served.n_params,
        size=served.size_bytes,
    )
    return ModelCard(
        id=name,
        aliases=list(settings.aliases),
        tags=list(settings.tags),
        object="model",
        created=int(time.time()),
        owned_by="weft",
        meta=meta,
    )


def models(served: Model, name: str, settings: Settings, capabilities: Sequence[str]) -> ModelList:
    """The one model that is served, as OpenAI and as llama-server list it."""
    return ModelList(
        object="list",
        data=[model(served, name, settings)],
        models=[
            ModelName(
                name=name,
                model=name,
                tags=list(settings.tags),
                capabilities=list(capabilities),
                details={"format": "gguf"},
            )
        ],
    )
