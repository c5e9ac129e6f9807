//! What is drafted for one sequence, and how much of it was accepted.

use crate::engine::features::speculation::acceptance::Acceptance;
use crate::engine::features::speculation::forced_tokens::forced_tokens;
use crate::engine::features::speculation::gate::{ExpectedStep, RateSlack};
use crate::engine::features::speculation::text_index::{MAX_MATCHED, MatchCursor, TextIndex};
use crate::engine::scheduler::running_sequence::Draft;
use crate::engine::scheduler::sequence::Sequence;
use crate::engine::stats::DraftSource;
use crate::request::{Spacing, Token};
use crate::sampling::TokenStrings;

/// Assumed share of the tokens that a constraint forces which are sampled: another tokenization of the same text is possible.
const FORCED_SHARE: f64 = 0.9;

/// Length of a match in a text from which it is preferred to what a constraint forces, in tokens: it has the tokens in which the
/// text was spelt, and continues beyond the next choice.
const MIN_PREFERRED: usize = 4;

/// Assumed share of a draft model's tokens that are sampled.
pub(crate) const MODEL_SHARE: f64 = 0.7;

/// Assumed share of replayed tokens that are right.
const REPLAYED_SHARE: f64 = 0.7;

pub(crate) struct SequenceDrafts {
    /// True if it is the first branch of its group: it adds the prompt and the prediction to the index, for all branches.
    pub(crate) is_first: bool,
    /// Number of tokens that the index has, of the prompt and the sampled ones, including those that context shifts dropped.
    n_indexed: u32,
    cursor: Option<MatchCursor>,
    /// Number of tokens of the request's prediction that the index has.
    n_prediction: usize,
    prediction_cursor: Option<MatchCursor>,
    /// White space of the text so far, if a constraint applies to it.
    spacing: Spacing,
    acceptance: [Acceptance; DraftSource::ALL.len()],
    /// Source of the draft that is being verified.
    source: DraftSource,
    /// First token of a draft that is not verified, and its source.
    unverified: Option<(DraftSource, Token)>,
    /// Number of its sampled tokens before the last step, if it was in it.
    n_predicted: Option<u32>,
    slack: RateSlack,
    pub(crate) n_drafted: u32,
    pub(crate) n_accepted: u32,
}

/// A draft whose length is not chosen yet; empty if nothing is expected.
#[derive(Default)]
pub(crate) struct Proposal {
    pub(crate) source: DraftSource,
    pub(crate) tokens: Vec<Token>,
    /// Probability that each token is accepted with all before it.
    pub(crate) survival: Vec<f64>,
    pub(crate) slack: RateSlack,
    /// Verified as a whole, whatever is expected.
    pub(crate) is_forced: bool,
    /// Maximum length of a draft.
    pub(crate) n_most: usize,
}

impl Default for SequenceDrafts {
    fn default() -> Self {
        let acceptance = DraftSource::ALL.map(|source| match source {
            DraftSource::Text => Acceptance::of_text(),
            DraftSource::Constraint => Acceptance::assumed(FORCED_SHARE),
            DraftSource::Model => Acceptance::assumed(MODEL_SHARE),
            DraftSource::Replay => Acceptance::assumed(REPLAYED_SHARE),
        });
        Self {
            is_first: true,
            n_indexed: 0,
            cursor: None,
            n_prediction: 0,
            prediction_cursor: None,
            spacing: Spacing::default(),
            acceptance,
            source: DraftSource::default(),
            unverified: None,
            n_predicted: None,
            slack: RateSlack::default(),
            n_drafted: 0,
            n_accepted: 0,
        }
    }
}

