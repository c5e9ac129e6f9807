//! Small cases of every kind, for Miri (`make test-miri`).

use super::products::check;
use super::*;

#[test]
fn every_format_is_read_within_its_bounds() {
    let mut random = Random(41);
    for format in WeightFormat::ALL {
        for level in levels() {
            for (n_out, n_rows, n_threads) in [(3, 1, 1), (5, 3, 2)] {
                let matrix = Matrix::random(&mut random, format, format.block_len().max(32), n_out);
                let values = random.values(n_rows * matrix.n_in);
                check(level, &matrix, &values, &matrix.times(level, &values, n_threads));
            }
        }
    }
}

#[test]
fn threads_that_share_experts_write_only_their_own_parts() {
    let mut random = Random(42);
    let matrices = [(); 2].map(|()| Matrix::random(&mut random, WeightFormat::Q8_0, 32, 3));
    let bytes = matrices.each_ref().map(|matrix| &matrix.bytes[..]).concat();
    let weights = Experts {
        weights: Weights { bytes: &bytes, ..matrices[0].weights() },
        n_experts: 2,
        expert_stride: matrices[0].bytes.len(),
    };
    let choices = ExpertChoices { experts: &[1, 0, 1], n_tokens: 3, n_used: 1, stride: 1 };
    let values = random.values(3 * 32);
    for level in levels() {
        let rows = Rows { values: &values, n_rows: 3, row_stride: 32 };
        let mut scratch = vec![0; scratch_bytes_by_expert(level, &weights, 3, 2)];
        let mut out = [f32::NAN; 3 * 3];
        let (scratch, shared) = (SharedSlice::from(&mut scratch[..]), SharedSlice::from(&mut out[..]));
        let output = ProductOutput { values: &shared, row_stride: 3 };
        ThreadTeam::run(2, |team| multiply_by_expert(level, &weights, &choices, &rows, &output, &scratch, team));
        for (token, result) in out.chunks_exact(3).enumerate() {
            let expert = &matrices[usize::try_from(choices.experts[token]).unwrap()];
            check(level, expert, &values[token * 32..][..32], result);
        }
    }
}
