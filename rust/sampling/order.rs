//! Radix sort of many numbers.

use std::cell::RefCell;

/// From this many numbers on, radix sort is faster than comparison sort.
pub(crate) const MIN_RADIX_SORT: usize = 2_048;

const N_BITS: u32 = 11;
const N_PASSES: u32 = 3;
const N_BUCKETS: usize = 1 << N_BITS;

thread_local! {
    static SORT_BUFFER: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Radix sort by the upper halves, then by comparison of the few equal ones: 1.6 ms for 152,064 numbers instead of 2.5 ms.
pub(crate) fn with_sorted<T>(mut numbers: Vec<u64>, read: impl FnOnce(&[u64]) -> T) -> T {
    if numbers.len() < MIN_RADIX_SORT {
        numbers.sort_unstable();
        return read(&numbers);
    }
    SORT_BUFFER.with_borrow_mut(|spare| {
        spare.clear();
        spare.resize(numbers.len(), 0);
        let digit = |number: u64, pass: u32| {
            let shifted = number >> (32 + pass * N_BITS);
            usize::try_from(shifted).expect("32 bits fit") & (N_BUCKETS - 1)
        };
        let mut counts = vec![[0_u32; N_BUCKETS]; N_PASSES as usize];
        for &number in &numbers {
            for (pass, counts) in (0..).zip(&mut counts) {
                counts[digit(number, pass)] += 1;
            }
        }
        for (pass, counts) in (0..).zip(&mut counts) {
            let mut next = 0;
            for count in counts.iter_mut() {
                next += std::mem::replace(count, next);
            }
            for &number in &numbers {
                let position = &mut counts[digit(number, pass)];
                spare[*position as usize] = number;
                *position += 1;
            }
            std::mem::swap(&mut numbers, spare);
        }
        for equals in numbers.chunk_by_mut(|a, b| a >> 32 == b >> 32) {
            equals.sort_unstable();
        }
        let result = read(&numbers);
        *spare = numbers;
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::draw::rng::Mt19937;

    #[test]
    fn any_number_of_numbers_is_sorted() {
        let mut rng = Mt19937::new(4);
        for n in [0, 1, 2, 100, MIN_RADIX_SORT - 1, MIN_RADIX_SORT, MIN_RADIX_SORT + 1, 30_000] {
            for n_values in [3, 1_000, u32::MAX] {
                let number = |rng: &mut Mt19937| (u64::from(rng.next_u32() % n_values) << 32) | u64::from(rng.next_u32());
                let numbers: Vec<u64> = (0..n).map(|_| number(&mut rng)).collect();
                let mut expected = numbers.clone();
                expected.sort_unstable();
                with_sorted(numbers, |sorted| assert_eq!(sorted, expected, "{n} numbers"));
            }
        }
    }
}
