"""What comes of requests where processes die: real Ray, real HTTP, replicas of the demo model under load.

make ray ARGS=--faults      # four minutes; writes the table of docs/guides/ray.md
"""

import argparse
import json
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.ray.cluster import Cluster, running, wait_until

PAGE = Path(__file__).parent.parent.parent / "docs" / "guides" / "ray.md"
BEGIN, END = "<!-- faults -->", "<!-- end of faults -->"

N_CLIENTS = 12
N_TOKENS = 400
HUNG_S = 90.0
"""A request that has not ended after so long hangs."""

OUTCOMES = ("whole", "one error", "closed", "hung", "wrong")


@dataclass
class Load:
    """Clients who ask one request after the other, half of them streamed, and what came of each."""

    url: str
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Asks as long as this is entered; then waits for what was asked."""
        clients = [threading.Thread(target=self._ask_on, args=(number,)) for number in range(N_CLIENTS)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self._is_over.set()
            for client in clients:
                client.join()

    def _ask_on(self, number: int) -> None:
        turn = 0
        while not self._is_over.is_set():
            turn += 1
            began = time.monotonic()
            outcome = self._asked(f"Client {number} asks for the {turn}th time for a story about", is_streamed=number % 2 == 0)
            self.outcomes[outcome] += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if outcome != "whole":
                time.sleep(0.2)

    def _asked(self, prompt: str, *, is_streamed: bool) -> str:
        body = {"prompt": prompt, "max_tokens": N_TOKENS, "ignore_eos": True, "stream": is_streamed}
        limits = httpx.Timeout(HUNG_S, connect=5)
        try:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=limits) as answer:
                text = answer.read().decode()
        except (httpx.ReadTimeout, httpx.WriteTimeout):
            return "hung"
        except httpx.HTTPError as error:
            self.errors[type(error).__name__] += 1
            return "closed"
        if answer.status_code != 200:
            self.errors[_message(answer.status_code, text)] += 1
            return "one error"
        if not is_streamed:
            return "whole" if json.loads(text)["usage"]["completion_tokens"] == N_TOKENS else "wrong"
        frames = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        failed = [frame for frame in frames if '"error"' in frame]
        if failed:
            self.errors[_message(200, failed[0])] += 1
            return "one error" if len(failed) == 1 and frames[-1] in (failed[0], "[DONE]") else "wrong"
        is_whole = frames[-1:] == ["[DONE]"] and any('"finish_reason":"length"' in frame for frame in frames)
        return "whole" if is_whole else "wrong"


def _message(status: int, text: str) -> str:
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return f"{status} of the proxy: {text[:60]!r}"
    return f"{error['code']} {re.sub(r'replica [a-z0-9]{8}', 'replica …', error['message'])}"


def kill(cluster: Cluster, title: str) -> None:
    """Kills the first process of this kind."""
    cluster.kill(cluster.processes(title)[0], signal.SIGKILL)


def slow(cluster: Cluster) -> None:
    """Stops a replica for three seconds, twice."""
    process_id = cluster.processes("replica")[0]
    for _ in range(2):
        cluster.kill(process_id, signal.SIGSTOP)
        time.sleep(3)
        cluster.kill(process_id, signal.SIGCONT)
        time.sleep(2)


def stuck(cluster: Cluster) -> None:
    """Stops a replica for ever: it neither answers nor dies."""
    before = cluster.processes("replica")
    cluster.kill(before[0], signal.SIGSTOP)
    # Its process stays as long as a replica may take to go: another is started beside it.
    wait_until(lambda: not set(cluster.processes("replica")) <= set(before), HUNG_S)


FAULTS: dict[str, tuple[str, Callable[[Cluster], None], float]] = {
    "nothing": ("no fault", lambda _: None, 4),
    "replica": ("a replica is killed", lambda cluster: kill(cluster, "replica"), 10),
    "proxy": ("the proxy is killed", lambda cluster: kill(cluster, "ProxyActor"), 10),
    "slow": ("a replica is stopped for 3 s, twice", slow, 4),
    "stuck": ("a replica hangs", stuck, 6),
    "ingress": ("the ingress is killed", lambda cluster: kill(cluster, "ingress"), 12),
}


def tried(cluster: Cluster, fault: Callable[[Cluster], None], seconds: float) -> tuple[Load, float]:
    """The load, and the seconds from the fault until all replicas answer again and no slot is busy any more."""
    load = Load(cluster.url)
    with load.asking():
        time.sleep(2)
        began = time.monotonic()
        fault(cluster)
        wait_until(lambda: cluster.client.get("/health").status_code == 200, 120)
        wait_until(lambda: len(cluster.processes("replica")) >= 3 and len(cluster.client.get("/slots").json()) == 12, 60)
        again_s = time.monotonic() - began
        time.sleep(seconds)
    wait_until(lambda: cluster.n_busy() == 0, 30)
    for process_id in cluster.processes("replica"):
        cluster.kill(process_id, signal.SIGCONT)
    return load, again_s


def main() -> int:
    """Tries each fault; 0 where nothing hung and nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS], help="which of them; all where none is named")
    asked = parser.parse_args().faults or list(FAULTS)
    is_well = True
    with running() as cluster:
        cluster.deploy(replicas=3)
        for name in asked:
            title, fault, seconds = FAULTS[name]
            load, again_s = tried(cluster, fault, seconds)
            counts = " | ".join(str(load.outcomes[outcome]) for outcome in OUTCOMES)
            values = "; ".join(f"{n} × {error}" for error, n in load.errors.most_common())
            n_requests = sum(load.outcomes.values())
            row = f"| {title} | {n_requests} | {counts} | {load.longest_s:.1f} | {again_s:.1f} | {values} |"
            print(row, flush=True)
            PAGE.write_text(_with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")
            is_well &= load.outcomes["hung"] == load.outcomes["wrong"] == 0
    return 0 if is_well else 1


def _with_row(page: str, row: str) -> str:
    """The page with one row of its table made anew."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {line.split(" | ")[0]: line for line in [*table.splitlines(), row] if line.startswith("| ")}
    head = f"| fault | requests | {' | '.join(OUTCOMES)} | longest, s | recovered after, s | errors |"
    ordered = [rows[title] for name in FAULTS if (title := f"| {FAULTS[name][0]}") in rows]
    return "\n".join([before + BEGIN, "", head, "| --- |" + " ---: |" * 8 + " --- |", *ordered, "", END]) + after


if __name__ == "__main__":
    sys.exit(main())
