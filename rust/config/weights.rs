//! Memory layout of a model's weights, chosen at load.
//!
//! llama.cpp rearranges some formats at load, for AMX or to read eight rows together. Rearranged weights are copies that
//! processes do not share; our products read the on-disk layout. Milliseconds per step of a model of 1B on two cores with
//! AVX-512, llama.cpp with repacked weights and ours without:
//!
//! | weights | rows | llama.cpp's | ours |
//! | --- | --- | --- | --- |
//! | `Q4_K` | 1 | 19 | 20 |
//! | `Q4_K` | 8 | 73 | 27 |
//! | `Q4_K` | 32 | 143 | 71 |
//!
//! AMX multiplies tiles, which our kernels do not support; llama.cpp's products are used there.

use crate::config::{KernelChoice, ModelConfig};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightLayout {
    /// On-disk layout; mapped, if configured.
    AsInFile,
    /// Some formats rearranged for llama.cpp's own products.
    Repacked,
    /// Most formats rearranged for llama.cpp's products with AMX.
    Amx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct LoadFacts {
    /// Our products are usable here and compute most of the weights, by size.
    pub own_products: bool,
    pub has_amx: bool,
    pub has_cpu_layers: bool,
    pub can_be_rearranged: bool,
}

impl LoadFacts {
    fn use_own_products(self) -> bool {
        self.own_products && self.has_cpu_layers
    }
}

impl ModelConfig {
    /// The configured layout; else weights that our kernels compute stay in their on-disk layout, and others are rearranged.
    pub fn choose_layout(&self, facts: &LoadFacts) -> WeightLayout {
        let is_rearranged = self.repack.unwrap_or(match self.kernels {
            KernelChoice::Auto => !facts.use_own_products() || facts.has_amx,
            KernelChoice::Weft => !facts.use_own_products(),
            KernelChoice::LlamaCpp => true,
        });
        match (is_rearranged, facts.has_amx) {
            (false, _) => WeightLayout::AsInFile,
            (true, false) => WeightLayout::Repacked,
            (true, true) => WeightLayout::Amx,
        }
    }

    /// Returns true if either layout is possible and none is configured, so that only a measurement shows which one is faster.
    pub fn is_layout_open(&self, facts: &LoadFacts) -> bool {
        let is_ours = self.kernels != KernelChoice::LlamaCpp && facts.use_own_products();
        self.repack.is_none() && is_ours && facts.can_be_rearranged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU that our products support.
    const FACTS: LoadFacts = LoadFacts { own_products: true, has_amx: false, has_cpu_layers: true, can_be_rearranged: true };
    const AMX: LoadFacts = LoadFacts { has_amx: true, ..FACTS };

    fn weights(kernels: KernelChoice, repack: Option<bool>, facts: LoadFacts) -> WeightLayout {
        ModelConfig { kernels, repack, ..ModelConfig::at("model.gguf".into()) }.choose_layout(&facts)
    }

    #[test]
    fn weights_of_our_products_keep_their_on_disk_layout() {
        assert_eq!(weights(KernelChoice::Auto, None, FACTS), WeightLayout::AsInFile);
        assert_eq!(weights(KernelChoice::Weft, None, FACTS), WeightLayout::AsInFile);
    }

    #[test]
    fn weights_of_llama_cpps_products_are_rearranged() {
        assert_eq!(weights(KernelChoice::LlamaCpp, None, FACTS), WeightLayout::Repacked);
        assert_eq!(weights(KernelChoice::LlamaCpp, None, AMX), WeightLayout::Amx);
        for kernels in [KernelChoice::Auto, KernelChoice::Weft] {
            assert_eq!(weights(kernels, None, LoadFacts { own_products: false, ..FACTS }), WeightLayout::Repacked);
            assert_eq!(weights(kernels, None, LoadFacts { has_cpu_layers: false, ..FACTS }), WeightLayout::Repacked);
            assert_eq!(weights(kernels, None, LoadFacts { own_products: false, ..AMX }), WeightLayout::Amx);
        }
    }

    #[test]
    fn amx_uses_llama_cpps_layout_unless_our_kernels_are_requested() {
        assert_eq!(weights(KernelChoice::Auto, None, AMX), WeightLayout::Amx);
        assert_eq!(weights(KernelChoice::Weft, None, AMX), WeightLayout::AsInFile);
    }

    #[test]
    fn the_layout_is_open_if_both_are_possible_and_none_is_configured() {
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
    fn an_explicit_layout_overrides_the_rule() {
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
