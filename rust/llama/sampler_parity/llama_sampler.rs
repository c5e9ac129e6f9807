//! Wraps llama.cpp's samplers.

use std::ffi::CString;

use llama_cpp_sys_2 as sys;

use super::N_CTX;
use crate::llama::tests::demo;
use crate::request::{Mirostat, SamplerKind, SamplingParams, Token};

/// A sampler of llama.cpp, or a chain of them.
pub(super) struct LlamaSampler(*mut sys::llama_sampler);

impl Drop for LlamaSampler {
    fn drop(&mut self) {
        // SAFETY: the pointer came from an init function and is owned by this value alone; a chain frees its steps.
        unsafe { sys::llama_sampler_free(self.0) }
    }
}

/// llama.cpp's list of candidates after a step.
pub(super) struct Applied {
    /// The possible candidates.
    pub(super) list: Vec<(Token, f32)>,
    /// Number of candidates, including impossible ones.
    pub(super) n_all: usize,
    /// The selected token, if the step selects one.
    pub(super) selected: Option<Token>,
}

impl LlamaSampler {
    pub(super) fn greedy() -> Self {
        // SAFETY: the function takes nothing.
        Self(unsafe { sys::llama_sampler_init_greedy() })
    }

    fn logit_bias(n_vocab: i32, params: &SamplingParams, end_tokens: &[Token]) -> Self {
        let banned = end_tokens.iter().filter(|_| params.ignore_eos).map(|&token| (token, f32::NEG_INFINITY));
        let bias = params.logit_bias.iter().copied().chain(banned);
        let bias: Vec<_> = bias.map(|(token, bias)| sys::llama_logit_bias { token, bias }).collect();
        let n_bias = i32::try_from(bias.len()).unwrap();
        // SAFETY: the pointer is good for n_bias entries, and the function copies them.
        Self(unsafe { sys::llama_sampler_init_logit_bias(n_vocab, n_bias, bias.as_ptr()) })
    }

    fn dry(params: &SamplingParams) -> Self {
        let dry = &params.dry;
        let texts: Vec<CString> = dry.sequence_breakers.iter().map(|text| CString::new(text.as_str()).unwrap()).collect();
        let mut pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        let last_n = window(dry.penalty_last_n);
        // SAFETY: the model is alive, the texts are NUL-terminated, and the function copies them.
        Self(unsafe {
            sys::llama_sampler_init_dry(
                demo().vocab().as_ptr(),
                dry.multiplier,
                dry.base,
                dry.allowed_length,
                last_n,
                pointers.as_mut_ptr(),
                pointers.len(),
            )
        })
    }

    /// Returns the sampler that llama-server creates for this name; `None` if it has none, or replaces the draw by it.
    fn step(kind: SamplerKind, n_vocab: i32, params: &SamplingParams, seed: u32) -> Option<Self> {
        let p = params;
        let min_keep = params.min_keep as usize;
        // SAFETY: the functions take plain numbers, and a vocabulary that lives as long as the tests.
        let step = unsafe {
            match kind {
                SamplerKind::Dry => return Some(Self::dry(params)),
                SamplerKind::TfsZ | SamplerKind::AdaptiveP => return None,
                SamplerKind::Penalties => {
                    let last_n = window(p.repeat_last_n);
                    sys::llama_sampler_init_penalties(n_vocab, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
                }
                SamplerKind::TopNSigma => sys::llama_sampler_init_top_n_sigma(p.top_n_sigma),
                SamplerKind::TopK => sys::llama_sampler_init_top_k(p.top_k),
                SamplerKind::TypicalP => sys::llama_sampler_init_typical(p.typical_p, min_keep),
                SamplerKind::TopP => sys::llama_sampler_init_top_p(p.top_p, min_keep),
                SamplerKind::MinP => sys::llama_sampler_init_min_p(p.min_p, min_keep),
                SamplerKind::Xtc => sys::llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, min_keep, seed),
                SamplerKind::Temperature => {
                    sys::llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
                }
                SamplerKind::Infill => sys::llama_sampler_init_infill(demo().vocab().as_ptr()),
            }
        };
        Some(Self(step))
    }

