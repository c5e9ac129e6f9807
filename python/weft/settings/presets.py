"""llama-server's named models: each is a repository of the hub with suitable default settings, as flags."""

from collections.abc import Mapping

_CODE = "--port 8012 -ub 1024 -b 1024 -c 0"
_DRAFT = "-hfd ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF:Q8_0 --spec-type draft-simple"
_OPEN = "--port 8013 -ub 2048 -b 32768 -np 2 -c 262144 --temp 1 --top-p 1 --top-k 0 --min-p 0.01"
_VISION = "--port 8014 -c 0"

PRESETS: Mapping[str, str] = {
    "embd-gemma-default": "-hf ggml-org/embeddinggemma-300M-qat-q4_0-GGUF -hff embeddinggemma-300M-qat-Q4_0.gguf"
    " --port 8011 -ub 2048 -b 2048 -np 32 -c 65536 --embeddings",
    "fim-qwen-1.5b-default": f"-hf ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF -hff qwen2.5-coder-1.5b-q8_0.gguf {_CODE}",
    "fim-qwen-3b-default": f"-hf ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF -hff qwen2.5-coder-3b-q8_0.gguf {_CODE}",
    "fim-qwen-7b-default": f"-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf {_CODE}",
    "fim-qwen-7b-spec": f"-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf {_DRAFT} {_CODE}",
    "fim-qwen-14b-spec": f"-hf ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF -hff qwen2.5-coder-14b-q8_0.gguf {_DRAFT} {_CODE}",
    "fim-qwen-30b-default": "-hf ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF"
    f" -hff qwen3-coder-30b-a3b-instruct-q8_0.gguf {_CODE}",
    "vision-gemma-4b-default": f"-hf ggml-org/gemma-3-4b-it-qat-GGUF {_VISION}",
    "vision-gemma-12b-default": f"-hf ggml-org/gemma-3-12b-it-qat-GGUF {_VISION}",
    "gpt-oss-20b-default": f"-hf ggml-org/gpt-oss-20b-GGUF -hff gpt-oss-20b-mxfp4.gguf {_OPEN}",
    "gpt-oss-120b-default": f"-hf ggml-org/gpt-oss-120b-GGUF {_OPEN}",
}
"""Flags of each named model."""
