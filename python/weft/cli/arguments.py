"""Parses flags, variables and a configuration file to [`Settings`], with their priorities.

argparse is not sufficient: a spelling may set several settings, the last flag applies regardless of its spelling, `_` is
equivalent to `-`, a flag may be known but without meaning, and errors suggest the nearest flag.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from weft.cli.config_file import Entry, entries
from weft.cli.flags_without_setting import ACCEPTED, AcceptedFlag
from weft.cli.spellings import SourceValues, Spelling, UsageError, all_spellings, spellings_of
from weft.settings import Settings, table
from weft.settings.flags import Flag, negated
from weft.settings.presets import PRESETS
from weft.settings.values import unescaped

POSITIONAL = ""
"""Spelling of an argument without a flag, for commands that support it."""

ARGS = ("--args",)
"""Flag whose value is a text of more flags."""

CONFIG = Flag("--config FNAME", env="LLAMA_ARG_CONFIG", help="TOML file of settings")

HELP = ("-h", "--help", "--usage")
HELP_ALL = ("--help-all",)
VERSION = ("--version",)
COMPLETION = ("--completion",)
COMPLETION_BASH = ("--completion-bash",)
CACHE_LIST = ("-cl", "--cache-list")
DEVICES = ("--list-devices",)
OUTPUT_REQUESTS = {
    HELP: "print the common settings",
    HELP_ALL: "print all settings",
    VERSION: "print the version",
    COMPLETION: "print a completion script for bash, zsh or fish",
    COMPLETION_BASH: "print the completion script for bash",
    CACHE_LIST: "print the downloaded models",
    DEVICES: "print the devices other than the CPU with their memory",
}
"""Flags that request output instead of the command, with descriptions."""

_ESCAPED = ("stop", "dry_sequence_breakers")
"""Settings in whose values escapes are processed."""

COMPATIBLE = {
    "srb": "--port 9090",
    "parallel": "-np 1 -c 512 -b 512 --temp 0.1 --timeout 600",
    "stream": "-c 2048 -b 8 --repeat-penalty 1.3 --repeat-last-n 64 --temp 0.8 --top-k 40 --top-p 0.95",
}
"""Defaults that `--compat` changes, as flags."""

MODELS = ("model", "hf_repo", "model_url", "docker_repo", "preset")
"""Mutually exclusive settings that select the model."""

PROJECTORS = ("mmproj", "mmproj_url")
"""Mutually exclusive settings that select the projector."""

DRAFT_MODELS = ("draft_model", "draft_hf_repo")
"""Mutually exclusive settings that select the draft model."""

RESPELLED: Mapping[str, Mapping[str, str]] = {
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
"""Short flags whose meaning `--compat` changes, with the equivalent long flags."""


class OutputRequest(Exception):  # noqa: N818 (not an error: it ends the scan)
    """The command line requests help, the version or similar output instead of the command.

    Args:
        what: One of `OUTPUT_REQUESTS`.
        value: Value of the flag; None if it takes none.
    """

    def __init__(self, what: tuple[str, ...], value: str | None = None) -> None:
        super().__init__(what[0])
        self.what = what
        self.value = value


class Parsed(NamedTuple):
    """Settings, and warnings to log once."""

    settings: Settings
    warnings: tuple[str, ...]


def read(
    argv: Sequence[str],
    environ: Mapping[str, str],
    only: Collection[str] | None = None,
    options: Mapping[str, Flag] | None = None,
    *,
    positional: str = "",
) -> tuple[Parsed, Mapping[str, Any]]:
    """Returns the settings of a command line, an environment, and the configuration file that either names, and the options.

    Flags have priority over variables, variables over the file, and the file over defaults. `--compat` determines the meaning of
    short flags if it is on the command line or in the environment, but not in the file.

    Args:
        argv: The command line, without the program.
        environ: The environment.
        only: Settings that the command line and the environment may have; None is all.
        options: Options of the command that are not settings, by name. The configuration file may not have them.
        positional: Flag whose value may be given without it; empty if there is none.

    Raises:
        UsageError: Something is unknown, invalid or unsupported.
        OutputRequest: The command line requests other output.
    """
    own = {**(options or {}), "config": CONFIG}
    spellings = all_spellings(only) | spellings_of(own)
    if positional:
        spellings |= {POSITIONAL: spellings[positional]}
    respelled = {
        compat: spellings | {short: spellings[long] for short, long in shorts.items() if long in spellings}
        for compat, shorts in RESPELLED.items()
    }
    compat = _compat(argv, dict(chain.from_iterable(each.items() for each in respelled.values())))
    flags = scan(argv, respelled.get(compat or environ.get("LLAMA_ARG_COMPAT", ""), spellings))
    variables = _variables(environ, only, own)
    path = variables.values.pop("config", None)
    path = flags.values.pop("config", path)
    file = _file(path) if path else SourceValues()
    values: dict[str, Any] = {}
    for part in (file, variables, flags):
        values = _over(values, part.values)
    option_values = {name: values.pop(name) for name in own if name in values}
    if "hf_file" in values and not values.keys() & {"hf_repo", "preset"}:
        raise UsageError(f"{_spelled('hf_file')} names a file of a repository; name the repository with {_spelled('hf_repo')}")
    defaults = f"{COMPATIBLE.get(values.get('compat', ''), '')} {PRESETS.get(values.get('preset', ''), '')}".split()
    values = scan(defaults, all_spellings()).values | values
    if values.get("context_shift") and values.get("grp_attn_n", 1) > 1:
        both = f"{_spelled('context_shift')} and {_spelled('grp_attn_n')}"
        message = f"{both} exclude each other: both determine what happens to a text that is too long"
        raise UsageError(f"{message}; give only one of them")
    if values.get("reranking") and (pooling := values.get("pooling", "rank")) != "rank":
        message = (
            f"{_spelled('reranking')} restricts the server to ranking, and {_spelled('pooling')} {pooling} computes no ranking"
        )
        raise UsageError(f"{message}; give only one of them")
    if values.get("escape", True):
        values |= {name: tuple(map(unescaped, values[name])) for name in _ESCAPED if name in values}
    warnings = tuple(dict.fromkeys(chain(flags.warnings, variables.warnings, file.warnings)))
    return Parsed(Settings.of(values), warnings), option_values


def _compat(argv: Sequence[str], spellings: Mapping[str, Spelling]) -> str | None:
    """Returns the value of `--compat`, which must be known before the meaning of short flags.

    `spellings` includes the respelled flags, each of which takes the same number of values in either meaning.
    """
    named = None
    # Errors are reported by the main scan.
    with suppress(UsageError):
        for flag in _flags(argv, spellings):
            if flag.spelling == "--compat":
                [named] = flag.values
    return named


def _over(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merges values, the second with priority. A model, projector or draft model selected there replaces the first's."""
    for what, names, dependents in (
        ("model", MODELS, ("hf_file",)),
        ("projector", PROJECTORS, ()),
        ("draft model", DRAFT_MODELS, ()),
    ):
        named = [name for name in names if name in overrides]
        if len(named) > 1:
            raise UsageError(f"{' and '.join(_spelled(name) for name in named)} each name a {what}; give one of them")
        if named:
            values = {name: value for name, value in values.items() if name not in (*names, *dependents)}
    return {**values, **overrides}


