//! Instruction sets, and the best supported one.

use std::fmt;
use std::str::FromStr;

/// An instruction set, ordered from slow to fast within each processor family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust: the reference in tests, too slow for serving.
    Portable,
    /// AVX2, FMA and F16C: 8 lanes.
    Avx2,
    /// AVX2 and AVX-VNNI, which multiplies four bytes per lane in one instruction.
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and VNNI: 16 lanes.
    Avx512,
    /// NEON, which every `AArch64` processor has: pairs of registers of 4 lanes.
    Neon,
    /// NEON with the dot product of four bytes in one instruction (ARMv8.2 and later).
    NeonDot,
}

impl Level {
    /// Every level, in their order.
    pub const ALL: [Self; 6] = [Self::Portable, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Neon, Self::NeonDot];

    /// Returns the best level that the processor supports.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|level| level.is_available()).unwrap_or(Self::Portable)
    }

    /// Returns true if the processor supports this level.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => Self::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            _ => false,
        }
    }

    /// Returns the name that `--help` and the log use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dot",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == name);
        found.ok_or_else(|| {
            format!("unknown instruction set {name:?}; it must be one of {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_parses_from_its_display_name() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!("sse".parse::<Level>().is_err());
    }

    #[test]
    fn the_detected_level_is_available() {
        assert!(Level::detect().is_available());
    }
}
