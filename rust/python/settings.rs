//! Conversion of `weft.EngineConfig`. Errors name the setting; [`EngineConfig::resolve`] and loading a model check the ranges.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use super::convert::{COUNT, NUMBER, SWITCH, shorten_repr};
use super::errors::{InvalidConfigError, invalid_config};
use crate::config::{
    AdapterConfig, CacheRam, Checkpoints, DraftKind, DraftModelConfig, EngineConfig, KvOverride, KvValue, LoadScope, MediaConfig,
    ModelConfig, Named, Placement, RopeConfig, SpeculationConfig, TensorOverride, ThreadPriority, Threads, TokenGap,
    TunedSettings,
};
use crate::llama::host::machine;

pub(super) fn read_model_config(path: PathBuf, object: Option<&Bound<'_, PyAny>>) -> PyResult<ModelConfig> {
    let Some(object) = object else { return Ok(ModelConfig::at(path)) };
    let settings = Settings(object);
    let mmproj: Option<PathBuf> = settings.get("mmproj", "a path or None")?;
    let has_projector = mmproj.is_some();
    let media = MediaConfig {
        path: mmproj.unwrap_or_default(),
        offload: settings.get("mmproj_offload", SWITCH)?,
        image_min_tokens: settings.get("image_min_tokens", COUNT)?,
        image_max_tokens: settings.get("image_max_tokens", COUNT)?,
    };
    media.validate()?;
    let draft = settings.read_draft_model()?;
    let adapters: Vec<(PathBuf, f32)> = settings.get("lora", "a sequence of pairs of a file and a scale")?;
    let tensors: Vec<(String, String)> = settings.get("tensor_overrides", "a sequence of pairs of a pattern and a memory")?;
    Ok(ModelConfig {
        path,
        n_gpu_layers: settings.get("n_gpu_layers", COUNT)?,
        use_mmap: settings.get("use_mmap", SWITCH)?,
        use_mlock: settings.get("use_mlock", SWITCH)?,
        use_direct_io: settings.get("direct_io", SWITCH)?,
        check_tensors: settings.get("check_tensors", SWITCH)?,
        placement: Placement {
            devices: settings.get("devices", "a sequence of names or None")?,
            split: settings.get_named("split_mode")?,
            main_gpu: settings.get("main_gpu", COUNT)?,
            tensor_split: settings.read_tensor_split()?,
            numa: settings.get_named_or_none("numa")?,
            tensors: tensors.into_iter().map(|(pattern, buffer)| TensorOverride { pattern, buffer }).collect(),
            cpu_moe: settings.get("cpu_moe", SWITCH)?,
            n_cpu_moe: settings.get("n_cpu_moe", COUNT)?,
            n_cpu_ffn: settings.get("n_cpu_ffn", COUNT)?,
            no_host: settings.get("no_host", SWITCH)?,
        },
        kernels: settings.get_named("kernels")?,
        repack: settings.get("repack", "True, False or None")?,
        adapters: adapters.into_iter().map(|(path, scale)| AdapterConfig { path, scale }).collect(),
        overrides: read_kv_overrides(settings.get("kv_overrides", "a sequence of pairs of a key and a value")?)?,
        media: has_projector.then_some(media),
        load_mtp: draft.as_ref().is_some_and(|draft| draft.path.is_none()),
        draft,
        is_draft: false,
        scope: LoadScope::All,
    })
}

