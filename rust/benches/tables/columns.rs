//! The columns that the grid and the prefill have in common.

use crate::support::bare_model::Weights;
use crate::support::kernels::Kernels;
use crate::support::roofline::Bound;
use crate::support::sides::{Bare, Side};
use crate::support::turns::Times;

/// Columns of a time, of a ratio, and of the first column.
const WIDTH: usize = 10;
const RATIO: usize = 6;
const FIRST: usize = 24;

/// Whose a column is; those of one owner stand together.
fn owner(side: Side) -> &'static str {
    match side {
        Side::Bare(Bare { weights: Weights::Repacked, .. }) => "llama.cpp, repacked",
        Side::Bare(Bare { kernels: Kernels::LlamaCpp, .. }) => "llama.cpp",
        Side::Bare(Bare { kernels: Kernels::Weft, .. }) => "bare loop",
        Side::Engine => "at its defaults",
    }
}

fn of_owners(sides: &[Side]) -> impl Iterator<Item = &[Side]> {
    sides.chunk_by(|a, b| owner(*a) == owner(*b))
}

/// The two lines above a table: whose the columns are, and what they hold.
pub(crate) fn head(first: &str, unit: &str, sides: &[Side]) -> String {
    let (mut owners, mut titles) = (String::new(), String::new());
    for owned in of_owners(sides) {
        let of_side = |side: &Side| {
            let title = format!("{:>WIDTH$}", side.title());
            if side.is_llama_cpp() { title } else { format!("{title}{:>RATIO$}", "×") }
        };
        let owned_titles: String = owned.iter().map(of_side).collect();
        let width = owned_titles.chars().count();
        owners += &format!(" │ {:<1$}", owner(owned[0]), width - 1);
        titles += &format!(" │{owned_titles}");
    }
    let limit = format!(" │{:>WIDTH$}  {:<9} {:>7}", "limit", "by", "share");
    format!("  {:FIRST$}  {:>6}{owners} │ {unit}\n  {first:FIRST$}  {:>6}{titles}{limit}", "", "", "rounds")
}

/// A row, where `show` turns seconds into what the table is about. The share is that of the machine's limit which the best of ours
/// reaches.
pub(crate) fn row(first: &str, sides: &[Side], times: &Times, bound: &Bound, show: impl Fn(f64) -> f64) -> String {
    let mut line = format!("  {first:<FIRST$}  {:>6}", times.n_rounds());
    let mut places = 0..sides.len();
    for owned in of_owners(sides) {
        line += " │";
        for (side, place) in owned.iter().zip(places.by_ref()) {
            line += &match &times.seconds[place][..] {
                [] => format!("{:>WIDTH$}", "–"),
                _ => format!("{:>WIDTH$.2}", show(times.median(place))),
            };
            if !side.is_llama_cpp() {
                line += &times.ratio(place).map_or(format!("{:>RATIO$}", "–"), |ratio| format!("{ratio:>RATIO$.2}"));
            }
        }
    }
    let ours = (0..sides.len()).filter(|side| !sides[*side].is_llama_cpp()).map(|side| times.median(side));
    let share = bound.seconds / ours.fold(f64::INFINITY, f64::min) * 100.0;
    format!("{line} │{:>WIDTH$.2}  {:<9} {share:>5.0} %", show(bound.seconds), bound.limit)
}
