"""What a request leaves unsaid: the samplers, and what a completion follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.sampling_fields import SAMPLERS, Knob, Sampling, knobs, samplers_of_letters, samplers_of_names
from weft.settings.flags import Flag, Way, flag, row
from weft.settings.values import biases, boolean, file_text, json_text, number, together, unset_at, whole

__all__ = ["DRAWING", "SamplingSettings"]

SAMPLING = "sampling (what a request leaves unsaid)"


def _chain(names: str) -> tuple[str, ...]:
    return samplers_of_names(name for name in names.split(";") if name.strip())


def _breakers(given: str) -> tuple[str, ...]:
    return () if given == "none" else (given,)


def _grammar(given: str) -> str | None:
    return given or None


def _nothing(_: str) -> None:
    return None


# A completion follows one of the two: what is given last.
_GRAMMAR_INSTEAD = (Way(("--grammar", "--grammar-file"), _nothing),)
_SCHEMA_INSTEAD = (Way(("-j", "--json-schema", "-jf", "--json-schema-file"), _nothing),)


def _one(given: str) -> tuple[str, ...]:
    return (given,)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SamplingSettings:
    """What a request leaves unsaid."""

    n_predict: int | None = flag(
        None,
        SAMPLING,
        "-n",
        "--predict",
        "--n-predict",
        parse=unset_at(-1, whole(0), "(the default) sets no limit but the context"),
        env="LLAMA_ARG_N_PREDICT",
        help="most tokens of a completion (default: -1, until the context is full)",
    )
    stop: tuple[str, ...] = flag(
        (),
        SAMPLING,
        "-r",
        "--reverse-prompt",
        metavar="TEXT",
        parse=_one,
        join=together,
        help="text that ends a completion and is no part of it; may be given several times (default: none)",
    )
    seed: int | None = flag(
        None,
        SAMPLING,
        "-s",
        "--seed",
        metavar="SEED",
        parse=unset_at(-1, whole(0, 2**32 - 1), "(the default) draws a new one for each request"),
        env="LLAMA_ARG_SEED",
        help="seed of the random numbers (default: -1, a new one for each request)",
    )
    grammar: str | None = flag(
        None,
        SAMPLING,
        "--grammar",
        metavar="GBNF",
        also=(Way(("--grammar-file",), file_text(_grammar)), *_SCHEMA_INSTEAD),
        parse=_grammar,
        help="grammar in GBNF that completions follow; --grammar-file reads it from a file (default: none)",
    )
    json_schema: str | None = flag(
        None,
        SAMPLING,
        "-j",
        "--json-schema",
        metavar="JSON",
        also=(Way(("-jf", "--json-schema-file"), file_text(json_text)), *_GRAMMAR_INSTEAD),
        parse=json_text,
        help="JSON schema that completions follow; -jf and --json-schema-file read it from a file (default: none)",
    )
    escape: bool = flag(
        True,
        SAMPLING,
        constants={"-e": True, "--escape": True, "--no-escape": False},
        help="read escapes as \\n in -r and --dry-sequence-breaker, or take them as they are (default: read them)",
    )


_SPELT_OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "samplers": {
        "metavar": "NAMES",
        "also": (Way(("--sampler-seq", "--sampling-seq"), samplers_of_letters),),
        "parse": _chain,
        "separator": ";",
        "help": "the chain of samplers, with ; between them; --sampler-seq takes letters instead, as edskypmxt"
        f" (default: {';'.join(SAMPLERS)})",
    },
    "penalize_nl": {"constants": {"--penalize-nl": True, "--no-penalize-nl": False}},
    "dry_sequence_breakers": {
        "metavar": "TEXT",
        "parse": _breakers,
        "join": lambda first, second: second and first + second,
        "help": "text at which a repetition ends; may be given several times; 'none' is none"
        " (default: newline, colon, quote, star)",
    },
    "adaptive_target": {"parse": number(high=1)},
    "logit_bias": {
        "metavar": "TOKEN±BIAS",
        "parse": biases,
        "join": together,
        "help": "added to the logit of a token, as 15043+1 or 15043-inf; may be given several times (default: none)",
    },
    "ignore_eos": {"constants": {"--ignore-eos": True}, "help": "never end a completion with an end token"},
}
"""What a row of the table says besides, or in place of what follows from its type, its bounds and its default."""


def _row(name: str, knob: Knob, default: object) -> Flag:
    """The flags of a field, read as its type and its bounds say."""
    about: dict[str, Any] = {}
    if isinstance(default, bool):
        about = {"parse": boolean, "help": f"{knob.text} (default: {'yes' if default else 'no'})"}
    elif isinstance(default, int):
        about = {"parse": whole(int(knob.low), int(knob.high)), "help": f"{knob.text} (default: {default})"}
    elif isinstance(default, float):
        about = {"parse": number(knob.low, knob.high, above=knob.above), "help": f"{knob.text} (default: {default:g})"}
    about |= _SPELT_OTHERWISE.get(name, {})
    names = () if "constants" in about else knob.flags
    return row(SAMPLING, *names, env=knob.env, **about)


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Sampling)}

DRAWING: Mapping[str, Flag] = {name: _row(name, knob, _DEFAULTS[name]) for name, knob in knobs().items()}
"""How a token is chosen where a request does not say: fields of `Sampling`."""