pub(super) fn read_engine_config(object: &Bound<'_, PyAny>) -> PyResult<EngineConfig> {
    let settings = Settings(object);
    let threads = settings.read_threads(["cpus", "strict_cpu", "prio", "poll"], &Threads::default())?;
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
        kernels: settings.get_named("kernels")?,
        flash_attention: settings.get_named("flash_attention")?,
        pooling: settings.get_named_or_none("pooling")?,
        rope: RopeConfig {
            scaling: settings.get_named_or_none("rope_scaling_type")?,
            freq_base: settings.get("rope_freq_base", NUMBER)?,
            freq_scale: settings.get("rope_freq_scale", NUMBER)?,
            yarn_orig_ctx: settings.get("yarn_orig_ctx", COUNT)?,
            yarn_ext_factor: settings.get("yarn_ext_factor", NUMBER)?,
            yarn_attn_factor: settings.get("yarn_attn_factor", NUMBER)?,
            yarn_beta_slow: settings.get("yarn_beta_slow", NUMBER)?,
            yarn_beta_fast: settings.get("yarn_beta_fast", NUMBER)?,
        },
        threads_batch: settings.read_threads(["cpus_batch", "strict_cpu_batch", "prio_batch", "poll_batch"], &threads)?,
        threads,
        offload_kqv: settings.get("offload_kqv", SWITCH)?,
        op_offload: settings.get("op_offload", SWITCH)?,
        type_k: settings.get_named("type_k")?,
        type_v: settings.get_named("type_v")?,
        cache_ram: settings.read_cache_ram()?,
        max_queue: settings.get("max_queue", COUNT)?,
        max_token_gap: settings.read_max_token_gap()?,
        checkpoints: Checkpoints {
            max_per_prompt: settings.get("ctx_checkpoints", COUNT)?,
            min_step: settings.get("checkpoint_min_step", COUNT)?,
        },
        speculation: SpeculationConfig {
            mode: settings.get_named("speculation")?,
            max_draft: settings.get("max_draft", "an integer from 0 to 64 or None")?,
            min_match: settings.get("min_draft_match", COUNT)?,
            // A setting of tests, which the class does not have.
            row_percent: object.getattr_opt("draft_row_percent")?.map(|value| value.extract()).transpose()?,
        },
    })
}

struct Settings<'a, 'py>(&'a Bound<'py, PyAny>);

