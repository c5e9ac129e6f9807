//! Conversion of the parameters that make branches differ: beams, arithmetic and distinct sampling.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use super::convert::{SWITCH, request_field, shorten_repr};
use super::errors::{InvalidRequestError, invalid_request};
use crate::request::{BeamSearch, Diversity};

pub(super) fn read_diversity(object: &Bound<'_, PyAny>, n: u32) -> PyResult<Diversity> {
    let is_distinct: bool = request_field!(object, "distinct", SWITCH);
    let diverse: Option<PyBackedStr> = request_field!(object, "diverse", "'arithmetic' or 'beam'");
    let beam_width: Option<u32> = request_field!(object, "beam_width", "an integer of 2 or more");
    let length_penalty: f32 = request_field!(object, "length_penalty", "a number from −10 to 10");
    let reject = |param: &'static str, message: &str| Err(InvalidRequestError::new_err((param, message.to_owned())));
    let (is_arithmetic, is_stochastic) = match diverse.as_deref() {
        None => (false, false),
        Some("arithmetic") => (true, false),
        Some("beam") => (false, true),
        Some(_) => {
            let given = shorten_repr(&object.getattr(intern!(object.py(), "diverse"))?);
            return Err(invalid_request("diverse", given, "'arithmetic' or 'beam'"));
        }
    };
    if is_distinct && (diverse.is_some() || beam_width.is_some()) {
        return reject(
            "distinct",
            "distinct cannot be combined with diverse or beam_width, which return distinct texts anyway; omit it",
        );
    }
    if is_arithmetic && beam_width.is_some() {
        return reject("diverse", "diverse is 'arithmetic', which cannot be combined with beam_width; omit one of them");
    }
    if is_stochastic && beam_width.is_none() && n < 2 {
        return reject("diverse", "diverse is 'beam', which requires 2 beams or more; set n or beam_width to at least 2");
    }
    match beam_width.or(is_stochastic.then_some(n)) {
        Some(width) => Ok(Diversity::Beams(BeamSearch { width, length_penalty, is_stochastic })),
        None if length_penalty.to_bits() != 1.0_f32.to_bits() => {
            reject("length_penalty", "length_penalty requires a beam search; set beam_width")
        }
        None if is_arithmetic => Ok(Diversity::Arithmetic),
        None if is_distinct => Ok(Diversity::Distinct),
        None => Ok(Diversity::None),
    }
}
