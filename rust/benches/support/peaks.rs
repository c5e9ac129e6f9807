//! Limits of the machine: bytes read per second, and the rates of the instructions that products and attention consist of.
//!
//! An instruction's rate is measured without other limits: sums in registers, sufficiently many to hide the instruction's
//! latency, and no memory accesses. A multiplication with its addition is two operations.
#![allow(unsafe_code, reason = "instructions are called that the processor was asked for")]

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use super::machine;

/// Minimum size of the buffer in bytes, unless the processor's cache requires more.
const MIN_READ: usize = 256 << 20;

/// Maximum size of the buffer in bytes.
const MAX_READ: usize = 1 << 30;

/// Number of independent sums: more than an instruction's latency times its throughput per cycle, and at most the number of
/// registers.
const N_SUMS: usize = 12;

/// Additions to each sum in one pass: less than a millisecond, so that some passes run undisturbed on a busy machine.
const N_ADDITIONS: usize = 500_000;

/// Passes of each measurement; the fastest counts.
const N_PASSES: usize = 32;

/// Limits of the machine with a number of threads.
pub(crate) struct Machine {
    pub(crate) bytes_per_s: f64,
    /// Rate of products of bytes, with which quantised weights are multiplied.
    pub(crate) byte_ops_per_s: f64,
    /// Rate of products of 32-bit floats, which attention uses.
    pub(crate) float_ops_per_s: f64,
    byte_instruction: &'static str,
    float_instruction: &'static str,
}

/// An instruction, with its number of operations.
struct Instruction {
    name: &'static str,
    /// Operations per call.
    n_ops: usize,
    /// Adds to [`N_SUMS`] sums this many times.
    run: fn(usize),
}

impl Machine {
    /// Measures the limits, in about a second.
    pub(crate) fn measure(n_threads: u32) -> Self {
        let n_threads = n_threads as usize;
        let [bytes, floats] = instructions();
        Self {
            bytes_per_s: read_speed(n_threads),
            byte_ops_per_s: bytes.speed(n_threads),
            float_ops_per_s: floats.speed(n_threads),
            byte_instruction: bytes.name,
            float_instruction: floats.name,
        }
    }

    /// Returns the measured rates in a line.
    #[must_use]
    pub(crate) fn line(&self) -> String {
        let [read, bytes, floats] = [self.bytes_per_s, self.byte_ops_per_s, self.float_ops_per_s].map(|rate| rate / 1e9);
        let (of_bytes, of_floats) = (self.byte_instruction, self.float_instruction);
        format!(
            "memory read at {read:.1} GB/s, {of_bytes} at {bytes:.0} and {of_floats} at {floats:.0} billion operations per second"
        )
    }
}

impl Instruction {
    /// Returns the operations per second of all threads together.
    fn speed(&self, n_threads: usize) -> f64 {
        let n_ops = N_ADDITIONS * N_SUMS * self.n_ops * n_threads;
        n_ops as f64 / fastest(|| on_threads(0..n_threads, |_| (self.run)(N_ADDITIONS)))
    }
}

