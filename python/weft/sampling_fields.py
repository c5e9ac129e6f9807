"""Sampling parameters: the single table from which other interfaces are derived.

Each field has a description and a range. Requests inherit the fields, request bodies of all API dialects accept them, settings
provide their defaults and responses report them; the references of flags and of request fields use this table. Command-line
spellings are in `weft/settings/flags.json`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from weft.fields.excerpt import excerpt
from weft.fields.meta import Clamp, FieldMeta, Range, described, field_meta

__all__ = ["SAMPLERS", "Sampling", "parameter_meta", "samplers_of_letters", "samplers_of_names"]

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama-server's sampler chain, with tail-free sampling after top-k."""

MIN_INT, MAX_INT = -(2**31), 2**31 - 1
"""Range of the engine's integers, 32 bits."""


@described
class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. The defaults are llama-server's."""

    samplers: Annotated[
        Sequence[str],
        "sampler chain, in order: names of SAMPLERS, adaptive_p and infill, repeats allowed. Samplers that are not named are "
        "off. Also accepts llama-server's other spellings (top-k, topk, typical_p, nucleus, temp) and llama.cpp's letters",
    ] = SAMPLERS
    temperature: Annotated[float, "temperature, which divides the logits; 0 or less is greedy", Clamp((0.0, math.inf))] = 0.8
    dynatemp_range: Annotated[
        float, "range of the dynamic temperature around its value, higher when the model is less certain; 0 is off"
    ] = 0.0
    dynatemp_exponent: Annotated[float, "exponent of the dynamic temperature's entropy"] = 1.0
    top_k: Annotated[
        int, "number of most likely tokens to keep; 0 or less keeps all", Range(MIN_INT, MAX_INT), Clamp((0, MAX_INT))
    ] = 40
    top_p: Annotated[
        float, "keep the smallest set of most likely tokens whose probabilities sum to this; 1 keeps all", Clamp((0.0, 1.0))
    ] = 0.95
    min_p: Annotated[
        float, "keep tokens with at least this fraction of the highest probability; 0 keeps all", Clamp((0.0, 1.0))
    ] = 0.05
    typical_p: Annotated[
        float, "locally typical sampling: keep tokens of about average surprise, up to this sum of probabilities; 1 keeps all"
    ] = 1.0
    top_n_sigma: Annotated[
        float, "keep tokens whose logits are at most this many standard deviations below the highest; 0 or less keeps all"
    ] = -1.0
    tfs_z: Annotated[float, "tail-free sampling: cut off the flat tail of the distribution; 1 keeps all"] = 1.0
    xtc_probability: Annotated[
        float, "probability of removing the most likely tokens (XTC), 0 (never) to 1 (always)", Clamp((0.0, 1.0))
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        "probability from which tokens are removed by XTC, except the least likely of them; above 0.5 is off",
        Clamp((0.0, 1.0)),
    ] = 0.1
    min_keep: Annotated[int, "minimum tokens that each filter keeps", Range(0, MAX_INT)] = 0
    repeat_penalty: Annotated[
        float,
        "divisor of positive logits, and factor of negative ones, for tokens in the penalty window; 1 is off",
        Range(above=0),
    ] = 1.0
    repeat_last_n: Annotated[
        int, "window of the three penalties in tokens; 0 is off, -1 is the whole context", Range(-1, MAX_INT)
    ] = 64
    presence_penalty: Annotated[float, "subtracted once from the logit of each token in the penalty window"] = 0.0
    frequency_penalty: Annotated[float, "subtracted from the logit of a token for each time it occurs in the penalty window"] = (
        0.0
    )
    penalize_nl: Annotated[bool, "apply the penalties to newlines too"] = True
    dry_multiplier: Annotated[float, "strength of the DRY penalty on tokens that would extend a repetition; 0 is off"] = 0.0
    dry_base: Annotated[float, "base of DRY, raised to the repetition's length beyond the allowed one; below 1 is off"] = 1.75
    dry_allowed_length: Annotated[int, "length in tokens up to which DRY allows repetitions", Range(0, MAX_INT)] = 2
    dry_penalty_last_n: Annotated[
        int, "window in tokens that DRY searches for repetitions; 0 is off, -1 is the whole context", Range(-1, MAX_INT)
    ] = 64
    dry_sequence_breakers: Annotated[Sequence[str], "texts that end a repetition for DRY; at most 64, of 1,024 bytes each"] = (
        "\n",
        ":",
        '"',
        "*",
    )
    mirostat: Annotated[int, "version of Mirostat (1 or 2), which replaces the sampler chain; 0 is off", Range(0, 2)] = 0
    mirostat_tau: Annotated[float, "Mirostat's target entropy, in bits per token"] = 5.0
    mirostat_eta: Annotated[float, "Mirostat's learning rate"] = 0.1
    adaptive_target: Annotated[
        float,
        "target probability of sampled tokens, 0 to 1, if the chain has adaptive_p; below 0 is off",
        Clamp((-math.inf, 1.0)),
    ] = -1.0
    adaptive_decay: Annotated[
        float, "decay of the adaptive target, 0 to 0.99: it averages over about 1 / (1 - decay) tokens", Range(0, 0.99)
    ] = 0.9
    logit_bias: Annotated[
        Sequence[tuple[int, float]] | Mapping[int, float],
        "values to add to the logits of tokens, as pairs or a mapping; minus infinity bans a token. At most as many as the "
        "vocabulary's size",
    ] = ()
    ignore_eos: Annotated[bool, "ban all end tokens"] = False


def parameter_meta() -> Mapping[str, FieldMeta]:
    """Returns the metadata of each sampling parameter, in field order."""
    return field_meta(Sampling)


_SPELLINGS = {
    "penalties": ("e",),
    "dry": ("d",),
    "top_n_sigma": ("s",),
    "top_k": ("k",),
    "tfs_z": ("f", "tfs"),
    "typ_p": ("y", "typical_p", "typical", "typ"),
    "top_p": ("p", "nucleus"),
    "min_p": ("m",),
    "xtc": ("x",),
    "temperature": ("t", "temp"),
    "adaptive_p": ("a",),
    "infill": ("i",),
}
"""llama-server's letter of each sampler (`f` is from a version that had this one), and its other names."""

_LETTERS = {letter: name for name, (letter, *_) in _SPELLINGS.items()}

_KNOWN = {
    spelling: name
    for name, (_, *others) in _SPELLINGS.items()
    for known in (name, *others)
    for spelling in (known, known.replace("_", "-"), known.replace("_", ""))
}


def samplers_of_names(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the samplers with these names, in order.

    Raises:
        ValueError: A name is unknown.
    """
    found = []
    for name in names:
        if (known := _KNOWN.get(name.strip().lower())) is None:
            raise ValueError(f"{excerpt(name)} is not one of {', '.join(_SPELLINGS)}")
        found.append(known)
    return tuple(found)


def samplers_of_letters(letters: str) -> tuple[str, ...]:
    """Returns the samplers with these letters, in order.

    Current versions of llama-server have no letter for `tfs_z`; without one, it follows `top_k`, as in `SAMPLERS`.

    Raises:
        ValueError: A letter is unknown.
    """
    found = []
    for letter in letters:
        if (known := _LETTERS.get(letter)) is None:
            raise ValueError(f"{letter!r} in {excerpt(letters)} is not one of {' '.join(_LETTERS)}")
        found.append(known)
        if known == "top_k" and "f" not in letters:
            found.append("tfs_z")
    return tuple(found)
