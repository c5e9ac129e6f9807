/// A sampler of the chain. Each may occur anywhere in the chain, several times or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is described where its parameters are")]
pub enum SamplerKind {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    TfsZ,
    TypicalP,
    TopP,
    MinP,
    Xtc,
    Temperature,
    AdaptiveP,
    Infill,
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

    pub const NAMES: [(&'static str, Self); 12] = [
        ("penalties", Self::Penalties),
        ("dry", Self::Dry),
        ("top_n_sigma", Self::TopNSigma),
        ("top_k", Self::TopK),
        ("tfs_z", Self::TfsZ),
        ("typ_p", Self::TypicalP),
        ("top_p", Self::TopP),
        ("min_p", Self::MinP),
        ("xtc", Self::Xtc),
        ("temperature", Self::Temperature),
        ("adaptive_p", Self::AdaptiveP),
        ("infill", Self::Infill),
    ];

    /// llama.cpp's letters, in the order of [`SamplerKind::NAMES`], and `f` for tail-free sampling.
    pub const LETTERS: &str = "edskfypmxtai";

    /// Parses a name (in any case, also with hyphens or nothing for underscores), llama-server's alias, or a letter.
    pub fn named(name: &str) -> Option<Self> {
        let mut characters = name.chars();
        if let (Some(letter), None) = (characters.next(), characters.next()) {
            return Self::LETTERS.find(letter).map(|at| Self::NAMES[at].1);
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
        for (name, kind) in SamplerKind::NAMES {
            for spelt in [name.to_owned(), name.replace('_', "-"), name.replace('_', ""), name.to_uppercase()] {
                assert_eq!(SamplerKind::named(&spelt), Some(kind), "{spelt}");
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
            assert_eq!(SamplerKind::named(name), Some(kind), "{name}");
        }
        for unknown in ["", "top", "top_q", "top__k", "mirostat", "K", "q", " top_k"] {
            assert_eq!(SamplerKind::named(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn letters_select_their_samplers() {
        let chain = |letters: &str| letters.chars().map(|letter| SamplerKind::named(&letter.to_string())).collect::<Vec<_>>();
        assert_eq!(chain("edskfypmxt"), SamplerKind::DEFAULT.map(Some));
        assert_eq!(chain("aiqT"), [Some(SamplerKind::AdaptiveP), Some(SamplerKind::Infill), None, None]);
    }
}