impl SequenceDrafts {
    /// Adds at most `n_most` tokens of `sequence` to the index, of which `n_held` are computed. Returns their number.
    pub(crate) fn index_tokens(
        &mut self,
        sequence: &Sequence,
        n_held: u32,
        n_most: u32,
        index: &mut TextIndex,
        token_strings: &TokenStrings,
    ) -> u32 {
        let Sequence { n_prompt, n_predicted, tokens, .. } = sequence;
        let (n_all, owner) = (n_prompt + n_predicted, &sequence.request.owner);
        let n_shifted = n_all - tokens.len();
        if self.cursor.is_none() {
            self.n_indexed = if self.is_first { 0 } else { *n_prompt };
            let end = self.n_indexed.saturating_sub(n_shifted);
            let n_context = u32::try_from(MAX_MATCHED).expect("it is small");
            let context = tokens.slices(end.saturating_sub(n_context)..end).concat();
            self.cursor = Some(index.cursor(owner.clone(), &context));
        }
        let cursor = self.cursor.as_mut().expect("it was just set");
        let n_known = if *n_predicted > 0 { n_all } else { n_held };
        let start = self.n_indexed.max(n_shifted);
        let end = n_known.min(start.saturating_add(n_most)).max(start);
        let n_of_prompt = end.min(*n_prompt).max(start);
        for part in tokens.slices(start - n_shifted..n_of_prompt - n_shifted) {
            index.extend(cursor, part);
        }
        for token in tokens.of(n_of_prompt - n_shifted..end - n_shifted) {
            if let Some(prediction) = index.push(cursor, token) {
                self.acceptance[DraftSource::Text as usize].observe(prediction.n_matched, prediction.is_correct);
            }
            // Without this, a source whose drafts failed would never be drafted from again.
            if let Some((source, unverified)) = self.unverified.take() {
                self.acceptance[source as usize].observe(0, unverified == token);
            }
            if sequence.constraint.is_some() {
                self.spacing.read(token_strings.piece(token));
            }
        }
        self.n_indexed = end;
        end - start
    }

    /// Adds at most `n_most` tokens of the request's prediction to the index. Returns their number.
    pub(crate) fn index_prediction(&mut self, sequence: &Sequence, n_most: u32, index: &mut TextIndex) -> u32 {
        let rest = sequence.request.speculation.prediction.get(self.n_prediction..).filter(|_| self.is_first);
        let part = rest.map_or(&[][..], |rest| &rest[..rest.len().min(n_most as usize)]);
        if !part.is_empty() {
            let owner = &sequence.request.owner;
            let cursor = self.prediction_cursor.get_or_insert_with(|| index.cursor(owner.clone(), &[]));
            index.extend(cursor, part);
            self.n_prediction += part.len();
        }
        u32::try_from(part.len()).expect("at most n_most")
    }

    /// Counts the tokens that were sampled in the last step, if the sequence was in it.
    pub(crate) fn observe_step(&mut self, sequence: &Sequence, last_step: ExpectedStep) {
        if let Some(n_before) = self.n_predicted.replace(sequence.n_predicted) {
            self.slack.observe((sequence.n_predicted - n_before) as usize, last_step);
        }
    }

    /// Returns a draft of at most `n_most` tokens. One from text requires a match of `min_match` tokens.
    pub(crate) fn propose(
        &mut self,
        sequence: &mut Sequence,
        n_most: usize,
        min_match: usize,
        index: &mut TextIndex,
        token_strings: &TokenStrings,
    ) -> Proposal {
        if n_most == 0 {
            return Proposal { slack: self.slack, ..Proposal::default() };
        }
        let (source, n_matched, mut tokens) = self.draft(sequence, n_most, index, token_strings);
        if source == DraftSource::Text && n_matched < min_match.min(MAX_MATCHED) {
            tokens.clear();
        }
        // A prompt with media contains ids that are not in the vocabulary.
        let is_valid = |token: &&Token| usize::try_from(**token).is_ok_and(|token| token < token_strings.n_vocab());
        tokens.truncate(tokens.iter().take_while(is_valid).count());
        let is_constraint = source == DraftSource::Constraint;
        self.unverified = tokens.first().filter(|_| is_constraint).map(|&token| (source, token));
        let survival = self.acceptance[source as usize].survival(n_matched, tokens.len());
        let is_forced = sequence.request.speculation.replay.as_ref().is_some_and(|replay| replay.is_forced);
        Proposal { source, tokens, survival, slack: self.slack, is_forced, n_most }
    }

