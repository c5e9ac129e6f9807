//! The tokens that may be drawn, and the one pass over a row of logits that finds the best of them.

use std::ops::Range;

use crate::request::Token;

/// Rows of at least this many logits for each of the `k` tokens to keep are cut into wide chunks. Measured: the width balances the
/// number of chunks against what is looked at again, `k` chunks.
const WIDE_PER_KEPT: usize = 512;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) token: Token,
    pub(crate) logit: f32,
}

impl Candidate {
    /// A number that is smaller the better the candidate is.
    fn rank(self) -> u64 {
        rank(self.logit, self.token.unsigned_abs())
    }
}

/// A row of logits in which a few tokens have others than the model gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    /// The model's, by token id.
    pub(crate) logits: &'a [f32],
    /// What stands in place of them, in order of token id, each token once and inside of the row.
    pub(crate) patches: &'a [Candidate],
}

impl Row<'_> {
    /// Sum of `exp(logit − best)` over the tokens that may be drawn, in order of token id and in single precision, as llama.cpp sums.
    pub(crate) fn total_weight(&self, best: f32) -> f32 {
        let add = |sum: f32, &logit: &f32| if logit >= f32::MIN { sum + (logit - best).exp() } else { sum };
        let (mut sum, mut start) = (0.0, 0);
        for patch in self.patches {
            let end = position(patch.token);
            sum = add(self.logits[start..end].iter().fold(sum, add), &patch.logit);
            start = end + 1;
        }
        self.logits[start..].iter().fold(sum, add)
    }

    /// The logits of chunk `index`, patched; what lies beyond the row is −∞.
    fn chunk<const WIDTH: usize>(&self, index: usize) -> [f32; WIDTH] {
        let mut chunk = [f32::NEG_INFINITY; WIDTH];
        let start = index * WIDTH;
        let logits = &self.logits[start..self.logits.len().min(start + WIDTH)];
        chunk[..logits.len()].copy_from_slice(logits);
        let first = self.patches.partition_point(|patch| position(patch.token) < start);
        for patch in self.patches[first..].iter().take_while(|patch| position(patch.token) < start + WIDTH) {
            chunk[position(patch.token) - start] = patch.logit;
        }
        chunk
    }
}

/// The tokens that may be drawn. A token whose logit is −∞ or NaN is none of them.
///
/// Among equal logits the lower token id comes first. (llama.cpp leaves their order to the C++ library's sort.)
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidates {
    /// Most likely first where `is_sorted`, else in order of token id.
    pub(crate) list: Vec<Candidate>,
    pub(crate) is_sorted: bool,
    /// The greatest logits of the chunks of the last row as ranks, kept for their memory.
    maxima: Vec<u64>,
}

impl Candidates {
    /// Takes every token of the row, in order of token id.
    pub(crate) fn keep_all(&mut self, row: Row<'_>) {
        self.list.clear();
        self.is_sorted = false;
        self.push_all::<64>(row);
    }

    /// Takes the tokens whose logits are at least the greatest one plus `margin`, and the most likely token in any case, in order of
    /// token id. Of the rest no more is looked at than the greatest logit of each chunk.
    pub(crate) fn keep_near_best(&mut self, row: Row<'_>, margin: f32) {
        const WIDTH: usize = 64;
        self.list.clear();
        self.is_sorted = false;
        self.find_maxima::<WIDTH>(row);
        let Some(&best) = self.maxima.iter().min() else { return };
        let floor = (greatest(&row.chunk::<WIDTH>(ranked_position(best))) + margin).max(f32::MIN);
        let last = rank(floor, u32::MAX);
        for index in 0..self.maxima.len() {
            if self.maxima[index] <= last {
                self.push_chunk::<WIDTH>(row, index, floor);
            }
        }
        if self.list.is_empty() {
            self.keep_best(row, 1);
        }
    }

    /// Takes the `k` most likely tokens of the row, most likely first (top-k: Fan et al., "Hierarchical Neural Story
    /// Generation", 2018). `k` must be at least 1; a row with fewer tokens gives them all.
    ///
    /// The row is cut into chunks, and one pass, which compilers turn into vector code, finds the greatest logit of each. The `k` best
    /// tokens lie in the `k` chunks whose greatest logits are the best `k`: so only those are looked at again.
    /// The cost is that of reading the row once, whatever its order.
    pub(crate) fn keep_best(&mut self, row: Row<'_>, k: usize) {
        self.list.clear();
        self.is_sorted = true;
        if row.logits.len() / k >= WIDE_PER_KEPT {
            self.push_best::<64>(row, k);
        } else {
            self.push_best::<16>(row, k);
        }
        self.sort(0..k);
        self.list.truncate(k);
    }

    /// Brings the most likely candidates of `places`, which end where the list ends at the latest, to these places, in order. Those
    /// before them must be in their places already; those after them follow in any order.
    pub(crate) fn sort(&mut self, places: Range<usize>) {
        let end = places.end.min(self.list.len());
        let open = &mut self.list[places.start..];
        let n = end - places.start;
        if 0 < n && n < open.len() {
            open.select_nth_unstable_by_key(n - 1, |candidate| candidate.rank());
        }
        open[..n].sort_unstable_by_key(|candidate| candidate.rank());
    }

