"""The known families, and detection of the family of a template."""

from weft.chat.answer.families import (
    apertus,
    cohere,
    deepseek,
    firefunction,
    functionary,
    gemma,
    glm,
    gpt_oss,
    granite,
    hermes,
    kimi,
    kimi_k3,
    lfm,
    llama,
    minimax,
    minimax_m3,
    mistral,
    muse,
    nemotron,
    qwen_coder,
    seed_oss,
)
from weft.chat.answer.family import Family

__all__ = ["ALL", "GENERIC", "family_of"]

GENERIC = hermes.GENERIC
"""Format that is described in words to models with an unknown format, or without training in tool calls."""

ALL: tuple[Family, ...] = (
    gpt_oss.GPT_OSS,
    *gemma.ALL,
    muse.MUSE,
    kimi_k3.KIMI_K3,
    minimax_m3.MINIMAX_M3,
    functionary.FUNCTIONARY_3_2,
    kimi.KIMI,
    cohere.COHERE_2_MOE,
    cohere.COMMAND_R7B,
    apertus.APERTUS,
    nemotron.NEMOTRON,
    granite.GRANITE,
    firefunction.FIREFUNCTION,
    cohere.COMMAND_R,
    deepseek.DEEPSEEK_3_2,
    deepseek.DEEPSEEK_4,
    deepseek.DEEPSEEK_3_1,
    deepseek.DEEPSEEK_3,
    lfm.LFM2,
    llama.LLAMA_PYTHONIC,
    minimax.MINIMAX,
    seed_oss.SEED_OSS,
    glm.LING,
    glm.LAGUNA,
    glm.GLM,
    qwen_coder.QWEN_CODER,
    functionary.FUNCTIONARY_3_1,
    mistral.MISTRAL_LIST,
    mistral.MISTRAL,
    hermes.HERMES,
    llama.LLAMA,
)
"""More specific families come first."""


def family_of(template: str) -> Family | None:
    """Returns the family whose marks occur in a template; None if it is unknown."""
    return next((family for family in ALL if family.is_of(template)), None)
