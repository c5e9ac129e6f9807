"""From what a user wrote to [`Settings`]: flags, variables and a file, and which of them wins.

argparse does not do: here a spelling may set several settings, what is given last counts whatever its spelling, `_` is read as
`-`, a flag may be known and have no meaning, and an unknown one is answered with the nearest.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from weft.cli.config_file import Entry, entries
from weft.cli.flags_without_setting import ACCEPTED, Accepted
from weft.cli.given import Given, Known, UsageError, known
from weft.settings import Settings, table
from weft.settings.flags import negated
from weft.settings.presets import PRESETS
from weft.settings.values import unescaped

__all__ = [
    "ARGS",
    "CACHE_LIST",
    "COMPLETION",
    "CONFIG",
    "CONFIG_VARIABLE",
    "DEVICES",
    "HELP",
    "VERSION",
    "Asked",
    "Parsed",
    "read",
]

ARGS = ("--args",)
"""What is followed by further flags in one text."""

CONFIG = ("--config",)
CONFIG_VARIABLE = "LLAMA_ARG_CONFIG"

HELP = ("-h", "--help", "--usage")
VERSION = ("--version",)
COMPLETION = ("--completion-bash",)
CACHE_LIST = ("-cl", "--cache-list")
DEVICES = ("--list-devices",)

_ESCAPED = ("stop", "dry_sequence_breakers")
"""Settings in whose texts escapes are read."""

COMPATIBLE: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "srb": {"port": 9090},
    "parallel": {"n_slots": 1, "n_ctx": 512, "n_batch": 512, "temperature": 0.1, "timeout_s": 600},
    "stream": {
        "n_ctx": 2048,
        "n_batch": 8,
        "repeat_penalty": 1.3,
        "repeat_last_n": 64,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
    },
}
"""The defaults that `--compat` changes."""

MODELS = ("model", "hf_repo", "model_url", "docker_repo", "preset")
"""Settings each of which names the model."""

PROJECTORS = ("mmproj", "mmproj_url")
"""Settings each of which names the projector."""

RESPELT: Mapping[str, Mapping[str, str]] = {
    "stream": {
        "-R": "--restore-prompt",
        "-P": "--port",
        "-T": "--temp",
        "-f": "--float16",
        "-k": "--top-k",
        "-n": "--num-ctx-tokens",
        "-p": "--repeat-penalty",
        "-r": "--repeat-last-n",
    }
}
"""Short flags that `--compat` lets mean something else, by the long ones that they then are."""


class Asked(Exception):  # noqa: N818 (no error: it ends the scan)
    """The command line asks for help, the version or a completion script in place of anything else."""

    def __init__(self, what: tuple[str, ...]) -> None:
        super().__init__(what[0])
        self.what = what


class Parsed(NamedTuple):
    """What the server is to do, and what is to be said about it once."""

    settings: Settings
    warnings: tuple[str, ...]


def read(argv: Sequence[str], environ: Mapping[str, str], only: Collection[str] | None = None) -> Parsed:
    """Settings of a command line, an environment and the file that either names.

    A flag wins over its variable, a variable over the file, the file over the default. `only` some settings are taken from the
    command line and the environment; None is all. What short flags mean is asked of `--compat` there, and not in the file.

    Raises:
        UsageError: Something is unknown, wrong, or not supported.
        Asked: The command line asks for something else.
    """
    spellings = known(only)
    respelt = {
        compat: spellings | {short: spellings[long] for short, long in shorts.items() if long in spellings}
        for compat, shorts in RESPELT.items()
    }
    compat = _compat(argv, dict(chain.from_iterable(each.items() for each in respelt.values())))
    flags, config = scan(argv, respelt.get(compat or environ.get("LLAMA_ARG_COMPAT", ""), spellings))
    variables = _variables(environ, only)
    path = config or environ.get(CONFIG_VARIABLE)
    file = _file(path) if path else Given()
    values: dict[str, Any] = {}
    for given in (file, variables, flags):
        values = _over(values, given.values)
    if "hf_file" in values and not values.keys() & {"hf_repo", "preset"}:
        raise UsageError(f"{_spelt('hf_file')} names a file of a repository, which {_spelt('hf_repo')} is to name")
    values = {**COMPATIBLE[values.get("compat", "")], **PRESETS.get(values.get("preset", ""), {}), **values}
    if values.get("context_shift") and values.get("grp_attn_n", 1) > 1:
        said = f"{_spelt('context_shift')} and {_spelt('grp_attn_n')} each say what becomes of a text that is too long"
        raise UsageError(f"{said}; give one of them")
    if values.get("reranking") and (pooling := values.get("pooling", "rank")) != "rank":
        said = f"{_spelt('reranking')} restricts the server to ranking, and {_spelt('pooling')} {pooling} ranks nothing"
        raise UsageError(f"{said}; give one of them")
    if values.get("escape", True):
        values |= {name: tuple(map(unescaped, values[name])) for name in _ESCAPED if name in values}
    return Parsed(Settings.of(values), tuple(dict.fromkeys(chain(flags.warnings, variables.warnings, file.warnings))))


def _compat(argv: Sequence[str], spellings: Mapping[str, Known]) -> str | None:
    """What `--compat` names, before it is known what the short flags mean.

    `spellings` has those that are respelt, each of which takes as many values whatever it means.
    """
    named = None
    # What is wrong is said once all flags are known.
    with suppress(UsageError):
        for flag in _flags(argv, spellings):
            if flag.spelling == "--compat":
                [named] = flag.values
    return named


def _over(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, over what was: a model that is named here is served in place of one that was named there."""
    for what, names, beside in (("model", MODELS, ("hf_file",)), ("projector", PROJECTORS, ())):
        named = [name for name in names if name in given]
        if len(named) > 1:
            raise UsageError(f"{' and '.join(_spelt(name) for name in named)} each name a {what}; give one of them")
        if named:
            values = {name: value for name, value in values.items() if name not in (*names, *beside)}
    return {**values, **given}


