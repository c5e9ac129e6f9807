//! llama.cpp's random generator: `std::mt19937`, and the 53-bit uniform numbers that C++ libraries derive from it.

const N: usize = 624;
const M: usize = 397;

/// MT19937. Source: Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudo-random
/// number generator", 1998; ISO C++ `[rand.eng.mers]`.
#[derive(Debug, Clone)]
pub(crate) struct Mt19937 {
    state: [u32; N],
    next: usize,
}

impl Mt19937 {
    /// Every seed is valid: 0xFFFFFFFF does not mean "random" as in llama.cpp.
    pub(crate) fn new(seed: u32) -> Self {
        let mut state = [seed; N];
        let mut previous = seed;
        for (word, i) in state[1..].iter_mut().zip(1_u32..) {
            previous = 1_812_433_253_u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i);
            *word = previous;
        }
        Self { state, next: N }
    }

    /// Independent of the generators of other numbers and of `seed`, by `SplitMix64`: Steele, Lea and Flood, "Fast Splittable
    /// Pseudorandom Number Generators", 2014.
    pub(crate) fn derived(seed: u32, first: u32, second: u32) -> Self {
        let mix = |number: u64| {
            let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            number ^ (number >> 31)
        };
        let mixed = mix(mix(u64::from(seed)) ^ (u64::from(first) << 32 | u64::from(second)));
        Self::new(u32::try_from(mixed >> 32).expect("the upper half of 64 bits"))
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.twist();
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// Draws as libstdc++'s `uniform_real_distribution<double>(0, 1)`: (low word + 2³² × high word) / 2⁶⁴ in doubles, below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        const WORD: f64 = 4_294_967_296.0;
        let low = f64::from(self.next_u32());
        let high = f64::from(self.next_u32());
        ((low + high * WORD) / (WORD * WORD)).min(1.0_f64.next_down())
    }

    /// Draws as `std::uniform_real_distribution<float>(0, 1)`: a word divided by 2³², limited to below 1.
    #[expect(clippy::cast_precision_loss, reason = "the rounding is libstdc++'s")]
    pub(crate) fn uniform_f32(&mut self) -> f32 {
        (self.next_u32() as f32 / 4_294_967_296.0).min(1.0_f32.next_down())
    }

    pub(crate) fn gumbel(&mut self) -> f64 {
        -(-self.uniform().ln()).ln()
    }

    fn twist(&mut self) {
        for i in 0..N {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let mixed = if joined & 1 == 0 { 0 } else { 0x9908_b0df };
            self.state[i] = self.state[(i + M) % N] ^ (joined >> 1) ^ mixed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_thousandth_output_of_the_default_seed_matches_the_standard() {
        let mut rng = Mt19937::new(5489);
        let last = (0..10_000).map(|_| rng.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn the_first_outputs_of_another_seed_match_mt19937() {
        let mut rng = Mt19937::new(1);
        let first: Vec<u32> = (0..3).map(|_| rng.next_u32()).collect();
        assert_eq!(first, [1_791_095_845, 4_282_876_139, 3_093_770_124]);
    }

    #[test]
    fn a_uniform_takes_two_words_low_word_first() {
        let mut words = Mt19937::new(7);
        let (low, high) = (u64::from(words.next_u32()), u64::from(words.next_u32()));
        #[expect(clippy::cast_precision_loss, reason = "the rounding to 53 bits is what is tested")]
        let expected = ((high << 32) | low) as f64 / 2.0_f64.powi(64);
        assert_eq!(Mt19937::new(7).uniform().to_bits(), expected.to_bits());
    }

    #[test]
    fn uniforms_lie_in_the_unit_interval_with_mean_one_half() {
        let mut rng = Mt19937::new(3);
        let draws: Vec<f64> = (0..10_000).map(|_| rng.uniform()).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        assert!((draws.iter().sum::<f64>() / 10_000.0 - 0.5).abs() < 0.01);
    }

    #[test]
    fn the_greatest_words_stay_below_one() {
        let mut rng = Mt19937 { state: [0; N], next: 0 };
        // The word whose tempering is all ones, so that the uniform rounds up to 2⁶⁴ and must be limited.
        rng.state[..2].fill(untemper(u32::MAX));
        assert_eq!(rng.uniform().to_bits(), 1.0_f64.next_down().to_bits());
    }

    /// Inverts the tempering by search over its linear map: each input bit toggles a fixed set of output bits.
    fn untemper(target: u32) -> u32 {
        let temper = |word: u32| Mt19937 { state: [word; N], next: 0 }.next_u32();
        let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (temper(1 << bit), 1 << bit)).collect();
        let (mut rest, mut input) = (target, 0);
        for bit in (0..32).rev() {
            let index = rows.iter().position(|(out, _)| out >> bit & 1 == 1).unwrap();
            let (out, source) = rows.swap_remove(index);
            for row in rows.iter_mut().filter(|row| row.0 >> bit & 1 == 1) {
                *row = (row.0 ^ out, row.1 ^ source);
            }
            if rest >> bit & 1 == 1 {
                rest ^= out;
                input ^= source;
            }
        }
        input
    }
}
