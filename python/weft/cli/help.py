"""Output of `--help` and `--help-all`."""

import textwrap
from collections.abc import Iterable, Mapping

from weft.cli.arguments import ARGS, COMPLETION, CONFIG, HELP_ALL, OUTPUT_REQUESTS
from weft.cli.commands import COMMANDS, SERVE, Command
from weft.cli.flags_without_setting import ACCEPTED, Meaning
from weft.settings import GROUPS, table
from weft.settings.flags import Flag

WIDTH = 100
COLUMN = 30
"""Column where descriptions of flags begin."""
EXAMPLE_COLUMN = 62
"""Column where descriptions of examples begin."""

COMMON = (
    *("model", "hf_repo", "lora", "n_gpu_layers", "mmproj", "n_ctx", "n_slots", "type_k", "type_v", "cache_ram"),
    *("n_threads", "flash_attention", "n_predict", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed"),
    *("chat_template", "reasoning_format", "embeddings", "reranking", "hosts", "port", "alias", "sleep_idle_s", "metrics"),
    *("api_keys", "ssl_key_file", "ssl_cert_file", "cors_origins", "verbosity", "log_file"),
)
"""Settings that `--help` shows."""

EPILOG = (
    "Each setting can also be set by the variable in brackets, and by its long name without dashes in the file that --config"
    " names. Flags have priority over variables, and variables over the file. In long flags, _ is equivalent to -."
)

ABOUT = (
    *((", ".join(names) + " SHELL" * (names == COMPLETION), f"{text} and exit") for names, text in OUTPUT_REQUESTS.items()),
    (f"{ARGS[0]} FLAGS", "more flags in one string, split like a shell command"),
    ("--config FNAME", f"{CONFIG.help} [{CONFIG.env}]"),
)


def help_text(command: Command) -> str:
    """Returns the text of `--help`: usage, commands, examples, and the options that are used most."""
    parts = [_usage(command), *_commands(command), *_examples(command)]
    if command.options:
        parts += [_section("options", [_row(flag, is_short=True) for flag in command.options.values()])]
    settings = [flag for name, flag in _settings(command).items() if name in COMMON or name in command.settings]
    parts += [_section("common settings", [_row(flag, is_short=True) for flag in settings])] if settings else []
    parts.append(_section("other flags", ABOUT))
    return "\n\n".join([*parts, _fill(f"'{command.program} {HELP_ALL[0]}' prints all settings, with their variables.")]) + "\n"


def whole_help_text(command: Command) -> str:
    """Returns the text of `--help-all`: all options with their variables, and llama-server's flags without a setting."""
    parts = [_usage(command), *_commands(command), *_examples(command), _section("other flags", ABOUT)]
    settings = _settings(command)
    groups = {group: [flag for name, flag in flags.items() if name in settings] for group, flags in GROUPS.items()}
    for group, flags in ({"options": [*command.options.values()]} | groups).items():
        parts += [_section(group, map(_row, flags))] if flags else []
    if command.setting_names() is None:
        parts += [_names(meaning) for meaning in Meaning]
    return "\n\n".join([*parts, _fill(EPILOG)]) + "\n"


def _settings(command: Command) -> Mapping[str, Flag]:
    only = command.setting_names()
    return {name: flag for name, flag in table().items() if flag.spellings and (only is None or name in only)}


def _usage(command: Command) -> str:
    argument = {"": "-m MODEL.gguf", "-m": "MODEL.gguf"}.get(command.positional, "URL")
    usage = f"usage: {command.program} [{argument}] [...]"
    if command is SERVE:
        others = ",".join(name for name, other in COMMANDS.items() if other is not SERVE)
        usage += f"\n       {command.program} {{{others}}} [...]"
    return f"{usage}\n\n{_fill(command.about)}"


def _commands(command: Command) -> Iterable[str]:
    if command is SERVE:
        yield _section("commands", [(each.name, each.summary) for each in COMMANDS.values()], 10)


def _examples(command: Command) -> Iterable[str]:
    if command.examples:
        yield _section("examples", [(f"{command.program} {flags}", what) for flags, what in command.examples], EXAMPLE_COLUMN)


def _row(flag: Flag, *, is_short: bool = False) -> tuple[str, str]:
    metavar = f" {flag.metavar}" if flag.names else ""
    switches = ", ".join(flag.constants)
    if is_short:
        names = _one_of_each(flag.names) if flag.names else _one_of_each(tuple(flag.constants)[:2])
        return ", ".join(names) + metavar, _short(flag.help)
    names_and_switches = ", ".join(flag.names) + metavar + (", " if flag.names and switches else "") + switches
    return names_and_switches, flag.help + (f" [{flag.env}]" if flag.env else "")


def _one_of_each(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the first short and the last long name."""
    short = next((name for name in names if not name.startswith("--")), None)
    long = next((name for name in reversed(names) if name.startswith("--")), None)
    return tuple(name for name in (short, long) if name is not None)


def _short(text: str) -> str:
    """Returns the first clause of a description, and its default."""
    clause = text.split(" (default:", 1)[0].split(";", 1)[0].split(", with --compat", 1)[0]
    _, has_default, default = text.rpartition(" (default: ")
    return f"{clause} (default: {default}" if has_default and len(default) <= 40 else clause


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _section(title: str, rows: Iterable[tuple[str, str]], column: int = COLUMN) -> str:
    lines = [f"{title}:"]
    for names, text in rows:
        head = f"  {names}"
        indent = " " * column
        wrapped = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        if len(head) + 2 <= column:
            wrapped[0] = head.ljust(column) + wrapped[0][column:]
        else:
            lines += textwrap.wrap(head, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        lines += wrapped
    return "\n".join(lines)


def _names(meaning: Meaning) -> str:
    titles = {
        Meaning.ALWAYS: "always on",
        Meaning.IDLE: "accepted, with a warning that explains why it has no meaning here",
        Meaning.MISSING: "not supported",
    }
    names = [name for accepted in ACCEPTED if accepted.meaning is meaning for name in accepted.names]
    body = textwrap.fill(" ".join(names), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{titles[meaning]}:\n{body}"
