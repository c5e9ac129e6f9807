//! How a model's weights lie in memory, which is settled when it is loaded.
//!
//! llama.cpp rearranges some formats at load, for AMX or so that eight rows of weights are read at once, and computes products with
//! those several times faster than with the file's own layout. The price is that these weights are no longer mapped: they are
//! copied, and processes that serve one file do not share them. Our products read the file's layout. Milliseconds per step of a
//! model of 1B on two cores with AVX-512, llama.cpp with repacked weights and ours without:
//!
//! | weights | rows | llama.cpp's | ours |
//! | --- | --- | --- | --- |
//! | `Q4_K` | 1 | 19 | 20 |
//! | `Q4_K` | 8 | 73 | 27 |
//! | `Q4_K` | 32 | 143 | 71 |
//!
//! AMX multiplies tiles, which none of our instruction sets does, so that there llama.cpp's products stay.

use crate::config::{KernelChoice, ModelConfig};

/// How the weights lie that the CPU computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightLayout {
    /// As in the file, which stays mapped where it was asked to be.
    AsInFile,
    /// Those of some formats as llama.cpp's own products want them.
    Repacked,
    /// Those of most formats as llama.cpp's products with AMX want them.
    Amx,
}

/// What [`ModelConfig::weights`] needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct LoadFacts {
    /// Whether our products are usable here and compute most of the weights, by their bytes.
    pub own_products: bool,
    /// Whether llama.cpp computes with AMX here.
    pub has_amx: bool,
    /// Whether the CPU computes layers.
    pub has_cpu_layers: bool,
    /// Whether llama.cpp would rearrange any of the weights.
    pub can_be_rearranged: bool,
}

impl ModelConfig {
    /// Chooses how the weights lie: as a user says, else by a rule. They stay as they are in the file where ours compute them, and
    /// are rearranged where llama.cpp does.
    #[must_use]
    pub fn weights(&self, facts: &LoadFacts) -> WeightLayout {
        let ours_compute = facts.own_products && facts.has_cpu_layers;
        let is_rearranged = self.repack.unwrap_or(match self.kernels {
            KernelChoice::Auto => !ours_compute || facts.has_amx,
            KernelChoice::Weft => !ours_compute,
            KernelChoice::LlamaCpp => true,
        });
        match (is_rearranged, facts.has_amx) {
            (false, _) => WeightLayout::AsInFile,
            (true, false) => WeightLayout::Repacked,
            (true, true) => WeightLayout::Amx,
        }
    }

    /// Whether the weights could lie otherwise than the rule of [`ModelConfig::weights`] says, and nobody says that they must not:
    /// which is faster, only a timing tells.
    #[must_use]
    pub fn is_layout_open(&self, facts: &LoadFacts) -> bool {
        let computes_with_ours = facts.own_products && facts.has_cpu_layers && self.kernels != KernelChoice::LlamaCpp;
        self.repack.is_none() && computes_with_ours && facts.can_be_rearranged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU for which our products were written.
    const FACTS: LoadFacts = LoadFacts { own_products: true, has_amx: false, has_cpu_layers: true, can_be_rearranged: true };
    const AMX: LoadFacts = LoadFacts { has_amx: true, ..FACTS };

    fn weights(kernels: KernelChoice, repack: Option<bool>, facts: LoadFacts) -> WeightLayout {
        ModelConfig { kernels, repack, ..ModelConfig::at("model.gguf".into()) }.weights(&facts)
    }

    #[test]
    fn what_ours_compute_stays_as_it_is_in_the_file() {
        assert_eq!(weights(KernelChoice::Auto, None, FACTS), WeightLayout::AsInFile);
        assert_eq!(weights(KernelChoice::Weft, None, FACTS), WeightLayout::AsInFile);
    }

    #[test]
    fn what_llama_cpp_computes_is_rearranged_as_it_likes() {
        assert_eq!(weights(KernelChoice::LlamaCpp, None, FACTS), WeightLayout::Repacked);
        assert_eq!(weights(KernelChoice::LlamaCpp, None, AMX), WeightLayout::Amx);
        for kernels in [KernelChoice::Auto, KernelChoice::Weft] {
            assert_eq!(weights(kernels, None, LoadFacts { own_products: false, ..FACTS }), WeightLayout::Repacked);
            assert_eq!(weights(kernels, None, LoadFacts { has_cpu_layers: false, ..FACTS }), WeightLayout::Repacked);
            assert_eq!(weights(kernels, None, LoadFacts { own_products: false, ..AMX }), WeightLayout::Amx);
        }
    }

    #[test]
    fn amx_stays_llama_cpps_unless_ours_are_asked_for() {
        assert_eq!(weights(KernelChoice::Auto, None, AMX), WeightLayout::Amx);
        assert_eq!(weights(KernelChoice::Weft, None, AMX), WeightLayout::AsInFile);
    }

    #[test]
    fn the_layout_is_open_where_both_are_possible_and_nobody_has_chosen() {
        let is_open = |kernels, repack, facts: LoadFacts| {
            ModelConfig { kernels, repack, ..ModelConfig::at("model.gguf".into()) }.is_layout_open(&facts)
        };
        for kernels in [KernelChoice::Auto, KernelChoice::Weft] {
            assert!(is_open(kernels, None, FACTS) && is_open(kernels, None, AMX));
            for repack in [false, true] {
                assert!(!is_open(kernels, Some(repack), FACTS));
            }
            assert!(!is_open(kernels, None, LoadFacts { own_products: false, ..FACTS }));
            assert!(!is_open(kernels, None, LoadFacts { has_cpu_layers: false, ..FACTS }));
            assert!(!is_open(kernels, None, LoadFacts { can_be_rearranged: false, ..FACTS }));
        }
        assert!(!is_open(KernelChoice::LlamaCpp, None, FACTS));
    }

    #[test]
    fn a_user_wins_over_the_rule() {
        for kernels in [KernelChoice::Auto, KernelChoice::Weft, KernelChoice::LlamaCpp] {
            for own_products in [false, true] {
                assert_eq!(weights(kernels, Some(true), LoadFacts { own_products, ..FACTS }), WeightLayout::Repacked);
                assert_eq!(weights(kernels, Some(true), LoadFacts { own_products, ..AMX }), WeightLayout::Amx);
                assert_eq!(weights(kernels, Some(false), LoadFacts { own_products, ..FACTS }), WeightLayout::AsInFile);
                assert_eq!(weights(kernels, Some(false), LoadFacts { own_products, ..AMX }), WeightLayout::AsInFile);
            }
        }
    }
}
