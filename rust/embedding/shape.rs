//! The numbers of a context for vectors.

use crate::config::Pooling;

/// Texts of one batch.
pub const MAX_SEQUENCES: u32 = 64;

/// Tokens that are put together from several texts: a batch keeps the processor from running streams, so it is short. One longer
/// text is a batch of its own.
const FILL: u32 = 512;

/// The longest text where `-ub` does not say more.
const DEFAULT_LONGEST: u32 = 2048;

/// What the context is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedderShape {
    /// What becomes of the vectors of a text's tokens.
    pub pooling: Pooling,
    /// Whether a text may have pictures and sounds: not where the model reads all of it at once.
    pub takes_media: bool,
    /// Numbers of one row.
    pub width: usize,
    /// Tokens are below this.
    pub n_vocab: usize,
    /// Tokens of the longest text.
    pub n_longest: usize,
    /// Tokens of the longest text that the model was trained on, which the user may let it be.
    pub n_trained: usize,
    /// Most tokens of one batch, at least `n_longest`: llama.cpp's `n_ctx`, `n_batch` and `n_ubatch`.
    pub n_batch: usize,
    /// Most texts of one batch.
    pub n_sequences: usize,
}

impl EmbedderShape {
    /// The shape for a model without pictures and sounds that was trained on texts of `n_ctx_train` tokens, where the user asks for decodes of `n_ubatch`, or
    /// for none in particular.
    #[must_use]
    pub fn new(pooling: Pooling, width: usize, n_vocab: usize, n_ctx_train: u32, n_ubatch: Option<u32>) -> Self {
        let n_longest = n_ctx_train.max(1).min(n_ubatch.unwrap_or(0).max(DEFAULT_LONGEST));
        let n_batch = n_longest.max(FILL);
        Self {
            pooling,
            takes_media: false,
            width,
            n_vocab,
            n_longest: n_longest as usize,
            n_trained: n_ctx_train as usize,
            n_batch: n_batch as usize,
            n_sequences: MAX_SEQUENCES as usize,
        }
    }

    /// Tokens that are put together from several texts.
    #[must_use]
    pub fn n_fill(&self) -> usize {
        self.n_batch.min(FILL as usize)
    }

    /// What is said of the text at this place, which is too long: of `n` tokens, in words.
    #[must_use]
    pub fn length_error(&self, place: usize, n: &str) -> String {
        let Self { n_longest, n_trained, .. } = self;
        let more =
            if n_longest < n_trained { format!(", or set n_ubatch (-ub) to more, up to {n_trained}") } else { String::new() };
        format!("text {place} has {n} tokens; at most {n_longest} are computed together, so shorten it{more}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(n_ctx_train: u32, n_ubatch: Option<u32>) -> (usize, usize) {
        let EmbedderShape { n_longest, n_batch, .. } = EmbedderShape::new(Pooling::Mean, 4, 10, n_ctx_train, n_ubatch);
        (n_longest, n_batch)
    }

    #[test]
    fn a_text_is_as_long_as_the_model_was_trained_on_and_no_longer_than_2048_unless_asked_for() {
        assert_eq!(shape(64, None), (64, 512));
        assert_eq!(shape(512, None), (512, 512));
        assert_eq!(shape(8192, None), (2048, 2048));
        assert_eq!(shape(8192, Some(4096)), (4096, 4096));
        assert_eq!(shape(8192, Some(100)), (2048, 2048));
        assert_eq!(shape(512, Some(4096)), (512, 512));
    }

    #[test]
    fn whoever_gives_a_longer_one_is_told_what_would_let_it_be() {
        let told = |n_ctx_train| EmbedderShape::new(Pooling::Mean, 4, 10, n_ctx_train, None).length_error(1, "at least 9000");
        let message = "text 1 has at least 9000 tokens; at most 2048 are computed together, so shorten it";
        assert_eq!(told(8192), format!("{message}, or set n_ubatch (-ub) to more, up to 8192"));
        assert_eq!(told(2048), message);
    }
}
