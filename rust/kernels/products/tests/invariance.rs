//! A row's results depend only on that row.

use super::*;

#[test]
fn a_row_has_the_same_results_among_any_number_of_rows_and_threads() {
    let mut random = Random(11);
    for format in WeightFormat::ALL {
        for level in levels().into_iter().filter(|&level| level != Level::Portable) {
            let (n_in, n_out) = (768, 53);
            let matrix = Matrix::random(&mut random, format, n_in, n_out);
            let values = random.values(64 * n_in);
            let expected = bits(&matrix.times(level, &values, 1));
            for n_rows in [1, 2, 3, 8, 9, 32, 64] {
                for n_threads in [1, 2, 3, 5] {
                    let result = matrix.times(level, &values[..n_rows * n_in], n_threads);
                    assert_eq!(
                        bits(&result),
                        expected[..n_rows * n_out],
                        "{format:?} on {level}: {n_rows} rows, {n_threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_cache_size() {
    // Rows so long that the activations of few of them fit in the cache.
    let mut random = Random(12);
    let n_in = 12_288;
    for format in [WeightFormat::Q8_0, WeightFormat::Q4K] {
        for level in levels().into_iter().filter(|&level| level != Level::Portable) {
            let matrix = Matrix::random(&mut random, format, n_in, 18);
            let values = random.values(80 * n_in);
            let all = matrix.times(level, &values, 2);
            for row in [0, 31, 79] {
                let alone = matrix.times(level, &values[row * n_in..][..n_in], 1);
                assert_eq!(bits(&alone), bits(&all[row * 18..][..18]), "{format:?} on {level}: row {row}");
            }
        }
    }
}

#[test]
fn instruction_sets_agree_bit_by_bit() {
    let mut random = Random(13);
    for format in WeightFormat::ALL {
        for _ in 0..6 {
            let n_in = random.within(1, 4) * 256;
            let n_out = random.within(1, 40);
            let matrix = Matrix::random(&mut random, format, n_in, n_out);
            let n_rows = random.within(1, 10);
            let mut values = random.values(n_rows * n_in);
            // Some blocks of zeros.
            values[..256].fill(0.0);
            let expected = matrix.times(Level::Portable, &values, 1);
            for level in levels() {
                assert_eq!(bits(&matrix.times(level, &values, 2)), bits(&expected), "{format:?} on {level}");
            }
        }
    }
}

#[test]
fn instruction_sets_agree_at_extreme_bytes() {
    // Instruction sets that add products in 16 bits must widen before they overflow.
    let mut random = Random(14);
    for format in WeightFormat::ALL {
        for byte in [0x00, 0x7f, 0x80, 0xff, 0x88, 0x77] {
            let mut matrix = Matrix::random(&mut random, format, 512, 20);
            matrix.bytes.fill(byte);
            for block in matrix.bytes.chunks_exact_mut(format.block_bytes()) {
                reference::make_finite(&mut random, format, block);
            }
            let mut values = vec![-1.0; 3 * 512];
            values[512..].fill(1.0);
            values[1024..].iter_mut().step_by(2).for_each(|value| *value = -1.0);
            let expected = matrix.times(Level::Portable, &values, 1);
            for level in levels() {
                assert_eq!(bits(&matrix.times(level, &values, 1)), bits(&expected), "{format:?} of {byte:#x} on {level}");
            }
        }
    }
}
