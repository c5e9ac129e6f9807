//! The tokens that may be drawn, and the single pass over a row of logits that finds the best of them.

use std::ops::Range;

use crate::request::Token;
use crate::sampling::order;
use crate::sampling::row::{Candidate, Row, position, rank, ranked_logit, ranked_position, token_at};

/// Logits per token to keep from which chunks are wide. Measured: balances the number of chunks against those read again.
const WIDE_PER_KEPT: usize = 512;

const WIDE: usize = 64;
const NARROW: usize = 16;

/// The tokens that may be drawn, without those whose logit is −∞ or NaN; +∞ becomes the greatest finite logit. Of equal logits
/// the lower token id sorts first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidates {
    /// If not `is_sorted`, in the order that the steps left, which is the order of the draw.
    pub(crate) list: Vec<Candidate>,
    pub(crate) is_sorted: bool,
    /// Tokens that llama.cpp keeps with a logit of −∞: never drawn, but some steps count them.
    pub(crate) n_impossible: usize,
    probabilities: Vec<f32>,
    maxima: Vec<u64>,
}

impl Candidates {
    /// Keeps every token of the row, in order of token id.
    pub(crate) fn keep_all(&mut self, row: Row<'_>) {
        self.clear();
        self.push_all::<WIDE>(row);
        self.n_impossible = row.logits.len() - self.list.len();
    }

    /// Keeps, in order of token id, the most likely token and those at most `-margin` below it.
    pub(crate) fn keep_near_best(&mut self, row: Row<'_>, margin: f32) {
        self.clear();
        self.find_maxima::<WIDE>(row);
        let Some(&best) = self.maxima.iter().min() else { return };
        let floor = max_logit(&row.chunk::<WIDE>(ranked_position(best))) + margin;
        self.push_above::<WIDE>(row, floor);
        if self.list.is_empty() {
            self.keep_best(row, 1);
        }
    }

    /// Keeps the tokens whose logits are at least `floor`, in order of token id, and counts the others as impossible.
    pub(crate) fn keep_above(&mut self, row: Row<'_>, floor: f32) {
        self.clear();
        self.find_maxima::<WIDE>(row);
        self.push_above::<WIDE>(row, floor);
        self.n_impossible = row.logits.len() - self.list.len();
    }

    /// Keeps the `k ≥ 1` most likely tokens, most likely first (top-k: Fan et al., "Hierarchical Neural Story Generation", 2018).
    /// One pass, which compilers vectorise, finds the greatest logit of each chunk; only the best `k` chunks are read again.
    pub(crate) fn keep_best(&mut self, row: Row<'_>, k: usize) {
        self.clear();
        self.is_sorted = true;
        if row.logits.len() / k >= WIDE_PER_KEPT {
            self.push_best::<WIDE>(row, k);
        } else {
            self.push_best::<NARROW>(row, k);
        }
        self.sort(0..k);
        self.list.truncate(k);
        self.n_impossible = row.logits.len().min(k) - self.list.len();
    }

    pub(crate) fn n_all(&self) -> usize {
        self.list.len() + self.n_impossible
    }

    /// Keeps the first `n` tokens; impossible tokens come last.
    pub(crate) fn truncate(&mut self, n: usize) {
        let n = n.min(self.n_all());
        self.list.truncate(n);
        self.n_impossible = n - self.list.len();
    }

    pub(crate) fn keep_only(&mut self, candidate: Candidate) {
        self.n_impossible = self.n_all() - 1;
        self.list.clear();
        self.list.push(candidate);
    }

    pub(crate) fn change(&mut self, change: impl Fn(Candidate) -> f32) {
        let n = self.list.len();
        self.list.retain_mut(|candidate| {
            candidate.logit = change(*candidate).min(f32::MAX);
            candidate.logit >= f32::MIN
        });
        self.n_impossible += n - self.list.len();
        self.is_sorted = false;
    }

    pub(crate) fn sort_all(&mut self) {
        if self.is_sorted {
            return;
        }
        self.is_sorted = true;
        let list = &mut self.list;
        if list.len() < order::MIN_RADIX_SORT {
            return list.sort_unstable_by_key(|candidate| candidate.rank());
        }
        let ranks = list.iter().map(|candidate| candidate.rank()).collect();
        order::with_sorted(ranks, |ranks| {
            let candidate = |&rank: &u64| Candidate { token: token_at(ranked_position(rank)), logit: ranked_logit(rank) };
            list.clear();
            list.extend(ranks.iter().map(candidate));
        });
    }

