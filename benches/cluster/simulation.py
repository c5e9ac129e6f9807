"""A cluster in a time of its own: requests come, are sent to replicas by a rule, wait, and are computed step by step.

What a replica has computed before is known to a `Held`; how long a step takes follows from its rows, as measured.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benches.cluster.engines import Held
from benches.cluster.loads import Session, Tokens
from benches.cluster.rules import Rule
from weft.ray.digest import Digest

__all__ = ["MACHINE", "Job", "Machine", "Outcome", "found_again", "in_one_cache", "simulate"]


@dataclass(frozen=True)
class Machine:
    """Seconds of a step: for itself, for each sequence that is written, and for each token of a prompt."""

    step_s: float
    decoding_row_s: float
    prefill_row_s: float


MACHINE = Machine(step_s=0.019, decoding_row_s=0.002, prefill_row_s=0.0018)
"""As measured for half a billion weights in 8 bits on two cores with AMX, and as the scheduler's own simulation takes it."""

PERIOD_S = 1.0
"""How often a replica publishes its digest."""

DELAY_S = 0.3
"""How long that takes to come to the router."""

COUNTED_S = 10.0
"""How long one of several routers believes what it knows of how many requests a replica has: as Ray's, for so long."""

LONGEST_ALONE_S, LONGEST_BESIDE_S = 0.5, 0.2
"""How long a step may take that computes prompts: while nobody is written, and beside others."""

FEWEST_ROWS = 4
"""Tokens of a prompt that are computed in any case."""


@dataclass(slots=True)
class Job:
    """A request on its way."""

    session: Session
    nth: int
    at_s: float
    prompt: Tokens | None = None
    n_prompt: int = 0
    replica: int = -1
    router: int = 0
    n_cached: int = 0
    n_left: int = 0
    n_to_write: int = 0
    first_s: float = math.nan
    """When it had its first token."""
    end_s: float = math.nan


@dataclass
class Outcome:
    """What became of all requests."""

    jobs: list[Job]
    busy_s: list[float]
    """How long each replica computed."""
    n_requests: list[int]
    n_prompt: int = 0
    n_cached: int = 0
    sent: list[tuple[Session, int]] = field(default_factory=list)
    """The requests in the order in which they came."""
    begun: list[tuple[Session, int, int]] = field(default_factory=list)
    """The requests in the order in which they began, each with its replica."""

    @property
    def hit_rate(self) -> float:
        """Of the tokens of prompts, those that were not computed."""
        return self.n_cached / max(self.n_prompt, 1)

    @property
    def imbalance(self) -> float:
        """How long the busiest replica computed, over the mean of all."""
        return max(self.busy_s) / max(sum(self.busy_s) / len(self.busy_s), 1e-9)

    def waited_s(self, share: float) -> float:
        """How long that share of the requests waited at most: until the first token, without the time of their own prompts."""
        return _quantile([job.first_s - job.at_s - _own_s(job) for job in self.jobs], share)

    def first_s(self, share: float) -> float:
        """After how long that share of the requests had their first token at the latest."""
        return _quantile([job.first_s - job.at_s for job in self.jobs], share)

    @property
    def s_per_million(self) -> float:
        """Seconds of one replica for a million tokens, those of prompts and those that were written."""
        n_written = sum(job.session.turns[job.nth].n_answer for job in self.jobs)
        return sum(self.busy_s) / (self.n_prompt + n_written) * 1e6


def _own_s(job: Job) -> float:
    n = max(job.n_prompt - job.n_cached, 1)
    n_steps = math.ceil(n * MACHINE.prefill_row_s / (LONGEST_ALONE_S - MACHINE.step_s))
    return n * MACHINE.prefill_row_s + n_steps * MACHINE.step_s


def _quantile(values: list[float], share: float) -> float:
    values = sorted(values)
    return values[min(int(share * len(values)), len(values) - 1)] if values else math.nan


