//! Inconsistent operands are rejected before anything is computed.

use super::*;
use crate::kernels::SoloTeam;
use crate::kernels::products::covers;

/// Multiplies 3 rows with a 20 by 64 matrix, with operands of the given lengths.
fn multiply_with_lengths(format: WeightFormat, level: Level, n_in: usize, lengths: [usize; 4]) {
    let [n_bytes, n_values, n_out, n_scratch] = lengths;
    let (bytes, values) = (vec![0; n_bytes], vec![0.0; n_values]);
    let (mut out, mut scratch) = (vec![0.0; n_out], vec![0; n_scratch]);
    let weights = Weights { bytes: &bytes, format, n_in, n_out: 20, row_stride: 68 };
    let rows = Rows { values: &values, n_rows: 3, row_stride: 64 };
    let (out, scratch) = (SharedSlice::from(&mut out[..]), SharedSlice::from(&mut scratch[..]));
    multiply(level, &weights, &rows, &ProductOutput { values: &out, row_stride: 20 }, &scratch, &SoloTeam);
}

fn enough() -> [usize; 4] {
    [68 * 20, 64 * 3, 20 * 3, scratch_bytes(Level::Portable, WeightFormat::Q8_0, 64, 20, 3, 1)]
}

#[test]
fn exact_lengths_are_accepted() {
    multiply_with_lengths(WeightFormat::Q8_0, Level::Portable, 64, enough());
}

#[test]
fn an_operand_that_is_one_short_is_rejected() {
    for missing in 0..4 {
        let mut lengths = enough();
        lengths[missing] -= 1;
        let tried = std::panic::catch_unwind(|| multiply_with_lengths(WeightFormat::Q8_0, Level::Portable, 64, lengths));
        assert!(tried.is_err(), "operand {missing} is one short");
    }
}

#[test]
#[should_panic(expected = "into blocks of 32")]
fn a_partial_block_is_rejected() {
    multiply_with_lengths(WeightFormat::Q8_0, Level::Portable, 48, enough());
}

#[test]
#[should_panic(expected = "token 1 has expert 2, which must be below 2")]
fn a_missing_expert_is_rejected() {
    let bytes = vec![0; 2 * 68 * 20];
    let weights = Weights { bytes: &bytes, format: WeightFormat::Q8_0, n_in: 64, n_out: 20, row_stride: 68 };
    let weights = Experts { weights, n_experts: 2, expert_stride: 68 * 20 };
    let choices = ExpertChoices { experts: &[0, 2], n_tokens: 2, n_used: 1, stride: 1 };
    let rows = Rows { values: &[0.0; 128], n_rows: 2, row_stride: 64 };
    let (mut out, mut scratch) = (vec![0.0; 40], vec![0; scratch_bytes_by_expert(Level::Portable, &weights, 2, 1)]);
    let (out, scratch) = (SharedSlice::from(&mut out[..]), SharedSlice::from(&mut scratch[..]));
    multiply_by_expert(
        Level::Portable,
        &weights,
        &choices,
        &rows,
        &ProductOutput { values: &out, row_stride: 20 },
        &scratch,
        &SoloTeam,
    );
}

#[test]
fn covers_requires_whole_blocks() {
    for format in WeightFormat::ALL {
        assert!(covers(Level::Portable, format, format.block_len(), 1));
        assert!(!covers(Level::Portable, format, 0, 1));
        assert!(!covers(Level::Portable, format, format.block_len(), 0));
        assert!(format.block_len() == 1 || !covers(Level::Portable, format, format.block_len() + 1, 1));
    }
}

#[test]
fn a_product_without_rows_is_empty() {
    let matrix = Matrix::random(&mut Random(31), WeightFormat::Q8_0, 64, 20);
    assert!(matrix.times(Level::Portable, &[], 2).is_empty());
}
