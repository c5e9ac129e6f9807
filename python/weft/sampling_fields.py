"""How a token is chosen: the one table of what steers it.

Each field says what it is for, which values it takes and how it is spelt elsewhere. Requests have these fields, bodies of every
dialect take them, settings give their defaults and answers tell them; flags and `docs/fields.md` are made of this table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from weft.fields.about import About, abouts, described
from weft.fields.shown import shown

__all__ = ["SAMPLERS", "Knob", "Sampling", "knobs", "samplers_of_letters", "samplers_of_names"]

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama-server's chain, with tail-free sampling after top-k."""

LEAST, MOST = -(2**31), 2**31 - 1
"""The engine's whole numbers have 32 bits."""


class Knob(About, frozen=True):
    """What is known of one field that steers how a token is chosen."""

    flags: tuple[str, ...] = ()
    """How it is spelt on the command line; llama-server's spellings."""
    env: str | None = None
    """The variable that stands for the flags."""
    held: tuple[float, float] | None = None
    """The range to which a body's value is held: llama-server takes one past a bound for that bound."""


@described
class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a token is chosen. The defaults are llama-server's."""

    samplers: Annotated[
        Sequence[str],
        Knob(
            "the chain that narrows the candidates down, in order: names of SAMPLERS, adaptive_p and infill, repeats "
            "allowed. A step that is not named has no effect. llama-server's other spellings (top-k, topk, typical_p, "
            "nucleus, temp) and llama.cpp's letters, one by one, are read too",
            flags=("--samplers",),
        ),
    ] = SAMPLERS
    temperature: Annotated[
        float,
        Knob(
            "divides the logits before the draw; 0 or less takes the most likely token",
            flags=("--temp", "--temperature"),
            env="LLAMA_ARG_TEMPERATURE",
            held=(0.0, math.inf),
        ),
    ] = 0.8
    dynatemp_range: Annotated[
        float,
        Knob(
            "how far the temperature moves around its value, the higher the more uncertain the model is; 0 is off",
            flags=("--dynatemp-range",),
        ),
    ] = 0.0
    dynatemp_exponent: Annotated[float, Knob("bends the way from uncertainty to temperature", flags=("--dynatemp-exp",))] = 1.0
    top_k: Annotated[
        int,
        Knob(
            "keeps the k most likely tokens; 0 or less keeps all",
            low=LEAST,
            high=MOST,
            flags=("--top-k",),
            env="LLAMA_ARG_TOP_K",
            held=(0, MOST),
        ),
    ] = 40
    top_p: Annotated[
        float,
        Knob(
            "keeps the smallest set of most likely tokens whose probabilities sum to this; 1 keeps all",
            flags=("--top-p",),
            env="LLAMA_ARG_TOP_P",
            held=(0.0, 1.0),
        ),
    ] = 0.95
    min_p: Annotated[
        float,
        Knob(
            "keeps tokens at least this fraction as likely as the most likely one; 0 keeps all",
            flags=("--min-p",),
            env="LLAMA_ARG_MIN_P",
            held=(0.0, 1.0),
        ),
    ] = 0.05
    typical_p: Annotated[
        float,
        Knob(
            "keeps the tokens that are about as surprising as the average one, up to this sum of probabilities; 1 keeps all",
            flags=("--typical", "--typical-p"),
        ),
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        Knob(
            "keeps tokens whose logits are at most this many standard deviations below the greatest; 0 or less keeps all",
            flags=("--top-nsigma", "--top-n-sigma"),
        ),
    ] = -1.0
    tfs_z: Annotated[
        float,
        Knob("cuts off the tail of the distribution where its curve has become flat; 1 keeps all", flags=("--tfs", "--tfs-z")),
    ] = 1.0
    xtc_probability: Annotated[
        float,
        Knob(
            "how often the most likely tokens are taken away: 0 is never, 1 always", flags=("--xtc-probability",), held=(0.0, 1.0)
        ),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        Knob(
            "all but the least likely of the tokens that are at least so likely are taken away; above 0.5 is off",
            flags=("--xtc-threshold",),
            held=(0.0, 1.0),
        ),
    ] = 0.1
    min_keep: Annotated[int, Knob("fewest tokens that a filter leaves", low=0, high=MOST, flags=("--min-keep",))] = 0
    repeat_penalty: Annotated[
        float,
        Knob(
            "divides (or, where negative, multiplies) the logits of tokens seen in the window; 1 is off",
            above=0,
            flags=("--repeat-penalty",),
            env="LLAMA_ARG_REPEAT_PENALTY",
        ),
    ] = 1.0
    repeat_last_n: Annotated[
        int,
        Knob(
            "window of the three penalties in tokens; 0 is off, -1 is the whole context",
            low=-1,
            high=MOST,
            flags=("--repeat-last-n",),
            env="LLAMA_ARG_REPEAT_LAST_N",
        ),
    ] = 64
    presence_penalty: Annotated[
        float,
        Knob(
            "subtracted once from the logit of every token seen in the window",
            flags=("--presence-penalty",),
            env="LLAMA_ARG_PRESENCE_PENALTY",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Knob(
            "subtracted from the logit of a token for each time it is seen in the window",
            flags=("--frequency-penalty",),
            env="LLAMA_ARG_FREQUENCY_PENALTY",
        ),
    ] = 0.0
    penalize_nl: Annotated[
        bool, Knob("whether the penalties count newlines too", flags=("--penalize-nl", "--no-penalize-nl"))
    ] = True
    dry_multiplier: Annotated[
        float, Knob("strength of the penalty on tokens that would go on with a repetition; 0 is off", flags=("--dry-multiplier",))
    ] = 0.0
    dry_base: Annotated[
        float, Knob("raised to the length of the repetition beyond the allowed one; below 1 is off", flags=("--dry-base",))
    ] = 1.75
    dry_allowed_length: Annotated[
        int, Knob("repetitions of up to so many tokens are free", low=0, high=MOST, flags=("--dry-allowed-length",))
    ] = 2
    dry_penalty_last_n: Annotated[
        int,
        Knob(
            "window in tokens in which repetitions are looked for; 0 is off, -1 the whole context",
            low=-1,
            high=MOST,
            flags=("--dry-penalty-last-n",),
        ),
    ] = 64
    dry_sequence_breakers: Annotated[
        Sequence[str],
        Knob("texts at which a repetition ends; at most 64, of 1,024 bytes each", flags=("--dry-sequence-breaker",)),
    ] = ("\n", ":", '"', "*")
    mirostat: Annotated[
        int, Knob("1 and 2 let that version of Mirostat take the place of the chain", low=0, high=2, flags=("--mirostat",))
    ] = 0
    mirostat_tau: Annotated[float, Knob("Mirostat's aim, in bits of surprise per token", flags=("--mirostat-ent",))] = 5.0
    mirostat_eta: Annotated[float, Knob("how fast Mirostat learns", flags=("--mirostat-lr",))] = 0.1
    adaptive_target: Annotated[
        float,
        Knob(
            "prefers tokens about as likely as this, 0 to 1, where the chain names adaptive_p; below 0 is off",
            flags=("--adaptive-target",),
            held=(-math.inf, 1.0),
        ),
    ] = -1.0
    adaptive_decay: Annotated[
        float,
        Knob(
            "how long the adaptive target remembers, 0 to 0.99: about 1 / (1 - decay) tokens",
            low=0,
            high=0.99,
            flags=("--adaptive-decay",),
        ),
    ] = 0.9
    logit_bias: Annotated[
        Sequence[tuple[int, float]] | Mapping[int, float],
        Knob(
            "added to the logits of these tokens, as pairs or a mapping; minus infinity bans a token. At most as many "
            "as the vocabulary has pieces",
            flags=("-l", "--logit-bias"),
        ),
    ] = ()
    ignore_eos: Annotated[bool, Knob("bans every end token", flags=("--ignore-eos",), env="LLAMA_ARG_IGNORE_EOS")] = False


def knobs() -> Mapping[str, Knob]:
    """What is known of each field, in their order."""
    return {name: about for name, about in abouts(Sampling).items() if isinstance(about, Knob)}


_NAMES = (*SAMPLERS, "adaptive_p", "infill")

_OTHER_NAMES = {
    "typical_p": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
    "temp": "temperature",
    "tfs": "tfs_z",
}

_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "f": "tfs_z",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
    "i": "infill",
}
"""llama-server's letters; that of `tfs_z` is from the time when it had that sampler."""

_KNOWN = {spelling: name for name in _NAMES for spelling in (name, name.replace("_", "-"), name.replace("_", ""))} | {
    spelling: name
    for other, name in _OTHER_NAMES.items()
    for spelling in (other, other.replace("_", "-"), other.replace("_", ""))
}


def samplers_of_names(names: Iterable[str]) -> tuple[str, ...]:
    """The samplers that are named, in order; ValueError names the first that is unknown."""
    found = []
    for name in names:
        if (known := _KNOWN.get(name.strip().lower())) is None:
            raise ValueError(f"{shown(name)} is not one of {', '.join(_NAMES)}")
        found.append(known)
    return tuple(found)


def samplers_of_letters(letters: str) -> tuple[str, ...]:
    """The samplers that these letters stand for, in order; ValueError names the first that is unknown.

    llama-server's letters of today have none for `tfs_z`: where it is not named, it follows `top_k`, as in `SAMPLERS`.
    """
    found = []
    for letter in letters:
        if (known := _LETTERS.get(letter)) is None:
            raise ValueError(f"{letter!r} in {shown(letters)} is not one of {' '.join(_LETTERS)}")
        found.append(known)
        if known == "top_k" and "f" not in letters:
            found.append("tfs_z")
    return tuple(found)
