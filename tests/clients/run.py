"""Tests existing clients, unchanged, against a server with a scripted model, and writes the results into the page.

    python -m tests.clients.run                 # all of them, and docs/guides/clients.md
    python -m tests.clients.run openai-python   # one
    python -m tests.clients.run --traces codex  # and the shapes of what it sends, for benches.turns

Each is installed by its own name and version (`requirements/`) into a folder of its own, outside of the repository, by the
package managers as they are set up.
"""

import argparse
import asyncio
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.trace import recorded
from tests.server.live import LiveServer

__all__ = ["CLIENTS", "PAGE", "Client", "page"]

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "guides" / "clients.md"

TRACES = HERE / "traces"

TIMEOUT_S = 600
"""Seconds that one client may take; an installation has as many."""


@dataclass(frozen=True)
class Client:
    """A client, and the program that tries it."""

    name: str
    script: str
    """In `scripts/`."""
    requirements: str
    """In `requirements/`: what is to be installed, the client first."""
    is_wordy: bool = False
    """Whether its prompts are so long that a toy reads them."""

    @property
    def is_node(self) -> bool:
        """Whether npm installs it; else pip does."""
        return self.requirements.endswith(".npm.txt")

    @property
    def packages(self) -> list[str]:
        """What is to be installed, with versions."""
        return (HERE / "requirements" / self.requirements).read_text(encoding="utf-8").split()

    @property
    def version(self) -> str:
        """The version of the client."""
        return re.split(r"==|(?<=.)@", self.packages[0])[-1]

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "clients"
        digest = hashlib.sha256("\n".join(self.packages).encode()).hexdigest()[:8]
        return cache / f"{self.requirements.partition('.')[0]}-{digest}"

    def install(self) -> None:
        """Installs it, if it is not there already."""
        done = self.folder / "installed"
        if done.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.is_node:
            _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.folder), *self.packages])
        else:
            uv = str(Path(sys.executable).with_name("uv"))
            _run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(self.folder)])
            _run([uv, "pip", "install", "--quiet", "--python", str(self.folder / "bin" / "python"), *self.packages])
        done.touch()

    def command(self, url: str) -> list[str]:
        """What tries it, run in its folder."""
        script = str(HERE / "scripts" / self.script)
        return ["node" if self.is_node else str(self.folder / "bin" / "python"), script, url]

    def tried(self, url: str, log: Path) -> dict[str, bool]:
        """Each feature, and whether it is there. What the program says besides is written to `log`."""
        with log.open("w") as errors:
            ran = subprocess.run(
                self.command(url),
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
        found: dict[str, bool] = {}
        for line in ran.stdout.splitlines():
            print(f"  {line}")
            if told := re.fullmatch(r"(PASS|FAIL) ([^:]+(?:::[^:]+)?)(?:: .*)?", line):
                found[told[2]] = told[1] == "PASS"
        if ran.returncode != (0 if all(found.values()) else 1) or not found:
            raise RuntimeError(f"{self.name} ended with {ran.returncode}:\n{log.read_text()[-2000:]}")
        return found


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)


CLIENTS = (
    Client("openai-python", "openai_python.py", "openai.txt"),
    Client("openai-node", "openai_node.mjs", "openai-node.npm.txt"),
    Client("anthropic-python", "anthropic_python.py", "anthropic.txt"),
    Client("anthropic-node", "anthropic_node.mjs", "anthropic-node.npm.txt"),
    Client("ollama-python", "ollama_python.py", "ollama.txt"),
    Client("ollama-node", "ollama_node.mjs", "ollama-node.npm.txt"),
    Client("litellm", "litellm_routes.py", "litellm.txt"),
    Client("langchain", "langchain_chat.py", "langchain.txt"),
    Client("langchain-tests", "langchain_standard.py", "langchain.txt"),
    Client("llama-index", "llama_index_like.py", "llama-index.txt"),
    Client("instructor", "instructor_modes.py", "instructor.txt"),
    Client("openai-agents", "openai_agents.py", "openai-agents.txt"),
    Client("pydantic-ai", "pydantic_ai_agents.py", "pydantic-ai.txt"),
    Client("ai-sdk", "ai_sdk.mjs", "ai-sdk.npm.txt"),
    Client("aider", "aider_edit.py", "aider.txt"),
    Client("mini-swe-agent", "mini_swe_agent.py", "mini-swe-agent.txt"),
    Client("codex", "codex_exec.mjs", "codex.npm.txt"),
    Client("claude-code", "claude_code.mjs", "claude-code.npm.txt", is_wordy=True),
    Client("opencode", "opencode_run.mjs", "opencode.npm.txt"),
    Client("lm-eval", "lm_eval_tasks.py", "lm-eval.txt"),
)

