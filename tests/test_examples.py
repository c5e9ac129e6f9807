"""Every example runs and prints what it is about."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers import wait_until
from tests.server.live import LiveServer, free_port

# Examples take every core, and where other programs run on them, llama.cpp's threads wait for each other.
pytestmark = pytest.mark.timeout(120)

EXAMPLES = Path(__file__).parent.parent / "examples"

COUNTED = r"tokens computed: (?P<computed>\d+), tokens used: (?P<used>\d+)\n"

PRINTS = {
    "agent.py": r"\d: call 0 of (roll|throw)\n.+\d: call [1-9] of (roll|throw)\n.+tokens computed: .+\n\d: '.+" + COUNTED,
    "agents.py": r"(The (fox|bear|whale): … .*\n+){12}" + COUNTED,
    "sixteen_questions.py": r"(The fox|The friend|Mia|The sea) .+\n" + COUNTED,
    "complete.py": r"Once upon a time,.+",
    "stream.py": r".+\n\((stop|length) after \d+ tokens in \d+ ms\)\n",
    "many_completions.py": r"0:.+\n7:.+\nprompt tokens computed: (\d+), shared: \d+\n",
    "shared_prefix.py": r" One day a whale.+computed: \d\d, found in the cache: 0\n.+computed: \d, found in the cache: \d\d\n",
    "pinned_prefix.py": r"pinned (\d+) tokens, \d+ bytes\nprompt tokens computed: \d, found in the cache: \1\n",
    "embedding_search.py": r"(-?[01]\.\d{3} .+\n){3}",
    "tools.py": r"roll \{'dice': [123]\}\n",
    "beam_search.py": r"(-\d\.\d{3}:.+\n){3}(-\d+\.\d:.+\n){4}" + COUNTED,
    "best_of_n.py": r"Once upon a time,.+\nmean log-probability: -\d\.\d\d, the best of 16\n" + COUNTED,
    "self_consistency.py": r"votes: (fox|bear|whale) \d+(, (fox|bear|whale) \d+)*\n" + COUNTED,
    "tree_search.py": r"Once upon a time,.+\nwords used: \d+%, nodes: 49, stories tried: 96\n" + COUNTED,
    "loom.py": r"── g\n.+── e 3 and far away.+ and far away.+from the cache.+── p\n.+ · pinned\n.+── left\n.+node 0, depth 0\n.+",
    "openai_client.py": r"0:.+\n1:.+\n2:.+\n3:.+\n",
}
SERVES = {"mount_in_litestar.py"}
ARGUMENTS = {"loom.py": ["--demo"]}
LONGER = {"agents.py": 40, "tree_search.py": 60, "loom.py": 125}
"""Lines of those that may have more than 30."""


def run(name: str, **environ: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *ARGUMENTS.get(name, [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_and_short() -> None:
    examples = {path.name: path for path in EXAMPLES.glob("*.py")}
    assert examples.keys() == PRINTS.keys() | SERVES
    for name, path in examples.items():
        _, header, below_header = path.read_text(encoding="utf-8").split('"""', 2)
        assert re.fullmatch(r"[^\n]+\n\n(Prints|Serves) [^\n]+\n", header), name
        assert len(below_header.strip().splitlines()) <= LONGER.get(name, 30), name


LISTED = {
    name: (bool(mark), output)
    for name, mark, output in re.findall(
        r"^## \[`(\w+\.py)`\][^\n]*\n\n[^\n]+\n(?:\n(\*Varies:\*)\n)?(?:\n```text\n(.*?)```)?",
        (EXAMPLES / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
}
"""Outputs on the page of examples, with True for those that vary."""

COUNTS = re.compile(r"^prompt tokens computed: .*", re.MULTILINE)
"""Lines that are the same in every run, also of examples whose texts vary."""


def pattern_of(listed: str) -> str:
    """Returns an expression for outputs that the page may have shortened to `listed`."""
    lines = [r"(?:.*\n)+?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in listed.splitlines()]
    return "".join(lines)


def test_the_page_of_examples_lists_each_with_its_output() -> None:
    assert LISTED.keys() == PRINTS.keys() | SERVES
    assert {name for name, (_, output) in LISTED.items() if not output} == SERVES
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in LISTED:
        summary = (EXAMPLES / name).read_text(encoding="utf-8").removeprefix('"""').partition("\n")[0]
        assert f"## [`{name}`]({name})\n\n{summary}\n" in page


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_the_page_of_examples_lists_what_one_prints(name: str) -> None:
    _, listed = LISTED[name]
    assert re.fullmatch(PRINTS[name], listed, re.DOTALL)


@pytest.mark.parametrize("name", sorted(PRINTS.keys() - {"openai_client.py"}))
def test_an_example_prints_what_it_is_about(name: str) -> None:
    printed = run(name)
    found = re.fullmatch(PRINTS[name], printed, re.DOTALL)
    assert found is not None, printed
    varies, listed = LISTED[name]
    if varies:
        assert COUNTS.findall(printed) == COUNTS.findall(listed)
    else:
        assert re.fullmatch(pattern_of(listed), printed), printed
    if "computed" in found.groupdict():
        # What branches share is most of what they use.
        assert int(found["computed"]) < 0.6 * int(found["used"])


def test_the_loom_says_what_it_needs() -> None:
    without = f"import runpy, sys; sys.modules['prompt_toolkit'] = None; runpy.run_path({str(EXAMPLES / 'loom.py')!r})"
    ran = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "the loom needs prompt_toolkit: pip install prompt_toolkit (--demo runs without it)\n"


async def test_the_openai_client_prints_four_answers(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log") as server:
        await server.ready()
        printed = await asyncio.to_thread(run, "openai_client.py", OPENAI_BASE_URL=f"{server.url}/v1")
    assert re.fullmatch(PRINTS["openai_client.py"], printed, re.DOTALL), printed


@pytest.fixture
def mounted() -> Iterator[str]:
    """The address of the application that has our routes mounted."""
    port = free_port()
    with subprocess.Popen([sys.executable, EXAMPLES / "mount_in_litestar.py"], env=os.environ | {"PORT": str(port)}) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGTERM)


async def test_our_routes_are_mounted_beside_those_of_the_application(mounted: str) -> None:
    await wait_until(lambda: is_healthy(f"{mounted}/llm/health"), deadline_s=20)
    async with httpx.AsyncClient(base_url=mounted, timeout=20) as client:
        answer = await client.post("/llm/v1/completions", json={"prompt": "Once upon a time,", "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert (await client.get("/")).status_code == 200


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
