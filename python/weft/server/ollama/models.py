"""The served model in Ollama's formats. No I/O except for the file's modification time."""

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.infill import missing
from weft.server.ollama.schemas import LoadedModel, LoadedModels, ModelDetails, ModelShown, ServedModel, ServedModels
from weft.server.service import Service

NEVER = "2318-01-01T00:00:00Z"
"""Expiry of a model without one: like Ollama, a time about 300 years in the future."""

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))

_PARAMETERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Parameters that a Modelfile supports."""


def listed(service: Service) -> ServedModels:
    """Returns the model for `/api/tags`."""
    model = ServedModel(modified_at=_modified_at(service), capabilities=_capabilities(service), **_about(service))
    return ServedModels([model])


def loaded(service: Service) -> LoadedModels:
    """Returns the model for `/api/ps`, if it is loaded."""
    if not service.engine.is_running:
        return LoadedModels([])
    n_ctx = service.engine.limits.n_ctx_slot
    return LoadedModels([LoadedModel(expires_at=NEVER, size_vram=0, context_length=n_ctx, **_about(service))])


def _about(service: Service) -> dict[str, Any]:
    """Returns the fields that lists of models share."""
    return {
        "name": service.model_name,
        "model": service.model_name,
        "size": service.engine.model.size_bytes,
        "digest": _digest(service),
        "details": _details(service),
    }


def shown(service: Service) -> ModelShown:
    """Returns the model for `/api/show`."""
    model, settings = service.engine.model, service.settings
    metadata = model.metadata()
    lines = [f"{name} {getattr(settings.sampling, name)}" for name in _PARAMETERS]
    lines += [f"stop {word!r}" for word in settings.stop]
    return ModelShown(
        license=metadata.get("general.license", ""),
        modelfile=f"FROM {model.path}\n" + "".join(f"PARAMETER {line}\n" for line in lines),
        parameters="\n".join(lines),
        template=service.chat.source,
        details=_details(service),
        model_info={
            **{key: _value(text) for key, text in metadata.items() if key != "tokenizer.chat_template"},
            "general.parameter_count": model.n_params,
        },
        capabilities=_capabilities(service),
        modified_at=_modified_at(service),
    )


def _value(text: str) -> Any:  # noqa: ANN401 (a number, a boolean or a text)
    """Parses a metadata value, which llama.cpp provides as text."""
    if re.fullmatch("-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch("-?[0-9]{1,18}[.][0-9]{1,18}", text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)


def _details(service: Service) -> ModelDetails:
    model = service.engine.model
    family = model.metadata().get("general.architecture", "")
    return ModelDetails(
        family=family,
        families=[family],
        parameter_size=_short(model.n_params),
        quantization_level=service.quantization,
    )


def _short(n: int) -> str:
    """Returns a number in Ollama's short format: 2.8M."""
    for unit, name in _UNITS:
        if n >= unit:
            return f"{n / unit:.1f}{name}"
    return str(n)


def _capabilities(service: Service) -> list[str]:
    """Returns the model's capabilities in Ollama's terms."""
    model, settings = service.engine.model, service.settings
    if model.is_encoder or settings.embeddings or settings.reranking:
        has_vectors = service.pooling in ("mean", "cls", "last")
        return ["embedding"] if has_vectors else []
    has = {
        "completion": True,
        "vision": model.modalities.vision,
        "audio": model.modalities.audio,
        "insert": not missing(model),
        "tools": service.chat.shows_tools,
        "thinking": service.chat.thinks,
    }
    return [name for name, is_there in has.items() if is_there]


def _modified_at(service: Service) -> str:
    try:
        changed_s = Path(service.engine.model.path).stat().st_mtime
    except OSError:  # The file may have been moved.
        changed_s = service.started_s
    return datetime.fromtimestamp(changed_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _digest(service: Service) -> str:
    """Returns an identifier for the model. It does not depend on the contents, since hashing gigabytes would take a minute."""
    model = service.engine.model
    return hashlib.sha256(f"{model.path}\n{model.size_bytes}\n{_modified_at(service)}".encode()).hexdigest()
