//! Tail-free sampling. Source: Phénix and Egan, "Controlling Text Generation with Tail Free Sampling", 2019, as in llama.cpp
//! until October 2024: second differences of the sorted probabilities measure the curvature.

use crate::sampling::candidates::Candidates;

/// Total curvature below which each candidate gets an equal share.
const FLAT: f32 = 1e-6;

/// Keeps the candidates before the cumulated curvature exceeds the share `z`; at least one and `min_keep`.
pub(crate) fn tail_free(candidates: &mut Candidates, z: f32, min_keep: usize) {
    if candidates.list.len() < 3 {
        return;
    }
    candidates.sort_all();
    let (_, probabilities) = candidates.softmax();
    let curvatures: Vec<f32> = probabilities.windows(3).map(|p| ((p[0] - p[1]) - (p[1] - p[2])).abs()).collect();
    let total: f32 = curvatures.iter().fold(0.0, |sum, curvature| sum + curvature);
    #[expect(clippy::cast_precision_loss, reason = "llama.cpp's share was single precision")]
    let equal_share = 1.0 / curvatures.len() as f32;
    let mut sum = 0.0_f32;
    let tail = curvatures.iter().position(|curvature| {
        sum += if total > FLAT { curvature / total } else { equal_share };
        sum > z
    });
    let Some(tail) = tail else { return };
    let n_kept = tail.max(min_keep).max(1);
    if n_kept < curvatures.len() {
        candidates.truncate(n_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;
    use crate::sampling::row::Row;

    fn kept(probabilities: &[f32], z: f32, min_keep: usize) -> Vec<Token> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut candidates = Candidates::default();
        candidates.keep_all(Row { logits: &logits, patches: &[] });
        tail_free(&mut candidates, z, min_keep);
        candidates.list.iter().map(|candidate| candidate.token).collect()
    }

    // First differences 0.2, 0.15, 0.1, 0.04, 0; second ones 0.05, 0.05, 0.06, 0.04: shares 0.25, 0.25, 0.3, 0.2.
    const PROBABILITIES: [f32; 6] = [0.02, 0.5, 0.3, 0.15, 0.05, 0.01];

    #[test]
    fn the_tail_starts_where_the_curvature_exceeds_z() {
        // The row sums to 1.03; sorted: 0.5, 0.3, 0.15, 0.05, 0.02, 0.01 with second differences 0.05, 0.05, 0.07, 0.02.
        assert_eq!(kept(&PROBABILITIES, 0.3, 0), [1]);
        assert_eq!(kept(&PROBABILITIES, 0.6, 0), [1, 2]);
        assert_eq!(kept(&PROBABILITIES, 0.95, 0), [1, 2, 3]);
    }

    #[test]
    fn at_least_one_and_min_keep_remain() {
        assert_eq!(kept(&PROBABILITIES, 0.0, 0), [1]);
        assert_eq!(kept(&PROBABILITIES, 0.0, 3), [1, 2, 3]);
    }

    #[test]
    fn a_share_of_one_and_two_candidates_keep_all() {
        assert_eq!(kept(&PROBABILITIES, 1.1, 0).len(), 6);
        assert_eq!(kept(&[0.9, 0.1], 0.0, 0), [0, 1]);
    }

    #[test]
    fn a_flat_curve_is_cut_by_its_length() {
        assert_eq!(kept(&[0.1; 10], 0.5, 0), [0, 1, 2, 3]);
    }
}
