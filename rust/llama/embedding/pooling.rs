//! Pooling of a text's rows to one embedding.

use crate::config::Pooling;

#[expect(clippy::cast_possible_truncation, reason = "the mean of single-precision numbers is one")]
pub(super) fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, width: usize) -> Vec<f32> {
    let n_rows = u32::try_from(rows.len()).expect("a batch has fewer rows");
    let mut sums = vec![0.0_f64; width];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, &number)| *sum += f64::from(number));
    }
    sums.into_iter().map(|sum| (sum / f64::from(n_rows)) as f32).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a context has fewer cells than 2²⁴")]
/// Pools the embeddings of the runs of a text, each with its number of rows and already pooled.
pub(super) fn pool(pooling: Pooling, runs: Vec<(usize, Vec<f32>)>) -> Vec<f32> {
    let n: usize = runs.iter().map(|(n_rows, _)| n_rows).sum();
    let runs = runs.into_iter();
    match pooling {
        Pooling::None => runs.flat_map(|(_, rows)| rows).collect(),
        Pooling::Cls => runs.map(|(_, first)| first).next().unwrap_or_default(),
        Pooling::Last | Pooling::Rank => runs.map(|(_, last)| last).next_back().unwrap_or_default(),
        Pooling::Mean => {
            let mut sums = Vec::new();
            for (n_rows, mean) in runs {
                sums.resize(mean.len(), 0.0);
                sums.iter_mut().zip(mean).for_each(|(sum, mean)| *sum += mean * n_rows as f32);
            }
            sums.iter().map(|sum: &f32| sum / n as f32).collect()
        }
    }
}
