//! llama.cpp's samplers, for comparison.

#![allow(unsafe_code, reason = "llama.cpp's functions are called as they are")]

use llama_cpp_sys_2 as sys;
use weft::request::{Mirostat, SamplerKind, SamplingParams, Token};

/// llama-server's chain for some parameters.
pub struct Chain {
    chain: *mut sys::llama_sampler,
    data: Vec<sys::llama_token_data>,
}

impl Chain {
    /// Creates the chain. Returns `None` if llama.cpp needs a model or lacks the sampler.
    pub fn new(params: &SamplingParams, seed: u32, n_vocab: usize) -> Option<Self> {
        let n_vocab = i32::try_from(n_vocab).expect("a vocabulary is small");
        // SAFETY: the parameters are llama.cpp's own defaults.
        let chain = unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params()) };
        let chain = Self { chain, data: Vec::new() };
        let (tau, eta) = (params.mirostat_tau, params.mirostat_eta);
        // SAFETY: the functions take plain numbers; the chain takes ownership of the created samplers.
        unsafe {
            let add = |step| sys::llama_sampler_chain_add(chain.chain, step);
            match params.mirostat {
                Mirostat::V1 => add(sys::llama_sampler_init_mirostat(n_vocab, seed, tau, eta, 100)),
                Mirostat::V2 => add(sys::llama_sampler_init_mirostat_v2(seed, tau, eta)),
                Mirostat::Off => {
                    for &kind in params.samplers.iter().filter(|&&kind| kind != SamplerKind::AdaptiveP) {
                        add(step(kind, params, seed, n_vocab)?);
                    }
                    add(if params.samplers.contains(&SamplerKind::AdaptiveP) {
                        sys::llama_sampler_init_adaptive_p(params.adaptive_target, params.adaptive_decay, seed)
                    } else {
                        sys::llama_sampler_init_dist(seed)
                    });
                }
            }
        }
        Some(chain)
    }

    /// Samples a token as llama-server does: from a copy of the row, made for each token.
    pub fn sample(&mut self, row: &[f32]) -> Token {
        self.data.clear();
        self.data.extend((0..).zip(row).map(|(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 }));
        let (data, size) = (self.data.as_mut_ptr(), self.data.len());
        let mut array = sys::llama_token_data_array { data, size, selected: -1, sorted: false };
        // SAFETY: the array describes `data`, which outlives the call, and the last sampler selects one of the remaining
        // candidates.
        unsafe {
            sys::llama_sampler_apply(self.chain, &raw mut array);
            (*array.data.offset(isize::try_from(array.selected).expect("an index is small"))).id
        }
    }

    /// Accepts a token.
    pub fn accept(&mut self, token: Token) {
        // SAFETY: the pointer is live.
        unsafe { sys::llama_sampler_accept(self.chain, token) }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by this value.
        unsafe { sys::llama_sampler_free(self.chain) }
    }
}

/// # Safety
/// None beyond calling llama.cpp: the arguments are plain numbers.
unsafe fn step(kind: SamplerKind, params: &SamplingParams, seed: u32, n_vocab: i32) -> Option<*mut sys::llama_sampler> {
    let (p, min_keep) = (params, params.min_keep as usize);
    // SAFETY: the caller's promise. Without breakers, the vocabulary is not read.
    Some(unsafe {
        match kind {
            SamplerKind::Penalties => {
                let last_n = p.repeat_last_n;
                sys::llama_sampler_init_penalties(n_vocab, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
            }
            SamplerKind::Dry => {
                let (dry, none) = (&p.dry, std::ptr::null_mut());
                let vocab = std::ptr::null();
                sys::llama_sampler_init_dry(vocab, dry.multiplier, dry.base, dry.allowed_length, dry.penalty_last_n, none, 0)
            }
            SamplerKind::TopNSigma => sys::llama_sampler_init_top_n_sigma(p.top_n_sigma),
            SamplerKind::TopK => sys::llama_sampler_init_top_k(p.top_k),
            SamplerKind::TypicalP => sys::llama_sampler_init_typical(p.typical_p, min_keep),
            SamplerKind::TopP => sys::llama_sampler_init_top_p(p.top_p, min_keep),
            SamplerKind::MinP => sys::llama_sampler_init_min_p(p.min_p, min_keep),
            SamplerKind::Xtc => sys::llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, min_keep, seed),
            SamplerKind::Temperature => sys::llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent),
            SamplerKind::TfsZ | SamplerKind::Infill | SamplerKind::AdaptiveP => return None,
        }
    })
}