    /// The most likely candidate.
    pub(crate) fn best(&self) -> Option<Candidate> {
        let n_open = if self.is_sorted { 1 } else { self.list.len() };
        self.list.iter().take(n_open).copied().reduce(|best, other| if other.logit > best.logit { other } else { best })
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
        // At least k tokens are as likely as this one, and the least number leaves out −∞ and NaN.
        let floor = greatest(&row.chunk::<WIDTH>(ranked_position(kth))).max(f32::MIN);
        for at in 0..k {
            self.push_chunk::<WIDTH>(row, ranked_position(self.maxima[at]), floor);
        }
    }

    /// Finds the greatest logit of each chunk, in one pass over the row.
    fn find_maxima<const WIDTH: usize>(&mut self, row: Row<'_>) {
        let (chunks, rest) = row.logits.as_chunks::<WIDTH>();
        self.maxima.clear();
        self.maxima.extend(chunks.iter().zip(0..).map(|(chunk, index)| rank(greatest(chunk), index)));
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

    /// Takes the tokens of one chunk whose logits are `floor` or more; a finite floor leaves out −∞ and NaN.
    fn push_chunk<const WIDTH: usize>(&mut self, row: Row<'_>, index: usize, floor: f32) {
        for (logit, at) in row.chunk::<WIDTH>(index).into_iter().zip(index * WIDTH..) {
            if logit >= floor {
                self.list.push(Candidate { token: token_at(at), logit });
            }
        }
    }
}

/// Where a token of the row stands in it.
fn position(token: Token) -> usize {
    usize::try_from(token).expect("a token of the row is not negative")
}

/// The token at a place of the row.
fn token_at(position: usize) -> Token {
    Token::try_from(position).expect("a row is at most as long as there are token ids")
}

/// The greatest of some logits; NaN counts as −∞.
fn greatest<const WIDTH: usize>(logits: &[f32; WIDTH]) -> f32 {
    // Sixteen maxima side by side, so that the comparisons become vector instructions without reordering any.
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

/// A number that is smaller the better the logit is, and among equal logits the lower the position. The logit must not be NaN.
fn rank(logit: f32, position: u32) -> u64 {
    // Adding zero makes −0 and 0 one number. Flipped like this, the bits of floats are ordered as the floats are.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    (u64::from(!ascending) << 32) | u64::from(position)
}

/// The position that a rank was made of.
fn ranked_position(rank: u64) -> usize {
    usize::try_from(rank & 0xffff_ffff).expect("an index fits into a usize")
}

fn chunk_rank<const WIDTH: usize>(row: Row<'_>, index: usize) -> u64 {
    rank(greatest(&row.chunk::<WIDTH>(index)), u32::try_from(index).expect("a row has fewer chunks than token ids"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::rng::Mt19937;

    fn kept(logits: &[f32], patches: &[(Token, f32)], k: usize) -> Vec<Token> {
        let patches: Vec<Candidate> = patches.iter().map(|&(token, logit)| Candidate { token, logit }).collect();
        let mut candidates = Candidates::default();
        candidates.keep_best(Row { logits, patches: &patches }, k);
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    /// What `kept` must give: everything sorted.
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
    fn more_than_there_are_gives_all_of_them() {
        assert_eq!(kept(&[1.0, 4.0], &[], 100), [1, 0]);
        assert!(kept(&[], &[], 1).is_empty());
    }

    #[test]
    fn among_equals_the_lower_token_comes_first() {
        assert_eq!(kept(&vec![0.0; 40_000], &[], 3), [0, 1, 2]);
        assert_eq!(kept(&[0.0, -0.0, 0.0], &[], 3), [0, 1, 2]);
        assert_eq!(kept(&[0.0; 200], &[(3, 1.0), (100, 0.0)], 3), [3, 0, 1]);
    }

    #[test]
    fn impossible_tokens_are_no_candidates() {
        assert_eq!(kept(&[f32::NEG_INFINITY, 1.0, f32::NAN, f32::MIN], &[], 4), [1, 3]);
        assert!(kept(&[f32::NAN; 100], &[], 4).is_empty());
        assert_eq!(kept(&[1.0, 2.0], &[(1, f32::NEG_INFINITY)], 2), [0]);
    }

    #[test]
    fn a_nan_hides_none_of_its_neighbours() {
        let mut logits = vec![f32::NAN; 40_000];
        logits[20_001] = 1.0;
        assert_eq!(kept(&logits, &[], 1), [20_001]);
    }

    #[test]
    fn infinity_is_the_best() {
        assert_eq!(kept(&[f32::MAX, f32::INFINITY], &[], 2), [1, 0]);
    }

    #[test]
    fn keeping_all_leaves_the_order_of_the_row() {
        let mut candidates = Candidates::default();
        let patches = [Candidate { token: 1, logit: 7.0 }];
        candidates.keep_all(Row { logits: &[1.0, 2.0, f32::NAN, 0.0], patches: &patches });
        let list: Vec<(Token, f32)> = candidates.list.iter().map(|candidate| (candidate.token, candidate.logit)).collect();
        assert_eq!(list, [(0, 1.0), (1, 7.0), (3, 0.0)]);
        assert_eq!(candidates.best().unwrap().token, 1);
    }

    #[test]
    fn random_rows_give_what_sorting_gives() {
        let mut rng = Mt19937::new(11);
        let mut below = |n: usize| rng.next_u32() as usize % n;
        for round in 0..400 {
            let n_vocab = 1 + if round % 8 == 0 { below(40_000) } else { below(3_000) };
            // Few distinct values make many ties; the other rows have next to none.
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
                "round {round}, {n_vocab} pieces, k {k}"
            );
        }
    }
}
