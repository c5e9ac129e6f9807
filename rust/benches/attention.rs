//! Time of one attention, by visibility pattern, relative to the processor's peaks: products per second if many rows share
//! cells, bytes per second if one row reads them alone.
//!
//! Layers are used round-robin, so many that no CPU cache holds their keys and values, as in a decode. The minimum time of each
//! layer counts. `--quick` measures fewer cases, `--level NAME` another instruction set, and any other word only cases whose
//! name contains it.

#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

#[allow(dead_code, reason = "the bench of products, which shares it, uses all of it")]
#[path = "support/spinning.rs"]
mod spinning;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spinning::Spinning;
use weft::kernels::attention::{
    Attention, AttentionOutput, AttentionPlan, AttentionShape, CacheCells, CellFormat, Mask, MaskOrder, Queries, attend,
    scratch_bytes,
};
use weft::kernels::{Level, SharedSlice, Team};

/// Minimum size of the keys and values of all layers together.
const POOL_BYTES: usize = 96 << 20;
const MAX_LAYERS: usize = 200;

/// Visibility pattern of rows and cells, with their numbers.
#[derive(Clone, Copy)]
enum Visibility {
    /// Each row sees its own cells, stored one row after the other.
    Own(usize, usize),
    /// Each row sees its own cells, interleaved.
    Turns(usize, usize),
    /// All rows see the first cells, and each row 16 separate ones.
    Shared(usize, usize),
    /// A prefill chunk after this many earlier cells.
    Chunk(usize, usize),
    /// Each row sees its own cells, after this many idle cells that no row sees.
    Idle(usize, usize, usize),
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    visibility: Visibility,
    heads: (usize, usize),
    size: usize,
    format: CellFormat,
    is_quick: bool,
}

impl Visibility {
    fn n_rows(self) -> usize {
        match self {
            Self::Own(n, _) | Self::Turns(n, _) | Self::Shared(n, _) | Self::Chunk(n, _) | Self::Idle(n, ..) => n,
        }
    }

    fn n_cells(self) -> usize {
        let n = match self {
            Self::Own(rows, cells) | Self::Turns(rows, cells) => rows * cells,
            Self::Shared(rows, cells) => cells + 16 * rows,
            Self::Chunk(rows, cells) => rows + cells,
            Self::Idle(rows, cells, idle) => idle + rows * cells,
        };
        n.next_multiple_of(256)
    }

    /// Returns the position of a cell for a row that sees it.
    fn position(self, row: usize, cell: usize) -> Option<usize> {
        match self {
            Self::Own(_, n) => (cell / n == row).then_some(cell % n),
            Self::Turns(rows, n) => (cell % rows == row && cell < rows * n).then_some(cell / rows),
            Self::Shared(_, n) if cell < n => Some(cell),
            Self::Shared(_, n) => ((cell - n) / 16 == row).then(|| n + (cell - n) % 16),
            Self::Chunk(_, n) => (cell <= n + row).then_some(cell),
            Self::Idle(_, n, idle) => (cell >= idle && (cell - idle) / n == row).then(|| (cell - idle) % n),
        }
    }

    fn sequence(self, row: usize) -> u32 {
        if matches!(self, Self::Chunk(..)) { 0 } else { u32::try_from(row).expect("few rows") }
    }
}

