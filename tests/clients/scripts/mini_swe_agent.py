"""`mini-swe-agent`, as one types it: it does a task with a shell, by calls of its tool and by blocks of text."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from report import feature, run, task, url

PROGRAM = Path(sys.executable).with_name("mini")

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def done(asked: str, *flags: str) -> None:
    """Has a task done, which is to write `hello.txt`."""
    with TemporaryDirectory() as folder:
        quiet = {
            "HOME": folder,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            "MSWEA_SILENT_STARTUP": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_API_BASE": f"{url()}/v1",
            "OPENAI_API_KEY": "none",
        }
        command = [PROGRAM, "-m", "openai/weft", "-t", asked, "--yolo", "--exit-immediately", "-l", "0", "-o", "run.json", *flags]
        ran = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
            env=os.environ | quiet,
            stdin=subprocess.DEVNULL,
        )
        assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-1500:]
        file = Path(folder) / "hello.txt"
        assert file.exists(), ran.stdout[-1500:]
        assert file.read_text() == "hello\n"


@feature("tools")
def tools() -> None:
    done(f'Write a file: bash({{"command": "echo hello > hello.txt"}}) and then bash({{"command": "{DONE}"}})')


@feature("chat")
def chat() -> None:
    done(f"Run this: `echo hello > hello.txt; {DONE}`", "-c", "mini_textbased.yaml", "-c", "model.model_class=litellm_textbased")


@feature("long task")
def long_task() -> None:
    calls = [f'bash({{"command": "echo hello > hello.txt; seq {nth} {nth * 3}"}})' for nth in range(15)]
    done(task([*calls, f'bash({{"command": "{DONE}"}})']))


run()
