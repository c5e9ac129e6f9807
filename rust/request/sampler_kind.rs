//! Names of the samplers in a chain.

use crate::config::{Named, named_variants};

named_variants! {
    /// A sampler of the chain. Each may occur anywhere in the chain, several times or not at all.
    #[derive(Hash)]
    pub enum SamplerKind {
        Penalties = "penalties",
        Dry = "dry",
        TopNSigma = "top_n_sigma",
        TopK = "top_k",
        TfsZ = "tfs_z",
        TypicalP = "typ_p",
        TopP = "top_p",
        MinP = "min_p",
        Xtc = "xtc",
        Temperature = "temperature",
        AdaptiveP = "adaptive_p",
        Infill = "infill",
    }
}

impl SamplerKind {
    /// llama-server's default chain, with tail-free sampling after top-k.
    pub const DEFAULT: [Self; 10] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TfsZ,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// llama.cpp's letters, in the order of [`Named::NAMES`], and `f` for tail-free sampling.
    pub const LETTERS: &str = "edskfypmxtai";

    /// Parses a name (in any case, also with hyphens or nothing for underscores), llama-server's alias, or a letter.
    pub fn parse(name: &str) -> Option<Self> {
        let mut characters = name.chars();
        if let (Some(letter), None) = (characters.next(), characters.next()) {
            return Self::LETTERS.find(letter).map(|index| Self::NAMES[index].1);
        }
        let is = |known: &str| {
            let given = name.to_ascii_lowercase();
            given == known || given == known.replace('_', "-") || given == known.replace('_', "")
        };
        let others = [
            ("typical_p", Self::TypicalP),
            ("typ", Self::TypicalP),
            ("nucleus", Self::TopP),
            ("temp", Self::Temperature),
            ("tfs", Self::TfsZ),
        ];
        Self::NAMES.iter().chain(&others).find(|(known, _)| is(known)).map(|&(_, kind)| kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_llama_server_name_selects_its_sampler() {
        for &(name, kind) in SamplerKind::NAMES {
            for spelt in [name.to_owned(), name.replace('_', "-"), name.replace('_', ""), name.to_uppercase()] {
                assert_eq!(SamplerKind::parse(&spelt), Some(kind), "{spelt}");
            }
        }
        let others = [
            ("typical_p", SamplerKind::TypicalP),
            ("typical-p", SamplerKind::TypicalP),
            ("Typ", SamplerKind::TypicalP),
            ("nucleus", SamplerKind::TopP),
            ("temp", SamplerKind::Temperature),
            ("tfs", SamplerKind::TfsZ),
        ];
        for (name, kind) in others {
            assert_eq!(SamplerKind::parse(name), Some(kind), "{name}");
        }
        for unknown in ["", "top", "top_q", "top__k", "mirostat", "K", "q", " top_k"] {
            assert_eq!(SamplerKind::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn letters_select_their_samplers() {
        let chain = |letters: &str| letters.chars().map(|letter| SamplerKind::parse(&letter.to_string())).collect::<Vec<_>>();
        assert_eq!(chain("edskfypmxt"), SamplerKind::DEFAULT.map(Some));
        assert_eq!(chain("aiqT"), [Some(SamplerKind::AdaptiveP), Some(SamplerKind::Infill), None, None]);
    }
}
