//! llama.cpp's samplers.

use std::ffi::CString;

use llama_cpp_sys_2 as sys;

use super::N_CTX;
use crate::llama::tests::demo;
use crate::request::{Mirostat, SamplerKind, SamplingParams, Token};

/// A sampler of llama.cpp's, or a chain of them.
pub(super) struct LlamaSampler(*mut sys::llama_sampler);

impl Drop for LlamaSampler {
    fn drop(&mut self) {
        // SAFETY: the pointer came from an init function and is owned by this value alone; a chain frees what was added to it.
        unsafe { sys::llama_sampler_free(self.0) }
    }
}

/// llama.cpp's list of candidates after a step.
pub(super) struct Applied {
    /// Without the impossible ones.
    pub(super) list: Vec<(Token, f32)>,
    /// With them.
    pub(super) n_all: usize,
    /// The token that the step selected, where it selects one.
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
        // SAFETY: the model is alive, the texts end in NUL, and the function copies what it needs of them.
        Self(unsafe {
            sys::llama_sampler_init_dry(
                demo().vocab(),
                dry.multiplier,
                dry.base,
                dry.allowed_length,
                last_n,
                pointers.as_mut_ptr(),
                pointers.len(),
            )
        })
    }

    /// What llama-server adds for this name; `None` for what it does not know or puts in the draw's place.
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
                SamplerKind::Infill => sys::llama_sampler_init_infill(demo().vocab()),
            }
        };
        Some(Self(step))
    }

    /// These steps one after the other.
    fn chain(steps: impl IntoIterator<Item = Self>) -> Self {
        // SAFETY: the parameters are llama.cpp's own defaults.
        let chain = Self(unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params()) });
        for step in steps {
            // SAFETY: both pointers are live; the chain takes the step over, so the step must not free it.
            unsafe { sys::llama_sampler_chain_add(chain.0, step.0) };
            std::mem::forget(step);
        }
        chain
    }

    /// The biases and the steps of these kinds, without a draw.
    pub(super) fn steps(kinds: &[SamplerKind], n_vocab: usize, params: &SamplingParams, seed: u32, end_tokens: &[Token]) -> Self {
        let n_vocab = i32::try_from(n_vocab).unwrap();
        let steps = kinds.iter().filter_map(|&kind| Self::step(kind, n_vocab, params, seed));
        Self::chain([Self::logit_bias(n_vocab, params, end_tokens)].into_iter().chain(steps))
    }

    /// All that llama-server makes of the parameters.
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
        // SAFETY: samplers leave a part of `data`, which may begin later than it does.
        let left = unsafe { std::slice::from_raw_parts(array.data, array.size) };
        let selected = usize::try_from(array.selected).ok().map(|at| left[at].id);
        let possible = left.iter().filter(|data| data.logit > f32::NEG_INFINITY);
        Applied { list: possible.map(|data| (data.id, data.logit)).collect(), n_all: left.len(), selected }
    }
}

/// What llama-server makes of −1.
fn window(last_n: i32) -> i32 {
    if last_n < 0 { i32::try_from(N_CTX).unwrap() } else { last_n }
}
