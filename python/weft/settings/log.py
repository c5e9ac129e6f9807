"""Log settings."""

from dataclasses import dataclass
from typing import Literal

from weft.settings.flags import FlagAlias, flag
from weft.settings.values import at_most, boolean, on_off_auto, one_of, whole

__all__ = ["LogSettings"]


def _format(is_json: str) -> str:
    return "json" if boolean(is_json) else "text"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LogSettings:
    """Settings of logging."""

    verbosity: int = flag(
        3,
        "-lv, --verbosity, --log-verbosity",
        parse=at_most(5, whole(0)),
        env="LLAMA_ARG_LOG_VERBOSITY",
        constants={"-v": 5, "--verbose": 5, "--log-verbose": 5},
        help="log level: 0 and 1 errors, 2 warnings, 3 and 4 information, 5 and above everything, including llama-server's own"
        " fields in OpenAI responses; -v is 5 (default: 3)",
    )
    log_format: Literal["text", "json"] = flag(
        "text",
        "--log-format FORMAT",
        parse=one_of("text", "json"),
        constants={"--log-jsonl": "json", "--no-log-jsonl": "text"},
        also=(FlagAlias((), _format, env="LLAMA_ARG_LOG_JSONL"),),
        env="LLAMA_ARG_LOG_FORMAT",
        help="text on standard error, or json, one object per line on standard output (default: text)",
    )
    log_file: str | None = flag(
        None, "--log-file FNAME", env="LLAMA_ARG_LOG_FILE", help="file to append the log to, in addition (default: none)"
    )
    log_disable: bool = flag(False, constants={"--log-disable": True}, help="disable logging")
    log_colors: Literal["auto", "on", "off"] = flag(
        "auto",
        "--log-colors [on|off|auto]",
        parse=on_off_auto,
        bare="on",
        env="LLAMA_ARG_LOG_COLORS",
        help="color the levels of text; auto only on a terminal (default: auto)",
    )
    log_prefix: bool = flag(
        True,
        constants={"--log-prefix": True, "--no-log-prefix": False},
        env="LLAMA_ARG_LOG_PREFIX",
        help="begin text lines with their level (default: yes)",
    )
    log_timestamps: bool = flag(
        True,
        constants={"--log-timestamps": True, "--no-log-timestamps": False},
        env="LLAMA_ARG_LOG_TIMESTAMPS",
        help="begin text lines with the time (default: yes)",
    )

    @property
    def is_verbose(self) -> bool:
        """True if everything is logged."""
        return self.verbosity >= 5
