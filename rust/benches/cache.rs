//! Cost of single calls of the cache with large contents: 10,000 nodes in the tree, 1,000,000 tokens in the host cache, and a
//! text of 131,072 tokens that 254 sequence ids share.
//!
//! `cargo bench --no-default-features --bench cache`, a few seconds. Nothing is computed or copied: only the bookkeeping is
//! timed. Each row shows the median and the maximum of its calls; a step may make hundreds of them between two decodes.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]

use std::time::Instant;

use weft::cache::{
    AdapterSchedule, EvictionReason, ForkRule, IdleCost, KvCache, KvSeqId, MemoryKind, PathRemoval, PrefixMatch, PrefixQuery,
    SavedState,
};
use weft::request::Token;

/// Tokens of the shared text.
const N_SHARED: usize = 131_072;

/// Sequence ids that share it.
const N_IDS: usize = 254;

/// Texts that are in the host cache only; half of them continue the shared text.
const N_STORED: usize = 10_000;
const N_STORED_TOKENS: usize = 100;

/// Cells of the device cache: enough for the shared text to be far above free low cells.
const N_CELLS: u32 = 420_000;

/// Bytes of a token in the host cache. Their content is never read here, so the minimum is used.
const BYTES_PER_TOKEN: u64 = 1;

/// Maximum units that one call moves or removes.
const MAX_UNITS: u64 = 64;

fn kind() -> MemoryKind {
    MemoryKind {
        forks: ForkRule::Anywhere,
        idle_cost: IdleCost::Scores,
        can_be_saved: true,
        bytes_per_token: BYTES_PER_TOKEN,
        bytes_per_state: 0,
        tokens_per_run: 2,
        n_window: 0,
    }
}

/// Returns a text without a common first token with a text of another seed.
fn text(seed: usize, n: usize) -> Vec<Token> {
    (0..n).map(|at| Token::try_from(seed * 7 + at % 5).expect("a small number")).collect()
}

/// Durations of the calls of one row, in microseconds.
#[derive(Default)]
struct Calls(Vec<f64>);

impl Calls {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = call();
        self.0.push(started.elapsed().as_secs_f64() * 1e6);
        result
    }

    fn print(&mut self, name: &str) {
        self.0.sort_by(f64::total_cmp);
        let n = self.0.len();
        let total_ms = self.0.iter().sum::<f64>() / 1e3;
        let Some(&longest) = self.0.last() else { return println!("{name:<44} nothing was called") };
        println!("{name:<44} {n:>6} {:>12.2} {longest:>12.2} {total_ms:>12.2}", self.0[n / 2]);
    }
}

/// A cache, and the adapters of the texts in it.
struct Bench {
    cache: KvCache,
    variants: AdapterSchedule,
}

impl Bench {
    fn find(&self, tokens: &[Token]) -> PrefixMatch {
        let at_most = u32::try_from(tokens.len()).expect("a text fits a context");
        let wanted = PrefixQuery { adapters: &self.variants, tokens, at_least: 1, at_most, takes_logits: false };
        self.cache.find(&wanted, |_, n_held, n| n <= n_held).unwrap_or_default()
    }

    fn place(&mut self, matched: &PrefixMatch) -> KvSeqId {
        let id = self.cache.place(&self.variants, Some(matched)).expect("an id is free");
        self.follow();
        id
    }

    /// Takes the operations that the cache requested, as the worker does.
    fn follow(&mut self) {
        assert!(self.cache.take_ops().count() < 10_000, "a call asks for little");
    }

    fn write(&mut self, tokens: &[Token]) -> KvSeqId {
        let matched = self.find(tokens);
        assert!(matched.reloads.is_empty(), "what is written here is not stored");
        let id = self.place(&matched);
        self.cache.extend([(id, &tokens[matched.n_device as usize..])]);
        id
    }

    fn remove_tail(&mut self, departure: &PathRemoval, why: EvictionReason) {
        let n_bytes = departure.saves.as_ref().map_or(0, |range| range.len() * usize::try_from(BYTES_PER_TOKEN).expect("few"));
        let whole_from = departure.saves.as_ref().map_or(0, |range| range.start);
        let saved = departure.saves.is_some().then(|| SavedState { bytes: vec![0; n_bytes].into(), whole_from });
        self.cache.remove_tail(departure, saved, why);
        self.follow();
    }

    fn evict(&mut self) -> bool {
        let Some(departure) = self.cache.next_removal(u64::MAX, EvictionReason::MemoryPressure) else { return false };
        self.remove_tail(&departure, EvictionReason::MemoryPressure);
        true
    }
}

/// Creates a host cache of [`N_STORED`] texts, half of them after `shared`, whose running sequence is returned; its cells are
/// far above free ones.
fn fill(shared: &[Token]) -> (Bench, KvSeqId) {
    let cache = KvCache::new(N_CELLS, 256, kind(), None);
    let mut bench = Bench { cache, variants: AdapterSchedule::default() };
    let low = bench.write(&text(1, N_SHARED + 4 * N_IDS + 8192));
    let first = bench.write(shared);
    bench.cache.unpin(low);
    assert!(bench.evict(), "the low cells are idle");
    for seed in 0..N_STORED {
        let tokens = text(10 + seed, N_STORED_TOKENS);
        // Half of them continue the shared text.
        let id = if seed % 2 == 0 { bench.write(&tokens) } else { bench.write(&[shared, &tokens].concat()) };
        bench.cache.unpin(id);
        assert!(bench.evict(), "what is idle can leave");
    }
    let (_, _, n_pieces) = bench.cache.host_cache_size();
    assert!(n_pieces > N_STORED, "{n_pieces} pieces are stored");
    (bench, first)
}

