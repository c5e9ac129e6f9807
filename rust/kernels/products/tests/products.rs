//! Results compared with double precision.

use super::reference::{activations, product};
use super::*;

pub(super) fn check(level: Level, matrix: &Matrix, values: &[f32], result: &[f32]) {
    let Matrix { format, n_in, n_out, .. } = *matrix;
    for (row, (values, result)) in values.chunks_exact(n_in).zip(result.chunks_exact(n_out)).enumerate() {
        let activations = activations(format, values);
        for (i, (weights, &result)) in matrix.bytes.chunks_exact(format.row_bytes(n_in)).zip(result).enumerate() {
            let (expected, absolute) = product(format, weights, &activations);
            let error = (f64::from(result) - expected).abs();
            assert!(
                error <= 1e-5 * absolute + 1e-30,
                "{format:?} on {level}, {n_out} x {n_in}, row {row}, product {i}: {result} for {expected}, {absolute} without signs"
            );
        }
    }
}

#[test]
fn products_agree_with_double_precision() {
    let mut random = Random(1);
    for format in WeightFormat::ALL {
        for level in levels() {
            for _ in 0..12 {
                let most = if format.block_len() == 256 { 3 } else { 40 };
                let n_in = random.within(1, most) * format.block_len();
                let n_out = random.within(1, 60);
                let matrix = Matrix::random(&mut random, format, n_in, n_out);
                let n_rows = random.within(1, 20);
                let values = random.values(n_rows * n_in);
                let n_threads = random.within(1, 3);
                check(level, &matrix, &values, &matrix.times(level, &values, n_threads));
            }
        }
    }
}

#[test]
fn long_rows_and_many_rows_agree_with_double_precision() {
    let mut random = Random(2);
    for format in WeightFormat::ALL {
        for level in levels().into_iter().filter(|&level| level != Level::Portable) {
            // 40 blocks per row, then more activations than fit in the cache.
            for (n_in, n_out, n_rows) in [(40 * format.block_len().max(32), 17, 3), (1024, 33, 70)] {
                let matrix = Matrix::random(&mut random, format, n_in, n_out);
                let values = random.values(n_rows * n_in);
                check(level, &matrix, &values, &matrix.times(level, &values, 2));
            }
        }
    }
}

#[test]
fn rows_may_have_gaps() {
    let mut random = Random(3);
    for level in levels() {
        for format in [WeightFormat::Q8_0, WeightFormat::Q4K, WeightFormat::F16] {
            let (n_in, n_out, n_rows) = (512, 21, 11);
            let matrix = Matrix::random(&mut random, format, n_in, n_out);
            let values = random.values(n_rows * n_in);
            let expected = matrix.times(level, &values, 1);

            let row_bytes = format.row_bytes(n_in);
            let apart: Vec<u8> = matrix.bytes.chunks_exact(row_bytes).flat_map(|row| [row, &[0xff; 10]].concat()).collect();
            let values: Vec<f32> = values.chunks_exact(n_in).flat_map(|row| [row, &[f32::NAN; 3]].concat()).collect();
            let rows = Rows { values: &values, n_rows, row_stride: n_in + 3 };
            let weights = Weights { bytes: &apart, row_stride: row_bytes + 10, ..matrix.weights() };
            let mut scratch = vec![0; scratch_bytes(level, format, n_in, n_out, n_rows, 2)];
            let mut out = vec![7.0; n_rows * (n_out + 5)];
            let (scratch, shared) = (SharedSlice::from(&mut scratch[..]), SharedSlice::from(&mut out[..]));
            let output = ProductOutput { values: &shared, row_stride: n_out + 5 };
            ThreadTeam::run(2, |team| multiply(level, &weights, &rows, &output, &scratch, team));

            let result: Vec<f32> = out.chunks_exact(n_out + 5).flat_map(|row| row[..n_out].to_vec()).collect();
            assert_eq!(bits(&result), bits(&expected));
            assert!(out.chunks_exact(n_out + 5).all(|row| row[n_out..] == [7.0; 5]), "the gaps between rows are not written");
        }
    }
}

#[test]
fn each_row_is_multiplied_with_its_experts() {
    let mut random = Random(4);
    for level in levels() {
        for format in [WeightFormat::Q4_0, WeightFormat::Q6K, WeightFormat::Bf16] {
            for (n_tokens, n_used, n_experts, n_threads) in [(1, 1, 1, 1), (1, 4, 8, 2), (30, 2, 5, 3), (9, 3, 40, 2)] {
                let (n_in, n_out) = (512, 37);
                let matrices: Vec<Matrix> = (0..n_experts).map(|_| Matrix::random(&mut random, format, n_in, n_out)).collect();
                let bytes: Vec<u8> = matrices.iter().flat_map(|matrix| [&matrix.bytes[..], &[0xee; 6]].concat()).collect();
                let weights = Experts {
                    weights: Weights { bytes: &bytes, ..matrices[0].weights() },
                    n_experts,
                    expert_stride: matrices[0].bytes.len() + 6,
                };
                // With gaps between tokens, as when the choices are the head of a longer list.
                let stride = n_used + 2;
                let mut experts: Vec<i32> = vec![-1; n_tokens * stride];
                for token in experts.chunks_exact_mut(stride) {
                    token[..n_used].fill_with(|| i32::try_from(random.below(n_experts)).unwrap());
                }
                let choices = ExpertChoices { experts: &experts, n_tokens, n_used, stride };
                for n_rows in [n_tokens, n_tokens * n_used] {
                    let values = random.values(n_rows * n_in);
                    let rows = Rows { values: &values, n_rows, row_stride: n_in };
                    let mut scratch = vec![0xa5; scratch_bytes_by_expert(level, &weights, n_tokens * n_used, n_threads)];
                    let mut out = vec![f32::NAN; n_tokens * n_used * n_out];
                    let (scratch, shared) = (SharedSlice::from(&mut scratch[..]), SharedSlice::from(&mut out[..]));
                    let output = ProductOutput { values: &shared, row_stride: n_out };
                    ThreadTeam::run(n_threads, |team| {
                        multiply_by_expert(level, &weights, &choices, &rows, &output, &scratch, team);
                    });
                    for (pair, result) in out.chunks_exact(n_out).enumerate() {
                        let row = if n_rows == n_tokens { pair / n_used } else { pair };
                        let expert = usize::try_from(experts[pair / n_used * stride + pair % n_used]).unwrap();
                        let expected = matrices[expert].times(level, &values[row * n_in..][..n_in], 1);
                        assert_eq!(bits(result), bits(&expected), "{format:?} on {level}: pair {pair}, expert {expert}");
                    }
                }
            }
        }
    }
}
