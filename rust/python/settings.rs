//! Conversion of settings. Errors name the setting; ranges are checked by [`EngineConfig::resolve`] and when a model is loaded.

use std::time::Duration;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use super::convert::shown;
use super::errors::InvalidConfig;
use crate::config::{
    CacheRam, Checkpoints, EngineConfig, KvOverride, KvValue, Named, RopeConfig, TensorOverride, ThreadPriority, Threads,
    TokenGap,
};
use crate::llama::host::machine;

/// Converts a `weft.EngineConfig`, of which an engine reads all but the settings of [`Model`](crate::llama::Model).
///
/// # Errors
/// `InvalidConfig` for the first setting with a wrong type or an unknown name.
pub(super) fn engine_config(object: &Bound<'_, PyAny>) -> PyResult<EngineConfig> {
    let settings = Settings(object);
    let threads = settings.threads(["cpus", "strict_cpu", "prio", "poll"], &Threads::default())?;
    Ok(EngineConfig {
        n_slots: settings.get("n_slots", COUNT)?,
        n_ctx: settings.get("n_ctx", COUNT)?,
        kv_unified: settings.get("kv_unified", SWITCH)?,
        n_batch: settings.get("n_batch", COUNT)?,
        n_ubatch: settings.get("n_ubatch", COUNT)?,
        grp_attn_n: settings.get("grp_attn_n", COUNT)?,
        grp_attn_w: settings.get("grp_attn_w", COUNT)?,
        n_threads: settings.get("n_threads", COUNT)?,
        n_threads_batch: settings.get("n_threads_batch", COUNT)?,
        kernels: settings.named("kernels")?,
        flash_attention: settings.named("flash_attention")?,
        pooling: settings.named_or_none("pooling")?,
        rope: RopeConfig {
            scaling: settings.named_or_none("rope_scaling_type")?,
            freq_base: settings.get("rope_freq_base", NUMBER)?,
            freq_scale: settings.get("rope_freq_scale", NUMBER)?,
            yarn_orig_ctx: settings.get("yarn_orig_ctx", COUNT)?,
            yarn_ext_factor: settings.get("yarn_ext_factor", NUMBER)?,
            yarn_attn_factor: settings.get("yarn_attn_factor", NUMBER)?,
            yarn_beta_slow: settings.get("yarn_beta_slow", NUMBER)?,
            yarn_beta_fast: settings.get("yarn_beta_fast", NUMBER)?,
        },
        threads_batch: settings.threads(["cpus_batch", "strict_cpu_batch", "prio_batch", "poll_batch"], &threads)?,
        threads,
        offload_kqv: settings.get("offload_kqv", SWITCH)?,
        op_offload: settings.get("op_offload", SWITCH)?,
        type_k: settings.named("type_k")?,
        type_v: settings.named("type_v")?,
        cache_ram: settings.cache_ram()?,
        max_queue: settings.get("max_queue", COUNT)?,
        max_token_gap: settings.max_token_gap()?,
        checkpoints: Checkpoints {
            n_most: settings.get("ctx_checkpoints", COUNT)?,
            min_step: settings.get("checkpoint_min_step", COUNT)?,
        },
    })
}

const COUNT: &str = "an integer from 0 to 2³² − 1";
const NUMBER: &str = "a number";
const SWITCH: &str = "True or False";

/// The attributes of a `weft.EngineConfig`.
struct Settings<'a, 'py>(&'a Bound<'py, PyAny>);