/// Returns the bytes per second that `n_threads` threads read together.
fn read_speed(n_threads: usize) -> f64 {
    let n_bytes = machine::cache_bytes().map_or(MIN_READ, |cache| (4 * cache).clamp(MIN_READ, MAX_READ));
    let mut words = vec![0_u64; n_bytes / 8];
    // Untouched pages all map to the same zero page.
    words.fill(1);
    let read = |part: &[u64]| {
        black_box(part.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
    };
    n_bytes as f64 / fastest(|| on_threads(words.chunks(words.len().div_ceil(n_threads)), read))
}

/// Returns the seconds of the fastest of several passes.
fn fastest(pass: impl Fn()) -> f64 {
    let time = |_| {
        let started = Instant::now();
        pass();
        started.elapsed().as_secs_f64()
    };
    (0..N_PASSES).map(time).fold(f64::INFINITY, f64::min)
}

/// Calls `work` for each of `parts` on a separate thread.
fn on_threads<T: Send>(parts: impl Iterator<Item = T>, work: impl Fn(T) + Sync) {
    let work = &work;
    thread::scope(|scope| parts.for_each(|part| drop(scope.spawn(move || work(part)))));
}

/// Defines a function that adds to [`N_SUMS`] sums in registers, opaque to the compiler.
macro_rules! additions {
    ($(#[$attribute:meta])* $visible:vis $name:ident, $start:expr, |$sum:ident, $a:ident| $added:expr) => {
        $(#[$attribute])*
        $visible fn $name(n: usize) {
            let $a = black_box($start);
            let mut sums = [$a; N_SUMS];
            for _ in 0..n {
                for $sum in &mut sums {
                    *$sum = $added;
                }
            }
            black_box(sums);
        }
    };
}

/// Returns this processor's fastest instructions for products of bytes and of floats.
#[cfg(target_arch = "x86_64")]
fn instructions() -> [Instruction; 2] {
    // SAFETY: each function is called only if its instructions were detected.
    unsafe {
        let bytes = if is_x86_feature_detected!("avx512vnni") {
            Instruction { name: "vpdpbusd (512 bit)", n_ops: 128, run: |n| x86::dot_512(n) }
        } else if is_x86_feature_detected!("avxvnni") {
            Instruction { name: "vpdpbusd (256 bit)", n_ops: 64, run: |n| x86::dot_256(n) }
        } else if is_x86_feature_detected!("avx2") {
            Instruction { name: "vpmaddubsw with vpmaddwd", n_ops: 64, run: |n| x86::multiply_256(n) }
        } else {
            plain::bytes()
        };
        let floats = if is_x86_feature_detected!("avx512f") {
            Instruction { name: "vfmadd (512 bit)", n_ops: 32, run: |n| x86::fma_512(n) }
        } else if is_x86_feature_detected!("fma") {
            Instruction { name: "vfmadd (256 bit)", n_ops: 16, run: |n| x86::fma_256(n) }
        } else {
            plain::floats()
        };
        [bytes, floats]
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_add_epi32, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi16,
        _mm256_set1_epi32, _mm256_set1_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps,
    };

    use super::{N_SUMS, black_box};

    additions!(
        #[target_feature(enable = "avx512f,avx512vnni")]
        pub(super) dot_512, _mm512_set1_epi32(1), |sum, a| _mm512_dpbusd_epi32(*sum, a, a)
    );
    additions!(
        #[target_feature(enable = "avx2,avxvnni")]
        pub(super) dot_256, _mm256_set1_epi32(1), |sum, a| _mm256_dpbusd_avx_epi32(*sum, a, a)
    );
    additions!(
        #[target_feature(enable = "avx2")]
        pub(super) multiply_256, _mm256_set1_epi32(1), |sum, a| {
            // The sum is an operand: otherwise the products would be hoisted out of the loop.
            let products = _mm256_maddubs_epi16(*sum, a);
            _mm256_add_epi32(*sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)))
        }
    );
    additions!(
        #[target_feature(enable = "avx512f")]
        pub(super) fma_512, _mm512_set1_ps(0.5), |sum, a| _mm512_fmadd_ps(*sum, a, a)
    );
    additions!(
        #[target_feature(enable = "avx2,fma")]
        pub(super) fma_256, _mm256_set1_ps(0.5), |sum, a| _mm256_fmadd_ps(*sum, a, a)
    );
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> [Instruction; 2] {
    [plain::bytes(), plain::floats()]
}

/// Plain loops, for architectures without known instructions.
mod plain {
    use super::{Instruction, N_SUMS, black_box};

    const LANES: usize = 16;

    additions!(add_bytes, [1_i32; LANES], |sum, a| std::array::from_fn(|lane| {
        // The lowest bytes, as signed numbers.
        let [x, y] = [sum[lane], a[lane]].map(|number| i32::from(number.to_le_bytes()[0].cast_signed()));
        sum[lane].wrapping_add(x * y)
    }));
    additions!(add_floats, [0.5_f32; LANES], |sum, a| std::array::from_fn(|lane| sum[lane].mul_add(a[lane], a[lane])));

    pub(super) fn bytes() -> Instruction {
        Instruction { name: "products of bytes", n_ops: 2 * LANES, run: add_bytes }
    }

    pub(super) fn floats() -> Instruction {
        Instruction { name: "products of floats", n_ops: 2 * LANES, run: add_floats }
    }
}
