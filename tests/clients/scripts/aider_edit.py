"""`aider`, as one types it: it edits a file by what a chat answers, streamed and whole, in each of its formats."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from report import feature, run, url

PROGRAM = Path(sys.executable).with_name("aider")


def edited(*flags: str) -> str:
    """What `hello.py` holds once aider has been asked to change it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "hello.py"
        file.write_text("print('hello')\n")
        quiet = (
            "--yes-always",
            "--no-git",
            "--no-show-model-warnings",
            "--no-check-update",
            "--analytics-disable",
            "--map-tokens",
            "0",
        )
        where = ("--model", "openai/weft", "--openai-api-base", f"{url()}/v1", "--openai-api-key", "none")
        asked = ("--message", "Say goodbye instead of hello", file.name)
        command = [PROGRAM, *where, *quiet, *flags, *asked]
        home = os.environ | {"HOME": folder, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=150, env=home)
        assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-500:]
        told = file.read_text()
        assert told == "print('goodbye')\n", f"{told!r}: {ran.stdout[-1500:]}"
        return told


@feature("stream")
def stream() -> None:
    edited("--edit-format", "diff")


@feature("chat")
def chat() -> None:
    edited("--edit-format", "diff", "--no-stream")


@feature("whole files")
def whole() -> None:
    edited("--edit-format", "whole")


run()
