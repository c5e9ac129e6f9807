"""Who is sent where: what a replica holds against what waits there, and whatever becomes of replicas and their digests."""

from collections import Counter
from collections.abc import Sequence

import pytest

from benches.cluster.engines import Blocks
from benches.cluster.loads import chats
from benches.cluster.rules import RULES
from benches.cluster.simulation import in_one_cache, simulate
from weft.ray.digest import BLOCK, Digest, block_hashes, pack
from weft.ray.routing import GUARD_SLOTS, MAX_AGE_S, MAX_PROMPTS, MAX_REPLICAS, MAX_SENT, SETTLED_S, Candidate, Router

NOW = 1_000.0
N_SLOTS = 8
TEXT = list(range(4_000))
OTHER = list(range(9_000, 13_000))


def replica(
    name: str,
    held: Sequence[int] = (),
    *,
    stored: Sequence[int] = (),
    n_ongoing: int = 0,
    made_at: float = NOW,
    n_pending: int = 0,
    n_queued: int = 0,
) -> Candidate:
    digest = Digest(
        made_at=made_at,
        n_queued=n_queued,
        n_running=0,
        n_slots=N_SLOTS,
        n_free_cells=0,
        n_pending=n_pending,
        pool=pack(block_hashes(held)),
        stored=pack(block_hashes(stored)),
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


def test_what_is_stored_is_worth_almost_as_much_as_what_is_in_cells(router: Router) -> None:
    assert first(router, TEXT, replica("stored", stored=TEXT), replica("less", TEXT[:3_900])) == "stored"
    assert first(router, TEXT, replica("stored", stored=TEXT), replica("cells", TEXT)) in {"stored", "cells"}
    assert first(router, TEXT, replica("stored", TEXT[:640], stored=TEXT), replica("none")) == "stored"


def test_a_thinned_digest_still_tells_how_far_a_text_is_known(router: Router) -> None:
    every_fourth = block_hashes(TEXT)[3::4]
    thin = replica("thin")
    assert thin.digest is not None
    digest = Digest(made_at=NOW, n_queued=0, n_running=0, n_slots=8, n_free_cells=0, pool=pack(every_fourth))
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
    offers = [replica("a", made_at=at), replica("b", TEXT[:BLOCK], made_at=at)]
    assert first(router, TEXT, *offers, now=at) == "b"


def test_what_still_waits_there_will_be_held(router: Router) -> None:
    router.sent("a", TEXT, now=NOW)
    at = NOW + 60
    offers = [replica("a", made_at=at, n_queued=1), replica("b", TEXT[:BLOCK], made_at=at)]
    assert first(router, TEXT, *offers, now=at) == "a"


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
    assert "gone" not in router.choose(TEXT, [replica("left")], now=NOW, sticky="a key")


def test_a_key_stays_with_its_replica_and_moves_only_where_that_goes() -> None:
    names = [f"replica {nth}" for nth in range(10)]
    keys = [f"key {nth}" for nth in range(500)]

    def owners(names: Sequence[str]) -> dict[str, str]:
        candidates = [replica(name) for name in names]
        return {key: Router().choose(TEXT, candidates, now=NOW, sticky=key)[0] for key in keys}

    before, after = owners(names), owners([name for name in names if name != "replica 3"])
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == "replica 3"}
    assert all(20 < n < 90 for n in Counter(before.values()).values()), "each has about a tenth"
    assert owners(names[::-1]) == before


def test_a_key_leaves_a_replica_that_is_far_busier_for_the_next(router: Router) -> None:
    names = "abcd"
    ranked = router.choose(TEXT, [replica(name) for name in names], now=NOW, sticky="key")
    busy = [replica(name, n_ongoing=100 * (name == ranked[0])) for name in names]
    assert router.choose(TEXT, busy, now=NOW, sticky="key") == [*ranked[1:], ranked[0]]


def test_texts_of_another_key_are_others(router: Router) -> None:
    held, other = replica("held", TEXT), replica("other", OTHER)
    ranked = {tuple(router.choose(TEXT, [held, other], now=NOW, salt=b"another")) for _ in range(40)}
    assert ranked == {("held", "other"), ("other", "held")}, "drawn: neither is known to hold anything of it"


def test_memory_is_bounded() -> None:
    router = Router()
    for nth in range(MAX_REPLICAS + 10):
        router.sent(f"replica {nth}", TEXT[:BLOCK], now=NOW)
    assert len(router._known) == MAX_REPLICAS
    assert "replica 0" not in router._known
    for nth in range(400):
        router.sent("one", [nth] * 100 * BLOCK, now=NOW + nth)
    known = router._known["one"]
    assert (len(known.sent), len(known.prompts)) == (MAX_SENT, MAX_PROMPTS)
    assert list(known.sent.values()) == sorted(known.sent.values()), "the oldest have gone"


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
