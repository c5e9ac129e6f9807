//! Time of a decode that verifies a draft, by rows and cells, and of removing the rejected cells.

use std::path::Path;
use std::time::Instant;

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
    let threads = Threads { n: options.n_threads.unwrap_or_else(machine::n_cores), origin: Origin::Kept };
    let tokens: Vec<i32> = (0..4096).map(|nth: i32| 300 + nth * 7919 % 1700).collect();
    let stretch = Stretch::compute(&model, Flash::On, threads, &tokens)?;
    // As many sequences as rows, each of which may have logits.
    let setup = Setup { used, ..Setup::unified(Flash::On, 64, N_CELLS_REMOVED + 64) };
    let mut context = BareContext::new(&model, &setup, threads)?;
    let n_rounds = if options.is_quick { 3 } else { 7 };
    println!("milliseconds of a decode, median of {n_rounds}\n  cells {}", N_ROWS.map(|n| format!("{n:>7}")).concat());
    for n_cells in N_CELLS {
        context.fill(Shape::new(1, n_cells, Prompts::Own), &stretch)?;
        let mut times = vec![Vec::new(); N_ROWS.len()];
        // The first round warms up.
        for round in 0..=n_rounds {
            for (times, n_rows) in times.iter_mut().zip(N_ROWS) {
                let ms = decode(&mut context, &tokens, n_cells, n_rows)?;
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
        let started = Instant::now();
        context.remove_from(0, N_CELLS_REMOVED + 1);
        times.push(started.elapsed().as_secs_f64() * 1e3);
        context.remove_from(0, N_CELLS_REMOVED);
    }
    println!("removing 7 cells after {N_CELLS_REMOVED}: {} ms", Spread::of(&times).show(3));
    Ok(())
}

/// Returns the milliseconds of a decode of consecutive tokens of one sequence, all with logits.
fn decode(context: &mut BareContext<'_>, tokens: &[i32], n_cells: usize, n_rows: usize) -> Result<f64, String> {
    let row = |nth: usize| Row { token: tokens[nth], position: n_cells + nth, sequence: 0, wants_logits: true };
    let started = Instant::now();
    context.decode_rows((0..n_rows).map(row))?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}