COLUMNS = (
    "models",
    "chat",
    "stream",
    "tools",
    "tools in a stream",
    "parallel tools",
    "JSON schema",
    "reasoning",
    "vision",
    "embeddings",
)
"""Features that many clients have; the second table lists the others."""

BEGIN, END = "<!-- made by `make clients` -->", "<!-- end of what `make clients` makes -->"
"""Comments around the tables in the page; the text around them is written by hand."""


def page(results: Mapping[str, Mapping[str, bool]]) -> str:
    """docs/guides/clients.md with the results of each client, by its name."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n".join(["", '<div class="compact" markdown>', "", *_table(results), "", "</div>", "", *_others(results), ""])
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def _rows(client: Client, found: Mapping[str, bool]) -> Iterator[tuple[str, dict[str, bool]]]:
    """One for each dialect of a client that speaks several: `tools (chats)` is the feature `tools` in the dialect `chats`."""
    rows: dict[str, dict[str, bool]] = {}
    for told, is_there in found.items():
        feature, _, dialect = told.removesuffix(")").partition(" (")
        rows.setdefault(dialect, {})[feature] = is_there
    for dialect, features in rows.items():
        yield f"{client.name}{f', {dialect}' if dialect else ''}", features


def _table(results: Mapping[str, Mapping[str, bool]]) -> Iterator[str]:
    yield "| client | version | " + " | ".join(COLUMNS) + " |"
    yield "| --- | --- |" + " --- |" * len(COLUMNS)
    for client in CLIENTS:
        for name, features in _rows(client, results[client.name]):
            marks = ["" if (is_there := features.get(column)) is None else "✓" if is_there else "✗" for column in COLUMNS]
            yield f"| {name} | {client.version} | " + " | ".join(marks) + " |"


def _others(results: Mapping[str, Mapping[str, bool]]) -> Iterator[str]:
    yield "| client | test program | other features |"
    yield "| --- | --- | --- |"
    for client in CLIENTS:
        told = [
            f"{feature} {'✓' if is_there else '✗'}"
            for feature, is_there in results[client.name].items()
            if feature.partition(" (")[0] not in COLUMNS
        ]
        if client.name == "langchain-tests":
            n_passed = sum(results[client.name].values())
            told = [f"{n_passed} of its {len(told)} tests ✓", *(each for each in told if each.endswith("✗"))]
        script = f"[`{client.script}`](../../tests/clients/scripts/{client.script})"
        yield f"| {client.name} | {script} | {', '.join(told)} |"


async def _try(clients: Sequence[Client], folder: Path, traces: Path | None = None) -> dict[str, dict[str, bool]]:
    results = {}
    for client in clients:
        print(f"{client.name} {client.version}", flush=True)
        client.install()
        log = folder / f"{client.name}.log"
        program = ("-m", "tests.clients.actor", *(["--toy"] if client.is_wordy else []))
        with LiveServer(folder / "server.log", "-np", "4", program=program) as server:
            await server.ready()
            if traces is None:
                results[client.name] = client.tried(server.url, log)
                continue
            with recorded(f"{client.name} {client.version}", server.url, traces / f"{client.name}.json") as url:
                results[client.name] = client.tried(url, log)
    return results


def main() -> int:
    """Tries the clients that the command line names, or all; returns 1 where a feature fails."""
    parser = argparse.ArgumentParser(description="Tries clients that exist against a server whose model plays a part.")
    names = [client.name for client in CLIENTS]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"one of {', '.join(names)}; all by default")
    parser.add_argument("--traces", action="store_true", help="write down the shapes of what they send, in traces/")
    arguments = parser.parse_args()
    given = arguments.clients
    if unknown := set(given) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    with TemporaryDirectory() as folder:
        clients = [client for client in CLIENTS if not given or client.name in given]
        results = asyncio.run(_try(clients, Path(folder), TRACES if arguments.traces else None))
    if not given:
        PAGE.write_text(page(results), encoding="utf-8")
    n_failed = sum(not is_there for found in results.values() for is_there in found.values())
    print(f"{sum(map(len, results.values())) - n_failed} features work, {n_failed} do not")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
