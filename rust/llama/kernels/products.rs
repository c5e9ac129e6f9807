//! `GGML_OP_MUL_MAT` as slices.

use llama_cpp_sys_2 as sys;

use super::{ComputeParams, GgmlTeam};

pub(super) fn scratch_bytes(_op: &sys::ggml_tensor, _n_threads: usize) -> Option<usize> {
    None
}

pub(super) fn compute(_op: &sys::ggml_tensor, _params: &ComputeParams, _team: &GgmlTeam) -> bool {
    false
}
