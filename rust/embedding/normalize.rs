//! Normalization of embeddings.

/// The scaling of an embedding, with llama.cpp's number (`--embd-normalize`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Normalization {
    None,
    /// The largest absolute value becomes 32,760, so that the numbers fit into 16 bits: 0.
    MaxAbs,
    /// The absolute values add up to 1: 1.
    Taxicab,
    /// The Euclidean norm becomes 1: 2.
    #[default]
    Euclidean,
    /// The p-norm becomes 1: `p`, above 2.
    P(i32),
}

impl Normalization {
    pub fn numbered(number: i32) -> Option<Self> {
        match number {
            ..-1 => None,
            -1 => Some(Self::None),
            0 => Some(Self::MaxAbs),
            1 => Some(Self::Taxicab),
            2 => Some(Self::Euclidean),
            p => Some(Self::P(p)),
        }
    }

    /// Scales `vector`; a zero vector is unchanged. Like llama.cpp, sums `f32` products in `f64`.
    pub fn apply(self, vector: &mut [f32]) {
        let numbers = vector.iter().map(|number| number.abs());
        let size = match self {
            Self::None => return,
            Self::MaxAbs => f64::from(numbers.fold(0.0, f32::max)) / 32_760.0,
            Self::Taxicab => numbers.map(f64::from).sum(),
            Self::Euclidean => numbers.map(|number| f64::from(number * number)).sum::<f64>().sqrt(),
            Self::P(p) => numbers.map(|number| f64::from(number).powi(p)).sum::<f64>().powf(1.0 / f64::from(p)),
        };
        #[expect(clippy::cast_possible_truncation, reason = "llama.cpp scales in f32")]
        let scale = if size > 0.0 { (1.0 / size) as f32 } else { 0.0 };
        for number in vector {
            *number *= scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(number: i32) -> Vec<f32> {
        let mut vector = vec![3.0, 0.0, -4.0];
        Normalization::numbered(number).expect("it is one").apply(&mut vector);
        vector
    }

    #[test]
    fn every_normalization_scales_as_llama_cpp_does() {
        assert_eq!(scaled(-1), [3.0, 0.0, -4.0]);
        assert_eq!(scaled(0), [24_570.0, 0.0, -32_760.0]);
        for p in 1..=3 {
            let sum: f32 = scaled(p).iter().map(|number| number.abs().powi(p)).sum();
            assert!((sum - 1.0).abs() < 1e-6, "the {p}-norm is {sum}");
        }
        assert_eq!(Normalization::numbered(-2), None);
    }

    #[test]
    fn a_zero_vector_is_unchanged() {
        let mut zeros = vec![0.0; 3];
        Normalization::Euclidean.apply(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }
}
