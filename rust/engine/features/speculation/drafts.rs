//! Drafts of one sequence, and how many of their tokens were accepted.

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

/// Estimated acceptance of the drafts of each source.
pub(crate) struct SourceAcceptance([Acceptance; DraftSource::ALL.len()]);

impl Default for SourceAcceptance {
    fn default() -> Self {
        Self(DraftSource::ALL.map(|source| match source {
            DraftSource::Text => Acceptance::of_text(),
            DraftSource::Constraint => Acceptance::assumed(FORCED_SHARE),
            // A replayed token is as likely to be wrong after a long match as after a short one.
            DraftSource::Model | DraftSource::Replay => Acceptance::assumed(MODEL_SHARE),
        }))
    }
}

impl SourceAcceptance {
    pub(crate) fn of(&mut self, source: DraftSource) -> &mut Acceptance {
        &mut self.0[source as usize]
    }
}

#[derive(Default)]
pub(crate) struct SequenceDrafts {
    /// False for the first branch of a group that is no fork: it adds the prompt and the prediction to the index, for all branches.
    pub(crate) is_later_branch: bool,
    /// Number of tokens that the index has, of the prompt and the sampled ones, including those that context shifts dropped.
    n_indexed: u32,
    cursor: Option<MatchCursor>,
    /// Number of tokens of the request's prediction that the index has.
    n_prediction: usize,
    prediction_cursor: Option<MatchCursor>,
    /// Number of the last tokens that are equal to the replayed ones.
    n_replayed: usize,
    /// White space of the text so far, if a constraint applies to it.
    spacing: Spacing,
    pub(crate) acceptance: SourceAcceptance,
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
pub(crate) struct DraftProposal {
    pub(crate) source: DraftSource,
    pub(crate) tokens: Vec<Token>,
    /// Probability that each token is accepted with all before it.
    pub(crate) survival: Vec<f64>,
    pub(crate) slack: RateSlack,
    /// Verified as a whole, whatever is expected.
    pub(crate) is_forced: bool,
    pub(crate) max_draft: usize,
}

impl SequenceDrafts {
    /// Adds at most `max_tokens` tokens of `sequence` to the index, of which `n_computed` are computed. Returns their number.
    pub(crate) fn index_tokens(
        &mut self,
        sequence: &Sequence,
        n_computed: u32,
        max_tokens: u32,
        index: &mut TextIndex,
        token_strings: &TokenStrings,
    ) -> u32 {
        let Sequence { n_prompt, n_predicted, tokens, .. } = sequence;
        let (n_all, owner) = (n_prompt + n_predicted, &sequence.request.owner);
        let n_shifted = n_all - tokens.len();
        if self.cursor.is_none() {
            self.n_indexed = if self.is_later_branch { *n_prompt } else { 0 };
            let end = self.n_indexed.saturating_sub(n_shifted);
            let n_context = u32::try_from(MAX_MATCHED).expect("it is small");
            let context = tokens.slices(end.saturating_sub(n_context)..end).concat();
            self.cursor = Some(index.cursor(owner.clone(), &context));
        }
        let cursor = self.cursor.as_mut().expect("it was just set");
        let n_known = if *n_predicted > 0 { n_all } else { n_computed };
        let start = self.n_indexed.max(n_shifted);
        let end = n_known.min(start.saturating_add(max_tokens)).max(start);
        let n_of_prompt = end.min(*n_prompt).max(start);
        for part in tokens.slices(start - n_shifted..n_of_prompt - n_shifted) {
            index.extend(cursor, part);
        }
        let n_before = n_of_prompt.saturating_sub(*n_prompt);
        let mut replayed = sequence.request.speculation.replay.as_ref().map(|replay| replay.tokens(sequence.branch.0, n_before));
        for token in tokens.of(n_of_prompt - n_shifted..end - n_shifted) {
            if let Some(expected) = replayed.as_mut().and_then(Iterator::next) {
                self.acceptance.of(DraftSource::Replay).observe(self.n_replayed, expected == token);
                self.n_replayed = if expected == token { self.n_replayed + 1 } else { 0 };
            }
            if let Some(prediction) = index.push(cursor, token) {
                self.acceptance.of(DraftSource::Text).observe(prediction.n_matched, prediction.is_correct);
            }
            // Without this, a source whose drafts failed would never be drafted from again.
            if let Some((source, unverified)) = self.unverified.take() {
                self.acceptance.of(source).observe(0, unverified == token);
            }
            if sequence.constraint.is_some() {
                self.spacing.read(token_strings.piece(token));
            }
        }
        self.n_indexed = end;
        end - start
    }

    /// Adds at most `max_tokens` tokens of the request's prediction to the index. Returns their number.
    pub(crate) fn index_prediction(&mut self, sequence: &Sequence, max_tokens: u32, index: &mut TextIndex) -> u32 {
        let rest = sequence.request.speculation.prediction.get(self.n_prediction..).filter(|_| !self.is_later_branch);
        let part = rest.map_or(&[][..], |rest| &rest[..rest.len().min(max_tokens as usize)]);
        if !part.is_empty() {
            let owner = &sequence.request.owner;
            let cursor = self.prediction_cursor.get_or_insert_with(|| index.cursor(owner.clone(), &[]));
            index.extend(cursor, part);
            self.n_prediction += part.len();
        }
        u32::try_from(part.len()).expect("at most max_tokens")
    }

