"""What a request leaves unsaid: the samplers, and what a completion follows."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.request import SAMPLERS as CHAIN
from weft.sampler_names import samplers_of_letters, samplers_of_names
from weft.settings.flags import Way, flag
from weft.settings.values import biases, boolean, file_text, json_text, number, together, unset_at, whole

__all__ = ["SamplingSettings"]

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


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """What a request leaves unsaid."""

    n_predict: int | None = flag(
        None,
        SAMPLING,
        "-n",
        "--predict",
        "--n-predict",
        parse=unset_at(-1, whole(0)),
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
        parse=unset_at(-1, whole(0, 2**32 - 1)),
        env="LLAMA_ARG_SEED",
        help="seed of the random numbers (default: -1, a new one for each request)",
    )
    samplers: Sequence[str] = flag(
        CHAIN,
        SAMPLING,
        "--samplers",
        metavar="NAMES",
        also=(Way(("--sampler-seq", "--sampling-seq"), samplers_of_letters),),
        parse=_chain,
        separator=";",
        help="the chain of samplers, with ; between them; --sampler-seq takes letters instead, as edskypmxt"
        f" (default: {';'.join(CHAIN)})",
    )
    temperature: float = flag(
        0.8,
        SAMPLING,
        "--temp",
        "--temperature",
        parse=number(),
        env="LLAMA_ARG_TEMPERATURE",
        help="temperature; 0 takes the most likely token (default: 0.8)",
    )
    dynatemp_range: float = flag(
        0.0,
        SAMPLING,
        "--dynatemp-range",
        parse=number(),
        help="how far the temperature moves with the uncertainty of the model; 0 is off (default: 0)",
    )
    dynatemp_exponent: float = flag(
        1.0,
        SAMPLING,
        "--dynatemp-exp",
        parse=number(),
        help="bends the way from uncertainty to temperature (default: 1)",
    )
    top_k: int = flag(
        40,
        SAMPLING,
        "--top-k",
        parse=whole(-(2**31)),
        env="LLAMA_ARG_TOP_K",
        help="keep the k most likely tokens; 0 keeps all (default: 40)",
    )
    top_p: float = flag(
        0.95,
        SAMPLING,
        "--top-p",
        parse=number(),
        env="LLAMA_ARG_TOP_P",
        help="keep the most likely tokens whose probabilities sum to this; 1 keeps all (default: 0.95)",
    )
    min_p: float = flag(
        0.05,
        SAMPLING,
        "--min-p",
        parse=number(),
        env="LLAMA_ARG_MIN_P",
        help="keep tokens at least this fraction as likely as the likeliest; 0 keeps all (default: 0.05)",
    )
    typical_p: float = flag(
        1.0,
        SAMPLING,
        "--typical",
        "--typical-p",
        parse=number(),
        help="keep tokens about as surprising as the average, up to this sum of probabilities; 1 keeps all (default: 1)",
    )
    top_n_sigma: float = flag(
        -1.0,
        SAMPLING,
        "--top-nsigma",
        "--top-n-sigma",
        parse=number(),
        help="keep tokens whose logits are at most so many deviations below the greatest; 0 or less keeps all (default: -1)",
    )
    tfs_z: float = flag(
        1.0,
        SAMPLING,
        "--tfs",
        "--tfs-z",
        parse=number(),
        help="cut off the tail of the distribution where its curve is flat; 1 keeps all (default: 1)",
    )
    xtc_probability: float = flag(
        0.0,
        SAMPLING,
        "--xtc-probability",
        parse=number(),
        help="how often the most likely tokens are taken away, 0 to 1 (default: 0)",
    )
    xtc_threshold: float = flag(
        0.1,
        SAMPLING,
        "--xtc-threshold",
        parse=number(),
        help="all but the least likely of the tokens at least so likely are taken away; above 0.5 is off (default: 0.1)",
    )
    min_keep: int = flag(
        0,
        SAMPLING,
        "--min-keep",
        parse=whole(0),
        help="fewest tokens that a filter leaves (default: 0)",
    )
    repeat_penalty: float = flag(
        1.0,
        SAMPLING,
        "--repeat-penalty",
        parse=number(above=0),
        env="LLAMA_ARG_REPEAT_PENALTY",
        help="penalty for tokens that were seen; 1 is off (default: 1.0)",
    )
    repeat_last_n: int = flag(
        64,
        SAMPLING,
        "--repeat-last-n",
        parse=whole(-1),
        env="LLAMA_ARG_REPEAT_LAST_N",
        help="how many last tokens the penalties look at; 0 is off, -1 the whole context (default: 64)",
    )
    presence_penalty: float = flag(
        0.0,
        SAMPLING,
        "--presence-penalty",
        parse=number(),
        env="LLAMA_ARG_PRESENCE_PENALTY",
        help="subtracted once from the logit of a token that was seen (default: 0)",
    )
    frequency_penalty: float = flag(
        0.0,
        SAMPLING,
        "--frequency-penalty",
        parse=number(),
        env="LLAMA_ARG_FREQUENCY_PENALTY",
        help="subtracted from the logit of a token each time it was seen (default: 0)",
    )
    penalize_nl: bool = flag(
        True,
        SAMPLING,
        constants={"--penalize-nl": True, "--no-penalize-nl": False},
        help="whether the penalties count newlines too (default: yes)",
    )
    dry_multiplier: float = flag(
        0.0,
        SAMPLING,
        "--dry-multiplier",
        parse=number(),
        help="strength of the penalty on tokens that would go on with a repetition; 0 is off (default: 0)",
    )
    dry_base: float = flag(
        1.75,
        SAMPLING,
        "--dry-base",
        parse=number(),
        help="raised to the length of the repetition beyond the allowed one; below 1 is off (default: 1.75)",
    )
    dry_allowed_length: int = flag(
        2,
        SAMPLING,
        "--dry-allowed-length",
        parse=whole(0),
        help="repetitions of up to so many tokens are free (default: 2)",
    )
    dry_penalty_last_n: int = flag(
        64,
        SAMPLING,
        "--dry-penalty-last-n",
        parse=whole(-1),
        help="how many last tokens are searched for repetitions; 0 is off, -1 the whole context (default: 64)",
    )
    dry_sequence_breakers: tuple[str, ...] = flag(
        ("\n", ":", '"', "*"),
        SAMPLING,
        "--dry-sequence-breaker",
        metavar="TEXT",
        parse=_breakers,
        join=lambda first, second: second and first + second,
        help="text at which a repetition ends; may be given several times; 'none' is none (default: newline, colon, quote, star)",
    )
    mirostat: int = flag(
        0,
        SAMPLING,
        "--mirostat",
        parse=whole(0, 2),
        help="1 and 2 let that version of Mirostat take the place of the chain (default: 0)",
    )
    mirostat_tau: float = flag(
        5.0,
        SAMPLING,
        "--mirostat-ent",
        parse=number(),
        help="the aim of Mirostat, in bits of surprise per token (default: 5)",
    )
    mirostat_eta: float = flag(
        0.1,
        SAMPLING,
        "--mirostat-lr",
        parse=number(),
        help="how fast Mirostat learns (default: 0.1)",
    )
    adaptive_target: float = flag(
        -1.0,
        SAMPLING,
        "--adaptive-target",
        parse=number(high=1),
        help="prefer tokens about as likely as this, 0 to 1, where --samplers names adaptive_p; below 0 is off (default: -1)",
    )
    adaptive_decay: float = flag(
        0.9,
        SAMPLING,
        "--adaptive-decay",
        parse=number(0, 0.99),
        help="how long the adaptive target remembers, 0 to 0.99 (default: 0.9)",
    )
    logit_bias: tuple[tuple[int, float], ...] = flag(
        (),
        SAMPLING,
        "-l",
        "--logit-bias",
        metavar="TOKEN±BIAS",
        parse=biases,
        join=together,
        help="added to the logit of a token, as 15043+1 or 15043-inf; may be given several times (default: none)",
    )
    ignore_eos: bool = flag(
        False,
        SAMPLING,
        constants={"--ignore-eos": True},
        parse=boolean,
        env="LLAMA_ARG_IGNORE_EOS",
        help="never end a completion with an end token",
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
