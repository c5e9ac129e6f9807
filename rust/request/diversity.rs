//! What the completions of one prompt have to do with each other.

use crate::error::{Error, Result};
use crate::request::{Mirostat, Request, SamplerKind};

/// Fewest beams of a [`BeamSearch`]; the most are as many as there are slots.
pub const MIN_BEAMS: u32 = 2;

/// The greatest [`BeamSearch::length_penalty`]; the least is as far below 0.
pub const MAX_LENGTH_PENALTY: f32 = 10.0;

/// How the `n` completions of a request are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Diversity {
    /// Each on its own.
    #[default]
    None,
    /// Each on its own, but no two begin with the same token: the first tokens are drawn without replacement, by Gumbel top-k (Kool,
    /// van Hoof and Welling, "Stochastic Beams and Where to Find Them", 2019, arXiv 1903.06059). Completions beyond the tokens that
    /// could be drawn end without one.
    Distinct,
    /// By arithmetic sampling (Vilnis et al., "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models", 2022, arXiv
    /// 2210.15458): completion `i` is the text that has the code point `(u + i / n) mod 1`, and `u` is the seed's.
    Arithmetic,
    /// The best that a search finds.
    Beams(BeamSearch),
}

/// A search for likely texts, several of which are gone on with at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamSearch {
    /// How many, [`MIN_BEAMS`] to the number of slots, and `n` at least. All of them are in slots together.
    pub width: u32,
    /// Texts are ranked by the sum of their tokens' log-probabilities divided by their number raised to this: 1 is the mean, 0 the
    /// sum. −[`MAX_LENGTH_PENALTY`] to [`MAX_LENGTH_PENALTY`], and 1 where the search is stochastic.
    pub length_penalty: f32,
    /// Whether the texts are drawn, without replacement: stochastic beam search (arXiv 1903.06059, algorithm 1).
    pub is_stochastic: bool,
}

impl Diversity {
    /// The search, where it is one.
    #[must_use]
    pub fn beams(&self) -> Option<&BeamSearch> {
        if let Self::Beams(beams) = self { Some(beams) } else { None }
    }

    /// The field that asks for it; `None` where nothing is asked for.
    #[must_use]
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Distinct => Some("distinct"),
            Self::Arithmetic => Some("diverse"),
            Self::Beams(_) => Some("beam_width"),
        }
    }

    /// Checks it beside the other fields of `request`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] names the field that cannot go with it.
    pub(super) fn validate(&self, request: &Request) -> Result<()> {
        let refuse = |param: &'static str, message: String| Err(Error::InvalidRequest { param, message });
        let Some(name) = self.param() else { return Ok(()) };
        let params = &request.sampling;
        if params.mirostat != Mirostat::Off {
            return refuse("mirostat", format!("mirostat draws in its own way and does not go with {name}; set it to 0"));
        }
        if params.samplers.contains(&SamplerKind::AdaptiveP) {
            return refuse("samplers", format!("adaptive_p draws in its own way and does not go with {name}; leave it out"));
        }
        self.beams().map_or(Ok(()), |beams| beams.validate(request))
    }
}

impl BeamSearch {
    fn validate(&self, request: &Request) -> Result<()> {
        let refuse = |param: &'static str, message: String| Err(Error::InvalidRequest { param, message });
        let Self { width, length_penalty, is_stochastic } = *self;
        if width < MIN_BEAMS {
            return refuse("beam_width", format!("beam_width is {width}; it must be {MIN_BEAMS} or more"));
        }
        if request.n > width {
            return refuse("n", format!("n is {}; of {width} beams at most {width} are told", request.n));
        }
        if !(-MAX_LENGTH_PENALTY..=MAX_LENGTH_PENALTY).contains(&length_penalty) {
            let limits = format!("it must be {} to {MAX_LENGTH_PENALTY}", -MAX_LENGTH_PENALTY);
            return refuse("length_penalty", format!("length_penalty is {length_penalty}; {limits}"));
        }
        if is_stochastic && length_penalty.to_bits() != 1.0_f32.to_bits() {
            return refuse(
                "length_penalty",
                "beams that are drawn are not ranked by length; leave length_penalty out".to_owned(),
            );
        }
        let excluded = [
            ("max_tokens", request.max_tokens == Some(0), "a search that writes nothing finds nothing"),
            ("context_shift", request.context_shift.is_some(), "beams share their context, which is not shifted"),
            ("max_predict_ms", request.max_predict_time.is_some(), "beams go by tokens and not by time"),
            ("xtc_probability", request.sampling.has_xtc(), "xtc takes tokens away by chance, and beams are compared"),
        ];
        match excluded.into_iter().find(|&(_, is_asked_for, _)| is_asked_for) {
            Some((param, _, why)) => refuse(param, format!("{param} does not go with beam_width: {why}; leave one of them out")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::request::{ContextShift, Prompt};

    const BEAMS: BeamSearch = BeamSearch { width: 4, length_penalty: 1.0, is_stochastic: false };

    fn refused(diversity: Diversity, change: impl FnOnce(&mut Request)) -> Option<&'static str> {
        let mut request = Request { n: 2, diversity, ..Request::new(Prompt::from_tokens(vec![1]), 0) };
        change(&mut request);
        match request.validate(10) {
            Ok(()) => None,
            Err(Error::InvalidRequest { param, .. }) => Some(param),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_draws_in_its_own_way_goes_with_no_diversity() {
        for diversity in [Diversity::Distinct, Diversity::Arithmetic, Diversity::Beams(BEAMS)] {
            assert_eq!(refused(diversity, |_| ()), None);
            assert_eq!(refused(diversity, |request| request.sampling.mirostat = Mirostat::V2), Some("mirostat"));
            assert_eq!(refused(diversity, |request| request.sampling.samplers = vec![SamplerKind::AdaptiveP]), Some("samplers"));
        }
        assert_eq!(refused(Diversity::None, |request| request.sampling.mirostat = Mirostat::V2), None);
    }

    #[test]
    fn what_cannot_go_with_beams_is_refused_by_name() {
        let beams = Diversity::Beams(BEAMS);
        assert_eq!(refused(beams, |request| request.max_tokens = Some(0)), Some("max_tokens"));
        assert_eq!(refused(beams, |request| request.context_shift = Some(ContextShift::default())), Some("context_shift"));
        assert_eq!(refused(beams, |request| request.max_predict_time = Some(Duration::from_secs(1))), Some("max_predict_ms"));
        assert_eq!(refused(beams, |request| request.sampling.xtc_probability = 0.5), Some("xtc_probability"));
        assert_eq!(refused(beams, |request| request.n = 5), Some("n"));
        assert_eq!(refused(Diversity::Beams(BeamSearch { width: 1, ..BEAMS }), |request| request.n = 1), Some("beam_width"));
        for length_penalty in [f32::NAN, 11.0, -11.0] {
            assert_eq!(refused(Diversity::Beams(BeamSearch { length_penalty, ..BEAMS }), |_| ()), Some("length_penalty"));
        }
        let stochastic = BeamSearch { is_stochastic: true, ..BEAMS };
        assert_eq!(refused(Diversity::Beams(stochastic), |_| ()), None);
        assert_eq!(refused(Diversity::Beams(BeamSearch { length_penalty: 0.0, ..stochastic }), |_| ()), Some("length_penalty"));
    }
}
