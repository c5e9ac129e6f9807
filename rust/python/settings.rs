//! Settings that are made of several keywords, or of lists.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use super::convert::{setting, shown};
use super::errors::InvalidConfig;
use crate::config::{KvOverride, KvValue, RopeConfig, RopeScaling, TensorOverride, ThreadPriority, Threads};
use crate::llama::machine;

/// How frequencies are scaled.
///
/// # Errors
/// `InvalidConfig` for anything but a name of [`RopeScaling`].
pub(super) fn rope_scaling(name: Option<&str>) -> PyResult<Option<RopeScaling>> {
    let read = |name: &str| {
        let refuse = || {
            let message = format!("rope_scaling_type is {name:?}; it must be none, linear or yarn");
            InvalidConfig::new_err(("rope_scaling_type", message))
        };
        RopeScaling::named(name).ok_or_else(refuse)
    };
    name.map(read).transpose()
}

/// How positions are encoded; its numbers are checked when the engine's are settled.
pub(super) fn rope(
    scaling: Option<&str>,
    [freq_base, freq_scale]: [Option<f64>; 2],
    yarn_orig_ctx: Option<u32>,
    [yarn_ext_factor, yarn_attn_factor, yarn_beta_slow, yarn_beta_fast]: [Option<f64>; 4],
) -> PyResult<RopeConfig> {
    Ok(RopeConfig {
        scaling: rope_scaling(scaling)?,
        freq_base,
        freq_scale,
        yarn_orig_ctx,
        yarn_ext_factor,
        yarn_attn_factor,
        yarn_beta_slow,
        yarn_beta_fast,
    })
}

/// A setting with the name that the caller gave it.
type Named<T> = (&'static str, Option<T>);

/// Where and how threads compute; processors and waits are checked when the engine's numbers are settled. What is left open is as
/// `default` has it.
///
/// # Errors
/// `InvalidConfig` for what is no list of processors, no priority and no number.
pub(super) fn threads(
    default: &Threads,
    cpus: Named<&Bound<'_, PyAny>>,
    is_strict: Option<bool>,
    prio: Named<i32>,
    poll: Named<&Bound<'_, PyAny>>,
) -> PyResult<Threads> {
    let (name, cpus) = cpus;
    let read_cpus = |cpus: &Bound<'_, PyAny>| {
        let message = || format!("{name} is {}; it must be a sequence of processors, from 0", shown(cpus));
        cpus.extract().map_err(|_| InvalidConfig::new_err((name, message())))
    };
    let (param, prio) = prio;
    let priority = |number| {
        let message = || format!("{param} is {number}; it must be -1 (low), 0 (normal), 1 (medium), 2 (high) or 3 (realtime)");
        ThreadPriority::numbered(number).ok_or_else(|| InvalidConfig::new_err((param, message())))
    };
    Ok(Threads {
        cpus: cpus.map_or_else(|| Ok(default.cpus.clone()), read_cpus)?,
        is_strict: is_strict.unwrap_or(default.is_strict),
        priority: prio.map_or(Ok(default.priority), priority)?,
        poll: setting(poll.0, poll.1)?.or(default.poll),
    })
}

/// Values of the metadata in place of the file's; their bounds are checked when the model is loaded.
///
/// # Errors
/// `InvalidConfig` for a value of another type than those that there are.
pub(super) fn kv_overrides(given: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Vec<KvOverride>> {
    let read = |(key, value): (String, Bound<'_, PyAny>)| {
        let read = if value.is_instance_of::<PyBool>() {
            value.extract().map(KvValue::Bool)
        } else if value.is_instance_of::<PyInt>() {
            value.extract().map(KvValue::Int)
        } else if value.is_instance_of::<PyFloat>() {
            value.extract().map(KvValue::Float)
        } else if value.is_instance_of::<PyString>() {
            value.extract().map(KvValue::Text)
        } else {
            Err(InvalidConfig::new_err(()))
        };
        let refuse = |_| {
            let right = "True or False, an integer of 32 bits, a finite number or a text";
            InvalidConfig::new_err(("kv_overrides", format!("{key} is {}; it must be {right}", shown(&value))))
        };
        read.map_err(refuse).map(|value| KvOverride { key, value })
    };
    given.into_iter().map(read).collect()
}

/// Where tensors go; patterns and memory are checked when the model is loaded.
pub(super) fn tensor_overrides(given: Vec<(String, String)>) -> Vec<TensorOverride> {
    given.into_iter().map(|(pattern, buffer)| TensorOverride { pattern, buffer }).collect()
}

/// Devices beside the CPU: name, description, bytes of memory, and how many of those are free.
#[pyfunction]
pub(super) fn devices() -> Vec<(String, String, u64, u64)> {
    machine::devices().into_iter().map(|device| (device.name, device.description, device.n_bytes, device.n_free)).collect()
}

/// The grammar in GBNF of the JSON that fits a schema.
///
/// # Errors
/// `InvalidRequest` says what is wrong with the schema.
#[pyfunction]
pub(super) fn schema_grammar(py: Python<'_>, schema: &str) -> PyResult<String> {
    Ok(py.detach(|| crate::llama::schema_grammar(schema))?)
}
