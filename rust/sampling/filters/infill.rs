//! Infill: decides whether to continue or end the middle of a text, and merges tokens of which one is a prefix of the other.
//!
//! Source: ggerganov, "Infill sampler", llama.cpp #9896.

use crate::sampling::{candidates::Candidates, row::Candidate, token_strings::Vocabulary};

const MIN_PROBABILITY: f32 = 0.2;

#[derive(Debug, Clone, Copy)]
struct MergedCandidate {
    candidate: Candidate,
    p: f32,
    is_end: bool,
    is_merged: bool,
}

/// Keeps only end tokens if they are likely for the number of candidates, otherwise also tokens likely enough after merging.
///
/// llama.cpp also keeps banned end tokens, which are never drawn; here they are not even counted.
pub(crate) fn infill(candidates: &mut Candidates, vocabulary: &dyn Vocabulary) {
    candidates.sort_all();
    let n_all = candidates.n_all();
    let (list, probabilities) = candidates.softmax();
    let merged = list.iter().zip(probabilities).map(|(&candidate, &p)| {
        let is_end = vocabulary.is_end(candidate.token);
        MergedCandidate { candidate, p, is_end, is_merged: false }
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
    merged.retain(|m| m.is_end || m.p >= MIN_PROBABILITY);
    let n_words = merged.iter().filter(|m| !m.is_end).count();
    if n_words == 0 {
        let end = vocabulary.end_of_turn().or_else(|| vocabulary.end_tokens().first().copied());
        let Some(token) = end else { return };
        let candidate = Candidate { token, logit: 1.0 };
        return keep(candidates, &[MergedCandidate { candidate, p: 1.0, is_end: true, is_merged: false }]);
    }
    let sum = merged.iter().fold(0.0_f32, |sum, m| sum + m.p);
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "llama.cpp's rounding")]
    let min_share = (1.0 / (n_words + 1) as f64) as f32;
    merged.retain(|m| m.is_end || m.p / sum >= min_share);
    keep(candidates, &merged);
}

fn keep(candidates: &mut Candidates, merged: &[MergedCandidate]) {
    candidates.list.clear();
    candidates.list.extend(merged.iter().filter(|m| !m.is_merged).map(|m| m.candidate));
    candidates.n_impossible = 0;
}

/// Merges tokens: the likelier of two gets both probabilities, in the order of the candidates. llama.cpp compares each pair; here
/// sorted pieces with a common prefix are adjacent.
fn merge(merged: &mut [MergedCandidate], vocabulary: &dyn Vocabulary) {
    let pieces: Vec<&[u8]> = merged.iter().map(|m| vocabulary.piece(m.candidate.token)).collect();
    let mut by_piece: Vec<usize> = (0..pieces.len()).collect();
    by_piece.sort_unstable_by_key(|&i| pieces[i]);
    let mut extensions = Vec::new();
    for i in 0..merged.len() {
        let piece = pieces[i];
        if piece.is_empty() || merged[i].is_merged {
            continue;
        }
        let from = by_piece.partition_point(|&other| pieces[other] < piece);
        extensions.clear();
        extensions.extend(by_piece[from..].iter().copied().take_while(|&other| pieces[other].starts_with(piece)));
        extensions.sort_unstable();
        for &other in extensions.iter().filter(|&&other| other != i) {
            if merged[other].is_merged {
                continue;
            }
            let (to, absorbed) = if merged[other].p > merged[i].p { (other, i) } else { (i, other) };
            merged[to].p += merged[absorbed].p;
            merged[absorbed].p = 0.0;
            merged[absorbed].is_merged = true;
            if absorbed == i {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::draw::rng::Mt19937;
    use crate::sampling::row::Row;
    use crate::sampling::token_strings::tests::Pieces;

    /// Tokens 0 and 1 end the text.
    const PIECES: [&str; 10] = ["</s>", "<eot>", " a", " an", " ant", "b", "c", "d", "e", "f"];

    fn kept(probabilities: &[f32]) -> Vec<Token> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        infill(&mut candidates, &*Pieces::token_strings(&PIECES, 2));
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    #[test]
    fn likely_end_tokens_are_kept_alone() {
        assert_eq!(kept(&[0.1, 0.05, 0.3, 0.2, 0.2, 0.1, 0.05]), [0, 1]);
    }

    #[test]
    fn tokens_with_a_common_prefix_are_merged() {
        // " a", " an" and " ant" have 0.6 together; "b" has 0.25, which is less than a third.
        assert_eq!(kept(&[1e-6, 1e-6, 0.15, 0.25, 0.2, 0.25, 0.15]), [3, 0, 1]);
        assert_eq!(kept(&[1e-6, 1e-6, 0.1, 0.2, 0.15, 0.45, 0.1]), [5, 3, 0, 1]);
    }

    #[test]
    fn without_a_likely_token_the_text_ends() {
        assert_eq!(kept(&[1e-6, 1e-6, 0.17, 1e-6, 1e-6, 0.17, 0.17, 0.17, 0.16, 0.16]), [0]);
    }

    #[test]
    fn merging_agrees_with_comparing_each_pair() {
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
                .map(|candidate| MergedCandidate { candidate, p: rng.uniform_f32(), is_end: false, is_merged: false })
                .collect();
            let mut expected: Vec<f32> = merged.iter().map(|m| m.p).collect();
            let mut is_merged = vec![false; n];
            for i in 0..n {
                for j in 0..n {
                    let begins = !pieces[i].is_empty() && pieces[j].starts_with(pieces[i]);
                    if i != j && begins && !is_merged[i] && !is_merged[j] {
                        let (to, from) = if expected[j] > expected[i] { (j, i) } else { (i, j) };
                        expected[to] += expected[from];
                        expected[from] = 0.0;
                        is_merged[from] = true;
                    }
                }
            }
            merge(&mut merged, &*Pieces::token_strings(&pieces, 0));
            assert_eq!(merged.iter().map(|m| m.p).collect::<Vec<f32>>(), expected, "{pieces:?}");
        }
    }
}
