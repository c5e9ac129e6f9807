"""Completion scripts for shells, generated from the tables of commands and flags."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from weft.cli.arguments import ARGS, CONFIG, OUTPUT_REQUESTS, POSITIONAL
from weft.cli.commands import COMMANDS, SERVE, Command
from weft.cli.spellings import all_spellings, spellings_of
from weft.settings import table


def _flags(command: Command) -> list[str]:
    spellings = all_spellings(command.setting_names()) | spellings_of({**command.options, "config": CONFIG})
    return sorted({*spellings, *ARGS, *chain(*OUTPUT_REQUESTS)} - {POSITIONAL})


def _help() -> Mapping[str, str]:
    """Returns the description of each flag that has one."""
    flags = chain(table().values(), *(command.options.values() for command in COMMANDS.values()))
    return {name: re.split(r";| \(default", flag.help)[0] for flag in flags for alias in flag.aliases() for name in alias.names}


def _bash() -> str:
    commands = " ".join(COMMANDS)
    cases = "".join(f'        {name}) flags="{" ".join(_flags(command))}" ;;\n' for name, command in COMMANDS.items())
    return (
        "_weft() {\n"
        '    local word="${COMP_WORDS[COMP_CWORD]}" flags\n'
        '    case "${COMP_WORDS[1]}" in\n'
        f"{cases}"
        f'        *) flags="{" ".join(_flags(SERVE))}" ;;\n'
        "    esac\n"
        '    if [[ "$word" == -* ]]; then\n'
        '        COMPREPLY=($(compgen -W "$flags" -- "$word"))\n'
        "    elif ((COMP_CWORD == 1)); then\n"
        f'        COMPREPLY=($(compgen -W "{commands}" -- "$word") $(compgen -f -- "$word"))\n'
        "    else\n"
        '        COMPREPLY=($(compgen -f -- "$word"))\n'
        "    fi\n"
        "}\n"
        "complete -o filenames -F _weft weft\n"
    )


def _zsh() -> str:
    def words(command: Command) -> str:
        texts = _help()
        return "\n".join(f"            {_zsh_item(name, texts.get(name, ''))}" for name in _flags(command))

    commands = "\n".join(f"        {_zsh_item(name, command.summary)}" for name, command in COMMANDS.items())
    cases = "".join(f"        {name}) flags=(\n{words(command)}\n        ) ;;\n" for name, command in COMMANDS.items())
    return (
        "#compdef weft\n"
        "_weft() {\n"
        f"    local -a flags commands=(\n{commands}\n    )\n"
        '    local command="${words[2]}"\n'
        "    (( ${+commands[(r)$command:*]} )) || command=serve\n"
        '    case "$command" in\n'
        f"{cases}"
        "    esac\n"
        '    if [[ "${words[CURRENT]}" == -* ]]; then\n'
        "        _describe -o flag flags\n"
        "    else\n"
        "        (( CURRENT == 2 )) && _describe command commands\n"
        "        _files\n"
        "    fi\n"
        "}\n"
        'if [[ "${funcstack[1]}" == _weft ]]; then _weft "$@"; else compdef _weft weft; fi\n'
    )


def _zsh_item(name: str, text: str) -> str:
    item = name.replace(":", "\\:") + (f":{text}" if text else "")
    return "'" + item.replace("'", "'\\''") + "'"


def _fish() -> str:
    return "\n".join(_fish_lines()) + "\n"


def _fish_lines() -> Iterator[str]:
    others = " ".join(name for name in COMMANDS if name != SERVE.name)
    for name, command in COMMANDS.items():
        yield f"complete -c weft -n __fish_use_subcommand -a {name} -d {_fish_text(command.summary)}"
    texts = _help()
    for name, command in COMMANDS.items():
        condition = f"not __fish_seen_subcommand_from {others}" if command is SERVE else f"__fish_seen_subcommand_from {name}"
        for flag in _flags(command):
            option = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"
            description = f" -d {_fish_text(texts[flag])}" if flag in texts else ""
            yield f"complete -c weft -n '{condition}' {option}{description}"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""Makers of the scripts, by shell."""
