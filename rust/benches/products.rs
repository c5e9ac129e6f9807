//! Speed of products of weights and rows, and its fraction of the machine's limit.
//!
//! The limit of each cell is the roofline's: every weight is read once, at the memory bandwidth of all threads together, and
//! two operations per weight and row run at the rate of the processor's best instruction for bytes (for floats: for floats).
//! Both are measured: the instruction first, the bandwidth alternating with the products. Matrices are used round-robin, so
//! that weights come from memory, except in rows that are marked `cached`.
//!
//! Options: `--quick`, `--level NAME`, `--threads N`, `--format NAME`, `--rows N`, `--shape N`.
#![allow(unsafe_code, reason = "the peaks are of instructions")]
#![allow(clippy::print_stdout, reason = "it is a report")]
#![allow(clippy::cast_precision_loss, reason = "counts are small enough, and rates are rounded anyway")]

#[allow(dead_code, reason = "the bench of attention, which shares it, uses all of it")]
#[path = "support/spinning.rs"]
mod spinning;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spinning::Spinning;
use weft::kernels::products::{ProductOutput, Rows, WeightFormat, Weights, multiply, scratch_bytes};
use weft::kernels::{Level, SharedSlice, Team};

/// Work of each thread of a team in a round.
type Work<'a> = dyn Fn(usize, &dyn Team) + Sync + 'a;

/// Returns the minimum time, in seconds, of each of several works that alternate. Every thread does its part each time.
fn min_times<const N: usize>(n_threads: usize, budget: Duration, works: [&Work; N]) -> [f64; N] {
    let best = std::sync::Mutex::new([f64::INFINITY; N]);
    let is_done = AtomicBool::new(false);
    Spinning::run(n_threads, |team| {
        let started = Instant::now();
        for round in 0.. {
            for (i, work) in works.iter().enumerate() {
                team.wait();
                let start = Instant::now();
                work(round, team);
                team.wait();
                if team.index() == 0 {
                    let mut best = best.lock().expect("no thread has panicked");
                    best[i] = best[i].min(start.elapsed().as_secs_f64());
                }
            }
            if team.index() == 0 {
                is_done.store(round >= 3 && started.elapsed() > budget, Ordering::Relaxed);
            }
            team.wait();
            if is_done.load(Ordering::Relaxed) {
                break;
            }
        }
    });
    best.into_inner().expect("no thread has panicked")
}

/// Reads a thread's part of the bytes.
fn read(bytes: &[u8], team: &dyn Team) {
    let words = bytes.chunks_exact(8).len();
    let (start, end) = (words * team.index() / team.size(), words * (team.index() + 1) / team.size());
    let word = |eight: &[u8]| u64::from_ne_bytes(eight.try_into().expect("there are eight"));
    std::hint::black_box(bytes[8 * start..8 * end].chunks_exact(8).fold(0_u64, |sum, eight| sum.wrapping_add(word(eight))));
}

/// Limits of the machine with a number of threads.
struct Peaks {
    bytes_per_s: f64,
    /// Operations on bytes and on floats.
    ops_per_s: [f64; 2],
}

#[cfg(target_arch = "x86_64")]
mod instructions {
    #[allow(clippy::wildcard_imports, reason = "instructions are many, and their names are long enough")]
    use std::arch::x86_64::*;

    const CHAINS: usize = 12;

    macro_rules! peak {
        ($name:ident, $features:literal, $zero:expr, $step:expr) => {
            /// Runs twelve independent chains of `n` instructions.
            #[target_feature(enable = $features)]
            pub fn $name(n: usize) {
                let one = std::hint::black_box($zero);
                let mut chains = [$zero; CHAINS];
                for _ in 0..n {
                    for chain in &mut chains {
                        *chain = $step(*chain, one, one);
                    }
                }
                std::hint::black_box(chains);
            }
        };
    }

