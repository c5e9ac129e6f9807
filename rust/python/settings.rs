//! Conversion of settings with several parameters, or with lists.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use super::convert::{setting, shown};
use super::errors::InvalidConfig;
use crate::config::{KvOverride, KvValue, RopeConfig, RopeScaling, TensorOverride, ThreadPriority, Threads};
use crate::llama::host::machine;

/// Parses the scaling of frequencies.
///
/// # Errors
/// `InvalidConfig` for anything but a name of [`RopeScaling`].
pub(super) fn rope_scaling(name: Option<&str>) -> PyResult<Option<RopeScaling>> {
    let read = |name: &str| {
        let reject = || {
            let message = format!("rope_scaling_type is {name:?}; it must be none, linear or yarn");
            InvalidConfig::new_err(("rope_scaling_type", message))
        };
        RopeScaling::named(name).ok_or_else(reject)
    };
    name.map(read).transpose()
}

/// Converts the encoding of positions; its numbers are checked when the engine's limits are derived.
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

/// A setting with its parameter name.
type Named<T> = (&'static str, Option<T>);

/// Converts thread settings; processors and polling are checked when the engine's limits are derived. `default` supplies
/// missing values.
///
/// # Errors
/// `InvalidConfig` for an invalid list of processors, priority, or number.
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

/// Converts metadata overrides; their bounds are checked when the model is loaded.
///
/// # Errors
/// `InvalidConfig` for a value of an unsupported type.
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
        let reject = |_| {
            let right = "True or False, an integer of 32 bits, a finite number or a text";
            InvalidConfig::new_err(("kv_overrides", format!("{key} is {}; it must be {right}", shown(&value))))
        };
        read.map_err(reject).map(|value| KvOverride { key, value })
    };
    given.into_iter().map(read).collect()
}

/// Converts placements of tensors; patterns and buffer types are checked when the model is loaded.
pub(super) fn tensor_overrides(given: Vec<(String, String)>) -> Vec<TensorOverride> {
    given.into_iter().map(|(pattern, buffer)| TensorOverride { pattern, buffer }).collect()
}

/// Returns the devices in addition to the CPU: name, description, total and free memory in bytes.
#[pyfunction]
pub(super) fn devices() -> Vec<(String, String, u64, u64)> {
    machine::devices().into_iter().map(|device| (device.name, device.description, device.n_bytes, device.n_free)).collect()
}

/// Returns the GBNF grammar of the JSON that matches a schema.
///
/// # Errors
/// `InvalidRequest` if the schema is invalid, with the reason.
#[pyfunction]
pub(super) fn schema_grammar(py: Python<'_>, schema: &str) -> PyResult<String> {
    Ok(py.detach(|| crate::llama::schema_grammar(schema))?)
}
