//! The order of many numbers at once.

use std::cell::RefCell;

/// From so many numbers on, counting is faster than comparing.
pub(crate) const MIN_MANY: usize = 2_048;

/// Bits that are counted at once, and how often that is done for the upper half of a number.
const N_BITS: u32 = 11;
const N_PASSES: u32 = 3;
const N_BUCKETS: usize = 1 << N_BITS;

thread_local! {
    /// What is sorted into. It belongs to the thread and not to a sampler, since a sequence should not keep a vocabulary's worth of
    /// memory.
    static SPARE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Calls `read` with the numbers in ascending order.
///
/// Sorts by their upper halves, a radix at a time from the lowest on, which never compares two numbers; among equal upper halves
/// the lower ones are few and are compared. Measured at 152,064 numbers: 1.6 ms, where comparing takes 2.5.
pub(crate) fn with_sorted<T>(mut numbers: Vec<u64>, read: impl FnOnce(&[u64]) -> T) -> T {
    if numbers.len() < MIN_MANY {
        numbers.sort_unstable();
        return read(&numbers);
    }
    SPARE.with_borrow_mut(|spare| {
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
                let place = &mut counts[digit(number, pass)];
                spare[*place as usize] = number;
                *place += 1;
            }
            std::mem::swap(&mut numbers, spare);
        }
        for equals in numbers.chunk_by_mut(|a, b| a >> 32 == b >> 32) {
            equals.sort_unstable();
        }
        let result = read(&numbers);
        // The two took turns; what stays is the memory of one.
        *spare = numbers;
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::rng::Mt19937;

    #[test]
    fn numbers_come_in_ascending_order_however_many_they_are() {
        let mut rng = Mt19937::new(4);
        for n in [0, 1, 2, 100, MIN_MANY - 1, MIN_MANY, MIN_MANY + 1, 30_000] {
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