def _spelled(name: str) -> str:
    flag = table()[name]
    names = flag.names or [spelling for spelling, value in flag.constants.items() if value is True]
    return "/".join(names) if names else "a preset such as --gpt-oss-20b-default"


def scan(argv: Sequence[str], spellings: Mapping[str, Spelling]) -> SourceValues:
    """Returns the values of a command line."""
    result = SourceValues()
    for flag in _flags(argv, spellings):
        for request in OUTPUT_REQUESTS:
            if flag.spelling in request:
                raise OutputRequest(request, next(iter(flag.values), None))
        if (what := spellings.get(flag.spelling)) is None:
            raise UsageError(_unknown(flag.argument, spellings))
        for text in flag.values:
            what.give(result, f"argument {what.names(flag.spelling)}", text)
    return result


class _Flag(NamedTuple):
    """A flag on a command line."""

    argument: str
    """The argument as written."""
    spelling: str
    values: Sequence[str | None]
    """Its values; None for a flag without a value."""


def _flags(argv: Sequence[str], spellings: Mapping[str, Spelling]) -> Iterator[_Flag]:
    """Yields each flag with its values, including those in the text of `--args`. Unknown flags have no values."""
    left = list(reversed(argv))
    while left:
        argument = left.pop()
        spelling, attached = _split(argument, spellings)
        if spelling in ARGS:
            if attached is None and not left:
                raise UsageError(f"argument {ARGS[0]}: expects a string of flags")
            left += reversed(_further(left.pop() if attached is None else attached))
            continue
        values: Sequence[str | None]
        if POSITIONAL in spellings and not argument.startswith("-"):
            yield _Flag(argument, POSITIONAL, (argument,))
            continue
        if spelling in COMPLETION:
            values = _following(spelling, 1, attached, left, spellings)
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
    """Splits a text of flags as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"argument {ARGS[0]}: {text!r} cannot be split like a shell command: {str(error).lower()}") from None


def _is_flag(argument: str, spellings: Mapping[str, Spelling]) -> bool:
    spelling, _ = _split(argument, spellings)
    return spelling in spellings or spelling in ARGS


def _split(argument: str, spellings: Mapping[str, Spelling]) -> tuple[str, str | None]:
    """Splits a flag from a value in the same argument, as in `--ctx-size=512` and `-c512`."""
    if argument.startswith("--"):
        name, equals, value = argument.partition("=")
        return name.replace("_", "-"), value if equals else None
    if argument not in spellings and (match := re.fullmatch(r"(-[a-z]+)(-?[0-9][0-9.]*)", argument)):
        name, value = match.groups()
        if name in spellings:
            return name, value
    return argument, None


def _following(name: str, n: int, attached: str | None, left: list[str], spellings: Mapping[str, Spelling]) -> list[str]:
    """Returns the values of a flag: the attached one, or the following ones, which are removed from `left`."""
    if attached is not None:
        return [attached]
    if len(left) < n:
        raise UsageError(f"argument {name}: expects a value")
    values = [left.pop() for _ in range(n)]
    for value in values:
        if value in spellings or value in ARGS:
            raise UsageError(f"argument {name}: expects a value, but {value} is a flag; --flag={value} passes it as a value")
    return values


def _unknown(argument: str, spellings: Iterable[str]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; name the model with -m"
    near = _nearest(argument.split("=", 1)[0].replace("_", "-"), [*spellings, *ARGS, *chain(*OUTPUT_REQUESTS)])
    return f"unknown argument {argument}; " + (f"did you mean {near}?" if near else "--help-all lists all of them")


def _nearest(word: str, spellings: Iterable[str]) -> str | None:
    """Returns the spelling that is nearest to a word, or None.

    Of equally near spellings, prefers an anagram, then a flag with a setting: `--prot` is `--port`, not a meaningless flag that
    shares fewer letters.
    """
    import difflib  # noqa: PLC0415 (needed only for an error message)

    set_nothing = {name for accepted in ACCEPTED for name in accepted.names}

    def nearness(spelling: str) -> tuple[float, bool, bool]:
        similarity = difflib.SequenceMatcher(None, spelling, word).ratio()
        return similarity, sorted(spelling) == sorted(word), spelling not in set_nothing

    return max(difflib.get_close_matches(word, list(spellings), n=5), key=nearness, default=None)


def _variables(environ: Mapping[str, str], only: Collection[str] | None, options: Mapping[str, Flag]) -> SourceValues:
    result = SourceValues()
    settings = ((name, flag) for name, flag in table().items() if only is None or name in only)
    for name, flag in chain(settings, options.items()):
        for alias in flag.aliases():
            if alias.env is not None and environ.get(alias.env):
                result.set(name, flag, alias, f"variable {alias.env}", environ[alias.env])
        can_be_off = any(alias.value is False for alias in flag.aliases())
        if can_be_off and any(alias.env is not None and negated(alias.env) in environ for alias in flag.aliases()):
            result.values[name] = False
    for accepted in ACCEPTED if only is None else ():
        for variable, text in _set_by_variable(accepted, environ):
            result.add_accepted(accepted, f"variable {variable}", text)
    return result


def _set_by_variable(accepted: AcceptedFlag, environ: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yields the variable that enables a flag without a setting, with the flag's value."""
    if accepted.env is None:
        return
    if environ.get(accepted.env):
        try:
            is_set = accepted.is_set_by(environ[accepted.env])
        except ValueError as error:
            raise UsageError(f"variable {accepted.env}: {error}") from None
        if is_set:
            yield accepted.env, environ[accepted.env] if accepted.n_values else None
    elif not accepted.env_sets and (negative := negated(accepted.env)) in environ:
        yield negative, None


