//! How positions are encoded, where a user says otherwise than the model's file.

use std::fmt::Write as _;

use crate::error::{Error, Result};

/// Frequencies of rotations: the base of the slowest, and how they are scaled for texts longer than those of the training.
const BASES: (f64, f64) = (2.0, 1e12);
const SCALES: (f64, f64) = (1e-4, 1e4);
const FACTORS: (f64, f64) = (0.0, 1e6);

/// The longest text that a scale makes room for: positions are 32-bit signed numbers in llama.cpp.
const MAX_REACH: f64 = 2_147_483_392.0;

/// What is changed of how positions are encoded (`RoPE`, <https://arxiv.org/abs/2104.09864>); `None` is as the model's file says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RopeConfig {
    /// How frequencies are scaled (`--rope-scaling`).
    pub scaling: Option<RopeScaling>,
    /// The base of the frequencies (`--rope-freq-base`), 2 to 10¹².
    pub freq_base: Option<f64>,
    /// What positions are multiplied by (`--rope-freq-scale`), 0.0001 to 10,000: 0.25 makes room for texts four times as long.
    pub freq_scale: Option<f64>,
    /// Tokens of context that the model had before it was extended (`--yarn-orig-ctx`), at least 1.
    pub yarn_orig_ctx: Option<u32>,
    /// How much is extrapolated (`--yarn-ext-factor`), 0 to 10⁶; 0 is interpolation alone.
    pub yarn_ext_factor: Option<f64>,
    /// What the lengths of queries and keys are multiplied by (`--yarn-attn-factor`), 0 to 10⁶; llama.cpp computes it itself where
    /// the factor of extrapolation is not 0.
    pub yarn_attn_factor: Option<f64>,
    /// Rotations over the original context below which a frequency is interpolated (`--yarn-beta-slow`), 0 to 10⁶.
    pub yarn_beta_slow: Option<f64>,
    /// Rotations over the original context above which a frequency is left as it is (`--yarn-beta-fast`), 0 to 10⁶.
    pub yarn_beta_fast: Option<f64>,
}

/// How frequencies are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeScaling {
    /// Not at all, whatever the file says.
    None,
    /// All alike.
    Linear,
    /// The slow ones more than the fast ones (`YaRN`, <https://arxiv.org/abs/2309.00071>).
    Yarn,
}

impl RopeScaling {
    const NAMED: [(&str, Self); 3] = [("none", Self::None), ("linear", Self::Linear), ("yarn", Self::Yarn)];

    /// The scaling of llama.cpp's name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, scaling)| *scaling)
    }

    /// llama.cpp's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, scaling)| *scaling == self).map_or("none", |(name, _)| name)
    }
}

impl RopeConfig {
    /// Whether all is as the model's file says.
    #[must_use]
    pub fn is_as_in_file(&self) -> bool {
        *self == Self::default()
    }

    /// # Errors
    /// [`Error::InvalidConfig`] names the first number that is out of range.
    pub fn validate(&self) -> Result<()> {
        for (param, value, (low, high)) in self.numbers() {
            if let Some(value) = value.filter(|value| !(low..=high).contains(value)) {
                return Err(Error::InvalidConfig { param, message: format!("{param} is {value}; it must be {low} to {high}") });
            }
        }
        if self.yarn_orig_ctx == Some(0) {
            let message = "yarn_orig_ctx is 0; it must be at least 1".to_owned();
            return Err(Error::InvalidConfig { param: "yarn_orig_ctx", message });
        }
        Ok(())
    }

