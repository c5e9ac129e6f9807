//! Time of a decode that verifies a draft, by rows and cells, and of removing the rejected cells.
//!
//! With one thread, which is then the calling one, the time is that on the CPU: other processes blur it less.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::bare::{BareContext, Row};
use crate::support::bare_model::{BareModel, WeightLayout};
use crate::support::options::Options;
use crate::support::setup::{Flash, Origin, Setup, Threads};
use crate::support::shape::{Prompts, Shape};
use crate::support::spread::Spread;
use crate::support::stretch::Stretch;
use crate::support::{kernels, machine};

const N_ROWS: [usize; 13] = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64];

const N_CELLS: [usize; 3] = [0, 4096, 16_384];

/// Cells at which removing a tail is timed.
const N_CELLS_REMOVED: usize = 32_768;

/// Prints the tables of one model.
///
/// # Errors
/// A message, if llama.cpp fails.
pub(crate) fn measure(path: &Path, options: &Options) -> Result<(), String> {
    let (used, _) = kernels::install();
    let model = BareModel::load(path, WeightLayout::AsStored)?;
    let n_threads = options.n_threads.unwrap_or_else(machine::n_cores);
    // A pool of one thread would be another one than the calling thread.
    let (clock, origin) = if n_threads == 1 { (Clock::Cpu, Origin::Started) } else { (Clock::Wall, Origin::Kept) };
    let threads = Threads { n: n_threads, origin };
    let tokens: Vec<i32> = (0..4096).map(|nth: i32| 300 + nth * 7919 % 1700).collect();
    let stretch = Stretch::compute(&model, Flash::On, threads, &tokens)?;
    // As many sequences as rows, each of which may have logits.
    let setup = Setup { used, ..Setup::unified(Flash::On, 64, N_CELLS_REMOVED + 64) };
    let mut context = BareContext::new(&model, &setup, threads)?;
    let n_rounds = if options.is_quick { 3 } else { 7 };
    println!(
        "milliseconds of a decode ({clock:?} time), median of {n_rounds}\n  cells {}",
        N_ROWS.map(|n| format!("{n:>7}")).concat()
    );
    for n_cells in N_CELLS {
        context.fill(Shape::new(1, n_cells, Prompts::Own), &stretch)?;
        let mut times = vec![Vec::new(); N_ROWS.len()];
        // The first round warms up.
        for round in 0..=n_rounds {
            for (times, n_rows) in times.iter_mut().zip(N_ROWS) {
                let ms = clock.time_ms(|| decode(&mut context, &tokens, n_cells, n_rows))?;
                context.remove_from(0, n_cells);
                if round > 0 {
                    times.push(ms);
                }
            }
        }
        let medians: Vec<String> = times.iter().map(|times| format!("{:>7.2}", Spread::of(times).median)).collect();
        println!("{n_cells:>7} {}", medians.concat());
    }
    context.fill(Shape::new(1, N_CELLS_REMOVED, Prompts::Own), &stretch)?;
    let mut times = Vec::new();
    for _ in 0..n_rounds {
        decode(&mut context, &tokens, N_CELLS_REMOVED, 8)?;
        times.push(clock.time_ms(|| {
            context.remove_from(0, N_CELLS_REMOVED + 1);
            Ok(())
        })?);
        context.remove_from(0, N_CELLS_REMOVED);
    }
    println!("removing 7 cells after {N_CELLS_REMOVED}: {} ms", Spread::of(&times).show(3));
    Ok(())
}

/// Decodes consecutive tokens of one sequence, all with logits.
fn decode(context: &mut BareContext<'_>, tokens: &[i32], n_cells: usize, n_rows: usize) -> Result<(), String> {
    let row = |nth: usize| Row { token: tokens[nth], position: n_cells + nth, sequence: 0, wants_logits: true };
    context.decode_rows((0..n_rows).map(row))
}

#[derive(Debug, Clone, Copy)]
enum Clock {
    Wall,
    /// Of the calling thread.
    Cpu,
}

impl Clock {
    fn time_ms(self, mut work: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
        let (started, on_cpu) = (Instant::now(), time_on_cpu()?);
        work()?;
        let took = match self {
            Self::Wall => started.elapsed(),
            Self::Cpu => time_on_cpu()?.saturating_sub(on_cpu),
        };
        Ok(took.as_secs_f64() * 1e3)
    }
}

fn time_on_cpu() -> Result<Duration, String> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    nanoseconds.map(Duration::from_nanos).ok_or_else(|| format!("{path} has no time"))
}