    /// Returns the estimated acceptance of a source's drafts.
    pub(crate) fn acceptance_mut(&mut self, source: DraftSource) -> &mut Acceptance {
        &mut self.acceptance[source as usize]
    }

    /// Returns the draft of a model as a proposal, cut where the constraint of `sequence` rejects a token.
    pub(crate) fn propose_of_model(&mut self, sequence: &mut Sequence, mut tokens: Vec<Token>) -> Proposal {
        if let Some(constraint) = &mut sequence.constraint {
            tokens.truncate(constraint.n_allowed(&tokens));
        }
        self.unverified = tokens.first().map(|&token| (DraftSource::Model, token));
        let survival = self.acceptance[DraftSource::Model as usize].survival(0, tokens.len());
        let n_most = tokens.len();
        Proposal { source: DraftSource::Model, tokens, survival, slack: self.slack, is_forced: false, n_most }
    }
}

impl SequenceDrafts {
    /// Returns the source of a draft, the length of the match before it, and its tokens.
    fn draft(
        &self,
        sequence: &mut Sequence,
        n_most: usize,
        index: &mut TextIndex,
        token_strings: &TokenStrings,
    ) -> (DraftSource, usize, Vec<Token>) {
        if let Some(replay) = &sequence.request.speculation.replay {
            let tokens = replay.tokens(sequence.branch, sequence.n_predicted).take(n_most).collect();
            return (DraftSource::Replay, 0, tokens);
        }
        let (mut n_matched, mut tokens) = (0, Vec::new());
        let is_indexed = self.n_indexed == sequence.n_prompt + sequence.n_predicted;
        if let Some(cursor) = self.cursor.as_ref().filter(|_| is_indexed) {
            index.draft(cursor, n_most, &mut tokens);
            n_matched = cursor.n_matched();
        }
        if let Some(constraint) = &mut sequence.constraint {
            tokens.truncate(constraint.n_allowed(&tokens));
            if n_matched < MIN_PREFERRED || tokens.is_empty() {
                let forced = forced_tokens(&mut **constraint, &self.spacing, token_strings, n_most);
                if !forced.is_empty() {
                    return (DraftSource::Constraint, 0, forced);
                }
            }
        }
        (DraftSource::Text, n_matched, tokens)
    }

    /// Begins the verification of a draft.
    pub(crate) fn begin(&mut self, source: DraftSource) {
        self.source = source;
        self.unverified = None;
    }

