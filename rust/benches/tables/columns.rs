//! Common columns of the grid and the prefill table.

use crate::support::bare_model::WeightLayout;
use crate::support::roofline::Bound;
use crate::support::sides::{Bare, Side};
use crate::support::turns::Times;

/// Widths of a time, of a ratio, and of the first column.
const WIDTH: usize = 10;
const RATIO: usize = 6;
const FIRST: usize = 24;

/// Returns the owner of a column; columns of one owner are adjacent.
fn owner(side: Side) -> &'static str {
    match side {
        Side::Bare(Bare { weights: WeightLayout::Repacked, .. }) => "llama.cpp, repacked",
        _ if side.is_llama_cpp() => "llama.cpp",
        Side::Bare(_) => "bare loop",
        Side::Engine => "at its defaults",
    }
}

fn chunks_by_owner(sides: &[Side]) -> impl Iterator<Item = &[Side]> {
    sides.chunk_by(|a, b| owner(*a) == owner(*b))
}

/// Returns the two header lines of a table: the owners of the columns, and their titles.
pub(crate) fn head(first: &str, unit: &str, sides: &[Side]) -> String {
    let format_owner = |owned: &[Side]| {
        let format_side = |side: &Side| {
            let title = format!("{:>WIDTH$}", side.title());
            if side.is_llama_cpp() { title } else { format!("{title}{:>RATIO$}", "×") }
        };
        let owned_titles: String = owned.iter().map(format_side).collect();
        let width = owned_titles.chars().count();
        (format!(" │ {:<1$}", owner(owned[0]), width - 1), format!(" │{owned_titles}"))
    };
    let (owners, titles): (String, String) = chunks_by_owner(sides).map(format_owner).unzip();
    let limit = format!(" │{:>WIDTH$}  {:<9} {:>7}", "limit", "by", "share");
    format!("  {:FIRST$}  {:>6}{owners} │ {unit}\n  {first:FIRST$}  {:>6}{titles}{limit}", "", "", "rounds")
}

/// Formats a row; `show` converts seconds to the unit of the table. The share is the fraction of the machine's limit that our
/// fastest side reaches.
pub(crate) fn row(first: &str, sides: &[Side], times: &Times, bound: &Bound, show: impl Fn(f64) -> f64) -> String {
    let column = |(side, place): (&Side, usize)| {
        let time = match &times.seconds[place][..] {
            [] => format!("{:>WIDTH$}", "–"),
            _ => format!("{:>WIDTH$.2}", show(times.median(place))),
        };
        let ratio = match times.ratio(place) {
            _ if side.is_llama_cpp() => String::new(),
            None => format!("{:>RATIO$}", "–"),
            Some(ratio) => format!("{ratio:>RATIO$.2}"),
        };
        time + &ratio
    };
    let mut places = 0..sides.len();
    let format_owner = |owned: &[Side]| format!(" │{}", owned.iter().zip(places.by_ref()).map(column).collect::<String>());
    let columns: Vec<String> = chunks_by_owner(sides).map(format_owner).collect();
    let ours = (0..sides.len()).filter(|side| !sides[*side].is_llama_cpp()).map(|side| times.median(side));
    let share = bound.seconds / ours.fold(f64::INFINITY, f64::min) * 100.0;
    let (n_rounds, columns) = (times.n_rounds(), columns.concat());
    format!("  {first:<FIRST$}  {n_rounds:>6}{columns} │{:>WIDTH$.2}  {:<9} {share:>5.0} %", show(bound.seconds), bound.limit)
}