    /// Counts the tokens that were sampled in the last step, if the sequence was in it.
    pub(crate) fn observe_step(&mut self, sequence: &Sequence, last_step: ExpectedStep) {
        if let Some(n_before) = self.n_predicted.replace(sequence.n_predicted) {
            self.slack.observe((sequence.n_predicted - n_before) as usize, last_step);
        }
    }

    /// Returns a draft of at most `max_draft` tokens. One from text requires a match of `min_match` tokens.
    pub(crate) fn propose(
        &mut self,
        sequence: &mut Sequence,
        max_draft: usize,
        min_match: usize,
        index: &mut TextIndex,
        token_strings: &TokenStrings,
    ) -> DraftProposal {
        if max_draft == 0 {
            return DraftProposal { slack: self.slack, ..DraftProposal::default() };
        }
        let (source, n_matched, mut tokens) = self.draft(sequence, max_draft, index, token_strings);
        if source == DraftSource::Text && n_matched < min_match.min(MAX_MATCHED) {
            tokens.clear();
        }
        // A prompt with media contains ids that are not in the vocabulary.
        let is_valid = |token: &&Token| usize::try_from(**token).is_ok_and(|token| token < token_strings.n_vocab());
        tokens.truncate(tokens.iter().take_while(is_valid).count());
        let is_constraint = source == DraftSource::Constraint;
        self.unverified = tokens.first().filter(|_| is_constraint).map(|&token| (source, token));
        let survival = self.acceptance.of(source).survival(n_matched, tokens.len());
        let is_forced = sequence.request.speculation.replay.as_ref().is_some_and(|replay| replay.is_forced);
        DraftProposal { source, tokens, survival, slack: self.slack, is_forced, max_draft }
    }

    /// Returns the draft of a model as a proposal, cut where the constraint of `sequence` rejects a token.
    pub(crate) fn propose_of_model(&mut self, sequence: &mut Sequence, mut tokens: Vec<Token>) -> DraftProposal {
        if let Some(constraint) = &mut sequence.constraint {
            tokens.truncate(constraint.n_allowed(&tokens));
        }
        self.unverified = tokens.first().map(|&token| (DraftSource::Model, token));
        let survival = self.acceptance.of(DraftSource::Model).survival(0, tokens.len());
        let max_draft = tokens.len();
        DraftProposal { source: DraftSource::Model, tokens, survival, slack: self.slack, is_forced: false, max_draft }
    }
}

impl SequenceDrafts {
    /// Returns the source of a draft, the length of the match before it, and its tokens.
    fn draft(
        &self,
        sequence: &mut Sequence,
        max_draft: usize,
        index: &mut TextIndex,
        token_strings: &TokenStrings,
    ) -> (DraftSource, usize, Vec<Token>) {
        if let Some(replay) = &sequence.request.speculation.replay {
            let tokens = replay.tokens(sequence.branch.0, sequence.n_predicted).take(max_draft).collect();
            return (DraftSource::Replay, self.n_replayed, tokens);
        }
        let (mut n_matched, mut tokens) = (0, Vec::new());
        let is_indexed = self.n_indexed == sequence.n_prompt + sequence.n_predicted;
        if let Some(cursor) = self.cursor.as_ref().filter(|_| is_indexed) {
            index.draft(cursor, max_draft, &mut tokens);
            n_matched = cursor.n_matched();
        }
        if let Some(constraint) = &mut sequence.constraint {
            tokens.truncate(constraint.n_allowed(&tokens));
            if n_matched < MIN_PREFERRED || tokens.is_empty() {
                let forced = forced_tokens(&mut **constraint, &self.spacing, token_strings, max_draft);
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
        // Predictions from texts are compared with every token, drafted or not.
        if !matches!(self.source, DraftSource::Text | DraftSource::Replay) {
            for position in 0..draft.tokens.len().min(draft.n_accepted + 1) {
                self.acceptance.of(self.source).observe(position, position < draft.n_accepted);
            }
        }
        self.source
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::engine::ids::MemberIndex;
    use crate::engine::scheduler::request_group::test_group;
    use crate::request::{Constraint, Prompt, Request};
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
        let (group, _) = test_group(0, Request::new(Prompt::from_tokens(tokens_of(prompt)), 0));
        let mut sequence = Sequence::new(&group, MemberIndex(0), 100, token_strings, Instant::now());
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
        sequence.member = MemberIndex(3);
        let mut index = TextIndex::new(1 << 20, 1);
        let mut first = SequenceDrafts::default();
        assert_eq!(first.index_tokens(&sequence, 6, 100, &mut index, &token_strings), 6);
        let mut later = SequenceDrafts { is_later_branch: true, ..SequenceDrafts::default() };
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
            drafts.acceptance.of(DraftSource::Constraint).survival(0, 1)[0]
        };
        // No token comes twice, so that no text is matched.
        let failed = "bcdefghijklmnop".split("").filter(|token| !token.is_empty()).map(&mut share_after).last();
        let held = ["x"; 4].map(&mut share_after)[3];
        assert!(failed < Some(0.3) && Some(held) > failed.map(|failed| 1.5 * failed), "{failed:?} {held:?}");
    }
}
