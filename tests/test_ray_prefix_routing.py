"""Who is sent where: what a replica holds against what waits there, and whatever becomes of replicas and their digests."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from benches.cluster.engines import Blocks
from benches.cluster.loads import Session, Turn, agents, chats, mooncake
from benches.cluster.rules import RULES, Cells, Placed, Seen, routers
from benches.cluster.simulation import COUNTED_S, DELAY_S, PERIOD_S, found_again, in_one_cache, simulate
from weft.ray.digest import BLOCK, Digest, block_hashes, pack, unpack
from weft.ray.prefix_routing import GUARD_SLOTS, MAX_AGE_S, MAX_PROMPTS, MAX_REPLICAS, MAX_SENT, SETTLED_S, Candidate, Router

NOW = 1_000.0
N_SLOTS = 8
TEXT = list(range(4_000))
OTHER = list(range(9_000, 13_000))


def replica(
    name: str,
    held: Sequence[int] = (),
    *,
    host: Sequence[int] = (),
    n_ongoing: int = 0,
    made_at: float = NOW,
    n_pending: int = 0,
    n_queued: int = 0,
    n_running: int = 0,
) -> Candidate:
    digest = Digest(
        made_at=made_at,
        n_queued=n_queued,
        n_running=n_running,
        n_slots=N_SLOTS,
        n_free_cells=0,
        n_pending=n_pending,
        device=pack(block_hashes(held)),
        host=pack(block_hashes(host)),
    )
    return Candidate(name, digest, n_ongoing)


def first(router: Router, tokens: Sequence[int] | None, *candidates: Candidate, now: float = NOW) -> str:
    return router.choose(tokens, candidates, now=now)[0]


@pytest.fixture
def router() -> Router:
    return Router(seed=1)


def test_nobody_can_be_sent_to(router: Router) -> None:
    assert router.choose(TEXT, [], now=NOW) == []


def test_who_holds_most_of_the_prompt_is_first_and_all_are_ranked(router: Router) -> None:
    some = replica("some", TEXT[:2_000])
    ranked = router.choose(TEXT, [replica("none"), some, replica("all", TEXT), replica("other", OTHER)], now=NOW)
    assert ranked[:2] == ["all", "some"]
    assert sorted(ranked) == ["all", "none", "other", "some"]


def test_the_host_cache_counts_almost_as_much_as_the_device_cache(router: Router) -> None:
    assert first(router, TEXT, replica("host", host=TEXT), replica("less", TEXT[:3_900])) == "host"
    assert first(router, TEXT, replica("host", host=TEXT), replica("device", TEXT)) in {"host", "device"}
    assert first(router, TEXT, replica("host", TEXT[:640], host=TEXT), replica("none")) == "host"


def test_a_thinned_digest_still_tells_how_far_a_text_is_known(router: Router) -> None:
    every_fourth = block_hashes(TEXT)[3::4]
    thin = replica("thin")
    assert thin.digest is not None
    digest = Digest(made_at=NOW, n_queued=0, n_running=0, n_slots=8, n_free_cells=0, device=pack(every_fourth))
    assert first(router, TEXT, replica("less", TEXT[:3_000]), Candidate("thin", digest, 0)) == "thin"


def test_what_waits_is_weighed_against_what_is_held(router: Router) -> None:
    assert first(router, TEXT, replica("holds", TEXT, n_pending=1_000), replica("idle")) == "holds"
    assert first(router, TEXT, replica("holds", TEXT, n_pending=1_000_000), replica("idle")) == "idle"
    assert first(router, TEXT, replica("holds", TEXT, n_ongoing=N_SLOTS - 1), replica("idle")) == "holds"


def test_who_is_far_busier_than_others_is_passed_over_whatever_it_holds(router: Router) -> None:
    most = GUARD_SLOTS * N_SLOTS
    assert first(router, TEXT, replica("holds", TEXT, n_ongoing=most), replica("idle")) == "holds"
    assert first(router, TEXT, replica("holds", TEXT, n_ongoing=most + 1), replica("idle")) == "idle"
    # Where all have much to do, nobody is far busier.
    assert first(router, TEXT, replica("holds", TEXT, n_ongoing=10 * most + 1), replica("too", n_ongoing=9 * most)) == "holds"


def test_what_the_replica_says_counts_where_the_sender_knows_less(router: Router) -> None:
    busy = replica("holds", TEXT, n_ongoing=1, n_queued=GUARD_SLOTS * N_SLOTS + 1)
    assert first(router, TEXT, busy, replica("idle")) == "idle"


def test_where_all_know_as_much_the_less_busy_of_two_is_taken() -> None:
    loads = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5}
    chosen: Counter[str] = Counter()
    for seed in range(600):
        chosen[first(Router(seed=seed), None, *(replica(name, n_ongoing=n) for name, n in loads.items()))] += 1
    # Of n, the one with the i-th fewest requests is the less busy of two in 2 (n - i) of n (n - 1) draws.
    expected = {name: 600 * 2 * (5 - nth) / (6 * 5) for nth, name in enumerate(loads)}
    assert chosen["f"] == 0
    assert all(abs(chosen[name] - n) < 50 for name, n in expected.items()), chosen


def test_the_same_seed_draws_the_same() -> None:
    candidates = [replica(str(nth)) for nth in range(10)]
    ranked = [[Router(seed=5).choose(None, candidates, now=NOW) for _ in range(3)] for _ in range(2)]
    assert ranked[0] == ranked[1]


def test_what_was_sent_is_held_though_no_digest_tells_of_it(router: Router) -> None:
    candidates = [replica(name) for name in "abcdef"]
    router.sent("d", TEXT, now=NOW)
    assert first(router, TEXT, *candidates) == "d"
    assert first(router, [*TEXT, *OTHER], *candidates) == "d"


def test_a_digest_made_long_after_says_whether_what_was_sent_is_held(router: Router) -> None:
    router.sent("a", TEXT, now=NOW)
    at = NOW + SETTLED_S + 1
    candidates = [replica("a", made_at=at), replica("b", TEXT[:BLOCK], made_at=at)]
    assert first(router, TEXT, *candidates, now=at) == "b"


def test_what_still_waits_there_will_be_held(router: Router) -> None:
    router.sent("a", TEXT, now=NOW)
    at = NOW + 60
    candidates = [replica("a", made_at=at, n_queued=1), replica("b", TEXT[:BLOCK], made_at=at)]
    assert first(router, TEXT, *candidates, now=at) == "a"


def test_what_is_computed_there_will_be_held(router: Router) -> None:
    """A long prompt is told of block by block, as it is computed."""
    router.sent("a", TEXT, now=NOW)
    at = NOW + 60
    computes = replica("a", TEXT[:BLOCK], made_at=at, n_running=1, n_pending=2_000)
    assert first(router, TEXT, computes, replica("b", TEXT[: 20 * BLOCK], made_at=at), now=at) == "a"
    writes = replica("a", TEXT[:BLOCK], made_at=at + 1, n_running=1)
    assert first(router, TEXT, writes, replica("b", TEXT[: 20 * BLOCK], made_at=at + 1), now=at + 1) == "b"


def test_what_was_sent_since_the_digest_waits_there_as_long_as_it_has_not_ended(router: Router) -> None:
    asked = TEXT[:1_000]
    for nth in range(6):
        router.sent("a", [nth, *OTHER], now=NOW + 0.1)
    busy, done = replica("a", asked, n_ongoing=6), replica("a", asked, n_ongoing=0)
    assert first(router, asked, busy, replica("b"), now=NOW + 0.2) == "b"
    assert first(router, asked, done, replica("b"), now=NOW + 0.2) == "a"


def test_an_old_digest_is_not_believed_and_a_new_one_is_again(router: Router) -> None:
    old = replica("old", TEXT)
    assert first(router, TEXT, old, replica("new", TEXT[:640])) == "old"
    later = NOW + MAX_AGE_S + 1
    assert first(router, TEXT, old, replica("new", TEXT[:640], made_at=later), now=later) == "new"
    assert first(router, TEXT, replica("old", TEXT, made_at=later), replica("new", made_at=later), now=later) == "old"


def test_who_has_told_nothing_is_known_by_what_it_was_sent(router: Router) -> None:
    silent = [Candidate(name, None, 0) for name in "abcdef"]
    router.sent("e", TEXT, now=NOW)
    assert first(router, TEXT, *silent, now=NOW + 3_600) == "e"


def test_a_replica_that_is_gone_is_not_named(router: Router) -> None:
    router.sent("gone", TEXT, now=NOW)
    assert router.choose(TEXT, [replica("gone", TEXT), replica("left")], now=NOW) == ["gone", "left"]
    assert router.choose(TEXT, [replica("left"), replica("new")], now=NOW)[0] in {"left", "new"}
    assert "gone" not in router.choose(TEXT, [replica("left")], now=NOW)


def test_a_new_text_has_one_replica_among_equals_and_moves_only_where_that_goes() -> None:
    names = [f"replica {nth}" for nth in range(10)]
    texts = range(500)

    def owners(names: Sequence[str]) -> dict[int, str]:
        candidates = [replica(name) for name in names]
        return {nth: Router().choose([nth] * BLOCK, candidates, now=NOW)[0] for nth in texts}

    before, after = owners(names), owners([name for name in names if name != "replica 3"])
    assert {nth for nth in texts if before[nth] != after[nth]} == {nth for nth in texts if before[nth] == "replica 3"}
    assert all(20 < n < 90 for n in Counter(before.values()).values()), "each has about a tenth"
    assert owners(names[::-1]) == before


def test_a_new_text_leaves_a_replica_that_is_far_busier_for_the_next(router: Router) -> None:
    names = "abcd"
    ranked = router.choose(TEXT, [replica(name) for name in names], now=NOW)
    busy = [replica(name, n_ongoing=100 * (name == ranked[0])) for name in names]
    assert router.choose(TEXT, busy, now=NOW) == [*ranked[1:], ranked[0]]


def test_texts_of_another_key_are_others(router: Router) -> None:
    held, other = replica("held", TEXT), replica("other", OTHER)
    firsts = Counter(router.choose(TEXT, [held, other], now=NOW, salt=bytes([nth]))[0] for nth in range(60))
    assert min(firsts["held"], firsts["other"]) > 15, "neither is known to hold anything of it"


def test_routers_that_know_nothing_of_each_other_take_the_same() -> None:
    names = [f"replica {nth}" for nth in range(8)]
    texts = [[nth, *TEXT] for nth in range(80)]
    chosen = {seed: [first(Router(seed=seed), text, *map(replica, names)) for text in texts] for seed in range(4)}
    assert len({tuple(names) for names in chosen.values()}) == 1
    assert all(2 <= n <= 22 for n in Counter(chosen[0]).values()), "other texts go elsewhere"
    # What begins alike goes to the same place, also where all hold as much of the beginning.
    tails = [[*TEXT, *range(20_000 + nth, 20_020 + nth)] for nth in range(8)]
    assert len({first(Router(seed=nth), tail, *map(replica, names)) for nth, tail in enumerate(tails)}) == 1
    candidates = [replica(name, TEXT[:640]) for name in names]
    assert len({first(Router(seed=nth), tail, *candidates) for nth, tail in enumerate(tails)}) == 1


def test_memory_is_bounded() -> None:
    router = Router()
    for nth in range(MAX_REPLICAS + 10):
        router.sent(f"replica {nth}", TEXT[:BLOCK], now=NOW)
    assert len(router._records) == MAX_REPLICAS
    assert "replica 0" not in router._records
    for nth in range(400):
        router.sent("one", [nth] * 100 * BLOCK, now=NOW + nth)
    record = router._records["one"]
    assert (len(record.sent), len(record.prompts)) == (MAX_SENT, MAX_PROMPTS)
    assert list(record.sent.values()) == sorted(record.sent.values()), "the oldest have gone"


def test_a_cluster_finds_what_one_cache_of_the_same_size_finds() -> None:
    n_replicas, n_tokens = 6, 40_000
    sessions = list(chats(n_replicas, 120, per_s=0.15, n_system_prompts=4 * n_replicas))
    outcomes = {}
    for name in ("Weft", "round robin"):
        held = Blocks(n_replicas, n_tokens=n_tokens)
        outcomes[name] = simulate(sessions, n_replicas, held, RULES[name](), n_slots=N_SLOTS)
        assert len(outcomes[name].jobs) == sum(len(session.turns) for session in sessions), "every request ends"
    ours, turns = outcomes["Weft"], outcomes["round robin"]
    of_one = in_one_cache(ours.sent, Blocks(1, n_tokens=n_replicas * n_tokens))
    assert ours.hit_rate > 0.95 * of_one
    assert turns.hit_rate < 0.75 * of_one
    assert ours.waited_s(0.99) < turns.waited_s(0.99)
    assert ours.imbalance < 2


def n_requests(sessions: Iterable[Session]) -> int:
    return sum(1 + n_requests(turn.begins) for session in sessions for turn in session.turns)


def test_agents_begin_others_and_every_request_ends() -> None:
    sessions = list(agents(2, 120, per_s=0.05, seed=1))
    outcome = simulate(sessions, 2, Blocks(2, n_tokens=200_000), RULES["Weft"](), n_slots=N_SLOTS)
    n_first = sum(len(session.turns) for session in sessions)
    assert len(outcome.jobs) == n_requests(sessions) > n_first
    ends = {(job.session.key, job.nth): job.end_s for job in outcome.jobs}
    for session in sessions:
        for nth, turn in enumerate(session.turns):
            for other in turn.begins:
                at = next(job.at_s for job in outcome.jobs if (job.session.key, job.nth) == (other.key, 0))
                assert at == ends[session.key, nth] + other.at_s


@pytest.mark.parametrize("n_routers", [1, 2, 4])
def test_several_routers_know_of_each_other_by_digests(n_routers: int) -> None:
    n_replicas, n_tokens = 6, 40_000
    sessions = list(chats(n_replicas, 120, per_s=0.15, n_system_prompts=4 * n_replicas))
    outcome = simulate(sessions, n_replicas, Blocks(n_replicas, n_tokens=n_tokens), routers(n_routers), n_slots=N_SLOTS)
    assert len(outcome.jobs) == n_requests(sessions)
    assert Counter(job.router for job in outcome.jobs).keys() == set(range(n_routers))
    assert outcome.hit_rate > 0.93 * in_one_cache(outcome.sent, Blocks(1, n_tokens=n_replicas * n_tokens))
    assert outcome.imbalance < 2


def test_a_router_counts_as_those_of_ray_do() -> None:
    counted: list[tuple[float, int]] = []

    class Watching:
        needs_digests = False

        def choose(self, _prompt: Sequence[int], replicas: Sequence[Seen], now: float, _key: str) -> int:
            counted.append((now, replicas[0].n_ongoing))
            return 0

    asked = [
        Session(at, [Turn(lambda: TEXT[:100], [], n_answer, 0.0)], str(at))
        for at, n_answer in [(0, 40), (0, 2_000), (5, 1), (30, 1)]
    ]
    simulate(asked, 1, Blocks(1, n_tokens=10_000), [Watching()], n_slots=N_SLOTS)
    # The first has ended by then; the second runs on, but nothing was heard of that for too long.
    assert counted == [(0, 0), (0, 1), (5, 1), (30, 0)]
    assert COUNTED_S < 25


@pytest.mark.parametrize("every_s", [1.0, 3.0, 0.75, 30.5])
def test_a_digest_is_no_older_than_its_period_and_its_way(every_s: float) -> None:
    ages: list[float] = []

    class Watching:
        needs_digests = True

        def choose(self, _prompt: Sequence[int], replicas: Sequence[Seen], now: float, _key: str) -> int:
            ages.extend(now - seen.digest.made_at for seen in replicas if seen.digest is not None)
            return len(ages) % len(replicas)

    asked = [Session(nth * every_s, [Turn(lambda: TEXT[:500], [], 50, 0.0)], str(nth)) for nth in range(30)]
    simulate(asked, 3, Blocks(3, n_tokens=10_000), Watching(), n_slots=N_SLOTS)
    assert len(ages) >= 3 * 28
    assert DELAY_S <= min(ages) <= max(ages) < PERIOD_S + DELAY_S


def trace(path: Path) -> Path:
    """Forty conversations of three turns."""
    rows = [
        {
            "timestamp": 1_000 * (40 * turn + chat),
            "input_length": 512 * (turn + 2),
            "output_length": 5,
            "hash_ids": [0, *range(9 * chat + 1, 9 * chat + turn + 2)],
        }
        for turn in range(3)
        for chat in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_parts_of_a_trace_have_no_conversation_in_common(tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.jsonl")
    parts = [Counter(session.key for session in mooncake(path, 24, 3_600, part=part)) for part in range(4)]
    whole = Counter(session.key for session in mooncake(path, 96, 3_600))
    assert sum(parts, Counter()) == whole
    assert (len(whole), set(whole.values())) == (40, {3})
    assert Counter(session.key for session in mooncake(path, 24, 3_600, part=-1)) == parts[3]


def test_who_is_placed_beforehand_finds_all_that_there_is(tmp_path: Path) -> None:
    sessions = list(mooncake(trace(tmp_path / "trace.jsonl"), 96, 3_600))
    outcome = simulate(sessions, 4, Blocks(4, n_tokens=100_000), Placed(sessions, 4), n_slots=N_SLOTS)
    places = {(job.session.key, job.replica) for job in outcome.jobs}
    assert len(places) == 40
    assert {9 <= n <= 11 for n in Counter(place for _, place in places).values()} == {True}
    # But for the block with which all of them begin, which each replica computes itself.
    n_prompt = sum(job.n_prompt for job in outcome.jobs)
    assert outcome.n_cached == in_one_cache(outcome.sent, Blocks(1, n_tokens=400_000)) * n_prompt - 3 * 512


def test_what_more_room_would_find_is_asked_of_the_same_replicas() -> None:
    sessions = list(chats(2, 120, per_s=0.15, n_system_prompts=16))
    outcome = simulate(sessions, 2, Blocks(2, n_tokens=8_000), RULES["round robin"](), n_slots=N_SLOTS)
    assert found_again(outcome.begun, Blocks(2, n_tokens=8_000)) == outcome.hit_rate
    assert found_again(outcome.begun, Blocks(2, n_tokens=100_000)) > outcome.hit_rate


def test_two_levels_find_almost_what_one_does() -> None:
    n_replicas, n_tokens = 8, 40_000
    sessions = list(chats(n_replicas, 120, per_s=0.15, n_system_prompts=4 * n_replicas))
    rates = []
    for rule in (RULES["Weft"](), Cells(size=4)):
        outcome = simulate(sessions, n_replicas, Blocks(n_replicas, n_tokens=n_tokens), rule, n_slots=N_SLOTS)
        assert len(outcome.jobs) == n_requests(sessions)
        assert all(n > 0 for n in outcome.n_requests)
        rates.append(outcome.hit_rate)
    assert rates[1] > 0.95 * rates[0]


class CountedHash(int):
    """A number that counts how often any of its kind was hashed."""

    n_hashed = 0

    def __hash__(self) -> int:
        CountedHash.n_hashed += 1
        return int(self)


def test_a_prompt_is_intersected_with_a_digest_without_reading_all_of_the_digest() -> None:
    digest = type(unpack(b""))(map(CountedHash, range(1000)))
    CountedHash.n_hashed = 0
    assert {7: 0, 2000: 1}.keys() & digest == {7}
    assert CountedHash.n_hashed == 0