    /// Tokens of the longest text that positions are there for, of a model that was trained on `n_ctx_train` with frequencies scaled
    /// by `trained_scale`. A scale makes room for longer texts, never for shorter ones alone.
    #[must_use]
    pub fn reach(&self, n_ctx_train: u32, trained_scale: f32) -> u32 {
        let Some(scale) = self.freq_scale.filter(|_| self.scaling != Some(RopeScaling::None)) else { return n_ctx_train };
        let n_before = match (self.yarn_orig_ctx, self.scaling) {
            (Some(n), Some(RopeScaling::Yarn)) => f64::from(n),
            _ => f64::from(n_ctx_train) * f64::from(trained_scale),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within the bounds")]
        let n = (n_before / scale).round().clamp(0.0, MAX_REACH) as u32;
        n.max(n_ctx_train)
    }

    /// All that is changed, by the names of the settings: it tells caches that were computed so from all others.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut words = String::new();
        let mut add = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(words, "{}{name} {value}", if words.is_empty() { "" } else { ", " });
        };
        if let Some(scaling) = self.scaling {
            add("rope_scaling_type", &scaling.name());
        }
        for (name, value, _) in self.numbers() {
            if let Some(value) = value {
                add(name, &value);
            }
        }
        if let Some(n) = self.yarn_orig_ctx {
            add("yarn_orig_ctx", &n);
        }
        words
    }

    /// Each number with its name, and the least and the greatest that it may be.
    fn numbers(&self) -> [(&'static str, Option<f64>, (f64, f64)); 6] {
        [
            ("rope_freq_base", self.freq_base, BASES),
            ("rope_freq_scale", self.freq_scale, SCALES),
            ("yarn_ext_factor", self.yarn_ext_factor, FACTORS),
            ("yarn_attn_factor", self.yarn_attn_factor, FACTORS),
            ("yarn_beta_slow", self.yarn_beta_slow, FACTORS),
            ("yarn_beta_fast", self.yarn_beta_fast, FACTORS),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rope: RopeConfig) -> &'static str {
        match rope.validate() {
            Err(Error::InvalidConfig { param, .. }) => param,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_out_of_range_and_no_numbers_are_named() {
        let as_in_file = RopeConfig::default();
        assert_eq!(as_in_file.validate(), Ok(()));
        assert_eq!(refused(RopeConfig { freq_base: Some(1.0), ..as_in_file }), "rope_freq_base");
        assert_eq!(refused(RopeConfig { freq_base: Some(f64::INFINITY), ..as_in_file }), "rope_freq_base");
        assert_eq!(refused(RopeConfig { freq_scale: Some(0.0), ..as_in_file }), "rope_freq_scale");
        assert_eq!(refused(RopeConfig { freq_scale: Some(f64::NAN), ..as_in_file }), "rope_freq_scale");
        assert_eq!(refused(RopeConfig { yarn_ext_factor: Some(-1.0), ..as_in_file }), "yarn_ext_factor");
        assert_eq!(refused(RopeConfig { yarn_attn_factor: Some(-0.5), ..as_in_file }), "yarn_attn_factor");
        assert_eq!(refused(RopeConfig { yarn_beta_slow: Some(2e6), ..as_in_file }), "yarn_beta_slow");
        assert_eq!(refused(RopeConfig { yarn_beta_fast: Some(f64::NAN), ..as_in_file }), "yarn_beta_fast");
        assert_eq!(refused(RopeConfig { yarn_orig_ctx: Some(0), ..as_in_file }), "yarn_orig_ctx");
    }

    #[test]
    fn a_scale_makes_room_for_longer_texts() {
        let scaled = |freq_scale| RopeConfig { freq_scale: Some(freq_scale), ..RopeConfig::default() };
        assert_eq!(RopeConfig::default().reach(4096, 1.0), 4096);
        assert_eq!(scaled(0.25).reach(4096, 1.0), 16_384);
        assert_eq!(scaled(0.125).reach(32_768, 0.25), 65_536, "the file's own scale is counted already");
        assert_eq!(scaled(2.0).reach(4096, 1.0), 4096);
        assert_eq!(scaled(1e-4).reach(u32::MAX / 2, 1.0), 2_147_483_647, "never less than it was trained on");
        let of_a_known_length = RopeConfig { scaling: Some(RopeScaling::Yarn), yarn_orig_ctx: Some(2048), ..scaled(0.25) };
        assert_eq!(of_a_known_length.reach(4096, 1.0), 8192);
        assert_eq!(RopeConfig { scaling: Some(RopeScaling::None), ..scaled(0.25) }.reach(4096, 1.0), 4096);
        let based = RopeConfig { freq_base: Some(1e6), ..RopeConfig::default() };
        assert_eq!(based.reach(4096, 1.0), 4096, "nothing says how far another base reaches");
    }

    #[test]
    fn what_is_changed_is_told_in_words() {
        assert_eq!(RopeConfig::default().in_words(), "");
        let rope = RopeConfig {
            scaling: RopeScaling::named("yarn"),
            freq_scale: Some(0.25),
            yarn_orig_ctx: Some(4096),
            ..RopeConfig::default()
        };
        assert_eq!(rope.in_words(), "rope_scaling_type yarn, rope_freq_scale 0.25, yarn_orig_ctx 4096");
        assert_eq!(RopeScaling::named("longrope"), None);
    }
}
