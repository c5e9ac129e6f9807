//! The tokens of a row whose logits are not what the model gave, told apart so that the row itself is never copied.

use crate::request::{SamplingParams, Token};
use crate::sampling::row::{Candidate, Row};

/// Biases, and what the last row's tokens were changed to.
#[derive(Debug, Clone)]
pub(crate) struct Patches {
    /// In order of token id. Several entries for one token are added one after the other, in the order they were given in.
    bias: Vec<(Token, f32)>,
    /// Each token once, in order of token id.
    list: Vec<Candidate>,
    /// What the list is merged into, kept for its memory.
    merged: Vec<Candidate>,
}

impl Patches {
    /// `end_tokens` are banned where [`SamplingParams::ignore_eos`] is set.
    pub(crate) fn new(params: &SamplingParams, end_tokens: &[Token]) -> Self {
        let mut bias = params.logit_bias.clone();
        if params.ignore_eos {
            bias.extend(end_tokens.iter().map(|&token| (token, f32::NEG_INFINITY)));
        }
        bias.sort_by_key(|&(token, _)| token);
        Self { bias, list: Vec::new(), merged: Vec::new() }
    }

    /// Begins with a new row, whose tokens are changed by their biases. Tokens that it does not hold are left out.
    pub(crate) fn begin(&mut self, logits: &[f32]) {
        self.list.clear();
        for entries in self.bias.chunk_by(|a, b| a.0 == b.0) {
            let token = entries[0].0;
            if let Some(logit) = logit_of(logits, token) {
                self.list.push(Candidate { token, logit: entries.iter().fold(logit, |logit, &(_, bias)| logit + bias) });
            }
        }
    }

    /// Changes the logits of `tokens`, which are in order of token id, each by the number that comes with it.
    pub(crate) fn change<T: Copy>(&mut self, logits: &[f32], tokens: &[(Token, T)], change: impl Fn(Token, f32, T) -> f32) {
        if tokens.is_empty() {
            return;
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

    /// The row with what became of it.
    pub(crate) fn row<'a>(&'a self, logits: &'a [f32]) -> Row<'a> {
        Row { logits, patches: &self.list }
    }
}

fn logit_of(logits: &[f32], token: Token) -> Option<f32> {
    usize::try_from(token).ok().and_then(|id| logits.get(id)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(params: &SamplingParams, logits: &[f32], penalties: &[(Token, f32)]) -> Vec<(Token, f32)> {
        let mut patches = Patches::new(params, &[1]);
        for _ in 0..2 {
            // The second time, what the first one left is forgotten.
            patches.begin(logits);
            patches.change(logits, penalties, |_, logit, penalty| logit * 2.0 - penalty);
        }
        patches.row(logits).patches.iter().map(|patch| (patch.token, patch.logit)).collect()
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
}