    /// Returns the candidates with their probabilities, summed and divided in single precision, in the order of the list.
    pub(crate) fn softmax(&mut self) -> (&[Candidate], &[f32]) {
        let best = self.best().map_or(0.0, |best| best.logit);
        let Self { list, probabilities, .. } = self;
        probabilities.clear();
        probabilities.extend(list.iter().map(|candidate| (candidate.logit - best).exp()));
        let total = probabilities.iter().fold(0.0_f32, |sum, weight| sum + weight);
        for weight in probabilities.iter_mut() {
            *weight /= total;
        }
        (list, probabilities)
    }

    /// Moves the most likely candidates of `positions` there, in order; those at lower positions must be in order already.
    pub(crate) fn sort(&mut self, positions: Range<usize>) {
        let end = positions.end.min(self.list.len());
        let unsorted = &mut self.list[positions.start..];
        let n = end - positions.start;
        if 0 < n && n < unsorted.len() {
            unsorted.select_nth_unstable_by_key(n - 1, |candidate| candidate.rank());
        }
        unsorted[..n].sort_unstable_by_key(|candidate| candidate.rank());
    }

    pub(crate) fn best(&self) -> Option<Candidate> {
        let n_searched = if self.is_sorted { 1 } else { self.list.len() };
        self.list.iter().take(n_searched).copied().reduce(|best, other| if other.logit > best.logit { other } else { best })
    }

    pub(crate) fn logprobs(&self, token: Token, n: usize) -> (f32, Vec<(Token, f32)>) {
        let Some(best) = self.list.iter().copied().min_by_key(|candidate| candidate.rank()) else {
            return (f32::NEG_INFINITY, Vec::new());
        };
        let total: f64 = self.list.iter().map(|candidate| f64::from(candidate.logit - best.logit).exp()).sum();
        #[expect(clippy::cast_possible_truncation, reason = "the logarithm of a sum of at most 2³¹ numbers up to 1 is small")]
        let log_total = total.ln() as f32;
        let logprob = |candidate: &Candidate| candidate.logit - best.logit - log_total;
        let chosen = self.list.iter().find(|candidate| candidate.token == token).map_or(f32::NEG_INFINITY, logprob);
        let mut top = Self { list: self.list.clone(), ..Self::default() };
        top.sort(0..n);
        (chosen, top.list.iter().take(n).map(|candidate| (candidate.token, logprob(candidate))).collect())
    }

    pub(crate) fn distribution(&self) -> Vec<(Token, f64)> {
        let Some(best) = self.best() else { return Vec::new() };
        let weight = |candidate: &Candidate| f64::from(candidate.logit) - f64::from(best.logit);
        let log_total = self.list.iter().map(|candidate| weight(candidate).exp()).sum::<f64>().ln();
        self.list.iter().map(|candidate| (candidate.token, weight(candidate) - log_total)).collect()
    }

    fn clear(&mut self) {
        self.list.clear();
        self.is_sorted = false;
        self.n_impossible = 0;
    }

    fn push_above<const WIDTH: usize>(&mut self, row: Row<'_>, floor: f32) {
        let floor = floor.max(f32::MIN);
        let last = rank(floor, u32::MAX);
        for index in 0..self.maxima.len() {
            if self.maxima[index] <= last {
                self.push_chunk::<WIDTH>(row, index, floor);
            }
        }
    }

    fn push_all<const WIDTH: usize>(&mut self, row: Row<'_>) {
        for index in 0..row.logits.len().div_ceil(WIDTH) {
            self.push_chunk::<WIDTH>(row, index, f32::MIN);
        }
    }