def _spelt(name: str) -> str:
    flag = table()[name]
    names = flag.names or [spelling for spelling, value in flag.constants.items() if value is True]
    return "/".join(names) if names else "a model with its settings, as --gpt-oss-20b-default,"


def scan(argv: Sequence[str], spellings: Mapping[str, Known]) -> tuple[Given, str | None]:
    """What a command line gives, and the file that it names."""
    given, config = Given(), None
    for flag in _flags(argv, spellings):
        for asked in (HELP, VERSION, COMPLETION, CACHE_LIST, DEVICES):
            if flag.spelling in asked:
                raise Asked(asked)
        if flag.spelling in CONFIG:
            [config] = flag.values
            continue
        if (what := spellings.get(flag.spelling)) is None:
            raise UsageError(_unknown(flag.argument, spellings))
        for text in flag.values:
            what.give(given, f"argument {what.names(flag.spelling)}", text)
    return given, config


class _Flag(NamedTuple):
    """A flag of a command line."""

    argument: str
    """As it is written."""
    spelling: str
    values: Sequence[str | None]
    """None is the flag without a value."""


def _flags(argv: Sequence[str], spellings: Mapping[str, Known]) -> Iterator[_Flag]:
    """Each flag with its values; those in the text behind `--args` in that place. What is unknown has none."""
    left = list(reversed(argv))
    while left:
        argument = left.pop()
        spelling, attached = _split(argument, spellings)
        if spelling in ARGS:
            if attached is None and not left:
                raise UsageError(f"argument {ARGS[0]}: a text of flags must follow")
            left += reversed(_further(left.pop() if attached is None else attached))
            continue
        values: Sequence[str | None]
        if spelling in CONFIG:
            values = _following(CONFIG[0], 1, attached, left, spellings)
        elif (what := spellings.get(spelling)) is None:
            values = ()
        elif what.n_values == 0:
            if attached is not None:
                raise UsageError(f"argument {what.names(spelling)}: it takes no value")
            values = (None,)
        elif what.is_bare and attached is None and (not left or _is_flag(left[-1], spellings)):
            values = (None,)
        else:
            values = _following(what.names(spelling), what.n_values, attached, left, spellings)
        yield _Flag(argument, spelling, values)


