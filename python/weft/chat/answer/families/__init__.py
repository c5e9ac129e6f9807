"""Every family that is known, and which one a template is of."""

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
"""What models are told in words that were not trained to call tools, or in a way that is not known here."""

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
"""Those that are told apart by more come first."""


def family_of(template: str) -> Family | None:
    """Returns the family of a template by the marks that stand in it; None where it has none that are known."""
    return next((family for family in ALL if family.is_of(template)), None)