/// Returns the products and sums per second of one thread. Safe Rust uses the widest registers only in a build for the native
/// processor.
#[expect(clippy::cast_precision_loss, reason = "figures for reading")]
fn peak() -> f64 {
    const N: usize = 200_000;
    /// Independent chains: more than the latency of a product in cycles, times the number of units that compute it.
    const CHAINS: usize = 160;
    let (factor, more) = (black_box(0.999_f32), black_box(0.001_f32));
    let mut best = f64::MAX;
    for _ in 0..20 {
        let mut sums = [black_box(1.0_f32); CHAINS];
        let start = Instant::now();
        for _ in 0..N {
            for sum in &mut sums {
                *sum = sum.mul_add(factor, more);
            }
        }
        black_box(sums.iter().sum::<f32>());
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * (N * CHAINS) as f64 / best
}

#[expect(clippy::cast_precision_loss, reason = "figures for reading")]
fn measure(case: &Case, level: Level, n_threads: usize, duration: Duration) -> (f64, f64, f64, f64) {
    let Case { visibility, heads: (n_heads, n_kv_heads), size, format, .. } = *case;
    let (n_rows, n_cells) = (visibility.n_rows(), visibility.n_cells());
    let shape = AttentionShape { n_rows, n_heads, n_kv_heads, n_cells, key_size: size, value_size: size };
    let head_stride = format.bytes(size);
    let layer_bytes = n_cells * n_kv_heads * head_stride;
    let n_layers = (POOL_BYTES / (2 * layer_bytes)).clamp(1, MAX_LAYERS);
    // Values around 0.1, both as halves and as blocks of bytes.
    let low = |n: usize| u8::try_from(n).expect("a byte");
    let byte = |i: usize| if i.is_multiple_of(2) { low(i * 37 % 251) } else { 0x2c | low(i * 11 % 3) };
    let pool: Vec<u8> = (0..2 * n_layers * layer_bytes + 64).map(byte).collect();
    // Aligned to a cache line, as in ggml.
    let pool = &pool[pool.as_ptr().align_offset(64)..];
    let layers: Vec<(&[u8], &[u8])> =
        pool.chunks_exact(2 * layer_bytes).take(n_layers).map(|layer| layer.split_at(layer_bytes)).collect();
    let queries: Vec<f32> = (0..n_rows * n_heads * size).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 500.0).collect();
    let mut mask = vec![Mask::HIDDEN; n_rows * n_cells];
    let mut position_of_cell = vec![0; n_cells];
    let (mut n_pairs, mut n_read) = (0_usize, 0);
    for cell in 0..n_cells {
        let mut is_read = false;
        for row in 0..n_rows {
            if let Some(position) = visibility.position(row, cell) {
                position_of_cell[cell] = u32::try_from(position).expect("few cells");
                mask[row * n_cells + cell] = 0;
                n_pairs += 1;
                is_read = true;
            }
        }
        n_read += usize::from(is_read);
    }
    let sequence_of_row: Vec<u32> = (0..n_rows).map(|row| visibility.sequence(row)).collect();
    let order = MaskOrder { sequence_of_row: &sequence_of_row, position_of_cell: Some(&position_of_cell) };
    let mask = Mask { values: &mask, row_stride: n_cells };
    let mut plan = AttentionPlan::default();
    let mut plan_s = f64::MAX;
    for _ in 0..4 {
        let start = Instant::now();
        plan.make(level, n_threads, &shape, Some(&mask), Some(&order));
        plan_s = plan_s.min(start.elapsed().as_secs_f64());
    }
    let mut results = vec![0.0; n_rows * n_heads * size];
    let mut scratch = vec![0; scratch_bytes(&shape, n_threads)];
    let (results, scratch) = (SharedSlice::from(&mut results[..]), SharedSlice::from(&mut scratch[..]));
    let out = AttentionOutput { values: &results, row_stride: n_heads * size, head_stride: size };
    let n_arrived = AtomicUsize::new(0);
    let is_done = AtomicUsize::new(0);
    // Start of the first thread of a call, in nanoseconds.
    let started_at = AtomicU64::new(u64::MAX);
    let base = Instant::now();
    let now = || u64::try_from(base.elapsed().as_nanos()).expect("some seconds");
    let work = |index: usize| {
        let team = Spinning::new(index, n_threads, &n_arrived);
        let start = Instant::now();
        let mut best = vec![f64::MAX; n_layers];
        loop {
            team.wait();
            if is_done.load(Ordering::Acquire) == 1 {
                return best.iter().sum::<f64>() / n_layers as f64;
            }
            for (&(keys, values), best) in layers.iter().zip(&mut best) {
                let cells =
                    |bytes| CacheCells { bytes, format, head_size: size, cell_stride: n_kv_heads * head_stride, head_stride };
                let attention = Attention {
                    shape,
                    queries: Queries { values: &queries, row_stride: n_heads * size, head_stride: size },
                    keys: cells(keys),
                    values: cells(values),
                    mask: Some(mask),
                    sinks: None,
                    scale: 0.125,
                    max_bias: 0.0,
                    softcap: 0.0,
                };
                started_at.fetch_min(now(), Ordering::AcqRel);
                attend(&attention, &plan, &out, &scratch, &team);
                team.wait();
                if index == 0 {
                    *best = best.min((now() - started_at.swap(u64::MAX, Ordering::AcqRel)) as f64 / 1e9);
                }
                team.wait();
            }
            if index == 0 && start.elapsed() > duration {
                is_done.store(1, Ordering::Release);
            }
        }
    };
    let best = thread::scope(|scope| {
        for index in 1..n_threads {
            let work = &work;
            scope.spawn(move || work(index));
        }
        work(0)
    });
    let products = n_pairs as f64 * (n_heads * size * 4) as f64;
    (best, products / best, (n_read * n_kv_heads * 2 * head_stride) as f64 / best, plan_s)
}

