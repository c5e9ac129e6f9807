//! The dimensions of a context for embeddings.

use crate::config::Pooling;

pub const MAX_SEQUENCES: u32 = 64;

/// Maximum tokens of a batch of several texts. A batch delays running streams, so it is short; a longer text is a separate batch.
const FILL: u32 = 512;

/// Length limit of a text, unless `-ub` is larger.
const DEFAULT_LONGEST: u32 = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedderShape {
    pub pooling: Pooling,
    /// True if a text may contain images or audio: not for encoder models, which read a text in one decode.
    pub takes_media: bool,
    pub width: usize,
    pub n_vocab: usize,
    pub n_longest: usize,
    /// Number of tokens that the model was trained on: the largest `n_longest` that the user can set.
    pub n_trained: usize,
    /// Maximum tokens of one batch, at least `n_longest`: llama.cpp's `n_ctx`, `n_batch` and `n_ubatch`.
    pub n_batch: usize,
    pub n_sequences: usize,
}

impl EmbedderShape {
    /// Returns the shape for a text-only model with a training context of `n_ctx_train` tokens, and the user's `n_ubatch`.
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

    pub fn n_fill(&self) -> usize {
        self.n_batch.min(FILL as usize)
    }

    /// The message for the text at `index`, which is too long. `n` is its number of tokens, in words.
    pub fn length_error(&self, index: usize, n: &str) -> String {
        let Self { n_longest, n_trained, .. } = self;
        let more =
            if n_longest < n_trained { format!(", or increase n_ubatch (-ub) to up to {n_trained}") } else { String::new() };
        format!("text {index} has {n} tokens; it may have at most {n_longest}, so shorten it{more}")
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
    fn the_length_limit_is_the_training_context_or_2048_unless_configured() {
        assert_eq!(shape(64, None), (64, 512));
        assert_eq!(shape(512, None), (512, 512));
        assert_eq!(shape(8192, None), (2048, 2048));
        assert_eq!(shape(8192, Some(4096)), (4096, 4096));
        assert_eq!(shape(8192, Some(100)), (2048, 2048));
        assert_eq!(shape(512, Some(4096)), (512, 512));
    }

    #[test]
    fn the_length_error_names_the_setting_that_raises_the_limit() {
        let message_for =
            |n_ctx_train| EmbedderShape::new(Pooling::Mean, 4, 10, n_ctx_train, None).length_error(1, "at least 9000");
        let message = "text 1 has at least 9000 tokens; it may have at most 2048, so shorten it";
        assert_eq!(message_for(8192), format!("{message}, or increase n_ubatch (-ub) to up to 8192"));
        assert_eq!(message_for(2048), message);
    }
}