    /// Counts a verified draft, and returns its source.
    pub(crate) fn count(&mut self, draft: &Draft) -> DraftSource {
        let [n_drafted, n_accepted] = [draft.tokens.len(), draft.n_accepted].map(|n| u32::try_from(n).expect("a draft is short"));
        self.n_drafted += n_drafted;
        self.n_accepted += n_accepted;
        // The index compares its predictions with every token, drafted or not.
        if self.source != DraftSource::Text {
            for position in 0..draft.tokens.len().min(draft.n_accepted + 1) {
                self.acceptance[self.source as usize].observe(position, position < draft.n_accepted);
            }
        }
        self.source
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use super::*;
    use crate::engine::output::completions::test_stream;
    use crate::engine::scheduler::request_group::{QueuePermit, RequestGroup};
    use crate::request::{Constraint, Prompt, Request};
    use crate::sampling::Sampler;
    use crate::sampling::token_strings::tests::Pieces;

    fn tokens_of(text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    /// A vocabulary of single characters; the first ends a text.
    fn characters() -> TokenStrings {
        let bytes: Vec<u8> = (0..128).collect();
        Pieces::of_bytes(&bytes.chunks(1).collect::<Vec<_>>(), 1)
    }

    /// Forces a text, but allows any token.
    #[derive(Clone)]
    struct Forcing(&'static str);

    impl Constraint for Forcing {
        fn allows(&mut self, _token: Token) -> bool {
            true
        }

        fn mask(&mut self, _logits: &mut [f32]) {}

        fn accept(&mut self, _token: Token) {}

        fn copy(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }

        fn forced_text(&mut self, _spacing: &Spacing, _max_bytes: usize) -> Vec<u8> {
            self.0.as_bytes().to_vec()
        }
    }

    /// Creates a constrained sequence after its prompt.
    fn constrained(prompt: &str, token_strings: &TokenStrings) -> Sequence {
        let permit = QueuePermit::acquire(&Arc::new(AtomicUsize::new(0)), 1).expect("the queue is empty");
        let (sender, _) = test_stream(0, 1);
        let request = Request::new(Prompt::from_tokens(tokens_of(prompt)), 0);
        let sampler = Sampler::new(&request.sampling, 0, token_strings, 0);
        let group = RequestGroup::new(0, 0, vec![(0, request, sampler)], Arc::new(sender), permit);
        let mut sequence = Sequence::new(&group, 0, 100, token_strings, Instant::now());
        sequence.constraint = Some(Box::new(Forcing("x:")));
        sequence
    }

    /// Returns the source of the draft after `prompt`, which repeats a part of itself.
    fn proposal(prompt: &str) -> (DraftSource, Vec<Token>) {
        let token_strings = characters();
        let mut sequence = constrained(prompt, &token_strings);
        let (mut drafts, mut index) = (SequenceDrafts::default(), TextIndex::new(1 << 20, 1));
        let n_prompt = sequence.n_prompt;
        drafts.index_tokens(&sequence, n_prompt, 100, &mut index, &token_strings);
        let proposal = drafts.propose(&mut sequence, 2, 1, &mut index, &token_strings);
        (proposal.source, proposal.tokens)
    }

    #[test]
    fn a_long_match_is_preferred_to_what_a_constraint_forces() {
        assert_eq!(proposal("abcd12, abcd"), (DraftSource::Text, tokens_of("12")));
        assert_eq!(proposal("abcd12, bcd"), (DraftSource::Constraint, tokens_of("x:")));
        assert_eq!(proposal("abcd"), (DraftSource::Constraint, tokens_of("x:")));
    }

    #[test]
    fn the_first_branch_of_a_group_adds_its_prompt_for_the_others_whatever_its_index() {
        let token_strings = characters();
        let mut sequence = constrained("abcd12", &token_strings);
        sequence.index = 3;
        let mut index = TextIndex::new(1 << 20, 1);
        let mut first = SequenceDrafts::default();
        assert_eq!(first.index_tokens(&sequence, 6, 100, &mut index, &token_strings), 6);
        let mut later = SequenceDrafts { is_first: false, ..SequenceDrafts::default() };
        assert_eq!(later.index_tokens(&sequence, 6, 100, &mut index, &token_strings), 0);
    }

    #[test]
    fn a_constraint_whose_drafts_failed_is_drafted_from_again_once_they_would_hold() {
        let token_strings = characters();
        let mut sequence = constrained("a", &token_strings);
        let (mut drafts, mut index) = (SequenceDrafts::default(), TextIndex::new(1 << 20, 1));
        let mut share_after = |sampled: &str| {
            drafts.propose(&mut sequence, 2, 1, &mut index, &token_strings);
            sequence.tokens.push(tokens_of(sampled)[0]);
            sequence.n_predicted += 1;
            drafts.index_tokens(&sequence, 0, 100, &mut index, &token_strings);
            drafts.acceptance[DraftSource::Constraint as usize].survival(0, 1)[0]
        };
        // No token comes twice, so that no text is matched.
        let failed = "bcdefghijklmnop".split("").filter(|token| !token.is_empty()).map(&mut share_after).last();
        let held = ["x"; 4].map(&mut share_after)[3];
        assert!(failed < Some(0.3) && Some(held) > failed.map(|failed| 1.5 * failed), "{failed:?} {held:?}");
    }
}
