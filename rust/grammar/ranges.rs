//! Sets of code points: sorted, disjoint and non-adjacent inclusive ranges.

pub(super) type Ranges = Vec<(u32, u32)>;

/// Sorts ranges and merges adjacent and overlapping ones. A range whose end precedes its start is empty.
pub(super) fn merge(mut ranges: Ranges) -> Ranges {
    ranges.retain(|&(low, high)| low <= high);
    ranges.sort_unstable();
    ranges.dedup_by(|next, range| {
        let is_adjacent = next.0 <= range.1.saturating_add(1);
        if is_adjacent {
            range.1 = range.1.max(next.1);
        }
        is_adjacent
    });
    ranges
}

pub(super) fn complement(ranges: &[(u32, u32)], last: u32) -> Ranges {
    let starts = [Some(0)].into_iter().chain(ranges.iter().map(|&(_, high)| high.checked_add(1)));
    let ends = ranges.iter().map(|&(low, _)| low.checked_sub(1)).chain([Some(last)]);
    starts.zip(ends).filter_map(|(start, end)| start.zip(end)).filter(|(start, end)| start <= end).collect()
}
