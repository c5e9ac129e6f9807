//! Speculative decoding of one request.

use std::sync::Arc;

use crate::request::Token;

/// Maximum of [`Speculation::max_draft`].
pub const MAX_DRAFT: u32 = 64;

/// Parameters of speculative decoding for one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speculation {
    /// Maximum drafted tokens per step; `None` leaves the number to the engine, 0 turns speculation off.
    pub max_draft: Option<u32>,
    /// Text that the completions probably repeat, such as a file to be edited; empty if there is none.
    pub prediction: Arc<[Token]>,
    /// For tests and benchmarks: drafts from recorded texts instead of other sources.
    pub replay: Option<Arc<Replay>>,
}

/// Recorded texts that are drafted, with errors at a seeded rate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replay {
    /// Sampled tokens of each branch, by its index in the stream.
    pub branches: Vec<Vec<Token>>,
    /// Share of the drafted tokens that are replaced by others, from 0 to 1.
    pub error_rate: f64,
    pub seed: u64,
    /// Drafts as much as is allowed in every step, instead of as much as is expected to be fastest.
    pub is_forced: bool,
}

impl Replay {
    /// Returns the expected tokens of a branch after the first `n_predicted`.
    pub(crate) fn tokens(&self, branch: u32, n_predicted: u32) -> impl Iterator<Item = Token> {
        let recorded = self.branches.get(branch as usize).map_or(&[][..], Vec::as_slice);
        let rest = (n_predicted..).zip(recorded.iter().skip(n_predicted as usize));
        rest.map(move |(position, &token)| if self.is_wrong(branch, position) { token ^ 1 } else { token })
    }

    fn is_wrong(&self, branch: u32, position: u32) -> bool {
        // splitmix64, Steele et al., 2014.
        let mut z = self.seed ^ (u64::from(branch) << 32 | u64::from(position));
        z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        f64::from(u32::try_from((z ^ (z >> 31)) >> 32).expect("the upper half of 64 bits")) < self.error_rate * 2f64.powi(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_replace_a_share_of_the_recorded_tokens() {
        let recorded: Vec<Token> = (0..10_000).collect();
        for error_rate in [0.0, 0.1, 0.5, 1.0] {
            let replay = Replay { branches: vec![Vec::new(), recorded.clone()], error_rate, seed: 7, is_forced: true };
            let n_wrong = replay.tokens(1, 0).zip(&recorded).filter(|(drafted, token)| drafted != *token).count();
            let n_wrong = u32::try_from(n_wrong).unwrap();
            assert!((f64::from(n_wrong) / 10_000.0 - error_rate).abs() < 0.02, "{n_wrong} at a rate of {error_rate}");
            assert!(replay.tokens(1, 40).eq(replay.tokens(1, 0).skip(40)), "an error does not depend on where a draft starts");
            assert_eq!((replay.tokens(0, 0).count(), replay.tokens(2, 0).count()), (0, 0));
        }
    }
}
