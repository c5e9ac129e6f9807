//! Targets, and whether they are met.

use crate::support::shape::{Prompts, Shape};
use crate::support::sides::Side;
use crate::support::turns::Times;

/// Subject of a row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Step(Shape),
    Prefill { n_tokens: usize, n_idle: usize },
}

/// Outcome of a row: the speedup over the fastest configuration of llama.cpp.
pub(crate) struct Figures {
    cell: Cell,
    /// Speedup of the bare loop with our kernels, if available, and of the engine.
    ours: Vec<(&'static str, f64)>,
}

/// Class of a model's weight format, which determines its targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormatClass {
    Q8_0,
    Q4KM,
    Other,
}

impl FormatClass {
    /// Determines the class from the file name, which includes it for the models that have targets.
    pub(crate) fn of(name: &str) -> Self {
        match name {
            _ if name.starts_with("synthetic") && name.contains("q8_0") => Self::Q8_0,
            _ if name.contains("q4_k_m") => Self::Q4KM,
            _ => Self::Other,
        }
    }
}

/// Minimum speedup over the fastest llama.cpp, for some rows.
struct Aim {
    kind: FormatClass,
    what: &'static str,
    is_about: fn(&Cell) -> bool,
    least: f64,
}

const EIGHT_OWN: Shape = Shape { n_sequences: 8, n_tokens: 1_000, prompts: Prompts::Own, n_idle: 0 };
const MANY_OWN: Shape = Shape { n_sequences: 32, ..EIGHT_OWN };

/// Targets for processors that multiply bytes in one instruction.
const AIMS: [Aim; 7] = [
    Aim { kind: FormatClass::Q8_0, what: "8 own × 1,000", is_about: |cell| *cell == Cell::Step(EIGHT_OWN), least: 2.0 },
    Aim { kind: FormatClass::Q8_0, what: "8 × 16", is_about: |cell| is_eight(cell, 16), least: 2.0 },
    Aim { kind: FormatClass::Q8_0, what: "32 own × 1,000", is_about: |cell| *cell == Cell::Step(MANY_OWN), least: 4.0 },
    Aim { kind: FormatClass::Q8_0, what: "prefill", is_about: is_prefill, least: 2.0 },
    Aim { kind: FormatClass::Q4KM, what: "8 rows (8 × 16)", is_about: |cell| is_eight(cell, 16), least: 2.5 },
    Aim { kind: FormatClass::Q4KM, what: "32 own × 1,000", is_about: |cell| *cell == Cell::Step(MANY_OWN), least: 2.5 },
    Aim { kind: FormatClass::Q4KM, what: "prefill", is_about: is_prefill, least: 1.5 },
];

/// Minimum speedup in every row of every model.
const NOTHING_SLOWER: f64 = 0.97;

/// Minimum speed of eight streams with 16,000 idle cells in the cache, relative to their speed without.
pub(crate) const WITH_IDLE: f64 = 0.95;

fn is_eight(cell: &Cell, tokens: usize) -> bool {
    matches!(cell, Cell::Step(Shape { n_sequences: 8, n_tokens, n_idle: 0, .. }) if *n_tokens == tokens)
}

fn is_prefill(cell: &Cell) -> bool {
    matches!(cell, Cell::Prefill { .. })
}

impl Figures {
    pub(crate) fn of(cell: Cell, sides: &[Side], times: &Times) -> Self {
        let ours = sides.iter().enumerate().filter(|(_, side)| !side.is_llama_cpp());
        let ours = ours.filter_map(|(place, side)| Some((side.title(), times.ratio(place)?)));
        Self { cell, ours: ours.collect() }
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Step(shape) => shape.fmt(f),
            Self::Prefill { n_tokens, n_idle: 0 } => write!(f, "a prompt of {n_tokens}"),
            Self::Prefill { n_tokens, n_idle } => write!(f, "a prompt of {n_tokens} beside {n_idle} cells"),
        }
    }
}

/// Prints each target that applies to the rows of a model, with its worst figure.
pub(crate) fn print(kind: FormatClass, all: &[Figures]) {
    let worst = |is_about: &dyn Fn(&Cell) -> bool, place: usize| {
        let rows = all.iter().filter(|row| is_about(&row.cell)).filter_map(|row| Some((row.ours.get(place)?.1, row.cell)));
        rows.min_by(|(a, _), (b, _)| a.total_cmp(b))
    };
    println!("\n  {:<38} {:>6}   the worst figure of those rows", "against the best of llama.cpp", "aim");
    let line = |what: &str, least: f64, is_about: &dyn Fn(&Cell) -> bool| {
        let Some(first) = all.iter().find(|row| is_about(&row.cell)) else { return };
        let figures = first.ours.iter().enumerate().filter_map(|(place, (title, ..))| {
            let (ratio, cell) = worst(is_about, place)?;
            Some(format!("{title:<6} {ratio:>5.2} {:<6} {:<36}", verdict(ratio, least), format!("({cell})")))
        });
        println!("  {what:<38} {least:>6.2}   {}", figures.collect::<Vec<_>>().join(" "));
    };
    line("every row", NOTHING_SLOWER, &|_| true);
    for aim in AIMS.iter().filter(|aim| aim.kind == kind) {
        line(aim.what, aim.least, &aim.is_about);
    }
}

/// Returns the verdict for a ratio.
pub(crate) fn verdict(ratio: f64, least: f64) -> &'static str {
    if ratio >= least { "met" } else { "missed" }
}
