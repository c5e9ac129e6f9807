//! What changes the logits of a few tokens: biases, and penalties on what was said lately.

use std::collections::VecDeque;

use crate::request::{SamplingParams, Token};
use crate::sampling::candidates::Candidate;

/// The tokens whose logits are not what the model gave, told apart so that the row itself is never copied.
#[derive(Debug, Clone)]
pub(crate) struct Adjustments {
    /// In order of token id. Several entries for one token are added one after the other, in the order they were given in.
    bias: Vec<(Token, f32)>,
    penalties: Penalties,
    /// The last row's adjusted logits, kept for its memory.
    patches: Vec<Candidate>,
}

impl Adjustments {
    /// `end_tokens` are banned where [`SamplingParams::ignore_eos`] is set; `n_ctx` is what `repeat_last_n` = −1 stands for.
    pub(crate) fn new(params: &SamplingParams, end_tokens: &[Token], n_ctx: u32) -> Self {
        let mut bias = params.logit_bias.clone();
        if params.ignore_eos {
            bias.extend(end_tokens.iter().map(|&token| (token, f32::NEG_INFINITY)));
        }
        bias.sort_by_key(|&(token, _)| token);
        Self { bias, penalties: Penalties::new(params, n_ctx), patches: Vec::new() }
    }

    /// Tells the penalties what was said.
    pub(crate) fn accept(&mut self, token: Token) {
        self.penalties.accept(token);
    }

    /// The adjusted tokens of this row with their adjusted logits, each once, in order of token id: bias first, then penalties.
    ///
    /// Tokens that the row does not hold are left out.
    pub(crate) fn apply(&mut self, logits: &[f32]) -> &[Candidate] {
        self.patches.clear();
        let mut bias = self.bias.as_slice();
        let mut counts = self.penalties.counts.as_slice();
        loop {
            let token = match (bias.first(), counts.first()) {
                (Some(&(biased, _)), Some(&(seen, _))) => biased.min(seen),
                (Some(&(token, _)), None) | (None, Some(&(token, _))) => token,
                (None, None) => return &self.patches,
            };
            let (here, later) = bias.split_at(bias.iter().take_while(|&&(biased, _)| biased == token).count());
            bias = later;
            let count = counts.first().filter(|&&(seen, _)| seen == token).map(|&(_, count)| count);
            counts = &counts[usize::from(count.is_some())..];
            let raw = usize::try_from(token).ok().and_then(|id| logits.get(id));
            if let Some(&raw) = raw {
                let biased = here.iter().fold(raw, |logit, &(_, bias)| logit + bias);
                let logit = count.map_or(biased, |count| self.penalties.penalize(biased, count));
                self.patches.push(Candidate { token, logit });
            }
        }
    }
}

/// Repeat, presence and frequency penalties over a window of the last tokens.
///
/// Sources: the repeat penalty is Keskar et al., "CTRL", 2019, with negative logits multiplied instead of divided, so that the
/// token always becomes less likely; presence and frequency are those of `OpenAI`'s API reference.
#[derive(Debug, Clone)]
struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// Tokens that count, the last ones; 0 is off.
    n_window: usize,
    window: VecDeque<Token>,
    /// How often each token stands in the window, in order of token id; no token with a count of 0.
    counts: Vec<(Token, u32)>,
}

impl Penalties {
    fn new(params: &SamplingParams, n_ctx: u32) -> Self {
        let is_neutral =
            [params.repeat_penalty - 1.0, params.presence_penalty, params.frequency_penalty].iter().all(|&change| change == 0.0);
        let last_n = u32::try_from(params.repeat_last_n).unwrap_or(n_ctx);
        Self {
            repeat: params.repeat_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            n_window: if is_neutral { 0 } else { last_n as usize },
            window: VecDeque::new(),
            counts: Vec::new(),
        }
    }

