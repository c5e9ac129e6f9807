"""Every family that is known, and which one a template is of."""

from weft.chat.answer.families import elements, gemma, harmony, lists, named, pythonic, tagged
from weft.chat.answer.family import Family

__all__ = ["ALL", "GENERIC", "family_of"]

GENERIC = tagged.GENERIC
"""What models are told in words that were not trained to call tools, or in a way that is not known here."""

ALL: tuple[Family, ...] = (
    harmony.GPT_OSS,
    *gemma.ALL,
    named.FUNCTIONARY_3_2,
    named.KIMI,
    *lists.ALL,
    elements.DEEPSEEK_3_2,
    elements.DEEPSEEK_4,
    named.DEEPSEEK_3_1,
    named.DEEPSEEK_3,
    *pythonic.ALL,
    elements.MINIMAX,
    elements.SEED_OSS,
    elements.GLM,
    elements.QWEN_CODER,
    named.FUNCTIONARY_3_1,
    named.MISTRAL_LIST,
    named.MISTRAL,
    tagged.HERMES,
    lists.LLAMA,
)
"""Those that are told apart by more come first."""


def family_of(template: str) -> Family:
    """The family of a template, by the marks that stand in it."""
    return next((family for family in ALL if family.is_of(template)), GENERIC)