def _file(path: str) -> SourceValues:
    """Returns the values of a configuration file, which may include settings of other commands."""
    result, spellings = SourceValues(), all_spellings()
    try:
        found = entries(path)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    for entry in found:
        source = f"{path}: {entry.key}"
        if (what := spellings.get(entry.spelling)) is None:
            if isinstance(entry.value, dict):
                raise UsageError(f"{path}: unknown section [{entry.key}]; settings are outside of sections")
            near = _nearest(entry.spelling, [spelling for spelling in spellings if spelling.startswith("--")])
            raise UsageError(
                f"{path}: unknown key {entry.key!r}" + (f"; did you mean {near.removeprefix('--')!r}?" if near else "")
            )
        if what.n_values == 0:
            _switch(result, spellings, entry, source)
            continue
        try:
            values = what.texts(entry.value)
        except ValueError as error:
            raise UsageError(f"{source}: {error}") from None
        for text in values:
            what.give(result, source, text)
    return result


def _switch(result: SourceValues, spellings: Mapping[str, Spelling], entry: Entry, source: str) -> None:
    """Applies a switch of the configuration file: true is the flag, false its opposite."""
    if not isinstance(entry.value, bool):
        raise UsageError(f"{source}: must be true or false (got {entry.value!r})")
    what = spellings[entry.spelling]
    if entry.value:
        what.give(result, source, None)
        return
    bare = entry.spelling.removeprefix("--")
    opposite = f"--{bare.removeprefix('no-')}" if bare.startswith("no-") else f"--no-{bare}"
    if (other := spellings.get(opposite)) is not None:
        other.give(result, source, None)
        return
    for name, _, alias in what.settings:
        if isinstance(alias.value, bool):
            result.values[name] = not alias.value