    fn push_best<const WIDTH: usize>(&mut self, row: Row<'_>, k: usize) {
        if row.logits.len().div_ceil(WIDTH) <= k {
            return self.push_all::<WIDTH>(row);
        }
        self.find_maxima::<WIDTH>(row);
        let (_, &mut kth, _) = self.maxima.select_nth_unstable(k - 1);
        // At least k tokens are at least as likely; the least finite number excludes −∞ and NaN.
        let floor = max_logit(&row.chunk::<WIDTH>(ranked_position(kth))).max(f32::MIN);
        for index in 0..k {
            self.push_chunk::<WIDTH>(row, ranked_position(self.maxima[index]), floor);
        }
    }

    fn find_maxima<const WIDTH: usize>(&mut self, row: Row<'_>) {
        let (chunks, rest) = row.logits.as_chunks::<WIDTH>();
        self.maxima.clear();
        self.maxima.extend(chunks.iter().zip(0..).map(|(chunk, index)| rank(max_logit(chunk), index)));
        if !rest.is_empty() {
            self.maxima.push(chunk_rank::<WIDTH>(row, chunks.len()));
        }
        let mut last = None;
        for index in row.patches.iter().map(|patch| position(patch.token) / WIDTH) {
            if last.replace(index) != Some(index) {
                self.maxima[index] = chunk_rank::<WIDTH>(row, index);
            }
        }
    }

    fn push_chunk<const WIDTH: usize>(&mut self, row: Row<'_>, index: usize, floor: f32) {
        for (logit, position) in row.chunk::<WIDTH>(index).into_iter().zip(index * WIDTH..) {
            if logit >= floor {
                self.list.push(Candidate { token: token_at(position), logit: logit.min(f32::MAX) });
            }
        }
    }
}

