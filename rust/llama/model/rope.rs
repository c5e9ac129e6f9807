//! Position encoding (`RoPE`) of a context.

use llama_cpp_sys_2 as sys;

use crate::config::{RopeConfig, RopeScaling};
use crate::llama::model::Model;

pub(crate) fn apply(rope: &RopeConfig, params: &mut sys::llama_context_params) {
    if let Some(scaling) = rope.scaling {
        params.rope_scaling_type = match scaling {
            RopeScaling::None => sys::LLAMA_ROPE_SCALING_TYPE_NONE,
            RopeScaling::Linear => sys::LLAMA_ROPE_SCALING_TYPE_LINEAR,
            RopeScaling::Yarn => sys::LLAMA_ROPE_SCALING_TYPE_YARN,
        };
    }
    for (field, value) in [
        (&mut params.rope_freq_base, rope.freq_base),
        (&mut params.rope_freq_scale, rope.freq_scale),
        (&mut params.yarn_ext_factor, rope.yarn_ext_factor),
        (&mut params.yarn_attn_factor, rope.yarn_attn_factor),
        (&mut params.yarn_beta_slow, rope.yarn_beta_slow),
        (&mut params.yarn_beta_fast, rope.yarn_beta_fast),
    ] {
        #[expect(clippy::cast_possible_truncation, reason = "it is within the bounds of a setting")]
        let value = value.map(|value| value as f32);
        *field = value.unwrap_or(*field);
    }
    params.yarn_orig_ctx = rope.yarn_orig_ctx.unwrap_or(params.yarn_orig_ctx);
}

impl Model {
    /// Maximum length of a text, in tokens; at least the training length.
    pub(crate) fn reach(&self, rope: &RopeConfig) -> u32 {
        if !self.has_rotations() {
            return self.n_ctx_train();
        }
        rope.max_context(self.n_ctx_train(), self.inner.get(sys::llama_model_rope_freq_scale_train))
    }

    /// Otherwise positions are looked up in a table, beyond whose end llama.cpp ends the process.
    pub(crate) fn has_rotations(&self) -> bool {
        !self.has_position_table && self.inner.get(sys::llama_model_rope_type) != sys::LLAMA_ROPE_TYPE_NONE
    }

    pub(crate) fn log_scaling(&self, rope: &RopeConfig) {
        if *rope == RopeConfig::default() {
            return;
        }
        let words = rope.describe();
        if self.has_rotations() {
            let (reach, n_ctx_train) = (self.reach(rope), self.n_ctx_train());
            tracing::info!("position encoding: {words}; context of up to {reach} tokens, trained with {n_ctx_train}");
        } else {
            tracing::warn!("{words} has no effect: models of the architecture {} do not use RoPE", self.architecture());
        }
    }
}
