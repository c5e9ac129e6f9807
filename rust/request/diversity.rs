//! How the completions of one request differ: independent draws, distinct or arithmetic sampling, beam search.

use crate::error::Result;
use crate::request::{Mirostat, Request, SamplerKind, ensure_value, reject};

/// Minimum width of a [`BeamSearch`]; the maximum is the number of slots.
pub const MIN_BEAMS: u32 = 2;

/// Maximum of [`BeamSearch::length_penalty`]; the minimum is `-MAX_LENGTH_PENALTY`.
pub const MAX_LENGTH_PENALTY: f32 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Diversity {
    #[default]
    None,
    /// First tokens are drawn without replacement, by Gumbel top-k (Kool, van Hoof and Welling, "Stochastic Beams and Where to
    /// Find Them", 2019, arXiv 1903.06059). Completions without a candidate end without a token.
    Distinct,
    /// Arithmetic sampling (Vilnis et al., 2022, arXiv 2210.15458): completion `i` has the code point `(u + i / n) mod 1`.
    Arithmetic,
    Beams(BeamSearch),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamSearch {
    /// Number of beams: at least [`MIN_BEAMS`] and `n`, at most the number of slots. All beams occupy slots simultaneously.
    pub width: u32,
    /// Texts are ranked by the sum of their tokens' logprobs divided by the number of tokens raised to this power: 1 ranks by
    /// mean, 0 by sum. −[`MAX_LENGTH_PENALTY`] to [`MAX_LENGTH_PENALTY`]; must be 1 if the search is stochastic.
    pub length_penalty: f32,
    /// Draws the texts without replacement: stochastic beam search (arXiv 1903.06059, algorithm 1).
    pub is_stochastic: bool,
}

impl Diversity {
    pub(crate) fn beams(&self) -> Option<&BeamSearch> {
        if let Self::Beams(beams) = self { Some(beams) } else { None }
    }

    /// The request field that selects this diversity; `None` for the default.
    pub(crate) fn param(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Distinct => Some("distinct"),
            Self::Arithmetic => Some("diverse"),
            Self::Beams(_) => Some("beam_width"),
        }
    }

    pub(super) fn validate(&self, request: &Request) -> Result<()> {
        let Some(name) = self.param() else { return Ok(()) };
        let params = &request.sampling;
        if params.mirostat != Mirostat::Off {
            return reject("mirostat", format!("mirostat cannot be combined with {name}; set mirostat to 0 or leave {name} out"));
        }
        if params.samplers.contains(&SamplerKind::AdaptiveP) {
            let message = format!("samplers has adaptive_p, which cannot be combined with {name}; leave one of them out");
            return reject("samplers", message);
        }
        self.beams().map_or(Ok(()), |beams| beams.validate(request))
    }
}

impl BeamSearch {
    fn validate(&self, request: &Request) -> Result<()> {
        let Self { width, length_penalty, is_stochastic } = *self;
        ensure_value(width >= MIN_BEAMS, "beam_width", width, format_args!("{MIN_BEAMS} or more"))?;
        ensure_value(request.n <= width, "n", request.n, format_args!("at most beam_width, which is {width}"))?;
        let is_valid = (-MAX_LENGTH_PENALTY..=MAX_LENGTH_PENALTY).contains(&length_penalty);
        let valid = format_args!("{} to {MAX_LENGTH_PENALTY}", -MAX_LENGTH_PENALTY);
        ensure_value(is_valid, "length_penalty", length_penalty, valid)?;
        if is_stochastic && length_penalty.to_bits() != 1.0_f32.to_bits() {
            let remedy = "a stochastic beam search supports only 1: leave length_penalty out";
            return reject("length_penalty", format!("length_penalty is {length_penalty}; {remedy}"));
        }
        let excluded = [
            ("max_tokens", request.max_tokens == Some(0), "a beam search generates at least one token"),
            ("context_shift", request.context_shift.is_some(), "a context that beams share cannot be shifted"),
            ("max_predict_ms", request.max_predict_time.is_some(), "the length of beams is limited in tokens, not in time"),
            ("xtc_probability", request.sampling.has_xtc(), "XTC removes tokens at random, so that beams are not comparable"),
        ];
        match excluded.into_iter().find(|&(_, is_set, _)| is_set) {
            Some((param, _, reason)) => {
                reject(param, format!("{param} cannot be combined with beam_width: {reason}; leave one of them out"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::request::{ContextShift, Prompt, rejected_param_of};

    const BEAMS: BeamSearch = BeamSearch { width: 4, length_penalty: 1.0, is_stochastic: false };

    fn rejected_param(diversity: Diversity, change: impl FnOnce(&mut Request)) -> Option<&'static str> {
        let mut request = Request { n: 2, diversity, ..Request::new(Prompt::from_tokens(vec![1]), 0) };
        change(&mut request);
        rejected_param_of(request.validate(10))
    }

    #[test]
    fn samplers_with_their_own_draw_are_incompatible_with_diversity() {
        for diversity in [Diversity::Distinct, Diversity::Arithmetic, Diversity::Beams(BEAMS)] {
            assert_eq!(rejected_param(diversity, |_| ()), None);
            assert_eq!(rejected_param(diversity, |request| request.sampling.mirostat = Mirostat::V2), Some("mirostat"));
            assert_eq!(
                rejected_param(diversity, |request| request.sampling.samplers = vec![SamplerKind::AdaptiveP]),
                Some("samplers")
            );
        }
        assert_eq!(rejected_param(Diversity::None, |request| request.sampling.mirostat = Mirostat::V2), None);
    }

    #[test]
    fn fields_incompatible_with_beam_search_are_rejected_by_name() {
        let beams = Diversity::Beams(BEAMS);
        assert_eq!(rejected_param(beams, |request| request.max_tokens = Some(0)), Some("max_tokens"));
        assert_eq!(rejected_param(beams, |request| request.context_shift = Some(ContextShift::default())), Some("context_shift"));
        assert_eq!(
            rejected_param(beams, |request| request.max_predict_time = Some(Duration::from_secs(1))),
            Some("max_predict_ms")
        );
        assert_eq!(rejected_param(beams, |request| request.sampling.xtc_probability = 0.5), Some("xtc_probability"));
        assert_eq!(rejected_param(beams, |request| request.n = 5), Some("n"));
        assert_eq!(
            rejected_param(Diversity::Beams(BeamSearch { width: 1, ..BEAMS }), |request| request.n = 1),
            Some("beam_width")
        );
        for length_penalty in [f32::NAN, 11.0, -11.0] {
            assert_eq!(rejected_param(Diversity::Beams(BeamSearch { length_penalty, ..BEAMS }), |_| ()), Some("length_penalty"));
        }
        let stochastic = BeamSearch { is_stochastic: true, ..BEAMS };
        assert_eq!(rejected_param(Diversity::Beams(stochastic), |_| ()), None);
        assert_eq!(
            rejected_param(Diversity::Beams(BeamSearch { length_penalty: 0.0, ..stochastic }), |_| ()),
            Some("length_penalty")
        );
    }
}
