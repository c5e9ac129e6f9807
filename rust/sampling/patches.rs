//! The tokens of a row whose logits are not what the model gave: told apart where they are few, so that the row is not copied.

use std::cell::Cell;
use std::sync::Arc;

use crate::request::{SamplingParams, Token};
use crate::sampling::counts::PER_TOKEN;
use crate::sampling::row::{Candidate, Row, position};

thread_local! {
    /// What a row is copied into. It belongs to the thread and not to a sampler, since a sequence should not keep a vocabulary's
    /// worth of memory.
    static SPARE: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Biases, and what the last row's tokens were changed to.
#[derive(Debug, Clone)]
pub(crate) struct Patches {
    /// In order of token id. Several entries for one token are added one after the other, in the order they were given in. All
    /// branches of a request share them.
    bias: Arc<[(Token, f32)]>,
    /// Each token once, in order of token id.
    list: Vec<Candidate>,
    /// What the list is merged into, kept for its memory.
    merged: Vec<Candidate>,
    /// The row itself with all changes, where they are many; the list is empty then.
    whole: Option<Vec<f32>>,
}

impl Patches {
    /// `end_tokens` are banned where [`SamplingParams::ignore_eos`] is set.
    pub(crate) fn new(params: &SamplingParams, end_tokens: &[Token]) -> Self {
        let banned = end_tokens.iter().filter(|_| params.ignore_eos).map(|&token| (token, f32::NEG_INFINITY));
        let mut bias: Vec<_> = params.logit_bias.iter().copied().chain(banned).collect();
        bias.sort_by_key(|&(token, _)| token);
        Self { bias: bias.into(), list: Vec::new(), merged: Vec::new(), whole: None }
    }

    /// Begins with a new row, whose tokens are changed by their biases. Tokens that it does not hold are left out.
    pub(crate) fn begin(&mut self, logits: &[f32]) {
        self.end();
        let bias = Arc::clone(&self.bias);
        let biased = |logit: f32, entries: &[(Token, f32)]| entries.iter().fold(logit, |logit, &(_, bias)| logit + bias);
        let tokens = bias.chunk_by(|a, b| a.0 == b.0).map(|entries| (entries[0].0, entries));
        if is_many(bias.len(), logits) {
            return self.change_row(logits, |row| {
                for (token, entries) in tokens {
                    if let Some(logit) = logit_mut(row, token) {
                        *logit = biased(*logit, entries);
                    }
                }
            });
        }
        for (token, entries) in tokens {
            if let Some(logit) = logit_of(logits, token) {
                self.list.push(Candidate { token, logit: biased(logit, entries) });
            }
        }
    }

    /// Changes the logits of `tokens`, which are in order of token id, each by the number that comes with it.
    pub(crate) fn change<T: Copy>(&mut self, logits: &[f32], tokens: &[(Token, T)], change: impl Fn(Token, f32, T) -> f32) {
        if tokens.is_empty() {
            return;
        }
        if self.whole.is_some() || is_many(self.list.len() + tokens.len(), logits) {
            return self.change_row(logits, |row| {
                for &(token, by) in tokens {
                    if let Some(logit) = logit_mut(row, token) {
                        *logit = change(token, *logit, by);
                    }
                }
            });
        }
        self.merged.clear();
        let mut before = self.list.iter().copied().peekable();
        for &(token, by) in tokens {
            while let Some(patch) = before.next_if(|patch| patch.token < token) {
                self.merged.push(patch);
            }
            let patched = before.next_if(|patch| patch.token == token).map(|patch| patch.logit);
            if let Some(logit) = patched.or_else(|| logit_of(logits, token)) {
                self.merged.push(Candidate { token, logit: change(token, logit, by) });
            }
        }
        self.merged.extend(before);
        std::mem::swap(&mut self.list, &mut self.merged);
    }

    /// Changes whatever logits of the row.
    pub(crate) fn change_row(&mut self, logits: &[f32], change: impl FnOnce(&mut [f32])) {
        let Self { list, whole, .. } = self;
        let whole = whole.get_or_insert_with(|| {
            let mut row = SPARE.take();
            row.clear();
            row.extend_from_slice(logits);
            for patch in list.drain(..) {
                row[position(patch.token)] = patch.logit;
            }
            row
        });
        change(whole);
    }

    /// The row with what became of it.
    pub(crate) fn row<'a>(&'a self, logits: &'a [f32]) -> Row<'a> {
        Row { logits: self.whole.as_deref().unwrap_or(logits), patches: &self.list }
    }

    /// Forgets the row.
    pub(crate) fn end(&mut self) {
        self.list.clear();
        if let Some(row) = self.whole.take() {
            SPARE.set(row);
        }
    }

    /// Bytes of the biases.
    pub(crate) fn n_bytes(&self) -> usize {
        size_of_val(&*self.bias)
    }

    /// How many numbers a clone would copy.
    #[cfg(test)]
    pub(crate) fn n_own(&self) -> usize {
        self.list.len() + self.merged.len() + self.whole.as_ref().map_or(0, Vec::len)
    }
}

/// Whether it costs less to copy the row than to tell `n` of its tokens apart.
fn is_many(n: usize, logits: &[f32]) -> bool {
    n > logits.len() / PER_TOKEN
}

fn logit_of(logits: &[f32], token: Token) -> Option<f32> {
    usize::try_from(token).ok().and_then(|id| logits.get(id)).copied()
}

fn logit_mut(row: &mut [f32], token: Token) -> Option<&mut f32> {
    usize::try_from(token).ok().and_then(|id| row.get_mut(id))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sampling::candidates::Candidates;
    use crate::sampling::rng::Mt19937;

    fn patched(params: &SamplingParams, logits: &[f32], penalties: &[(Token, f32)]) -> Vec<(Token, f32)> {
        let mut patches = Patches::new(params, &[1]);
        for _ in 0..2 {
            // The second time, what the first one left is forgotten.
            patches.begin(logits);
            patches.change(logits, penalties, |_, logit, penalty| logit * 2.0 - penalty);
        }
        changed(&patches, logits)
    }

    /// The tokens whose logits are others than the row's.
    fn changed(patches: &Patches, logits: &[f32]) -> Vec<(Token, f32)> {
        changed_in(patches.row(logits), logits)
    }

    fn changed_in(row: Row<'_>, logits: &[f32]) -> Vec<(Token, f32)> {
        let mut candidates = Candidates::default();
        candidates.keep_all(row);
        let (all, mut possible) = (0..logits.len(), candidates.list.iter().peekable());
        let became = all.map(|at| possible.next_if(|candidate| position(candidate.token) == at).map(|c| c.logit));
        let became: Vec<f32> = became.map(|logit| logit.unwrap_or(f32::NEG_INFINITY)).collect();
        let tokens = (0..).zip(became).zip(logits).filter(|&((_, after), before)| after.to_bits() != before.to_bits());
        tokens.map(|(changed, _)| changed).collect()
    }

    #[test]
    fn neutral_parameters_change_nothing() {
        assert_eq!(patched(&SamplingParams::default(), &[1.0; 4], &[]), []);
    }

    #[test]
    fn a_bias_is_added_once_per_entry() {
        let params = SamplingParams { logit_bias: vec![(3, 0.5), (0, -1.0), (3, 0.25)], ..SamplingParams::default() };
        assert_eq!(patched(&params, &[1.0; 4], &[]), [(0, 0.0), (3, 1.75)]);
    }

    #[test]
    fn ignoring_the_end_bans_end_tokens_whatever_their_bias() {
        let params = SamplingParams { ignore_eos: true, logit_bias: vec![(1, 50.0)], ..SamplingParams::default() };
        assert_eq!(patched(&params, &[1.0; 4], &[]), [(1, f32::NEG_INFINITY)]);
    }

    #[test]
    fn tokens_outside_of_the_row_are_left_out() {
        let params = SamplingParams { logit_bias: vec![(-1, 1.0), (4, 1.0)], ..SamplingParams::default() };
        assert_eq!(patched(&params, &[0.0; 4], &[(-5, 1.0), (2, 1.0), (7, 1.0)]), [(2, -1.0)]);
    }

    #[test]
    fn bias_comes_before_penalties() {
        let params = SamplingParams { logit_bias: vec![(0, 3.0)], ..SamplingParams::default() };
        assert_eq!(patched(&params, &[-1.0], &[(0, 0.5)]), [(0, 3.5)]);
    }

    #[test]
    fn tokens_of_both_kinds_come_in_order_each_once() {
        let params = SamplingParams { logit_bias: vec![(5, 1.0), (1, 1.0), (3, 1.0)], ..SamplingParams::default() };
        let penalties = [(1, 1.0), (2, 1.0), (4, 1.0)];
        assert_eq!(patched(&params, &[0.0; 6], &penalties), [(1, 1.0), (2, -1.0), (3, 1.0), (4, -1.0), (5, 1.0)]);
    }

    #[test]
    fn few_tokens_are_told_apart_and_many_change_a_copy_of_the_row() {
        let mut rng = Mt19937::new(3);
        let logits: Vec<f32> = (0..20_000_u16).map(f32::from).collect();
        let most = logits.len() / PER_TOKEN;
        for (n_biases, n_penalties) in [(most, 0), (most + 1, 0), (5, most - 5), (5, most + 1), (most + 1, 5), (1, 9_000)] {
            let mut some = |n| -> Vec<(Token, f32)> {
                let mut tokens: BTreeSet<Token> = BTreeSet::new();
                while tokens.len() < n {
                    tokens.insert(Token::try_from(rng.next_u32() % 20_000).unwrap());
                }
                tokens.into_iter().map(|token| (token, 0.5)).collect()
            };
            let (logit_bias, penalties) = (some(n_biases), some(n_penalties));
            let mut expected = logits.clone();
            for &(token, by) in &logit_bias {
                expected[position(token)] += by;
            }
            for &(token, by) in &penalties {
                expected[position(token)] = expected[position(token)] * 2.0 - by;
            }
            let mut patches = Patches::new(&SamplingParams { logit_bias, ..SamplingParams::default() }, &[]);
            patches.begin(&logits);
            patches.change(&logits, &penalties, |_, logit, penalty| logit * 2.0 - penalty);
            let is_many = n_biases > most || n_biases + n_penalties > most;
            assert_eq!(patches.whole.is_some(), is_many, "{n_biases}, {n_penalties}");
            let whole = Row { logits: &expected, patches: &[] };
            assert_eq!(changed(&patches, &logits), changed_in(whole, &logits));
            patches.end();
            assert!(patches.whole.is_none() && patches.list.is_empty());
        }
    }
}