    peak!(bytes_avx512, "avx512f,avx512vnni", _mm512_setzero_si512(), |c, a, b| _mm512_dpbusd_epi32(c, a, b));
    peak!(bytes_avx_vnni, "avx2,avxvnni", _mm256_setzero_si256(), |c, a, b| _mm256_dpbusd_avx_epi32(c, a, b));
    peak!(bytes_avx2, "avx2", _mm256_setzero_si256(), |c, a, b| {
        // The accumulator is the first operand: otherwise all but the addition would be hoisted out of the loop.
        _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(c, a), b))
    });
    peak!(floats_avx512, "avx512f", _mm512_setzero_ps(), |c, a, b| _mm512_fmadd_ps(a, b, c));
    peak!(floats_avx2, "avx2,fma", _mm256_setzero_ps(), |c, a, b| _mm256_fmadd_ps(a, b, c));

    /// Runs `n` rounds and returns the number of operations; 0 if the level has no instruction for them.
    pub fn run(level: super::Level, is_float: bool, n: usize) -> usize {
        assert!(level.is_available());
        // SAFETY: the level is available.
        unsafe {
            match (level, is_float) {
                (super::Level::Avx512, false) => bytes_avx512(n),
                (super::Level::Avx512, true) => floats_avx512(n),
                (super::Level::AvxVnni, false) => bytes_avx_vnni(n),
                (super::Level::Avx2, false) => bytes_avx2(n),
                (super::Level::Avx2 | super::Level::AvxVnni, true) => floats_avx2(n),
                _ => return 0,
            }
        }
        let bytes = if level == super::Level::Avx512 { 64 } else { 32 };
        n * CHAINS * 2 * if is_float { bytes / 4 } else { bytes }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod instructions {
    pub fn run(_level: super::Level, _is_float: bool, _n: usize) -> usize {
        0
    }
}

fn peaks(level: Level, n_threads: usize) -> Peaks {
    let memory = vec![1; 512 << 20];
    let [seconds] = min_times(n_threads, Duration::from_millis(800), [&|_, team| read(&memory, team)]);
    let ops = |is_float| {
        let n = 400_000;
        let run = |_: usize, _: &dyn Team| {
            std::hint::black_box(instructions::run(level, is_float, n));
        };
        let [seconds] = min_times(n_threads, Duration::from_millis(300), [&run]);
        (instructions::run(level, is_float, n) * n_threads) as f64 / seconds
    };
    Peaks { bytes_per_s: memory.len() as f64 / seconds, ops_per_s: [ops(false), ops(true)] }
}

/// The size of a matrix, and the total size of the matrices that alternate.
struct Shape {
    n_in: usize,
    n_out: usize,
    bytes: usize,
}

struct Options {
    level: Level,
    n_threads: usize,
    format: Option<String>,
    rows: Option<usize>,
    shape: Option<usize>,
    is_quick: bool,
}

fn options() -> Options {
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let mut options =
        Options { level: Level::detect(), n_threads: threads, format: None, rows: None, shape: None, is_quick: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("the option has a value");
        match argument.as_str() {
            "--quick" => options.is_quick = true,
            "--level" => options.level = value().parse().expect("the name of a level"),
            "--threads" => options.n_threads = value().parse().expect("a number of threads"),
            "--format" => options.format = Some(value()),
            "--shape" => options.shape = Some(value().parse().expect("the number of a shape")),
            "--rows" => options.rows = Some(value().parse().expect("a number of rows")),
            // Cargo adds it.
            "--bench" => {}
            other => panic!("there is no option {other}"),
        }
    }
    options
}

/// Returns random bytes that are finite as halves: with an upper byte below 0x40, a half is below two.
fn random_bytes(n: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = vec![0; n];
    for eight in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = ((state >> 7) & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes();
        eight.copy_from_slice(&word[..eight.len()]);
    }
    bytes
}

/// Returns the seconds of one product, and of reading its weights.
fn measure(options: &Options, format: WeightFormat, shape: &Shape, bytes: &[u8], n_rows: usize) -> [f64; 2] {
    let Shape { n_in, n_out, .. } = *shape;
    let matrix = format.row_bytes(n_in) * n_out;
    let n_matrices = (shape.bytes / matrix).max(1);
    let values: Vec<f32> = random_bytes(n_rows * n_in).into_iter().map(|byte| f32::from(byte) - 31.5).collect();
    let rows = Rows { values: &values, n_rows, row_stride: n_in };
    let mut scratch = vec![0; scratch_bytes(options.level, format, n_in, n_out, n_rows, options.n_threads)];
    let mut out = vec![0.0; n_rows * n_out];
    let (scratch, out) = (SharedSlice::from(&mut scratch[..]), SharedSlice::from(&mut out[..]));
    let output = ProductOutput { values: &out, row_stride: n_out };
    let budget = Duration::from_millis(if options.is_quick { 20 } else { 120 });
    // The bandwidth is measured on another matrix, so that neither finds its data in a CPU cache.
    let matrix_of = |round: usize, half: usize| &bytes[(2 * round + half) % n_matrices * matrix..][..matrix];
    let product = |round: usize, team: &dyn Team| {
        let weights = Weights { bytes: matrix_of(round, 0), format, n_in, n_out, row_stride: format.row_bytes(n_in) };
        multiply(options.level, &weights, &rows, &output, &scratch, team);
    };
    min_times(options.n_threads, budget, [&product, &|round, team| read(matrix_of(round, 1), team)])
}

fn main() {
    let options = options();
    let peaks = peaks(options.level, options.n_threads);
    let [bytes, floats] = peaks.ops_per_s.map(|ops| ops / 1e9);
    println!(
        "{} threads, {}: {:.1} GB/s, {bytes:.0} GOPS of bytes, {floats:.0} of floats",
        options.n_threads,
        options.level,
        peaks.bytes_per_s / 1e9
    );
    println!("each cell: GOPS, and the share of the roofline\n");
    let all_rows = [1, 2, 4, 8, 16, 32, 64, 512];
    let n_rows: Vec<usize> = options.rows.map_or_else(|| all_rows.to_vec(), |rows| vec![rows]);
    let memory = if options.is_quick { 64 << 20 } else { 256 << 20 };
    let shapes = [
        (4096, 14336, memory),
        (4096, 4096, memory),
        (14336, 4096, memory),
        (896, 4864, memory),
        (896, 896, memory),
        (896, 896, 1),
        (256, 1024, 1),
        (1024, 256, 1),
        (4096, 1024, 1),
    ];
    let bytes = random_bytes(memory.max(14336 * 4096 * 4));
    for (i, (n_in, n_out, total)) in shapes.into_iter().enumerate() {
        if options.shape.is_some_and(|wanted| wanted != i) {
            continue;
        }
        let shape = Shape { n_in, n_out, bytes: total };
        println!("{n_in} x {n_out}{}", if total == 1 { ", cached" } else { "" });
        print!("{:8}", "rows");
        for n in &n_rows {
            print!("{n:>14}");
        }
        println!();
        for format in WeightFormat::ALL {
            let name = format!("{format:?}");
            let is_common = matches!(format, WeightFormat::Q8_0 | WeightFormat::Q4K | WeightFormat::Q6K);
            let is_wanted = options.format.as_ref().map_or(is_common || (i == 0 && !options.is_quick), |wanted| *wanted == name);
            if !is_wanted || !n_in.is_multiple_of(format.block_len()) {
                continue;
            }
            print!("{name:8}");
            for &n_rows in &n_rows {
                let [seconds, read] = measure(&options, format, &shape, &bytes, n_rows);
                let ops = 2.0 * (n_in * n_out * n_rows) as f64;
                let is_float = format.block_len() == 1;
                let read = if total == 1 { 0.0 } else { read };
                let peak = peaks.ops_per_s[usize::from(is_float)];
                let limit = if peak > 0.0 { read.max(ops / peak) } else { read };
                print!("{:>7.0} {:>4.0} %", ops / seconds / 1e9, 100.0 * limit / seconds);
            }
            println!();
        }
        println!();
    }
}
