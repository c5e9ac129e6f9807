//! The context of one sequence: how many tokens it may hold, and which are dropped.

use std::ops::Range;

use crate::engine::scheduler::sequence::tokens::Tokens;
use crate::request::ContextShift;

/// A shift never keeps the last tokens of a context, as many as this, so that it can always drop something; as in llama-server.
const MIN_DROPPABLE: u32 = 4;

#[derive(Debug)]
pub(crate) struct ContextWindow {
    n_ctx: u32,
    shift: Option<ContextShift>,
    /// Position of the last shift: the tokens after it are the newest.
    pub(super) shifted_at: Option<u32>,
}

impl ContextWindow {
    pub(crate) fn new(n_ctx: u32, shift: Option<ContextShift>) -> Self {
        Self { n_ctx, shift, shifted_at: None }
    }

    /// Returns how many tokens may follow the first `n_tokens`; `None` for any number, if the context is shifted.
    pub(crate) fn n_more(&self, n_tokens: u32) -> Option<u32> {
        self.shift.is_none().then(|| self.n_until_full(n_tokens))
    }

    /// Returns how many tokens may follow the first `n_tokens` until the context is full, whether it is shifted then or not.
    pub(crate) fn n_until_full(&self, n_tokens: u32) -> u32 {
        self.n_ctx.saturating_sub(n_tokens)
    }

    /// Returns true if `n_tokens`, the last of which is sampled but not computed, fill the context.
    pub(crate) fn is_full(&self, n_tokens: u32) -> bool {
        n_tokens >= self.n_ctx
    }

    pub(crate) fn is_final(&self, n_prompt: u32, n_tokens: u32) -> bool {
        self.is_full(n_tokens) && self.dropped(n_prompt, n_tokens).is_none()
    }

    pub(crate) fn is_truncated(&self, n_tokens: u32) -> bool {
        self.shifted_at.is_some() || (self.shift.is_none() && self.is_full(n_tokens))
    }

    /// Drops a part of `tokens` and returns the number of preceding tokens. `None` if nothing may be dropped.
    pub(crate) fn shift(&mut self, n_prompt: u32, tokens: &mut Tokens) -> Option<u32> {
        let dropped = self.dropped(n_prompt, tokens.len())?;
        self.shifted_at = Some(dropped.start);
        tokens.remove(dropped);
        self.shifted_at
    }

    /// Returns the range that llama-server drops of `n_tokens`, the last of which was just sampled.
    fn dropped(&self, n_prompt: u32, n_tokens: u32) -> Option<Range<u32>> {
        let ContextShift { n_keep, n_discard } = self.shift?;
        let n_keep = n_keep.unwrap_or(n_prompt).min(self.n_ctx.saturating_sub(MIN_DROPPABLE));
        let n_left = (n_tokens - 1).saturating_sub(n_keep);
        let n_wanted = if n_discard > 0 { n_discard } else { n_left / 2 };
        let n_dropped = n_wanted.min(n_left.saturating_sub(1));
        (n_dropped > 0).then(|| n_keep..n_keep + n_dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(n_keep: Option<u32>, n_discard: u32) -> Option<Range<u32>> {
        ContextWindow::new(100, Some(ContextShift { n_keep, n_discard })).dropped(20, 100)
    }

    #[test]
    fn half_of_the_tokens_after_the_kept_ones_is_dropped_or_as_many_as_requested() {
        assert_eq!(dropped(Some(0), 0), Some(0..49));
        assert_eq!(dropped(Some(9), 0), Some(9..54));
        assert_eq!(dropped(None, 0), Some(20..59));
        assert_eq!(dropped(Some(9), 30), Some(9..39));
    }

    #[test]
    fn a_shift_leaves_one_computed_token_and_never_keeps_the_last_four() {
        assert_eq!(dropped(Some(9), 1_000), Some(9..98));
        assert_eq!(dropped(Some(1_000), 0), Some(96..97));
        assert_eq!(dropped(Some(u32::MAX), u32::MAX), Some(96..98));
    }

    #[test]
    fn a_shift_keeps_the_last_token_and_the_kept_tokens_in_place() {
        let mut context = ContextWindow::new(10, Some(ContextShift { n_keep: Some(2), n_discard: 0 }));
        let mut tokens = Tokens::new((0..10).collect());
        assert!(context.is_full(10) && !context.is_truncated(10));
        assert_eq!(context.shift(4, &mut tokens), Some(2));
        assert_eq!(tokens.first(7), [0, 1, 5, 6, 7, 8, 9]);
        assert!(context.is_truncated(7));
    }

    #[test]
    fn a_context_from_which_nothing_can_be_dropped_is_final() {
        let no_shift = ContextWindow::new(10, None);
        assert!(no_shift.is_final(4, 10) && no_shift.is_truncated(10) && !no_shift.is_final(4, 9) && !no_shift.is_truncated(9));
        assert_eq!((no_shift.n_more(7), ContextWindow::new(10, Some(ContextShift::default())).n_more(7)), (Some(3), None));
        // A context of three or more tokens can be shifted with any parameters.
        for n_ctx in 1..40 {
            for n_keep in [None, Some(0), Some(3), Some(u32::MAX)] {
                for n_discard in [0, 1, 7, u32::MAX] {
                    let context = ContextWindow::new(n_ctx, Some(ContextShift { n_keep, n_discard }));
                    assert_eq!(context.is_final(n_ctx - 1, n_ctx), n_ctx < 3, "{context:?}");
                }
            }
        }
    }
}