def _further(text: str) -> list[str]:
    """The flags in a text, read as a shell reads it."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"argument {ARGS[0]}: {text!r} cannot be read as a shell reads it: {str(error).lower()}") from None


def _is_flag(argument: str, spellings: Mapping[str, Known]) -> bool:
    spelling, _ = _split(argument, spellings)
    return spelling in spellings or spelling in (*ARGS, *CONFIG)


def _split(argument: str, spellings: Mapping[str, Known]) -> tuple[str, str | None]:
    """A spelling, and the value that is written together with it, as in `--ctx-size=512` and `-c512`."""
    if argument.startswith("--"):
        name, equals, value = argument.partition("=")
        return name.replace("_", "-"), value if equals else None
    if argument not in spellings and (match := re.fullmatch(r"(-[a-z]+)(-?[0-9][0-9.]*)", argument)):
        name, value = match.groups()
        if name in spellings:
            return name, value
    return argument, None


def _following(name: str, n: int, attached: str | None, left: list[str], spellings: Mapping[str, Known]) -> list[str]:
    """The values of a flag: the one that is attached to it, or those that follow it, which are taken off."""
    if attached is not None:
        return [attached]
    if len(left) < n:
        raise UsageError(f"argument {name}: a value must follow")
    values = [left.pop() for _ in range(n)]
    for value in values:
        if value in spellings or value in (*ARGS, *CONFIG):
            raise UsageError(f"argument {name}: a value must follow, but {value} is a flag; --flag={value} makes it one")
    return values


def _unknown(argument: str, spellings: Iterable[str]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; the model is named with -m"
    near = _nearest(argument.split("=", 1)[0].replace("_", "-"), [*spellings, *ARGS, *CONFIG, *HELP, *VERSION])
    return f"unknown argument {argument}; " + (f"did you mean {near}?" if near else "--help shows all there are")


def _nearest(word: str, spellings: Iterable[str]) -> str | None:
    """The spelling that a word was most likely meant to be, or None.

    Of several that are as near it is the one of the same letters, then the one that sets something: `--prot` is `--port`, and
    not a flag of fewer of its letters that has no meaning here.
    """
    import difflib  # noqa: PLC0415 (most command lines are right)

    set_nothing = {name for accepted in ACCEPTED for name in accepted.names}

    def nearness(spelling: str) -> tuple[float, bool, bool]:
        likeness = difflib.SequenceMatcher(None, spelling, word).ratio()
        return likeness, sorted(spelling) == sorted(word), spelling not in set_nothing

    return max(difflib.get_close_matches(word, list(spellings), n=5), key=nearness, default=None)


def _variables(environ: Mapping[str, str], only: Collection[str] | None) -> Given:
    given = Given()
    for name, flag in table().items():
        if only is not None and name not in only:
            continue
        for way in flag.ways():
            if way.env is not None and environ.get(way.env):
                given.set(name, flag, way, f"variable {way.env}", environ[way.env])
        can_be_off = any(way.value is False for way in flag.ways())
        if can_be_off and any(way.env is not None and negated(way.env) in environ for way in flag.ways()):
            given.values[name] = False
    for accepted in ACCEPTED if only is None else ():
        for variable, text in _asking(accepted, environ):
            given.pass_over(accepted, f"variable {variable}", text)
    return given


def _asking(accepted: Accepted, environ: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """The variables that ask for a flag which sets nothing, with its value."""
    if accepted.env is None:
        return
    if environ.get(accepted.env):
        try:
            is_asked = accepted.is_asked_by(environ[accepted.env])
        except ValueError as error:
            raise UsageError(f"variable {accepted.env}: {error}") from None
        if is_asked:
            yield accepted.env, environ[accepted.env] if accepted.n_values else None
    elif not accepted.env_asks and (negative := negated(accepted.env)) in environ:
        yield negative, None


def _file(path: str) -> Given:
    """What a file gives; it may hold what another command reads."""
    given, spellings = Given(), known()
    try:
        found = entries(path)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    for entry in found:
        said = f"{path}: {entry.key}"
        if (what := spellings.get(entry.spelling)) is None:
            if isinstance(entry.value, dict):
                raise UsageError(f"{path}: unknown section [{entry.key}]; settings stand outside of sections")
            near = _nearest(entry.spelling, [spelling for spelling in spellings if spelling.startswith("--")])
            raise UsageError(
                f"{path}: unknown key {entry.key!r}" + (f"; did you mean {near.removeprefix('--')!r}?" if near else "")
            )
        if what.n_values == 0:
            _switch(given, spellings, entry, said)
            continue
        try:
            values = what.texts(entry.value)
        except ValueError as error:
            raise UsageError(f"{said}: {error}") from None
        for text in values:
            what.give(given, said, text)
    return given


def _switch(given: Given, spellings: Mapping[str, Known], entry: Entry, said: str) -> None:
    """Takes a flag without a value from a file: true is the flag, false its opposite."""
    if not isinstance(entry.value, bool):
        raise UsageError(f"{said}: it is a switch, true or false")
    what = spellings[entry.spelling]
    if entry.value:
        what.give(given, said, None)
        return
    bare = entry.spelling.removeprefix("--")
    opposite = f"--{bare.removeprefix('no-')}" if bare.startswith("no-") else f"--no-{bare}"
    if (other := spellings.get(opposite)) is not None:
        other.give(given, said, None)
        return
    for name, _, way in what.settings:
        if isinstance(way.value, bool):
            given.values[name] = not way.value
