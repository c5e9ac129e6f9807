"""What llama.cpp's tool writes with self-extend far beyond what the demo model was trained for, and what Weft would have.

    python -m tests.compare.self_extend /path/to/llama-cli
    python -m tests.compare.self_extend /path/to/llama-completion

Two builds do not round alike: of two tokens that are about as likely each may draw another one, and all that follows differs. So
each token of the tool's is looked up in what Weft computes for the tool's own text before it: it is the likeliest, or about as
likely. It ends with 1 where one is not. `--keep` writes the texts to self_extend.json, which Weft is held to without a tool.

The tool of 2024 (`llama-cli` of llama-cpp-python 0.3.2) is of before `llama_memory_seq_div` turned keys the wrong way.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import weft
from weft.config import Kernels
from weft.demo import DEMO_MODEL
from weft.engine_options import EngineOptions

__all__ = ["SETTINGS", "TOLERANCE", "Drawn", "Setting", "kept", "looked_up"]

KEPT = Path(__file__).parent / "self_extend.json"

TOLERANCE = 0.25
"""By how much a token that is drawn may be less likely than the likeliest, as a logarithm: 8 bits round as they do."""

TIMEOUT_S = 300

KERNELS: tuple[Kernels, ...] = ("llama.cpp", "auto")

PROMPT = "Once upon a time, there was a little girl who lived in a village by the sea."
"""Shorter than a group, so that it is the same whether it is computed at once or by the token."""

_ENDS = (2, 4)
"""The tokens that end a text of the demo model. None is drawn: the tool of 2024 knows of one only with `--ignore-eos`."""


class Setting(NamedTuple):
    """What is grouped, and how many tokens are drawn: as many as leave no position that the model was not trained for."""

    grp_attn_n: int
    grp_attn_w: int
    n_predict: int


SETTINGS = {"4 of 256": Setting(4, 256, 2_500), "2 of 512": Setting(2, 512, 1_700)}


class Drawn(NamedTuple):
    """A token that the tool has drawn."""

    place: int
    """In the text with its prompt."""
    text: str
    logprob: float
    """By Weft."""
    shortfall: float
    """How much more likely the likeliest one is."""


def _played(program: Path, setting: Setting, folder: Path) -> str:
    """What the tool writes."""
    told = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S).stdout
    prompt = folder / "prompt.txt"
    prompt.write_text(PROMPT, encoding="utf-8")
    bans = [argument for end in _ENDS for argument in ("-l", f"{end}-inf")]
    # Today's tool takes the model for a chat, and chooses an attention by itself.
    today = ["-no-cnv", "-fa", "off"] if "--no-conversation" in told else []
    groups = ["--grp-attn-n", str(setting.grp_attn_n), "--grp-attn-w", str(setting.grp_attn_w)]
    amount = ["-c", "4096", "-n", str(setting.n_predict), "-t", "1"]
    asked = ["-m", DEMO_MODEL, "-f", str(prompt), *amount, "--temp", "0", *bans, *groups, *today, "--no-display-prompt"]
    played = subprocess.run([program, *asked], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    # The tool ends with lines of its own.
    return played.stdout.rstrip("\n")


async def looked_up(text: str, setting: Setting, kernels: Kernels = "auto") -> list[Drawn]:
    """Each token that the tool drew. Where a prompt is computed by the token, it is grouped as if it were drawn."""
    options: EngineOptions = {
        "n_slots": 1,
        "n_ctx": 4096,
        "n_threads": 1,
        "grp_attn_n": setting.grp_attn_n,
        "grp_attn_w": setting.grp_attn_w,
        "n_batch": 1,
        "kernels": kernels,
        "flash_attention": "off" if kernels == "llama.cpp" else "auto",
    }
    async with weft.Engine(**options) as engine:
        tokens = engine.tokenize(PROMPT + text)
        answer = await engine.complete(tokens, max_tokens=0, prompt_logprobs=1 + len(_ENDS))
        n_prompt = len(engine.tokenize(PROMPT))
    drawn = []
    for place, found in enumerate(answer.prompt_logprobs[n_prompt:], n_prompt):
        assert found is not None
        likeliest = next(other for other in found.top if other.token not in _ENDS)
        drawn.append(Drawn(place, found.chosen.text, found.chosen.logprob, likeliest.logprob - found.chosen.logprob))
    return drawn


def kept() -> Mapping[str, str]:
    """By the names of the settings, what the tool wrote."""
    texts: dict[str, str] = json.loads(KEPT.read_text(encoding="utf-8"))["texts"]
    return texts


def _version(program: Path) -> str:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    lines = (told.stdout + told.stderr).splitlines()
    return next((line for line in lines if line.startswith("version")), "version unknown")


async def _compared(texts: Mapping[str, str]) -> int:
    """Prints how the tool's texts do; returns how many tokens Weft would not have drawn."""
    n_wrong = 0
    for name, text in texts.items():
        for kernels in KERNELS:
            drawn = await looked_up(text, SETTINGS[name], kernels)
            wrong = [token for token in drawn if token.shortfall > TOLERANCE]
            n_other = sum(0 < token.shortfall <= TOLERANCE for token in drawn)
            likely = sum(token.logprob for token in drawn) / len(drawn)
            furthest = max(token.shortfall for token in drawn)
            print(f"{name}, kernels {kernels}: {len(drawn)} tokens of mean log-probability {likely:.2f}; {len(wrong)} Weft would")
            print(f"    not have drawn, {n_other} are about as likely as its own; the furthest is less likely by {furthest:.4f}")
            for token in wrong[:3]:
                print(f"    {token.text!r} at {token.place} is less likely by {token.shortfall:.2f}")
            n_wrong += len(wrong)
    return n_wrong


def main() -> int:
    """Compares; returns 1 where a token was drawn that Weft would not have."""
    parser = argparse.ArgumentParser(description="Says whether llama.cpp's tool and Weft extend a text alike.")
    parser.add_argument("program", type=Path, help="llama.cpp's llama-completion, or llama-cli of 2024")
    parser.add_argument("--keep", action="store_true", help=f"write its texts to {KEPT.name}")
    given = parser.parse_args()
    version = _version(given.program)
    print(f"{given.program.name}, {version}")
    with TemporaryDirectory() as folder:
        texts = {name: _played(given.program, setting, Path(folder)) for name, setting in SETTINGS.items()}
    if given.keep:
        file = {"tool": f"{given.program.name}, {version}", "texts": texts}
        KEPT.write_text(json.dumps(file, indent=1) + "\n", encoding="utf-8")
    return 1 if asyncio.run(_compared(texts)) else 0


if __name__ == "__main__":
    sys.exit(main())