impl<'py> Settings<'_, 'py> {
    /// Converts a setting that must be `what`.
    fn get<T: FromPyObjectOwned<'py>>(&self, name: &'static str, what: &str) -> PyResult<T> {
        let value = self.0.getattr(name)?;
        value.extract().map_err(|_| invalid_config(name, shorten_repr(&value), what))
    }

    fn get_named<T: Named>(&self, name: &'static str) -> PyResult<T> {
        parse_named(name, &self.get::<String>(name, "a string")?)
    }

    fn get_named_or_none<T: Named>(&self, name: &'static str) -> PyResult<Option<T>> {
        self.get::<Option<String>>(name, "a string or None")?.map(|text| parse_named(name, &text)).transpose()
    }

    /// Converts the settings of a group of threads by their names; `default` supplies missing values.
    fn read_threads(&self, [cpus, strict_cpu, prio, poll]: [&'static str; 4], default: &Threads) -> PyResult<Threads> {
        const PRIORITIES: &str = "-1 (low), 0 (normal), 1 (medium), 2 (high) or 3 (realtime)";
        let priority = |number| ThreadPriority::from_number(number).ok_or_else(|| invalid_config(prio, number, PRIORITIES));
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

    fn read_draft_model(&self) -> PyResult<Option<DraftModelConfig>> {
        let path: Option<PathBuf> = self.get("draft_model", "a path or None")?;
        let kind: Option<DraftKind> = self.get_named_or_none("draft_type")?;
        let is_requested = path.is_some() || kind.is_some();
        let tensors: Vec<(String, String)> =
            self.get("draft_tensor_overrides", "a sequence of pairs of a pattern and a memory")?;
        let draft = DraftModelConfig {
            path,
            kind,
            n_gpu_layers: self.get("draft_n_gpu_layers", COUNT)?,
            placement: Placement {
                devices: self.get("draft_devices", "a sequence of names or None")?,
                tensors: tensors.into_iter().map(|(pattern, buffer)| TensorOverride { pattern, buffer }).collect(),
                cpu_moe: self.get("draft_cpu_moe", SWITCH)?,
                n_cpu_moe: self.get("draft_n_cpu_moe", COUNT)?,
                ..Placement::default()
            },
            type_k: self.get_named("draft_type_k")?,
            type_v: self.get_named("draft_type_v")?,
            min_p: self.get("draft_min_p", NUMBER)?,
        };
        draft.validate()?;
        Ok(is_requested.then_some(draft))
    }

    fn read_cache_ram(&self) -> PyResult<CacheRam> {
        const WHAT: &str = "a number of MiB, or -1 for no limit";
        let n_mib: Option<i64> = self.get("cache_ram", WHAT)?;
        match n_mib {
            None => Ok(CacheRam::Default),
            Some(-1) => Ok(CacheRam::Unlimited),
            Some(n_mib) => u64::try_from(n_mib)
                .ok()
                .and_then(|n_mib| n_mib.checked_mul(1 << 20))
                .map(CacheRam::Bytes)
                .ok_or_else(|| invalid_config("cache_ram", n_mib, WHAT)),
        }
    }

    fn read_max_token_gap(&self) -> PyResult<TokenGap> {
        let Some(ms) = self.get::<Option<f64>>("max_token_gap_ms", NUMBER)? else { return Ok(TokenGap::Auto) };
        let gap = Duration::try_from_secs_f64(ms / 1000.0).map_err(|_| invalid_config("max_token_gap_ms", ms, "0 or more"))?;
        Ok(TokenGap::AtMost(gap))
    }

    fn read_tensor_split(&self) -> PyResult<Vec<f32>> {
        const WHAT: &str = "numbers of 0 or more, not all of them 0";
        let proportions: Vec<f32> = self.get("tensor_split", WHAT)?;
        let is_valid = |proportion: &f32| proportion.is_finite() && *proportion >= 0.0;
        if proportions.is_empty() || (proportions.iter().all(is_valid) && proportions.iter().any(|proportion| *proportion > 0.0))
        {
            return Ok(proportions);
        }
        Err(invalid_config("tensor_split", format!("{proportions:?}"), WHAT))
    }
}

pub(super) fn parse_named<T: Named>(param: &'static str, name: &str) -> PyResult<T> {
    T::named(name).ok_or_else(|| {
        let names: Vec<&str> = T::NAMES.iter().map(|(name, _)| *name).collect();
        let (last, others) = names.split_last().expect("there are names");
        invalid_config(param, format!("'{name}'"), &format!("{} or {last}", others.join(", ")))
    })
}

/// Settings that tuning measured, as `Tuning.best` has them.
pub(super) type TunedInput = (Option<bool>, u32, u32);

pub(super) fn to_tuned_settings((flash_attention, n_threads, n_threads_batch): TunedInput) -> TunedSettings {
    TunedSettings { flash_attention, n_threads, n_threads_batch }
}

pub(super) fn read_kv_overrides(given: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Vec<KvOverride>> {
    let read = |(key, value): (String, Bound<'_, PyAny>)| {
        // A boolean is an integer too, and an integer that is too large would be converted to a float.
        let converted = match &value {
            value if value.is_instance_of::<PyBool>() => value.extract().ok().map(KvValue::Bool),
            value if value.is_instance_of::<PyInt>() => value.extract().ok().map(KvValue::Int),
            value if value.is_instance_of::<PyFloat>() => value.extract().ok().map(KvValue::Float),
            value if value.is_instance_of::<PyString>() => value.extract().ok().map(KvValue::Text),
            _ => None,
        };
        let value = converted.ok_or_else(|| {
            let types = "True or False, an integer of 32 bits, a finite number or a string";
            InvalidConfigError::new_err(("kv_overrides", format!("{key} is {}; it must be {types}", shorten_repr(&value))))
        })?;
        Ok(KvOverride { key, value })
    };
    given.into_iter().map(read).collect()
}

#[pyfunction]
pub(super) fn devices() -> Vec<(String, String, u64, u64)> {
    machine::devices()
}

#[pyfunction]
pub(super) fn schema_grammar(py: Python<'_>, schema: &str) -> PyResult<String> {
    Ok(py.detach(|| crate::llama::schema_grammar(schema))?)
}
