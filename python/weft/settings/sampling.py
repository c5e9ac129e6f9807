"""Defaults of requests: sampling parameters, limits and constraints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.sampling_fields import SAMPLERS, ParameterMeta, Sampling, parameter_meta, samplers_of_letters, samplers_of_names
from weft.settings.flags import Flag, FlagAlias, field_flags, flag
from weft.settings.values import biases, file_text, json_text, number, together, unset_at, whole

__all__ = ["DRAWING", "SamplingSettings"]


def _chain(names: str) -> tuple[str, ...]:
    return samplers_of_names(name for name in names.split(";") if name.strip())


def _breakers(given: str) -> tuple[str, ...]:
    return () if given == "none" else (given,)


def _grammar(given: str) -> str | None:
    return given or None


def _nothing(_: str) -> None:
    return None


# A grammar and a schema exclude each other; the last one given applies.
_GRAMMAR_INSTEAD = (FlagAlias(("--grammar", "--grammar-file"), _nothing),)
_SCHEMA_INSTEAD = (FlagAlias(("-j", "--json-schema", "-jf", "--json-schema-file"), _nothing),)


def _one(given: str) -> tuple[str, ...]:
    return (given,)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SamplingSettings:
    """Defaults of requests, except sampling parameters."""

    n_predict: int | None = flag(
        None,
        "-n, --predict, --n-predict",
        parse=unset_at(-1, whole(0), "(the default) sets no limit but the context"),
        env="LLAMA_ARG_N_PREDICT",
        help="maximum tokens of a completion (default: -1, the rest of the context)",
    )
    stop: tuple[str, ...] = flag(
        (),
        "-r, --reverse-prompt TEXT",
        parse=_one,
        join=together,
        help="stop string, which is not part of the text; may be given several times (default: none)",
    )
    seed: int | None = flag(
        None,
        "-s, --seed SEED",
        parse=unset_at(-1, whole(0, 2**32 - 1), "(the default) draws a new one for each request"),
        env="LLAMA_ARG_SEED",
        help="random seed (default: -1, a new one for each request)",
    )
    grammar: str | None = flag(
        None,
        "--grammar GBNF",
        also=(FlagAlias(("--grammar-file",), file_text(_grammar)), *_SCHEMA_INSTEAD),
        parse=_grammar,
        help="GBNF grammar that completions must match; --grammar-file reads it from a file (default: none)",
    )
    json_schema: str | None = flag(
        None,
        "-j, --json-schema JSON",
        also=(FlagAlias(("-jf", "--json-schema-file"), file_text(json_text)), *_GRAMMAR_INSTEAD),
        parse=json_text,
        help="JSON schema that completions must match; -jf and --json-schema-file read it from a file (default: none)",
    )
    escape: bool = flag(
        True,
        constants={"-e": True, "--escape": True, "--no-escape": False},
        help="process escapes such as \\n in -r and --dry-sequence-breaker, or keep them (default: process them)",
    )


_SPELT_OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "samplers": {
        "metavar": "NAMES",
        "also": (FlagAlias(("--sampler-seq", "--sampling-seq"), samplers_of_letters),),
        "parse": _chain,
        "separator": ";",
        "help": "sampler chain, separated by ; --sampler-seq takes letters instead, as edskypmxt"
        f" (default: {';'.join(SAMPLERS)})",
    },
    "penalize_nl": {"constants": {"--penalize-nl": True, "--no-penalize-nl": False}},
    "dry_sequence_breakers": {
        "metavar": "TEXT",
        "parse": _breakers,
        "join": lambda first, second: second and first + second,
        "help": "text that ends a repetition; may be given several times; 'none' is none (default: newline, colon, quote, star)",
    },
    "adaptive_target": {"parse": number(high=1)},
    "logit_bias": {
        "metavar": "TOKEN±BIAS",
        "parse": biases,
        "join": together,
        "help": "value to add to the logit of a token, as 15043+1 or 15043-inf; may be given several times (default: none)",
    },
    "ignore_eos": {"constants": {"--ignore-eos": True}, "help": "ban end tokens, so that they never end a completion"},
}
"""Attributes of flags that are not, or not correctly, derived from the field's type, bounds and default."""


def _row(name: str, meta: ParameterMeta) -> Flag:
    options = _SPELT_OTHERWISE.get(name, {})
    return Flag(() if "constants" in options else meta.flags, env=meta.env, **options)


DRAWING = field_flags(Sampling, **{name: _row(name, meta) for name, meta in parameter_meta().items()})
"""Flags of the default sampling parameters of requests."""
