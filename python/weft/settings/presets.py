"""llama-server's named models: each is a repository of the hub with suitable default settings."""

from collections.abc import Mapping
from typing import Any

__all__ = ["PRESETS"]

_CODE: Mapping[str, Any] = {"port": 8012, "n_ubatch": 1024, "n_batch": 1024, "n_ctx": None}

_OPEN: Mapping[str, Any] = {
    "port": 8013,
    "n_ubatch": 2048,
    "n_batch": 32768,
    "n_slots": 2,
    "n_ctx": 2 * 131_072,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.01,
}

_EMBEDDINGS: Mapping[str, Any] = {
    "port": 8011,
    "n_ubatch": 2048,
    "n_batch": 2048,
    "n_slots": 32,
    "n_ctx": 2048 * 32,
    "embeddings": True,
}


_VISION: Mapping[str, Any] = {"port": 8014, "n_ctx": None}


def _code(model: str) -> Mapping[str, Any]:
    return {"hf_repo": f"ggml-org/{model}-Q8_0-GGUF", "hf_file": f"{model.lower()}-q8_0.gguf", **_CODE}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "embd-gemma-default": {
        "hf_repo": "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF",
        "hf_file": "embeddinggemma-300M-qat-Q4_0.gguf",
        **_EMBEDDINGS,
    },
    "fim-qwen-1.5b-default": _code("Qwen2.5-Coder-1.5B"),
    "fim-qwen-3b-default": _code("Qwen2.5-Coder-3B"),
    "fim-qwen-7b-default": _code("Qwen2.5-Coder-7B"),
    "fim-qwen-30b-default": _code("Qwen3-Coder-30B-A3B-Instruct"),
    "vision-gemma-4b-default": {"hf_repo": "ggml-org/gemma-3-4b-it-qat-GGUF", **_VISION},
    "vision-gemma-12b-default": {"hf_repo": "ggml-org/gemma-3-12b-it-qat-GGUF", **_VISION},
    "gpt-oss-20b-default": {"hf_repo": "ggml-org/gpt-oss-20b-GGUF", "hf_file": "gpt-oss-20b-mxfp4.gguf", **_OPEN},
    "gpt-oss-120b-default": {"hf_repo": "ggml-org/gpt-oss-120b-GGUF", **_OPEN},
}
"""Settings of each preset, by name."""