class _Replica:
    def __init__(self, nth: int, held: Held, n_slots: int, begun: list[tuple[Session, int, int]], *, publishes: bool) -> None:
        self._begun = begun
        self.nth, self.n_ongoing, self.busy_s = nth, 0, 0.0
        self.digest: Digest | None = None
        self.speed = 1.0
        self._held, self._n_slots, self._publishes = held, n_slots, publishes
        self._waiting: deque[Job] = deque()
        self._prompts: list[Job] = []
        self._written: list[Job] = []
        self._shares: list[tuple[Job, int]] = []
        self._step_s = 0.0
        self._began = math.nan
        self._n_steps = 0
        self.version = 0
        self._coming: deque[Digest] = deque()
        self._told_at = -math.inf
        self._has_changed = True
        self._hashes = b"", b""

    def add(self, job: Job, now: float) -> float | None:
        """One more request. When its next steps end, where that has changed."""
        self._waiting.append(job)
        self.n_ongoing += 1
        if not self._n_steps:
            return self._plan(now)
        if self._n_steps > 1 and len(self._written) < self._n_slots:
            # Many steps without a prompt were taken for one: it begins after the one that runs.
            self._n_steps = min(self._n_steps, max(1, math.ceil((now - self._began) / self._step_s)))
            self.version += 1
            return self._began + self._n_steps * self._step_s
        return None

    def _plan(self, now: float) -> float | None:
        """Begins the next steps at `now`; when they end, or `None` where there is nothing to do."""
        while self._waiting and len(self._prompts) + len(self._written) < self._n_slots:
            self._begin(self._waiting.popleft(), now)
        self._shares, self._n_steps, self._began = [], 0, now
        self.version += 1
        if not (self._prompts or self._written):
            return None
        base_s = MACHINE.step_s + MACHINE.decoding_row_s * len(self._written)
        if self._prompts:
            longest_s = LONGEST_ALONE_S if not self._written else max(LONGEST_BESIDE_S, 2 * base_s)
            n_left = n_rows = max(FEWEST_ROWS, int((longest_s - base_s) / MACHINE.prefill_row_s))
            for job in self._prompts:
                n = min(n_left, job.n_left)
                if n:
                    self._shares.append((job, n))
                n_left -= n
            self._n_steps, self._step_s = 1, base_s + MACHINE.prefill_row_s * (n_rows - n_left)
        else:
            self._n_steps, self._step_s = min(job.n_to_write for job in self._written), base_s
        self._step_s *= self.speed
        return now + self._n_steps * self._step_s

    def _begin(self, job: Job, now: float) -> None:
        self.publish(now)
        turn = job.session.turns[job.nth]
        assert job.prompt is not None
        self._begun.append((job.session, job.nth, self.nth))
        job.n_cached = self._held.serve(self.nth, job.prompt, turn.answer)
        job.prompt = None
        job.n_left = max(job.n_prompt - job.n_cached, 1)
        job.n_to_write = max(turn.n_answer, 1)
        self._has_changed = True
        self._prompts.append(job)

    def end_steps(self, now: float) -> tuple[list[Job], float | None]:
        """The steps are over: who has ended, and when the next ones end."""
        self.busy_s += self._n_steps * self._step_s
        ended = []
        for job in self._written:
            job.n_to_write -= self._n_steps
        for job, n in self._shares:
            job.n_left -= n
            if not job.n_left:
                job.first_s = now
                job.n_to_write -= 1
                self._written.append(job)
        self._prompts = [job for job in self._prompts if job.n_left]
        ended = [job for job in self._written if job.n_to_write <= 0]
        self._written = [job for job in self._written if job.n_to_write > 0]
        for job in ended:
            job.end_s = now
        self.n_ongoing -= len(ended)
        return ended, self._plan(now)

    def publish(self, now: float) -> None:
        """Tells what it held at the last moments when it had to, before that changes; and what it told some time ago is known.

        The very last may not have come yet: then the one before it is what is known.
        """
        if not self._publishes:
            return
        last = math.floor((now - self.nth / 64) / PERIOD_S) * PERIOD_S + self.nth / 64
        for tick in (last - PERIOD_S, last):
            if tick <= self._told_at:
                continue
            self._told_at = tick
            if self._has_changed:
                self._hashes, self._has_changed = self._held.digest(self.nth), False
            device, host = self._hashes
            n_running = len(self._prompts) + len(self._written)
            digest = Digest(
                made_at=tick,
                n_queued=len(self._waiting),
                n_running=n_running,
                n_slots=self._n_slots,
                n_free_cells=0,
                n_pending=sum(job.n_left for job in self._prompts),
                device=device,
                host=host,
            )
            self._coming.append(digest)
        while self._coming and self._coming[0].made_at + DELAY_S <= now:
            self.digest = self._coming.popleft()


class _View:
    """A replica as one of several routers knows it: it is told as all are, and counts as routers of Ray do.

    It hears how many requests the replica has when it sends one there, counts off its own as they end, and has forgotten it all
    after a while in which neither happened.
    """

    def __init__(self, replica: _Replica) -> None:
        self._replica = replica
        self._counted_at = -math.inf
        self.n_ongoing = 0

    @property
    def digest(self) -> Digest | None:
        return self._replica.digest

    def look(self, now: float) -> None:
        if now - self._counted_at > COUNTED_S:
            self.n_ongoing = 0

    def sent(self, now: float) -> None:
        self.n_ongoing, self._counted_at = self._replica.n_ongoing, now

    def ended(self, now: float) -> None:
        if now - self._counted_at <= COUNTED_S:
            self.n_ongoing, self._counted_at = max(self.n_ongoing - 1, 0), now


