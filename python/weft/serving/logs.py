"""Log formats: text, or one JSON object per line."""

import json
import logging
import os
import sys
from copy import copy
from datetime import UTC, datetime
from typing import Any

from weft.settings import Settings

FIELDS = "fields"
"""Attribute of a log record with names and values for programs, in addition to the message."""

_LEVELS = {0: logging.ERROR, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.INFO, 5: logging.DEBUG}

_COLORS = {"DEBUG": "\033[2m", "INFO": "\033[32m", "WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[1;31m"}
_PLAIN = "\033[0m"


class TextLines(logging.Formatter):
    """Formats a record as `12:34:56 INFO message`."""

    def __init__(self, *, timestamps: bool = True, prefix: bool = True, colors: bool = False) -> None:
        parts = ["%(asctime)s"] * timestamps + ["%(levelname)s"] * prefix + ["%(message)s"]
        super().__init__(" ".join(parts), "%H:%M:%S")
        self._colors = colors

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Returns the line, with a colored level if colors are enabled."""
        if self._colors:
            # A copy, so that other handlers have the plain level.
            record = copy(record)
            record.levelname = f"{_COLORS.get(record.levelname, '')}{record.levelname}{_PLAIN}"
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object.

    Example: `{"time": "2026-01-31T12:34:56.789Z", "level": "info", "logger": "weft", "message": "…"}`, with the record's fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns one JSON object, without newlines."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_config(settings: Settings) -> dict[str, Any]:
    """Returns the argument of `logging.config.dictConfig`: all records go to one stream, and to the log file if there is one.

    JSON goes to standard output, as in llama-server; text goes to standard error.
    """
    handlers: dict[str, Any] = {}
    if not settings.log_disable:
        stream = "stdout" if settings.log_format == "json" else "stderr"
        handlers["stream"] = {"class": "logging.StreamHandler", "stream": f"ext://sys.{stream}", "formatter": "stream"}
        if settings.log_file is not None:
            # Two processes write to this file. Each line is a single append, so lines are not interleaved.
            handlers["file"] = {
                "class": "logging.FileHandler",
                "filename": settings.log_file,
                "encoding": "utf-8",
                "formatter": "file",
            }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"stream": _formatter(settings, colors=_has_colors(settings)), "file": _formatter(settings, colors=False)},
        "handlers": handlers or {"none": {"class": "logging.NullHandler"}},
        "root": {"level": _LEVELS[settings.verbosity], "handlers": list(handlers) or ["none"]},
        "loggers": {
            "_granian": {},
            # It logs each request of a download at INFO.
            "httpx2": {"level": logging.DEBUG if settings.verbosity >= 5 else logging.WARNING},
        },
    }


def _formatter(settings: Settings, *, colors: bool) -> dict[str, Any]:
    if settings.log_format == "json":
        return {"()": "weft.serving.logs.JsonLines"}
    return {
        "()": "weft.serving.logs.TextLines",
        "timestamps": settings.log_timestamps,
        "prefix": settings.log_prefix,
        "colors": colors,
    }


def _has_colors(settings: Settings) -> bool:
    if settings.log_colors == "auto":
        # https://no-color.org
        return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return settings.log_colors == "on"