/// Measures 254 sequences that share a text; each generates one different token and ends.
fn shared_by_all() {
    let shared = text(0, N_SHARED);
    let (mut bench, first) = fill(&shared);
    let (mut finds, mut places, mut unpins, mut ids) = <(Calls, Calls, Calls, Calls)>::default();
    let mut branches = Vec::new();
    for branch in 0..N_IDS - 1 {
        let matched = finds.time(|| bench.find(&shared));
        assert_eq!(matched.n_device as usize, N_SHARED);
        let id = places.time(|| bench.place(&matched));
        let own = text(20_000 + branch, 1);
        bench.cache.extend([(id, &own[..])]);
        ids.time(|| std::hint::black_box((bench.cache.n_free_ids(), bench.cache.n_ids_used())));
        branches.push(id);
    }
    finds.print("find, the text that all share");
    places.print("place, on all of it");
    ids.print("n_free_ids and n_ids_used");
    let mut next_departures = Calls::default();
    for id in branches.drain(..) {
        unpins.time(|| bench.cache.unpin(id));
        bench.follow();
        next_departures.time(|| bench.cache.next_removal(MAX_UNITS, EvictionReason::MemoryPressure).expect("one is idle"));
    }
    unpins.print("unpin, one token of its own");
    next_departures.print("next_departure, up to 253 idle");
    relocate(&mut bench);
    let mut departs = Calls::default();
    while let Some(departure) = bench.cache.next_removal(MAX_UNITS, EvictionReason::MemoryPressure) {
        departs.time(|| bench.remove_tail(&departure, EvictionReason::MemoryPressure));
        if departs.0.len() == 200 {
            break;
        }
    }
    departs.print("depart, one token");
    let mut full = Calls::default();
    for _ in 0..5 {
        full.time(|| bench.find(&[&shared[..], &text(11, N_STORED_TOKENS)].concat()));
    }
    full.print("find, with a stored rest");
    bench.cache.unpin(first);
}

/// Measures moving the high cells of a text that all sequences share down.
fn relocate(bench: &mut Bench) {
    let (mut looks, mut moves) = <(Calls, Calls)>::default();
    for _ in 0..5 {
        let look = looks.time(|| bench.cache.next_relocation(MAX_UNITS));
        let relocation = look.expect("low cells are free");
        assert!(!relocation.range.is_empty() && relocation.range.len() <= 64, "{:?}", relocation.range);
        moves.time(|| bench.cache.record_relocation(&relocation));
    }
    looks.print("next_relocation, 64 units");
    moves.print("relocated");
}

/// Measures offloading a long text in parts, and reloading it.
fn in_pieces() {
    let tokens = text(0, N_SHARED);
    let mut bench = Bench { cache: KvCache::new(N_CELLS, 256, kind(), None), variants: AdapterSchedule::default() };
    let id = bench.write(&tokens);
    bench.cache.unpin(id);
    let (mut looks, mut departs, mut restores) = <(Calls, Calls, Calls)>::default();
    while let Some(departure) = looks.time(|| bench.cache.next_removal(MAX_UNITS, EvictionReason::MemoryPressure)) {
        departs.time(|| bench.remove_tail(&departure, EvictionReason::MemoryPressure));
    }
    looks.print("next_departure, a text in 2,115 pieces");
    departs.print("depart, piece by piece");
    let mut finds = Calls::default();
    let matched = (0..5).map(|_| finds.time(|| bench.find(&tokens))).last().expect("it was looked for");
    finds.print("find, 2,115 stored pieces");
    assert_eq!(matched.n_tokens() as usize, N_SHARED);
    let id = bench.place(&PrefixMatch::default());
    for restore in &matched.reloads {
        let kept = restore.kept.start as usize..restore.kept.end as usize;
        restores.time(|| bench.cache.record_reload(id, &tokens[kept], &restore.range));
    }
    restores.print("restored, piece by piece");
}

/// Measures a full host cache: offloading evicts the least recently used entry.
fn full_store() {
    let cache = KvCache::new(N_CELLS, 256, kind(), Some(N_STORED as u64 * (N_STORED_TOKENS as u64 + 512)));
    let mut bench = Bench { cache, variants: AdapterSchedule::default() };
    let (mut looks, mut departs) = <(Calls, Calls)>::default();
    for seed in 0..N_STORED + 2000 {
        let id = bench.write(&text(10 + seed, N_STORED_TOKENS));
        bench.cache.unpin(id);
        if seed < N_STORED {
            assert!(bench.evict(), "what is idle can leave");
            continue;
        }
        let departure = looks.time(|| bench.cache.next_removal(u64::MAX, EvictionReason::MemoryPressure)).expect("one is idle");
        departs.time(|| bench.remove_tail(&departure, EvictionReason::MemoryPressure));
    }
    looks.print("next_departure, into a full store");
    departs.print("depart, into a full store");
}

fn main() {
    println!("{:<44} {:>6} {:>12} {:>12} {:>12}", "call", "calls", "median µs", "longest µs", "total ms");
    shared_by_all();
    in_pieces();
    full_store();
}
