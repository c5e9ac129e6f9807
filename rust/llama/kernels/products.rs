//! Converts `GGML_OP_MUL_MAT` and `GGML_OP_MUL_MAT_ID` to slices.

use llama_cpp_sys_2 as sys;

use crate::kernels::products::{self, ExpertChoices, Experts, ProductOutput, Rows, WeightFormat, Weights};
use crate::llama::kernels::tensor::{self, scratch, size_of, stride};
use crate::llama::kernels::{GgmlTeam, level};

enum Product<'a> {
    Plain(Weights<'a>, Rows<'a>),
    ByExpert(Experts<'a>, ExpertChoices<'a>, Rows<'a>),
}

pub(super) fn scratch_bytes(op: &sys::ggml_tensor, n_threads: usize) -> Option<usize> {
    let needed = match read(op)? {
        Product::Plain(Weights { format, n_in, n_out, .. }, Rows { n_rows, .. }) => {
            products::scratch_bytes(level(), format, n_in, n_out, n_rows, n_threads)
        }
        Product::ByExpert(experts, ExpertChoices { n_tokens, n_used, .. }, _) => {
            products::scratch_bytes_by_expert(level(), &experts, n_tokens * n_used, n_threads)
        }
    };
    Some(tensor::HEADER + needed)
}

pub(super) fn compute(op: &sys::ggml_tensor, team: &GgmlTeam) -> bool {
    let Some(product) = read(op) else { return false };
    let (_, scratch) = scratch(team.params);
    // SAFETY: ggml gives an operation's result its own memory, and it is contiguous.
    let values = unsafe { tensor::result(op) };
    let out = ProductOutput { values: &values, row_stride: size_of(op, 0) };
    match product {
        Product::Plain(weights, rows) => products::multiply(level(), &weights, &rows, &out, &scratch, team),
        Product::ByExpert(experts, choices, rows) => {
            products::multiply_by_expert(level(), &experts, &choices, &rows, &out, &scratch, team);
        }
    }
    true
}

pub(super) fn covers(kind: sys::ggml_type, n_in: usize, n_out: usize) -> bool {
    format(kind).is_some_and(|format| products::covers(level(), format, n_in, n_out))
}

fn read(op: &sys::ggml_tensor) -> Option<Product<'_>> {
    let [weights, rows, choices] = tensor::sources(op);
    let (weights, rows) = (weights?, rows?);
    let format = format(weights.type_)?;
    let [n_in, n_out, n_experts, n] = [0, 1, 2, 3].map(|i| size_of(weights, i));
    if !products::covers(level(), format, n_in, n_out) {
        return None;
    }
    let is_by_expert = op.op == sys::GGML_OP_MUL_MAT_ID;
    let is_ours = stride(weights, 1) == format.row_bytes(n_in)
        && n == 1
        && (is_by_expert || n_experts == 1)
        && !is_rotation(op)
        && is_weight(weights)
        && [rows, op].into_iter().all(|tensor| tensor.type_ == sys::GGML_TYPE_F32 && tensor::is_contiguous(tensor))
        && size_of(rows, 0) == n_in
        && size_of(op, 0) == n_out;
    if !is_ours {
        return None;
    }
    let n_bytes = (n_experts - 1) * stride(weights, 2) + n_out * stride(weights, 1);
    let n_rows = [1, 2, 3].map(|i| size_of(rows, i)).iter().product();
    // SAFETY: both tensors are alive, readable by the CPU, and as large as described; no thread writes them meanwhile.
    let (bytes, values) = unsafe {
        (std::slice::from_raw_parts(weights.data.cast(), n_bytes), std::slice::from_raw_parts(rows.data.cast(), n_rows * n_in))
    };
    let matrix = Weights { bytes, format, n_in, n_out, row_stride: stride(weights, 1) };
    let rows = Rows { values, n_rows, row_stride: n_in };
    if !is_by_expert {
        return Some(Product::Plain(matrix, rows));
    }
    let choices = choices?;
    let (n_used, n_tokens) = (size_of(choices, 0), size_of(choices, 1));
    let are_numbers = choices.type_ == sys::GGML_TYPE_I32 && stride(choices, 0) == 4 && stride(choices, 1).is_multiple_of(4);
    let are_flat = size_of(choices, 2) == 1 && size_of(choices, 3) == 1;
    if !(are_numbers && are_flat && n_tokens > 0 && [n_tokens, n_used * n_tokens].contains(&n_rows)) {
        return None;
    }
    let n_numbers = tensor::span(choices, [n_tokens, 1], 4 * n_used) / 4;
    // SAFETY: as above; the choices are 32-bit integers.
    let experts = unsafe { std::slice::from_raw_parts(choices.data.cast(), n_numbers) };
    let choices = ExpertChoices { experts, n_tokens, n_used, stride: stride(choices, 1) / 4 };
    Some(Product::ByExpert(Experts { weights: matrix, n_experts, expert_stride: stride(weights, 2) }, choices, rows))
}

pub(super) fn is_rotation(op: &sys::ggml_tensor) -> bool {
    op.op != sys::GGML_OP_FLASH_ATTN_EXT && op.op_params[1] != 0
}

/// A cache's keys are not weights, and repacked weights are not in a host buffer.
fn is_weight(tensor: &sys::ggml_tensor) -> bool {
    if tensor.buffer.is_null() || tensor.data.is_null() {
        return false;
    }
    // SAFETY: a tensor's buffer lives as long as the tensor.
    unsafe {
        sys::ggml_backend_buffer_is_host(tensor.buffer)
            && (sys::ggml_backend_buffer_get_usage(tensor.buffer) == sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS
                || is_of_adapter(tensor))
    }
}

/// llama.cpp does not set the usage of adapters' buffers.
fn is_of_adapter(tensor: &sys::ggml_tensor) -> bool {
    let n = tensor.name.iter().position(|&byte| byte == 0).unwrap_or(tensor.name.len());
    let name = tensor.name.map(|byte| byte.to_ne_bytes()[0]);
    name[..n].ends_with(b".lora_a") || name[..n].ends_with(b".lora_b")
}

fn format(kind: sys::ggml_type) -> Option<WeightFormat> {
    Some(match kind {
        sys::GGML_TYPE_Q8_0 => WeightFormat::Q8_0,
        sys::GGML_TYPE_Q4_0 => WeightFormat::Q4_0,
        sys::GGML_TYPE_Q4_1 => WeightFormat::Q4_1,
        sys::GGML_TYPE_Q5_0 => WeightFormat::Q5_0,
        sys::GGML_TYPE_Q5_1 => WeightFormat::Q5_1,
        sys::GGML_TYPE_IQ4_NL => WeightFormat::Iq4Nl,
        sys::GGML_TYPE_IQ4_XS => WeightFormat::Iq4Xs,
        sys::GGML_TYPE_MXFP4 => WeightFormat::Mxfp4,
        sys::GGML_TYPE_Q2_K => WeightFormat::Q2K,
        sys::GGML_TYPE_Q3_K => WeightFormat::Q3K,
        sys::GGML_TYPE_Q4_K => WeightFormat::Q4K,
        sys::GGML_TYPE_Q5_K => WeightFormat::Q5K,
        sys::GGML_TYPE_Q6_K => WeightFormat::Q6K,
        sys::GGML_TYPE_F16 => WeightFormat::F16,
        sys::GGML_TYPE_BF16 => WeightFormat::Bf16,
        sys::GGML_TYPE_F32 => WeightFormat::F32,
        _ => return None,
    })
}