fn cases() -> Vec<Case> {
    let case = |name, visibility| Case { name, visibility, heads: (14, 2), size: 64, format: CellFormat::F16, is_quick: false };
    let quick = |case: Case| Case { is_quick: true, ..case };
    let with = |case: Case, heads, size| Case { heads, size, ..case };
    vec![
        quick(case("1 × 16", Visibility::Own(1, 16))),
        case("1 × 250", Visibility::Own(1, 250)),
        quick(case("1 × 1,000", Visibility::Own(1, 1000))),
        quick(case("1 × 4,000", Visibility::Own(1, 4000))),
        case("1 × 16,000", Visibility::Own(1, 16_000)),
        case("2 × 1,000 own", Visibility::Own(2, 1000)),
        case("8 × 16 own", Visibility::Own(8, 16)),
        quick(case("8 × 1,000 own", Visibility::Own(8, 1000))),
        case("8 × 1,000 in turns", Visibility::Turns(8, 1000)),
        case("8 × 250 beside 16k", Visibility::Idle(8, 250, 16_384)),
        case("8 × 1,000 shared", Visibility::Shared(8, 1000)),
        case("32 × 16 own", Visibility::Own(32, 16)),
        quick(case("32 × 1,000 own", Visibility::Own(32, 1000))),
        case("32 × 1,000 in turns", Visibility::Turns(32, 1000)),
        quick(case("32 × 1,000 shared", Visibility::Shared(32, 1000))),
        case("32 × 4,000 shared", Visibility::Shared(32, 4000)),
        quick(case("chunk of 512", Visibility::Chunk(512, 0))),
        case("chunk of 512 at 4k", Visibility::Chunk(512, 4096)),
        quick(Case { format: CellFormat::Q8_0, ..case("8 × 1,000 own, q8_0", Visibility::Own(8, 1000)) }),
        Case { format: CellFormat::Q8_0, ..case("32 × 1,000 shared, q8_0", Visibility::Shared(32, 1000)) },
        Case { format: CellFormat::Bf16, ..case("8 × 1,000 own, bf16", Visibility::Own(8, 1000)) },
        quick(with(case("1 × 1,000, 16 over 16 of 128", Visibility::Own(1, 1000)), (16, 16), 128)),
        with(case("8 × 1,000 own, 16 over 16 of 128", Visibility::Own(8, 1000)), (16, 16), 128),
        with(case("32 × 1,000 shared, 16 over 16 of 128", Visibility::Shared(32, 1000)), (16, 16), 128),
        with(case("1 × 4,000, 32 over 8 of 128", Visibility::Own(1, 4000)), (32, 8), 128),
        with(case("8 × 1,000 own, 32 over 8 of 128", Visibility::Own(8, 1000)), (32, 8), 128),
        with(case("chunk of 512 at 2k, 32 over 8 of 128", Visibility::Chunk(512, 2048)), (32, 8), 128),
        with(case("1 × 16, 6 over 2 of 32", Visibility::Own(1, 16)), (6, 2), 32),
        with(case("32 × 250 own, 6 over 2 of 32", Visibility::Own(32, 250)), (6, 2), 32),
    ]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let level_at = arguments.iter().position(|argument| argument == "--level");
    let level = level_at.map_or_else(Level::detect, |at| arguments[at + 1].parse().expect("a level"));
    let words =
        arguments.iter().enumerate().filter(|(at, word)| !word.starts_with("--") && level_at.is_none_or(|l| *at != l + 1));
    let words: Vec<&String> = words.map(|(_, word)| word).collect();
    let peak = peak();
    let n_threads_max = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if !cfg!(target_feature = "fma") {
        println!("This build is not for the processor at hand, so the peak that it measures is far too low.");
    }
    println!("{level}, {:.0} GFLOPS per thread at most\n", peak / 1e9);
    println!("{:<38} {:>7} {:>10} {:>8} {:>8} {:>8} {:>9}", "", "threads", "us", "GFLOPS", "of peak", "GB/s", "plan, us");
    for case in cases() {
        let is_wanted = words.is_empty() || words.iter().any(|word| case.name.contains(word.as_str()));
        if !is_wanted || is_quick && !case.is_quick {
            continue;
        }
        let counts = if n_threads_max == 1 { vec![1] } else { vec![1, n_threads_max] };
        for n_threads in counts {
            let duration = Duration::from_millis(if is_quick { 150 } else { 400 });
            let (seconds, products, bytes, plan_s) = measure(&case, level, n_threads, duration);
            #[expect(clippy::cast_precision_loss, reason = "threads are few")]
            let share = 100.0 * products / peak / n_threads as f64;
            println!(
                "{:<38} {n_threads:>7} {:>10.1} {:>8.1} {share:>7.0}% {:>8.1} {:>9.1}",
                case.name,
                seconds * 1e6,
                products / 1e9,
                bytes / 1e9,
                plan_s * 1e6
            );
        }
    }
}