impl<'py> Settings<'_, 'py> {
    /// Converts a setting that must be `what`.
    fn get<T: FromPyObjectOwned<'py>>(&self, name: &'static str, what: &str) -> PyResult<T> {
        convert(name, what, &self.0.getattr(name)?)
    }

    fn named<T: Named>(&self, name: &'static str) -> PyResult<T> {
        named(name, &self.get::<String>(name, "a string")?)
    }

    fn named_or_none<T: Named>(&self, name: &'static str) -> PyResult<Option<T>> {
        self.get::<Option<String>>(name, "a string or None")?.map(|text| named(name, &text)).transpose()
    }

    /// Converts the settings of a group of threads by their names; `default` supplies missing values.
    fn threads(&self, [cpus, strict_cpu, prio, poll]: [&'static str; 4], default: &Threads) -> PyResult<Threads> {
        let priority = |number: i32| {
            let message = || format!("{prio} is {number}; it must be -1 (low), 0 (normal), 1 (medium), 2 (high) or 3 (realtime)");
            ThreadPriority::numbered(number).ok_or_else(|| InvalidConfig::new_err((prio, message())))
        };
        let cpus: Option<Vec<u32>> = self.get(cpus, "a sequence of processors, from 0")?;
        let is_strict: Option<bool> = self.get(strict_cpu, SWITCH)?;
        let number: Option<i32> = self.get(prio, "an integer from -1 to 3")?;
        let poll: Option<u32> = self.get(poll, COUNT)?;
        Ok(Threads {
            cpus: cpus.unwrap_or_else(|| default.cpus.clone()),
            is_strict: is_strict.unwrap_or(default.is_strict),
            priority: number.map_or(Ok(default.priority), priority)?,
            poll: poll.or(default.poll),
        })
    }

    /// Converts a size of host memory in MiB; -1 is unlimited.
    fn cache_ram(&self) -> PyResult<CacheRam> {
        const WHAT: &str = "a number of MiB, or -1 for no limit";
        let n_mib: Option<i64> = self.get("cache_ram", WHAT)?;
        match n_mib {
            None => Ok(CacheRam::Default),
            Some(-1) => Ok(CacheRam::Unlimited),
            Some(n_mib) => u64::try_from(n_mib)
                .ok()
                .and_then(|n_mib| n_mib.checked_mul(1 << 20))
                .map(CacheRam::Bytes)
                .ok_or_else(|| InvalidConfig::new_err(("cache_ram", format!("cache_ram is {n_mib}; it must be {WHAT}")))),
        }
    }

    fn max_token_gap(&self) -> PyResult<TokenGap> {
        let Some(ms) = self.get::<Option<f64>>("max_token_gap_ms", NUMBER)? else { return Ok(TokenGap::Auto) };
        let reject = |_| InvalidConfig::new_err(("max_token_gap_ms", format!("max_token_gap_ms is {ms}; it must be 0 or more")));
        Duration::try_from_secs_f64(ms / 1000.0).map(TokenGap::AtMost).map_err(reject)
    }
}

fn convert<'py, T: FromPyObjectOwned<'py>>(name: &'static str, what: &str, value: &Bound<'py, PyAny>) -> PyResult<T> {
    value.extract().map_err(|_| InvalidConfig::new_err((name, format!("{name} is {}; it must be {what}", shown(value)))))
}

/// Converts a count, if any.
///
/// # Errors
/// `InvalidConfig` for anything but an integer from 0 to 2³² − 1.
pub(super) fn count(name: &'static str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u32>> {
    value.map(|value| convert(name, COUNT, value)).transpose()
}

/// Parses the name of a choice.
///
/// # Errors
/// `InvalidConfig` for an unknown name, with the valid ones.
pub(super) fn named<T: Named>(param: &'static str, name: &str) -> PyResult<T> {
    T::named(name).ok_or_else(|| {
        let names: Vec<&str> = T::NAMES.iter().map(|(name, _)| *name).collect();
        let (last, others) = names.split_last().expect("there are names");
        InvalidConfig::new_err((param, format!("{param} is '{name}'; it must be {} or {last}", others.join(", "))))
    })
}

/// Checks the proportions of GPUs.
///
/// # Errors
/// `InvalidConfig` for a proportion that is negative or not finite, and if all are 0.
pub(super) fn tensor_split(proportions: Vec<f32>) -> PyResult<Vec<f32>> {
    let is_valid = |proportion: &f32| proportion.is_finite() && *proportion >= 0.0;
    if proportions.iter().all(is_valid) && (proportions.is_empty() || proportions.iter().any(|proportion| *proportion > 0.0)) {
        return Ok(proportions);
    }
    let message = format!("tensor_split is {proportions:?}; it must be numbers of 0 or more, not all of them 0");
    Err(InvalidConfig::new_err(("tensor_split", message)))
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
            let types = "True or False, an integer of 32 bits, a finite number or a string";
            InvalidConfig::new_err(("kv_overrides", format!("{key} is {}; it must be {types}", shown(&value))))
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
