//! Overrides of the encoding of positions.

use super::{Named, named_variants, reject_value};
use crate::error::Result;

const BASE_BOUNDS: (f64, f64) = (2.0, 1e12);
const SCALE_BOUNDS: (f64, f64) = (1e-4, 1e4);
const FACTOR_BOUNDS: (f64, f64) = (0.0, 1e6);

/// Maximum context length after scaling: positions are 32-bit signed numbers in llama.cpp.
const MAX_CONTEXT: f64 = 2_147_483_392.0;

/// Overrides of the encoding of positions (`RoPE`, <https://arxiv.org/abs/2104.09864>); `None` is the model file's value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RopeConfig {
    pub scaling: Option<RopeScaling>,
    /// 2 to 10¹².
    pub freq_base: Option<f64>,
    /// Factor of positions, 0.0001 to 10,000: 0.25 supports texts four times as long.
    pub freq_scale: Option<f64>,
    /// Context length of the model before its extension in tokens, at least 1.
    pub yarn_orig_ctx: Option<u32>,
    /// Degree of extrapolation, 0 to 10⁶; 0 is interpolation only.
    pub yarn_ext_factor: Option<f64>,
    /// Factor of the magnitudes of queries and keys, 0 to 10⁶; usually computed by llama.cpp.
    pub yarn_attn_factor: Option<f64>,
    /// Rotations over the original context below which a frequency is interpolated, 0 to 10⁶.
    pub yarn_beta_slow: Option<f64>,
    /// Rotations over the original context above which a frequency is unchanged, 0 to 10⁶.
    pub yarn_beta_fast: Option<f64>,
}

named_variants! {
    pub enum RopeScaling {
        None = "none",
        Linear = "linear",
        /// Stronger scaling of slow frequencies (`YaRN`, <https://arxiv.org/abs/2309.00071>).
        Yarn = "yarn",
    }
}

impl RopeConfig {
    pub(crate) fn validate(&self) -> Result<()> {
        for (param, value, (low, high)) in self.numbers() {
            if let Some(value) = value.filter(|value| !(low..=high).contains(value)) {
                return reject_value(param, value, format_args!("{low} to {high}"));
            }
        }
        if self.yarn_orig_ctx == Some(0) {
            return reject_value("yarn_orig_ctx", 0, "at least 1");
        }
        Ok(())
    }