    fn chain(steps: impl IntoIterator<Item = Self>) -> Self {
        // SAFETY: the parameters are llama.cpp's own defaults.
        let chain = Self(unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params()) });
        for step in steps {
            // SAFETY: both pointers are live; the chain takes ownership of the step, so it must not be freed here.
            unsafe { sys::llama_sampler_chain_add(chain.0, step.0) };
            std::mem::forget(step);
        }
        chain
    }

    /// Returns the biases and the steps of these kinds, without a draw.
    pub(super) fn steps(kinds: &[SamplerKind], n_vocab: usize, params: &SamplingParams, seed: u32, end_tokens: &[Token]) -> Self {
        let n_vocab = i32::try_from(n_vocab).unwrap();
        let steps = kinds.iter().filter_map(|&kind| Self::step(kind, n_vocab, params, seed));
        Self::chain([Self::logit_bias(n_vocab, params, end_tokens)].into_iter().chain(steps))
    }

    /// Returns llama-server's whole chain for the parameters.
    pub(super) fn server_chain(n_vocab: usize, params: &SamplingParams, seed: u32, end_tokens: &[Token]) -> Self {
        let (tau, eta) = (params.mirostat_tau, params.mirostat_eta);
        let number = i32::try_from(n_vocab).unwrap();
        // SAFETY: the functions take plain numbers.
        let (kinds, draw) = unsafe {
            match params.mirostat {
                Mirostat::Off if params.samplers.contains(&SamplerKind::AdaptiveP) => (
                    &params.samplers[..],
                    sys::llama_sampler_init_adaptive_p(params.adaptive_target.min(1.0), params.adaptive_decay, seed),
                ),
                Mirostat::Off => (&params.samplers[..], sys::llama_sampler_init_dist(seed)),
                Mirostat::V1 => (&[][..], sys::llama_sampler_init_mirostat(number, seed, tau, eta, 100)),
                Mirostat::V2 => (&[][..], sys::llama_sampler_init_mirostat_v2(seed, tau, eta)),
            }
        };
        // SAFETY: the function takes a plain number.
        let temperature =
            (params.mirostat != Mirostat::Off).then(|| Self(unsafe { sys::llama_sampler_init_temp(params.temperature) }));
        Self::chain([Self::steps(kinds, n_vocab, params, seed, end_tokens)].into_iter().chain(temperature).chain([Self(draw)]))
    }

    pub(super) fn accept(&self, token: Token) {
        // SAFETY: the pointer is live.
        unsafe { sys::llama_sampler_accept(self.0, token) }
    }

    pub(super) fn accept_all(&self, tokens: &[Token]) {
        for &token in tokens {
            self.accept(token);
        }
    }

    pub(super) fn apply(&self, row: &[f32]) -> Applied {
        let mut data: Vec<_> = (0..).zip(row).map(|(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 }).collect();
        let mut array = sys::llama_token_data_array { data: data.as_mut_ptr(), size: data.len(), selected: -1, sorted: false };
        // SAFETY: the array describes `data`, which outlives the call.
        unsafe { sys::llama_sampler_apply(self.0, &raw mut array) };
        // SAFETY: the remaining candidates are a part of `data`, which may start later than it does.
        let remaining = unsafe { std::slice::from_raw_parts(array.data, array.size) };
        let selected = usize::try_from(array.selected).ok().map(|index| remaining[index].id);
        let possible = remaining.iter().filter(|data| data.logit > f32::NEG_INFINITY);
        Applied { list: possible.map(|data| (data.id, data.logit)).collect(), n_all: remaining.len(), selected }
    }
}

/// Returns the window that llama-server uses, where negative means the context length.
fn window(last_n: i32) -> i32 {
    if last_n < 0 { i32::try_from(N_CTX).unwrap() } else { last_n }
}