class _Routers:
    """Who chooses, and what each knows."""

    def __init__(self, rule: Rule | Sequence[Rule], replicas: Sequence[_Replica]) -> None:
        self._rules = rule if isinstance(rule, Sequence) else [rule]
        self._replicas = replicas
        self._views = [[_View(replica) for replica in replicas] for _ in self._rules] if isinstance(rule, Sequence) else []
        self._draw = random.Random("which router")

    def choose(self, job: Job, now: float) -> None:
        """One of them says where a request goes."""
        job.router = self._draw.randrange(len(self._rules))
        seen: Sequence[_View | _Replica] = self._replicas
        if self._views:
            seen = self._views[job.router]
            for view in self._views[job.router]:
                view.look(now)
        assert job.prompt is not None
        job.replica = self._rules[job.router].choose(job.prompt, seen, now, job.session.key)

    def sent(self, job: Job, now: float) -> None:
        """The replica has it."""
        if self._views:
            self._views[job.router][job.replica].sent(now)

    def ended(self, job: Job, now: float) -> None:
        """It is answered."""
        if self._views:
            self._views[job.router][job.replica].ended(now)


def simulate(
    sessions: Iterable[Session],
    n_replicas: int,
    held: Held,
    rule: Rule | Sequence[Rule],
    *,
    n_slots: int,
    speeds: Sequence[float] | None = None,
) -> Outcome:
    """Sends all requests, and waits for the last of them.

    Args:
        sessions: What is asked, in the order of its beginning.
        n_replicas: How many there are.
        held: What they hold.
        rule: Who is sent where, by one router that knows how many requests each replica has; several are routers, of which each
            gets its share of the requests, knows of the others' by what replicas tell, and counts as Ray's routers do.
        n_slots: Slots of each.
        speeds: How many times as long as others each replica takes for a step.
    """
    outcome = Outcome([], [0.0] * n_replicas, [0] * n_replicas)
    publishes = (rule[0] if isinstance(rule, Sequence) else rule).needs_digests
    replicas = [_Replica(nth, held, n_slots, outcome.begun, publishes=publishes) for nth in range(n_replicas)]
    routers = _Routers(rule, replicas)
    for replica, speed in zip(replicas, speeds or [], strict=False):
        replica.speed = speed
    # Of what happens at the same time, what was known first.
    coming: list[tuple[float, int, Job | tuple[_Replica, int]]] = []
    n_known = 0

    def expect(at_s: float, what: Job | tuple[_Replica, int]) -> None:
        nonlocal n_known
        n_known += 1
        heapq.heappush(coming, (at_s, n_known, what))

    for session in sessions:
        expect(session.at_s, Job(session, 0, session.at_s))
    while coming:
        now, _, what = heapq.heappop(coming)
        if isinstance(what, Job):
            what.prompt = what.session.turns[what.nth].prompt()
            what.n_prompt = len(what.prompt)
            for replica in replicas:
                replica.publish(now)
            routers.choose(what, now)
            outcome.sent.append((what.session, what.nth))
            outcome.n_requests[what.replica] += 1
            replica = replicas[what.replica]
            if (end_s := replica.add(what, now)) is not None:
                expect(end_s, (replica, replica.version))
            routers.sent(what, now)
            continue
        replica, version = what
        if version != replica.version:
            continue
        ended, end_s = replica.end_steps(now)
        if end_s is not None:
            expect(end_s, (replica, replica.version))
        for job in ended:
            outcome.jobs.append(job)
            outcome.n_prompt += job.n_prompt
            outcome.n_cached += job.n_cached
            routers.ended(job, now)
            for other in job.session.turns[job.nth].begins:
                expect(now + other.at_s, Job(other, 0, now + other.at_s))
            if job.nth + 1 < len(job.session.turns):
                at_s = now + job.session.turns[job.nth + 1].after_s
                expect(at_s, Job(job.session, job.nth + 1, at_s))
    outcome.busy_s = [replica.busy_s for replica in replicas]
    return outcome


def in_one_cache(sent: Iterable[tuple[Session, int]], held: Held) -> float:
    """The share of tokens that one cache finds which gets all requests in this order."""
    return found_again(((session, nth, 0) for session, nth in sent), held)


def found_again(begun: Iterable[tuple[Session, int, int]], held: Held) -> float:
    """The share of tokens that replicas find which get these requests in this order: what becomes of it where they hold more."""
    n_prompt = n_cached = 0
    for session, nth, replica in begun:
        turn = session.turns[nth]
        prompt = turn.prompt()
        n_prompt += len(prompt)
        n_cached += held.serve(replica, prompt, turn.answer)
    return n_cached / max(n_prompt, 1)