    fn accept(&mut self, token: Token) {
        if self.n_window == 0 {
            return;
        }
        if self.window.len() == self.n_window
            && let Some(oldest) = self.window.pop_front()
        {
            self.forget(oldest);
        }
        self.window.push_back(token);
        match self.counts.binary_search_by_key(&token, |&(seen, _)| seen) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (token, 1)),
        }
    }

    fn forget(&mut self, token: Token) {
        let at = self.counts.binary_search_by_key(&token, |&(seen, _)| seen).expect("every token of the window is counted");
        self.counts[at].1 -= 1;
        if self.counts[at].1 == 0 {
            self.counts.remove(at);
        }
    }

    /// The logit of a token that stands `count` times in the window, in llama.cpp's order of operations.
    fn penalize(&self, logit: f32, count: u32) -> f32 {
        let repeated = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        #[expect(
            clippy::cast_precision_loss,
            reason = "a window of more than 2²⁴ tokens holds one token that often only in theory"
        )]
        let count = count as f32;
        repeated - (count * self.frequency + self.presence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N_CTX: u32 = 100;

    fn adjusted(params: &SamplingParams, history: &[Token], logits: &[f32]) -> Vec<(Token, f32)> {
        let mut adjustments = Adjustments::new(params, &[1], N_CTX);
        for &token in history {
            adjustments.accept(token);
        }
        adjustments.apply(logits).iter().map(|patch| (patch.token, patch.logit)).collect()
    }

    #[test]
    fn neutral_parameters_adjust_nothing() {
        assert_eq!(adjusted(&SamplingParams::default(), &[0, 1, 2], &[1.0; 4]), []);
    }

    #[test]
    fn a_bias_is_added_once_per_entry() {
        let params = SamplingParams { logit_bias: vec![(3, 0.5), (0, -1.0), (3, 0.25)], ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[], &[1.0; 4]), [(0, 0.0), (3, 1.75)]);
    }

    #[test]
    fn ignoring_the_end_bans_end_tokens_whatever_their_bias() {
        let params = SamplingParams { ignore_eos: true, logit_bias: vec![(1, 50.0)], ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[], &[1.0; 4]), [(1, f32::NEG_INFINITY)]);
    }

    #[test]
    fn tokens_outside_of_the_row_are_left_out() {
        let params = SamplingParams { presence_penalty: 1.0, logit_bias: vec![(-1, 1.0), (4, 1.0)], ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[7, 2], &[0.0; 4]), [(2, -1.0)]);
    }

    #[test]
    fn repetition_divides_what_is_positive_and_multiplies_what_is_negative() {
        let params = SamplingParams { repeat_penalty: 2.0, ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[0, 1, 1], &[4.0, -4.0, 4.0]), [(0, 2.0), (1, -8.0)]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let params = SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.25, ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[2, 0, 2, 2], &[0.0; 3]), [(0, -1.25), (2, -1.75)]);
    }

    #[test]
    fn the_window_forgets_what_is_older_than_it() {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n: 3, ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[0, 0, 1, 2, 2], &[0.0; 3]), [(1, -1.0), (2, -2.0)]);
    }

    #[test]
    fn a_window_of_minus_one_is_the_whole_context() {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n: -1, ..SamplingParams::default() };
        let mut history = vec![0; 3];
        history.extend([1; 100]);
        assert_eq!(adjusted(&params, &history[..103], &[0.0; 2]), [(1, -100.0)]);
        assert_eq!(adjusted(&params, &history[1..102], &[0.0; 2]), [(0, -1.0), (1, -99.0)]);
    }

    #[test]
    fn bias_comes_before_penalties() {
        let params = SamplingParams { repeat_penalty: 2.0, logit_bias: vec![(0, 3.0)], ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[0], &[-1.0]), [(0, 1.0)]);
    }

    #[test]
    fn adjusted_tokens_of_both_kinds_come_in_order_each_once() {
        let params =
            SamplingParams { presence_penalty: 1.0, logit_bias: vec![(5, 1.0), (1, 1.0), (3, 1.0)], ..SamplingParams::default() };
        assert_eq!(adjusted(&params, &[4, 1, 2], &[0.0; 6]), [(1, 0.0), (2, -1.0), (3, 1.0), (4, -1.0), (5, 1.0)]);
    }
}