fn max_logit<const WIDTH: usize>(logits: &[f32; WIDTH]) -> f32 {
    // Sixteen parallel maxima let the compiler vectorise the comparisons without reordering them.
    let mut lanes = [f32::NEG_INFINITY; 16];
    for part in logits.as_chunks::<16>().0 {
        for (lane, &logit) in lanes.iter_mut().zip(part) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let mut half = 8;
    while half > 0 {
        for i in 0..half {
            lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
        }
        half /= 2;
    }
    lanes[0]
}

fn chunk_rank<const WIDTH: usize>(row: Row<'_>, index: usize) -> u64 {
    rank(max_logit(&row.chunk::<WIDTH>(index)), u32::try_from(index).expect("a row has fewer chunks than token ids"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::draw::rng::Mt19937;

    fn kept(logits: &[f32], patches: &[(Token, f32)], k: usize) -> Vec<Token> {
        let patches: Vec<Candidate> = patches.iter().map(|&(token, logit)| Candidate { token, logit }).collect();
        let mut candidates = Candidates::default();
        candidates.keep_best(Row { logits, patches: &patches }, k);
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    /// The expected result of `kept`, by sorting all tokens.
    fn kept_by_sorting(logits: &[f32], patches: &[(Token, f32)], k: usize) -> Vec<Token> {
        let mut all: Vec<(Token, f32)> = (0..).zip(logits.iter().copied()).collect();
        for &(token, logit) in patches {
            all[position(token)].1 = logit;
        }
        all.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all.iter().take(k).map(|&(token, _)| token).collect()
    }

    #[test]
    fn the_best_come_first() {
        assert_eq!(kept(&[1.0, 4.0, 2.0, 3.0], &[], 3), [1, 3, 2]);
    }

    #[test]
    fn keeping_more_than_the_row_has_keeps_all() {
        assert_eq!(kept(&[1.0, 4.0], &[], 100), [1, 0]);
        assert!(kept(&[], &[], 1).is_empty());
    }

    #[test]
    fn ties_go_to_the_lower_token() {
        assert_eq!(kept(&vec![0.0; 40_000], &[], 3), [0, 1, 2]);
        assert_eq!(kept(&[0.0, -0.0, 0.0], &[], 3), [0, 1, 2]);
        assert_eq!(kept(&[0.0; 200], &[(3, 1.0), (100, 0.0)], 3), [3, 0, 1]);
    }

    #[test]
    fn impossible_tokens_are_not_candidates() {
        assert_eq!(kept(&[f32::NEG_INFINITY, 1.0, f32::NAN, f32::MIN], &[], 4), [1, 3]);
        assert!(kept(&[f32::NAN; 100], &[], 4).is_empty());
        assert_eq!(kept(&[1.0, 2.0], &[(1, f32::NEG_INFINITY)], 2), [0]);
    }

    #[test]
    fn nan_does_not_hide_its_neighbours() {
        let mut logits = vec![f32::NAN; 40_000];
        logits[20_001] = 1.0;
        assert_eq!(kept(&logits, &[], 1), [20_001]);
    }

    #[test]
    fn infinity_becomes_the_greatest_finite_logit() {
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &[1.0, f32::INFINITY], patches: &[] });
        assert_eq!(candidates.softmax().1, [0.0, 1.0]);
    }

    #[test]
    fn radix_and_comparison_sort_agree() {
        let mut rng = Mt19937::new(2);
        #[expect(clippy::cast_precision_loss, reason = "any number will do")]
        let logits: Vec<f32> = (0..50_000).map(|_| (rng.next_u32() % 9_999) as f32 / 77.0 - 60.0).collect();
        let mut all = Candidates::default();
        all.keep_all(Row { logits: &logits, patches: &[] });
        let mut few_at_a_time = all.clone();
        few_at_a_time.sort(0..50_000);
        all.sort_all();
        assert_eq!(all.list, few_at_a_time.list);
    }

    #[test]
    fn impossible_tokens_are_counted_as_in_llama_cpp() {
        let row = Row { logits: &[1.0, f32::NEG_INFINITY, 3.0, f32::NAN, 2.0], patches: &[] };
        let mut candidates = Candidates::default();
        candidates.keep_all(row);
        assert_eq!((candidates.list.len(), candidates.n_impossible), (3, 2));
        candidates.keep_above(row, 2.0);
        assert_eq!((candidates.list.len(), candidates.n_impossible), (2, 3));
        candidates.truncate(4);
        assert_eq!((candidates.list.len(), candidates.n_impossible), (2, 2));
        candidates.keep_best(row, 4);
        assert_eq!((candidates.list.len(), candidates.n_impossible), (3, 1));
        candidates.truncate(2);
        assert_eq!((candidates.list.len(), candidates.n_impossible), (2, 0));
        candidates.keep_best(row, 2);
        assert_eq!(candidates.n_impossible, 0);
    }

    #[test]
    fn keeping_all_preserves_the_order_of_the_row() {
        let mut candidates = Candidates::default();
        let patches = [Candidate { token: 1, logit: 7.0 }];
        candidates.keep_all(Row { logits: &[1.0, 2.0, f32::NAN, 0.0], patches: &patches });
        let list: Vec<(Token, f32)> = candidates.list.iter().map(|candidate| (candidate.token, candidate.logit)).collect();
        assert_eq!(list, [(0, 1.0), (1, 7.0), (3, 0.0)]);
        assert_eq!(candidates.best().unwrap().token, 1);
    }

    #[test]
    fn keeping_the_best_agrees_with_sorting() {
        let mut rng = Mt19937::new(11);
        let mut below = |n: usize| rng.next_u32() as usize % n;
        for round in 0..400 {
            let n_vocab = 1 + if round % 8 == 0 { below(40_000) } else { below(3_000) };
            // Few distinct values produce many ties; the other rows have almost none.
            let n_values = if round % 2 == 0 { 50 } else { 1 << 30 };
            #[expect(clippy::cast_precision_loss, reason = "any number will do")]
            let mut logit = || match below(50) {
                0 => f32::NEG_INFINITY,
                1 => f32::NAN,
                _ => below(n_values) as f32 / n_values as f32 * 40.0 - 20.0,
            };
            let logits: Vec<f32> = (0..n_vocab).map(|_| logit()).collect();
            let replacements: Vec<f32> = (0..100).map(|_| logit()).collect();
            let mut patches: Vec<(Token, f32)> =
                replacements.into_iter().map(|logit| (token_at(below(n_vocab)), logit)).collect();
            patches.sort_by_key(|&(token, _)| token);
            patches.dedup_by_key(|&mut (token, _)| token);
            patches.truncate(below(101));
            let k = 1 + below(if round % 3 == 0 { n_vocab } else { 100 });
            assert_eq!(
                kept(&logits, &patches, k),
                kept_by_sorting(&logits, &patches, k),
                "round {round}, {n_vocab} tokens, k {k}"
            );
        }
    }
}