    /// Maximum context length in tokens of a model trained on `n_ctx_train`; a scale can only lengthen it.
    pub fn max_context(&self, n_ctx_train: u32, trained_scale: f32) -> u32 {
        let Some(scale) = self.freq_scale.filter(|_| self.scaling != Some(RopeScaling::None)) else { return n_ctx_train };
        let n_before = match (self.yarn_orig_ctx, self.scaling) {
            (Some(n), Some(RopeScaling::Yarn)) => f64::from(n),
            _ => f64::from(n_ctx_train) * f64::from(trained_scale),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within the bounds")]
        let n = (n_before / scale).round().clamp(0.0, MAX_CONTEXT) as u32;
        n.max(n_ctx_train)
    }

    /// Distinguishes caches that were computed with different overrides.
    pub fn describe(&self) -> String {
        let scaling = self.scaling.map(|scaling| format!("rope_scaling_type {}", scaling.name()));
        let numbers = self.numbers().into_iter().filter_map(|(name, value, _)| Some(format!("{name} {}", value?)));
        let orig_ctx = self.yarn_orig_ctx.map(|n| format!("yarn_orig_ctx {n}"));
        scaling.into_iter().chain(numbers).chain(orig_ctx).collect::<Vec<_>>().join(", ")
    }

    fn numbers(&self) -> [(&'static str, Option<f64>, (f64, f64)); 6] {
        [
            ("rope_freq_base", self.freq_base, BASE_BOUNDS),
            ("rope_freq_scale", self.freq_scale, SCALE_BOUNDS),
            ("yarn_ext_factor", self.yarn_ext_factor, FACTOR_BOUNDS),
            ("yarn_attn_factor", self.yarn_attn_factor, FACTOR_BOUNDS),
            ("yarn_beta_slow", self.yarn_beta_slow, FACTOR_BOUNDS),
            ("yarn_beta_fast", self.yarn_beta_fast, FACTOR_BOUNDS),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn rejected_param(rope: RopeConfig) -> &'static str {
        match rope.validate() {
            Err(Error::InvalidConfig { param, .. }) => param,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_out_of_range_and_nan_are_rejected_by_name() {
        let as_in_file = RopeConfig::default();
        assert_eq!(as_in_file.validate(), Ok(()));
        assert_eq!(rejected_param(RopeConfig { freq_base: Some(1.0), ..as_in_file }), "rope_freq_base");
        assert_eq!(rejected_param(RopeConfig { freq_base: Some(f64::INFINITY), ..as_in_file }), "rope_freq_base");
        assert_eq!(rejected_param(RopeConfig { freq_scale: Some(0.0), ..as_in_file }), "rope_freq_scale");
        assert_eq!(rejected_param(RopeConfig { freq_scale: Some(f64::NAN), ..as_in_file }), "rope_freq_scale");
        assert_eq!(rejected_param(RopeConfig { yarn_ext_factor: Some(-1.0), ..as_in_file }), "yarn_ext_factor");
        assert_eq!(rejected_param(RopeConfig { yarn_attn_factor: Some(-0.5), ..as_in_file }), "yarn_attn_factor");
        assert_eq!(rejected_param(RopeConfig { yarn_beta_slow: Some(2e6), ..as_in_file }), "yarn_beta_slow");
        assert_eq!(rejected_param(RopeConfig { yarn_beta_fast: Some(f64::NAN), ..as_in_file }), "yarn_beta_fast");
        assert_eq!(rejected_param(RopeConfig { yarn_orig_ctx: Some(0), ..as_in_file }), "yarn_orig_ctx");
    }

    #[test]
    fn a_scale_below_one_lengthens_the_context() {
        let scaled = |freq_scale| RopeConfig { freq_scale: Some(freq_scale), ..RopeConfig::default() };
        assert_eq!(RopeConfig::default().max_context(4096, 1.0), 4096);
        assert_eq!(scaled(0.25).max_context(4096, 1.0), 16_384);
        assert_eq!(scaled(0.125).max_context(32_768, 0.25), 65_536, "the file's own scale is counted already");
        assert_eq!(scaled(2.0).max_context(4096, 1.0), 4096);
        assert_eq!(scaled(1e-4).max_context(u32::MAX / 2, 1.0), 2_147_483_647, "never less than it was trained on");
        let with_original_length = RopeConfig { scaling: Some(RopeScaling::Yarn), yarn_orig_ctx: Some(2048), ..scaled(0.25) };
        assert_eq!(with_original_length.max_context(4096, 1.0), 8192);
        assert_eq!(RopeConfig { scaling: Some(RopeScaling::None), ..scaled(0.25) }.max_context(4096, 1.0), 4096);
        let based = RopeConfig { freq_base: Some(1e6), ..RopeConfig::default() };
        assert_eq!(based.max_context(4096, 1.0), 4096, "nothing says how far another base reaches");
    }

    #[test]
    fn overrides_are_described_by_their_settings() {
        assert_eq!(RopeConfig::default().describe(), "");
        let rope = RopeConfig {
            scaling: RopeScaling::named("yarn"),
            freq_scale: Some(0.25),
            yarn_orig_ctx: Some(4096),
            ..RopeConfig::default()
        };
        assert_eq!(rope.describe(), "rope_scaling_type yarn, rope_freq_scale 0.25, yarn_orig_ctx 4096");
        assert_eq!(RopeScaling::named("longrope"), None);
    }
}
