//! Decides in the middle of a text whether to go on or to end, and merges tokens of which one begins as the other.
//!
//! Source: ggerganov, "Infill sampler", llama.cpp #9896.

use crate::sampling::candidates::Candidates;
use crate::sampling::row::Candidate;
use crate::sampling::token_strings::Vocabulary;

/// Tokens less likely than this, after the merging, are dropped.
const LEAST: f32 = 0.2;

/// A candidate while it is merged.
#[derive(Debug, Clone, Copy)]
struct MergedCandidate {
    candidate: Candidate,
    p: f32,
    is_end: bool,
    /// Whether its probability went to another one.
    is_gone: bool,
}

/// Keeps only end tokens where they are likely against so many candidates; else those that, with everything that begins as they
/// do, are likely enough, and every end token. Where that leaves no token of the text, the text ends.
///
/// llama.cpp also leaves end tokens that are banned, which nobody draws; here they are not even counted.
pub(crate) fn infill(candidates: &mut Candidates, vocabulary: &dyn Vocabulary) {
    candidates.sort_all();
    let n_all = candidates.n_all();
    let (list, probabilities) = candidates.softmax();
    let merged = list.iter().zip(probabilities).map(|(&candidate, &p)| {
        let is_end = vocabulary.is_end(candidate.token);
        MergedCandidate { candidate, p, is_end, is_gone: false }
    });
    let mut merged: Vec<MergedCandidate> = merged.collect();
    let sum_of = |ends: bool| merged.iter().filter(|m| m.is_end == ends).fold(0.0_f32, |sum, m| sum + m.p);
    #[expect(clippy::cast_precision_loss, reason = "llama.cpp's product is single precision")]
    let is_end_likely = 3.0 * sum_of(true) * n_all as f32 > sum_of(false);
    if is_end_likely {
        merged.retain(|m| m.is_end);
        return keep(candidates, &merged);
    }
    merge(&mut merged, vocabulary);
    merged.retain(|m| m.is_end || m.p >= LEAST);
    let n_words = merged.iter().filter(|m| !m.is_end).count();
    if n_words == 0 {
        let end = vocabulary.end_of_turn().or_else(|| vocabulary.end_tokens().first().copied());
        let Some(token) = end else { return };
        return keep(
            candidates,
            &[MergedCandidate { candidate: Candidate { token, logit: 1.0 }, p: 1.0, is_end: true, is_gone: false }],
        );
    }
    let sum = merged.iter().fold(0.0_f32, |sum, m| sum + m.p);
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "llama.cpp rounds it so")]
    let least = (1.0 / (n_words + 1) as f64) as f32;
    merged.retain(|m| m.is_end || m.p / sum >= least);
    keep(candidates, &merged);
}

fn keep(candidates: &mut Candidates, merged: &[MergedCandidate]) {
    candidates.list.clear();
    candidates.list.extend(merged.iter().filter(|m| !m.is_gone).map(|m| m.candidate));
    candidates.n_impossible = 0;
}

/// Gives the probability of a token to another one, the likelier of the two, where one of them begins as the other; in the order
/// of the candidates.
///
/// llama.cpp compares each with each. Here the pieces are sorted, so that those which begin as a piece follow it.
fn merge(merged: &mut [MergedCandidate], vocabulary: &dyn Vocabulary) {
    let pieces: Vec<&[u8]> = merged.iter().map(|m| vocabulary.piece(m.candidate.token)).collect();
    let mut by_piece: Vec<usize> = (0..pieces.len()).collect();
    by_piece.sort_unstable_by_key(|&i| pieces[i]);
    let mut longer = Vec::new();
    for i in 0..merged.len() {
        let piece = pieces[i];
        if piece.is_empty() || merged[i].is_gone {
            continue;
        }
        let from = by_piece.partition_point(|&other| pieces[other] < piece);
        longer.clear();
        longer.extend(by_piece[from..].iter().copied().take_while(|&other| pieces[other].starts_with(piece)));
        longer.sort_unstable();
        for &other in longer.iter().filter(|&&other| other != i) {
            if merged[other].is_gone {
                continue;
            }
            let (to, gone) = if merged[other].p > merged[i].p { (other, i) } else { (i, other) };
            merged[to].p += merged[gone].p;
            merged[gone].p = 0.0;
            merged[gone].is_gone = true;
            if gone == i {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::rng::Mt19937;
    use crate::sampling::row::Row;
    use crate::sampling::token_strings::tests::Pieces;

    /// Tokens 0 and 1 end the text.
    const PIECES: [&str; 10] = ["</s>", "<eot>", " a", " an", " ant", "b", "c", "d", "e", "f"];

    fn kept(probabilities: &[f32]) -> Vec<Token> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        infill(&mut candidates, &*Pieces::lexicon(&PIECES, 2));
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    #[test]
    fn likely_ends_are_all_that_is_left() {
        assert_eq!(kept(&[0.1, 0.05, 0.3, 0.2, 0.2, 0.1, 0.05]), [0, 1]);
    }

    #[test]
    fn tokens_that_begin_alike_are_one() {
        // " a", " an" and " ant" have 0.6 together; "b" has 0.25, which is less than a third.
        assert_eq!(kept(&[1e-6, 1e-6, 0.15, 0.25, 0.2, 0.25, 0.15]), [3, 0, 1]);
        assert_eq!(kept(&[1e-6, 1e-6, 0.1, 0.2, 0.15, 0.45, 0.1]), [5, 3, 0, 1]);
    }

    #[test]
    fn where_nothing_is_likely_the_text_ends() {
        assert_eq!(kept(&[1e-6, 1e-6, 0.17, 1e-6, 1e-6, 0.17, 0.17, 0.17, 0.16, 0.16]), [0]);
    }

    #[test]
    fn merging_is_what_comparing_each_with_each_gives() {
        let mut rng = Mt19937::new(8);
        let letters = ["a", "b", "", "ab", "aa", "ba"];
        for _ in 0..300 {
            let n = 2 + rng.next_u32() as usize % 60;
            let mut letter = || letters[rng.next_u32() as usize % letters.len()];
            let pieces: Vec<String> = (0..n).map(|_| [letter(), letter(), letter()].concat()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let mut merged: Vec<MergedCandidate> = (0..)
                .take(n)
                .map(|token| Candidate { token, logit: 0.0 })
                .map(|candidate| MergedCandidate { candidate, p: rng.uniform_f32(), is_end: false, is_gone: false })
                .collect();
            let mut expected: Vec<f32> = merged.iter().map(|m| m.p).collect();
            let mut is_gone = vec![false; n];
            for i in 0..n {
                for j in 0..n {
                    let begins = !pieces[i].is_empty() && pieces[j].starts_with(pieces[i]);
                    if i != j && begins && !is_gone[i] && !is_gone[j] {
                        let (to, from) = if expected[j] > expected[i] { (j, i) } else { (i, j) };
                        expected[to] += expected[from];
                        expected[from] = 0.0;
                        is_gone[from] = true;
                    }
                }
            }
            merge(&mut merged, &*Pieces::lexicon(&pieces, 0));
            assert_eq!(merged.iter().map(|m| m.p).collect::<Vec<f32>>(), expected, "{pieces:?}");
        }
    }
}
