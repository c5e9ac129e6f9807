//! Repeated measurements.

/// The median, minimum and maximum of repeated measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Spread {
    /// Computes the spread of at least one value.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median =
            if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], values[middle]) } else { values[middle] };
        Self { median, lowest: values[0], highest: values[values.len() - 1] }
    }

    /// Formats the median with `digits` decimals, with minimum and maximum in brackets.
    pub(crate) fn show(&self, digits: usize) -> String {
        let Self { median, lowest, highest } = self;
        format!("{median:.digits$} ({lowest:.digits$}–{highest:.digits$})")
    }
}
